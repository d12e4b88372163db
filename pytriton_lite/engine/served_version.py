"""One version of one model, whatever executes it: its configuration, its state as the index shows it, what it accepts.

`worker_version.WorkerVersion` has workers and a queue; an ensemble has other versions.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.states import VERSION_TRANSITIONS, VersionState, move
from pytriton_lite.engine.admission import Admission
from pytriton_lite.engine.dispatch import Clock
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.latency_metrics import LatencyMetrics
from pytriton_lite.engine.response_stream import ResponseReceiver, ResponseStream
from pytriton_lite.engine.statistics import Refusal, SharedMemory, statistics_of


class ServedVersion(ABC):
    """A model version from the moment its load began. Front ends get it from ``Server.find``; good for one request."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        *,
        clock: Clock = time.monotonic_ns,
        latencies: LatencyMetrics = LatencyMetrics(),  # noqa: B008  # frozen
    ) -> None:
        self.name = config.name
        self.version = version
        self.config = config
        self.state = VersionState.UNKNOWN
        self.reason = ""
        self.statistics = statistics_of(config, version, latencies, clock)
        self.load_began_ns = 0
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._admission = Admission(config)
        self._closed = ""
        """Why no request is accepted; empty while they are."""
        self._holders = 0
        self._let_go: asyncio.Event | None = None

    # ------------------------------------------------------------------------------------------ requests

    def check(self, request: InferenceRequest) -> None:
        """Refuse what the model cannot take, tensor bytes aside. Raises InferenceError(INVALID_ARG)."""
        try:
            self._admission.check(request)
        except InferenceError:
            self.statistics.refusals[Refusal.INVALID] += 1
            raise

    def infer(self, request: InferenceRequest) -> asyncio.Future[InferenceResponse]:
        """Check, enqueue, and return the future that carries the answer.

        Raises InferenceError at once for what is wrong with the request or with the queue.
        """
        accepted_ns = self._clock()
        batch_size = self._accept(request, accepted_ns)
        try:
            return self._submit(request, batch_size=batch_size, accepted_ns=accepted_ns)
        except BaseException as error:
            self._count_refusal(error)
            raise

    def infer_stream(self, request: InferenceRequest, receiver: ResponseReceiver) -> ResponseStream:
        """Check and enqueue; *receiver* gets the responses, one for a model that is not decoupled. Raises as `infer`."""
        accepted_ns = self._clock()
        batch_size = self._accept(request, accepted_ns)
        try:
            return self._submit_stream(request, receiver, batch_size=batch_size, accepted_ns=accepted_ns)
        except BaseException as error:
            self._count_refusal(error)
            raise

    def _accept(self, request: InferenceRequest, accepted_ns: int) -> int:
        """The request's batch size; raises InferenceError for one that is refused."""
        timeline = request.timeline
        if timeline is not None:
            timeline.arrived(request, self.version)
        try:
            batch_size = self._admission.check(request)
        except InferenceError:
            self.statistics.refusals[Refusal.INVALID] += 1
            raise
        if self._closed:
            self.statistics.refusals[Refusal.UNAVAILABLE] += 1
            raise InferenceError(ErrorCode.UNAVAILABLE, request.error_prefix + self._closed)
        # It was when it was found, but the body took its time. Who holds it may ask until he lets go.
        if self.state is not VersionState.READY and not self._holders:
            self.statistics.refusals[Refusal.UNAVAILABLE] += 1
            raise self.not_ready_error()
        if timeline is not None:
            timeline.accepted(request, batch_size=batch_size, now_ns=accepted_ns)
        return batch_size

    def _count_refusal(self, error: BaseException) -> None:
        """The scheduler did not take a request: its queue was full, or a rule of sequences was broken."""
        is_full = isinstance(error, InferenceError) and error.code is ErrorCode.UNAVAILABLE
        self.statistics.refusals[Refusal.QUEUE_FULL if is_full else Refusal.INVALID] += 1

    @abstractmethod
    def _submit(
        self, request: InferenceRequest, *, batch_size: int, accepted_ns: int
    ) -> asyncio.Future[InferenceResponse]:
        """Begin with a request that was accepted. Cancelling the future cancels it. Raises InferenceError if it is refused."""

    @abstractmethod
    def _submit_stream(
        self, request: InferenceRequest, receiver: ResponseReceiver, *, batch_size: int, accepted_ns: int
    ) -> ResponseStream:
        """`_submit` for a client that takes any number of responses."""

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
    @abstractmethod
    def queued(self) -> int:
        """Those of `pending` that were not sent ahead to a worker."""

    @property
    @abstractmethod
    def queued_by_level(self) -> dict[int, int]:
        """`queued` by priority level; empty where there are no levels."""

    @property
    @abstractmethod
    def shared_memory(self) -> list[SharedMemory]:
        """One for each instance that executes."""

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
        text = f"Request for unknown model: '{self.name}' version {self.version} is not at ready state"
        return InferenceError(ErrorCode.UNAVAILABLE, text)

    # ------------------------------------------------------------------------------------------ life

    def begin_load(self, began_ns: int | None = None) -> None:
        """LOADING from now on; `load` or `fail_load` must follow. *began_ns* is when it really began, if not now."""
        self._move(VersionState.LOADING)
        self.load_began_ns = self._clock() if began_ns is None else began_ns

    def fail_load(self, error: InferenceError) -> None:
        """UNAVAILABLE, with the reason in the index."""
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

    def stop_accepting(self) -> None:
        """Refuse new requests from now on; those inside are served."""
        self._closed = "Server is stopping, scheduler for model has stopped accepting new inference requests"

    def begin_unload(self) -> None:
        """UNLOADING from now on: no request finds its way here any more. `unload` must follow."""
        self._move(VersionState.UNLOADING)

    @abstractmethod
    async def unload(self, timeout_s: float | None = None) -> bool:
        """Serve what is inside, finalize, end; UNAVAILABLE then.

        Whether all of it ended by itself within *timeout_s*; without it there is no limit, as in Triton. Call `begin_unload`
        first.
        """

    def _move(self, target: VersionState, reason: str = "") -> None:
        self.state = move(VERSION_TRANSITIONS, self.state, target)
        self.reason = reason
