"""``sequence_batching.state``: what may not be said of it, and what a sequence begins with (model_config.md, 4.7 and 5.5)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytriton_lite.config.model_config import ModelConfig, check_for_load, read_model_config
from pytriton_lite.config.sequence_state import broken_states
from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError

WriteModel = Callable[..., Path]

INITIAL = 'name: "i" data_type: TYPE_FP32 dims: 2 '
STRINGS = b"\2\0\0\0ab"


def state(initial: str | None = None, *, name: str = "SI", output: str = "SO", fields: str = "") -> str:
    """A state of two FP32, with an initial state where the fields of one are given."""
    begins = "" if initial is None else f"initial_state {{ {initial} }} "
    text = f'input_name: "{name}" output_name: "{output}" data_type: TYPE_FP32 dims: 2 {fields} {begins}'
    return f"state {{ {text} }} "


@pytest.fixture
def load_states(write_model: WriteModel) -> Callable[..., ModelConfig]:
    def load_text(states: str, *, kind: str = "KIND_CPU", gpu_ids: tuple[int, ...] = (), **files: bytes) -> ModelConfig:
        model_dir = write_model(
            f'backend: "python" sequence_batching {{ {states} }} instance_group {{ kind: {kind} }} max_batch_size: 2'
        )
        (model_dir / "initial_state").mkdir()
        for name, content in files.items():
            (model_dir / "initial_state" / name).write_bytes(content)
        return check_for_load(read_model_config(model_dir, versions=(1,)), model_dir=model_dir, gpu_ids=gpu_ids)

    return load_text


@pytest.mark.parametrize(
    ("states", "message"),
    [
        pytest.param(
            state(INITIAL + "zero_data: true } initial_state { "),
            "initial_state field for state input 'SI' must contain exactly one or zero element. Found '2' elements.",
            id="row 76, two of them",
        ),
        pytest.param(
            state(INITIAL.replace("FP32", "INT32") + "zero_data: true"),
            "The data type used for 'initial_state' field of state 'SI' does not match the state data type.",
            id="row 76, data type",
        ),
        pytest.param(
            state("data_type: TYPE_FP32 dims: 2 zero_data: true"),
            "Field 'name' must be set when using initial_state for state input 'SI'.",
            id="row 76, no name",
        ),
        pytest.param(
            state(INITIAL + "zero_data: true") + state(INITIAL + "zero_data: true", output="S2"),
            "State input name 'SI' specified more than once.",
            id="row 76, twice",
        ),
        pytest.param(
            state(INITIAL.replace("dims: 2", "dims: [2, 1]") + "zero_data: true"),
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input 'SI'. "
            "2 != 1",
            id="row 76, rank",
        ),
        pytest.param(
            state(INITIAL.replace("dims: 2", "dims: -1") + "zero_data: true"),
            "'initial_state' field for state input name 'SI' contains variable dimensions.",
            id="row 76, variable",
        ),
        pytest.param(
            state(INITIAL.replace("dims: 2", "dims: 3") + "zero_data: true"),
            "'initial_state' dim for input name 'SI' doesn't match 'state' dim description. 3 != 2",
            id="row 76, dims",
        ),
        pytest.param(
            state(INITIAL + 'data_file: "short"'),
            "initial_state setting expects 8 bytes, but the data provided from shortonly has 3 bytes.",
            id="row 76, short file",
        ),
        pytest.param(
            state(INITIAL), "initial_state setting expects state'SI' to have state_data set", id="row 76, no data"
        ),
        pytest.param(
            state(fields="use_growable_memory: true"),
            "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input name 'SI'.",
            id="growable memory without a single buffer",
        ),
        pytest.param(
            state(fields="use_growable_memory: true use_same_buffer_for_input_output: true"),
            "'use_growable_memory' can only work with KIND_GPU model instances right now. Please either change the "
            "instance type to KIND_GPU or set 'use_growable_memory' to false for state input 'SI'.",
            id="growable memory on a CPU",
        ),
        pytest.param(
            state(name=""), "sequence batching state must specify 'input_name' for m", id="no name, 2.51 dies of it"
        ),
        pytest.param(
            state(name="C")
            + 'control_input { name: "C" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [0, 1] } }',
            "sequence batching state 'C' has the name of a control input for m",
            id="the name of a control",
        ),
        pytest.param(
            state().replace("data_type: TYPE_FP32", ""),
            "sequence batching state 'SI' must specify 'data_type' for m",
            id="no type, 2.51 dies of it",
        ),
        pytest.param(
            state().replace("dims: 2", "dims: -2"),
            "sequence batching state 'SI' dimension must be integer >= 0, or -1 to indicate a variable-size dimension for m",
            id="dims -2, 2.51 dies of it",
        ),
        pytest.param(
            state().replace("dims: 2", f"dims: {[1] * 255}"),
            "sequence batching state 'SI' has 255 dimensions, expected less than 255 for m",
            id="too many dimensions",
        ),
        pytest.param(
            state().replace("dims: 2", f"dims: {1 << 60}"),
            f"sequence batching state 'SI' of model 'm' begins with {1 << 62} bytes, more than there is memory for",
            id="more than there is memory",
        ),
        pytest.param(
            state().replace("dims: 2", "dims: [ 9000000000000000000, 9 ]"),
            "sequence batching state 'SI' of model 'm' begins with 324000000000000000000 bytes, more than there is memory for",
            id="more than a number can say",
        ),
        pytest.param(
            state(INITIAL.replace("FP32", "STRING") + 'data_file: "strings"').replace("FP32", "STRING"),
            "expected 2 string elements for inference input 'SI' for model 'm', got 1",
            id="too few strings, 2.51 tells each request",
        ),
        pytest.param(
            state(INITIAL.replace("FP32", "INT32")) + state(name=""),
            "The data type used for 'initial_state' field of state 'SI' does not match the state data type.",
            id="the first broken rule counts",
        ),
    ],
)
def test_a_broken_rule_fails_the_load(load_states: Callable[..., ModelConfig], states: str, message: str) -> None:
    with pytest.raises(InferenceError) as caught:
        load_states(states, short=b"123", strings=STRINGS)
    assert (caught.value.code, caught.value.message) == (ErrorCode.INVALID_ARG, message)


def test_a_file_that_is_not_there_fails_the_load(load_states: Callable[..., ModelConfig], tmp_path: Path) -> None:
    with pytest.raises(InferenceError) as caught:
        load_states(state(INITIAL + 'data_file: "nope"'))
    path = tmp_path / "m" / "initial_state" / "nope"
    assert (caught.value.code, caught.value.message) == (
        ErrorCode.INTERNAL,
        f"failed to open text file for read {path}: No such file or directory",
    )


def test_a_file_outside_the_model_fails_the_load(load_states: Callable[..., ModelConfig], tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(64))
    with pytest.raises(InferenceError) as caught:
        load_states(state(INITIAL + 'data_file: "/../../secret"'))
    assert (caught.value.code, caught.value.message) == (
        ErrorCode.UNSUPPORTED,
        "data file path '/../../secret' in the model's directory initial_state is outside model directory",
    )


def test_growable_memory_is_taken_on_a_gpu_and_reported_as_without_effect(
    load_states: Callable[..., ModelConfig],
) -> None:
    states = state(fields="use_growable_memory: true use_same_buffer_for_input_output: true")
    config = load_states(states, kind="KIND_GPU", gpu_ids=(0,))
    assert "sequence_batching.state.use_growable_memory" in config.without_effect


def test_every_broken_state_is_found_with_its_place(write_model: WriteModel) -> None:
    model_dir = write_model(f'backend: "python" sequence_batching {{ {state(INITIAL)} {state()} {state(name="")} }}')
    message = read_model_config(model_dir, versions=(1,)).message
    assert [broken.field for broken in broken_states(message, model_dir)] == [
        "sequence_batching.state[0].initial_state[0]",
        "sequence_batching.state[2]",
    ]


def test_a_state_begins_with_what_its_file_has_at_the_beginning(load_states: Callable[..., ModelConfig]) -> None:
    states = state(INITIAL + 'data_file: "/long"') + state(name="S2", output="O2")
    config = load_states(states, long=bytes(range(20)))
    assert config.initial_states == {"SI": bytes(range(8))}
    assert config.sequence_batching is not None
    first, second = config.sequence_batching.states
    assert (first.output_name, first.datatype, first.dims, first.initial_dims) == ("SO", dtypes.FP32, (2,), (2,))
    assert second.input_name == "S2"


def test_strings_are_taken_whole(load_states: Callable[..., ModelConfig]) -> None:
    states = state(INITIAL.replace("FP32", "STRING") + 'data_file: "f"').replace("FP32", "STRING")
    assert load_states(states, f=STRINGS * 2).initial_states == {"SI": STRINGS * 2}


@pytest.mark.parametrize(
    ("second", "field", "value"),
    [(state(output="S2"), "input_name", "SI"), (state(name="S2"), "output_name", "SO")],
)
def test_the_later_of_two_states_of_one_name_is_ignored(
    load_states: Callable[..., ModelConfig], second: str, field: str, value: str
) -> None:
    config = load_states(state(INITIAL + "zero_data: true") + second)
    assert config.sequence_batching is not None
    assert [(known.input_name, known.output_name) for known in config.sequence_batching.states] == [("SI", "SO")]
    assert config.sequence_batching.repeated_states == (
        f"Detected duplicate '{field}' in the state configuration: '{value}.' This state configuration will be ignored.",
    )


def test_what_an_ignored_state_would_begin_with_is_nobodys(load_states: Callable[..., ModelConfig]) -> None:
    ignored = state(INITIAL + 'data_file: "f"', output="S2")
    assert load_states(state() + ignored, f=bytes(range(8))).initial_states == {}


def test_a_file_that_is_cut_off_while_it_is_read_fails_the_load(
    load_states: Callable[..., ModelConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = iter([bytes(8), bytes(4)])
    monkeypatch.setattr("pytriton_lite.config.sequence_state.read_data_file", lambda *_: next(contents))
    with pytest.raises(InferenceError, match="expects 8 bytes, but the data provided from fonly has 4 bytes"):
        load_states(state(INITIAL + 'data_file: "f"'))
