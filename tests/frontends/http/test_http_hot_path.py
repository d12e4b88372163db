"""Infer requests answered in the protocol: what it may remember, when it must not, and who comes first."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import json
import struct
import sys
import termios
import threading
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from http_fake_server import FakeConfig, FakeServed, FakeServer, FakeSpec, default_models, echo
from hypothesis import given
from hypothesis import strategies as st

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.tensor import Elements
from pytriton_lite.core.timeline import Timeline
from pytriton_lite.engine.tracing.observation import HeaderOf
from pytriton_lite.engine.workers.regions import Regions
from pytriton_lite.frontends.http import codec
from pytriton_lite.frontends.http.bodies import LargeDocuments
from pytriton_lite.frontends.http.hot_path import hot_path
from pytriton_lite.frontends.http.infer import refusing_app
from pytriton_lite.frontends.http.server import HttpOptions, http_app
from pytriton_lite.frontends.http.templates import LONGEST_HEAD, KnownHeads, Templates, known_head
from pytriton_lite.frontends.listener import AsgiApp, ConnectionLimits, Listener, start_listener

NO_REGIONS = Regions(is_allowed=False)


def vector(*values: float) -> bytes:
    return struct.pack("<4f", *values)


def document(**fields: Any) -> bytes:
    inputs = [
        {"name": name, "shape": [4], "datatype": "FP32", "parameters": {"binary_data_size": 16}}
        for name in ("INPUT0", "INPUT1")
    ]
    return json.dumps({"inputs": inputs, "outputs": [{"name": "OUTPUT0"}], **fields}).encode()


def message(left: bytes, right: bytes, *, model: str = "add_sub", head: str = "", **fields: Any) -> bytes:
    return message_of(document(**fields), left, right, model=model, head=head)


def message_of(text: bytes, left: bytes, right: bytes, *, model: str = "add_sub", head: str = "") -> bytes:
    """A request with *text* for its JSON part."""
    start = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: h\r\n{head}"
        f"Inference-Header-Content-Length: {len(text)}\r\nContent-Length: {len(text) + 32}\r\n\r\n"
    )
    return start.encode() + text + left + right


class Session:
    """A listener with the hot path in front, and one connection to it."""

    def __init__(self, server: FakeServer, listener: Listener, streams: tuple[Any, Any]) -> None:
        self.server = server
        self.listener = listener
        self.reader, self.writer = streams

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def unread(self) -> int:
        """Bytes that the server has not read."""
        (connection,) = self.listener._state.protocols()
        sock = connection.transport.get_extra_info("socket")
        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)

    async def reply(self) -> tuple[int, dict[str, str], Any]:
        status, headers, body = await raw_reply(self)
        return status, headers, json.loads(body) if body else None

    async def sums(self) -> list[float]:
        status, _, answer = await self.reply()
        assert status == 200, answer
        data: list[float] = answer["outputs"][0]["data"]
        return data


def in_session(
    scenario: Callable[[Session], Any],
    server: FakeServer | None = None,
    app: AsgiApp | None = None,
    limits: ConnectionLimits | None = None,
) -> None:
    """Run *scenario* with a fresh `Session`; *app* is behind the hot path in place of ours."""

    async def run() -> None:
        fake = server or FakeServer()
        options = HttpOptions()
        listener = await start_listener(
            app or http_app(fake, options),
            host="127.0.0.1",
            port=0,
            reuse_port=False,
            name="HTTPService",
            protocol=hot_path(fake, options),
            limits=limits or ConnectionLimits(),
        )
        streams = await asyncio.open_connection("127.0.0.1", listener.port)
        session = Session(fake, listener, streams)
        try:
            await asyncio.wait_for(scenario(session), 20)
        finally:
            session.writer.close()
            await listener.close_gracefully(5)

    asyncio.run(run())


def without_application(scenario: Callable[[Session], Any], server: FakeServer | None = None) -> None:
    """Run *scenario* where only ordinary requests are answered."""
    in_session(scenario, server, app=refusing_app(418, "the application"))


@pytest.mark.parametrize(
    ("head", "status", "encoding"),
    [
        ("", 200, None),
        ("Accept-Encoding: identity\r\n", 200, None),
        ("Accept-Encoding: gzip, deflate\r\n", 200, "gzip"),
        ("Accept-Encoding: deflate\r\n", 200, "deflate"),
        ("Accept-Encoding: br\r\n", 200, None),
        ("Content-Encoding: identity\r\n", 418, None),
    ],
)
@pytest.mark.parametrize("is_json", [True, False])
def test_a_client_may_take_compressed_answers(head: str, status: int, encoding: str | None, is_json: bool) -> None:
    outputs = [{"name": "OUTPUT0", "parameters": {"binary_data": not is_json}}]

    async def scenario(session: Session) -> None:
        for step in range(3):
            session.send(message(vector(1, 2, 3, step), vector(1, 1, 1, 1), head=head, outputs=outputs))
            found, headers, body = await raw_reply(session)
            assert (found, headers.get("content-encoding")) == (status, encoding)
            if status != 200:
                return
            names = [*headers]
            assert (names[0], names[-1]) == ("content-type", "content-length")
            if encoding is not None:
                body = zlib.decompress(body, zlib.MAX_WBITS + (16 if encoding == "gzip" else 0))
            size = int(headers.get("inference-header-content-length", len(body)))
            output = json.loads(body[:size])["outputs"][0]
            assert (output["data"] if is_json else [*struct.unpack("<4f", body[size:])]) == [2.0, 3.0, 4.0, step + 1.0]

    without_application(scenario)


@pytest.mark.parametrize("elements", [5_000, 100_000])
@pytest.mark.parametrize("is_json", [True, False])
def test_large_answers_are_compressed_too(elements: int, is_json: bool) -> None:
    """The first in its place, the second by a thread."""

    async def scenario(session: Session) -> None:
        values = list(range(elements))
        parameters = {"binary_data_size": 4 * elements}
        described = {"name": "X", "shape": [elements], "datatype": "INT32", "parameters": parameters}
        for request_id in ("one", "two"):
            document = {"id": request_id, "inputs": [described], "parameters": {"binary_data_output": not is_json}}
            text = json.dumps(document).encode()
            data = struct.pack(f"<{elements}i", *values)
            session.send(
                b"POST /v2/models/ident_INT32/infer HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip\r\n"
                b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
                % (len(text), len(text) + len(data))
                + text
                + data
            )
            status, headers, body = await raw_reply(session)
            assert (status, headers["content-encoding"]) == (200, "gzip")
            body = zlib.decompress(body, 16 + zlib.MAX_WBITS)
            size = int(headers.get("inference-header-content-length", len(body)))
            answer = json.loads(body[:size])
            assert answer["id"] == request_id
            assert (answer["outputs"][0]["data"] == values) if is_json else (body[size:] == data)

    in_session(scenario)


# Many texts --------------------------------------------------------------------------------------------------------------


def texts_model(count: int) -> FakeServed:
    """Answers with its *count* BYTES inputs."""
    inputs = [FakeSpec(f"X{at}", dtypes.BYTES, (-1,)) for at in range(count)]
    return FakeServed("texts", 1, FakeConfig("texts", inputs, []), echo)


def empty_texts(count: int, each: int, last: bytes = b"\0") -> bytes:
    """A request with *each* texts in *count* inputs, all of them empty; *last* is the first byte of the last length."""
    parameters = {"binary_data_size": 4 * each}
    inputs = [{"name": f"X{at}", "shape": [each], "datatype": "BYTES", "parameters": parameters} for at in range(count)]
    text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}, separators=(",", ":")).encode()
    data = bytes(4 * each * count - 4) + last + bytes(3)
    start = (
        b"POST /v2/models/texts/infer HTTP/1.1\r\nHost: h\r\n"
        b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(text), len(text) + len(data))
    )
    return start + text + data


@pytest.mark.parametrize(("count", "each"), [(1, 20_000), (20, 1000)], ids=["in one tensor", "in small ones"])
def test_many_texts_come_to_the_engine_counted(count: int, each: int) -> None:
    """The second time their form is known."""
    server = FakeServer([texts_model(count)])

    async def scenario(session: Session) -> None:
        for last, whole in ((b"\0", each), (b"\0", each), (b"\1", each - 1)):
            session.send(empty_texts(count, each, last))
            assert (await raw_reply(session))[0] == 200
            found = [tensor.elements for tensor in server.requests[-1].inputs]
            assert found == [Elements(each, 4 * each)] * (count - 1) + [Elements(whole, 4 * whole)]

    without_application(scenario, server)


@pytest.mark.parametrize("each", [10_000, 16_384])
def test_texts_that_the_engine_looks_through_at_once_are_left_to_it(each: int) -> None:
    server = FakeServer([texts_model(1)])

    async def scenario(session: Session) -> None:
        session.send(empty_texts(1, each))
        assert (await raw_reply(session))[0] == 200
        assert server.requests[0].inputs[0].elements is None

    without_application(scenario, server)


def test_what_comes_while_texts_are_counted_waits_and_a_connection_that_is_lost_then_has_no_request() -> None:
    server = FakeServer([*default_models(), texts_model(1)])
    large = LargeDocuments()
    may_go_on = threading.Event()

    async def scenario() -> None:
        options = HttpOptions()
        listener = await start_listener(
            http_app(server, options, large),  # type: ignore[arg-type]
            host="127.0.0.1",
            port=0,
            reuse_port=False,
            name="HTTPService",
            protocol=hot_path(server, options, large),  # type: ignore[arg-type]
        )
        sessions = [
            Session(server, listener, await asyncio.open_connection("127.0.0.1", listener.port)) for _ in range(2)
        ]
        before = asyncio.create_task(large.run(100_000, may_go_on.wait))
        for session in sessions:
            session.send(empty_texts(1, 20_000))
        left, stays = sessions
        stays.send(message(vector(1, 1, 1, 1), vector(0, 0, 0, 0)))
        await until(lambda: [connection.is_answer_due() for connection in listener._state.protocols()] == [True] * 2)
        left.writer.transport.abort()
        await until(lambda: len(listener._state.protocols()) == 1)
        assert server.requests == []
        may_go_on.set()
        assert await before
        assert (await raw_reply(stays))[0] == 200
        assert await stays.sums() == [1.0] * 4
        assert [request.model_name for request in server.requests] == ["texts", "add_sub"]
        stays.writer.close()
        assert await listener.close_gracefully(5)

    async def run() -> None:
        try:
            await asyncio.wait_for(scenario(), 20)
        finally:
            may_go_on.set()

    asyncio.run(run())


# Headers that differ -----------------------------------------------------------------------------------------------------


def parsed(session: Session) -> int:
    """Ordinary requests whose head was parsed, of all connections."""
    return sum(connection._messages for connection in session.listener._state.protocols())  # type: ignore[attr-defined]  # the hot path's


@pytest.mark.parametrize("name", ["x-request-id", "TraceParent", "my-own-id"])
def test_an_id_in_a_header_does_not_defeat_what_is_known_of_the_head(name: str) -> None:
    """Proxies and clients that trace add one to each request."""

    async def scenario(session: Session) -> None:
        for step in range(20):
            head = f"Accept: */*\r\n{name}: {'ab' * step}{step}\r\nUser-Agent: me\r\n"
            session.send(message(vector(1, 2, 3, step), vector(1, 1, 1, 1), head=head, id="b" + "a" * step))
            status, _, answer = await session.reply()
            assert (status, answer["id"], answer["outputs"][0]["data"]) == (
                200,
                "b" + "a" * step,
                [2.0, 3.0, 4.0, step + 1.0],
            )
        assert parsed(session) == 2

    without_application(scenario)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("x-request-id: c\r\nAccept-Encoding: gzip\r\n", 200),
        ("x-request-id: c\r\nTransfer-Encoding: x\r\n", 400),
        ("x-request-id: c\r\nHost: other\r\n", 400),
        ("x-request-id: c\r\nContent-Length: 7\r\n", 400),
        ("x-request-id: c\x7f\r\n", 400),
        ("x-request-id: c\0\r\n", 400),
        ("x-request-id: c\n\r\n", 400),
        ("x-request-id: " + "c" * 70_000 + "\r\n", 431),
    ],
    ids=repr,
)
def test_what_a_parser_would_see_in_a_head_is_seen(head: str, status: int) -> None:
    async def scenario(session: Session) -> None:
        for number in range(4):
            session.send(message(vector(1, 2, 3, 4), vector(1, 1, 1, 1), head=f"x-request-id: {number}\r\n"))
            assert await session.sums() == [2.0, 3.0, 4.0, 5.0]
        session.send(message(vector(1, 2, 3, 4), vector(1, 1, 1, 1), head=head))
        found, headers, _ = await raw_reply(session)
        assert found == status
        assert ("content-encoding" in headers) is ("gzip" in head)

    in_session(scenario)


def server_of(*names: str) -> FakeServer:
    """Models like add_sub."""
    (model,) = (model for model in default_models() if model.name == "add_sub")
    return FakeServer([replace(model, name=name) for name in names])


def test_heads_that_are_never_known_again_are_seldom_remembered() -> None:
    names = [f"model_{number}" for number in range(100)]

    async def scenario(session: Session) -> None:
        for name in names:
            session.send(message(vector(1, 2, 3, 4), vector(1, 1, 1, 1), model=name))
            assert await session.sums() == [2.0, 3.0, 4.0, 5.0]
        assert parsed(session) == 100
        for name in names:
            session.send(message(vector(1, 2, 3, 4), vector(1, 1, 1, 1), model=name))
            assert await session.sums() == [2.0, 3.0, 4.0, 5.0]
        assert 100 + 85 < parsed(session) < 200
        known = parsed(session)
        for _ in range(2 * 64):  # and found out when they are
            session.send(message(vector(1, 2, 3, 4), vector(1, 1, 1, 1), model="model_99"))
            assert await session.sums() == [2.0, 3.0, 4.0, 5.0]
        assert parsed(session) < known + 70

    without_application(scenario, server_of(*names))


def test_requests_for_several_models_on_a_connection_are_known_again() -> None:
    """As a proxy sends them, which has a connection for all of its clients."""
    names = [f"model_{number}" for number in range(8)]

    async def scenario(session: Session) -> None:
        for step in range(5):
            for name in names:
                session.send(message(vector(1, 2, 3, step), vector(1, 1, 1, 1), model=name, id=f"{name} {step}"))
                status, _, answer = await session.reply()
                assert (status, answer["model_name"], answer["id"]) == (200, name, f"{name} {step}")
                assert answer["outputs"][0]["data"] == [2.0, 3.0, 4.0, step + 1.0]
        assert parsed(session) == len(names)

    without_application(scenario, server_of(*names))


KINDS = {
    "plain": "",
    "requests": "Accept-Encoding: gzip, deflate\r\nAccept: */*\r\n",
    "deflates": "Accept-Encoding: deflate\r\n",
    "other host": "X-Forwarded-Host: other\r\n",
    "fifth": "Accept: a/b\r\nVia: x\r\n",
}


def test_clients_of_several_kinds_get_each_their_answers_on_one_connection() -> None:
    encodings = {"requests": "gzip", "deflates": "deflate"}

    async def send(session: Session, kind: str, step: int) -> None:
        session.send(message(vector(1, 2, 3, step), vector(1, 1, 1, 1), head=KINDS[kind]))
        status, headers, body = await raw_reply(session)
        assert (status, headers.get("content-encoding")) == (200, encodings.get(kind))
        if kind in encodings:
            body = zlib.decompress(body, zlib.MAX_WBITS + (16 if kind == "requests" else 0))
        assert json.loads(body)["outputs"][0]["data"] == [2.0, 3.0, 4.0, step + 1.0]

    async def scenario(session: Session) -> None:
        for step in range(5):
            for kind in list(KINDS)[:4]:
                await send(session, kind, step)
        assert parsed(session) == 4
        await send(session, "fifth", 5)  # for which the first has to go
        await send(session, "requests", 6)
        await send(session, "fifth", 7)
        assert parsed(session) == 5
        await send(session, "plain", 8)
        assert parsed(session) == 6

    without_application(scenario)


def test_a_head_is_known_on_other_connections_too() -> None:
    async def scenario(session: Session) -> None:
        session.send(message(vector(1, 2, 3, 4), vector(1, 1, 1, 1), id="first"))
        assert await session.sums() == [2.0, 3.0, 4.0, 5.0]
        streams = await asyncio.open_connection("127.0.0.1", session.listener.port)
        other = Session(session.server, session.listener, streams)
        other.send(message(vector(1, 2, 3, 5), vector(1, 1, 1, 1), id="a second"))
        assert await other.sums() == [2.0, 3.0, 4.0, 6.0]
        assert parsed(session) == 1
        # No connection waits any more for its first head, which has come.
        assert [connection._timer for connection in session.listener._state.protocols()] == [None, None]
        other.writer.close()

    in_session(scenario)


@pytest.mark.parametrize("bad", [b"\0", b"CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n\r\n"], ids=["no request", "connect"])
def test_a_connection_that_was_refused_answers_no_more(bad: bytes) -> None:
    async def scenario(session: Session) -> None:
        good = message(vector(1, 2, 3, 4), vector(1, 1, 1, 1))
        session.send(good)
        assert await session.sums() == [2.0, 3.0, 4.0, 5.0]
        session.send(bad)
        await seen(session)
        session.send(good)
        status, headers, _ = await raw_reply(session)
        assert (status, headers["connection"]) == (400, "close")
        assert await session.reader.read() == b""
        assert len(session.server.requests) == 1

    in_session(scenario)


def test_heads_do_not_add_up() -> None:
    heads = KnownHeads()

    def keep(number: int) -> bytes:
        head = b"POST /v2/models/m%d/infer HTTP/1.1\r\nHost: h\r\nX: %b\r\nContent-Length: 5\r\n\r\n" % (
            number,
            b"x" * 4_000,
        )
        assert heads.keep(head, (f"m{number}", None), {}, None, is_exact=False) is not None
        return head

    kept = [keep(number) for number in range(600)]
    known = [head for head in kept if heads.find(head, is_exact=False) is not None]
    assert known == kept[-len(known) :]
    assert 0 < sum(map(len, known)) <= (1 << 20) + 2 * LONGEST_HEAD
    for _ in range(600):  # one that is kept again takes its own place
        keep(599)
    assert heads.find(known[0], is_exact=False) is not None


@pytest.mark.parametrize(("fields", "has_holes"), [(32, True), (33, False)])
def test_a_head_of_many_fields_is_known_as_it_is_alone(fields: int, has_holes: bool) -> None:
    """Its pattern would take long to compile."""
    heads = KnownHeads()
    others = b"".join([b"X-%d: x\r\n" % number for number in range(fields - 3)])
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\n" + others + b"Id: %d\r\nContent-Length: 5\r\n\r\n"
    for number in (1, 2):
        assert heads.keep(head % number, ("m", None), {}, None, is_exact=False) is not None
    assert heads.find(head % 1, is_exact=True) is None  # the later one has its place
    assert heads.find(head % 2, is_exact=False) is not None
    assert (heads.find(head % 3, is_exact=False) is not None) == has_holes


class Ids:
    """Watches requests, and keeps what their header said."""

    is_watching = True
    waits_for_worker = False

    def __init__(self) -> None:
        self.seen: list[bytes | None] = []

    def begins(self, timeline: Timeline, header: HeaderOf) -> bool:
        self.seen.append(header(b"x-request-id"))
        return False

    def ended(self, timeline: Timeline) -> None: ...


def test_who_watches_requests_gets_each_header_as_it_came() -> None:
    fake, ids = FakeServer(), Ids()

    async def scenario(session: Session) -> None:
        for number in range(5):
            session.send(message(vector(1, 2, 3, 4), vector(1, 1, 1, 1), head=f"x-request-id: {number}\r\n"))
            await session.sums()
        fake.observation.watch(ids)
        for number in range(5, 10):
            session.send(message(vector(1, 2, 3, 4), vector(1, 1, 1, 1), head=f"x-request-id: {number}\r\n"))
            await session.sums()
        assert ids.seen == [b"%d" % number for number in range(5, 10)]

    in_session(scenario, fake)


# Heads that come by themselves --------------------------------------------------------------------------------------------


def pieces(data: bytes, *cuts: int) -> list[bytes]:
    """*data*: its head, and its body cut where *cuts* say, counted from its beginning."""
    begin = data.index(b"\r\n\r\n") + 4
    ends = [begin, *(begin + cut for cut in cuts), len(data)]
    return [data[:begin], *(data[left:right] for left, right in itertools.pairwise(ends))]


async def seen(session: Session) -> None:
    """Return when the server has read what was sent."""
    while True:
        await asyncio.sleep(0)
        if not session.unread():
            return


@pytest.mark.parametrize("cuts", [(), (1,), (40, 200), (3, 4, 5)], ids=str)
def test_a_head_may_come_before_its_body(cuts: tuple[int, ...]) -> None:
    """As from Python's own client, and those that are made of it."""

    async def scenario(session: Session) -> None:
        for step in range(4):
            for piece in pieces(message(vector(1, 2, 3, step), vector(1, 1, 1, 1), id=f"{step}"), *cuts):
                session.send(piece)
                await seen(session)
            status, _, answer = await session.reply()
            assert (status, answer["id"], answer["outputs"][0]["data"]) == (200, f"{step}", [2.0, 3.0, 4.0, step + 1.0])

    without_application(scenario)


def test_what_comes_right_behind_such_a_body_is_the_next_request() -> None:
    async def scenario(session: Session) -> None:
        one, other = (message(vector(step, 2, 3, 4), vector(1, 1, 1, 1)) for step in (1, 2))
        live = b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n"
        session.send(one)
        await session.sums()
        head, body = pieces(one)
        for behind in (other, live, other[:100]):
            session.send(head)
            await seen(session)
            session.send(body + behind)
            assert await session.sums() == [2.0, 3.0, 4.0, 5.0]
            if behind == live:
                assert (await session.reply())[0] == 200
                continue
            session.send(other[len(behind) :])
            assert await session.sums() == [3.0, 3.0, 4.0, 5.0]

    in_session(scenario)


def test_heads_of_requests_that_came_together_are_not_taken_for_one() -> None:
    async def scenario(session: Session) -> None:
        live = b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n"
        refused = message(vector(1, 1, 1, 1), vector(0, 0, 0, 0), model="nope")
        head, body = pieces(message(vector(1, 2, 3, 4), vector(1, 1, 1, 1)))
        for first, status in ((live, 200), (refused, 404)):
            for _ in range(3):
                session.send(first + head)
                assert (await session.reply())[0] == status
                session.send(body)
                assert await session.sums() == [2.0, 3.0, 4.0, 5.0]

    in_session(scenario)


@pytest.mark.parametrize("cut", [0, 10])
def test_a_connection_that_ends_before_such_a_body_is_closed(cut: int) -> None:
    async def scenario(session: Session) -> None:
        whole = message(vector(1, 2, 3, 4), vector(1, 1, 1, 1))
        session.send(whole)
        await session.sums()
        head, body = pieces(whole)
        session.send(head)
        await seen(session)
        if cut:
            session.send(body[:cut])
            await seen(session)
        session.writer.write_eof()
        assert await session.reader.read() == b""

    in_session(scenario)


def test_a_client_that_never_sends_such_a_body_is_cut_off() -> None:
    async def scenario(session: Session) -> None:
        whole = message(vector(1, 2, 3, 4), vector(1, 1, 1, 1))
        session.send(whole)
        await session.sums()
        head, _ = pieces(whole)
        session.send(head)
        assert await session.reader.read() == b""

    in_session(scenario, limits=ConnectionLimits(stall_timeout_s=0.2))


def test_a_listener_that_closes_waits_for_such_a_body() -> None:
    async def scenario(session: Session) -> None:
        whole = message(vector(1, 2, 3, 4), vector(1, 1, 1, 1))
        session.send(whole)
        await session.sums()
        head, body = pieces(whole)
        session.send(head)
        await seen(session)
        closing = asyncio.ensure_future(session.listener.close_gracefully(20))
        await asyncio.sleep(0)
        session.send(body)
        status, headers, _ = await session.reply()
        assert (status, headers["connection"]) == (200, "close")
        assert await closing

    in_session(scenario)


class SlowServer(FakeServer):
    """Answers when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[asyncio.Future[Any], Any]] = []
        self.asked = asyncio.Event()

    def answer_to(self, served: Any, request: Any) -> Any:
        answer = super().answer_to(served, request)
        held: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.held.append((held, answer))
        self.asked.set()
        return held

    async def wait_held(self, count: int) -> None:
        while len(self.held) < count:
            self.asked.clear()
            await self.asked.wait()

    def let_go(self, at: int = 0) -> None:
        held, answer = self.held.pop(at)
        held.set_result(answer.result())


def test_the_same_head_with_other_tensors_is_answered_with_their_sums() -> None:
    async def scenario(session: Session) -> None:
        for step in range(5):
            session.send(message(vector(1, 2, 3, step), vector(1, 1, 1, 1)))
            assert await session.sums() == [2.0, 3.0, 4.0, step + 1.0]

    in_session(scenario)


def test_heads_that_change_from_request_to_request_are_read_anew() -> None:
    async def scenario(session: Session) -> None:
        one = message(vector(1, 1, 1, 1), vector(0, 0, 0, 0))
        other = message(vector(2, 2, 2, 2), vector(0, 0, 0, 0), model="nope")
        for _ in range(2):
            session.send(one)
            assert await session.sums() == [1.0] * 4
            session.send(other)
            assert (await session.reply())[0] == 404
            session.send(b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n")
            assert (await session.reply())[0] == 200

    in_session(scenario)


def test_another_id_in_a_document_of_the_same_length_is_seen() -> None:
    async def scenario(session: Session) -> None:
        for request_id in ("aa", "bb", "aa"):
            session.send(message(vector(1, 1, 1, 1), vector(1, 1, 1, 1), id=request_id))
            assert (await session.reply())[2]["id"] == request_id

    in_session(scenario)


def test_parameters_of_one_request_are_not_those_of_the_next() -> None:
    async def scenario(session: Session) -> None:
        for _ in range(3):
            session.send(message(vector(1, 1, 1, 1), vector(1, 1, 1, 1), parameters={"a": 1}))
            await session.reply()
        seen = [request.parameters for request in session.server.requests]
        assert seen == [{"a": 1}] * 3
        assert len({id(parameters) for parameters in seen}) == 3

    in_session(scenario)


@pytest.mark.parametrize("cut", [1, 20, 120, -40, -1])
def test_a_remembered_head_may_come_in_pieces(cut: int) -> None:
    async def scenario(session: Session) -> None:
        whole = message(vector(1, 2, 3, 4), vector(0, 0, 0, 0))
        session.send(whole)
        assert await session.sums() == [1.0, 2.0, 3.0, 4.0]
        session.send(whole[:cut])
        await session.writer.drain()
        # The server has read the first piece when it has answered on another connection.
        reader, writer = await asyncio.open_connection("127.0.0.1", session.listener.port)
        writer.write(b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        await reader.read()
        writer.close()
        session.send(whole[cut:])
        assert await session.sums() == [1.0, 2.0, 3.0, 4.0]
        session.send(whole)
        assert await session.sums() == [1.0, 2.0, 3.0, 4.0]

    in_session(scenario)


def test_pipelined_requests_are_answered_in_order() -> None:
    async def scenario(session: Session) -> None:
        messages = [message(vector(at, at, at, at), vector(0, 0, 0, 0)) for at in range(4)]
        session.send(messages[0])
        assert await session.sums() == [0.0] * 4
        session.send(b"".join(messages) + b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n")
        for at in range(4):
            assert await session.sums() == [float(at)] * 4
        assert (await session.reply())[0] == 200

    in_session(scenario)


def test_a_body_is_not_a_part_of_the_head_that_is_remembered() -> None:
    """A document that ends in an empty line, with another request of its length pipelined behind it."""
    left, right = ({"name": f"INPUT{at}", "shape": [4], "datatype": "FP32", "data": [at] * 4} for at in (0, 1))
    body = json.dumps({"inputs": [left, right]}).encode() + b"\r\n\r\n"
    head = b"POST /v2/models/add_sub/infer HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body)
    live = b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\nX: %b\r\n\r\n"
    live %= b"x" * (len(body) - len(live) + 2)
    assert len(live) == len(body)

    async def scenario(session: Session) -> None:
        for _ in range(3):
            session.send(head + body + live)
            assert await session.sums() == [1.0] * 4
            assert (await session.reply())[0] == 200

    in_session(scenario)


def test_a_connection_whose_body_is_still_to_come_is_not_idle() -> None:
    whole = message(vector(1, 2, 3, 4), vector(0, 0, 0, 0))
    begin = whole.index(b"\r\n\r\n") + 4

    async def scenario(session: Session) -> None:
        session.send(whole)
        assert await session.sums() == [1.0, 2.0, 3.0, 4.0]
        session.send(whole[:begin])
        for _ in range(3):  # the time in which a connection without a request is closed
            reader, writer = await asyncio.open_connection("127.0.0.1", session.listener.port)
            assert await reader.read() == b""
            writer.close()
        session.send(whole[begin:])
        assert await session.sums() == [1.0, 2.0, 3.0, 4.0]

    in_session(scenario, limits=ConnectionLimits(idle_timeout_s=0.05))


def test_a_request_behind_one_that_is_not_answered_waits_for_it() -> None:
    server = SlowServer()

    async def scenario(session: Session) -> None:
        session.send(message(vector(1, 1, 1, 1), vector(0, 0, 0, 0)))
        await server.wait_held(1)
        session.send(message(vector(2, 2, 2, 2), vector(0, 0, 0, 0)))
        session.send(b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n")
        server.let_go()
        assert await session.sums() == [1.0] * 4
        await server.wait_held(1)
        server.let_go()
        assert await session.sums() == [2.0] * 4
        assert (await session.reply())[0] == 200

    in_session(scenario, server)


def test_a_client_that_reads_nothing_is_served_no_more_than_buffers_hold() -> None:
    """Each request comes when the one before was answered: none of them is pipelined."""
    server = FakeServer()
    count, elements = 600, 15_000
    text = json.dumps(
        {
            "inputs": [
                {
                    "name": "X",
                    "shape": [elements],
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": 4 * elements},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    start = (
        b"POST /v2/models/multi/infer HTTP/1.1\r\nHost: h\r\n"
        b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(text), len(text) + 4 * elements)
    )

    async def scenario(session: Session) -> None:
        for at in range(count):
            session.send(start + text + struct.pack("<f", at) * elements)
            for _ in range(10):
                await asyncio.sleep(0)
        assert len(server.requests) < count // 2  # 16 MiB, where a system's buffers for both sides have 10
        for at in range(count):
            _, headers, body = await raw_reply(session)
            length = int(headers["inference-header-content-length"])
            assert body[length:] == struct.pack("<f", at) * elements

    in_session(scenario, server)


def test_a_closing_listener_answers_what_is_in_flight_and_says_close() -> None:
    server = SlowServer()

    async def scenario(session: Session) -> None:
        session.send(message(vector(1, 1, 1, 1), vector(0, 0, 0, 0)))
        await server.wait_held(1)
        closing = asyncio.ensure_future(session.listener.close_gracefully(10))
        await asyncio.sleep(0)
        server.let_go()
        status, headers, _ = await session.reply()
        assert (status, headers["connection"]) == (200, "close")
        assert await session.reader.read() == b""
        assert await closing

    in_session(scenario, server)


def test_a_client_that_goes_away_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    server = SlowServer()

    async def scenario(session: Session) -> None:
        session.send(message(vector(1, 1, 1, 1), vector(0, 0, 0, 0)))
        await server.wait_held(1)
        session.writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", session.listener.port)
        writer.write(b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        await reader.read()
        writer.close()
        held, _ = server.held.pop()
        assert held.cancelled()

    in_session(scenario, server)
    assert caplog.text == ""


@pytest.mark.parametrize(
    "head",
    [
        "Connection: close\r\n",
        "Expect: 100-continue\r\n",
        "Accept-Encoding: gzip\r\n",
        "Content-Encoding: identity\r\n",
    ],
)
def test_what_is_unusual_is_answered_like_anything_else(head: str) -> None:
    async def scenario(session: Session) -> None:
        session.send(message(vector(1, 2, 3, 4), vector(1, 1, 1, 1), head=head))
        if "100" in head:
            assert await session.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        status, headers, _ = await raw_reply(session)
        assert status == 200
        assert ("gzip" in head) == ("content-encoding" in headers)

    in_session(scenario)


async def raw_reply(session: Session) -> tuple[int, dict[str, str], bytes]:
    head = (await session.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    return int(head[0].split()[1]), headers, await session.reader.readexactly(int(headers["content-length"]))


@given(
    ids=st.lists(st.text(max_size=3), min_size=1, max_size=4),
    parameters=st.dictionaries(st.sampled_from(["a", "priority", "timeout"]), st.integers(0, 9)),
    data=st.binary(min_size=32, max_size=32),
)
def test_a_template_gives_the_request_that_decoding_gives(
    ids: list[str], parameters: dict[str, int], data: bytes
) -> None:
    templates = Templates()
    for request_id in ids * 2:
        text = document(id=request_id, parameters=parameters)
        decoded, forms = codec.decode(
            text,
            model_name="m",
            version=3,
            available=32,
            binary=memoryview(data),
            max_input_size=1 << 20,
            regions=NO_REGIONS,
        )
        known = templates.read(text, "m", 3, text + data)
        templates.keep(text, decoded, forms, 32)
        if known is None:
            continue
        request, known_forms = known
        for field in (
            "model_name",
            "version",
            "request_id",
            "requested_outputs",
            "parameters",
            "priority",
            "timeout_us",
        ):
            assert getattr(request, field) == getattr(decoded, field)
        assert [(t.name, t.datatype, t.shape, t.nbytes, bytes(t.data)) for t in request.inputs] == [
            (t.name, t.datatype, t.shape, t.nbytes, bytes(t.data)) for t in decoded.inputs
        ]
        assert known_forms.listed == forms.listed
    text = document(id=ids[0], parameters=parameters)
    assert templates.read(text, "m", 3, text + data[:31]) is None


def read(templates: Templates, text: bytes, data: bytes = bytes(32)) -> Any:
    return templates.read(text, "m", None, text + data)


def decoded(text: bytes, data: bytes = bytes(32)) -> tuple[Any, Any]:
    return codec.decode(
        text,
        model_name="m",
        version=None,
        available=len(data),
        binary=memoryview(data),
        max_input_size=1 << 20,
        regions=NO_REGIONS,
    )


def with_id(request_id: str, rest: bytes, blank: str = "") -> bytes:
    return f'{{{blank}"id"{blank}:{blank}"{request_id}"{blank},'.encode() + rest


@pytest.mark.parametrize("blank", ["", " ", "  "])
def test_an_id_at_the_beginning_does_not_defeat_a_template(blank: str) -> None:
    templates = Templates()
    rest = document()[1:]
    templates.keep(with_id("first", rest, blank), *decoded(with_id("first", rest, blank)), 32)
    known = read(templates, with_id("a ~!#[]{}9", rest, blank))
    assert known is not None and known[0].request_id == "a ~!#[]{}9"
    known = read(templates, with_id("", rest, blank))
    assert known is not None and known[0].request_id == ""


@pytest.mark.parametrize("written", ["\\u0041", '\\"', "é", "\x01", "\x7f"])
def test_an_id_that_reads_otherwise_than_it_is_written_is_decoded(written: str) -> None:
    templates = Templates()
    rest = document()[1:]
    templates.keep(with_id("plain", rest), *decoded(with_id("plain", rest)), 32)
    assert read(templates, with_id(written, rest)) is None


def test_of_several_ids_the_last_counts_with_a_template_too() -> None:
    templates = Templates()
    rest = document(id="last")[1:]
    for first in ("one", "two", "one"):
        text = with_id(first, rest)
        known = read(templates, text)
        request, forms = decoded(text) if known is None else known
        templates.keep(text, request, forms, 32)
        assert request.request_id == "last"


@pytest.mark.parametrize("last", ["last", "one"])
def test_an_id_whose_name_is_written_with_an_escape_counts_with_a_template_too(last: str) -> None:
    templates = Templates()
    rest = document(id=last)[1:].replace(b'"id"', b'"\\u0069d"')
    for first in ("one", "two", "one"):
        text = with_id(first, rest)
        known = read(templates, text)
        request, forms = decoded(text) if known is None else known
        templates.keep(text, request, forms, 32)
        assert request.request_id == last


def test_an_id_whose_name_is_written_with_an_escape_is_that_of_its_answer_each_time() -> None:
    async def scenario(session: Session) -> None:
        for last in ("one", "two", "one", "three"):
            text = with_id("one", document(id=last)[1:].replace(b'"id"', b'"\\u0069d"'))
            session.send(message_of(text, vector(1, 2, 3, 4), vector(1, 1, 1, 1)))
            status, _, answer = await session.reply()
            assert (status, answer["id"]) == (200, last)
        assert [request.request_id for request in session.server.requests] == ["one", "two", "one", "three"]
        for first in ("one", "two", "one"):
            text = with_id(first, document(id="one")[1:].replace(b'"id"', b'"\\u0069d"'))
            session.send(message_of(text, vector(1, 2, 3, 4), vector(1, 1, 1, 1)))
            assert (await session.reply())[2]["id"] == "one"

    in_session(scenario)


def test_what_is_no_json_is_refused_though_it_is_a_part_of_what_was_seen() -> None:
    whole = document()
    parts = {"without its beginning": whole[1:], "with an id in front": with_id("two", whole)}

    async def scenario(session: Session) -> None:
        for text in (with_id("one", whole[1:]), whole):
            session.send(message_of(text, vector(1, 2, 3, 4), vector(1, 1, 1, 1)))
            assert (await session.reply())[0] == 200
        for name, text in parts.items():
            session.send(message_of(text, vector(1, 2, 3, 4), vector(1, 1, 1, 1)))
            answer = (await session.reply())[2]
            assert answer.get("error", "").startswith("failed to parse the request JSON buffer"), name
        assert [request.request_id for request in session.server.requests] == ["one", ""]

    in_session(scenario)


def test_a_template_keeps_no_tensor() -> None:
    templates = Templates()
    data = bytearray(32)
    templates.keep(document(), *decoded(document(), data), 32)
    data.clear()  # raises BufferError where a view of it is left


HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\n%bAccept: */*\r\n\r\n"
JSON_LENGTH, LENGTH = b"Inference-Header-Content-Length: %d\r\n", b"content-length:%d\r\n"


@pytest.mark.parametrize("body", [0, 7, 10, 12345, 65536])
@pytest.mark.parametrize("json_bytes", [0, 9, 240, 99999])
def test_a_known_head_is_known_with_other_lengths(body: int, json_bytes: int) -> None:
    for lengths, expected in (
        (LENGTH, (body, -1)),
        (LENGTH + JSON_LENGTH, (body, json_bytes)),
        (JSON_LENGTH + b"X: y\r\n" + LENGTH, (body, json_bytes)),
    ):
        numbers = (json_bytes, body) if lengths.startswith(JSON_LENGTH) else (body, json_bytes)
        known = known_head(HEAD % (lengths % ((3, 44) if JSON_LENGTH in lengths else (3,))))
        assert known is not None
        head = HEAD % (lengths % numbers[: 1 + (JSON_LENGTH in lengths)])
        assert known.read(head + b"the body") == (len(head), *expected)


@pytest.mark.parametrize(
    "head",
    [
        HEAD % (LENGTH % 100000),
        HEAD % b"content-length:\r\n",
        HEAD % b"content-length:+5\r\n",
        HEAD % b"content-length: 5\r\n",
        HEAD % b"Content-Length:5\r\n",
        HEAD % b"content-length:5\r\nX: y\r\n",
        HEAD % b"content-length:5\r\ncontent-length:5\r\n",
        (HEAD % (LENGTH % 5))[:-1],
        (HEAD % (LENGTH % 5)).replace(b"\r\nAccept", b"\nAccept"),
        (HEAD % (LENGTH % 5)).replace(b"/m/", b"/n/"),
        b"HEAD" + (HEAD % (LENGTH % 5))[4:],
        HEAD % "content-length:٥\r\n".encode(),
        b"",
    ],
)
def test_any_other_difference_is_for_the_parser(head: bytes) -> None:
    known = known_head(HEAD % (LENGTH % 3))
    assert known is not None
    assert known.read(head) is None


@pytest.mark.parametrize("lengths", [LENGTH % 30, LENGTH % 30 + JSON_LENGTH % 20, JSON_LENGTH % 20 + LENGTH % 30])
def test_a_known_head_of_which_a_part_has_come_is_not_there_yet(lengths: bytes) -> None:
    """Wherever it was cut, also in front of a length: mypyc's slices of bytes raise where Python's are empty."""
    head = HEAD % lengths
    known = known_head(head)
    assert known is not None
    assert [known.read(head[:cut]) for cut in range(len(head))] == [None] * len(head)


@pytest.mark.parametrize(
    "lengths",
    [
        b"",
        LENGTH % 5 + b"Inference-Header-Content-Length: +3\r\n",
        LENGTH % 5 + b"Inference-Header-Content-Length: 3 \r\n",
        LENGTH % 5 + JSON_LENGTH % 3 + JSON_LENGTH % 3,
        LENGTH % 5 + b"X-Content-Length: 3\r\n",
        JSON_LENGTH % 3,
    ],
)
def test_heads_with_unusual_lengths_are_not_remembered(lengths: bytes) -> None:
    assert known_head(HEAD % lengths) is None


@pytest.mark.parametrize("head", ["", "Content-Encoding: identity\r\n"], ids=["hot path", "application"])
def test_requests_that_differ_get_each_its_own_answer(head: str) -> None:
    async def scenario(session: Session) -> None:
        for number in (1, 22, 333, 4, 55555):
            session.send(message(vector(number, 1, 1, 1), vector(1, 0, 0, 0), head=head, id=f"r{number}"))
            status, _, answer = await session.reply()
            assert (status, answer["id"]) == (200, f"r{number}")
            assert answer["outputs"][0]["data"] == [number + 1, 1, 1, 1]

    in_session(scenario)


@pytest.mark.parametrize("head", ["", "Content-Encoding: identity\r\n"], ids=["hot path", "application"])
def test_a_known_head_whose_lengths_do_not_fit_is_refused_as_the_first_is(head: str) -> None:
    async def scenario(session: Session) -> None:
        good = message(vector(1, 1, 1, 1), vector(1, 0, 0, 0), head=head)
        for length, expected, error in (
            ("99999", 400, "inference header size should be in range"),
            ("1", 500, "failed to parse"),
        ):
            session.send(good)
            assert (await session.reply())[0] == 200
            session.send(good.replace(f"Length: {len(document())}".encode(), f"Length: {length}".encode()))
            status, _, answer = await session.reply()
            assert (status, error in answer["error"]) == (expected, True), answer

    in_session(scenario)


@pytest.mark.parametrize("shape", [[1 << 63], [(1 << 64) - 1], [1] * 256, [0, 1 << 63]])
def test_a_shape_that_no_message_can_say_is_refused_for_what_the_model_wants(shape: list[int]) -> None:
    async def scenario(session: Session) -> None:
        text = document().replace(b'"shape": [4]', b'"shape": ' + json.dumps(shape).encode(), 1)
        for _ in range(2):
            session.send(message_of(text, vector(1, 2, 3, 4), vector(1, 2, 3, 4)))
            status, _, answer = await session.reply()
            assert (status, "unexpected shape for input 'INPUT0'" in answer["error"]) == (400, True)

    in_session(scenario)


@pytest.mark.parametrize("has_binary", [False, True])
def test_documents_with_json_tensors_are_not_remembered(has_binary: bool) -> None:
    entries = json.loads(document())["inputs"]
    data = {"name": "INPUT0", "shape": [4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    text = json.dumps({"inputs": [data, entries[1] if has_binary else data | {"name": "INPUT1"}]}).encode()
    tail = vector(1, 1, 1, 1) if has_binary else b""
    whole = message_of(text, tail, b"").replace(
        b"%d\r\n\r\n" % (len(text) + 32), b"%d\r\n\r\n" % (len(text) + len(tail))
    )

    async def scenario(session: Session) -> None:
        for _ in range(2):
            session.send(whole)
            assert (await session.reply())[0] == 200
            session.send(message_of(text, vector(9, 9, 9, 9), vector(9, 9, 9, 9)))
            status, _, answer = await session.reply()
            assert (status, answer["error"]) == (400, "unexpected additional input data for model 'add_sub'")

    in_session(scenario)


class OverloadedServer(FakeServer):
    """Too much waits, whatever comes."""

    def __init__(self, retry_after_s: float | None, code: ErrorCode = ErrorCode.UNAVAILABLE) -> None:
        super().__init__()
        self._error = InferenceError(code, "too much waits", retry_after_s=retry_after_s)

    def infer(self, served: Any, request: Any, receiver: Any) -> Any:
        raise self._error


@pytest.mark.parametrize("head", ["", "Content-Encoding: identity\r\n"], ids=["hot path", "application"])
@pytest.mark.parametrize(("retry_after_s", "header"), [(0.02, "1"), (1.0, "1"), (2.1, "3"), (None, None)])
def test_refusal_says_in_whole_seconds_when_to_try_again(head: str, retry_after_s: float | None, header: Any) -> None:
    async def scenario(session: Session) -> None:
        session.send(message(vector(1, 1, 1, 1), vector(0, 0, 0, 0), head=head))
        status, headers, answer = await session.reply()
        assert (status, headers.get("retry-after"), answer) == (503, header, {"error": "too much waits"})

    in_session(scenario, OverloadedServer(retry_after_s))


@pytest.mark.parametrize("head", ["", "Content-Encoding: identity\r\n"], ids=["hot path", "application"])
def test_overload_may_be_told_as_429(head: str) -> None:
    async def scenario(session: Session) -> None:
        session.send(message(vector(1, 1, 1, 1), vector(0, 0, 0, 0), head=head))
        status, headers, _ = await session.reply()
        assert (status, headers["retry-after"]) == (429, "1")

    in_session(scenario, OverloadedServer(1.0, ErrorCode.RESOURCE_EXHAUSTED))


def large_message(count: int, value: float, request_id: str = "x") -> bytes:
    """So many numbers for the model that gives them back, which is asked for binary data."""
    described = {"name": "X", "shape": [count], "datatype": "FP32", "parameters": {"binary_data_size": 4 * count}}
    text = json.dumps({"id": request_id, "inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    head = (
        f"POST /v2/models/ident_FP32/infer HTTP/1.1\r\nHost: h\r\nInference-Header-Content-Length: {len(text)}\r\n"
        f"Content-Length: {len(text) + 4 * count}\r\n\r\n"
    )
    return head.encode() + text + struct.pack("<f", value) * count


@pytest.mark.parametrize("count", [16_000, 17_000, 40_000, 65_000, 70_000])
@pytest.mark.parametrize("piece", [1000, 30_000, 1 << 20])
def test_a_larger_body_may_come_in_pieces_of_any_size(count: int, piece: int) -> None:
    async def scenario(session: Session) -> None:
        for value in (1.5, 2.5):
            sent = large_message(count, value)
            for at in range(0, len(sent), piece):
                session.send(sent[at : at + piece])
                await session.writer.drain()
                await asyncio.sleep(0)
            status, headers, body = await raw_reply(session)
            assert status == 200
            assert body[int(headers["inference-header-content-length"]) :] == struct.pack("<f", value) * count
        assert session.server.receive_budget.taken == 0

    in_session(scenario)


def test_a_larger_body_counts_as_unfinished_until_it_is_whole() -> None:
    async def scenario(session: Session) -> None:
        budget = session.server.receive_budget
        sent = large_message(40_000, 1.0)
        session.send(sent[:50_000])
        await until(lambda: budget.taken > 150_000)
        session.send(sent[50_000:])
        assert (await raw_reply(session))[0] == 200
        assert budget.taken == 0
        session.send(sent[:50_000])
        await until(lambda: budget.taken > 150_000)
        session.writer.close()
        await until(lambda: budget.taken == 0)

    in_session(scenario)


def test_a_larger_body_that_there_is_no_room_for_is_refused() -> None:
    async def scenario(session: Session) -> None:
        session.server.receive_budget.limit = 100_000
        session.send(large_message(40_000, 1.0))
        status, _, body = await raw_reply(session)
        assert (status, b"--max-receiving-bytes" in body) == (503, True)
        session.server.receive_budget.limit = None
        session.send(large_message(40_000, 1.0))
        assert (await raw_reply(session))[0] == 200
        assert session.server.receive_budget.taken == 0

    in_session(scenario)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # `in_session` ends it
        await asyncio.sleep(0.001)
