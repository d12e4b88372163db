"""What is served, what is not, and what health and index say: rows of repository.md."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.contract.wire_models import (
    IDENTITY,
    MULTI,
    Traffic,
    identity_config,
    infer_message,
    tensors,
    write_recording,
)
from tests.harness import PROJECT, RunningServer, tensor, write_model

ONE_INT = identity_config("INT32", "1")
CONTINUE = "--exit-on-error=false"
INT = [tensor("INPUT0", "INT32", [1], [0])]
VERSION_OUTPUT = tensors("input", ("INPUT0", "INT32", "1")) + tensors("output", ("OUTPUT0", "INT32", "1"))
BROKEN = "raise RuntimeError('broken on purpose')"
NOT_ALLOWED = "explicit model load / unload is not allowed if polling is enabled"
TWICE = "model appears in two or more repositories"


def write_versions(repository: Path, name: str, policy: str, *versions: int) -> None:
    for version in versions:
        write_model(repository, name, MULTI, f'backend: "python" {policy}\n{VERSION_OUTPUT}', version=version)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Two repositories with everything that does not keep a server from being ready."""
    folder = tmp_path_factory.mktemp("repositories")
    first, second = folder / "first", folder / "second"
    write_model(first, "good", IDENTITY, ONE_INT)
    write_model(first, "unparsable", IDENTITY, "max_batch_size: many")
    (first / "a file.txt").write_text("no model")
    write_model(first, ".hidden", IDENTITY, ONE_INT)
    write_versions(first, "newest", "", 1, 2, 10, 1700000000)
    write_versions(first, "all", "version_policy { all { } }", 1, 3, 5)
    write_versions(first, "some", "version_policy { specific { versions: [ 1, 3, 7 ] } }", 1, 3, 5)
    for odd in ("0007", "abc", "warmup", "initial_state", "configs"):
        (first / "newest" / odd).mkdir()
    write_model(first, "twice", IDENTITY, ONE_INT)
    write_model(second, "twice", IDENTITY, ONE_INT)
    write_model(second, "other", IDENTITY, ONE_INT)
    with RunningServer(first, second, flags=(CONTINUE,)) as running:
        yield running


def index(server: RunningServer) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = server.post("/v2/repository/index").json
    return rows


def rows_of(server: RunningServer, name: str) -> list[dict[str, Any]]:
    return [row for row in index(server) if row["name"] == name]


def versions_of(server: RunningServer, name: str) -> list[str]:
    return [row["version"] for row in rows_of(server, name)]


def health(server: RunningServer) -> tuple[int, int]:
    """(live, ready)."""
    return server.get("/v2/health/live").status, server.get("/v2/health/ready").status


def serve_to_its_end(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a server that is expected to end by itself."""
    ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"]
    command = [sys.executable, "-m", "pytriton_lite", "serve", *ports, *arguments]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60)


# ---------------------------------------------------------------------------------------------------- a ready server


def test_a_loaded_model_is_in_the_index_and_serves(server: RunningServer) -> None:
    """Row 1."""
    assert rows_of(server, "good") == [{"name": "good", "version": "1", "state": "READY"}]
    assert server.infer("good", INT).status == 200


def test_the_health_service_says_serving(server: RunningServer) -> None:
    """grpc.md row 7."""
    with grpc.insecure_channel(server.grpc_url) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=30) == check(b"\x0a\x03foo", timeout=30) == b"\x08\x01"


@pytest.mark.parametrize("action", ["load", "unload"])
def test_models_do_not_come_and_go_by_request(server: RunningServer, action: str) -> None:
    """Row 2, and row 47 for the name of a repository."""
    reply = server.post(f"/v2/repository/models/good/{action}")
    assert (reply.status, reply.error) == (503, NOT_ALLOWED)
    reply = server.post(f"/v2/repository/xx/models/good/{action}")
    assert (reply.status, reply.error) == (501, "'repository_name' specification is not supported")
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        method = stub.RepositoryModelLoad if action == "load" else stub.RepositoryModelUnload
        kind = f"RepositoryModel{action.capitalize()}Request"
        with pytest.raises(grpc.RpcError) as caught:
            method(getattr(service_pb2, kind)(model_name="good"), timeout=30)
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, NOT_ALLOWED)


def test_a_configuration_that_cannot_be_read_leaves_the_server_ready(server: RunningServer) -> None:
    """Rows 7 and 13: such a model was never known."""
    assert health(server) == (200, 200)
    assert rows_of(server, "unparsable") == [{"name": "unparsable"}]
    reply = server.infer("unparsable", INT)
    assert (reply.status, reply.error) == (404, "Request for unknown model: 'unparsable' is not found")
    assert "Poll failed for model directory 'unparsable'" in server.log


def test_files_and_hidden_folders_are_no_models(server: RunningServer) -> None:
    """Rows 11 and 12."""
    names = {row["name"] for row in index(server)}
    assert "a file.txt" not in names
    assert ".hidden" not in names


def test_every_repository_is_served(server: RunningServer) -> None:
    assert rows_of(server, "other") == [{"name": "other", "version": "1", "state": "READY"}]


def test_a_name_in_two_repositories_is_served_by_neither(server: RunningServer) -> None:
    """Row 62."""
    assert rows_of(server, "twice") == [{"name": "twice", "state": "UNAVAILABLE", "reason": TWICE}]
    reply = server.infer("twice", INT)
    assert (reply.status, reply.error) == (404, "Request for unknown model: 'twice' is not found")
    assert server.get("/v2/health/ready").status == 200


def test_the_largest_version_number_is_served_by_default(server: RunningServer) -> None:
    """Row 72."""
    assert versions_of(server, "newest") == ["1700000000"]
    assert server.infer("newest", INT).json["outputs"][0]["data"] == [1700000000]


def test_all_versions_are_served_where_the_policy_says_so(server: RunningServer) -> None:
    """Row 29."""
    assert versions_of(server, "all") == ["1", "3", "5"]
    assert server.infer("all", INT).json["model_version"] == "5"


def test_versions_that_are_listed_and_there_are_served(server: RunningServer) -> None:
    """Row 30, at start-up; the version that is not there is logged."""
    assert versions_of(server, "some") == ["1", "3"]
    assert "version 7 is specified for model 'some', but the version directory is not present" in server.log


def test_odd_version_folders_are_passed_over(server: RunningServer) -> None:
    """Rows 70 and 71."""
    assert "ignore version directory '0007' which contains leading zeros in its directory name" in server.log
    assert "ignore version directory 'abc' which fails to convert to integral number" in server.log
    for quiet in ("warmup", "initial_state", "configs"):
        assert f"version directory '{quiet}'" not in server.log


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        pytest.param(b"{", 500, "failed to parse the request JSON buffer: ", id="bad JSON"),
        pytest.param(b'{"ready":"yes"}', 400, "Invalid value for 'ready': expected a boolean", id="no boolean"),
    ],
)
def test_an_index_request_that_cannot_be_read_is_refused(
    server: RunningServer, body: bytes, status: int, text: str
) -> None:
    """Row 49, with the newer answer to a wrong type (http.md, section 13)."""
    reply = server.post("/v2/repository/index", body)
    assert reply.status == status
    assert reply.error.startswith(text)


@pytest.mark.parametrize("path", ["index", "models/good/load", "models/good/unload"])
def test_the_repository_is_asked_with_post(server: RunningServer, path: str) -> None:
    """Row 48."""
    reply = server.get(f"/v2/repository/{path}")
    assert (reply.status, reply.error) == (405, "Method Not Allowed")


def test_a_version_that_is_no_number_is_no_route(server: RunningServer) -> None:
    """Row 83."""
    reply = server.get("/v2/models/good/versions/abc/ready")
    assert (reply.status, reply.error) == (404, "Not Found")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("nope/stats", "requested model 'nope' is not available"),
        ("good/versions/9/stats", "requested model version is not available for model 'good'"),
    ],
)
def test_statistics_of_what_is_not_there_are_refused(server: RunningServer, path: str, text: str) -> None:
    """Row 84."""
    reply = server.get(f"/v2/models/{path}")
    assert (reply.status, reply.error) == (400, text)


# ---------------------------------------------------------------------------------------------------- failures


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of a good model, a broken one, one without versions, and one with a good and a broken version."""
    repository = tmp_path_factory.mktemp("broken") / "models"
    write_model(repository, "good", IDENTITY, ONE_INT)
    write_model(repository, "broken", BROKEN, ONE_INT)
    write_model(repository, "nothing", "", ONE_INT)
    (repository / "nothing" / "1").rmdir()
    write_versions(repository, "half", "version_policy { all { } }", 1, 2)
    (repository / "half" / "2" / "model.py").write_text(BROKEN)
    return repository


def test_a_failed_model_ends_the_start(broken: Path) -> None:
    """Row 4."""
    ended = serve_to_its_end(str(broken))
    assert ended.returncode == 1
    assert "error: creating server: Internal - failed to load all models" in ended.stdout + ended.stderr


@pytest.mark.parametrize(("strict", "ready"), [("true", 400), ("false", 200)], ids=["row 5", "row 6"])
def test_a_failed_model_beside_good_ones(broken: Path, strict: str, ready: int) -> None:
    """Rows 5, 6, 8 and 32; http.md rows 2 and 3."""
    with RunningServer(broken, flags=(CONTINUE, f"--strict-readiness={strict}")) as server:
        assert health(server) == (200, ready)
        assert server.infer("good", INT).status == 200
        (row,) = rows_of(server, "broken")
        assert row["state"] == "UNAVAILABLE"
        assert row["reason"].startswith("Internal: RuntimeError: broken on purpose\n\nAt:\n")
        assert rows_of(server, "nothing") == []
        assert "Not loaded: No model version was found" in server.log
        reply = server.infer("nothing", INT)
        assert (reply.status, reply.error) == (404, "Request for unknown model: 'nothing' has no available versions")
        one, two = rows_of(server, "half")
        assert (one["state"], one["reason"]) == ("UNAVAILABLE", "unloaded")
        assert (two["state"], two["reason"].splitlines()[0]) == (
            "UNAVAILABLE",
            "Internal: RuntimeError: broken on purpose",
        )
        assert server.infer("half", INT).error == "Request for unknown model: 'half' has no available versions"


def test_row_18_what_is_loaded_by_name_needs_the_explicit_mode(tmp_path: Path) -> None:
    ended = serve_to_its_end(str(tmp_path), "--load-model=good")
    assert ended.returncode == 1
    text = "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well."
    assert ended.stderr.rstrip().endswith(text)


def test_row_73_a_load_is_tried_again_as_often_as_the_flag_says(broken: Path) -> None:
    """The versions beside a broken one are not."""
    with RunningServer(broken, flags=(CONTINUE, "--model-load-retry-count=2")) as server:
        assert server.log.count("failed to load 'broken' version 1: Internal: RuntimeError: broken on purpose") == 3
        assert server.log.count("failed to load 'half' version 2: Internal: RuntimeError: broken on purpose") == 3
        assert server.log.count("failed to load 'half' version 1") == 0


def test_an_empty_repository_is_ready(tmp_path: Path) -> None:
    """Row 9."""
    with RunningServer(tmp_path) as server:
        assert health(server) == (200, 200)
        assert index(server) == []
        assert server.get("/v2/models/stats").json == {"model_stats": []}


def test_a_repository_that_is_not_there_ends_the_start(tmp_path: Path) -> None:
    """Row 10."""
    ended = serve_to_its_end(str(tmp_path / "none"))
    assert ended.returncode == 1
    assert f"Internal - failed to stat file {tmp_path / 'none'}" in ended.stdout + ended.stderr


def test_without_its_repository_a_server_is_neither_live_nor_ready(tmp_path: Path) -> None:
    """Row 10."""
    with RunningServer(tmp_path / "none", flags=(CONTINUE,)) as server:
        assert health(server) == (400, 400)


# ---------------------------------------------------------------------------------------------------- shutdown

SEQUENCES = "sequence_batching { max_sequence_idle_microseconds: 60000000 }"


def sequence_message(*, sequence_id: int = 7, sequence_start: bool = False, sequence_end: bool = False) -> Any:
    message = infer_message("sequences", ("GATE", "BYTES", [1], b"\0\0\0\0"))
    message.parameters["sequence_id"].int64_param = sequence_id
    message.parameters["sequence_start"].bool_param = sequence_start
    message.parameters["sequence_end"].bool_param = sequence_end
    return message


def test_grpc_calls_are_refused_while_requests_drain(tmp_path: Path) -> None:
    """Rows 79 to 81. Clients of our own transport know before they are refused, and make no more calls."""
    write_recording(tmp_path / "models", "m", "")
    write_recording(tmp_path / "models", "sequences", SEQUENCES)
    with (
        RunningServer(tmp_path / "models", flags=("--grpc-transport=grpcio", "--exit-timeout-secs=300")) as server,
        grpc.insecure_channel(server.grpc_url) as channel,
        Traffic(server, "m", tmp_path) as traffic,
    ):
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=30).ready
        begun = sequence_message(sequence_start=True)
        assert stub.ModelInfer(begun, timeout=30).model_name == "sequences"
        # The gRPC port stays open for as long as one of its own calls is served.
        gate = traffic.gate()
        path = gate.path.encode()
        held = stub.ModelInfer.future(
            infer_message("m", ("GATE", "BYTES", [1], len(path).to_bytes(4, "little") + path)), timeout=30
        )
        gate.wait_held(server)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("Waiting for in-flight requests")
        stopping = "Server is stopping, scheduler for model has stopped accepting new inference requests"
        for method, message, text in (
            (stub.ServerLive, service_pb2.ServerLiveRequest(), "Server exiting"),
            (stub.ServerReady, service_pb2.ServerReadyRequest(), "Server exiting"),
            (stub.ModelReady, service_pb2.ModelReadyRequest(name="m"), "Server not ready"),
            (stub.RepositoryIndex, service_pb2.RepositoryIndexRequest(), "Server not ready"),
            (
                stub.ModelInfer,
                infer_message("m", ("GATE", "BYTES", [1], b"\0\0\0\0")),
                f"[request id: <id_unknown>] {stopping}",
            ),
            (stub.ModelInfer, sequence_message(sequence_id=8, sequence_start=True), stopping),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                method(message, timeout=30)
            assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, text)
        for end in (False, True):
            assert stub.ModelInfer(sequence_message(sequence_end=end), timeout=30).model_name == "sequences"
        traffic.open_gates()
        assert held.result().model_name == "m"
        assert server.wait() == 0
