"""The gRPC server reflection protocol: the messages of protos/reflection.proto. The stub here lists them."""

from pytriton_lite.proto import _pool

globals().update(_pool.contents("reflection.proto"))
