#!/usr/bin/env python3
"""Front ends in processes of their own: what a request costs the engine, the front ends and the workers, by their number.

    python benchmarks/front_ends.py --front-ends 0,1,2,4 --callers 1,32,128 --rounds 5

The servers run one after the other, each asked by wrk over HTTP/1.1 with the binary extension, every request different. A
round is one run of each. What one engine could serve at most follows from its microseconds per request: it has one thread.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmark_error import BenchmarkError
from calls import Protocol
from load_generators import Wrk, require_tools
from machine_facts import machine_facts
from measured_server import SERVE, MeasuredServer, free_ports
from process_tree import PROC
from scenarios import ADD_SUB

START_TIMEOUT_S = 120.0
WARM_UP_S = 1
PARTS = ("engine", "front ends", "workers")


@dataclass(frozen=True)
class Figures:
    """Of one run: requests a second, and microseconds of CPU per request by part of the server."""

    rate: float
    cpu_us: dict[str, float]


def part_of(pid: int, server: int) -> str:
    """The part of the server that a process is."""
    if pid == server:
        return "engine"
    try:
        name = PROC.joinpath(str(pid), "comm").read_text()
    except FileNotFoundError:  # it has just ended
        return "workers"
    return "front ends" if name.startswith("front end") else "workers"


def cpu_seconds(server: MeasuredServer) -> dict[str, float]:
    """What each part has used up to now."""
    root = server.tree.root
    total: dict[str, float] = defaultdict(float)
    for stat in server.tree.members():
        total[part_of(stat.pid, root)] += stat.cpu_ticks / os.sysconf("SC_CLK_TCK")
    return total


def measure(models: Path, folder: Path, *, front_ends: int, callers: int, seconds: int) -> Figures:
    """Start a server, load it, and end it."""
    command = f"{SERVE} --frontends={front_ends}"
    ports = free_ports()
    log = folder / "server.log"
    with MeasuredServer.started(
        "ours", command, models=models, ports=ports, log=log, timeout_s=START_TIMEOUT_S
    ) as server:
        load = Wrk(ADD_SUB.call, Protocol.HTTP_BINARY, folder)
        load.run(ports, callers=callers, seconds=WARM_UP_S)
        before = cpu_seconds(server)
        done = load.run(ports, callers=callers, seconds=seconds)
        after = cpu_seconds(server)
        assert done.answered is not None  # wrk tells
        used = {part: (after[part] - before[part]) / done.answered * 1e6 for part in PARTS}
        return Figures(done.per_second, used)


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--front-ends", type=numbers, default=[0, 1, 2], help="numbers of them (default 0,1,2)")
    parser.add_argument("--callers", type=numbers, default=[1, 32, 128], help="connections (default 1,32,128)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4, help="of load in each run (default 4)")
    chosen = parser.parse_args(arguments)
    found: dict[tuple[int, int], list[Figures]] = defaultdict(list)
    try:
        require_tools(["wrk"])
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            models = folder / "models"
            models.mkdir()
            (models / "add_sub").symlink_to(Path(__file__).resolve().parent.parent / "model_repository" / "add_sub")
            for round_ in range(chosen.rounds):
                for callers in chosen.callers:
                    for front_ends in chosen.front_ends:
                        print(f"round {round_ + 1}: {front_ends} front ends, {callers} callers", file=sys.stderr)
                        run = measure(models, folder, front_ends=front_ends, callers=callers, seconds=chosen.seconds)
                        found[callers, front_ends].append(run)
    except BenchmarkError as error:
        print(error, file=sys.stderr)
        return 1
    for name, fact in machine_facts().items():
        print(f"{name}: {fact}")
    print(
        "\n| callers | front ends | requests/s | engine us | front ends us | workers us | one engine at most, requests/s |"
    )
    print("|---|---|---|---|---|---|---|")
    for (callers, front_ends), runs in found.items():
        us = {part: statistics.median(run.cpu_us[part] for run in runs) for part in PARTS}
        rate = statistics.median(run.rate for run in runs)
        cells = [f"{us[part]:.1f}" for part in PARTS]
        print(f"| {callers} | {front_ends} | {rate:,.0f} | {' | '.join(cells)} | {1e6 / us['engine']:,.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
