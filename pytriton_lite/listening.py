"""What settings mean for listeners: in the server's one process, and in front ends of their own."""

from __future__ import annotations

import resource
from pathlib import Path

from pytriton_lite.core.timeline import Listener as TimelineListener
from pytriton_lite.frontends.grpc.options import GrpcOptions
from pytriton_lite.frontends.http.options import HttpOptions
from pytriton_lite.frontends.listener import ConnectionLimits
from pytriton_lite.frontends.tls import RenewedContext, TlsOptions
from pytriton_lite.openai.options import OpenAiOptions
from pytriton_lite.settings import MOST_CONNECTIONS, Settings, parse_api_key

_HTTP_1 = "http/1.1"


def default_connections(descriptors: int) -> int:
    """How many connections one of two listeners may have: a quarter of *descriptors* is left to workers and segments."""
    return max(1, min(descriptors * 3 // 8, MOST_CONNECTIONS))


def _default_connections() -> int:
    return default_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def tls_context(tls: TlsOptions | None) -> RenewedContext | None:
    """The certificates of an HTTP listener; None without TLS. Raises ListenError for files that cannot be used."""
    return None if tls is None else RenewedContext(tls, _HTTP_1)


def connection_limits(settings: Settings) -> ConnectionLimits:
    """Limits of each connection of HTTP, and how many there may be."""
    return ConnectionLimits(
        settings.http_max_header_size,
        settings.http_header_timeout_secs,
        settings.http_idle_timeout_secs,
        settings.http_max_connections or _default_connections(),
        settings.http_stall_timeout_secs,
    )


def http_options(settings: Settings, on_admin: TimelineListener | None) -> HttpOptions:
    """Options of HTTP. *on_admin* hears of requests that are no inference."""
    return HttpOptions(
        max_input_size=settings.http_max_input_size,
        max_compression_ratio=settings.http_max_compression_ratio,
        header_forward_pattern=settings.http_header_forward_pattern,
        restricted=settings.http_restricted_api,
        has_openai=settings.allow_openai,
        cors_allow_origins=settings.http_cors_allow_origin,
        on_admin=on_admin,
    )


def openai_options(settings: Settings, on_admin: TimelineListener | None) -> OpenAiOptions:
    """Options of OpenAI's routes; *on_admin* as for `http_options`. Reads the file of keys.

    Raises ValueError with a sentence about one that has no keys, or cannot be read.
    """
    keys = [*settings.openai_api_key, *_keys_in(settings.openai_api_key_file)]
    return OpenAiOptions(tuple(keys), settings.http_max_input_size, on_admin)


def _keys_in(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        lines = file.read_text("utf-8").splitlines()
        keys = [parse_api_key(line.strip()) for line in lines if line.strip()]
    except OSError as error:
        raise ValueError(f"--openai-api-key-file {file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"--openai-api-key-file {file}: {error}") from None
    if not keys:
        # An empty file would let everybody in.
        raise ValueError(f"--openai-api-key-file {file} has no keys")
    return keys


def grpc_options(settings: Settings) -> GrpcOptions:
    """Options of gRPC, whatever its transport."""
    return GrpcOptions(
        address=settings.grpc_address,
        port=settings.grpc_port,
        reuse_port=settings.reuse_grpc_port,
        max_connections=settings.grpc_max_connections or _default_connections(),
        tls=settings.grpc_tls,
        restricted=settings.grpc_restricted_protocol,
        header_forward_pattern=settings.grpc_header_forward_pattern,
        max_message_bytes=settings.grpc_max_message_size,
        handshake_timeout_ms=settings.grpc_handshake_timeout,
        stall_timeout_s=settings.grpc_stall_timeout_secs,
        max_unread_bytes=settings.grpc_max_unread_size,
        keepalive_time_ms=settings.grpc_keepalive_time,
        keepalive_timeout_ms=settings.grpc_keepalive_timeout,
        keepalive_permit_without_calls=settings.grpc_keepalive_permit_without_calls,
        http2_max_pings_without_data=settings.grpc_http2_max_pings_without_data,
        http2_min_recv_ping_interval_without_data_ms=settings.grpc_http2_min_recv_ping_interval_without_data,
        http2_max_ping_strikes=settings.grpc_http2_max_ping_strikes,
        max_connection_age_ms=settings.grpc_max_connection_age,
        max_connection_age_grace_ms=settings.grpc_max_connection_age_grace,
        infer_response_compression_level=settings.grpc_infer_response_compression_level.value,
    )
