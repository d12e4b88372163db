"""Forms with files: bodies of multipart/form-data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pytriton_lite.openai.errors import ApiError

_MOST_PARTS = 64
_MOST_TEXT = 1 << 20
_LONGEST_TYPE = 1024
"""Bytes of a Content-Type, whose boundary has 70 at most. A head's worth of parameters takes the parser a tenth of a second."""


@dataclass
class Form:
    """The parts of a form by their names; of several with one name the first."""

    texts: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)


def read_form(body: bytes | bytearray | memoryview, content_type: bytes) -> Form:
    """The form in *body*. Raises ApiError for what is none, and where python-multipart is missing."""
    try:
        from python_multipart.exceptions import FormParserError
        from python_multipart.multipart import MultipartParser, parse_options_header
    except ImportError:
        text = "transcriptions need python-multipart, which the server lacks: pip install 'pytriton-lite[openai]'"
        raise ApiError(text, status=500, kind="server_error") from None

    kind, options = parse_options_header(content_type if len(content_type) <= _LONGEST_TYPE else b"")
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise ApiError(
            "This route takes a form: Content-Type has to be multipart/form-data with a boundary, and at most "
            f"{_LONGEST_TYPE} bytes long.",
            status=415,
        )
    reading = _Reading(parse_options_header)
    callbacks: Any = {
        "on_part_begin": reading.begin,
        "on_part_data": reading.data,
        "on_part_end": reading.end,
        "on_header_field": reading.header_name,
        "on_header_value": reading.header_value,
        "on_header_end": reading.header_end,
        "on_end": reading.whole,
    }
    try:
        parser = MultipartParser(boundary, callbacks)
        parser.write(bytes(body))
        parser.finalize()
    except FormParserError as error:
        raise ApiError(f"We could not parse the form in the body of your request: {error}") from None
    if not reading.is_whole:
        raise ApiError("We could not parse the form in the body of your request: its end is missing.")
    return reading.form


class _Reading:
    """Puts the parts of a form together, as the parser finds them."""

    def __init__(self, parse_options: Any) -> None:
        self.form = Form()
        self.is_whole = False
        self._parse_options = parse_options
        self._parts = 0
        self._data: list[bytes] = []
        self._name = b""
        self._value = b""
        self._headers: dict[bytes, bytes] = {}

    def begin(self) -> None:
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise ApiError(f"more than {_MOST_PARTS} parts in the form")
        self._data, self._headers = [], {}

    def header_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def header_end(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def data(self, data: bytes, start: int, end: int) -> None:
        self._data.append(data[start:end])

    def end(self) -> None:
        _, options = self._parse_options(self._headers.get(b"content-disposition", b""))
        name = options.get(b"name", b"").decode("utf-8", "replace")
        content = b"".join(self._data)
        if b"filename" in options:
            self.form.files.setdefault(name, content)
            return
        if len(content) > _MOST_TEXT:
            raise ApiError(f"Invalid '{name}': the text has more than {_MOST_TEXT} bytes", param=name)
        try:
            self.form.texts.setdefault(name, content.decode())
        except UnicodeDecodeError:
            raise ApiError(f"Invalid '{name}': it is not UTF-8", param=name) from None

    def whole(self) -> None:
        self.is_whole = True
