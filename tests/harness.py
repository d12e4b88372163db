"""A real server in a process of its own, and model repositories written on the spot."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
MODEL_REPOSITORY = PROJECT / "model_repository"

START_TIMEOUT_S = 60
_ADDRESS = re.compile(r"Started (GRPCInferenceService|HTTPService|Metrics Service) at ([^\s\"]+):(\d+)")


def write_model(
    repository: Path,
    name: str,
    code: str = "",
    config: str = "",
    *,
    version: int = 1,
    filename: str = "model.py",
) -> Path:
    """A model folder with ``config.pbtxt`` (none for "") and one version with *code* (no file for ""); its path.

    Both texts may be indented with their test.
    """
    folder = repository / name
    (folder / str(version)).mkdir(parents=True, exist_ok=True)
    if code:
        (folder / str(version) / filename).write_text(textwrap.dedent(code))
    if config:
        (folder / "config.pbtxt").write_text(textwrap.dedent(config))
    return folder


class Reply:
    """An HTTP answer, errors included."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        text: str = self.json["error"]
        return text


class RunningServer:
    """``pytriton-lite serve`` on free ports of 127.0.0.1. Use it as a context manager; it is READY inside.

    *python* is the command of the interpreter, with whatever it is to be started through in front, which must ``exec`` it.
    ``log`` is everything the process wrote so far. Leaving ends it with SIGTERM; ``exit_code`` is set then.
    """

    def __init__(
        self,
        *repositories: Path,
        flags: tuple[str, ...] = (),
        environ: dict[str, str] | None = None,
        python: tuple[str, ...] = (sys.executable,),
        cwd: Path = PROJECT,
        user: int | None = None,
    ) -> None:
        self._cwd = cwd
        self._user = user
        self._command = [
            *python, "-m", "pytriton_lite", "serve", *map(str, repositories),
            "--http-address=127.0.0.1", "--grpc-address=127.0.0.1",
            "--http-port=0", "--grpc-port=0", "--metrics-port=0", *flags,
        ]  # fmt: skip
        self._environ = {**os.environ, **(environ or {})}
        self._lines: list[str] = []
        self._grew = threading.Condition()
        self._ports: dict[str, int] = {}
        self.exit_code: int | None = None

    def __enter__(self) -> RunningServer:
        self.process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environ,
            cwd=self._cwd,
            user=self._user,
            group=self._user,
            extra_groups=None if self._user is None else [],
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.wait_for_log(r"Started Metrics Service at", timeout_s=START_TIMEOUT_S)
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = _ADDRESS.search(line)
            with self._grew:
                self._lines.append(line)
                if found:
                    self._ports[found.group(1)] = int(found.group(3))
                self._grew.notify_all()
        with self._grew:
            self._lines.append("")
            self._grew.notify_all()

    @property
    def log(self) -> str:
        with self._grew:
            return "".join(self._lines)

    def wait_for_log(self, pattern: str, *, timeout_s: float = 20) -> re.Match[str]:
        """The first match of *pattern* in the log, once it is there. Fails with the log when the process ends first."""
        expression = re.compile(pattern)
        match: re.Match[str] | None = None

        def found_or_over() -> bool:
            nonlocal match
            match = expression.search("".join(self._lines))
            return match is not None or not self._reader.is_alive() or self._lines[-1:] == [""]

        with self._grew:
            self._grew.wait_for(found_or_over, timeout_s)
            text = "".join(self._lines)
        assert match is not None, f"{pattern!r} is not in the log:\n{text}"
        return match

    def stop(self, *, timeout_s: float = 40) -> int:
        """SIGTERM, and the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait(timeout_s=timeout_s)

    def wait(self, *, timeout_s: float = 40) -> int:
        """The exit code, once the process has ended."""
        try:
            self.exit_code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the server did not end within {timeout_s} s:\n{self.log}") from None
        self._reader.join(5)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.exit_code

    def kill(self) -> None:
        """kill -9, and wait."""
        self.process.kill()
        self.process.wait()
        self._reader.join(5)
        assert self.process.stdout is not None
        self.process.stdout.close()

    # ------------------------------------------------------------------------------------------ talking to it

    @property
    def http_port(self) -> int:
        return self._ports["HTTPService"]

    @property
    def http_url(self) -> str:
        """As tritonclient.http wants it: host and port."""
        return f"127.0.0.1:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        return f"127.0.0.1:{self._ports['GRPCInferenceService']}"

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self._ports['Metrics Service']}/metrics"

    def get(self, path: str) -> Reply:
        return self.request("GET", path)

    def post(self, path: str, body: bytes | dict[str, Any] = b"", headers: dict[str, str] | None = None) -> Reply:
        return self.request("POST", path, json.dumps(body).encode() if isinstance(body, dict) else body, headers)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Reply:
        url = path if path.startswith("http:") else f"http://{self.http_url}{path}"
        asked = urllib.request.Request(url, data=body, headers=headers or {}, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=60) as reply:
                return Reply(reply.status, dict(reply.headers), reply.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, dict(error.headers), error.read())

    def infer(self, model: str, inputs: list[dict[str, Any]], **fields: Any) -> Reply:
        """POST an infer request with JSON tensors."""
        return self.post(f"/v2/models/{model}/infer", {"inputs": inputs, **fields})

    def worker_pids(self, instance: str = "") -> list[int]:
        """The live worker processes, or those whose *instance* name begins so (the kernel keeps 15 characters of it)."""
        pids = []
        for entry in Path("/proc").iterdir():
            try:
                name, parent = process_name_and_parent(int(entry.name))
                if process_name_and_parent(parent)[1] == self.process.pid and name.startswith(instance[:15]):
                    pids.append(int(entry.name))
            except (OSError, ValueError):
                continue  # no process, or one that has just ended
        return sorted(pids)


def process_name_and_parent(pid: int) -> tuple[str, int]:
    """Raises OSError when there is no such process."""
    name, _, fields = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    return name, int(fields.split()[1])


def tensor(name: str, datatype: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    """A JSON tensor."""
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}
