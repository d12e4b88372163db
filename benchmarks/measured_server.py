"""A server under measurement: started from a command line, asked for its state and counters, always ended."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmark_error import BenchmarkError
from process_tree import ProcessTree

PLACEHOLDERS = ("python", "models", "http_port", "grpc_port", "metrics_port")
SERVE = (
    "{python} -m pytriton_lite serve {models}"
    " --http-address=127.0.0.1 --http-port={http_port}"
    " --grpc-address=127.0.0.1 --grpc-port={grpc_port}"
    " --metrics-address=127.0.0.1 --metrics-port={metrics_port}"
)
"""How ours is started; options may follow."""
ASK_TIMEOUT_S = 10.0
# How long a server may take to leave, by itself after SIGTERM, and its children after it.
STOP_TIMEOUT_S = 15.0
CHILDREN_TIMEOUT_S = 2.0
_LOOK_AGAIN_S = 0.01


@dataclass(frozen=True)
class Ports:
    """Three in a row, so that a command that is told the first one only, and counts on from there, is served too."""

    http: int
    grpc: int
    metrics: int


def free_ports(base: int | None = None) -> Ports:
    """Three neighbouring ports that nobody listens on: *base* and the next two, or any."""
    if base is not None:
        if not _are_free(base):
            raise BenchmarkError(f"one of the ports {base} to {base + 2} is in use on 127.0.0.1")
        return Ports(base, base + 1, base + 2)
    # Below the range from which systems take the ports of clients: one of ours could be a load generator's by then.
    for base in random.sample(range(20_000, 32_000, 3), 100):
        if _are_free(base):
            return Ports(base, base + 1, base + 2)
    raise BenchmarkError("found no three free ports in a row on 127.0.0.1")


def _are_free(base: int) -> bool:
    with contextlib.ExitStack() as probes:
        for port in range(base, base + 3):
            probe = probes.enter_context(socket.socket())
            # As servers do: a port in TIME_WAIT from the last run is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True


def expand(template: str, *, models: Path, ports: Ports, python: str = sys.executable) -> list[str]:
    """The words of a command line with its {placeholders} filled in. They are split first: a path may hold blanks."""
    values = {
        "python": python,
        "models": str(models),
        "http_port": str(ports.http),
        "grpc_port": str(ports.grpc),
        "metrics_port": str(ports.metrics),
    }
    known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
    try:
        words = [word.format(**values) for word in shlex.split(template)]
    except (KeyError, IndexError, AttributeError, ValueError) as error:
        raise BenchmarkError(
            f"command {template!r}: {error!r}; the placeholders are {known}, and {{{{ is a {{"
        ) from error
    if not words:
        raise BenchmarkError("an empty command line cannot be started")
    return words


@dataclass(frozen=True)
class Counters:
    """A model's statistics, summed over its versions."""

    succeeded: int
    failed: int


def wait_until(condition: Callable[[], bool], what: str, *, timeout_s: float = 20.0) -> None:
    """Return when *condition* holds. Raises BenchmarkError, with *what* it is in words, when that takes too long."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise BenchmarkError(f"after {timeout_s:g} s it does not hold that {what}")
        time.sleep(_LOOK_AGAIN_S)


class MeasuredServer:
    """A running server. Made by `started`, which also ends it."""

    def __init__(
        self, side: str, process: subprocess.Popen[bytes], ports: Ports, log: Path, ready_path: str = "/v2/health/ready"
    ) -> None:
        self.side = side
        self.ports = ports
        self.tree = ProcessTree(process.pid)
        self._process = process
        self._log = log
        self._ready_path = ready_path

    @classmethod
    @contextlib.contextmanager
    def started(
        cls,
        side: str,
        template: str,
        *,
        models: Path,
        ports: Ports,
        log: Path,
        timeout_s: float,
        python: str = sys.executable,
        ready_path: str = "/v2/health/ready",
    ) -> Iterator[MeasuredServer]:
        """Start the command in a session of its own and wait until it is ready; on leaving, nothing of it is left.

        *python* is what {python} stands for, and *ready_path* what answers with status 200 as soon as the server is ready.

        It runs in the folder of the log, where no modules lie. The Python of a Triton looks into the working directory
        first: started beside a triton_python_backend_utils of ours, it did not come up.
        """
        command = expand(template, models=models, ports=ports, python=python)
        if os.sep in command[0]:
            command[0] = os.path.abspath(command[0])  # meant from where we are; not resolved, as {python} may be a link
        # Said by whoever measures to Python here: with it ours would compile all that an installed package has as bytecode.
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        with log.open("wb") as output:
            try:
                process = subprocess.Popen(
                    command,
                    cwd=log.parent,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise BenchmarkError(f"{side}: cannot start {command[0]!r}: {error}") from error
        server = cls(side, process, ports, log, ready_path)
        try:
            server.wait_ready(timeout_s)
            yield server
        finally:
            server._stop()

    def wait_ready(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self._is_ready():
            # The wait for its end is also the pause before the next question.
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(timeout=_LOOK_AGAIN_S)
                raise BenchmarkError(f"{self.side}: ended with code {code} before it was ready\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise BenchmarkError(f"{self.side}: not ready within {timeout_s:.0f} s\n{self.log_tail()}")

    def _is_ready(self) -> bool:
        try:
            status, _ = self._get(self._ready_path)
        except (OSError, http.client.HTTPException):
            return False
        return status == 200

    def log_tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-15:]
        return "\n".join(["its last lines:", *lines]) if lines else "it has printed nothing"

    def version(self) -> str:
        metadata = self._get_json("/v2")
        return f"{metadata.get('name')} {metadata.get('version')}"

    def counters(self, model: str) -> Counters:
        versions = self._get_json(f"/v2/models/{model}/stats")["model_stats"]
        return Counters(
            succeeded=sum(version["inference_stats"]["success"]["count"] for version in versions),
            failed=sum(version["inference_stats"]["fail"]["count"] for version in versions),
        )

    def counters_with(self, model: str, succeeded: int) -> Counters:
        """The counters as soon as *succeeded* is reached, or as they are after a second.

        An answer may leave a few microseconds before it is counted.
        """
        deadline = time.monotonic() + 1
        counters = self.counters(model)
        while counters.succeeded < succeeded and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN_S)
            counters = self.counters(model)
        return counters

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports.metrics, timeout=ASK_TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            page = connection.getresponse().read().decode()
        rows = [row for row in page.splitlines() if row.startswith((name + "{", name + " "))]
        return sum(float(row.rpartition(" ")[2]) for row in rows)

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.ports.http, timeout=ASK_TIMEOUT_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _get_json(self, path: str) -> dict[str, typing.Any]:
        try:
            status, body = self._get(path)
        except (OSError, http.client.HTTPException) as error:
            raise BenchmarkError(f"{self.side}: GET {path}: {error!r}\n{self.log_tail()}") from error
        if status != 200:
            raise BenchmarkError(f"{self.side}: GET {path}: status {status}: {body[:500]!r}")
        answer: dict[str, typing.Any] = json.loads(body)
        return answer

    def _stop(self) -> None:
        """SIGTERM to the command, as an operator would; then to what it left behind; then SIGKILL to what remains."""
        self.tree.members()  # whoever is there now is known by start time, and found again when its parents are gone
        try:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=STOP_TIMEOUT_S)
            self._signal_group(signal.SIGTERM)
            self._wait_until_left()
        finally:  # also when a second Ctrl-C ends the waiting
            killed = self.tree.kill()
            self._signal_group(signal.SIGKILL)
            self._process.wait()
            self._wait_until_left()  # on a busy machine a killed process takes its time
        if killed:
            pids = ", ".join(str(stat.pid) for stat in killed)
            print(f"{self.side}: had to kill what SIGTERM left behind: {pids}", file=sys.stderr)

    def _wait_until_left(self) -> None:
        """Until everything that the command started has ended, or CHILDREN_TIMEOUT_S are over."""
        deadline = time.monotonic() + CHILDREN_TIMEOUT_S
        while self.tree.alive() and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN_S)

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # nobody of the group is left (macOS says it with EPERM)
