"""Shared memory of clients and classification, with a stock client: rows of http.md and grpc.md against real servers."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException
from tritonclient.utils import shared_memory as shm

from tests.contract.wire_models import IDENTITY, grpc_channel, infer_message
from tests.harness import RunningServer, tensor, write_model

DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
TOO_SMALL = (
    "shared memory size specified with the request for output 'OUTPUT0' (8 bytes) should be at least 16 bytes to hold the "
    "results"
)
VALUES = np.array([1, 2, 3, 4], np.float32)
NBYTES = VALUES.nbytes
PROTOCOLS = pytest.mark.parametrize(
    "protocol", [pytest.param(tritonclient.http, id="http"), pytest.param(tritonclient.grpc, id="grpc")]
)


def config(datatype: str, dims: str, more: str = "") -> str:
    return f"""
        backend: "python"
        input {{ name: "INPUT0" data_type: TYPE_{datatype} dims: {dims} }}
        output {{ name: "OUTPUT0" data_type: TYPE_{datatype} dims: {dims} label_filename: "labels.txt" }}
        instance_group {{ kind: KIND_CPU count: 1 }}
        {more}
    """


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = tmp_path_factory.mktemp("rows") / "models"
    for folder in (
        write_model(models, "cls", IDENTITY, config("FP32", "[4]")),
        write_model(models, "batch", IDENTITY, config("FP32", "[3]", "max_batch_size: 4")),
        write_model(models, "flags", IDENTITY, config("BOOL", "[2]")),
    ):
        (folder / "labels.txt").write_text("cat\ndog\nbird\n")
    flags = ("--allow-client-shm=true", "--client-shm-key-prefix=rows", "--client-shm-key-prefix=/other")
    with RunningServer(models, flags=flags) as running:
        yield running


@pytest.fixture
def segment() -> Iterator[Any]:
    region = new_segment()
    yield region
    shm.destroy_shared_memory_region(region)


def new_segment(prefix: str = "rows") -> Any:
    """64 bytes of shared memory, made by the stock client."""
    key = f"{prefix}-{uuid.uuid4().hex}"
    return shm.create_shared_memory_region(key, key, 64)


def key_of(segment: Any) -> str:
    handle = getattr(segment, "_mpsm_handle", None)
    # Before 2.50 what the client gives is opaque, but it knows the names, which are the keys here; the last is this one's.
    return str(shm.mapped_shared_memory_regions()[-1] if handle is None else handle.name)


def client_of(protocol: ModuleType, server: RunningServer) -> Any:
    return protocol.InferenceServerClient(server.http_url if protocol is tritonclient.http else server.grpc_url)


@pytest.fixture(autouse=True)
def nothing_is_left(server: RunningServer) -> Iterator[None]:
    yield
    assert server.post("/v2/systemsharedmemory/unregister").status == 200


def refusal(call: Any, *args: Any, **fields: Any) -> tuple[str | None, str]:
    with pytest.raises(InferenceServerException) as caught:
        call(*args, **fields)
    return caught.value.status(), caught.value.message()


def infer(protocol: ModuleType, client: Any, *, in_offset: int, in_size: int, out_size: int) -> Any:
    """An inference with both tensors in region ``r``, the output from byte 32 on."""
    given = protocol.InferInput("INPUT0", [4], "FP32")
    given.set_shared_memory("r", in_size, offset=in_offset)
    wanted = protocol.InferRequestedOutput("OUTPUT0")
    wanted.set_shared_memory("r", out_size, offset=32)
    return client.infer("cls", [given], outputs=[wanted])


# ---------------------------------------------------------------------------------------------------- shared memory


@PROTOCOLS
def test_tensors_go_in_and_out_through_a_region(server: RunningServer, segment: Any, protocol: ModuleType) -> None:
    """http.md row 87, grpc.md row 82."""
    shm.set_shared_memory_region(segment, [VALUES], offset=8)
    with client_of(protocol, server) as client:
        client.register_system_shared_memory("r", key_of(segment), 64)
        result = infer(protocol, client, in_offset=8, in_size=NBYTES, out_size=32)
        client.unregister_system_shared_memory("r")
        status = client.get_system_shared_memory_status()
    assert shm.get_contents_as_numpy(segment, np.float32, [4], offset=32).tolist() == VALUES.tolist()
    if protocol is tritonclient.http:
        assert result.get_response()["outputs"] == [{"name": "OUTPUT0", "datatype": "FP32", "shape": [4]}]
        assert status == []
    else:
        assert list(result.get_response().raw_output_contents) == [b""]
        assert not status.regions


@PROTOCOLS
def test_a_name_is_registered_once(server: RunningServer, segment: Any, protocol: ModuleType) -> None:
    """http.md row 88, grpc.md row 81."""
    expected = "400" if protocol is tritonclient.http else "StatusCode.ALREADY_EXISTS"
    with client_of(protocol, server) as client:
        client.register_system_shared_memory("foo", key_of(segment), 64)
        found = refusal(client.register_system_shared_memory, "foo", key_of(segment), 64)
    assert found == (expected, "shared memory region 'foo' already in manager")


@PROTOCOLS
def test_unregistering_an_unknown_region_is_no_error(server: RunningServer, protocol: ModuleType) -> None:
    """http.md row 89."""
    with client_of(protocol, server) as client:
        client.unregister_system_shared_memory("nope")
        client.unregister_cuda_shared_memory("nope")


@PROTOCOLS
def test_an_unknown_region_is_not_found(server: RunningServer, protocol: ModuleType) -> None:
    """http.md row 90, grpc.md row 84."""
    expected = "404" if protocol is tritonclient.http else "StatusCode.NOT_FOUND"
    with client_of(protocol, server) as client:
        found = refusal(infer, protocol, client, in_offset=0, in_size=NBYTES, out_size=32)
    assert found == (expected, "Unable to find shared memory region: 'r'")


@PROTOCOLS
def test_a_tensor_lies_in_its_region(server: RunningServer, segment: Any, protocol: ModuleType) -> None:
    """http.md row 91."""
    expected = "400" if protocol is tritonclient.http else "StatusCode.INVALID_ARGUMENT"
    with client_of(protocol, server) as client:
        client.register_system_shared_memory("r", key_of(segment), 64)
        beyond = refusal(infer, protocol, client, in_offset=63, in_size=NBYTES, out_size=32)
        behind = refusal(infer, protocol, client, in_offset=64, in_size=NBYTES, out_size=32)
    assert beyond == (expected, "Invalid offset + byte size for shared memory region: 'r'")
    assert behind == (expected, "Invalid offset for shared memory region: 'r'")


@PROTOCOLS
def test_an_output_that_does_not_fit_is_an_error(server: RunningServer, segment: Any, protocol: ModuleType) -> None:
    """http.md row 92, grpc.md row 85."""
    expected = "500" if protocol is tritonclient.http else "StatusCode.INTERNAL"
    with client_of(protocol, server) as client:
        client.register_system_shared_memory("r", key_of(segment), 64)
        found = refusal(infer, protocol, client, in_offset=0, in_size=NBYTES, out_size=8)
    assert found == (expected, TOO_SMALL)
    assert shm.get_contents_as_numpy(segment, np.float32, [8], offset=32).tolist() == [0] * 8


def test_grpc_wants_the_byte_size(server: RunningServer) -> None:
    """grpc.md row 83."""
    message = infer_message("cls")
    given = message.inputs.add(name="INPUT0", datatype="FP32", shape=[4])
    given.parameters["shared_memory_region"].string_param = "r"
    with grpc_channel(server) as channel, pytest.raises(grpc.RpcError) as caught:
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message, timeout=30)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == (
        "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'INPUT0'"
    )


@PROTOCOLS
def test_keys_are_those_that_the_operator_allows(server: RunningServer, protocol: ModuleType) -> None:
    region = new_segment("x")
    try:
        with client_of(protocol, server) as client:
            status, text = refusal(client.register_system_shared_memory, "x", key_of(region), 64)
    finally:
        shm.destroy_shared_memory_region(region)
    assert status == ("400" if protocol is tritonclient.http else "StatusCode.INVALID_ARGUMENT")
    assert text.endswith("allows only keys that begin with 'rows' or 'other' (--client-shm-key-prefix)")


@PROTOCOLS
def test_both_extensions_are_advertised(server: RunningServer, protocol: ModuleType) -> None:
    with client_of(protocol, server) as client:
        metadata = client.get_server_metadata()
    extensions = set(metadata["extensions"] if protocol is tritonclient.http else metadata.extensions)
    assert extensions >= {"classification", "system_shared_memory", "cuda_shared_memory"}


def test_nothing_is_registered_unless_it_is_allowed(tmp_path: Any, segment: Any) -> None:
    """http.md row 93, grpc.md row 86."""
    with RunningServer(tmp_path) as running:
        for protocol, status in ((tritonclient.http, "501"), (tritonclient.grpc, "StatusCode.UNIMPLEMENTED")):
            with client_of(protocol, running) as client:
                for call, args in (
                    (client.register_system_shared_memory, ("r", key_of(segment), 64)),
                    (client.register_cuda_shared_memory, ("r", b"A" * 88, 0, 64)),
                    (client.unregister_system_shared_memory, ()),
                    (client.unregister_cuda_shared_memory, ()),
                ):
                    assert refusal(call, *args) == (status, DISABLED)
                assert not getattr(client.get_system_shared_memory_status(), "regions", [])


# ---------------------------------------------------------------------------------------------------- classification


@PROTOCOLS
def test_the_greatest_elements_come_as_texts_with_labels(server: RunningServer, protocol: ModuleType) -> None:
    """http.md row 76, grpc.md row 38."""
    given = protocol.InferInput("INPUT0", [4], "FP32")
    given.set_data_from_numpy(np.array([0.1, 0.5, 0.3, 9], np.float32))
    with client_of(protocol, server) as client:
        wanted = protocol.InferRequestedOutput("OUTPUT0", class_count=3)
        result = client.infer("cls", [given], outputs=[wanted])
    found = result.as_numpy("OUTPUT0")
    assert found.tolist() == [b"9.000000:3", b"0.500000:1:dog", b"0.300000:2:bird"]
    output = result.get_output("OUTPUT0")
    datatype = output["datatype"] if protocol is tritonclient.http else output.datatype
    assert (datatype, found.shape) == ("BYTES", (3,))


def test_classes_are_json_like_any_other_output(server: RunningServer) -> None:
    """http.md row 77."""
    given = tensor("INPUT0", "FP32", [2, 3], [1, 2, 3, 3, 2, 1])
    reply = server.infer("batch", [given], outputs=[{"name": "OUTPUT0", "parameters": {"classification": 2}}])
    assert reply.json["outputs"] == [
        {
            "name": "OUTPUT0",
            "datatype": "BYTES",
            "shape": [2, 2],
            "data": ["3.000000:2:bird", "2.000000:1:dog", "3.000000:0:cat", "2.000000:1:dog"],
        }
    ]


def test_classes_are_of_numbers(server: RunningServer) -> None:
    """http.md row 78."""
    given = tensor("INPUT0", "BOOL", [2], [True, False])
    reply = server.infer("flags", [given], outputs=[{"name": "OUTPUT0", "parameters": {"classification": 1}}])
    expected = "class result not available for output due to unsupported type 'BOOL'"
    assert (reply.status, reply.error) == (400, expected)


@pytest.mark.parametrize("count", [0, 1 << 40])
def test_over_http_no_classes_is_the_output_itself(server: RunningServer, count: int) -> None:
    """http.md, section 10: the number has 32 bits."""
    given = tensor("INPUT0", "FP32", [4], [1, 2, 3, 4])
    reply = server.infer("cls", [given], outputs=[{"name": "OUTPUT0", "parameters": {"classification": count}}])
    assert reply.json["outputs"][0]["data"] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        ({"int64_param": 0}, "invalid value for 'classification' parameter, expected >= 0"),
        ({"string_param": "x"}, "invalid value type for 'classification' parameter, expected int64_param"),
    ],
)
def test_over_grpc_the_number_of_classes_is_a_number_from_1_on(
    server: RunningServer, count: dict[str, Any], text: str
) -> None:
    """grpc.md rows 39 and 40."""
    message = infer_message("cls", ("INPUT0", "FP32", [4], struct.pack("<4f", 1, 2, 3, 4)))
    message.outputs.add(name="OUTPUT0").parameters["classification"].MergeFrom(service_pb2.InferParameter(**count))
    with grpc_channel(server) as channel, pytest.raises(grpc.RpcError) as caught:
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message, timeout=30)
    error: Any = caught.value
    assert (error.code(), error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, text)
