"""Frames of a worker that cross what the engine has just done; the worker is the test, which says what it sends when."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from pytriton_lite.config.model_config import ModelConfig, instance_names
from pytriton_lite.config.normalise import normalise
from pytriton_lite.config.text import parse_model_config
from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.states import InstanceState, VersionState
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.serving.worker_version import WorkerVersion
from pytriton_lite.engine.workers.log_levels import LogLevels
from pytriton_lite.engine.workers.settings import WorkerSettings
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import FrameReader
from pytriton_lite.ipc.messages import Fate, Kind, Place, SpecTable, TensorRef
from pytriton_lite.ipc.segment import Segment
from tests.engine.answering import answer_of

TENSORS = """
    name: "m" backend: "python" instance_group { name: "m" count: 1 kind: KIND_CPU }
    input { name: "IN" data_type: TYPE_UINT8 dims: [ -1 ] }
    output { name: "OUT" data_type: TYPE_UINT8 dims: [ -1 ] }
"""
SETTINGS = WorkerSettings(
    executable="python", shm_prefix="pytriton_lite_test_", ring_bytes=1 << 20,
    hello_timeout_s=1, ready_timeout_s=1, log_levels=LogLevels(0),
)  # fmt: skip


class Worker:
    """What the engine takes for a worker process: remembers what it is sent, begins with nothing by itself."""

    def __init__(self) -> None:
        self.started_batch = 0
        self._specs = SpecTable()
        self._sent = bytearray()

    def send(self, data: bytes) -> None:
        self._sent += data

    def send_descriptor(self, fd: int) -> None:
        """Nobody maps it."""

    def send_cancel(self, batch: int, index: int) -> None:
        self.send(messages.cancel_frame(batch, index))

    def hear(self) -> list[tuple[Kind, memoryview]]:
        data, self._sent = bytes(self._sent), bytearray()
        return [(Kind(kind), body) for kind, body in FrameReader().feed(data)]

    def batches(self) -> list[int]:
        """The numbers of those that came since the last call of `hear`."""
        bodies = [body for kind, body in self.hear() if kind is Kind.EXECUTE]
        return [number for body in bodies for number, _ in messages.read_execute(body, self._specs)]


class World:
    """A model with one instance that is ready, whose worker is a `Worker`."""

    def __init__(self, config: str = "", *, is_alone: bool = True) -> None:
        message = parse_model_config(TENSORS + config, source="config.pbtxt")
        normalise(message)
        parsed = ModelConfig.from_message(message)
        nobody = cast(Any, None)
        served = WorkerVersion(
            parsed, 1, directory=Path("m"), workers=SETTINGS, spawners=nobody, services=nobody
        )  # fmt: skip
        (plan,) = instance_names(parsed)
        self.worker = Worker()
        self.instance = served._make_instance(parsed, plan, Environment("python", {}))
        self.instance.is_alone = is_alone
        self.instance.keeper.worker = cast(Any, self.worker)
        served.state = VersionState.READY
        self.instance.keeper.move(InstanceState.READY)
        served._instances = [self.instance]
        served._dispatcher.add(self.instance)
        self.served = served

    def infer(self, data: bytes = b"\1", **fields: Any) -> asyncio.Future[InferenceResponse]:
        tensor = Tensor("IN", dtypes.UINT8, (1, len(data)) if self.served.config.max_batch_size else (len(data),), data)
        return answer_of(self.served, InferenceRequest("m", None, inputs=[tensor], **fields))

    def says(self, data: bytes) -> None:
        """The worker sends *data*."""
        for kind, body in FrameReader().feed(data):
            self.instance.on_frame(cast(Any, self.worker), kind, body)


def result(number: int, *fates: Fate, failure: str = "") -> bytes:
    """A RESULT for one batch; requests without a fate are answered without outputs."""
    parts: list[bytes] = []
    messages.put_result(
        parts, number, taken_ns=1, inputs_ns=2, executed_ns=3, placed_ns=4, answers=len(fates), failure=failure
    )
    for fate in fates:
        messages.put_fate(parts, fate)
    return messages.result_frame(1, parts)


def answered(number: int, *, took_ns: int = 3, ended_ns: int = 4) -> bytes:
    parts: list[bytes] = []
    began_ns = ended_ns - took_ns
    messages.put_result(
        parts, number, taken_ns=began_ns, inputs_ns=began_ns, executed_ns=ended_ns, placed_ns=ended_ns, answers=1
    )
    messages.put_answer(parts, outputs=0)
    return messages.result_frame(1, parts)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 20))


@pytest.fixture
def no_collections() -> Iterator[None]:
    """What is freed is freed because nothing refers to it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def a_turn() -> None:
    await asyncio.sleep(0)


# ---------------------------------------------------------------------------------------------- RECALL


@pytest.mark.interpreted("a fake in the place of a compiled class")
def test_a_batch_that_is_given_back_after_the_result_of_the_last_one_is_sent_again() -> None:
    """The instance has nothing then, so that no other frame of it would say that it has room."""

    async def scenario() -> None:
        world = World(is_alone=False)
        first = world.infer()
        world.says(answered(1))  # so quickly that more goes ahead the next time
        await first
        second, third = world.infer(), world.infer()
        await a_turn()
        assert world.worker.batches() == [1, 2, 3]
        world.instance.on_call(is_in_execute=True)
        assert [kind for kind, _ in world.worker.hear()] == [Kind.RECALL]
        world.says(answered(2))
        world.says(messages.returned_frame([3]))
        await second
        assert world.worker.batches() == [4]
        world.says(answered(4))
        await third

    run(scenario())


# ---------------------------------------------------------------------------------------------- ahead


@pytest.mark.interpreted("a fake in the place of a compiled class")
@pytest.mark.parametrize("is_alone", [True, False])
def test_nothing_goes_ahead_to_one_of_several_for_a_minute_after_a_slow_execution(is_alone: bool) -> None:
    """However many quick ones there were meanwhile: what waits behind the next slow one could be served by another instance."""

    async def scenario() -> None:
        world = World(is_alone=is_alone)
        sent = 0

        async def execute(**times: int) -> None:
            nonlocal sent
            answer = world.infer()
            sent += 1
            world.says(answered(sent, **times))
            await answer

        async def goes_ahead() -> bool:
            nonlocal sent
            world.worker.hear()
            answers = [world.infer(), world.infer()]
            await a_turn()
            went = len(world.worker.batches()) == 2
            for answer in answers:
                sent += 1
                world.says(answered(sent, ended_ns=now_ns))
                await answer
            return went

        now_ns = 1_000_000_000
        await execute(took_ns=50_000_000, ended_ns=now_ns)  # the first says little
        for _ in range(100):
            await execute(ended_ns=now_ns)
        assert await goes_ahead()
        await execute(took_ns=50_000_000, ended_ns=now_ns)
        for _ in range(100):
            await execute(ended_ns=now_ns)
        assert await goes_ahead() is is_alone
        now_ns += 60_000_000_000
        await execute(ended_ns=now_ns)
        assert await goes_ahead()

    run(scenario())


# ---------------------------------------------------------------------------------------------- ends that cross


@pytest.mark.interpreted("a fake in the place of a compiled class")
def test_an_end_that_comes_after_its_batch_has_failed_is_passed_over() -> None:
    """A destructor in a thread of the model ends a request while ``execute`` fails; it takes no lock."""

    async def scenario() -> None:
        world = World("model_transaction_policy { decoupled: true }")
        heard: list[tuple[str, bool]] = []

        class Receiver:
            def on_response(self, response: InferenceResponse | InferenceError | None, *, is_final: bool) -> None:
                heard.append((str(response), is_final))

        tensor = Tensor("IN", dtypes.UINT8, (1,), b"\1")
        world.served.infer(InferenceRequest("m", None, inputs=[tensor]), Receiver())
        world.says(result(1, failure="no luck"))
        world.says(messages.response_frame(1, 0, is_final=True, infer_ns=0, sent_ns=0, parts=[]))
        ((text, is_final),) = heard
        assert "no luck" in text
        assert is_final
        assert world.instance.is_empty

    run(scenario())


@pytest.mark.interpreted("a fake in the place of a compiled class")
def test_a_second_end_of_a_request_is_passed_over() -> None:
    async def scenario() -> None:
        world = World("max_batch_size: 2 dynamic_batching { } model_transaction_policy { decoupled: true }")
        heard: list[object] = []

        class Receiver:
            def on_response(self, response: InferenceResponse | InferenceError | None, *, is_final: bool) -> None:
                heard.append(response)

        for _ in range(2):
            tensor = Tensor("IN", dtypes.UINT8, (1, 1), b"\1")
            world.served.infer(InferenceRequest("m", None, inputs=[tensor]), Receiver())
        await a_turn()
        assert world.worker.batches() == [1]
        world.says(result(1, Fate.DEFERRED, Fate.DEFERRED))
        for _ in range(2):
            world.says(messages.response_frame(1, 0, is_final=True, infer_ns=0, sent_ns=0, parts=[]))
        assert len(heard) == 1
        assert not world.instance.is_empty
        for _ in range(2):
            world.says(messages.response_frame(1, 1, is_final=True, infer_ns=0, sent_ns=0, parts=[]))
        assert len(heard) == 2
        assert world.instance.is_empty

    run(scenario())


@pytest.mark.interpreted("a fake in the place of a compiled class")
def test_a_cancelled_coroutine_leaves_no_response_that_its_sender_gave_before() -> None:
    async def scenario() -> None:
        world = World()
        answer = world.infer()
        (ticket,) = world.served._dispatcher._answers.in_flight
        answer.cancel()
        parts: list[bytes] = []
        messages.put_answer(parts, outputs=0)
        world.says(messages.response_frame(1, 0, is_final=False, infer_ns=0, sent_ns=0, parts=parts))
        world.says(result(1, Fate.SKIPPED))
        assert ticket.has_ended
        assert ticket.held is None
        assert world.instance.is_empty

    run(scenario())


# ---------------------------------------------------------------------------------------------- order and rescheduling


@pytest.mark.interpreted("a fake in the place of a compiled class")
def test_a_request_that_may_not_be_rescheduled_is_answered_where_order_is_preserved() -> None:
    oldest = """
        max_batch_size: 2
        sequence_batching { oldest { max_candidate_sequences: 2 preserve_ordering: true } }
    """

    async def scenario() -> None:
        world = World(oldest)
        answer = world.infer(correlation_id=7, sequence_flags=3)
        await a_turn()
        assert world.worker.batches() == [1]
        world.says(result(1, Fate.RESCHEDULED))
        with pytest.raises(InferenceError) as caught:
            await answer
        assert caught.value.code is ErrorCode.INVALID_ARG

    run(scenario())


# ---------------------------------------------------------------------------------------------- memory


@pytest.mark.interpreted("a fake in the place of a compiled class")
@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_memory_of_a_request_that_a_full_queue_refuses_is_free_at_once(
    no_collections: None, is_streamed: bool
) -> None:
    full = """
        max_batch_size: 4
        dynamic_batching {
            preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 20000000
            default_queue_policy { max_queue_size: 1 }
        }
    """

    class Receiver:
        def on_response(self, response: InferenceResponse | InferenceError | None, *, is_final: bool) -> None:
            raise AssertionError("it never waited")

    async def scenario() -> None:
        world = World(full)
        waiting = world.infer()
        body = np.zeros(100_000, np.uint8)
        freed = weakref.ref(body)
        tensor = Tensor("IN", dtypes.UINT8, (1, body.nbytes), memoryview(body))  # type: ignore[arg-type]
        request = InferenceRequest("m", None, inputs=[tensor])
        try:
            if is_streamed:
                world.served.infer(request, Receiver())
            else:
                answer_of(world.served, request)
        except InferenceError as error:  # not pytest.raises, which keeps the traceback, and with it the frames
            assert "Exceeds maximum queue size" in error.message
        else:
            raise AssertionError("it was not refused")
        del body, tensor, request
        assert freed() is None
        waiting.cancel()

    run(scenario())


# ---------------------------------------------------------------------------------------------- looks


class Looks:
    """What the instance of a world looks for, when the test says so."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self._due: list[Callable[[], None]] = []
        self._worker = world.worker
        loop = asyncio.get_running_loop()
        begin_timer = loop.call_later

        def call_later(delay_s: float, callback: Callable[..., Any], *arguments: Any) -> asyncio.TimerHandle:
            if callback == world.instance._on_look:
                self._due.append(callback)
                delay_s = 3600
            return begin_timer(delay_s, callback, *arguments)

        monkeypatch.setattr(loop, "call_later", call_later)

    @property
    def is_due(self) -> bool:
        return bool(self._due)

    def at_once(self, count: int = 1) -> list[tuple[int, int]]:
        """Look so many times; (look, generation) of each COLLECT, (look, 0) of each TRIM."""
        self._worker.hear()
        heard: list[tuple[int, int]] = []
        for look in range(1, count + 1):
            self._due.pop()()
            for kind, body in self._worker.hear():
                assert kind in (Kind.COLLECT, Kind.TRIM)
                heard.append((look, messages.read_collect(body) if kind is Kind.COLLECT else 0))
        return heard


def response(number: int, *, is_final: bool, sent_ns: int) -> bytes:
    parts: list[bytes] = []
    if not is_final:
        messages.put_answer(parts, outputs=0)
    return messages.response_frame(number, 0, is_final=is_final, infer_ns=0, sent_ns=sent_ns, parts=parts)


@pytest.mark.interpreted("a fake in the place of a compiled class")
def test_garbage_is_searched_for_ever_more_seldom_while_nothing_is_heard_of_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What could answer may be lost at any time, and a model that thinks for long is not to be disturbed much."""

    async def scenario() -> None:
        world = World("model_transaction_policy { decoupled: true }")
        looks = Looks(world, monkeypatch)
        waiting = world.infer()
        assert looks.at_once(3) == []  # in execute: the main thread could not search
        world.says(result(1, Fate.DEFERRED))
        assert looks.at_once() == []
        assert looks.at_once(80) == [(1, 1), (3, 2), (7, 2), (15, 2), (31, 2), (55, 2), (79, 2)]
        for sent_ns in (10, 11):
            world.says(response(1, is_final=False, sent_ns=sent_ns))
            assert looks.at_once() == []
        assert looks.at_once(3) == [(1, 1), (3, 2)]
        world.says(response(1, is_final=True, sent_ns=12))
        assert looks.at_once(2) == [(2, 0)]
        assert not looks.is_due
        waiting.cancel()

    run(scenario())


@pytest.mark.interpreted("a fake in the place of a compiled class")
def test_a_search_for_garbage_begins_anew_with_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        world = World("model_transaction_policy { decoupled: true }")
        looks = Looks(world, monkeypatch)
        waiting = [world.infer()]
        world.says(result(1, Fate.DEFERRED))
        assert looks.at_once(4) == [(2, 1), (4, 2)]
        waiting.append(world.infer())
        world.says(result(2, Fate.DEFERRED))
        assert looks.at_once(2) == [(2, 1)]
        for number in (1, 2):
            world.says(response(number, is_final=True, sent_ns=10))
        assert looks.at_once(2) == [(2, 0)]
        waiting.append(world.infer())
        world.says(result(3, Fate.DEFERRED))
        assert looks.at_once(2) == [(2, 1)]
        for each in waiting:
            each.cancel()

    run(scenario())


# ---------------------------------------------------------------------------------------------- memory


class Told(Worker):
    """A worker that says when it was told something."""

    def __init__(self) -> None:
        super().__init__()
        self.was_told = asyncio.Event()

    def send(self, data: bytes) -> None:
        super().send(data)
        self.was_told.set()


@pytest.mark.interpreted("a fake in the place of a compiled class")
def test_a_slot_that_a_thread_gives_back_is_sent_by_the_loop() -> None:
    async def scenario() -> None:
        asyncio.get_running_loop().set_debug(True)  # it finds who calls it from a thread, and so does not wake it
        world = World()
        told = Told()
        world.instance.keeper.worker = cast(Any, told)
        memory = world.instance.wire.memory
        with closing(Segment.create(4096, prefix=SETTINGS.shm_prefix)) as segment:
            memory.attach(1, os.dup(segment.fd), segment.nbytes)
        held = [memory.read(TensorRef(("OUT", dtypes.UINT8, (8,)), Place.SLOT, 8, segment=1, slot=7))]
        thread = threading.Thread(target=held.clear)
        thread.start()
        await told.was_told.wait()
        thread.join()
        ((kind, body),) = told.hear()
        assert kind is Kind.RELEASE and list(messages.read_release(body)) == [7]
        memory.close()

    run(scenario())
