"""What of the configuration that ``auto_complete_config`` returned is taken over (model API, 3.1; model_config.md, 6.3)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytriton_lite.config.auto_complete import merge_completed
from pytriton_lite.config.model_config import ModelConfig, check_for_load, read_model_config, resolve_for_load
from pytriton_lite.core.errors import ErrorCode, InferenceError

Read = Callable[..., ModelConfig]
WriteModel = Callable[..., Path]

PYTHON = 'backend: "python" '
IO = 'input { name: "IN" data_type: TYPE_FP32 dims: 4 } output { name: "OUT" data_type: TYPE_FP32 dims: 4 } '
BATCHING = PYTHON + IO + "max_batch_size: 4 "

TENSOR = {"name": "IN", "data_type": "TYPE_FP32", "dims": [4]}


def merged(config: ModelConfig, **changes: Any) -> ModelConfig:
    """*config* with a model's *changes* to its JSON form."""
    return merge_completed(config, {**copy.deepcopy(config.json), **changes})


def refusal(config: ModelConfig, **changes: Any) -> str:
    with pytest.raises(InferenceError) as caught:
        merged(config, **changes)
    assert caught.value.code is ErrorCode.INVALID_ARG
    return caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(None, id="no config.pbtxt"),
        pytest.param(
            BATCHING
            + "dynamic_batching { max_queue_delay_microseconds: 5 } model_transaction_policy { decoupled: true }",
            id="dynamic batching",
        ),
        pytest.param(
            PYTHON + IO + 'sequence_batching { oldest { } state { input_name: "I" output_name: "O" '
            'data_type: TYPE_INT32 dims: 1 initial_state { data_type: TYPE_INT32 dims: 1 zero_data: true name: "z" } } }',
            id="sequence batching",
        ),
        pytest.param(
            PYTHON + 'input { name: "IN" data_type: TYPE_FP32 dims: 4 reshape { shape: [2, 2] } optional: true }',
            id="reshape",
        ),
    ],
)
def test_what_is_returned_unchanged_changes_nothing(read: Read, text: str | None) -> None:
    config = read(text)
    assert merged(config).json == config.json


def test_inputs_outputs_batching_and_policy_are_taken_over(read: Read) -> None:
    """model_config.md row 85: and normalised, so that full batches are preferred."""
    config = merged(
        read(None),
        max_batch_size=4,
        input=[TENSOR, {"name": "MORE", "data_type": "TYPE_STRING", "dims": [-1], "optional": True}],
        output=[{"name": "OUT", "data_type": "TYPE_BF16", "dims": [2, 3]}],
        dynamic_batching={},
        model_transaction_policy={"decoupled": True},
    )
    assert config.max_batch_size == 4
    assert [(spec.name, spec.datatype.config_name, spec.dims, spec.optional) for spec in config.inputs] == [
        ("IN", "TYPE_FP32", (4,), False),
        ("MORE", "TYPE_STRING", (-1,), True),
    ]
    assert [(spec.name, spec.datatype.config_name, spec.dims) for spec in config.outputs] == [
        ("OUT", "TYPE_BF16", (2, 3))
    ]
    assert config.dynamic_batching is not None
    assert config.dynamic_batching.preferred_batch_sizes == (4,)
    assert config.decoupled


def test_every_other_change_is_lost(read: Read) -> None:
    """model_api.md row 33; model_config.md row 88."""
    config = read(PYTHON + IO)
    changed = merged(
        config,
        name="somebody_else",
        backend="other",
        parameters={"k": {"string_value": "v"}},
        instance_group=[{"name": "g", "kind": "KIND_MODEL", "count": 3}],
        default_model_filename="other.py",
        version_policy={"all": {}},
        response_cache={"enable": True},
        unheard_of=1,
    )
    assert changed.json == config.json


def test_a_scheduler_that_is_configured_stays_as_it_is(read: Read) -> None:
    config = read(BATCHING + "dynamic_batching { max_queue_delay_microseconds: 5 }")
    assert merged(config, dynamic_batching={"max_queue_delay_microseconds": 99}).json == config.json
    without = {key: value for key, value in config.json.items() if key != "dynamic_batching"}
    assert merge_completed(config, without).json == config.json
    assert merge_completed(config, {**without, "sequence_batching": {}}).json == config.json


def test_a_scheduler_with_its_settings_is_taken_where_there_was_none(read: Read) -> None:
    dynamic = merged(read(BATCHING), dynamic_batching={"preferred_batch_size": [2], "max_queue_delay_microseconds": 77})
    assert dynamic.json["dynamic_batching"]["preferred_batch_size"] == [2]
    assert dynamic.json["dynamic_batching"]["max_queue_delay_microseconds"] == 77
    sequence = merged(read(PYTHON + IO, name="other"), sequence_batching={})
    assert sequence.json["sequence_batching"]["max_sequence_idle_microseconds"] == 1_000_000


def test_an_ensemble_cannot_be_made_of_a_model(read: Read) -> None:
    """The rules for a configuration as a whole are checked again."""
    assert refusal(read(PYTHON + IO), ensemble_scheduling={"step": []}) == (
        "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble"
    )


def test_a_larger_batch_size_leaves_the_preferred_sizes(read: Read) -> None:
    """model_config.md row 87: they were completed for the configured size, and Triton leaves them at that."""
    config = merged(read(BATCHING + "dynamic_batching { }"), max_batch_size=8)
    assert (config.max_batch_size, config.json["dynamic_batching"]["preferred_batch_size"]) == (8, [4])


def test_what_is_left_out_is_gone(read: Read) -> None:
    """A model may return a ModelConfig of its own making."""
    config = merge_completed(read(BATCHING + "model_transaction_policy { decoupled: true }"), {"name": "zzz"})
    assert (config.name, config.max_batch_size, config.inputs, config.outputs) == ("m", 0, (), ())
    assert config.decoupled


def test_properties_of_a_tensor_that_only_the_dict_can_set_are_taken_over(read: Read) -> None:
    """So asked of 2.51; one that a tensor does not have is passed over."""
    (spec,) = merged(read(PYTHON), input=[{**TENSOR, "reshape": {"shape": [2, 2]}, "unheard_of": 1}]).inputs
    assert spec.reshape == (2, 2)


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        pytest.param({"data_type": "type_fp32"}, ("TYPE_FP32", (4,)), id="data type in small letters"),
        pytest.param({"data_type": 11}, ("TYPE_FP32", (4,)), id="number of a data type"),
        pytest.param({"dims": ["4", 5.0]}, ("TYPE_FP32", (4, 5)), id="dims as text and as whole floats"),
        pytest.param({"dims": 4}, ("TYPE_FP32", (4,)), id="a dimension without a list"),
        pytest.param({"optional": 0}, ("TYPE_FP32", (4,)), id="a number as a truth value"),
    ],
)
def test_what_triton_makes_sense_of_is_understood(read: Read, fields: dict[str, Any], value: object) -> None:
    (spec,) = merged(read(PYTHON), input=[{**TENSOR, **fields}]).inputs
    assert (spec.datatype.config_name, spec.dims, spec.optional) == (*value, False)  # type: ignore[misc]


DATA_TYPES = (
    "TYPE_BOOL, TYPE_UINT8, TYPE_UINT16, TYPE_UINT32, TYPE_UINT64, TYPE_INT8, TYPE_INT16, TYPE_INT32, TYPE_INT64, "
    "TYPE_FP16, TYPE_FP32, TYPE_FP64, TYPE_STRING, TYPE_BF16"
)


@pytest.mark.parametrize("kind", ["input", "output"])
@pytest.mark.parametrize("given", ["FP32", "TYPE_BYTES"])
def test_an_unknown_data_type_is_named(read: Read, kind: str, given: str) -> None:
    """Model API, 3.1: 2.51 says that the configuration is not provided."""
    assert refusal(read(PYTHON), **{kind: [{**TENSOR, "data_type": given}]}) == (
        f"model {kind} 'IN' has the unknown data_type '{given}' for m; expected one of {DATA_TYPES}"
    )


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"max_batch_size": 4.5}, "max_batch_size"),
        ({"max_batch_size": 1 << 40}, "max_batch_size"),
        ({"max_batch_size": True}, "max_batch_size"),
        ({"input": 7}, "input"),
        ({"input": [7]}, "input"),
        ({"input": [{**TENSOR, "name": 7}]}, "name"),
        ({"input": [{**TENSOR, "dims": ["x"]}]}, "dims"),
        ({"output": [{**TENSOR, "dims": [0.5]}]}, "dims"),
        ({"dynamic_batching": 7}, "dynamic_batching"),
        ({"dynamic_batching": {}, "sequence_batching": {}}, "scheduling_choice"),
        ({"model_transaction_policy": {"decoupled": "perhaps"}}, "decoupled"),
    ],
)
def test_what_makes_no_sense_names_model_and_field(read: Read, changes: dict[str, Any], where: str) -> None:
    text = refusal(read(PYTHON), **changes)
    assert text.startswith("auto_complete_config of model 'm' returned a configuration that cannot be read: ")
    assert where in text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"dims": []}, "model input 'IN' must specify 'dims' for m"),
        ({"dims": None}, "model input 'IN' must specify 'dims' for m"),
        ({"data_type": "TYPE_INVALID"}, "model input 'IN' must specify 'data_type' for m"),
        ({"data_type": None}, "model input 'IN' must specify 'data_type' for m"),
        ({"name": ""}, "model input must specify 'name' for m"),
        (
            {"dims": [0]},
            "model input 'IN' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m",
        ),
    ],
)
def test_tensors_that_were_completed_are_checked_for_load(
    write_model: WriteModel, fields: dict[str, Any], text: str
) -> None:
    model_dir = write_model(PYTHON)
    config = merged(read_model_config(model_dir, versions=(1,)), input=[{**TENSOR, **fields}])
    with pytest.raises(InferenceError) as caught:
        check_for_load(config, model_dir=model_dir, gpu_ids=())
    assert (caught.value.code, caught.value.message) == (ErrorCode.INVALID_ARG, text)


def test_the_model_sees_its_instance_groups_decided(write_model: WriteModel) -> None:
    """Model API, 3.1, input; deciding them twice changes nothing."""
    model_dir = write_model(None)
    resolved = resolve_for_load(read_model_config(model_dir, versions=(1,)), model_dir=model_dir, gpu_ids=())
    assert [(group["name"], group["kind"], group["count"]) for group in resolved.json["instance_group"]] == [
        ("m", "KIND_CPU", 1)
    ]
    assert (resolved.json["max_batch_size"], resolved.json["input"], resolved.json["output"]) == (0, [], [])
    assert check_for_load(resolved, model_dir=model_dir, gpu_ids=()).json == resolved.json
