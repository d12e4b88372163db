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

A cache may be a plug-in: one that raises has not found what it was asked for, or has not kept it. Loads and unloads go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.cache.response_cache import CacheSpace, Found, Lookup, Outputs, request_digest
from pytriton_lite.engine.serving.not_queued import NotQueued, WaitedFor
from pytriton_lite.engine.workers.outputs import arranged
from pytriton_lite.ipc.region import ClientSegment
from pytriton_lite.scheduling.ticket import Outcome, Ticket

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_LARGE_BYTES = 256 << 10
"""Inputs of so many bytes are hashed in a thread: that takes a quarter of a millisecond, the thread a tenth."""


class CachedVersion(WaitedFor, Protocol):
    """What the cache asks of the version that it answers for."""

    version: int
    config: ModelConfig

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """Labels by output: what its elements stand for."""

    def answer_in_order(self, deliver: Callable[[], None]) -> None:
        """Call *deliver*, which answers a request that needed no execution, when its turn has come."""


class _Sought(NamedTuple):
    """What the lookup of a request gave. *lookup_ns* is how long it took."""

    request: InferenceRequest
    """The same one, wanting its outputs plain."""
    digest: bytes
    found: Found
    lookup_ns: int


class CachedRequests(NotQueued):
    """Stands in front of the queue of one version, and owns requests while they are looked up. No model here is decoupled."""

    def __init__(
        self,
        version: CachedVersion,
        space: CacheSpace,
        *,
        execute: Callable[[Ticket], None],
        clock: Callable[[], int],
    ) -> None:
        """*execute* queues a request of *version*; it raises InferenceError where that is refused."""
        super().__init__(version, clock)
        self._version = version
        self._space = space
        self._execute = execute
        self._statistics = version.statistics
        self._all_outputs = tuple(sorted(version.config.outputs_by_name))

    def begin_load(self) -> None:
        try:
            self._space.begin_load()
        except Exception:
            self._say_failed("begin a load")

    def drop(self) -> None:
        """Forget every answer, and keep none of those that are still to come."""
        try:
            self._space.drop()
        except Exception:
            self._say_failed("forget the responses")

    # ------------------------------------------------------------------------------------------ requests

    def begin(self, ticket: Ticket) -> None:
        """Answer *ticket* from the cache, or have it executed. Raises InferenceError where it is refused at once."""
        sought = self._seek_now(ticket.request)
        if not isinstance(sought, _Sought):
            self._wait_for(ticket, sought, self._on_sought)
        elif sought.found is None:
            self._begin_execution(ticket, sought)
        else:
            # Not now: its receiver hears nothing before it knows the ticket.
            ticket.owner = self
            self._loop.call_soon(self._answer, ticket, sought, sought.found)

    def _begin_execution(self, ticket: Ticket, sought: _Sought) -> None:
        wanted = ticket.request
        ticket.request = sought.request
        ticket.tap = partial(self._executed, ticket, wanted, sought)
        try:
            self._execute(ticket)
        except BaseException:
            ticket.tap = None  # it refers to the ticket: the request would wait for a collection
            raise

    def _answer(self, ticket: Ticket, sought: _Sought, found: Outputs) -> None:
        try:
            outcome = self._hit(ticket, sought, found)
        except Exception as error:
            # The loop called, which would log it and tell nobody: there is no memory for the outputs, say. No
            # refusal: the request was fine, as where an answer that was executed finds no room.
            self._give_up(ticket, error)
            return

        def deliver() -> None:
            if not ticket.has_ended:
                _note(ticket, outcome)
                ticket.deliver(outcome, is_final=True)

        if ticket.caller is None:
            self._version.answer_in_order(deliver)
        else:
            deliver()  # answers to models keep no order: those before it may wait for just this one

    def _on_sought(self, ticket: Ticket, sought: _Sought) -> None:
        """The lookup of *ticket*, which took a while, has ended."""
        if sought.found is not None:
            self._answer(ticket, sought, sought.found)
        elif not self._has_failed(ticket):
            self._begin_execution(ticket, sought)

    # ------------------------------------------------------------------------------------------ lookup

    def _seek_now(self, request: InferenceRequest) -> _Sought | Coroutine[Any, Any, _Sought]:
        """What the cache has for *request*, or what finds it out where that takes a while."""
        began_ns = self._clock()
        if sum(tensor.nbytes for tensor in request.inputs) > _LARGE_BYTES:
            return self._seek(request, began_ns, None)
        plain, digest = self._hashed(request)
        found = self._lookup(digest)
        if isinstance(found, asyncio.Future):
            return self._seek(plain, began_ns, (digest, found))
        return _Sought(plain, digest, found, self._clock() - began_ns)

    def _hashed(self, request: InferenceRequest) -> tuple[InferenceRequest, bytes]:
        plain = _plain(request)
        return plain, request_digest(plain, self._all_outputs)

    async def _seek(
        self, request: InferenceRequest, began_ns: int, begun: tuple[bytes, asyncio.Future[Found]] | None
    ) -> _Sought:
        if begun is None:
            request, digest = await _to_its_end(asyncio.to_thread(self._hashed, request))
            found = self._lookup(digest)
        else:
            digest, found = begun
        if isinstance(found, asyncio.Future):
            try:
                found = await found
            except Exception:
                self._say_failed("answer a lookup")
                found = None
        return _Sought(request, digest, found, self._clock() - began_ns)

    def _lookup(self, digest: bytes) -> Lookup:
        try:
            return self._space.lookup(digest)
        except Exception:
            self._say_failed("answer a lookup")
            return None

    def _say_failed(self, what: str) -> None:
        logger.exception("the response cache failed to %s for model '%s'", what, self._version.name)

    # ------------------------------------------------------------------------------------------ what comes of it

    def _hit(self, ticket: Ticket, sought: _Sought, outputs: Outputs) -> Outcome:
        total_ns = self._clock() - ticket.accepted_ns
        self._statistics.add_cache_hit(total_ns=total_ns, lookup_ns=sought.lookup_ns)
        if self._statistics.first_response is not None:
            self._statistics.first_response.observe(total_ns // 1_000_000)
        request = ticket.request
        tensors = [output.tensor() for output in outputs]
        response = InferenceResponse(self._version.name, self._version.version, request.request_id, tensors, {})
        try:
            return self._arrange(request, response)
        except InferenceError as error:
            return error

    def _miss(self, sought: _Sought, response: InferenceResponse | None) -> None:
        """Keep *response* of a request that was executed, None where that went wrong. Errors are not kept."""
        insert_ns = 0
        if response is not None:
            began_ns = self._clock()
            try:
                self._space.insert(sought.digest, response.outputs)
            except (InferenceError, MemoryError):
                pass  # where an output's bytes are gone, whoever asked for it hears that
            except Exception:
                self._say_failed("keep a response")
            insert_ns = self._clock() - began_ns
        self._statistics.add_cache_miss(lookup_ns=sought.lookup_ns, insert_ns=insert_ns)

    def _executed(
        self, ticket: Ticket, wanted: InferenceRequest, sought: _Sought, response: Outcome | None
    ) -> Outcome | None:
        """Keep what was executed for *ticket*, and make of it what its request *wanted*."""
        if not isinstance(response, InferenceResponse):
            self._miss(sought, None)
            return response
        self._miss(sought, None if ticket.is_cancelled else response)
        try:
            return self._arrange(wanted, response)
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


async def _to_its_end(work: Coroutine[Any, Any, Result]) -> Result:
    """Do *work* in a thread. Cancelled, this ends when that has: until then the thread has the body, which is to count."""
    tasks = [asyncio.get_running_loop().create_task(work)]
    is_cancelled = False
    while not tasks[0].done():
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            is_cancelled = True
    if is_cancelled:
        if not tasks[0].cancelled():
            tasks[0].exception()  # asyncio complains of one that nobody has seen
        raise asyncio.CancelledError
    # Taken out: its failure's traceback has this frame, and the two would wait for a collection.
    return tasks.pop().result()


def _wants_more(request: InferenceRequest) -> bool:
    return request.output_windows is not None or request.classes is not None


def _plain(request: InferenceRequest) -> InferenceRequest:
    """*request*, wanting its outputs as they are, with inputs that its client cannot change any more.

    The same object where that is so already. Raises InferenceError for inputs that are gone.
    """
    if not any(map(_is_a_clients, request.inputs)) and not _wants_more(request):
        return request
    return request.plain(
        [Tensor(t.name, t.datatype, t.shape, t.content()) if _is_a_clients(t) else t for t in request.inputs]
    )


def _is_a_clients(tensor: Tensor) -> bool:
    """Whether a worker would look for it in a client's memory, also where somebody has read it before, a tracer say."""
    return tensor.data is None or (tensor.home is not None and isinstance(tensor.home[0], ClientSegment))


def _note(ticket: Ticket, outcome: Outcome) -> None:
    """Tell whoever follows the request that it is answered."""
    timeline = ticket.request.timeline
    if timeline is None:
        return
    if isinstance(outcome, InferenceResponse):
        timeline.responded(outcome.outputs)
    error = outcome.message if isinstance(outcome, InferenceError) else ""
    timeline.answered(enqueued_ns=ticket.accepted_ns, error=error)
