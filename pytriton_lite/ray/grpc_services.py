"""Functions for ``grpc_servicer_functions`` of Ray Serve's gRPC proxy. They add methods; replicas serve them.

Messages pass through the proxy as bytes: nothing of it is parsed there, nor pickled but as bytes.
"""

from __future__ import annotations

from typing import Any

from pytriton_lite.frontends.grpc.control_methods import (
    HEALTH_METHODS,
    HEALTH_SERVICE,
    INFERENCE_METHODS,
    INFERENCE_SERVICE,
)

UNARY_PATHS = {
    **{name: f"/{INFERENCE_SERVICE}/{name}" for name in (*INFERENCE_METHODS, "ModelInfer")},
    **{name: f"/{HEALTH_SERVICE}/{name}" for name in HEALTH_METHODS},
}
"""Methods of one message, by the name by which Ray calls them in a replica."""
STREAM_PATHS = {"ModelStreamInfer": f"/{INFERENCE_SERVICE}/ModelStreamInfer"}
"""Methods of many messages in both directions."""


def add_inference(servicer: Any, server: Any) -> None:
    """Add inference.GRPCInferenceService to *server*, Ray's, which puts handlers of its own in place of these."""
    import grpc

    unary = {name: grpc.unary_unary_rpc_method_handler(_nothing) for name in (*INFERENCE_METHODS, "ModelInfer")}
    streams = {name: grpc.stream_stream_rpc_method_handler(_nothing) for name in STREAM_PATHS}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(INFERENCE_SERVICE, {**unary, **streams}),))


def add_health(servicer: Any, server: Any) -> None:
    """Add grpc.health.v1.Health to *server*: Check alone, for Watch would hold a replica for ever."""
    import grpc

    methods = {name: grpc.unary_unary_rpc_method_handler(_nothing) for name in HEALTH_METHODS}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(HEALTH_SERVICE, methods),))


def _nothing(*_: object) -> None:
    """Never called: Ray replaces it."""
