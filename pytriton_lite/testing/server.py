"""A real server in a process of its own, on free ports of 127.0.0.1."""

from __future__ import annotations

import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from pytriton_lite import owned_server
from pytriton_lite.cli.serve import only_model

Server = TypeVar("Server", bound="RunningServer")

_START_TIMEOUT_S = 60.0
_LAST_LINES_TIMEOUT_S = 20.0
"""What the server has left behind may have its output open, which then has no end."""
_CONFIG = "config.pbtxt"


def repository_arguments(folder: Path) -> list[str]:
    """What makes a server serve *folder*: a repository, or the folder of one model, which is then the only one served."""
    return only_model(folder) if _is_model(folder) else [str(folder)]


def _is_model(folder: Path) -> bool:
    """Whether it has a configuration, or a version: a folder with a number for a name, and a file in it."""
    if not folder.is_dir():
        return False
    versions = [entry for entry in folder.iterdir() if entry.name.isdigit() and entry.is_dir()]
    return (folder / _CONFIG).is_file() or any(
        entry.is_file() and entry.name != _CONFIG for version in versions for entry in version.iterdir()
    )


class RunningServer:
    """``pytriton-lite serve`` on free ports of 127.0.0.1. Use it as a context manager; it is READY inside.

    Options of the server in this process's environment are not for it; *environ* is. It ends with this process, whatever ends
    that. Each of *folders* is a repository, or one model of a repository. *python* is the command of the interpreter, with
    whatever it is to be started through in front, which must ``exec`` it. ``log`` is everything the process wrote so far.
    Leaving ends it with SIGTERM; ``exit_code`` is set then.
    """

    def __init__(
        self,
        *folders: str | Path,
        flags: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        python: Sequence[str] = (sys.executable,),
        cwd: Path | None = None,
        user: int | None = None,
        start_timeout_s: float = _START_TIMEOUT_S,
    ) -> None:
        self._cwd = cwd
        self._user = user
        self._start_timeout_s = start_timeout_s
        self._python = python
        self.arguments = [
            owned_server.COMMAND,
            *(argument for folder in folders for argument in repository_arguments(Path(folder).absolute())),
            "--http-address=127.0.0.1", "--grpc-address=127.0.0.1",
            "--http-port=0", "--grpc-port=0", "--metrics-port=0", *flags,
        ]  # fmt: skip
        """What stands behind the name of the command."""
        self.environ = {**owned_server.environment(), **(environ or {})}
        self._lines: list[str] = []
        self._unended = b""
        self._has_ended = False
        self._grew = threading.Condition()
        self._addresses: owned_server.Addresses = {}
        self.exit_code: int | None = None

    def __enter__(self: Server) -> Server:
        self._channel, theirs = socket.socketpair()
        with ExitStack() as stack, theirs:
            stack.callback(self._channel.close)
            self.process = self.start_process(theirs)
            stack.pop_all()
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.wait_until_it_serves(self._start_timeout_s)
        except BaseException:
            self.kill()
            raise
        return self

    def start_process(self, channel: socket.socket) -> subprocess.Popen[bytes]:
        """The process, with an unbuffered pipe for all that it writes; *channel* is its standard input."""
        return owned_server.start(
            self.arguments,
            channel,
            environ=self.environ,
            python=self._python,
            cwd=self._cwd,
            user=self._user,
            bufsize=0,
        )

    def wait_until_it_serves(self, timeout_s: float) -> None:
        """Return when clients may come. Fails, and shows the log, where the server ends before that or takes longer."""
        try:
            addresses = owned_server.addresses_of(self._channel, timeout_s)
        except TimeoutError:
            raise AssertionError(f"the server does not serve within {timeout_s:g} s:\n{self.log}") from None
        if addresses is None:
            self.process.wait(timeout_s)
            self._reader.join(_LAST_LINES_TIMEOUT_S)
            raise AssertionError(f"the server has ended with status {self.process.returncode}:\n{self.log}")
        self._addresses = addresses

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output, selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while not self._has_ended:
                selector.select()
                with self._grew:
                    self._take()

    def _take(self) -> None:
        """Take all that has been written; of a line that has not ended the rest is waited for. The caller has the lock."""
        assert self.process.stdout is not None
        while not self._has_ended and (data := self.process.stdout.read(1 << 16)) is not None:
            self._has_ended = not data
            *lines, self._unended = (self._unended + data).split(b"\n")
            if self._has_ended and self._unended:
                lines.append(self._unended)
            self._lines += [line.decode(errors="replace") + "\n" for line in lines]
            self._grew.notify_all()

    @property
    def log(self) -> str:
        with self._grew:
            self._take()
            return "".join(self._lines)

    def wait_for_log(self, pattern: str, *, timeout_s: float = 20) -> re.Match[str]:
        """The first match of *pattern* in the log, once it is there. Fails with the log when the process ends first."""
        expression = re.compile(pattern)
        match: re.Match[str] | None = None

        def found_or_over() -> bool:
            nonlocal match
            match = expression.search("".join(self._lines))
            return match is not None or self._has_ended

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
        self._reader.join(_LAST_LINES_TIMEOUT_S)
        self._channel.close()
        return self.exit_code

    def kill(self) -> None:
        """kill -9, and wait."""
        self.process.kill()
        self.process.wait()
        self._reader.join(_LAST_LINES_TIMEOUT_S)
        self._channel.close()

    @property
    def http_port(self) -> int:
        return self._port("http")

    @property
    def http_url(self) -> str:
        """Host and port, as tritonclient.http wants them."""
        return f"127.0.0.1:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        return f"127.0.0.1:{self._port('grpc')}"

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self._port('metrics')}/metrics"

    def _port(self, listener: str) -> int:
        assert listener in self._addresses, (
            f"the server has no listener '{listener}'; it has {', '.join(self._addresses)}"
        )
        return self._addresses[listener][1]
