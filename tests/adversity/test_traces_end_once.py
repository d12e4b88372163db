"""Every request that is begun is recorded exactly once, however it ends.

In Triton's mode each sampled request gets the next number when its timeline is begun, and is written when that has ended. So
the file must have every number from 1 on, each once: one that is missing was never finished, one that is there twice was
finished twice.
"""

from __future__ import annotations

import gzip
import json
import random
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.contract.scripted_model import DECOUPLED, Gate, Stream, request_message, write_script_model
from tests.frontends.grpc.http2_peer import PREFACE, Http2Peer, settings
from tests.harness import RunningServer, tensor

ANSWER = "return [response(1) for _ in requests]"
FAIL = "raise ValueError('boom')"
DIE = "import os; os.kill(os.getpid(), 9)"
HOLD = "gate({port}); return [response(1) for _ in requests]"
SEND = """
sender = request.get_response_sender()
for value in range(3):
    sender.send(response(value))
sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
SEND_AND_GO_ON = f"{SEND.strip()}\ngate({{port}})"
CALL = """
given = [pb_utils.Tensor("IN", np.array([{code!r}], object))]
pb_utils.InferenceRequest(
    model_name={model!r}, requested_output_names=["OUT"], inputs=given, trace=request.trace()
).exec()
return [response(1) for _ in requests]
"""


def body(code: str) -> bytes:
    return json.dumps({"inputs": [tensor("IN", "BYTES", [1], [code])]}).encode()


def post(server: RunningServer, model: str, data: bytes, **headers: str) -> None:
    server.post(f"/v2/models/{model}/infer", data, {name.replace("_", "-"): value for name, value in headers.items()})


def raw(server: RunningServer, model: str, data: bytes, *, length: int | None = None) -> socket.socket:
    """A connection with a request on it, of which *length* bytes were promised."""
    host, port = server.http_url.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=30)
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: h\r\nContent-Length: {length or len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def stub(channel: grpc.Channel) -> Any:
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)


# One request each, and what it calls. They return the number of requests that were begun.


def answered_over_http(server: RunningServer) -> int:
    post(server, "default", body(ANSWER))
    post(server, "default", gzip.compress(body(ANSWER)), Content_Encoding="gzip")
    post(server, "default", body(ANSWER), Accept_Encoding="gzip")
    post(server, "default", body(ANSWER + " #" + "x" * 100_000))  # in pieces
    return 4


def failed_over_http(server: RunningServer) -> int:
    post(server, "default", body(FAIL))
    post(server, "decoupled", body(SEND))  # which HTTP does not serve
    post(server, "default", b'{"inputs":')
    post(server, "default", b'{"inputs":[]}')
    return 4


def hung_up_while_executing(server: RunningServer) -> int:
    with Gate() as gate:
        with raw(server, "default", body(HOLD.format(port=gate.port))):
            gate.wait()
        post(server, "default", b"{}")  # the server has noticed before it answers this one, or does so later
    return 2


def hung_up_while_sending(server: RunningServer) -> int:
    raw(server, "default", body(ANSWER) + b" " * 100_000, length=1 << 20).close()
    return 1


def sent_all_and_closed_its_side(server: RunningServer) -> int:
    with raw(server, "default", body(ANSWER)) as connection:
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass
    return 1


def worker_died_over_http(server: RunningServer) -> int:
    post(server, "mortal", body(DIE))
    return 1


def answered_over_grpc(server: RunningServer) -> int:
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub(channel).ModelInfer(request_message("default", ANSWER))
    return 1


def failed_over_grpc(server: RunningServer) -> int:
    wrong = service_pb2.ModelInferRequest(model_name="default")
    with grpc.insecure_channel(server.grpc_url) as channel:
        for message in (request_message("default", FAIL), request_message("mortal", DIE), wrong):
            with pytest.raises(grpc.RpcError):
                stub(channel).ModelInfer(message)
    return 3


def cancelled_over_grpc(server: RunningServer) -> int:
    with Gate() as gate, grpc.insecure_channel(server.grpc_url) as channel:
        call = stub(channel).ModelInfer.future(request_message("default", HOLD.format(port=gate.port)))
        gate.wait()
        call.cancel()
    return 1


def too_late_over_grpc(server: RunningServer) -> int:
    host, _, port = server.grpc_url.rpartition(":")
    with Gate() as gate, socket.create_connection((host, int(port)), 30) as connection:
        peer = Http2Peer(connection)  # which leaves it to the server to look at the clock: the request does come
        peer.send(PREFACE + settings())
        message = request_message("default", HOLD.format(port=gate.port)).SerializeToString()
        peer.request(1, message, grpc_timeout="500m")
        peer.wait_end(1)
    return 1


def streamed(server: RunningServer) -> int:
    with Stream(server) as stream:
        stream.send("decoupled", SEND)
        stream.send("default", ANSWER)
        stream.send("default", FAIL)
        stream.send("decoupled", FAIL)
        assert len(list(stream.rest())) == 6
    return 4


def stream_cancelled(server: RunningServer) -> int:
    with Gate() as gate, Stream(server) as stream:
        stream.send("decoupled", SEND_AND_GO_ON.format(port=gate.port))
        assert stream.receive().value == 0
        gate.wait()
        stream.cancel()
    return 1


def stream_ended_by_an_error(server: RunningServer) -> int:
    with Stream(server, triton_grpc_error="true") as stream:
        stream.send("default", FAIL)
        with pytest.raises(grpc.RpcError):
            stream.receive()
    return 1


def called_another_model(server: RunningServer) -> int:
    post(server, "caller", body(CALL.format(model="default", code=ANSWER)))
    post(server, "caller", body(CALL.format(model="default", code=FAIL)))
    post(server, "caller", body(CALL.format(model="nobody", code=ANSWER)))
    post(server, "caller", body(CALL.format(model="mortal", code=DIE)))
    return 7  # the tracer does not follow who asks for a model that nobody knows


ENDS: list[Callable[[RunningServer], int]] = [
    answered_over_http,
    failed_over_http,
    hung_up_while_executing,
    hung_up_while_sending,
    sent_all_and_closed_its_side,
    worker_died_over_http,
    answered_over_grpc,
    failed_over_grpc,
    cancelled_over_grpc,
    too_late_over_grpc,
    streamed,
    stream_cancelled,
    stream_ended_by_an_error,
    called_another_model,
]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    for name in ("default", "mortal", "caller"):
        write_script_model(folder, name, instances=6 if name == "default" else 1)
    write_script_model(folder, "decoupled", DECOUPLED)
    return folder


def flags(repository: Path, *more: str) -> tuple[str, ...]:
    file = repository.parent / "trace.json"
    return ("--trace-config=level=TIMESTAMPS", "--trace-config=rate=1", f"--trace-config=triton,file={file}", *more)


def begun_and_recorded(repository: Path) -> tuple[list[int], Counter[int]]:
    """The numbers of requests, and how often each was recorded."""
    entries: list[dict[str, Any]] = json.loads((repository.parent / "trace.json").read_bytes())
    first = ("HTTP_RECV_START", "GRPC_WAITREAD_START")
    recorded = Counter(
        entry["id"]
        for entry in entries
        if "parent_id" in entry or any(stamp["name"] in first for stamp in entry.get("timestamps", ()))
    )
    return sorted({entry["id"] for entry in entries}), recorded


@pytest.mark.parametrize(("transport", "seed"), [("http2", 1), ("grpcio", 2)])
def test_however_requests_end_each_is_recorded_once(repository: Path, transport: str, seed: int) -> None:
    ends = 2 * ENDS
    random.Random(seed).shuffle(ends)
    with RunningServer(repository, flags=flags(repository, f"--grpc-transport={transport}")) as server:
        with ThreadPoolExecutor(4) as threads:
            begun = sum(threads.map(lambda end: end(server), ends))
        post(server, "default", body(ANSWER))
    numbers, recorded = begun_and_recorded(repository)
    assert numbers == list(range(1, begun + 2))
    assert set(recorded.values()) == {1}


def test_what_the_exit_cuts_off_is_recorded_too(repository: Path) -> None:
    with (
        Gate() as held,
        Gate() as called,
        RunningServer(repository, flags=flags(repository, "--exit-timeout-secs=1")) as server,
        raw(server, "default", body(HOLD.format(port=held.port))),
        grpc.insecure_channel(server.grpc_url) as channel,
    ):
        held.wait()
        call = stub(channel).ModelInfer.future(request_message("default", HOLD.format(port=called.port)))
        called.wait()
        server.process.terminate()
        assert server.process.wait(30) == 1
        assert call.exception() is not None
    numbers, recorded = begun_and_recorded(repository)
    assert (numbers, set(recorded.values())) == ([1, 2], {1})
