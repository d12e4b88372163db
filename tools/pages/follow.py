"""A page followed from top to bottom, as a reader would: files are written, commands run, and what they print compared.

    python -m tools.pages.follow docs/tutorial.md                  in a new folder and a new environment, with the time it took
    python -m tools.pages.follow docs/tutorial.md --folder=/tmp/x  in that folder, which stays

Whoever follows a page has three terminals; so a block with the note `background` goes on until a block says `stop`. Servers of
a page listen where the environment says (PYTRITON_LITE_HTTP_PORT and its like), and its other commands find them there, because
the ports 8000, 8001 and 8002 are replaced by those.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from tools.pages.snippets import PROJECT, Snippet, snippets

READY = "Started HTTPService"
READY_TIMEOUT_S = 120
COMMAND_TIMEOUT_S = 600
PORTS = ("8000", "8001", "8002")
_PORT_OPTIONS = ("PYTRITON_LITE_HTTP_PORT", "PYTRITON_LITE_GRPC_PORT", "PYTRITON_LITE_METRICS_PORT")


class NotAsWritten(AssertionError):
    """A command of a page failed, or printed something else; the text has the place and what came."""


class _Background:
    """A command that goes on, in a process group of its own. READY when its constructor returns."""

    def __init__(self, snippet: Snippet, script: str, folder: Path, environ: Mapping[str, str]) -> None:
        self._snippet = snippet
        self._lines: list[str] = []
        self._is_ready = False
        self._is_known = threading.Event()  # ready, or ended without
        self._process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=environ, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        # A process that has closed its output may not have exited yet, so `poll` would not tell the two apart.
        if not self._is_known.wait(READY_TIMEOUT_S) or not self._is_ready:
            self.stop()
            raise NotAsWritten(f"{snippet.place}: it did not get ready\n{''.join(self._lines)}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
            if READY in line:
                self._is_ready = True
                self._is_known.set()
        self._is_known.set()

    def stop(self) -> None:
        """Do what Ctrl-C does, and wait for the end."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Following:
    """One reader of one page, in *folder*, whose commands have *environ*. `close` ends what still runs.

    With *is_fresh* the page is followed where there is nothing yet: what it installs is installed, and times are printed.
    """

    def __init__(self, folder: Path, environ: Mapping[str, str], *, is_fresh: bool = False) -> None:
        self._folder = folder
        self._is_fresh = is_fresh
        self._ports = [str(port) for port in _free_ports(len(PORTS))]
        # Without a terminal Python would keep lines back, and a page shows them as they come.
        self._environ = {**environ, **dict(zip(_PORT_OPTIONS, self._ports, strict=True)), "PYTHONUNBUFFERED": "1"}
        self._printed = ""
        self._running: dict[str, _Background] = {}

    def follow(self, page: Path) -> None:
        """Do all that *page* says. Raises NotAsWritten."""
        for snippet in snippets(page):
            began = time.monotonic()
            what = self._take(snippet)
            if self._is_fresh and what:
                print(f"{time.monotonic() - began:7.1f} s  {snippet.place}: {what}", flush=True)

    def _take(self, snippet: Snippet) -> str:
        if "stop" in snippet.notes:
            self._running.pop(snippet.notes["stop"]).stop()
        if "installs" in snippet.notes and not self._is_fresh:
            return ""
        if "not run" in snippet.notes:
            return f"not run: {snippet.notes['not run']}"
        if "prints" in snippet.notes:
            self._compare(snippet)
        elif snippet.file:
            path = self._folder / snippet.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._with_ports(snippet.text), encoding="utf-8")
        elif snippet.language in ("sh", "bash"):
            return self._run(snippet, snippet.text)
        elif snippet.language == "python":
            return self._run(snippet, f"python - <<'END_OF_PAGE'\n{snippet.text}END_OF_PAGE\n")
        return ""

    def _run(self, snippet: Snippet, text: str) -> str:
        script = self._with_ports(text)
        first = text.strip().splitlines()[0]
        if "background" in snippet.notes:
            name = snippet.notes["background"]
            self._running[name] = _Background(snippet, script, self._folder, self._environ)
            return first
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], cwd=self._folder, env=self._environ, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=COMMAND_TIMEOUT_S,
        )  # fmt: skip
        self._printed = done.stdout
        if done.returncode != 0:
            raise NotAsWritten(f"{snippet.place}: status {done.returncode}\n{text}\n{done.stdout}")
        return first

    def _with_ports(self, text: str) -> str:
        for shown, real in zip(PORTS, self._ports, strict=True):
            text = re.sub(rf"\b{shown}\b", real, text)
        return text

    def _compare(self, snippet: Snippet) -> None:
        parts = []
        for line in self._with_ports(snippet.text).rstrip("\n").split("\n"):
            any_text = r"(?:.*\n)*" if line == "…" else re.escape(line.rstrip()).replace("…", ".*") + r" *\n"
            parts.append(any_text)
        if re.fullmatch("".join(parts), self._printed.rstrip("\n") + "\n") is None:
            raise NotAsWritten(f"{snippet.place}: expected\n{snippet.text}\ncame\n{self._printed}")

    def close(self) -> None:
        while self._running:
            self._running.popitem()[1].stop()

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now, and none that the system gives to clients meanwhile."""
    found: list[int] = []
    with ExitStack() as taken:
        for port in random.sample(range(20_000, 32_000), 1000):
            try:
                taken.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise OSError("there are no free ports from 20000 to 32000")


def environment(*directories: Path) -> dict[str, str]:
    """This process's environment, with programs of *directories* first and no colours."""
    path = os.pathsep.join([*map(str, directories), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, "NO_COLOR": "1", "COLUMNS": "120"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.pages.follow", description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--folder", type=Path, help="where its files are written; one that is removed without it")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="followed-"))
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        # `pip install pytriton-lite` on a page finds a wheel of this checkout, which is built before the clock starts.
        wheels = folder / ".wheels"
        build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(wheels), str(PROJECT)]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        environ = {**environment(folder / ".venv" / "bin"), "PIP_FIND_LINKS": str(wheels)}
        environ.pop("PYTHONPATH", None)
        began = time.monotonic()
        with Following(folder, environ, is_fresh=True) as following:
            following.follow((PROJECT / given.page).resolve())
    except NotAsWritten as wrong:
        print(f"NOT AS WRITTEN  {wrong}", file=sys.stderr)
        return 1
    finally:
        if given.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{time.monotonic() - began:7.1f} s  all of {given.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
