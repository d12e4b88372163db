"""One version of one model, whatever executes it: its configuration, its state as the index shows it, what it accepts.

`worker_version.WorkerVersion` has workers and a queue; an ensemble has other versions.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import SEQUENCE_START, InferenceRequest, Origin, ResponseReceiver
from pytriton_lite.core.states import VERSION_TRANSITIONS, VersionState, move
from pytriton_lite.core.timeline import Clock
from pytriton_lite.engine.cache.response_cache import CacheSpace
from pytriton_lite.engine.counting.latencies import LatencyMetrics
from pytriton_lite.engine.counting.statistics import InstanceStatus, Refusal, SharedMemory, statistics_of
from pytriton_lite.engine.counting.unanswered import Unanswered, UnansweredLimits, UnansweredTotal
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.serving.admission import Admission
from pytriton_lite.engine.serving.cached_requests import CachedRequests
from pytriton_lite.engine.serving.device_staging import DeviceStaging, StagedOutputs
from pytriton_lite.engine.workers.device_helper import DeviceHelpers
from pytriton_lite.repository.index import ModelId
from pytriton_lite.scheduling.ticket import Caller, Ticket


class ServedVersion(ABC):
    """A model version from the moment its load began. Front ends get it from ``Server.find``; good for one request."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        *,
        namespace: str = "",
        clock: Clock = time.monotonic_ns,
        latencies: LatencyMetrics = LatencyMetrics(),  # noqa: B008  # frozen
        total: UnansweredTotal | None = None,
    ) -> None:
        """*namespace* is the model's repository with ``--model-namespacing``, and empty without.

        *total* is what waits in the whole server; None where nothing is bounded.
        """
        self.id = ModelId(namespace, config.name)
        self.name = config.name
        self.version = version
        self.config = config
        self.state = VersionState.UNKNOWN
        self.reason = ""
        self.stamp = next_stamp()
        """No other version has it, nor this one with another configuration: what a request was checked against."""
        self.on_change: Callable[[], None] = _nothing
        """Called when ``state`` or ``config`` has changed, of a version that can be seen."""
        self.statistics = statistics_of(config, version, latencies, clock)
        self.statistics.namespace = namespace
        self.load_began_ns = 0
        self.step = ""
        """What it is doing while it is LOADING, for people: ``initialize`` say; empty where there is nothing to tell."""
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._admission = Admission(config)
        self.unanswered = Unanswered(
            config.name,
            total if total is not None else UnansweredTotal(UnansweredLimits()),
            requests=config.max_unanswered_requests,
            nbytes=config.max_unanswered_bytes,
            clock=clock,
        )
        self._closed = ""
        """Why no request is accepted; empty while they are."""
        self._is_stopping = False
        self._cached: CachedRequests | None = None
        """What answers in place of the model, where the server and the model have a response cache."""
        self._staging: DeviceStaging | None = None
        """What copies tensors of requests from devices and to them; None where the server has none."""
        self.takes_device_inputs = False
        """Whether its inputs may be in memory of a device."""
        self.writes_to_devices = False
        """Whether its outputs go to a client's memory on a device by themselves."""
        self.answers_on_device = False
        """Whether its outputs may stay on a device, for whoever can use them there."""
        self._holders = 0
        self._let_go: asyncio.Event | None = None

    # ------------------------------------------------------------------------------------------ requests

    def check(self, request: InferenceRequest) -> None:
        """Refuse what the model cannot take, tensor bytes aside. Raises InferenceError(INVALID_ARG)."""
        self._checked(request)

    def infer(self, request: InferenceRequest, receiver: ResponseReceiver, caller: Caller | None = None) -> Ticket:
        """Check and enqueue; *receiver* gets the responses, one for a model that is not decoupled.

        *caller* is whose model asks. The ticket is for the client: to cancel the request, and to say what was passed on.
        Raises InferenceError at once for what is wrong with the request or with the queue; *receiver* hears nothing then,
        nor before this returns.

        A step of an ensemble's request is served while the server stops, or the version is unloaded, which the ensemble holds.
        """
        timeline = request.timeline
        if timeline is not None:
            timeline.arrived(request.request_id, self.version)
        batch_size = self._checked(request)
        return self._take(request, receiver, batch_size, self._admission.shape_key(request), caller)

    def infer_checked(
        self, request: InferenceRequest, receiver: ResponseReceiver, batch_size: int, *, has_shape_key: bool
    ) -> Ticket:
        """`infer` for a request that a front end in another process has checked, against what has this version's ``stamp``.

        *batch_size* is what its `Admission` has found, and whether there is a shape key.
        """
        timeline = request.timeline
        if timeline is not None:
            timeline.arrived(request.request_id, self.version)
        shape_key = self._admission.shape_key(request) if has_shape_key else None
        return self._take(request, receiver, batch_size, shape_key, None)

    def _take(
        self,
        request: InferenceRequest,
        receiver: ResponseReceiver,
        batch_size: int,
        shape_key: Hashable,
        caller: Caller | None,
    ) -> Ticket:
        """Enqueue a request that was checked. Raises InferenceError for one that cannot be taken now."""
        accepted_ns = self._clock()
        self._accept(request, batch_size, accepted_ns)
        staging = self._staging
        if request.on_device or (staging is not None and staging.has_before(request)):
            return self._take_staged(request, receiver, batch_size, shape_key, caller, accepted_ns)
        ticket = Ticket(
            request,
            receiver,
            batch_size=batch_size,
            shape_key=shape_key,
            accepted_ns=accepted_ns,
            caller=caller,
        )
        try:
            self._go_on(ticket)
        except BaseException as error:
            self.count_refusal(error)
            raise
        return ticket

    def _take_staged(
        self,
        request: InferenceRequest,
        receiver: ResponseReceiver,
        batch_size: int,
        shape_key: Hashable,
        caller: Caller | None,
        accepted_ns: int,
    ) -> Ticket:
        """`_take` for a request with tensors on a device, which are copied to the host and from there, or behind one."""
        staging = self._staging
        if staging is None:
            raise InferenceError(
                ErrorCode.UNSUPPORTED, f"this server has no device, which a request to '{self.name}' needs"
            )
        if not self.writes_to_devices:
            receiver = staging.receiver_of(request, receiver)
        ticket = Ticket(
            request, receiver, batch_size=batch_size, shape_key=shape_key, accepted_ns=accepted_ns, caller=caller
        )
        if isinstance(receiver, StagedOutputs):
            receiver.ticket = ticket
        try:
            staging.begin(ticket)
        except BaseException as error:
            self.count_refusal(error)
            raise
        return ticket

    def _go_on(self, ticket: Ticket) -> None:
        """Begin with a request whose tensors are on the host. Raises InferenceError where it is refused."""
        if self._cached is not None:
            self._cached.begin(ticket)
        else:
            self._begin(ticket)

    def _checked(self, request: InferenceRequest) -> int:
        """The request's batch size. Raises InferenceError(INVALID_ARG) for one that does not fit the model."""
        try:
            return self._admission.check(request)
        except InferenceError:
            self.statistics.refusals[Refusal.INVALID] += 1
            raise

    def _accept(self, request: InferenceRequest, batch_size: int, accepted_ns: int) -> None:
        """Raises InferenceError for a request that cannot be taken now."""
        if self._closed and not (self._is_stopping and (_is_step(request) or self._goes_on(request))):
            self.statistics.refusals[Refusal.UNAVAILABLE] += 1
            raise self._closed_error(request)
        # It was when it was found, but the body took its time. An ensemble that holds it may ask until it lets go, while
        # somebody can answer.
        if self.state is not VersionState.READY and (self.is_recovering or not _is_step(request)):
            self.statistics.refusals[Refusal.UNAVAILABLE] += 1
            raise self.not_ready_error()
        if request.timeline is not None:
            request.timeline.accepted(request.inputs, batch_size=batch_size, now_ns=accepted_ns)

    def _goes_on(self, request: InferenceRequest) -> bool:
        """Whether it belongs to a sequence that has begun, which is served to its end (repository spec, section 9)."""
        sequences = self.config.sequence_batching
        return sequences is not None and not sequences.is_iterative and not request.sequence_flags & SEQUENCE_START

    def _closed_error(self, request: InferenceRequest) -> InferenceError:
        # Of all schedulers that of sequences alone does not name the request.
        prefix = request.error_prefix if self.config.sequence_batching is None else ""
        return InferenceError(ErrorCode.UNAVAILABLE, prefix + self._closed)

    def count_refusal(self, error: BaseException) -> None:
        """A request was not taken: its queue was full, too much waits, or a rule of sequences was broken."""
        is_full = isinstance(error, InferenceError) and error.code in _FULL
        self.statistics.refusals[Refusal.QUEUE_FULL if is_full else Refusal.INVALID] += 1

    @abstractmethod
    def _begin(self, ticket: Ticket) -> None:
        """Begin with a request that was accepted, as its owner. Raises InferenceError if it is refused."""

    def use_cache(self, space: CacheSpace) -> None:
        """Answer from *space* where it can, from now on. Call it before `begin_load`."""
        self._cached = CachedRequests(self, space, execute=self._begin, clock=self._clock)
        self.statistics.begin_caching()

    def use_devices(self, helpers: DeviceHelpers) -> None:
        """Take requests with tensors on devices, from now on."""
        self._staging = DeviceStaging(self, helpers, go_on=self._go_on, clock=self._clock)

    def answer_in_order(self, deliver: Callable[[], None]) -> None:
        """Call *deliver*, which answers a request that needed no execution, when its turn has come: most often now."""
        deliver()

    def hold(self) -> None:
        """Stay able to serve until `release`, also when an unload begins: for an ensemble with a request under way."""
        self._holders += 1

    def release(self) -> None:
        """Undo one `hold`."""
        self._holders -= 1
        if not self._holders and self._let_go is not None:
            self._let_go.set()

    async def _wait_let_go(self) -> None:
        """Return when nobody holds it."""
        if self._holders:
            self._let_go = asyncio.Event()
            await self._let_go.wait()

    # ------------------------------------------------------------------------------------------ what can be seen

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """The labels of the outputs that have some, by output: what `core.classification.classify` takes."""
        return self.config.labels

    @property
    @abstractmethod
    def pending(self) -> int:
        """Requests that no execution has begun with."""

    @property
    def under_way(self) -> int:
        """Requests that a server which stops waits for before it says that all models are stopped."""
        return self.pending

    @property
    @abstractmethod
    def queued(self) -> int:
        """Requests of `pending` that were not sent ahead to a worker."""

    @property
    @abstractmethod
    def queued_by_level(self) -> dict[int, int]:
        """`queued` by priority level; empty where there are no levels."""

    @property
    @abstractmethod
    def shared_memory(self) -> list[SharedMemory]:
        """One for each instance that executes."""

    @property
    def worker_host_bytes(self) -> int:
        """Bytes of tensors that its workers have copied between devices and the host."""
        return 0

    @property
    @abstractmethod
    def longest_executions(self) -> dict[str, float]:
        """Seconds by the name of each instance that executes: what the longest execution under way has taken."""

    @property
    def instances(self) -> list[InstanceStatus]:
        """One for each instance that has not ended; none where nothing of its own executes."""
        return []

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether a request would be served now."""

    @abstractmethod
    async def says_ready(self) -> bool:
        """`is_ready`, and the model's own opinion agrees, where it has one."""

    @property
    @abstractmethod
    def is_recovering(self) -> bool:
        """Whether it is UNAVAILABLE only because its workers keep dying; they are being restarted."""

    @property
    def is_loaded(self) -> bool:
        """Whether it has something that `unload` would end, and has not been told to."""
        return self.state is VersionState.READY or self.is_recovering

    def not_ready_error(self) -> InferenceError:
        """What a request for this version is told while it is not READY (repository spec, section 2)."""
        return not_ready_error(self.id, self.version)

    # ------------------------------------------------------------------------------------------ life

    def begin_load(self, began_ns: int | None = None) -> None:
        """LOADING from now on; `load` or `fail_load` must follow. *began_ns* is when it really began, if not now."""
        self._move(VersionState.LOADING)
        self.load_began_ns = self._clock() if began_ns is None else began_ns
        if self._cached is not None:
            self._cached.begin_load()

    def at_step(self, step: str) -> None:
        """Say what it is doing now, as ``step``."""
        self.step = step

    def fail_load(self, error: InferenceError) -> None:
        """Make the version UNAVAILABLE, with the reason in the index."""
        self._move(VersionState.UNAVAILABLE, f"{error.code.label}: {error.message}")

    @abstractmethod
    async def load(self, environment: Environment | None) -> None:
        """Get everything ready. Still LOADING afterwards: `open` or `unload` must follow.

        UNAVAILABLE with the reason if that fails; does not raise for it. When it is cancelled `unload` must follow, too.
        """

    def open(self) -> None:
        """READY: requests are taken. Call it once, after a `load` that went well."""
        self._move(VersionState.READY)
        self.statistics.load_ns = self._clock() - self.load_began_ns

    @abstractmethod
    def adopting(self, config: ModelConfig) -> AbstractAsyncContextManager[Callable[[], None]]:
        """Serve on, READY, with *config*, which differs from the present one in instance groups and version policy alone.

        Instances come and go (repository spec, 3.1). Inside, those that are new are ready, and the call of what was entered
        changes to them; those that are too many then end by themselves when they have nothing more to do. Without that call
        nothing has changed afterwards. Entering raises InferenceError when an instance cannot be created.
        """

    def stop_accepting(self) -> None:
        """Refuse new requests from now on; those inside are served. A second time changes nothing."""
        self._is_stopping = self._is_stopping or not self._closed
        self._closed = "Server is stopping, scheduler for model has stopped accepting new inference requests"

    def begin_unload(self) -> None:
        """UNLOADING from now on: no request finds its way here any more. `unload` must follow."""
        self._move(VersionState.UNLOADING)
        # What a server leaves behind when it stops others may use.
        if self._cached is not None and not self._is_stopping:
            self._cached.drop()

    @abstractmethod
    async def unload(self, timeout_s: float | None = None) -> bool:
        """Serve what is inside, finalize, end; UNAVAILABLE then.

        Whether all of it ended by itself within *timeout_s*; without it there is no limit, as in Triton. Call `begin_unload`
        first.
        """

    def _move(self, target: VersionState, reason: str = "") -> None:
        self.state = move(VERSION_TRANSITIONS, self.state, target)
        self.reason = reason
        self.on_change()


_stamps = itertools.count(1)


def next_stamp() -> int:
    """A stamp that no version has had."""
    return next(_stamps)


def not_ready_error(model: ModelId, version: int) -> InferenceError:
    """What a request for a version is told that is not READY (repository spec, section 2)."""
    text = f"Request for unknown model: '{model}' version {version} is not at ready state"
    return InferenceError(ErrorCode.UNAVAILABLE, text)


def _nothing() -> None:
    """Nobody listens."""


_FULL = (ErrorCode.UNAVAILABLE, ErrorCode.RESOURCE_EXHAUSTED)


def _is_step(request: InferenceRequest) -> bool:
    return request.origin is Origin.ENSEMBLE
