"""From a directory to a checked configuration: what is filled in, and every rule that a poll enforces."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pytriton_lite.config.model_config import (
    DynamicBatching,
    ModelConfig,
    PollError,
    QueuePolicy,
    TensorSpec,
    TimeoutAction,
    read_model_config,
)
from pytriton_lite.core import dtypes

Load = Callable[..., ModelConfig]
WriteModel = Callable[..., Path]

PYTHON = 'backend: "python" '
ENSEMBLE = 'platform: "ensemble" '
IO = 'input { name: "I" data_type: TYPE_FP32 dims: 4 } output { name: "O" data_type: TYPE_FP32 dims: 4 } '


def ensemble(*steps: tuple[str, str]) -> str:
    """An ensemble from I to O; each step is given by the ensemble's names of its inputs and of its outputs."""

    def tensors(field: str, names: str) -> str:
        return " ".join(f'{field} {{ key: "T{i}" value: "{name}" }}' for i, name in enumerate(names.split()))

    written = (f'{{ model_name: "x" {tensors("input_map", i)} {tensors("output_map", o)} }}' for i, o in steps)
    return ENSEMBLE + IO + f"ensemble_scheduling {{ step [ {', '.join(written)} ] }}"


def controls(*control_inputs: str) -> str:
    written = " ".join(f"control_input {{ {control_input} }}" for control_input in control_inputs)
    return PYTHON + IO + f"sequence_batching {{ {written} }}"


START = "control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] }"
CORRID = "control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }"


def test_empty_file_next_to_a_model_file_is_a_whole_configuration(read: Load) -> None:
    """model_config.md row 24."""
    config = read("")
    assert (config.name, config.backend, config.max_batch_size) == ("m", "python", 0)
    assert config.default_model_filename == "model.py"
    assert (config.inputs, config.outputs, config.dynamic_batching) == ((), (), None)
    assert config.json["version_policy"] == {"latest": {"num_versions": 1}}


def test_missing_file_is_an_empty_one(read: Load) -> None:
    assert read(None).json == {**read("", name="n").json, "name": "m"}


def test_missing_file_is_refused_where_nothing_may_be_completed(write_model: WriteModel) -> None:
    """model_config.md row 89."""
    model_dir = write_model(None)
    with pytest.raises(PollError) as caught:
        read_model_config(model_dir, strict=True, versions=(1,))
    assert caught.value.detail == (
        f"failed to open text file for read {model_dir}/config.pbtxt: No such file or directory"
    )


def test_unreadable_file_is_refused(write_model: WriteModel) -> None:
    model_dir = write_model(None)
    (model_dir / "config.pbtxt").mkdir()
    with pytest.raises(PollError, match=r"^failed to open text file for read .*config\.pbtxt: Is a directory$"):
        read_model_config(model_dir, versions=(1,))


def test_parse_error_names_the_file(write_model: WriteModel) -> None:
    model_dir = write_model("max_batch_size: 4\nfoo: 1\n")
    with pytest.raises(PollError) as caught:
        read_model_config(model_dir, versions=(1,))
    assert caught.value.detail == (
        f'{model_dir}/config.pbtxt:2:1: Message type "inference.ModelConfig" has no field named "foo".'
    )


def test_strict_reading_checks_the_tensors_at_once(read: Load) -> None:
    """model_config.md row 90; without strict, the same text waits for the load."""
    text = PYTHON + 'input { name: "IN0" data_type: TYPE_FP32 }'
    assert read(text, name="lenient").inputs[0].dims == ()
    with pytest.raises(PollError) as caught:
        read(text, strict=True)
    assert caught.value.detail == "model input 'IN0' must specify 'dims' for m"


def test_named_configuration_is_used_where_the_model_has_one(write_model: WriteModel) -> None:
    """model_config.md row 96."""
    with_choice, without = write_model("max_batch_size: 1", name="a"), write_model("max_batch_size: 2", name="b")
    (with_choice / "configs").mkdir()
    (with_choice / "configs" / "h100.pbtxt").write_text("max_batch_size: 100")
    sizes = [
        read_model_config(model_dir, config_name=name, versions=(1,)).max_batch_size
        for model_dir in (with_choice, without)
        for name in ("h100", "")
    ]
    assert sizes == [100, 1, 2, 2]


@pytest.mark.parametrize(
    ("files", "name", "backend", "file_name"),
    [
        pytest.param(("model.onnx", "model.py"), "m", "onnxruntime", "model.onnx", id="the first kind of file counts"),
        pytest.param(("model.pt",), "m", "pytorch", "model.pt", id="pytorch"),
        pytest.param(("other.txt",), "m.identity", "identity", "model.identity", id="row 84"),
        pytest.param((), "m.a.b", "a.b", "model.a.b", id="after the first dot"),
    ],
)
def test_backend_is_read_from_the_directory(
    write_model: WriteModel, files: tuple[str, ...], name: str, backend: str, file_name: str
) -> None:
    config = read_model_config(write_model("", name=name, files=files), versions=(1,))
    assert (config.backend, config.default_model_filename) == (backend, file_name)


@pytest.mark.parametrize("versions", [(1,), ()], ids=["no recognised file", "no version"])
def test_backend_that_nothing_tells_is_an_error(write_model: WriteModel, versions: tuple[int, ...]) -> None:
    """model_config.md row 83."""
    files = ("other.txt",) if versions else ("model.py",)
    with pytest.raises(PollError) as caught:
        read_model_config(write_model(None, name="x", files=files), versions=versions)
    assert caught.value.detail == (
        "Invalid model name: Could not determine backend for model 'x' with no backend in model configuration. "
        "Expected model name of the form 'model.<backend_name>'."
    )


def test_a_directory_whose_name_is_not_utf8_is_an_error_that_can_be_printed(write_model: WriteModel) -> None:
    with pytest.raises(PollError, match=r"^the directory 'm\\udcff' cannot be a model: its name is not UTF-8$"):
        read_model_config(write_model(PYTHON, name=os.fsdecode(b"m\xff")), versions=(1,))


def test_default_file_name_alone_selects_python(write_model: WriteModel) -> None:
    model_dir = write_model('default_model_filename: "model.py"', files=("model.onnx",))
    assert read_model_config(model_dir, versions=(1,)).backend == "python"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('platform: "onnxruntime_onnx"', id="platform"),
        pytest.param('backend: "onnxruntime"', id="backend"),
        pytest.param('default_model_filename: "model.onnx"', id="file name"),
        pytest.param("", id="content"),
    ],
)
def test_each_of_several_things_selects_onnxruntime_and_fills_in_the_others(write_model: WriteModel, text: str) -> None:
    """Asked of Triton 2.51."""
    config = read_model_config(write_model(text, files=("model.onnx",)), versions=(1,))
    assert (config.backend, config.platform) == ("onnxruntime", "onnxruntime_onnx")
    assert config.default_model_filename == "model.onnx"


def test_onnxruntime_may_have_a_file_of_another_name(read: Load) -> None:
    config = read('backend: "onnxruntime" default_model_filename: "net.onnx"')
    assert (config.platform, config.default_model_filename) == ("onnxruntime_onnx", "net.onnx")


@pytest.mark.parametrize(
    ("platform", "backend"),
    [
        ("tensorflow_savedmodel", "tensorflow"),
        ("tensorflow_graphdef", "tensorflow"),
        ("tensorrt_plan", "tensorrt"),
        ("pytorch_libtorch", "pytorch"),
    ],
)
def test_the_platform_of_a_framework_selects_its_backend(read: Load, platform: str, backend: str) -> None:
    """Asked of Triton 2.51."""
    assert read(f'platform: "{platform}"').backend == backend


def test_any_platform_may_stand_beside_python(read: Load) -> None:
    """model_config.md row 48."""
    assert read('platform: "foo" ' + PYTHON).platform == "foo"


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        pytest.param(PYTHON + "max_batch_size: -1", "'max_batch_size' must be non-negative value for m", id="row 27"),
        pytest.param(
            PYTHON + 'name: "other"',
            "unexpected directory name 'm' for model 'other', directory name must equal model name",
            id="row 28",
        ),
        pytest.param('platform: "python"', "unexpected platform type 'python' for m", id="row 47"),
        pytest.param('default_model_filename: "a.py"', "unexpected platform type '' for m", id="no backend"),
        pytest.param(
            ENSEMBLE + PYTHON,
            "Ensemble model 'm' must have platform type 'ensemble' and empty backend type",
            id="row 49",
        ),
        pytest.param(
            'backend: "onnxruntime" platform: "onnxruntim"',
            "unexpected 'platform' and 'backend' pair, got:onnxruntim, onnxruntime",
            id="row 100",
        ),
        pytest.param(
            PYTHON + "max_batch_size: 4 dynamic_batching { preferred_batch_size: 0 }",
            "dynamic batching preferred size must be positive for m",
            id="row 50, 0",
        ),
        pytest.param(
            PYTHON + "max_batch_size: 4 dynamic_batching { preferred_batch_size: 8 }",
            "dynamic batching preferred size must be <= max batch size for m",
            id="row 50, 8",
        ),
        pytest.param(
            PYTHON + "dynamic_batching { preferred_batch_size: 1 }",
            "dynamic batching preferred size must be <= max batch size for m",
            id="a preferred size where nothing is batched",
        ),
        pytest.param(
            PYTHON + "dynamic_batching { priority_levels: 3 }",
            "default priority level must be in range [1, 3] for m",
            id="row 53",
        ),
        pytest.param(
            PYTHON + "dynamic_batching { priority_levels: 3 default_priority_level: 4 }",
            "default priority level must be in range [1, 3] for m",
            id="default level beyond the last",
        ),
        pytest.param(
            PYTHON
            + "dynamic_batching { priority_levels: 3 default_priority_level: 1 priority_queue_policy { key: 4 } }",
            "priority queue policy must have priority level in range [1, 3] for m",
            id="row 54",
        ),
        pytest.param(
            PYTHON + "dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }",
            "Only one priority level is allowed when 'preserve_ordering' is true for m",
            id="row 55, levels",
        ),
        pytest.param(
            PYTHON
            + "dynamic_batching { preserve_ordering: true "
            + "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 } }",
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
            id="row 55, delay",
        ),
        pytest.param(
            PYTHON
            + "dynamic_batching { preserve_ordering: true priority_levels: 1 default_priority_level: 1 "
            + "priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 1 } } }",
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
            id="row 55, delay at a level",
        ),
        pytest.param(
            PYTHON + "sequence_batching { control_input { } } response_cache { enable: true }",
            "Response Cache does not currently support model m with sequence batching scheduler. Please disable the "
            "response cache.",
            id="row 56, sequence",
        ),
        pytest.param(
            PYTHON + "response_cache { enable: true } model_transaction_policy { decoupled: true }",
            "Response Cache does not currently support model m with 'decoupled' transaction policy. Please disable the "
            "response cache.",
            id="row 56, decoupled",
        ),
        pytest.param(
            PYTHON + "max_batch_size: 4 sequence_batching { oldest { preferred_batch_size: 8 } }",
            "sequence batching preferred batch size must be <= max batch size for m",
            id="oldest, preferred size",
        ),
        pytest.param(
            PYTHON + "max_batch_size: 4 sequence_batching { oldest { preferred_batch_size: -1 } }",
            "sequence batching preferred batch size must be positive for m",
            id="oldest, negative size",
        ),
        *(
            pytest.param(
                PYTHON + f"sequence_batching {{ direct {{ minimum_slot_utilization: {value} }} }}",
                "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
                id=f"row 59, {value}",
            )
            for value in ("1.5", "-0.1")
        ),
        pytest.param(
            PYTHON + 'model_repository_agents { agents { name: "checksum" } }',
            "unable to find 'libtritonrepoagent_checksum.so' for repo agent 'checksum', searched: nowhere, pytriton-lite "
            "loads no native repository agents",
            id="row 80",
        ),
        *(
            pytest.param(
                PYTHON + f"model_metrics {{ metric_control {{ {control} }} }}", detail, id=f"row 98, {control}"
            )
            for control, detail in {
                "": "metric control must specify 'metric_identifier'",
                "metric_identifier { }": "metric identifier must specify non-empty 'family'",
                'metric_identifier { family: "f" }': "metric control must specify 'histogram_options'",
                'metric_identifier { family: "f" } histogram_options { }': (
                    "histogram options must specify non-empty 'buckets'"
                ),
            }.items()
        ),
        pytest.param(
            PYTHON + "input { format: 7 dims: [1, 2, 3] }",
            "field 'input[0].format' has the unknown number 7 for m; expected one of FORMAT_NONE, FORMAT_NHWC, FORMAT_NCHW",
            id="a number without a meaning",
        ),
        pytest.param(
            PYTHON + "sequence_batching { control_input { name: 'A' control { kind: -1 int32_false_true: [0, 1] } } }",
            "field 'sequence_batching.control_input[0].control[0].kind' has the unknown number -1 for m; expected one of "
            "CONTROL_SEQUENCE_START, CONTROL_SEQUENCE_READY, CONTROL_SEQUENCE_END, CONTROL_SEQUENCE_CORRID",
            id="a kind of control that does not exist",
        ),
        pytest.param(
            PYTHON + "dynamic_batching { priority_queue_policy { key: 3 value { timeout_action: 5 } } }",
            "field 'dynamic_batching.priority_queue_policy[\"3\"].timeout_action' has the unknown number 5 for m; expected "
            "one of REJECT, DELAY",
            id="an action that does not exist",
        ),
        pytest.param(
            PYTHON + 'max_batch_size: -1 name: "other"',
            "'max_batch_size' must be non-negative value for other",
            id="the directory's name is looked at last",
        ),
    ],
)
def test_broken_rule_of_the_whole_configuration(read: Load, text: str, detail: str) -> None:
    with pytest.raises(PollError) as caught:
        read(text)
    assert caught.value.detail == detail


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        pytest.param(controls(START), "control tensor must have a name for m", id="no name"),
        pytest.param(
            controls(f'name: "A" {START}', f'name: "A" {CORRID}'),
            "control tensor 'A' is specified for multiple control kinds for m",
            id="a name twice",
        ),
        pytest.param(
            controls(f'name: "A" {START} {START}'),
            "specifies multiple CONTROL_SEQUENCE_START tensors for m",
            id="a kind twice",
        ),
        pytest.param(
            controls(f'name: "A" {CORRID}', f'name: "B" {CORRID}'),
            "specifies multiple CONTROL_SEQUENCE_CORRID tensors for m",
            id="two correlation ids",
        ),
        pytest.param(
            controls('name: "A" control { kind: CONTROL_SEQUENCE_END }'),
            "must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for CONTROL_SEQUENCE_END for m",
            id="no values",
        ),
        pytest.param(
            controls('name: "A" control { int32_false_true: 0 bool_false_true: true }'),
            "specifies more than one from 'int32_false_true', 'fp32_false_true' and 'bool_false_true' for "
            "CONTROL_SEQUENCE_START for m",
            id="two kinds of values",
        ),
        pytest.param(
            controls('name: "A" control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [0, 1, 2] }'),
            "control 'fp32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_READY for m",
            id="three values",
        ),
        pytest.param(
            controls('name: "A" control { kind: CONTROL_SEQUENCE_CORRID int32_false_true: [0, 1] }'),
            "must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
            "CONTROL_SEQUENCE_CORRID for m",
            id="values of a correlation id",
        ),
    ],
)
def test_malformed_control_input(read: Load, text: str, detail: str) -> None:
    """model_config.md row 57."""
    with pytest.raises(PollError) as caught:
        read(text)
    assert caught.value.detail == f"sequence batching {detail}"


@pytest.mark.parametrize("data_type", ["", "data_type: TYPE_FP32"])
def test_correlation_id_needs_an_integer_or_string_type(read: Load, data_type: str) -> None:
    with pytest.raises(PollError) as caught:
        read(controls(f'name: "A" control {{ kind: CONTROL_SEQUENCE_CORRID {data_type} }}'))
    assert caught.value.detail == (
        "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are TYPE_UINT64, TYPE_INT64, "
        "TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
    )


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("dynamic_batching { priority_queue_policy { key: 4 } }", id="row 54, no levels"),
        pytest.param(
            "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY } }",
            id="row 55, delay without a timeout",
        ),
        pytest.param("dynamic_batching { }", id="row 52"),
        pytest.param("sequence_batching { direct { minimum_slot_utilization: 0 } }", id="slot utilization 0"),
        pytest.param(
            f'sequence_batching {{ control_input {{ name: "A" {START} {CORRID} }} }}', id="two kinds, one tensor"
        ),
    ],
)
def test_odd_configuration_that_is_allowed(read: Load, text: str) -> None:
    assert read(PYTHON + IO + text).name == "m"


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        (
            PYTHON + "ensemble_scheduling { }",
            "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble",
        ),
        (ENSEMBLE, "ensemble scheduling must be set for ensemble m whose platform is ensemble"),
        (
            ENSEMBLE + "ensemble_scheduling { } instance_group { }",
            "instance group should not be specified for ensemble 'm'",
        ),
        (
            ENSEMBLE + "ensemble_scheduling { } optimization { }",
            "optimization should not be specified for ensemble 'm'",
        ),
        (ENSEMBLE + "ensemble_scheduling { } model_warmup { }", "model_warmup can not be specified for ensemble 'm'"),
        (ENSEMBLE + "ensemble_scheduling { }", "must specify 'step' for ensemble 'm'"),
        (ENSEMBLE + "ensemble_scheduling { step { } }", "must specify 'model_name' in step 0 of ensemble 'm'"),
        (ensemble(("I", "O"), ("", "X")), "must specify 'input_map' in step 1 of ensemble 'm'"),
        (ensemble(("I", "")), "must specify 'output_map' in step 0 of ensemble 'm'"),
        (
            ensemble(("I", "O"), ("I", "O")),
            "ensemble tensor 'O' can appear in an output map only once for ensemble 'm' step 1",
        ),
        (ensemble(("Q", "O")), "ensemble input 'I' for ensemble m' is not used"),
        (ensemble(("I", "X")), "ensemble output 'O' for ensemble m' is not used"),
        (ensemble(("I O", "X")), "output 'O' for ensemble 'm' is not written"),
        (
            ensemble(("I", "Z"), ("Q", "A"), ("A", "B"), ("Z B", "O")),
            "output 'O' for ensemble 'm' is not written: at least one of its depending tensors, 'Q', is not connected",
        ),
        (
            ensemble(("I B", "A"), ("A", "B O")),
            "output 'O' for ensemble 'm' is not written: at least one of its depending tensors, 'B', is not connected",
        ),
        (ensemble(("I", "O X")), "ensemble tensor 'X' is unused in ensemble 'm'"),
        (ensemble(("I", "O"), ("Q", "X")), "ensemble tensor 'X' is unused in ensemble 'm'"),
    ],
)
def test_broken_rule_of_an_ensemble(read: Load, text: str, detail: str) -> None:
    """model_config.md section 5.1, rule 8. Triton 2.51 names 'Q' and 'B' in the two broken chains, too."""
    with pytest.raises(PollError) as caught:
        read(text)
    assert caught.value.detail == detail


def test_ensemble_that_is_connected_is_read(read: Load) -> None:
    config = read(ensemble(("I", "A B"), ("A", "C"), ("C B", "O")))
    assert config.ensemble is not None
    assert config.json["backend"] == ""
    assert "optimization" not in config.json


def test_tensors_are_as_declared(read: Load) -> None:
    config = read(
        PYTHON
        + """max_batch_size: 8
        input { name: "A" data_type: TYPE_STRING dims: [1, -1] reshape { shape: [-1] } allow_ragged_batch: true }
        input { name: "B" data_type: TYPE_BF16 dims: 1 optional: true }
        output { name: "C" data_type: TYPE_BOOL dims: 1 reshape { shape: [] } label_filename: "labels.txt" }
        """
    )
    a, b, c = (*config.inputs, *config.outputs)
    assert a == TensorSpec("A", dtypes.BYTES, (1, -1), (-1,), False, True, "")
    assert b == TensorSpec("B", dtypes.BF16, (1,), None, True, False, "")
    assert c == TensorSpec("C", dtypes.BOOL, (1,), (), False, False, "labels.txt")
    assert config.inputs_by_name == {"A": a, "B": b}
    assert config.outputs_by_name == {"C": c}
    assert config.required_inputs == ("A",)
    assert config.metadata_shape(a) == (-1, 1, -1)
    assert read(PYTHON + IO, name="n").metadata_shape(c) == (1,)


def test_dynamic_batching_has_its_units_and_policies(read: Load) -> None:
    config = read(
        PYTHON
        + """max_batch_size: 4 dynamic_batching {
          max_queue_delay_microseconds: 100 priority_levels: 2 default_priority_level: 1
          default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 }
          priority_queue_policy { key: 2 value { allow_timeout_override: true max_queue_size: 3 } } }
        """
    )
    assert config.dynamic_batching == DynamicBatching(
        preferred_batch_sizes=(4,),
        max_queue_delay_us=100,
        preserve_ordering=False,
        priority_levels=2,
        default_priority_level=1,
        default_queue_policy=QueuePolicy(TimeoutAction.DELAY, 5, False, 0),
        priority_queue_policies={2: QueuePolicy(TimeoutAction.REJECT, 0, True, 3)},
    )


def test_parameters_and_tags_are_plain_dictionaries(read: Load) -> None:
    config = read(
        PYTHON + 'parameters { key: "b" value { string_value: "2" } } parameters { key: "a" } '
        'metric_tags { key: "team" value: "x" }'
    )
    assert config.parameters == {"a": "", "b": "2"}
    assert config.metric_tags == {"team": "x"}
    assert config.parameters.get("absent") is None
    assert set(config.json["parameters"]) == {"a", "b"}


@pytest.mark.parametrize(
    ("text", "never"),
    [
        ("", ()),
        ("max_batch_size: 2 dynamic_batching { preferred_batch_size: 2 max_queue_delay_microseconds: 1 }", ()),
        ("model_transaction_policy { decoupled: false }", ()),
        ("model_transaction_policy { decoupled: true }", ()),
        ("sequence_batching { }", ()),
        ("sequence_batching { state { } }", ()),
        (
            "sequence_batching { state { use_same_buffer_for_input_output: true } }",
            ("sequence_batching.state.use_same_buffer_for_input_output",),
        ),
        ("model_warmup { }", ()),
        ("response_cache { }", ()),
        ("response_cache { enable: true }", ()),
        ("instance_group [ { }, { rate_limiter { } } ]", ()),
        ("dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 1 } }", ()),
        ("batch_input { }", ("batch_input",)),
        ("optimization { input_pinned_memory { enable: true } }", ()),
        ("optimization { output_pinned_memory { enable: false } }", ("optimization.output_pinned_memory.enable",)),
        ("optimization { priority: PRIORITY_MAX cuda { } }", ("optimization.priority", "optimization.cuda")),
        ('instance_group { host_policy: "gpu_0" }', ("instance_group.host_policy",)),
        ("model_operations { }", ()),
        ('model_operations { op_library_filename: "a" }', ("model_operations.op_library_filename",)),
    ],
)
def test_fields_that_do_nothing_are_named(read: Load, text: str, never: tuple[str, ...]) -> None:
    assert read(PYTHON + text).without_effect == never


def test_a_namespace_in_a_step_does_nothing(read: Load) -> None:
    text = ensemble(("I", "O")).replace('model_name: "x"', 'model_name: "x" model_namespace: "n"')
    assert read(text).without_effect == ("ensemble_scheduling.step.model_namespace",)


def test_configuration_cannot_be_changed(read: Load) -> None:
    config = read("")
    with pytest.raises(AttributeError):
        config.max_batch_size = 3  # type: ignore[misc]
