"""A replica of Ray Serve that runs ``pytriton-lite serve`` as its child, and tells the directory where it listens."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import logging
import os
import re
import signal
import socket
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Sequence
from typing import Any

from pytriton_lite import owned_server
from pytriton_lite.frontends.addresses import format_address
from pytriton_lite.ray.scaling import QUEUED, UNANSWERED

logger = logging.getLogger(__name__)

_ANYWHERE = ("0.0.0.0", "[::]")
_COUNTS = {
    UNANSWERED: re.compile(r"^pytriton_lite_unanswered_requests\{[^\n]*\} (\S+)$", re.MULTILINE),
    QUEUED: re.compile(r"^nv_inference_pending_request_count\{[^\n]*\} (\S+)$", re.MULTILINE),
}
_OF_THE_REPLICA = (
    "http-port",
    "grpc-port",
    "metrics-port",
    "allow-http",
    "allow-grpc",
    "allow-metrics",
    "model-repository",
)
_LAST_LINES = 20
"""Lines of the server's log that are told when it does not start."""
_LAST_CHARACTERS = 10_000
"""Characters of them, at most: a line may be of any length."""
_LAST_S = 5.0
"""How long what it has written last is waited for: processes of a model's may outlive the server, and keep its pipe open."""
_READ_BYTES = 1 << 16
_TELL_EVERY_S = 1.0
_LEASE_S = 5.0
"""How long the directory believes in a server that says nothing more: one whose machine is gone is listed so long."""
_ASK_TIMEOUT_S = 5.0
_open_url = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
"""Without the proxies of the environment: those are for the world, and know nothing of a server on this machine."""

# The kernel ends the server with its replica, whatever ends that: Ray gives its CPUs and GPUs to somebody else at once.
_START = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.executable, [sys.executable, "-m", "pytriton_lite", *sys.argv[2:]])
"""


def check_flags(flags: Sequence[str]) -> None:
    """Raise ValueError for a flag that the replica sets itself, TypeError for what is no list of texts."""
    if isinstance(flags, str) or not all(isinstance(flag, str) for flag in flags):
        raise TypeError(f"flags are a list of texts as on a command line, not {flags!r}")
    for flag in flags:
        name = flag.lstrip("-").partition("=")[0]
        if flag.startswith("-") and name in _OF_THE_REPLICA:
            raise ValueError(f"{flag} is not for flags: the replica chooses ports, and needs every listener")


class ServerReplica:
    """One server, from the replica's start to its end."""

    async def __init__(self, repositories: Sequence[str], flags: Sequence[str], directory: str, stop_s: int) -> None:  # type: ignore[misc]
        """Start the server, and wait until it serves.

        Raises RuntimeError with the end of its log where it does not; Ray tries again, and then fails the deployment.
        """
        self._name = uuid.uuid4().hex
        self._stop_s = stop_s
        self._directory_name = directory
        self._log_end = ""
        self._addresses: dict[str, str] = {}
        command = [
            *repositories, "--http-port=0", "--grpc-port=0", "--metrics-port=0", f"--exit-timeout-secs={stop_s}", *flags,
        ]  # fmt: skip
        ours, theirs = socket.socketpair()
        told, self._channel = await asyncio.open_unix_connection(sock=ours)
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _START, str(os.getpid()), owned_server.COMMAND, *command,
                stdin=theirs.fileno(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
        self._reading = asyncio.create_task(self._read())
        line = b""
        with contextlib.suppress(ConnectionError):  # it has ended
            line = await told.readline()  # for as long as it takes: models may load for hours
        if not line.endswith(b"\n"):
            status = await self._process.wait()
            await asyncio.wait({self._reading}, timeout=_LAST_S)
            self._channel.close()
            raise RuntimeError(f"pytriton-lite serve ended with status {status}:\n{self._last_lines()}")
        for name, (host, port) in owned_server.read_addresses(line).items():
            self._addresses[name] = format_address(_node_address(host), port)
        self._telling = asyncio.create_task(self._tell())

    async def _read(self) -> None:
        """Hand on the server's log, which Ray keeps with the replica's. A line may have any length, and no end."""
        assert self._process.stdout is not None
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        while data := await self._process.stdout.read(_READ_BYTES):
            text = decoder.decode(data)
            self._log_end = (self._log_end + text)[-_LAST_CHARACTERS:]
            sys.stderr.write(text)

    def _last_lines(self) -> str:
        return "".join(self._log_end.splitlines(keepends=True)[-_LAST_LINES:])

    async def _tell(self) -> None:
        """Tell the directory where the server is, for as long as it is ready."""
        from ray import serve

        handle: Any = None
        while True:
            if await self._is_ready():
                try:
                    if handle is None:
                        app_name = serve.get_replica_context().app_name
                        handle = serve.get_deployment_handle(self._directory_name, app_name=app_name)
                    telling = handle.enter.remote(self._name, self._addresses, _LEASE_S)
                    await asyncio.wait_for(_answer(telling), _ASK_TIMEOUT_S)
                except Exception as error:  # the directory is starting, or being replaced: it is told in a moment
                    logger.warning("the directory of servers does not answer: %r", error)
            await asyncio.sleep(_TELL_EVERY_S)

    async def addresses(self) -> dict[str, str]:
        """Where this server listens: host and port by ``http``, ``grpc`` and ``metrics``."""
        return dict(self._addresses)

    async def check_health(self) -> None:
        """Raise RuntimeError unless the server is ready, which it is not while workers of a model keep dying."""
        if self._process.returncode is not None:
            raise RuntimeError(f"pytriton-lite serve has ended with status {self._process.returncode}")
        if not await self._is_ready():
            raise RuntimeError(f"the server at {self._addresses['http']} is not ready")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What `scaling.by_unanswered` scales by, from the server's metrics."""
        page = await self._get("metrics", "/metrics")
        return {name: sum(map(float, pattern.findall(page))) for name, pattern in _COUNTS.items()}

    async def _is_ready(self) -> bool:
        try:
            await self._get("http", "/v2/health/ready")
        except OSError:
            return False
        return True

    async def _get(self, listener: str, path: str) -> str:
        """Raises OSError, as for another status than 200."""
        url = f"http://{self._addresses[listener]}{path}"

        def get() -> str:
            with _open_url(url, timeout=_ASK_TIMEOUT_S) as response:
                text: str = response.read().decode()
                return text

        return await asyncio.get_running_loop().run_in_executor(None, get)

    async def __del__(self) -> None:
        """Have no more clients come, and end the server as SIGTERM does: what it has accepted is served."""
        process = getattr(self, "_process", None)
        if process is None or process.returncode is not None:
            return
        if hasattr(self, "_telling"):
            self._telling.cancel()
            await self._leave()
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), self._stop_s + 1)
        except asyncio.TimeoutError:
            process.kill()
        self._channel.close()

    async def _leave(self) -> None:
        from ray import serve

        with contextlib.suppress(Exception):  # the directory may have gone before
            app_name = serve.get_replica_context().app_name
            handle = serve.get_deployment_handle(self._directory_name, app_name=app_name)
            await asyncio.wait_for(_answer(handle.leave.remote(self._name)), 1.0)


async def _answer(response: Any) -> Any:
    return await response


def _node_address(host: str) -> str:
    """The address by which other machines reach what listens at *host*."""
    if host not in _ANYWHERE:
        return host
    import ray

    address: str = ray.util.get_node_ip_address()
    return address
