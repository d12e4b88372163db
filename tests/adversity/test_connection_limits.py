"""Connections that are too many, by the limit or by what the system gives: those that are there are served."""

from __future__ import annotations

import contextlib
import http.client
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tritonclient.grpc import InferenceServerClient

from tests.contract.life_kit import CONFIG, code, value_of
from tests.contract.wire_models import wait_until
from tests.harness import RunningServer, write_model

TRANSPORTS = pytest.mark.parametrize("transport", ["http2", "grpcio"])


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_model(tmp_path / "models", "m", code(5), CONFIG)
    return tmp_path / "models"


@contextlib.contextmanager
def connected(port: int, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(count)]


def is_closed(client: socket.socket) -> bool:
    """Waits for what comes first: a byte of an answer, or the end."""
    try:
        client.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: h\r\n\r\n")
        return client.recv(1) == b""
    except ConnectionError:
        return True


def test_http_closes_what_is_too_many_and_counts_it(repository: Path) -> None:
    with RunningServer(repository, flags=("--http-max-connections=5",)) as server:
        with connected(server.http_port, 5) as kept:
            assert [is_closed(client) for client in kept] == [False] * 5
            with connected(server.http_port, 3) as more:
                assert [is_closed(client) for client in more] == [True] * 3
            page = server.get(server.metrics_url).body.decode()
            assert 'pytriton_lite_refused_connections{listener="http"} 3' in page
            assert 'pytriton_lite_refused_connections{listener="grpc"} 0' in page
        wait_until(lambda: can_ask(server))
        assert value_of(server, "m") == 5
        assert server.log.count("5 connections are open, as many as there may be; 1 more were closed at once") == 1


@TRANSPORTS
def test_grpc_closes_what_is_too_many_and_serves_the_others(repository: Path, transport: str) -> None:
    flags = ("--grpc-max-connections=2", f"--grpc-transport={transport}")
    with RunningServer(repository, flags=flags) as server, InferenceServerClient(server.grpc_url) as client:
        assert client.is_server_live()
        port = int(server.grpc_url.rpartition(":")[2])
        with connected(port, 1) as kept:
            assert kept[0].recv(1)  # the greeting: it has its place, whatever order threads of grpcio accept in
            with connected(port, 3) as more:
                for refused in more:
                    with contextlib.suppress(ConnectionError):
                        while refused.recv(100):  # grpcio may greet, or not
                            pass
            assert client.infer("m", []).as_numpy("OUT").tolist() == [5]


def can_ask(server: RunningServer) -> bool:
    try:
        return server.get("/v2/health/live").status == 200
    except (OSError, http.client.HTTPException):
        return False


@pytest.mark.parametrize("front_ends", [0, 2])
def test_without_descriptors_the_server_serves_those_it_has_and_accepts_again(
    repository: Path, front_ends: int
) -> None:
    python = ("bash", "-c", 'ulimit -Sn 90; ulimit -Hn 90; exec "$0" "$@"', sys.executable)
    flags = (
        "--http-max-connections=1000",
        "--model-control-mode=explicit",
        "--load-model=m",
        f"--frontends={front_ends}",
    )
    with RunningServer(repository, python=python, flags=flags) as server:
        kept = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
        kept.request("GET", "/v2/health/live")
        assert kept.getresponse().read() == b""
        with connected(server.http_port, 120):
            server.wait_for_log("HTTPService: connections have to wait: Too many open files")
            for _ in range(3):
                kept.request("POST", "/v2/models/m/infer", b'{"inputs":[]}')
                answer = kept.getresponse()
                assert (answer.status, b'"data":[5]' in answer.read().replace(b" ", b"")) == (200, True)
        kept.close()
        wait_until(lambda: can_ask(server))
        assert value_of(server, "m") == 5
        assert server.stop() == 0
        assert "has ended" not in server.log
