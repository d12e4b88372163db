#!/usr/bin/env python3
"""Many models of one instance: load all of them on request, ask each one, list them, unload all; time, CPU and memory.

    python benchmarks/many_models.py --models 200 --rounds 3 --peer-command 'tritonserver … --model-control-mode=explicit'

Both servers are started without a model, one after the other in each round, and asked the same by the same few clients. A
server's memory is that of all its processes, shared pages counted once (proportional set size).
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path

from benchmark_error import BenchmarkError
from machine_facts import machine_facts
from measured_server import SERVE, MeasuredServer, free_ports

COMMAND = f"{SERVE} --model-control-mode=explicit"
START_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 600.0
_LOOK_AGAIN_S = 0.02

CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(request, "X").as_numpy() + np.float32(1))]
            )
            for request in requests
        ]
"""

CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }
instance_group { kind: KIND_CPU }
"""


@dataclass(frozen=True)
class Figures:
    """Of one server in one round: seconds of the clock and of the processors, milliseconds, MiB."""

    load_s: float
    load_cpu_s: float
    index_ms: float
    first_answer_ms: float
    memory_mib: float
    unload_s: float
    memory_after_mib: float


TITLES = {
    "load_s": "load all (s)",
    "load_cpu_s": "CPU of that (s)",
    "index_ms": "index (ms)",
    "first_answer_ms": "first answer of a model (ms)",
    "memory_mib": "memory of a model (MiB)",
    "unload_s": "unload all (s)",
    "memory_after_mib": "memory left after it (MiB in all)",
}


def write_models(folder: Path, count: int) -> list[str]:
    names = [f"model_{number:03}" for number in range(count)]
    for name in names:
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(CODE)
        (folder / name / "config.pbtxt").write_text(CONFIG)
    return names


class Client:
    """Asks one server, over as many connections at a time as *clients*."""

    def __init__(self, server: MeasuredServer, clients: int) -> None:
        self._server = server
        self._clients = clients

    def ask(self, path: str, body: object = None) -> bytes:
        """POST. Raises BenchmarkError for any status but 200."""
        connection = http.client.HTTPConnection("127.0.0.1", self._server.ports.http, timeout=ANSWER_TIMEOUT_S)
        try:
            connection.request("POST", path, json.dumps(body) if body is not None else None)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise BenchmarkError(f"{self._server.side}: {path}: {answer.status} {content[:300]!r}")
        return content

    def ask_all(self, paths: Sequence[str]) -> None:
        with ThreadPoolExecutor(self._clients) as pool:
            list(pool.map(self.ask, paths))

    def states(self) -> list[str]:
        return [row.get("state", "") for row in json.loads(self.ask("/v2/repository/index"))]

    def first_answer(self, name: str) -> float:
        """Seconds; the answer is looked at."""
        inputs = [{"name": "X", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}]
        began = time.perf_counter()
        answer = json.loads(self.ask(f"/v2/models/{name}/infer", {"inputs": inputs}))
        took = time.perf_counter() - began
        if answer["outputs"][0]["data"] != [2, 3, 4, 5]:
            raise BenchmarkError(f"{self._server.side}: {name} answered {answer}")
        return took


def measure(server: MeasuredServer, names: Sequence[str], clients: int) -> Figures:
    client = Client(server, clients)
    tree = server.tree
    empty_bytes = memory_bytes(server)
    cpu = tree.cpu_seconds() or 0.0
    began = time.perf_counter()
    client.ask_all([f"/v2/repository/models/{name}/load" for name in names])
    load_s = time.perf_counter() - began
    load_cpu_s = (tree.cpu_seconds() or 0.0) - cpu
    began = time.perf_counter()
    states = client.states()
    index_s = time.perf_counter() - began
    if states != ["READY"] * len(names):
        raise BenchmarkError(f"{server.side}: after the loads the index says {sorted(set(states))}")
    first = statistics.median(client.first_answer(name) for name in names)
    full_bytes = memory_bytes(server)
    began = time.perf_counter()
    client.ask_all([f"/v2/repository/models/{name}/unload" for name in names])
    while any(state != "UNAVAILABLE" for state in client.states()):  # an unload is answered before it is done
        time.sleep(_LOOK_AGAIN_S)
    unload_s = time.perf_counter() - began
    mib = 1024 * 1024
    return Figures(
        load_s=load_s,
        load_cpu_s=load_cpu_s,
        index_ms=index_s * 1e3,
        first_answer_ms=first * 1e3,
        memory_mib=(full_bytes - empty_bytes) / len(names) / mib,
        unload_s=unload_s,
        memory_after_mib=(memory_bytes(server) - empty_bytes) / mib,
    )


def memory_bytes(server: MeasuredServer) -> int:
    """Of all its processes. Raises BenchmarkError where the system does not tell."""
    found = server.tree.memory_bytes()
    if found is None:
        raise BenchmarkError("this system does not tell how much memory processes have in proportion")
    return found


@contextlib.contextmanager
def started(side: str, command: str, models: Path, folder: Path) -> Iterator[MeasuredServer]:
    log = folder / f"{side}.log"
    with MeasuredServer.started(
        side, command, models=models, ports=free_ports(), log=log, timeout_s=START_TIMEOUT_S
    ) as server:
        yield server


def report(rounds: dict[str, list[Figures]], count: int) -> None:
    for key, value in machine_facts().items():
        print(f"* {key}: {value}")
    sides = list(rounds)
    ratio = " ours/peer |" if len(sides) > 1 else ""
    print(f"\n| {count} models | {' | '.join(sides)} |{ratio}")
    print("| --- |" + " ---: |" * (len(sides) + bool(ratio)))
    for item in fields(Figures):
        medians = [statistics.median(getattr(row, item.name) for row in rounds[side]) for side in sides]
        cells = [f"{value:,.2f}" for value in medians]
        if ratio:
            pairs = zip(rounds[sides[0]], rounds[sides[1]])
            ratios = [getattr(ours, item.name) / (getattr(peer, item.name) or 1e-9) for ours, peer in pairs]
            cells.append(f"{statistics.median(ratios):.3f}")
        print(f"| {TITLES[item.name]} | {' | '.join(cells)} |")


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--clients", type=int, default=4, help="loads asked for at a time; default: %(default)s")
    parser.add_argument("--command", default=COMMAND, help="how to start ours; default: %(default)s")
    parser.add_argument("--peer-command", default="", help="how to start a peer, in explicit mode and without a model")
    return parser.parse_args(argv)


def commands_by_side(arguments: argparse.Namespace) -> dict[str, str]:
    """How ours is started, and the peer where there is one."""
    peer = {"peer": arguments.peer_command} if arguments.peer_command else {}
    return {"ours": arguments.command, **peer}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    commands = commands_by_side(arguments)
    rounds: dict[str, list[Figures]] = {side: [] for side in commands}
    try:
        with tempfile.TemporaryDirectory(prefix="many_models_") as temporary:
            folder = Path(temporary)
            names = write_models(folder / "models", arguments.models)
            for _ in range(arguments.rounds):
                for side, command in commands.items():
                    with started(side, command, folder / "models", folder) as server:
                        rounds[side].append(measure(server, names, arguments.clients))
    except BenchmarkError as error:
        print(f"many_models: {error}", file=sys.stderr)
        return 2
    report(rounds, arguments.models)
    return 0


if __name__ == "__main__":
    sys.exit(main())
