"""A server inside a program: in a script, a notebook, a test, or the process of another framework (docs/embedding.md).

An entrance beside the command line: the same parts, made from the same settings (`pytriton_lite.app.Composition`), in a thread
of whoever wants them. What is public is in `pytriton_lite.__init__` and `pytriton_lite.embedding`.
"""

from pytriton_lite.app import StartError
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.embedding.requests import AsyncStream, Response, Stream
from pytriton_lite.embedding.server import IndexEntry, ModelMetadata, Server, Waiting
from pytriton_lite.embedding.transports import GrpcMethods, HttpApplication
from pytriton_lite.frontends.grpc.errors import RpcError

__all__ = [
    "AsyncStream",
    "ErrorCode",
    "GrpcMethods",
    "HttpApplication",
    "IndexEntry",
    "InferenceError",
    "ModelMetadata",
    "Response",
    "RpcError",
    "Server",
    "StartError",
    "Stream",
    "Waiting",
]
