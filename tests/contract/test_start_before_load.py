"""--accept-before-load: a server that answers while its models load, and says truly what there is.

And ports: they are taken before anything is loaded, whether or not anybody may connect yet.
"""

from __future__ import annotations

import re
import signal
import socket
import sys
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import InferenceServerClient, service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from pytriton_lite.proto import health_pb
from tests.contract.life_kit import ALL_VERSIONS, BROKEN, CONFIG, closed_gate, code, ensemble, rows_of, value_of, waits
from tests.contract.wire_models import wait_until
from tests.harness import PROJECT, RunningServer, child, free_ports, write_model

FIRST = "--accept-before-load=true"
TRANSPORTS = pytest.mark.parametrize("transport", ["http2", "grpcio"])


def health_of(server: RunningServer) -> tuple[int, int]:
    """Status of live and of ready."""
    return server.get("/v2/health/live").status, server.get("/v2/health/ready").status


def grpc_health_of(server: RunningServer) -> tuple[bool, bool, int]:
    """Live, ready, and the answer of grpc.health.v1."""
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check", lambda message: message, health_pb.HealthCheckResponse.FromString
        )
        return (
            stub.ServerLive(service_pb2.ServerLiveRequest()).live,
            stub.ServerReady(service_pb2.ServerReadyRequest()).ready,
            check(b"").status,
        )


@TRANSPORTS
def test_it_is_live_while_models_load_and_ready_when_they_have(tmp_path: Path, transport: str) -> None:
    models = tmp_path / "models"
    with closed_gate(tmp_path) as gate:
        write_model(models, "quick", code(7), CONFIG)
        write_model(models, "slow", code(8, initialize=waits(gate)), CONFIG)
        with RunningServer(models, flags=(FIRST, f"--grpc-transport={transport}")) as server:
            wait_until(lambda: rows_of(server, "quick") == {"1": ("READY", "")})
            server.wait_for_log("holding")
            serving = health_pb.HealthCheckResponse
            assert health_of(server) == (200, 400)
            assert grpc_health_of(server) == (True, False, serving.NOT_SERVING)
            assert rows_of(server, "slow") == {"1": ("LOADING", "")}
            assert server.get("/v2/models/quick/ready").status == 200
            assert server.get("/v2/models/slow/ready").status == 400
            assert value_of(server, "quick") == 7
            with InferenceServerClient(server.grpc_url) as client:
                assert client.is_model_ready("quick")
                assert not client.is_model_ready("slow")
                with pytest.raises(InferenceServerException) as caught:
                    client.infer("slow", [])
            assert caught.value.status() == "StatusCode.UNAVAILABLE"
            refused = server.infer("slow", [])
            assert (refused.status, refused.error) == (
                503,
                "Request for unknown model: 'slow' has no available versions; the server is still loading models",
            )
            assert 'nv_inference_count{model="quick",version="1"} 1' in server.get(server.metrics_url).body.decode()

            gate.open()
            wait_until(lambda: health_of(server) == (200, 200))
            assert grpc_health_of(server) == (True, True, serving.SERVING)
            assert value_of(server, "slow") == 8
            assert server.stop() == 0


def test_models_whose_turn_has_not_come_are_loading_too_and_nobody_loads_others(tmp_path: Path) -> None:
    models = tmp_path / "models"
    flags = (
        FIRST,
        "--model-load-thread-count=1",
        "--model-control-mode=explicit",
        "--load-model=all",
        "--load-model=z",
    )
    with closed_gate(tmp_path) as gate:
        write_model(
            models, "a", code(1, initialize=waits(gate)).replace("[1]", "requests[0].inputs()[0].as_numpy()"), ""
        )
        write_model(models, "z", code(2), CONFIG)
        write_model(models, "other", code(3), CONFIG)
        write_model(models, "all", config=ensemble("a"))
        (models / "all" / "1").mkdir(exist_ok=True)
        (models / "a" / "config.pbtxt").write_text(CONFIG + ' input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }')
        with RunningServer(models, flags=flags) as server:
            server.wait_for_log("holding")
            rows = {row["name"]: row.get("state") for row in server.post("/v2/repository/index").json}
            assert rows == {"a": "LOADING", "z": "LOADING", "all": "LOADING", "other": None} or rows == {
                "a": "LOADING",
                "z": "READY",
                "all": "LOADING",
                "other": None,
            }
            refused = server.infer("all", [])
            assert (refused.status, refused.error) == (
                503,
                "Request for unknown model: 'all' is not found; the server is still loading models",
            )
            load = server.post("/v2/repository/models/other/load")
            assert load.status == 503
            assert "the server is starting" in load.error
            gate.open()
            wait_until(lambda: health_of(server) == (200, 200))
            unknown = server.infer("nobody", [])
            assert (unknown.status, unknown.error) == (404, "Request for unknown model: 'nobody' is not found")


def test_a_model_that_does_not_load_ends_the_server_as_without_the_flag(tmp_path: Path) -> None:
    with closed_gate(tmp_path) as gate:
        statements = f"print('holding {gate.path}', flush=True); open({gate.path!r}).read(); {BROKEN}"
        write_model(tmp_path / "models", "broken", code(1, initialize=statements), CONFIG)
        with RunningServer(tmp_path / "models", flags=(FIRST,)) as server:
            server.wait_for_log("holding")
            assert health_of(server) == (200, 400)
            gate.open()
            assert server.wait() == 1
    assert "error: creating server: Internal - failed to load all models" in server.log
    assert "Exit timeout" not in server.log


def test_a_signal_while_models_load_ends_the_server_with_0(tmp_path: Path) -> None:
    with closed_gate(tmp_path) as gate:
        write_model(tmp_path / "models", "slow", code(1, initialize=waits(gate)), CONFIG)
        with RunningServer(tmp_path / "models", flags=(FIRST,)) as server:
            server.wait_for_log("holding")
            assert server.stop() == 0


def test_a_repository_that_is_not_there_is_not_live_where_the_process_stays(tmp_path: Path) -> None:
    """Row 10 of section 10 of repository.md, as without the flag."""
    with RunningServer(tmp_path / "missing", flags=(FIRST, "--exit-on-error=false")) as server:
        wait_until(lambda: health_of(server) == (400, 400))
        refused = server.post("/v2/repository/models/m/load")
        assert (refused.status, refused.error) == (503, "Server not ready")
        assert server.stop() == 0


@pytest.mark.parametrize("name", ["http", "grpc", "metrics"])
def test_a_port_that_is_taken_is_told_before_any_model_is_loaded(tmp_path: Path, name: str) -> None:
    write_model(tmp_path, "m", code(1, initialize="print('it loads', flush=True)"), CONFIG)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {"http": 0, "grpc": 0, "metrics": 0, name: taken.getsockname()[1]}
        flags = [flag for key in ports for flag in (f"--{key}-port={ports[key]}", f"--{key}-address=127.0.0.1")]
        command = [sys.executable, "-m", "pytriton_lite", "serve", str(tmp_path), *flags]
        with child(command, cwd=PROJECT, stdout=-1, stderr=-2, text=True) as server:
            output, _ = server.communicate(timeout=60)
    assert server.returncode == 1
    assert f"error: creating server: Socket '127.0.0.1:{ports[name]}' already in use " in output
    assert "it loads" not in output


def test_of_two_servers_that_start_at_the_same_port_the_second_ends_at_once(tmp_path: Path) -> None:
    with closed_gate(tmp_path) as gate:
        write_model(tmp_path / "models", "slow", code(1, initialize=waits(gate)), CONFIG)
        (port,) = free_ports(1)
        command = [sys.executable, "-m", "pytriton_lite", "serve", str(tmp_path / "models")]
        command += [f"--http-port={port}", "--grpc-port=0", "--metrics-port=0", "--http-address=127.0.0.1"]
        with child(command, cwd=PROJECT, stdout=-1, stderr=-2, text=True) as first:
            assert first.stdout is not None
            assert any("holding" in line for line in first.stdout)
            with child(command, cwd=PROJECT, stdout=-1, stderr=-2, text=True) as second:
                output, _ = second.communicate(timeout=60)
            assert second.returncode == 1
            assert f"Socket '127.0.0.1:{port}' already in use " in output
            assert "holding" not in output
            gate.open()
            assert any(f"Started HTTPService at 127.0.0.1:{port}" in line for line in first.stdout)
            first.send_signal(signal.SIGTERM)
            first.communicate(timeout=60)
        assert first.returncode == 0


def test_all_versions_are_shown_while_some_load(tmp_path: Path) -> None:
    models = tmp_path / "models"
    with closed_gate(tmp_path) as gate:
        write_model(models, "m", code(1), ALL_VERSIONS)
        write_model(models, "m", code(2, initialize=waits(gate)), version=2)
        with RunningServer(models, flags=(FIRST,)) as server:
            server.wait_for_log("holding")
            states = {version: state for version, (state, _) in rows_of(server, "m").items()}
            assert states == {"1": "LOADING", "2": "LOADING"}
            asked = server.post("/v2/models/m/versions/2/infer", {"inputs": []})
            assert asked.status == 503
            assert re.search("version 2 is not at ready state", asked.error)
            gate.open()
            wait_until(lambda: health_of(server) == (200, 200))
            assert value_of(server, "m") == 2
