"""A real server in a process of its own, and model repositories written on the spot."""

from __future__ import annotations

import errno
import gc
import json
import mmap
import os
import random
import socket
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from pytriton_lite.testing.server import RunningServer as ShippedServer
from tests.forked_servers import CAN_FORK, nursery

PROJECT = Path(__file__).resolve().parent.parent
MODEL_REPOSITORY = PROJECT / "model_repository"


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


@contextmanager
def child(command: list[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process that has ended in the end: what a test gives up on is killed, where `subprocess.Popen` would wait for it."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def no_room(fd: int, nbytes: int, *, prot: int = 0) -> mmap.mmap:
    """In the place of `mmap.mmap`: there is no room in this address space."""
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def open_descriptors() -> int:
    """Of this process, the one that counts them included."""
    gc.collect()  # what a test before left in a cycle would be closed while the next one counts
    return len(os.listdir("/proc/self/fd"))


def descriptors() -> set[tuple[str, str]]:
    """Numbers of those of this process, and what they lead to; without the one that lists them."""
    gc.collect()  # as above
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


_CLAIMS: list[socket.socket] = []
"""What says to the other processes of a run that a port is this one's."""


def free_ports(count: int) -> list[int]:
    """Of 127.0.0.1, for who has to know them before he listens. Not those that the system gives to clients meanwhile.

    Nor those that another process has found in this way, and may be about to listen on: for as long as this process lives,
    it holds a UDP port of the same number, which nobody here uses otherwise.
    """
    found: list[int] = []
    with ExitStack() as taken:
        for port in random.Random().sample(range(20_000, 32_000), 1000):
            claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                claim.bind(("127.0.0.1", port))
                taken.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                claim.close()
                continue
            _CLAIMS.append(claim)
            found.append(port)
            if len(found) == count:
                return found
    raise AssertionError("there are no free ports from 20000 to 32000")


TESTED_FRONT_ENDS = os.environ.get("TESTED_FRONT_ENDS", "")


def one_process(reason: str) -> pytest.MarkDecorator:
    """Skip a test where servers have front ends in processes of their own, of which it would say something else."""
    return pytest.mark.skipif(bool(TESTED_FRONT_ENDS), reason=f"with front ends {reason}")


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


class RunningServer(ShippedServer):
    """The server of this checkout, and ways to talk to it.

    It is forked (forked_servers.py) where that makes no difference, and started where *python* or *user* is given, or
    ``started=True``. ``TESTED_FRONT_ENDS=N`` gives each that does not say otherwise N front ends of its own (make
    test-front-ends).
    """

    def __init__(
        self,
        *repositories: Path,
        flags: tuple[str, ...] = (),
        environ: dict[str, str] | None = None,
        python: tuple[str, ...] | None = None,
        cwd: Path = PROJECT,
        user: int | None = None,
        started: bool = False,
    ) -> None:
        python_or_this = python or (sys.executable,)
        # grpcio listens itself, in one process.
        if TESTED_FRONT_ENDS and not any(flag.startswith(("--grpc-transport=grpcio", "--frontends")) for flag in flags):
            flags = (*flags, f"--frontends={TESTED_FRONT_ENDS}")
        super().__init__(*repositories, flags=flags, environ=environ, python=python_or_this, cwd=cwd, user=user)
        self._may_be_forked = CAN_FORK and not started and python is None and user is None and cwd == PROJECT

    def start_process(self, channel: socket.socket) -> subprocess.Popen[bytes]:
        if self._may_be_forked and nursery().can_fork(self.environ):
            forked = nursery().fork(self.arguments, self.environ, channel.fileno())
            return cast("subprocess.Popen[bytes]", forked)  # it has what is used of one
        return super().start_process(channel)

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


def stat_fields(pid: int) -> list[str]:
    """What /proc/PID/stat has behind the name: the state, the parent, … Raises OSError when there is no such process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def process_name_and_parent(pid: int) -> tuple[str, int]:
    """Raises OSError when there is no such process."""
    name, _, fields = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    return name, int(fields.split()[1])


def is_running(pid: int) -> bool:
    """Not when it has ended, and only waits for its parent to ask how."""
    try:
        return stat_fields(pid)[0] != "Z"
    except OSError:
        return False


LOADS_ON = """
    import time
    from pathlib import Path
    class TritonPythonModel:
        def initialize(self, args):
            folder = Path(__file__).parent
            (folder / "begun").touch()
            while not (folder / "gate").exists():
                time.sleep(0.005)
        def execute(self, requests):
            return []
    """
"""A model that loads until there is a file ``gate`` beside its model.py, where it has left one, ``begun``, before."""


def until(condition: Callable[[], object]) -> None:
    """Return when *condition* holds, which it will: the test has a limit of its own."""
    while not condition():
        time.sleep(0.005)


def until_ready(server: subprocess.Popen[Any], port: int) -> None:
    """Return when *server*, of which nothing can be read, is ready at *port* of 127.0.0.1. Fails when it ends before."""

    def is_ready() -> bool:
        assert server.poll() is None, f"the server has ended with status {server.returncode}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    until(is_ready)


def tensor(name: str, datatype: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    """A JSON tensor."""
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}
