"""The rules for sequence batching (model_config.md, section 5.1, rule 7)."""

from __future__ import annotations

from collections.abc import Iterator

from pytriton_lite.config.errors import BrokenRule, invalid
from pytriton_lite.config.preferred import broken_preferred_sizes
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


def broken_sequence_batching(
    sequence: model_config_pb.ModelSequenceBatching, max_batch_size: int, model_name: str
) -> Iterator[BrokenRule]:
    """What is wrong, in Triton's order; the names of the control tensors once."""
    names = list(_broken_names(sequence, model_name))
    for kind in _BOOLEAN_KINDS:
        yield from _broken_kind(sequence, kind, names, model_name)
    yield from _broken_kind(sequence, _Control.CONTROL_SEQUENCE_CORRID, names, model_name)
    yield from broken_preferred_sizes(
        sequence.oldest.preferred_batch_size,
        max_batch_size,
        "sequence batching preferred batch size",
        model_name,
        "sequence_batching.oldest.preferred_batch_size",
    )
    utilization = sequence.direct.minimum_slot_utilization
    if utilization < 0 or utilization > 1:
        yield invalid(
            f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {model_name}",
            "sequence_batching.direct.minimum_slot_utilization",
        )


def _broken_names(sequence: model_config_pb.ModelSequenceBatching, model_name: str) -> Iterator[tuple[int, BrokenRule]]:
    """What is wrong with the name of a control tensor, with its index."""
    seen: set[str] = set()
    for at, tensor in enumerate(sequence.control_input):
        if not tensor.name:
            text = f"sequence batching control tensor must have a name for {model_name}"
            yield at, invalid(text, f"sequence_batching.control_input[{at}]")
        elif tensor.name in seen:
            text = f"sequence batching control tensor '{tensor.name}' is specified for multiple control kinds for {model_name}"
            yield at, invalid(text, f"sequence_batching.control_input[{at}].name")
        seen.add(tensor.name)


def _broken_kind(
    sequence: model_config_pb.ModelSequenceBatching, kind: int, names: list[tuple[int, BrokenRule]], model_name: str
) -> Iterator[BrokenRule]:
    """Check that there is one control of *kind* at most.

    What is in *names* is found, and taken out, on the way of the first kind."""
    found = False
    for at, tensor in enumerate(sequence.control_input):
        while names and names[0][0] == at:
            yield names.pop(0)[1]
        for index, control in enumerate(tensor.control):
            if control.kind != kind:
                continue
            where = f"sequence_batching.control_input[{at}].control[{index}]"
            if found:
                yield invalid(f"sequence batching specifies multiple {_name(kind)} tensors for {model_name}", where)
            elif kind == _Control.CONTROL_SEQUENCE_CORRID:
                yield from _broken_correlation_id(control, model_name, where)
            else:
                yield from _broken_boolean(control, model_name, where)
            found = True


def _broken_boolean(control: _Control, model_name: str, where: str) -> Iterator[BrokenRule]:
    given = {
        "int32_false_true": len(control.int32_false_true),
        "fp32_false_true": len(control.fp32_false_true),
        "bool_false_true": len(control.bool_false_true),
    }
    used = [(field, size) for field, size in given.items() if size]
    of = f"for {_name(control.kind)} for {model_name}"
    if not used:
        yield invalid(
            f"sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' {of}",
            where,
        )
    elif len(used) > 1:
        yield invalid(
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
            f"'bool_false_true' {of}",
            where,
        )
    elif used[0][1] != 2:
        yield invalid(
            f"sequence batching control '{used[0][0]}' must have exactly 2 entries {of}", f"{where}.{used[0][0]}"
        )


def _broken_correlation_id(control: _Control, model_name: str, where: str) -> Iterator[BrokenRule]:
    if control.int32_false_true or control.fp32_false_true or control.bool_false_true:
        yield invalid(
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
            f"CONTROL_SEQUENCE_CORRID for {model_name}",
            where,
        )
    if control.data_type not in _CORRELATION_TYPES:
        yield invalid(
            f"unexpected data type for control CONTROL_SEQUENCE_CORRID for {model_name}. Allowed data types are "
            "TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
            f"{where}.data_type",
        )


def _name(kind: int) -> str:
    return _Control.Kind.Name(kind)
