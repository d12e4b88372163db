"""`.devcontainer/` and `.vscode/`: what they name is there, and a breakpoint in a served model stops VS Code's debugger."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytriton_lite.cli.serve import parse
from tests.harness import MODEL_REPOSITORY, PROJECT, child, free_ports

CONTAINER = json.loads((PROJECT / ".devcontainer" / "devcontainer.json").read_text())
LAUNCHES = {
    entry["name"]: entry for entry in json.loads((PROJECT / ".vscode" / "launch.json").read_text())["configurations"]
}


def test_the_container_installs_with_a_target_of_make() -> None:
    make, target = CONTAINER["postCreateCommand"].split()
    assert make == "make"
    assert re.search(
        rf"^{re.escape(target.replace('.venv', '$(VENV)'))}:", (PROJECT / "Makefile").read_text(), re.MULTILINE
    )
    assert CONTAINER["forwardPorts"] == [8000, 8001, 8002]


def test_launch_configurations_are_command_lines_of_ours() -> None:
    serve = LAUNCHES["Serve and follow"]
    assert serve["module"] == "pytriton_lite"
    assert serve["args"][0] == "serve"
    settings = parse(serve["args"][1:], {}).settings
    assert settings is not None
    assert settings.watch


class Debugger:
    """The little of the Debug Adapter Protocol that an editor needs to stop at a line."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._stream = self._socket.makefile("rb")
        self._number = 0

    def send(self, command: str, **arguments: Any) -> None:
        self._number += 1
        message = {"seq": self._number, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(message).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def wait_for(self, kind: str, name: str) -> dict[str, Any]:
        """The next message that is a *kind* ('event' or 'response') of *name*."""
        while True:
            message = self._read()
            assert message.get("success", True), message
            if message["type"] == kind and message.get("event", message.get("command")) == name:
                return message

    def _read(self) -> dict[str, Any]:
        length = 0
        while (line := self._stream.readline()) != b"\r\n":
            assert line, "the adapter has closed the connection"
            if line.lower().startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        message: dict[str, Any] = json.loads(self._stream.read(length))
        return message

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


def test_a_breakpoint_beside_a_line_of_a_served_model_stops_there(tmp_path: Path) -> None:
    # Releases before sometimes drop the session of an editor that attaches as soon as they listen
    # (github.com/microsoft/debugpy/pull/2049).
    pytest.importorskip("debugpy", minversion="1.8.22")
    launch = LAUNCHES["Debug a model"]
    arguments = [argument.replace("${input:model}", str(MODEL_REPOSITORY / "add_sub")) for argument in launch["args"]]
    code = MODEL_REPOSITORY / "add_sub" / "1" / "model.py"
    line = next(number for number, text in enumerate(code.read_text().splitlines(), 1) if "InferenceResponse(" in text)
    debugger_port, http_port = free_ports(2)
    flags = [f"--http-port={http_port}", "--grpc-port=0", "--metrics-port=0"]
    command = [sys.executable, "-Xfrozen_modules=off", "-m", "debugpy", "--listen", f"127.0.0.1:{debugger_port}"]
    command += [
        "--wait-for-client",
        "--configure-subProcess",
        str(launch["subProcess"]),
        "-m",
        launch["module"],
        *arguments,
        *flags,
    ]
    with child(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        debugger = connect(process, debugger_port)
        try:
            debugger.send("initialize", adapterID="test", pathFormat="path")
            debugger.wait_for("response", "initialize")
            debugger.send("attach", subProcess=launch["subProcess"], justMyCode=launch["justMyCode"])
            debugger.wait_for("event", "initialized")
            debugger.send("setBreakpoints", source={"path": str(code)}, breakpoints=[{"line": line}])
            assert debugger.wait_for("response", "setBreakpoints")["body"]["breakpoints"][0]["verified"]
            debugger.send("configurationDone")
            wait_until_it_serves(process)
            body = {
                "inputs": [
                    {"name": f"INPUT{i}", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]} for i in (0, 1)
                ]
            }
            curl = ["curl", "-s", f"127.0.0.1:{http_port}/v2/models/add_sub/infer", "-d", json.dumps(body)]
            with child(curl, stdout=subprocess.PIPE, text=True) as client:
                stopped = debugger.wait_for("event", "stopped")["body"]
                assert stopped["reason"] == "breakpoint"
                debugger.send("stackTrace", threadId=stopped["threadId"])
                frame = debugger.wait_for("response", "stackTrace")["body"]["stackFrames"][0]
                assert (frame["source"]["path"], frame["line"]) == (str(code), line)
                debugger.send("setBreakpoints", source={"path": str(code)}, breakpoints=[])
                debugger.send("continue", threadId=stopped["threadId"])
                answer = json.loads(client.communicate(timeout=60)[0])
            assert answer["outputs"][0]["data"] == [2, 4, 6, 8]
        finally:
            debugger.close()


def connect(process: subprocess.Popen[str], port: int) -> Debugger:
    """The debugger, as soon as it listens."""
    while process.poll() is None:
        try:
            return Debugger(port)
        except ConnectionRefusedError:
            continue
    raise AssertionError(process.communicate()[0])


def wait_until_it_serves(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for text in process.stdout:
        if "Started HTTPService" in text:
            return
    raise AssertionError("it ended")
