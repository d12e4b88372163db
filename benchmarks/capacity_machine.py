"""Loads of real servers, directly and behind balancers, for benchmarks/capacity.py: what they cost and how long they take."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from balancers import running_balancer
from calls import Call, Protocol
from load_generators import Load, Wrk
from machine_simulation import Workload
from measured_server import SERVE, MeasuredServer, Ports, free_ports
from process_tree import ProcessTree, everyone_cpu_seconds

UNDISTURBED = 0.03
"""Share of the machine's time that others may have used during a load."""
TRIES = 3
THINKING = 3
"""So much longer is a load whose callers wait: it has fewer answers to take a percentile of."""
_START_S = 60.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")

_BATCHES = "max_batch_size: {batch}\ndynamic_batching {{ }}"
_CONFIG = """
backend: "python"
{batching}
input {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }}
"""
# Time of the thread, and not of the clock on the wall: who has to wait for a core has not computed meanwhile.
_CODE = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())]) for request in requests
        ]
        spin_ns = {once_ns} + {each_ns} * len(requests)
        if spin_ns:
            until = time.thread_time_ns() + spin_ns
            while time.thread_time_ns() < until:
                pass
        if {wait_s}:
            time.sleep({wait_s})
        return responses
"""


def model_name(load: Workload) -> str:
    return f"echo_{load.batch}_{load.compute_us:.0f}_{load.each_us:.0f}_{load.wait_us:.0f}"


def repository(folder: Path, load: Workload) -> Path:
    """A repository of one model, which gives back what it gets after *load*'s time of a core."""
    made = folder / f"models_{model_name(load)}"
    model = made / model_name(load)
    if not model.exists():
        (model / "1").mkdir(parents=True)
        batching = _BATCHES.format(batch=load.batch) if load.batch > 1 else "max_batch_size: 0"
        (model / "config.pbtxt").write_text(_CONFIG.format(batching=batching))
        code = _CODE.format(
            once_ns=round(load.compute_us * 1e3), each_ns=round(load.each_us * 1e3), wait_s=load.wait_us / 1e6
        )
        (model / "1" / "model.py").write_text(code)
    return made


@dataclass(frozen=True)
class Sample:
    """One load: its rate and latencies, and microseconds of CPU per request by part."""

    per_second: float
    p50_us: float
    p99_us: float
    server_us: float
    worker_us: float
    client_us: float
    balancer_us: float
    others: float = 0.0
    """Share of the cores' time that went to anybody else."""

    @property
    def together_us(self) -> float:
        return self.server_us + self.worker_us + self.client_us + self.balancer_us


@contextlib.contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Have this process and all that it starts use *count* cores alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(before)[:count]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Measured:
    """Samples by name in a file, which grows: whoever is not done goes on where it has stopped.

    What others have disturbed is measured again, and the least disturbed sample of a load counts, whatever it says.
    """

    def __init__(self, path: Path, folder: Path, *, seconds: int, limit_s: float) -> None:
        """*folder* is for models and logs. No load is begun when *limit_s* are over."""
        self._path, self._folder, self._seconds = path, folder, seconds
        self._until = time.monotonic() + limit_s
        self.document: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        self.document.setdefault("samples", {})

    @property
    def samples(self) -> dict[str, Sample]:
        return {name: Sample(**one) for name, one in self.document["samples"].items()}

    def measure(self, name: str, load: Workload) -> Sample | None:
        """The sample of that name; None where there is none yet and the time is over."""
        for _ in range(TRIES):
            least = self.samples.get(name)
            if least is not None and least.others <= UNDISTURBED:
                break
            if time.monotonic() > self._until:
                break
            with on_cores(load.cores):
                seen = _sample(self._folder, load, THINKING * self._seconds if load.think_us else self._seconds)
            if least is None or seen.others < least.others:
                self.document["samples"][name] = dataclasses.asdict(seen)
                self._path.write_text(json.dumps(self.document, indent=1) + "\n")
        return self.samples.get(name)


def _sample(folder: Path, load: Workload, seconds: int) -> Sample:
    with _running(repository(folder, load), folder, load.servers) as servers:
        if not load.balancer:
            return _load(folder, servers, servers[0].ports, load, seconds, proxy=None)
        with running_balancer(load.balancer, [server.ports for server in servers], folder) as (pid, ports):
            return _load(folder, servers, ports, load, seconds, proxy=ProcessTree(pid))


@contextlib.contextmanager
def _running(models: Path, folder: Path, count: int) -> Iterator[list[MeasuredServer]]:
    """*count* servers, ready. They start at the same time."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                MeasuredServer.started(
                    f"server {number}",
                    SERVE,
                    models=models,
                    ports=free_ports(),
                    log=folder / f"server-{number}.log",
                    timeout_s=_START_S,
                )
            )
            for number in range(count)
        ]


def _cpu_s(servers: Sequence[MeasuredServer]) -> tuple[float, float]:
    """Seconds of the servers' processes, and of all that they have started."""
    own = others = 0.0
    for server in servers:
        for member in server.tree.members():
            if member.pid == server.tree.root:
                own += member.cpu_ticks * _TICK_S
            else:
                others += member.cpu_ticks * _TICK_S
    return own, others


def _load(
    folder: Path,
    servers: Sequence[MeasuredServer],
    ports: Ports,
    load: Workload,
    seconds: int,
    *,
    proxy: ProcessTree | None,
) -> Sample:
    """Load what listens at *ports*. The first second warms up."""
    shape = (1, load.nbytes // 4) if load.batch > 1 else (load.nbytes // 4,)
    tensor = np.arange(load.nbytes // 4, dtype=np.float32).reshape(shape)
    call = Call(model_name(load), {"IN": tensor}, [{"OUT": tensor}])
    wrk = Wrk(call, Protocol.HTTP_BINARY_REPEATED, folder, think_ms=load.think_us / 1e3)
    wrk.run(ports, callers=load.callers, seconds=1)
    own, others = _cpu_s(servers)
    before_proxy = proxy.cpu_seconds() or 0.0 if proxy is not None else 0.0
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    everyone, began = everyone_cpu_seconds() or 0.0, time.monotonic()
    seen: Load = wrk.run(ports, callers=load.callers, seconds=seconds)
    everyone_after, elapsed_s = everyone_cpu_seconds() or 0.0, time.monotonic() - began
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    own_after, others_after = _cpu_s(servers)
    after_proxy = proxy.cpu_seconds() or 0.0 if proxy is not None else 0.0
    count = seen.answered or seen.per_second * seconds
    client_s = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    ours_s = own_after - own + others_after - others + client_s + after_proxy - before_proxy
    share = max(0.0, everyone_after - everyone - ours_s) / elapsed_s / (os.cpu_count() or 1)
    return Sample(
        seen.per_second,
        seen.p50_us,
        seen.p99_us,
        server_us=(own_after - own) / count * 1e6,
        worker_us=(others_after - others) / count * 1e6,
        client_us=client_s / count * 1e6,
        balancer_us=(after_proxy - before_proxy) / count * 1e6,
        others=share,
    )
