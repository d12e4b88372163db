"""Bodies and connections of HTTP/1.1 that are made to cost the server more than they cost the client.

While each attack runs, other clients are answered; afterwards it has its refusal, and the server its memory.
"""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness import MODEL_REPOSITORY, RunningServer, stat_fields, tensor

ADD_SUB = [tensor(f"INPUT{at}", "FP32", [4], [1, 2, 3, 4]) for at in (0, 1)]
INFER = "/v2/models/add_sub/infer"
GENERATE = "/v2/models/add_sub/generate"
HEALTH = b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n"
MOST_MEMORY = 500 << 20
"""More than the server takes of it at its peak, in bytes: a body of 64 MiB, packed tensors of 64 MiB, and what is copied."""
LONGEST_S = 5.0
"""Far more than the server computes while another client waits, and less than the attacks took of the loop."""
MILLION = 1_000_000

DOCUMENTS: dict[str, Callable[[], bytes]] = {
    "lists": lambda: b"[" + b"[]," * (5 * MILLION) + b"[]]",
    "parameters": lambda: b'{"parameters":{' + b",".join(b'"%x":1' % at for at in range(3 * MILLION)) + b"}}",
    "inputs": lambda: b'{"inputs":[' + b'{"name":"INPUT0"},' * MILLION + b"{}]}",
    "deep": lambda: b'{"a":' * (3 * MILLION),
    "numbers": lambda: (
        b'{"inputs":[{"name":"INPUT0","shape":[8000000],"datatype":"FP32","data":[' + b"1," * (8 * MILLION) + b"1]}]}"
    ),
    "strings": lambda: (
        b'{"inputs":[{"name":"INPUT0","shape":[4],"datatype":"BYTES","data":[' + b'"",' * (8 * MILLION) + b'""]}]}'
    ),
    "pairs": lambda: (
        b'{"inputs":[{"name":"INPUT0","shape":[4],"datatype":"FP32","data":[' + b"[1,[]]," * (5 * MILLION) + b"1]}]}"
    ),
    "files": lambda: b'{"parameters":{"config":"{}","file:1/model.py":"' + b"*" * (40 * MILLION) + b'"}}',
    "zipped inputs": lambda: gzip.compress(DOCUMENTS["inputs"]() * 3, 9),
    "zipped blanks": lambda: gzip.compress(b" " * (60 << 20), 9),
}
"""Made when they are sent: each process of the run imports this file."""
ZIPPED = {"Content-Encoding": "gzip"}

BODIES: dict[str, tuple[str, str, dict[str, str]]] = {
    "lists": (INFER, "lists", {}),
    "parameters": (INFER, "parameters", {}),
    "inputs": (INFER, "inputs", {}),
    "deep": (INFER, "deep", {}),
    "numbers": (INFER, "numbers", {}),
    "strings": (INFER, "strings", {}),
    "pairs": (INFER, "pairs", {}),
    "inputs that were compressed": (INFER, "zipped inputs", ZIPPED),
    "blanks that were compressed": (INFER, "zipped blanks", ZIPPED),
    "members for generate": (GENERATE, "parameters", {}),
    "lists for generate": (GENERATE, "lists", {}),
    "deep for a stream": ("/v2/models/add_sub/generate_stream", "deep", {}),
    "index": ("/v2/repository/index", "lists", {}),
    "load": ("/v2/repository/models/add_sub/load", "parameters", {}),
    "files": ("/v2/repository/models/add_sub/load", "files", {}),
    "unload": ("/v2/repository/models/nobody/unload", "parameters", {}),
    "trace": ("/v2/trace/setting", "inputs", {}),
    "trace of a model": ("/v2/models/add_sub/trace/setting", "deep", {}),
    "logging": ("/v2/logging", "parameters", {}),
    "region": ("/v2/systemsharedmemory/region/r/register", "lists", {}),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository: Path = tmp_path_factory.mktemp("repository")
    (repository / "add_sub").symlink_to(MODEL_REPOSITORY / "add_sub")
    flags = ("--model-control-mode=explicit", "--load-model=*", "--allow-client-shm=true")
    with RunningServer(repository, flags=flags) as running:
        yield running


@pytest.fixture(autouse=True)
def _it_serves_as_before(server: RunningServer) -> Iterator[None]:
    log = len(server.log)
    yield
    reply = server.infer("add_sub", ADD_SUB)
    assert (reply.status, reply.json["outputs"][0]["data"]) == (200, [2.0, 4.0, 6.0, 8.0])
    assert not re.search(r"Traceback|failed inside|never awaited", server.log[log:]), server.log[log:]


def peak_memory(server: RunningServer) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


def forget_peak(server: RunningServer) -> int:
    """The peak from here on is what counts; the memory that is taken now."""
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")
    return peak_memory(server)


def cpu_s(server: RunningServer) -> float:
    """Seconds that the server has computed, its threads together."""
    fields = stat_fields(server.process.pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def worst_health(server: RunningServer, attack: Callable[[], None]) -> float:
    """The longest that another client waited for an answer on its connection while *attack* ran.

    In seconds in which the server computed, where those are fewer: what else the machine does meanwhile is not its fault.
    """
    longest, answered = 0.0, 0
    attacking = threading.Thread(target=attack)
    with socket.create_connection(("127.0.0.1", server.http_port), 60) as sock:
        reader = sock.makefile("rb")
        attacking.start()
        while attacking.is_alive() or not answered:
            began, computed = time.perf_counter(), cpu_s(server)
            sock.sendall(HEALTH)
            while reader.readline() != b"\r\n":
                pass
            longest = max(longest, min(time.perf_counter() - began, cpu_s(server) - computed))
            answered += 1
        attacking.join()
        reader.close()
    return longest


@pytest.mark.parametrize("case", BODIES)
def test_a_body_that_is_made_to_be_dear_is_refused_while_others_are_answered(server: RunningServer, case: str) -> None:
    path, document, headers = BODIES[case]
    body = DOCUMENTS[document]()
    before = forget_peak(server)
    statuses: list[int] = []

    def attack() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=120)
        connection.request("POST", path, body, headers)
        with connection.getresponse() as response:
            statuses.append(response.status)
            response.read()
        connection.close()

    longest = worst_health(server, attack)
    assert statuses[0] in (200, 400, 500)
    assert peak_memory(server) - before < MOST_MEMORY
    assert longest < LONGEST_S


PIECES = {
    "pipelined requests": b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n" * 5_000,
    "offers to upgrade": b"GET /v2 HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n" * 2_000,
    "chunks of one byte": b"POST /v2/models/add_sub/infer HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"1\r\n \r\n" * 50_000,
    "headers": (b"GET /v2 HTTP/1.1\r\nHost: h\r\n" + b"a: b\r\n" * 250 + b"\r\n") * 500,
    "refused inference": b"POST /v2/models/nobody/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n{" * 5_000,
}


@pytest.mark.parametrize("count", [1, 16])
@pytest.mark.parametrize("case", PIECES)
def test_connections_that_send_as_much_as_they_can_leave_others_their_turn(
    server: RunningServer, case: str, count: int
) -> None:
    """They read what they are answered, so nothing but the loop's own order holds them back."""

    def send() -> None:
        with socket.create_connection(("127.0.0.1", server.http_port), 60) as sock:
            reading = threading.Thread(target=read, args=(sock,))
            reading.start()
            sock.sendall(PIECES[case])
            sock.shutdown(socket.SHUT_WR)
            reading.join()

    def read(sock: socket.socket) -> None:
        try:
            while sock.recv(1 << 16):
                pass
        except ConnectionResetError:
            return

    def attack() -> None:
        senders = [threading.Thread(target=send) for _ in range(count)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()

    before = forget_peak(server)
    longest = worst_health(server, attack)
    assert peak_memory(server) - before < MOST_MEMORY
    assert longest < LONGEST_S


def test_answers_that_nobody_reads_are_not_made(server: RunningServer) -> None:
    """Small inference requests, piped without end; the connection is not read from while its answers lie there."""
    body = json.dumps({"inputs": ADD_SUB}).encode()
    request = b"POST %b HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (INFER.encode(), len(body), body)
    with socket.create_connection(("127.0.0.1", server.http_port), 60) as sock:
        sock.setblocking(False)
        sent = idle = 0
        while idle < 100:
            try:
                sent += sock.send(request * 100)
                idle = 0
            except BlockingIOError:
                assert server.get("/v2/health/live").status == 200
                idle += 1
        assert sent < 64 << 20
