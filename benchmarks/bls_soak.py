#!/usr/bin/env python3
"""Chains of models that call each other, many at a time, while one in a hundred executions of the last one fails.

    python benchmarks/bls_soak.py --seconds 60

Each request goes through three models: ``first`` calls ``second``, which calls ``third``; each adds one to every element of
a tensor that lies in shared memory. Every request must end, with the right numbers or with the error of the execution that
failed, and afterwards every instance must hold no more shared memory than before, with no tensor in it that anybody still
refers to. The exit code is 1 when something is off, and 2 when the run could not be made.
"""

from __future__ import annotations

import argparse
import array
import http.client
import json
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmark_error import BenchmarkError
from fault_finding import find_faults
from measured_server import SERVE, MeasuredServer

FAILURE = "failed on purpose"
ONE_IN = 100
HANG_S = 30.0
"""A request without an answer for so long hangs: the slowest one of a good run takes a small part of it."""
SETTLE_S = 20.0
"""Instances give memory of a burst back after five seconds of idleness."""
START_TIMEOUT_S = 60.0
_LOOK_AGAIN_S = 0.1

CALLS_NEXT = """
import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.next = json.loads(args["model_config"])["parameters"]["next"]["string_value"]

    async def execute(self, requests):
        return [await self.answer(request) for request in requests]

    async def answer(self, request):
        given = pb_utils.get_input_tensor_by_name(request, "X")
        call = pb_utils.InferenceRequest(
            request_id=request.request_id(),
            model_name=self.next,
            inputs=[pb_utils.Tensor("X", given.as_numpy() + 1)],
            requested_output_names=["X"],
        )
        # Outputs or an error: as it came.
        return await call.async_exec()
"""

FAILS_SOMETIMES = f"""
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.executions = 0

    def execute(self, requests):
        self.executions += 1
        if self.executions % {ONE_IN} == 0:
            raise ValueError("{FAILURE}")
        given = [pb_utils.get_input_tensor_by_name(request, "X") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("X", tensor.as_numpy() + 1)]) for tensor in given]
"""

CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
"""

Memory = dict[str, tuple[int, int, int]]
"""Of each instance: bytes that the server reserves for it, bytes that its worker does, places that are in use."""


@dataclass
class Outcome:
    """What became of the requests. ``wrong`` has a sentence for each answer that should not have been."""

    answered: int = 0
    failed: int = 0
    hung: int = 0
    wrong: Counter[str] = field(default_factory=Counter)

    @property
    def requests(self) -> int:
        return self.answered + self.failed + self.hung + self.wrong.total()


def write_models(folder: Path, *, chains: int) -> None:
    for name, successor in (("first", "second"), ("second", "third")):
        parameters = "\n".join(
            f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}'
            for key, value in (("next", successor), ("EXECUTE_CONCURRENCY", chains))
        )
        _write_model(folder / name, CALLS_NEXT, f"{CONFIG}{parameters}\ninstance_group {{ kind: KIND_CPU }}\n")
    _write_model(folder / "third", FAILS_SOMETIMES, f"{CONFIG}instance_group {{ kind: KIND_CPU count: 2 }}\n")


def _write_model(folder: Path, code: str, config: str) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(code)
    (folder / "config.pbtxt").write_text(config)


class Caller(threading.Thread):
    """Sends one request after the other, until *deadline*."""

    def __init__(self, port: int, number: int, elements: int, deadline: float) -> None:
        super().__init__(daemon=True)
        self.outcome = Outcome()
        self.slowest_s = 0.0
        self._deadline = deadline
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
        # Numbers that are exact in FP32, other ones for every caller.
        self._tensor = array.array("f", [number]) * elements
        self._expected = (array.array("f", [number + 3]) * elements).tobytes()

    def run(self) -> None:
        while time.monotonic() < self._deadline:
            begin = time.monotonic()
            self.send()
            self.slowest_s = max(self.slowest_s, time.monotonic() - begin)
            if self.outcome.hung:
                return

    def send(self) -> None:
        """One request, and a look at its answer."""
        outcome = self.outcome
        try:
            status, header_size, body = self._ask()
        except TimeoutError:
            outcome.hung += 1
            return
        except (OSError, http.client.HTTPException) as error:
            outcome.wrong[repr(error)] += 1
            self._connection.close()
            return
        if status == 200 and body[header_size:] == self._expected:
            outcome.answered += 1
        elif status == 500 and FAILURE.encode() in body:
            outcome.failed += 1
        else:
            text = "200 with other numbers" if status == 200 else f"{status} {body[:300].decode(errors='replace')}"
            outcome.wrong[text] += 1

    def _ask(self) -> tuple[int, int, bytes]:
        data = self._tensor.tobytes()
        header = json.dumps(
            {
                "inputs": [
                    {
                        "name": "X",
                        "datatype": "FP32",
                        "shape": [len(self._tensor)],
                        "parameters": {"binary_data_size": len(data)},
                    }
                ],
                "outputs": [{"name": "X", "parameters": {"binary_data": True}}],
            }
        ).encode()
        self._connection.request(
            "POST", "/v2/models/first/infer", header + data, {"Inference-Header-Content-Length": str(len(header))}
        )
        reply = self._connection.getresponse()
        return reply.status, int(reply.headers.get("Inference-Header-Content-Length", 0)), reply.read()


def read_memory(port: int) -> Memory:
    """What every instance holds now, from the metrics page."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
    try:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    finally:
        connection.close()
    values: dict[tuple[str, str], int] = {}
    for name, labels, value in re.findall(r"^pytriton_lite_shared_memory_(\w+)\{(.*)\} (\d+)$", page, re.MULTILINE):
        of = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        values[of["model_instance"], of.get("writer", name)] = int(value)
    if not values:
        raise BenchmarkError("the metrics page says nothing of shared memory")
    instances = sorted({instance for instance, _ in values})
    return {name: (values[name, "server"], values[name, "worker"], values[name, "slots"]) for name in instances}


def settled_memory(port: int, start: Memory) -> Memory:
    """The memory as soon as it is back where it was at *start*, or as it is after SETTLE_S."""
    deadline = time.monotonic() + SETTLE_S
    while leaks(start, memory := read_memory(port)) and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)
    return memory


def leaks(start: Memory, now: Memory) -> list[str]:
    """The instances that hold more than at *start*: a ring that had grown starts small again, so less is no fault."""
    return [
        name for name, held in now.items() if any(more > less for more, less in zip(held, start.get(name, (0, 0, 0))))
    ]


def soak(server: MeasuredServer, *, seconds: float, callers: int, elements: int) -> list[str]:
    """Run it, print what happened, and return what was wrong."""
    warming = Caller(server.ports.http, 0, elements, 0.0)
    for _ in range(8):  # one at a time, so that no memory grows beyond its first size; both instances of the last model
        warming.send()
    if warming.outcome.answered != 8:
        raise BenchmarkError(f"the chain does not work: {warming.outcome}\n{server.log_tail()}")
    idle = {name: (ours, theirs, 0) for name, (ours, theirs, _) in read_memory(server.ports.metrics).items()}
    before = settled_memory(server.ports.metrics, idle)

    deadline = time.monotonic() + seconds
    threads = [Caller(server.ports.http, number, elements, deadline) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcome = Outcome()
    for thread in threads:
        outcome.answered += thread.outcome.answered
        outcome.failed += thread.outcome.failed
        outcome.hung += thread.outcome.hung
        outcome.wrong.update(thread.outcome.wrong)
    after = settled_memory(server.ports.metrics, before)

    print(
        f"{outcome.requests} requests of {callers} callers in {seconds:g} s: {outcome.answered} answered, "
        f"{outcome.failed} failed as they should, {outcome.hung} hung, {outcome.wrong.total()} wrong; "
        f"the slowest took {max(thread.slowest_s for thread in threads):.2f} s"
    )
    print("shared memory          server's bytes          worker's bytes     tensors in use")
    for name in sorted(after):
        (ours, theirs, slots), now = before.get(name, (0, 0, 0)), after[name]
        print(f"{name:<16}{ours:>10} -> {now[0]:>8}{theirs:>12} -> {now[1]:>8}{slots:>8} -> {now[2]:>4}")
    return faults(outcome, before, after)


def faults(outcome: Outcome, before: Memory, after: Memory) -> list[str]:
    found = [f"{count} × {text}" for text, count in outcome.wrong.most_common(10)]
    if outcome.hung:
        found.append(f"{outcome.hung} requests had no answer after {HANG_S:g} s")
    if not outcome.answered:
        found.append("no request was answered")
    executions = outcome.answered + outcome.failed
    # Counted for each instance, and the warm-up counts as well.
    if abs(outcome.failed - executions / ONE_IN) > 2:
        found.append(f"{outcome.failed} of {executions} requests failed, not one in {ONE_IN}")
    found += [
        f"instance '{name}' held {before.get(name)} before and {after[name]} after" for name in leaks(before, after)
    ]
    return found


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0, help="default: %(default)s")
    parser.add_argument("--callers", type=int, default=100, help="requests at a time; default: %(default)s")
    parser.add_argument("--elements", type=int, default=16_384, help="FP32 numbers in a tensor; default: %(default)s")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    return find_faults(
        "bls_soak",
        SERVE,
        write_models=lambda models: write_models(models, chains=arguments.callers),
        measure=lambda server: soak(
            server, seconds=arguments.seconds, callers=arguments.callers, elements=arguments.elements
        ),
        timeout_s=START_TIMEOUT_S,
    )


if __name__ == "__main__":
    sys.exit(main())
