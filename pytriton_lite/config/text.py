"""config.pbtxt to message: protobuf's text format, as its C++ parser reads it (model_config.md, section 2).

protobuf's Python parser has the same grammar and another idea of what a token is: it takes ``1_000`` and ``0b10`` for
numbers, a no-break space for a blank, ``\\q`` for an escape. So the text is cut into tokens here, by the rules of the C++
tokenizer, and the Python parser is given one token on each line. Its errors then name a token, and the token knows
where in the file it stood.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from google.protobuf import text_format

from pytriton_lite.config.errors import PollError
from pytriton_lite.proto import model_config_pb

_BLANK = re.compile(r"(?:[ \t\r\n\v\f]+|#[^\n]*)*")
_TOKEN = re.compile(
    r"""(?P<identifier>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<number>0[xX][0-9a-fA-F]+|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?)
      | (?P<string>"(?:[^"\\\n]|\\[^\n])*"|'(?:[^'\\\n]|\\[^\n])*')
      | (?P<symbol>[!-~])""",
    re.VERBOSE,
)
_OCTAL = re.compile(r"0[0-7]+")
_GLUED = re.compile(r"[A-Za-z.]")
_ESCAPE = re.compile(
    r"""\\(?: (?P<octal>[0-7]{1,3})
            | [xX](?P<hex>[0-9a-fA-F]{1,2})
            | (?P<utf16>u[0-9a-fA-F]{4}(?:\\u[0-9a-fA-F]{4})*)
            | U(?P<utf32>[0-9a-fA-F]{8})
            | (?P<single>[abfnrtv\\?'"])
            | (?P<bad>.) )""",
    re.VERBOSE,
)
_PYTHON_LIB = 'has no field named "python_lib".'
"""What tutorials write for the place of a model's code (model API, section 9)."""
_SINGLE = dict(zip("abfnrtv\\?'\"", b"\a\b\f\n\r\t\v\\?'\""))


@dataclass(frozen=True)
class _Token:
    text: str
    """As the Python parser shall see it: escapes in one spelling, a minus in front of its number."""
    start: int
    """Offset in the file's text."""


class _Refused(Exception):
    """What is wrong at *offset* of the text."""

    def __init__(self, offset: int, message: str) -> None:
        super().__init__(message)
        self.offset = offset


def parse_model_config(text: str, *, source: str) -> model_config_pb.ModelConfig:
    """Parse the text of a config.pbtxt; *source*, its path, begins every error.

    Bytes of the file that are no UTF-8 may stand in *text* as surrogate escapes; inside a comment they do no harm.
    Raises PollError with ``<source>:<line>:<column>: <what was expected, what came>``, both counted from 1.
    """
    try:
        return _parse(text, list(_tokens(text)))
    except _Refused as refused:
        line = text.count("\n", 0, refused.offset) + 1
        column = refused.offset - (text.rfind("\n", 0, refused.offset) + 1) + 1
        raise PollError(f"{source}:{line}:{column}: {refused}") from None


def _tokens(text: str) -> Iterator[_Token]:
    at = _skip_blank(text, 0)
    while at < len(text):
        start = at
        minus = ""
        found = _next(text, at)
        if found.group() == "-":
            # To the C++ parser a minus is a token of its own: blanks may follow it.
            after = _skip_blank(text, found.end())
            operand = _TOKEN.match(text, after)
            if operand is not None and operand.lastgroup in ("number", "identifier"):
                minus, found = "-", _next(text, after)
        yield _Token(minus + _spelling(found), start)
        at = _skip_blank(text, found.end())


def _skip_blank(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return at if blank is None else blank.end()


def _next(text: str, at: int) -> re.Match[str]:
    found = _TOKEN.match(text, at)
    if found is None:
        _refuse_character(text[at], at)
    if found.lastgroup == "symbol" and found.group() in "\"'":
        raise _Refused(at, "string literal has no closing quote on its line")
    if found.lastgroup == "number" and _GLUED.match(text, found.end()):
        raise _Refused(found.end(), f"need space between number and identifier, got {text[at : found.end() + 1]!r}")
    return found


def _refuse_character(character: str, at: int) -> NoReturn:
    first_byte = character.encode("utf-8", "surrogateescape")[0]
    if first_byte < 0x80:
        raise _Refused(at, f"invalid control character {first_byte:#04x}")
    hint = ", the byte-order mark: save the file without it" if character == "\ufeff" else ""
    raise _Refused(at, f"Interpreting non ascii codepoint {first_byte}{hint}")


def _spelling(found: re.Match[str]) -> str:
    """The token as the Python parser shall see it.

    It reads C's octal numbers everywhere but for an enum, and protobuf 4 does not know the suffix ``F``.
    """
    written = found.group()
    if found.lastgroup == "string":
        return _spell_string(written, found.start())
    if found.lastgroup == "number":
        return f"0o{written[1:]}" if _OCTAL.fullmatch(written) else written.lower()
    return written


def _spell_string(literal: str, start: int) -> str:
    """The string *literal* with every escape decoded and what is not printable ASCII written in octal."""
    content = bytearray()
    at = 1
    end = len(literal) - 1
    while at < end:
        escape = _ESCAPE.match(literal, at, end)
        if escape is None:
            content += literal[at].encode("utf-8", "surrogateescape")
            at += 1
        else:
            content += _unescape(escape, start)
            at = escape.end()
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        raise _Refused(start, "string literal is not valid UTF-8") from None
    plain = (chr(byte) if 0x20 <= byte < 0x7F and byte not in b"\"'\\" else f"\\{byte:03o}" for byte in content)
    return '"' + "".join(plain) + '"'


def _unescape(escape: re.Match[str], literal_start: int) -> bytes:
    kind, value = escape.lastgroup, escape.group(escape.lastgroup or 0)
    if kind == "single":
        return bytes([_SINGLE[value]])
    if kind == "octal":
        return bytes([int(value, 8) & 0xFF])
    if kind == "hex":
        return bytes([int(value, 16)])
    try:
        if kind == "utf16":
            return bytes.fromhex(re.sub(r"\\?u", "", value)).decode("utf-16-be").encode()
        if kind == "utf32":
            return chr(int(value, 16)).encode()
    except (ValueError, OverflowError):
        pass  # half of a surrogate pair, or beyond the last code point
    raise _Refused(literal_start + escape.start(), f"Invalid escape sequence in string literal: {escape.group()}")


def _parse(text: str, tokens: Sequence[_Token]) -> model_config_pb.ModelConfig:
    message = model_config_pb.ModelConfig()
    lines = iter([token.text for token in tokens])
    try:
        text_format.ParseLines(lines, message)
    except text_format.ParseError as error:
        raise _explain(error, text, tokens) from None
    except ValueError as error:
        # An enum's number that no int32 holds is refused by the message, not by the parser, which has read one more
        # token by then.
        value = len(tokens) - len(list(lines)) - 2
        raise _Refused(tokens[value].start, f"{error}, got {tokens[value].text!r}") from None
    return message


def _explain(error: text_format.ParseError, text: str, tokens: Sequence[_Token]) -> _Refused:
    """The parser's complaint about one of our lines, as one about the token that stood there."""
    line, column = error.GetLine(), error.GetColumn()
    message = str(error).removeprefix(f"{line}:{column} : ")
    if message.startswith("'': "):
        return _Refused(len(text), message.removeprefix("'': ").rstrip(".") + ", got the end of the file")
    token = tokens[line - 1]
    at_token = f"'{token.text}': "
    if not message.startswith(at_token):  # about a token already read: the message names it
        if message.startswith("Expected"):  # a message that was never closed
            message = message.rstrip(".") + ", got the end of the file"
        if message.endswith(_PYTHON_LIB):
            message += " A model's code is <version>/model.py, or the file there that default_model_filename names."
        return _Refused(token.start, message)
    message = message.removeprefix(at_token).rstrip(".")
    return _Refused(token.start, message if token.text in message else f"{message}, got {token.text}")
