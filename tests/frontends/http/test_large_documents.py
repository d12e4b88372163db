"""What is read in threads: in whose turn, and for how long somebody waits for it."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.tensor import MAX_DIMENSIONS, Tensor
from pytriton_lite.frontends.http import json_slices
from pytriton_lite.frontends.http.bodies import Disconnected, LargeDocuments, many_texts
from pytriton_lite.frontends.http.json_dialect import loads
from pytriton_lite.frontends.http.json_slices import GivenUp, Job, pause
from pytriton_lite.frontends.http.json_tensors import write_data
from pytriton_lite.frontends.listener import GONE, Receive, Scope, Send, start_listener, when_gone

LARGE, VERY_LARGE = 100_000, 10 << 20
DOCUMENT = b'{"data":[' + b"1," * 200_000 + b"1]}"
WAIT_S = 20


class Client:
    """Whose scope says when it goes."""

    def __init__(self) -> None:
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.scope: dict[str, Any] = {"extensions": {GONE: {"future": lambda: self.gone}}}

    def go(self) -> None:
        self.gone.set_result(None)


class Work:
    """Reads a document when it is let go, in whatever thread."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_go_on = threading.Event()
        self.has_ended = threading.Event()
        self.is_done = False

    def __call__(self) -> str:
        self.has_begun.set()
        try:
            assert self.may_go_on.wait(WAIT_S)
            loads(DOCUMENT)
            self.is_done = True
            return "read"
        finally:
            self.has_ended.set()


async def begun(work: Work) -> None:
    assert await asyncio.to_thread(work.has_begun.wait, WAIT_S)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 2 * WAIT_S))


def test_small_ones_are_read_at_once_and_large_ones_elsewhere() -> None:
    async def scenario() -> None:
        large = LargeDocuments()
        here = threading.get_ident()
        assert await large.run(1000, threading.get_ident) == here
        assert await large.run(LARGE, threading.get_ident) != here
        assert await large.run(LARGE, threading.get_ident, Client().scope) != here

    run(scenario)


@pytest.mark.parametrize("fails", [ValueError("no"), None])
def test_what_is_raised_comes_out_and_the_next_has_its_turn(fails: Exception | None) -> None:
    async def scenario() -> None:
        large = LargeDocuments()

        def work() -> str:
            if fails is not None:
                raise fails
            return "read"

        for _ in range(3):
            found = await asyncio.gather(large.run(LARGE, work, Client().scope), return_exceptions=True)
            assert found == [fails or "read"]

    run(scenario)


def test_one_that_no_thread_can_be_started_for_is_refused_and_the_next_has_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def scenario() -> None:
        large = LargeDocuments()
        done: list[str] = []
        for scope in (None, Client().scope):
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", no_thread)
                with pytest.raises(RuntimeError, match="new thread"):
                    await large.run(LARGE, lambda: done.append("too late"), scope)
        assert await large.run(LARGE, lambda: "read") == "read"
        assert done == []

    run(scenario)


def test_a_large_one_does_not_wait_behind_a_very_large_one() -> None:
    async def scenario() -> None:
        large, long, longer = LargeDocuments(), Work(), Work()
        reading = [asyncio.create_task(large.run(VERY_LARGE, work)) for work in (long, longer)]
        await begun(long)
        assert await large.run(LARGE, lambda: "read") == "read"
        assert not longer.has_begun.is_set()
        long.may_go_on.set()
        longer.may_go_on.set()
        assert await asyncio.gather(*reading) == ["read", "read"]

    run(scenario)


def test_what_nobody_waits_for_is_given_up_and_keeps_its_turn_until_then() -> None:
    async def scenario() -> None:
        large, client, work, behind = LargeDocuments(), Client(), Work(), Work()
        reading = asyncio.create_task(large.run(LARGE, work, client.scope))
        await begun(work)
        next_one = asyncio.create_task(large.run(LARGE, behind))
        client.go()
        with pytest.raises(Disconnected):
            await reading
        assert not behind.has_begun.is_set()
        work.may_go_on.set()
        await begun(behind)
        assert work.has_ended.is_set() and not work.is_done
        behind.may_go_on.set()
        assert await next_one == "read"

    run(scenario)


def test_who_has_gone_while_others_were_read_is_not_read_at_all() -> None:
    async def scenario() -> None:
        large, client, work, behind = LargeDocuments(), Client(), Work(), Work()
        reading = asyncio.create_task(large.run(LARGE, work))
        await begun(work)
        waiting = asyncio.create_task(large.run(LARGE, behind, client.scope))
        await asyncio.sleep(0)
        client.go()
        with pytest.raises(Disconnected):
            await waiting
        with pytest.raises(Disconnected):
            await large.run(LARGE, behind, client.scope)
        work.may_go_on.set()
        assert await reading == "read"
        assert not behind.has_begun.is_set()

    run(scenario)


def test_a_task_that_is_cancelled_is_not_told_that_its_client_has_gone() -> None:
    async def scenario() -> None:
        large, work = LargeDocuments(), Work()
        reading = asyncio.create_task(large.run(LARGE, work, Client().scope))
        await begun(work)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        work.may_go_on.set()
        assert await large.run(LARGE, lambda: "read") == "read"
        assert not work.is_done

    run(scenario)


@pytest.mark.parametrize("dimensions", [MAX_DIMENSIONS, MAX_DIMENSIONS + 1])
def test_texts_of_more_dimensions_than_any_tensor_has_are_not_counted(dimensions: int) -> None:
    text = Tensor("T", dtypes.BYTES, (20_000, *[1] * (dimensions - 1)), bytes(80_000))
    found = many_texts(InferenceRequest("m", None, inputs=[text]))
    assert found == ([text] if dimensions == MAX_DIMENSIONS else [])


def test_the_loop_has_a_turn_between_two_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_slices, "_SLICE_S", 0.0)

    async def scenario() -> None:
        large = LargeDocuments()
        turns = 0

        def work() -> int:
            before = turns
            for _ in range(5):
                pause()
            return turns - before

        def turn() -> None:
            nonlocal turns
            turns += 1
            loop.call_soon(turn)

        loop = asyncio.get_running_loop()
        loop.call_soon(turn)
        assert await large.run(LARGE, work) >= 5

    run(scenario)


def test_what_is_done_when_the_loop_has_ended_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_slices, "_SLICE_S", 0.0)
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(GivenUp):
        Job(loop).run(pause)


class Document:
    """Large, and seen by whoever looks whether it is still there."""


@pytest.mark.parametrize("has_scope", [False, True])
def test_a_document_that_is_refused_is_gone_with_the_refusal(has_scope: bool) -> None:
    """Without waiting for a collection of what refers to itself."""

    async def scenario() -> None:
        document = Document()
        loop, has_gone = asyncio.get_running_loop(), asyncio.Event()
        seen = weakref.ref(document, lambda _: loop.call_soon_threadsafe(has_gone.set))

        def work(document: Document = document) -> None:
            try:
                raise ValueError("too complex")
            except ValueError:
                raise InferenceError(ErrorCode.INVALID_ARG, "no") from None

        del document
        large = LargeDocuments()
        with pytest.raises(InferenceError, match="no"):
            await large.run(LARGE, work, Client().scope if has_scope else None)
        del work
        await asyncio.wait_for(has_gone.wait(), WAIT_S)  # the thread lets go of it a moment later
        assert seen() is None

    gc.disable()
    try:
        run(scenario)
    finally:
        gc.enable()


def test_an_application_hears_of_the_end_of_its_connection_without_asking_for_the_body() -> None:
    async def scenario() -> None:
        heard: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            gone = when_gone(scope)
            assert gone is not None
            heard.set_result(gone.done())
            await gone
            again = when_gone(scope)
            assert again is gone
            ended.set()

        ended = asyncio.Event()
        listener = await start_listener(app, host="127.0.0.1", port=0, reuse_port=False, name="HTTPService")
        _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc")
        assert await heard is False
        writer.transport.abort()
        await ended.wait()
        assert await listener.close_gracefully(5)

    run(scenario)


def test_another_servers_scope_says_nothing() -> None:
    assert when_gone({}) is None and when_gone({"extensions": {}}) is None


@pytest.mark.parametrize("shift", range(4))
def test_a_long_string_is_written_as_a_short_one(shift: int) -> None:
    """In pieces, which end anywhere: at a character that is escaped, or has several bytes."""
    text = "x" * shift + 'a"\\\n\x01\x7fé€\U0001f600\u2028' * 200_000
    tensor = Tensor("OUT", dtypes.BYTES, (2,), b"")
    written = write_data(tensor, bytes_tensor.encode([text.encode(), b"b"]))
    assert written == b"[" + json.dumps(text, ensure_ascii=False).encode() + b',"b"]'
    bad = b"x" * shift + text.encode("utf-8")[1:-1] + b'\xff"'  # no UTF-8: its bytes stand as they are
    expected = json.dumps(bad.decode("latin-1"), ensure_ascii=False).encode("latin-1")
    assert write_data(tensor, bytes_tensor.encode([bad, b"b"])) == b"[" + expected + b',"b"]'


SHORT_OF_MEMORY = """
import ctypes, mmap, resource, sys
import numpy as np
from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.request import InferenceResponse
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.frontends.http import codec, json_dialect

numbers = Tensor("OUT", dtypes.FP64, (1 << 18,), np.random.default_rng(1).random(1 << 18).tobytes())
strings = Tensor("OUT", dtypes.BYTES, (2,), bytes_tensor.encode([b"a" * (4 << 20)] * 2))
forms = codec.OutputForms(default=False, listed={})
work = {
    "read a list": lambda: [*json_dialect.loads(b'{"a":["' + b"a" * (4 << 20) + b'"]}')["a"].slices()],
    "read a string": lambda: json_dialect.loads(b'{"a":"' + b"a" * (4 << 20) + b'"}'),
    "write numbers": lambda: codec.encode(InferenceResponse("m", 1, "", [numbers], {}), forms),
    "write strings": lambda: codec.encode(InferenceResponse("m", 1, "", [strings], {}), forms),
}[sys.argv[1]]
work()  # what it imports
if sys.platform == "linux":
    ctypes.CDLL(None).malloc_trim(0)  # what the allocator keeps would do for the first ones
limit = 2 << 30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
ends = []
for free in range(1, 200, 3):
    taken = []
    for size in (16 << 20, 1 << 20, 4096):
        try:
            while True:
                taken.append(mmap.mmap(-1, size))
        except (OSError, MemoryError):  # for the mapping, or for the object or the list
            pass
    room = free << 20
    while room > 0:
        room -= len(taken.pop(0))
    try:
        work()
        ends.append("done")
    except MemoryError:
        ends.append("refused")
    del taken
print(ends[0], ends[-1])
"""


@pytest.mark.parametrize("work", ["read a list", "read a string", "write numbers", "write strings"])
def test_where_memory_is_short_a_document_is_refused_and_the_process_lives(work: str) -> None:
    command = [sys.executable, "-c", SHORT_OF_MEMORY, work]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "refused done\n"), done.stderr


def test_a_refusal_for_want_of_memory_says_so() -> None:
    def fails() -> None:
        raise MemoryError

    async def scenario() -> None:
        for nbytes in (10, 10 << 20):
            with pytest.raises(InferenceError, match=f"no memory to read or write {nbytes} bytes") as refusal:
                await LargeDocuments().run(nbytes, fails)
            assert refusal.value.code is ErrorCode.UNAVAILABLE

    run(scenario)
