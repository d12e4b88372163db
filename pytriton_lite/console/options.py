"""What the console is told of the server that it is a part of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ConsoleOptions:
    """``mode`` is how models come and go: ``none``, ``poll``, ``watch`` or ``explicit``.

    Ports are None where nobody listens on one, a Unix socket among that. Pages put before them the host that they came from.
    """

    mode: str
    grpc_port: int | None = None
    metrics_port: int | None = None
    grpc_tls: bool = False
    metrics_tls: bool = False
