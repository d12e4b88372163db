"""States of an HTTP/2 connection."""

from __future__ import annotations

from pytriton_lite.core.states import StateEnum


class ConnectionState(StateEnum):
    EXPECTING_PREFACE = "expecting preface"
    EXPECTING_SETTINGS = "expecting settings"
    OPEN = "open"
    DRAINING = "draining"
    """New calls are not taken; it closes behind the last answer."""
    CLOSED = "closed"
    """Nothing is read or begun any more; what the transport has is still written."""


TRANSITIONS: dict[ConnectionState, set[ConnectionState]] = {
    ConnectionState.EXPECTING_PREFACE: {ConnectionState.EXPECTING_SETTINGS, ConnectionState.CLOSED},
    ConnectionState.EXPECTING_SETTINGS: {ConnectionState.OPEN, ConnectionState.CLOSED},
    ConnectionState.OPEN: {ConnectionState.DRAINING, ConnectionState.CLOSED},
    ConnectionState.DRAINING: {ConnectionState.CLOSED},
    ConnectionState.CLOSED: {ConnectionState.CLOSED},
}
