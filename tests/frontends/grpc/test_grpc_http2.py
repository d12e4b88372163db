"""The transport of our own where HTTP/2 shows: frames, windows, pings, ages, and peers that mean no good.

What every transport does is in test_grpc_server.py, which runs over this one too.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import itertools
import logging
import os
import random
import resource
import socket
import struct
import subprocess
import sys
import threading
import weakref
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import hpack
import pytest
from grpc_fakes import FakeServer, LoopThread
from http2_peer import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    INFER,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Http2Peer,
    frame,
    headers_of,
    prefixed,
    reset,
    settings,
    window_update,
)
from tritonclient.grpc import service_pb2

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.engine.counting.receive_budget import ReceiveBudget
from pytriton_lite.frontends.grpc import compression, http2, http2_call, http2_connection, http2_sender
from pytriton_lite.frontends.grpc.http2 import Http2Listener, start_http2
from pytriton_lite.frontends.grpc.http2_call import TasksToCome, are_trailers
from pytriton_lite.frontends.grpc.options import GrpcOptions
from pytriton_lite.frontends.grpc.parsing import field_header
from pytriton_lite.frontends.grpc.placing_reader import PlacingReader
from pytriton_lite.frontends.unread import UnreadBudget
from pytriton_lite.frontends.work_share import share_of
from pytriton_lite.scheduling.ticket import Ticket
from tests.harness import RunningServer, until, write_model

PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR = 1, 3, 5, 6
REFUSED_STREAM, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 7, 9, 11
LIVE = "/inference.GRPCInferenceService/ServerLive"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
READY = "/inference.GRPCInferenceService/ServerReady"


def new_loop(kind: str) -> asyncio.AbstractEventLoop:
    if kind == "asyncio":
        return asyncio.new_event_loop()
    return pytest.importorskip("uvloop").new_event_loop()


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Iterator[LoopThread]:
    thread = LoopThread(new_loop(request.param))
    yield thread
    thread.close()


class Started:
    """Listeners of one test, which must have nothing in flight at its end."""

    def __init__(self, loop: LoopThread, engine: FakeServer) -> None:
        self._loop = loop
        self._engine = engine
        self._listeners: list[Http2Listener] = []

    def __call__(self, **options: Any) -> Http2Listener:
        listener = self._loop.run(start_http2(self._engine, GrpcOptions(address="127.0.0.1", port=0, **options)))
        self._listeners.append(listener)
        return listener

    def end(self) -> None:
        for listener in self._listeners:
            assert self._loop.run(listener.stop(60)), "a call was left in flight"


@pytest.fixture
def start(loop: LoopThread, engine: FakeServer, caplog: pytest.LogCaptureFixture) -> Iterator[Started]:
    started = Started(loop, engine)
    yield started
    started.end()
    assert [record.message for record in caplog.get_records("call") if record.levelno >= logging.WARNING] == []


@pytest.fixture
def listener(start: Started) -> Http2Listener:
    return start()


@pytest.fixture
def peer(listener: Http2Listener) -> Iterator[Http2Peer]:
    with Http2Peer.connect(listener) as peer:
        yield peer


def infer_message(model: str = "echo", size: int = 4, **fields: Any) -> bytes:
    message = service_pb2.ModelInferRequest(model_name=model, **fields)
    message.inputs.add(name="X", datatype="UINT8", shape=[size])
    message.raw_input_contents.append(b"\1" * size)
    data: bytes = message.SerializeToString()
    return data


def echoed(message: bytes) -> bytes:
    response = service_pb2.ModelInferResponse.FromString(message)
    return bytes(response.raw_output_contents[0])


@contextmanager
def standing(loop: LoopThread) -> Iterator[None]:
    """The loop does nothing, and what clients send meanwhile waits in their sockets."""
    stands, goes_on = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        assert goes_on.wait(30)

    loop.loop.call_soon_threadsafe(stand)
    assert stands.wait(30)
    try:
        yield
    finally:
        goes_on.set()


def on_stream(data: bytes, stream: int) -> bytes:
    """A frame as *data*, on *stream*."""
    return data[:5] + struct.pack(">L", stream) + data[9:]


def resolve(loop: LoopThread, engine: FakeServer, index: int = 0) -> None:
    async def answer() -> None:
        served = engine.find("waiting", None)
        engine.waiting[index].set_result(engine.echo(served, engine.seen[index]))

    loop.run(answer())


class TestAnswers:
    def test_headers_message_and_trailers(self, peer: Http2Peer) -> None:
        peer.request(1, infer_message(id="abc"))
        answer = peer.answer(1)
        assert answer.headers == {":status": "200", "content-type": "application/grpc"}
        assert answer.trailers == {"grpc-status": "0"}
        assert service_pb2.ModelInferResponse.FromString(answer.message).id == "abc"

    @pytest.mark.parametrize("path", ["/grpc.health.v1.Health/Nope", "/no.Service/Nope", "/"])
    def test_unknown_method_is_trailers_alone_without_details(self, peer: Http2Peer, path: str) -> None:
        """grpc.md rows 8 and 9."""
        peer.request(1, b"", path)
        answer = peer.answer(1)
        assert answer.headers == {":status": "200", "content-type": "application/grpc", "grpc-status": "12"}
        assert answer.body == b""

    def test_details_are_percent_encoded(self, engine: FakeServer, peer: Http2Peer) -> None:
        engine.error = InferenceError(ErrorCode.INTERNAL, "50 % of\né ~\x7f")
        peer.request(1, infer_message())
        assert peer.answer(1).trailers["grpc-message"] == "50 %25 of%0A%C3%A9 ~%7F"

    @pytest.mark.parametrize("kind", ["application/grpc+proto", "Application/GRPC; charset=utf-8"])
    def test_content_types_of_protobuf_are_taken(self, peer: Http2Peer, kind: str) -> None:
        peer.request(1, b"", LIVE, content_type=kind)
        assert peer.answer(1).trailers["grpc-status"] == "0"

    @pytest.mark.parametrize("kind", ["application/json", "application/grpc+json", "application/grpc-web", None])
    def test_other_content_types_are_415(self, peer: Http2Peer, kind: str | None) -> None:
        peer.request(1, b"", LIVE, content_type=kind)
        assert peer.answer(1).headers == {":status": "415"}

    def test_other_methods_are_405(self, peer: Http2Peer) -> None:
        fields = [(name, "GET" if name == ":method" else value) for name, value in headers_of(LIVE)]
        peer.send(peer.headers(1, fields, END_HEADERS | END_STREAM))
        assert peer.answer(1).headers[":status"] == "405"

    def test_many_calls_on_one_connection_end_each_with_its_own_answer(
        self, loop: LoopThread, engine: FakeServer, peer: Http2Peer
    ) -> None:
        streams = range(1, 41, 2)
        for stream in streams:
            peer.request(stream, infer_message("waiting", id=str(stream)))
        peer.request(41, infer_message())
        peer.answer(41)
        for index in reversed(range(len(streams))):
            resolve(loop, engine, index)
            answer = peer.answer(streams[index])
            assert service_pb2.ModelInferResponse.FromString(answer.message).id == str(streams[index])

    def test_header_blocks_are_read_anew_when_the_table_has_changed(self, engine: FakeServer, peer: Http2Peer) -> None:
        """The same bytes name the entry that was added last, and so another method."""

        def added(path: str) -> bytes:
            return b"\x44" + bytes([len(path)]) + path.encode()  # name 4 of the static table is :path

        content_type = b"\x5f\x10application/grpc"  # name 31 of the static table
        engine.ready = False
        data = frame(DATA, END_STREAM, 1, prefixed(b""))
        peer.send(frame(HEADERS, END_HEADERS, 1, b"\x83\x86" + added(LIVE) + content_type), data)
        assert service_pb2.ServerLiveResponse.FromString(peer.answer(1).message).live
        references = b"\x83\x86\xbf\xbe"  # the entry before the last, and the last
        for stream in (3, 5):
            data = frame(DATA, END_STREAM, stream, prefixed(b""))
            peer.send(frame(HEADERS, END_HEADERS, stream, references), data)
            assert service_pb2.ServerLiveResponse.FromString(peer.answer(stream).message).live
        data = frame(DATA, END_STREAM, 7, prefixed(b""))
        peer.send(frame(HEADERS, END_HEADERS, 7, b"\x83\x86" + added(READY) + content_type), data)
        assert not service_pb2.ServerReadyResponse.FromString(peer.answer(7).message).ready
        peer.send(
            frame(HEADERS, END_HEADERS, 9, references),
            frame(DATA, END_STREAM, 9, prefixed(b"")),
        )
        assert not service_pb2.ServerReadyResponse.FromString(peer.answer(9).message).ready


class TestFraming:
    def test_bytes_that_come_one_by_one(self, listener: Http2Listener) -> None:
        with Http2Peer.connect(listener, b"") as peer:
            data = PREFACE + settings() + peer.headers(1, headers_of())
            data += frame(DATA, END_STREAM, 1, prefixed(infer_message()))
            for index in range(len(data)):
                peer.send(data[index : index + 1])
            assert echoed(peer.answer(1).message) == b"\1" * 4

    def test_message_in_many_frames_with_padding(self, peer: Http2Peer) -> None:
        body = prefixed(infer_message())
        peer.send(peer.headers(1, headers_of()))
        for index in range(len(body)):
            peer.send(frame(DATA, PADDED, 1, b"\3" + body[index : index + 1] + bytes(3)))
        peer.send(frame(DATA, END_STREAM, 1))
        assert echoed(peer.answer(1).message) == b"\1" * 4

    def test_headers_with_padding_priority_and_continuation(self, peer: Http2Peer) -> None:
        block = peer.encoder.encode(headers_of())
        payload = b"\2" + bytes(5) + block[:10] + bytes(2)
        peer.send(
            frame(HEADERS, PADDED | HAS_PRIORITY, 1, payload),
            frame(CONTINUATION, 0, 1, block[10:20]),
            frame(CONTINUATION, END_HEADERS, 1, block[20:]),
            frame(DATA, END_STREAM, 1, prefixed(infer_message())),
        )
        assert peer.answer(1).trailers["grpc-status"] == "0"

    def test_request_that_ends_with_trailers(self, peer: Http2Peer) -> None:
        peer.send(peer.headers(1, headers_of()), frame(DATA, 0, 1, prefixed(infer_message())))
        peer.send(peer.headers(1, [("x-checksum", "1")], END_HEADERS | END_STREAM))
        assert peer.answer(1).trailers["grpc-status"] == "0"

    def test_frames_of_unknown_types_and_priorities_are_ignored(self, peer: Http2Peer) -> None:
        peer.send(frame(0x77, 0xFF, 5, b"?"), frame(PRIORITY, 0, 3, bytes(5)))
        peer.request(1, infer_message())
        assert peer.answer(1).trailers["grpc-status"] == "0"

    @pytest.mark.parametrize(
        ("body", "text"),
        [
            (b"", "a unary method takes one message, and none was sent"),
            (b"\0\0", "a unary method takes one message, and none was sent"),
            (prefixed(b"abc")[:-1], "the message is cut short: 2 of 3 bytes were sent"),
            (prefixed(b"") * 2, "a unary method takes one message, and more was sent"),
            (prefixed(b"", flag=2), "a message begins with 0 or 1, and 2 was sent"),
        ],
    )
    def test_body_that_is_not_one_message_is_internal(self, peer: Http2Peer, body: bytes, text: str) -> None:
        peer.send(peer.headers(1, headers_of()), frame(DATA, END_STREAM, 1, body))
        trailers = peer.answer(1).trailers
        assert (trailers["grpc-status"], trailers["grpc-message"]) == ("13", text)

    def test_call_without_any_data_is_internal(self, peer: Http2Peer) -> None:
        peer.send(peer.headers(1, headers_of(), END_HEADERS | END_STREAM))
        assert peer.answer(1).trailers["grpc-status"] == "13"

    def test_message_over_the_limit_is_refused_by_its_prefix(self, peer: Http2Peer) -> None:
        peer.send(peer.headers(1, headers_of()), frame(DATA, 0, 1, struct.pack(">BL", 0, 1 << 31)))
        trailers = peer.answer(1).trailers
        assert trailers["grpc-status"] == "8"
        assert trailers["grpc-message"] == "Received message larger than max (2147483648 vs. 2147483647)"
        assert peer.next(RST_STREAM, 1).code == 0  # the rest need not be sent
        peer.send(frame(DATA, END_STREAM, 1, b"on its way already"))
        peer.request(3, b"", LIVE)
        assert peer.answer(3).trailers["grpc-status"] == "0"

    def test_second_message_is_refused_before_the_end(self, peer: Http2Peer) -> None:
        peer.send(peer.headers(1, headers_of()), frame(DATA, 0, 1, prefixed(b"ab")), frame(DATA, 0, 1, b"\0"))
        assert peer.answer(1).trailers["grpc-message"] == "a unary method takes one message, and more was sent"

    @pytest.mark.parametrize("frame_bytes", [5_000, 16_384, 65_536])
    @pytest.mark.parametrize("ends_with", ["data", "an empty frame", "trailers"])
    def test_large_message_in_frames_that_reads_cut_anywhere(
        self, listener: Http2Listener, frame_bytes: int, ends_with: str
    ) -> None:
        sent = bytes(range(251)) * 4_000
        message = service_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[sent])
        message.inputs.add(name="X", datatype="UINT8", shape=[len(sent)])
        body = prefixed(message.SerializeToString())
        greeting = PREFACE + settings(initial_window_size=1 << 30) + window_update(0, 1 << 30)
        with Http2Peer.connect(listener, greeting) as peer:
            data = peer.headers(1, headers_of())
            for begin in range(0, len(body), frame_bytes):
                is_last = begin + frame_bytes >= len(body) and ends_with == "data"
                data += frame(DATA, END_STREAM if is_last else 0, 1, body[begin : begin + frame_bytes])
            if ends_with == "an empty frame":
                data += frame(DATA, END_STREAM, 1)
            elif ends_with == "trailers":
                data += peer.headers(1, [("x-checksum", "1")], END_HEADERS | END_STREAM)
            for begin in range(0, len(data), 7_001):
                peer.send(data[begin : begin + 7_001])
            assert echoed(peer.answer(1).message) == sent
            peer.request(3, b"", LIVE)
            assert peer.answer(3).trailers["grpc-status"] == "0"

    @pytest.mark.parametrize(
        ("more", "flags", "text"),
        [
            (bytes(100_001), END_STREAM, "a unary method takes one message, and more was sent"),
            (bytes(99_000), END_STREAM, "the message is cut short: 99009 of 100009 bytes were sent"),
        ],
    )
    def test_large_message_of_the_wrong_length_is_internal(
        self, listener: Http2Listener, more: bytes, flags: int, text: str
    ) -> None:
        with Http2Peer.connect(listener) as peer:
            peer.send(peer.headers(1, headers_of()), frame(DATA, 0, 1, struct.pack(">BL", 0, 100_009) + bytes(9)))
            for begin in range(0, len(more), 16_000):
                is_last = begin + 16_000 >= len(more)
                peer.send(frame(DATA, flags if is_last else 0, 1, more[begin : begin + 16_000]))
            trailers = peer.answer(1).trailers
            assert (trailers["grpc-status"], trailers["grpc-message"]) == ("13", text)


def large_body(seed: int, size: int = 1_000_000) -> tuple[bytes, bytes]:
    """A message that the echo model gives back, and the tensor in it."""
    sent = random.Random(seed).randbytes(size)
    message = service_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[sent])
    message.inputs.add(name="X", datatype="UINT8", shape=[len(sent)])
    return prefixed(message.SerializeToString()), sent


def in_frames(stream: int, body: bytes, lengths: Iterator[int]) -> list[bytes]:
    """*body* in frames of data, the last of which ends the stream."""
    found = []
    at = 0
    while at < len(body):
        end = min(at + next(lengths), len(body))
        found.append(frame(DATA, END_STREAM if end == len(body) else 0, stream, body[at:end]))
        at = end
    return found


class TestMessagesReadIntoPlace:
    WIDE = PREFACE + settings(initial_window_size=1 << 30) + window_update(0, 1 << 30)

    def test_transport_has_the_connection_for_its_protocol_again_behind_the_message(
        self, loop: LoopThread, listener: Http2Listener
    ) -> None:
        body, sent = large_body(0)
        frames = in_frames(1, body, itertools.repeat(16_384))

        async def reads_into_place() -> bool:
            protocols = [connection._transport.get_protocol() for connection in listener._connections.open]
            return any(isinstance(protocol, PlacingReader) for protocol in protocols)

        with Http2Peer.connect(listener, self.WIDE) as peer:
            peer.send(peer.headers(1, headers_of()), *frames[:20])
            while not loop.run(reads_into_place()):
                pass
            peer.send(*frames[20:])
            assert echoed(peer.answer(1).message) == sent
            assert not loop.run(reads_into_place())
            peer.request(3, b"", LIVE)
            assert peer.answer(3).trailers["grpc-status"] == "0"

    @pytest.mark.parametrize("seed", range(6))
    def test_frames_of_any_length_among_those_of_others(self, listener: Http2Listener, seed: int) -> None:
        """Lengths that stay for a while, pings, unknown frames, calls of others, and another large message, cut anywhere."""
        dice = random.Random(seed)

        def lengths() -> Iterator[int]:
            while True:
                yield from itertools.repeat(dice.choice([1, 3_000, 5_000, 16_384, 65_536]), dice.randint(1, 12))

        bodies = {stream: large_body(seed * 10 + stream) for stream in (1, 3)}
        with Http2Peer.connect(listener, self.WIDE) as peer:
            waiting = {stream: in_frames(stream, body, lengths()) for stream, (body, _) in bodies.items()}
            data = b"".join(peer.headers(stream, headers_of()) for stream in waiting)
            small = 5
            while waiting:
                stream = dice.choice(list(waiting))
                for _ in range(min(dice.randint(1, 20), len(waiting[stream]))):
                    data += waiting[stream].pop(0)
                if not waiting[stream]:
                    del waiting[stream]
                if dice.random() < 0.3:
                    data += frame(PING, 0, 0, bytes(8)) + frame(0x77, 0, 0, b"?")
                if dice.random() < 0.3:
                    data += peer.headers(small, headers_of(LIVE)) + frame(DATA, END_STREAM, small, prefixed(b""))
                    small += 2
            sender = threading.Thread(target=self._send_cut, args=(peer, data, dice))
            sender.start()
            answers = dict.fromkeys(bodies, b"")
            ended = set()
            for found in peer.frames():
                assert found.kind not in (GOAWAY, RST_STREAM)
                if found.kind == DATA and found.stream in answers:
                    answers[found.stream] += found.payload
                if found.kind == HEADERS and found.flags & END_STREAM:
                    ended.add(found.stream)
                if ended >= bodies.keys():
                    break
            sender.join()
            for stream, (_, sent) in bodies.items():
                assert echoed(answers[stream][5:]) == sent

    @staticmethod
    def _send_cut(peer: Http2Peer, data: bytes, dice: random.Random) -> None:
        at = 0
        while at < len(data):
            end = at + dice.choice([1, 9, 4_000, 100_000, 400_000])
            peer.send(data[at:end])
            at = end

    def test_call_that_is_reset_in_the_middle_leaves_others_alone(self, listener: Http2Listener) -> None:
        body, _ = large_body(1)
        frames = in_frames(1, body, itertools.repeat(16_384))
        with Http2Peer.connect(listener, self.WIDE) as peer:
            peer.send(peer.headers(1, headers_of()), *frames[:40], reset(1))
            peer.request(3, b"", LIVE)
            assert peer.answer(3).trailers["grpc-status"] == "0"

    def test_rest_of_a_call_that_has_ended_is_passed_over(self, listener: Http2Listener) -> None:
        body, _ = large_body(1)
        frames = in_frames(1, body, itertools.repeat(16_384))
        with Http2Peer.connect(listener, self.WIDE) as peer:
            peer.send(peer.headers(1, headers_of(grpc_timeout="50m")), *frames[:40], frames[40][:5_000])
            assert peer.answer(1).trailers["grpc-status"] == "4"
            peer.send(frames[40][5_000:], *frames[41:])
            peer.request(3, b"", LIVE)
            assert peer.answer(3).trailers["grpc-status"] == "0"

    def test_memory_of_a_call_that_has_ended_is_not_kept_for_its_rest(
        self, listener: Http2Listener, engine: FakeServer
    ) -> None:
        frames = in_frames(1, bytes(8 << 20), itertools.repeat(16_384))
        with Http2Peer.connect(listener, self.WIDE) as peer:
            began = frame(DATA, 0, 1, struct.pack(">BL", 0, 64 << 20))
            peer.send(peer.headers(1, headers_of(grpc_timeout="500m")), began)
            until(lambda: engine.intake.live_rooms == 1)
            peer.send(*frames[:-1])
            assert peer.answer(1).trailers["grpc-status"] == "4"
            until(lambda: engine.intake.reserved_bytes == 0)

    def test_peer_that_ends_its_side_in_the_middle_is_closed(self, listener: Http2Listener) -> None:
        body, _ = large_body(1)
        with Http2Peer.connect(listener, self.WIDE) as peer:
            peer.send(peer.headers(1, headers_of()), *in_frames(1, body, itertools.repeat(16_384))[:40])
            peer.sock.shutdown(socket.SHUT_WR)
            peer.until_closed()

    def test_message_that_is_longer_than_it_says_is_refused(self, listener: Http2Listener) -> None:
        with Http2Peer.connect(listener, self.WIDE) as peer:
            body = struct.pack(">BL", 0, 400_000) + bytes(500_000)
            peer.send(peer.headers(1, headers_of()), *in_frames(1, body, itertools.repeat(16_384)))
            assert peer.answer(1).trailers["grpc-message"] == "a unary method takes one message, and more was sent"


class TestFlowControl:
    def test_answer_comes_as_the_stream_s_window_opens(self, listener: Http2Listener) -> None:
        with Http2Peer.connect(listener, PREFACE + settings(initial_window_size=0)) as peer:
            peer.request(1, infer_message(size=1000))
            assert peer.next(HEADERS, 1).flags == END_HEADERS
            received = b""
            for increment in (1, 4, 7, 500):
                peer.send(window_update(1, increment))
                while increment:
                    data = peer.next(DATA, 1).payload
                    received += data
                    increment -= len(data)
                    assert increment >= 0
            peer.send(settings(initial_window_size=60_000))  # opens that of streams that are open, too
            answer = peer.answer(1)
            assert answer.trailers["grpc-status"] == "0"

    def test_answers_share_the_connection_s_window(self, peer: Http2Peer) -> None:
        """It is 65535 at first, and only WINDOW_UPDATE changes it."""
        peer.send(settings(initial_window_size=1 << 20))
        for stream in (1, 3):
            peer.request(stream, infer_message(size=50_000))
        lengths = {1: 0, 3: 0}
        while sum(lengths.values()) < 65_535:
            found = peer.next(DATA)
            lengths[found.stream] += len(found.payload)
        assert sum(lengths.values()) == 65_535
        peer.request(5, b"", "/no.Service/Nope")  # needs no window
        assert peer.answer(5).trailers["grpc-status"] == "12"
        peer.send(window_update(0, 1 << 20))
        assert peer.answer(3).trailers["grpc-status"] == "0"

    def test_error_needs_no_window_behind_as_many_answers_as_are_sent_in_a_turn(self, peer: Http2Peer) -> None:
        peer.send(settings(initial_window_size=1 << 20))
        peer.request(1, infer_message(size=60_000))
        size = len(peer.answer(1).body)
        count = -(-http2_sender._SENT_AT_ONCE // size)
        peer.send(window_update(0, count * size - 65_535))  # which the last of them uses up
        for stream in range(3, 2 * count + 1, 2):
            peer.request(stream, infer_message(size=60_000))
            assert peer.answer(stream).trailers["grpc-status"] == "0"
        peer.request(2 * count + 1, b"", "/no.Service/Nope")
        assert peer.answer(2 * count + 1).trailers["grpc-status"] == "12"

    def test_trailers_behind_an_empty_message_need_no_window(self, listener: Http2Listener) -> None:
        with Http2Peer.connect(listener, PREFACE + settings(initial_window_size=0)) as peer:
            peer.request(1, b"", "/inference.GRPCInferenceService/SystemSharedMemoryUnregister")
            peer.send(window_update(1, 5))
            answer = peer.answer(1)
            assert answer.message == b""
            assert answer.trailers["grpc-status"] == "0"

    def test_peer_that_leaves_amid_what_wants_an_answer_leaves_no_line_in_the_log(
        self, listener: Http2Listener, peer: Http2Peer
    ) -> None:
        """Loops log each write to a connection that is lost; the fixture `start` looks for them."""
        with Http2Peer.connect(listener, PREFACE + settings(initial_window_size=1)) as leaving:
            leaving.send(settings(initial_window_size=5) * 3000)
        peer.request(1, b"", LIVE)
        assert peer.answer(1).trailers["grpc-status"] == "0"

    @pytest.mark.parametrize("path", [INFER, STREAM])
    def test_peer_that_is_gone_when_its_answers_come_leaves_no_line_in_the_log(
        self, loop: LoopThread, engine: FakeServer, listener: Http2Listener, path: str
    ) -> None:
        """All of them in one turn of the loop, before that has seen it."""

        def answer() -> None:
            for served in engine.streams:
                served.deliver(engine.echo(engine.find("held", None), served.request), is_final=True)

        with Http2Peer.connect(listener) as peer:
            for stream in range(1, 41, 2):
                peer.request(stream, infer_message("held"), path)
                assert engine.streamed.acquire(timeout=10)
            with standing(loop):
                peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                peer.sock.close()
                loop.loop.call_soon_threadsafe(answer)
        until(lambda: not listener._connections.open)

    def test_window_below_zero_waits_until_it_is_open_again(self, listener: Http2Listener) -> None:
        """RFC 9113, section 6.9.2."""
        with Http2Peer.connect(listener, PREFACE + settings(initial_window_size=100)) as peer:
            peer.request(1, infer_message(size=1000))
            first = b""
            while len(first) < 100:
                first += peer.next(DATA, 1).payload
            peer.send(settings(initial_window_size=0), window_update(1, 100))
            peer.request(3, b"", "/no.Service/Nope")
            assert peer.next(HEADERS, 3)  # and no data before it
            peer.send(window_update(1, 2000))
            assert peer.next(DATA, 1).payload

    @pytest.mark.parametrize("limit", [16_384, 1 << 20])
    def test_frames_are_no_longer_than_the_peer_takes(self, listener: Http2Listener, limit: int) -> None:
        greeting = PREFACE + settings(initial_window_size=1 << 30, max_frame_size=limit) + window_update(0, 1 << 30)
        with Http2Peer.connect(listener, greeting) as peer:
            peer.send(peer.headers(1, headers_of()))
            body = prefixed(infer_message(size=2_000_000))
            for begin in range(0, len(body), 16_384):
                peer.send(frame(DATA, 0, 1, body[begin : begin + 16_384]))
            peer.send(frame(DATA, END_STREAM, 1))
            lengths = []
            for found in peer.frames():
                if found.kind == DATA:
                    lengths.append(len(found.payload))
                if found.kind == HEADERS and found.flags & END_STREAM:
                    break
            assert sum(lengths) > 2_000_000
            assert max(lengths) <= limit
            assert (max(lengths) > 16_384) is (limit > 16_384)

    def test_receive_windows_are_given_back(self, peer: Http2Peer) -> None:
        """8 MiB go through a stream's window of 4 MiB."""
        message = infer_message(size=8 << 20)
        body = prefixed(message)
        peer.send(peer.headers(1, headers_of()))
        window = peer_window = 4 << 20
        for begin in range(0, len(body), 16_384):
            chunk = body[begin : begin + 16_384]
            while window < len(chunk):
                window += struct.unpack(">L", peer.next(WINDOW_UPDATE, 1).payload)[0]
            window -= len(chunk)
            peer.send(frame(DATA, 0, 1, chunk))
        assert window <= peer_window
        peer.send(window_update(0, 1 << 30), window_update(1, 1 << 30), frame(DATA, END_STREAM, 1))
        assert echoed(peer.answer(1).message) == b"\1" * (8 << 20)

    def test_peer_that_does_not_read_delays_nobody_else_and_gets_all(self, listener: Http2Listener) -> None:
        greeting = PREFACE + settings(initial_window_size=(1 << 31) - 1) + window_update(0, (1 << 31) - 1 - 65_535)
        with Http2Peer.connect(listener, greeting) as slow, Http2Peer.connect(listener) as other:
            body = prefixed(infer_message(size=4 << 20))
            for stream in (1, 3, 5):
                slow.send(slow.headers(stream, headers_of()))
                for begin in range(0, len(body), 16_384):
                    slow.send(frame(DATA, 0, stream, body[begin : begin + 16_384]))
                slow.send(frame(DATA, END_STREAM, stream))
            other.request(1, infer_message())
            assert other.answer(1).trailers["grpc-status"] == "0"
            received = {1: 0, 3: 0, 5: 0}
            ended = set()
            for found in slow.frames():
                if found.kind == DATA:
                    received[found.stream] += len(found.payload)
                if found.kind == HEADERS and found.flags & END_STREAM:
                    ended.add(found.stream)
                    if len(ended) == 3:
                        break
            assert min(received.values()) > 4 << 20

    def test_reset_while_the_answer_waits_for_a_window_leaves_nothing(self, listener: Http2Listener) -> None:
        with Http2Peer.connect(listener, PREFACE + settings(initial_window_size=0)) as peer:
            peer.request(1, infer_message(size=1000))
            peer.next(HEADERS, 1)
            peer.send(reset(1), window_update(1, 10_000))
            peer.request(3, b"", "/no.Service/Nope")
            assert peer.answer(3).trailers["grpc-status"] == "12"

    def test_24_mib_both_ways_with_the_stock_client(self, listener: Http2Listener) -> None:
        """grpc.md row 51, over uvloop too."""
        unlimited = [("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(listener.address, options=unlimited) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            assert echoed(call(infer_message(size=24 << 20))) == b"\1" * (24 << 20)


class TestDeadlinesAndCancellation:
    def test_deadline_is_answered_and_cancels(self, engine: FakeServer, peer: Http2Peer) -> None:
        peer.request(1, infer_message("waiting"), grpc_timeout="20m")
        assert peer.answer(1).trailers["grpc-status"] == "4"
        assert engine.cancelled.wait(60)

    def test_deadline_before_the_end_of_the_request(self, peer: Http2Peer) -> None:
        peer.send(peer.headers(1, headers_of(grpc_timeout="1m")))
        assert peer.answer(1).trailers["grpc-status"] == "4"
        assert peer.next(RST_STREAM, 1).code == 0

    @pytest.mark.parametrize("timeout", ["99999999H", "1000S", "60M"])
    def test_long_deadline_does_no_harm(self, peer: Http2Peer, timeout: str) -> None:
        peer.request(1, infer_message(), grpc_timeout=timeout)
        assert peer.answer(1).trailers["grpc-status"] == "0"

    @pytest.mark.parametrize("timeout", ["", "S", "1", "-1S", "1.5S", "123456789S", "1s"])
    def test_malformed_deadline_is_refused(self, peer: Http2Peer, timeout: str) -> None:
        peer.request(1, infer_message(), grpc_timeout=timeout)
        trailers = peer.answer(1).trailers
        assert trailers["grpc-status"] == "13"
        assert f"grpc-timeout '{timeout}' is not" in trailers["grpc-message"]

    def test_reset_cancels_and_leaves_the_connection_alone(self, engine: FakeServer, peer: Http2Peer) -> None:
        peer.request(1, infer_message("waiting"))
        peer.send(reset(1), window_update(1, 5), frame(DATA, END_STREAM, 1, b"late"), reset(1))
        assert engine.cancelled.wait(60)
        peer.request(3, infer_message())
        assert peer.answer(3).trailers["grpc-status"] == "0"

    def test_half_closed_connection_is_closed_and_cancels(self, engine: FakeServer, peer: Http2Peer) -> None:
        peer.request(1, infer_message("waiting"))
        assert engine.entered.wait(60)
        peer.sock.shutdown(socket.SHUT_WR)
        assert engine.cancelled.wait(60)
        peer.until_closed()

    def test_lost_connection_cancels_the_calls_that_wait_before_the_one_that_runs(
        self, engine: FakeServer, peer: Http2Peer
    ) -> None:
        """A model that hears of the first must find none behind it that is not cancelled."""
        for number in range(20):
            peer.request(2 * number + 1, infer_message("held"))
        assert all(engine.streamed.acquire(timeout=60) for _ in range(20))
        peer.sock.shutdown(socket.SHUT_WR)
        assert engine.streams[0].was_cancelled.wait(60)
        cancellations = [served.cancellation for served in engine.streams]
        assert cancellations == sorted(cancellations, reverse=True)
        assert min(cancellations) >= 0

    def test_answers_that_come_before_a_lost_call_has_been_cancelled_go_nowhere(
        self, loop: LoopThread, engine: FakeServer, peer: Http2Peer, listener: Http2Listener
    ) -> None:
        """Many calls are cancelled in turns of the loop: the connection is gone, and they still listen."""

        def answer_others(ticket: Ticket) -> None:
            try:
                for served in engine.streams[:-1]:
                    served.deliver(engine.echo(engine.find("held", None), served.request), is_final=True)
            except Exception as error:
                raised.append(error)
            answered.set()

        raised: list[Exception] = []
        answered = threading.Event()
        for number in range(60):
            peer.request(2 * number + 1, infer_message("held"))
        assert all(engine.streamed.acquire(timeout=60) for _ in range(60))
        engine.streams[-1].cancelled = answer_others  # type: ignore[method-assign]  # the first that is cancelled
        peer.sock.shutdown(socket.SHUT_WR)
        assert answered.wait(60)
        assert raised == []
        with Http2Peer.connect(listener) as other:
            other.request(1, b"", LIVE)
            other.answer(1)
        assert all(served.ticket.is_over for served in engine.streams)
        assert loop.run(listener.stop(30))  # no call is left to wait for

    def test_request_that_the_engine_cancels_is_answered(
        self, loop: LoopThread, engine: FakeServer, peer: Http2Peer
    ) -> None:
        peer.request(1, infer_message("waiting"))
        assert engine.entered.wait(60)
        loop.loop.call_soon_threadsafe(engine.waiting[0].cancel)
        assert peer.answer(1).trailers["grpc-status"] == "1"

    def test_awaited_method_that_is_reset_at_once_leaves_no_coroutine(self, peer: Http2Peer) -> None:
        """Found by fuzzing: the task that awaits it is cancelled before it has begun. Warnings are errors here."""
        message = service_pb2.ModelReadyRequest(name="echo").SerializeToString()
        path = "/inference.GRPCInferenceService/ModelReady"
        block = peer.headers(1, headers_of(path))
        peer.send(block, frame(DATA, END_STREAM, 1, prefixed(message)), reset(1))
        peer.request(3, message, path)
        assert service_pb2.ModelReadyResponse.FromString(peer.answer(3).message).ready
        gc.collect()

    def test_error_that_comes_after_the_client_has_gone_is_not_complained_about(
        self, loop: LoopThread, engine: FakeServer, peer: Http2Peer
    ) -> None:
        peer.request(1, infer_message("waiting"), grpc_timeout="1H")
        assert engine.entered.wait(60)
        answer = engine.waiting[0]

        def fail() -> None:
            if not answer.done():  # the loop may hear of the client first
                answer.set_exception(InferenceError(ErrorCode.INTERNAL, "too late"))

        loop.loop.call_soon_threadsafe(fail)
        peer.send(reset(1))
        peer.request(3, infer_message())
        assert peer.answer(3).trailers["grpc-status"] == "0"


class TestPings:
    def test_ping_is_answered_with_its_bytes(self, peer: Http2Peer) -> None:
        peer.send(frame(PING, payload=b"12345678"))
        assert peer.next(PING, acknowledgement=True).payload == b"12345678"

    def test_too_many_pings_of_an_idle_client_end_the_connection(self, start: Started) -> None:
        with Http2Peer.connect(start(http2_max_ping_strikes=2)) as peer:
            peer.send(frame(PING, payload=bytes(8)) * 4)  # the first is none too early
            goaway = peer.next(GOAWAY)
            assert (goaway.code, goaway.text) == (ENHANCE_YOUR_CALM, "too_many_pings")
            assert peer.until_closed() == []

    @pytest.mark.parametrize(
        "options",
        [
            {"http2_max_ping_strikes": 0},
            {"http2_max_ping_strikes": 4},
            {"keepalive_permit_without_calls": True, "http2_min_recv_ping_interval_without_data_ms": 0},
        ],
    )
    def test_pings_within_the_rules_are_all_answered(self, start: Started, options: dict[str, Any]) -> None:
        with Http2Peer.connect(start(**options)) as peer:
            for _ in range(5):
                peer.send(frame(PING, payload=bytes(8)))
                peer.next(PING, acknowledgement=True)

    def test_answers_clear_the_strikes(self, start: Started) -> None:
        with Http2Peer.connect(start(http2_max_ping_strikes=1)) as peer:
            for stream in range(1, 11, 2):
                peer.send(frame(PING, payload=bytes(8)) * 2)
                peer.request(stream, b"", LIVE)
                assert peer.answer(stream).trailers["grpc-status"] == "0"

    def test_keepalive_ping_that_is_not_answered_ends_the_connection(self, engine: FakeServer, start: Started) -> None:
        with Http2Peer.connect(start(keepalive_time_ms=20, keepalive_timeout_ms=50)) as peer:
            peer.request(1, infer_message("waiting"))
            peer.next(PING)
            peer.until_closed()
            assert engine.cancelled.wait(60)

    def test_keepalive_ping_that_is_answered_keeps_it(
        self, loop: LoopThread, engine: FakeServer, start: Started
    ) -> None:
        options = {"keepalive_time_ms": 20, "keepalive_timeout_ms": 10_000, "http2_max_pings_without_data": 0}
        with Http2Peer.connect(start(**options)) as peer:
            peer.request(1, infer_message("waiting"))
            for _ in range(4):
                peer.send(frame(PING, 1, 0, peer.next(PING).payload))
            resolve(loop, engine)
            assert peer.answer(1).trailers["grpc-status"] == "0"

    def test_connection_without_calls_is_pinged_only_when_asked_to(self, start: Started) -> None:
        """The one that may not be pinged was made first."""
        quiet = start(keepalive_time_ms=10, keepalive_timeout_ms=10)
        pinged = start(keepalive_time_ms=10, keepalive_timeout_ms=10, keepalive_permit_without_calls=True)
        with Http2Peer.connect(quiet) as first, Http2Peer.connect(pinged) as second:
            second.next(PING)
            second.until_closed()
            first.request(1, b"", LIVE)
            assert first.answer(1).trailers["grpc-status"] == "0"

    def test_no_more_pings_than_allowed_without_data(
        self, engine: FakeServer, loop: LoopThread, start: Started
    ) -> None:
        limited = start(keepalive_time_ms=10, http2_max_pings_without_data=2)
        unlimited = start(keepalive_time_ms=10, http2_max_pings_without_data=0)
        with Http2Peer.connect(limited) as first, Http2Peer.connect(unlimited) as second:
            for peer in (first, second):
                peer.request(1, infer_message("waiting"))
            for _ in range(2):
                first.send(frame(PING, 1, 0, first.next(PING).payload))
            for _ in range(6):
                second.send(frame(PING, 1, 0, second.next(PING).payload))
            for index in range(2):
                resolve(loop, engine, index)
            kinds = []
            for found in first.frames():
                kinds.append(found.kind)
                if found.kind == HEADERS and found.flags & END_STREAM:
                    break
            assert PING not in kinds


class TestAge:
    def test_old_connection_finishes_its_calls_and_closes(
        self, loop: LoopThread, engine: FakeServer, start: Started
    ) -> None:
        with Http2Peer.connect(start(max_connection_age_ms=50)) as peer:
            peer.request(1, infer_message("waiting"))
            first = peer.next(GOAWAY)
            assert (first.last_stream, first.code, first.text) == ((1 << 31) - 1, 0, "max_age")
            peer.request(3, infer_message())  # was on its way
            assert peer.answer(3).trailers["grpc-status"] == "0"
            peer.send(frame(PING, 1, 0, b"goaway.."))
            second = peer.next(GOAWAY)
            assert (second.last_stream, second.code) == (3, 0)
            peer.request(5, infer_message())  # too late
            resolve(loop, engine)
            assert peer.answer(1).trailers["grpc-status"] == "0"
            assert peer.until_closed() == []

    def test_calls_of_an_old_connection_are_cut_off_after_the_grace(self, engine: FakeServer, start: Started) -> None:
        with Http2Peer.connect(start(max_connection_age_ms=200, max_connection_age_grace_ms=200)) as peer:
            peer.request(1, infer_message("waiting"))
            peer.next(GOAWAY)
            peer.until_closed()
            assert engine.cancelled.wait(60)

    def test_peer_that_does_not_answer_the_ping_is_drained_all_the_same(
        self, start: Started, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(http2_connection, "_GOAWAY_PING_S", 0.05)
        with Http2Peer.connect(start(max_connection_age_ms=20)) as peer:
            assert [found.last_stream for found in peer.until_closed() if found.kind == GOAWAY] == [(1 << 31) - 1, 0]

    @pytest.mark.parametrize("greeting", [b"", PREFACE[:5], PREFACE])
    def test_connection_that_never_greets_is_closed(self, start: Started, greeting: bytes) -> None:
        with Http2Peer.connect(start(handshake_timeout_ms=50), greeting) as peer:
            assert GOAWAY not in [found.kind for found in peer.until_closed()]


class TestStop:
    """A client is told before its calls are refused, and what it has begun until then is served."""

    def test_idle_connection_is_told_and_closed(self, loop: LoopThread, listener: Http2Listener) -> None:
        with Http2Peer.connect(listener) as peer:
            peer.request(1, b"", LIVE)
            peer.answer(1)
            stopping = asyncio.run_coroutine_threadsafe(listener.stop(60), loop.loop)
            first = peer.next(GOAWAY)
            assert (first.last_stream, first.code, first.text) == ((1 << 31) - 1, 0, "server is stopping")
            peer.send(frame(PING, 1, 0, peer.next(PING).payload))
            (second,) = peer.until_closed()
            peer.sock.close()
            assert stopping.result(60) is True
            assert (second.kind, second.last_stream, second.code) == (GOAWAY, 1, 0)

    def test_calls_begun_until_the_second_goaway_are_served_and_later_ones_are_not_taken(
        self, loop: LoopThread, engine: FakeServer, peer: Http2Peer, listener: Http2Listener
    ) -> None:
        peer.request(1, infer_message("waiting"))
        assert engine.entered.wait(60)
        loop.run(begin_drain(listener))
        ping = peer.next(PING)
        peer.request(3, infer_message())
        assert peer.answer(3).trailers["grpc-status"] == "0"
        told = asyncio.run_coroutine_threadsafe(listener.wait_told(10), loop.loop)
        assert not told.done()
        peer.send(frame(PING, 1, 0, ping.payload))
        assert peer.next(GOAWAY).last_stream == 3
        assert told.result(60) is True
        peer.request(5, infer_message())
        stopping = asyncio.run_coroutine_threadsafe(listener.stop(60), loop.loop)
        resolve(loop, engine)
        assert peer.answer(1).trailers["grpc-status"] == "0"
        assert peer.until_closed() == []
        peer.sock.close()
        assert stopping.result(60) is True
        assert len(engine.seen) == 2

    def test_client_whose_last_call_has_ended_closes_the_connection_itself(
        self,
        loop: LoopThread,
        engine: FakeServer,
        peer: Http2Peer,
        listener: Http2Listener,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """It may not have read its last answer when it sees the end of the connection, and grpcio 1.60 would drop that."""
        monkeypatch.setattr(http2_connection, "_PEER_CLOSES_S", 600)
        peer.request(1, infer_message("waiting"))
        assert engine.entered.wait(60)
        stopping = asyncio.run_coroutine_threadsafe(listener.stop(60), loop.loop)
        peer.send(frame(PING, 1, 0, peer.next(PING).payload))
        assert peer.next(GOAWAY).last_stream == 1
        resolve(loop, engine)
        assert peer.answer(1).trailers["grpc-status"] == "0"
        peer.sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            peer.sock.recv(1)
        assert not stopping.done()
        peer.sock.close()
        assert stopping.result(60) is True

    def test_client_that_does_not_react_is_waited_for_only_so_long(
        self, loop: LoopThread, listener: Http2Listener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(http2, "_TOLD_S", 0.05)
        with Http2Peer.connect(listener) as peer:
            peer.request(1, b"", LIVE)
            peer.answer(1)
            loop.run(begin_drain(listener))
            assert loop.run(listener.wait_told(10)) is True
            assert [found.kind for found in peer.until_closed()] == [GOAWAY, PING, GOAWAY]

    def test_client_that_is_too_old_and_does_not_react_is_waited_for_only_as_long(
        self, loop: LoopThread, start: Started, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It has got its GOAWAY, and would have 20 seconds to answer the ping."""
        monkeypatch.setattr(http2, "_TOLD_S", 0.05)
        listener = start(max_connection_age_ms=20)
        with Http2Peer.connect(listener) as peer:
            assert peer.next(GOAWAY).text == "max_age"
            loop.run(begin_drain(listener))
            assert loop.run(listener.wait_told(10)) is True
            assert [found.kind for found in peer.until_closed()] == [PING, GOAWAY]

    def test_told_is_waited_for_no_longer_than_the_caller_wants(
        self, loop: LoopThread, listener: Http2Listener
    ) -> None:
        with Http2Peer.connect(listener) as peer:
            peer.request(1, b"", LIVE)
            peer.answer(1)
            loop.run(begin_drain(listener))
            assert loop.run(listener.wait_told(0.05)) is False

    def test_connection_that_is_not_greeted_yet_is_told_as_well(
        self, loop: LoopThread, listener: Http2Listener
    ) -> None:
        with Http2Peer.connect(listener, b"") as peer:
            peer.next(SETTINGS)
            loop.run(begin_drain(listener))
            peer.next(GOAWAY)
            peer.send(PREFACE, settings())
            peer.request(1, b"", LIVE)
            assert peer.answer(1).trailers["grpc-status"] == "0"

    def test_connection_that_comes_with_a_drain_is_greeted_before_it_is_told(
        self, loop: LoopThread, listener: Http2Listener
    ) -> None:
        async def connect_and_drain() -> socket.socket:
            connected = socket.create_connection((listener.host, listener.port), 10)
            listener.begin_drain()
            return connected

        with loop.run(connect_and_drain()) as connected:
            peer = Http2Peer(connected)
            peer.send(PREFACE, settings())
            greeting = [found.kind for found in itertools.islice(peer.frames(), 4)]
            assert greeting == [SETTINGS, WINDOW_UPDATE, GOAWAY, PING]
            peer.request(1, b"", LIVE)
            assert peer.answer(1).trailers["grpc-status"] == "0"

    def test_no_call_is_lost_when_one_server_takes_over_from_another(
        self, loop: LoopThread, engine: FakeServer
    ) -> None:
        """Channels of grpcio that never pause, and a second server at the same port."""

        async def stop_in_order(listener: Http2Listener) -> bool:
            listener.begin_drain()
            await listener.wait_told(10)
            engine.error = InferenceError(ErrorCode.UNAVAILABLE, "Server not ready")
            return await listener.stop(60)

        first = loop.run(start_http2(engine, GrpcOptions(address="127.0.0.1", port=0, reuse_port=True)))
        options = GrpcOptions(address="127.0.0.1", port=first.port, reuse_port=True)
        goes_on = threading.Event()
        goes_on.set()

        def call_on_and_on(_: int) -> int:
            separate = [("grpc.use_local_subchannel_pool", 1)]
            with grpc.insecure_channel(first.address, options=separate) as channel:
                infer = channel.unary_unary(INFER)
                count = 0
                while goes_on.is_set():
                    infer(infer_message(), timeout=20)
                    count += 1
                return count

        with ThreadPoolExecutor(4) as clients:
            calling = [clients.submit(call_on_and_on, number) for number in range(4)]
            try:
                while len(engine.seen) < 100 and not any(one.done() for one in calling):
                    loop.run(asyncio.sleep(0))
                second = loop.run(start_http2(FakeServer(), options))
                assert loop.run(stop_in_order(first)) is True
            finally:
                goes_on.clear()
            assert all(call.result(20) for call in calling)
        loop.run(second.stop(10))

    def test_peer_that_does_not_read_its_answer_does_not_hold_up_the_stop(
        self, loop: LoopThread, listener: Http2Listener
    ) -> None:
        with Http2Peer.connect(listener, PREFACE + settings(initial_window_size=0)) as peer:
            peer.request(1, infer_message())
            peer.next(HEADERS, 1)
            assert loop.run(listener.stop(0.05)) is True
            assert [found.kind for found in peer.until_closed()] == [GOAWAY, PING, GOAWAY]


async def begin_drain(listener: Http2Listener) -> None:
    listener.begin_drain()


def _headers_block(fields: list[tuple[str, str]]) -> bytes:
    return bytes(hpack.Encoder().encode(fields))


@pytest.mark.parametrize(
    ("name", "value", "is_allowed"),
    [
        (b"x", b"", True),
        (b"x-1!#$%&'*+.^_`|~", b"a \t\x01\x7f\xff b", True),
        (b"", b"v", False),
        (b"X", b"v", False),
        (b"x y", b"v", False),
        (b"x:", b"v", False),
        (b"\xe4", b"v", False),
        (b"x", b" v", False),
        (b"x", b"v\t", False),
        (b"x", b" ", False),
        (b"x", b"a\0b", False),
        (b"x", b"a\nb", False),
        (b"x", b"a\r", False),
        (b"te", b"trailers", True),
        (b"te", b"gzip", False),
        (b"connection", b"close", False),
    ],
)
def test_fields_that_http2_allows(name: bytes, value: bytes, is_allowed: bool) -> None:
    assert are_trailers([(name, value)]) is is_allowed


class TestHostilePeers:
    @pytest.mark.parametrize(
        "data",
        [
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            PREFACE[:-1] + b"!",
            b"\0" * 100,
        ],
        ids=["HTTP/1.1", "TLS", "nearly the preface", "zeros"],
    )
    def test_what_is_no_preface_is_answered_with_goaway(self, listener: Http2Listener, data: bytes) -> None:
        with Http2Peer.connect(listener, data) as peer:
            assert peer.next(GOAWAY).code == PROTOCOL_ERROR
            assert peer.until_closed() == []

    @pytest.mark.parametrize(
        ("data", "code"),
        [
            pytest.param(frame(DATA, 0, 1, b"x"), PROTOCOL_ERROR, id="data on an idle stream"),
            pytest.param(frame(DATA, 0, 0, b"x"), PROTOCOL_ERROR, id="data on stream 0"),
            pytest.param(frame(RST_STREAM, 0, 1, b"x"), FRAME_SIZE_ERROR, id="reset of one byte"),
            pytest.param(window_update(9, 1), PROTOCOL_ERROR, id="window of an idle stream"),
            pytest.param(window_update(0, 0), PROTOCOL_ERROR, id="window opened by nothing"),
            pytest.param(window_update(2, 1), PROTOCOL_ERROR, id="window of a stream that would be ours"),
            pytest.param(frame(SETTINGS, 0, 1), PROTOCOL_ERROR, id="settings on a stream"),
            pytest.param(frame(GOAWAY, 0, 1, bytes(8)), PROTOCOL_ERROR, id="goaway on a stream"),
            pytest.param(frame(GOAWAY, 0, 0, bytes(7)), FRAME_SIZE_ERROR, id="goaway cut short"),
            pytest.param(frame(PRIORITY, 0, 0, bytes(5)), PROTOCOL_ERROR, id="priority on stream 0"),
            pytest.param(frame(PRIORITY, 0, 1, bytes(4)), FRAME_SIZE_ERROR, id="priority of 4 bytes"),
            pytest.param(window_update(0, (1 << 31) - 1), FLOW_CONTROL_ERROR, id="window over its limit"),
            pytest.param(frame(WINDOW_UPDATE, 0, 0, b"x"), FRAME_SIZE_ERROR, id="window update of one byte"),
            pytest.param(frame(SETTINGS, 0, 0, b"x"), FRAME_SIZE_ERROR, id="settings of one byte"),
            pytest.param(frame(SETTINGS, 1, 0, bytes(6)), FRAME_SIZE_ERROR, id="acknowledgement with settings"),
            pytest.param(settings(initial_window_size=1 << 31), FLOW_CONTROL_ERROR, id="initial window too large"),
            pytest.param(settings(max_frame_size=16_383), PROTOCOL_ERROR, id="frame size too small"),
            pytest.param(settings(enable_push=2), PROTOCOL_ERROR, id="push is neither on nor off"),
            pytest.param(frame(PUSH_PROMISE, 0, 1, bytes(4)), PROTOCOL_ERROR, id="promise"),
            pytest.param(frame(PING, 0, 0, b"x"), FRAME_SIZE_ERROR, id="ping of one byte"),
            pytest.param(frame(PING, 0, 1, bytes(8)), PROTOCOL_ERROR, id="ping on a stream"),
            pytest.param(frame(CONTINUATION, 4, 1, b""), PROTOCOL_ERROR, id="continuation of nothing"),
            pytest.param(frame(HEADERS, 0, 1) + frame(PING, 0, 0, bytes(8)), PROTOCOL_ERROR, id="ping in a block"),
            pytest.param(frame(HEADERS, 4, 2), PROTOCOL_ERROR, id="even stream"),
            pytest.param(frame(HEADERS, 4, 0), PROTOCOL_ERROR, id="headers on stream 0"),
            pytest.param(frame(HEADERS, 4, 1, b"\xff\xff\xff\xff\xff"), COMPRESSION_ERROR, id="no such table entry"),
            pytest.param(frame(HEADERS, 4, 1, b"\x40\x05ab"), COMPRESSION_ERROR, id="literal cut short"),
            pytest.param(frame(HEADERS, 4 | PADDED, 1, b"\x09"), PROTOCOL_ERROR, id="more padding than payload"),
            pytest.param(frame(HEADERS, 4 | HAS_PRIORITY, 1, b"x"), FRAME_SIZE_ERROR, id="half a priority"),
            pytest.param(frame(DATA, 0, 1, bytes(65_537)), FRAME_SIZE_ERROR, id="frame too long"),
            pytest.param(
                frame(HEADERS, 0, 1) + frame(CONTINUATION, 0, 1) * 40, ENHANCE_YOUR_CALM, id="no end of a block"
            ),
        ],
    )
    def test_broken_protocol_ends_the_connection_with_its_code(
        self, listener: Http2Listener, data: bytes, code: int
    ) -> None:
        with Http2Peer.connect(listener) as peer:
            peer.send(data)
            assert peer.next(GOAWAY).code == code
            assert peer.until_closed() == []

    def test_settings_come_first(self, listener: Http2Listener) -> None:
        with Http2Peer.connect(listener, PREFACE + frame(PING, 0, 0, bytes(8))) as peer:
            assert peer.next(GOAWAY).code == PROTOCOL_ERROR

    @pytest.mark.parametrize(
        "fields",
        [
            pytest.param([], id="empty"),
            pytest.param([(":method", "POST"), (":scheme", "http")], id="no path"),
            pytest.param([*headers_of(), (":path", LIVE)], id="pseudo-header behind others"),
            pytest.param([(":path", LIVE), *headers_of()], id="path twice"),
            pytest.param([(":proxy", "x"), *headers_of()], id="unknown pseudo-header"),
            pytest.param([(":status", "200"), *headers_of()], id="pseudo-header of answers"),
            pytest.param([*headers_of(), ("Upper", "case")], id="upper case"),
            pytest.param([*headers_of(), ("", "x")], id="no name"),
            pytest.param([*headers_of(), ("a b", "x")], id="blank in a name"),
            pytest.param([*headers_of(), ("a\r\nb", "x")], id="line in a name"),
            pytest.param([*headers_of(), ("a\0", "x")], id="nul in a name"),
            pytest.param([*headers_of(), ("a:b", "x")], id="colon in a name"),
            pytest.param([*headers_of(), ("a\xe9", "x")], id="no ascii in a name"),
            pytest.param([*headers_of(), ("a", "x\r\nb: y")], id="line in a value"),
            pytest.param([*headers_of(), ("a", "x\ny")], id="line feed in a value"),
            pytest.param([*headers_of(), ("a", "x\0y")], id="nul in a value"),
            pytest.param([*headers_of(), ("a", " x")], id="blank before a value"),
            pytest.param([*headers_of(), ("a", "x\t")], id="blank behind a value"),
            pytest.param(headers_of(LIVE + "\n"), id="line in the path"),
            pytest.param([*headers_of(), ("connection", "close")], id="header of HTTP/1"),
            pytest.param([*headers_of(), ("transfer-encoding", "chunked")], id="transfer-encoding"),
            pytest.param(headers_of(te="gzip"), id="te"),
            pytest.param([*headers_of(), ("host", "elsewhere")], id="another host"),
            pytest.param([*headers_of(), ("host", "localhost"), ("host", "localhost")], id="two hosts"),
            pytest.param([*headers_of(), ("content-length", "x")], id="content-length that is none"),
            pytest.param([*headers_of(), ("content-length", "5"), ("content-length", "5")], id="two content-lengths"),
        ],
    )
    def test_malformed_request_resets_its_stream_alone(
        self, engine: FakeServer, peer: Http2Peer, fields: list[tuple[str, str]]
    ) -> None:
        """RFC 9113, section 8.1.1."""
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]
        peer.send(frame(HEADERS, END_HEADERS, 1, peer.encoder.encode(encoded)))
        assert peer.next(RST_STREAM, 1).code == PROTOCOL_ERROR
        peer.request(3, b"", LIVE)
        assert peer.answer(3).trailers["grpc-status"] == "0"
        assert engine.seen == []

    @pytest.mark.parametrize("length", ["6", "4"])
    @pytest.mark.parametrize("ends_with", ["data", "trailers"])
    def test_content_length_of_something_else_resets_the_stream(
        self, engine: FakeServer, peer: Http2Peer, length: str, ends_with: str
    ) -> None:
        peer.send(peer.headers(1, headers_of(LIVE, content_length=length)))
        if ends_with == "data":
            peer.send(frame(DATA, END_STREAM, 1, prefixed(b"")))
        else:
            peer.send(frame(DATA, 0, 1, prefixed(b"")), peer.headers(1, [("a", "b")], END_HEADERS | END_STREAM))
        assert peer.next(RST_STREAM, 1).code == PROTOCOL_ERROR

    def test_content_length_without_any_data_resets_the_stream(self, peer: Http2Peer) -> None:
        peer.send(peer.headers(1, headers_of(LIVE, content_length="5"), END_HEADERS | END_STREAM))
        assert peer.next(RST_STREAM, 1).code == PROTOCOL_ERROR

    @pytest.mark.parametrize("length", ["5", "0005"])
    def test_right_content_length_is_taken(self, peer: Http2Peer, length: str) -> None:
        peer.request(1, b"", LIVE, content_length=length)
        assert peer.answer(1).trailers["grpc-status"] == "0"

    @pytest.mark.parametrize("trailers", [[(":path", LIVE)], [("a", "b\n")], [("connection", "close")]])
    def test_malformed_trailers_reset_the_stream(
        self, engine: FakeServer, peer: Http2Peer, trailers: list[tuple[str, str]]
    ) -> None:
        peer.send(peer.headers(1, headers_of()), frame(DATA, 0, 1, prefixed(infer_message())))
        peer.send(peer.headers(1, trailers, END_HEADERS | END_STREAM))
        assert peer.next(RST_STREAM, 1).code == PROTOCOL_ERROR
        assert engine.seen == []

    def test_priority_of_the_wrong_size_resets_an_open_stream(self, peer: Http2Peer) -> None:
        peer.send(peer.headers(1, headers_of()), frame(PRIORITY, 0, 1, bytes(6)))
        assert peer.next(RST_STREAM, 1).code == FRAME_SIZE_ERROR

    @pytest.mark.parametrize("kind", [DATA, HEADERS])
    def test_frame_behind_the_end_of_both_sides_ends_the_connection(self, peer: Http2Peer, kind: int) -> None:
        """RFC 9113, section 5.1."""
        peer.request(1, b"", LIVE)
        peer.answer(1)
        peer.send(frame(DATA, 0, 1, b"x") if kind == DATA else peer.headers(1, headers_of(LIVE)))
        assert peer.next(GOAWAY).code == STREAM_CLOSED

    @pytest.mark.parametrize("kind", [DATA, HEADERS])
    def test_frame_behind_a_reset_of_one_s_own_is_answered_with_another(self, peer: Http2Peer, kind: int) -> None:
        peer.send(peer.headers(1, headers_of()), reset(1))
        peer.send(frame(DATA, 0, 1, b"x") if kind == DATA else peer.headers(1, headers_of(LIVE)))
        assert peer.next(RST_STREAM, 1).code == STREAM_CLOSED
        peer.request(3, b"", LIVE)
        assert peer.answer(3).trailers["grpc-status"] == "0"

    @pytest.mark.parametrize("kind", [RST_STREAM, WINDOW_UPDATE, PRIORITY])
    def test_frames_that_may_be_late_are_passed_over_on_a_closed_stream(self, peer: Http2Peer, kind: int) -> None:
        peer.request(1, b"", LIVE)
        peer.answer(1)
        peer.send(
            {RST_STREAM: reset(1), WINDOW_UPDATE: window_update(1, 9), PRIORITY: frame(PRIORITY, 0, 1, bytes(5))}[kind]
        )
        peer.request(3, b"", LIVE)
        assert peer.answer(3).trailers["grpc-status"] == "0"

    @pytest.mark.parametrize(
        ("late", "is_flood"),
        [
            (frame(DATA, 0, 1, bytes(32)), False),
            (frame(DATA, 0, 1, bytes(31)), True),
            (frame(DATA, PADDED, 1, b"\xff" + bytes(31 + 255)), True),
        ],
        ids=["small", "tiny", "padded"],
    )
    def test_small_data_on_a_stream_that_ended_here_were_on_their_way_and_tiny_ones_are_a_flood(
        self, peer: Http2Peer, late: bytes, is_flood: bool
    ) -> None:
        peer.send(peer.headers(1, headers_of()), frame(DATA, 0, 1, bytes(40)))  # more than one message
        peer.wait_end(1)
        with suppress(ConnectionError):  # the server may close before the last
            peer.send(late * 3000)
            peer.request(3, b"", LIVE)
        if is_flood:
            assert peer.next(GOAWAY).code == ENHANCE_YOUR_CALM
        else:
            assert peer.answer(3).trailers["grpc-status"] == "0"

    def test_reset_of_a_call_that_never_began_ends_no_other(self, peer: Http2Peer) -> None:
        """grpcio 1.60 sends one for a call that is cancelled before its HEADERS have left."""
        peer.send(reset(5))
        peer.request(7, b"", LIVE)
        assert peer.answer(7).trailers["grpc-status"] == "0"
        peer.send(reset(5) + reset(11))
        peer.request(9, b"", LIVE)
        assert peer.answer(9).trailers["grpc-status"] == "0"

    def test_stream_below_the_last_one_that_was_never_opened_ends_the_connection(self, peer: Http2Peer) -> None:
        """RFC 9113, section 5.1.1."""
        peer.request(7, b"", LIVE)
        peer.answer(7)
        peer.send(peer.headers(5, headers_of(LIVE)))
        assert peer.next(GOAWAY).code == PROTOCOL_ERROR

    def test_acknowledgement_is_no_greeting(self, listener: Http2Listener) -> None:
        with Http2Peer.connect(listener, PREFACE + frame(SETTINGS, ACK)) as peer:
            assert peer.next(GOAWAY).code == PROTOCOL_ERROR

    @pytest.mark.parametrize("what", ["data", "trailers"])
    def test_more_after_the_end_of_a_request_resets_its_stream(
        self, engine: FakeServer, peer: Http2Peer, what: str
    ) -> None:
        peer.request(1, infer_message("waiting"))
        peer.send(frame(DATA, 0, 1, b"x") if what == "data" else peer.headers(1, [("a", "b")], 5))
        assert peer.next(RST_STREAM, 1).code == STREAM_CLOSED
        assert engine.cancelled.wait(60)

    def test_trailers_that_do_not_end_the_request_reset_it(self, peer: Http2Peer) -> None:
        peer.send(peer.headers(1, headers_of()), peer.headers(1, [("a", "b")]))
        assert peer.next(RST_STREAM, 1).code == PROTOCOL_ERROR

    def test_data_over_the_stream_s_window_reset_it(self, peer: Http2Peer) -> None:
        """The window is given back only at a frame's end, so one frame can be too much for what is left of it."""
        peer.send(peer.headers(1, headers_of()), frame(DATA, 0, 1, struct.pack(">BL", 0, 1 << 30)))
        peer.send(settings(), window_update(1, (1 << 31) - 1))
        assert peer.next(RST_STREAM, 1).code == FLOW_CONTROL_ERROR

    def test_streams_over_the_limit_are_refused(self, engine: FakeServer, peer: Http2Peer) -> None:
        for stream in range(1, 2 * 1024, 2):
            peer.send(peer.headers(stream, headers_of()))
        peer.send(peer.headers(2049, headers_of()))
        found = peer.next(RST_STREAM)
        assert (found.stream, found.code) == (2049, REFUSED_STREAM)
        peer.send(reset(1))
        peer.request(2051, infer_message())
        assert peer.answer(2051).trailers["grpc-status"] == "0"

    def test_header_list_that_is_too_large_ends_the_connection(self, peer: Http2Peer) -> None:
        block = peer.encoder.encode([*headers_of(), ("x", "v" * 35_000), ("y", "v" * 35_000)], huffman=False)
        peer.send(frame(HEADERS, 0, 1, block[:60_000]), frame(CONTINUATION, END_HEADERS, 1, block[60_000:]))
        assert peer.next(GOAWAY).code == ENHANCE_YOUR_CALM

    def test_header_list_that_grows_in_the_table_ends_the_connection(self, peer: Http2Peer) -> None:
        """A block of a few bytes that names a large entry over and over."""
        added = b"\x40\x01x\x7f\x81\x1e" + b"v" * 4000
        peer.send(frame(HEADERS, END_HEADERS, 1, added + b"\xbe" * 1000))
        assert peer.next(GOAWAY).code == ENHANCE_YOUR_CALM

    def test_rapid_reset_ends_the_connection_and_every_request(self, engine: FakeServer, peer: Http2Peer) -> None:
        """CVE-2023-44487."""
        message = prefixed(infer_message("waiting"))
        try:
            peer.request(1, infer_message())
            for stream in range(3, 20_003, 2):
                block = peer.encoder.encode(headers_of())
                peer.send(frame(HEADERS, END_HEADERS, stream, block), frame(DATA, 1, stream, message), reset(stream))
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has been closed already
        peer.until_closed()
        until(lambda: all(future.cancelled() for future in list(engine.waiting)))
        assert len(engine.waiting) < 5000

    @pytest.mark.parametrize(
        "nuisance",
        [
            settings(),
            frame(SETTINGS, ACK),
            frame(PING, ACK, 0, bytes(8)),
            frame(PRIORITY, 0, 3, bytes(5)),
            frame(0x55),
            frame(GOAWAY, 0, 0, bytes(8)),
            window_update(0, 1),
            window_update(1, 1),
            frame(DATA, 0, 1, b"x"),
            frame(DATA, 0, 1),
            frame(DATA, PADDED, 1, b"\xff" + bytes(255)),
            reset(1) + frame(DATA, 0, 1, b"x"),
        ],
        ids=[
            "settings",
            "settings acknowledged",
            "ping acknowledged",
            "priority",
            "unknown",
            "goaway",
            "connection's window",
            "stream's window",
            "one byte",
            "no data",
            "nothing but padding",
            "behind a reset",
        ],
    )
    def test_flood_of_useless_frames_ends_the_connection(self, peer: Http2Peer, nuisance: bytes) -> None:
        peer.send(peer.headers(1, headers_of()), frame(DATA, 0, 1, struct.pack(">BL", 0, 1 << 30)))
        try:
            peer.send(nuisance * 5_000)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has been closed already
        last = peer.until_closed()[-1]
        assert (last.kind, last.code) == (GOAWAY, ENHANCE_YOUR_CALM)

    def test_settings_are_counted_one_by_one(self, peer: Http2Peer) -> None:
        """Each of these was applied to each of a thousand calls: half a second for a frame."""
        for stream in range(1, 2001, 2):
            peer.send(peer.headers(stream, headers_of()))
        entries = b"".join(struct.pack(">HL", 4, 65_535 + number % 2) for number in range(10_900))
        peer.send(frame(SETTINGS, 0, 0, entries))
        last = peer.until_closed()[-1]
        assert (last.kind, last.code) == (GOAWAY, ENHANCE_YOUR_CALM)

    def test_header_lists_of_a_thousand_fields_are_counted_for_more(self, peer: Http2Peer) -> None:
        block = peer.encoder.encode([*headers_of(LIVE), *(("a", "b") for _ in range(1500))])
        try:
            for stream in range(1, 1001, 2):
                peer.send(frame(HEADERS, END_HEADERS, stream, block))
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has been closed already
        last = peer.until_closed()[-1]
        assert (last.kind, last.code) == (GOAWAY, ENHANCE_YOUR_CALM)
        assert last.last_stream < 500

    def test_clients_that_open_windows_for_every_frame_are_no_flood(self, listener: Http2Listener) -> None:
        size = 60_000_000
        greeting = PREFACE + settings(initial_window_size=16_384)
        with Http2Peer.connect(listener, greeting) as peer:
            message = service_pb2.ModelInferRequest(model_name="flood")
            message.parameters["count"].int64_param = 2_000
            message.parameters["bytes_each"].int64_param = 30_000
            peer.send(peer.headers(1, headers_of(STREAM)))
            peer.send(frame(DATA, END_STREAM, 1, prefixed(message.SerializeToString())))
            received = 0
            for found in peer.frames():
                assert found.kind != GOAWAY, found.text
                if found.kind == DATA:
                    received += len(found.payload)
                    peer.send(window_update(0, len(found.payload)), window_update(1, len(found.payload)))
                if found.kind == HEADERS and found.flags & END_STREAM:
                    break
            assert received > size

    def test_initial_window_that_takes_a_stream_s_over_its_limit_ends_the_connection(self, peer: Http2Peer) -> None:
        """RFC 9113, section 6.9.2."""
        peer.send(peer.headers(1, headers_of()), window_update(1, (1 << 31) - 1 - 65_535))
        peer.request(3, b"", LIVE)
        assert peer.answer(3).trailers["grpc-status"] == "0"
        peer.send(settings(initial_window_size=65_536))
        assert peer.next(GOAWAY).code == FLOW_CONTROL_ERROR

    def test_initial_window_in_between_counts_as_well(self, peer: Http2Peer) -> None:
        peer.send(peer.headers(1, headers_of()), window_update(1, (1 << 31) - 1 - 65_535))
        peer.send(frame(SETTINGS, 0, 0, struct.pack(">HLHL", 4, 65_536, 4, 1)))
        assert peer.next(GOAWAY).code == FLOW_CONTROL_ERROR

    def test_window_of_a_stream_that_has_ended_limits_no_other(self, peer: Http2Peer) -> None:
        peer.send(peer.headers(1, headers_of()), window_update(1, (1 << 31) - 1 - 65_535), reset(1))
        peer.send(settings(initial_window_size=(1 << 31) - 1))
        peer.request(3, b"", LIVE)
        assert peer.answer(3).trailers["grpc-status"] == "0"

    def test_work_for_a_window_update_does_not_grow_with_the_calls_that_wait(
        self, loop: LoopThread, peer: Http2Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looks = []
        look = http2_sender.Sender._send_or_keep

        def counted(connection: Any, call: Any) -> None:
            looks.append(call.stream_id)
            look(connection, call)

        monkeypatch.setattr(http2_sender.Sender, "_send_or_keep", counted)
        peer.send(settings(initial_window_size=10))
        count = 500
        for stream in range(1, 2 * count, 2):
            peer.request(stream, infer_message(size=100))
        for stream in range(1, 2 * count, 2):
            peer.next(HEADERS, stream)
        looks.clear()
        peer.send(window_update(0, 1000) * 100, *(window_update(stream, 1) for stream in range(1, 200, 2)))
        peer.request(2 * count + 1, b"", LIVE)
        peer.next(HEADERS, 2 * count + 1)
        assert len(looks) < 300

    def test_calls_that_wait_for_the_connection_s_window_take_turns(self, peer: Http2Peer) -> None:
        peer.send(settings(initial_window_size=1 << 20))
        peer.request(1, infer_message(size=60_000))
        body = peer.next(DATA, 1).payload
        while len(body) < 60_000:
            body += peer.next(DATA, 1).payload
        for stream in (3, 5, 7):
            peer.request(stream, infer_message(size=20_000))
        for stream in (3, 5, 7):
            peer.next(HEADERS, stream)
        seen = set()
        for _ in range(8):
            peer.send(window_update(0, 6000))
            seen.add(peer.next(DATA).stream)
        assert seen == {3, 5, 7}

    @pytest.mark.parametrize("seed", range(20))
    def test_random_frames_harm_nobody_else(self, listener: Http2Listener, peer: Http2Peer, seed: int) -> None:
        dice = random.Random(seed)
        block = _headers_block(headers_of())
        body = prefixed(infer_message())
        with Http2Peer.connect(listener) as wild:
            wild.send(frame(HEADERS, END_HEADERS, 1, block))
            pieces = []
            for _ in range(200):
                payload = dice.choice([b"", block, body, bytes(8), bytes(4), dice.randbytes(dice.randrange(40))])
                pieces.append(frame(dice.randrange(11), dice.randrange(256), dice.randrange(9), payload))
            try:
                wild.send(*pieces)
                wild.sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # closed by the server
            wild.until_closed()
        peer.request(1, infer_message())
        assert peer.answer(1).trailers["grpc-status"] == "0"


class TestShareOfTheLoop:
    """No connection has the loop to itself, whatever it sends at once."""

    COUNT = 900

    def test_thousand_requests_of_one_connection_do_not_go_before_one_of_another(
        self, loop: LoopThread, engine: FakeServer, peer: Http2Peer, listener: Http2Listener
    ) -> None:
        peer.request(1, infer_message(id="first"))
        peer.answer(1)
        begun = [frame(HEADERS, END_HEADERS, stream, peer.encoder.encode(headers_of())) for stream in self.streams()]
        data = frame(DATA, END_STREAM, 0, prefixed(infer_message(id="many")))
        with Http2Peer.connect(listener) as other:
            other.request(1, infer_message(id="first"))
            other.answer(1)
            with standing(loop):  # so that the loop finds both when it looks again
                peer.send(*(block + on_stream(data, stream) for block, stream in zip(begun, self.streams())))
                other.request(3, infer_message(id="honest"))
            other.answer(3)
        ids = [request.request_id for request in engine.seen]
        assert ids.index("honest") < self.COUNT // 2
        peer.wait_end(self.streams()[-1])
        assert len(engine.seen) == self.COUNT + 3

    def streams(self) -> range:
        return range(3, 3 + 2 * self.COUNT, 2)

    def test_what_comes_while_a_connection_waits_is_read_later_and_in_order(
        self, engine: FakeServer, peer: Http2Peer
    ) -> None:
        total = 1000
        with ThreadPoolExecutor(1) as writer:
            writing = writer.submit(self._write, peer, total)
            peer.wait_end(2 * total - 1)
            writing.result()
        assert [int(request.request_id) for request in engine.seen] == list(range(total))

    @staticmethod
    def _write(peer: Http2Peer, total: int) -> None:
        """Requests of a kilobyte, which is several reads of the server's."""
        block = _headers_block(headers_of())
        peer.send(window_update(0, 1 << 30))
        for number in range(total):
            body = prefixed(infer_message(id=str(number), size=1000))
            stream = 2 * number + 1
            peer.send(frame(HEADERS, END_HEADERS, stream, block), frame(DATA, END_STREAM, stream, body))

    def test_connection_that_is_closed_while_it_waits_ends(
        self, loop: LoopThread, engine: FakeServer, listener: Http2Listener
    ) -> None:
        with Http2Peer.connect(listener) as peer:
            with standing(loop):
                self._write(peer, 500)
                peer.send(b"\xff" * 20)  # a frame that is too long
            assert peer.next(GOAWAY).code == FRAME_SIZE_ERROR
            peer.until_closed()

    def test_connection_that_waits_for_its_turn_reads_no_more_until_then(
        self, loop: LoopThread, listener: Http2Listener, peer: Http2Peer
    ) -> None:
        peer.send(frame(PING, payload=bytes(8)))
        peer.next(PING, acknowledgement=True)

        async def is_reading_while_it_waits() -> bool:
            (connection,) = listener._connections.open
            await asyncio.sleep(0.01)  # what the turns so far have begun is over
            assert not share_of(loop.loop).begin(1 << 40)
            peer.send(frame(PING, payload=b"12345678"))
            while not connection._is_waiting:  # noqa: ASYNC110 - a turn of the loop at a time
                await asyncio.sleep(0)
            return connection._transport.is_reading()

        assert not loop.run(is_reading_while_it_waits())
        assert peer.next(PING, acknowledgement=True).payload == b"12345678"
        peer.request(1, infer_message())
        peer.wait_end(1)

    def test_of_large_answers_so_much_is_sent_in_a_turn(self, peer: Http2Peer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(http2_sender, "_SENT_AT_ONCE", 1 << 10)
        monkeypatch.setattr(http2_sender, "_WRITE_BYTES", 1 << 10)
        flushes: list[Any] = []
        flush = http2_sender.Sender._flush

        def counted(connection: Any) -> None:
            flushes.append(connection)
            flush(connection)

        monkeypatch.setattr(http2_sender.Sender, "_flush", counted)
        peer.send(window_update(0, 1 << 20), settings(initial_window_size=0))
        for stream in (1, 3):
            peer.request(stream, infer_message(size=16_000))
            peer.next(HEADERS, stream)
        peer.send(settings(initial_window_size=1 << 20))
        sizes = Counter(found.stream for found in self._until_both_end(peer) if found.kind == DATA)
        assert min(sizes.values()) >= 16
        assert len(flushes) >= 30

    @staticmethod
    def _until_both_end(peer: Http2Peer) -> Iterator[Any]:
        ended = 0
        for found in peer.frames():
            yield found
            ended += found.kind == HEADERS and bool(found.flags & END_STREAM)
            if ended == 2:
                return

    def test_no_more_than_a_few_tasks_begin_in_a_turn(
        self, loop: LoopThread, engine: FakeServer, peer: Http2Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What a task does first is not counted as its connection's time."""
        turn = 0
        begun: Counter[int] = Counter()
        may_go_on = threading.Event()

        def tick() -> None:
            nonlocal turn
            turn += 1
            if begun.total() < 400:
                loop.loop.call_soon(tick)

        async def index(*, ready: bool = False) -> list[Any]:
            begun[turn] += 1
            return []

        monkeypatch.setattr(engine, "repository_index", index)
        calls = [
            peer.headers(stream, headers_of("/inference.GRPCInferenceService/RepositoryIndex"))
            + frame(DATA, END_STREAM, stream, prefixed(b""))
            for stream in range(1, 801, 2)
        ]
        loop.loop.call_soon_threadsafe(tick)
        loop.loop.call_soon_threadsafe(may_go_on.wait, 10)
        peer.send(*calls)
        may_go_on.set()
        for _ in calls:
            while not peer.next(HEADERS).flags & END_STREAM:
                pass
        assert begun.total() == 400
        assert max(begun.values()) <= 16

    @pytest.mark.interpreted("a fake in the place of a compiled class")
    def test_connections_take_turns_with_their_tasks(self) -> None:
        class WaitingCall:
            def __init__(self, name: str) -> None:
                self.name = name
                self.is_ended = False

            def start(self, message: bytes) -> None:
                begun.append(self.name)
                if len(begun) == 40:
                    all_begun.set()

        async def begin_all() -> None:
            tasks: Any = TasksToCome()
            busy, other = object(), object()
            calls = [WaitingCall(f"busy {number}") for number in range(40)]
            for call in calls:
                tasks.add(busy, call, b"")
            tasks.add(other, WaitingCall("other"), b"")
            calls[2].is_ended = True
            await asyncio.wait_for(all_begun.wait(), 10)

        begun: list[str] = []
        all_begun = asyncio.Event()
        asyncio.run(begin_all())
        assert begun[:4] == ["busy 0", "other", "busy 1", "busy 3"]


@contextmanager
def little_memory(nbytes: int) -> Iterator[None]:
    """Nobody in the process can have *nbytes* at a time, also where its allocator has kept what earlier tests had."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    kept = []
    try:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), before[1]))
        with contextlib.suppress(MemoryError):
            while True:
                kept.append(bytearray(nbytes))
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + nbytes, before[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class TestUnfinishedRequests:
    """What is received of requests, over all connections, is bounded by the server's budget."""

    def test_request_over_the_budget_is_refused_and_says_when_to_come_again(
        self, engine: FakeServer, peer: Http2Peer, listener: Http2Listener
    ) -> None:
        engine.receive_budget.limit = 3 << 20
        beginning = struct.pack(">BL", 0, 2 << 20) + bytes(16_000)
        with Http2Peer.connect(listener) as other:
            for one in (other, peer):
                one.send(one.headers(1, headers_of()), frame(DATA, 0, 1, beginning))
                for _ in range(100):
                    one.send(frame(DATA, 0, 1, bytes(16_000)))
                one.request(3, b"", LIVE)
                if one is other:
                    one.answer(3)
            trailers = peer.answer(1).trailers
            assert (trailers["grpc-status"], "grpc-status-details-bin" in trailers) == ("14", True)
            assert "bytes of unfinished requests are here" in trailers["grpc-message"]
            assert engine.receive_budget.taken > 1 << 20
            other.send(reset(1))
            other.request(5, b"", LIVE)
            other.answer(5)
        assert engine.receive_budget.taken == 0

    @pytest.mark.parametrize("path", [INFER, STREAM])
    def test_parts_of_small_messages_count_as_those_of_large_ones(
        self, engine: FakeServer, peer: Http2Peer, path: str
    ) -> None:
        """A connection may have a thousand calls, each with a part of a message."""
        engine.receive_budget.limit = 40_000
        body = prefixed(infer_message(size=20_000))
        for stream in (1, 3, 5):
            peer.send(peer.headers(stream, headers_of(path)), frame(DATA, 0, stream, body[:15_000]))
        trailers = peer.answer(5).trailers
        assert trailers["grpc-status"] == "14" and "(--max-receiving-bytes)" in trailers["grpc-message"]
        assert engine.receive_budget.taken == 30_000
        peer.send(*(frame(DATA, END_STREAM, stream, body[15_000:]) for stream in (1, 3)))
        for stream in (1, 3):
            assert peer.answer(stream).trailers["grpc-status"] == "0"
        assert engine.receive_budget.taken == 0

    def test_first_frames_of_large_messages_count_before_a_second_comes(
        self, engine: FakeServer, peer: Http2Peer
    ) -> None:
        engine.receive_budget.limit = 40_000
        body = prefixed(infer_message(size=200_000))
        for stream in (1, 3, 5):
            peer.send(peer.headers(stream, headers_of()), frame(DATA, 0, stream, body[:15_000]))
        trailers = peer.answer(5).trailers
        assert trailers["grpc-status"] == "14" and "(--max-receiving-bytes)" in trailers["grpc-message"]
        assert engine.receive_budget.taken == 30_000
        peer.send(reset(1), reset(3))
        peer.request(7, b"", LIVE)
        peer.answer(7)
        assert engine.receive_budget.taken == 0

    @pytest.mark.parametrize("flag", [0, 1])
    def test_message_or_answer_that_there_is_no_memory_to_copy_ends_its_call_alone(
        self, engine: FakeServer, start: Started, caplog: pytest.LogCaptureFixture, flag: int
    ) -> None:
        """A message is in one piece when it is decompressed, and so is an answer when it is compressed."""
        size = 160 << 20
        piece = frame(DATA, 0, 1, b"\1" * 16_000)
        message = service_pb2.ModelInferRequest(model_name="echo")
        message.inputs.add(name="X", datatype="UINT8", shape=[size])
        before = message.SerializeToString() + field_header(0x3A, size)  # raw_input_contents
        begin = struct.pack(">BL", flag, len(before) + size) + before
        with Http2Peer.connect(start(infer_response_compression_level="low")) as peer:
            peer.send(peer.headers(1, headers_of(grpc_encoding="gzip", grpc_accept_encoding="gzip")))
            peer.send(frame(DATA, 0, 1, begin))
            for _ in range(size // 16_000):
                peer.send(piece)
            until(lambda: engine.receive_budget.taken >= size // 16_000 * 16_000)
            with little_memory(size // 2):  # not before: what others have had may be given back meanwhile
                peer.send(frame(DATA, END_STREAM, 1, b"\1" * (size % 16_000)))
                trailers = peer.answer(1).trailers
                assert trailers["grpc-status"] == ("8" if flag else "13"), trailers
                peer.request(3, b"", LIVE)
                assert peer.answer(3).trailers["grpc-status"] == "0"
        caplog.clear()

    @pytest.mark.parametrize(
        "begun",
        [
            pytest.param(frame(HEADERS, END_HEADERS, 1, bytes(60_000))[:50_009], id="frame"),
            pytest.param(
                frame(HEADERS, 0, 1, bytes(20_000)) + frame(CONTINUATION, 0, 1, bytes(40_000))[:30_009], id="block"
            ),
        ],
    )
    def test_frames_and_header_blocks_that_are_not_whole_count(
        self, engine: FakeServer, listener: Http2Listener, begun: bytes
    ) -> None:
        """A connection may have 64 KiB of either, and there may be thousands."""
        nbytes = 50_009  # with the head of the frame that is not whole
        engine.receive_budget.limit = 2 * nbytes
        with Http2Peer.connect(listener) as peer, Http2Peer.connect(listener) as other:
            for one in (peer, other):
                one.send(begun)
            until(lambda: engine.receive_budget.taken == 2 * nbytes)
            with Http2Peer.connect(listener) as third:
                third.send(begun)
                goaway = third.next(GOAWAY)
                assert goaway.code == ENHANCE_YOUR_CALM and "(--max-receiving-bytes)" in goaway.text
            assert engine.receive_budget.taken == 2 * nbytes
        until(lambda: engine.receive_budget.taken == 0)

    def test_header_block_that_was_counted_is_given_back_when_it_is_whole(
        self, engine: FakeServer, peer: Http2Peer
    ) -> None:
        block = peer.encoder.encode(headers_of(LIVE, a="a" * 40_000), huffman=False)
        peer.send(frame(HEADERS, 0, 1, block[:30_000]))
        until(lambda: engine.receive_budget.taken == 30_000)
        peer.send(frame(CONTINUATION, END_HEADERS, 1, block[30_000:]), frame(DATA, END_STREAM, 1, prefixed(b"")))
        assert peer.answer(1).trailers["grpc-status"] == "0"
        until(lambda: engine.receive_budget.taken == 0)

    def test_connection_whose_calls_have_ended_has_nothing_of_the_limit_of_open_calls(
        self, engine: FakeServer, start: Started
    ) -> None:
        engine.receive_budget.limit = 3 * 64 << 10
        listener = start()
        with Http2Peer.connect(listener) as peer, Http2Peer.connect(listener) as other:
            streams = range(1, 81, 2)
            peer.send(*(peer.headers(stream, headers_of(STREAM)) for stream in streams))
            peer.send(*(frame(DATA, END_STREAM, stream) for stream in streams))
            for stream in streams:
                assert peer.answer(stream).trailers["grpc-status"] == "0"
            other.send(*(other.headers(stream, headers_of(STREAM)) for stream in range(1, 127, 2)))
            other.request(127, b"", LIVE)
            assert other.answer(127).trailers["grpc-status"] == "0"

    def test_open_calls_beyond_the_first_of_a_connection_have_a_limit_of_memory(
        self, engine: FakeServer, start: Started
    ) -> None:
        """Streams may be idle for as long as their clients like, and each takes 4 KiB."""
        engine.receive_budget.limit = 3 * 64 << 10
        listener = start()
        with Http2Peer.connect(listener) as peer, Http2Peer.connect(listener) as other:
            streams = range(1, 2 * 65, 2)
            for stream in streams:
                peer.send(peer.headers(stream, headers_of(STREAM)))
            trailers = peer.answer(streams[-1]).trailers
            assert (trailers["grpc-status"], "grpc-status-details-bin" in trailers) == ("14", True)
            assert "the calls that are open take 196608 bytes" in trailers["grpc-message"]
            for stream in range(1, 33, 2):
                other.send(other.headers(stream, headers_of(STREAM)), frame(DATA, 0, stream, prefixed(infer_message())))
                assert other.next(DATA, stream).payload
            peer.send(*map(reset, streams[:-1]))
            other.request(33, infer_message())
            assert other.answer(33).trailers["grpc-status"] == "0"

    def test_long_header_lists_of_open_calls_count_in_their_limit(self, engine: FakeServer, start: Started) -> None:
        engine.receive_budget.limit = 1000
        with Http2Peer.connect(start()) as peer:
            streams = range(1, 25, 2)
            for stream in streams:
                peer.send(peer.headers(stream, headers_of(STREAM, a="a" * 5_000)))
            assert "the limit is 1000 (--max-receiving-bytes)" in peer.answer(streams[-1]).trailers["grpc-message"]
            peer.send(*map(reset, streams[:3]))
            peer.request(25, infer_message(), a="a" * 5_000)
            assert peer.answer(25).trailers["grpc-status"] == "0"

    def test_budget_keeps_the_part_of_a_message_that_came_behind_a_whole_one(
        self, engine: FakeServer, peer: Http2Peer
    ) -> None:
        body = prefixed(infer_message(size=10_000))
        peer.send(peer.headers(1, headers_of(STREAM)))
        for data in (body[:5_000], body[5_000:] + body[:3_000]):
            peer.send(frame(DATA, 0, 1, data))
        assert peer.next(DATA, 1).payload
        assert engine.receive_budget.taken == 3_000
        peer.send(reset(1))
        peer.request(3, b"", LIVE)
        peer.answer(3)
        assert engine.receive_budget.taken == 0

    def test_budget_is_given_back_when_the_request_is_handed_on(self, engine: FakeServer, peer: Http2Peer) -> None:
        body = prefixed(infer_message("waiting", size=300_000))
        peer.send(peer.headers(1, headers_of()))
        for begin in range(0, len(body), 16_384):
            peer.send(frame(DATA, END_STREAM if begin + 16_384 >= len(body) else 0, 1, body[begin : begin + 16_384]))
        assert engine.entered.wait(60)
        peer.request(3, b"", LIVE)
        peer.answer(3)
        assert engine.receive_budget.taken == 0
        peer.send(reset(1))
        assert engine.cancelled.wait(60)

    def test_budget_is_given_back_when_a_question_of_reflection_is_answered(
        self, engine: FakeServer, peer: Http2Peer
    ) -> None:
        """The stream stays open, and may be idle for days."""
        unknown_field = b"\xa2\x06" + b"\xf8\xff\x03" + bytes((64 << 10) - 8)
        body = prefixed(b"\x3a\x00" + unknown_field)  # list_services
        assert len(body) > 64 << 10
        peer.send(window_update(0, 1 << 20), settings(initial_window_size=1 << 20))
        peer.send(peer.headers(1, headers_of("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")))
        peer.send(frame(DATA, 0, 1, body[:16_384]), frame(DATA, 0, 1, body[16_384:]))
        assert peer.next(DATA, 1).payload
        assert engine.receive_budget.taken == 0

    @pytest.mark.interpreted("what compiled code calls is replaced")
    def test_message_that_waits_to_be_parsed_goes_with_its_call(
        self, engine: FakeServer, peer: Http2Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What it had of the budget goes then, too."""
        may_go_on = threading.Event()
        walked = http2_call._walked

        def walked_in_time(*arguments: Any) -> Any:
            return walked(*arguments) if may_go_on.is_set() else False

        monkeypatch.setattr(http2_call, "_walked", walked_in_time)
        message = service_pb2.ModelInferRequest(model_name="echo")
        message.inputs.add(name="X", datatype="BYTES", shape=[1000]).contents.bytes_contents.extend([b"x"] * 1000)
        message.raw_input_contents.append(bytes(1 << 20))
        body = prefixed(message.SerializeToString())
        for stream in (1, 3):
            peer.send(peer.headers(stream, headers_of()), *in_frames(stream, body, itertools.repeat(16_384)))
        until(lambda: engine.intake.live_rooms == 2)
        peer.send(reset(3))
        until(lambda: engine.intake.live_rooms == 1)
        may_go_on.set()
        assert "contents field must not be specified" in peer.answer(1).trailers["grpc-message"]


class TestPeersThatStandStill:
    """``--grpc-stall-timeout-secs``. A client of its own that stands still is the clock: it is ended when others would be."""

    @pytest.fixture
    def impatient(self, start: Started) -> Http2Listener:
        return start(stall_timeout_s=0.1)

    @staticmethod
    def half_a_message(peer: Http2Peer, stream: int = 1, path: str = INFER) -> None:
        peer.send(peer.headers(stream, headers_of(path)), frame(DATA, 0, stream, struct.pack(">BL", 0, 100) + b"x"))

    def wait_for_the_timeout(self, listener: Http2Listener) -> None:
        with Http2Peer.connect(listener) as other:
            self.half_a_message(other)
            other.answer(1)

    @pytest.mark.parametrize("path", [INFER, STREAM])
    def test_message_without_an_end(self, engine: FakeServer, impatient: Http2Listener, path: str) -> None:
        with Http2Peer.connect(impatient) as peer:
            self.half_a_message(peer, 1, path)
            trailers = peer.answer(1).trailers
            assert trailers["grpc-status"] == "4"
            assert "(--grpc-stall-timeout-secs)" in trailers["grpc-message"]
            peer.request(3, b"", LIVE)
            assert peer.answer(3).trailers["grpc-status"] == "0"

    def test_call_without_any_message(self, impatient: Http2Listener) -> None:
        with Http2Peer.connect(impatient) as peer:
            peer.send(peer.headers(1, headers_of()))
            assert peer.answer(1).trailers["grpc-status"] == "4"

    @pytest.mark.parametrize(
        "beginning",
        [
            pytest.param(b"\0", id="frame"),
            pytest.param(struct.pack(">L", 1000)[1:] + b"\1\4\0\0\0\1" + bytes(9), id="HEADERS"),
            pytest.param(frame(HEADERS, 0, 1, b"\x83"), id="header block"),
        ],
    )
    def test_frame_or_header_block_without_an_end(self, impatient: Http2Listener, beginning: bytes) -> None:
        with Http2Peer.connect(impatient) as peer:
            peer.send(beginning)
            last = peer.until_closed()[-1]
            assert (last.kind, last.code) == (GOAWAY, ENHANCE_YOUR_CALM)

    def test_answer_that_nobody_takes(self, impatient: Http2Listener) -> None:
        with Http2Peer.connect(impatient, PREFACE + settings(initial_window_size=10)) as peer:
            peer.request(1, infer_message(size=100))
            assert peer.next(RST_STREAM, 1).code == 8

    def test_peer_that_does_not_read_at_all(self, engine: FakeServer, impatient: Http2Listener) -> None:
        greeting = PREFACE + settings(initial_window_size=(1 << 31) - 1) + window_update(0, 1 << 30)
        message = service_pb2.ModelInferRequest(model_name="flood")
        message.parameters["count"].int64_param = 1_000_000
        message.parameters["bytes_each"].int64_param = 30_000
        with Http2Peer.connect(impatient, greeting) as peer:
            peer.request(1, message.SerializeToString(), STREAM)
            assert engine.streamed.acquire(timeout=10)
            assert engine.streams[0].was_cancelled.wait(60)

    def test_stream_without_requests_may_wait(self, engine: FakeServer, impatient: Http2Listener) -> None:
        with Http2Peer.connect(impatient) as peer:
            peer.send(peer.headers(1, headers_of(STREAM)))
            self.wait_for_the_timeout(impatient)
            peer.send(frame(DATA, END_STREAM, 1, prefixed(infer_message())))
            assert peer.answer(1).trailers["grpc-status"] == "0"

    def test_request_that_waits_for_its_model_may_wait(
        self, loop: LoopThread, engine: FakeServer, impatient: Http2Listener
    ) -> None:
        with Http2Peer.connect(impatient) as peer:
            peer.request(1, infer_message("waiting"))
            assert engine.entered.wait(60)
            self.wait_for_the_timeout(impatient)
            resolve(loop, engine)
            assert peer.answer(1).trailers["grpc-status"] == "0"

    def test_message_that_comes_slowly_is_taken(self, start: Started) -> None:
        listener = start(stall_timeout_s=1.0)
        body = prefixed(infer_message(size=300_000))
        greeting = PREFACE + settings(initial_window_size=1 << 20) + window_update(0, 1 << 20)
        with Http2Peer.connect(listener, greeting) as peer, Http2Peer.connect(listener) as clock:
            self.half_a_message(clock)
            clock.sock.settimeout(0.02)
            peer.send(peer.headers(1, headers_of()))
            at = 0
            is_over = False
            while not is_over:  # until the other one has been ended
                peer.send(frame(DATA, 0, 1, body[at : at + 1500]))
                at += 1500
                try:
                    clock.answer(1)
                    is_over = True
                except TimeoutError:
                    pass
            peer.send(*(frame(DATA, 0, 1, body[begin : begin + 16_000]) for begin in range(at, len(body), 16_000)))
            peer.send(frame(DATA, END_STREAM, 1))
            assert peer.answer(1).trailers["grpc-status"] == "0"

    def test_message_that_waits_for_the_others_of_its_connection_is_taken(self, start: Started) -> None:
        listener = start(stall_timeout_s=1.0)
        body = prefixed(infer_message())
        large = struct.pack(">BL", 0, 1 << 30)
        with Http2Peer.connect(listener) as peer, Http2Peer.connect(listener) as clock:
            self.half_a_message(clock)
            clock.sock.settimeout(0.02)
            peer.send(peer.headers(1, headers_of()), frame(DATA, 0, 1, large))
            peer.send(peer.headers(3, headers_of()), frame(DATA, 0, 3, body[:9]))
            is_over = False
            while not is_over:
                peer.send(frame(DATA, 0, 1, bytes(4096)))
                try:
                    clock.answer(1)
                    is_over = True
                except TimeoutError:
                    pass
            peer.send(frame(DATA, END_STREAM, 3, body[9:]))
            assert peer.answer(3).trailers["grpc-status"] == "0"

    def test_message_without_an_end_beside_one_that_goes_on_ends_at_last(self, impatient: Http2Listener) -> None:
        with Http2Peer.connect(impatient) as peer:
            peer.send(peer.headers(1, headers_of()), frame(DATA, 0, 1, struct.pack(">BL", 0, 1 << 30)))
            self.half_a_message(peer, 3)
            peer.sock.settimeout(0.01)
            status = ""
            while not status:
                peer.send(frame(DATA, 0, 1, bytes(4096)))
                try:
                    status = peer.answer(3).trailers["grpc-status"]
                except TimeoutError:
                    pass
            assert status == "4"

    def test_answers_that_wait_for_each_other_reach_a_client_that_reads_slowly(self, start: Started) -> None:
        listener = start(stall_timeout_s=1.0)
        streams = range(1, 201, 2)
        greeting = PREFACE + settings(initial_window_size=1 << 20)
        with Http2Peer.connect(listener, greeting) as peer, Http2Peer.connect(listener) as clock:
            for stream in streams:
                peer.request(stream, infer_message(size=40_000))
            self.half_a_message(clock)
            clock.sock.settimeout(0.02)
            is_over = False
            while not is_over:
                peer.send(window_update(0, 40_000))
                try:
                    clock.answer(1)
                    is_over = True
                except TimeoutError:
                    pass
            peer.send(window_update(0, 1 << 30))
            ends: dict[int, int] = {}
            for found in peer.frames():
                if found.kind == RST_STREAM or (found.kind == HEADERS and found.flags & END_STREAM):
                    ends[found.stream] = found.kind
                    if len(ends) == len(streams):
                        break
            assert ends == dict.fromkeys(streams, HEADERS)

    def test_no_limit(self, start: Started, impatient: Http2Listener) -> None:
        with Http2Peer.connect(start(stall_timeout_s=0)) as peer:
            body = prefixed(infer_message())
            peer.send(peer.headers(1, headers_of()), frame(DATA, 0, 1, body[:9]))
            self.wait_for_the_timeout(impatient)
            peer.send(frame(DATA, END_STREAM, 1, body[9:]))
            assert peer.answer(1).trailers["grpc-status"] == "0"


class TestUnreadAnswers:
    """``--grpc-max-unread-size``."""

    def test_calls_of_a_client_that_leaves_too_much_unread_are_refused_until_it_reads(self, start: Started) -> None:
        listener = start(max_unread_bytes=100_000)
        with Http2Peer.connect(listener, PREFACE + settings(initial_window_size=0)) as peer:
            for stream in (1, 3):
                peer.request(stream, infer_message(size=60_000))
                peer.next(HEADERS, stream)
            peer.request(5, infer_message())
            trailers = peer.answer(5).trailers
            assert (trailers["grpc-status"], "grpc-status-details-bin" in trailers) == ("14", True)
            assert "(--grpc-max-unread-size)" in trailers["grpc-message"]
            peer.send(reset(3))
            peer.send(window_update(1, 1 << 20))
            assert echoed(peer.answer(1).message) == b"\1" * 60_000
            peer.send(window_update(0, 1 << 20), settings(initial_window_size=1000))
            peer.request(7, infer_message())
            assert peer.answer(7).trailers["grpc-status"] == "0"

    def test_refusals_of_calls_have_the_status_of_an_overload(self, engine: FakeServer, start: Started) -> None:
        """``--overload-status=429``, for those who take UNAVAILABLE for a server that is down."""
        engine.receive_budget = ReceiveBudget(1000, ErrorCode.RESOURCE_EXHAUSTED)
        listener = start(max_unread_bytes=50_000)
        with Http2Peer.connect(listener, PREFACE + settings(initial_window_size=0)) as peer:
            peer.request(1, infer_message(size=60_000))
            peer.next(HEADERS, 1)
            peer.request(3, infer_message())
            trailers = peer.answer(3).trailers
            assert trailers["grpc-status"] == "8" and "(--grpc-max-unread-size)" in trailers["grpc-message"]
        with Http2Peer.connect(listener) as peer:
            peer.send(*(peer.headers(stream, headers_of(STREAM)) for stream in range(1, 35, 2)))
            trailers = peer.answer(33).trailers
            assert trailers["grpc-status"] == "8" and "(--max-receiving-bytes)" in trailers["grpc-message"]

    def test_while_all_leave_too_much_unread_a_client_gets_no_more_before_it_has_read_what_it_has(
        self, loop: LoopThread, engine: FakeServer
    ) -> None:
        """``--max-unread-bytes``: what is unread when nobody looks again before the test is over."""

        async def listen() -> tuple[Http2Listener, UnreadBudget]:
            unread = UnreadBudget(100_000)
            return await start_http2(engine, GrpcOptions(address="127.0.0.1", port=0), unread=unread), unread

        listener, unread = loop.run(listen())
        with Http2Peer.connect(listener, PREFACE + settings(initial_window_size=0)) as peer:
            with Http2Peer.connect(listener) as other:
                for stream in (1, 3):
                    peer.request(stream, infer_message(size=60_000))
                    peer.next(HEADERS, stream)
                assert unread.is_exceeded
                peer.request(5, infer_message())
                trailers = peer.answer(5).trailers
                assert (trailers["grpc-status"], "grpc-status-details-bin" in trailers) == ("14", True)
                assert "(--max-unread-bytes)" in trailers["grpc-message"]
                other.request(1, infer_message())
                assert other.answer(1).trailers["grpc-status"] == "0"
            peer.send(window_update(0, 1 << 20), window_update(1, 1 << 20), window_update(3, 1 << 20))
            peer.wait_end(1)
            peer.wait_end(3)
            peer.send(settings(initial_window_size=1000))
            peer.request(7, infer_message())
            assert peer.answer(7).trailers["grpc-status"] == "0"
        assert loop.run(listener.stop(60))

    def test_of_a_connection_that_lingers_no_more_is_unread_than_the_transport_has(
        self, listener: Http2Listener
    ) -> None:
        """Its calls are dropped, and a budget that counted them would close others."""
        with Http2Peer.connect(listener, PREFACE + settings(initial_window_size=0)) as peer:
            peer.request(1, infer_message(size=60_000))
            peer.next(HEADERS, 1)
            (connection,) = listener._connections.open
            assert connection._sender.unread_bytes() > 60_000
            peer.send(frame(SETTINGS, 0, 1))
            peer.next(GOAWAY)
            assert connection._sender.unread_bytes() == 0


class TestCompression:
    @pytest.mark.parametrize("size", [100, 200_000])
    @pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
    def test_compressed_message(self, peer: Http2Peer, encoding: str, compress: Any, size: int) -> None:
        """grpc.md row 52; the large one is still large when it is compressed."""
        message = service_pb2.ModelInferRequest(model_name="echo")
        message.inputs.add(name="X", datatype="UINT8", shape=[size])
        message.raw_input_contents.append(os.urandom(size))
        peer.send(window_update(0, 1 << 20), settings(initial_window_size=1 << 20))
        peer.send(peer.headers(1, headers_of(grpc_encoding=encoding)))
        body = prefixed(compress(message.SerializeToString()), flag=1)
        for begin in range(0, len(body), 16_384):
            peer.send(frame(DATA, 0, 1, body[begin : begin + 16_384]))
        peer.send(frame(DATA, END_STREAM, 1))
        assert echoed(peer.answer(1).message) == message.raw_input_contents[0]

    def test_no_more_than_two_threads_decompress_messages(
        self, peer: Http2Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They compute, and every one more takes the interpreter from the loop."""
        third = threading.Barrier(3)
        met: list[bool] = []
        step = compression.Inflater.step

        def wait_for_two_others(inflater: compression.Inflater, nbytes: int) -> bool:
            with suppress(threading.BrokenBarrierError):
                third.wait(0.2)
                met.append(True)
            return step(inflater, nbytes)

        monkeypatch.setattr(compression.Inflater, "step", wait_for_two_others)
        body = prefixed(gzip.compress(infer_message(size=compression.THREAD_BYTES), 0), flag=1)
        peer.send(window_update(0, 1 << 20), settings(initial_window_size=1 << 20))
        for stream in range(1, 12, 2):
            peer.send(peer.headers(stream, headers_of(grpc_encoding="gzip")))
            for begin in range(0, len(body), 16_384):
                peer.send(frame(DATA, 0, stream, body[begin : begin + 16_384]))
            peer.send(frame(DATA, END_STREAM, stream))
        for _ in range(6):
            assert peer.next(DATA).payload
        assert not met

    def test_plain_message_of_a_peer_that_compresses_others(self, peer: Http2Peer) -> None:
        peer.request(1, infer_message(), grpc_encoding="gzip")
        assert peer.answer(1).trailers["grpc-status"] == "0"

    @pytest.mark.parametrize("header", ["grpc-encoding", "grpc-timeout"])
    def test_refusal_that_names_what_was_sent_fits_into_a_frame(self, peer: Http2Peer, header: str) -> None:
        """Percent-encoded it has three times as many bytes."""
        fields = [*headers_of(), (header, "%" * 15_000)]
        peer.send(peer.headers(1, fields), frame(DATA, END_STREAM, 1, prefixed(b"")))
        found = peer.next(HEADERS, 1)
        assert len(found.payload) <= 16_384
        text = dict(peer.decoder.decode(found.payload))["grpc-message"]
        assert text.startswith(f"{header} '%25%25")
        assert "bytes in all" in text

    def test_unknown_encoding_is_unimplemented_and_says_which_are_known(self, peer: Http2Peer) -> None:
        peer.request(1, infer_message(), grpc_encoding="br")
        trailers = peer.answer(1).trailers
        assert trailers["grpc-status"] == "12"
        assert trailers["grpc-accept-encoding"] == "identity,deflate,gzip"

    @pytest.mark.parametrize(
        ("encoding", "data", "text"),
        [
            (None, b"x", "a message is compressed, and grpc-encoding does not say how"),
            ("gzip", b"nonsense", "message cannot be decompressed as gzip"),
            ("gzip", gzip.compress(b"abc", mtime=0)[:-9], "it ends too early"),
            ("deflate", b"x" * 100_000, "message cannot be decompressed as deflate"),
        ],
    )
    def test_message_that_cannot_be_decompressed_is_internal(
        self, peer: Http2Peer, encoding: str | None, data: bytes, text: str
    ) -> None:
        peer.send(peer.headers(1, headers_of(grpc_encoding=encoding)))
        body = prefixed(data, flag=1)
        for begin in range(0, len(body), 16_384):
            peer.send(frame(DATA, 0, 1, body[begin : begin + 16_384]))
        peer.send(frame(DATA, END_STREAM, 1))
        trailers = peer.answer(1).trailers
        assert trailers["grpc-status"] == "13"
        assert text in trailers["grpc-message"]

    @pytest.mark.parametrize(("size", "noise", "status"), [(12, 0, "0"), (40, 1, "0"), (40, 0, "8")])
    def test_zeros_may_become_much_and_only_so_many_times_what_was_sent(
        self, engine: FakeServer, peer: Http2Peer, size: int, noise: int, status: str
    ) -> None:
        """Sizes in MiB."""
        message = service_pb2.ModelInferRequest(model_name="waiting")
        message.inputs.add(name="X", datatype="UINT8", shape=[size << 20])
        message.raw_input_contents.append(os.urandom(noise << 20) + bytes(size - noise << 20))
        self.send_compressed(peer, gzip.compress(message.SerializeToString(), 1))
        if status == "0":
            assert engine.entered.wait(20)
            assert engine.seen[0].inputs[0].nbytes == size << 20
            peer.send(reset(1))
        else:
            trailers = peer.answer(1).trailers
            assert trailers["grpc-status"] == status
            assert "may be 100 times as large as what was sent" in trailers["grpc-message"]
        assert engine.receive_budget.taken == 0

    @staticmethod
    def send_compressed(peer: Http2Peer, body: bytes) -> None:
        peer.send(peer.headers(1, headers_of(grpc_encoding="gzip")))
        data = prefixed(body, flag=1)
        for begin in range(0, len(data), 16_384):
            peer.send(frame(DATA, 0, 1, data[begin : begin + 16_384]))
        peer.send(frame(DATA, END_STREAM, 1))

    def test_what_is_decompressed_counts_among_unfinished_requests(self, engine: FakeServer, peer: Http2Peer) -> None:
        engine.receive_budget.limit = 6 << 20
        self.send_compressed(peer, gzip.compress(infer_message(size=12 << 20)))
        trailers = peer.answer(1).trailers
        assert trailers["grpc-status"] == "14"
        assert "(--max-receiving-bytes)" in trailers["grpc-message"]
        assert engine.receive_budget.taken == 0

    @pytest.mark.interpreted("what compiled code calls is replaced")
    def test_messages_that_wait_to_be_decompressed_hold_what_was_sent(
        self, peer: Http2Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One after another: a thousand calls that each had a first part made would hold that many parts."""
        may_go_on = threading.Event()
        begun: set[compression.Inflater] = set()
        most: list[int] = []
        step = compression.Inflater.step

        def watched(inflater: compression.Inflater, nbytes: int) -> bool:
            if nbytes != compression.STEP_BYTES:
                return step(inflater, nbytes)
            assert may_go_on.wait(20)
            begun.add(inflater)
            most.append(len(begun))
            is_done = step(inflater, nbytes)
            if is_done:
                begun.discard(inflater)
            return is_done

        monkeypatch.setattr(compression.Inflater, "step", watched)
        monkeypatch.setattr(compression, "STEP_BYTES", 100_000)
        body = prefixed(gzip.compress(infer_message(size=1 << 20)), flag=1)
        assert len(body) < 16_384
        streams = range(1, 31, 2)
        for stream in streams:
            peer.send(peer.headers(stream, headers_of(grpc_encoding="gzip")), frame(DATA, END_STREAM, stream, body))
        peer.send(reset(streams[-1]))  # nobody wants this one any more
        peer.send(settings(initial_window_size=1 << 21), window_update(0, 1 << 30))
        may_go_on.set()
        wanted = set(streams[:-1])
        for found in peer.frames():
            if found.kind == HEADERS and found.flags & END_STREAM:
                wanted.remove(found.stream)
                if not wanted:
                    break
        assert len(most) >= 14 * 10
        assert max(most) <= 2

    @pytest.mark.interpreted("what compiled code calls is replaced")
    def test_message_that_waits_to_be_decompressed_goes_with_its_call(
        self, peer: Http2Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What it had of the budget goes then, too."""
        may_go_on = threading.Event()
        step = compression.Inflater.step

        def step_in_time(inflater: compression.Inflater, nbytes: int) -> bool:
            assert may_go_on.wait(20)
            return step(inflater, nbytes)

        class Watched(http2_call._Inflation):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                begun.append(weakref.ref(self))

        begun: list[weakref.ref[Watched]] = []
        monkeypatch.setattr(compression.Inflater, "step", step_in_time)
        monkeypatch.setattr(http2_call, "_Inflation", Watched)
        body = prefixed(gzip.compress(infer_message(size=compression.THREAD_BYTES), 0), flag=1)
        for stream in (1, 3, 5):  # there are threads for two
            peer.send(peer.headers(stream, headers_of(grpc_encoding="gzip")))
            peer.send(*in_frames(stream, body, itertools.repeat(16_384)))
        until(lambda: len(begun) == 3)
        assert begun[2]() is not None
        peer.send(reset(5))
        until(lambda: begun[2]() is None)
        may_go_on.set()
        peer.send(reset(1), reset(3))

    @pytest.mark.interpreted("what compiled code calls is replaced")
    def test_call_whose_message_cannot_begin_to_be_decompressed_is_answered_and_others_get_their_turn(
        self, peer: Http2Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """As often as there are threads, and once more."""

        def no_memory(*arguments: Any) -> compression.Inflater:
            raise MemoryError

        body = prefixed(gzip.compress(infer_message("unknown", size=compression.THREAD_BYTES), 0), flag=1)
        with monkeypatch.context() as patched:
            patched.setattr(compression, "Inflater", no_memory)
            for stream in (1, 3, 5):
                peer.send(peer.headers(stream, headers_of(grpc_encoding="gzip")))
                peer.send(*in_frames(stream, body, itertools.repeat(16_384)))
                assert peer.answer(stream).trailers["grpc-status"] == "13"
        peer.send(peer.headers(7, headers_of(grpc_encoding="gzip")), *in_frames(7, body, itertools.repeat(16_384)))
        assert peer.answer(7).trailers["grpc-status"] == "5"
        assert [record.message for record in caplog.records] == ["ModelInfer failed"] * 3
        caplog.clear()

    @pytest.mark.parametrize(
        ("level", "accept", "chosen"),
        [
            ("low", "identity,deflate,gzip", "gzip"),
            ("medium", "identity,deflate,gzip", "deflate"),
            ("high", "identity,deflate,gzip", "deflate"),
            ("high", "gzip", "gzip"),
            ("high", None, None),
            ("none", "gzip", None),
        ],
    )
    @pytest.mark.parametrize("size", [1000, 200_000])
    def test_answers_to_inference_are_compressed_as_the_client_accepts(
        self, start: Started, level: Any, accept: str | None, chosen: str | None, size: int
    ) -> None:
        listener = start(infer_response_compression_level=level)
        greeting = PREFACE + settings(initial_window_size=1 << 20) + window_update(0, 1 << 20)
        with Http2Peer.connect(listener, greeting) as peer:
            body = prefixed(infer_message(size=size))
            peer.send(peer.headers(1, headers_of(grpc_accept_encoding=accept)))
            for begin in range(0, len(body), 16_384):
                peer.send(frame(DATA, 0, 1, body[begin : begin + 16_384]))
            peer.send(frame(DATA, END_STREAM, 1))
            answer = peer.answer(1)
            assert answer.headers.get("grpc-encoding") == chosen
            flag, data = answer.body[0], answer.body[5:]
            assert flag == (chosen is not None)
            if chosen:
                data = gzip.decompress(data) if chosen == "gzip" else zlib.decompress(data)
            assert echoed(data) == b"\1" * size
            peer.request(3, b"", LIVE, grpc_accept_encoding=accept)
            assert "grpc-encoding" not in peer.answer(3).headers

    def test_answer_that_no_thread_can_compress_is_an_error(
        self, start: Started, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def no_thread(*arguments: Any) -> None:
            raise RuntimeError("can't start new thread")

        listener = start(infer_response_compression_level="low")
        with Http2Peer.connect(listener) as peer:
            body = prefixed(infer_message(size=compression.THREAD_BYTES))
            peer.send(peer.headers(1, headers_of(grpc_accept_encoding="gzip")))
            with monkeypatch.context() as patched:
                patched.setattr(ThreadPoolExecutor, "submit", no_thread)
                peer.send(*in_frames(1, body, itertools.repeat(16_384)))
                assert peer.answer(1).trailers["grpc-status"] == "13"
        assert [record.message for record in caplog.records] == ["ModelInfer failed"]
        caplog.clear()

    @pytest.mark.parametrize("count", [1, 3])
    def test_stream_whose_answer_no_thread_can_compress_ends_with_an_error(
        self, start: Started, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, count: int
    ) -> None:
        def no_thread(*arguments: Any) -> None:
            raise RuntimeError("can't start new thread")

        listener = start(infer_response_compression_level="low")
        with Http2Peer.connect(listener) as peer:
            body = prefixed(infer_message(size=compression.THREAD_BYTES)) + prefixed(infer_message(size=1)) * (
                count - 1
            )
            peer.send(peer.headers(1, headers_of(STREAM, grpc_accept_encoding="gzip")))
            with monkeypatch.context() as patched:
                patched.setattr(ThreadPoolExecutor, "submit", no_thread)
                peer.send(*in_frames(1, body, itertools.repeat(16_384)))
                assert peer.answer(1).trailers["grpc-status"] == "13"
        assert [record.message for record in caplog.records] == ["ModelStreamInfer failed"]
        caplog.clear()

    def test_answer_that_would_grow_goes_plain(self, start: Started) -> None:
        with Http2Peer.connect(start(infer_response_compression_level="low")) as peer:
            peer.request(1, infer_message(size=1), grpc_accept_encoding="gzip")
            answer = peer.answer(1)
            assert answer.body[0] == 0
            assert echoed(answer.message) == b"\1"


class TestChoice:
    """``--grpc-transport``."""

    @pytest.mark.parametrize(("arguments", "is_grpcio"), [((), False), (("--grpc-transport=grpcio",), True)])
    def test_the_server_serves_with_the_transport_that_was_chosen(
        self, tmp_path: Path, arguments: tuple[str, ...], is_grpcio: bool
    ) -> None:
        write_model(
            tmp_path, "nothing", "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
        )
        with (
            RunningServer(tmp_path, flags=arguments) as server,
            socket.create_connection(("127.0.0.1", int(server.grpc_url.rpartition(":")[2])), 10) as sock,
        ):
            peer = Http2Peer(sock)
            peer.send(PREFACE, settings())
            peer.request(1, b"", LIVE)
            # grpcio always says what it could decompress.
            assert ("grpc-accept-encoding" in peer.answer(1).headers) is is_grpcio

    def test_grpcio_is_imported_only_when_it_was_chosen(self) -> None:
        code = "import sys, pytriton_lite.app; sys.exit('grpc' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
