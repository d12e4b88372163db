"""The ``config`` of a load request: JSON to message, by protobuf's mapping (model_config.md, section 2.1).

The sentences are those of the protobuf in Triton 2.51, and so is what it takes: names in either spelling, numbers and
truths as strings, one value for a list of one, null for what is not there.
"""

from __future__ import annotations

import math
import re
import struct
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from pytriton_lite.config.errors import PollError
from pytriton_lite.config.json_form import is_map, is_repeated
from pytriton_lite.config.lenient_json import Json, JsonObject, Scalar, parse_json
from pytriton_lite.proto import model_config_pb

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: ("TYPE_INT32", -(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_INT64: ("TYPE_INT64", -(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT32: ("TYPE_UINT32", 0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: ("TYPE_UINT64", 0, (1 << 64) - 1),
}
_FLOATS = {FieldDescriptor.CPPTYPE_FLOAT: "TYPE_FLOAT", FieldDescriptor.CPPTYPE_DOUBLE: "TYPE_DOUBLE"}
_ENUM_NUMBER = (-(1 << 31), (1 << 31) - 1)

_WRITTEN_INTEGER = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)
_WRITTEN_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_WORDS_FOR_FLOATS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
_TRUE = ("true", "t", "yes", "y", "1")
_FALSE = ("false", "f", "no", "n", "0")


def parse_config_override(text: str) -> model_config_pb.ModelConfig:
    """The configuration in *text*, which takes the place of the model's file as a whole. Raises PollError."""
    message = model_config_pb.ModelConfig()
    try:
        document = parse_json(text)
        if not isinstance(document, JsonObject):
            raise ValueError(": Root element must be a message.")
        _fill(message, document, "")
    except RecursionError:
        raise PollError("Invalid config override: lists are nested too deep") from None
    except ValueError as error:
        raise PollError(f"Invalid config override: {error}") from None
    return message


def _fill(message: Any, document: JsonObject, path: str) -> None:
    """Take over what *document* says. *path* is that of *message*, "" for the configuration itself. Raises ValueError."""
    fields = {**message.DESCRIPTOR.fields_by_camelcase_name, **message.DESCRIPTOR.fields_by_name}
    for name, value in document.pairs:
        if not name:
            raise _wrong_name(path, name, "Proto fields must have a name.")
        field = fields.get(name)
        if field is None:
            raise _wrong_name(path, name, "Cannot find field.")
        _fill_field(message, field, value, path)


def _fill_field(message: Any, field: Any, value: Json, path: str) -> None:
    inside = f"{path}.{field.name}" if path else field.name
    if value is None:
        return
    if is_map(field):
        _fill_map(getattr(message, field.name), field, value, path, inside)
    elif is_repeated(field):
        _append(getattr(message, field.name), field, value, inside)
    elif isinstance(value, list):
        raise _wrong_name(path, field.name, "Proto field is not repeating, cannot start list.")
    else:
        oneof = field.containing_oneof
        if oneof is not None and message.WhichOneof(oneof.name) is not None:
            raise _wrong_value(path, f"oneof field '{oneof.name}' is already set. Cannot set '{field.name}'", "oneof")
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            getattr(message, field.name).SetInParent()
            _fill_message(getattr(message, field.name), value, inside)
        else:
            setattr(message, field.name, _scalar(field, value, inside, parent=path))


def _fill_map(values: Any, field: Any, value: Json, path: str, inside: str) -> None:
    if isinstance(value, list):
        raise _wrong_value(path, f"Cannot bind a list to map for field '{field.name}'.", "Map")
    if not isinstance(value, JsonObject):
        raise _wrong_value(inside, _shown(value), _type_name(field))
    of_key, of_value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    seen: set[str] = set()
    for at, (name, element) in enumerate(value.pairs):
        entry = f"{inside}[{at}]"
        if name in seen:
            raise _wrong_name(f"{inside}[{at - 1}]", name, f"Repeated map key: '{name}' is already set.")
        seen.add(name)
        key = _scalar(of_key, name, f"{entry}.key", parent=entry)
        if of_value.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            made = type(values[key])()
            if element is not None:
                _fill_message(made, element, f"{entry}.value")
            values[key].CopyFrom(made)
        else:
            values[key] = "" if element is None else _scalar(of_value, element, f"{entry}.value", parent=entry)


def _append(values: Any, field: Any, value: Json, path: str) -> None:
    """Whatever lies in lists of lists, in its order."""
    if isinstance(value, list):
        for element in value:
            _append(values, field, element, path)
    elif value is not None:
        element_path = f"{path}[{len(values)}]"
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            _fill_message(values.add(), value, element_path)
        else:
            values.append(_scalar(field, value, element_path, parent=path))


def _fill_message(message: Any, value: Json, path: str) -> None:
    if not isinstance(value, JsonObject):
        raise _wrong_value(path, _shown(value), f"type.googleapis.com/{message.DESCRIPTOR.full_name}")
    _fill(message, value, path)


def _scalar(field: Any, value: Json, path: str, *, parent: str) -> Any:
    if isinstance(value, JsonObject):
        raise _wrong_value(parent, "Starting an object on a scalar field", field.name)
    found = None if isinstance(value, list) else _convert(field, value)
    if found is None:
        raise _wrong_value(path, _shown(value), _type_name(field))
    return found


def _convert(field: Any, value: Scalar) -> Any:
    """*value* as *field* has it, None where it has nothing like it."""
    if field.cpp_type in _INTEGERS:
        _, low, high = _INTEGERS[field.cpp_type]
        return _integer(value, low, high)
    if field.cpp_type in _FLOATS:
        return _float(value, is_single=field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return _bool(value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return _enum(field.enum_type, value)
    return value if isinstance(value, str) else None


def _integer(value: Scalar, low: int, high: int) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        if _WRITTEN_INTEGER.fullmatch(value) is None:
            return None
    elif isinstance(value, float) and not value.is_integer():
        return None
    number = int(value)
    return number if low <= number <= high else None


def _float(value: Scalar, *, is_single: bool) -> float | None:
    if isinstance(value, str):
        if value in _WORDS_FOR_FLOATS:
            return _WORDS_FOR_FLOATS[value]
        if _WRITTEN_FLOAT.fullmatch(value) is None:
            return None
    elif isinstance(value, bool) or value is None:
        return None
    number = float(value)
    try:
        struct.pack("<f" if is_single else "<d", number)
    except OverflowError:
        return None
    return number


def _bool(value: Scalar) -> bool | None:
    if isinstance(value, bool):
        return value
    word = value.lower() if isinstance(value, str) else ""
    return word in _TRUE if word in (*_TRUE, *_FALSE) else None


def _enum(enum_type: Any, value: Scalar) -> int | None:
    """A name, in any case and with dashes for underscores, or a number."""
    if isinstance(value, str):
        known = enum_type.values_by_name.get(value.upper().replace("-", "_"))
        if known is not None:
            return int(known.number)
    return _integer(value, *_ENUM_NUMBER)


def _shown(value: Json) -> str:
    """*value* as the parser repeats it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _type_name(field: Any) -> str:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return f"type.googleapis.com/{field.message_type.full_name}"
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return f"type.googleapis.com/{field.enum_type.full_name}"
    if field.cpp_type in _INTEGERS:
        return _INTEGERS[field.cpp_type][0]
    if field.cpp_type in _FLOATS:
        return _FLOATS[field.cpp_type]
    return "TYPE_BOOL" if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL else "TYPE_STRING"


def _wrong_name(path: str, name: str, text: str) -> ValueError:
    return ValueError(f"({path}) {name}: {text}" if path else f"{name}: {text}")


def _wrong_value(path: str, value: str, type_name: str) -> ValueError:
    where = f"({path})" if path else ""
    return ValueError(f"{where}: invalid value {value} for type {type_name}")
