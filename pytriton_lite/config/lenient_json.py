"""JSON as the parser of Triton's protobuf takes it: keys without quotes, strings in single ones, a comma behind the last value.

Values of objects are lists of pairs, since a key that is there twice means something (model_config.md, section 2.1).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_BLANK = re.compile(r"[ \t\r\n\v\f]*")
_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_NUMBER = re.compile(r"-?[0-9.eE+x-]*")
_FLOAT = re.compile(r"-?[0-9]*\.?[0-9]*([eE][+-]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None}
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}  # any other character stands for itself
_HEX = re.compile(r"[0-9a-fA-F]{4}")

_CONTEXT = 20
"""Characters shown on either side of an error."""
_DEEPEST = 100
"""Objects inside each other."""
_LARGEST = (1 << 64) - 1

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class JsonObject:
    pairs: tuple[tuple[str, Json], ...]


Json = Scalar | list["Json"] | JsonObject


class JsonError(ValueError):
    """What is no JSON, in the parser's words, with the place below."""


def parse_json(text: str) -> Json:
    """The one value in *text*. Raises JsonError, or RecursionError for lists in lists in lists."""
    parser = _Parser(text)
    value = parser.value("Expected a value.")
    if parser.skip_blank():
        raise parser.error("Parsing terminated before end of input.")
    return value


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._key = ""

    def skip_blank(self) -> str:
        """The next character that is no blank, "" at the end."""
        blank = _BLANK.match(self._text, self._at)
        self._at = self._at if blank is None else blank.end()
        return self._text[self._at : self._at + 1]

    def error(self, message: str, *, shown_before: int = _CONTEXT) -> JsonError:
        """*shown_before* is 0 where Triton's parser had waited for more to come, and forgotten what it had read."""
        begin = max(self._at - shown_before, 0)
        shown = self._text[begin : self._at + _CONTEXT]
        return JsonError(f"{message}\n{shown}\n{' ' * (self._at - begin)}^")

    def _unknown(self, message: str) -> JsonError:
        """The error at a place where no token begins."""
        if not self.skip_blank():
            return self.error(f"Unexpected end of string. {message}", shown_before=0)
        return self.error(message, shown_before=0)

    def value(self, expected: str) -> Json:
        """The value that begins here; *expected* is what is said where none does."""
        first = self.skip_blank()
        if first in ("{", "["):
            return self._nested(first)
        if first in ('"', "'"):
            return self._string()
        if first and first in "-0123456789":
            return self._number()
        for word, value in _WORDS.items():
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return value
        if first and (first in "}]:," or _KEY.match(first)):
            is_end = len(self._text) - self._at < len("false")
            raise self.error("Unexpected token.", shown_before=0 if is_end else _CONTEXT)
        raise self._unknown(expected)

    def _nested(self, opening: str) -> Json:
        self._at += 1
        value: Json = JsonObject(tuple(self._pairs())) if opening == "{" else self._elements()
        self._at += 1
        return value

    def _pairs(self) -> list[tuple[str, Json]]:
        """Up to the closing brace, a comma in front of which is no matter."""
        pairs: list[tuple[str, Json]] = []
        self._depth += 1
        if self._depth > _DEEPEST:
            raise JsonError(f"Message too deep. Max recursion depth reached for key '{self._key}'")
        while self.skip_blank() != "}":
            self._key = key = self._object_key()
            self._expect(":", "Expected : between key:value pair.")
            pairs.append((key, self.value("Expected a value.")))
            if self.skip_blank() != "}":
                self._expect(",", "Expected , or } after key:value pair.")
        self._depth -= 1
        return pairs

    def _object_key(self) -> str:
        expected = "Expected an object key or }."
        first = self.skip_blank()
        if first in ('"', "'"):
            return self._string()
        found = _KEY.match(self._text, self._at)
        if found is not None and found.group() not in _WORDS:
            self._at = found.end()
            return found.group()
        if first and (found is not None or first in "{[]:,-0123456789"):
            self._at += len(found.group()) if found is not None else 0
            raise self.error(expected)
        raise self._unknown(expected)

    def _elements(self) -> list[Json]:
        """Up to the closing bracket, a comma in front of which is no matter."""
        elements: list[Json] = []
        while self.skip_blank() != "]":
            elements.append(self.value("Expected a value or ] within an array."))
            if self.skip_blank() != "]":
                self._expect(",", "Expected , or ] after array value.")
        return elements

    def _expect(self, character: str, message: str) -> None:
        found = self.skip_blank()
        if found == character:
            self._at += 1
        elif found and (found in "{}[]:,\"'-" or found.isalnum() or found in "_$"):
            raise self.error(message)
        else:
            raise self._unknown(message)

    def _string(self) -> str:
        quote = self._text[self._at]
        self._at += 1
        parts: list[str] = []
        special = re.compile(rf"[{quote}\\]")
        while True:
            found = special.search(self._text, self._at)
            if found is None:
                self._at = len(self._text)
                raise self.error("Closing quote expected in string.", shown_before=0)
            parts.append(self._text[self._at : found.start()])
            self._at = found.start()
            if found.group() == quote:
                self._at += 1
                return "".join(parts)
            parts.append(self._escape())

    def _escape(self) -> str:
        """The character of the backslash here."""
        escaped = self._text[self._at + 1 : self._at + 2]
        if not escaped:
            raise self.error("Closing quote expected in string.", shown_before=0)
        if escaped == "u":
            return self._unicode_escape()
        self._at += 2
        return _ESCAPED.get(escaped, escaped)

    def _unicode_escape(self) -> str:
        code = self._utf16_unit(self._at)
        if not 0xD800 <= code < 0xE000:
            self._at += 6
            return chr(code)
        if code >= 0xDC00 or not self._text.startswith("\\u", self._at + 6):
            raise self.error("Missing low surrogate.", shown_before=0)
        low = self._utf16_unit(self._at + 6)
        if not 0xDC00 <= low < 0xE000:
            raise self.error("Invalid low surrogate.")
        self._at += 12
        return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00))

    def _utf16_unit(self, at: int) -> int:
        digits = _HEX.match(self._text, at + 2)
        if digits is None:
            raise self.error("Invalid escape sequence.")
        return int(digits.group(), 16)

    def _number(self) -> int | float:
        found = _NUMBER.match(self._text, self._at)
        written = "" if found is None else found.group()
        number = self._convert(written)
        self._at += len(written)
        return number

    def _convert(self, written: str) -> int | float:
        digits = written.removeprefix("-")
        if digits == "0" or (digits.isdigit() and digits[0] != "0"):
            # Python refuses to convert thousands of digits, and no field holds more than twenty.
            number = int(written) if len(digits) <= 20 else _LARGEST + 1
            return number if -(1 << 63) <= number <= _LARGEST else float(written)
        if digits[:1] == "0" and not set(digits) & set(".eE"):
            raise self.error("Octal/hex numbers are not valid JSON values.")
        if _FLOAT.fullmatch(written) is None or not set(written) & set("0123456789"):
            raise self.error("Unable to parse number.")
        value = float(written)
        if math.isinf(value):
            raise self.error("Number exceeds the range of double.")
        return value
