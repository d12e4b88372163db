#!/usr/bin/env python3
"""Ten times more requests than the model can answer: what becomes of those that are taken, of the others, and of memory.

    python benchmarks/overload.py --seconds 600

First the peak: closed loops, with as many callers as keep the model busy. Then an open loop: generators in processes of their
own send at their rate whatever comes back, each request with a tensor of its own, over as many connections as it takes. An
answer must be the tensor that was sent, plus one; a refusal a 503 that says when to come again. The model sleeps in
``execute``, so that the machine has time for the generators. The exit code is 1 when something is off, and 2 when the run
could not be made.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from benchmark_error import BenchmarkError
from fault_finding import find_faults
from measured_server import MeasuredServer

COMMAND = (
    "{python} -m pytriton_lite serve {models} --http-address=127.0.0.1 --http-port={http_port} --allow-grpc=false"
    " --metrics-address=127.0.0.1 --metrics-port={metrics_port}"
)
MODEL = "slow"
START_TIMEOUT_S = 60.0
MIB = 1 << 20
PEAK_S = 8.0
TICK_S = 0.002
"""How often a generator looks whether requests are due."""
DRAIN_S = 30.0

CODE = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep({execute_s})
        given = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("X", x + 1)]) for x in given]
"""

CONFIG = """
backend: "python"
input {{ name: "X" data_type: TYPE_INT64 dims: [ -1 ] }}
output {{ name: "X" data_type: TYPE_INT64 dims: [ -1 ] }}
parameters {{ key: "MAX_UNANSWERED_REQUESTS" value: {{ string_value: "{limit}" }} }}
"""


@dataclass
class Seen:
    """What one generator saw. Times are seconds; *wrong* has a sentence for each answer that should not have been."""

    sent: int = 0
    missed: int = 0
    """Requests that were due and could not be sent, because every connection waited for an answer."""
    answered: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    wrong: Counter[str] = field(default_factory=Counter)


class Requests:
    """Requests that differ from each other, and what their answers must be."""

    def __init__(self, elements: int, first: int) -> None:
        self._number = first
        self._rest = bytes(8 * (elements - 1))
        self._ones = struct.pack("<q", 1) * (elements - 1)
        tensor = {
            "name": "X",
            "datatype": "INT64",
            "shape": [elements],
            "parameters": {"binary_data_size": 8 * elements},
        }
        document = {"inputs": [tensor], "outputs": [{"name": "X", "parameters": {"binary_data": True}}]}
        text = json.dumps(document).encode()
        self._head = (
            f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: localhost\r\n"
            f"Inference-Header-Content-Length: {len(text)}\r\nContent-Length: {len(text) + 8 * elements}\r\n\r\n"
        ).encode() + text

    def next(self) -> tuple[bytes, bytes]:
        """A request, and the bytes of the tensor that answers it."""
        self._number += 1
        number = struct.pack("<q", self._number)
        return self._head + number + self._rest, struct.pack("<q", self._number + 1) + self._ones


class Caller(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._expected = b""
        self._sent = 0.0
        self._is_busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def ask(self, request: bytes, expected: bytes) -> None:
        assert self._transport is not None
        self._expected = expected
        self._is_busy = True
        self._sent = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if len(rest) < int(fields[b"content-length"]):
            return
        took = time.perf_counter() - self._sent
        self._buffer = b""
        self._is_busy = False
        seen = self._generator.seen
        status = head[9:12]
        if status == b"200" and rest.endswith(self._expected):
            seen.answered.append(took)
        elif status == b"503" and b"retry-after" in fields and b"too much waits" in rest:
            seen.refused.append(took)
        else:
            seen.wrong[f"{status.decode()}: {rest[-200:]!r}"] += 1
        self._generator.free(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_busy:
            self._generator.seen.wrong[f"the connection was lost: {exc!r}"] += 1

    def close(self) -> None:
        self._is_busy = False
        if self._transport is not None:
            self._transport.close()

    @property
    def is_busy(self) -> bool:
        return self._is_busy


class Generator:
    """Sends to one server, from one process."""

    def __init__(self, port: int, requests: Requests) -> None:
        self.seen = Seen()
        self._port = port
        self._requests = requests
        self._callers: list[Caller] = []
        self._free: deque[Caller] = deque()
        self._is_closed_loop = False

    async def connect(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(count):
            _, caller = await loop.create_connection(lambda: Caller(self), "127.0.0.1", self._port)
            self._callers.append(caller)
            self._free.append(caller)

    def free(self, caller: Caller) -> None:
        if self._is_closed_loop:
            self._send(caller)
        else:
            self._free.append(caller)

    def _send(self, caller: Caller) -> None:
        self.seen.sent += 1
        caller.ask(*self._requests.next())

    async def run_closed(self, seconds: float) -> None:
        self._is_closed_loop = True
        while self._free:
            self._send(self._free.popleft())
        await asyncio.sleep(seconds)
        self._is_closed_loop = False

    async def run_open(self, rate: float, seconds: float) -> None:
        begin = time.perf_counter()
        due = 0
        while (passed := time.perf_counter() - begin) < seconds:
            while due < passed * rate:
                due += 1
                if self._free:
                    self._send(self._free.popleft())
                else:
                    self.seen.missed += 1
            await asyncio.sleep(TICK_S)

    async def drain(self) -> None:
        deadline = time.perf_counter() + DRAIN_S
        while any(caller.is_busy for caller in self._callers):
            if time.perf_counter() > deadline:
                self.seen.wrong["no answer"] += sum(caller.is_busy for caller in self._callers)
                break
            await asyncio.sleep(0.01)
        for caller in self._callers:
            caller.close()


def generate(
    pipe: Pipe, port: int, elements: int, first: int, connections: int, rate: float | None, seconds: float
) -> None:
    """The whole of a generator's process; without a *rate* its loops are closed."""

    async def run() -> Seen:
        generator = Generator(port, Requests(elements, first))
        await generator.connect(connections)
        await (generator.run_closed(seconds) if rate is None else generator.run_open(rate, seconds))
        await generator.drain()
        return generator.seen

    pipe.send(asyncio.run(run()))


class Load:
    """Generators in processes of their own."""

    def __init__(
        self, port: int, *, generators: int, elements: int, connections: int, rate: float | None, seconds: float
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Pipe] = []
        self._processes = []
        for number in range(generators):
            ours, theirs = context.Pipe()
            share = rate / generators if rate is not None else None
            arguments = (theirs, port, elements, number << 40, connections // generators, share, seconds)
            process = context.Process(target=generate, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    @property
    def is_running(self) -> bool:
        return any(process.is_alive() for process in self._processes) and not all(pipe.poll() for pipe in self._pipes)

    def result(self) -> Seen:
        total = Seen()
        for pipe, process in zip(self._pipes, self._processes):
            try:
                seen: Seen = pipe.recv()
            except EOFError:
                raise BenchmarkError("a generator has died") from None
            process.join()
            total.sent += seen.sent
            total.missed += seen.missed
            total.answered += seen.answered
            total.refused += seen.refused
            total.wrong.update(seen.wrong)
        return total


def quantiles(times: list[float]) -> str:
    """Of *times* in seconds: half, 99 of 100, and the longest, in ms."""
    if not times:
        return "none"
    ordered = sorted(times)
    p50, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.99))
    return f"p50 {p50 * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms, max {ordered[-1] * 1e3:.2f} ms"


def memory(server: MeasuredServer) -> int:
    nbytes = server.tree.memory_bytes()
    if nbytes is None:
        raise BenchmarkError("the memory of the server cannot be read")
    return nbytes


def measure(server: MeasuredServer, arguments: argparse.Namespace) -> list[str]:
    """Run it, print what happened, and return what was wrong."""
    port, elements = server.ports.http, max(1, arguments.kib * 128)
    peak = Load(port, generators=1, elements=elements, connections=16, rate=None, seconds=PEAK_S).result()
    peak_rate = len(peak.answered) / PEAK_S
    print(f"peak: {peak_rate:.1f} answers a second to 16 callers; {quantiles(peak.answered)}", flush=True)
    rate = peak_rate * arguments.times
    connections = arguments.limit + max(64, int(rate * 0.1))
    start = memory(server)
    load = Load(
        port,
        generators=arguments.generators,
        elements=elements,
        connections=connections,
        rate=rate,
        seconds=arguments.seconds,
    )
    samples: list[int] = []
    while load.is_running:
        time.sleep(1)
        samples.append(memory(server))
    seen = load.result()
    end = memory(server)
    answered_rate = len(seen.answered) / arguments.seconds
    # The connections themselves, and the queue, are there from the first second on.
    settled = samples[min(len(samples) - 1, 10)]
    growth = max(samples[10:] or samples) - settled
    print(
        f"overload: {rate:.0f} requests a second for {arguments.seconds:g} s over {connections} connections; {seen.sent} sent, "
        f"{seen.missed} not, for want of a connection"
    )
    print(f"answered: {len(seen.answered)}, {answered_rate:.1f} a second, {answered_rate / peak_rate:.1%} of the peak")
    print(f"          {quantiles(seen.answered)}")
    print(f"refused:  {len(seen.refused)}, {quantiles(seen.refused)}")
    print(
        f"memory:   {start / MIB:.1f} MiB before, {settled / MIB:.1f} MiB after ten seconds, {max(samples) / MIB:.1f} MiB at "
        f"most, {end / MIB:.1f} MiB at the end"
    )
    found = [f"{count} × {text}" for text, count in (peak.wrong + seen.wrong).most_common(10)]
    if answered_rate < 0.9 * peak_rate:
        found.append("less than 90 % of the peak was answered")
    if not seen.refused:
        found.append("nothing was refused: that was no overload")
    if seen.missed > 0.1 * (seen.sent + seen.missed):
        found.append("the generators could not send what they should")
    if growth > arguments.allowed_mib * MIB:
        found.append(f"memory has grown by {growth / MIB:.1f} MiB since the tenth second")
    if server.counters(MODEL).failed:
        found.append(f"{server.counters(MODEL).failed} requests failed")
    return found


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=600.0, help="default: %(default)s")
    parser.add_argument("--times", type=float, default=10.0, help="of the peak; default: %(default)s")
    parser.add_argument("--execute-ms", type=float, default=10.0, help="that execute takes; default: %(default)s")
    parser.add_argument("--limit", type=int, default=50, help="MAX_UNANSWERED_REQUESTS; default: %(default)s")
    parser.add_argument("--kib", type=int, default=4, help="of a request's tensor; default: %(default)s")
    parser.add_argument("--generators", type=int, default=2, help="processes; default: %(default)s")
    parser.add_argument("--allowed-mib", type=float, default=16.0, help="growth that is none; default: %(default)s")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)

    def write(models: Path) -> None:
        (models / MODEL / "1").mkdir(parents=True)
        (models / MODEL / "config.pbtxt").write_text(CONFIG.format(limit=arguments.limit))
        code = CODE.format(execute_s=arguments.execute_ms / 1000)
        (models / MODEL / "1" / "model.py").write_text(code)

    return find_faults(
        "overload",
        COMMAND,
        write_models=write,
        measure=lambda server: measure(server, arguments),
        timeout_s=START_TIMEOUT_S,
    )


if __name__ == "__main__":
    sys.exit(main())
