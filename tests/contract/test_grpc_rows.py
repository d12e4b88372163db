"""The gRPC checklist (grpc.md, section 10) against a real server. Ids and docstrings name the rows."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from tests.contract.wire_models import grpc_channel, infer_message, statistics, write_wire_models
from tests.harness import RunningServer

FP32_4 = struct.pack("<4f", 1, 2, 3, 4)
NO_ID = "[request id: <id_unknown>] "
Code = grpc.StatusCode


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("grpc") / "models"
    write_wire_models(repository)
    with RunningServer(repository, flags=("--exit-on-error=false",)) as running:
        yield running


@pytest.fixture(scope="module")
def channel(server: RunningServer) -> Iterator[grpc.Channel]:
    with grpc_channel(server) as opened:
        yield opened


@pytest.fixture(scope="module")
def stub(channel: grpc.Channel) -> Any:
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)


def call(method: Callable[..., Any], message: Any) -> Any:
    return method(message, timeout=30)


def refusal(method: Callable[..., Any], message: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(method, message)
    return caught.value.code(), caught.value.details()


def ident_b(*, data: bytes = FP32_4, shape: tuple[int, ...] = (1, 4), datatype: str = "FP32", **fields: Any) -> Any:
    return infer_message("ident_b", ("INPUT0", datatype, list(shape), data), **fields)


def typed(model: str, name: str, datatype: str, shape: list[int], **contents: Any) -> Any:
    """A ModelInferRequest with typed contents."""
    message = service_pb2.ModelInferRequest(model_name=model)
    message.inputs.add(name=name, datatype=datatype, shape=shape, contents=contents)
    return message


# ---------------------------------------------------------------------------------------------------- health


def test_the_server_is_live_and_with_a_failed_model_not_ready(stub: Any) -> None:
    """Rows 1 and 2."""
    assert call(stub.ServerLive, service_pb2.ServerLiveRequest()).live is True
    assert call(stub.ServerReady, service_pb2.ServerReadyRequest()).ready is False


@pytest.mark.parametrize(
    ("name", "version", "ready"),
    [
        pytest.param("add_sub", "", True, id="row 3"),
        pytest.param("multi", "3", True, id="row 3, version"),
        pytest.param("multi", "1abc", True, id="a leading number"),
        pytest.param("nope", "", False, id="row 4, model"),
        pytest.param("add_sub", "9", False, id="row 4, version"),
        pytest.param("", "", False, id="row 4, no name"),
        pytest.param("loadfail", "1", False, id="failed"),
    ],
)
def test_readiness_of_a_model_is_an_answer_never_an_error(stub: Any, name: str, version: str, ready: bool) -> None:
    assert call(stub.ModelReady, service_pb2.ModelReadyRequest(name=name, version=version)).ready is ready


NO_NUMBER = (
    "failed to get model version from specified version string 'x' (details: stol), version should be an integral value "
    "> 0"
)
NEGATIVE = "invalid model version specified '-1' , version should be an integral value > 0"


@pytest.mark.parametrize(
    ("version", "text"), [pytest.param("x", NO_NUMBER, id="row 5"), pytest.param("-1", NEGATIVE, id="row 6")]
)
def test_a_version_must_be_a_number(stub: Any, version: str, text: str) -> None:
    expected = (Code.INVALID_ARGUMENT, text)
    assert refusal(stub.ModelReady, service_pb2.ModelReadyRequest(name="add_sub", version=version)) == expected
    assert refusal(stub.ModelMetadata, service_pb2.ModelMetadataRequest(name="add_sub", version=version)) == expected
    assert refusal(stub.ModelInfer, ident_b(model_version=version)) == expected


def test_the_health_service_answers_whatever_service_is_asked_about(channel: grpc.Channel) -> None:
    """Rows 7 and 8, for a server that is not ready; `test_repository_rows` has one that is."""
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    not_serving = b"\x08\x02"
    assert check(b"", timeout=30) == not_serving
    assert check(b"\x0a\x03foo", timeout=30) == not_serving
    watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"\x0a\x03foo", timeout=30)
    assert next(watch) == not_serving
    watch.cancel()


def test_an_unknown_method_is_unimplemented(channel: grpc.Channel) -> None:
    """Row 9."""
    for name in ("/inference.GRPCInferenceService/Nope", "/no.Service/Nope"):
        assert refusal(channel.unary_unary(name), b"")[0] == Code.UNIMPLEMENTED


# ---------------------------------------------------------------------------------------------------- metadata


def test_server_metadata_is_that_of_http(stub: Any, server: RunningServer) -> None:
    """Row 10."""
    metadata = call(stub.ServerMetadata, service_pb2.ServerMetadataRequest())
    assert {
        "name": metadata.name,
        "version": metadata.version,
        "extensions": list(metadata.extensions),
    } == server.get("/v2").json


@pytest.mark.parametrize(
    ("name", "version", "code", "text"),
    [
        pytest.param("nope", "", Code.NOT_FOUND, "'nope' is not found", id="row 11"),
        pytest.param("loadfail", "", Code.NOT_FOUND, "'loadfail' has no available versions", id="row 12"),
        pytest.param("multi", "9", Code.NOT_FOUND, "'multi' version 9 is not found", id="row 36"),
        pytest.param("loadfail", "1", Code.UNAVAILABLE, "'loadfail' version 1 is not at ready state", id="not ready"),
        pytest.param("", "", Code.NOT_FOUND, "'' is not found", id="no name"),
    ],
)
def test_a_model_that_is_not_there_is_refused(
    stub: Any, name: str, version: str, code: grpc.StatusCode, text: str
) -> None:
    """Row 36 for every method that looks a model up."""
    expected = (code, f"Request for unknown model: {text}")
    assert refusal(stub.ModelMetadata, service_pb2.ModelMetadataRequest(name=name, version=version)) == expected
    assert refusal(stub.ModelConfig, service_pb2.ModelConfigRequest(name=name, version=version)) == expected
    infer = service_pb2.ModelInferRequest(model_name=name, model_version=version)
    assert refusal(stub.ModelInfer, infer) == expected


def test_model_metadata(stub: Any) -> None:
    metadata = call(stub.ModelMetadata, service_pb2.ModelMetadataRequest(name="ident_b"))
    assert (metadata.name, list(metadata.versions), metadata.platform) == ("ident_b", ["1"], "python")
    (given,) = metadata.inputs
    assert (given.name, given.datatype, list(given.shape)) == ("INPUT0", "FP32", [-1, -1])


def test_the_configuration_is_the_normalised_message(stub: Any) -> None:
    """Row 13."""
    config = call(stub.ModelConfig, service_pb2.ModelConfigRequest(name="ident_b")).config
    assert (config.name, config.backend, config.max_batch_size) == ("ident_b", "python", 4)
    assert config.input[0].name == "INPUT0"
    assert config.input[0].data_type == model_config_pb2.TYPE_FP32
    assert config.version_policy.latest.num_versions == 1


def test_statistics_of_all_models_have_an_entry_for_each_ready_version(stub: Any) -> None:
    """Row 14."""
    found = call(stub.ModelStatistics, service_pb2.ModelStatisticsRequest(name="")).model_stats
    ready = call(stub.RepositoryIndex, service_pb2.RepositoryIndexRequest(ready=True)).models
    assert sorted((row.name, row.version) for row in found) == sorted((row.name, row.version) for row in ready)
    assert all(row.inference_stats.HasField("cache_miss") for row in found)


@pytest.mark.parametrize(
    ("name", "version", "text"),
    [
        pytest.param("nope", "", "requested model 'nope' is not available", id="row 15"),
        pytest.param("multi", "9", "requested model version is not available for model 'multi'", id="version"),
    ],
)
def test_statistics_of_what_is_not_there_are_refused(stub: Any, name: str, version: str, text: str) -> None:
    message = service_pb2.ModelStatisticsRequest(name=name, version=version)
    assert refusal(stub.ModelStatistics, message) == (Code.INVALID_ARGUMENT, text)


def test_the_index_can_be_cut_down_to_ready_versions(stub: Any) -> None:
    """Row 16."""
    everything = call(stub.RepositoryIndex, service_pb2.RepositoryIndexRequest()).models
    ready = call(stub.RepositoryIndex, service_pb2.RepositoryIndexRequest(ready=True)).models
    assert {row.state for row in ready} == {"READY"}
    failed = {row.name: row.reason for row in everything if row.state == "UNAVAILABLE"}
    assert len(ready) + len(failed) == len(everything)
    assert failed["loadfail"].startswith("Internal: ModuleNotFoundError: No module named 'no_such_module_anywhere'")


def test_a_repository_name_is_refused(stub: Any) -> None:
    """Row 17."""
    expected = (Code.UNIMPLEMENTED, "'repository_name' specification is not supported")
    assert refusal(stub.RepositoryIndex, service_pb2.RepositoryIndexRequest(repository_name="x")) == expected


# ---------------------------------------------------------------------------------------------------- tensors


def test_raw_and_typed_tensors_get_the_same_raw_answer(stub: Any) -> None:
    """Rows 18 and 19."""
    answer = call(stub.ModelInfer, ident_b(id="abc"))
    assert (answer.id, answer.model_name, answer.model_version) == ("abc", "ident_b", "1")
    (output,) = answer.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("OUTPUT0", "FP32", [1, 4])
    assert not output.HasField("contents")
    assert list(answer.raw_output_contents) == [FP32_4]
    answer = call(stub.ModelInfer, typed("ident_b", "INPUT0", "FP32", [1, 4], fp32_contents=[1, 2, 3, 4]))
    assert list(answer.raw_output_contents) == [FP32_4]


def test_every_typed_field_carries_its_data_types(stub: Any) -> None:
    """Section 3.2: the table of fields, low bytes taken for the narrow integers."""
    message = service_pb2.ModelInferRequest(model_name="every_datatype")
    fields = {
        "bool_contents": ([True, False], ["BOOL"]),
        "int_contents": ([-1, 257], ["INT8", "INT16", "INT32"]),
        "int64_contents": ([-(1 << 62), 1], ["INT64"]),
        "uint_contents": ([255, 256], ["UINT8", "UINT16", "UINT32"]),
        "uint64_contents": ([1 << 63, 1], ["UINT64"]),
        "fp32_contents": ([0.5, -2], ["FP32"]),
        "fp64_contents": ([0.1, -2], ["FP64"]),
        "bytes_contents": ([b"a", b"\xff"], ["BYTES"]),
    }
    for field, (values, datatypes) in fields.items():
        for datatype in datatypes:
            name = "INPUT_STRING" if datatype == "BYTES" else f"INPUT_{datatype}"
            message.inputs.add(name=name, datatype=datatype, shape=[2], contents={field: values})
    # FP16 has no field: it is sent with a shape of no elements and empty contents.
    message.inputs.add(name="INPUT_FP16", datatype="FP16", shape=[0], contents={})
    answer = call(stub.ModelInfer, message)
    outputs = dict(zip((output.name for output in answer.outputs), answer.raw_output_contents))
    assert outputs["OUTPUT_INT8"] == b"\xff\x01"
    assert outputs["OUTPUT_UINT8"] == b"\xff\x00"
    assert outputs["OUTPUT_STRING"] == b"\1\0\0\0a\1\0\0\0\xff"
    assert outputs["OUTPUT_FP16"] == b""
    assert outputs["OUTPUT_FP64"] == struct.pack("<2d", 0.1, -2)
    assert outputs["OUTPUT_UINT64"] == struct.pack("<2Q", 1 << 63, 1)
    assert outputs["OUTPUT_BOOL"] == b"\1\0"


def test_bytes_contents_get_their_lengths(stub: Any) -> None:
    """Row 28."""
    answer = call(stub.ModelInfer, typed("ident_bytes", "INPUT0", "BYTES", [2], bytes_contents=[b"a", b"\xff"]))
    assert list(answer.raw_output_contents) == [bytes.fromhex("0100000061" + "01000000ff")]


def test_raw_entries_left_over_do_no_harm(stub: Any) -> None:
    """Row 23."""
    message = ident_b()
    message.raw_input_contents.append(b"left over")
    assert list(call(stub.ModelInfer, message).raw_output_contents) == [FP32_4]


def test_a_tensor_of_no_elements_passes(stub: Any) -> None:
    """Row 27."""
    answer = call(stub.ModelInfer, ident_b(data=b"", shape=(1, 0)))
    assert list(answer.outputs[0].shape) == [1, 0]
    assert list(answer.raw_output_contents) == [b""]


def test_a_tensor_of_24_mb_passes(stub: Any) -> None:
    """Row 51."""
    data = np.arange(6 << 20, dtype=np.float32).tobytes()
    answer = call(stub.ModelInfer, ident_b(data=data, shape=(1, 6 << 20)))
    assert answer.raw_output_contents[0] == data


def mixed() -> Any:
    message = ident_b()
    message.inputs[0].contents.fp32_contents.extend([1, 2, 3, 4])
    return message


def one_raw_for_two() -> Any:
    message = infer_message("two_inputs", ("INPUT0", "FP32", [1, 4], FP32_4))
    message.inputs.add(name="INPUT1", datatype="FP32", shape=[1, 4])
    return message


def without_data() -> Any:
    message = service_pb2.ModelInferRequest(model_name="ident_b")
    message.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4])
    return message


def string_input(data: bytes, count: int) -> Any:
    return infer_message("ident_bytes", ("INPUT0", "BYTES", [count], data))


def with_output(name: str) -> Any:
    message = ident_b()
    message.outputs.add(name=name)
    return message


def with_parameter(key: str, **value: Any) -> Any:
    message = ident_b()
    message.parameters[key].CopyFrom(service_pb2.InferParameter(**value))
    return message


TYPE_TEXT = "invalid value type for '{}' parameter, expected {}."
RESERVED = (
    "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with 'triton_' "
    "are allowed: triton_enable_empty_final_response"
)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        pytest.param(
            mixed(),
            "contents field must not be specified when using raw_input_contents for 'INPUT0' for model 'ident_b'",
            id="row 20",
        ),
        pytest.param(
            without_data(),
            "unable to find data for input tensor 'INPUT0' for model 'ident_b' in request.",
            id="row 21",
        ),
        pytest.param(
            one_raw_for_two(),
            "unable to find data for input tensor 'INPUT1' for model 'two_inputs' in request.",
            id="row 22",
        ),
        pytest.param(
            typed("ident_b", "INPUT0", "FP32", [1, 4], int_contents=[1, 2, 3, 4]),
            "unexpected explicit tensor data for input tensor 'INPUT0' for model 'ident_b' of type 'INT32', expected "
            "datatype 'FP32'",
            id="row 24",
        ),
        pytest.param(
            typed("ident_b", "INPUT0", "FP32", [1, 1], fp32_contents=[1], fp64_contents=[1]),
            "unexpected explicit tensor data for input tensor 'INPUT0' for model 'ident_b', binary data was already "
            "supplied.",
            id="row 25",
        ),
        pytest.param(
            ident_b(shape=(1, 3)),
            NO_ID + "input byte size mismatch for input 'INPUT0' for model 'ident_b'. Expected 12, got 16",
            id="row 26",
        ),
        pytest.param(
            string_input(b"\1\0", 1),
            NO_ID
            + "incomplete string length indicator for inference input 'INPUT0' for model 'ident_bytes', expecting 4 bytes "
            "but only 2 bytes available. Please make sure the string length indicator is in one buffer.",
            id="row 29, length",
        ),
        pytest.param(
            string_input(b"\x0a\0\0\0abc", 1),
            "incomplete string data for inference input 'INPUT0', expecting string of length 10 but only 3 bytes "
            "available",
            id="row 29, content",
        ),
        pytest.param(
            string_input(b"\1\0\0\0a", 2),
            NO_ID + "expected 2 string elements for inference input 'INPUT0' for model 'ident_bytes', got 1",
            id="row 29, too few",
        ),
        pytest.param(
            ident_b(datatype="FOO"),
            NO_ID + "inference input 'INPUT0' data-type is '<invalid>', but model 'ident_b' expects 'FP32'",
            id="row 30",
        ),
        pytest.param(
            ident_b(shape=(1, -1)),
            NO_ID + "All input dimensions should be specified for input 'INPUT0' for model 'ident_b', got [1,-1]",
            id="row 31",
        ),
        pytest.param(ident_b(shape=(1, -5)), "tensor 'INPUT0' contains an invalid dimension [1,-5]", id="row 32"),
        pytest.param(
            ident_b(shape=(1, 1 << 62)),
            "byte size for tensor 'INPUT0' exceeds maximum size of 9223372036854775807",
            id="row 33",
        ),
        pytest.param(
            ident_b(shape=(5, 4), data=FP32_4 * 5),
            NO_ID + "inference request batch-size must be <= 4 for 'ident_b'",
            id="row 34",
        ),
        pytest.param(
            infer_message("ident_b", ("FOO", "FP32", [1, 4], FP32_4)),
            "unexpected inference input 'FOO' for model 'ident_b'",
            id="row 35, input",
        ),
        pytest.param(with_output("FOO"), "unexpected inference output 'FOO' for model 'ident_b'", id="row 35, output"),
        pytest.param(
            with_parameter("priority", int64_param=-1),
            "invalid value for 'priority', expected value >= 0.",
            id="row 41",
        ),
        pytest.param(
            with_parameter("priority", string_param="1"),
            TYPE_TEXT.format("priority", "int64_param or uint64_param"),
            id="row 41, string",
        ),
        pytest.param(
            with_parameter("timeout", uint64_param=1), TYPE_TEXT.format("timeout", "int64_param"), id="row 42"
        ),
        pytest.param(
            with_parameter("sequence_id", bool_param=True),
            TYPE_TEXT.format("sequence_id", "int64_param or string_param"),
            id="row 43",
        ),
        pytest.param(
            with_parameter("u", uint64_param=1),
            TYPE_TEXT.format("u", "int64_param, bool_param, or string_param"),
            id="row 44",
        ),
        pytest.param(with_parameter("triton_x", bool_param=True), RESERVED, id="row 46"),
    ],
)
def test_a_request_that_is_wrong_is_refused(server: RunningServer, stub: Any, message: Any, text: str) -> None:
    before = statistics(server, message.model_name)
    assert refusal(stub.ModelInfer, message) == (Code.INVALID_ARGUMENT, text)
    assert statistics(server, message.model_name) == before, "what is refused is counted nowhere"


def test_a_decoupled_model_is_refused(stub: Any) -> None:
    """Row 37."""
    message = infer_message("decoupled", ("INPUT0", "INT32", [1], b"\0\0\0\0"))
    text = "ModelInfer RPC doesn't support models with decoupled transaction policy"
    assert refusal(stub.ModelInfer, message) == (Code.UNIMPLEMENTED, text)


def test_a_message_that_cannot_be_read_is_internal(channel: grpc.Channel) -> None:
    """Section 1, undecodable message."""
    infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    assert refusal(infer, b"\xff\xff\xff") == (Code.INTERNAL, "Unable to parse request")


# ---------------------------------------------------------------------------------------------------- parameters, model


def test_scheduling_parameters_are_taken_in_the_forms_that_clients_send(stub: Any) -> None:
    """Rows 41 and 43."""
    for message in (
        with_parameter("priority", uint64_param=1),
        with_parameter("priority", int64_param=1),
        with_parameter("timeout", int64_param=5),
        with_parameter("sequence_id", int64_param=7),
        with_parameter("sequence_id", string_param="seven"),
    ):
        assert list(call(stub.ModelInfer, message).raw_output_contents) == [FP32_4]


def test_parameters_reach_the_model_with_their_types(stub: Any) -> None:
    """Row 45."""
    message = infer_message("params", ("INPUT0", "INT32", [1], b"\0\0\0\0"))
    message.parameters["f"].double_param = 1.5
    message.parameters["i"].int64_param = -3
    message.parameters["b"].bool_param = True
    message.parameters["s"].string_param = "text"
    message.parameters["priority"].uint64_param = 2
    seen = json.loads(call(stub.ModelInfer, message).raw_output_contents[0][4:])
    assert seen == {"f": 1.5, "i": -3, "b": True, "s": "text"}


def fail(what: bytes) -> Any:
    return infer_message("fail", ("INPUT0", "BYTES", [1], len(what).to_bytes(4, "little") + what))


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("UNKNOWN", Code.UNKNOWN),
        ("INTERNAL", Code.INTERNAL),
        ("NOT_FOUND", Code.NOT_FOUND),
        ("INVALID_ARG", Code.INVALID_ARGUMENT),
        ("UNAVAILABLE", Code.UNAVAILABLE),
        ("UNSUPPORTED", Code.UNIMPLEMENTED),
        ("ALREADY_EXISTS", Code.ALREADY_EXISTS),
        ("CANCELLED", Code.CANCELLED),
    ],
)
def test_an_error_of_the_model_keeps_its_code_and_text(stub: Any, code: str, status: grpc.StatusCode) -> None:
    """Row 47."""
    assert refusal(stub.ModelInfer, fail(code.encode())) == (status, "as the model says")


def test_an_exception_in_the_model_is_internal(stub: Any) -> None:
    """Row 48."""
    code, text = refusal(stub.ModelInfer, fail(b"raise"))
    assert code == Code.INTERNAL
    assert text.startswith("Failed to process the request(s) for model 'fail_0', message: ValueError: boom\n\nAt:\n")


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_a_compressed_request_is_read(stub: Any, compression: grpc.Compression) -> None:
    """Row 52."""
    answer = stub.ModelInfer(ident_b(data=FP32_4 * 256, shape=(1, 1024)), timeout=30, compression=compression)
    assert answer.raw_output_contents[0] == FP32_4 * 256
