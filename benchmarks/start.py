#!/usr/bin/env python3
"""A server that starts with its models: how long until it is ready, what that costs, and the memory of it when it rests.

    python benchmarks/start.py --models 1,20 --rounds 5 --peer-command 'tritonserver …'

In each round every server is started once with each number of models, by turns, and once before that, which does not count: a
first start writes bytecode, and reads its files from the disk. Ready is the first 200 of /v2/health/ready, asked for every
10 ms; memory is that of all its processes some seconds later, pages that n processes share counted as 1/n for each. Others on
the machine with the same interpreter have a share of its pages: nothing else should run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from benchmark_error import BenchmarkError
from machine_facts import machine_facts
from many_models import commands_by_side, memory_bytes, started, write_models
from measured_server import SERVE


@dataclass(frozen=True)
class Figures:
    """Of one start."""

    ready_s: float
    cpu_s: float
    memory_mib: float


TITLES = {"ready_s": "ready (s)", "cpu_s": "CPU until then (s)", "memory_mib": "memory (MiB)"}


def measure(side: str, command: str, models: Path, folder: Path, settle_s: float) -> Figures:
    began = time.perf_counter()
    with started(side, command, models, folder) as server:
        ready_s = time.perf_counter() - began
        cpu_s = server.tree.cpu_seconds() or 0.0
        time.sleep(settle_s)
        return Figures(ready_s, cpu_s, memory_bytes(server) / (1 << 20))


def report(found: dict[tuple[int, str], list[Figures]], counts: Sequence[int], sides: Sequence[str]) -> None:
    for key, value in machine_facts().items():
        print(f"* {key}: {value}")
    has_peer = len(sides) > 1
    print(f"\n| models | | {' | '.join(sides)} |{' ours/peer |' * has_peer}")
    print("| ---: | --- |" + " ---: |" * (len(sides) + has_peer))
    for count in counts:
        for item in fields(Figures):
            columns = [[getattr(row, item.name) for row in found[count, side]] for side in sides]
            cells = [f"{statistics.median(column):,.2f}" for column in columns]
            if has_peer:
                ratios = [ours / (peer or 1e-9) for ours, peer in zip(*columns)]
                cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})")
            print(f"| {count} | {TITLES[item.name]} | {' | '.join(cells)} |")


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", default="1,20", help="numbers of models; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--settle-seconds", type=float, default=3, help="until it rests; default: %(default)s")
    parser.add_argument("--command", default=SERVE, help="how to start ours; default: %(default)s")
    parser.add_argument("--peer-command", default="", help="how to start a peer")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    commands = commands_by_side(arguments)
    found: dict[tuple[int, str], list[Figures]] = defaultdict(list)
    try:
        counts = [int(word) for word in arguments.models.split(",")]
        with tempfile.TemporaryDirectory(prefix="start_") as temporary:
            folder = Path(temporary)
            for count in counts:
                write_models(folder / f"models_{count}", count)
            for side, command in commands.items():
                measure(side, command, folder / f"models_{counts[0]}", folder, 0)
            for _ in range(arguments.rounds):
                for count in counts:
                    for side, command in commands.items():
                        models = folder / f"models_{count}"
                        found[count, side].append(measure(side, command, models, folder, arguments.settle_seconds))
    except (BenchmarkError, ValueError) as error:
        print(f"start: {error}", file=sys.stderr)
        return 2
    report(found, counts, list(commands))
    return 0


if __name__ == "__main__":
    sys.exit(main())
