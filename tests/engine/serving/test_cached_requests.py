"""Requests whose lookup takes a while: large ones, and those of a cache on another machine. What may happen meanwhile."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from pytriton_lite.config.model_config import ModelConfig, parse_model_config
from pytriton_lite.core import dtypes
from pytriton_lite.core.build import build_kind
from pytriton_lite.core.errors import BUG, ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse, ResponseReceiver
from pytriton_lite.core.states import VersionState
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.cache.response_cache import CachedOutput, CacheSpace, ResponseCache, copied
from pytriton_lite.engine.counting.statistics import FailureReason, ModelStatistics, Refusal
from pytriton_lite.engine.counting.unanswered import Unanswered, UnansweredLimits, UnansweredTotal
from pytriton_lite.engine.server import Server
from pytriton_lite.engine.serving.cached_requests import CachedRequests
from pytriton_lite.engine.tracing.tensors import QUEUE_INPUT, copies
from pytriton_lite.frontends.pending_answer import PendingAnswer
from pytriton_lite.ipc.region import ClientSegment
from pytriton_lite.scheduling.ticket import Caller, Executor, Ticket, Ways
from tests.engine.answering import answer_of
from tests.engine.store_scenarios import ADDER_CONFIG, adder, ensemble, run, value_of
from tests.engine.store_scenarios import request as request_to
from tests.engine.version_kit import WAIT_S, World, wait_until
from tests.harness import write_model

CONFIG = ModelConfig.from_message(
    parse_model_config(
        'name: "m" backend: "python" input { name: "IN" data_type: TYPE_UINT8 dims: [ -1 ] } '
        'output { name: "OUT" data_type: TYPE_UINT8 dims: [ -1 ] }',
        source="the test",
    )
)
OUTPUTS = [Tensor("OUT", dtypes.UINT8, (1,), b"x")]
KEPT = copied(OUTPUTS)
SMALL, LARGE = b"1", bytes(1 << 20)


class Space(CacheSpace):
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.lookups: list[asyncio.Future[Any]] = []
        self.kept: dict[bytes, tuple[CachedOutput, ...]] = {}
        self.asked = asyncio.Event()

    def lookup(self, digest: bytes) -> asyncio.Future[Any]:
        self.lookups.append(asyncio.get_running_loop().create_future())
        self.asked.set()
        return self.lookups[-1]

    def insert(self, digest: bytes, tensors: list[Tensor]) -> None:
        self.kept[digest] = copied(tensors)

    def drop(self) -> None:
        self.kept.clear()


IS_COMPILED = build_kind() == "compiled"


class _Counted(Unanswered):
    """Tells *version* when a request is not waited for any more, before anything becomes of it."""

    def __init__(self, version: Version) -> None:
        super().__init__("m", UnansweredTotal(UnansweredLimits()))
        self._version = version

    def give_back(self, request: InferenceRequest, nbytes: int) -> None:
        super().give_back(request, nbytes)
        self._version.on_counted_out()


class Version:
    """As much of a version as is asked; ``executing`` are the waiters of what was submitted."""

    name, version, config, labels = "m", 1, CONFIG, {}

    def __init__(self) -> None:
        self.statistics = ModelStatistics("m", 1, {})
        self.on_counted_out: Callable[[], object] = bool
        self.unanswered = Unanswered("m", UnansweredTotal(UnansweredLimits())) if IS_COMPILED else _Counted(self)
        self.holders = 0
        self.state = VersionState.READY
        self.refusal: InferenceError | None = None
        self.refused: list[BaseException] = []
        self.executing: list[Any] = []
        self.submitted = asyncio.Event()

    def hold(self) -> None:
        self.holders += 1

    def release(self) -> None:
        self.holders -= 1

    def count_refusal(self, error: BaseException) -> None:
        self.refused.append(error)

    def answer_in_order(self, deliver: Callable[[], None]) -> None:
        deliver()

    def not_ready_error(self) -> InferenceError:
        return InferenceError(ErrorCode.UNAVAILABLE, "not ready")

    def execute(self, ticket: Ticket) -> None:
        if self.refusal is not None:
            raise self.refusal
        ticket.owner = Executing()
        self.executing.append(ticket)
        self.submitted.set()


class Executing:
    """Owns the requests that are executed."""

    def __init__(self) -> None:
        self.was_told = False

    def cancelled(self, ticket: Ticket) -> None:
        self.was_told = True

    def consumed(self, ticket: Ticket, count: int) -> None:
        pass

    def may_be_stuck(self, ticket: Ticket) -> bool:
        return False

    def ways_on(self, ticket: Ticket) -> Ways:
        return [[]]

    def servers_of(self, ticket: Ticket) -> list[Executor]:
        return []


class Receiver:
    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.ended = asyncio.Event()

    def on_response(self, response: Any, *, is_final: bool) -> None:
        self.heard.append(response)
        if is_final:
            self.ended.set()


class _Served:
    """Accepts everything."""

    def __init__(self, cached: CachedRequests) -> None:
        self._cached = cached

    def infer(self, wanted: InferenceRequest, receiver: ResponseReceiver) -> Ticket:
        ticket = Ticket(wanted, receiver, batch_size=1, shape_key=None, accepted_ns=0)
        self._cached.begin(ticket)
        return ticket


class Scene:
    def __init__(self) -> None:
        self._before = asyncio.all_tasks()
        self.version = Version()
        self.space = Space()
        self.cached = CachedRequests(
            self.version,  # type: ignore[arg-type]
            self.space,
            execute=self.version.execute,
            clock=lambda: 0,
        )

    def infer(self, data: bytes = SMALL, wanted: InferenceRequest | None = None) -> PendingAnswer:
        return answer_of(_Served(self.cached), request(data) if wanted is None else wanted)

    def stream(self, data: bytes = SMALL, caller: Caller | None = None) -> tuple[Ticket, Receiver]:
        receiver = Receiver()
        ticket = Ticket(request(data), receiver, batch_size=1, shape_key=None, accepted_ns=0, caller=caller)
        self.cached.begin(ticket)
        return ticket, receiver

    async def looked_up(self, found: Any) -> None:
        """The cache answers the lookup that comes next."""
        await self.space.asked.wait()
        self.space.asked.clear()
        self.space.lookups[-1].set_result(found)

    async def settled(self) -> None:
        """Every task that was begun has ended, and what hears of it has heard."""
        await asyncio.gather(*(asyncio.all_tasks() - self._before), return_exceptions=True)
        await asyncio.sleep(0)

    async def executed(self) -> Any:
        """What is submitted, once it is."""
        await self.version.submitted.wait()
        self.version.submitted.clear()
        return self.version.executing[-1]


def request(data: bytes) -> InferenceRequest:
    return InferenceRequest("m", 1, request_id="q", inputs=[Tensor("IN", dtypes.UINT8, (len(data),), data)])


def response() -> InferenceResponse:
    return InferenceResponse("m", 1, "q", list(OUTPUTS), {})


def play(act: Callable[[Scene], Awaitable[None]]) -> None:
    async def scenario() -> None:
        scene = Scene()
        await act(scene)
        await scene.settled()
        assert scene.version.holders == 0

    asyncio.run(asyncio.wait_for(scenario(), 20))


sizes = pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "hashed in a thread"])


@sizes
def test_a_late_hit_is_an_answer(data: bytes) -> None:
    async def act(scene: Scene) -> None:
        answer = scene.infer(data)
        await scene.looked_up(KEPT)
        found = await answer
        assert (found.request_id, found.outputs[0].data) == ("q", b"x")
        assert not scene.version.executing
        assert scene.version.statistics.cache_hit.count == 1

    play(act)


@sizes
def test_a_late_miss_is_executed_and_kept(data: bytes) -> None:
    async def act(scene: Scene) -> None:
        answer = scene.infer(data)
        await scene.looked_up(None)
        (await scene.executed()).deliver(response(), is_final=True)
        assert (await answer).outputs[0].data == b"x"
        assert list(scene.space.kept.values()) == [KEPT]
        assert scene.version.statistics.cache_miss.count == 1

    play(act)


def test_the_version_is_held_while_its_cache_is_asked() -> None:
    async def act(scene: Scene) -> None:
        answer = scene.infer()
        assert scene.version.holders == 1
        await scene.looked_up(KEPT)
        await answer

    play(act)


def test_a_request_that_is_refused_after_its_lookup_fails_and_is_counted() -> None:
    async def act(scene: Scene) -> None:
        scene.version.refusal = InferenceError(ErrorCode.UNAVAILABLE, "Exceeds maximum queue size")
        answer = scene.infer()
        _, receiver = scene.stream()
        for lookup in (*scene.space.lookups,):
            lookup.set_result(None)
        with pytest.raises(InferenceError, match="Exceeds maximum queue size"):
            await answer
        await receiver.ended.wait()
        assert receiver.heard == [scene.version.refusal]
        assert scene.version.refused == [scene.version.refusal] * 2
        assert scene.version.refusal.is_refusal

    play(act)


def test_a_version_whose_workers_died_meanwhile_answers_what_it_has_kept_alone() -> None:
    async def act(scene: Scene) -> None:
        scene.version.state = VersionState.UNAVAILABLE
        for found in (KEPT, None):
            answer = scene.infer()
            await scene.looked_up(found)
            if found is None:
                with pytest.raises(InferenceError, match="not ready"):
                    await answer
            else:
                assert (await answer).outputs[0].data == b"x"
        _, receiver = scene.stream()
        await scene.looked_up(None)
        await receiver.ended.wait()
        assert receiver.heard[0].code is ErrorCode.UNAVAILABLE
        assert receiver.heard[0].is_refusal

    play(act)


@pytest.mark.parametrize("has_begun", [False, True])
@sizes
def test_a_request_that_is_cancelled_while_it_is_looked_up_is_not_executed(data: bytes, has_begun: bool) -> None:
    async def act(scene: Scene) -> None:
        answer = scene.infer(data)
        stream, receiver = scene.stream(data)
        if has_begun:
            await asyncio.sleep(0)
        answer.cancel()
        stream.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answer
        await scene.settled()
        counted = scene.version.statistics
        assert (counted.cancellations, counted.failures[FailureReason.CANCELED]) == (2, 2)
        assert (scene.version.executing, receiver.heard) == ([], [])

    play(act)


def test_a_request_that_is_cancelled_while_it_is_executed_is_cancelled_there() -> None:
    async def act(scene: Scene) -> None:
        answer = scene.infer()
        await scene.looked_up(None)
        executing = await scene.executed()
        answer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answer
        assert executing.owner.was_told
        executing.deliver(response(), is_final=True)
        assert not scene.space.kept

    play(act)


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_request_for_classes_that_is_cancelled_is_cancelled_where_it_executes(has_begun: bool) -> None:
    async def act(scene: Scene) -> None:
        scene.space.lookup = lambda digest: None  # type: ignore[assignment,method-assign,return-value]
        wanted = request(SMALL)
        wanted.classes = {"OUT": 1}
        answer = scene.infer(wanted=wanted)
        if has_begun:
            await asyncio.sleep(0)
        answer.cancel()
        await scene.settled()
        assert scene.version.executing[0].owner.was_told

    play(act)


@pytest.mark.parametrize("is_traced", [False, True])
def test_what_lies_in_a_clients_memory_is_executed_as_it_was_looked_up(tmp_path: Path, is_traced: bool) -> None:
    """Also where a tracer has read it before."""
    (tmp_path / "segment").write_bytes(b"12345678")
    segment = ClientSegment(os.open(tmp_path / "segment", os.O_RDWR), 8)

    async def act(scene: Scene) -> None:
        wanted = request(SMALL)
        wanted.inputs = [Tensor("IN", dtypes.UINT8, (8,), None, nbytes=8, home=(segment, 0))]
        if is_traced:
            assert copies(QUEUE_INPUT, wanted.inputs)
        answer = scene.infer(wanted=wanted)
        await scene.looked_up(None)
        executing = await scene.executed()
        segment.write(0, b"another_")
        (tensor,) = executing.request.inputs
        assert (tensor.data, tensor.home) == (b"12345678", None)
        executing.deliver(response(), is_final=True)
        await answer

    play(act)


# ---------------------------------------------------------------------------------------------- streams


@sizes
@pytest.mark.parametrize("found", [KEPT, None], ids=["hit", "miss"])
def test_a_stream_hears_its_one_response(data: bytes, found: Any) -> None:
    async def act(scene: Scene) -> None:
        stream, receiver = scene.stream(data)
        await scene.looked_up(found)
        if found is None:
            (await scene.executed()).deliver(response(), is_final=True)
        await receiver.ended.wait()
        assert [heard.outputs[0].data for heard in receiver.heard] == [b"x"]
        assert stream.has_ended
        assert bool(scene.space.kept) is (found is None)

    play(act)


def test_errors_and_ends_of_a_stream_are_passed_on_and_not_kept() -> None:
    async def act(scene: Scene) -> None:
        for outcome in (InferenceError(ErrorCode.INTERNAL, "boom"), None):
            _, receiver = scene.stream()
            await scene.looked_up(None)
            (await scene.executed()).deliver(outcome, is_final=True)
            await receiver.ended.wait()
            assert receiver.heard == [outcome]
        assert not scene.space.kept
        assert scene.version.statistics.cache_miss.count == 2

    play(act)


def test_a_stream_that_is_queued_late_has_its_ticket_its_caller_and_its_cancellation() -> None:
    """What finds calls that wait for themselves looks at them (engine/serving/deadlock.py)."""

    async def act(scene: Scene) -> None:
        ticket, receiver = scene.stream(caller=Caller(cast(Any, "the caller")))
        assert (ticket.owner, ticket.owner.ways_on(ticket)) == (scene.cached, [[]])
        await scene.looked_up(None)
        assert await scene.executed() is ticket
        ticket.cancel()
        assert cast(Executing, ticket.owner).was_told
        ticket.deliver(response(), is_final=True)
        assert receiver.heard == []

    play(act)


def test_a_bug_of_ours_ends_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    async def act(scene: Scene) -> None:
        scene.version.refusal = RuntimeError("a bug")  # type: ignore[assignment]
        _, receiver = scene.stream()
        await scene.looked_up(None)
        await receiver.ended.wait()
        assert receiver.heard[0].code is ErrorCode.INTERNAL

    play(act)
    assert "a request to model 'm' failed inside the server" in caplog.text


class Broken:
    """A client's segment that cannot be read for a reason that nobody has thought of."""

    def read(self, offset: int, nbytes: int) -> bytearray:
        raise RuntimeError("a bug")


def test_a_hash_that_fails_inside_the_server_ends_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    async def act(scene: Scene) -> None:
        wanted, receiver = request(LARGE), Receiver()
        wanted.inputs.append(Tensor("BROKEN", dtypes.UINT8, (1,), None, nbytes=1, home=(Broken(), 0)))
        scene.cached.begin(Ticket(wanted, receiver, batch_size=1, shape_key=None, accepted_ns=0))
        await receiver.ended.wait()
        assert receiver.heard[0].code is ErrorCode.INTERNAL

    play(act)
    assert "a request to model 'm' failed inside the server" in caplog.text


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "hashed in a thread"])
@pytest.mark.parametrize("is_at_once", [True, False], ids=["at once", "late"])
def test_a_cache_that_fails_is_a_miss(data: bytes, is_at_once: bool, caplog: pytest.LogCaptureFixture) -> None:
    """docs/plugins.md."""

    def fail(*_: Any) -> Any:
        raise RuntimeError("a bug of a plug-in")

    async def act(scene: Scene) -> None:
        scene.space.insert = fail  # type: ignore[method-assign]
        if is_at_once:
            scene.space.lookup = fail  # type: ignore[method-assign]
        answer = scene.infer(data)
        if not is_at_once:
            await scene.space.asked.wait()
            scene.space.lookups[-1].set_exception(RuntimeError("a bug of a plug-in"))
        (await scene.executed()).deliver(response(), is_final=True)
        assert (await answer).outputs[0].data == b"x"
        assert scene.version.statistics.cache_miss.count == 1

    play(act)
    assert "the response cache failed to answer a lookup for model 'm'" in caplog.text
    assert "the response cache failed to keep a response for model 'm'" in caplog.text


# ---------------------------------------------------------------------------------------------- what is counted


@pytest.mark.interpreted("a class of this file in the place of a compiled one")
@pytest.mark.parametrize("found", [KEPT, None], ids=["hit", "miss"])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_request_that_is_cancelled_when_its_lookup_has_just_ended_is_counted(found: Any, is_streamed: bool) -> None:
    async def act(scene: Scene) -> None:
        request = scene.stream()[0] if is_streamed else scene.infer()
        scene.version.on_counted_out = request.cancel
        await asyncio.sleep(0)  # it waits for its lookup
        await scene.looked_up(found)
        await scene.settled()
        counted = scene.version.statistics
        assert (counted.cancellations, counted.failures[FailureReason.CANCELED], counted.success.count) == (1, 1, 0)
        assert not scene.version.executing

    play(act)


class Slow:
    """A client's segment that takes until it is told to go on."""

    def __init__(self) -> None:
        self.is_read = threading.Event()
        self.goes_on = threading.Event()

    def read(self, offset: int, nbytes: int) -> bytes:
        self.is_read.set()
        self.goes_on.wait(10)
        return bytes(nbytes)


def test_a_cancelled_request_counts_until_the_thread_that_hashes_it_has_let_go_of_it() -> None:
    async def act(scene: Scene) -> None:
        segment = Slow()
        wanted = request(SMALL)
        wanted.inputs = [Tensor("IN", dtypes.UINT8, (1 << 20,), None, nbytes=1 << 20, home=(segment, 0))]
        receiver = Receiver()
        ticket = Ticket(wanted, receiver, batch_size=1, shape_key=None, accepted_ns=0)
        scene.cached.begin(ticket)
        await asyncio.to_thread(segment.is_read.wait, 10)
        ticket.cancel()
        await wait_until(lambda: ticket.has_ended)
        for _ in range(5):
            await asyncio.sleep(0)
        assert scene.version.unanswered.requests == 1
        segment.goes_on.set()
        await scene.settled()
        assert (scene.version.unanswered.requests, scene.version.holders) == (0, 0)
        assert (receiver.heard, scene.space.lookups) == ([], [])

    play(act)


class Gone:
    """A client's segment that has become too small."""

    def read(self, offset: int, nbytes: int) -> bytearray:
        raise InferenceError(ErrorCode.INVALID_ARG, "the client has made its shared memory smaller")


def test_a_request_whose_inputs_are_gone_when_they_are_hashed_in_a_thread_is_refused_and_counted() -> None:
    async def act(scene: Scene) -> None:
        wanted = request(LARGE)
        wanted.inputs = [Tensor("IN", dtypes.UINT8, (1 << 20,), None, nbytes=1 << 20, home=(Gone(), 0))]
        with pytest.raises(InferenceError, match="smaller"):
            await scene.infer(wanted=wanted)
        assert [str(error) for error in scene.version.refused] == ["the client has made its shared memory smaller"]

    play(act)


def test_a_request_that_nobody_can_execute_after_its_lookup_is_counted_as_refused() -> None:
    async def act(scene: Scene) -> None:
        scene.version.state = VersionState.UNAVAILABLE
        answer = scene.infer()
        await scene.looked_up(None)
        with pytest.raises(InferenceError, match="not ready"):
            await answer
        assert scene.version.statistics.refusals[Refusal.UNAVAILABLE] == 1

    play(act)


def test_a_request_whose_lookup_outlives_its_version_is_refused(tmp_path: Path) -> None:
    """The server stops, and its patience with what is under way has run out."""

    async def scenario() -> None:
        async with World(tmp_path) as world:
            model = await world.load()
            space = Space()
            model.served.use_cache(space)
            answer = model.infer("x")
            await space.asked.wait()
            model.served.begin_unload()
            assert not await model.served.unload(0)
            space.lookups[-1].set_result(None)
            with pytest.raises(InferenceError, match="is not at ready state"):
                await asyncio.wait_for(answer, WAIT_S)

    asyncio.run(scenario())


class Body(bytearray):
    """Can be referred to weakly."""


@contextmanager
def without_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_a_request_to_an_ensemble_is_served_that_is_unloaded_with_its_model_while_its_cache_is_asked(
    tmp_path: Path,
) -> None:
    cache = _OneSpace()
    write_model(tmp_path, "a", adder(1), ADDER_CONFIG)
    write_model(tmp_path, "e", config=ensemble("a") + "response_cache { enable: true }")

    async def scenario(server: Server) -> None:
        await server.load_model("e", None, {})
        answer = PendingAnswer.to(server, server.find("e", None), request_to("e", IN=0))
        await cache.only.asked.wait()
        await server.unload_model("e", unload_dependents=True)
        cache.only.lookups[0].set_result(None)
        assert await value_of(answer) == 1

    run(tmp_path, scenario, cache=cache)


class _OneSpace(ResponseCache):
    def __init__(self) -> None:
        self.only: Space

    def space(self, config: ModelConfig, version: int, directory: Path) -> Space:
        self.only = Space()
        return self.only


def test_a_request_that_is_refused_at_once_needs_no_collection() -> None:
    async def act(scene: Scene) -> None:
        scene.space.lookup = lambda digest: None  # type: ignore[assignment,method-assign,return-value]
        scene.version.refusal = InferenceError(ErrorCode.UNAVAILABLE, "Exceeds maximum queue size")
        body = Body(SMALL)
        alive = weakref.ref(body)
        with without_collections():
            with pytest.raises(InferenceError, match="Exceeds"):
                scene.stream(body)
            scene.version.refusal = None
            del body
            assert alive() is None

    play(act)


def test_a_request_whose_lookup_failed_needs_no_collection() -> None:
    async def act(scene: Scene) -> None:
        body = Body(LARGE)
        alive = weakref.ref(body)
        wanted = request(body)
        wanted.inputs.append(Tensor("GONE", dtypes.UINT8, (1,), None, nbytes=1, home=(Gone(), 0)))
        receiver = Receiver()
        with without_collections():
            scene.cached.begin(Ticket(wanted, receiver, batch_size=1, shape_key=None, accepted_ns=0))
            del body, wanted
            await receiver.ended.wait()
            receiver.heard.clear()
            scene.version.refused.clear()
            await wait_until(lambda: alive() is None)  # the thread lets go of it when it likes

    play(act)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_answer_that_there_is_no_memory_to_keep_is_given(is_streamed: bool) -> None:
    async def act(scene: Scene) -> None:
        def full(digest: bytes, tensors: list[Tensor]) -> None:
            raise MemoryError

        scene.space.insert = full  # type: ignore[method-assign]
        if is_streamed:
            _, receiver = scene.stream()
            await scene.looked_up(None)
            (await scene.executed()).deliver(response(), is_final=True)
            assert receiver.heard[0].outputs[0].data == b"x"
        else:
            answer = scene.infer()
            await scene.looked_up(None)
            (await scene.executed()).deliver(response(), is_final=True)
            assert (await answer).outputs[0].data == b"x"
        assert scene.version.statistics.cache_miss.count == 1

    play(act)


class NoMemory(CachedOutput):
    """Kept, but there is no memory to hand it out."""

    def tensor(self) -> Tensor:
        raise MemoryError


@pytest.mark.parametrize("is_at_once", [True, False], ids=["found at once", "found late"])
def test_a_hit_that_there_is_no_memory_for_ends_its_request(is_at_once: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def act(scene: Scene) -> None:
        found = tuple(map(NoMemory._make, KEPT))
        if is_at_once:
            scene.space.lookup = lambda digest: found  # type: ignore[method-assign, assignment, return-value]
        _, receiver = scene.stream()
        if not is_at_once:
            await scene.looked_up(found)
        await receiver.ended.wait()
        assert [(error.code, error.message) for error in receiver.heard] == [(ErrorCode.INTERNAL, BUG)]
        assert len(scene.version.refused) == 1

    play(act)
    assert "a request to model 'm' failed inside the server" in caplog.text
