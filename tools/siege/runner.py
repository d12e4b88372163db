"""One attack after the other on a running server, with the honest client beside them, and what is wrong with each result."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.siege.attack import Attack
from tools.siege.attacker import Order, Outcome
from tools.siege.besieged_server import BesiegedServer, Certificates, Footprint, Rest, besieged_server
from tools.siege.honest_client import KINDS, Addresses, Report

_RECOVERY_S = 60.0
"""How long after an attack the server may be busy with what is left of it. What its sockets have received, megabytes for each,
is read at a pace that leaves time for others, and only behind it a server sees that the peer has gone."""
_LAST_LINES = 3
_SPARE_DESCRIPTORS = 8
"""Segments, files of threads and the like that a server makes when it first needs them, and keeps."""
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Bounds:
    """What nobody may make an honest client or the machine suffer."""

    latency_s: float
    memory_bytes: int
    """Resident, of the server's own process."""
    address_space_bytes: int
    """Of each of its processes, kept by the kernel. A good part of it is never touched."""


@dataclass(frozen=True)
class Plan:
    attacks: Sequence[Attack]
    connections: Sequence[int]
    transports: Sequence[str]
    """``plain`` and ``tls``."""
    seconds: float
    seed: int
    bounds: Bounds
    server_flags: Sequence[str] = ()


@dataclass(frozen=True)
class Latency:
    """Of one kind of request; None where none was answered."""

    median_s: float | None
    p99_s: float | None
    worst_s: float | None


@dataclass(frozen=True)
class Result:
    """One attack over one transport from so many connections."""

    attack: str
    transport: str
    connections: int
    latencies: dict[str, Latency]
    requests: int
    failures: list[str]
    """What honest requests were told that were refused or failed."""
    memory_before_bytes: int
    memory_peak_bytes: int
    memory_after_bytes: int
    descriptors_left: int
    cpu_s: float
    """Of the server with its workers."""
    waited_s: float
    """How long the server was ready to run and had no core."""
    attacker: Outcome
    faults: list[str]
    """What must not be; empty where the server held."""

    def worst_s(self, kinds: Sequence[str]) -> float | None:
        return max((worst for kind in kinds if (worst := self.latencies[kind].worst_s) is not None), default=None)

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class HonestClient:
    """The honest client's process. Made by `honest_client`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self) -> None:
        self._say("begin")

    def end(self) -> Report:
        self._say("end")
        return Report.from_json(read_line(self._process))

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()


@contextmanager
def _child(module: str, order: object) -> Iterator[subprocess.Popen[str]]:
    """A process of this package that has read its order and is ready. It is killed if it has not ended by itself."""
    assert dataclasses.is_dataclass(order) and not isinstance(order, type)
    with subprocess.Popen(
        [sys.executable, "-m", f"tools.siege.{module}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
    ) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(dataclasses.asdict(order)) + "\n")
            process.stdin.flush()
            read_line(process)
            yield process
        finally:
            process.kill()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} ended with code {process.wait()} before it had answered")
    return line


@contextmanager
def honest_client(server: BesiegedServer) -> Iterator[HonestClient]:
    addresses = Addresses(
        http_port=server.ports["http"],
        grpc_port=server.ports["grpc"],
        root=None if server.root is None else str(server.root),
    )
    with _child("honest_client", addresses) as process:
        yield HonestClient(process)


class Siege:
    """A server and an honest client that stay from attack to attack, and are replaced when the server did not hold."""

    def __init__(self, plan: Plan, repository: Path, certificates: Certificates, transport: str) -> None:
        self._plan = plan
        self._repository = repository
        self._certificates = certificates if transport == "tls" else None
        self._transport = transport
        self._stack = ExitStack()
        self._server: BesiegedServer | None = None

    def __enter__(self) -> Siege:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _start(self) -> BesiegedServer:
        if self._server is None:
            self._server = self._stack.enter_context(
                besieged_server(
                    self._repository,
                    certificates=self._certificates,
                    address_space_bytes=self._plan.bounds.address_space_bytes,
                    flags=self._plan.server_flags,
                )
            )
            self._client = self._stack.enter_context(honest_client(self._server))
        return self._server

    def _drop(self) -> None:
        self._server = None
        self._stack.close()

    def run(self, attack: Attack, connections: int) -> Result:
        server = self._start()
        server.reset_peak()
        before = server.footprint()
        order = Order(
            attack=attack.name,
            connections=connections,
            seconds=self._plan.seconds,
            ports=server.ports,
            root=None if server.root is None else str(server.root),
            seed=self._plan.seed,
        )
        with _child("attacker", order) as attacker:
            self._client.begin()
            assert attacker.stdin is not None
            attacker.stdin.write("begin\n")
            attacker.stdin.flush()
            outcome = Outcome.from_json(read_line(attacker))
        report = self._client.end()
        result = self._judge(attack, connections, report, outcome, before, self._rest(server, before))
        if server.exit_code is not None or result.descriptors_left or result.failures:
            self._drop()  # the next attack begins with a server that has nothing of this one
        return result

    @staticmethod
    def _rest(server: BesiegedServer, before: Footprint) -> Rest | None:
        """None when it has died."""
        try:
            return server.wait_at_rest(before.descriptors + _SPARE_DESCRIPTORS, _RECOVERY_S)
        except OSError:
            return None

    def _judge(
        self,
        attack: Attack,
        connections: int,
        report: Report,
        outcome: Outcome,
        before: Footprint,
        rest: Rest | None,
    ) -> Result:
        bounds = self._plan.bounds
        latencies = {
            kind: Latency(found.quantile(0.5), found.quantile(0.99), found.quantile(1.0))
            for kind, found in report.latencies.items()
        }
        failures = [f"{kind}: {text}" for kind in KINDS for text in report.latencies[kind].failures]
        faults = [
            f"{kind} took {worst * 1000:.0f} ms"
            for kind in KINDS
            if (worst := latencies[kind].worst_s) is not None and worst > bounds.latency_s
        ]
        if failures:
            faults.append(f"{len(failures)} honest requests failed, the first with {failures[0]!r}")
        left = 0
        after = None if rest is None else rest.footprint
        if after is None:
            assert self._server is not None
            last_lines = " / ".join(self._server.log.splitlines()[-_LAST_LINES:])
            faults.append(f"the server died with code {self._server.exit_code}; its last lines: {last_lines}")
        else:
            if after.peak_bytes > bounds.memory_bytes:
                faults.append(f"memory rose to {after.peak_bytes >> 20} MiB")
            left = max(0, after.descriptors - before.descriptors - _SPARE_DESCRIPTORS)
            if left:
                faults.append(f"{left} descriptors were still open {_RECOVERY_S:.0f} s later")
            if rest is not None and rest.is_busy:
                faults.append(f"the server was still busy {_RECOVERY_S:.0f} s later")
        return Result(
            attack=attack.name,
            transport=self._transport,
            connections=connections,
            latencies=latencies,
            requests=sum(len(report.latencies[kind].samples) for kind in KINDS),
            failures=failures,
            memory_before_bytes=before.memory_bytes,
            memory_peak_bytes=0 if after is None else after.peak_bytes,
            memory_after_bytes=0 if after is None else after.memory_bytes,
            descriptors_left=left,
            cpu_s=0.0 if after is None else after.cpu_s - before.cpu_s,
            waited_s=0.0 if after is None else after.waited_s - before.waited_s,
            attacker=outcome,
            faults=faults,
        )


def run_siege(plan: Plan, folder: Path, repository: Path, tell: Callable[[Result], None]) -> list[Result]:
    """Every attack of the plan; *folder* is for what is made on the way."""
    results = []
    certificates = Certificates(folder)
    for transport in plan.transports:
        with Siege(plan, repository, certificates, transport) as siege:
            for attack in plan.attacks:
                if attack.is_below_tls and transport != "tls":
                    continue
                for connections in plan.connections if attack.sockets else plan.connections[:1]:
                    results.append(siege.run(attack, connections))
                    tell(results[-1])
    return results
