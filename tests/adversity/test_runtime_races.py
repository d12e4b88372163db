"""What may happen at the same moment in a worker: destructors, signals, threads, forks, loops of the model's own."""

from __future__ import annotations

import asyncio
import gc
import linecache
import os
import queue
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from pytriton_lite.core import dtypes
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import FrameReader, frame, send_descriptor
from pytriton_lite.ipc.messages import Fate, Kind, Place, SpecTable
from pytriton_lite.ipc.segment import Segment
from pytriton_lite.ipc.start import ModelStart
from pytriton_lite.worker import conversation, executions
from pytriton_lite.worker.api_errors import TritonModelException
from pytriton_lite.worker.batches import Batch
from pytriton_lite.worker.mailbox import Mailbox, Waiter
from pytriton_lite.worker.process import Phase, enter
from pytriton_lite.worker.request import InferenceRequest
from pytriton_lite.worker.response import InferenceResponse
from pytriton_lite.worker.serving import Worker
from tests.harness import RunningServer, tensor, until, write_model

WAIT_S = 20

TENSORS = """
    backend: "python"
    input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }
    output { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] }
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"

SENDS_IN_A_DESTRUCTOR = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class Last(np.ndarray):
        def __del__(self):
            sender = getattr(self, "sender", None)
            if sender is not None:
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([2], np.int32))]), flags=1)

    def last(sender):
        array = np.zeros(1, np.int32).view(Last)
        array.sender = sender
        return array

    def response(sender):
        # EXTRA is no output of the model: it is let go while the response is put together
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUT", np.array([1], np.int32)), pb_utils.Tensor("EXTRA", last(sender))]
        )
"""
IN_A_SEND = (
    SENDS_IN_A_DESTRUCTOR
    + """
    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                sender.send(response(sender))
"""
)
IN_A_RETURN = (
    SENDS_IN_A_DESTRUCTOR
    + """
    class TritonPythonModel:
        waiting = None

        def execute(self, requests):
            sender, self.waiting = self.waiting, None
            if sender is not None:
                return [response(sender)]
            self.waiting = requests[0].get_response_sender()
            return [None]
"""
)
ECHO = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
OWN_LOOP = """
    import asyncio
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        async def ask(self, request):
            call = pb_utils.InferenceRequest(
                model_name="echo", requested_output_names=["OUT"], inputs=[request.inputs()[0]]
            )
            first, second = await asyncio.gather(call.async_exec(), call.async_exec())
            assert not first.has_error() and not second.has_error()
            return pb_utils.InferenceResponse(second.output_tensors())

        def execute(self, requests):
            return [asyncio.run(self.ask(request)) for request in requests]
"""
BOTH = """
    import asyncio
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        loop = None

        async def answers(self, requests):
            self.loop = asyncio.get_running_loop()
            calls = [
                pb_utils.InferenceRequest(model_name="echo", requested_output_names=["OUT"], inputs=request.inputs())
                for request in requests
            ]
            replies = await asyncio.gather(*(call.async_exec() for call in calls))
            return [pb_utils.InferenceResponse(reply.output_tensors()) for reply in replies]

        def execute(self, requests):
            coroutine = self.answers(requests)
            if self.loop is None:
                return coroutine
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()
"""
UNSENDABLE = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class Unsendable:
        def __array__(self, *_, **__):
            raise ValueError("these bytes are not to be had")

    def unsendable():
        tensor = pb_utils.Tensor("OUT", np.zeros(1, np.int32))
        tensor._array = Unsendable()
        return tensor
"""
COROUTINE_UNSENDABLE = (
    UNSENDABLE
    + """
    class TritonPythonModel:
        async def execute(self, requests):
            return [pb_utils.InferenceResponse([unsendable()]) for _ in requests]
"""
)
CALL_UNSENDABLE = (
    UNSENDABLE
    + """
    from pytriton_lite.worker.process import host

    class TritonPythonModel:
        def execute(self, requests):
            large = pb_utils.Tensor("IN", np.zeros(10_000, np.int32))
            call = pb_utils.InferenceRequest(
                model_name="echo", requested_output_names=["OUT"], inputs=[large, unsendable()]
            )
            try:
                call.exec()
                raise AssertionError("sent")
            except ValueError:
                left = [host()._placement.outputs.arena.live_slots, len(host()._calls._open)]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(left, np.int32))]) for _ in requests]
"""
)
FORKS = """
    import os
    import numpy as np
    import triton_python_backend_utils as pb_utils
    from pytriton_lite.ipc.messages import CONTROL_CANCELS
    from pytriton_lite.worker.process import host

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                pb_utils.Logger.log_info("ready to be cancelled")
                child = os.fork()
                if child == 0:
                    while not host()._senders._control[CONTROL_CANCELS]:
                        os.sched_yield()
                    pb_utils.Logger.log_info(f"the child sees {request.is_cancelled()}")
                    os._exit(0)
                os.waitpid(child, 0)
                pb_utils.Logger.log_info(f"the parent sees {request.is_cancelled()}")
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.int32))]) for _ in requests]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository: Path = tmp_path_factory.mktemp("repository")
    write_model(repository, "in_a_send", IN_A_SEND, TENSORS + DECOUPLED)
    write_model(repository, "in_a_return", IN_A_RETURN, TENSORS)
    write_model(repository, "echo", ECHO, TENSORS)
    write_model(repository, "own_loop", OWN_LOOP, TENSORS)
    write_model(repository, "both", BOTH, TENSORS)
    write_model(repository, "coroutine", COROUTINE_UNSENDABLE, TENSORS)
    write_model(repository, "call", CALL_UNSENDABLE, TENSORS)
    write_model(repository, "forks", FORKS, TENSORS)
    with RunningServer(repository) as running:
        yield running


def infer(server: RunningServer, model: str, count: int = 1) -> Any:
    """What the model answers; HTTP errors included."""
    return server.infer(model, [tensor("IN", "INT32", [count], [1] * count)])


def grpc_input() -> triton_grpc.InferInput:
    given = triton_grpc.InferInput("IN", [1], "INT32")
    given.set_data_from_numpy(np.ones(1, np.int32))
    return given


# ---------------------------------------------------------------------------------------------- destructors


def test_a_destructor_that_sends_while_a_response_is_sent_is_heard_after_it(server: RunningServer) -> None:
    heard: queue.Queue[Any] = queue.Queue()
    with triton_grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: heard.put(error or result.as_numpy("OUT").tolist()))
        client.async_stream_infer("in_a_send", [grpc_input()])
        assert [heard.get(timeout=WAIT_S), heard.get(timeout=WAIT_S)] == [[1], [2]]


def test_a_destructor_that_sends_while_a_response_is_returned_is_heard(server: RunningServer) -> None:
    """It answers the request before."""
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.append(infer(server, "in_a_return").json)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert sorted(answer["outputs"][0]["data"] for answer in answers) == [[1], [2]]


# ---------------------------------------------------------------------------------------------- loops and coroutines


@pytest.mark.parametrize("count", [1, 5000], ids=["in the message", "in a slot"])
def test_replies_are_read_while_the_model_awaits_them_in_a_loop_of_its_own(server: RunningServer, count: int) -> None:
    assert infer(server, "own_loop", count).json["outputs"][0]["data"] == [1] * count


def test_replies_are_read_while_execute_waits_for_a_coroutine_that_awaits_them(server: RunningServer) -> None:
    for _ in range(2):  # the first answers with the coroutine, which makes the loop
        assert infer(server, "both").json["outputs"][0]["data"] == [1]


def test_an_answer_of_a_coroutine_that_cannot_be_sent_ends_the_request_with_the_error(server: RunningServer) -> None:
    reply = infer(server, "coroutine")
    assert reply.status == 500
    assert "these bytes are not to be had" in reply.error


def test_a_call_that_cannot_be_sent_leaves_nothing_behind(server: RunningServer) -> None:
    """No slot of its other input, no entry among the calls that wait for a reply."""
    assert infer(server, "call").json["outputs"][0]["data"] == [0, 0]


# ---------------------------------------------------------------------------------------------- forks


def test_a_child_of_the_model_takes_nothing_out_of_the_channel(server: RunningServer) -> None:
    with triton_grpc.InferenceServerClient(server.grpc_url) as client:
        call = client.async_infer("forks", [grpc_input()], lambda result, error: None)
        server.wait_for_log("ready to be cancelled")
        call.cancel()
        server.wait_for_log("the child sees False")
        server.wait_for_log("the parent sees True")


# ---------------------------------------------------------------------------------------------- signals


class Interrupted(Exception):
    """Raised by a signal handler, as a model's time limit may be."""


def test_a_thread_that_a_signal_took_out_of_line_is_not_given_the_channel() -> None:
    engine, ours = socket.socketpair()
    expected = {kind: Waiter() for kind in (1, 2, 3)}
    mailbox = Mailbox(ours, lambda kind, body: mailbox.finish(expected[kind]))
    done: queue.Queue[int] = queue.Queue()

    def wait(kind: int) -> None:
        mailbox.wait(expected[kind])
        done.put(kind)

    interrupted: list[int] = []

    def interrupt_main() -> None:
        while not mailbox._waiting:
            os.sched_yield()
        # Again and again: a signal that comes just before the thread waits for a lock is noticed when it has the lock.
        while not interrupted:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            os.sched_yield()

    def on_signal(number: int, at: object) -> None:
        if not interrupted:
            interrupted.append(number)
            raise Interrupted

    before = signal.signal(signal.SIGUSR1, on_signal)
    try:
        with engine, ours:
            threading.Thread(target=wait, args=(1,), daemon=True).start()
            while not mailbox._reading_thread:
                os.sched_yield()
            threading.Thread(target=interrupt_main, daemon=True).start()
            with pytest.raises(Interrupted):
                mailbox.wait(expected[2])
            engine.sendall(frame(1, []))
            assert done.get(timeout=WAIT_S) == 1
            threading.Thread(target=wait, args=(3,), daemon=True).start()
            engine.sendall(frame(3, []))
            assert done.get(timeout=WAIT_S) == 3, "nobody reads any more"
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.interpreted("it looks at frames")
@pytest.mark.parametrize("is_first", [True, False], ids=["who reads", "who waits in line"])
@pytest.mark.parametrize("line", range(1, 16))
def test_wherever_a_signal_takes_a_thread_out_somebody_reads_the_channel(line: int, is_first: bool) -> None:
    """*line* counts those of `Mailbox.wait` that the thread comes to, where a handler may run: not what gives a lock back."""
    engine, ours = socket.socketpair()
    expected = {kind: Waiter() for kind in (1, 2, 3)}
    mailbox = Mailbox(ours, lambda kind, body: mailbox.finish(expected[kind]))
    done: queue.Queue[int] = queue.Queue()
    seen: list[str] = []

    def wait(kind: int) -> None:
        mailbox.wait(expected[kind])
        done.put(kind)

    def answer() -> None:
        while not (mailbox._waiting or (is_first and mailbox._reading_thread) or interrupted.is_set()):
            os.sched_yield()
        engine.sendall(frame(2, []))

    def trace(at: FrameType, event: str, argument: object) -> Any:
        if at.f_code is not Mailbox.wait.__code__:
            return None
        if event == "line":
            text = linecache.getline(at.f_code.co_filename, at.f_lineno).strip()
            gives_back = text == "self._leave(waiter)" or (text.startswith("with") and text in seen)
            seen.append(text)
            if len(seen) == line and not gives_back:
                interrupted.set()
                raise Interrupted
        return trace

    interrupted = threading.Event()
    with engine, ours:
        if not is_first:
            threading.Thread(target=wait, args=(1,), daemon=True).start()
            while not mailbox._reading_thread:
                os.sched_yield()
        answering = threading.Thread(target=answer, daemon=True)
        answering.start()
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            mailbox.wait(expected[2])
        except Interrupted:
            pass
        finally:
            sys.settrace(before)
        interrupted.set()
        answering.join(WAIT_S)
        if is_first:
            threading.Thread(target=wait, args=(1,), daemon=True).start()
        engine.sendall(frame(1, []))
        assert done.get(timeout=WAIT_S) == 1, "nobody reads any more"
        threading.Thread(target=wait, args=(3,), daemon=True).start()
        engine.sendall(frame(3, []))
        assert done.get(timeout=WAIT_S) == 3, "nobody reads any more"


# ---------------------------------------------------------------------------------------------- a worker and its threads


class Engine:
    """A worker in this process, and the engine's end of its channel. `serve` runs it until `stop`."""

    def __init__(self, *, is_decoupled: bool = False, window: int = 2, cancels_coroutines: bool = False) -> None:
        self._channel, self._theirs = socket.socketpair()
        self._descriptors, self._their_descriptors = socket.socketpair()
        self.control = memoryview(bytearray(messages.CONTROL_BYTES)).cast("Q")
        self._specs = SpecTable()
        self._frames = FrameReader()
        self._heard: deque[tuple[int, memoryview]] = deque()
        self._start = ModelStart(
            model="m", version=1, instance="m_0", model_config="{}", model_dir="", outputs=("OUT",),
            is_decoupled=is_decoupled, response_window=window, cancels_coroutines=cancels_coroutines,
            shm_prefix="pytriton_lite_test_", ring_bytes=1 << 20,
        )  # fmt: skip
        self._channel.settimeout(WAIT_S)
        self.worker = self._worker()

    def _worker(self) -> Worker:
        return Worker(self._theirs, self._their_descriptors, self.control, self._start, path="model.py")

    def serve(self, execute: Callable[[list[InferenceRequest]], object]) -> threading.Thread:
        """Begin to serve, in a thread that takes itself for the main one."""

        class Model:
            pass

        model: Any = Model()
        model.execute = execute

        def run() -> None:
            self.worker = self._worker()
            self.worker.serve(model)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def execute(self, *numbers: int) -> None:
        """Send batches of one request without inputs, in one message."""
        parts: list[bytes] = []
        for number in numbers:
            messages.put_batch(parts, number, 1)
            messages.put_request(
                parts, request_id="", correlation_id=0, timeout_us=0, sequence_flags=0, parameters_json="",
                outputs_mask=0, input_count=0,
            )  # fmt: skip
        self._channel.sendall(messages.execute_frame(len(numbers), parts))

    def cancel(self, number: int) -> None:
        self._channel.sendall(messages.cancel_frame(number, 0))
        self.control[messages.CONTROL_CANCELS] += 1

    def collect(self, generation: int) -> None:
        self._channel.sendall(messages.collect_frame(generation))

    def result(self) -> list[tuple[int, list[Fate | None]]]:
        """(batch, fates) of the next RESULT."""
        results = messages.read_result(self._next(Kind.RESULT), self._specs)
        return [(result.number, [answer.fate for answer in result.answers]) for result in results]

    def response(self) -> tuple[int, str, bool]:
        """(batch, error, whether it is the last) of the next RESPONSE."""
        number, _, answer, is_final, *_ = messages.read_response(self._next(Kind.RESPONSE), self._specs)
        return number, "" if answer is None or answer.error is None else answer.error[1], is_final

    def call(self) -> int:
        """The number of the next CALL."""
        return messages.read_call(self._next(Kind.CALL), self._specs).number

    def execute_in_slot(self, number: int, slot: int) -> None:
        """A batch of one request, whose input is in memory that the worker is to release."""
        parts: list[bytes] = []
        messages.put_batch(parts, number, 1)
        messages.put_plain_request(parts, 1)
        announced = self._put_slot(parts, "IN", slot)
        self._channel.sendall(announced + messages.execute_frame(1, parts))

    def reply_in_slot(self, call: int, slot: int) -> None:
        """A response to *call* that is not the last, in memory that the worker is to release."""
        parts: list[bytes] = []
        messages.put_answer(parts, outputs=1)
        announced = self._put_slot(parts, "OUT", slot)
        self._channel.sendall(announced + messages.reply_frame(call, is_final=False, parts=parts))

    def _put_slot(self, parts: list[bytes], name: str, slot: int) -> bytes:
        """Append a tensor in a segment of its own; the frame that announces that."""
        with closing(Segment.create(messages.INLINE_BYTES * 2, prefix=self._start.shm_prefix)) as segment:
            send_descriptor(self._descriptors, segment.fd)
            nbytes = segment.nbytes
        spec = self._specs.encode(name, dtypes.UINT8, (nbytes,))
        messages.put_reference(parts, spec, place=Place.SLOT, segment=1, slot=slot, nbytes=nbytes)
        return messages.segment_frame(1, nbytes)

    def end_call(self, call: int) -> None:
        self._channel.sendall(messages.reply_frame(call, is_final=True, parts=[]))

    def abandoned(self) -> int:
        """The call of the next ABANDON."""
        return messages.read_abandon(self._next(Kind.ABANDON))

    def released(self) -> tuple[int, ...]:
        """The slots of the next RELEASE."""
        return messages.read_release(self._next(Kind.RELEASE))

    def _next(self, wanted: Kind) -> memoryview:
        while True:
            while self._heard:
                kind, body = self._heard.popleft()
                if kind == wanted:
                    return body
            self._heard.extend(self._frames.feed(self._channel.recv(1 << 16)))

    def stop(self, thread: threading.Thread) -> None:
        self._channel.sendall(frame(Kind.STOP, []))
        thread.join(WAIT_S)
        assert not thread.is_alive()

    def close(self) -> None:
        self.worker._batches.executing.clear()  # nobody hears the end of what a test leaves open
        self.worker._batches.deferred.clear()
        for sock in (self._channel, self._theirs, self._descriptors, self._their_descriptors):
            sock.close()


@pytest.fixture
def make_engine() -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def make(**fields: Any) -> Engine:
        engines.append(Engine(**fields))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.mark.interpreted("what compiled code calls is replaced")
def test_an_interrupt_while_answers_are_put_together_does_not_leave_the_outbox_held(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C of ``pytriton-lite debug``: a holder that is none would have destructors postpone their frames for ever."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    worker = make_engine().worker
    monkeypatch.setattr(worker._placement, "put_response", interrupted)
    message = messages.RequestMessage("", 0, 0, 0, "", 0, [], [])
    with pytest.raises(KeyboardInterrupt):
        batch = Batch(1, [worker._executions.request(1, 0, message)], 0, 0)
        worker._executions.end_batch(batch, [InferenceResponse()])
    assert not worker.outbox.is_held_here
    assert not worker.outbox.lock.locked()


def test_a_model_that_waits_for_a_cancellation_keeps_no_answer_of_an_earlier_batch(
    make_engine: Callable[..., Engine],
) -> None:
    engine = make_engine()
    batches = iter([1, 2])
    second = threading.Event()

    def execute(requests: list[InferenceRequest]) -> object:
        if next(batches) == 2:
            second.set()
            while not requests[0].is_cancelled():
                os.sched_yield()
        return [InferenceResponse()]

    thread = engine.serve(execute)
    engine.execute(1, 2)
    assert engine.result() == [(1, [None])]
    assert second.wait(WAIT_S)  # before it has begun it would be skipped
    engine.cancel(2)
    assert engine.result() == [(2, [None])]
    engine.stop(thread)


@pytest.mark.interpreted("the clock is the test's")
def test_an_answer_that_is_ready_does_not_wait_for_the_next_execution_when_one_was_slow(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    batches = iter([1, 2, 3, 4])
    now_ns = 1
    is_open = threading.Event()

    def execute(requests: list[InferenceRequest]) -> list[InferenceResponse]:
        nonlocal now_ns
        batch = next(batches)
        if batch == 2:
            now_ns += 50_000_000
        elif batch == 4:
            assert is_open.wait(WAIT_S)
        return [InferenceResponse()]

    for module in (executions, conversation):
        monkeypatch.setattr(module, "monotonic_ns", lambda: now_ns)
    thread = engine.serve(execute)
    engine.execute(1, 2)
    assert engine.result() == [(1, [None]), (2, [None])]
    engine.execute(3, 4)
    assert engine.result() == [(3, [None])]
    is_open.set()
    assert engine.result() == [(4, [None])]
    engine.stop(thread)


@pytest.mark.parametrize("generation", [1, 2])
def test_a_request_ends_whose_sender_a_thread_has_lost_to_garbage_when_that_is_searched_for(
    make_engine: Callable[..., Engine], generation: int
) -> None:
    """An exception that a thread has kept in a variable refers to that thread's frame, and so to itself."""
    engine = make_engine(is_decoupled=True)
    senders: queue.Queue[Any] = queue.Queue()

    def fail() -> None:
        kept = [senders.get()]
        try:
            raise ValueError("no luck")
        except ValueError as error:
            kept.append(error)
        if generation == 2:
            gc.collect(1)  # what is going to be garbage grows old

    gc.disable()
    try:
        thread = engine.serve(lambda requests: senders.put(requests[0].get_response_sender()))
        engine.execute(1)
        assert engine.result() == [(1, [Fate.DEFERRED])]
        losing = threading.Thread(target=fail)
        losing.start()
        losing.join()
        engine.collect(generation)
        number, text, is_final = engine.response()
        assert (number, is_final) == (1, True)
        assert "no response was sent through its sender" in text
        engine.stop(thread)
    finally:
        gc.enable()


@pytest.mark.interpreted("what compiled code has is replaced")
def test_a_reply_to_a_call_whose_caller_was_interrupted_when_it_had_left_is_passed_over(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()

    def execute(requests: list[InferenceRequest]) -> object:
        enter(engine.worker)
        conversation = engine.worker._conversation
        send = conversation.send_held

        def send_and_raise(frames: list[bytes]) -> None:
            monkeypatch.undo()
            send(frames)
            raise KeyboardInterrupt

        monkeypatch.setattr(conversation, "send_held", send_and_raise)
        with pytest.raises(KeyboardInterrupt):
            InferenceRequest(model_name="other", requested_output_names=["OUT"], inputs=[]).exec(decoupled=True)
        return [InferenceResponse()]

    thread = engine.serve(execute)
    engine.execute(1)
    number = engine.call()
    assert engine.result() == [(1, [None])]
    engine.reply_in_slot(number, 5)
    assert engine.abandoned() == number
    assert engine.released() == (5,)
    engine.end_call(number)
    engine.stop(thread)


@pytest.mark.parametrize("is_child", [False, True])
def test_an_input_that_a_thread_drops_while_nothing_executes_is_given_back_at_once(
    make_engine: Callable[..., Engine], is_child: bool
) -> None:
    """But not by a process that the model has forked, which has the thread's memory and the channel, too."""
    engine = make_engine()
    kept: list[Any] = []

    def execute(requests: list[InferenceRequest]) -> object:
        kept.extend(requests[0].inputs())
        return [InferenceResponse()]

    thread = engine.serve(execute)
    engine.execute_in_slot(1, 5)
    assert engine.result() == [(1, [None])]
    until(lambda: engine.worker._conversation.is_idle)
    if is_child:
        engine.worker._pid = 0
        kept.clear()
        engine.execute(2)
        assert engine.result() == [(2, [None])]
    else:
        kept.clear()
    assert engine.released() == (5,)
    engine.stop(thread)


class Meanwhile(deque[Any]):
    """An inbox out of which the main thread takes the last entry at the worst moment."""

    def pop(self) -> Any:  # type: ignore[override]
        if len(self) == 1:
            self.clear()
        return super().pop()


def test_a_batch_that_is_begun_while_it_is_asked_back_is_not_given_back(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()
    worker = engine.worker
    parts: list[bytes] = []
    messages.put_batch(parts, 1, 0)
    worker._conversation.inbox = Meanwhile()
    worker._on_frame(Kind.EXECUTE, memoryview(messages.execute_frame(1, parts))[8:])
    worker._on_frame(Kind.RECALL, memoryview(b""))
    assert not worker._conversation.inbox
    engine._channel.setblocking(False)
    with pytest.raises(BlockingIOError):
        engine._channel.recv(1)


def test_a_main_thread_that_saw_an_empty_inbox_while_batches_were_given_back_hears_of_the_stop(
    make_engine: Callable[..., Engine],
) -> None:
    worker = make_engine().worker
    worker._on_frame(Kind.STOP, memoryview(b""))
    worker._conversation._idle = idle = Waiter()  # as the main thread does where it finds nothing
    worker._on_frame(Kind.RECALL, memoryview(b""))
    assert idle.is_done
    assert [work.kind for work in worker._conversation.inbox] == [Kind.STOP]


def received(worker: Worker, number: int) -> InferenceRequest:
    """The request of a batch that the worker has begun with."""
    worker._batches.begun = number
    worker._batches.executing[number] = 1
    message = messages.RequestMessage("", 0, 0, 0, "", 0, [], [])
    return worker._executions.request(number, 0, message)


def test_a_request_that_is_looked_at_while_its_cancellation_arrives_is_cancelled(
    make_engine: Callable[..., Engine],
) -> None:
    worker = make_engine().worker
    request = received(worker, 1)

    class Cancelled(set[Any]):
        def add(self, key: object) -> None:
            assert not request.is_cancelled()  # another thread asks for the first time
            super().add(key)

    worker._senders.cancelled = Cancelled()
    worker._senders.on_cancel(1, 0)
    assert request.is_cancelled()


@pytest.mark.interpreted("what compiled code calls is replaced")
def test_a_cancellation_that_arrives_as_its_batch_begins_is_heard(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()
    worker = engine.worker

    class Executing(dict[int, int]):
        def __setitem__(self, number: int, begun_ns: int) -> None:
            worker._senders.on_cancel(number, 0)  # another thread reads it here
            super().__setitem__(number, begun_ns)

    worker._batches.executing = Executing()
    worker._executions.execute(None, 1, [messages.RequestMessage("", 0, 0, 0, "", 0, [], [])])
    worker._conversation.flush()
    assert engine.result() == [(1, [Fate.SKIPPED])]


@pytest.mark.interpreted("what compiled code calls is replaced")
def test_a_send_that_waits_for_room_ends_when_another_thread_has_just_ended_the_request(
    make_engine: Callable[..., Engine],
) -> None:
    worker = make_engine(is_decoupled=True, window=1).worker
    request = received(worker, 1)
    sender = request.get_response_sender()
    sender.send(InferenceResponse())
    answering = worker._senders.answering(1, 0, frozenset(), None, "")  # the request's own

    class Waiters(list[Waiter]):
        def append(self, waiter: Waiter) -> None:
            worker._senders.close(answering)  # finds nobody who waits
            super().append(waiter)

    answering.waiters = Waiters()
    failures: queue.Queue[BaseException] = queue.Queue()

    def send() -> None:
        try:
            sender.send(InferenceResponse())
        except Exception as error:
            failures.put(error)

    threading.Thread(target=send, daemon=True).start()
    assert str(failures.get(timeout=WAIT_S)) == "Unable to send response. Response sender has been closed."
    assert not answering.waiters


class Last:
    """Something of the model's, of which the last reference goes, or that a collection finds, where *runs* cannot wait."""

    def __init__(self, runs: Callable[[], object]) -> None:
        self._runs = runs
        self.told: queue.Queue[str] = queue.Queue()

    def __del__(self) -> None:
        try:
            self.told.put(f"{self._runs()}")
        except TritonModelException as error:
            self.told.put(str(error))


def in_a_thread(action: Callable[[], object]) -> None:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def drop_while_reading(engine: Engine, garbage: list[Last]) -> None:
    """Have the worker read something, in whose midst *garbage* goes."""
    mailbox = engine.worker._conversation.mailbox
    mailbox._on_frame = lambda kind, body: garbage.clear()
    engine.collect(1)
    in_a_thread(mailbox.poll)


def drop_while_sending(engine: Engine, garbage: list[Last]) -> None:
    def send() -> None:
        with engine.worker.outbox:
            garbage.clear()

    in_a_thread(send)


@pytest.mark.interpreted("what compiled code calls is replaced")
@pytest.mark.parametrize("drop", [drop_while_reading, drop_while_sending])
def test_a_destructor_that_asks_the_server_amid_a_message_is_refused(
    make_engine: Callable[..., Engine], drop: Callable[[Engine, list[Last]], None]
) -> None:
    engine = make_engine()
    worker = engine.worker
    worker.phase = Phase.SERVING
    call = InferenceRequest(inputs=[], requested_output_names=[], model_name="m")
    runs = [lambda: worker.ask("model.is_ready"), lambda: worker.call(call, decoupled=False)]
    garbage = [Last(run) for run in runs]
    told = [last.told for last in garbage]
    drop(engine, garbage)
    why = "is not available in a destructor that runs while a message is sent or read"
    assert [answer.get(timeout=WAIT_S) for answer in told] == [f"model.is_ready {why}", f"BLS {why}"]


@pytest.mark.interpreted("what compiled code calls is replaced")
def test_a_destructor_that_sends_while_its_thread_reads_does_not_wait_for_room(
    make_engine: Callable[..., Engine],
) -> None:
    engine = make_engine(is_decoupled=True, window=1)
    sender = received(engine.worker, 1).get_response_sender()
    sender.send(InferenceResponse())
    drop_while_reading(engine, [Last(lambda: sender.send(InferenceResponse(), 1))])
    assert [engine.response()[2], engine.response()[2]] == [False, True]


@pytest.mark.interpreted("what compiled code calls is replaced")
def test_a_destructor_may_ask_for_the_sender_of_a_request_while_that_of_another_is_made(
    make_engine: Callable[..., Engine],
) -> None:
    engine = make_engine(is_decoupled=True)
    worker = engine.worker
    first, second = received(worker, 1), received(worker, 2)
    garbage = [Last(lambda: first.get_response_sender().send(InferenceResponse(), 1))]

    class Executing(dict[int, int]):
        def get(self, *arguments: Any) -> Any:
            garbage.clear()  # as a collection may, here and elsewhere on the way
            return super().get(*arguments)

    worker._batches.executing = Executing(worker._batches.executing)
    in_a_thread(second.is_cancelled)
    assert engine.response() == (1, "", True)
    second.get_response_sender().send(InferenceResponse(), 1)
    assert engine.response() == (2, "", True)


def test_a_coroutine_whose_request_was_cancelled_while_execute_made_it_is_cancelled(
    make_engine: Callable[..., Engine],
) -> None:
    engine = make_engine(cancels_coroutines=True)

    async def never() -> object:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nothing wakes it but a cancellation")

    def execute(requests: list[InferenceRequest]) -> object:
        engine.cancel(1)
        while not requests[0].is_cancelled():
            os.sched_yield()
        return never()

    thread = engine.serve(execute)
    engine.execute(1)
    ((number, _),) = engine.result()
    assert number == 1
    engine.stop(thread)
    engine.worker._executions._loop.close()
