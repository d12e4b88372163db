"""Numbers of enums that nobody has given a meaning. Ours: Triton takes some of them, and fails on others for odd reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from pytriton_lite.config.errors import BrokenRule, invalid
from pytriton_lite.config.json_form import is_map, is_repeated
from pytriton_lite.proto import model_config_pb


def broken_enums(message: model_config_pb.ModelConfig) -> Iterator[BrokenRule]:
    for path, field, number in _unknown_numbers(message, ""):
        known = ", ".join(name for name in field.enum_type.values_by_name if name != "TYPE_INVALID")
        yield invalid(
            f"field '{path}' has the unknown number {number} for {message.name}; expected one of {known}", path
        )


def _unknown_numbers(message: Any, prefix: str) -> Iterator[tuple[str, Any, int]]:
    for field, value in message.ListFields():
        path = prefix + field.name
        if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:  # none of ours is in a list
            if value not in field.enum_type.values_by_number:
                yield path, field, value
        elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            for where, element in _messages(field, value, path):
                yield from _unknown_numbers(element, f"{where}.")


def _messages(field: Any, value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The messages in *value*, with their paths."""
    if is_map(field):
        if field.message_type.fields_by_name["value"].cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            for key in sorted(value):
                yield f'{path}["{key}"]', value[key]
    elif is_repeated(field):
        for at, element in enumerate(value):
            yield f"{path}[{at}]", element
    else:
        yield path, value
