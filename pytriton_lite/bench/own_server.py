"""A server of the load tester's own, on a copy of a repository, whose model is loaded again with other settings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType

from pytriton_lite.client.errors import ClientError

_LINKED_BYTES = 16 << 20
"""Files from this size on, weights for instance, are linked and not copied; models do not write into those."""
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0
_ADDRESS = re.compile(r"Started (GRPCInferenceService|HTTPService) at 127\.0\.0\.1:(\d+)")


class OwnServer:
    """``pytriton-lite serve`` on free ports of the loopback, in explicit mode. A context manager."""

    def __init__(self, repository: Path) -> None:
        """Raises ClientError where *repository* is no directory."""
        if not repository.is_dir():
            raise ClientError(f"--model-repository {repository}: no such directory")
        self._repository = repository
        self._ports: dict[str, int] = {}
        self._lines: list[str] = []
        self._ready = threading.Event()

    def __enter__(self) -> OwnServer:
        self._folder = tempfile.TemporaryDirectory(prefix="pytriton-lite-tune-")
        try:
            copy = Path(self._folder.name, "repository")
            try:
                shutil.copytree(self._repository, copy, copy_function=_copy_or_link, ignore=_PASSED_OVER)
            except (OSError, shutil.Error) as error:
                raise ClientError(f"cannot copy {self._repository}: {error}") from None
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "pytriton_lite", "serve", str(copy), "--model-control-mode=explicit",
                    "--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--http-port=0", "--grpc-port=0",
                    "--allow-metrics=false",
                ],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                env={name: value for name, value in os.environ.items() if not name.startswith("PYTRITON_LITE_")},
            )  # fmt: skip
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()
            if not self._ready.wait(_START_TIMEOUT_S) or len(self._ports) < 2:
                self.close()
                raise ClientError(
                    "the server for --tune has not started: " + (self._lines[-1:] or ["it said nothing"])[0]
                )
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        self._folder.cleanup()

    def close(self) -> None:
        """End the server and wait for it."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        """Take all that it writes, or it would wait for us; the last lines are kept for an error."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines = [*self._lines[-20:], line.rstrip()]
            if found := _ADDRESS.search(line):
                self._ports[found[1]] = int(found[2])
                if len(self._ports) == 2:
                    self._ready.set()
        self._ready.set()

    @property
    def http_url(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._ports['HTTPService']}"

    @property
    def grpc_url(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._ports['GRPCInferenceService']}"

    def memory_mib(self) -> float | None:
        """Memory of all its processes, what they share counted once (PSS); None where the system does not tell.

        Fork servers without a worker, which earlier settings have left behind for half a minute, are not in it.
        """
        sizes = [_pss_kib(pid) for pid in _without_idle(self._process.pid, _parents())]
        return sum(sizes) / 1024 if sizes and sum(sizes) else None

    def cpu_s(self) -> float:
        """Processor time of all its processes; those that have ended meanwhile are not in it."""
        return sum(map(_cpu_s, _descendants(self._process.pid, _parents())))


_PASSED_OVER = shutil.ignore_patterns("__pycache__", ".git")


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
