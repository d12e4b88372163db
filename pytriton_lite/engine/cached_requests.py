"""How a version answers from the response cache, and what it executes where it cannot (scheduling spec, section 8).

```
infer ─▶ digest ─▶ lookup ─┬─ found ──────────────────────────────▶ arranged for this request ─▶ answer
                           └─ not ─▶ execute, wanting plain outputs ─▶ insert ─▶ arranged ─▶ answer
```

What a request wants to become of its outputs, shared memory or classes, is taken off before it is executed, so that the plain
ones are there to be kept. Inputs in a client's shared memory are copied first: what is executed is what was looked up, whatever
the client writes meanwhile.

Large inputs are hashed in a thread, and a cache on another machine takes its time; everything else happens at once. A request
that waits for either is not queued yet: it holds the version, and may be cancelled.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.outputs import arranged
from pytriton_lite.engine.response_cache import CacheSpace, Found, Outputs, request_digest
from pytriton_lite.engine.response_stream import ResponseReceiver, ResponseStream
from pytriton_lite.engine.statistics import FailureReason, Refusal

if TYPE_CHECKING:
    from pytriton_lite.engine.served_version import ServedVersion

logger = logging.getLogger(__name__)

Outcome = InferenceResponse | InferenceError
Answer = asyncio.Future[InferenceResponse]

_LARGE_BYTES = 256 << 10
"""Of inputs: hashing them takes a quarter of a millisecond, a thread a tenth."""


class _Submit(Protocol):
    def __call__(self, request: InferenceRequest, *, batch_size: int, accepted_ns: int) -> Answer: ...


class _SubmitStream(Protocol):
    def __call__(
        self, request: InferenceRequest, receiver: ResponseReceiver, *, batch_size: int, accepted_ns: int
    ) -> ResponseStream: ...


@dataclass(slots=True, eq=False)
class _Accepted:
    """A request that the version takes."""

    request: InferenceRequest
    batch_size: int
    accepted_ns: int
    was_sought: bool = False
    """The lookup that it waited for has ended: what becomes of it is counted elsewhere."""


class _Sought(NamedTuple):
    """What the lookup of a request gave. *lookup_ns* is how long it took."""

    request: InferenceRequest
    """The same one, wanting its outputs plain."""
    digest: bytes
    found: Found
    lookup_ns: int


class CachedRequests:
    """Stands in front of the queue of one version."""

    def __init__(
        self,
        version: ServedVersion,
        space: CacheSpace,
        *,
        submit: _Submit,
        submit_stream: _SubmitStream,
        clock: Callable[[], int],
    ) -> None:
        """*submit* and *submit_stream* execute a request of *version*."""
        self._version = version
        self._space = space
        self._submit = submit
        self._submit_stream = submit_stream
        self._statistics = version.statistics
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._all_outputs = tuple(sorted(version.config.outputs_by_name))
        self._tasks: set[asyncio.Task[None]] = set()

    def begin_load(self) -> None:
        self._space.begin_load()

    def drop(self) -> None:
        """Forget every answer, and keep none of those that are still to come."""
        self._space.drop()

    # ------------------------------------------------------------------------------------------ one answer

    def infer(self, request: InferenceRequest, *, batch_size: int, accepted_ns: int) -> Answer:
        """As `ServedVersion.infer`, for a request that was accepted."""
        accepted = _Accepted(request, batch_size, accepted_ns)
        sought = self._seek_now(request)
        if isinstance(sought, _Sought):
            return self._answer(accepted, sought)
        answer = self._loop.create_task(self._answer_later(accepted, sought))
        answer.add_done_callback(partial(self._on_end, accepted, sought))
        return answer

    def _answer(self, accepted: _Accepted, sought: _Sought) -> Answer:
        if sought.found is not None:
            answer: Answer = self._loop.create_future()
            outcome = self._hit(accepted, sought, sought.found)
            self._version.answer_in_order(partial(self._settle, accepted, answer, outcome))
            return answer
        answer = self._submit(sought.request, batch_size=accepted.batch_size, accepted_ns=accepted.accepted_ns)
        if _wants_more(accepted.request):
            arranging = self._loop.create_task(self._arrange_later(accepted, sought, answer))
            # One that is cancelled at once never gets to see the answer that it would pass this on to.
            arranging.add_done_callback(lambda _: answer.cancel())
            return arranging
        answer.add_done_callback(partial(self._on_answer, sought))
        return answer

    async def _answer_later(self, accepted: _Accepted, seeking: asyncio.Future[_Sought]) -> InferenceResponse:
        sought = await self._sought_by(accepted, seeking)
        try:
            answer = self._answer(accepted, sought)
        except BaseException as error:
            self._version.count_refusal(error)
            raise
        return await answer

    async def _arrange_later(self, accepted: _Accepted, sought: _Sought, answer: Answer) -> InferenceResponse:
        try:
            response = await answer
        except BaseException:
            self._miss(sought, None)
            raise
        self._miss(sought, response)
        return self._arrange(accepted.request, response)

    def _settle(self, accepted: _Accepted, answer: Answer, outcome: Outcome) -> None:
        if answer.done():
            return
        _note(accepted, outcome)
        if isinstance(outcome, InferenceError):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)

    def _on_answer(self, sought: _Sought, answer: Answer) -> None:
        if answer.cancelled() or answer.exception() is not None:
            self._miss(sought, None)
        else:
            self._miss(sought, answer.result())

    # ------------------------------------------------------------------------------------------ a stream

    def infer_stream(
        self, request: InferenceRequest, receiver: ResponseReceiver, *, batch_size: int, accepted_ns: int
    ) -> ResponseStream:
        """As `ServedVersion.infer_stream`, for a request that was accepted. No model here is decoupled."""
        accepted = _Accepted(request, batch_size, accepted_ns)
        sought = self._seek_now(request)
        if not isinstance(sought, _Sought):
            return self._stream_later(accepted, receiver, sought)
        if sought.found is None:
            return self._stream_executed(accepted, receiver, sought)
        stream = ResponseStream(receiver)
        # Not now: its receiver hears nothing before it knows the stream.
        self._loop.call_soon(self._stream_found, accepted, stream, sought, sought.found)
        return stream

    def _stream_executed(self, accepted: _Accepted, receiver: ResponseReceiver, sought: _Sought) -> ResponseStream:
        keeping = _Keeping(self, accepted.request, receiver, sought)
        return self._submit_stream(
            sought.request, keeping, batch_size=accepted.batch_size, accepted_ns=accepted.accepted_ns
        )

    def _stream_found(self, accepted: _Accepted, stream: ResponseStream, sought: _Sought, found: Outputs) -> None:
        outcome = self._hit(accepted, sought, found)

        def deliver() -> None:
            if not stream.is_ended:
                _note(accepted, outcome)
                stream.deliver(outcome, is_final=True)

        if stream.caller is None:
            self._version.answer_in_order(deliver)
        else:
            deliver()  # answers to models keep no order: those before it may wait for just this one

    def _stream_later(
        self, accepted: _Accepted, receiver: ResponseReceiver, seeking: asyncio.Future[_Sought]
    ) -> ResponseStream:
        stream = ResponseStream(receiver)
        task = self._loop.create_task(self._run_stream(accepted, stream, seeking))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(partial(self._on_end, accepted, seeking))

        def cancel() -> None:
            task.cancel()

        def end(task: asyncio.Future[None]) -> None:
            if task.cancelled():  # the stream was withdrawn, perhaps, and waits for its end
                stream.deliver(InferenceError(ErrorCode.CANCELLED, ""), is_final=True)

        task.add_done_callback(end)
        stream.on_cancel(cancel)
        return stream

    async def _run_stream(self, accepted: _Accepted, stream: ResponseStream, seeking: asyncio.Future[_Sought]) -> None:
        try:
            sought = await self._sought_by(accepted, seeking)
            if sought.found is not None:
                self._stream_found(accepted, stream, sought, sought.found)
            else:
                stream.stands_for(self._stream_executed_late(accepted, stream, sought))
        except InferenceError as error:
            self._fail_stream(accepted, stream, error)
        except Exception:
            logger.exception("a request to model '%s' failed inside the server", self._version.name)
            self._fail_stream(accepted, stream, InferenceError(ErrorCode.INTERNAL, "internal error of the server"))

    def _stream_executed_late(self, accepted: _Accepted, stream: ResponseStream, sought: _Sought) -> ResponseStream:
        try:
            return self._stream_executed(accepted, _Forwarding(stream), sought)
        except Exception as error:
            self._version.count_refusal(error)
            raise

    def _fail_stream(self, accepted: _Accepted, stream: ResponseStream, error: InferenceError) -> None:
        _note(accepted, error)
        stream.deliver(error, is_final=True)

    # ------------------------------------------------------------------------------------------ lookup

    def _seek_now(self, request: InferenceRequest) -> _Sought | asyncio.Future[_Sought]:
        """What the cache has for *request*, or a task that finds it out where that takes a while."""
        began_ns = self._clock()
        if sum(tensor.nbytes for tensor in request.inputs) > _LARGE_BYTES:
            return self._hold_while(request, self._seek(request, began_ns, None))
        plain, digest = self._hashed(request)
        found = self._space.lookup(digest)
        if isinstance(found, asyncio.Future):
            return self._hold_while(request, self._seek(plain, began_ns, (digest, found)))
        return _Sought(plain, digest, found, self._clock() - began_ns)

    def _hashed(self, request: InferenceRequest) -> tuple[InferenceRequest, bytes]:
        plain = _plain(request)
        return plain, request_digest(plain, self._all_outputs)

    async def _seek(
        self, request: InferenceRequest, began_ns: int, begun: tuple[bytes, asyncio.Future[Found]] | None
    ) -> _Sought:
        if begun is None:
            request, digest = await asyncio.to_thread(self._hashed, request)
            found = self._space.lookup(digest)
        else:
            digest, found = begun
        if isinstance(found, asyncio.Future):
            found = await found
        return _Sought(request, digest, found, self._clock() - began_ns)

    def _hold_while(self, request: InferenceRequest, seeking: Coroutine[Any, Any, _Sought]) -> asyncio.Task[_Sought]:
        """Begin with *seeking*. The version cannot end before it is done; nor before what then comes of it is queued.

        Raises InferenceError where too much waits already.
        """
        try:
            nbytes = self._version.unanswered.take(request)
        except InferenceError:
            seeking.close()
            raise
        self._version.hold()
        task = self._loop.create_task(seeking)
        task.add_done_callback(partial(self._on_sought, request, nbytes))
        return task

    def _on_sought(self, request: InferenceRequest, nbytes: int, seeking: asyncio.Future[_Sought]) -> None:
        self._version.unanswered.give_back(request, nbytes)
        self._version.release()
        if not seeking.cancelled():
            seeking.exception()  # which nobody else looks at where the request is cancelled just now

    async def _sought_by(self, accepted: _Accepted, seeking: asyncio.Future[_Sought]) -> _Sought:
        """Raises InferenceError where its inputs are gone, or the workers that would have to execute it now have died."""
        try:
            sought = await seeking
        except Exception as error:
            self._version.count_refusal(error)
            raise
        accepted.was_sought = True
        if sought.found is None and self._version.is_recovering:
            self._statistics.refusals[Refusal.UNAVAILABLE] += 1
            raise self._version.not_ready_error()
        return sought

    def _on_end(self, accepted: _Accepted, seeking: asyncio.Future[_Sought], task: asyncio.Future[Any]) -> None:
        """*task* was to answer *accepted*; if it was cancelled before that was looked up, nobody else counts it."""
        if task.cancelled() and not accepted.was_sought:
            seeking.cancel()
            self._statistics.cancellations += 1
            self._statistics.add_failure(FailureReason.CANCELED, self._clock() - accepted.accepted_ns)

    # ------------------------------------------------------------------------------------------ what comes of it

    def _hit(self, accepted: _Accepted, sought: _Sought, outputs: Outputs) -> Outcome:
        total_ns = self._clock() - accepted.accepted_ns
        self._statistics.add_cache_hit(total_ns=total_ns, lookup_ns=sought.lookup_ns)
        if self._statistics.first_response is not None:
            self._statistics.first_response.observe(total_ns // 1_000_000)
        request = accepted.request
        tensors = [output.tensor() for output in outputs]
        response = InferenceResponse(self._version.name, self._version.version, request.request_id, tensors, {})
        try:
            return self._arrange(request, response)
        except InferenceError as error:
            return error

    def _miss(self, sought: _Sought, response: InferenceResponse | None) -> None:
        """It was executed; *response* is None where that went wrong. Errors are not kept."""
        insert_ns = 0
        if response is not None:
            began_ns = self._clock()
            # Where an output's bytes are gone, whoever asked for it hears that.
            with suppress(InferenceError, MemoryError):
                self._space.insert(sought.digest, response.outputs)
            insert_ns = self._clock() - began_ns
        self._statistics.add_cache_miss(lookup_ns=sought.lookup_ns, insert_ns=insert_ns)

    def executed(self, request: InferenceRequest, sought: _Sought, response: Outcome | None) -> Outcome | None:
        """Keep what was executed for *request*, and make of it what it wants."""
        if not isinstance(response, InferenceResponse):
            self._miss(sought, None)
            return response
        self._miss(sought, response)
        try:
            return self._arrange(request, response)
        except InferenceError as error:
            return error

    def _arrange(self, request: InferenceRequest, response: InferenceResponse) -> InferenceResponse:
        """Raises InferenceError for an output that cannot become what *request* wants."""
        if _wants_more(request):
            response.outputs = arranged(
                response.outputs,
                request,
                has_batch_dimension=self._version.config.max_batch_size > 0,
                labels=self._version.labels,
            )
        return response


class _Keeping:
    """Receives what was executed, and passes it on."""

    def __init__(
        self, cached: CachedRequests, request: InferenceRequest, receiver: ResponseReceiver, sought: _Sought
    ) -> None:
        self._cached = cached
        self._request = request
        self._receiver = receiver
        self._sought = sought

    def on_response(self, response: Outcome | None, *, is_final: bool) -> None:
        outcome = self._cached.executed(self._request, self._sought, response) if is_final else response
        self._receiver.on_response(outcome, is_final=is_final)


class _Forwarding:
    """Receives what is for a stream that was there before its request was queued."""

    def __init__(self, stream: ResponseStream) -> None:
        self._stream = stream

    def on_response(self, response: Outcome | None, *, is_final: bool) -> None:
        self._stream.deliver(response, is_final=is_final)


def _wants_more(request: InferenceRequest) -> bool:
    return request.output_windows is not None or request.classes is not None


def _plain(request: InferenceRequest) -> InferenceRequest:
    """*request*, wanting its outputs as they are, with inputs that its client cannot change any more.

    The same object where that is so already. Raises InferenceError for inputs that are gone.
    """
    lies_elsewhere = any(tensor.data is None for tensor in request.inputs)
    if not lies_elsewhere and not _wants_more(request):
        return request
    plain = copy.copy(request)
    plain.output_windows = plain.classes = None
    plain.inputs = [Tensor(t.name, t.datatype, t.shape, t.content()) if t.data is None else t for t in request.inputs]
    return plain


def _note(accepted: _Accepted, outcome: Outcome) -> None:
    """Tell whoever follows the request that it is answered."""
    timeline = accepted.request.timeline
    if timeline is None:
        return
    if isinstance(outcome, InferenceResponse):
        timeline.responded(outcome)
    error = outcome.message if isinstance(outcome, InferenceError) else ""
    timeline.answered(enqueued_ns=accepted.accepted_ns, error=error)
