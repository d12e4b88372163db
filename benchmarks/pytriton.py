"""The `linear` example of PyTriton beside PyTriton itself: one program, two imports, the same load in the same run.

    python benchmarks/pytriton.py --pytriton-python DIR/bin/python --python DIR/bin/python \\
        --build interpreted=. --build compiled=build/compiled --rounds 5 --seconds 2

Each interpreter needs PyTorch; the first has ``nvidia-pytriton`` 0.7, the second what pytriton-lite needs. A build is a folder
with the package ``pytriton_lite``, this checkout or the copy that ``make compiled`` has made.

All servers run from the begin to the end, each on ports of its own. In a round every load is measured on one after the other,
so that what disturbs the machine for a while disturbs all. Requests are one row of 20 numbers each, and differ in their ids
and numbers; wrk asks over HTTP, `grpc_load` over gRPC. Before anything is measured, the answers of all servers are compared.

Shown are medians: requests per second and how many times PyTriton's, rows in a call of the function, and with ``--profile``
CPU time for each request, of each thread with a name of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import typing
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from calls import HEADER_LENGTH, Call, Protocol, http_path, http_request
from load_generators import GrpcLoad, Wrk, require_tools
from machine_facts import machine_facts
from measured_server import Ports, free_ports
from process_tree import ProcessTree, thread_times

PROJECT = Path(__file__).resolve().parents[1]

PROGRAM = """
import sys

import numpy as np
import torch
from {package}.decorators import batch
from {package}.model_config import ModelConfig, Tensor
from {package}.triton import Triton, TritonConfig

torch.manual_seed(0)
layer = torch.nn.Linear(20, 30).eval()


@batch
def infer(**inputs):
    (rows,) = inputs.values()
    return [layer(torch.from_numpy(rows)).detach().numpy()]


with Triton(config=TritonConfig(http_port={http_port}, grpc_port={grpc_port}, metrics_port={metrics_port}){server}) as triton:
    triton.bind(
        model_name="Linear",
        infer_func={functions},
        inputs=[Tensor(dtype=np.float32, shape=(-1,))],
        outputs=[Tensor(dtype=np.float32, shape=(-1,))],
        config=ModelConfig(max_batch_size=128),
        strict=True,
        {more}
    )
    triton.serve()
"""
"""PyTriton's examples/linear_random_pytorch/server.py on the CPU, with a layer that is the same in all servers, and ports."""

CALL = Call("Linear", {"INPUT_1": np.arange(20, dtype=np.float32).reshape(1, 20)}, ())
_COMPARED = 16
_READY_S = 120.0
_END_S = 40.0
_WARM_UP_S = 1


class Candidate(typing.NamedTuple):
    """One way to serve the program."""

    name: str
    python: str
    package: str
    path: str = ""
    """The folder that has the package, "" where the interpreter finds it."""
    more: str = ""
    """Further arguments of `bind`."""
    functions: str = "infer"
    server: str = ""
    """Further arguments of `Triton`."""


class Load(typing.NamedTuple):
    """What is asked: a protocol, and how many requests at a time."""

    protocol: Protocol
    callers: int

    def __str__(self) -> str:
        return f"{'gRPC' if self.protocol is Protocol.GRPC else 'HTTP'}, {self.callers}"


PROTOCOLS = (Protocol.HTTP_BINARY, Protocol.GRPC)


class Window(typing.NamedTuple):
    """What one server did under one load."""

    per_second: float
    rows: float
    """Requests in a call of the function."""
    cpu_us: dict[str, float]
    """CPU time for each request, by thread; that of the load generator is ``load``."""


_POLLING = ", server_options={'busy_poll_us': 200}"
_WAYS: dict[str, tuple[str, ...]] = {
    "threads": ("", "infer"),
    "processes": ("in_process=False,", "infer"),
    "two-threads": ("", "[infer, infer]"),
    "two-processes": ("in_process=False,", "[infer, infer]"),
    "polling-threads": ("", "infer", _POLLING),
    "polling-processes": ("in_process=False,", "infer", _POLLING),
}
"""Further arguments of `bind`, what is bound, and further arguments of `Triton`, by name of a way to serve."""


def main() -> int:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pytriton-python", required=True, help="interpreter that has nvidia-pytriton and torch")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has torch, for this server")
    parser.add_argument(
        "--build", action="append", metavar="NAME=FOLDER", help="a folder with pytriton_lite; repeatable"
    )
    parser.add_argument("--ways", default="threads,processes", help=f"of {', '.join(_WAYS)}")
    parser.add_argument(
        "--threads", type=int, help="OMP_NUM_THREADS of every program; else PyTorch takes one for each core"
    )
    parser.add_argument("--callers", default="1,32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=2, help="length of a window")
    parser.add_argument("--profile", action="store_true", help="print CPU time by thread, too")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    options = parser.parse_args()
    require_tools(["wrk"])
    builds = [build.split("=", 1) for build in options.build or [f"interpreted={PROJECT}"]]
    candidates = [
        Candidate("PyTriton", options.pytriton_python, "pytriton"),
        *(
            Candidate(
                f"{build}, {way}", options.python, "pytriton_lite.pytriton", str(Path(folder).resolve()), *_WAYS[way]
            )
            for build, folder in builds
            for way in options.ways.split(",")
        ),
    ]
    callers = [int(count) for count in options.callers.split(",")]
    loads = [Load(protocol, count) for count in callers for protocol in PROTOCOLS]
    environ = {} if options.threads is None else {"OMP_NUM_THREADS": str(options.threads)}
    with contextlib.ExitStack() as stack:
        servers = {each.name: stack.enter_context(serving(each, environ)) for each in candidates}
        compare(servers)
        found = measure(servers, loads, rounds=options.rounds, seconds=options.seconds)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    for name, fact in machine_facts().items():
        print(f"* {name}: {fact}")
    print(table(found))
    if options.profile:
        print(profile(found))
    return 0


class Served(typing.NamedTuple):
    """A program that serves."""

    ports: Ports
    tree: ProcessTree


@contextlib.contextmanager
def serving(candidate: Candidate, environ: dict[str, str]) -> Iterator[Served]:
    """The program of *candidate* with *environ* beside what is there, until the block ends.

    Raises RuntimeError if it does not start.
    """
    ports = free_ports()
    found_by = {"PYTHONPATH": candidate.path} if candidate.path else {}
    server = subprocess.Popen(
        [candidate.python, "-c", program(candidate, ports)],
        env={**os.environ, **found_by, **environ},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    try:
        wait_ready(server, ports)
        yield Served(ports, ProcessTree(server.pid))
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(_END_S)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def program(candidate: Candidate, ports: Ports) -> str:
    """What is run: the same for all but for the import, ports, and what a candidate says more."""
    return PROGRAM.format(
        package=candidate.package,
        functions=candidate.functions,
        more=candidate.more,
        server=candidate.server,
        http_port=ports.http,
        grpc_port=ports.grpc,
        metrics_port=ports.metrics,
    )


def wait_ready(server: subprocess.Popen[bytes], ports: Ports) -> None:
    """Return when the model serves. Raises RuntimeError where the program ends, or takes too long."""
    end = time.monotonic() + _READY_S
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"the program has ended with status {server.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{ports.http}/v2/models/Linear/ready"):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise RuntimeError("the model is not ready")


def compare(servers: dict[str, Served]) -> None:
    """Ask all servers the same. Raises RuntimeError where one answers otherwise than the first."""
    calls = CALL.over(Protocol.HTTP_BINARY)[:_COMPARED]
    answers = {name: np.array([ask(served.ports, call) for call in calls]) for name, served in servers.items()}
    (first, expected), *others = answers.items()
    for name, answer in others:
        if not np.allclose(answer, expected, rtol=1e-4):
            raise RuntimeError(f"{name} does not answer as {first} does")


def ask(ports: Ports, call: Call) -> np.ndarray[typing.Any, np.dtype[np.float32]]:
    """The output of *call*, 30 numbers."""
    request = http_request(call, Protocol.HTTP_BINARY)
    url = f"http://127.0.0.1:{ports.http}{http_path(call)}"
    with urllib.request.urlopen(urllib.request.Request(url, request.body, dict(request.headers))) as response:
        return np.frombuffer(response.read()[int(response.headers[HEADER_LENGTH]) :], np.float32)


# ---------------------------------------------------------------------------------------------------- windows

Found = dict[str, dict[str, list[Window]]]
"""Windows by load and candidate, one for each round."""


def measure(servers: dict[str, Served], loads: Sequence[Load], *, rounds: int, seconds: int) -> Found:
    """All windows, the candidates of a load one after the other."""
    found: Found = {str(load): {name: [] for name in servers} for load in loads}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for load in loads:
                for name, served in servers.items():
                    if number == 0:
                        send(served.ports, load, Path(folder), _WARM_UP_S)
                    found[str(load)][name].append(window(served, load, Path(folder), seconds))
    return found


def window(served: Served, load: Load, folder: Path, seconds: int) -> Window:
    """One server under one load for so long."""
    pids = [stat.pid for stat in served.tree.alive()]
    counted, before, own = counts(served.ports), thread_times(pids), os.times()
    rate = send(served.ports, load, folder, seconds)
    behind, after, end = counts(served.ports), thread_times(pids), os.times()
    requests, calls = (later - earlier for later, earlier in zip(behind, counted))
    names: Counter[str] = Counter()
    for thread, (name, nanoseconds) in after.items():
        names[name] += nanoseconds - before.get(thread, (name, 0))[1]
    cpu_us = {name: nanoseconds / 1e3 / requests for name, nanoseconds in names.items()}
    load_s = sum(end[2:4]) - sum(own[2:4])  # of children that have ended
    return Window(rate, requests / calls, {**cpu_us, "load": load_s * 1e6 / requests})


def send(ports: Ports, load: Load, folder: Path, seconds: int) -> float:
    """Answers per second. Raises BenchmarkError where one is an error."""
    generator = GrpcLoad if load.protocol is Protocol.GRPC else Wrk
    return generator(CALL, load.protocol, folder).run(ports, callers=load.callers, seconds=seconds).per_second


def counts(ports: Ports) -> tuple[float, float]:
    """Requests, and calls of the function, that the server has counted."""
    with urllib.request.urlopen(f"http://127.0.0.1:{ports.metrics}/metrics") as response:
        page = response.read().decode()
    return _sample(page, "nv_inference_count"), _sample(page, "nv_inference_exec_count")


def _sample(page: str, metric: str) -> float:
    """Raises RuntimeError where *page* has none."""
    found = re.search(rf'^{metric}{{.*model="Linear".*}} (.+)$', page, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"the metrics have no {metric} of the model")
    return float(found[1])


# ---------------------------------------------------------------------------------------------------- tables


def table(found: Found) -> str:
    """Markdown: a row for each load, medians of requests per second, and how many times the first candidate's."""
    names = list(next(iter(found.values())))
    lines = [f"| requests/s | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for load, by_name in found.items():
        base, *others = by_name.values()
        cells = [_rate(base), *(f"{_rate(windows)} ({_times(windows, base)})" for windows in others)]
        lines.append(f"| {load} at a time | {' | '.join(cells)} |")
        rows = [f"{statistics.median(one.rows for one in windows):.1f}" for windows in by_name.values()]
        lines.append(f"| … rows in a call | {' | '.join(rows)} |")
        cpu = [f"{statistics.median(map(_server_us, windows)):,.0f}" for windows in by_name.values()]
        lines.append(f"| … CPU µs a request, server | {' | '.join(cpu)} |")
        load_us = [f"{statistics.median(one.cpu_us['load'] for one in windows):.0f}" for windows in by_name.values()]
        lines.append(f"| … and load generator | {' | '.join(load_us)} |")
    return "\n".join(lines)


def _rate(windows: Sequence[Window]) -> str:
    return f"{statistics.median(one.per_second for one in windows):,.0f}"


def _times(windows: Sequence[Window], base: Sequence[Window]) -> str:
    """The median of the ratios of single rounds, and the outermost of them."""
    ratios = [one.per_second / other.per_second for one, other in zip(windows, base)]
    return f"{statistics.median(ratios):.1f} times, {min(ratios):.1f}–{max(ratios):.1f}"


def _server_us(window: Window) -> float:
    return sum(took for name, took in window.cpu_us.items() if name != "load")


def profile(found: Found) -> str:
    """Markdown: where the CPU time of a request went, medians in µs, threads with less than one left out."""
    lines = ["| load | server | CPU µs a request, by thread |", "|---|---|---|"]
    for load, by_name in found.items():
        for name, windows in by_name.items():
            threads = {thread for one in windows for thread in one.cpu_us}
            took = {thread: statistics.median(one.cpu_us.get(thread, 0.0) for one in windows) for thread in threads}
            most = sorted(((us, thread) for thread, us in took.items() if us >= 1), reverse=True)
            lines.append(f"| {load} | {name} | {', '.join(f'{thread} {us:.0f}' for us, thread in most)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
