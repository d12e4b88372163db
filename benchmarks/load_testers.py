#!/usr/bin/env python3
"""`pytriton-lite bench` beside wrk and h2load, on one server: whether it finds the same rate, and up to which one it can send.

    python benchmarks/load_testers.py --rounds 3 --seconds 2

In each round every cell is measured with the tool in C and at once with ours: A B A B. Ours runs as people run it, in processes
of its own, with windows; of its rates the median is compared. wrk and ours send requests that differ. h2load has one message
for all, so that ours sends one, too (``--input-data zero``). The model ``paced`` is add_sub with 2 ms of sleep and four
instances: there the server is the limit, and with add_sub on few cores it is the cores that both take from it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmark_error import BenchmarkError
from calls import Protocol
from load_generators import GRACE_S, H2load, Wrk, require_tools, run_bounded
from machine_facts import machine_facts
from measured_server import SERVE, MeasuredServer, free_ports
from scenarios import ADD_SUB

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("add_sub", "paced")


def make_repository(folder: Path) -> Path:
    """``add_sub``, and ``paced``, which is made of it."""
    for name in MODELS:
        shutil.copytree(
            ROOT / "model_repository" / "add_sub", folder / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    config = folder / "paced" / "config.pbtxt"
    text = config.read_text().replace('"add_sub"', '"paced"').replace("kind: KIND_CPU", "kind: KIND_CPU count: 4")
    config.write_text(text)
    answering = "        return [self._answer(request) for request in requests]"
    model = folder / "paced" / "1" / "model.py"
    code = model.read_text().replace("import triton_python", "import time\n\nimport triton_python", 1)
    paced = code.replace(
        answering,
        "        answers = []\n        for request in requests:\n            time.sleep(0.002)\n"
        "            answers.append(self._answer(request))\n        return answers",
    )
    if paced == code or "count: 4" not in text:
        raise BenchmarkError("add_sub is not written as it was: 'paced' cannot be made of it")
    model.write_text(paced)
    return folder


def tool_rate(server: MeasuredServer, model: str, protocol: str, callers: int, seconds: int, folder: Path) -> float:
    """Requests a second, of wrk or h2load. Raises BenchmarkError."""
    call = dataclasses.replace(ADD_SUB.call, model=model)
    if protocol == "http":
        return Wrk(call, Protocol.HTTP_BINARY, folder).run(server.ports, callers=callers, seconds=seconds).per_second
    return H2load(call, Protocol.GRPC_REPEATED, folder).run(server.ports, callers=callers, seconds=seconds).per_second


def our_level(server: MeasuredServer, model: str, protocol: str, callers: int, seconds: int) -> dict[str, object]:
    """What ``bench --json`` says of the level. Raises BenchmarkError."""
    port = server.ports.http if protocol == "http" else server.ports.grpc
    command = [
        sys.executable, "-m", "pytriton_lite", "bench", "-m", model, "-u", f"127.0.0.1:{port}", "-i", protocol,
        "--concurrency-range", str(callers), "--json", "-", "-p", str(round(seconds * 1000 / 3)), "-r", "3", "-s", "1000",
        "--warmup-interval", "300", "--input-data", "random" if protocol == "http" else "zero",
    ]  # fmt: skip
    level: dict[str, object] = json.loads(run_bounded(command, limit_s=8 * seconds + GRACE_S))["levels"][0]
    if level["failed"]:
        raise BenchmarkError(f"bench met errors: {level['errors']}")
    return level


def measure(options: argparse.Namespace, server: MeasuredServer, folder: Path) -> None:
    cells = [
        (model, protocol, callers)
        for model, protocol in ((model, protocol) for model in MODELS for protocol in ("http", "grpc"))
        for callers in options.callers
    ]
    tools: dict[tuple[str, str, int], list[float]] = {cell: [] for cell in cells}
    ours: dict[tuple[str, str, int], list[dict[str, object]]] = {cell: [] for cell in cells}
    for _ in range(options.rounds):
        for cell in cells:
            tools[cell].append(tool_rate(server, *cell, options.seconds, folder))
            ours[cell].append(our_level(server, *cell, options.seconds))
    print("| model | protocol | callers | wrk, h2load | bench | ratio | processes | of a core |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for cell in cells:
        rates = [float(str(level["requests_per_s"])) for level in ours[cell]]
        ratio = statistics.median(our / theirs for our, theirs in zip(rates, tools[cell]))
        middle = sorted(ours[cell], key=lambda level: float(str(level["requests_per_s"])))[len(rates) // 2]
        print(
            f"| {cell[0]} | {cell[1]} | {cell[2]} | {statistics.median(tools[cell]):,.0f} | {statistics.median(rates):,.0f} "
            f"| {ratio:.2f} | {middle['processes']} | {float(str(middle['sender_share_of_core'])):.2f} |"
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="pytriton-lite bench beside wrk and h2load.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=2, help="of each measurement")
    parser.add_argument("--callers", type=lambda text: [int(part) for part in text.split(",")], default=[1, 8, 32])
    parser.add_argument("--server-command", default=SERVE, help=f"default: {SERVE}")
    options = parser.parse_args(argv)
    try:
        require_tools(["wrk", "h2load"])
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            models = make_repository(folder / "models")
            with MeasuredServer.started(
                "ours", options.server_command, models=models, ports=free_ports(), log=folder / "log", timeout_s=60
            ) as server:
                for key, value in machine_facts().items():
                    print(f"* {key}: {value}")
                print()
                measure(options, server, folder)
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
