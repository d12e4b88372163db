"""The tokens of protobuf's text format, by the rules of its C++ tokenizer (model_config.md, section 2)."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

_BLANK = re.compile(r"(?:[ \t\r\n\v\f]+|#[^\n]*)*")
_TOKEN = re.compile(
    r"""(?P<identifier>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<integer>0[xX][0-9a-fA-F]+|0[0-9]+|[0-9]+(?![0-9.eEfF]))
      | (?P<float>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?)
      | (?P<string>"(?:[^"\\\n]|\\[^\n])*"|'(?:[^'\\\n]|\\[^\n])*')
      | (?P<symbol>[!-~])""",
    re.VERBOSE,
)
_GLUED = re.compile(r"[A-Za-z_.]")
_NO_OCTAL = re.compile(r"0[0-9]*[89][0-9]*")
_ESCAPE = re.compile(
    r"""\\(?: (?P<octal>[0-7]{1,3})
            | [xX](?P<hex>[0-9a-fA-F]{1,2})
            | (?P<utf16>u[0-9a-fA-F]{4}(?:\\u[0-9a-fA-F]{4})*)
            | U(?P<utf32>[0-9a-fA-F]{8})
            | (?P<single>[abfnrtv\\?'"])
            | (?P<bad>.) )""",
    re.VERBOSE,
)
_SINGLE = dict(zip("abfnrtv\\?'\"", b"\a\b\f\n\r\t\v\\?'\""))


class Kind(enum.Enum):
    """What a token is; the values are the groups of the pattern above."""

    IDENTIFIER = "identifier"
    INTEGER = "integer"
    """Digits alone, a minus is a token of its own."""
    FLOAT = "float"
    STRING = "string"
    SYMBOL = "symbol"
    END = "end"
    """Behind the last token: the end of the file, whose text is empty."""


class Token(NamedTuple):
    """``offset`` is where it begins in the file's text, which has ``text`` there. It may be the first of its line."""

    kind: Kind
    text: str
    offset: int
    begins_line: bool = False


class Refused(Exception):
    """What is wrong at *offset* of the text."""

    def __init__(self, offset: int, message: str) -> None:
        super().__init__(message)
        self.offset = offset
        self.message = message


def tokens_of(text: str) -> Iterator[Token]:
    """The tokens of *text*, END last. Raises Refused at what is none."""
    end = 0
    at = _skip_blank(text, 0)
    while at < len(text):
        found = _next(text, at)
        yield Token(Kind(found.lastgroup), found.group(), at, "\n" in text[end:at])
        end = found.end()
        at = _skip_blank(text, end)
    yield Token(Kind.END, "", len(text))


def _skip_blank(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return at if blank is None else blank.end()


def _next(text: str, at: int) -> re.Match[str]:
    found = _TOKEN.match(text, at)
    if found is None:
        _refuse_character(text[at], at)
    if found.group() in ("'", '"'):
        raise Refused(
            at, "String literals cannot cross line boundaries." if "\n" in text[at:] else "Unexpected end of string."
        )
    if found.lastgroup in ("integer", "float"):
        _check_number(text, found)
    return found


def _check_number(text: str, found: re.Match[str]) -> None:
    """What follows a number at once must not look like a part of it."""
    written, end = found.group(), found.end()
    following = text[end : end + 1]
    if written == "0" and following in ("x", "X"):
        raise Refused(end, '"0x" must be followed by hex digits.')
    if _NO_OCTAL.fullmatch(written):
        raise Refused(found.start(), "Numbers starting with leading zero must be in octal.")
    if _GLUED.match(following):
        is_decimal = found.lastgroup == "float" or written[0] != "0"
        if following in ("e", "E") and is_decimal:
            raise Refused(end, '"e" must be followed by exponent.')
        if following == "." and is_decimal:
            raise Refused(end, "Already saw decimal point or exponent; can't have another one.")
        if following == ".":
            raise Refused(end, "Hex and octal numbers must be integers.")
        raise Refused(end, "Need space between number and identifier.")


def _refuse_character(character: str, at: int) -> NoReturn:
    first_byte = character.encode("utf-8", "surrogateescape")[0]
    if first_byte < 0x80:
        raise Refused(at, "Invalid control characters encountered in text.")
    raise Refused(at, f"Interpreting non ascii codepoint {first_byte}.")


def string_value(token: Token) -> str:
    """What the STRING *token* stands for. Raises Refused for an escape that is none and for what is no text."""
    literal = token.text
    content = bytearray()
    at = 1
    end = len(literal) - 1
    while at < end:
        escape = _ESCAPE.match(literal, at, end)
        if escape is None:
            content += literal[at].encode("utf-8", "surrogateescape")
            at += 1
        else:
            content += _unescape(escape, token.offset)
            at = escape.end()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused(token.offset, "string literal is not valid UTF-8") from None


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
    if escape.group("bad") in ("x", "X"):
        raise Refused(literal_start + escape.start(), "Expected hex digits for escape sequence.")
    raise Refused(literal_start + escape.start(), "Invalid escape sequence in string literal.")
