#!/usr/bin/env python3
"""How soon the next good answer comes after an execution that never ends, and after the death of a worker.

    python benchmarks/recovery.py --rounds 100 --limit 0.2

A model of one instance, asked by one client over HTTP. In each round of the first kind ``execute`` sleeps for ever, and another
request waits behind it; in each of the second the idle worker gets ``kill -9``, and the client asks until it gets an answer.
The exit code is 1 when an answer is not what it should be.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from pytriton_lite.testing.server import RunningServer

MODEL = """
import os
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            value = request.inputs()[0].as_numpy()
            if value[0] == 1:
                time.sleep(1e9)
            value[0] = os.getpid()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("PID", value)]))
        return answers
"""
CONFIG = """
backend: "python"
input { name: "STUCK" data_type: TYPE_INT64 dims: [ 1 ] }
output { name: "PID" data_type: TYPE_INT64 dims: [ 1 ] }
"""
GOOD, STUCK = 0, 1


class WrongAnswer(Exception):
    """What came is not what should."""


class Client:
    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, value: int) -> tuple[int, int]:
        """The status, and the pid of the worker that answered, 0 with an error."""
        given = {"name": "STUCK", "datatype": "INT64", "shape": [1], "data": [value]}
        self._connection.request("POST", "/v2/models/m/infer", json.dumps({"inputs": [given]}))
        reply = self._connection.getresponse()
        document = json.loads(reply.read())
        return reply.status, document["outputs"][0]["data"][0] if reply.status == 200 else 0

    def good(self) -> int:
        """The pid of the worker. Raises WrongAnswer."""
        status, pid = self.ask(GOOD)
        if status != 200:
            raise WrongAnswer(f"a good request got {status}")
        return pid


def stuck(client: Client, behind: Client, limit_s: float) -> tuple[float, float]:
    """Milliseconds by which the answer to a stuck request is later than its limit, and until one behind it is served."""
    served: list[float] = []

    def wait_behind() -> None:
        behind.good()
        served.append(time.monotonic())

    begin = time.monotonic()
    waiting = threading.Timer(limit_s / 2, wait_behind)
    waiting.start()
    status, _ = client.ask(STUCK)
    answered = time.monotonic()
    waiting.join()
    if status != 504 or not served:
        raise WrongAnswer(f"a stuck request got {status}, the one behind it {'an' if served else 'no'} answer")
    return (answered - begin - limit_s) * 1e3, (served[0] - answered) * 1e3


def killed(client: Client) -> tuple[float, int]:
    """Milliseconds from ``kill -9`` of an idle worker to the next good answer, and how many requests failed before it."""
    os.kill(client.good(), signal.SIGKILL)
    begin = time.monotonic()
    failed = 0
    while True:
        status, _ = client.ask(GOOD)
        if status == 200:
            return (time.monotonic() - begin) * 1e3, failed
        if status != 503:
            raise WrongAnswer(f"a request after the death of a worker got {status}")
        failed += 1


def row(name: str, values: Sequence[float]) -> str:
    return f"| {name} | {statistics.median(values):.1f} | {max(values):.1f} |"


def measure(rounds: int, limit_s: float) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        version = Path(folder, "m", "1")
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL)
        (version.parent / "config.pbtxt").write_text(CONFIG)
        with RunningServer(folder, flags=(f"--execution-timeout-secs={limit_s}",)) as server:
            client, behind = Client(server.http_port), Client(server.http_port)
            client.good()
            deaths = [killed(client) for _ in range(rounds)]
            late, next_good = zip(*(stuck(client, behind, limit_s) for _ in range(rounds)))
    failed = sum(count for _, count in deaths)
    return [
        "| ms | p50 | max |",
        "|---|---:|---:|",
        row(f"a stuck `execute`: its answer, after the limit of {limit_s:g} s", late),
        row("from there to the answer of the request behind it", next_good),
        row("`kill -9` of a worker to the next good answer", [took for took, _ in deaths]),
        f"\n{rounds} rounds of each; {failed} requests failed because they met a dead worker",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--limit", type=float, default=0.2, metavar="SECONDS")
    options = parser.parse_args()
    try:
        print("\n".join(measure(options.rounds, options.limit)))
    except WrongAnswer as wrong:
        print(f"wrong: {wrong}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
