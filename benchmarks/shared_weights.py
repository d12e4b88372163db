#!/usr/bin/env python3
"""Memory and throughput of a model with large weights, by how its instances come by them (INSTANCE_SHARING).

    python benchmarks/shared_weights.py --mb 500 --seconds 5

A model multiplies what it gets with a part of a matrix of so many megabytes, with one thread of BLAS for each instance, while
as many clients as it has instances send requests one after the other. Memory is the proportional set size (PSS)
of all processes of the model together, read from /proc when all of them have executed: a page that two processes have counts
half in each.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from machine_facts import machine_facts

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
BODY = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [8], "data": [1, 2, 3, 4, 5, 6, 7, 8]}]})


@dataclass(frozen=True)
class Row:
    sharing: str
    instances: int
    pss_mb: float
    ready_s: float
    requests_per_s: float


def write_model(repository: Path, mb: int, sharing: str, instances: int) -> None:
    folder = repository / "weights" / "1"
    folder.mkdir(parents=True)
    side = int((mb * 1_000_000 / 4) ** 0.5)
    (folder / "model.py").write_text(CODE.replace("SIDE", str(side)))
    config = CONFIG.replace("COUNT", str(instances))
    if sharing:
        config += f'parameters {{ key: "INSTANCE_SHARING" value {{ string_value: "{sharing}" }} }}\n'
    (folder.parent / "config.pbtxt").write_text(config)


def pss_mb(server: int) -> float:
    """The PSS of all processes two generations below *server*: those of the model, whose parent is a fork server."""
    total = 0
    for entry in Path("/proc").iterdir():
        try:
            if parent_of(parent_of(int(entry.name))) == server:
                found = re.search(r"^Pss: +(\d+) kB", (entry / "smaps_rollup").read_text(), re.MULTILINE)
                total += int(found[1]) if found else 0
        except (OSError, ValueError):
            continue  # no process, or one that has just ended
    return total / 1000


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


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
        while time.monotonic() < self._until:
            connection.request("POST", "/v2/models/weights/infer", BODY)
            reply = connection.getresponse()
            text = reply.read()
            if reply.status != 200:
                sys.exit(text.decode())
            with self._lock:
                self.answers += 1
        connection.close()


def measure(mb: int, seconds: float, sharing: str, instances: int) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), mb, sharing, instances)
        began = time.monotonic()
        with RunningServer(Path(folder)) as server:
            ready_s = time.monotonic() - began
            clients = Clients(server.http_port, instances)
            clients.run(min(1.0, seconds))  # until every instance has executed
            rate = clients.run(seconds)
            return Row(sharing or "none", instances, pss_mb(server.process.pid), ready_s, rate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=500, help="size of the weights")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each row is loaded")
    parser.add_argument("--instances", type=int, nargs="+", default=[1, 2, 4])
    arguments = parser.parse_args()
    print(machine_facts())
    print("| `INSTANCE_SHARING` | instances | PSS, MB | second instance, MB | ready after s | requests/s |")
    print("|---|---|---|---|---|---|")
    for sharing in ("", "fork", "threads"):
        first: Row | None = None
        for instances in arguments.instances:
            row = measure(arguments.mb, arguments.seconds, sharing, instances)
            first = first or row
            more = row.instances - first.instances
            each = f"{(row.pss_mb - first.pss_mb) / more:,.1f}" if more else "–"
            print(
                f"| {row.sharing} | {row.instances} | {row.pss_mb:,.0f} | {each} | {row.ready_s:.1f} "
                f"| {row.requests_per_s:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
