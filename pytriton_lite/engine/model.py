"""One version of one model: its configuration, its state as the index shows it, its instances, its queue."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pytriton_lite.config.model_config import InstanceSpec, ModelConfig, instance_names
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.states import VERSION_TRANSITIONS, InstanceState, VersionState, move
from pytriton_lite.engine.admission import Admission
from pytriton_lite.engine.backends import Backend
from pytriton_lite.engine.calls import WorkerServices
from pytriton_lite.engine.dispatch import Clock, Dispatcher, PendingAnswer
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.fork_server import Spawners, WorkerExit
from pytriton_lite.engine.instance import DEATHS_BEFORE_NOT_READY, Batch, Instance, Outcome
from pytriton_lite.engine.latency_metrics import LatencyMetrics
from pytriton_lite.engine.log_levels import LogLevels
from pytriton_lite.engine.response_stream import ResponseReceiver, ResponseStream
from pytriton_lite.engine.statistics import Refusal, SharedMemory, statistics_of
from pytriton_lite.engine.worker_process import DEFAULT_RESPONSE_WINDOW, LaunchOptions
from pytriton_lite.ipc.messages import BatchResult
from pytriton_lite.scheduling.default import DefaultScheduler
from pytriton_lite.scheduling.dynamic_batch import DynamicBatchScheduler
from pytriton_lite.scheduling.queue import Cancellable, Scheduler, Ticket
from pytriton_lite.scheduling.sequence_batch import SequenceBatchScheduler

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerSettings:
    """How workers of this server are started. Seconds and bytes; the rest as in LaunchOptions."""

    executable: str
    shm_prefix: str
    ring_bytes: int
    hello_timeout_s: float
    ready_timeout_s: float
    log_levels: LogLevels = field(default_factory=LogLevels)
    response_window: int = DEFAULT_RESPONSE_WINDOW


def initialize_args(config: ModelConfig, plan: InstanceSpec, *, version: int, directory: Path) -> dict[str, str]:
    """What ``initialize`` of an instance gets (model API, 1.4). *directory* is the model's own."""
    return {
        "model_config": config.json_text,
        "model_instance_kind": plan.kind.value,
        "model_instance_name": plan.name,
        "model_instance_device_id": str(plan.device_id),
        "model_repository": str(directory),
        "model_version": str(version),
        "model_name": config.name,
    }


def make_scheduler(config: ModelConfig) -> Scheduler | SequenceBatchScheduler:
    """The scheduler that the configuration asks for."""
    if config.sequence_batching is not None:
        return SequenceBatchScheduler(
            config.sequence_batching,
            model=config.name,
            max_batch_size=config.max_batch_size,
            instances=sum(not plan.passive for plan in instance_names(config)),
            is_decoupled=config.decoupled,
        )
    if config.dynamic_batching is not None:
        return DynamicBatchScheduler(config.dynamic_batching, max_batch_size=config.max_batch_size)
    return DefaultScheduler()


class ServedVersion:
    """A model version from the moment its load began. Front ends get it from ``Server.find``; good for one request."""

    def __init__(
        self,
        name: str,
        version: int,
        config: ModelConfig,
        *,
        directory: Path,
        workers: WorkerSettings,
        spawners: Spawners,
        services: WorkerServices,
        backend: Backend | None = None,
        clock: Clock = time.monotonic_ns,
        latencies: LatencyMetrics = LatencyMetrics(),  # noqa: B008  # frozen
    ) -> None:
        self.name = name
        self.version = version
        self.config = config
        self.state = VersionState.UNKNOWN
        self.reason = ""
        self.statistics = statistics_of(config, version, latencies, clock)
        self._directory = directory
        self._workers = workers
        self._spawners = spawners
        self._services = services
        self._backend = backend
        """The Python-based backend whose code serves it; None where it has its own."""
        self._clock = clock
        self.load_began_ns = 0
        self._loop = asyncio.get_running_loop()
        self._admission = Admission(config)
        dynamic = config.dynamic_batching
        self._dispatcher = Dispatcher(
            make_scheduler(config),
            self.statistics,
            preserve_ordering=config.preserves_ordering,
            # A batcher gains by seeing everything that comes in the same turn; a model that takes single requests does not.
            is_eager=dynamic is None and config.sequence_batching is None,
            is_decoupled=config.decoupled,
            clock=clock,
        )
        self._instances: list[Instance] = []
        self._passive: list[Instance] = []
        self._closed = ""
        """Why no request is accepted; empty while they are."""

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
        answer = PendingAnswer(loop=self._loop)
        ticket = self._ticket(request, answer)
        answer.on_cancel = partial(self._dispatcher.cancelled, ticket)
        try:
            self._dispatcher.submit(ticket)
        except BaseException as error:
            self._count_refusal(error)
            answer.on_cancel = None  # each refers to the other: the request's memory would wait for a collection
            raise
        return answer

    def infer_stream(self, request: InferenceRequest, receiver: ResponseReceiver) -> ResponseStream:
        """Check and enqueue; *receiver* gets the responses, one for a model that is not decoupled. Raises as `infer`."""
        stream = ResponseStream(receiver)
        ticket = stream.ticket = self._ticket(request, stream)
        stream.dispatcher = self._dispatcher
        stream.on_cancel(partial(self._dispatcher.cancelled, ticket))
        try:
            self._dispatcher.submit(ticket)
        except BaseException as error:
            self._count_refusal(error)
            stream.forget()
            raise
        return stream

    def _count_refusal(self, error: BaseException) -> None:
        """The scheduler did not take a request: its queue was full, or a rule of sequences was broken."""
        is_full = isinstance(error, InferenceError) and error.code is ErrorCode.UNAVAILABLE
        self.statistics.refusals[Refusal.QUEUE_FULL if is_full else Refusal.INVALID] += 1

    def _ticket(self, request: InferenceRequest, waiter: Cancellable) -> Ticket:
        accepted_ns = self._clock()
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
        if self.state is not VersionState.READY:  # it was when it was found, but the body took its time
            self.statistics.refusals[Refusal.UNAVAILABLE] += 1
            raise self.not_ready_error()
        if timeline is not None:
            timeline.accepted(request, batch_size=batch_size, now_ns=accepted_ns)
        return Ticket(
            request,
            waiter,
            batch_size=batch_size,
            shape_key=self._admission.shape_key(request),
            accepted_ns=accepted_ns,
        )

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """The labels of the outputs that have some, by output: what `core.classification.classify` takes."""
        return self.config.labels

    @property
    def pending(self) -> int:
        """Requests that no execution has begun with."""
        return self._dispatcher.waiting

    @property
    def queued(self) -> int:
        """Those of `pending` that were not sent ahead to a worker."""
        return self._dispatcher.queued

    @property
    def queued_by_level(self) -> dict[int, int]:
        """`queued` by priority level; empty where there are no levels."""
        return self._dispatcher.queued_by_level

    @property
    def shared_memory(self) -> list[SharedMemory]:
        """One for each instance that executes."""
        return [instance.shared_memory for instance in self._instances]

    @property
    def is_ready(self) -> bool:
        """Whether a request would be served now: the version is READY and a worker of it lives."""
        return self.state is VersionState.READY and any(
            instance.state is InstanceState.READY for instance in self._instances
        )

    async def says_ready(self) -> bool:
        """`is_ready`, and every instance's model agrees that has an opinion."""
        answers = await asyncio.gather(*(instance.says_ready() for instance in self._instances if instance.is_ready))
        return self.is_ready and all(answers)

    @property
    def is_loaded(self) -> bool:
        """Whether it has workers that `unload` would end, and has not been told to."""
        return self.state is VersionState.READY or self.is_recovering

    @property
    def is_recovering(self) -> bool:
        """Whether it is UNAVAILABLE only because its workers keep dying; they are being restarted."""
        return self.state is VersionState.UNAVAILABLE and bool(self._instances)

    # ------------------------------------------------------------------------------------------ life

    def begin_load(self, began_ns: int | None = None) -> None:
        """LOADING from now on; `load` or `fail_load` must follow. *began_ns* is when it really began, if not now."""
        self._move(VersionState.LOADING)
        self.load_began_ns = self._clock() if began_ns is None else began_ns

    def fail_load(self, error: InferenceError) -> None:
        """UNAVAILABLE, with the reason in the index."""
        self._move(VersionState.UNAVAILABLE, f"{error.code.label}: {error.message}")

    async def load(self, environment: Environment) -> None:
        """Start every instance in *environment*. Still LOADING when all are there: `open` or `unload` must follow.

        UNAVAILABLE with the reason if one fails; does not raise for that. When it is cancelled `unload` must follow, too.
        """
        plans = list(instance_names(self.config))
        is_alone = sum(not plan.passive for plan in plans) == 1
        instances = [self._make_instance(plan, environment, is_alone=is_alone) for plan in plans]
        self._instances = [instance for plan, instance in zip(plans, instances) if not plan.passive]
        self._passive = [instance for plan, instance in zip(plans, instances) if plan.passive]
        results = await asyncio.gather(*(instance.start() for instance in instances), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            await asyncio.gather(*(instance.stop(_STOP_AFTER_FAILED_LOAD_S) for instance in instances))
            self._instances.clear()
            self._passive.clear()
            failure = failures[0]
            if not isinstance(failure, InferenceError):
                raise failure
            self.fail_load(failure)

    def open(self) -> None:
        """READY: requests are taken. Call it once, after a `load` that went well."""
        self._move(VersionState.READY)
        self.statistics.load_ns = self._clock() - self.load_began_ns
        for instance in self._instances:
            self._dispatcher.add(instance)
        if not self._instances:
            self._closed = f"model '{self.name}' has only passive instances, which never execute"
            logger.warning("%s", self._closed)

    def not_ready_error(self) -> InferenceError:
        """What a request for this version is told while it is not READY (repository spec, section 2)."""
        text = f"Request for unknown model: '{self.name}' version {self.version} is not at ready state"
        return InferenceError(ErrorCode.UNAVAILABLE, text)

    def _make_instance(self, plan: InstanceSpec, environment: Environment, *, is_alone: bool) -> Instance:
        args = initialize_args(self.config, plan, version=self.version, directory=self._directory)
        options = LaunchOptions(
            model=self.name,
            version=self.version,
            instance=plan.name,
            args=args,
            filename=self.config.default_model_filename,
            outputs=tuple(self.config.outputs_by_name),
            shm_prefix=self._workers.shm_prefix,
            ring_bytes=self._workers.ring_bytes,
            hello_timeout_s=self._workers.hello_timeout_s,
            ready_timeout_s=self._workers.ready_timeout_s,
            log_levels=self._workers.log_levels,
            backend_dir=str(self._backend.folder) if self._backend is not None else "",
            backend_settings=self._backend.settings if self._backend is not None else {},
            is_decoupled=self.config.decoupled,
            response_window=self._workers.response_window,
            concurrency=self.config.execute_concurrency,
            cancels_coroutines=self.config.cancels_coroutines,
            shared_memory_views=self.config.shared_memory_views,
        )
        capacity = 1 if self.config.decoupled else self.config.execute_concurrency
        return Instance(
            options,
            self.config,
            self,
            self._spawners,
            environment,
            self._services,
            capacity=capacity,
            is_alone=is_alone,
        )

    def stop_accepting(self) -> None:
        """Refuse new requests from now on; those inside are served."""
        self._closed = "Server is stopping, scheduler for model has stopped accepting new inference requests"

    def begin_unload(self) -> None:
        """UNLOADING from now on: no request finds its way here any more. `unload` must follow."""
        self._move(VersionState.UNLOADING)

    async def unload(self, timeout_s: float | None = None) -> bool:
        """Serve what is inside, finalize, end the workers; UNAVAILABLE then.

        Whether all of it ended by itself within *timeout_s*; without it there is no limit, as in Triton. Call `begin_unload`
        first.
        """
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        drained = True
        try:
            await asyncio.wait_for(self._dispatcher.wait_drained(), timeout_s)
        except asyncio.TimeoutError:
            drained = False
            self._dispatcher.fail_queued(_stopped_error(self.name))
        except asyncio.CancelledError:
            self._dispatcher.fail_queued(_stopped_error(self.name))
            raise
        remaining = None if deadline is None else max(0.0, deadline - self._loop.time())
        stopped = await asyncio.gather(*(i.stop(remaining) for i in (*self._instances, *self._passive)))
        self._instances.clear()
        self._passive.clear()
        self._move(VersionState.UNAVAILABLE, "unloaded")
        return drained and all(stopped)

    def _move(self, target: VersionState, reason: str = "") -> None:
        self.state = move(VERSION_TRANSITIONS, self.state, target)
        self.reason = reason

    # ------------------------------------------------------------------------------------------ what instances report

    def on_result(self, instance: Instance, batch: Batch, result: BatchResult, outcomes: list[Outcome]) -> None:
        self._dispatcher.finished(instance, batch, result, outcomes)

    def on_response(
        self,
        instance: Instance,
        batch: Batch,
        index: int,
        response: InferenceResponse | InferenceError | None,
        *,
        is_final: bool,
        infer_ns: int,
        sent_ns: int,
    ) -> None:
        self._dispatcher.responded(
            instance, batch, index, response, is_final=is_final, infer_ns=infer_ns, sent_ns=sent_ns
        )

    def on_returned(self, instance: Instance, batches: list[Batch]) -> None:
        self._dispatcher.returned(batches)

    def on_lost(
        self, instance: Instance, begun: list[Batch], untouched: list[Batch], deferred: list[Batch], how: WorkerExit
    ) -> None:
        self._dispatcher.lost(instance, begun, untouched, deferred, how)
        # What was put back just now came after `_judge`, if that was the death which made us UNAVAILABLE.
        if self.state is VersionState.UNAVAILABLE:
            self._dispatcher.fail_queued(self.not_ready_error())
        elif all(known.state in _ENDING for known in self._instances):
            self._dispatcher.fail_queued(_stopped_error(self.name))

    def on_room(self, instance: Instance) -> None:
        self._dispatcher.has_room(instance)

    def on_state(self, instance: Instance) -> None:
        self.statistics.worker_restarts = sum(known.restarts for known in self._instances)
        self._judge()

    def _judge(self) -> None:
        """Not ready when no instance lives and they keep dying unserved; ready again when one comes back."""
        if not self._instances:
            return
        alive = any(instance.state is InstanceState.READY for instance in self._instances)
        if self.state is VersionState.UNAVAILABLE and alive:
            self._move(VersionState.READY)
        elif (
            self.state in (VersionState.READY, VersionState.UNLOADING)
            and not alive
            and all(instance.deaths_in_a_row >= DEATHS_BEFORE_NOT_READY for instance in self._instances)
        ):
            if self.state is VersionState.READY:
                reason = self._instances[0].last_error
                self._move(VersionState.UNAVAILABLE, reason)
                logger.error("model '%s' version %d is not ready: %s", self.name, self.version, reason)
            self._dispatcher.fail_queued(self.not_ready_error())


_STOP_AFTER_FAILED_LOAD_S = 10.0

_ENDING = (InstanceState.STOPPING, InstanceState.STOPPED)


def _stopped_error(name: str) -> InferenceError:
    return InferenceError(ErrorCode.UNAVAILABLE, f"Server is stopping before model '{name}' served this request")
