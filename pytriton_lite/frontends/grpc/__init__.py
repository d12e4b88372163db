"""The gRPC front end: messages to core nouns and back (codec, parameters), the methods (servicer), the transport (server).

Only ``server`` knows grpcio. The servicer works on messages and bytes, so that another transport can serve the same
methods.
"""
