"""The end of a server as clients and balancers see it: not ready first, everything served, then gone."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput, service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from pytriton_lite.proto import health_pb
from tests.contract.life_kit import ADDER_CONFIG, EXPLICIT, adder, closed_gate, insist_on_the_end, value_of, waits
from tests.contract.wire_models import wait_until
from tests.harness import PROJECT, RunningServer, write_model

LONG_DELAY = ("--drain-delay-secs=3600", "--exit-timeout-secs=3700")
"""Which a test ends with a second signal, when it has done what it has to do before the end."""

TRANSPORTS = pytest.mark.parametrize("transport", ["http2", "grpcio"])


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_model(tmp_path / "models", "m", adder(1), ADDER_CONFIG)
    return tmp_path / "models"


def numbers(value: int) -> list[InferInput]:
    tensor = InferInput("IN", [1], "INT32")
    tensor.set_data_from_numpy(np.array([value], np.int32))
    return [tensor]


@TRANSPORTS
def test_for_the_delay_it_is_live_not_ready_and_serves_whoever_comes(repository: Path, transport: str) -> None:
    flags = (*LONG_DELAY, EXPLICIT, "--load-model=m", f"--grpc-transport={transport}")
    with RunningServer(repository, flags=flags) as server:
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("Not ready, and serving for 3600 s more")
        assert server.get("/v2/health/live").status == 200
        assert server.get("/v2/health/ready").status == 400
        assert server.get("/v2/models/m/ready").status == 400
        assert value_of(server, "m", IN=4) == 5
        refused = server.post("/v2/repository/models/m/load")
        assert (refused.status, refused.error) == (503, "Server not ready")
        with grpc.insecure_channel(server.grpc_url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            check = channel.unary_unary(
                "/grpc.health.v1.Health/Check", lambda message: message, health_pb.HealthCheckResponse.FromString
            )
            assert stub.ServerLive(service_pb2.ServerLiveRequest()).live
            assert not stub.ServerReady(service_pb2.ServerReadyRequest()).ready
            assert not stub.ModelReady(service_pb2.ModelReadyRequest(name="m")).ready
            assert check(b"").status == health_pb.HealthCheckResponse.NOT_SERVING
        with InferenceServerClient(server.grpc_url) as client:
            assert client.infer("m", numbers(6)).as_numpy("OUT").tolist() == [7]
        assert "nv_inference_count" in server.get(server.metrics_url).body.decode()
        assert "Waiting for in-flight requests" not in server.log
        insist_on_the_end(server)
        assert server.wait() == 1, "a second signal ends it within the delay"


def test_after_the_delay_it_stops_as_it_does_without(repository: Path) -> None:
    with RunningServer(repository, flags=("--drain-delay-secs=1",)) as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
    _, delay, end = server.log.partition("Not ready, and serving for 1 s more")
    assert delay
    assert "Waiting for in-flight requests to complete." in end


def test_a_delay_that_leaves_nothing_for_the_end_is_refused(repository: Path) -> None:
    command = [sys.executable, "-m", "pytriton_lite", "serve", str(repository), "--drain-delay-secs=30"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=PROJECT)
    assert ended.returncode == 1
    assert ended.stderr.rstrip().endswith(
        "Error: --drain-delay-secs=30 leaves nothing of --exit-timeout-secs=30 for requests and models to end."
    )


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[RunningServer, Any]]:
    with closed_gate(tmp_path) as gate:
        write_model(tmp_path / "models", "m", adder(1, execute=waits(gate)), ADDER_CONFIG)
        with RunningServer(tmp_path / "models") as server:
            yield server, gate


def test_a_stream_gets_the_answers_of_what_was_begun_and_then_its_end(held: tuple[RunningServer, Any]) -> None:
    server, gate = held
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("m", numbers(1), request_id="begun")
        server.wait_for_log("holding")
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("Waiting for in-flight requests")
        gate.open()
        result, error = answers.get(timeout=30)
        assert error is None and result.get_response().id == "begun"
        assert result.as_numpy("OUT").tolist() == [2]
        result, error = answers.get(timeout=30)
        assert result is None
        assert isinstance(error, InferenceServerException) and error.status() == "StatusCode.UNAVAILABLE"
        assert server.wait() == 0


def test_a_channel_that_sends_all_the_time_loses_nothing_when_its_server_stops(repository: Path) -> None:
    """It has another server to go to, and is told before calls are refused."""
    options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200)]
    with RunningServer(repository) as first, RunningServer(repository) as second:
        with InferenceServerClient(f"ipv4:{first.grpc_url},{second.grpc_url}", channel_args=options) as client:
            for value in range(50):
                assert client.infer("m", numbers(value)).as_numpy("OUT").tolist() == [value + 1]
            first.process.send_signal(signal.SIGTERM)
            while first.process.poll() is None:
                assert client.infer("m", numbers(7)).as_numpy("OUT").tolist() == [8]
            assert client.infer("m", numbers(8)).as_numpy("OUT").tolist() == [9]
        assert first.wait() == 0
        wait_until(lambda: second.get("/v2/health/ready").status == 200)
