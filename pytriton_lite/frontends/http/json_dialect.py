"""JSON as Triton reads it (HTTP spec, section 1): standard JSON, and what its parser takes beyond that.

Beyond the standard: bare ``NaN``, ``Inf``, ``Infinity`` and their negatives as numbers, a byte order mark, invalid UTF-8
inside strings, anything after a NUL behind the document. orjson reads the standard in C; what it refuses goes to the
parser below, which either reads it or says what is wrong, and at which byte, in Triton's words.

Of a document that weighs more than 64 KiB (`json_slices.weight`) long arrays are left to whoever wants them, and the rest is
bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import NoReturn

import orjson

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.tensor import Buffer
from pytriton_lite.frontends.http import json_slices
from pytriton_lite.frontends.http.json_slices import (
    DocumentError,
    LargeArray,
    TooComplex,
    is_small,
    need_memory,
    split,
)

MAX_DEPTH = 1024
"""Containers inside containers; orjson's own limit, so that both parsers read the same documents."""

_BLANKS = re.compile(rb"[ \t\r\n]*")
_NUMBER = re.compile(rb"(-?)(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
# Numbers of an array that orjson can read in one go: what makes a large tensor with one NaN in it cheap to parse. The
# upper bound keeps the regular expression's own stack small.
_NUMBER_RUN = re.compile(
    rb"(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?[ \t\r\n]*,[ \t\r\n]*){2,4096}(?=[-0-9NI])"
)
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]*')
_HEX4 = re.compile(rb"[0-9A-Fa-f]{4}")
_ESCAPES = {
    b'"': b'"', b"\\": b"\\", b"/": b"/", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t",
}  # fmt: skip
_WORDS = {b"n": (b"null", None), b"t": (b"true", True), b"f": (b"false", False)}


def loads(data: Buffer) -> object:
    """The document in *data*. Strings hold invalid UTF-8 as surrogate escapes; integers beyond 64 bits are floats.

    Of duplicate keys the last one counts. Where *data* weigh more than 64 KiB, a `LargeArray` stands for every array of 4 KiB
    and more that is a member of an object and has no objects in it. Raises InferenceError(INTERNAL) with Triton's text for
    a syntax error, and InferenceError(INVALID_ARG) for one of too many parts.
    """
    return _load(data, _parse)


def load_members(data: Buffer) -> object:
    """The document in *data* as `loads` reads it, with `Members` in place of every dict.

    Integers beyond 64 bits stay integers where the standard library reads them. Raises as `loads`.
    """
    return _load(data, _parse_members)


def syntax_error(error: DocumentError) -> InferenceError:
    """What a client is told of *error*."""
    return InferenceError(
        ErrorCode.INTERNAL, f"failed to parse the request JSON buffer: {error.detail} at {error.offset}"
    )


def _load(data: Buffer, parse: Callable[[Buffer], object]) -> object:
    try:
        if len(data) <= json_slices.SMALL_BYTES or is_small(data):  # most need not be weighed
            return parse(data)
        skeleton = split(memoryview(data), parse)
        try:
            root = parse(skeleton.text)
        except DocumentError as error:
            raise DocumentError(error.detail, skeleton.origin(error.offset)) from None
    except DocumentError as error:
        raise syntax_error(error) from None
    except TooComplex as error:
        raise InferenceError(ErrorCode.INVALID_ARG, f"the request's JSON has {error}") from None
    return _filled(root, skeleton.arrays) if skeleton.arrays else root


def _standard(data: Buffer) -> object:
    """What *data* say by the standard. Raises orjson.JSONDecodeError, and MemoryError."""
    if len(data) > json_slices.SMALL_BYTES:  # asking takes as long as parsing less
        need_memory(len(data))
    return orjson.loads(data)


def _parse(data: Buffer) -> object:
    """Raises DocumentError, and MemoryError."""
    try:
        return _standard(data)
    except orjson.JSONDecodeError:
        return _Parser(bytes(data)).parse()


def _parse_members(data: Buffer) -> object:
    """Raises DocumentError, and MemoryError."""
    try:
        _standard(data)  # refuses control characters and lone surrogates, which the standard library takes
        return json.loads(bytes(data), object_pairs_hook=Members)
    except (ValueError, RecursionError):  # not standard JSON; very long numbers or deep nesting
        return _Parser(bytes(data), Members).parse()


def _filled(root: object, arrays: dict[str, LargeArray]) -> object:
    """*root* with the arrays in the place of their names, which are values of members alone."""
    stack = [root]
    while stack:
        value = stack.pop()
        if type(value) is list:
            stack.extend(value)
        elif type(value) is dict:
            for name, member in value.items():
                if type(member) is str:
                    if member in arrays:
                        value[name] = arrays[member]
                elif member.__class__ in _CONTAINERS:
                    stack.append(member)
        elif type(value) is Members:
            value.pairs = [
                (name, arrays.get(member, member) if type(member) is str else member) for name, member in value.pairs
            ]
            stack.extend(member for _, member in value.pairs if member.__class__ in _CONTAINERS)
    return root


class Members:
    """A JSON object of which no key is lost: ``pairs`` in document order, those of equal names, too."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: Iterable[tuple[str, object]] = ()) -> None:
        self.pairs = list(pairs)

    def __setitem__(self, key: str, value: object) -> None:
        self.pairs.append((key, value))

    def first_values(self) -> dict[str, object]:
        """Values by name, as Triton's look-up finds them: of equal names the first."""
        return dict(reversed(self.pairs))


_CONTAINERS = (list, dict, Members)


class _Parser:
    """Reads one document without recursion, so that no nesting can exhaust the stack."""

    def __init__(self, text: bytes, new_object: Callable[[], dict[str, object] | Members] = dict) -> None:
        self._text = text
        self._new_object = new_object
        self._at = 3 if text.startswith(b"\xef\xbb\xbf") else 0
        self._one_by_one_until = 0
        """The end of numbers that were tried in one go."""

    def parse(self) -> object:
        self._skip_blanks()
        if self._peek() in (b"", b"\0"):
            self._fail("The document is empty.")
        stack: list[list[object] | dict[str, object] | Members] = []
        keys: list[str] = []  # of the objects on the stack, the member that is being read
        while True:
            opened = self._open()
            if opened is not None:
                stack.append(opened)
                if len(stack) > MAX_DEPTH:
                    self._fail(f"More than {MAX_DEPTH} levels of nesting.")
                if type(opened) is not list:
                    keys.append(self._key())
                continue
            value = self._value()
            while stack:
                container = stack[-1]
                if isinstance(container, list):
                    container.append(value)
                    if self._next_element(container):
                        break
                else:
                    container[keys.pop()] = value
                    if self._next_member():
                        keys.append(self._key())
                        break
                value = stack.pop()
            else:
                return self._finish(value)

    def _open(self) -> list[object] | dict[str, object] | Members | None:
        """Step into a container that has contents; None where a whole value follows, an empty container included."""
        first = self._peek()
        if first not in (b"[", b"{"):
            return None
        inside = _BLANKS.match(self._text, self._at + 1).end()  # type: ignore[union-attr]  # matches nothing, too
        if self._text[inside : inside + 1] == (b"]" if first == b"[" else b"}"):
            return None
        self._at = inside
        if first == b"{":
            return self._new_object()
        elements: list[object] = []
        self._take_numbers(elements)
        return elements

    def _value(self) -> object:
        first = self._peek()
        if first == b'"':
            return self._string()
        if first in (b"[", b"{"):  # empty: `_open` looked
            self._at = _BLANKS.match(self._text, self._at + 1).end() + 1  # type: ignore[union-attr]
            return [] if first == b"[" else self._new_object()
        if first in _WORDS:
            word, value = _WORDS[first]
            if not self._consume(word):
                self._fail("Invalid value.")
            return value
        return self._number()

    def _next_element(self, elements: list[object]) -> bool:
        """Go on after an element: True at the next one, False behind the array's end."""
        self._skip_blanks()
        separator = self._peek()
        if separator == b",":
            self._at += 1
            self._skip_blanks()
            self._take_numbers(elements)
            return True
        if separator != b"]":
            self._fail("Missing a comma or ']' after an array element.")
        self._at += 1
        return False

    def _next_member(self) -> bool:
        self._skip_blanks()
        separator = self._peek()
        if separator == b",":
            self._at += 1
            self._skip_blanks()
            return True
        if separator != b"}":
            self._fail("Missing a comma or '}' after an object member.")
        self._at += 1
        return False

    def _key(self) -> str:
        if self._peek() != b'"':
            self._fail("Missing a name for object member.")
        key = self._string()
        self._skip_blanks()
        if self._peek() != b":":
            self._fail("Missing a colon after a name of object member.")
        self._at += 1
        self._skip_blanks()
        return key

    def _finish(self, value: object) -> object:
        self._skip_blanks()
        if self._peek() not in (b"", b"\0"):
            self._fail("The document root must not be followed by other values.")
        return value

    def _take_numbers(self, elements: list[object]) -> None:
        run = _NUMBER_RUN.match(self._text, self._at) if self._at >= self._one_by_one_until else None
        if run is None:
            return
        try:
            numbers = orjson.loads(b"[" + run.group().rstrip(b", \t\r\n") + b"]")
        except orjson.JSONDecodeError:  # a number too big: read them one by one, up to that one
            self._one_by_one_until = run.end()
            return
        elements.extend(numbers)
        self._at = run.end()

    def _number(self) -> object:
        start = self._at
        found = _NUMBER.match(self._text, start)
        if found is None:
            return self._nan_or_infinity()
        self._at = found.end()
        sign, digits, fraction, exponent = found.groups()
        following = self._peek()
        if exponent is None and following in (b"e", b"E"):
            self._at += 1
            if self._peek() in (b"+", b"-"):
                self._at += 1
            self._fail("Miss exponent in number.")
        if fraction is None and exponent is None and following == b".":
            self._at += 1
            self._fail("Miss fraction part in number.")
        if fraction is None and exponent is None and len(digits) <= 20:
            value = int(digits)
            if value <= (1 << 63 if sign else (1 << 64) - 1):
                return -value if sign else value
        number = float(found.group())
        if number in (float("inf"), float("-inf")):
            self._at = start
            self._fail("Number too big to be stored in double.")
        return number

    def _nan_or_infinity(self) -> float:
        sign = -1.0 if self._peek() == b"-" else 1.0
        if sign < 0:
            self._at += 1
        first = self._peek()
        if first == b"N" and self._consume(b"NaN"):
            return float("nan")
        if first != b"I" or not self._consume(b"Inf") or (self._peek() == b"i" and not self._consume(b"inity")):
            self._fail("Invalid value.")
        return sign * float("inf")

    def _string(self) -> str:
        """The string whose opening quotation mark is here."""
        self._at += 1
        parts: list[bytes] = []
        while True:
            plain = _PLAIN.match(self._text, self._at)
            parts.append(plain.group())  # type: ignore[union-attr]  # matches nothing, too
            self._at = plain.end()  # type: ignore[union-attr]
            stop = self._peek()
            if stop == b'"':
                self._at += 1
                return b"".join(parts).decode("utf-8", "surrogateescape")
            if stop in (b"", b"\0"):
                self._at += len(stop)
                self._fail("Missing a closing quotation mark in string.")
            if stop != b"\\":
                self._fail("Invalid encoding in string.")
            parts.append(self._escape())

    def _escape(self) -> bytes:
        start = self._at
        letter = self._text[start + 1 : start + 2]
        if letter != b"u":
            if letter not in _ESCAPES:
                self._fail("Invalid escape character in string.")
            self._at += 2
            return _ESCAPES[letter]
        code = self._code_unit(start, start)
        self._at = start + 6
        if 0xD800 <= code <= 0xDFFF:
            if code > 0xDBFF or self._text[self._at : self._at + 2] != b"\\u":
                self._fail_at(start, "The surrogate pair in string is invalid.")
            low = self._code_unit(self._at, start)
            if not 0xDC00 <= low <= 0xDFFF:
                self._fail_at(start, "The surrogate pair in string is invalid.")
            self._at += 6
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
        return chr(code).encode()

    def _code_unit(self, escape_at: int, report_at: int) -> int:
        digits = _HEX4.match(self._text, escape_at + 2)
        if digits is None:
            self._fail_at(report_at, "Incorrect hex digit after \\u escape in string.")
        return int(digits.group(), 16)

    def _consume(self, word: bytes) -> bool:
        """Step over as much of *word* as is there; True if all of it is."""
        for letter in word:
            if self._text[self._at : self._at + 1] != bytes((letter,)):
                return False
            self._at += 1
        return True

    def _peek(self) -> bytes:
        return self._text[self._at : self._at + 1]

    def _skip_blanks(self) -> None:
        self._at = _BLANKS.match(self._text, self._at).end()  # type: ignore[union-attr]  # matches nothing, too

    def _fail(self, detail: str) -> NoReturn:
        self._fail_at(self._at, detail)

    def _fail_at(self, offset: int, detail: str) -> NoReturn:
        raise DocumentError(detail, offset) from None
