"""The protocol's messages, made from protos/ when they are imported.

``model_config_pb``, ``grpc_service_pb``, ``health_pb`` and ``status_pb`` offer what protoc's Python output would: the
messages, enums and enum values of one .proto file, nested ones as attributes of their message. Their .pyi files say exactly
what.

The messages live in a descriptor pool of their own. tritonclient registers the same names in the process-wide pool, and
a program that imports both, in either order, must find no conflict. A message made here is therefore not an instance of
tritonclient's class of the same name; the bytes of one are the bytes of the other.
"""
