"""The older package of the gRPC server reflection protocol, with the same messages. The stub here lists them."""

from pytriton_lite.proto import _pool

globals().update(_pool.contents("reflection_v1alpha.proto"))
