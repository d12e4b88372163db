"""What both services share: requests of theirs as requests of the protocol, and answers of the protocol as theirs.

Neither service hands on a header of the client's that says where JSON ends and tensors begin. So both have it in the type of
the body: ``application/vnd.<service>-triton.binary+json;json-header-size=<bytes>``.
"""

from __future__ import annotations

from pytriton_lite.frontends.listener import AsgiApp, Message, Receive, Scope, Send

_LENGTH = b"inference-header-content-length"
_TYPE = b"content-type"

Headers = list[tuple[bytes, bytes]]


class WrongType(ValueError):
    """A content type with a header size that is none; the text is for the client."""


def readdressed(scope: Scope, path: str, *, method: str | None = None, headers: Headers | None = None) -> Scope:
    """*scope* as if *path* had been asked for."""
    changed = dict(scope, path=path, raw_path=path.encode())
    if method is not None:
        changed["method"] = method
    if headers is not None:
        changed["headers"] = headers
    return changed


def with_length(headers: Headers, mime_type: bytes) -> Headers:
    """*headers* with the header of the protocol in place of a content type that begins with *mime_type*.

    Raises WrongType for a size that is no whole number. Whether the body has so many bytes is seen where it is read.
    """
    kept: Headers = []
    length: bytes | None = None
    for name, value in headers:
        at = value.find(mime_type) if name == _TYPE else -1
        if at < 0:
            if name != _LENGTH:
                kept.append((name, value))
            continue
        if at > 0:
            raise WrongType(
                f"expect MIME type for binary data starts with '{mime_type.decode()}', got: {value.decode('latin-1')}"
            )
        # Clients add parameters of their own to it, as in "; charset=utf-8".
        length = value[len(mime_type) :].partition(b";")[0].strip()
        if not length.isdigit():
            raise WrongType(f"Unable to parse inference header size, got: {length.decode('latin-1')}")
    if length is not None:
        kept += [(_LENGTH, length), (_TYPE, b"application/octet-stream")]
    return kept


def typed_answers(app: AsgiApp, mime_type: bytes) -> AsgiApp:
    """*app*, whose answers say by their type where tensors begin."""

    async def typed(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_typed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = _typed(list(message["headers"]), mime_type)
            await send(message)

        await app(scope, receive, send_typed)

    return typed


def _typed(headers: Headers, mime_type: bytes) -> Headers:
    length = next((value for name, value in headers if name.lower() == _LENGTH), None)
    if length is None:
        return headers
    kept = [(name, value) for name, value in headers if name.lower() not in (_LENGTH, _TYPE)]
    return [*kept, (_TYPE, mime_type + length)]


async def send_empty(send: Send, status: int) -> None:
    """Answer with *status* and no body, as Triton does on these routes."""
    headers = [(b"content-length", b"0"), (b"content-type", b"text/plain")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
