"""``--access-log`` and log rotation in a running server."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from tests.contract.file_logged_server import FileLoggedServer
from tests.contract.scripted_model import (
    BATCHING,
    DECOUPLED,
    Gate,
    request_message,
    run,
    run_batch,
    stream_of,
    write_script_model,
)
from tests.contract.wire_models import wait_until
from tests.frontends.grpc.http2_peer import PREFACE, Http2Peer, settings
from tests.harness import MODEL_REPOSITORY, RunningServer

ANSWER = "return [response(1)]"
TRACE = "0123456789abcdef0123456789abcdef"

Line = dict[str, Any]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("access_lines")
    write_script_model(folder, "script")
    write_script_model(folder, "batching", BATCHING)
    write_script_model(folder, "decoupled", DECOUPLED)
    return folder


@pytest.fixture(scope="module", params=["http2", "grpcio"])
def server(request: pytest.FixtureRequest, repository: Path) -> Iterator[RunningServer]:
    # Whatever the severities: lines that were asked for are written.
    flags = ("--access-log=true", "--log-format=json", f"--grpc-transport={request.param}")
    with RunningServer(repository, flags=flags) as running:
        yield running


def lines(text: str) -> list[Line]:
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [line for line in found if line.get("logger") == "pytriton_lite.access"]


def line_of(server: RunningServer, **members: object) -> Line:
    """The first line with *members*, once it is written."""

    def matching() -> list[Line]:
        return [line for line in lines(server.log) if members.items() <= line.items()]

    wait_until(lambda: bool(matching()))
    return matching()[0]


def call(server: RunningServer, model: str, code: str, request_id: str, timeout: float = 20) -> None:
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        stub.ModelInfer(request_message(model, code, request_id=request_id), timeout=timeout)


# ---------------------------------------------------------------------------------------------- what a line says


def test_an_http_request_has_a_line_with_everything(server: RunningServer) -> None:
    reply = run(server, ANSWER, model="script", id="http-1")
    line = line_of(server, request_id="http-1")
    assert line.pop("client").startswith("127.0.0.1:")
    times = {name: line.pop(name) for name in list(line) if name.endswith("_us")}
    assert {name: line[name] for name in line if name not in ("time", "level", "pid", "logger", "bytes_in")} == {
        "protocol": "http",
        "method": "infer",
        "model": "script",
        "version": 1,
        "instance": "script_0_0",
        "request_id": "http-1",
        "status": 200,
        "bytes_out": len(reply.body),
        "responses": 1,
        "batch_size": 1,
    }
    assert line["bytes_in"] > 0
    parts = ["queue_us", "compute_input_us", "compute_infer_us", "compute_output_us"]
    assert list(times) == [*parts, "total_us"]
    assert sum(times[part] for part in parts) <= times["total_us"]


def test_a_batch_has_a_line_for_each_request(server: RunningServer) -> None:
    run_batch(server, "batching", "return [response(0) for _ in requests]", ids=("b1", "b2", "b3"))
    for request_id in ("b1", "b2", "b3"):
        assert line_of(server, request_id=request_id)["batch_size"] == 3


def test_a_grpc_call_has_a_line(server: RunningServer) -> None:
    call(server, "script", ANSWER, "grpc-1")
    line = line_of(server, request_id="grpc-1")
    assert (line["protocol"], line["method"], line["status"], line["model"]) == ("grpc", "ModelInfer", 0, "script")
    assert line["client"].startswith("127.0.0.1:")
    assert line["bytes_in"] > 0
    assert line["bytes_out"] > 0


def test_each_request_of_a_stream_has_a_line(server: RunningServer) -> None:
    code = """
sender = request.get_response_sender()
sender.send(response(1))
sender.send(response(2), flags=FINAL)
return None
"""
    for request_id in ("stream-1", "stream-2"):
        stream_of(server, "decoupled", code, request_id=request_id)
        line = line_of(server, request_id=request_id)
        assert (line["method"], line["status"], line["responses"]) == ("ModelStreamInfer", 0, 2)
        assert line["client"].startswith("127.0.0.1:")


def test_a_grpc_client_whose_unix_socket_has_a_name_is_served(repository: Path, short_path: Path) -> None:
    flags = ("--access-log=true", "--log-format=json", f"--grpc-address=unix:{short_path}/grpc")
    with RunningServer(repository, flags=flags) as server, socket.socket(socket.AF_UNIX) as client:
        client.bind(f"{short_path}/c")
        client.connect(f"{short_path}/grpc")
        peer = Http2Peer(client)
        peer.send(PREFACE + settings())
        peer.request(1, request_message("script", ANSWER, request_id="named").SerializeToString())
        assert peer.answer(1).trailers == {"grpc-status": "0"}
        assert "client" not in line_of(server, request_id="named")


def test_a_refused_request_has_a_line_with_the_reason(server: RunningServer) -> None:
    assert run(server, ANSWER, model="nobody").status == 404
    assert (
        line_of(server, model="nobody", protocol="http").items()
        >= {
            "status": 404,
            "error": "Request for unknown model: 'nobody' is not found",
            "responses": 0,
        }.items()
    )
    assert server.post("/v2/models/script/infer", b"{bad").status == 500
    assert line_of(server, bytes_in=4)["error"].startswith("failed to parse the request JSON buffer")
    with pytest.raises(grpc.RpcError):
        call(server, "nobody", ANSWER, "grpc-refused")
    line = line_of(server, request_id="grpc-refused")
    assert (line["status"], line["error"]) == (5, "Request for unknown model: 'nobody' is not found")
    stream_of(server, "nobody", ANSWER, request_id="stream-refused")
    assert line_of(server, request_id="stream-refused")["status"] == 5


def test_a_model_that_fails_has_its_text_in_the_line(server: RunningServer) -> None:
    run(server, "raise ValueError('boom')", model="script", id="failing")
    line = line_of(server, request_id="failing")
    assert line["status"] == 500
    assert "ValueError: boom" in line["error"]
    assert line["instance"] == "script_0_0"


def test_generate_of_a_model_with_two_responses_has_the_text_that_its_client_gets(server: RunningServer) -> None:
    """Its status is 200, as in Triton."""
    code = "sender = request.get_response_sender()\nsender.send(response(1))\nsender.send(response(2), 1)"
    reply = server.post("/v2/models/decoupled/generate", {"id": "two", "IN": code})
    assert reply.status == 200
    assert reply.error.startswith("generate expects model to produce exactly 1 response")
    assert line_of(server, request_id="two")["error"] == reply.error


def test_a_request_that_died_with_its_worker_has_the_instance_in_the_line(repository: Path) -> None:
    with RunningServer(repository, flags=("--access-log=true", "--log-format=json")) as server:
        reply = run(server, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", model="script", id="killer")
        line = line_of(server, request_id="killer")
    assert reply.status == line["status"] == 503
    assert line["instance"] == "script_0_0"
    assert "compute_infer_us" not in line


def test_a_client_that_gives_up_has_a_line_when_the_model_is_done(server: RunningServer) -> None:
    with Gate() as gate:
        body = json.dumps(
            {
                "id": "gone",
                "inputs": [{"name": "IN", "datatype": "BYTES", "shape": [1], "data": [waits_for_cancellation(gate)]}],
            }
        ).encode()
        with socket.create_connection(("127.0.0.1", server.http_port)) as client:
            head = f"POST /v2/models/script/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
            gate.wait()
    line = line_of(server, request_id="gone")
    assert (line["status"], line["bytes_out"], line["instance"]) == (499, 0, "script_0_0")
    assert line["queue_us"] >= 0 and line["compute_infer_us"] > 0


def test_a_client_that_leaves_while_its_large_answer_is_written_has_a_line(server: RunningServer) -> None:
    def answers() -> int:
        stats = server.get("/v2/models/script/stats").json["model_stats"][0]
        count: int = stats["inference_stats"]["success"]["count"]
        return count

    before = answers()
    code = "return [Response([pb_utils.Tensor('Y', np.random.default_rng(0).random(5_000_000, np.float32))])]"
    given = {"name": "IN", "datatype": "BYTES", "shape": [1], "data": [code]}
    body = json.dumps({"id": "left", "inputs": [given], "outputs": [{"name": "Y"}]}).encode()
    with socket.create_connection(("127.0.0.1", server.http_port)) as client:
        head = f"POST /v2/models/script/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        wait_until(lambda: answers() > before)  # the model is done; its 20 MB are becoming 53 MB of JSON
    line = line_of(server, request_id="left")
    assert line["instance"] == "script_0_0"
    # 200 where the machine was so slow to tell us that all was written before we left
    assert (line["status"], line["bytes_out"] > 0) in [(499, False), (200, True)]


def waits_for_cancellation(gate: Gate) -> str:
    """Otherwise the server may hear of the answer before it hears that the client has gone."""
    return f"gate({gate.port})\nuntil(request.is_cancelled)\n{ANSWER}"


def test_a_request_that_says_its_trace_has_it_in_the_line(server: RunningServer) -> None:
    body = {"id": "traced", "inputs": [{"name": "IN", "datatype": "BYTES", "shape": [1], "data": [ANSWER]}]}
    server.post("/v2/models/script/infer", body, {"traceparent": f"00-{TRACE}-0123456789abcdef-01"})
    assert line_of(server, request_id="traced")["trace_id"] == TRACE


def test_other_http_routes_have_a_line_with_method_and_path(server: RunningServer) -> None:
    server.get("/v2/models/script/stats")
    assert line_of(server, method="GET /v2/models/script/stats")["status"] == 200
    server.get("/v2/no/such/route")
    assert line_of(server, method="GET /v2/no/such/route")["status"] == 404


# ---------------------------------------------------------------------------------------------- where, when and in which form


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/models/script/infer", 405),
        ("GET", "/v2/models/script/generate", 405),
        ("GET", "/v2/models/script%2Fready", 404),
    ],
)
def test_a_request_that_is_refused_by_its_path_or_method_has_a_line(
    server: RunningServer, method: str, path: str, status: int
) -> None:
    reply = server.request(method, path)
    line = line_of(server, method=f"{method} {urllib.parse.unquote(path)}")
    assert (reply.status, line["status"], line["bytes_out"]) == (status, status, len(reply.body))


def test_a_request_without_the_header_of_a_restriction_has_a_line(repository: Path) -> None:
    flags = ("--access-log=true", "--log-format=json", "--http-restricted-api=inference,model-repository:key=value")
    with RunningServer(repository, flags=flags) as server:
        for path in ("/v2/models/script/infer", "/v2/repository/index"):
            assert server.post(path).status == 403
            assert line_of(server, method=f"POST {path}")["status"] == 403


def test_there_are_none_unless_they_are_asked_for(repository: Path) -> None:
    with RunningServer(repository) as server:
        run(server, ANSWER, model="script")
    assert "access" not in server.log


def test_they_follow_the_logs_format_and_no_severity(repository: Path) -> None:
    with RunningServer(repository, flags=("--access-log=true",)) as server:
        server.post("/v2/logging", {"log_info": False, "log_warning": False, "log_error": False})
        run(server, ANSWER, model="script", id="text")
        server.wait_for_log(r"\nI\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ access\] protocol=http .* request_id=text status=200 ")
        server.post("/v2/logging", {"log_format": "json"})
        run(server, ANSWER, model="script", id="json")
        server.wait_for_log(r'\n\{"time":"[^"]+","level":"info".*"request_id":"json"')


def test_what_was_answered_just_before_the_end_is_written(repository: Path) -> None:
    with RunningServer(repository, flags=("--access-log=true", "--log-format=json")) as server:
        for number in range(20):
            run(server, ANSWER, model="script", id=f"late-{number}")
    assert server.exit_code == 0
    ids = [line["request_id"] for line in lines(server.log)]
    assert ids == [f"late-{number}" for number in range(20)]


def test_a_file_of_its_own_has_them_instead_of_the_log(repository: Path, tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    with RunningServer(repository, flags=(f"--access-log-file={path}", "--log-format=json")) as server:
        run(server, ANSWER, model="script", id="abc")
    assert [line["request_id"] for line in lines(path.read_text())] == ["abc"]
    assert lines(server.log) == []


@pytest.mark.parametrize("place", ["absent/access.log", ".", "pipe that nobody reads"])
def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path, place: str) -> None:
    os.mkfifo(tmp_path / "pipe that nobody reads")
    path = tmp_path / place
    command = [sys.executable, "-m", "pytriton_lite", "serve", str(MODEL_REPOSITORY), f"--access-log-file={path}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert f"error: creating server: cannot append to the access log {path}: " in ended.stderr


# ---------------------------------------------------------------------------------------------- rotation


def test_sighup_has_both_files_opened_anew(repository: Path, tmp_path: Path) -> None:
    log, access = tmp_path / "server.log", tmp_path / "access.log"
    flags = (f"--access-log-file={access}", "--log-format=json")
    with FileLoggedServer(log, repository, flags=flags) as server:
        run(server, ANSWER, model="script", id="first")
        wait_until(lambda: "first" in access.read_text())
        for path in (log, access):
            path.rename(f"{path}.1")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("SIGHUP: log files were opened anew")
        run(server, ANSWER + "  # " + "second", model="script", id="second")
        run(server, "print('to the new file'); " + ANSWER, model="script")
        server.wait_for_log("to the new file")
    assert [line["request_id"] for line in lines(Path(f"{access}.1").read_text())] == ["first"]
    assert [line.get("request_id") for line in lines(access.read_text())] == ["second", None]
    assert "Started HTTPService" in Path(f"{log}.1").read_text()
    assert "Started HTTPService" not in log.read_text()
    assert server.exit_code == 0


def test_a_file_that_is_not_there_any_more_is_written_on(repository: Path, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    with RunningServer(repository, flags=(f"--access-log-file={folder / 'access.log'}",)) as server:
        folder.rename(tmp_path / "moved")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log(r"SIGHUP: \[Errno 2\] .*; the file that was open is written on")
        run(server, ANSWER, model="script", id="still")
    assert "request_id=still" in (tmp_path / "moved" / "access.log").read_text()


def test_a_log_that_cannot_be_opened_anew_does_not_keep_the_access_log_from_it(
    repository: Path, tmp_path: Path
) -> None:
    folder, moved, access = tmp_path / "logs", tmp_path / "moved", tmp_path / "access.log"
    folder.mkdir()
    with FileLoggedServer(folder / "server.log", repository, flags=(f"--access-log-file={access}",)) as server:
        folder.rename(moved)
        access.rename(f"{access}.1")
        server.path = moved / "server.log"
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log(r"SIGHUP: \[Errno 2\] .*; the file that was open is written on")
        run(server, ANSWER, model="script", id="new")
    assert "request_id=new" in access.read_text()


def test_sighup_does_not_end_a_server_that_has_only_begun_to_start(repository: Path, tmp_path: Path) -> None:
    path = tmp_path / "server.log"

    class HungUpOn(RunningServer):
        def wait_until_it_serves(self, timeout_s: float) -> None:
            wait_until(path.exists)
            self.process.send_signal(signal.SIGHUP)
            super().wait_until_it_serves(timeout_s)

    with HungUpOn(repository, flags=(f"--log-file={path}",), started=True) as server:
        assert run(server, ANSWER, model="script").status == 200
    assert server.exit_code == 0


def test_sighup_ends_a_server_that_has_no_files(repository: Path) -> None:
    """As any program: the terminal that it was started from has gone."""
    with RunningServer(repository) as server:
        os.kill(server.process.pid, signal.SIGHUP)
        assert server.wait() == -signal.SIGHUP
    assert re.search("SIGHUP", server.log) is None
