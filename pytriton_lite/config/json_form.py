"""The JSON form of a configuration, as the config endpoint prints it (model_config.md, section 2.1).

protobuf's own JSON printer writes every 64-bit integer as a string, and the option that prints default values changed its
name between the versions of protobuf that we allow. So the message is walked here.
"""

from __future__ import annotations

import math
import struct
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

_ORDER = {
    "inference.ModelConfig": (
        "name",
        "platform",
        "backend",
        "runtime",
        "version_policy",
        "max_batch_size",
        "input",
        "output",
        "batch_input",
        "batch_output",
        "optimization",
        "dynamic_batching",
        "sequence_batching",
        "ensemble_scheduling",
        "instance_group",
        "default_model_filename",
        "cc_model_filenames",
        "metric_tags",
        "parameters",
        "model_warmup",
        "model_operations",
        "model_transaction_policy",
        "model_repository_agents",
        "response_cache",
        "model_metrics",
    ),
    "inference.ModelOutput": (
        "name",
        "data_type",
        "dims",
        "reshape",
        "label_filename",
        "is_shape_tensor",
        "is_non_linear_format_io",
    ),
    "inference.ModelSequenceBatching.InitialState": ("data_type", "dims", "name", "zero_data", "data_file"),
}
"""Triton's order of fields, by message. In all others it is the order of declaration, which our .proto file keeps."""

_STRING_INTEGERS = frozenset(
    {
        "inference.ModelSequenceBatching.InitialState.dims",
        "inference.ModelInstanceGroup.SecondaryDevice.device_id",
        "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
    }
)
"""64-bit integers that Triton forgets to turn into numbers; clients have learnt to read them as strings."""


def json_form(message: Any) -> dict[str, Any]:
    """The protobuf *message* as objects that ``json.dumps`` takes: every field that has no presence, the others when set."""
    descriptor = message.DESCRIPTOR
    order = _ORDER.get(descriptor.full_name)
    fields = descriptor.fields if order is None else [descriptor.fields_by_name[name] for name in order]
    return {
        field.name: _field(field, getattr(message, field.name))
        for field in fields
        if not field.has_presence or message.HasField(field.name)
    }


def _field(field: Any, value: Any) -> Any:
    if is_map(field):
        of_value = field.message_type.fields_by_name["value"]
        # A map has no order of its own: ours is the keys', so that the form of a configuration never changes.
        return {str(key): _single(of_value, value[key]) for key in sorted(value)}
    if is_repeated(field):
        return [_single(field, element) for element in value]
    return _single(field, value)


def _single(field: Any, value: Any) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_MESSAGE:
        return json_form(value)
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return _number(value, is_single=kind == FieldDescriptor.CPPTYPE_FLOAT)
    return str(value) if field.full_name in _STRING_INTEGERS else value


def _number(value: float, *, is_single: bool) -> int | float | str:
    """*value* as the C++ printer writes it: 0 for 0.0, 0.1 for the single-precision number next to it, else nine digits."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    shortest = _shortest_single(value) if is_single else value
    return int(shortest) if shortest.is_integer() and abs(shortest) < 1e15 else shortest


def _shortest_single(value: float) -> float:
    short = float(f"{value:.6g}")
    return short if _as_single(short) == value else float(f"{value:.9g}")


def _as_single(value: float) -> float:
    try:
        (single,) = struct.unpack("f", struct.pack("f", value))
    except OverflowError:  # rounding to few digits can lead past the largest one
        return math.inf
    return float(single)


def is_map(field: Any) -> bool:
    """Whether *field* of a descriptor is a map; `is_repeated` says yes to it as well."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def is_repeated(field: Any) -> bool:
    """Whether *field* of a descriptor is a list or a map. ``label`` says so in old protobuf and warns in the new."""
    repeated = getattr(field, "is_repeated", None)
    return bool(field.label == FieldDescriptor.LABEL_REPEATED if repeated is None else repeated)
