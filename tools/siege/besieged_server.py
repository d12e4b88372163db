"""The server under attack, with bounded memory, and what /proc says about it."""

from __future__ import annotations

import os
import ssl
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from pytriton_lite.testing.server import RunningServer

PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LOOK_AGAIN_S = 0.2
_BUSY_LOAD = 0.5
"""Cores that a process at rest does not even want."""


@dataclass(frozen=True)
class Footprint:
    """What the server holds. Bytes are those of its own process, the time that of its workers, too."""

    memory_bytes: int
    peak_bytes: int
    """Since `BesiegedServer.reset_peak`."""
    descriptors: int
    cpu_s: float
    waited_s: float
    """How long its main thread was ready to run and had no core: what the attacker and everybody else on the machine took."""


@dataclass(frozen=True)
class Rest:
    """What is left behind when an attack is over."""

    footprint: Footprint
    is_busy: bool
    """Whether it still computes, though nobody asks for anything."""


class BesiegedServer:
    """A running server. Made by `besieged_server`."""

    def __init__(self, running: RunningServer, root: Path | None) -> None:
        self._running = running
        self.root = root
        """The authority's certificate; None is plain text."""
        self.pid = running.process.pid
        self.ports = {
            "http": running.http_port,
            "grpc": int(running.grpc_url.rpartition(":")[2]),
            "metrics": int(running.metrics_url.rpartition(":")[2].partition("/")[0]),
        }

    @property
    def exit_code(self) -> int | None:
        """None while it lives."""
        return self._running.process.poll()

    @property
    def log(self) -> str:
        return self._running.log

    def reset_peak(self) -> None:
        PROC.joinpath(str(self.pid), "clear_refs").write_text("5")  # proc_pid_clear_refs(5)

    def footprint(self) -> Footprint:
        """Raises OSError when it has ended."""
        folder = PROC / str(self.pid)
        status = dict(line.split(":", 1) for line in folder.joinpath("status").read_text().splitlines())
        if "VmRSS" not in status:  # it has ended, and nobody has asked how
            raise ProcessLookupError(self.pid)
        return Footprint(
            memory_bytes=int(status["VmRSS"].split()[0]) * 1024,
            peak_bytes=int(status["VmHWM"].split()[0]) * 1024,
            descriptors=len(os.listdir(folder / "fd")),
            cpu_s=_cpu_s_of_tree(self.pid),
            waited_s=int(folder.joinpath("schedstat").read_text().split()[1]) / 1e9,
        )

    def wait_at_rest(self, descriptors: int, timeout_s: float) -> Rest:
        """Return as soon as no more than *descriptors* are open and nothing is being computed, or when the time is over.

        Raises OSError when it has ended.
        """
        deadline = time.monotonic() + timeout_s
        footprint = self.footprint()
        while True:
            since, last = time.monotonic(), footprint
            time.sleep(_LOOK_AGAIN_S)  # nobody tells when a process of others closes a descriptor
            footprint = self.footprint()
            wanted_s = footprint.cpu_s - last.cpu_s + footprint.waited_s - last.waited_s
            is_busy = wanted_s / (time.monotonic() - since) > _BUSY_LOAD
            if time.monotonic() > deadline or not (is_busy or footprint.descriptors > descriptors):
                return Rest(footprint, is_busy=is_busy)


def _cpu_s_of_tree(root: int) -> float:
    """User and system time of a process and all of its descendants."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for folder in PROC.glob("[0-9]*"):
        try:
            fields = folder.joinpath("stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        ticks[int(folder.name)] = sum(map(int, fields[11:15]))
        children.setdefault(int(fields[1]), []).append(int(folder.name))
    total, to_visit = 0, [root]
    while to_visit:
        pid = to_visit.pop()
        total += ticks.get(pid, 0)
        to_visit += children.get(pid, ())
    return total / _TICKS_PER_S


class Certificates:
    """An authority made for this siege, and the server's certificate, in PEM files."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        issued = authority.issue_cert("localhost", "127.0.0.1")
        self.root, self.server, self.key = (folder / name for name in ("root.pem", "server.pem", "server.key"))
        authority.cert_pem.write_to_path(self.root)
        issued.cert_chain_pems[0].write_to_path(self.server)
        issued.private_key_pem.write_to_path(self.key)
        ssl.create_default_context(cafile=self.root)  # fails here rather than in every client

    def flags(self) -> tuple[str, ...]:
        return (
            "--http-use-ssl=true", f"--http-server-cert={self.server}", f"--http-server-key={self.key}",
            "--grpc-use-ssl=true", f"--grpc-server-cert={self.server}", f"--grpc-server-key={self.key}",
            "--metrics-use-ssl=true",
        )  # fmt: skip


@contextmanager
def besieged_server(
    repository: Path, *, certificates: Certificates | None, address_space_bytes: int, flags: Sequence[str] = ()
) -> Iterator[BesiegedServer]:
    """A server of *repository*, over TLS where there are certificates, in so much address space."""
    tls = () if certificates is None else certificates.flags()
    running = RunningServer(
        repository,
        flags=(*tls, *flags),
        python=("/bin/sh", "-c", f'ulimit -v {address_space_bytes >> 10}; exec "$0" "$@"', sys.executable),
    )
    with running:
        try:
            yield BesiegedServer(running, None if certificates is None else certificates.root)
        finally:
            if running.process.poll() is None:
                running.kill()  # how it ends is not what is measured here
