"""Ray Serve on this machine: throughput beside a plain deployment, what deaths cost, and replicas that follow the load.

    .venv-ray/bin/python -m benchmarks.ray_serve throughput
    .venv-ray/bin/python -m benchmarks.ray_serve faults
    .venv-ray/bin/python -m benchmarks.ray_serve scaling

Needs the environment of `make test-ray`, and wrk for the first. Load is closed: each caller sends its next request when the
last one was answered, over one connection, and tries nothing again.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import http.client
import json
import os
import re
import signal
import socket
import statistics
import struct
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
MODELS = PROJECT / "model_repository"
ONE_CPU = {"num_cpus": 0.5}
VALUES = [1.0, 2.0, 3.0, 4.0]
JSON_BODY = json.dumps(
    {"inputs": [{"name": name, "datatype": "FP32", "shape": [4], "data": VALUES} for name in ("INPUT0", "INPUT1")]}
).encode()
PLAIN_BODY = json.dumps({"INPUT0": VALUES, "INPUT1": VALUES}).encode()
_DOCUMENT = json.dumps(
    {
        "inputs": [
            {"name": name, "datatype": "FP32", "shape": [4], "parameters": {"binary_data_size": 16}}
            for name in ("INPUT0", "INPUT1")
        ],
        "parameters": {"binary_data_output": True},
    }
).encode()
BINARY_BODY = _DOCUMENT + 2 * struct.pack("<4f", *VALUES)
BINARY_HEADERS = {"Inference-Header-Content-Length": str(len(_DOCUMENT))}
SLOW = """
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            time.sleep(0.02)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())]))
        return responses
"""
SLOW_CONFIG = """
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "INPUT1" data_type: TYPE_FP32 dims: [ 4 ] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] }]
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port: int = bound.getsockname()[1]
        return port


@contextlib.contextmanager
def cluster() -> Iterator[int]:
    """A cluster of this machine, with Serve; the port of its HTTP proxy."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray import serve

    port = free_port()
    ray.init(
        num_cpus=8,
        object_store_memory=100 << 20,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )
    serve.start(
        proxy_location="HeadOnly",
        http_options={"host": "127.0.0.1", "port": port},
        logging_config={"enable_access_log": False},
    )
    try:
        yield port
    finally:
        serve.shutdown()
        ray.shutdown()


def plain_application() -> Any:
    """add_sub as the guide of Ray Serve would write it: a class, JSON in, JSON out."""
    import numpy as np
    from ray import serve
    from starlette.requests import Request

    @serve.deployment(max_ongoing_requests=256, ray_actor_options=ONE_CPU, logging_config={"enable_access_log": False})
    class AddSub:
        async def __call__(self, request: Request) -> dict[str, list[float]]:
            body = await request.json()
            left, right = (np.array(body[name], np.float32) for name in ("INPUT0", "INPUT1"))
            return {"OUTPUT0": (left + right).tolist(), "OUTPUT1": (left - right).tolist()}

    return AddSub.bind()


def options(**more: Any) -> dict[str, Any]:
    return {"ray_actor_options": ONE_CPU, "logging_config": {"enable_access_log": False}, **more}


# Throughput ------------------------------------------------------------------------------------------------------------------


def wrk(url: str, body: bytes, headers: dict[str, str], callers: int, seconds: int) -> tuple[float, float]:
    """Requests a second, and the median in milliseconds. Raises RuntimeError for an answer that is none."""
    escaped = "".join(f"\\{byte:03d}" for byte in body)
    lines = [
        f'wrk.method = "POST"\nwrk.body = "{escaped}"',
        *(f'wrk.headers["{k}"] = "{v}"' for k, v in headers.items()),
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write("\n".join(lines))
        script.flush()
        command = ["wrk", "-t1", f"-c{callers}", f"-d{seconds}s", "--latency", "-s", script.name, url]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in told or "Socket errors" in told:
        raise RuntimeError(told)
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", told)[1])  # type: ignore[index]
    number, unit = re.search(r"50%\s+([\d.]+)(us|ms|s)", told).groups()  # type: ignore[union-attr]
    return rate, float(number) * {"us": 1e-3, "ms": 1, "s": 1e3}[unit]


def throughput(seconds: int, rounds: int) -> None:
    """Each subject after the other, one replica each, again and again."""
    from ray import serve

    import pytriton_lite.ray

    flags = [f"--{listener}-address=127.0.0.1" for listener in ("http", "grpc", "metrics")]
    with cluster() as port:
        serve.run(plain_application(), name="plain", route_prefix="/plain")
        serve.run(
            pytriton_lite.ray.app(str(MODELS), load_model="add_sub", deployment=options()),
            name="app",
            route_prefix="/app",
        )
        serve.run(
            pytriton_lite.ray.servers(
                str(MODELS),
                flags=[*flags, "--model-control-mode=explicit", "--load-model=add_sub"],
                deployment=options(),
            ),
            name="servers",
            route_prefix="/servers",
        )
        proxy = f"http://127.0.0.1:{port}"
        while not (found := json.loads(urllib.request.urlopen(f"{proxy}/servers").read())):
            time.sleep(0.1)
        infer = "/v2/models/add_sub/infer"
        subjects = {
            "plain deployment, JSON": (f"{proxy}/plain", PLAIN_BODY, {}),
            "app, v2 JSON": (f"{proxy}/app{infer}", JSON_BODY, {}),
            "app, v2 binary": (f"{proxy}/app{infer}", BINARY_BODY, BINARY_HEADERS),
            "servers, v2 JSON, asked directly": (f"http://{found[0]['http']}{infer}", JSON_BODY, {}),
        }
        results: dict[tuple[str, int], list[tuple[float, float]]] = collections.defaultdict(list)
        for _ in range(rounds):
            for callers in (1, 32):
                for name, (url, body, headers) in subjects.items():
                    results[name, callers].append(wrk(url, body, headers, callers, seconds))
    print("| | callers | requests/s | median ms |\n|---|---|---|---|")
    for (name, callers), measured in results.items():
        rate, median = (statistics.median(column) for column in zip(*measured))
        print(f"| {name} | {callers} | {rate:,.0f} | {median:.1f} |")


# Deaths ----------------------------------------------------------------------------------------------------------------------


@dataclass
class Load:
    """Callers in threads; what each request became, by the time at which it was sent."""

    port: int
    path: str
    outcomes: list[tuple[float, float, str]] = field(default_factory=list)
    """When it was sent and answered, and how: a status, or the name of an exception."""
    _threads: list[threading.Thread] = field(default_factory=list)
    _is_over: bool = False
    _answered: threading.Condition = field(default_factory=threading.Condition)

    def start(self, callers: int) -> None:
        self._is_over = False
        self._threads = [threading.Thread(target=self._call) for _ in range(callers)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over = True
        for thread in self._threads:
            thread.join()

    def wait_well(self, count: int) -> None:
        """Return when *count* more requests, all sent from now on, have been answered with 200."""
        since = time.monotonic()
        first = len(self.outcomes)

        def well() -> int:
            return sum(told == "200" and began >= since for began, _, told in self.outcomes[first:])

        with self._answered:
            self._answered.wait_for(lambda: well() >= count)

    def _call(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        while not self._is_over:
            began = time.monotonic()
            try:
                connection.request("POST", self.path, JSON_BODY)
                answer = connection.getresponse()
                answer.read()
                told = str(answer.status)
            except (OSError, http.client.HTTPException) as error:
                told = type(error).__name__
                connection.close()
            with self._answered:
                self.outcomes.append((began, time.monotonic(), told))
                self._answered.notify_all()
        connection.close()

    def failures(self, since: float) -> tuple[dict[str, int], float]:
        """Failed requests by what they were told, and seconds from *since* to the last answer that was a failure."""
        failed = [(ended, told) for began, ended, told in self.outcomes if told != "200" and ended >= since]
        return dict(collections.Counter(told for _, told in failed)), max(
            (ended - since for ended, _ in failed), default=0.0
        )

    def slowest_s(self, since: float) -> float:
        return max((ended - began for began, ended, _ in self.outcomes if ended >= since), default=0.0)


def processes(mark: str) -> set[int]:
    """Processes whose command line has *mark*."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.add(int(path.parent.name))
    return found


def worker_of(replica: int) -> int:
    """A process that runs a model, below the one of *replica*."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])

    def is_below(pid: int) -> bool:
        while pid in parents:
            if pid == replica:
                return True
            pid = parents[pid]
        return False

    below = [pid for pid in parents if pid != replica and is_below(pid)]
    return next(
        pid for pid in below if not any(parent == pid for parent in parents.values())
    )  # the fork server has children


def wait_until(condition: Callable[[], object]) -> float:
    """When *condition* holds."""
    while not condition():
        time.sleep(0.02)
    return time.monotonic()


def faults(callers: int, answers: int) -> None:
    """Two replicas under load: a worker is killed, then a replica, then both are replaced as an update does.

    Each follows when *answers* requests have been answered since the one before was made good.
    """
    from ray import serve

    import pytriton_lite.ray

    mark = "ServeReplica:app:"
    with cluster() as port:
        settings = options(num_replicas=2, health_check_period_s=1)
        place = {"name": "app", "route_prefix": "/app"}
        serve.run(pytriton_lite.ray.app(str(MODELS), load_model="add_sub", deployment=settings), **place)
        load = Load(port, "/app/v2/models/add_sub/infer")
        load.start(callers)
        load.wait_well(answers)
        print("| what happens | requests | failed | until the last failure | slowest request | two replicas again |")
        print("|---|---|---|---|---|---|")

        def redeploy(old: set[int]) -> None:
            serve.run(
                pytriton_lite.ray.app(str(MODELS), load_model="add_sub", log_info=False, deployment=settings), **place
            )

        def kill_worker(old: set[int]) -> None:
            worker = worker_of(min(old))
            os.kill(worker, signal.SIGKILL)
            wait_until(lambda: not Path(f"/proc/{worker}").exists() and worker_of(min(old)))

        def kill_replica(old: set[int]) -> None:
            killed = min(old)
            os.kill(killed, signal.SIGKILL)
            wait_until(lambda: len(processes(mark) - {killed}) == 2)

        for what, happen in (
            ("a worker is killed", kill_worker),
            ("a replica is killed", kill_replica),
            ("the application is deployed anew", redeploy),
        ):
            old = processes(mark)
            first, began = len(load.outcomes), time.monotonic()
            happen(old)
            if happen is redeploy:
                wait_until(functools.partial(are_new, mark, old))
            again = time.monotonic() - began
            load.wait_well(answers)
            failed, last_s = load.failures(began)
            told = ", ".join(f"{count} × {name}" for name, count in sorted(failed.items())) or "none"
            count = len(load.outcomes) - first
            print(f"| {what} | {count:,} | {told} | {last_s:.2f} s | {load.slowest_s(began):.2f} s | {again:.2f} s |")
        load.stop()


def are_new(mark: str, old: set[int]) -> bool:
    """Whether there are two replicas, none of them *old*."""
    found = processes(mark)
    return len(found) == 2 and not found & old


# Scaling ---------------------------------------------------------------------------------------------------------------------


def scaling(callers: int) -> None:
    """A model of 20 ms; one caller, then many, then one: replicas from one to three and back."""
    from ray import serve

    import pytriton_lite.ray

    settings = {
        "min_replicas": 1,
        "max_replicas": 3,
        "target_ongoing_requests": 4,
        "upscale_delay_s": 2,
        "downscale_delay_s": 5,
        "look_back_period_s": 2,
    }
    mark = "ServeReplica:slow:"
    with tempfile.TemporaryDirectory() as folder, cluster() as port:
        model = Path(folder, "slow")
        (model / "1").mkdir(parents=True)
        (model / "1" / "model.py").write_text(SLOW)
        (model / "config.pbtxt").write_text(SLOW_CONFIG)
        app = pytriton_lite.ray.app(folder, deployment=options(autoscaling_config=settings))
        serve.run(app, name="slow", route_prefix="/slow")
        path = "/slow/v2/models/slow/infer"
        few = Load(port, path)
        few.start(1)
        few.wait_well(100)
        assert len(processes(mark)) == 1, "one caller is no load"
        many = Load(port, path)
        began = time.monotonic()
        many.start(callers)
        up_s = wait_until(lambda: len(processes(mark)) == 3) - began
        many.wait_well(20 * callers)  # a replica's process is there before it serves: those that come last are counted
        first, since = len(many.outcomes), time.monotonic()
        many.wait_well(20 * callers)
        ended = time.monotonic()
        with_three = many.outcomes[first:]
        many.stop()
        down_s = wait_until(lambda: len(processes(mark)) == 1) - ended
        few.wait_well(50)
        few.stop()
        alone = [end - begin for begin, end, _ in many.outcomes if end < began + up_s]
        together = [end - begin for begin, end, _ in with_three]
        rate = len(with_three) / (ended - since)
        failed = sum(told != "200" for _, _, told in (*few.outcomes, *many.outcomes))
        count = len(few.outcomes) + len(many.outcomes)
        print(
            f"{callers} callers more: three replicas after {up_s:.1f} s; without them one replica after {down_s:.1f} s"
        )
        print(f"median {1e3 * statistics.median(alone):.0f} ms before, {1e3 * statistics.median(together):.0f} ms with three, "
              f"{rate:.0f} requests/s")  # fmt: skip
        print(f"{count:,} requests, {failed} failed")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("what", choices=("throughput", "faults", "scaling"))
    parser.add_argument("--seconds", type=float, default=5, help="of each measurement of throughput")
    parser.add_argument("--answers", type=int, default=500, help="of requests between two deaths")
    parser.add_argument("--rounds", type=int, default=3, help="of throughput; the median is told")
    parser.add_argument("--callers", type=int, help="default: 8 for faults, 24 for scaling")
    given = parser.parse_args(arguments)
    if given.what == "throughput":
        throughput(int(given.seconds), given.rounds)
    elif given.what == "faults":
        faults(given.callers or 8, given.answers)
    else:
        scaling(given.callers or 24)


if __name__ == "__main__":
    main()
