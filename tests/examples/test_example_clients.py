"""The client scripts as a user starts them. Right answers from a real server are tested with the server."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NUMBERS = ["1", "2", "3", "4", "10", "20", "30", "40"]
PROTOCOLS = ["http", "grpc", "http-aio", "grpc-aio"]


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


class Server(ThreadingHTTPServer):
    """Answers every infer request with *status* and *body*, as JSON."""

    status = 200
    body: Any = None

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps(self.server.body).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: standard error is the tests' own."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def vector(name: str, *data: float) -> dict[str, Any]:
    return {"name": name, "datatype": "FP32", "shape": [4], "data": data}


@pytest.mark.parametrize("protocol", ["http", "http-aio"])
def test_add_sub_prints_both_results_of_a_right_answer(server: Server, protocol: str) -> None:
    server.body = {
        "model_name": "add_sub",
        "outputs": [vector("OUTPUT0", 11, 22, 33, 44), vector("OUTPUT1", -9, -18, -27, -36)],
    }
    result = run("add_sub.py", "--protocol", protocol, "--url", server.url, *NUMBERS)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "[1. 2. 3. 4.] + [10. 20. 30. 40.] = [11. 22. 33. 44.]",
        "[1. 2. 3. 4.] - [10. 20. 30. 40.] = [ -9. -18. -27. -36.]",
    ]


def test_add_sub_does_not_believe_a_wrong_answer(server: Server) -> None:
    outputs = [vector("OUTPUT0", 11, 22, 33, 44), vector("OUTPUT1", 0, 0, 0, 0)]
    server.body = {"model_name": "add_sub", "outputs": outputs}
    result = run("add_sub.py", "--url", server.url, *NUMBERS)
    assert result.returncode == 1
    assert "wrong answer: OUTPUT1 is [0. 0. 0. 0.], expected [ -9. -18. -27. -36.]" in result.stderr


@pytest.mark.parametrize("protocol", ["http", "http-aio"])
def test_error_of_the_server_is_shown_in_one_line(server: Server, protocol: str) -> None:
    server.status, server.body = 400, {"error": "Request for unknown model: 'text_classification' is not found"}
    result = run("text_classification.py", "--protocol", protocol, "--url", server.url, "fine", "bad")
    assert result.returncode == 1
    assert result.stderr == (
        "text_classification.py: model 'text_classification': "
        "Request for unknown model: 'text_classification' is not found\n"
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_server_that_is_not_there_is_said_in_one_line(protocol: str) -> None:
    # Bound but not listening: nobody else gets the port, and connecting to it is refused.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run("add_sub.py", "--protocol", protocol, "--url", url, *NUMBERS)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("add_sub.py: ") and url in result.stderr and "onnect" in result.stderr


def test_missing_image_is_named_before_anything_is_sent() -> None:
    result = run("image_preprocessing.py", str(EXAMPLES / "data" / "scene.jpg"), "nowhere.png")
    assert (result.returncode, result.stderr) == (1, "image_preprocessing.py: nowhere.png: No such file or directory\n")


def test_file_of_sentences_that_is_not_text_is_named() -> None:
    picture = str(EXAMPLES / "data" / "scene.png")
    result = run("text_classification.py", "--file", picture)
    assert result.returncode == 1
    assert result.stderr.startswith(f"text_classification.py: {picture}: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["add_sub.py", *NUMBERS[:7]], "arguments are required: NUMBER"),
        (["add_sub.py", *NUMBERS[:7], "four"], "'four'"),
        (["add_sub.py", *NUMBERS[:7], "nan"], "expected a number that FP32 can hold, got 'nan'"),
        (["add_sub.py", *NUMBERS[:7], "1e39"], "expected a number that FP32 can hold, got '1e39'"),
        (["add_sub.py", "--protocol", "smtp", *NUMBERS], "invalid choice: 'smtp'"),
        (["add_sub.py", "--url", "http://localhost:8000", *NUMBERS], "expected host:port, got 'http://localhost:8000'"),
        (["image_preprocessing.py"], "the following arguments are required: FILE"),
        (["text_classification.py"], "one of the arguments SENTENCE --file is required"),
        (["text_classification.py", "--file", "x", "fine"], "not allowed with argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_command_line_is_refused_with_what_was_expected(arguments: list[str], complaint: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert complaint in result.stderr
