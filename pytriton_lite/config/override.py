"""The ``config`` of a load request: JSON to message, by protobuf's mapping (model_config.md, section 2.1)."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from pytriton_lite.config.errors import PollError
from pytriton_lite.config.json_form import is_map, is_repeated
from pytriton_lite.proto import model_config_pb


def parse_config_override(text: str) -> model_config_pb.ModelConfig:
    """The configuration in *text*, which takes the place of the model's file as a whole.

    Names of fields may be in snake_case or lowerCamelCase, names of enum values in any case, integers may be strings.
    Raises PollError, as Triton words it, for what is no JSON and for a field that does not exist.
    """
    message = model_config_pb.ModelConfig()
    try:
        document = json.loads(text)
        if not isinstance(document, dict):
            raise ValueError(f"expected an object, got {text[:40]}")
        json_format.ParseDict(_canonical(document, message.DESCRIPTOR, ""), message)
    except (ValueError, RecursionError, json_format.Error) as error:
        raise PollError(f"Invalid config override: {error}") from None
    return message


def _canonical(values: dict[str, Any], descriptor: Descriptor, path: str) -> dict[str, Any]:
    """*values* with enum names as declared. Raises ValueError for a field that *descriptor* does not have."""
    fields = {**descriptor.fields_by_camelcase_name, **descriptor.fields_by_name}
    result = {}
    for name, value in values.items():
        if name not in fields:
            raise ValueError(f"{path}{name}: Cannot find field.")
        result[name] = _canonical_field(value, fields[name], f"{path}{name}")
    return result


def _canonical_field(value: Any, field: FieldDescriptor, path: str) -> Any:
    if is_map(field):
        if not isinstance(value, dict):
            return value
        of_value = field.message_type.fields_by_name["value"]
        return {key: _canonical_single(element, of_value, f'{path}["{key}"]') for key, element in value.items()}
    if is_repeated(field):
        if not isinstance(value, list):
            return value
        return [_canonical_single(element, field, f"{path}[{at}]") for at, element in enumerate(value)]
    return _canonical_single(value, field, path)


def _canonical_single(value: Any, field: FieldDescriptor, path: str) -> Any:
    """What does not fit is left as it is: protobuf's own parser says what is wrong with it."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE and isinstance(value, dict):
        return _canonical(value, field.message_type, f"{path}.")
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM and isinstance(value, str):
        return value.upper()
    return value
