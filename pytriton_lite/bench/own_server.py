"""A server of the load tester's own, on a copy of a repository, whose model is loaded again with other settings."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
from collections import deque
from contextlib import ExitStack
from pathlib import Path

from pytriton_lite import owned_server
from pytriton_lite.client.errors import ClientError

_LINKED_BYTES = 16 << 20
"""Files from this size on, weights for instance, are linked and not copied; models do not write into those."""
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0
_LAST_LINES = 20


class OwnServer:
    """A server on free ports of the loopback, in explicit mode, and its copy of a repository. Leaving ends both."""

    def __init__(self, repository: Path) -> None:
        """Raises ClientError where *repository* is no directory."""
        if not repository.is_dir():
            raise ClientError(f"--model-repository {repository}: no such directory")
        self._repository = repository
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)

    def __enter__(self) -> OwnServer:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pytriton-lite-tune-"))
            copy = Path(folder, "repository")
            self._copy_to(copy)
            channel, theirs = socket.socketpair()
            stack.enter_context(channel)
            with theirs:
                self._process = owned_server.start(
                    [
                        owned_server.COMMAND, str(copy), "--model-control-mode=explicit",
                        "--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--http-port=0", "--grpc-port=0",
                        "--allow-metrics=false",
                    ],
                    theirs, environ=owned_server.environment(),
                )  # fmt: skip
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()
            stack.callback(self._end)
            self._addresses = self._wait_addresses(channel)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _copy_to(self, copy: Path) -> None:
        try:
            shutil.copytree(self._repository, copy, copy_function=_copy_or_link, ignore=_passed_over)
        except shutil.Error as error:
            source, _, reason = error.args[0][0]
            raise ClientError(f"cannot copy {source}: {reason}") from None
        except OSError as error:
            raise ClientError(f"cannot copy {self._repository}: {error}") from None

    def _wait_addresses(self, channel: socket.socket) -> owned_server.Addresses:
        try:
            addresses = owned_server.addresses_of(channel, _START_TIMEOUT_S)
        except TimeoutError:
            addresses = None
        if addresses is None:
            self._end()
            said = self._lines[-1] if self._lines else "it said nothing"
            raise ClientError(f"the server for --tune has not started: {said}")
        return addresses

    def _end(self) -> None:
        """End the server and wait for it."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        """Take all that it writes, or it would wait for us; the last lines are kept for an error."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._lines.append(line.decode(errors="replace").rstrip())

    @property
    def http_url(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._addresses['http'][1]}"

    @property
    def grpc_url(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._addresses['grpc'][1]}"

    def memory_mib(self) -> float | None:
        """Memory of all its processes, what they share counted once (PSS); None where the system does not tell.

        Fork servers without a worker, which earlier settings have left behind for half a minute, are not in it.
        """
        kib = sum(map(_pss_kib, _without_idle(self._process.pid, _parents())))
        return kib / 1024 if kib else None

    def cpu_s(self) -> float:
        """Processor time of all its processes; those that have ended meanwhile are not in it."""
        return sum(map(_cpu_s, _descendants(self._process.pid, _parents())))


_NAMES_PASSED_OVER = ("__pycache__", ".git")


def _passed_over(folder: str, names: list[str]) -> list[str]:
    """What `shutil.copytree` is to leave out of *folder*, whose entries are *names*: caches, Git's data, links to nothing."""
    return [name for name in names if name in _NAMES_PASSED_OVER or not os.path.exists(os.path.join(folder, name))]


def _copy_or_link(source: str, target: str) -> str:
    if os.stat(source).st_size >= _LINKED_BYTES:
        try:
            os.link(source, target)
            return target
        except OSError:
            pass  # another file system
    return str(shutil.copy2(source, target))


def _parents() -> dict[int, int]:
    """The parent of each process; empty where there is no /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue  # it has just ended
    return parents


def _descendants(pid: int, parents: dict[int, int]) -> list[int]:
    """*pid* and the processes below it."""
    found = [pid] if pid in parents else []
    for known in found:
        found += [child for child, parent in parents.items() if parent == known]
    return found


def _without_idle(server: int, parents: dict[int, int]) -> list[int]:
    """The server, its children that have children, and those: workers are the children of fork servers."""
    has_children = set(parents.values())
    return [
        pid for pid in _descendants(server, parents) if pid == server or parents[pid] != server or pid in has_children
    ]


def _pss_kib(pid: int) -> int:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    found = re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)
    return int(found[1]) if found else 0


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
