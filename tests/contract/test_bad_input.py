"""Bad input: each has the status and text of the spec, harms nobody else, and leaves no traceback of ours in the log.

After every test the server is asked whether it is still there, and a plain request must be answered.
"""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.contract.wire_models import grpc_channel, identity_config, infer_message, write_wire_models
from tests.harness import PROJECT, RunningServer, tensor, write_model

FP32_4 = struct.pack("<4f", 1, 2, 3, 4)
NO_ID = "[request id: <id_unknown>] "
GIB = 1 << 30
Code = grpc.StatusCode

NO_CLASS = "import triton_python_backend_utils as pb_utils\n"
RAISES_IN_INITIALIZE = """
    class TritonPythonModel:
        def initialize(self, args):
            raise ValueError("no weights")
"""
# The execute method returns what its only input asks for.
WRONG_RETURNS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            what = requests[0].inputs()[0].as_numpy()[0].decode()
            if what == "raise":
                raise RuntimeError("in execute")
            good = pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", requests[0].inputs()[0].as_numpy())])
            return {
                "too few": [],
                "too many": [good, good],
                "none": None,
                "a string": "text",
                "a list of none": [None],
                "a list of numbers": [7],
                "good": [good],
            }[what]
"""
BROKEN_MODELS = {
    "bad_syntax": "class TritonPythonModel\n",
    "bad_import": "import no_such_module_anywhere\n",
    "no_class": NO_CLASS,
    "bad_initialize": RAISES_IN_INITIALIZE,
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("bad") / "models"
    write_wire_models(repository)
    for name, code in BROKEN_MODELS.items():
        write_model(repository, name, code, identity_config("INT32", "1"))
    write_model(repository, "returns", WRONG_RETURNS, identity_config("STRING", "1"))
    with RunningServer(repository, flags=("--exit-on-error=false", "--strict-readiness=false")) as server:
        yield server


@pytest.fixture
def server(running: RunningServer) -> Iterator[RunningServer]:
    """The server, of which every test must leave as much as it found."""
    workers = running.worker_pids()
    yield running
    assert running.get("/v2/health/live").status == 200
    assert running.get("/v2/health/ready").status == 200
    reply = running.infer("add_sub", ADD_SUB)
    assert (reply.status, reply.json["outputs"][0]["data"]) == (200, [2.0, 4.0, 6.0, 8.0])
    assert running.worker_pids() == workers, "a worker died"
    assert_no_traceback_of_ours(running.log)


def assert_no_traceback_of_ours(log: str) -> None:
    """Tracebacks of user code name model files alone; one that names a file of the package is a bug of ours."""
    for block in re.split(r"Traceback \(most recent call last\)", log)[1:]:
        assert f"{PROJECT}/pytriton_lite" not in block, block[:2000]
    assert "internal error of the server" not in log


@pytest.fixture(scope="module")
def stub(running: RunningServer) -> Iterator[Any]:
    with grpc_channel(running) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


INPUT0 = tensor("INPUT0", "FP32", [4], [1, 2, 3, 4])
INPUT1 = tensor("INPUT1", "FP32", [4], [1, 2, 3, 4])
ADD_SUB = [INPUT0, INPUT1]


def count_text(got: int, names: str, missing: str) -> str:
    return (
        f"{NO_ID}expected 2 inputs but got {got} inputs for model 'add_sub'. Got input(s) {names}, but missing required "
        f"input(s) {missing}. Please provide all required input(s)."
    )


# Triton waits for ever here; we do not (model API spec, 4.1).
NOTHING_SENT = "execute returned None for the request, and no response was sent through its sender."

# What both front ends say in the same words: (inputs as (name, datatype, shape), text). Every input has 16 bytes.
Specs = list[tuple[str, str, list[int]]]
BOTH = [
    pytest.param(
        "add_sub", [("INPUT0", "FP32", [4])], count_text(1, "['INPUT0']", "['INPUT1']"), id="an input is missing"
    ),
    pytest.param(
        "add_sub",
        [("INPUT0", "FP32", [4]), ("FOO", "FP32", [4])],
        "unexpected inference input 'FOO' for model 'add_sub'",
        id="an unexpected input",
    ),
    pytest.param(
        "add_sub",
        [("INPUT0", "FP32", [4]), ("INPUT0", "FP32", [4])],
        f"{NO_ID}input 'INPUT0' already exists in request",
        id="an input twice",
    ),
    pytest.param(
        "ident_fixed",
        [("INPUT0", "INT32", [1, 4])],
        f"{NO_ID}inference input 'INPUT0' data-type is 'INT32', but model 'ident_fixed' expects 'FP32'",
        id="wrong datatype",
    ),
    pytest.param(
        "ident_fixed",
        [("INPUT0", "FOO", [1, 4])],
        f"{NO_ID}inference input 'INPUT0' data-type is '<invalid>', but model 'ident_fixed' expects 'FP32'",
        id="no datatype at all",
    ),
    pytest.param(
        "add_sub",
        [("INPUT0", "FP32", [2, 2]), ("INPUT1", "FP32", [4])],
        f"{NO_ID}unexpected shape for input 'INPUT0' for model 'add_sub'. Expected [4], got [2,2]. ",
        id="wrong shape",
    ),
    pytest.param(
        "ident_b",
        [("INPUT0", "FP32", [1, 3])],
        f"{NO_ID}input byte size mismatch for input 'INPUT0' for model 'ident_b'. Expected 12, got 16",
        id="wrong byte size",
    ),
    pytest.param(
        "ident_b",
        [("INPUT0", "FP32", [])],
        f"{NO_ID}input 'INPUT0' has no shape but model requires batch dimension for 'ident_b'",
        id="no batch dimension, scheduling.md row 10",
    ),
    pytest.param(
        "two_inputs",
        [("INPUT0", "FP32", [1, 4]), ("INPUT1", "FP32", [2, 2])],
        f"{NO_ID}input 'INPUT1' batch size does not match other inputs for 'two_inputs'",
        id="two batch sizes, scheduling.md row 11",
    ),
    pytest.param(
        "ident_b",
        [("INPUT0", "FP32", [0, 4])],
        f"{NO_ID}input byte size mismatch for input 'INPUT0' for model 'ident_b'. Expected 16, got 0",
        id="a batch of none, scheduling.md row 13",
    ),
    pytest.param(
        "ident_b",
        [("INPUT0", "FP32", [1 << 30, 4])],
        f"{NO_ID}inference request batch-size must be <= 4 for 'ident_b'",
        id="batch over the maximum",
    ),
]


@pytest.mark.parametrize(("model", "inputs", "text"), BOTH)
def test_inputs_that_the_model_does_not_take_are_refused_over_http(
    server: RunningServer, model: str, inputs: Specs, text: str
) -> None:
    parts = [b"" if 0 in shape else FP32_4 for _, _, shape in inputs]
    document = {
        "inputs": [
            {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(part)}}
            for (name, datatype, shape), part in zip(inputs, parts)
        ]
    }
    head = json.dumps(document).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    reply = server.post(f"/v2/models/{model}/infer", head + b"".join(parts), headers)
    assert (reply.status, reply.error) == (400, text)


@pytest.mark.parametrize(("model", "inputs", "text"), BOTH)
def test_inputs_that_the_model_does_not_take_are_refused_over_grpc(
    server: RunningServer, stub: Any, model: str, inputs: Specs, text: str
) -> None:
    message = infer_message(
        model, *((name, datatype, shape, b"" if 0 in shape else FP32_4) for name, datatype, shape in inputs)
    )
    assert refusal(stub, message) == (Code.INVALID_ARGUMENT, text)


def refusal(stub: Any, message: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(message, timeout=30)
    return caught.value.code(), caught.value.details()


@pytest.mark.parametrize(
    ("model", "status", "code", "text"),
    [
        ("nope", 404, Code.NOT_FOUND, "Request for unknown model: 'nope' is not found"),
        ("add_sub/versions/9", 404, Code.NOT_FOUND, "Request for unknown model: 'add_sub' version 9 is not found"),
        (
            "bad_import/versions/1",
            503,
            Code.UNAVAILABLE,
            "Request for unknown model: 'bad_import' version 1 is not at ready state",
        ),
    ],
)
def test_an_unknown_model_or_version_is_refused(
    server: RunningServer, stub: Any, model: str, status: int, code: grpc.StatusCode, text: str
) -> None:
    reply = server.post(f"/v2/models/{model}/infer", {"inputs": ADD_SUB})
    assert (reply.status, reply.error) == (status, text)
    name, _, version = model.partition("/versions/")
    message = service_pb2.ModelInferRequest(model_name=name, model_version=version)
    assert refusal(stub, message) == (code, text)


def test_an_unknown_output_is_refused(server: RunningServer, stub: Any) -> None:
    text = "unexpected inference output 'FOO' for model 'add_sub'"
    reply = server.infer("add_sub", ADD_SUB, outputs=[{"name": "FOO"}])
    assert (reply.status, reply.error) == (400, text)
    message = infer_message("add_sub", ("INPUT0", "FP32", [4], FP32_4), ("INPUT1", "FP32", [4], FP32_4))
    message.outputs.add(name="FOO")
    assert refusal(stub, message) == (Code.INVALID_ARGUMENT, text)


# ---------------------------------------------------------------------------------------------------- HTTP bodies


@pytest.mark.parametrize(
    "body", [b"{", b"nonsense", b'{"inputs":[}', b"\xff\xfe", b'{"inputs":[]} trailing', b'{"id":"\x01"', b'{"inputs":['],
    ids=["open", "nonsense", "bracket", "bytes", "trailing", "control character", "cut"],
)  # fmt: skip
def test_invalid_json_is_refused(server: RunningServer, body: bytes) -> None:
    reply = server.post("/v2/models/add_sub/infer", body)
    assert reply.status == 500
    assert re.match(r"failed to parse the request JSON buffer: .+ at \d+$", reply.error)


def test_json_nested_beyond_all_bounds_is_refused(server: RunningServer) -> None:
    deep = b"[" * 100_000
    reply = server.post("/v2/models/add_sub/infer", b'{"inputs":' + deep)
    assert reply.status == 400
    assert "more than 20000 objects and lists outside of tensor data" in reply.error
    # As deep as any JSON that is parsed may be, and not closed: a syntax error, which is a 500 of Triton's.
    assert server.post("/v2/models/add_sub/infer", b'{"inputs":' + b"[" * 1000).status == 500
    whole = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[4],"data":' + deep + b"]" * 100_000 + b"}]}"
    reply = server.post("/v2/models/add_sub/infer", whole)
    assert reply.status in (400, 500)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("99999", "inference header size should be in range (0, {length}), got: 99999"),
        ("-1", "inference header size should be in range (0, {length}), got: -1"),
        ("abc", "Unable to parse Inference-Header-Content-Length, got: abc"),
        (
            "99999999999",
            "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], got: "
            "99999999999",
        ),
    ],
)
def test_a_wrong_header_length_is_refused(server: RunningServer, value: str, text: str) -> None:
    body = json.dumps({"inputs": ADD_SUB}).encode()
    reply = server.post("/v2/models/add_sub/infer", body, {"Inference-Header-Content-Length": value})
    assert (reply.status, reply.error) == (400, text.format(length=len(body)))


def test_a_header_length_within_the_json_is_a_syntax_error(server: RunningServer) -> None:
    body = json.dumps({"inputs": ADD_SUB}).encode()
    reply = server.post("/v2/models/add_sub/infer", body, {"Inference-Header-Content-Length": "10"})
    assert reply.status == 500
    assert reply.error.startswith("failed to parse the request JSON buffer: ")


@pytest.mark.parametrize("data", [[1, 2, 3], [1, 2, 3, 4, 5]])
def test_a_wrong_element_count_is_refused(server: RunningServer, data: list[int]) -> None:
    """http.md row 44; too few elements have a newer text of their own (section 7.4)."""
    reply = server.infer("add_sub", [tensor("INPUT0", "FP32", [4], data), INPUT1])
    assert reply.status == 500
    assert reply.error in (
        "Unable to parse 'data': Shape does not match true shape of 'data' field",
        "Failed to parse 'data' field: shape does not match true shape",
    )


@pytest.mark.parametrize(
    ("shape", "status", "text"),
    [
        pytest.param(
            [-1],
            500,
            "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
            id="row 41",
        ),
        pytest.param([18446744073709551615], 400, None, id="row 42"),
        pytest.param(
            [4611686018427387904, 4],
            400,
            "invalid shape for input 'INPUT0': shape [4611686018427387904,4] causes total element count to exceed maximum "
            "size of 9223372036854775807",
            id="row 43",
        ),
        pytest.param(
            [1 << 63],
            400,
            "invalid shape for input 'INPUT0': shape [-9223372036854775808] contains one or more invalid dimensions",
            id="beyond int64",
        ),
        pytest.param(
            [1 << 61, 2],
            400,
            "byte size overflow for input 'INPUT0': element count (4611686018427387904) * data type size (4) exceeds "
            "maximum allowed size (9223372036854775807)",
            id="bytes beyond int64",
        ),
    ],
)
def test_a_shape_that_overflows_is_refused(
    server: RunningServer, shape: list[int], status: int, text: str | None
) -> None:
    """http.md rows 41 to 43, which the ids name."""
    reply = server.infer("add_sub", [tensor("INPUT0", "FP32", shape, [1, 2, 3, 4]), INPUT1])
    assert reply.status == status
    assert text is None or reply.error == text


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ([1, -5], "tensor 'INPUT0' contains an invalid dimension [1,-5]"),
        ([1, 1 << 62], "byte size for tensor 'INPUT0' exceeds maximum size of 9223372036854775807"),
        ([1 << 62, 1 << 62], "byte size for tensor 'INPUT0' exceeds maximum size of 9223372036854775807"),
    ],
)
def test_a_shape_that_overflows_is_refused_over_grpc(
    server: RunningServer, stub: Any, shape: list[int], text: str
) -> None:
    """grpc.md rows 32 and 33."""
    assert refusal(stub, infer_message("ident_b", ("INPUT0", "FP32", shape, FP32_4))) == (Code.INVALID_ARGUMENT, text)


def test_a_message_that_is_no_message_is_refused_over_grpc(server: RunningServer) -> None:
    with grpc.insecure_channel(server.grpc_url) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(b"\xff\xff\xff", timeout=30)
    assert (caught.value.code(), caught.value.details()) == (Code.INTERNAL, "Unable to parse request")


# ---------------------------------------------------------------------------------------------------- sockets


def read_answer(connection: socket.socket) -> tuple[int, dict[str, str]]:
    """Status and document of one HTTP answer on a socket."""
    with connection.makefile("rb") as stream:
        status = int(stream.readline().split()[1])
        length = 0
        while (line := stream.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return status, json.loads(stream.read(length))


def connect(server: RunningServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.http_port), timeout=30)


def head_for(length: int, *, json_size: int | None = None, more: str = "") -> bytes:
    size = "" if json_size is None else f"Inference-Header-Content-Length: {json_size}\r\n"
    return (
        f"POST /v2/models/add_sub/infer HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n{size}{more}\r\n"
    ).encode()


def test_a_truncated_body_is_nobodys_request(server: RunningServer) -> None:
    with connect(server) as connection:
        connection.sendall(head_for(1000) + b'{"inputs":[')
    with connect(server) as connection:
        connection.sendall(head_for(1000, json_size=20) + b'{"inputs":[')
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


@pytest.mark.parametrize("json_size", [None, 0])
def test_a_gigabyte_of_json_is_refused_by_its_announcement(server: RunningServer, json_size: int | None) -> None:
    """Nothing of the body is ever sent: the answer comes for the head alone."""
    with connect(server) as connection:
        connection.sendall(head_for(GIB, json_size=json_size) + b"{")
        status, document = read_answer(connection)
    what = "JSON" if json_size is None else "body"
    assert (status, document["error"]) == (
        400,
        f"request {what} size of {GIB} bytes exceeds the maximum allowed input size of 67108864 bytes. Use "
        "--http-max-input-size to increase the limit.",
    )


def test_a_gigabyte_that_the_tensors_do_not_have_is_refused_by_its_json_part(server: RunningServer) -> None:
    parts = [{"name": n, "datatype": "FP32", "shape": [4], "parameters": {"binary_data_size": 16}} for n in "AB"]
    head = json.dumps({"inputs": parts}).encode()
    with connect(server) as connection:
        connection.sendall(head_for(GIB, json_size=len(head)) + head)
        status, document = read_answer(connection)
    assert (status, document["error"]) == (400, "unexpected additional input data for model 'add_sub'")


def test_a_gigabyte_that_the_model_does_not_take_is_refused_by_its_json_part(server: RunningServer) -> None:
    inputs = [
        {"name": "INPUT0", "datatype": "FP32", "shape": [GIB // 4], "parameters": {"binary_data_size": GIB}},
        INPUT1,
    ]
    head = json.dumps({"inputs": inputs}).encode()
    with connect(server) as connection:
        connection.sendall(head_for(GIB + len(head), json_size=len(head)) + head)
        status, document = read_answer(connection)
    assert (status, document["error"]) == (
        400,
        f"{NO_ID}unexpected shape for input 'INPUT0' for model 'add_sub'. Expected [4], got [{GIB // 4}]. ",
    )


def test_a_gigabyte_that_is_compressed_is_refused_by_its_announcement(server: RunningServer) -> None:
    with connect(server) as connection:
        connection.sendall(head_for(GIB, more="Content-Encoding: gzip\r\n") + b"x")
        status, document = read_answer(connection)
    assert (status, document["error"]) == (
        400,
        "Decompressed data size exceeds the maximum allowed value of 67108864 bytes. Use --http-max-input-size to increase "
        "the limit.",
    )


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"POST /v2/models/add_sub/infer HTTP/1.1\r\nHost: h\r\nContent-Length: many\r\n\r\n",
        b"GET /v2 HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["nonsense", "content length", "version", "TLS", "HTTP/2"],
)
def test_what_is_not_http_ends_its_connection_only(server: RunningServer, sent: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass


# ---------------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("bad_syntax", "Internal: SyntaxError: "),
        ("bad_import", "Internal: ModuleNotFoundError: No module named 'no_such_module_anywhere'"),
        ("no_class", "Internal: AttributeError: "),
        ("bad_initialize", "Internal: ValueError: no weights"),
        ("nofile", "Internal: Python model file not found in "),
    ],
)
def test_a_model_that_cannot_start_is_unavailable_with_its_reason(
    server: RunningServer, stub: Any, model: str, reason: str
) -> None:
    (row,) = [row for row in server.post("/v2/repository/index").json if row["name"] == model]
    assert row["state"] == "UNAVAILABLE"
    assert row["reason"].startswith(reason)
    text = f"Request for unknown model: '{model}' has no available versions"
    reply = server.infer(model, [tensor("INPUT0", "INT32", [1], [1])])
    assert (reply.status, reply.error) == (404, text)
    assert refusal(stub, infer_message(model, ("INPUT0", "INT32", [1], b"\0" * 4))) == (Code.NOT_FOUND, text)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("raise", "RuntimeError: in execute\n\nAt:\n"),
        (
            "too few",
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. InferenceRequest(s) "
            "size is:1, and InferenceResponse(s) size is:0\n",
        ),
        (
            "too many",
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. InferenceRequest(s) "
            "size is:1, and InferenceResponse(s) size is:2\n",
        ),
        ("none", NOTHING_SENT),
        ("a list of none", NOTHING_SENT),
        ("a string", "Expected a list in the execute return, found type '<class 'str'>'."),
        (
            "a list of numbers",
            "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'.",
        ),
    ],
)
def test_a_model_that_answers_wrongly_fails_its_request(
    server: RunningServer, stub: Any, what: str, reason: str
) -> None:
    begin = f"Failed to process the request(s) for model 'returns', message: {reason}"
    reply = server.infer("returns", [tensor("INPUT0", "BYTES", [1], [what])])
    assert reply.status == 500
    assert re.sub(r"'returns(_\d)+'", "'returns'", reply.error).startswith(begin)
    data = len(what).to_bytes(4, "little") + what.encode()
    code, text = refusal(stub, infer_message("returns", ("INPUT0", "BYTES", [1], data)))
    assert code == Code.INTERNAL
    assert re.sub(r"'returns(_\d)+'", "'returns'", text).startswith(begin)
    reply = server.infer("returns", [tensor("INPUT0", "BYTES", [1], ["good"])])
    assert (reply.status, reply.json["outputs"][0]["data"]) == (200, ["good"])
