"""Workers that die in the middle of a chain of calls, and callees that fail: every client hears of it, no memory is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contract.wire_models import Gate, metric, wait_pending, wait_until
from tests.harness import PROJECT, Reply, RunningServer, tensor, write_model

CHAIN = ("a", "b", "c")
CLIENTS = 8
ELEMENTS = 20_000
"""80 KB: a tensor that lies in shared memory."""

CALLS_NEXT = """
import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.next = chr(ord(args["model_name"]) + 1)

    async def execute(self, requests):
        (request,) = requests
        given = pb_utils.get_input_tensor_by_name(request, "X")
        parameters = json.loads(request.parameters())
        call = pb_utils.InferenceRequest(
            request_id=request.request_id(),
            model_name=self.next,
            inputs=[pb_utils.Tensor("X", given.as_numpy() + 1)],
            requested_output_names=[],
            parameters=parameters,
        )
        return [await call.async_exec()]
"""

LAST = """
import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        gate = json.loads(request.parameters()).get("gate")
        if gate:
            print(f"holding {gate}", flush=True)
            open(gate).read()
            print("cancelled meanwhile:", request.is_cancelled(), flush=True)
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("X", x + 1)])]
"""

CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
instance_group { kind: KIND_CPU }
"""
CONCURRENT = f'parameters {{ key: "EXECUTE_CONCURRENCY" value: {{ string_value: "{CLIENTS}" }} }}\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("chain")
    for name in CHAIN[:-1]:
        write_model(repository, name, CALLS_NEXT, CONFIG + CONCURRENT)
    write_model(repository, CHAIN[-1], LAST, CONFIG)
    with RunningServer(repository) as running:
        yield running


def ask(server: RunningServer, value: float, **fields: object) -> Reply:
    return server.infer("a", [tensor("X", "FP32", [ELEMENTS], [value] * ELEMENTS)], **fields)


def is_right(reply: Reply, value: float) -> bool:
    return reply.status == 200 and set(reply.json["outputs"][0]["data"]) == {value + 3}


def not_healthy(name: str) -> str:
    return f"Stub process '{name}_0_0' is not healthy. The worker was killed by signal 9 while it had this request."


def kill_worker(server: RunningServer, name: str) -> None:
    (pid,) = server.worker_pids(f"{name}_0_0")
    os.kill(pid, signal.SIGKILL)


def slots(server: RunningServer) -> list[int]:
    """The places in shared memory that are in use, for each model of the chain."""
    return [int(metric(server, "pytriton_lite_shared_memory_slots", name)) for name in CHAIN]


def wait_chain_works(server: RunningServer) -> None:
    """A request goes through all of it; one that finds a worker just ending may still fail."""
    wait_until(lambda: is_right(ask(server, 5), 5))


@pytest.mark.parametrize(
    ("victim", "failed"),
    [
        pytest.param("a", CLIENTS, id="the first, which has all the clients' requests"),
        pytest.param("b", CLIENTS, id="the middle one, which has all the calls of the first"),
        pytest.param("c", 1, id="the last, which has begun with one call, while the others wait in its queue"),
    ],
)
def test_a_worker_that_is_killed_within_a_chain_is_told_to_every_client(
    server: RunningServer, tmp_path: Path, victim: str, failed: int
) -> None:
    wait_chain_works(server)
    wait_until(lambda: slots(server) == [0, 0, 0])
    gate = Gate(tmp_path / "gate")
    try:
        with ThreadPoolExecutor(CLIENTS) as pool:
            futures: list[Future[Reply]] = [pool.submit(ask, server, 0, parameters={"gate": gate.path})]
            gate.wait_held(server)
            futures += [pool.submit(ask, server, value) for value in range(1, CLIENTS)]
            wait_pending(server, "c", CLIENTS - 1)
            assert min(slots(server)) > 0
            kill_worker(server, victim)
            first = futures[0].result(30)
            gate.open()
            replies = [first, *(future.result(30) for future in futures[1:])]
    finally:
        gate.open()
    errors = Counter((reply.status, reply.error) for reply in replies if reply.status != 200)
    assert errors == {(503, not_healthy(victim)): failed}
    assert (first.status, first.error) == (503, not_healthy(victim))
    assert all(is_right(reply, value) for value, reply in enumerate(replies) if reply.status == 200)
    if victim == "b":
        server.wait_for_log("cancelled meanwhile: True")
    if victim == "a":  # the middle one was told; it is for it to decide about its own call
        server.wait_for_log("cancelled meanwhile: False")
    wait_pending(server, "c", 0)
    wait_chain_works(server)
    wait_until(lambda: slots(server) == [0, 0, 0])


def test_every_request_ends_while_workers_of_a_chain_are_killed_in_turn(server: RunningServer) -> None:
    wait_chain_works(server)
    outcomes: Counter[str] = Counter()
    ended = threading.Semaphore(0)
    is_over = threading.Event()

    def run(client: int) -> None:
        while not is_over.is_set():
            reply = ask(server, client)
            if reply.status == 200:
                outcomes["right" if is_right(reply, client) else "wrong"] += 1
            else:
                outcomes[f"{reply.status} {reply.error}"] += 1
            ended.release()

    threads = [threading.Thread(target=run, args=(client,)) for client in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        for name in CHAIN * 3:
            for _ in range(40):
                assert ended.acquire(timeout=30), f"no request ended for 30 s: {outcomes}"
            wait_until(lambda name=name: len(server.worker_pids(f"{name}_0_0")) == 1)  # type: ignore[misc]
            kill_worker(server, name)
        for _ in range(40):
            assert ended.acquire(timeout=30), f"no request ended for 30 s: {outcomes}"
    finally:
        is_over.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), f"a client still waits: {outcomes}"
    assert outcomes["right"] > 0
    assert set(outcomes) <= {"right", *(f"503 {not_healthy(name)}" for name in CHAIN)}
    wait_chain_works(server)
    wait_until(lambda: slots(server) == [0, 0, 0])


def test_a_hundred_chains_at_a_time_end_though_their_last_model_fails_now_and_then() -> None:
    """The short form of ``benchmarks/bls_soak.py``: every request ends, and all memory comes back."""
    run = subprocess.run(
        [sys.executable, str(PROJECT / "benchmarks" / "bls_soak.py"), "--seconds", "5"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert "nothing is off" in run.stdout
