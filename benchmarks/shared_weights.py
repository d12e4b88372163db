#!/usr/bin/env python3
"""Memory and throughput of a model with large weights, by how its instances come by them (INSTANCE_SHARING).

    python benchmarks/shared_weights.py --mb 500 --rounds 6 --seconds 2

A model multiplies what it gets with a part of a matrix of so many megabytes, with one thread of BLAS for each instance, while
as many clients as it has instances send requests one after the other. Requests differ.

First each server runs alone, for its memory: the proportional set size (PSS) of all processes of the model together, read from
/proc when all instances have executed; a page that two processes have counts half in each. Then all servers run at once and are
loaded one after the other, round by round, so that what disturbs the machine disturbs all; shown are medians, and the outermost
rounds. CPU is that of the model's processes alone: where it stays and the rate falls, something else had the cores. What others
had of them, a hypervisor included, is the last column.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from machine_facts import machine_facts
from process_tree import everyone_cpu_seconds, thread_times

from pytriton_lite.testing.server import RunningServer

CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.weights = np.random.default_rng(0).random((SIDE, SIDE), dtype=np.float32)

    def execute(self, requests):
        answers = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            made = np.resize(array, (64, SIDE)) @ self.weights[:, :1024]  # bound by the processor, not by memory
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", made[0, :1])]))
        return answers
"""
CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [ 8 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group { kind: KIND_CPU count: COUNT }
parameters { key: "ENV:OMP_NUM_THREADS" value { string_value: "1" } }
parameters { key: "ENV:OPENBLAS_NUM_THREADS" value { string_value: "1" } }
"""
SHARINGS = ("", "fork", "threads")


@dataclass(frozen=True)
class Cell:
    """One way to have so many instances."""

    sharing: str
    instances: int


@dataclass
class Row:
    """What is known of a cell: figures of each round where there are several."""

    pss_mb: float
    ready_s: float
    requests_per_s: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    """Of the model's processes, for a request."""
    others: list[float] = field(default_factory=list)
    """Cores that neither the server with its models nor the clients had."""


def write_model(repository: Path, mb: int, sharing: str, instances: int) -> None:
    folder = repository / "weights" / "1"
    folder.mkdir(parents=True)
    side = int((mb * 1_000_000 / 4) ** 0.5)
    (folder / "model.py").write_text(CODE.replace("SIDE", str(side)))
    config = CONFIG.replace("COUNT", str(instances))
    if sharing:
        config += f'parameters {{ key: "INSTANCE_SHARING" value {{ string_value: "{sharing}" }} }}\n'
    (folder.parent / "config.pbtxt").write_text(config)


def model_pids(server: int) -> list[int]:
    """All processes two generations below *server*: those of the model, whose parent is a fork server."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if parent_of(parent_of(int(entry.name))) == server:
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue  # no process, or one that has just ended
    return found


def pss_mb(server: int) -> float:
    """The PSS of all processes of the model together."""
    total = 0
    for pid in model_pids(server):
        found = re.search(r"^Pss: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
        total += int(found[1]) if found else 0
    return total / 1000


def cpu_s(server: int) -> float:
    """CPU time of all threads of the model up to now."""
    return sum(took for _, took in thread_times(model_pids(server)).values()) / 1e9


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def own_s(server: int) -> float:
    """CPU time of the server's process and of the clients, which are in this one, up to now."""
    return sum(took for _, took in thread_times([server]).values()) / 1e9 + time.process_time()


def everyone_s() -> float:
    """CPU time that all processes of the machine have had up to now, and what the hypervisor kept."""
    found = everyone_cpu_seconds()
    assert found is not None, "PSS was there, so there is /proc"
    return found


def body(number: int) -> str:
    """A request unlike those of other numbers."""
    data = [number + at for at in range(8)]
    return json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [8], "data": data}]})


class Clients:
    """As many as there are instances, each of which sends one request after the other."""

    def __init__(self, port: int, count: int) -> None:
        self._port = port
        self._until = 0.0
        self.answers = 0
        self._lock = threading.Lock()
        self._count = count

    def run(self, seconds: float) -> float:
        """Answers in a second."""
        self.answers = 0
        self._until = time.monotonic() + seconds
        threads = [threading.Thread(target=self._send) for _ in range(self._count)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.answers / (time.monotonic() - began)

    def _send(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        number = 0
        while time.monotonic() < self._until:
            number += 1
            connection.request("POST", "/v2/models/weights/infer", body(number))
            reply = connection.getresponse()
            text = reply.read()
            if reply.status != 200:
                sys.exit(text.decode())
            with self._lock:
                self.answers += 1
        connection.close()


@contextlib.contextmanager
def serving(cell: Cell, mb: int) -> Iterator[tuple[RunningServer, Row]]:
    """A server of *cell*, every instance of which has executed, and its memory and start, until the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), mb, cell.sharing, cell.instances)
        began = time.monotonic()
        with RunningServer(Path(folder)) as server:
            ready_s = time.monotonic() - began
            Clients(server.http_port, cell.instances).run(1.0)
            yield server, Row(pss_mb(server.process.pid), ready_s)


def measure(cells: Sequence[Cell], *, mb: int, rounds: int, seconds: float) -> dict[Cell, Row]:
    """Memory of each cell alone, then rates of all, round by round."""
    rows = {}
    for cell in cells:
        with serving(cell, mb) as (_, rows[cell]):
            pass
    with contextlib.ExitStack() as stack:
        servers = {cell: stack.enter_context(serving(cell, mb))[0] for cell in cells}
        for _ in range(rounds):
            for cell, server in servers.items():
                clients = Clients(server.http_port, cell.instances)
                before, ours, all_s = cpu_s(server.process.pid), own_s(server.process.pid), everyone_s()
                rows[cell].requests_per_s.append(clients.run(seconds))
                model_s = cpu_s(server.process.pid) - before
                others_s = everyone_s() - all_s - model_s - (own_s(server.process.pid) - ours)
                rows[cell].cpu_ms.append(model_s * 1e3 / clients.answers)
                rows[cell].others.append(others_s / seconds)
    return rows


def table(rows: dict[Cell, Row]) -> str:
    """Markdown, a row for each cell."""
    lines = [
        "| `INSTANCE_SHARING` | instances | PSS, MB | a further instance, MB | ready after s | requests/s | times one instance "
        "| CPU ms a request | cores others had |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    first = {cell.sharing: cell for cell in reversed(rows)}
    for cell, row in rows.items():
        one, base = first[cell.sharing], rows[first[cell.sharing]]
        more = cell.instances - one.instances
        each = f"{(row.pss_mb - base.pss_mb) / more:,.0f}" if more else "–"
        times = statistics.median(rate / other for rate, other in zip(row.requests_per_s, base.requests_per_s))
        lines.append(
            f"| {cell.sharing or 'none'} | {cell.instances} | {row.pss_mb:,.0f} | {each} | {row.ready_s:.1f} "
            f"| {_median(row.requests_per_s)} | {times:.2f} | {_median(row.cpu_ms)} "
            f"| {statistics.median(row.others):.2f} ({min(row.others):.2f}–{max(row.others):.2f}) |"
        )
    return "\n".join(lines)


def _median(figures: Sequence[float]) -> str:
    return f"{statistics.median(figures):.1f} ({min(figures):.1f}–{max(figures):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=500, help="size of the weights")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each server is loaded in a round")
    parser.add_argument("--instances", type=int, nargs="+", default=[1, 2, 4])
    arguments = parser.parse_args()
    cells = [Cell(sharing, instances) for sharing in SHARINGS for instances in arguments.instances]
    for name, fact in machine_facts().items():
        print(f"* {name}: {fact}")
    print(table(measure(cells, mb=arguments.mb, rounds=arguments.rounds, seconds=arguments.seconds)))


if __name__ == "__main__":
    main()
