#!/usr/bin/env python3
"""Rolling restarts behind haproxy, nginx and Envoy, and without any of them: nothing that a client sent may be lost.

    python benchmarks/rolling_restart.py --restarts 20
    python benchmarks/rolling_restart.py --restarts 20 --servers 4 --through haproxy envoy

The servers are restarted in turn, the next one when the last is ready again, while clients send requests all the time: over
HTTP and gRPC, unary and in streams, through each balancer, and gRPC channels that know all servers themselves.
tritonclient is the client; nothing tries a unary request again but the proxies, and what a channel does by itself. A stream
that the server ends is opened anew, and what had no answer is sent again: the server promises that it was not begun, which
the model's own count of executions is held against. Printed are requests, lost ones, and errors by kind. The exit code is 1
when something was lost, and 2 when the run could not be made.

The balancers run as processes of this user, on free ports of 127.0.0.1, with the files of deploy/balancers (balancers.py).
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from balancers import NAMES, PACKAGES, balancer, find_program
from benchmark_error import BenchmarkError
from measured_server import Ports, free_ports
from tritonclient.utils import InferenceServerException

CONFIG = """
name: "counted"
backend: "python"
max_batch_size: 0
input { name: "IN" data_type: TYPE_INT64 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT64 dims: [ 1 ] }
parameters { key: "log" value { string_value: "LOG" } }
"""
CODE = """
import json
import os
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.log = os.open(parameters["log"]["string_value"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def execute(self, requests):
        time.sleep(0.005)
        responses = []
        for request in requests:
            number = request.inputs()[0].as_numpy()
            os.write(self.log, b"%d\\n" % number[0])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", number + 1)]))
        return responses
"""

_SERVE = (
    "-m", "pytriton_lite", "serve", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1",
    "--exit-timeout-secs=30",
)  # fmt: skip
_START_S = 60.0
_LOOK_AGAIN_S = 0.05
_HANG_S = 30.0
_REQUESTS_IN_STREAM = 200
_AT_A_TIME = 4
"""Requests of a stream that have no answer yet."""


@dataclass
class Tally:
    """What one kind of clients saw. Any thread may count."""

    name: str
    answered: int = 0
    sent_again: int = 0
    streams: int = 0
    streams_ended: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, **more: int) -> None:
        with self._lock:
            for key, value in more.items():
                setattr(self, key, getattr(self, key) + value)

    def fail(self, error: BaseException) -> None:
        status = error.status() if isinstance(error, InferenceServerException) else ""
        with self._lock:
            self.errors[f"{type(error).__name__} {status or ''} {str(error)[:160]}".strip()] += 1

    @property
    def lost(self) -> int:
        return sum(self.errors.values()) + self.wrong


class Server:
    """One of the two, at ports that stay when it is restarted."""

    def __init__(self, name: str, models: Path, ports: Ports, folder: Path, flags: Sequence[str]) -> None:
        self.ports = ports
        self._log = folder / f"server-{name}.log"
        self._command = [
            sys.executable, *_SERVE, str(models), f"--id={name}", f"--http-port={ports.http}",
            f"--grpc-port={ports.grpc}", f"--metrics-port={ports.metrics}", *flags,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return when it is ready."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + _START_S
        client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{self.ports.http}")
        while True:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkError(f"a server did not start: {self._log.read_text(errors='replace')[-2000:]}")
            with contextlib.suppress(Exception):
                if client.is_server_ready():
                    break
            time.sleep(_LOOK_AGAIN_S)
        client.close()

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(_START_S)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


# ------------------------------------------------------------------------------------------------ clients


class Numbers:
    """Each request has a number of its own, so that the model's log tells how often it was executed."""

    def __init__(self) -> None:
        self._next = 0
        self._lock = threading.Lock()

    def take(self) -> int:
        with self._lock:
            self._next += 1
            return self._next


def _input(module: Any, number: int) -> list[Any]:
    tensor = module.InferInput("IN", [1], "INT64")
    tensor.set_data_from_numpy(np.array([number], np.int64))
    return [tensor]


def _check(tally: Tally, answer: Any, number: int) -> None:
    right = answer.as_numpy("OUT")[0] == number + 1
    tally.count(answered=int(right), wrong=int(not right))


def http_client(url: str, tally: Tally, numbers: Numbers, over: threading.Event) -> None:
    client = tritonclient.http.InferenceServerClient(url, network_timeout=_HANG_S, connection_timeout=_HANG_S)
    while not over.is_set():
        number = numbers.take()
        try:
            _check(tally, client.infer("counted", _input(tritonclient.http, number)), number)
        except Exception as error:
            tally.fail(error)
    client.close()


def grpc_client(url: str, tally: Tally, numbers: Numbers, over: threading.Event, options: Any = None) -> None:
    with tritonclient.grpc.InferenceServerClient(url, channel_args=options) as client:
        while not over.is_set():
            number = numbers.take()
            try:
                answer = client.infer("counted", _input(tritonclient.grpc, number), client_timeout=_HANG_S)
                _check(tally, answer, number)
            except Exception as error:
                tally.fail(error)


def stream_client(url: str, tally: Tally, numbers: Numbers, over: threading.Event, options: Any = None) -> None:
    """Streams of some hundred requests, a few of them under way at a time; those that an end left are sent again."""
    again: list[int] = []
    while not over.is_set() or again:
        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        with tritonclient.grpc.InferenceServerClient(url, channel_args=options) as client:
            client.start_stream(lambda result, error, to=answers: to.put((result, error)))
            tally.count(streams=1)
            again = _talk(client, answers, tally, numbers, over, again)


def _talk(
    client: Any, answers: queue.Queue[tuple[Any, Any]], tally: Tally, numbers: Numbers, over: threading.Event,
    first: list[int],
) -> list[int]:  # fmt: skip
    """What has no answer when the stream has ended."""
    waiting: dict[str, int] = {}
    ahead = list(first)
    sent = 0
    while True:
        while len(waiting) < _AT_A_TIME and sent < _REQUESTS_IN_STREAM and (ahead or not over.is_set()):
            number = ahead.pop() if ahead else numbers.take()
            waiting[str(number)] = number
            sent += 1
            try:
                client.async_stream_infer("counted", _input(tritonclient.grpc, number), request_id=str(number))
            except InferenceServerException:  # it has ended; the error is among the answers
                break
        if not waiting:
            return ahead
        try:
            result, error = answers.get(timeout=_HANG_S)
        except queue.Empty:
            tally.fail(TimeoutError("a request of a stream has no answer"))
            return [*ahead, *waiting.values()]
        if error is not None:
            left = [*ahead, *waiting.values()]
            if error.status() == "StatusCode.UNAVAILABLE":
                tally.count(streams_ended=1, sent_again=len(waiting))
            else:
                tally.fail(error)
            return left
        number = waiting.pop(result.get_response().id)
        _check(tally, result, number)


# ------------------------------------------------------------------------------------------------ the run


def run(arguments: argparse.Namespace, folder: Path) -> int:
    executed = folder / "executed"
    models = folder / "models"
    (models / "counted" / "1").mkdir(parents=True)
    (models / "counted" / "config.pbtxt").write_text(CONFIG.replace("LOG", str(executed)))
    (models / "counted" / "1" / "model.py").write_text(CODE)
    flags = [f"--drain-delay-secs={arguments.drain_delay}", *arguments.flag]
    servers = [Server(name, models, free_ports(), folder, flags) for name in map(str, range(1, arguments.servers + 1))]
    numbers, over = Numbers(), threading.Event()
    tallies: list[Tally] = []
    threads: list[threading.Thread] = []
    codes: Counter[int] = Counter()

    def begin(name: str, count: int, client: Callable[..., None], *more: Any) -> None:
        tally = Tally(name)
        tallies.append(tally)
        for _ in range(count):
            url, *options = more
            threads.append(threading.Thread(target=client, args=(url, tally, numbers, over, *options), daemon=True))

    try:
        for server in servers:
            server.start()
        with contextlib.ExitStack() as stack:
            for name in NAMES:
                if name in arguments.through:
                    ports = stack.enter_context(balancer(name, [server.ports for server in servers], folder))
                    begin(f"{name}, HTTP", arguments.clients, http_client, f"127.0.0.1:{ports.http}")
                    begin(f"{name}, gRPC", arguments.clients, grpc_client, f"127.0.0.1:{ports.grpc}")
                    begin(f"{name}, streams", arguments.clients, stream_client, f"127.0.0.1:{ports.grpc}")
            if "direct" in arguments.through:
                both = f"ipv4:{','.join(f'127.0.0.1:{server.ports.grpc}' for server in servers)}"
                # The channel looks for another server by itself, after a refused connection with a pause of seconds.
                options = [("grpc.max_reconnect_backoff_ms", 200), ("grpc.initial_reconnect_backoff_ms", 100)]
                begin("channel, gRPC", arguments.clients, grpc_client, both, options)
                begin("channel, streams", arguments.clients, stream_client, both, options)
            for thread in threads:
                thread.start()
            began_s = time.monotonic()
            for number in range(arguments.restarts):
                time.sleep(arguments.pause)
                server = servers[number % len(servers)]
                codes[server.stop()] += 1
                server.start()
            time.sleep(arguments.pause)
            over.set()
            for thread in threads:
                thread.join(2 * _HANG_S)
            elapsed_s = time.monotonic() - began_s
    finally:
        over.set()
        for server in servers:
            server.kill()
    return report(arguments, tallies, codes, executed, elapsed_s)


def report(
    arguments: argparse.Namespace, tallies: Sequence[Tally], codes: Counter[int], executed: Path, elapsed_s: float
) -> int:
    print(f"{arguments.restarts} restarts in {elapsed_s:.0f} s, drain delay {arguments.drain_delay} s")
    print(f"{'':<18} {'requests':>9} {'lost':>5} {'streams':>8} {'ended':>6} {'sent again':>11}")
    for tally in tallies:
        total = tally.answered + tally.lost
        print(
            f"{tally.name:<18} {total:>9} {tally.lost:>5} {tally.streams:>8} {tally.streams_ended:>6} {tally.sent_again:>11}"
        )
        for kind, count in tally.errors.most_common():
            print(f"    {count} x {kind}")
        if tally.wrong:
            print(f"    {tally.wrong} x another answer than the right one")
    counts = Counter(executed.read_text().split())
    twice = sum(1 for count in counts.values() if count > 1)
    print(f"executed more than once: {twice} of {len(counts)}; exit codes of servers: {dict(codes)}")
    return int(any(tally.lost for tally in tallies) or set(codes) != {0})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--clients", type=int, default=2, help="of each kind")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between a restart and the next one")
    parser.add_argument("--drain-delay", type=int, default=2, help="--drain-delay-secs of the servers")
    parser.add_argument("--flag", action="append", default=[], help="another flag of the servers")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--through", nargs="+", choices=[*NAMES, "direct"], default=["haproxy", "nginx", "direct"])
    parser.add_argument("--keep", type=Path, help="folder for logs and configurations, which then stay")
    arguments = parser.parse_args()
    try:
        for name in set(arguments.through) - {"direct"}:
            if find_program(name) is None:
                raise BenchmarkError(f"{name} is not installed: {PACKAGES[name]}; or leave it out with --through")
        if arguments.keep is not None:
            arguments.keep.mkdir(parents=True)
            return run(arguments, arguments.keep)
        with tempfile.TemporaryDirectory() as folder:
            return run(arguments, Path(folder))
    except BenchmarkError as error:
        print(f"rolling_restart: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
