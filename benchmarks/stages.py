#!/usr/bin/env python3
"""Where the time of a request goes, stage by stage, from the trace that a server writes of one request in ten.

    python benchmarks/stages.py --servers ours 'before=env PYTHONPATH=../before {python} -m pytriton_lite serve …'

Each server is `NAME=COMMAND`, or `ours`; the options of the trace, which are Triton's, are put behind the command. The model is
add_sub, over HTTP with the binary extension, every request different. Shown are medians in microseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmark_error import BenchmarkError
from calls import Protocol
from growth import START_TIMEOUT_S
from load_generators import Wrk, require_tools
from machine_facts import machine_facts
from measured_server import SERVE, MeasuredServer, free_ports
from scenarios import ADD_SUB

STAGES: Mapping[str, tuple[str, str]] = {
    "head and body come": ("HTTP_RECV_START", "HTTP_RECV_END"),
    "read and checked": ("HTTP_RECV_END", "QUEUE_START"),
    "to the model's process": ("QUEUE_START", "COMPUTE_START"),
    "inputs": ("COMPUTE_START", "COMPUTE_INPUT_END"),
    "execute": ("COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"),
    "outputs": ("COMPUTE_OUTPUT_START", "COMPUTE_END"),
    "back to the server": ("COMPUTE_END", "REQUEST_END"),
    "answer made": ("REQUEST_END", "HTTP_SEND_START"),
    "answer written": ("HTTP_SEND_START", "HTTP_SEND_END"),
    "all of it": ("HTTP_RECV_START", "HTTP_SEND_END"),
}


def read_traces(text: str) -> list[dict[str, int]]:
    """Stations of each request in a trace file, in nanoseconds by name; those without a name are passed over."""
    found: dict[int, dict[str, int]] = defaultdict(dict)
    for row in json.loads(text):
        for stamp in row.get("timestamps", ()):
            found[row["id"]][stamp["name"]] = stamp["ns"]
    return list(found.values())


def stage_us(traces: Iterable[Mapping[str, int]]) -> dict[str, float]:
    """The median of each stage, over the requests that have both of its ends."""
    took: dict[str, list[float]] = defaultdict(list)
    for trace in traces:
        for stage, (begin, end) in STAGES.items():
            if begin in trace and end in trace:
                took[stage].append((trace[end] - trace[begin]) / 1e3)
    return {stage: statistics.median(times) for stage, times in took.items()}


def measure(name: str, command: str, callers: int, seconds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="stages_") as temporary:
        folder = Path(temporary)
        models = folder / "models"
        models.mkdir()
        (models / "add_sub").symlink_to(Path(__file__).resolve().parent.parent / "model_repository" / "add_sub")
        trace = folder / "trace.json"
        options = f" --trace-config=triton,file={trace} --trace-config=rate=10 --trace-config=level=TIMESTAMPS"
        load = Wrk(ADD_SUB.call, Protocol.HTTP_BINARY, folder)
        with MeasuredServer.started(
            name,
            command + options,
            models=models,
            ports=free_ports(),
            log=folder / "server.log",
            timeout_s=START_TIMEOUT_S,
        ) as server:
            load.run(server.ports, callers=callers, seconds=seconds)
        traces = read_traces(trace.read_text())
        if not traces:
            raise BenchmarkError(f"{name} has written no trace")
        return stage_us(traces[len(traces) // 4 :])  # the first ones warm it up


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", nargs="+", default=["ours"], metavar="NAME=COMMAND")
    parser.add_argument("--callers", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args(arguments)
    commands = dict(text.split("=", 1) if "=" in text else (text, SERVE) for text in chosen.servers)
    found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in commands}
    try:
        require_tools(["wrk"])
        for _ in range(chosen.rounds):
            for name, command in commands.items():
                for stage, took in measure(name, command, chosen.callers, chosen.seconds).items():
                    found[name][stage].append(took)
    except BenchmarkError as error:
        print(f"stages: {error}", file=sys.stderr)
        return 1
    for fact, value in machine_facts().items():
        print(f"{fact}: {value}")
    print(f"\n{chosen.callers} callers, medians of {chosen.rounds} rounds, µs\n")
    print(f"| stage | {' | '.join(commands)} |")
    print("|---|" + "---:|" * len(commands))
    for stage in STAGES:
        cells = [f"{statistics.median(found[name][stage]):.1f}" if found[name][stage] else "–" for name in commands]
        print(f"| {stage} | {' | '.join(cells)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
