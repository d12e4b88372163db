"""A small client of the v2 protocol, over HTTP/1.1 and gRPC, for the commands `infer` and `bench`.

The wires (`http_wire`, `grpc_wire`) turn calls into bytes and bytes into answers, and know no socket; `connection` carries one
over a socket that blocks, `bench` over thousands that do not. `clients` has what asks a server one thing and waits.

It reaches a server by the protocol alone, so a server may be this one, a Triton, or any other that speaks v2.
"""
