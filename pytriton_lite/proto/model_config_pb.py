"""What a config.pbtxt may say: the messages of protos/model_config.proto. The stub here lists them."""

from pytriton_lite.proto import _pool

globals().update(_pool.contents("model_config.proto"))
