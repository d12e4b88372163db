"""The `linear` example of PyTriton beside PyTriton itself: one program, two imports, the same load in the same run.

    python benchmarks/pytriton.py --pytriton-python DIR/bin/python [--python DIR/bin/python] [--seconds 3]

Each interpreter needs PyTorch; the first has ``nvidia-pytriton`` 0.7, the second pytriton-lite, or this checkout on its path.
The server's ports are PyTriton's: 8000 to 8002 have to be free. wrk asks over HTTP, ``pytriton-lite bench`` of this
checkout over gRPC, one row of 20 numbers in each request.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
import typing
import urllib.error
import urllib.request
from pathlib import Path

from load_generators import run_wrk_with
from measured_server import Ports

PROJECT = Path(__file__).resolve().parents[1]

PROGRAM = """
import sys

import numpy as np
import torch
from {package}.decorators import batch
from {package}.model_config import ModelConfig, Tensor
from {package}.triton import Triton

torch.manual_seed(0)
layer = torch.nn.Linear(20, 30).eval()


@batch
def infer(**inputs):
    (rows,) = inputs.values()
    return [layer(torch.from_numpy(rows)).detach().numpy()]


with Triton() as triton:
    triton.bind(
        model_name="Linear",
        infer_func=infer,
        inputs=[Tensor(dtype=np.float32, shape=(-1,))],
        outputs=[Tensor(dtype=np.float32, shape=(-1,))],
        config=ModelConfig(max_batch_size=128),
        strict=True,
        {more}
    )
    triton.serve()
"""
_READY_S = 120.0
_END_S = 40.0


class Candidate(typing.NamedTuple):
    """One way to serve the program."""

    name: str
    python: str
    package: str
    more: str = ""


class Load(typing.NamedTuple):
    """What is asked: a protocol, and how many requests at a time."""

    protocol: str
    callers: int


LOADS = [Load(protocol, callers) for callers in (1, 32) for protocol in ("http", "grpc")]


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pytriton-python", required=True, help="interpreter that has nvidia-pytriton and torch")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has torch, for this server")
    parser.add_argument("--seconds", type=int, default=3, help="length of a window")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    options = parser.parse_args()
    candidates = [
        Candidate("PyTriton", options.pytriton_python, "pytriton"),
        Candidate("one changed import", options.python, "pytriton_lite.pytriton"),
        Candidate("the same, in_process=False", options.python, "pytriton_lite.pytriton", "in_process=False,"),
    ]
    found = {candidate.name: measure(candidate, options.seconds) for candidate in candidates}
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))
    return 0


def measure(candidate: Candidate, seconds: int) -> dict[str, float]:
    """Requests per second under each load."""
    program = PROGRAM.format(package=candidate.package, more=candidate.more)
    environ = {**os.environ, "PYTHONPATH": str(PROJECT)} if candidate.package != "pytriton" else dict(os.environ)
    server = subprocess.Popen(
        [candidate.python, "-c", program],
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    try:
        wait_ready(server)
        return {f"{load.protocol}, {load.callers}": rate(load, seconds) for load in LOADS}
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(_END_S)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def wait_ready(server: subprocess.Popen[bytes]) -> None:
    """Return when the model serves. Raises RuntimeError where the program ends, or takes too long."""
    end = time.monotonic() + _READY_S
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"the program has ended with status {server.returncode}")
        try:
            with urllib.request.urlopen("http://127.0.0.1:8000/v2/models/Linear/ready"):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise RuntimeError("the model is not ready")


def rate(load: Load, seconds: int) -> float:
    """Answers per second: of HTTP by wrk, which leaves most of the machine to the server; of gRPC by ``bench``."""
    if load.protocol == "http":
        with tempfile.TemporaryDirectory() as folder:
            ports = Ports(8000, 8001, 8002)
            for length in (1, 3 * seconds):  # to warm up, and to count
                found = run_wrk_with([infer_request()], Path(folder), ports, callers=load.callers, seconds=length)
        return found.per_second
    command = [
        *(sys.executable, "-m", "pytriton_lite", "bench", "-m", "Linear", "-u", "127.0.0.1:8001", "-i", "grpc"),
        *("--concurrency-range", str(load.callers), "--shape", "INPUT_1:20", "--json", "-", "--processes", "1"),
        *("--measurement-interval", str(1000 * seconds), "--max-trials", "5"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT)
    if done.returncode not in (0, 2):  # 2: not steady
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return read_rate(json.loads(done.stdout))


def infer_request() -> bytes:
    """A whole request over HTTP/1.1, its one row of 20 numbers in binary, as PyTriton's client sends it."""
    row = struct.pack("<20f", *range(20))
    tensor = {"name": "INPUT_1", "shape": [1, 20], "datatype": "FP32", "parameters": {"binary_data_size": len(row)}}
    output = {"name": "OUTPUT_1", "parameters": {"binary_data": True}}
    head = json.dumps({"inputs": [tensor], "outputs": [output]}).encode()
    lines = [
        "POST /v2/models/Linear/infer HTTP/1.1",
        "Host: 127.0.0.1:8000",
        f"Inference-Header-Content-Length: {len(head)}",
        f"Content-Length: {len(head) + len(row)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + head + row


def read_rate(report: dict[str, typing.Any]) -> float:
    """Answers per second in a report of ``bench``. Raises RuntimeError where answers were wrong."""
    (level,) = report["levels"]
    if level["failed"]:
        raise RuntimeError(f"{level['failed']} answers were wrong: {level['errors']}")
    return float(level["requests_per_s"])


def table(found: dict[str, dict[str, float]]) -> str:
    """Markdown: a row for each load, requests per second, and how many times PyTriton's."""
    names = list(found)
    lines = [f"| requests/s | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    for load in found[names[0]]:
        base = found[names[0]][load]
        cells = [
            f"{base:,.0f}",
            *(f"{found[name][load]:,.0f} ({found[name][load] / base:.1f} times)" for name in names[1:]),
        ]
        lines.append(f"| {load} at a time | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
