"""Streams where HTTP/2 shows: messages and frames, windows in both directions, resets, and ends in the middle of things.

What every transport does is in test_grpc_stream.py.
"""

from __future__ import annotations

import asyncio
import gc
import gzip
import itertools
import logging
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from grpc_fakes import FakeFlood, FakeServer, FakeStream, LoopThread
from http2_peer import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
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

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceResponse
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.frontends import unread as unread_answers
from pytriton_lite.frontends.grpc import infer_stream
from pytriton_lite.frontends.grpc.http2 import Http2Listener, start_http2
from pytriton_lite.frontends.grpc.http2_sender import STREAM_WINDOW
from pytriton_lite.frontends.grpc.options import GrpcOptions
from pytriton_lite.frontends.unread import UnreadBudget
from pytriton_lite.frontends.work_share import SLICE_S, share_of
from pytriton_lite.scheduling.ticket import Ticket
from tests.harness import until

STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
LIVE = "/inference.GRPCInferenceService/ServerLive"
FLOW_CONTROL_ERROR, CANCEL = 3, 8
WAIT_S = 20
FRAME = 16 << 10


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Iterator[LoopThread]:
    is_own = request.param == "asyncio"
    thread = LoopThread(asyncio.new_event_loop() if is_own else pytest.importorskip("uvloop").new_event_loop())
    yield thread
    thread.close()


@pytest.fixture
def listener(loop: LoopThread, engine: FakeServer, caplog: pytest.LogCaptureFixture) -> Iterator[Http2Listener]:
    """Nothing is in flight at its end, and nothing was logged."""
    listener = loop.run(start_http2(engine, GrpcOptions(address="127.0.0.1", port=0)))
    yield listener
    assert loop.run(listener.stop(10)), "a request was left in flight"
    assert [record.message for record in caplog.get_records("call") if record.levelno >= logging.WARNING] == []


@pytest.fixture
def peer(listener: Http2Listener) -> Iterator[Http2Peer]:
    with Http2Peer.connect(listener) as peer:
        yield peer


def message(model: str = "echo", request_id: str = "", size: int = 4, **parameters: int) -> bytes:
    asked = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    asked.inputs.add(name="X", datatype="UINT8", shape=[size])
    asked.raw_input_contents.append(b"\1" * size)
    for key, value in parameters.items():
        asked.parameters[key].int64_param = value
    return prefixed(asked.SerializeToString())


def open_stream(peer: Http2Peer, stream: int = 1, **more: str | None) -> None:
    peer.send(peer.headers(stream, headers_of(STREAM, **more)))


def data(payload: bytes, stream: int = 1, *, ends: bool = False) -> bytes:
    """In frames as small as any server takes."""
    pieces = [payload[at : at + FRAME] for at in range(0, len(payload), FRAME)] or [b""]
    flags = [0] * (len(pieces) - 1) + [END_STREAM if ends else 0]
    return b"".join(frame(DATA, flag, stream, piece) for flag, piece in zip(flags, pieces))


def answers(body: bytes) -> list[Any]:
    """The messages in *body*, which must be whole."""
    found = []
    while body:
        flag, size = struct.unpack_from(">BL", body)
        assert flag == 0 and len(body) >= 5 + size
        found.append(service_pb2.ModelStreamInferResponse.FromString(body[5 : 5 + size]))
        body = body[5 + size :]
    return found


def ids(body: bytes) -> list[str]:
    return [answer.infer_response.id for answer in answers(body)]


def ping(peer: Http2Peer) -> None:
    """The server has read everything that was sent before, and done what follows at once."""
    peer.send(frame(PING, 0, 0, b"12345678"))
    peer.next(PING, acknowledgement=True)


def read_body(peer: Http2Peer, stream: int, count: int) -> bytes:
    """The next *count* bytes of the answer on *stream*."""
    body = b""
    while len(body) < count:
        body += peer.next(DATA, stream).payload
    assert len(body) == count
    return body


def entered(engine: FakeServer, count: int = 1) -> FakeStream:
    for _ in range(count):
        assert engine.streamed.acquire(timeout=WAIT_S)
    return engine.streams[-1]


def flood(engine: FakeServer) -> FakeFlood:
    stream = entered(engine)
    assert isinstance(stream, FakeFlood)
    return stream


class TestMessagesAndFrames:
    def test_one_header_block_then_messages_then_trailers(self, peer: Http2Peer) -> None:
        open_stream(peer)
        peer.send(data(message(request_id="a") + message(request_id="b"), ends=True))
        answer = peer.answer(1)
        assert answer.headers == {":status": "200", "content-type": "application/grpc"}
        assert answer.trailers == {"grpc-status": "0"}
        assert ids(answer.body) == ["a", "b"]

    def test_answers_do_not_wait_for_the_end_of_the_requests(self, peer: Http2Peer) -> None:
        open_stream(peer)
        for request_id in ("a", "b"):
            peer.send(data(message(request_id=request_id)))
            assert ids(peer.next(DATA, 1).payload) == [request_id]
        peer.send(data(b"", ends=True))
        assert peer.answer(1).trailers == {"grpc-status": "0"}

    def test_messages_may_be_cut_anywhere(self, peer: Http2Peer) -> None:
        whole = message(request_id="a") + message(request_id="b", size=40_000)
        open_stream(peer)
        cuts = [0, 1, 4, 6, 20, len(message(request_id="a")) + 3, 30_000, len(whole)]
        for begin, end in itertools.pairwise(cuts):
            peer.send(data(whole[begin:end]))
        peer.send(data(b"", ends=True))
        assert ids(peer.answer(1).body) == ["a", "b"]

    def test_stream_without_any_message_is_trailers_alone(self, peer: Http2Peer) -> None:
        """grpc.md row 69."""
        peer.send(peer.headers(1, headers_of(STREAM), END_HEADERS | END_STREAM))
        answer = peer.answer(1)
        assert (answer.headers[":status"], answer.trailers["grpc-status"], answer.body) == ("200", "0", b"")

    def test_responses_of_one_turn_share_a_frame(self, engine: FakeServer, peer: Http2Peer) -> None:
        open_stream(peer)
        peer.send(data(message("flood", count=50, bytes_each=10), ends=True))
        found = peer.next(DATA, 1)
        assert len(answers(found.payload)) == 50
        flood(engine)

    def test_streams_and_calls_share_a_connection(self, loop: LoopThread, engine: FakeServer, peer: Http2Peer) -> None:
        for stream in (1, 3):
            open_stream(peer, stream)
            peer.send(data(message("held", str(stream)), stream, ends=True))
        peer.request(5, b"", LIVE)
        assert peer.answer(5).trailers["grpc-status"] == "0"
        entered(engine, 2)

        async def let_go() -> None:
            for stream in reversed(engine.streams):
                stream.deliver(InferenceError(ErrorCode.INTERNAL, stream.request.request_id), is_final=True)

        loop.run(let_go())
        assert answers(peer.answer(3).body)[0].error_message == "3"

    @pytest.mark.parametrize(
        ("body", "status", "text"),
        [
            (b"\0\0\0", "13", "the message is cut short: 0 of 5 bytes were sent"),
            (message()[:-3], "13", f"the message is cut short: {len(message()) - 8} of {len(message()) - 5} bytes were sent"),
            (b"\2\0\0\0\0", "13", "a message begins with 0 or 1, and 2 was sent"),
            (b"\1\0\0\0\0", "13", "a message is compressed, and grpc-encoding does not say how"),
            (prefixed(b"\xff"), "13", "Unable to parse request"),
            (b"\0\xff\xff\xff\xff", "8", "Received message larger than max (4294967295 vs. 2147483647)"),
        ],
    )  # fmt: skip
    def test_malformed_message_ends_the_stream_and_cancels_what_is_in_it(
        self, engine: FakeServer, peer: Http2Peer, body: bytes, status: str, text: str
    ) -> None:
        open_stream(peer)
        peer.send(data(message("held")))
        served = entered(engine)
        peer.send(data(body, ends=True))
        answer = peer.answer(1)
        assert (answer.trailers["grpc-status"], answer.trailers["grpc-message"]) == (status, text)
        assert served.was_cancelled.wait(WAIT_S)

    def test_message_that_cannot_be_decompressed_ends_the_stream(self, peer: Http2Peer) -> None:
        open_stream(peer, grpc_encoding="gzip")
        good = gzip.compress(message(request_id="a")[5:])
        peer.send(data(prefixed(good, 1) + prefixed(b"no gzip", 1) + message(request_id="b")))
        answer = peer.answer(1)
        assert answer.trailers["grpc-status"] == "13"
        assert answer.trailers["grpc-message"].startswith("message cannot be decompressed as gzip")
        assert peer.next(RST_STREAM, 1).code == 0  # NO_ERROR: it need not send the rest

    def test_message_for_which_there_is_no_memory_ends_the_stream(
        self, engine: FakeServer, peer: Http2Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_room(nbytes: int, *, tensor_at: int = 0) -> memoryview:
            raise MemoryError

        open_stream(peer)
        peer.send(data(message("held")))
        served = entered(engine)
        monkeypatch.setattr(engine.intake, "room", no_room)
        large = message(size=100_000)
        peer.send(data(large))
        answer = peer.answer(1)
        assert answer.trailers["grpc-status"] == "8"
        text = f"no memory for a message of {len(large) - 5} bytes; send smaller tensors"
        assert answer.trailers["grpc-message"] == text
        assert served.was_cancelled.wait(WAIT_S)
        peer.request(3, b"", LIVE)
        assert peer.answer(3).trailers["grpc-status"] == "0"

    def test_refused_stream_drops_what_is_sent(self, engine: FakeServer, peer: Http2Peer) -> None:
        open_stream(peer, grpc_encoding="snappy")
        peer.send(data(message()))
        assert peer.answer(1).headers["grpc-status"] == "12"
        ping(peer)
        assert engine.streams == []


class TestWindowsForAnswers:
    def test_model_is_ahead_by_its_window_and_not_more(self, engine: FakeServer, peer: Http2Peer) -> None:
        """Responses that left by half are not consumed. The rest follows as the window opens."""
        open_stream(peer)
        peer.send(data(message("flood", count=500, bytes_each=10_000), ends=True))
        body = read_body(peer, 1, 65_535)
        served = flood(engine)
        ping(peer)
        whole = 65_535 // (len(body[: body.index(b"x")]) + 10_000)
        assert (served.consumed_count, served.sent) == (whole, whole + served.WINDOW)
        peer.send(window_update(0, 1 << 30), window_update(1, 1 << 30))
        body += peer.answer(1).body
        assert [a.infer_response.parameters["n"].int64_param for a in answers(body)] == list(range(1, 501))

    def test_stream_that_is_not_read_delays_nobody_else(self, engine: FakeServer, listener: Http2Listener) -> None:
        with Http2Peer.connect(listener, PREFACE + settings(initial_window_size=0)) as peer:
            open_stream(peer, 1)
            peer.send(data(message("flood", count=500, bytes_each=10_000)))
            flood(engine)
            open_stream(peer, 3)
            peer.send(window_update(3, 1 << 20), data(message(request_id="b"), 3, ends=True))
            assert ids(peer.answer(3).body) == ["b"]
            peer.send(reset(1))
            ping(peer)

    def test_peer_that_reads_nothing_at_all_stops_its_model_alone(
        self, engine: FakeServer, listener: Http2Listener
    ) -> None:
        """The windows are open; what is full is the socket."""
        with Http2Peer.connect(listener, PREFACE + settings(initial_window_size=(1 << 31) - 1)) as deaf:
            deaf.send(window_update(0, (1 << 31) - 1 - 65_535))
            open_stream(deaf)
            deaf.send(data(message("flood", count=4000, bytes_each=64 << 10)))
            served = flood(engine)
            with Http2Peer.connect(listener) as other:
                open_stream(other)
                other.send(data(message(request_id="b"), ends=True))
                assert ids(other.answer(1).body) == ["b"]
                ping(other)
            # Window, socket buffers of both sides (at most 6 MiB each here), and one write.
            assert served.sent < served.WINDOW + (13 << 20) // (64 << 10)
            deaf.send(reset(1))
            assert served.was_cancelled.wait(WAIT_S)
            ping(deaf)  # it finds its ears again

    def test_window_that_shrinks_below_zero_is_waited_for(self, engine: FakeServer, peer: Http2Peer) -> None:
        open_stream(peer)
        peer.send(data(message("flood", count=20, bytes_each=10_000), ends=True))
        read_body(peer, 1, 65_535)
        flood(engine)
        peer.send(settings(initial_window_size=0), window_update(0, 1 << 20))
        ping(peer)
        peer.send(window_update(1, 65_535 + 10))
        assert len(peer.next(DATA, 1).payload) == 10
        peer.send(window_update(1, 1 << 20))
        assert peer.answer(1).trailers == {"grpc-status": "0"}


class TestWindowsForRequests:
    def test_requests_are_read_only_as_long_as_answers_leave(
        self, loop: LoopThread, engine: FakeServer, listener: Http2Listener
    ) -> None:
        """The peer may fill its window meanwhile. When it takes the answers, all of its requests are served."""
        one = message(size=20_000)
        more = STREAM_WINDOW // 2 // len(one)
        with Http2Peer.connect(listener, PREFACE + settings(initial_window_size=0)) as peer:
            self.fill(loop, engine, peer, one)
            for _ in range(more):
                peer.send(data(one))
            ping(peer)
            assert len(engine.streams) == infer_stream.MAX_UNSENT
            peer.send(window_update(0, 1 << 30), window_update(1, 1 << 30))
            peer.send(data(message(request_id="last"), ends=True))
            assert len(ids(peer.answer(1).body)) == infer_stream.MAX_UNSENT + more + 1
            assert engine.streams[-1].request.request_id == "last"

    @staticmethod
    def fill(loop: LoopThread, engine: FakeServer, peer: Http2Peer, one: bytes) -> None:
        """Let so many answers wait on stream 1 that no further request is taken."""
        open_stream(peer)
        for _ in range(infer_stream.MAX_UNSENT):
            peer.send(data(one))
        entered(engine, infer_stream.MAX_UNSENT)
        loop.run(asyncio.sleep(0))  # a turn, in which the last is answered

    def test_large_answers_stop_the_reading_sooner(
        self, loop: LoopThread, engine: FakeServer, listener: Http2Listener
    ) -> None:
        with Http2Peer.connect(listener, PREFACE + settings(initial_window_size=0)) as peer:
            for stream in (1, 3):  # a message over the window: the server opens it as long as it takes messages
                open_stream(peer, stream)
                sent = STREAM_WINDOW + 1000
                body = message(size=sent)
                peer.send(data(body[:STREAM_WINDOW], stream))
                while peer.next(WINDOW_UPDATE).stream != stream:
                    pass
                peer.send(data(body[STREAM_WINDOW:], stream))
                entered(engine)
                loop.run(asyncio.sleep(0))  # a turn, in which it is answered
                peer.send(data(message(request_id="unread"), stream))
            ping(peer)
            assert [stream.request.request_id for stream in engine.streams] == ["", ""]
            peer.send(reset(1), reset(3))
            ping(peer)

    def test_unread_answers_of_one_call_hold_back_the_requests_of_another_until_they_are_read(
        self, loop: LoopThread, engine: FakeServer
    ) -> None:
        listener = loop.run(start_http2(engine, GrpcOptions(address="127.0.0.1", port=0, max_unread_bytes=100_000)))
        with Http2Peer.connect(listener, PREFACE + settings(initial_window_size=0)) as peer:
            for stream in (1, 3):
                open_stream(peer, stream)
            for name in ("a", "b"):
                peer.send(data(message(request_id=name, size=60_000), 1))
            entered(engine, 2)
            loop.run(asyncio.sleep(0))  # a turn, in which they are answered
            peer.send(data(message(request_id="c"), 3, ends=True))
            ping(peer)
            assert [stream.request.request_id for stream in engine.streams] == ["a", "b"]
            peer.send(window_update(1, 60_100), window_update(3, 1000))
            assert ids(peer.answer(3).body) == ["c"]
            peer.send(reset(1))
            ping(peer)
        assert loop.run(listener.stop(10))

    def test_requests_that_are_held_back_for_what_others_leave_unread_go_on_when_those_have_gone(
        self, loop: LoopThread, engine: FakeServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """``--max-unread-bytes``. Meanwhile their own client reads nothing, and need not."""
        listener, look = self.with_budget(loop, engine, monkeypatch, 100_000, own_limit=1 << 30)
        with Http2Peer.connect(listener, PREFACE + settings(initial_window_size=0)) as peer:
            open_stream(peer)
            peer.send(data(message(request_id="a")))
            entered(engine)
            peer.next(HEADERS, 1)
            with self.much_unread(listener, engine):
                peer.send(data(message(request_id="b")))
                ping(peer)
                assert [stream.request.request_id for stream in engine.streams] == ["a", "much", "much"]
            look()
            entered(engine)
            assert engine.streams[-1].request.request_id == "b"
        assert loop.run(listener.stop(10))

    @pytest.mark.parametrize("others_had_gone", [False, True])
    def test_requests_that_are_held_back_for_their_client_and_then_for_others_go_on_when_those_have_gone(
        self, loop: LoopThread, engine: FakeServer, monkeypatch: pytest.MonkeyPatch, others_had_gone: bool
    ) -> None:
        """Of both limits the one is kept again only when the other is not, and so it goes on."""
        listener, look = self.with_budget(loop, engine, monkeypatch, 200_000, own_limit=100_000)
        with Http2Peer.connect(listener, PREFACE + settings(initial_window_size=0)) as peer:
            with self.much_unread(listener, engine) if others_had_gone else nullcontext():
                for stream in (1, 3):
                    open_stream(peer, stream)
                for name in ("a", "b"):
                    peer.send(data(message(request_id=name, size=60_000), 1))
                entered(engine, 2)
                loop.run(asyncio.sleep(0))  # a turn, in which they are answered
                peer.send(data(message(request_id="c"), 3))
                ping(peer)
            look()
            with self.much_unread(listener, engine):
                peer.send(window_update(1, 60_100))
                ping(peer)
                assert "c" not in [stream.request.request_id for stream in engine.streams]
            look()
            entered(engine)
            assert engine.streams[-1].request.request_id == "c"
        assert loop.run(listener.stop(10))

    def with_budget(
        self, loop: LoopThread, engine: FakeServer, monkeypatch: pytest.MonkeyPatch, limit: int, own_limit: int
    ) -> tuple[Http2Listener, Callable[[], None]]:
        """A listener with *limit* for all its connections, *own_limit* for each, and what looks when all but one have gone."""
        monkeypatch.setattr(unread_answers, "LOOK_EVERY_S", 600.0)  # the test looks itself

        async def listen() -> tuple[Http2Listener, UnreadBudget]:
            unread = UnreadBudget(limit)
            options = GrpcOptions(address="127.0.0.1", port=0, max_unread_bytes=own_limit)
            return await start_http2(engine, options, unread=unread), unread

        async def look() -> None:
            unread.look()

        def look_at_one() -> None:
            until(lambda: len(listener._connections.open) == 1)
            loop.run(look())

        listener, unread = loop.run(listen())
        return listener, look_at_one

    @contextmanager
    def much_unread(self, listener: Http2Listener, engine: FakeServer) -> Iterator[None]:
        """Another client, which reads nothing of 120 KB."""
        with Http2Peer.connect(listener, PREFACE + settings(initial_window_size=0)) as other:
            for stream in (1, 3):
                other.request(stream, message(request_id="much", size=60_000)[5:])
                other.next(HEADERS, stream)
            entered(engine, 2)
            yield

    def test_data_over_the_window_of_a_stream_that_is_not_read_reset_it(
        self, loop: LoopThread, engine: FakeServer, listener: Http2Listener
    ) -> None:
        one = message(size=40_000)
        with Http2Peer.connect(listener, PREFACE + settings(initial_window_size=0)) as peer:
            self.fill(loop, engine, peer, one)
            for _ in range(STREAM_WINDOW // len(one) + 1):
                peer.send(data(one))
            assert peer.next(RST_STREAM, 1).code == FLOW_CONTROL_ERROR
            peer.request(3, b"", LIVE)
            peer.send(window_update(3, 100))
            assert peer.answer(3).trailers["grpc-status"] == "0"

    def test_request_in_the_engine_count_against_a_limit(
        self, loop: LoopThread, engine: FakeServer, peer: Http2Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(infer_stream, "MAX_REQUESTS", 3)
        open_stream(peer)
        peer.send(data(b"".join(message("held", str(index)) for index in range(5)), ends=True))
        ping(peer)
        assert len(engine.streams) == 3

        async def answer() -> None:
            for stream in list(engine.streams):
                stream.deliver(InferenceError(ErrorCode.INTERNAL, "no"), is_final=True)

        loop.run(answer())
        entered(engine, 5)
        loop.run(answer())
        assert ids(peer.answer(1).body) == ["0", "1", "2", "3", "4"]


class TestShareOfTheLoop:
    @pytest.mark.parametrize("is_compressed", [False, True], ids=["plain", "compressed"])
    def test_requests_of_one_frame_are_taken_in_slices_of_time(
        self,
        loop: LoopThread,
        engine: FakeServer,
        peer: Http2Peer,
        monkeypatch: pytest.MonkeyPatch,
        is_compressed: bool,
    ) -> None:
        """The clock goes on by a slice whenever somebody looks at it."""
        count = 100
        turn = 0
        taken: Counter[int] = Counter()
        infer = engine.infer

        def tick() -> None:
            nonlocal turn
            turn += 1
            if len(engine.streams) < count:
                loop.loop.call_soon(tick)

        def infer_in_turn(*arguments: Any) -> Ticket:
            taken[turn] += 1
            return infer(*arguments)

        looks = itertools.count()
        monkeypatch.setattr(engine, "infer", infer_in_turn)
        monkeypatch.setattr(share_of(loop.loop), "_clock", lambda: time.monotonic() + next(looks) * SLICE_S)
        one = [message("held", str(number)) for number in range(count)]
        if is_compressed:
            one = [prefixed(gzip.compress(plain[5:]), 1) for plain in one]
        open_stream(peer, grpc_encoding="gzip")
        loop.loop.call_soon_threadsafe(tick)
        peer.send(data(b"".join(one)))
        entered(engine, count)
        assert [stream.request.request_id for stream in engine.streams] == [str(number) for number in range(count)]
        assert max(taken.values()) <= 2
        peer.send(reset(1))
        ping(peer)


class TestEnds:
    def test_reset_cancels_and_leaves_the_connection_alone(self, engine: FakeServer, peer: Http2Peer) -> None:
        open_stream(peer)
        peer.send(data(message("held") + message("decoupled")))
        entered(engine, 2)
        peer.send(reset(1, CANCEL))
        assert all(stream.was_cancelled.wait(WAIT_S) for stream in engine.streams)
        peer.request(3, b"", LIVE)
        assert peer.answer(3).trailers["grpc-status"] == "0"

    def test_answers_that_come_before_a_request_has_been_cancelled_go_nowhere(
        self, engine: FakeServer, peer: Http2Peer
    ) -> None:
        """Many requests are cancelled in turns of the loop, the last one first."""

        def answer_others(ticket: Ticket) -> None:
            for served in engine.streams[:-1]:
                served.deliver(InferenceError(ErrorCode.INTERNAL, "no"), is_final=True)
            answered.set()

        answered = threading.Event()
        open_stream(peer)
        peer.send(data(message("decoupled") * 60))
        entered(engine, 60)
        engine.streams[-1].cancelled = answer_others  # type: ignore[method-assign]  # a request's owner
        peer.send(reset(1, CANCEL))
        assert answered.wait(WAIT_S)
        peer.request(3, b"", LIVE)
        assert all(found.stream != 1 for found in itertools.takewhile(lambda found: found.stream != 3, peer.frames()))
        assert all(served.ticket.is_over for served in engine.streams)

    def test_reset_in_the_middle_of_a_message_leaves_nothing(self, engine: FakeServer, peer: Http2Peer) -> None:
        """Half of an answer has left, and half of a request has come."""
        open_stream(peer)
        peer.send(data(message("flood", count=100, bytes_each=50_000) + message()[:7]))
        read_body(peer, 1, 65_535)
        served = flood(engine)
        peer.send(reset(1), window_update(0, 1 << 20), data(message()))  # the last is on its way, and passed over
        assert served.was_cancelled.wait(WAIT_S)
        peer.request(3, b"", LIVE)
        assert peer.answer(3).trailers["grpc-status"] == "0"
        assert served.sent <= 1 + served.WINDOW

    @pytest.mark.parametrize("how", ["close", "half close", "garbage"])
    def test_end_of_the_connection_cancels(self, engine: FakeServer, listener: Http2Listener, how: str) -> None:
        with Http2Peer.connect(listener) as peer:
            open_stream(peer)
            peer.send(data(message("decoupled")))
            served = entered(engine)
            if how == "half close":
                peer.sock.shutdown(1)
                peer.until_closed()
            elif how == "garbage":
                peer.send(frame(DATA, 0, 7, b""))
                assert peer.next(GOAWAY).code == 1
        assert served.was_cancelled.wait(WAIT_S)

    def test_goaway_of_the_peer_lets_the_stream_go_on(
        self, loop: LoopThread, engine: FakeServer, peer: Http2Peer
    ) -> None:
        open_stream(peer)
        peer.send(data(message("held", "a")))
        served = entered(engine)
        peer.send(frame(GOAWAY, 0, 0, struct.pack(">LL", 0, 0)))
        ping(peer)
        peer.send(data(message(request_id="b"), ends=True))

        async def answer() -> None:
            served.deliver(InferenceError(ErrorCode.INTERNAL, "no"), is_final=True)

        loop.run(answer())
        assert ids(peer.answer(1).body) == ["a", "b"]

    def test_deadline_comes_behind_the_answers(self, engine: FakeServer, peer: Http2Peer) -> None:
        """The second header block of a stream is trailers, without a status of HTTP."""
        open_stream(peer, grpc_timeout="800m")
        peer.send(data(message(request_id="a") + message("held")))
        answer = peer.answer(1)
        assert ids(answer.body) == ["a"]
        assert answer.trailers == {"grpc-status": "4", "grpc-message": "Deadline Exceeded"}
        assert entered(engine, 2).was_cancelled.wait(WAIT_S)

    def test_deadline_before_any_answer_is_trailers_alone(self, engine: FakeServer, peer: Http2Peer) -> None:
        open_stream(peer, grpc_timeout="400m")
        peer.send(data(message("held")))
        answer = peer.answer(1)
        assert answer.headers[":status"] == "200" and answer.headers["grpc-status"] == "4"
        assert entered(engine).was_cancelled.wait(WAIT_S)

    def test_error_as_status_comes_behind_the_answers(
        self, loop: LoopThread, engine: FakeServer, peer: Http2Peer
    ) -> None:
        """grpc.md row 70."""
        peer.send(peer.headers(1, [*headers_of(STREAM), ("triton_grpc_error", "true")]))
        peer.send(data(message(request_id="a") + message("held")))
        assert ids(peer.next(DATA, 1).payload) == ["a"]
        served = entered(engine, 2)

        async def answer() -> None:
            served.deliver(InferenceError(ErrorCode.INVALID_ARG, "code 4"), is_final=True)

        loop.run(answer())
        fields: list[Any] = list(peer.decoder.decode(peer.next(HEADERS, 1).payload))
        assert fields == [("grpc-status", "3"), ("grpc-message", "code 4")]
        peer.send(data(message(request_id="late")))  # on its way when the stream ended
        ping(peer)
        assert len(engine.streams) == 2

    def test_pings_that_follow_answers_are_no_flood(self, engine: FakeServer, peer: Http2Peer) -> None:
        """The library of gRPC measures bandwidth so, as long as data come."""
        open_stream(peer)
        for index in range(10):
            peer.send(data(message(request_id=str(index))))
            assert ids(peer.next(DATA, 1).payload) == [str(index)]
            ping(peer)
        peer.send(data(b"", ends=True))
        assert peer.answer(1).trailers == {"grpc-status": "0"}

    def test_idle_stream_is_ended_by_the_stop(
        self, loop: LoopThread, engine: FakeServer, listener: Http2Listener
    ) -> None:
        with Http2Peer.connect(listener) as peer:
            open_stream(peer)
            peer.send(data(message(request_id="a")))
            assert ids(peer.next(DATA, 1).payload) == ["a"]
            engine.exiting = True
            stopping = asyncio.run_coroutine_threadsafe(listener.stop(600), loop.loop)
            peer.send(frame(PING, ACK, 0, peer.next(PING).payload))
            fields: dict[Any, Any] = dict(peer.decoder.decode(peer.next(HEADERS, 1).payload))
            assert fields["grpc-status"] == "14"
            # In a drain no RST_STREAM follows the end: a proxy that sees one may drop the answers before it.
            assert [found.kind for found in peer.until_closed()] == []
            peer.sock.close()
            assert stopping.result(WAIT_S)

    def test_stop_waits_for_answers_that_wait_for_the_peer(
        self, loop: LoopThread, engine: FakeServer, listener: Http2Listener
    ) -> None:
        with Http2Peer.connect(listener) as peer:
            open_stream(peer)
            peer.send(data(message(size=100_000, request_id="a"), ends=True))
            body = read_body(peer, 1, 65_535)

            stopping = asyncio.run_coroutine_threadsafe(listener.stop(WAIT_S), loop.loop)
            assert peer.next(GOAWAY).code == 0
            peer.send(window_update(0, 1 << 20), window_update(1, 1 << 20))
            body += peer.answer(1).body
            assert ids(body) == ["a"]
            assert stopping.result(WAIT_S)


class TestInputs:
    """They lie in memory of the server's until nobody refers to them. No collection runs in these tests."""

    LARGE = 1 << 20

    @pytest.fixture(autouse=True)
    def no_collection(self) -> Iterator[None]:
        gc.disable()
        yield
        gc.enable()

    @pytest.fixture
    def unread(self, listener: Http2Listener) -> Iterator[Http2Peer]:
        """It reads no answers."""
        with Http2Peer.connect(listener, PREFACE + settings(initial_window_size=0)) as peer:
            open_stream(peer)
            yield peer

    @staticmethod
    def forget(engine: FakeServer) -> None:
        engine.seen.clear()
        engine.streams.clear()

    def test_those_of_answered_requests_go_before_the_answers_are_read(
        self, engine: FakeServer, unread: Http2Peer
    ) -> None:
        for _ in range(3):
            unread.send(data(message(size=self.LARGE)))
        entered(engine, 3)
        ping(unread)
        self.forget(engine)
        until(lambda: engine.intake.live_rooms == 0)
        unread.send(window_update(0, 1 << 30), window_update(1, 1 << 30), data(b"", ends=True))
        assert len(ids(unread.answer(1).body)) == 3

    @pytest.mark.parametrize("how", ["reset", "close"])
    def test_those_of_a_request_go_with_its_client(
        self, loop: LoopThread, engine: FakeServer, unread: Http2Peer, how: str
    ) -> None:
        unread.send(data(message("decoupled", size=self.LARGE)))
        entered(engine)

        async def answer() -> None:
            output = Tensor("X", dtypes.UINT8, (1,), b"x")
            engine.streams[0].deliver(InferenceResponse("decoupled", 3, "", [output], {}), is_final=False)

        loop.run(answer())
        unread.next(HEADERS, 1)
        assert engine.intake.live_rooms == 1
        if how == "reset":
            unread.send(reset(1))
        else:
            unread.sock.close()
        assert engine.streams[0].was_cancelled.wait(WAIT_S)
        engine.streams[0].deliver(None, is_final=True)
        self.forget(engine)
        until(lambda: engine.intake.live_rooms == 0)
