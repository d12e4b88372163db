"""How a server starts and stops: cli.md, the ends of section 1, and section 11.

The rest of section 11 is in adversity/test_shutdown.py: exit statuses, the exit timeout, a second signal, what is left behind.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.contract.file_logged_server import FileLoggedServer
from tests.contract.wire_models import Traffic, wait_until, write_recording
from tests.harness import PROJECT, RunningServer, child, free_ports, write_model

CONFIG = 'backend: "python" output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }'

LOOKING = """
    import json
    import socket

    class TritonPythonModel:
        def initialize(self, args):
            for port in json.loads(json.loads(args["model_config"])["parameters"]["ports"]["string_value"]):
                with socket.socket() as client:
                    print(f"nobody is at {port}" if client.connect_ex(("127.0.0.1", port)) else f"taken: {port}", flush=True)

        def execute(self, requests):
            raise NotImplementedError
"""

ENDLESS = """
    import threading

    class TritonPythonModel:
        def initialize(self, args):
            print("it loads", flush=True)
            threading.Event().wait()

        def execute(self, requests):
            raise NotImplementedError
"""


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def serve_to_its_end(*arguments: str) -> tuple[int, str]:
    """Status and output of a server that does not start."""
    ended = subprocess.run(
        [sys.executable, "-m", "pytriton_lite", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=PROJECT,
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_options_that_are_not_utf_8_are_shown_escaped(tmp_path: Path) -> None:
    """JSON and protobuf cannot carry them: each answer that had one would be a 500."""
    folder = os.fsencode(tmp_path)
    name, log, trace = map(os.fsdecode, (b"n\xe4", folder + b"/l\xff.log", folder + b"/t\xff.json"))
    flags = (f"--id={name}", f"--trace-config=triton,file={trace}")
    with FileLoggedServer(Path(log), tmp_path, flags=flags) as server:
        assert server.get("/v2").json["name"] == r"n\udce4"
        assert server.get("/v2/logging").json["log_file"] == rf"{tmp_path}/l\udcff.log"
        assert server.get("/v2/trace/setting").json["trace_file"] == rf"{tmp_path}/t\udcff.json"


def test_nothing_listens_while_models_load_and_then_three_lines_say_where(tmp_path: Path) -> None:
    """Section 1, order. Many scripts wait for these lines."""
    ports = free_ports(3)
    parameters = f'parameters {{ key: "ports" value {{ string_value: "{ports}" }} }}'
    write_model(tmp_path, "looking", LOOKING, CONFIG + parameters)
    flags = tuple(f"--{name}-port={port}" for name, port in zip(("grpc", "http", "metrics"), ports))
    with RunningServer(tmp_path, flags=flags) as server:
        said = re.findall(r"nobody is at \d+|taken: \d+|Started [\w ]+ at [\d.:]+", server.log)
    assert said == [
        *(f"nobody is at {port}" for port in ports),
        f"Started GRPCInferenceService at 127.0.0.1:{ports[0]}",
        f"Started HTTPService at 127.0.0.1:{ports[1]}",
        f"Started Metrics Service at 127.0.0.1:{ports[2]}",
    ]


@pytest.mark.parametrize(
    ("name", "more"),
    [("http", ()), ("metrics", ()), ("grpc", ()), ("grpc", ("--grpc-transport=grpcio",))],
    ids=["http", "metrics", "grpc", "grpcio"],
)
def test_a_port_that_is_taken_ends_the_start(tmp_path: Path, name: str, more: tuple[str, ...]) -> None:
    """Section 1, start failures."""
    ports = {"http": 0, "grpc": 0, "metrics": 0}
    with taken_port() as port:
        flags = [f"--{key}-port={port if key == name else free}" for key, free in ports.items()]
        addresses = [f"--{key}-address=127.0.0.1" for key in ports]
        status, output = serve_to_its_end(str(tmp_path), *flags, *addresses, *more)
    assert status == 1
    assert f"Socket '127.0.0.1:{port}' already in use " in output


def test_a_signal_while_models_load_ends_the_start(tmp_path: Path) -> None:
    write_model(tmp_path, "endless", ENDLESS, CONFIG)
    ports = [f"--{name}-port=0" for name in ("grpc", "http", "metrics")]
    command = [sys.executable, "-m", "pytriton_lite", "serve", str(tmp_path), *ports]
    with child(command, cwd=PROJECT, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        for line in server.stdout:
            if "it loads" in line:
                server.send_signal(signal.SIGTERM)
                break
        output, _ = server.communicate(timeout=60)
    assert (server.returncode, output.count("Signal (15) received.")) == (0, 1)
    assert "Started" not in output


def test_the_log_counts_the_connections_that_a_stop_waits_for(tmp_path: Path) -> None:
    """Section 11: one line per second."""
    write_recording(tmp_path / "models", "m", "")
    line = r"Timeout (\d+): Found 1 HTTP service connections"
    with RunningServer(tmp_path / "models", flags=("--exit-timeout-secs=300",)) as server:
        with Traffic(server, "m", tmp_path) as traffic:
            held = traffic.block()
            server.process.send_signal(signal.SIGTERM)
            server.wait_for_log(rf"{line}[\s\S]*{line}")
            traffic.open_gates()
            assert held.result(30).status == 200
        assert server.wait() == 0
    seconds = [int(left) for left in re.findall(line, server.log)]
    assert seconds[0] in range(250, 301)
    assert seconds == sorted(set(seconds), reverse=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_metrics_are_the_last_to_go(tmp_path: Path, number: signal.Signals) -> None:
    """Section 11: while a request is served out, HTTP and gRPC take no connections, and the page is there."""
    write_recording(tmp_path / "models", "m", "")
    with RunningServer(tmp_path / "models") as server:
        with Traffic(server, "m", tmp_path) as traffic:
            held = traffic.block()
            server.process.send_signal(number)
            for port in (server.http_port, int(server.grpc_url.rpartition(":")[2])):
                wait_until(lambda port=port: is_refused(port))
            assert server.get(server.metrics_url).status == 200
            traffic.open_gates()
            assert held.result(30).status == 200
        assert server.wait() == 0


def is_refused(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0
