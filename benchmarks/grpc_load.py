#!/usr/bin/env python3
"""A closed loop of gRPC calls that differ from each other, which h2load cannot send: it has one body for all.

    python benchmarks/grpc_load.py --port 8001 --callers 32 --seconds 5 --path /package.Service/Method MESSAGES

*MESSAGES* is what `messages_file` writes. Each caller is a connection with one call in flight, as h2load's ``-c n -m 1``; the
frames are made beforehand, so that a call costs this process some ten microseconds. Prints one line of JSON: answers until the
time was over, seconds, percentiles of the latency in µs, bytes of the answers' bodies, and the first error in words.
"""

from __future__ import annotations

import argparse
import itertools
import json
import selectors
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import hpack
import numpy as np

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM = _ACK = 1
_END_HEADERS = 4
_HEADER_TABLE_SIZE, _INITIAL_WINDOW_SIZE = 1, 4
_LARGEST_WINDOW = (1 << 31) - 1
_FIRST_WINDOW = 65_535
_RECEIVE_BYTES = 1 << 16


class LoadError(Exception):
    """An answer that is none, in words."""


def messages_file(messages: Sequence[bytes]) -> bytes:
    """A line with the lengths of *messages*, and the messages."""
    return " ".join(str(len(message)) for message in messages).encode() + b"\n" + b"".join(messages)


def read_messages(content: bytes) -> list[bytes]:
    lengths, _, rest = content.partition(b"\n")
    messages, at = [], 0
    for length in map(int, lengths.split()):
        messages.append(rest[at : at + length])
        at += length
    return messages


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def request_blocks(port: int, path: str) -> tuple[bytes, bytes]:
    """Header blocks of a connection's first call, and of all behind it, which say where in the peer's table the fields are."""
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", f"127.0.0.1:{port}"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]
    encoder = hpack.Encoder()
    return encoder.encode(fields), encoder.encode(fields)


class Calls:
    """The calls of all callers: their frames, and what came of them."""

    def __init__(self, messages: Sequence[bytes], blocks: tuple[bytes, bytes]) -> None:
        self._first, block = blocks
        self._head = struct.pack(">I", len(block))[1:] + bytes((_HEADERS, _END_HEADERS))
        self._parts = [
            (
                block + struct.pack(">I", len(message) + 5)[1:] + bytes((_DATA, _END_STREAM)),
                b"\0" + struct.pack(">I", len(message)) + message,
            )
            for message in messages
        ]
        self._messages = messages
        self._good: set[bytes] = set()
        self.latencies_ns: list[int] = []
        self.body_bytes = 0

    def frames(self, at: int, stream: int) -> bytes:
        """HEADERS and DATA of a call with message number *at*."""
        if stream == 1:
            message = self._messages[at]
            data = b"\0" + struct.pack(">I", len(message)) + message
            return frame(_HEADERS, _END_HEADERS, 1, self._first) + frame(_DATA, _END_STREAM, 1, data)
        between, data = self._parts[at]
        number = struct.pack(">I", stream)
        return b"".join((self._head, number, between, number, data))

    def check_trailers(self, block: bytes) -> None:
        """Raises LoadError where *block* says that the call has failed."""
        if block in self._good:
            return
        fields = dict(hpack.Decoder().decode(block))
        if fields.get("grpc-status") != "0":
            raise LoadError(f"status {fields.get('grpc-status')}: {fields.get('grpc-message')}")
        self._good.add(block)


class Caller:
    """One connection with one call in flight."""

    def __init__(self, port: int, calls: Calls, order: Iterator[int]) -> None:
        """*order* says which message is the next, without end."""
        self._calls = calls
        self._order = order
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        settings = struct.pack(">HIHI", _HEADER_TABLE_SIZE, 0, _INITIAL_WINDOW_SIZE, _LARGEST_WINDOW)
        window = struct.pack(">I", _LARGEST_WINDOW - _FIRST_WINDOW)
        self.socket.sendall(_PREFACE + frame(_SETTINGS, 0, 0, settings) + frame(_WINDOW_UPDATE, 0, 0, window))
        self._received = b""
        self._stream = 1
        self._window = _FIRST_WINDOW
        self._waiting = b""
        """Frames of the next call, for which the peer has to make room first."""
        self._began_ns = 0

    def begin(self) -> None:
        """Send the next call, or wait until the peer takes that much."""
        frames = self._waiting or self._calls.frames(next(self._order), self._stream)
        if len(frames) > self._window:
            self._waiting = frames
            return
        self._waiting = b""
        self._window -= len(frames)  # somewhat more than what counts
        self._stream += 2
        self._began_ns = time.perf_counter_ns()
        self.socket.sendall(frames)

    def read(self) -> None:
        """Take what has come. Raises LoadError."""
        data = self.socket.recv(_RECEIVE_BYTES)
        if not data:
            raise LoadError("the server closed a connection")
        data = self._received + data if self._received else data
        at, end = 0, len(data)
        while end - at >= 9:
            length = int.from_bytes(data[at : at + 3], "big")
            behind = at + 9 + length
            if behind > end:
                break
            kind, flags = data[at + 3], data[at + 4]
            if kind == _DATA:
                self._calls.body_bytes += length
            elif kind == _HEADERS:
                if flags & _END_STREAM:
                    took_ns = time.perf_counter_ns() - self._began_ns
                    self._calls.check_trailers(data[at + 9 : behind])
                    self._calls.latencies_ns.append(took_ns)
                    self.begin()
            else:
                self._on_control(kind, flags, data[at + 5 : at + 9], data[at + 9 : behind])
            at = behind
        self._received = data[at:]

    def _on_control(self, kind: int, flags: int, stream: bytes, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            self.socket.sendall(frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self.socket.sendall(frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW_UPDATE and stream == bytes(4):
            self._window += int.from_bytes(payload, "big")
            if self._waiting:
                self.begin()
        elif kind in (_RST_STREAM, _GOAWAY):
            raise LoadError(f"frame {kind} from the server: {payload!r}")


def orders(messages: int, callers: int, own: int) -> list[Iterator[int]]:
    """What each caller sends: the next one of all, over and over, or *own* messages of its own, where that is not 0."""
    if not own:
        return [itertools.cycle(range(messages))] * callers
    return [itertools.cycle(range(number * own, (number + 1) * own)) for number in range(callers)]


def load(
    port: int, path: str, messages: Sequence[bytes], *, callers: int, seconds: float, own: int = 0
) -> dict[str, object]:
    """Load the server for *seconds*. The result is what the program prints. *own* is as in `orders`."""
    calls = Calls(messages, request_blocks(port, path))
    selector = selectors.DefaultSelector()
    error = ""
    began = time.perf_counter()
    connections = []
    try:
        for order in orders(len(messages), callers, own):
            caller = Caller(port, calls, order)
            connections.append(caller)
            selector.register(caller.socket, selectors.EVENT_READ, caller.read)
            caller.begin()
        end = began + seconds
        while (now := time.perf_counter()) < end:
            for key, _ in selector.select(end - now):
                key.data()
    except (OSError, LoadError) as failure:
        error = str(failure) or repr(failure)
    elapsed = time.perf_counter() - began
    for caller in connections:
        caller.socket.close()
    p50, p99 = np.percentile(calls.latencies_ns, [50, 99]) / 1e3 if calls.latencies_ns else (0.0, 0.0)
    return {
        "answered": len(calls.latencies_ns),
        "seconds": elapsed,
        "p50_us": float(p50),
        "p99_us": float(p99),
        "body_bytes": calls.body_bytes,
        "error": error,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Load a gRPC server with calls that differ.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--callers", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--path", required=True)
    parser.add_argument("--own", type=int, default=0, help="messages that each caller has for itself; default: none")
    parser.add_argument("messages", type=Path)
    options = parser.parse_args(argv)
    messages = read_messages(options.messages.read_bytes())
    if len(messages) < options.callers * options.own:
        parser.error(f"{options.callers} callers with {options.own} messages each: there are {len(messages)}")
    found = load(
        options.port, options.path, messages, callers=options.callers, seconds=options.seconds, own=options.own
    )
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
