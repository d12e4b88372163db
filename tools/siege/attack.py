"""What an attack is: a name, one sentence, where it is described, and a script of what one connection sends."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum


class Port(Enum):
    HTTP = "http"
    GRPC = "grpc"
    METRICS = "metrics"


@dataclass(frozen=True)
class Pause:
    """Send nothing for so long."""

    seconds: float


@dataclass(frozen=True)
class Window:
    """Wait until HTTP/2's window of the connection has room for so many bytes of DATA, and take them from it."""

    octets: int


@dataclass(frozen=True)
class HangUp:
    """Reset the connection and begin anew."""


Step = bytes | Pause | Window | HangUp
Script = Callable[[random.Random], Iterator[Step]]
"""What one connection does from its beginning; where it ends, the connection stays open and silent."""


@dataclass(frozen=True)
class Attack:
    name: str
    sentence: str
    reference: str
    """The CVE, or the section of an RFC that allows what is sent."""
    port: Port
    script: Script
    reads: bool
    """Whether answers are read. Those who do not read find out only at the end whether their connection was closed."""
    sockets: int
    """How many sockets stand for one connection, where holding them is the attack."""
    is_below_tls: bool
    """The script writes to the socket itself where the server expects TLS, so it is run over TLS only."""


def attack(
    reference: str, port: Port, *, reads: bool = True, sockets: int = 1, is_below_tls: bool = False
) -> Callable[[Script], Attack]:
    """A decorator: the script's name and docstring become the attack's name and sentence."""

    def of(script: Script) -> Attack:
        assert script.__doc__ is not None
        return Attack(
            name=script.__name__.replace("_", "-"),
            sentence=" ".join(script.__doc__.split()),
            reference=reference,
            port=port,
            script=script,
            reads=reads,
            sockets=sockets,
            is_below_tls=is_below_tls,
        )

    return of
