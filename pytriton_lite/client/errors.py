"""What a client tells its user: one sentence each, for the terminal."""

from __future__ import annotations


class ClientError(Exception):
    """Something that the user has to know; the text is one sentence and names what it is about."""


def unwritable(path: str, error: OSError) -> ClientError:
    """The error that tells why the results cannot be written into the file *path*."""
    return ClientError(f"cannot write {path}: {error.strerror or error}")


class Unreachable(ClientError):
    """No connection to the server, or one that broke."""


class Refused(ClientError):
    """The server's own answer that something is wrong; the text is the server's."""

    def __init__(self, text: str, code: str) -> None:
        """*code* is the HTTP status, as in ``400``, or the name of a gRPC status, as in ``INVALID_ARGUMENT``."""
        super().__init__(text)
        self.code = code


class ForeignAnswer(ClientError):
    """Bytes that are no answer of the v2 protocol: something else listens there."""
