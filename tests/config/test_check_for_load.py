"""What a configuration must fulfil when a version is loaded, and the instances that it then has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytriton_lite.config.model_config import (
    InstanceKind,
    ModelConfig,
    check_for_load,
    instance_names,
    read_model_config,
    with_one_instance,
)
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.sharing import InstanceSharing

Load = Callable[..., ModelConfig]
WriteModel = Callable[..., Path]

PYTHON = 'backend: "python" '
IO = 'input { name: "I" data_type: TYPE_FP32 dims: 4 } output { name: "O" data_type: TYPE_FP32 dims: 4 } '


def tensor(fields: str, model: str = "") -> str:
    """A model whose one input has *fields* beside a name and a type."""
    return PYTHON + model + f' input {{ name: "IN0" data_type: TYPE_FP32 {fields} }}'


def parameter(key: str, value: str) -> str:
    return PYTHON + IO + f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }} '


BATCHING = "max_batch_size: 4"
DIMENSION = "model input 'IN0' dimension must be integer >= 1, or -1 to indicate a variable-size dimension"
DIFFERENT_SIZE = "model input 'IN0' has different size for dims and reshape"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(PYTHON + "input { dims: 1 }", "model input must specify 'name'", id="no name"),
        pytest.param(
            PYTHON + 'input { name: "IN0" dims: 4 }', "model input 'IN0' must specify 'data_type'", id="row 29"
        ),
        pytest.param(tensor(""), "model input 'IN0' must specify 'dims'", id="row 30"),
        pytest.param(tensor("dims: [ ]"), "model input 'IN0' must specify 'dims'", id="row 30, empty list"),
        pytest.param(tensor("dims: [4, 0]"), DIMENSION, id="row 31, 0"),
        pytest.param(tensor("dims: -2"), DIMENSION, id="row 31, -2"),
        pytest.param(tensor("dims: [4, 4] format: FORMAT_NHWC"), "model input NHWC/NCHW require 3 dims", id="row 32"),
        pytest.param(
            tensor("dims: 4 is_shape_tensor: true"),
            "shape tensors are only supported for TensorRT platform",
            id="row 33",
        ),
        pytest.param(
            tensor("dims: 4 is_non_linear_format_io: true"),
            "Non-linear IO format is only supported for the TensorRT platform",
            id="non-linear format",
        ),
        pytest.param(tensor("dims: 4 reshape { shape: [2, 3] }"), DIFFERENT_SIZE, id="row 34"),
        pytest.param(
            tensor("dims: 1 reshape { shape: [ ] }"),
            "model input 'IN0' cannot have empty reshape for non-batching model as scalar tensors are not supported",
            id="row 35",
        ),
        pytest.param(tensor("dims: [2, -1, 6] reshape { shape: [-1, 12] }"), DIFFERENT_SIZE, id="row 36"),
        pytest.param(
            tensor("dims: [2, -1, 6, -1] reshape { shape: [2, -1, 6] }"),
            "model input 'IN0' has different number of variable-size dimensions for dims and reshape",
            id="row 37",
        ),
        pytest.param(tensor("dims: [-1] reshape { shape: [4] }"), DIFFERENT_SIZE, id="only dims vary"),
        pytest.param(tensor("dims: 2 reshape { shape: [ ] }", BATCHING), DIFFERENT_SIZE, id="two elements, no shape"),
        pytest.param(
            tensor("dims: 4 reshape { shape: [4, 0] }"),
            "model input 'IN0' reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension",
            id="reshape of 0",
        ),
        pytest.param(
            tensor("dims: [4294967296, 4294967296]"),
            "element count for tensor 'IN0 dims' exceeds maximum size of 9223372036854775807",
            id="too many elements",
        ),
        pytest.param(
            tensor(f"dims: {[-1] * 255}"),
            "tensor 'IN0 dims' has 255 dimensions, expected less than 255",
            id="too many dimensions",
        ),
        pytest.param(
            tensor(f"dims: -1 reshape {{ shape: {[-1] * 255} }}"),
            "tensor 'IN0 reshape' has 255 dimensions, expected less than 255",
            id="reshape of too many dimensions",
        ),
        pytest.param(
            PYTHON + 'output { name: "OUT" data_type: TYPE_FP32 }',
            "model output 'OUT' must specify 'dims'",
            id="row 30, output",
        ),
        pytest.param(
            PYTHON + IO + 'input { name: "I" data_type: TYPE_INT8 dims: 1 }',
            "model input 'I' is specified more than once",
            id="section 7, duplicate input",
        ),
        pytest.param(
            PYTHON + IO + 'output { name: "O" data_type: TYPE_INT8 dims: 1 }',
            "model output 'O' is specified more than once",
            id="duplicate output",
        ),
        pytest.param(
            PYTHON + IO + "batch_input { kind: BATCH_ITEM_SHAPE data_type: TYPE_INT32 }",
            "batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 0",
            id="row 43",
        ),
        pytest.param(
            PYTHON + IO + 'batch_input { data_type: TYPE_INT64 source_input: "I" }',
            "batch input data type must be TYPE_INT32 or TYPE_FP32",
            id="batch input, type",
        ),
        pytest.param(
            PYTHON + IO + 'batch_input { data_type: TYPE_INT32 source_input: "X" }',
            "unknown source input name 'X'",
            id="batch input, source",
        ),
        pytest.param(
            PYTHON + IO + 'batch_output { target_name: "O" }',
            "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 0",
            id="batch output, no source",
        ),
        pytest.param(
            PYTHON + IO + 'batch_output { target_name: "X" source_input: "I" }',
            "unknown target output name 'X'",
            id="row 45",
        ),
        pytest.param(
            PYTHON + IO + 'batch_output { target_name: ["O", "O"] source_input: "I" }',
            "target output name 'O' can only be specified once",
            id="batch output, target twice",
        ),
    ],
)
def test_broken_rule_of_a_tensor(load: Load, text: str, message: str) -> None:
    with pytest.raises(InferenceError) as caught:
        load(text)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == f"{message} for m"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(PYTHON, id="row 42"),
        pytest.param(tensor("dims: [2, 4, -1, 6] reshape { shape: [8, -1, 1, 6] }"), id="reshape around a variable"),
        pytest.param(tensor("dims: 1 reshape { shape: [ ] }", BATCHING), id="row 39, empty reshape"),
        pytest.param(tensor("dims: 4 reshape { shape: [2, 2] }"), id="row 38, reshape"),
        pytest.param(tensor("dims: [3, 4, 4] format: FORMAT_NCHW"), id="a format with three dims"),
        pytest.param(tensor("dims: [-1, 9223372036854775807, 2]"), id="a variable dimension has no count"),
        pytest.param(
            PYTHON + IO + 'batch_input { target_name: ["a", "b"] data_type: TYPE_INT32 source_input: "I" }', id="row 44"
        ),
        pytest.param(
            PYTHON
            + IO
            + 'batch_output { target_name: "O" source_input: "I" } batch_output { target_name: "O" source_input: "I" }',
            id="two batch outputs, one target",
        ),
        pytest.param(PYTHON + 'metric_tags { key: "1team" value: "b" }', id="row 82"),
        pytest.param(PYTHON + 'runtime: "model.py"', id="the runtime of a Python model"),
        pytest.param(PYTHON + 'runtime: "libtriton_python.so"', id="the library that Triton takes by itself"),
        pytest.param(parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "yes"), id="inputs on the CPU"),
        pytest.param(parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "no"), id="inputs anywhere"),
    ],
)
def test_unusual_configuration_that_loads(load: Load, text: str) -> None:
    assert load(text).json["name"] == "m"


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        pytest.param(
            'backend: "nosuch" ' + IO,
            ErrorCode.INVALID_ARG,
            "unable to find backend library for backend 'nosuch', try specifying runtime on the model configuration.",
            id="row 46",
        ),
        pytest.param(
            parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "maybe"),
            ErrorCode.UNSUPPORTED,
            "Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: maybe'",
            id="row 78",
        ),
        pytest.param(
            parameter("TRITON_BATCH_STRATEGY_PATH", "/nope.so") + "sequence_batching { }",
            ErrorCode.INVALID_ARG,
            "TRITON_BATCH_STRATEGY_PATH cannot be specified with sequence batcher, using default batching strategy",
            id="row 79, sequence batching",
        ),
        pytest.param(
            parameter("TRITON_BATCH_STRATEGY_PATH", "/nope.so"),
            ErrorCode.NOT_FOUND,
            "Batching library path not found: /nope.so",
            id="row 79",
        ),
        pytest.param(
            parameter("TRITON_BATCH_STRATEGY_PATH", "/" + "n" * 300),
            ErrorCode.NOT_FOUND,
            f"Batching library path not found: /{'n' * 300}",
            id="row 79, where nobody can look",
        ),
        pytest.param(
            parameter("TRITON_BATCH_STRATEGY_PATH", "/"),
            ErrorCode.UNSUPPORTED,
            "TRITON_BATCH_STRATEGY_PATH of model 'm' names a native batching library, /: pytriton-lite loads none. "
            "Remove the parameter to batch by the rules of dynamic_batching.",
            id="a batching library that exists",
        ),
        pytest.param(
            PYTHON + 'metric_tags { key: "my-team" value: "b" }',
            ErrorCode.INVALID_ARG,
            "metric_tags of model 'm': 'my-team' gives the label '_my-team', expected letters, digits and underscores, "
            "the first of them no underscore",
            id="section 7, metric tag",
        ),
    ],
)
def test_refused_at_load(load: Load, text: str, code: ErrorCode, message: str) -> None:
    with pytest.raises(InferenceError) as caught:
        load(text)
    assert (caught.value.code, caught.value.message) == (code, message)


def test_backend_of_the_name_is_unknown_at_load(load: Load) -> None:
    """model_config.md row 84."""
    with pytest.raises(InferenceError, match="unable to find backend library for backend 'identity'"):
        load('backend: "identity"', name="m.identity")


def test_foreign_runtime_is_refused(write_model: WriteModel) -> None:
    model_dir = write_model(PYTHON + 'runtime: "libtriton_x.so"')
    with pytest.raises(InferenceError) as caught:
        check_for_load(read_model_config(model_dir, versions=(1,)), model_dir=model_dir, gpu_ids=())
    assert caught.value.message == (
        f"unable to find backend library 'libtriton_x.so' for model 'm', searched: '{model_dir}' "
    )


def test_more_backends_can_be_allowed(write_model: WriteModel) -> None:
    model_dir = write_model('backend: "mine"')
    config = read_model_config(model_dir, versions=(1,))
    assert check_for_load(config, model_dir=model_dir, gpu_ids=(), backends={"mine": model_dir}).backend == "mine"


def test_a_python_based_backend_is_the_runtime(write_model: WriteModel, tmp_path: Path) -> None:
    """model_api.md, section 1.6."""
    model_dir = write_model('backend: "mine"')
    config = read_model_config(model_dir, versions=(1,))
    loaded = check_for_load(config, model_dir=model_dir, gpu_ids=(), backends={"mine": tmp_path})
    assert (loaded.json["runtime"], loaded.default_model_filename, loaded.parameters) == ("model.py", "", {})


def test_an_archive_beside_a_python_based_backend_is_its_environment(write_model: WriteModel, tmp_path: Path) -> None:
    archive = tmp_path / "pb_exec_env_model.py.tar.gz"
    archive.touch()
    model_dir = write_model('backend: "mine"')
    config = read_model_config(model_dir, versions=(1,))
    loaded = check_for_load(config, model_dir=model_dir, gpu_ids=(), backends={"mine": tmp_path})
    assert loaded.parameters == {"EXECUTION_ENV_PATH": str(archive)}


def test_the_environment_that_a_model_names_goes_before_its_backends(write_model: WriteModel, tmp_path: Path) -> None:
    (tmp_path / "pb_exec_env_model.py.tar.gz").touch()
    model_dir = write_model('backend: "mine" parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/own" } }')
    config = read_model_config(model_dir, versions=(1,))
    loaded = check_for_load(config, model_dir=model_dir, gpu_ids=(), backends={"mine": tmp_path})
    assert loaded.parameters == {"EXECUTION_ENV_PATH": "/own"}


@pytest.mark.parametrize(("kind", "count"), [("KIND_CPU", 2), ("KIND_AUTO", 2), ("KIND_MODEL", 1)])
def test_onnxruntime_has_two_instances_on_the_cpu_unless_told(write_model: WriteModel, kind: str, count: int) -> None:
    """Asked of Triton 2.51."""
    model_dir = write_model(f'backend: "onnxruntime" instance_group {{ kind: {kind} }}')
    config = read_model_config(model_dir, versions=(1,))
    loaded = check_for_load(config, model_dir=model_dir, gpu_ids=(), backends={"onnxruntime": model_dir})
    assert [group.count for group in loaded.instance_groups] == [count]


def labelled(file_name: str) -> str:
    return PYTHON + f'output {{ name: "O" data_type: TYPE_FP32 dims: 4 label_filename: "{file_name}" }}'


@pytest.mark.parametrize("file_name", ["labels.txt", "./sub/../labels.txt"])
def test_label_file_in_the_model_directory_is_found(write_model: WriteModel, file_name: str) -> None:
    model_dir = write_model(labelled(file_name))
    (model_dir / "labels.txt").write_text("cat\ndog\n")
    config = check_for_load(read_model_config(model_dir, versions=(1,)), model_dir=model_dir, gpu_ids=())
    assert config.outputs[0].label_filename == file_name
    assert config.labels == {"O": ("cat", "dog")}
    assert with_one_instance(config).labels == config.labels


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        (b"cat\n\ndog", ("cat", "", "dog")),
        (b"cat\r\ndog\r\n", ("cat", "dog")),
        (b" a cat \n\n", (" a cat ", "")),
        (b"caf\xe9\x0cnoir\n", ("caf\udce9\x0cnoir",)),
        (b"", ("",)),
    ],
)
def test_a_label_is_a_line_whatever_is_in_it(write_model: WriteModel, content: bytes, labels: tuple[str, ...]) -> None:
    model_dir = write_model(labelled("labels.txt"))
    (model_dir / "labels.txt").write_bytes(content)
    config = check_for_load(read_model_config(model_dir, versions=(1,)), model_dir=model_dir, gpu_ids=())
    assert config.labels == {"O": labels}


def test_link_to_a_label_file_elsewhere_is_followed(write_model: WriteModel, tmp_path: Path) -> None:
    model_dir = write_model(labelled("labels.txt"))
    (tmp_path / "elsewhere.txt").write_text("cat\n")
    (model_dir / "labels.txt").symlink_to(tmp_path / "elsewhere.txt")
    config = check_for_load(read_model_config(model_dir, versions=(1,)), model_dir=model_dir, gpu_ids=())
    assert config.outputs[0].label_filename == "labels.txt"


def test_missing_label_file_is_refused(write_model: WriteModel) -> None:
    """model_config.md row 40."""
    model_dir = write_model(labelled("nope.txt"))
    with pytest.raises(InferenceError) as caught:
        check_for_load(read_model_config(model_dir, versions=(1,)), model_dir=model_dir, gpu_ids=())
    assert caught.value.code is ErrorCode.INTERNAL
    assert caught.value.message == f"failed to open text file for read {model_dir}/nope.txt: No such file or directory"


@pytest.mark.parametrize("file_name", ["../x.txt", "sub/../../x.txt", "/etc/hostname", "."])
def test_label_file_outside_the_model_directory_is_refused(load: Load, file_name: str) -> None:
    """model_config.md row 97."""
    with pytest.raises(InferenceError) as caught:
        load(labelled(file_name))
    assert caught.value.code is ErrorCode.UNSUPPORTED
    assert caught.value.message == (
        f"label file path '{file_name}' for output 'O' in model 'm' is outside model directory"
    )


@pytest.mark.parametrize(
    ("groups", "gpu_ids", "instances"),
    [
        pytest.param("", (), [("m_0", "CPU", 0)], id="no group"),
        pytest.param("instance_group { count: 2 }", (), [("m_0_0", "CPU", 0), ("m_0_1", "CPU", 0)], id="one group"),
        pytest.param("instance_group { kind: KIND_MODEL }", (1,), [("m_0_0", "MODEL", 0)], id="row 63"),
        pytest.param("instance_group { count: -3 } ", (), [("m_0_0", "CPU", 0)], id="row 64, -3"),
        pytest.param("instance_group { count: 0 }", (), [("m_0_0", "CPU", 0)], id="row 64, 0"),
        pytest.param(
            'instance_group [ { name: "g" count: 2 }, { } ]',
            (),
            [("g_0", "CPU", 0), ("g_1", "CPU", 0), ("m_1_0", "CPU", 0)],
            id="row 65",
        ),
        pytest.param("", (0, 1), [("m_0", "GPU", 0), ("m_0", "GPU", 1)], id="no group, two GPUs"),
        pytest.param(
            "instance_group { count: 2 kind: KIND_GPU gpus: [1, 0] }",
            (0, 1),
            [("m_0_0", "GPU", 1), ("m_0_0", "GPU", 0), ("m_0_1", "GPU", 1), ("m_0_1", "GPU", 0)],
            id="a count for each GPU",
        ),
        pytest.param("instance_group { kind: KIND_CPU }", (0,), [("m_0_0", "CPU", 0)], id="on the CPU by choice"),
        pytest.param("instance_group { gpus: 1 }", (0, 1), [("m_0_0", "GPU", 1)], id="the kind follows the GPUs"),
    ],
)
def test_instances(load: Load, groups: str, gpu_ids: tuple[int, ...], instances: list[tuple[str, str, int]]) -> None:
    config = load(PYTHON + groups, gpu_ids=gpu_ids)
    assert [(spec.name, spec.kind, spec.device_id, spec.passive) for spec in instance_names(config)] == [
        (name, InstanceKind(kind), device, False) for name, kind, device in instances
    ]


def test_passive_group_is_marked(load: Load) -> None:
    """model_config.md row 67, the configuration's part of it."""
    config = load(PYTHON + "instance_group [ { passive: true }, { } ]")
    assert [(spec.name, spec.passive) for spec in instance_names(config)] == [("m_0_0", True), ("m_1_0", False)]


def test_resolved_groups_are_in_the_json_form_and_the_read_configuration_stays(write_model: WriteModel) -> None:
    model_dir = write_model(PYTHON)
    before = read_model_config(model_dir, versions=(1,))
    after = check_for_load(before, model_dir=model_dir, gpu_ids=())
    assert after.json["instance_group"][0] == {
        "name": "m",
        "kind": "KIND_CPU",
        "count": 1,
        "gpus": [],
        "secondary_devices": [],
        "profile": [],
        "passive": False,
        "host_policy": "",
    }
    assert before.json["instance_group"] == []
    assert check_for_load(after, model_dir=model_dir, gpu_ids=()).json_text == after.json_text


@pytest.mark.parametrize(
    ("group", "gpu_ids", "message"),
    [
        pytest.param("kind: KIND_GPU", (), "has kind KIND_GPU but no GPUs are available", id="row 60"),
        pytest.param("kind: KIND_CPU gpus: 0", (0,), "has kind KIND_CPU but specifies one or more GPUs", id="row 61"),
        pytest.param("gpus: 0", (), "has kind KIND_CPU but specifies one or more GPUs", id="row 62"),
        pytest.param(
            "kind: KIND_MODEL gpus: 0", (0,), "has kind KIND_MODEL but specifies one or more GPUs", id="model on a GPU"
        ),
        pytest.param(
            "kind: KIND_GPU gpus: [0, 7]",
            (0, 1),
            "specifies invalid or unsupported gpu id 7. GPUs with at least the minimum required CUDA compute compatibility "
            "of 6.000000 are: 0, 1",
            id="a GPU that is not there",
        ),
        pytest.param(
            'profile: "p"',
            (),
            "and platform xspecifies profile field which is only supported for TensorRT models",
            id="row 66",
        ),
    ],
)
def test_instance_group_that_cannot_be(load: Load, group: str, gpu_ids: tuple[int, ...], message: str) -> None:
    with pytest.raises(InferenceError) as caught:
        load(PYTHON + f'platform: "x" instance_group {{ {group} }}', gpu_ids=gpu_ids)
    assert caught.value.message == f"instance group m_0 of model m {message}"


@pytest.mark.parametrize(
    ("groups", "instances"),
    [
        pytest.param("instance_group { count: 1000000 }", 1_000_000, id="a typing error"),
        pytest.param("instance_group { kind: KIND_GPU count: 2000 }", 6000, id="on three GPUs"),
        pytest.param(
            "instance_group { kind: KIND_CPU count: 4000 } instance_group { kind: KIND_CPU count: 97 }",
            4097,
            id="two groups",
        ),
    ],
)
def test_more_instances_than_any_machine_can_start(load: Load, groups: str, instances: int) -> None:
    with pytest.raises(InferenceError) as caught:
        load(PYTHON + groups, gpu_ids=(0, 1, 2) if "GPU" in groups else ())
    assert (
        caught.value.message
        == f"instance groups of model m ask for {instances} instances together, expected at most 4096"
    )


@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param('backend: "nosuch"', "instance_group { kind: KIND_GPU }", id="backend before instances"),
        pytest.param(
            PYTHON + "instance_group { kind: KIND_GPU }",
            'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" }',
            id="instances before the backend's parameters",
        ),
        pytest.param(
            PYTHON + 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" }',
            'input { name: "x" }',
            id="the backend's parameters before tensors",
        ),
        pytest.param(
            PYTHON + 'input { name: "x" }',
            'output { name: "O" data_type: TYPE_FP32 dims: 4 label_filename: "nope" }',
            id="tensors before labels",
        ),
        pytest.param(
            labelled("nope"),
            'parameters { key: "TRITON_BATCH_STRATEGY_PATH" }',
            id="labels before the batching library",
        ),
    ],
)
def test_first_broken_rule_is_the_one_that_triton_names(load: Load, first: str, then: str) -> None:
    """model_config.md section 3, step 9; all but tensors before labels was seen on Triton 2.51."""
    texts = []
    for name, text in (("alone", first), ("together", first + " " + then)):
        with pytest.raises(InferenceError) as caught:
            load(text, name=name)
        texts.append(caught.value.message.replace(name, "m"))
    assert texts[0] == texts[1]


def test_ensemble_has_no_backend_and_no_instances(load: Load) -> None:
    config = load(
        'platform: "ensemble" ' + IO + 'ensemble_scheduling { step { model_name: "x" '
        'input_map { key: "A" value: "I" } output_map { key: "B" value: "O" } } }'
    )
    assert config.instance_groups == ()
    assert config.json["model_transaction_policy"] == {"decoupled": False}


SHARING = parameter("INSTANCE_SHARING", "fork")


def test_instances_on_several_devices_do_not_share_a_model(load: Load) -> None:
    with pytest.raises(InferenceError) as refused:
        load(SHARING + "instance_group { kind: KIND_GPU }", gpu_ids=(0, 1))
    assert refused.value.message == (
        "INSTANCE_SHARING 'fork' of model 'm': initialize runs once, for one kind of instance and one device, and the instance "
        "groups have KIND_GPU 0, KIND_GPU 1"
    )
    shared = load(SHARING + "instance_group { kind: KIND_GPU gpus: 1 count: 3 }", gpu_ids=(0, 1))
    assert shared.instance_sharing is InstanceSharing.FORK


def test_a_single_instance_has_nobody_to_share_with(load: Load) -> None:
    single = with_one_instance(load(SHARING + "instance_group { count: 3 }"))
    assert single.instance_sharing is InstanceSharing.NONE
