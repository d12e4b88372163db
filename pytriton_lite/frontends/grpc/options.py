"""What the gRPC front end can be told, whichever transport carries it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CompressionLevel = Literal["none", "low", "medium", "high"]


@dataclass(frozen=True)
class GrpcOptions:
    """The defaults are tritonserver's (gRPC spec, section 1)."""

    address: str = "0.0.0.0"
    port: int = 8001
    """0 takes a free one."""
    reuse_port: bool = False
    """Let other processes listen at the same port, too."""
    keepalive_time_ms: int = 7_200_000
    keepalive_timeout_ms: int = 20_000
    keepalive_permit_without_calls: bool = False
    http2_max_pings_without_data: int = 2
    http2_min_recv_ping_interval_without_data_ms: int = 300_000
    http2_max_ping_strikes: int = 2
    max_connection_age_ms: int = 0
    """0 sets no limit."""
    max_connection_age_grace_ms: int = 0
    """0 sets no limit."""
    infer_response_compression_level: CompressionLevel = "none"
    """Of inference responses alone; the algorithm is one that the client says it accepts."""
