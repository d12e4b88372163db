"""What the gRPC front end can be told, whichever transport carries it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

from pytriton_lite.frontends.addresses import BoundSocket, bare_host, bind_socket, is_unix
from pytriton_lite.frontends.restriction import RestrictedGroup
from pytriton_lite.frontends.tls import TlsOptions

CompressionLevel = Literal["none", "low", "medium", "high"]

LARGEST_MESSAGE_BYTES = (1 << 31) - 1
"""gRPC's own limit."""
SMALLEST_LIMIT_BYTES = 64 << 10
"""The least that messages can be limited to: what comes in one frame is not looked at again."""


@dataclass(frozen=True)
class GrpcOptions:
    """The defaults are tritonserver's (gRPC spec, section 1)."""

    address: str = "0.0.0.0"
    """Or ``unix:PATH``."""
    port: int = 8001
    """0 takes a free one."""
    reuse_port: bool = False
    """Let other processes listen at the same port, too."""
    max_connections: int = 1 << 16
    """Connections that may be open at a time; the one that is too many is closed at once."""
    tls: TlsOptions | None = None
    restricted: tuple[RestrictedGroup, ...] = ()
    """Groups of methods whose callers must send a key, with Triton's prefix before its name."""
    header_forward_pattern: str = ""
    """A regular expression; metadata of inference calls whose key it finds become string parameters of the requests."""
    max_message_bytes: int = LARGEST_MESSAGE_BYTES
    """Size of one message of a client, decompressed; at least SMALLEST_LIMIT_BYTES."""
    handshake_timeout_ms: int = 120_000
    """How long a client may take to be greeted: TLS, the preface and the first SETTINGS of HTTP/2. grpcio's default."""
    stall_timeout_s: float = 60.0
    """How long a client may take for a KiB of a message that it has begun, or of an answer that it has to read; twice as long
    at most. 0 sets no limit."""
    max_unread_bytes: int = 256 << 20
    """Bytes of answers of one connection that wait for their client; while there are more, its new calls are refused."""
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
    """Level for inference responses alone; the algorithm is one that the client says it accepts."""


async def bind_grpc(options: GrpcOptions) -> BoundSocket:
    """Take the address of *options*. Raises ListenError."""
    host = bare_host(options.address)
    shown = f"[{host}]" if ":" in host and not is_unix(host) else host  # as the text of an error has it
    return await bind_socket(asyncio.get_running_loop(), shown, options.port, reuse_port=options.reuse_port)
