"""The gRPC health checking protocol: the messages of protos/health.proto. The stub here lists them."""

from pytriton_lite.proto import _pool

globals().update(_pool.contents("health.proto"))
