"""MAX_QUEUE_SIZE, BATCH_ANY_SHAPES and BATCH_TENSORS of a configuration (docs/dynamic-batching.md)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytriton_lite.config.batch_io import BatchInput, BatchInputKind, BatchOutput, BatchTensors
from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError

Load = Callable[..., ModelConfig]

MODEL = """
    backend: "python"
    input { name: "I" data_type: TYPE_FP32 dims: -1 } input { name: "J" data_type: TYPE_FP32 dims: [ -1, 2 ] }
    output { name: "O" data_type: TYPE_FP32 dims: -1 } output { name: "P" data_type: TYPE_FP32 dims: [ 2, -1 ] }
"""
BATCHING = "max_batch_size: 4 dynamic_batching { } "
COUNT = 'batch_input { target_name: ["N", "M"] data_type: TYPE_INT32 source_input: "I" } '


def parameter(key: str, value: str = "yes") -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }} '


def test_what_the_parameters_say_can_be_read(load: Load) -> None:
    config = load(MODEL + parameter("MAX_QUEUE_SIZE", "12") + parameter("BATCH_ANY_SHAPES"))
    assert (config.max_queue_size, config.batches_any_shapes, config.batch_tensors) == (12, True, None)


def test_without_them_nothing_is_different(load: Load) -> None:
    config = load(MODEL + COUNT)
    assert (config.max_queue_size, config.batches_any_shapes, config.batch_tensors) == (0, False, None)


def test_batch_tensors_are_there_for_a_model_that_asks_for_them(load: Load) -> None:
    scatter = 'batch_output { target_name: "O" source_input: "I" } '
    shapes = 'batch_input { kind: BATCH_ITEM_SHAPE target_name: "S" data_type: TYPE_FP32 source_input: "J" } '
    config = load(MODEL + COUNT + shapes + scatter + parameter("BATCH_TENSORS"))
    assert config.batch_tensors == BatchTensors(
        (
            BatchInput(BatchInputKind.ELEMENT_COUNT, ("N", "M"), dtypes.INT32, "I"),
            BatchInput(BatchInputKind.ITEM_SHAPE, ("S",), dtypes.FP32, "J"),
        ),
        (BatchOutput(("O",), "I"),),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            parameter("MAX_QUEUE_SIZE", "-1"),
            "Incorrect value for MAX_QUEUE_SIZE: expected a number, 0 for no limit, got '-1'",
        ),
        (
            parameter("MAX_QUEUE_SIZE", "many"),
            "Incorrect value for MAX_QUEUE_SIZE: expected a number, 0 for no limit, got 'many'",
        ),
        (
            parameter("MAX_QUEUE_SIZE", "9" * 5000),  # more than Python makes a number of
            f"Incorrect value for MAX_QUEUE_SIZE: expected a number, 0 for no limit, got '{'9' * 5000}'",
        ),
        (
            BATCHING + parameter("MAX_QUEUE_SIZE", "3"),
            "MAX_QUEUE_SIZE of model 'm' is for models without dynamic_batching: use default_queue_policy.max_queue_size, "
            "or that of a priority level",
        ),
        (
            parameter("BATCH_ANY_SHAPES", "true"),
            "Incorrect value for BATCH_ANY_SHAPES: expected 'yes' or 'no', got 'true'",
        ),
        (parameter("BATCH_TENSORS", ""), "Incorrect value for BATCH_TENSORS: expected 'yes' or 'no', got ''"),
        (
            COUNT.replace('"M"', '"J"') + parameter("BATCH_TENSORS"),
            "batch input 'J' of model 'm' has the name of an input",
        ),
        (
            COUNT.replace('"M"', '"N"') + parameter("BATCH_TENSORS"),
            "batch input 'N' of model 'm' has the name of another batch input",
        ),
        (
            COUNT.replace('"M"', '""') + parameter("BATCH_TENSORS"),
            "batch input of model 'm': a target name is empty",
        ),
        (
            "sequence_batching { control_input { "
            "name: 'N' control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } } }"
            + COUNT
            + parameter("BATCH_TENSORS"),
            "batch input 'N' of model 'm' has the name of a control input",
        ),
        (
            'batch_output { target_name: "O" source_input: "I" } ' * 2 + parameter("BATCH_TENSORS"),
            "output 'O' of model 'm' is the target of two batch outputs",
        ),
        (
            'batch_output { target_name: "P" source_input: "I" } ' + parameter("BATCH_TENSORS"),
            "batch output 'P' of model 'm': dimension 1 is variable, and its source input 'I' has 1 dimensions",
        ),
    ],
)
def test_what_cannot_be_is_refused(load: Load, text: str, message: str) -> None:
    with pytest.raises(InferenceError) as refused:
        load(MODEL + text)
    assert (refused.value.code, refused.value.message) == (ErrorCode.INVALID_ARG, message)


@pytest.mark.parametrize(
    ("text", "without_effect"),
    [
        (COUNT, ("batch_input",)),
        (COUNT + parameter("BATCH_TENSORS", "no"), ("batch_input",)),
        (COUNT + parameter("BATCH_TENSORS"), ()),
    ],
)
def test_what_does_nothing_is_known(load: Load, text: str, without_effect: tuple[str, ...]) -> None:
    assert load(MODEL + text).without_effect == without_effect
