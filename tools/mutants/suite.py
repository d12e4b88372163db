"""A scratch copy of a project tree, and its test files, run there one after another in processes of their own."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PRODUCT = ("pytriton_lite", "model_api")
"""Folders whose code is measured, and mutated."""
GENERATED = ("pytriton_lite/proto/_descriptors.py",)
NOT_RUN = ("tests/frameworks", "tests/gpu")
"""Tests that need another environment or a device."""
_TOOL = Path(__file__).resolve().parent
_MEMORY_BYTES = 16 << 30
"""Address space of a process at most: a mutant may ask for memory without end."""
_TIME_IS_UP = 124
"""What ``timeout`` ends with."""
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


@dataclass(frozen=True)
class Run:
    """How one run of pytest ended: *status* is None where its time was up."""

    status: int | None
    output: str


class Suite:
    """The test files of a tree, run in a copy of it that is theirs to change.

    *prefix* is put in front of each command, ``nice`` for example. The copy is at *folder*, and has this tool in it, for the
    plug-in that records. Tests run with *python*, in whose environment the project's dependencies are.
    """

    def __init__(self, tree: Path, folder: Path, python: Path, prefix: Sequence[str] = ()) -> None:
        self.folder = folder
        self._python = python
        self._prefix = prefix
        _copy_tree(tree, folder)
        shutil.copytree(_TOOL, folder / "tools" / "mutants", dirs_exist_ok=True)
        _adopt_orphans()

    def product_files(self) -> list[str]:
        """Paths of the product's Python files, those that a program has written left out."""
        found = [path for root in PRODUCT for path in (self.folder / root).rglob("*.py")]
        names = sorted(str(path.relative_to(self.folder)) for path in found)
        return [name for name in names if name not in GENERATED]

    def test_files(self) -> list[str]:
        found = sorted(str(path.relative_to(self.folder)) for path in (self.folder / "tests").rglob("test_*.py"))
        return [name for name in found if not name.startswith(NOT_RUN)]

    def run(self, arguments: Sequence[str], *, limit_s: float, environ: Mapping[str, str] | None = None) -> Run:
        """Run pytest with *arguments*, at most *limit_s*. Afterwards nothing that it has started is left."""
        # A short name: tests put sockets there, whose paths have at most 107 bytes.
        with tempfile.TemporaryDirectory(prefix="m", ignore_cleanup_errors=True) as temporary:
            output = Path(temporary) / "output"
            with output.open("wb") as file:
                process = subprocess.Popen(
                    # The time that the prefix waits, for its turn perhaps, does not count.
                    [*self._prefix, *_limited(limit_s), str(self._python), "-m", "pytest", *arguments],
                    cwd=self.folder,
                    env={
                        **_environ(),
                        "PYTHONPATH": str(self.folder),  # before the tree that is installed in the environment
                        "PYTHONHASHSEED": "0",
                        "TMPDIR": temporary,
                        **(environ or {}),
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    preexec_fn=_bound_memory,
                )
                try:
                    status = process.wait()
                finally:
                    _kill_descendants()
            return Run(None if status == _TIME_IS_UP else status, output.read_text(errors="replace"))

    @contextmanager
    def changed(self, name: str, text: str) -> Iterator[None]:
        """The product file *name* is *text* meanwhile."""
        path = self.folder / name
        original = path.read_text()
        _replace(path, text)
        try:
            yield
        finally:
            _replace(path, original)


def _environ() -> dict[str, str]:
    """Ours, but for what would have each run compile every module again."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _limited(limit_s: float) -> list[str]:
    return ["timeout", "--kill-after=10", f"{limit_s:.0f}"]


def _replace(path: Path, text: str) -> None:
    path.write_text(text)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()  # its time and length may be those of the new text


def _copy_tree(tree: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=tree, stdout=subprocess.PIPE, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(tree / name, folder / name, follow_symlinks=False)
    # Tests ask git what is in the project.
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    subprocess.run(["git", "add", "--all"], cwd=folder, check=True)


def _bound_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


def _adopt_orphans() -> None:
    """Become the parent of processes whose parent has ended: servers and workers that a mutant leaves behind."""
    if sys.platform != "linux":
        raise SystemExit("mutants: what a mutant leaves behind is only found on Linux")
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)


def _children(pid: int) -> list[int]:
    try:
        listed = [Path(task, "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []  # it has ended
    return [int(word) for text in listed for word in text.split()]


def _kill_descendants() -> None:
    """Kill all that this process has started, and what that has started, until there is nothing left."""
    while found := _children(os.getpid()):
        waiting = list(found)
        while waiting:
            pid = waiting.pop()
            waiting += _children(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for pid in found:
            os.waitpid(pid, 0)
