"""The protocol of a connection's transport while a large message is read into its place (`http2_placing`)."""

from __future__ import annotations

import asyncio
from typing import Protocol


class PlacingConnection(Protocol):
    """What this stands in front of: asyncio knows a protocol of buffers by its base, which a compiled class cannot have."""

    def next_place(self) -> memoryview:
        """Where the next bytes go."""

    def placed(self, nbytes: int) -> None:
        """So many have come there."""

    def connection_lost(self, exc: Exception | None) -> None: ...

    def eof_received(self) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class PlacingReader(asyncio.BufferedProtocol):
    """See the module."""

    def __init__(self, connection: PlacingConnection) -> None:
        self._connection = connection

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        return self._connection.next_place()

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._connection.placed(nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def eof_received(self) -> None:
        self._connection.eof_received()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()
