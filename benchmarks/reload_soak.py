#!/usr/bin/env python3
"""Reloads and version changes under load: no request may fail, and each answer must be from a version that was ready.

    python benchmarks/reload_soak.py --seconds 60 --reloads 50 --clients 64

Each generation of the model answers with its own number. An operator changes, in turn, the code of the version that serves,
adds a version, changes the configuration, the number of instances alone, and now and then writes code that cannot be
loaded; and asks for a load each time. An answer is right when its generation's load had begun before the answer came, and
the load of the next one had not ended yet when the request was sent. A quarter of the clients speak gRPC, one in eight
sends a tensor that goes through shared memory. The exit code is 1 when something is off, and 2 when the run could not be made.
"""

from __future__ import annotations

import argparse
import array
import http.client
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from benchmark_error import BenchmarkError
from fault_finding import find_faults
from measured_server import SERVE, MeasuredServer, Ports

from pytriton_lite.proto import grpc_service_pb

COMMAND = f"{SERVE} --model-control-mode=explicit --load-model=changing"
MODEL = "changing"
SMALL, LARGE = 4, 65_536
"""Elements: the second goes through shared memory."""
HANG_S = 30.0
START_TIMEOUT_S = 60.0
SETTLE_S = 15.0
_LOOK_AGAIN_S = 0.05

CODE = """
import time

import numpy as np
import triton_python_backend_utils as pb_utils

GENERATION = {generation}


class TritonPythonModel:
    def initialize(self, args):
        {initialize}
        self.version = int(args["model_version"])

    def execute(self, requests):
        time.sleep(0.002)
        answers = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            mark = np.array([[GENERATION, self.version]], np.int64)
            answers.append(
                pb_utils.InferenceResponse([pb_utils.Tensor("Y", given + 1), pb_utils.Tensor("MARK", mark)])
            )
        return answers
"""

CONFIG = """
backend: "python"
max_batch_size: {max_batch_size}
input {{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "MARK" data_type: TYPE_INT64 dims: [ 2 ] }}
dynamic_batching {{ }}
instance_group {{ kind: KIND_CPU count: {instances} }}
"""


class Operator:
    """Changes the model, and knows which generations could have answered when."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / MODEL
        self._generation = 0
        self._version = 1
        self._instances = 1
        self._max_batch_size = 8
        # Of the generations that were loaded, in order: when the load began, when it had ended.
        self.began: list[float] = []
        self.ended: list[float] = []
        self.numbers: list[int] = []
        self.versions: dict[int, int] = {}
        self.done: Counter[str] = Counter()
        self._write_config()
        self._write_code()

    def first_loaded(self) -> None:
        self._remember(0.0, 0.0)

    def change(self, turn: int, port: int) -> str:
        """One change and its load; what was wrong, or an empty text."""
        kinds = (self._change_code, self._add_version, self._change_config, self._change_instances, self._break)
        kind = kinds[turn % len(kinds)]
        expected, is_new = kind()
        began = time.monotonic()
        status, body = _load(port)
        if status != expected:
            return f"{kind.__name__.strip('_')}: the load was answered {status}, not {expected}: {body[:300]!r}"
        if is_new:
            self._remember(began, time.monotonic())
        self.done[kind.__name__.strip("_")] += 1
        return ""

    def could_answer(self, generation: int, version: int, sent: float, received: float) -> bool:
        if generation not in self.versions or self.versions[generation] != version:
            return False
        at = self.numbers.index(generation)
        is_gone = at + 1 < len(self.ended) and self.ended[at + 1] < sent
        return self.began[at] <= received and not is_gone

    def _remember(self, began: float, ended: float) -> None:
        # Clients read while we write: what they look up by comes last.
        self.began.append(began)
        self.ended.append(ended)
        self.numbers.append(self._generation)
        self.versions[self._generation] = self._version

    def _change_code(self) -> tuple[int, bool]:
        self._write_code()
        return 200, True

    def _add_version(self) -> tuple[int, bool]:
        self._version += 1
        self._write_code()
        return 200, True

    def _change_config(self) -> tuple[int, bool]:
        self._max_batch_size = 24 - self._max_batch_size
        self._write_code()  # so that its answers can be told apart
        self._write_config()
        return 200, True

    def _change_instances(self) -> tuple[int, bool]:
        self._instances = 3 - self._instances
        self._write_config()
        return 200, False

    def _break(self) -> tuple[int, bool]:
        self._write_code("raise RuntimeError('broken on purpose')")
        return 400, False

    def _write_code(self, initialize: str = "pass") -> None:
        self._generation += 1
        folder = self._folder / str(self._version)
        folder.mkdir(parents=True, exist_ok=True)
        written = folder / "model.py.new"
        written.write_text(CODE.format(generation=self._generation, initialize=initialize))
        written.replace(folder / "model.py")

    def _write_config(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        written = self._folder / "config.pbtxt.new"
        written.write_text(CONFIG.format(max_batch_size=self._max_batch_size, instances=self._instances))
        written.replace(self._folder / "config.pbtxt")


def _load(port: int) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
    try:
        connection.request("POST", f"/v2/repository/models/{MODEL}/load")
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


Send = Callable[[], tuple[bytes, bytes]]
"""Sends a request and returns the bytes of both outputs. Raises when it failed."""


@dataclass
class Outcome:
    """``answers`` are (generation, version, sent, received); ``failed`` has a sentence for each failure."""

    answers: list[tuple[int, int, float, float]] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)


class Client(threading.Thread):
    """Sends one request after the other until it is told to stop."""

    def __init__(self, ports: Ports, number: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.outcome = Outcome()
        self._stop_asked = stop
        count = LARGE if number % 8 == 7 else SMALL
        self._given = array.array("f", [number]) * count
        self._expected = (array.array("f", [number + 1]) * count).tobytes()
        self._send = self._over_grpc(ports.grpc) if number % 4 == 3 else self._over_http(ports.http)

    def run(self) -> None:
        while not self._stop_asked.is_set():
            sent = time.monotonic()
            try:
                y, mark = self._send()
            except Exception as error:  # whatever it is, it is a request that failed
                self.outcome.failed[f"{type(error).__name__}: {error}"[:300]] += 1
                continue
            received = time.monotonic()
            if y != self._expected:
                self.outcome.failed["other numbers than expected"] += 1
            generation, version = array.array("q", mark)
            self.outcome.answers.append((generation, version, sent, received))

    def _over_http(self, port: int) -> Send:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
        data = self._given.tobytes()
        tensor = {
            "name": "X",
            "datatype": "FP32",
            "shape": [1, len(self._given)],
            "parameters": {"binary_data_size": len(data)},
        }
        outputs = [{"name": name, "parameters": {"binary_data": True}} for name in ("Y", "MARK")]
        header = json.dumps({"inputs": [tensor], "outputs": outputs}).encode()
        headers = {"Inference-Header-Content-Length": str(len(header))}

        def send() -> tuple[bytes, bytes]:
            connection.request("POST", f"/v2/models/{MODEL}/infer", header + data, headers)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise BenchmarkError(f"{answer.status} {body[:200].decode(errors='replace')}")
            tensors = body[int(answer.headers["Inference-Header-Content-Length"]) :]
            return tensors[: len(data)], tensors[len(data) :]

        return send

    def _over_grpc(self, port: int) -> Send:
        channel = grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)])
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=grpc_service_pb.ModelInferRequest.SerializeToString,
            response_deserializer=grpc_service_pb.ModelInferResponse.FromString,
        )
        request = grpc_service_pb.ModelInferRequest(model_name=MODEL)
        request.inputs.add(name="X", datatype="FP32", shape=[1, len(self._given)])
        request.raw_input_contents.append(self._given.tobytes())

        def send() -> tuple[bytes, bytes]:
            answer = call(request, timeout=HANG_S)
            by_name = {output.name: raw for output, raw in zip(answer.outputs, answer.raw_output_contents)}
            return by_name["Y"], by_name["MARK"]

        return send


def soak(server: MeasuredServer, operator: Operator, *, seconds: float, reloads: int, clients: int) -> list[str]:
    """Run it, print what happened, and return what was wrong."""
    stop = threading.Event()
    threads = [Client(server.ports, number, stop) for number in range(clients)]
    for thread in threads:
        thread.start()
    begin = time.monotonic()
    found: list[str] = []
    slowest_s = 0.0
    for turn in range(reloads):
        due = begin + seconds * (turn + 0.5) / reloads
        time.sleep(max(0.0, due - time.monotonic()))
        asked = time.monotonic()
        fault = operator.change(turn, server.ports.http)
        slowest_s = max(slowest_s, time.monotonic() - asked)
        if fault:
            found.append(fault)
    time.sleep(max(0.0, begin + seconds - time.monotonic()))
    stop.set()
    for thread in threads:
        thread.join(HANG_S + 5)
    took = time.monotonic() - begin
    failed: Counter[str] = Counter()
    answers = [answer for thread in threads for answer in thread.outcome.answers]
    for thread in threads:
        failed.update(thread.outcome.failed)
    wrong = [answer for answer in answers if not operator.could_answer(*answer)]
    by_generation = Counter(generation for generation, _, _, _ in answers)
    print(
        f"{len(answers)} answers to {clients} clients in {took:.0f} s, {failed.total()} failed, "
        f"{len(wrong)} from a generation that was not ready; "
        f"slowest {max((received - sent for _, _, sent, received in answers), default=0):.2f} s"
    )
    print(f"{operator.done.total()} loads, the slowest took {slowest_s:.2f} s: {_in_words(operator.done)}")
    unused = [number for number in operator.numbers if not by_generation[number]]
    print(f"{len(operator.numbers)} generations were loaded, {len(operator.numbers) - len(unused)} have answered")
    found += [f"{count} × {text}" for text, count in failed.most_common(10)]
    found += [f"generation {g} of version {v} answered when it was not ready" for g, v, _, _ in wrong[:10]]
    found += [f"generation {number} was loaded and has never answered" for number in unused]
    return found + _left_behind(server)


def _left_behind(server: MeasuredServer) -> list[str]:
    """Workers of generations that are gone: after SETTLE_S there are those of one generation, two at the most."""
    deadline = time.monotonic() + SETTLE_S
    while (workers := _workers(server)) > 2 and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)
    print(f"workers at the end: {workers}")
    return [f"{workers} workers are left at the end, at most 2 are in use"] if workers > 2 else []


def _workers(server: MeasuredServer) -> int:
    """Children of fork servers: the server's grandchildren."""
    members = server.tree.alive()
    root = min(members, key=lambda stat: stat.started_ticks).pid
    children = {stat.pid for stat in members if stat.parent == root}
    return sum(stat.parent in children for stat in members)


def _in_words(done: Counter[str]) -> str:
    return ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in sorted(done.items()))


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0, help="default: %(default)s")
    parser.add_argument("--reloads", type=int, default=50, help="default: %(default)s")
    parser.add_argument("--clients", type=int, default=64, help="default: %(default)s")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    operators: list[Operator] = []

    def measure(server: MeasuredServer) -> list[str]:
        (operator,) = operators
        operator.first_loaded()
        return soak(server, operator, seconds=arguments.seconds, reloads=arguments.reloads, clients=arguments.clients)

    return find_faults(
        "reload_soak",
        COMMAND,
        write_models=lambda models: operators.append(Operator(models)),
        measure=measure,
        timeout_s=START_TIMEOUT_S,
    )


if __name__ == "__main__":
    sys.exit(main())
