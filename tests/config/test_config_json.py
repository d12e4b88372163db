"""The JSON form and the normalisation in front of it."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from pytriton_lite.config.json_form import is_repeated, json_form
from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.config.normalise import normalise
from pytriton_lite.config.text import parse_model_config
from pytriton_lite.proto import model_config_pb

Load = Callable[..., ModelConfig]


def form_of(text: str) -> dict[str, Any]:
    message = parse_model_config(text, source="config.pbtxt")
    normalise(message)
    return json_form(message)


def test_minimal_model_is_printed_as_triton_prints_it(load: Load) -> None:
    """http.md section 5, the sample, key order included."""
    config = load(
        'name: "add_sub" backend: "python" instance_group [ { } ] '
        'input { name: "INPUT0" data_type: TYPE_FP32 dims: 4 } output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 4 }',
        name="add_sub",
    )
    assert config.json_text == (
        '{"name":"add_sub","platform":"","backend":"python","runtime":"","version_policy":{"latest":{"num_versions":1}},'
        '"max_batch_size":0,"input":[{"name":"INPUT0","data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[4],'
        '"is_shape_tensor":false,"allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false}],"output":'
        '[{"name":"OUTPUT0","data_type":"TYPE_FP32","dims":[4],"label_filename":"","is_shape_tensor":false,'
        '"is_non_linear_format_io":false}],"batch_input":[],"batch_output":[],"optimization":{"priority":'
        '"PRIORITY_DEFAULT","input_pinned_memory":{"enable":true},"output_pinned_memory":{"enable":true},'
        '"gather_kernel_buffer_threshold":0,"eager_batching":false},"instance_group":[{"name":"add_sub_0","kind":'
        '"KIND_CPU","count":1,"gpus":[],"secondary_devices":[],"profile":[],"passive":false,"host_policy":""}],'
        '"default_model_filename":"model.py","cc_model_filenames":{},"metric_tags":{},"parameters":{},"model_warmup":[]}'
    )
    assert json.loads(config.json_text) == config.json


def test_an_output_is_printed_in_triton_order() -> None:
    """As Triton 2.51 prints it: the reshape before the file of labels, whose number is the lower one."""
    form = form_of('output { name: "O" data_type: TYPE_FP32 dims: 1 reshape { } label_filename: "labels.txt" }')
    assert json.dumps(form["output"], separators=(",", ":")) == (
        '[{"name":"O","data_type":"TYPE_FP32","dims":[1],"reshape":{"shape":[]},"label_filename":"labels.txt",'
        '"is_shape_tensor":false,"is_non_linear_format_io":false}]'
    )


def test_queue_policy_sample_of_the_http_spec() -> None:
    """http.md section 5, the dynamic_batching sample."""
    form = form_of(
        "max_batch_size: 1 dynamic_batching { priority_levels: 3 default_priority_level: 2 "
        "default_queue_policy { allow_timeout_override: true max_queue_size: 2 } }"
    )
    assert json.dumps(form["dynamic_batching"], separators=(",", ":")) == (
        '{"preferred_batch_size":[1],"max_queue_delay_microseconds":0,"preserve_ordering":false,"priority_levels":3,'
        '"default_priority_level":2,"default_queue_policy":{"timeout_action":"REJECT","default_timeout_microseconds":0,'
        '"allow_timeout_override":true,"max_queue_size":2},"priority_queue_policy":{}}'
    )


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        pytest.param(
            "max_batch_size: 4 dynamic_batching { }", "dynamic_batching.preferred_batch_size", [4], id="row 51"
        ),
        pytest.param("dynamic_batching { }", "dynamic_batching.preferred_batch_size", [], id="row 52"),
        pytest.param(
            "max_batch_size: 4 sequence_batching { oldest { } }",
            "sequence_batching.oldest.preferred_batch_size",
            [4],
            id="oldest strategy",
        ),
        pytest.param(
            "sequence_batching { }",
            "sequence_batching",
            {"max_sequence_idle_microseconds": 1000000, "control_input": [], "state": [], "iterative_sequence": False},
            id="row 58",
        ),
        pytest.param("version_policy { }", "version_policy", {}, id="row 69"),
        pytest.param("", "version_policy", {"latest": {"num_versions": 1}}, id="default version policy"),
        pytest.param(
            "version_policy { specific { versions: [1, 3] } }", "version_policy.specific.versions", [1, 3], id="i64"
        ),
        pytest.param(
            "optimization { graph { level: 1 } input_pinned_memory { enable: false } }",
            "optimization",
            {
                "graph": {"level": 1},
                "priority": "PRIORITY_DEFAULT",
                "input_pinned_memory": {"enable": False},
                "output_pinned_memory": {"enable": True},
                "gather_kernel_buffer_threshold": 0,
                "eager_batching": False,
            },
            id="row 81",
        ),
        pytest.param(
            "sequence_batching { state { dims: 2 initial_state { dims: 2 zero_data: true } } }",
            "sequence_batching.state",
            [
                {
                    "input_name": "",
                    "output_name": "",
                    "data_type": "TYPE_INVALID",
                    "dims": [2],
                    "initial_state": [{"data_type": "TYPE_INVALID", "dims": ["2"], "name": "", "zero_data": True}],
                    "use_same_buffer_for_input_output": False,
                    "use_growable_memory": False,
                }
            ],
            id="row 77",
        ),
        pytest.param(
            "instance_group { secondary_devices { device_id: 7 } }",
            "instance_group",
            [
                {
                    "name": "",
                    "kind": "KIND_AUTO",
                    "count": 0,
                    "gpus": [],
                    "secondary_devices": [{"kind": "KIND_NVDLA", "device_id": "7"}],
                    "profile": [],
                    "passive": False,
                    "host_policy": "",
                }
            ],
            id="device ids are strings",
        ),
        pytest.param(
            "dynamic_batching { priority_queue_policy { key: 10 } priority_queue_policy { key: 9 } }",
            "dynamic_batching.priority_queue_policy",
            {
                str(level): {
                    "timeout_action": "REJECT",
                    "default_timeout_microseconds": 0,
                    "allow_timeout_override": False,
                    "max_queue_size": 0,
                }
                for level in (9, 10)
            },
            id="map keys are strings",
        ),
        pytest.param("input { data_type: 99 }", "input.0.data_type", 99, id="an unknown enum stays a number"),
        pytest.param("response_cache { }", "response_cache", {"enable": False}, id="message that is set and empty"),
        pytest.param(
            "model_warmup { inputs { key: 'x' value { dims: 2 random_data: false } } }",
            "model_warmup.0.inputs",
            {"x": {"data_type": "TYPE_INVALID", "dims": [2], "random_data": False}},
            id="a oneof's scalar appears when set",
        ),
        pytest.param(
            'platform: "ensemble" ensemble_scheduling { step { model_name: "a" model_version: -1 } }',
            "ensemble_scheduling.step",
            [{"model_name": "a", "model_version": -1, "input_map": {}, "output_map": {}, "model_namespace": ""}],
            id="ensemble step",
        ),
        pytest.param(
            'platform: "ensemble" ensemble_scheduling { }',
            "model_transaction_policy",
            {"decoupled": False},
            id="ensemble",
        ),
        pytest.param(
            "parameters { key: 'a' value { string_value: 'é' } }", "parameters", {"a": {"string_value": "é"}}, id="é"
        ),
    ],
)
def test_normalised_form(text: str, path: str, value: Any) -> None:
    found: Any = form_of(text)
    for key in path.split("."):
        found = found[int(key)] if isinstance(found, list) else found[key]
    assert json.dumps(found) == json.dumps(value)


def test_messages_that_are_not_set_are_not_printed() -> None:
    form = form_of("")
    absent = {"dynamic_batching", "sequence_batching", "model_transaction_policy", "response_cache", "model_metrics"}
    assert absent.isdisjoint(form)
    assert "optimization" not in form_of('platform: "ensemble" ensemble_scheduling { }')


@pytest.mark.parametrize(
    ("number", "printed"),
    [("0.0", "0"), ("1", "1"), ("0.1", "0.1"), ("0.333333333", "0.333333343"), ("1e20", "1e+20"), ("-0.5", "-0.5")],
)
def test_single_precision_numbers_have_the_digits_that_triton_prints(number: str, printed: str) -> None:
    form = form_of(f"sequence_batching {{ control_input {{ control {{ fp32_false_true: {number} }} }} }}")
    assert json.dumps(form["sequence_batching"]["control_input"][0]["control"][0]["fp32_false_true"]) == f"[{printed}]"


def test_every_top_level_field_is_printed_in_triton_order() -> None:
    """A field that a later .proto adds must get its place in the order."""
    message = model_config_pb.ModelConfig()
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None and not is_repeated(field):
            getattr(message, field.name).SetInParent()
    printed = list(json_form(message))
    choices = {"dynamic_batching", "sequence_batching", "ensemble_scheduling"}
    assert set(printed) | choices == {field.name for field in message.DESCRIPTOR.fields}
    assert printed[:7] == ["name", "platform", "backend", "runtime", "version_policy", "max_batch_size", "input"]
    assert printed.index("optimization") < printed.index("ensemble_scheduling") < printed.index("instance_group")


_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT32: st.integers(0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: st.integers(0, (1 << 64) - 1),
    FieldDescriptor.CPPTYPE_FLOAT: st.floats(width=32, allow_nan=False),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(allow_nan=False),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_STRING: st.text(st.sampled_from(string.printable + "\0é√😀"), max_size=6),
}


@st.composite
def messages(draw: st.DrawFn, kind: Any = model_config_pb.ModelConfig) -> Any:
    """A message of *kind* with some of its fields set to anything."""
    message = kind()
    _fill(draw, message)
    return message


def _fill(draw: st.DrawFn, message: Any) -> None:
    fields = list(message.DESCRIPTOR.fields)
    for field in draw(
        st.lists(st.sampled_from(fields), max_size=5, unique_by=lambda field: field.number) if fields else st.just([])
    ):
        target = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            for drawn in draw(st.lists(_scalar(key), max_size=2, unique=True)):
                if value.message_type is not None:
                    _fill(draw, target[drawn])
                else:
                    target[drawn] = draw(_scalar(value))
        elif is_repeated(field):
            for _ in range(draw(st.integers(0, 2))):
                if field.message_type is not None:
                    _fill(draw, target.add())
                else:
                    target.append(draw(_scalar(field)))
        elif field.message_type is not None:
            target.SetInParent()
            _fill(draw, target)
        else:
            setattr(message, field.name, draw(_scalar(field)))


def _scalar(field: Any) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        return st.sampled_from([value.number for value in field.enum_type.values])
    return _SCALARS[field.cpp_type]


@given(messages())
@settings(max_examples=60, deadline=None)
def test_what_protobuf_prints_is_read_back(message: Any) -> None:
    for as_one_line in (True, False):
        text = text_format.MessageToString(message, as_one_line=as_one_line)
        assert parse_model_config(text, source="config.pbtxt") == message


@given(messages())
@settings(max_examples=60, deadline=None)
def test_normalising_twice_is_normalising_once(message: Any) -> None:
    normalise(message)
    once = message.SerializeToString(deterministic=True)
    normalise(message)
    assert message.SerializeToString(deterministic=True) == once


@given(messages())
@settings(max_examples=60, deadline=None)
def test_json_form_is_stable_and_plain(message: Any) -> None:
    normalise(message)
    printed = json.dumps(json_form(message), allow_nan=False)
    again = model_config_pb.ModelConfig.FromString(message.SerializeToString())
    assert json.dumps(json_form(again), allow_nan=False) == printed
    for tensor in again.sequence_batching.control_input:
        tensor.ClearField("control")  # controls are typed, and validation, which does not run here, knows which can be
    assert isinstance(ModelConfig.from_message(again).json_text, str)
