"""Details of a failed RPC: the messages of protos/status.proto. The stub here lists them."""

from pytriton_lite.proto import _pool

globals().update(_pool.contents("status.proto"))
