"""Large bodies straight from the socket to where they are wanted, past the parser: each byte is copied once, by the kernel.

uvicorn's way copies a byte five times before an application has it: into a bytes object of the event loop's, into one of the
parser's, behind those that wait for the application, into its message, and to where the application puts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

_READ_BYTES = 256 << 10
"""What one read may bring. The event loop reads on as long as that comes, unless the connection pauses it (`body_came`)."""

_DROPPED = bytearray(64 << 10)
"""Takes what nobody wants; it is never looked at."""


class BodyConnection(Protocol):
    """What the connection is beside this body; it hears of whatever is not part of it."""

    is_refused: bool
    """Nothing more is taken from the client."""

    def body_came(self, nbytes: int) -> None:
        """So much more of the body was read."""

    def body_ended(self) -> None:
        """All of it was: take the transport back."""

    def connection_lost(self, exc: Exception | None) -> None: ...

    def eof_received(self) -> bool: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class BodyReader(asyncio.BufferedProtocol):
    """The protocol of a connection's transport until the end of a body, whose length is known.

    Where its application has given up, what is left of it is read and dropped, as uvicorn does.
    """

    def __init__(
        self,
        connection: BodyConnection,
        room: memoryview,
        whole: asyncio.Future[bool],
        filled: int,
        on_bytes: Callable[[int], None],
    ) -> None:
        """*room* is for the whole rest of the body, of which *filled* bytes are there.

        *whole* is done when *room* is full, with True, or with False when the rest will not come. *on_bytes* is called with how
        many bytes are there, and may refuse them by raising; *whole* raises that then.
        """
        self._connection = connection
        self._room: memoryview | None = room
        self._filled = filled
        self._length = len(room)
        self._on_bytes = on_bytes
        self._whole: asyncio.Future[bool] | None = whole
        """None when what has come was refused."""

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        end = min(self._filled + _READ_BYTES, self._length)
        if self._room is not None and self._is_awaited():
            return self._room[self._filled : end]
        self._room = None  # its owner has gone
        return memoryview(_DROPPED)[: end - self._filled]

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._filled += nbytes
        self._connection.body_came(nbytes)
        if self._is_awaited():
            try:
                self._on_bytes(self._filled)
            except Exception as error:
                self._refuse(error)
        if self._filled == self._length:
            self._connection.body_ended()
            self.end(whole=True)

    def end(self, *, whole: bool) -> None:
        """Say whether all of it has come to who waits for it."""
        self._room = None
        if self._whole is not None and not self._whole.done():
            self._whole.set_result(whole)

    def _is_awaited(self) -> bool:
        return self._whole is not None and not self._whole.done()

    def _refuse(self, error: Exception) -> None:
        assert self._whole is not None
        # The error keeps the frames that it is raised through, here and where the future is awaited, and these have the room.
        # It is given back at once only where neither we nor these frames refer to the error, or to the future that has it.
        self._room = None
        self._whole.set_exception(error.with_traceback(None))
        self._whole = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def eof_received(self) -> bool:
        return self._connection.eof_received()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()
