"""Requests of a program to the engine: begun in the caller's thread, executed in the loop's, answered in the caller's.

    caller                              loop
      make a request   ── post ──▶      begin: find, infer
      wait             ◀── settle ──    on_response
      copy the arrays
      give back        ── post ──▶      memory of the model, credits, the end of who has given up

Outputs lie in the model's memory, which goes back when the last view of it is garbage; that must happen in the loop. So a
response travels in a box, and the box is emptied there.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton_lite.core.arrays import Array, array_of, is_bfloat16, tensor_of
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import (
    SEQUENCE_END,
    SEQUENCE_START,
    InferenceRequest,
    InferenceResponse,
    ParameterValue,
    PendingRequest,
    only_response,
)
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.core.timeline import CLIENT_GONE, Timeline
from pytriton_lite.embedding.loop_thread import Answer, LoopThread, post_if_alive

if TYPE_CHECKING:
    from pytriton_lite.config.model_config import TensorSpec
    from pytriton_lite.engine.server import Server as Engine

PROTOCOL = "python"
"""What access logs and traces call these requests' protocol."""

_FEW_CREDITS = 16
"""Responses that are taken before the model is told, unless it has no more for us now."""


_FEW_VALUES = 4096
"""Numbers or texts of which an array is made in the loop: 2 ms of its time at most."""


class Response(dict[str, Array]):
    """Outputs of one response by name, in the model's order: arrays of numpy that are the caller's own.

    BYTES are arrays of objects of bytes, BF16 is FP32.
    """

    def __init__(self, outputs: Mapping[str, Array], response: InferenceResponse) -> None:
        super().__init__(outputs)
        self.model_name = response.model_name
        """Name of the model that answered."""
        self.version = response.version
        """Its version."""
        self.request_id = response.request_id
        """The id that the request had."""
        self.parameters: dict[str, ParameterValue] = dict(response.parameters)
        """What the model says beside its outputs."""


Arrived = InferenceResponse | InferenceError | None
Box = list[InferenceResponse]
"""One response, until the loop takes it out."""


_Come = queue.SimpleQueue[Box | InferenceError | None] | asyncio.Queue[Box | InferenceError | None]
"""What has come of a stream: responses, errors, and None where no more comes."""


class Wanted:
    """What a caller asks for, as far as it can be said in its own thread."""

    def __init__(
        self,
        model: str,
        inputs: Mapping[str, object],
        *,
        version: int | None,
        outputs: Sequence[str] | None,
        parameters: Mapping[str, ParameterValue] | None,
        request_id: str,
        correlation_id: int | str,
        sequence_start: bool,
        sequence_end: bool,
        priority: int,
        timeout_us: int,
        declared: Callable[[str, int | None], Mapping[str, TensorSpec]],
    ) -> None:
        """Raises TypeError or ValueError for what no request can say, InferenceError for arrays of no type in the protocol.

        The loop sends requests to a model together, so what cannot be sent is found here: it must not take others with it.
        *declared* asks the loop for the inputs of a model, as `infer` may say it.
        """
        if not isinstance(inputs, Mapping):
            raise TypeError(f"inputs of model '{model}' are a dict of arrays by name, not {type(inputs).__name__}")
        self.model = model
        self.version = None if version is None else _index("version", version)
        self._inputs: list[Tensor | tuple[str, object]] = [
            # A list, or what may have to become BF16, waits for the loop, which knows what the model wants.
            tensor_of(name, value) if _is_plain(value) else (name, _contiguous(value))
            for name, value in inputs.items()
        ]
        if any(map(_is_large, inputs.values())):  # the loop has others to serve meanwhile
            self._convert(declared(model, self.version))
        self._request = InferenceRequest(
            model,
            self.version,
            request_id=_text("request_id", request_id),
            inputs=[],
            requested_outputs=list(outputs or ()),
            parameters={
                _text("name of a parameter", key): _parameter(key, value)
                for key, value in dict(parameters or {}).items()
            },
            correlation_id=_text("correlation_id", correlation_id)
            if isinstance(correlation_id, str)
            else _unsigned("correlation_id", correlation_id),
            sequence_flags=(SEQUENCE_START if sequence_start else 0) | (SEQUENCE_END if sequence_end else 0),
            priority=_unsigned("priority", priority),
            timeout_us=_unsigned("timeout_us", timeout_us),
        )

    def request_for(self, engine: Engine, *, may_stream: bool) -> tuple[Any, InferenceRequest]:
        """The version that serves it now, and the request. In the loop. Raises InferenceError."""
        served = engine.find(self.model, self.version)
        config = served.config
        if config.decoupled and not may_stream:
            raise InferenceError(
                ErrorCode.UNSUPPORTED,
                f"model '{self.model}' is decoupled: any number of responses may come of a request, so use stream",
            )
        request = self._request
        request.inputs = self._convert(config.inputs_by_name)
        observation = engine.observation
        if observation.is_on:
            request.timeline = observation.begin(
                PROTOCOL,
                self.model,
                headers={},
                receiving_ns=time.monotonic_ns(),
                peer=str(os.getpid()),
                method="stream" if may_stream else "infer",
            )
            if request.timeline is not None:
                request.timeline.received(sum(tensor.nbytes for tensor in request.inputs))
        return served, request

    def _convert(self, declared: Mapping[str, TensorSpec]) -> list[Tensor]:
        """Tensors of all inputs, those that are *declared* of the types that the model wants."""
        tensors = [
            given
            if isinstance(given, Tensor)
            else tensor_of(given[0], given[1], declared[given[0]].datatype if given[0] in declared else None)
            for given in self._inputs
        ]
        self._inputs = [*tensors]
        return tensors


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what}: expected str, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what}: the text is no UTF-8: {error}") from None
    return value


def _index(what: str, value: object) -> int:
    try:
        return int(operator.index(value))  # type: ignore[arg-type]  # it says whether it is one
    except TypeError:
        raise TypeError(f"{what}: expected int, got {type(value).__name__}") from None


def _unsigned(what: str, value: object) -> int:
    number = _index(what, value)
    if not 0 <= number < 1 << 64:
        raise ValueError(f"{what}: expected 0 to 2**64 - 1, got {number}")
    return number


def _parameter(name: str, value: object) -> ParameterValue:
    what = f"parameter '{name}'"
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return _text(what, value)
    if isinstance(value, int) and not -1 << 63 <= value < 1 << 63:
        raise ValueError(f"{what}: expected -2**63 to 2**63 - 1, got {value}")
    if not isinstance(value, (bool, int, float)):
        raise TypeError(f"{what}: expected bool, int, float or str, got {type(value).__name__}")
    return value


def _is_plain(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype != np.float32 and not is_bfloat16(value)


def _is_large(value: object) -> bool:
    """Whether it may take longer to make an array of *value* than to ask the loop for a type."""
    if isinstance(value, np.ndarray):  # it is one
        return False
    count = 1
    while isinstance(value, (list, tuple)) and value:
        count *= len(value)
        value = value[0]
    return count > _FEW_VALUES or not isinstance(value, (list, tuple, str, bytes, int, float, np.generic))


def _contiguous(value: object) -> object:
    """*value*, so that the loop need not copy it."""
    return value.copy() if isinstance(value, np.ndarray) and not value.flags.c_contiguous else value


class Calls:
    """The requests that are under way, so that each of them ends, also when the server does."""

    def __init__(self, thread: LoopThread, engine: Engine) -> None:
        self.thread = thread
        self.engine = engine
        self._open: set[Call] = set()
        self._is_closed = False

    def enter(self, call: Call) -> None:
        """Begin *call*. Raises RuntimeError when the server has been stopped."""
        self._open.add(call)
        try:
            if self._is_closed:
                raise RuntimeError("the server has been stopped")
            self.thread.post(call.begin)
        except RuntimeError:
            self._open.discard(call)
            raise RuntimeError("the server has been stopped") from None

    def leave(self, call: Call) -> None:
        """*call* has ended."""
        self._open.discard(call)

    def close(self) -> None:
        """The loop has ended: so have all requests."""
        self._is_closed = True
        for call in list(self._open):
            call.on_response(InferenceError(ErrorCode.UNAVAILABLE, "the server has been stopped"), is_final=True)


class Call:
    """One request. Its methods are the loop's, but for those of whoever waits in a subclass."""

    def __init__(self, calls: Calls, wanted: Wanted, *, may_stream: bool) -> None:
        self._calls = calls
        self._wanted: Wanted | None = wanted
        self._may_stream = may_stream
        self._ticket: PendingRequest | None = None
        self._request: InferenceRequest | None = None
        self._has_ended = False
        self._is_given_up = False

    def begin(self) -> None:
        """Find the model and enqueue the request."""
        wanted, self._wanted = self._wanted, None
        if self._is_given_up or self._has_ended or wanted is None:
            return
        engine = self._calls.engine
        try:
            served, self._request = wanted.request_for(engine, may_stream=self._may_stream)
            self._ticket = engine.infer(served, self._request, self)
        except InferenceError as error:
            self.on_response(error, is_final=True)
        except Exception as error:  # whatever it is, somebody waits
            text = f"the request failed inside the server: {error!r}"
            self.on_response(InferenceError(ErrorCode.INTERNAL, text), is_final=True)

    def on_response(self, response: Arrived, *, is_final: bool) -> None:
        """See `core.request.ResponseReceiver`."""
        if self._has_ended:
            return
        request = self._request
        if request is not None and request.timeline is not None:
            _observe(request.timeline, response)
        if is_final:
            self._end(response.message if isinstance(response, InferenceError) else "")
        self.arrived(response, is_final=is_final)

    def _end(self, error_text: str) -> None:
        self._has_ended = True
        self._ticket = None
        self._calls.leave(self)
        request, self._request = self._request, None
        if request is not None and request.timeline is not None:
            request.timeline.finish(error_text)

    def arrived(self, response: Arrived, *, is_final: bool) -> None:
        """Hand it to whoever waits."""
        raise NotImplementedError

    def consumed(self, count: int) -> None:
        """*count* responses more were taken."""
        if self._ticket is not None:
            self._ticket.consumed(count)

    def give_up(self) -> None:
        """Nobody waits any more."""
        self._is_given_up = True
        ticket = self._ticket
        if not self._has_ended:
            self._end(CLIENT_GONE)
            if ticket is not None:
                ticket.cancel()


def _observe(timeline: Timeline, response: Arrived) -> None:
    if isinstance(response, InferenceResponse):
        timeline.sending(0, sum(tensor.nbytes for tensor in response.outputs))
    elif response is not None:
        timeline.sending(int(response.code), 0, response.message)


class SingleCall(Call):
    """A request whose one response, or the error in its place, *put* is given, in the loop."""

    def __init__(self, calls: Calls, wanted: Wanted, put: Callable[[Box | InferenceError], object]) -> None:
        super().__init__(calls, wanted, may_stream=False)
        self._put = put
        self._latest: Arrived = None
        self._box: Box | None = None

    def arrived(self, response: Arrived, *, is_final: bool) -> None:
        if response is not None:
            self._latest = response
        if not is_final:
            self.consumed(1)
            return
        latest, self._latest = only_response(self._latest), None
        if isinstance(latest, InferenceError):
            self._put(latest)
        else:
            self._box = [latest]
            self._put(self._box)

    def abandon(self) -> None:
        """Nobody waits any more for the response, which may have come at this moment. From any thread."""
        self._calls.thread.post_if_alive(self._abandon)

    def _abandon(self) -> None:
        self.give_up()
        if self._box is not None:
            self._box.clear()

    def wait(self, come: queue.SimpleQueue[Box | InferenceError], timeout_s: float | None) -> Response:
        """The response that is put into *come*. Raises the error in its place, and queue.Empty behind *timeout_s*."""
        # An interrupt, Ctrl-C, comes anywhere in the thread that waits. A queue that is C leaves nothing locked then. The
        # condition of a Future stays locked now and then, and the server's loop, which fulfils it, would wait for ever.
        try:
            # A deadline may have passed, or be infinitely far: a queue takes neither.
            left_s = None if timeout_s is None else min(max(timeout_s, 0), threading.TIMEOUT_MAX)
            return self._opened(come.get(timeout=left_s))
        except BaseException:
            self.abandon()
            raise

    async def come(self, future: asyncio.Future[Box | InferenceError]) -> Response:
        """The response that *future* is given, in whose loop this runs. Raises the error in its place."""
        try:
            return self._opened(await future)
        except BaseException:
            self.abandon()
            raise

    def _opened(self, found: Box | InferenceError) -> Response:
        if isinstance(found, InferenceError):
            raise found
        return opened(self._calls.thread, found)


def fulfiller(future: asyncio.Future[Answer]) -> Callable[[Answer], None]:
    """What gives *future*, of the loop that runs here, its result from another thread, if somebody waits still."""
    loop = future.get_loop()

    def fulfil(answer: Answer) -> None:
        if not future.done():
            future.set_result(answer)

    return lambda answer: post_if_alive(loop, fulfil, answer)


def drop(thread: LoopThread, box: Box) -> None:
    """Let go of a response that nobody wants, in the loop."""
    thread.post_if_alive(box.clear)


def opened(thread: LoopThread, box: Box) -> Response:
    """The response in *box* as arrays of the caller's own. The model's memory is given back in the loop."""
    try:
        response = box[0]
        is_packed = response.packed is not None
        return Response({tensor.name: array_of(tensor) for tensor in response.outputs}, response)
    finally:
        if not is_packed:  # else there was no memory of the model's in it
            del response
            thread.post_if_alive(box.clear)


class _StreamCall(Call):
    """A request of any number of responses; *put* hears of each, and of the end."""

    def __init__(self, calls: Calls, wanted: Wanted, put: Callable[[Box | InferenceError | None], object]) -> None:
        super().__init__(calls, wanted, may_stream=True)
        self._put = put

    def arrived(self, response: Arrived, *, is_final: bool) -> None:
        if isinstance(response, InferenceResponse):
            self._put([response])
        elif response is not None:
            self._put(response)
        if is_final:
            self._put(None)

    def give_up_and(self, end: Callable[[], None]) -> None:
        """Give up, and then call *end*: no response comes behind it."""
        self.give_up()
        end()


def _end(come: _Come, drop_box: Callable[[Box], object]) -> None:
    """Drop what nobody has taken out of *come*, and tell whoever waits that no more comes."""
    with contextlib.suppress(queue.Empty, asyncio.QueueEmpty):
        while True:
            item = come.get_nowait()
            if isinstance(item, list):
                drop_box(item)
    come.put_nowait(None)


class _Credits:
    """Tells the model that responses were taken: a few together, unless it may be waiting for that."""

    def __init__(self, thread: LoopThread, call: _StreamCall) -> None:
        self._thread = thread
        self._call = call
        self._count = 0

    def add(self, *, is_waiting: bool) -> None:
        """One was taken. *is_waiting*: there is no other one here."""
        self._count += 1
        if is_waiting or self._count >= _FEW_CREDITS:
            count, self._count = self._count, 0
            self._thread.post_if_alive(self._call.consumed, count)


class Stream:
    """The responses of one request, in turn: an iterator for one thread, and a context manager.

    The model is ahead by the engine's window and no more: who does not take responses holds it back. `close`, leaving the
    ``with`` block, or the end of the last reference cancels the request. An error that the model sends in place of a response
    is raised, and iteration may go on behind it where the stream does.
    """

    def __init__(self, calls: Calls, wanted: Wanted) -> None:
        self._thread = calls.thread
        self._come: queue.SimpleQueue[Box | InferenceError | None] = queue.SimpleQueue()
        self._call = _StreamCall(calls, wanted, self._come.put)
        self._credits = _Credits(calls.thread, self._call)
        self._is_closed = False
        calls.enter(self._call)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Response:
        """The next response; waits for it. Raises InferenceError, and StopIteration behind the last."""
        if self._is_closed:
            raise StopIteration
        found = self._come.get()
        if found is None:
            self._is_closed = True
            self._come.put(None)  # for whoever else waits
            raise StopIteration
        self._credits.add(is_waiting=self._come.empty())
        if isinstance(found, InferenceError):
            raise found
        return opened(self._thread, found)

    def close(self) -> None:
        """Cancel the request, unless it has ended. Whoever waits for a response of it is told that there are no more."""
        if not self._is_closed:
            self._is_closed = True
            # In the loop, behind the end of the call: else a response would come that lies there as long as this object.
            self._thread.post_if_alive(self._call.give_up_and, partial(_end, self._come, list.clear))

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True):
            self.close()


class AsyncStream:
    """`Stream` for a coroutine: an asynchronous iterator and context manager, in the loop that it was made in."""

    def __init__(self, calls: Calls, wanted: Wanted) -> None:
        self._thread = calls.thread
        self._come: asyncio.Queue[Box | InferenceError | None] = asyncio.Queue()
        # Nothing of ours: the call is held as long as it is open, and `__del__` is what ends it where nobody closes the stream.
        self._loop = asyncio.get_running_loop()
        self._call = _StreamCall(calls, wanted, partial(post_if_alive, self._loop, self._come.put_nowait))
        self._credits = _Credits(calls.thread, self._call)
        self._is_closed = False
        calls.enter(self._call)

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Response:
        """The next response. Raises InferenceError, and StopAsyncIteration behind the last."""
        if self._is_closed:
            raise StopAsyncIteration
        found = await self._come.get()
        if found is None:
            self._is_closed = True
            self._come.put_nowait(None)  # for whoever else waits
            raise StopAsyncIteration
        self._credits.add(is_waiting=self._come.empty())
        if isinstance(found, InferenceError):
            raise found
        return opened(self._thread, found)

    async def aclose(self) -> None:
        """Cancel the request, unless it has ended."""
        self._close()

    def _close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            end = partial(_end, self._come, partial(drop, self._thread))
            end()  # at once, for the loop that this was made in may have ended
            # And again behind the end of the call, and behind whatever that has posted into this loop.
            self._thread.post_if_alive(self._call.give_up_and, partial(post_if_alive, self._loop, end))

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._close()

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True):
            self._close()
