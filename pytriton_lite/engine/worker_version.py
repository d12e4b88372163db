"""A model version that workers execute: its instances and its queue."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pytriton_lite.config.model_config import InstanceSpec, ModelConfig, instance_names
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.states import InstanceState, VersionState
from pytriton_lite.engine.backends import Backend
from pytriton_lite.engine.calls import WorkerServices
from pytriton_lite.engine.dispatch import Clock, Dispatcher, PendingAnswer
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.fork_server import Spawners, WorkerExit
from pytriton_lite.engine.instance import DEATHS_BEFORE_NOT_READY, Batch, Instance, Outcome
from pytriton_lite.engine.latency_metrics import LatencyMetrics
from pytriton_lite.engine.log_levels import LogLevels
from pytriton_lite.engine.response_stream import ResponseReceiver, ResponseStream
from pytriton_lite.engine.served_version import ServedVersion
from pytriton_lite.engine.statistics import SharedMemory
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


class WorkerVersion(ServedVersion):
    """Every request waits in one queue, and is executed by one of the instances."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        *,
        directory: Path,
        workers: WorkerSettings,
        spawners: Spawners,
        services: WorkerServices,
        backend: Backend | None = None,
        clock: Clock = time.monotonic_ns,
        latencies: LatencyMetrics = LatencyMetrics(),  # noqa: B008  # frozen
    ) -> None:
        """*backend* is the Python-based backend whose code serves it; None where it has its own."""
        super().__init__(config, version, clock=clock, latencies=latencies)
        self._directory = directory
        self._workers = workers
        self._spawners = spawners
        self._services = services
        self._backend = backend
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

    # ------------------------------------------------------------------------------------------ requests

    def _submit(
        self, request: InferenceRequest, *, batch_size: int, accepted_ns: int
    ) -> asyncio.Future[InferenceResponse]:
        answer = PendingAnswer(loop=self._loop)
        ticket = self._ticket(request, answer, batch_size, accepted_ns)
        answer.on_cancel = partial(self._dispatcher.cancelled, ticket)
        try:
            self._dispatcher.submit(ticket)
        except BaseException:
            answer.on_cancel = None  # each refers to the other: the request's memory would wait for a collection
            raise
        return answer

    def _submit_stream(
        self, request: InferenceRequest, receiver: ResponseReceiver, *, batch_size: int, accepted_ns: int
    ) -> ResponseStream:
        stream = ResponseStream(receiver)
        ticket = stream.ticket = self._ticket(request, stream, batch_size, accepted_ns)
        stream.dispatcher = self._dispatcher
        stream.on_cancel(partial(self._dispatcher.cancelled, ticket))
        try:
            self._dispatcher.submit(ticket)
        except BaseException:
            stream.forget()
            raise
        return stream

    def _ticket(self, request: InferenceRequest, waiter: Cancellable, batch_size: int, accepted_ns: int) -> Ticket:
        return Ticket(
            request,
            waiter,
            batch_size=batch_size,
            shape_key=self._admission.shape_key(request),
            accepted_ns=accepted_ns,
        )

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
    def is_recovering(self) -> bool:
        """Whether it is UNAVAILABLE only because its workers keep dying; they are being restarted."""
        return self.state is VersionState.UNAVAILABLE and bool(self._instances)

    # ------------------------------------------------------------------------------------------ life

    async def load(self, environment: Environment | None) -> None:
        """Start every instance in *environment*."""
        assert environment is not None, "workers run in one"
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
        super().open()
        for instance in self._instances:
            self._dispatcher.add(instance)
        if not self._instances:
            self._closed = f"model '{self.name}' has only passive instances, which never execute"
            logger.warning("%s", self._closed)

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

    async def unload(self, timeout_s: float | None = None) -> bool:
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        drained = True
        try:
            await asyncio.wait_for(self._wait_drained(), timeout_s)
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

    async def _wait_drained(self) -> None:
        await self._wait_let_go()
        await self._dispatcher.wait_drained()

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
