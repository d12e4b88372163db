"""config.pbtxt to message: protobuf's text format, as its C++ parser reads it (model_config.md, section 2).

protobuf's Python parser has the same grammar and another idea of what a token is: it takes ``1_000`` and ``0b10`` for
numbers, a no-break space for a blank, ``\\q`` for an escape. Its errors have other texts, it ends at the first of them, and
it does not tell where in the file a field stood. So the text is read here, into the fields that the descriptor names.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from pytriton_lite.config.errors import TextError
from pytriton_lite.config.json_form import is_map, is_repeated
from pytriton_lite.config.text_tokens import Kind, Refused, Token, string_value, tokens_of
from pytriton_lite.proto import model_config_pb

_TRUE = ("true", "True", "t", "1")
_FALSE = ("false", "False", "f", "0")
_CLOSING = {"{": "}", "<": ">", "[": "]"}

_MISNOMERS = {
    "python_lib": " A model's code is <version>/model.py, or the file there that default_model_filename names.",
}
"""Names from tutorials (model API, section 9), and what is meant."""

_LARGEST = {
    FieldDescriptor.CPPTYPE_INT32: (1 << 31) - 1,
    FieldDescriptor.CPPTYPE_INT64: (1 << 63) - 1,
    FieldDescriptor.CPPTYPE_UINT32: (1 << 32) - 1,
    FieldDescriptor.CPPTYPE_UINT64: (1 << 64) - 1,
}
_SIGNED = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
_LARGEST_ENUM = (1 << 31) - 1


@dataclass(frozen=True)
class ConfigText:
    """A file that was read to its end. ``message`` lacks the fields of ``errors``, of which the first is the one that Triton's
    parser finds first.

    ``places`` has the line and the column, from 1, of every field by its path: ``input[1].dims``, and ``input[1].dims[0]`` of
    an element, ``parameters["A"]`` of what a map has. That of a field is its name's.
    """

    message: model_config_pb.ModelConfig
    places: Mapping[str, tuple[int, int]]
    errors: tuple[TextError, ...] = ()


def parse_model_config(text: str, *, source: str) -> model_config_pb.ModelConfig:
    """Parse the text of a config.pbtxt; *source*, its path, begins every error.

    Bytes of the file that are no UTF-8 may stand in *text* as surrogate escapes; inside a comment they do no harm.
    Raises TextError, a PollError, for the first thing that is wrong.
    """
    found = read_config_text(text, source=source)
    if found.errors:
        raise found.errors[0]
    return found.message


def read_config_text(text: str, *, source: str) -> ConfigText:
    """Parse as `parse_model_config` does, but tell all that is wrong: a field that cannot be read is passed over."""
    message = model_config_pb.ModelConfig()

    line_ends = [found.start() for found in re.finditer("\n", text)]

    def place(offset: int) -> tuple[int, int]:
        before = bisect.bisect_left(line_ends, offset)
        return before + 1, offset - (line_ends[before - 1] if before else -1)

    tokens, stopped_by = _tokens_until_refused(text)
    parser = _Parser(tokens)
    parser.read(message)
    end = tokens[-1].offset
    # As a parser finds them: that a message is not closed shows at the end, and explains what else is missing there.
    refused = sorted(parser.refused, key=lambda error: (end, 0) if isinstance(error, _Unclosed) else (error.offset, 1))
    if stopped_by is not None:  # nobody knows how it goes on there
        refused = [error for error in refused if not isinstance(error, _Unclosed) and error.offset < stopped_by.offset]
        refused.append(stopped_by)
    return ConfigText(
        message,
        {path: place(offset) for path, offset in parser.offsets.items()},
        tuple(TextError(source, *place(error.offset), error.message) for error in refused),
    )


def _tokens_until_refused(text: str) -> tuple[list[Token], Refused | None]:
    """The tokens of *text*, as if it ended before what is none."""
    tokens: list[Token] = []
    try:
        for token in tokens_of(text):
            tokens.append(token)
    except Refused as error:
        return [*tokens, Token(Kind.END, "", error.offset)], error
    return tokens, None


class _Unclosed(Refused):
    """The file ends inside a message: that ends every message round it, too."""


@dataclass
class _Parser:
    """A parser of protobuf's text form.

    Where a C++ function reports an error, a method raises `Refused`, with its text and the offset of the token meant."""

    tokens: list[Token]
    refused: list[Refused] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)
    _at: int = 0

    def read(self, message: model_config_pb.ModelConfig) -> None:
        try:
            while self._token.kind is not Kind.END:
                self._read_field(message, "")
        except _Unclosed as error:
            self.refused.append(error)

    # ------------------------------------------------------------------------------------------ tokens

    @property
    def _token(self) -> Token:
        return self.tokens[self._at]

    def _refuse(self, message: str, token: Token | None = None) -> Refused:
        return Refused((token or self._token).offset, message)

    def _take(self) -> Token:
        token = self._token
        if token.kind is not Kind.END:
            self._at += 1
        return token

    def _take_if(self, *texts: str) -> Token | None:
        return self._take() if self._token.kind is Kind.SYMBOL and self._token.text in texts else None

    def _expect(self, text: str) -> Token:
        token = self._take_if(text)
        if token is None:
            raise self._refuse(f'Expected "{text}", found "{self._token.text}".')
        return token

    def _expect_kind(self, kind: Kind, name: str) -> Token:
        if self._token.kind is not kind:
            raise self._refuse(f"Expected {name}, got: {self._token.text}")
        return self._take()

    # ------------------------------------------------------------------------------------------ fields

    def _read_field(self, message: Any, prefix: str) -> None:
        """One field and the separator behind it. What is wrong inside is noted, and reading goes on behind the field."""
        start = self._at
        try:
            self._read_known_field(message, prefix)
        except _Unclosed:
            raise
        except Refused as error:
            self.refused.append(error)
            self._at = start
            self._pass_over_field()
        _ = self._take_if(";") or self._take_if(",")

    def _read_known_field(self, message: Any, prefix: str) -> None:
        if self._token.text == "[":
            raise self._refuse_extension(message)
        name = self._expect_kind(Kind.IDENTIFIER, "identifier")
        field = message.DESCRIPTOR.fields_by_name.get(name.text)
        if field is None:
            text = f'Message type "{message.DESCRIPTOR.full_name}" has no field named "{name.text}".'
            raise self._refuse(text + _MISNOMERS.get(name.text, ""), name)
        self._refuse_second(message, field, name)
        path = prefix + name.text
        self.offsets.setdefault(path, name.offset)
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            self._take_if(":")
        else:
            self._expect(":")
        if not is_repeated(field):
            self._read_single(message, field, path)
        elif self._take_if("["):
            self._read_list(message, field, path)
        else:
            self._read_element(message, field, path, name.offset)

    def _refuse_extension(self, message: Any) -> Refused:
        if self.tokens[self._at + 1].kind is not Kind.IDENTIFIER:
            self._take()
            return self._refuse(f"Expected identifier, got: {self._token.text}")
        ahead = itertools.takewhile(lambda token: token.text not in ("]", ""), self.tokens[self._at + 1 :])
        name = "".join(token.text for token in ahead)
        return self._refuse(
            f'Extension "{name}" is not defined or is not an extension of "{message.DESCRIPTOR.full_name}".'
        )

    def _refuse_second(self, message: Any, field: Any, name: Token) -> None:
        """Whether a field without presence was there shows only if it is not at its default."""
        if is_repeated(field):
            return
        value = getattr(message, field.name)
        if message.HasField(field.name) if field.has_presence else value:
            raise self._refuse(f'Non-repeated field "{field.name}" is specified multiple times.', name)
        oneof = field.containing_oneof
        other = None if oneof is None else message.WhichOneof(oneof.name)
        if other is not None:
            raise self._refuse(
                f'Field "{field.name}" is specified along with field "{other}", another member of oneof "{oneof.name}".',
                name,
            )

    def _read_list(self, message: Any, field: Any, path: str) -> None:
        if self._take_if("]"):
            return
        while True:
            self._read_element(message, field, path, self._token.offset)
            if self._take_if("]"):
                return
            self._expect(",")

    def _read_element(self, message: Any, field: Any, path: str, offset: int) -> None:
        values = getattr(message, field.name)
        if is_map(field):
            self._read_entry(values, path, offset)
            return
        element = f"{path}[{len(values)}]"
        self.offsets[element] = offset
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            self._read_message(values.add(), element)
        else:
            values.append(self._value(field))

    def _read_single(self, message: Any, field: Any, path: str) -> None:
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            value = getattr(message, field.name)
            value.SetInParent()
            self._read_message(value, path)
        else:
            setattr(message, field.name, self._value(field))

    def _read_entry(self, values: Any, path: str, offset: int) -> None:
        """An entry of a map: a message with ``key`` and ``value``. The last one of a key wins."""
        entry = values.GetEntryClass()()
        unnamed = f"{path}[?]"
        self._read_message(entry, unnamed)
        named = f'{path}["{entry.key}"]'
        inside = unnamed + ".value"
        # The last ones that were noted, so that a map of thousands is read in no more time than they take.
        own = list(itertools.takewhile(lambda known: known.startswith(unnamed), reversed(self.offsets)))
        for known in reversed(own):
            place = self.offsets.pop(known)
            if known.startswith(inside):
                self.offsets[named + known.removeprefix(inside)] = place
        self.offsets[named] = offset
        if entry.DESCRIPTOR.fields_by_name["value"].cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            values[entry.key].CopyFrom(entry.value)
        else:
            values[entry.key] = entry.value

    def _read_message(self, message: Any, path: str) -> None:
        opening = self._take_if("<") or self._expect("{")
        closing = _CLOSING[opening.text]
        while self._token.text not in (">", "}") or self._token.kind is not Kind.SYMBOL:
            if self._token.kind is Kind.END:
                raise _Unclosed(
                    opening.offset, f'Expected identifier, got: the end of the file; no "{closing}" closes this'
                )
            self._read_field(message, f"{path}.")
        self._expect(closing)

    def _pass_over_field(self) -> None:
        """Go to the end of the field that begins here: its name, a colon, and what stands there, brackets with all they hold.

        What makes no sense is passed over up to the next line, to what looks like a field, or to the end of the message.
        """
        if self._take().kind is Kind.IDENTIFIER:
            self._take_if(":")
            if self._token.text in _CLOSING:
                self._pass_over_brackets()
            elif self._token.text not in _CLOSING.values():
                self._take()
        elsewhere = (*_CLOSING.values(), ",", ";", "")
        while not (self._token.begins_line or self._token.text in elsewhere or self._looks_like_field()):
            self._take()

    def _looks_like_field(self) -> bool:
        return self._token.kind is Kind.IDENTIFIER and self.tokens[self._at + 1].text in (":", "{", "<", "[")

    def _pass_over_brackets(self) -> None:
        depth = 0
        while self._token.kind is not Kind.END:
            token = self._take()
            if token.kind is Kind.SYMBOL:
                depth += (token.text in _CLOSING) - (token.text in _CLOSING.values())
            if depth == 0:
                return

    # ------------------------------------------------------------------------------------------ values

    def _value(self, field: Any) -> Any:
        return _READERS[field.cpp_type](self, field)

    def _integer(self, field: Any) -> int:
        return self._signed_integer(_LARGEST[field.cpp_type], may_be_negative=field.cpp_type in _SIGNED)

    def _signed_integer(self, largest: int, *, may_be_negative: bool = True) -> int:
        minus = self._take_if("-") if may_be_negative else None
        token = self._expect_kind(Kind.INTEGER, "integer")
        number = _number(token.text)
        if number > largest + (minus is not None):
            raise self._refuse(f"Integer out of range ({token.text})", token)
        return number if minus is None else -number

    def _float(self, field: Any) -> float:
        minus = self._take_if("-")
        token = self._token
        if token.kind is Kind.INTEGER and re.fullmatch(r"0.+", token.text):
            raise self._refuse(f"Expect a decimal number, got: {token.text}")
        if token.kind in (Kind.INTEGER, Kind.FLOAT):
            number = float(token.text.rstrip("fF"))
        elif token.kind is Kind.IDENTIFIER and token.text.lower() in ("inf", "infinity", "nan"):
            number = float(token.text)
        else:
            raise self._refuse(f"Expected double, got: {token.text}")
        self._take()
        return number if minus is None else -number

    def _bool(self, field: Any) -> bool:
        token = self._token
        if token.kind is Kind.INTEGER and token.text not in ("0", "1"):
            raise self._refuse(f"Integer out of range ({token.text})")
        if token.kind is not Kind.INTEGER:
            self._expect_kind(Kind.IDENTIFIER, "identifier")
            if token.text not in (*_TRUE, *_FALSE):
                raise self._refuse(f'Invalid value for boolean field "{field.name}". Value: "{token.text}".', token)
            return token.text in _TRUE
        self._take()
        return token.text in _TRUE

    def _enum(self, field: Any) -> int:
        token = self._token
        if token.kind is Kind.IDENTIFIER:
            value = field.enum_type.values_by_name.get(token.text)
            if value is None:
                raise self._refuse(f'Unknown enumeration value of "{token.text}" for field "{field.name}".')
            self._take()
            return int(value.number)
        if token.kind is not Kind.INTEGER and token.text != "-":
            raise self._refuse(f"Expected integer or identifier, got: {token.text}")
        return self._signed_integer(_LARGEST_ENUM)

    def _string(self, field: Any) -> str:
        value = string_value(self._expect_kind(Kind.STRING, "string"))
        while self._token.kind is Kind.STRING:
            value += string_value(self._take())
        return value


_READERS: dict[int, Callable[[_Parser, Any], Any]] = {
    FieldDescriptor.CPPTYPE_INT32: _Parser._integer,
    FieldDescriptor.CPPTYPE_INT64: _Parser._integer,
    FieldDescriptor.CPPTYPE_UINT32: _Parser._integer,
    FieldDescriptor.CPPTYPE_UINT64: _Parser._integer,
    FieldDescriptor.CPPTYPE_FLOAT: _Parser._float,
    FieldDescriptor.CPPTYPE_DOUBLE: _Parser._float,
    FieldDescriptor.CPPTYPE_BOOL: _Parser._bool,
    FieldDescriptor.CPPTYPE_ENUM: _Parser._enum,
    FieldDescriptor.CPPTYPE_STRING: _Parser._string,
}


def _number(text: str) -> int:
    if text[:2] in ("0x", "0X"):
        return int(text, 16)
    # Python refuses to convert thousands of digits, and no field holds more than twenty.
    digits = text.lstrip("0") or "0"
    if text[0] == "0":
        return int(digits, 8)
    return int(digits) if len(digits) <= 20 else 1 << 64
