"""Ensembles whose workers die and whose clients go away: every request ends, and nothing is left behind."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.contract.ensemble_models import DECOUPLED, write_ensemble, write_step_model
from tests.contract.scripted_model import Gate
from tests.contract.wire_models import grpc_channel, metric, statistics, wait_until
from tests.harness import Reply, RunningServer, tensor

LARGE = 1 << 16
"""Elements: too much for a message."""
ANY = "FP32:-1"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("ensembles")
    for name in ("a", "b", "decoupled"):
        more = DECOUPLED if name == "decoupled" else ""
        write_step_model(repository, name, more, inputs=f"IN0:{ANY}", outputs=f"OUT0:{ANY}")
    tensors = {"inputs": f"X:{ANY}", "outputs": f"Y:{ANY}"}
    write_ensemble(repository, "chain", ("a", "IN0=X", "OUT0=T"), ("b", "IN0=T", "OUT0=Y"), **tensors)  # type: ignore[arg-type]
    write_ensemble(repository, "stream", ("decoupled", "IN0=X", "OUT0=T"), ("b", "IN0=T", "OUT0=Y"), **tensors)  # type: ignore[arg-type]
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RunningServer]:
    with RunningServer(repository) as running:
        yield running


def ask(server: RunningServer, **scripts: str) -> Reply:
    fields = {"parameters": scripts} if scripts else {}
    return server.infer("chain", [tensor("X", "FP32", [LARGE], [0.0] * LARGE)], **fields)


def is_right(reply: Reply) -> bool:
    return reply.status == 200 and set(reply.json["outputs"][0]["data"]) == {2.0}


def kill_worker(server: RunningServer, model: str) -> None:
    (pid,) = server.worker_pids(f"{model}_0")
    os.kill(pid, signal.SIGKILL)


def slots(server: RunningServer) -> list[int]:
    return [int(metric(server, "pytriton_lite_shared_memory_slots", name)) for name in ("a", "b", "decoupled")]


def holding(gate: Gate) -> str:
    return f"gate({gate.port})\nreturn plus(request, 1)"


def test_a_worker_that_is_killed_while_it_has_a_step_fails_the_request(server: RunningServer) -> None:
    with Gate() as gate, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(ask, server, b=holding(gate))
        gate.wait()
        kill_worker(server, "b")
        reply = sent.result()
    assert (reply.status, reply.error) == (
        503,
        "in ensemble 'chain', Stub process 'b_0' is not healthy. The worker was killed by signal 9 while it had this request.",
    )
    wait_until(lambda: is_right(ask(server)))
    wait_until(lambda: slots(server) == [0, 0, 0])


def test_a_tensor_outlives_the_worker_that_wrote_it(server: RunningServer) -> None:
    with Gate() as gate, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(ask, server, b=holding(gate))
        gate.wait()
        kill_worker(server, "a")
        wait_until(lambda: metric(server, "pytriton_lite_worker_restarts", "a") >= 1)
        gate.open()
        assert is_right(sent.result())
    wait_until(lambda: is_right(ask(server)))


def test_a_client_that_hangs_up_ends_its_request_after_the_step_that_runs(server: RunningServer) -> None:
    before = statistics(server, "b")["inference_stats"]["success"]["count"]
    cancelled = metric(server, "nv_inference_request_failure", "chain", reason="CANCELED")
    with Gate() as gate:
        given = tensor("X", "FP32", [LARGE], [0.0] * LARGE)
        client = http.client.HTTPConnection(server.http_url, timeout=30)
        body = json.dumps({"inputs": [given], "parameters": {"a": holding(gate)}})
        client.request("POST", "/v2/models/chain/infer", body)
        gate.wait()
        client.close()
        wait_until(lambda: metric(server, "pytriton_lite_cancelled_requests", "chain") >= 1)
        gate.open()
        wait_until(lambda: metric(server, "nv_inference_request_failure", "chain", reason="CANCELED") == cancelled + 1)
    assert statistics(server, "b")["inference_stats"]["success"]["count"] == before
    wait_until(lambda: slots(server) == [0, 0, 0])


def stream_message(**scripts: str) -> Any:
    message = service_pb2.ModelInferRequest(model_name="stream")
    message.inputs.add(name="X", datatype="FP32", shape=[LARGE])
    message.raw_input_contents.append(np.zeros(LARGE, np.float32).tobytes())
    for name, script in scripts.items():
        message.parameters[name].string_param = script
    return message


ENDLESS = """sender = request.get_response_sender()
while not sender.is_cancelled():
    sender.send(plus(request, 1))
sender.send(flags=FINAL)
tell({port}, "cancelled")"""


def test_a_stream_that_nobody_reads_any_more_stops_the_decoupled_step(server: RunningServer) -> None:
    with Gate() as gate, grpc_channel(server) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        call = stub.ModelStreamInfer(iter([stream_message(decoupled=ENDLESS.format(port=gate.port))]), timeout=30)
        assert not next(call).error_message
        call.cancel()
        assert gate.told() == "cancelled"
    wait_until(lambda: slots(server) == [0, 0, 0])


def test_a_decoupled_worker_that_is_killed_ends_the_stream(server: RunningServer) -> None:
    with Gate() as gate, grpc_channel(server) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        script = f"sender = request.get_response_sender()\nsender.send(plus(request, 1))\ngate({gate.port})"
        call = stub.ModelStreamInfer(iter([stream_message(decoupled=script)]), timeout=30)
        assert not next(call).error_message
        gate.wait()
        kill_worker(server, "decoupled")
        assert next(call).error_message.startswith("in ensemble 'stream', Stub process 'decoupled_0' is not healthy.")
    wait_until(lambda: slots(server) == [0, 0, 0])


def test_whatever_becomes_of_many_requests_none_is_left(server: RunningServer) -> None:
    """Right ones, failing ones and cancelled ones; at the end the workers have nothing, and serve."""
    chance = random.Random(5)
    scripts = [{}, {"a": "return error('no')"}, {"b": "raise ValueError('no')"}, {"a": "return Response([])"}]
    with grpc_channel(server) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        calls = []
        for _ in range(200):
            message = stream_message(**chance.choice(scripts))
            message.model_name = "chain"
            calls.append(stub.ModelInfer.future(message, timeout=30))
            if chance.random() < 0.5:
                chance.choice(calls).cancel()
        codes = {call.code() for call in calls}
    assert codes <= {
        grpc.StatusCode.OK,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.INVALID_ARGUMENT,
    }
    assert grpc.StatusCode.OK in codes
    wait_until(lambda: slots(server) == [0, 0, 0])
    assert is_right(ask(server))


def test_a_server_that_stops_serves_the_rest_of_an_ensemble(repository: Path) -> None:
    """The second step begins when the server takes no new requests any more."""
    with RunningServer(repository) as server, Gate() as gate, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(ask, server, a=holding(gate))
        gate.wait()
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("Waiting for in-flight requests to complete")
        gate.open()
        assert is_right(sent.result())
        assert server.process.wait(30) == 0
