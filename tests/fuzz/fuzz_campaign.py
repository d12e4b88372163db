"""Runs the layers against one real server, and says what it found.

Each layer runs in a process of its own beside others, so requests of all kinds meet in the server. A finding ends the layer
that made it and is written to a file, with what was sent on its connection before.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given
from hypothesis import seed as with_seed
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.contract.wire_models import wait_until
from tests.fuzz import fuzz_mutated, fuzz_rules, fuzz_structured, fuzz_timing
from tests.fuzz.fuzz_models import CONTROL, SEGMENT, VICTIM, write_fuzz_models
from tests.fuzz.fuzz_rules import Probe, Vitals
from tests.fuzz.fuzz_wire import Case, Ending, Finding, Player, Ports, Silence, connect
from tests.harness import PROJECT, RunningServer, process_name_and_parent

CONTROL_EVERY = 50
LOADS = 0.001
"""Share of the requests that load or unload a model, each of which takes as long as a hundred others."""
FLAGS = ("--model-control-mode=explicit", "--load-model=*", "--strict-readiness=false", "--http-max-input-size=1048576",
         "--allow-client-shm=true")  # fmt: skip


class _Hopeless(BaseException):
    """Not to be shrunk: the server does not answer any more. Hypothesis lets it pass, because it is no Exception."""


@dataclass
class Tally:
    """What a layer has played."""

    layer: str
    seed: int
    played: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    served: Counter[str] = field(default_factory=Counter)
    """Answers that tell of a successful infer request, by model."""
    unsure: int = 0
    """Cases that may have made others."""
    controls: int = 0
    finding: dict[str, Any] | None = None

    def __str__(self) -> str:
        outcomes = ", ".join(f"{name} {count}" for name, count in sorted(self.outcomes.items()))
        rate = self.played / max(self.seconds, 0.001)
        return f"{self.layer:16} seed {self.seed}: {self.played} requests, {rate:.0f} per second; {outcomes}"


class Layer:
    """One layer in one process: plays cases, checks each, and asks for the control request now and then."""

    def __init__(self, name: str, seed: int, ports: Ports, check: Callable[[Case, Any], None] | None = None) -> None:
        self.tally = Tally(name, seed)
        self._player = Player(ports)
        self._check = check

    def step(self, case: Case) -> None:
        """Raises Finding, or _Hopeless where no other case can be tried."""
        tally = self.tally
        history = list(self._player.history[case.target]) if case.ending is Ending.ANSWERED else []
        try:
            heard = self._player.play(case)
            fuzz_rules.check(case, heard)
            if self._check is not None:
                self._check(case, heard)
            tally.played += 1
            if tally.played % CONTROL_EVERY == 0:
                tally.controls += 1
                fuzz_rules.check_control(self._player.ports)
        except Exception as error:  # an answer that the rules stumble over is a finding, too
            self._player.drop(case.target)
            tally.finding = {
                "reason": f"{type(error).__name__}: {error}",
                "layer": tally.layer,
                "seed": tally.seed,
                "case": case.as_json(),
                "before": [earlier.as_json() for earlier in history],
            }
            if isinstance(error, (OSError, Silence)):
                raise _Hopeless from error
            raise
        self._count(case, heard)

    def _count(self, case: Case, heard: Any) -> None:
        tally = self.tally
        tally.outcomes.update(f"HTTP {answer.status}" for answer in heard.http)
        tally.outcomes.update("gRPC " + ("reset" if one.status is None else str(one.status)) for _, one in heard.grpc)
        if not heard.http and not heard.grpc:
            tally.outcomes["no answer"] += 1
        tally.served += fuzz_rules.successes(case, heard)
        tally.unsure += not (fuzz_rules.is_settled(case) and case.model)

    def close(self) -> None:
        self._player.close()


# -------------------------------------------------------------------------------------------------- the layers


def _with_hypothesis(layer: Layer, count: int, body: Callable[[st.DataObject], Case]) -> None:
    """Up to *count* examples; what is found is shrunk, and the smallest is what `Tally.finding` has in the end."""

    @with_seed(layer.tally.seed)
    @hypothesis_settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        layer.step(body(data))

    run()


def _structured_http(layer: Layer, count: int) -> None:
    _with_hypothesis(layer, count, lambda data: data.draw(fuzz_structured.http_cases))


def _structured_grpc(layer: Layer, count: int) -> None:
    streams = itertools.count(1, 2)
    _with_hypothesis(layer, count, lambda data: data.draw(fuzz_structured.grpc_cases(next(streams))))


def _loads(layer: Layer, count: int) -> None:
    _with_hypothesis(layer, count, lambda data: data.draw(fuzz_structured.load_cases()))


def _with_random(case_of: Callable[[random.Random, int], Case]) -> Callable[[Layer, int], None]:
    def run(layer: Layer, count: int) -> None:
        rng = random.Random(layer.tally.seed)
        for number in range(count):
            layer.step(case_of(rng, number))

    return run


LAYERS: dict[str, tuple[float, Callable[[Layer, int], None]]] = {
    "structured HTTP": (0.2, _structured_http),
    "structured gRPC": (0.12, _structured_grpc),
    "mutated HTTP": (0.36, _with_random(fuzz_mutated.mutated_http)),
    "mutated HTTP/2": (0.25, _with_random(fuzz_mutated.mutated_http2)),
    "timing": (0.07, _with_random(fuzz_timing.timing_case)),
    "loads": (LOADS, _loads),
}
"""Each with its share of all requests."""


def run_layer(name: str, seed: int, count: int, ports: Ports) -> Tally:
    """Play *count* cases; ends at the first finding."""
    layer = Layer(name, seed, ports, fuzz_timing.check_right if name == "timing" else None)
    begin = time.monotonic()
    try:
        LAYERS[name][1](layer, count)
    except BaseException as error:  # _Hopeless too, and groups of what hypothesis found
        if layer.tally.finding is None:
            raise error
    else:
        layer.tally.finding = None  # what could not be seen again while it was shrunk would have raised
    finally:
        layer.tally.seconds = time.monotonic() - begin
        layer.close()
    return layer.tally


# ------------------------------------------------------------------------------------------------ the campaign


class Target:
    """The server that is fuzzed, and what it may not become."""

    def __init__(self, server: RunningServer, probe: Probe) -> None:
        self.server = server
        self.pid = server.process.pid
        host_ports = {
            name: int(url.rsplit(":", 1)[1]) for name, url in (("http", server.http_url), ("grpc", server.grpc_url))
        }
        metrics = int(server.metrics_url.split(":")[2].split("/")[0])
        self.ports = Ports(**host_ports, metrics=metrics)
        self._probe = probe

    def vitals(self) -> Vitals:
        """When every connection of the layers is gone from the server."""
        workers = tuple(
            pid for pid in self.server.worker_pids() if not process_name_and_parent(pid)[0].startswith(VICTIM)
        )
        return Vitals.of(self.pid, workers, self._probe)

    def settle(self, before: Vitals | None) -> Vitals:
        """The vitals, as soon as they are no worse than allowed. Raises Finding where that does not come to pass."""
        if before is None:
            return self.vitals()
        problem = ""

        def is_settled() -> bool:
            nonlocal problem
            try:
                self.vitals().check_growth(before)
            except Finding as found:
                problem = str(found)
                return False
            return True

        try:
            wait_until(is_settled, limit_s=15)
        except AssertionError:
            raise Finding(problem) from None
        return self.vitals()

    def check(self) -> None:
        """Raises Finding: alive, the same process, a right control answer, a clean log, statistics that add up."""
        if self.server.process.poll() is not None:
            raise Finding(f"the server ended with {self.server.process.returncode}:\n{self.server.log[-3000:]}")
        fuzz_rules.check_control(self.ports)
        fuzz_rules.check_log(self.server.log)
        fuzz_rules.check_statistics(self.ports)

    def check_served(self, before: Counter[str], tallies: list[Tally], controls: int) -> None:
        """What the clients saw served was counted, and little else."""
        counted = fuzz_rules.served(self.ports) - before
        seen = sum((tally.served for tally in tallies), Counter())
        for model, count in seen.items():
            if model != VICTIM and counted[model] < count:
                raise Finding(f"{count} requests to {model} were served, {counted[model]} are counted")
        most = seen.total() + controls + 10 * sum(tally.unsure for tally in tallies)
        if counted.total() > most:
            raise Finding(f"{counted.total()} served requests are counted, there can be {most} at most")


@contextmanager
def running_target(folder: Path, *flags: str) -> Iterator[Target]:
    """A server with the models that are fuzzed; *folder* is empty, and stays until it has ended."""
    write_fuzz_models(folder / "models")
    probe = Probe(folder)
    with (
        _segment(),
        RunningServer(folder / "models", flags=(*FLAGS, *flags), environ=probe.environ, cwd=PROJECT) as server,
    ):
        yield Target(server, probe)


@contextmanager
def _segment() -> Iterator[None]:
    """That of another run will do, too."""
    try:
        segment = SharedMemory(SEGMENT, create=True, size=4096)
    except FileExistsError:
        yield
        return
    try:
        yield
    finally:
        segment.close()
        segment.unlink()


@contextmanager
def slow_heads(ports: Ports, count: int) -> Iterator[None]:
    """Clients that have begun a request and do not go on, all the while."""
    held: list[socket.socket] = []
    try:
        for number in range(count):
            sock = connect(ports.of("http" if number % 4 else "grpc"))
            held.append(sock)
            sock.sendall(CONTROL[: number % len(CONTROL)] if number % 4 else b"PRI * HTTP/2.0\r\n"[: number % 16])
        yield
    finally:
        for sock in held:
            sock.close()


def run_campaign(folder: Path, *, requests: int, seed: int, jobs: int, corpus: Path, say: Callable[[str], None]) -> int:
    """Fuzz; returns the number of findings, each of which is in a file of *corpus*."""
    rng = random.Random(seed)
    found = 0
    with running_target(folder) as target, _pool(jobs) as pool:
        say(f"seed {seed}, {requests} requests, server {target.pid}")
        problems: list[str] = []
        before: Vitals | None = None
        for what, count in (("warm-up", max(requests // 20, 200)), ("campaign", requests)):
            served, tallies = fuzz_rules.served(target.ports), []
            try:
                with slow_heads(target.ports, 200):
                    for tally in _play(pool, target.ports, count, rng):
                        say(f"{what}: {tally}")
                        tallies.append(tally)
                        if tally.finding is not None:
                            found += 1
                            say(_report(corpus, tally.finding, found))
                target.check()
                target.check_served(served, tallies, sum(tally.controls for tally in tallies) + 1)
                vitals = target.settle(before)
                say(f"{what}: {vitals}")
                before = before or vitals
            except (Finding, OSError) as error:
                problems.append(f"{what}: {error}")
                break
        for problem in problems:
            say(f"FOUND {problem}")
        say(f"{found + len(problems)} findings with --seed {seed} --requests {requests}")
        return found + len(problems)


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))


def _play(pool: ProcessPoolExecutor, ports: Ports, requests: int, rng: random.Random) -> Iterator[Tally]:
    """Every layer twice, with seeds of their own, as they end."""
    waiting = []
    for name, (share, _) in LAYERS.items():
        for _ in range(2):
            count = max(int(requests * share / 2) + 1, 1)
            waiting.append(pool.submit(run_layer, name, rng.randrange(1 << 32), count, ports))
    for future in as_completed(waiting):
        yield future.result()


def _report(corpus: Path, finding: dict[str, Any], number: int) -> str:
    corpus.mkdir(parents=True, exist_ok=True)
    path = corpus / f"finding-{os.getpid()}-{number}.json"
    path.write_text(json.dumps(finding, indent=1))
    pieces = Case.from_json(finding["case"]).pieces
    return (
        f"FOUND {finding['reason']}\n    sent: {b''.join(pieces)[:600]!r}\n"
        f"    again: python -m tests.fuzz --replay {path}"
    )


def replay(target: Target, path: Path, say: Callable[[str], None]) -> None:
    """Play what a file has, on one connection where it was one. Raises Finding where it is still so."""
    finding = json.loads(path.read_text())
    check = fuzz_timing.check_right if finding["layer"] == "timing" else None
    layer = Layer(finding["layer"], finding["seed"], target.ports, check)
    try:
        for document in [*finding["before"], finding["case"]]:
            case = Case.from_json(document)
            say(f"{case.target} {case.ending.value}: {b''.join(case.pieces)[:1000]!r}")
            layer.step(case)
    except _Hopeless as error:
        raise Finding(str(error.__cause__)) from None
    finally:
        layer.close()
    target.check()
