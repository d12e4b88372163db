"""One version of one model: its configuration, its state as the index shows it, its instances, its queue."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path

from pytriton_lite.config.model_config import InstanceSpec, ModelConfig, instance_names
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.states import VERSION_TRANSITIONS, InstanceState, VersionState, move
from pytriton_lite.engine.admission import Admission
from pytriton_lite.engine.dispatch import Clock, Dispatcher
from pytriton_lite.engine.fork_server import ForkServers, WorkerExit
from pytriton_lite.engine.instance import DEATHS_BEFORE_NOT_READY, Batch, Instance, Outcome
from pytriton_lite.engine.statistics import ModelStatistics
from pytriton_lite.engine.worker_process import LaunchOptions
from pytriton_lite.ipc.messages import BatchResult
from pytriton_lite.scheduling.default import DefaultScheduler
from pytriton_lite.scheduling.dynamic_batch import DynamicBatchScheduler
from pytriton_lite.scheduling.queue import Scheduler, Ticket

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerSettings:
    """How workers of this server are started. Seconds and bytes; ``log_levels`` as in LaunchOptions."""

    executable: str
    shm_prefix: str
    ring_bytes: int
    hello_timeout_s: float
    ready_timeout_s: float
    log_levels: int


def make_scheduler(config: ModelConfig) -> Scheduler:
    """The scheduler that the configuration asks for."""
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
        fork_servers: ForkServers,
        clock: Clock = time.monotonic_ns,
    ) -> None:
        self.name = name
        self.version = version
        self.config = config
        self.state = VersionState.UNKNOWN
        self.reason = ""
        self.statistics = ModelStatistics(name, version, dict(config.metric_tags))
        self._directory = directory
        self._workers = workers
        self._fork_servers = fork_servers
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._admission = Admission(config)
        dynamic = config.dynamic_batching
        self._dispatcher = Dispatcher(
            make_scheduler(config),
            self.statistics,
            preserve_ordering=dynamic is not None and dynamic.preserve_ordering,
            # A batcher gains by seeing everything that comes in the same turn; a model that takes single requests does not.
            is_eager=dynamic is None,
            clock=clock,
        )
        # In every other queue a request that has gone away is met soon enough, and the callback costs a microsecond.
        self._waits_for_company = dynamic is not None and dynamic.max_queue_delay_us > 0
        self._instances: list[Instance] = []
        self._passive: list[Instance] = []
        self._closed = ""
        """Why no request is accepted; empty while they are."""

    # ------------------------------------------------------------------------------------------ requests

    def check(self, request: InferenceRequest) -> None:
        """Refuse what the model cannot take, tensor bytes aside. Raises InferenceError(INVALID_ARG)."""
        self._admission.check(request)

    def infer(self, request: InferenceRequest) -> asyncio.Future[InferenceResponse]:
        """Check, enqueue, and return the future that carries the answer.

        Raises InferenceError at once for what is wrong with the request or with the queue.
        """
        accepted_ns = self._clock()
        batch_size = self._admission.check(request)
        if self._closed:
            raise InferenceError(ErrorCode.UNAVAILABLE, request.error_prefix + self._closed)
        if self.state is not VersionState.READY:  # it was when it was found, but the body took its time
            raise self.not_ready_error()
        answer: asyncio.Future[InferenceResponse] = self._loop.create_future()
        if self._waits_for_company:
            answer.add_done_callback(self._on_answer_done)
        ticket = Ticket(
            request,
            answer,
            batch_size=batch_size,
            shape_key=self._admission.shape_key(request),
            accepted_ns=accepted_ns,
        )
        self._dispatcher.submit(ticket)
        return answer

    def _on_answer_done(self, answer: asyncio.Future[InferenceResponse]) -> None:
        if answer.cancelled():
            self._dispatcher.notice_cancelled()

    @property
    def pending(self) -> int:
        """Requests that no execution has begun with."""
        return self._dispatcher.waiting

    @property
    def is_ready(self) -> bool:
        """Whether a request would be served now: the version is READY and a worker of it lives."""
        return self.state is VersionState.READY and any(
            instance.state is InstanceState.READY for instance in self._instances
        )

    @property
    def is_recovering(self) -> bool:
        """Whether it is UNAVAILABLE only because its workers keep dying; they are being restarted."""
        return self.state is VersionState.UNAVAILABLE and bool(self._instances)

    # ------------------------------------------------------------------------------------------ life

    async def load(self) -> None:
        """Start every instance; READY when all are, UNAVAILABLE with the reason if one fails. Does not raise for that."""
        self._move(VersionState.LOADING)
        plans = list(instance_names(self.config))
        instances = [self._make_instance(plan) for plan in plans]
        results = await asyncio.gather(*(instance.start() for instance in instances), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            await asyncio.gather(*(instance.stop(_STOP_AFTER_FAILED_LOAD_S) for instance in instances))
            failure = failures[0]
            if not isinstance(failure, InferenceError):
                raise failure
            self._move(VersionState.UNAVAILABLE, f"{failure.code.label}: {failure.message}")
            return
        self._move(VersionState.READY)
        for plan, instance in zip(plans, instances):
            (self._passive if plan.passive else self._instances).append(instance)
            if not plan.passive:
                self._dispatcher.add(instance)
        if not self._instances:
            self._closed = f"model '{self.name}' has only passive instances, which never execute"
            logger.warning("%s", self._closed)

    def not_ready_error(self) -> InferenceError:
        """What a request for this version is told while it is not READY (repository spec, section 2)."""
        text = f"Request for unknown model: '{self.name}' version {self.version} is not at ready state"
        return InferenceError(ErrorCode.UNAVAILABLE, text)

    def refuse(self, error: InferenceError) -> None:
        """The configuration does not allow a load: UNAVAILABLE, with the reason in the index."""
        self._move(VersionState.LOADING)
        self._move(VersionState.UNAVAILABLE, f"{error.code.label}: {error.message}")

    def _make_instance(self, plan: InstanceSpec) -> Instance:
        args = {
            "model_config": self.config.json_text,
            "model_instance_kind": plan.kind.value,
            "model_instance_name": plan.name,
            "model_instance_device_id": str(plan.device_id),
            "model_repository": str(self._directory),
            "model_version": str(self.version),
            "model_name": self.name,
        }
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
        )
        return Instance(options, self.config, self, self._fork_servers, self._workers.executable)

    def stop_accepting(self) -> None:
        """Refuse new requests from now on; those inside are served."""
        self._closed = "Server is stopping, scheduler for model has stopped accepting new inference requests"

    async def unload(self, timeout_s: float) -> bool:
        """Serve what is inside, finalize, end the workers. Whether all of it ended by itself within *timeout_s*."""
        self.stop_accepting()
        if self.state is VersionState.UNAVAILABLE and not self._instances:
            return True
        deadline = self._loop.time() + timeout_s
        was_ready = self.state is VersionState.READY
        self._move(VersionState.UNLOADING)
        drained = True
        try:
            await asyncio.wait_for(self._dispatcher.wait_drained(), timeout_s)
        except asyncio.TimeoutError:
            drained = False
            self._dispatcher.fail_queued(_stopped_error(self.name))
        remaining = max(0.0, deadline - self._loop.time())
        stopped = await asyncio.gather(*(i.stop(remaining) for i in (*self._instances, *self._passive)))
        self._instances.clear()
        self._passive.clear()
        self._move(VersionState.UNAVAILABLE, "unloaded")
        return drained and all(stopped) if was_ready else True

    def _move(self, target: VersionState, reason: str = "") -> None:
        self.state = move(VERSION_TRANSITIONS, self.state, target)
        self.reason = reason

    # ------------------------------------------------------------------------------------------ what instances report

    def on_result(self, instance: Instance, batch: Batch, result: BatchResult, outcomes: list[Outcome]) -> None:
        self._dispatcher.finished(instance, batch, result, outcomes)

    def on_lost(self, instance: Instance, begun: list[Batch], untouched: list[Batch], how: WorkerExit) -> None:
        self._dispatcher.lost(instance, begun, untouched, how)
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
            self.state is VersionState.READY
            and not alive
            and all(instance.deaths_in_a_row >= DEATHS_BEFORE_NOT_READY for instance in self._instances)
        ):
            reason = self._instances[0].last_error
            self._move(VersionState.UNAVAILABLE, reason)
            logger.error("model '%s' version %d is not ready: %s", self.name, self.version, reason)
            self._dispatcher.fail_queued(self.not_ready_error())


_STOP_AFTER_FAILED_LOAD_S = 10.0

_ENDING = (InstanceState.STOPPING, InstanceState.STOPPED)


def _stopped_error(name: str) -> InferenceError:
    return InferenceError(ErrorCode.UNAVAILABLE, f"Server is stopping before model '{name}' served this request")
