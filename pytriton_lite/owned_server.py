"""A server of somebody's own: ``pytriton-lite serve`` as the child of a program that alone needs it, and that it ends with.

owner                             server
  start          ── command ────▶   as `serve` from then on
  addresses_of   ◀── one line ───   where it listens, as soon as clients may come
  its own end    ── no more ────▶   ends, as after SIGTERM

The channel is a socket pair. The server has its end as standard input, because that comes through shells, sudo and the like.
It has a session of its own: Ctrl-C is for the owner, which may have a debugger that takes it and goes on.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytriton_lite import INTERPRETED_VARIABLE
from pytriton_lite.settings import ENVIRONMENT_PREFIX

COMMAND = "owned-server"
"""The command of the child, which takes the options of `serve`. Not for users."""

Addresses = Mapping[str, tuple[str, int]]
"""Hosts and ports of listeners by ``http``, ``grpc`` and ``metrics``, as far as the server has them."""

_RECEIVE_BYTES = 1 << 16


# For the owner ------------------------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """The variables of this process without options of servers: those are for the servers that its user starts."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(ENVIRONMENT_PREFIX) or name == INTERPRETED_VARIABLE
    }


def start(
    arguments: Sequence[str],
    channel: socket.socket,
    *,
    environ: Mapping[str, str],
    python: Sequence[str] = (sys.executable,),
    cwd: Path | None = None,
    user: int | None = None,
    bufsize: int = -1,
) -> subprocess.Popen[bytes]:
    """Start ``COMMAND`` and its options, which are *arguments*, with a pipe for all that it writes.

    *channel* is the server's end of the pair, to be closed here afterwards. *bufsize* is that of the pipe.
    """
    return subprocess.Popen(
        [*python, "-m", "pytriton_lite", *arguments],
        stdin=channel.fileno(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environ,
        cwd=cwd,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
        bufsize=bufsize,
        start_new_session=True,
    )


def addresses_of(channel: socket.socket, timeout_s: float) -> Addresses | None:
    """Where the server at the other end of *channel* listens, once it does; None where it has ended.

    Raises TimeoutError.
    """
    deadline = time.monotonic() + timeout_s
    line = b""
    while not line.endswith(b"\n"):
        channel.settimeout(max(deadline - time.monotonic(), 1e-3))
        try:
            data = channel.recv(_RECEIVE_BYTES)
        except ConnectionError:
            return None
        if not data:
            return None
        line += data
    return read_addresses(line)


def read_addresses(line: bytes) -> Addresses:
    """The addresses that a server has told in *line*, which is all that comes over its channel."""
    return {name: (host, port) for name, (host, port) in json.loads(line).items()}


# For the server -----------------------------------------------------------------------------------------------------


def take_channel() -> socket.socket:
    """The channel to the owner, out of standard input, which is empty from then on: models and their children have it, too."""
    channel = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as empty:
        os.dup2(empty.fileno(), 0)
    return channel


def tell(channel: socket.socket, addresses: Addresses) -> None:
    """Tell the owner where this server listens, unless it has gone."""
    try:
        channel.sendall(json.dumps(addresses).encode() + b"\n")
    except OSError:
        pass  # which whoever reads the channel notices
