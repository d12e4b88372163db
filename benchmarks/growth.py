#!/usr/bin/env python3
"""What a request costs the server as something else grows: models, instances, connections, sequences, a queue.

    python benchmarks/growth.py --axes models,connections --rounds 3 --result growth.json

A flat line is what is wanted. Each size is a server of its own, asked by 32 callers (wrk, HTTP/1.1, every request different)
for one model, while the other models, instances, connections or sequences are there. The queue is another measurement: a
model that holds all its requests gets them over a hundred streams of gRPC, then answers them.

Microseconds of CPU are those of the server's process, where all requests meet; workers are told apart.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import tritonclient.grpc
import tritonclient.http
from benchmark_error import BenchmarkError
from calls import Call, HttpRequest, Protocol, raw_post
from front_ends import cpu_seconds
from load_generators import Load, Wrk, require_tools, run_wrk_with
from machine_facts import machine_facts
from measured_server import SERVE, MeasuredServer, Ports, free_ports, wait_until

COMMAND = f"{SERVE} --http-max-connections=12000"
START_TIMEOUT_S = 300.0
WARM_UP_S = 1
CALLERS = 32
_QUEUE_TIMEOUT_S = 300.0
_STREAMS = 100
"""As many for every length of the queue. With 1,024 unanswered on one the server reads on when some are answered."""

CODE = """
import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        held = os.path.join(os.path.dirname(__file__), "..", "..", "..", "held")
        while os.path.exists(held):
            time.sleep(0.01)
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(request, "X").as_numpy() + np.float32(1))]
            )
            for request in requests
        ]
"""
CONFIG = """
backend: "python"
max_batch_size: 32
input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }
instance_group { kind: KIND_CPU count: %d }
"""
SEQUENCES = """
sequence_batching {
  max_sequence_idle_microseconds: 600000000
  oldest { max_candidate_sequences: %d }
}
"""


@dataclass(frozen=True)
class Cost:
    """Microseconds of CPU per request of the server's process and of its workers; requests a second; MiB of all processes."""

    engine_us: float
    workers_us: float
    rate: float
    memory_mib: float


def write_model(models: Path, name: str, more: str = "", *, instances: int = 1) -> None:
    (models / name / "1").mkdir(parents=True)
    (models / name / "1" / "model.py").write_text(CODE)
    (models / name / "config.pbtxt").write_text(CONFIG % instances + more)


@contextlib.contextmanager
def started(models: Path) -> Iterator[MeasuredServer]:
    folder = models.parent
    with MeasuredServer.started(
        "ours", COMMAND, models=models, ports=free_ports(), log=folder / "server.log", timeout_s=START_TIMEOUT_S
    ) as server:
        yield server


def cost_of(server: MeasuredServer, run: Callable[[], tuple[int, float]]) -> Cost:
    """What *run*, which returns how many requests it made and how many a second, has cost."""
    before = cpu_seconds(server)
    count, rate = run()
    after = cpu_seconds(server)
    used = {part: (after[part] - before[part]) / count * 1e6 for part in ("engine", "workers")}
    memory = server.tree.memory_bytes()
    if memory is None:
        raise BenchmarkError("this system does not tell how much memory processes have in proportion")
    return Cost(used["engine"], used["workers"], rate, memory / (1 << 20))


def load_of(call: Call, folder: Path, ports: Ports, seconds: int) -> Callable[[], tuple[int, float]]:
    generator = Wrk(call, Protocol.HTTP_BINARY, folder)
    generator.run(ports, callers=CALLERS, seconds=WARM_UP_S)
    return lambda: _counted(generator.run(ports, callers=CALLERS, seconds=seconds))


def _counted(load: Load) -> tuple[int, float]:
    assert load.answered is not None  # wrk tells
    return load.answered, load.per_second


def _of_x(model: str) -> Call:
    numbers = np.array([1.5, -2.25, 3.0, 1000.0], np.float32).reshape(1, 4)
    return Call(model, {"X": numbers}, [{"Y": numbers + np.float32(1)}])


# ----------------------------------------------------------------------------------------------------------------------


def with_models(count: int, models: Path, seconds: int) -> Cost:
    for number in range(count):
        write_model(models, f"model_{number:04}")
    with started(models) as server:
        return cost_of(server, load_of(_of_x("model_0000"), models.parent, server.ports, seconds))


def with_instances(count: int, models: Path, seconds: int) -> Cost:
    write_model(models, "model", instances=count)
    with started(models) as server:
        return cost_of(server, load_of(_of_x("model"), models.parent, server.ports, seconds))


def with_connections(count: int, models: Path, seconds: int) -> Cost:
    write_model(models, "model")
    with contextlib.ExitStack() as opened, started(models) as server:
        for _ in range(count):
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", server.ports.http)))
            connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n")
            if not connection.recv(4096).startswith(b"HTTP/1.1 200 "):
                raise BenchmarkError("a connection was not answered")
        return cost_of(server, load_of(_of_x("model"), models.parent, server.ports, seconds))


def with_sequences(count: int, models: Path, seconds: int) -> Cost:
    """All of them live: begun, and not ended."""
    write_model(models, "model", SEQUENCES % count)
    folder = models.parent
    with started(models) as server:
        ports = server.ports
        with tritonclient.http.InferenceServerClient(f"127.0.0.1:{ports.http}") as client:
            given = tritonclient.http.InferInput("X", [1, 4], "FP32")
            given.set_data_from_numpy(np.zeros((1, 4), np.float32))
            for number in range(1, count + 1):
                client.infer("model", [given], sequence_id=number, sequence_start=True)
        requests = [_in_sequence(number % count + 1, ports) for number in range(4096)]

        def run(for_s: int) -> Load:
            return run_wrk_with(requests, folder, ports, callers=CALLERS, seconds=for_s)

        run(WARM_UP_S)
        return cost_of(server, lambda: _counted(run(seconds)))


def _in_sequence(sequence: int, ports: Ports) -> bytes:
    """A request in the middle of a sequence, with numbers of its own, as it goes over a connection."""
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [sequence + 0.25, 1.5, -2.25, 1000]}
    document = {"parameters": {"sequence_id": sequence}, "inputs": [tensor]}
    body = json.dumps(document, separators=(",", ":")).encode()
    return raw_post("/v2/models/model/infer", HttpRequest({}, body), ports.http)


def with_queue(count: int, models: Path, seconds: int) -> Cost:
    """All requests wait in one queue before the first is answered; *seconds* means nothing here."""
    write_model(models, "model", "dynamic_batching { max_queue_delay_microseconds: 0 }")
    held = models.parent / "held"
    with started(models) as server:
        streams = [tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.ports.grpc}") for _ in range(_STREAMS)]
        given = tritonclient.grpc.InferInput("X", [1, 4], "FP32")
        answered = threading.Semaphore(0)
        failures: list[object] = []

        def on_answer(result: object, error: object) -> None:
            if error is not None:
                failures.append(error)
            answered.release()

        def run() -> tuple[int, float]:
            held.touch()
            began = time.perf_counter()
            for number in range(count):
                given.set_data_from_numpy(np.full((1, 4), number, np.float32))
                streams[number % len(streams)].async_stream_infer("model", [given], request_id=str(number))
            wait_until(
                lambda: server.metric("nv_inference_pending_request_count") >= count - CALLERS,
                "all requests are queued",
                timeout_s=_QUEUE_TIMEOUT_S,
            )
            held.unlink()
            for _ in range(count):
                if not answered.acquire(timeout=_QUEUE_TIMEOUT_S) or failures:
                    raise BenchmarkError(f"requests in the queue were not answered: {failures[:1]}")
            return count, count / (time.perf_counter() - began)

        for stream in streams:
            stream.start_stream(on_answer)
        try:
            return cost_of(server, run)
        finally:
            for stream in streams:
                stream.stop_stream(cancel_requests=True)
                stream.close()


AXES: Mapping[str, tuple[Callable[[int, Path, int], Cost], Sequence[int]]] = {
    "models": (with_models, (1, 10, 100, 300, 1000)),
    "instances": (with_instances, (1, 4, 16, 64)),
    "connections": (with_connections, (0, 100, 1000, 10_000)),
    "sequences": (with_sequences, (32, 100, 1000, 10_000)),
    "queue": (with_queue, (3000, 10_000, 30_000, 100_000)),
}


def measure(axis: str, size: int, seconds: int) -> Cost:
    with tempfile.TemporaryDirectory(prefix="growth_") as name:
        models = Path(name) / "models"
        models.mkdir()
        return AXES[axis][0](size, models, seconds)


def report(found: Mapping[tuple[str, int], Sequence[Cost]]) -> None:
    for name, fact in machine_facts().items():
        print(f"{name}: {fact}")
    print("\n| axis | size | server µs | to the smallest | workers µs | requests/s | memory MiB |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    first: dict[str, float] = {}
    for (axis, size), runs in found.items():
        engine, workers, rate, memory = (
            statistics.median(getattr(run, name) for run in runs)
            for name in ("engine_us", "workers_us", "rate", "memory_mib")
        )
        ratio = engine / first.setdefault(axis, engine)
        print(f"| {axis} | {size:,} | {engine:.1f} | {ratio:.2f} | {workers:.1f} | {rate:,.0f} | {memory:,.0f} |")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", default=",".join(AXES), help="which of %(default)s")
    parser.add_argument("--largest", type=int, default=1_000_000, help="leave larger sizes out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=4, help="of load at each size (default 4)")
    parser.add_argument("--result", type=Path, help="a file for all figures, as JSON")
    chosen = parser.parse_args(arguments)
    axes = chosen.axes.split(",")
    if not AXES.keys() >= set(axes):
        parser.error(f"--axes: expected some of {', '.join(AXES)}, got {chosen.axes}")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found: dict[tuple[str, int], list[Cost]] = {}
    try:
        require_tools(["wrk"])
        for round_ in range(chosen.rounds):
            for axis in axes:
                for size in AXES[axis][1]:
                    if size <= chosen.largest:
                        print(f"round {round_ + 1}: {axis} {size}", file=sys.stderr)
                        cost = measure(axis, size, chosen.seconds)
                        print(cost, file=sys.stderr)
                        found.setdefault((axis, size), []).append(cost)
    except BenchmarkError as error:
        print(f"growth: {error}", file=sys.stderr)
        return 1
    report(found)
    if chosen.result is not None:
        rows = [{"axis": axis, "size": size, **asdict(run)} for (axis, size), runs in found.items() for run in runs]
        options = {"axes": axes, "largest": chosen.largest, "rounds": chosen.rounds, "seconds": chosen.seconds}
        content = {"facts": machine_facts(), "options": options, "rows": rows}
        chosen.result.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
