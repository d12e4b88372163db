"""Accepting connections: so many at a time, each with the certificate of now, whatever the system runs out of.

asyncio's own server counts nothing, keeps the TLS context that it was made with, and starts handshakes of connections that
nobody may have. Here an `Acceptor` listens for a socket of `addresses.bind_socket` and counts connections from the moment they
are accepted until their protocol has lost them, and `Arrivals` brings each of them to its protocol.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

from pytriton_lite.frontends.addresses import BoundSocket

logger = logging.getLogger(__name__)

_ACCEPTS_PER_TURN = 64
"""Connections accepted in a turn, so that a flood of them leaves the loop to those that are there."""
_PAUSE_S = 0.5
"""Until the next try where nobody has room, descriptors or memory for a connection, which then waits in the system's queue."""
_HANDSHAKE_S = 1.0
"""What an honest client needs for TLS; at the end of the server nobody waits for the others."""
_TELL_S = 10.0
"""Between two lines of the log about the same trouble."""

_LOST_ON_THE_WAY = frozenset(
    {
        errno.ECONNABORTED,
        errno.EPROTO,
        errno.ENOPROTOOPT,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EOPNOTSUPP,
        errno.EPERM,  # a firewall's rule
    }
)
"""Errors of the one connection that would have come next: accept(2)."""


class TlsSource(Protocol):
    """What knows the certificates of now: `tls.RenewedContext`."""

    async def current(self) -> ssl.SSLContext:
        """The context for a connection that has just come."""


class Throttle:
    """Counts what happens again and again, and says when the log should have a line about it."""

    def __init__(self, clock: Callable[[], float], period_s: float = _TELL_S) -> None:
        self._clock = clock
        self._period_s = period_s
        self._told_at: float | None = None
        self._untold = 0

    def count(self) -> int:
        """How often it has happened since it was told last, where it is to be told now; else 0."""
        self._untold += 1
        now = self._clock()
        if self._told_at is not None and now - self._told_at < self._period_s:
            return 0
        self._told_at = now
        told, self._untold = self._untold, 0
        return told


class Places:
    """How many connections one listener may have. A protocol gives its place back in `connection_lost`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0

    def try_take(self) -> bool:
        if self.taken >= self.most:
            return False
        self.taken += 1
        return True

    def give_back(self) -> None:
        self.taken -= 1


class ConnectionTaker(Protocol):
    """What gets the connections that an `Acceptor` has accepted: `Arrivals`, or who hands them to another process."""

    @property
    def has_room(self) -> bool:
        """Whether it wants more of them now; others wait in the system's queue."""

    def take(self, connection: socket.socket) -> None:
        """Serve *connection*, which does not block and has its place; whoever serves it gives the place back."""

    async def wait_arrived(self, timeout_s: float) -> None:
        """Wait until everybody who was accepted has a protocol; not longer than *timeout_s*, nor than a handshake takes."""


class ConnectionSource(Protocol):
    """Where the connections of a listener come from: an `Acceptor`, or another process that accepts them."""

    def close(self) -> None:
        """Stop listening. Who has connected before is still served."""

    async def wait_arrived(self, timeout_s: float) -> None:
        """See `ConnectionTaker`."""


class Arrivals:
    """Connections on their way to a protocol: TLS may take its time."""

    def __init__(
        self,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        *,
        name: str,
        tls: TlsSource | None,
        handshake_timeout_s: float,
        places: Places,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._make_protocol = make_protocol
        self._name = name
        self._tls = tls
        self._handshake_timeout_s = handshake_timeout_s
        self._places = places
        self._arriving: set[asyncio.Task[None]] = set()

    @property
    def has_room(self) -> bool:
        """Always: `Places` bounds them. See `ConnectionTaker`."""
        return True

    def take(self, connection: socket.socket) -> None:
        """See `ConnectionTaker`."""
        task = self._loop.create_task(self._hand_over(connection))
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)

    def close(self) -> None:
        """Do nothing, for nobody listens here. See `ConnectionSource`."""

    async def wait_arrived(self, timeout_s: float) -> None:
        """See `ConnectionTaker`."""
        if self._arriving:
            await asyncio.wait(self._arriving, timeout=min(timeout_s, _HANDSHAKE_S))

    async def _hand_over(self, connection: socket.socket) -> None:
        """Begin to serve *connection*; a handshake that fails is its client's affair."""
        try:
            if self._tls is None:
                await self._loop.connect_accepted_socket(self._make_protocol, connection)
                return
            context = await self._tls.current()
            await self._loop.connect_accepted_socket(
                self._make_protocol, connection, ssl=context, ssl_handshake_timeout=self._handshake_timeout_s
            )
        except (OSError, asyncio.TimeoutError) as error:
            logger.debug("%s: a connection ended before it began: %s", self._name, error)
            self._places.give_back()  # its protocol hears of no connection, and so of no loss


class Acceptor:
    """A listening socket. `close` ends the listening alone."""

    def __init__(
        self,
        taker: ConnectionTaker,
        bound: BoundSocket,
        *,
        name: str,
        places: Places,
        on_refused: Callable[[], None],
    ) -> None:
        """A connection that finds no place in *places* is closed at once, and *on_refused* hears of it.

        Raises ListenError where somebody else has come to listen at the address.
        """
        self._loop = asyncio.get_running_loop()
        self._taker = taker
        self._bound = bound
        self._listening = bound.socket
        self._name = name
        self._places = places
        self._on_refused = on_refused
        self._pause: asyncio.TimerHandle | None = None
        self._refused = Throttle(self._loop.time)
        self._failed = Throttle(self._loop.time)
        self._is_closed = False
        bound.listen()
        self._loop.add_reader(self._listening.fileno(), self._on_readable)

    def close(self) -> None:
        """Stop listening, and give up the address. Who has connected before is still accepted."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._listening.fileno())
        if self._pause is not None:
            self._pause.cancel()
        # The system resets what waits in its queue, and a request may have come with it.
        while self._accept_one():
            pass
        self._bound.close()

    async def wait_arrived(self, timeout_s: float) -> None:
        """See `ConnectionTaker`."""
        await self._taker.wait_arrived(timeout_s)

    def _on_readable(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            if not self._taker.has_room:
                self._wait("no process has room for more of them")
                return
            if not self._accept_one():
                return

    def _accept_one(self) -> bool:
        """Whether there may be another one."""
        try:
            connection, _ = self._listening.accept()
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if error.errno in _LOST_ON_THE_WAY:
                return True
            self._wait(error.strerror or str(error))
            return False
        if not self._places.try_take():
            connection.close()
            self._tell_refused()
            return True
        connection.setblocking(False)
        self._taker.take(connection)
        return True

    def _tell_refused(self) -> None:
        self._on_refused()
        count = self._refused.count()
        if count:
            logger.warning(
                "%s: %d connections are open, as many as there may be; %d more were closed at once",
                self._name,
                self._places.most,
                count,
            )

    def _wait(self, why: str) -> None:
        """Look away for a while: the socket would be readable all the time."""
        if self._failed.count():
            logger.error("%s: connections have to wait: %s", self._name, why)
        if not self._is_closed:
            self._loop.remove_reader(self._listening.fileno())
            self._pause = self._loop.call_later(_PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listening.fileno(), self._on_readable)
