"""Cells of memory that the engine and its front ends share: what is to be seen, or counted, without a message.

```
state   of the server
taken   bytes of unfinished requests, of the engine and of each front end: the cells of one `ReceiveBudget`
row 0   heartbeat, counts by status       written by the front end with that number alone, and by the next one in its place
row 1   …
```
"""

from __future__ import annotations

from typing import Final

from pytriton_lite.core.states import ServerState
from pytriton_lite.engine.counting.request_counts import CellCounts, RequestCounts
from pytriton_lite.frontends.grpc.errors import Status
from pytriton_lite.frontends.process.options import MOST_FRONT_ENDS
from pytriton_lite.ipc.segment import Segment

_STATE: Final = 0
_TAKEN: Final = 8
_ROWS: Final = _TAKEN + MOST_FRONT_ENDS + 8
_HTTP_STATUSES = range(100, 600)
_GRPC_STATUSES = ("OK", *(status.name for status in Status))
_HEARTBEAT: Final = 0
_HTTP: Final = 8
_GRPC: Final = _HTTP + len(_HTTP_STATUSES)
_ROW: Final = _GRPC + 36
_STATES = tuple(ServerState)


class Board:
    """The cells of one server, as one of its processes has them mapped."""

    def __init__(self, segment: Segment, front_ends: int) -> None:
        self.segment = segment
        self.front_ends = front_ends
        self._cells = segment.view.cast("Q")

    @classmethod
    def create(cls, front_ends: int, *, prefix: str) -> Board:
        """Make the cells of a server with so many front ends, all 0. Raises InferenceError where there is no memory."""
        return cls(Segment.create((_ROWS + front_ends * _ROW) * 8, prefix=prefix), front_ends)

    @classmethod
    def attach(cls, fd: int, front_ends: int) -> Board:
        """Map what `create` has made; *fd* is ours from now on."""
        return cls(Segment.attach(fd, (_ROWS + front_ends * _ROW) * 8), front_ends)

    @property
    def state(self) -> ServerState:
        """State of the server, which the engine writes."""
        return _STATES[self._cells[_STATE]]

    @state.setter
    def state(self, state: ServerState) -> None:
        self._cells[_STATE] = _STATES.index(state)

    @property
    def taken(self) -> memoryview:
        """Bytes of unfinished requests: 0 is the engine, and the front end with number n is n + 1."""
        return self._cells[_TAKEN : _TAKEN + self.front_ends + 1]

    def heartbeat_ns(self, number: int) -> int:
        """When the front end with that *number* said last that it lives, in ns of CLOCK_MONOTONIC; 0 before that."""
        beat: int = self._cells[_ROWS + number * _ROW + _HEARTBEAT]
        return beat

    def beat(self, number: int, now_ns: int) -> None:
        """Say that the front end with that *number* lives; 0 for one that is about to start."""
        self._cells[_ROWS + number * _ROW + _HEARTBEAT] = now_ns

    def counts(self, number: int) -> RequestCounts:
        """What the front ends with that *number* have answered."""
        row = _ROWS + number * _ROW
        return RequestCounts(
            http=CellCounts(self._cells[row + _HTTP : row + _GRPC], _HTTP_STATUSES),
            grpc=CellCounts(self._cells[row + _GRPC : row + _ROW], _GRPC_STATUSES),
        )
