"""The shipped backend ``onnxruntime`` on a real server. Needs onnxruntime, and onnx to make the models."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.harness import PROJECT, Reply, RunningServer, tensor

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper  # noqa: E402  # after the check that it is there

from pytriton_lite.core.errors import ErrorCode, InferenceError  # noqa: E402
from pytriton_lite.worker.loader import ModelFiles, construct, import_model, install_pb_utils  # noqa: E402

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
_NUMBERS = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": FLOAT,
    "FP64": TensorProto.DOUBLE,
}
ONE_INSTANCE = "instance_group { count: 1 kind: KIND_CPU } "


def write_onnx(
    repository: Path,
    name: str,
    nodes: Sequence[Any],
    *,
    inputs: Sequence[tuple[str, int, list[Any]]],
    outputs: Sequence[tuple[str, int, list[Any]]],
    constants: Sequence[Any] = (),
    config: str = "",
    file: str = "1/model.onnx",
) -> None:
    """A model folder with a graph of *nodes*, each tensor as name, type and shape, and config.pbtxt unless it is empty."""
    path = repository / name / file
    path.parent.mkdir(parents=True, exist_ok=True)
    ends = [[helper.make_tensor_value_info(*end) for end in ends] for ends in (inputs, outputs)]
    graph = helper.make_graph(list(nodes), "graph", *ends, list(constants))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))
    if config:
        (repository / name / "config.pbtxt").write_text(config)


def write_double(repository: Path, name: str, shape: list[Any], config: str = "", file: str = "1/model.onnx") -> None:
    """X and X + X, as Y, and -X, as Z."""
    write_onnx(
        repository,
        name,
        [helper.make_node("Add", ["X", "X"], ["Y"]), helper.make_node("Neg", ["X"], ["Z"])],
        inputs=[("X", FLOAT, shape)],
        outputs=[("Y", FLOAT, shape), ("Z", FLOAT, shape)],
        config=config,
        file=file,
    )


def write_identity(repository: Path, name: str, datatype: int, shape: list[Any], config: str = "") -> None:
    ends = {"inputs": [("X", datatype, shape)], "outputs": [("Y", datatype, shape)]}
    write_onnx(repository, name, [helper.make_node("Identity", ["X"], ["Y"])], **ends, config=config)


def write_sum(repository: Path, name: str, config: str = "") -> None:
    """The sum of a whole batch beside every row: what only requests that ran together can give."""
    write_onnx(
        repository,
        name,
        [
            helper.make_node("ReduceSum", ["X"], ["total"], keepdims=1),
            helper.make_node("Sub", ["X", "X"], ["zero"]),
            helper.make_node("Add", ["zero", "total"], ["SUM"]),
        ],
        inputs=[("X", FLOAT, ["batch", 1])],
        outputs=[("SUM", FLOAT, ["batch", 1])],
        config=config,
    )


def write_total(repository: Path, name: str, shape: list[Any], batching: str) -> None:
    """The sum of all that a sequence has said, TOTAL, which is its state."""
    ends = '{ input_name: "BEFORE" output_name: "AFTER" data_type: TYPE_FP32 dims: 1 }'
    write_onnx(
        repository,
        name,
        [helper.make_node("Add", ["X", "BEFORE"], ["AFTER"]), helper.make_node("Identity", ["AFTER"], ["TOTAL"])],
        inputs=[("X", FLOAT, shape), ("BEFORE", FLOAT, shape)],
        outputs=[("TOTAL", FLOAT, shape), ("AFTER", FLOAT, shape)],
        config=f"""backend: "onnxruntime" {ONE_INSTANCE} {batching}
            input {{ name: "X" data_type: TYPE_FP32 dims: 1 }} output {{ name: "TOTAL" data_type: TYPE_FP32 dims: 1 }}
            sequence_batching {{ state [ {ends} ] }}""",
    )


def write_models(repository: Path) -> None:
    write_double(repository, "double", ["batch", 2])
    write_double(repository, "fixed", [3])
    write_double(repository, "by_platform", ["batch", 2], 'platform: "onnxruntime_onnx" ' + ONE_INSTANCE)
    write_double(
        repository, "other_file", [2], 'backend: "onnxruntime" default_model_filename: "net.onnx"', "1/net.onnx"
    )
    write_double(repository, "in_a_folder", [2], 'backend: "onnxruntime"', "1/model.onnx/model.onnx")
    write_double(repository, "versions", [2], "version_policy { all { } } " + ONE_INSTANCE)
    write_double(repository, "versions", [4], "", "2/model.onnx")
    write_double(repository, "one_dimension", ["batch"])
    write_double(repository, "scalar", [])
    write_sum(
        repository,
        "sum",
        ONE_INSTANCE + "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000000 }",
    )
    write_identity(repository, "strings", STRING, ["batch", 2], ONE_INSTANCE)
    together = "max_batch_size: 2 dynamic_batching { max_queue_delay_microseconds: 20000000 }"
    write_identity(repository, "strings_together", STRING, ["batch", 2], ONE_INSTANCE + together)
    for name, number in _NUMBERS.items():
        write_identity(repository, f"identity_{name}", number, [2], ONE_INSTANCE)
    write_onnx(
        repository,
        "optional",
        [helper.make_node("Add", ["X", "C"], ["Y"])],
        inputs=[("X", FLOAT, [2]), ("C", FLOAT, [2])],
        outputs=[("Y", FLOAT, [2])],
        constants=[helper.make_tensor("C", FLOAT, [2], [10.0, 20.0])],
        config=ONE_INSTANCE
        + 'input [{ name: "X" data_type: TYPE_FP32 dims: 2 }, { name: "C" data_type: TYPE_FP32 dims: 2 optional: true }]'
        'output { name: "Y" data_type: TYPE_FP32 dims: 2 }',
    )
    write_onnx(
        repository,
        "optional_scalar",
        [helper.make_node("Gather", ["X", "at"], ["Y"])],
        inputs=[("X", FLOAT, [2, 2]), ("at", INT64, [])],
        outputs=[("Y", FLOAT, [2])],
        constants=[helper.make_tensor("at", INT64, [], [0])],
        config='backend: "onnxruntime" '
        + ONE_INSTANCE
        + 'input [{ name: "X" data_type: TYPE_FP32 dims: [ 2, 2 ] }, '
        + '{ name: "at" data_type: TYPE_INT64 dims: 1 optional: true }] '
        + 'output { name: "Y" data_type: TYPE_FP32 dims: 2 }',
    )
    write_total(repository, "total", [1], "")
    write_total(repository, "total_of_batches", ["batch", 1], "max_batch_size: 8")
    write_onnx(
        repository,
        "reshape",
        [helper.make_node("Reshape", ["X", "shape"], ["Y"])],
        inputs=[("X", FLOAT, [4]), ("shape", INT64, [2])],
        outputs=[("Y", FLOAT, [-1, -1])],
        config=ONE_INSTANCE,
    )
    write_tuned(repository, "tuned", TUNED)
    write_tuned(repository, "tuned_threads", TUNED | {"intra_op_thread_count": "5"})
    write_tuned(repository, "tuned_memory", TUNED | {"enable_mem_arena": "0"})


TUNED = {
    "intra_op_thread_count": "1",
    "inter_op_thread_count": "2",
    "execution_mode": "0",
    "enable_mem_arena": "1",
    "enable_mem_pattern": "false",
    "memory.enable_memory_arena_shrinkage": "cpu:0",
    "session.use_device_allocator_for_initializers": "1",
}


def write_tuned(repository: Path, name: str, parameters: dict[str, str]) -> None:
    entries = [f'{{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items()]
    config = ONE_INSTANCE + f"parameters [{', '.join(entries)}] optimization {{ graph {{ level: 1 }} }}"
    write_double(repository, name, [2], config)


REFUSED = {
    "garbage": ("", "Internal: onnx runtime error 7: Load model from "),
    "missing": ('backend: "onnxruntime"', "Unavailable: unable to find '"),
    "bfloat16": ("", "Unsupported: input 'X' of model 'bfloat16' is a tensor(bfloat16), expected a tensor of bool, "),
    "cannot_batch": (
        "max_batch_size: 4",
        "Invalid argument: autofill failed for model 'cannot_batch': model does not support batching while non-zero "
        "max_batch_size is specified",
    ),
    "wrong_type": (
        'input { name: "X" data_type: TYPE_INT32 dims: 2 } output { name: "Y" data_type: TYPE_FP32 dims: 2 }',
        "Invalid argument: unable to load model 'wrong_type', configuration expects datatype TYPE_INT32 for input 'X', "
        "model provides TYPE_FP32",
    ),
    "wrong_shape": (
        'input { name: "X" data_type: TYPE_FP32 dims: 3 } output { name: "Y" data_type: TYPE_FP32 dims: 2 }',
        "Invalid argument: model 'wrong_shape', tensor 'X': the model expects 1 dimensions (shape [2]) but the model "
        "configuration specifies 1 dimensions (shape [3])",
    ),
    "wrong_output": (
        'input { name: "X" data_type: TYPE_FP32 dims: 2 } output { name: "W" data_type: TYPE_FP32 dims: 2 }',
        "Invalid argument: unexpected inference output 'W', allowed outputs are: Y, Z",
    ),
    "wrong_count": (
        'input [{ name: "X" data_type: TYPE_FP32 dims: 2 }, { name: "V" data_type: TYPE_FP32 dims: 2 }]'
        'output { name: "Y" data_type: TYPE_FP32 dims: 2 }',
        "Invalid argument: unable to load model 'wrong_count', configuration expects 2 inputs, model provides 1",
    ),
    "wrong_state": (
        'input { name: "X" data_type: TYPE_FP32 dims: 2 } sequence_batching { state [ '
        '{ input_name: "BEFORE" output_name: "Y" data_type: TYPE_FP32 dims: 2 } ] }',
        "Invalid argument: unable to load model 'wrong_state', configuration expects 2 inputs, model provides 1",
    ),
    "wrong_mode": (
        'parameters { key: "execution_mode" value { string_value: "5" } }',
        "Invalid argument: Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got 5 .",
    ),
    "wrong_threads": (
        'parameters { key: "intra_op_thread_count" value { string_value: "many" } }',
        "Invalid argument: intra_op_thread_count must be a whole number, got 'many'",
    ),
    "accelerated": (
        'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }',
        "Invalid argument: unknown Execution Accelerator 'openvino' is requested",
    ),
}
"""Configurations that do not load, with the beginning of the reason."""


def write_refused(repository: Path) -> None:
    for name, (config, _) in REFUSED.items():
        if name == "bfloat16":
            write_identity(repository, name, TensorProto.BFLOAT16, [2])
        else:
            write_double(repository, name, [2], config)
    (repository / "garbage" / "1" / "model.onnx").write_bytes(b"not a graph")
    (repository / "missing" / "1" / "model.onnx").unlink()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("models")
    write_models(repository)
    write_refused(repository)
    with RunningServer(repository, flags=("--exit-on-error=false",)) as running:
        yield running


def outputs(reply: Reply) -> dict[str, tuple[list[int], list[Any]]]:
    """Shape and data by name."""
    assert reply.status == 200, reply.body
    return {output["name"]: (output["shape"], output["data"]) for output in reply.json["outputs"]}


def config_of(server: RunningServer, model: str) -> dict[str, Any]:
    reply = server.get(f"/v2/models/{model}/config")
    assert reply.status == 200, reply.body
    found: dict[str, Any] = reply.json
    return found


# Completing a configuration


def test_a_file_without_a_configuration_is_served(server: RunningServer) -> None:
    reply = server.infer("double", [tensor("X", "FP32", [2, 2], [1, 2, 3, 4])])
    assert outputs(reply) == {"Y": ([2, 2], [2.0, 4.0, 6.0, 8.0]), "Z": ([2, 2], [-1.0, -2.0, -3.0, -4.0])}


def test_open_first_dimensions_give_batches_of_four_and_dynamic_batching(server: RunningServer) -> None:
    config = config_of(server, "double")
    assert (config["backend"], config["platform"], config["runtime"]) == ("onnxruntime", "onnxruntime_onnx", "model.py")
    assert config["max_batch_size"] == 4
    assert config["dynamic_batching"]["preferred_batch_size"] == [4]
    assert [(end["name"], end["data_type"], end["dims"]) for end in config["input"]] == [("X", "TYPE_FP32", [2])]
    assert [(end["name"], end["dims"]) for end in config["output"]] == [("Y", [2]), ("Z", [2])]
    assert config["instance_group"][0]["count"] == 2
    assert "autofilled max_batch_size to 4 for model 'double'" in server.log


def test_a_fixed_first_dimension_gives_no_batches(server: RunningServer) -> None:
    config = config_of(server, "fixed")
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (0, [3])
    assert "dynamic_batching" not in config
    assert outputs(server.infer("fixed", [tensor("X", "FP32", [3], [1, 2, 3])]))["Y"] == ([3], [2.0, 4.0, 6.0])


@pytest.mark.parametrize("model", ["by_platform", "other_file", "in_a_folder"])
def test_platform_and_file_may_be_named(server: RunningServer, model: str) -> None:
    shape = [1, 2] if model == "by_platform" else [2]
    assert outputs(server.infer(model, [tensor("X", "FP32", shape, [1, 2])]))["Y"] == (shape, [2.0, 4.0])


def test_every_version_serves_its_own_file(server: RunningServer) -> None:
    first = server.infer("versions/versions/1", [tensor("X", "FP32", [2], [1, 2])])
    second = server.infer("versions/versions/2", [tensor("X", "FP32", [4], [1, 2, 3, 4])])
    assert (outputs(first)["Y"][0], outputs(second)["Y"][0]) == ([2], [4])


def test_a_tensor_of_batches_alone_has_one_element_for_clients(server: RunningServer) -> None:
    config = config_of(server, "one_dimension")
    assert (config["input"][0]["dims"], config["input"][0]["reshape"]) == ([1], {"shape": []})
    reply = server.infer("one_dimension", [tensor("X", "FP32", [3, 1], [1, 2, 3])])
    assert outputs(reply)["Y"] == ([3, 1], [2.0, 4.0, 6.0])


def test_a_scalar_has_one_element_for_clients(server: RunningServer) -> None:
    assert config_of(server, "scalar")["input"][0]["dims"] == [1]
    assert outputs(server.infer("scalar", [tensor("X", "FP32", [1], [3])]))["Y"] == ([1], [6.0])


def test_the_default_batch_size_is_a_setting_of_the_backend(tmp_path: Path) -> None:
    write_double(tmp_path, "double", ["batch", 2])
    write_double(tmp_path, "given", ["batch", 2], "max_batch_size: 2")
    with RunningServer(tmp_path, flags=("--backend-config=onnxruntime,default-max-batch-size=7",)) as server:
        sizes = [config_of(server, model)["max_batch_size"] for model in ("double", "given")]
        single = config_of(server, "given")["dynamic_batching"]["preferred_batch_size"]
    assert (sizes, single) == ([7, 2], [2])


# Executing


def test_requests_that_come_together_run_as_one_batch_and_get_their_own_rows(server: RunningServer) -> None:
    """The batcher waits for eight rows, 20 s at most; each request sees the sum of all."""
    rows = {1: [1.0], 2: [10.0, 20.0], 3: [100.0, 200.0, 300.0], 4: [1000.0, 2000.0]}
    with ThreadPoolExecutor(len(rows)) as clients:
        replies = clients.map(
            lambda data: server.infer("sum", [tensor("X", "FP32", [len(data), 1], data)]), list(rows.values())
        )
        answers = [outputs(reply)["SUM"] for reply in replies]
    assert answers == [([len(data), 1], [3631.0] * len(data)) for data in rows.values()]
    (statistics,) = server.get("/v2/models/sum/stats").json["model_stats"]
    assert (statistics["inference_count"], statistics["execution_count"]) == (8, 1)


@pytest.mark.parametrize("datatype", _NUMBERS)
def test_numbers_of_every_type_pass(server: RunningServer, datatype: str) -> None:
    data = [True, False] if datatype == "BOOL" else [1, 2]
    header = {"inputs": [{"name": "X", "datatype": datatype, "shape": [2], "data": data}]}
    if datatype == "FP16":  # it has no JSON form
        header["inputs"][0] = {"name": "X", "datatype": "FP16", "shape": [2], "parameters": {"binary_data_size": 4}}
        header["outputs"] = [{"name": "Y", "parameters": {"binary_data": True}}]  # type: ignore[list-item]
        text = json.dumps(header).encode()
        body, halves = text + b"\x00\x3c\x00\x40", b"\x00\x3c\x00\x40"
        reply = server.post("/v2/models/identity_FP16/infer", body, {"Inference-Header-Content-Length": str(len(text))})
        assert (reply.status, reply.body[-4:]) == (200, halves)
        return
    assert outputs(server.infer(f"identity_{datatype}", header["inputs"]))["Y"] == ([2], data)


def test_strings_pass_whatever_they_hold(server: RunningServer) -> None:
    texts = ["plain", "", "naïve Ω", "nul \x00 inside\x00"]
    assert outputs(server.infer("strings", [tensor("X", "BYTES", [2, 2], texts)]))["Y"] == ([2, 2], texts)


def with_bytes_that_are_no_text(server: RunningServer, model: str) -> Reply:
    elements = b"\x02\x00\x00\x00ok\x02\x00\x00\x00\xff\xfe"
    size = {"binary_data_size": len(elements)}
    header = json.dumps({"inputs": [{"name": "X", "datatype": "BYTES", "shape": [1, 2], "parameters": size}]}).encode()
    head = {"Inference-Header-Content-Length": str(len(header))}
    return server.post(f"/v2/models/{model}/infer", header + elements, head)


def test_bytes_that_are_no_text_are_refused_with_their_place(server: RunningServer) -> None:
    reply = with_bytes_that_are_no_text(server, "strings")
    assert (reply.status, reply.error) == (
        400,
        "input 'X' of model 'strings': element 1 is not UTF-8, as ONNX strings must be",
    )


def test_a_request_that_is_refused_does_not_fail_those_of_its_batch(server: RunningServer) -> None:
    with ThreadPoolExecutor(2) as clients:
        wrong = clients.submit(with_bytes_that_are_no_text, server, "strings_together")
        right = server.infer("strings_together", [tensor("X", "BYTES", [1, 2], ["a", "b"])])
        assert (wrong.result().status, outputs(right)["Y"]) == (400, ([1, 2], ["a", "b"]))


def test_only_the_outputs_that_were_asked_for_come_back(server: RunningServer) -> None:
    reply = server.infer("fixed", [tensor("X", "FP32", [3], [1, 2, 3])], outputs=[{"name": "Z"}])
    assert outputs(reply) == {"Z": ([3], [-1.0, -2.0, -3.0])}


def test_an_optional_input_has_the_value_of_the_graph_when_it_is_left_out(server: RunningServer) -> None:
    x, c = tensor("X", "FP32", [2], [1, 2]), tensor("C", "FP32", [2], [5, 5])
    assert outputs(server.infer("optional", [x]))["Y"] == ([2], [11.0, 22.0])
    assert outputs(server.infer("optional", [x, c]))["Y"] == ([2], [6.0, 7.0])


def test_an_optional_scalar_is_a_scalar_for_the_graph(server: RunningServer) -> None:
    x = tensor("X", "FP32", [2, 2], [1, 2, 3, 4])
    assert outputs(server.infer("optional_scalar", [x]))["Y"] == ([2], [1.0, 2.0])
    assert outputs(server.infer("optional_scalar", [x, tensor("at", "INT64", [1], [1])]))["Y"] == ([2], [3.0, 4.0])


@pytest.mark.parametrize(("model", "shape"), [("total", [1]), ("total_of_batches", [1, 1])])
def test_a_sequence_sees_the_state_that_it_left(server: RunningServer, model: str, shape: list[int]) -> None:
    for at, total in ((1, 1.0), (2, 3.0), (3, 6.0)):
        sequence = {"sequence_id": 7, "sequence_start": at == 1, "sequence_end": at == 3}
        reply = server.infer(model, [tensor("X", "FP32", shape, [at])], parameters=sequence)
        assert outputs(reply) == {"TOTAL": (shape, [total])}


def test_what_onnx_runtime_refuses_is_the_error_of_the_request(server: RunningServer) -> None:
    x = tensor("X", "FP32", [4], [1, 2, 3, 4])
    failed = server.infer("reshape", [x, tensor("shape", "INT64", [2], [3, 3])])
    assert failed.status == 500
    assert failed.error.startswith("onnx runtime error ")
    assert "[ONNXRuntimeError]" not in failed.error
    served = server.infer("reshape", [x, tensor("shape", "INT64", [2], [2, 2])])
    assert outputs(served)["Y"] == ([2, 2], [1.0, 2.0, 3.0, 4.0])


# Settings, and what does not load


def test_settings_of_the_session_are_taken_and_not_reported_as_without_effect(server: RunningServer) -> None:
    assert outputs(server.infer("tuned", [tensor("X", "FP32", [2], [1, 2])]))["Y"] == ([2], [2.0, 4.0])
    assert "optimization.graph" not in server.log


def test_the_number_of_threads_is_that_of_the_parameter(server: RunningServer) -> None:
    """ONNX Runtime's pool of n has the calling thread and n - 1 of its own."""
    one, five = (
        len(os.listdir(f"/proc/{pid}/task"))
        for name in ("tuned_0_0", "tuned_threads_0")
        for pid in server.worker_pids(name)
    )
    assert five - one == 4


def test_settings_of_the_memory_reach_onnx_runtime(server: RunningServer) -> None:
    """To shrink the arena that was turned off is what it refuses."""
    failed = server.infer("tuned_memory", [tensor("X", "FP32", [2], [1, 2])])
    assert failed.status == 500
    assert failed.error.startswith("onnx runtime error 2: Did not find an arena based allocator")


@pytest.mark.parametrize("model", REFUSED)
def test_a_model_that_cannot_be_served_says_why(server: RunningServer, model: str) -> None:
    rows = server.post("/v2/repository/index").json
    (reason,) = [row["reason"] for row in rows if row["name"] == model]
    assert reason.startswith(REFUSED[model][1])
    assert "Traceback" not in reason


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model object of the backend in this process, which has no GPU to offer, over a graph."""
    write_double(tmp_path, "double", [2])
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("triton_python_backend_utils", "c_python_backend_utils", "model"):
        monkeypatch.setitem(sys.modules, name, sys)  # put back, or away, at the end
    install_pb_utils(str(tmp_path / "double" / "1"))
    files = ModelFiles(tmp_path / "double", 1, "model.onnx", backend_dir=PROJECT / "pytriton_lite/plugins/onnxruntime")
    return construct(import_model(files))


@pytest.mark.skipif("CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="this one can use CUDA")
def test_an_instance_on_a_gpu_needs_an_onnx_runtime_with_cuda(backend: Any) -> None:
    config = {"name": "double", "default_model_filename": "model.onnx", "optimization": {}, "parameters": {}}
    args = {"model_config": json.dumps({**config, "max_batch_size": 0}), "model_instance_kind": "GPU"}
    with pytest.raises(InferenceError) as caught:
        backend.initialize({**args, "model_instance_device_id": "0"})
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert caught.value.message == (
        f"model 'double' has an instance of KIND_GPU, and ONNX Runtime {onnxruntime.__version__} as it is installed has no "
        "CUDAExecutionProvider: pip install onnxruntime-gpu in place of onnxruntime, or ask for KIND_CPU in instance_group"
    )
