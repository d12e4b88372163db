"""``pb_utils.ModelConfig``: what its methods do to the dict, and Triton's texts (model API, section 2.10)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytriton_lite.worker import pb_utils
from pytriton_lite.worker.pb_utils import ModelConfig

IN = {"name": "IN", "data_type": "TYPE_FP32", "dims": [4]}
OUT = {"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]}


def config(**fields: Any) -> ModelConfig:
    """A configuration as one without config.pbtxt has it, and *fields*."""
    return ModelConfig(json.dumps({"name": "m", "max_batch_size": 0, "input": [], "output": [], **fields}))


def test_it_is_one_of_the_public_names() -> None:
    assert "ModelConfig" in pb_utils.__all__
    assert (ModelConfig.__module__, ModelConfig.__qualname__) == ("triton_python_backend_utils", "ModelConfig")


def test_as_dict_is_the_live_dict() -> None:
    made = config()
    before = made.as_dict()
    made.set_max_batch_size(8)
    assert before is made.as_dict()
    assert before == {"name": "m", "max_batch_size": 8, "input": [], "output": []}


def test_text_that_is_no_json_is_a_value_error() -> None:
    with pytest.raises(ValueError):
        ModelConfig("nope")


# ---------------------------------------------------------------------------------------------- batching


def test_the_batch_size_may_be_raised_and_not_lowered() -> None:
    """model_api.md row 26."""
    made = config(max_batch_size=4)
    with pytest.raises(ValueError) as caught:
        made.set_max_batch_size(2)
    assert str(caught.value) == (
        "configuration specified max_batch_size 4, but in auto-complete-config function for model 'm' specified "
        "max_batch_size 2"
    )
    assert made.as_dict()["max_batch_size"] == 4
    made.set_max_batch_size(8)
    assert made.as_dict()["max_batch_size"] == 8


def test_dynamic_batching_is_added_once() -> None:
    made = config()
    made.set_dynamic_batching()
    assert made.as_dict()["dynamic_batching"] == {}
    configured = config(dynamic_batching={"max_queue_delay_microseconds": 5})
    configured.set_dynamic_batching()
    assert configured.as_dict()["dynamic_batching"] == {"max_queue_delay_microseconds": 5}


@pytest.mark.parametrize("scheduler", ["sequence_batching", "ensemble_scheduling"])
def test_dynamic_batching_does_not_replace_another_scheduler(scheduler: str) -> None:
    """model_api.md row 31."""
    with pytest.raises(ValueError) as caught:
        config(**{scheduler: {}}).set_dynamic_batching()
    assert str(caught.value) == (
        f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config function for model 'm' "
        "tries to set scheduling_choice as 'dynamic_batching'"
    )


# ---------------------------------------------------------------------------------------------- inputs and outputs


def test_tensors_are_appended_and_are_the_configs_own() -> None:
    """model_api.md row 30: a second input next to a configured one."""
    made = config(input=[{**IN, "name": "FIRST"}])
    given = {**IN, "optional": True}
    made.add_input(given)
    made.add_output(OUT)
    given["dims"] = [1]
    assert made.as_dict()["input"] == [{**IN, "name": "FIRST"}, {**IN, "optional": True}]
    assert made.as_dict()["output"] == [OUT]


def test_a_tensor_that_says_what_is_configured_is_fine() -> None:
    made = config(input=[{**IN, "optional": False}], output=[OUT])
    made.add_input({**IN, "optional": False})
    made.add_input(IN)
    made.add_output(OUT)
    assert made.as_dict()["input"] == [{**IN, "optional": False}]
    assert made.as_dict()["output"] == [OUT]


def test_a_configured_name_is_completed_in_place() -> None:
    """model_api.md row 29: other properties of the entry stay."""
    made = config(input=[{"name": "IN", "data_type": "TYPE_INVALID", "dims": [], "format": "FORMAT_NONE"}])
    made.add_input({**IN, "optional": True})
    assert made.as_dict()["input"] == [{**IN, "format": "FORMAT_NONE", "optional": True}]


@pytest.mark.parametrize(("kind", "tensor"), [("input", IN), ("output", OUT)])
def test_another_data_type_than_configured_is_refused(kind: str, tensor: dict[str, Any]) -> None:
    """model_api.md row 27."""
    made = config(**{kind: [{**tensor, "data_type": "TYPE_INT32"}]})
    with pytest.raises(ValueError) as caught:
        getattr(made, f"add_{kind}")(tensor)
    assert str(caught.value) == (
        f"unable to load model 'm', configuration expects datatype TYPE_INT32 for {kind} '{tensor['name']}', model "
        "provides TYPE_FP32"
    )


@pytest.mark.parametrize(("kind", "tensor"), [("input", IN), ("output", OUT)])
@pytest.mark.parametrize("dims", [[-1], [], (4,)])
def test_other_dims_than_configured_are_refused(kind: str, tensor: dict[str, Any], dims: object) -> None:
    """model_api.md row 28; an empty list and a tuple are other dims, too (asked of 2.51)."""
    made = config(**{kind: [tensor]})
    with pytest.raises(ValueError) as caught:
        getattr(made, f"add_{kind}")({**tensor, "dims": dims})
    assert str(caught.value) == (
        f"model 'm', tensor '{tensor['name']}': the model expects dims {dims} but the model configuration specifies "
        "dims [4]"
    )


def test_another_optional_than_configured_is_refused() -> None:
    with pytest.raises(ValueError) as caught:
        config(input=[{**IN, "optional": False}]).add_input({**IN, "optional": True})
    assert str(caught.value) == (
        "model 'm', tensor 'IN': the model expects optional True but the model configuration specifies optional False"
    )


def test_the_model_may_not_contradict_itself() -> None:
    made = config()
    made.add_input(IN)
    with pytest.raises(
        ValueError, match=r"the model expects dims \[5\] but the model configuration specifies dims \[4\]"
    ):
        made.add_input({**IN, "dims": [5]})


@pytest.mark.parametrize(
    ("kind", "tensor", "text"),
    [
        (
            "input",
            {"name": "IN", "foo": 1},
            "input 'IN' in auto-complete-config function for model 'm' contains property other than 'name', 'data_type', "
            "'dims' and 'optional'.",
        ),
        (
            "output",
            {**OUT, "optional": True},
            "output 'OUT' in auto-complete-config function for model 'm' contains property other than 'name', "
            "'data_type' and 'dims'.",
        ),
        (
            "input",
            {"data_type": "TYPE_FP32", "dims": [4]},
            "input in auto-complete-config function for model 'm' is missing 'name' property.",
        ),
        (
            "input",
            {"name": "IN", "dims": [4]},
            "input 'IN' in auto-complete-config function for model 'm' is missing 'data_type' property.",
        ),
        (
            "input",
            {"name": "IN", "data_type": "TYPE_FP32"},
            "input 'IN' in auto-complete-config function for model 'm' is missing 'dims' property.",
        ),
        (
            "output",
            {"data_type": "TYPE_FP32", "dims": [4]},
            "output in auto-complete-config function for model 'm' is missing 'name' property.",
        ),
        (
            "output",
            {"name": "OUT", "dims": [4]},
            "output 'OUT' in auto-complete-config function for model 'm' is missing 'data_type' property.",
        ),
        (
            "output",
            {"name": "OUT", "data_type": "TYPE_FP32"},
            "output 'OUT' in auto-complete-config function for model 'm' is missing 'dims' property.",
        ),
    ],
)
def test_properties_are_checked(kind: str, tensor: dict[str, Any], text: str) -> None:
    """model_api.md row 35."""
    made = config()
    with pytest.raises(ValueError) as caught:
        getattr(made, f"add_{kind}")(tensor)
    assert str(caught.value) == text
    assert made.as_dict()[kind] == []


def test_an_unknown_property_of_a_tensor_without_a_name_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="'name'"):
        config().add_input({"foo": 1})


# ---------------------------------------------------------------------------------------------- transaction policy


def test_a_policy_is_set_where_none_was() -> None:
    made = config()
    made.set_model_transaction_policy({"decoupled": True})
    assert made.as_dict()["model_transaction_policy"] == {"decoupled": True}


def test_an_empty_policy_is_a_policy() -> None:
    """So asked of 2.51: the configuration then shows ``decoupled: false``."""
    made = config()
    made.set_model_transaction_policy({})
    assert made.as_dict()["model_transaction_policy"] == {}


@pytest.mark.parametrize("configured", [False, True])
def test_a_configured_policy_may_be_repeated_and_not_contradicted(configured: bool) -> None:
    """model_api.md row 32."""
    made = config(model_transaction_policy={"decoupled": configured})
    made.set_model_transaction_policy({"decoupled": configured})
    with pytest.raises(ValueError) as caught:
        made.set_model_transaction_policy({"decoupled": not configured})
    assert str(caught.value) == (
        "trying to change decoupled property in auto-complete-config for model 'm', which is already set to "
        f"'{configured}'."
    )
    assert made.as_dict()["model_transaction_policy"] == {"decoupled": configured}


def test_a_policy_has_no_other_property() -> None:
    with pytest.raises(ValueError) as caught:
        config().set_model_transaction_policy({"decoupled": True, "other": 1})
    assert str(caught.value) == (
        "model transaction property in auto-complete-config function for model 'm' contains property other than "
        "'decoupled'."
    )
