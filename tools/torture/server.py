"""The tortured server: in a namespace of its own where there may be one, and with a look inside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from pytriton_lite import owned_server
from pytriton_lite.testing.server import RunningServer
from tools.torture import processes
from tools.torture.audit import Counters, Vitals, read_counters
from tools.torture.http_client import Tally, ask, ask_json
from tools.torture.load import Target
from tools.torture.models import write_models
from tools.torture.schedule import EXECUTION_LIMIT_S

PROJECT = Path(__file__).resolve().parent.parent.parent

SHARED_MEMORY = "128m"
SCRATCH = "24m"
_LOOK_S = 20.0
_COUNTED = (
    "Task", "Ticket", "Batch", "InferenceRequest", "InferenceResponse", "PendingAnswer", "ResponseStream", "Instance",
    "WorkerProcess", "PeerMemory", "ForkServer", "WorkerVersion", "EnsembleVersion", "EnsembleRun", "Segment",
    "ClientSegment", "Sequence", "OpenCalls", "HttpProtocol", "Http2Connection", "InferStream", "Timeline",
)  # fmt: skip

_LOOK_INSIDE = f"""
import os, signal, sys

def count(*_):
    import asyncio, gc, json
    gc.unfreeze()  # a server that is ready freezes what it consists of, and nobody would see that
    gc.collect()
    found = dict.fromkeys({_COUNTED!r}, 0)
    tasks = []
    for one in gc.get_objects():
        name = type(one).__name__
        if isinstance(one, asyncio.Task):
            if not one.done():
                tasks.append(getattr(one.get_coro(), "__qualname__", "?"))
        elif name in found:
            found[name] += 1
    found["Task"] = len(tasks)
    with open(os.environ["TORTURE_LOOK"], "w") as pipe:
        pipe.write(json.dumps({{"objects": found, "tasks": sorted(tasks)}}))

if {owned_server.COMMAND!r} in sys.orig_argv and "TORTURE_LOOK" in os.environ:
    signal.signal(signal.SIGUSR1, count)
"""


def namespace(scratch: Path) -> tuple[str, ...]:
    """A command under which /dev/shm and *scratch* are small file systems of their own; empty where there is none."""
    small = (
        f"mount -t tmpfs -o size={SHARED_MEMORY} tmpfs /dev/shm && "
        f'mount -t tmpfs -o size={SCRATCH} tmpfs {scratch} && exec "$0" "$@"'
    )
    for flags in ("-m", "-Urm"):
        command = ("unshare", flags, "sh", "-c", small)
        if shutil.which("unshare") and subprocess.run([*command, "true"], capture_output=True).returncode == 0:
            return command
    return ()


class TorturedServer:
    """Made by `started`."""

    def __init__(self, running: RunningServer, folder: Path, scratch: Path, mark: str, *, is_private: bool) -> None:
        self.running = running
        self.folder = folder
        self.repository = folder / "models"
        self.mark = mark
        self.is_private = is_private
        """Whether its file systems are its own, so that they may be filled."""
        pid = running.process.pid
        root = f"/proc/{pid}/root" if is_private else ""
        self.target = Target(
            pid=pid,
            http_port=running.http_port,
            grpc_address=running.grpc_url,
            metrics_port=int(running.metrics_url.split(":")[2].split("/")[0]),
            shared_memory=Path(f"{root}/dev/shm"),
            scratch=Path(f"{root}{scratch}"),
        )
        self._look = folder / "look"
        self._log_from = 0

    @classmethod
    @contextlib.contextmanager
    def started(cls, folder: Path, *flags: str) -> Iterator[TorturedServer]:
        """*folder* is empty. Nothing of the server is left in the end."""
        write_models(folder / "models")
        scratch, inside = folder / "scratch", folder / "inside"
        scratch.mkdir()
        inside.mkdir()
        (inside / "sitecustomize.py").write_text(_LOOK_INSIDE)
        os.mkfifo(folder / "look")
        mark = f"TORTURE_MARK={uuid.uuid4().hex}"
        command = namespace(scratch)
        running = RunningServer(
            folder / "models",
            flags=(
                "--model-control-mode=explicit", "--load-model=*", "--log-format=json", "--allow-client-shm=true",
                f"--access-log-file={scratch}/access.log", "--cache-config=local,size=1048576", "--exit-timeout-secs=30",
                "--max-unanswered-requests=300",
                f"--execution-timeout-secs={EXECUTION_LIMIT_S:g}",
                *flags,
            ),
            environ={
                "TMPDIR": str(scratch), "PYTHONPATH": str(inside), "TORTURE_LOOK": str(folder / "look"),
                "TORTURE_MARK": mark.partition("=")[2], "OMP_NUM_THREADS": "1",
            },
            python=(*command, sys.executable),
            cwd=PROJECT,
            start_timeout_s=120,
        )  # fmt: skip
        try:
            with running:
                yield cls(running, folder, scratch, mark, is_private=bool(command))
        finally:
            for pid in processes.marked(mark):  # none, where the server did what it should
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def look_inside(self) -> tuple[dict[str, int], list[str]]:
        """Objects by class, and the names of unfinished tasks. Raises TimeoutError when the loop does not come round."""
        pipe = os.open(self._look, os.O_RDONLY | os.O_NONBLOCK)
        try:
            os.kill(self.target.pid, signal.SIGUSR1)
            text = b""
            while select.select([pipe], [], [], _LOOK_S)[0]:
                piece = os.read(pipe, 1 << 16)
                if not piece and text:
                    document = json.loads(text)
                    return document["objects"], document["tasks"]
                text += piece
            raise TimeoutError(f"the server's loop did not come round in {_LOOK_S:g} s")
        finally:
            os.close(pipe)

    async def counters(self, tally: Tally) -> Counters:
        statistics = await ask_json(self.target.http_port, tally, "/v2/models/stats")
        answer = await ask_page(self.target.metrics_port)
        return read_counters(statistics, answer)

    def vitals(self, slots: int) -> Vitals:
        """*slots* are those of the counters."""
        pid = self.target.pid
        tree = processes.descendants(pid)
        forkers = processes.fork_servers(pid)
        workers = [one for one in tree if one.parent in {forker.pid for forker in forkers} and not one.is_zombie]
        theirs = {child.pid for worker in workers for child in processes.descendants(worker.pid)}
        known = {pid, *theirs, *(one.pid for one in forkers), *(one.pid for one in workers)}
        objects, _ = self.look_inside()
        return Vitals(
            descriptors=processes.count_descriptors(pid),
            threads=processes.count_threads(pid),
            memory_mib=processes.own_memory_mib(pid),
            workers=len(workers),
            fork_servers=len({one.pid for one in forkers} - {one.parent for one in workers}),
            strangers=len(processes.marked(self.mark) - known),
            zombies=sum(one.is_zombie for one in tree),
            slots=slots,
            shared_memory_files=len(os.listdir(self.target.shared_memory)),
            temporary_files=len(os.listdir(self.target.scratch)),
            fork_server_descriptors=max((processes.count_descriptors(one.pid) for one in forkers), default=0),
            objects=objects,
        )

    def new_log(self) -> str:
        """What the server has written since the last call."""
        text = self.running.log
        begin, self._log_from = self._log_from, len(text)
        return text[begin:]

    async def take_access_log(self, limit_s: float = 10) -> str:
        """Its lines since the last call. The file is moved away, and the server told to begin a new one."""
        path, taken = self.target.scratch / "access.log", self.target.scratch / "access.taken"
        if not path.exists():
            return ""
        os.rename(path, taken)
        os.kill(self.target.pid, signal.SIGHUP)
        deadline = time.monotonic() + limit_s
        while not path.exists() and time.monotonic() < deadline:  # noqa: ASYNC110  # another process makes it
            await asyncio.sleep(0.05)
        text = taken.read_text(errors="replace")
        os.unlink(taken)
        return text


async def ask_page(port: int) -> str:
    """The metrics page; the metrics of requests do not count it."""
    answer = await ask(port, Tally(), "/metrics")
    return answer.body.decode()
