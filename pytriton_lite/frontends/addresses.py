"""Where a listener listens: a host and a port, or a Unix socket, and the socket file that goes with it.

A Unix socket's address is ``unix:`` and a path; it has no port. Its file is the only lock that it knows, so that one which
is left over by a server that was killed has to be told from one that is served: somebody accepts there, or nobody does.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
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

    def is_there(self) -> bool:
        """Whether nobody has removed it, or put a socket of his own there."""
        try:
            found = os.stat(self.path)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (self.device, self.inode)

    def remove(self) -> None:
        """Remove it, if it is still there."""
        if self.is_there():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)


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
    return _file_at(host.removeprefix(UNIX_PREFIX)) if is_unix(host) else None


def _file_at(path: str) -> SocketFile:
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


class BoundSocket(NamedTuple):
    """An address that is taken and refuses connections, until `listen`."""

    socket: socket.socket
    shown: str
    """The address in texts of errors."""
    file: SocketFile | None
    """The file of a Unix socket; None for any other."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; a Unix socket is a host with the port 0."""
        if self.file is not None:
            return UNIX_PREFIX + self.file.path, 0
        host, port = self.socket.getsockname()[:2]
        return host, port

    def listen(self) -> None:
        """Let clients connect from now on. Raises ListenError where somebody else has come to listen there meanwhile."""
        if self.file is not None and not self.file.is_there():
            # A server that was started later could not tell it from one that was left behind.
            self.close()
            raise ListenError(f"Socket '{self.shown}' already in use ")
        try:
            # Its connections, when they are in TIME_WAIT, do not keep the next server from the port.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.listen(_BACKLOG)
        except OSError as error:
            self.close()
            raise _listen_error(self.shown, error) from error

    def close(self) -> None:
        """Give the address up. A second time changes nothing."""
        self.socket.close()
        if self.file is not None:
            self.file.remove()


async def bind_socket(loop: asyncio.AbstractEventLoop, host: str, port: int, *, reuse_port: bool) -> BoundSocket:
    """Take *host*:*port*, so that nobody else can have it. Raises ListenError.

    *host* is an address or a name, ``ipv6:[::1]`` and ``[::1]`` are taken as ``::1``; or it is ``unix:PATH``, where the
    file gets the permissions that the process's umask leaves.
    """
    if is_unix(host):
        path = free_unix_path(host)
        bound = _bind(host, socket.socket(socket.AF_UNIX), path)
        return BoundSocket(bound, host, _file_at(path))
    bare = bare_host(host)
    try:
        found = await loop.getaddrinfo(bare, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ListenError(f"address '{host}' cannot be resolved: {error.strerror}") from error
    except UnicodeError as error:  # two dots in a row, for instance
        raise ListenError(f"address '{host}' cannot be resolved: it is no name of a host") from error
    family, kind, protocol, _, address = found[0]
    shown = f"{host}:{port}"
    try:
        unbound = socket.socket(family, kind, protocol)
    except OSError as error:  # no IPv6 in this kernel, no descriptor
        raise _listen_error(shown, error) from error
    if reuse_port:
        unbound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return BoundSocket(_bind(shown, unbound, address), shown, None)


def _bind(shown: str, unbound: socket.socket, address: object) -> socket.socket:
    try:
        unbound.setblocking(False)
        try:
            unbound.bind(address)  # type: ignore[arg-type]  # what getaddrinfo found, or a path
        except OSError as error:
            if error.errno != errno.EADDRINUSE or unbound.family is socket.AF_UNIX:
                raise
            # Connections of a server that has just ended keep the port in TIME_WAIT for a minute, and this passes over them;
            # but also over another server that has bound the port and does not listen yet, so not at the first try.
            unbound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            unbound.bind(address)  # type: ignore[arg-type]
    except OSError as error:
        unbound.close()
        raise _listen_error(shown, error) from error
    return unbound


def _listen_error(shown: str, error: OSError) -> ListenError:
    if error.errno == errno.EADDRINUSE:
        return ListenError(f"Socket '{shown}' already in use ")  # the trailing blank is Triton's
    return ListenError(f"Socket '{shown}' cannot be bound: {error.strerror or error}")
