"""The rules for sequence batching (model_config.md, section 5.1, rule 7)."""

from __future__ import annotations

from collections.abc import Iterator

from pytriton_lite.config.errors import invalid
from pytriton_lite.config.preferred import check_preferred_sizes
from pytriton_lite.proto import model_config_pb

_Control = model_config_pb.ModelSequenceBatching.Control

_BOOLEAN_KINDS = (_Control.CONTROL_SEQUENCE_START, _Control.CONTROL_SEQUENCE_END, _Control.CONTROL_SEQUENCE_READY)
_CORRELATION_TYPES = (
    model_config_pb.TYPE_UINT64,
    model_config_pb.TYPE_INT64,
    model_config_pb.TYPE_UINT32,
    model_config_pb.TYPE_INT32,
    model_config_pb.TYPE_STRING,
)


def validate_sequence_batching(
    sequence: model_config_pb.ModelSequenceBatching, max_batch_size: int, model_name: str
) -> None:
    for kind in _BOOLEAN_KINDS:
        for control in _controls(sequence, kind, model_name):
            _validate_boolean(control, model_name)
    for control in _controls(sequence, _Control.CONTROL_SEQUENCE_CORRID, model_name):
        _validate_correlation_id(control, model_name)
    check_preferred_sizes(
        sequence.oldest.preferred_batch_size, max_batch_size, "sequence batching preferred batch size", model_name
    )
    utilization = sequence.direct.minimum_slot_utilization
    if utilization < 0 or utilization > 1:
        raise invalid(f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {model_name}")


def _controls(sequence: model_config_pb.ModelSequenceBatching, kind: int, model_name: str) -> Iterator[_Control]:
    """The control of *kind*, of which there is one at most; the tensors' names are checked on the way."""
    seen_tensors: set[str] = set()
    seen_control = False
    for tensor in sequence.control_input:
        if not tensor.name:
            raise invalid(f"sequence batching control tensor must have a name for {model_name}")
        if tensor.name in seen_tensors:
            raise invalid(
                f"sequence batching control tensor '{tensor.name}' is specified for multiple control kinds for "
                f"{model_name}"
            )
        seen_tensors.add(tensor.name)
        for control in tensor.control:
            if control.kind == kind:
                if seen_control:
                    raise invalid(f"sequence batching specifies multiple {_name(kind)} tensors for {model_name}")
                seen_control = True
                yield control


def _validate_boolean(control: _Control, model_name: str) -> None:
    given = {
        "int32_false_true": len(control.int32_false_true),
        "fp32_false_true": len(control.fp32_false_true),
        "bool_false_true": len(control.bool_false_true),
    }
    used = [(field, size) for field, size in given.items() if size]
    of = f"for {_name(control.kind)} for {model_name}"
    if not used:
        raise invalid(
            f"sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' {of}"
        )
    if len(used) > 1:
        raise invalid(
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
            f"'bool_false_true' {of}"
        )
    ((field, size),) = used
    if size != 2:
        raise invalid(f"sequence batching control '{field}' must have exactly 2 entries {of}")


def _validate_correlation_id(control: _Control, model_name: str) -> None:
    if control.int32_false_true or control.fp32_false_true or control.bool_false_true:
        raise invalid(
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
            f"CONTROL_SEQUENCE_CORRID for {model_name}"
        )
    if control.data_type not in _CORRELATION_TYPES:
        raise invalid(
            f"unexpected data type for control CONTROL_SEQUENCE_CORRID for {model_name}. Allowed data types are "
            "TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )


def _name(kind: int) -> str:
    return _Control.Kind.Name(kind)
