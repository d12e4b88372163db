"""What a server that is ready has in memory does not cost its clients pauses."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import numpy as np
import tritonclient.grpc
from tritonclient.grpc import InferenceServerClient

from tests.contract.scripted_model import Gate
from tests.contract.wire_models import metric
from tests.harness import RunningServer, until, write_model

SPY = """
import gc
import sys

freeze = gc.freeze

def told_freeze():
    freeze()
    if "pytriton_lite.app" in sys.modules:  # the fork server is frozen, too, and the server before it imports itself
        print("frozen objects:", gc.get_freeze_count(), flush=True)

gc.freeze = told_freeze
"""


def test_collections_leave_out_what_a_ready_server_consists_of(tmp_path: Path) -> None:
    """Modules and routes are a hundred thousand objects, and going through them a tenth of a second."""
    tmp_path.joinpath("sitecustomize.py").write_text(SPY)
    repository = tmp_path / "models"
    repository.mkdir()
    write_model(repository, "identity", config='backend: "python"')
    with RunningServer(repository, flags=("--exit-on-error=false",), environ={"PYTHONPATH": str(tmp_path)}) as server:
        found = server.wait_for_log(r"frozen objects: (\d+)")
    assert int(found[1]) > 50_000


FULL = """
import gc
import sys

def tell(phase, info):
    if phase == "stop" and info["generation"] == 2 and "pytriton_lite.app" in sys.modules:
        print("full collection", flush=True)

gc.callbacks.append(tell)
"""

WAITING = """
import os
import socket

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    is_open = False

    def execute(self, requests):
        if not self.is_open:
            with socket.create_connection(("127.0.0.1", int(os.environ["GATE"]))) as gate:
                gate.recv(1)  # returns when the test closes its end
            self.is_open = True
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
CONFIG = 'input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }\ndynamic_batching { }\nmax_batch_size: 64'


def test_full_collections_wait_until_requests_do_not(tmp_path: Path) -> None:
    """A hundred thousand objects of requests are thrice what Python makes one for."""
    requests, streams = 12_000, 12
    tmp_path.joinpath("sitecustomize.py").write_text(FULL)
    repository = tmp_path / "models"
    repository.mkdir()
    write_model(repository, "waiting", WAITING, CONFIG)
    given = tritonclient.grpc.InferInput("X", [1, 1], "FP32").set_data_from_numpy(np.zeros((1, 1), np.float32))
    answered = threading.Semaphore(0)
    failures: list[object] = []

    def on_answer(result: object, error: object) -> None:
        failures.extend([] if error is None else [error])
        answered.release()

    with contextlib.ExitStack() as opened:
        gate = opened.enter_context(Gate())
        environ = {"PYTHONPATH": str(tmp_path), "GATE": str(gate.port)}
        server = opened.enter_context(RunningServer(repository, environ=environ))
        server.wait_for_log("full collection")  # the one that the server begins with
        before = server.log.count("full collection")
        clients = [opened.enter_context(InferenceServerClient(server.grpc_url)) for _ in range(streams)]
        opened.callback(gate.open)  # or a client would wait for its answers for ever
        for client in clients:
            client.start_stream(on_answer)
        for number in range(requests):
            clients[number % streams].async_stream_infer("waiting", [given])
        gate.wait()
        until(lambda: metric(server, "nv_inference_pending_request_count", "waiting") >= requests - 64)
        assert server.log.count("full collection") == before
        gate.open()
        assert all(answered.acquire(timeout=60) for _ in range(requests))
        assert failures == []
        server.wait_for_log(rf"(full collection(.|\n)*){{{before + 1}}}")
