"""The inference protocol over gRPC: the messages of protos/grpc_service.proto. The stub here lists them."""

from pytriton_lite.proto import _pool

globals().update(_pool.contents("grpc_service.proto"))
