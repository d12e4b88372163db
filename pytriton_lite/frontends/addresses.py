"""Where a listener listens: a host and a port, or a Unix socket, and the socket file that goes with it.

A Unix socket's address is ``unix:`` and a path; it has no port. Its file is the only lock that it knows, so that one which
is left over by a server that was killed has to be told from one that is served: somebody accepts there, or nobody does.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import stat
from collections.abc import Callable
from typing import NamedTuple

UNIX_PREFIX = "unix:"

_BACKLOG = 1024  # Triton's own, in evhtp_bind_socket


class ListenError(Exception):
    """A listener that cannot be opened. The text is Triton's where the port is taken."""


class SocketFile(NamedTuple):
    """The file of a Unix socket that this process has bound."""

    path: str
    device: int
    inode: int

    def remove(self) -> None:
        """Remove it, unless somebody else has put a socket of his own there."""
        try:
            found = os.stat(self.path)
            if (found.st_dev, found.st_ino) == (self.device, self.inode):
                os.unlink(self.path)
        except FileNotFoundError:
            return


def is_unix(host: str) -> bool:
    return host.startswith(UNIX_PREFIX)


def bare_host(host: str) -> str:
    """*host* without the brackets and the prefix that tritonserver takes: ``ipv6:[::1]`` is ``::1``."""
    return host.removeprefix("ipv6:").removeprefix("[").removesuffix("]")


def format_address(host: str, port: int) -> str:
    """``127.0.0.1:8000``, ``[::1]:8000`` or ``unix:/run/triton.sock``."""
    if is_unix(host):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def socket_file(host: str) -> SocketFile | None:
    """The file of a Unix socket that was just bound; None for another address."""
    if not is_unix(host):
        return None
    path = host.removeprefix(UNIX_PREFIX)
    found = os.stat(path)
    return SocketFile(path, found.st_dev, found.st_ino)


def free_unix_path(host: str) -> str:
    """The path of *host*, where there is no socket any more; one that nobody serves is removed.

    Raises ListenError where a server accepts there, or where the file is something else.
    """
    path = host.removeprefix(UNIX_PREFIX)
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise ListenError(f"Socket '{host}' cannot be bound: {path} is there, and is no socket")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            probe.connect(path)
    except FileNotFoundError:
        return path
    except ConnectionRefusedError:
        os.unlink(path)
        return path
    except BlockingIOError:  # a server whose backlog is full
        pass
    except OSError as error:
        raise ListenError(f"Socket '{host}' cannot be bound: {error.strerror or error}") from error
    raise ListenError(f"Socket '{host}' already in use ")  # the trailing blank is Triton's


async def bind_socket(loop: asyncio.AbstractEventLoop, host: str, port: int, *, reuse_port: bool) -> socket.socket:
    """A socket that listens at *host*:*port*. Raises ListenError.

    *host* is an address or a name, ``ipv6:[::1]`` and ``[::1]`` are taken as ``::1``; or it is ``unix:PATH``, where the
    file gets the permissions that the process's umask leaves.
    """
    if is_unix(host):
        path = free_unix_path(host)
        return _listen(host, socket.socket(socket.AF_UNIX), path)
    bare = bare_host(host)
    try:
        found = await loop.getaddrinfo(bare, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ListenError(f"address '{host}' cannot be resolved: {error.strerror}") from error
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    # Connections of a server that has just ended keep the port in TIME_WAIT for a minute.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuse_port:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return _listen(f"{host}:{port}", listening, address)


def _listen(shown: str, listening: socket.socket, address: object) -> socket.socket:
    try:
        listening.setblocking(False)
        listening.bind(address)  # type: ignore[arg-type]  # what getaddrinfo found, or a path
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise ListenError(f"Socket '{shown}' already in use ") from error  # the trailing blank is Triton's
        raise ListenError(f"Socket '{shown}' cannot be bound: {error.strerror or error}") from error
    return listening


async def accept_connections(
    loop: asyncio.AbstractEventLoop,
    make_protocol: Callable[[], asyncio.BaseProtocol],
    listening: socket.socket,
    tls: ssl.SSLContext | None,
    handshake_timeout_s: float,
) -> asyncio.AbstractServer:
    """Serve *listening*, a socket of `bind_socket`, which is closed where that fails. *tls* None is plain text."""
    create = loop.create_unix_server if listening.family is socket.AF_UNIX else loop.create_server
    timeout = None if tls is None else handshake_timeout_s
    try:
        return await create(make_protocol, sock=listening, backlog=_BACKLOG, ssl=tls, ssl_handshake_timeout=timeout)
    except BaseException:
        listening.close()
        raise
