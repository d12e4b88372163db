"""The gRPC front end: messages to core nouns and back (codec, parameters), the methods (servicer), two transports.

``http2`` is the transport of our own, ``server`` the one over grpcio, which nothing else here knows. The servicer works on
messages and bytes, so that both serve the same methods.
"""
