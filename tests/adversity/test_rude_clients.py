"""Clients that begin and do not go on, that go away in the middle, and that come by the thousand: nobody else notices,
and what they took comes back.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.contract.scripted_model import DECOUPLED, Gate, request_message, stream_of, write_script_model
from tests.contract.wire_models import wait_until
from tests.frontends.grpc.http2_peer import DATA, PREFACE, Http2Peer, frame, headers_of, prefixed, reset, settings
from tests.harness import MODEL_REPOSITORY, RunningServer, one_process, tensor

STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
RESPONSES = 1000
RESPONSE_BYTES = 64 << 10
ADD_SUB = [tensor(f"INPUT{at}", "FP32", [4], [1, 2, 3, 4]) for at in (0, 1)]
INFER = json.dumps({"inputs": ADD_SUB}).encode()
HEAD = b"POST /v2/models/add_sub/infer HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n" % len(INFER)
MANY = 1000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository: Path = tmp_path_factory.mktemp("repository")
    (repository / "add_sub").symlink_to(MODEL_REPOSITORY / "add_sub")
    write_script_model(repository, "streamed", DECOUPLED)
    write_script_model(repository, "plain")
    with RunningServer(repository, flags=(f"--grpc-max-response-pool-size={RESPONSES + 1}",)) as running:
        yield running


@pytest.fixture(autouse=True)
def _what_they_took_comes_back(server: RunningServer) -> Iterator[None]:
    """Afterwards the server has the descriptors that it had, serves, and has nothing to complain about."""
    served(server)
    before, log = descriptors(server), len(server.log)
    yield
    served(server)
    wait_until(lambda: descriptors(server) <= before + 1)  # one is made when a client first closes its side alone
    assert not re.search(r"Traceback|failed inside|never awaited", server.log[log:]), server.log[log:]


def served(server: RunningServer) -> None:
    reply = server.infer("add_sub", ADD_SUB)
    assert (reply.status, reply.json["outputs"][0]["data"]) == (200, [2.0, 4.0, 6.0, 8.0])


def descriptors(server: RunningServer) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def connect(server: RunningServer, url: str) -> socket.socket:
    host, _, port = url.rpartition(":")
    return socket.create_connection((host, int(port)), 30)


def drop_with_reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def read_all(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(1 << 16), b""))


# -------------------------------------------------------------------------------------------------- slow beginners


@one_process("other processes have the descriptors")
def test_hundreds_of_heads_that_do_not_end_keep_nobody_from_being_served(server: RunningServer) -> None:
    """Slow loris: each has sent a part of its head, and sends one more byte now and then."""
    beginnings = [(server.http_url, HEAD)] * 300 + [(server.grpc_url, PREFACE)] * 100
    with ExitStack() as stack:
        slow = []
        for number, (url, head) in enumerate(beginnings):
            sock = stack.enter_context(connect(server, url))
            sent = 1 + number % (len(head) - 5)
            sock.sendall(head[:sent])
            slow.append((sock, head, sent))
        for more in range(3):
            served(server)
            for sock, head, sent in slow:
                sock.sendall(head[sent + more : sent + more + 1])
        served(server)
        wait_until(lambda: descriptors(server) > len(beginnings))  # they are held open


def test_a_head_that_comes_byte_by_byte_is_answered(server: RunningServer) -> None:
    with connect(server, server.http_url) as sock:
        request = HEAD + b"Connection: close\r\n\r\n" + INFER
        for at in range(len(request)):
            sock.sendall(request[at : at + 1])
            if at % 40 == 0:
                served(server)  # the server has read what was sent
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["outputs"][0]["data"] == [2.0, 4.0, 6.0, 8.0]


# -------------------------------------------------------------------------------------------------- those that leave


@contextmanager
def held_open(server: RunningServer, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(connect(server, server.http_url)) for _ in range(count)]


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("sent", [b"", HEAD, PREFACE], ids=["nothing", "half a head", "another protocol"])
def test_a_thousand_connections_that_open_and_drop_leave_nothing(server: RunningServer, how: str, sent: bytes) -> None:
    for _ in range(MANY // 100):
        with held_open(server, 100) as many:
            for sock in many:
                sock.sendall(sent)
                if how == "reset":
                    drop_with_reset(sock)


def test_a_thousand_grpc_connections_that_open_and_drop_leave_nothing(server: RunningServer) -> None:
    for number in range(MANY):
        with connect(server, server.grpc_url) as sock:
            sock.sendall((PREFACE + settings())[: number % 40])
            if number % 2:
                drop_with_reset(sock)


@pytest.mark.parametrize("size", [len(INFER), 1 << 24], ids=["small", "large"])
def test_reset_in_the_middle_of_a_body_leaves_nothing(server: RunningServer, size: int) -> None:
    head = HEAD.replace(b"%d" % len(INFER), b"%d" % size)
    for _ in range(50):
        sock = connect(server, server.http_url)
        sock.sendall(head + b"\r\n" + INFER[: len(INFER) // 2])
        drop_with_reset(sock)
    served(server)


def test_client_that_half_closes_behind_its_request_is_answered(server: RunningServer) -> None:
    with connect(server, server.http_url) as sock, Gate() as gate:
        code = f"gate({gate.port})\nreturn [response('waited')]"
        body = json.dumps({"inputs": [tensor("IN", "BYTES", [1], [code])]}).encode()
        path = b"POST /v2/models/plain/infer HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body)
        sock.sendall(path + body)
        sock.shutdown(socket.SHUT_WR)
        gate.wait()
        gate.open()
        answer = read_all(sock)
    assert b"HTTP/1.1 200 OK\r\n" in answer
    assert b"waited" in answer


# -------------------------------------------------------------------------------------------------- abandoned streams


def own_mb(server: RunningServer) -> float:
    """Memory of the server alone; what it maps of its workers' is theirs."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.findall(r"RssAnon:\s+(\d+)", status)[0]) / 1024


def code_of(sent: Gate, told: Gate) -> str:
    """Sends every response, tells that it has, and tells whether the request is cancelled in the end."""
    return textwrap.dedent(f"""
    def send(sender):
        for n in range({RESPONSES}):
            sender.send(response(n, Y=np.zeros({RESPONSE_BYTES // 4})))
        tell({sent.port}, True)
        tell({told.port}, until(sender.is_cancelled))
    thread(send, request.get_response_sender())
    """)


COUNT_SENDERS = """
gc.collect()
alive = sum(type(found).__name__ == "InferenceResponseSender" for found in gc.get_objects())
request.get_response_sender().send(response(alive), FINAL)
"""


def live_senders(server: RunningServer) -> Any:
    (message,) = stream_of(server, "streamed", COUNT_SENDERS)
    return message.value


def abandon_grpc(server: RunningServer) -> None:
    """Open no window, and reset the stream when the model has sent everything."""
    with ExitStack() as stack:
        sent, told = stack.enter_context(Gate()), stack.enter_context(Gate())
        peer = Http2Peer(stack.enter_context(connect(server, server.grpc_url)))
        peer.send(PREFACE + settings(initial_window_size=0))
        message = request_message("streamed", code_of(sent, told)).SerializeToString()
        peer.send(peer.headers(1, headers_of(STREAM)), frame(DATA, 0, 1, prefixed(message)))
        assert sent.told() is True
        peer.send(reset(1))
        assert told.told() is True, "the request was not cancelled"


def abandon_http(server: RunningServer) -> None:
    """Read nothing but the head of generate_stream's answer, and reset the connection when the model has sent everything."""
    with Gate() as sent, Gate() as told:
        body = json.dumps({"IN": code_of(sent, told)}).encode()
        sock = connect(server, server.http_url)
        path = b"POST /v2/models/streamed/generate_stream HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"
        sock.sendall(path % len(body) + body)
        assert sock.recv(15) == b"HTTP/1.1 200 OK"
        assert sent.told() is True
        drop_with_reset(sock)
        assert told.told() is True, "the request was not cancelled"


@pytest.mark.parametrize("abandon", [abandon_grpc, abandon_http], ids=["gRPC", "generate_stream"])
def test_a_stream_that_is_abandoned_under_a_thousand_responses_gives_all_back(
    server: RunningServer, abandon: Callable[[RunningServer], None]
) -> None:
    """The model hears of it, its sender goes, and five such streams leave no more memory than one of them takes.

    What is freed stays with the allocator, which gives it back now and then, and a busy server may hear of the end before it
    has taken a single response: so what it takes before the first stream is compared, not what it takes after it.
    """
    assert live_senders(server) == 0
    before_mb = own_mb(server)
    for _ in range(5):
        abandon(server)
    assert own_mb(server) < before_mb + (RESPONSES * RESPONSE_BYTES >> 20) + 24
    wait_until(lambda: live_senders(server) == 0)
