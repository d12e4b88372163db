"""A model version that workers execute: its instances and its queue."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

from pytriton_lite.config.instances import InstanceKind
from pytriton_lite.config.model_config import InstanceSpec, ModelConfig, instance_names
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.pace import Pace
from pytriton_lite.core.sharing import InstanceSharing
from pytriton_lite.core.states import InstanceState, VersionState
from pytriton_lite.core.timeline import Clock
from pytriton_lite.engine.counting.latencies import LatencyMetrics
from pytriton_lite.engine.counting.statistics import InstanceStatus, SharedMemory
from pytriton_lite.engine.counting.unanswered import UnansweredTotal
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.serving.calls import OpenCalls, OpenQuestions, WorkerServices
from pytriton_lite.engine.serving.dispatch import Dispatcher
from pytriton_lite.engine.serving.regrouping import match, with_free_names
from pytriton_lite.engine.serving.resource_grants import ResourceGrants
from pytriton_lite.engine.serving.served_version import ServedVersion, next_stamp
from pytriton_lite.engine.serving.warm_up import WarmUp
from pytriton_lite.engine.workers.asking import WorkerLink
from pytriton_lite.engine.workers.backends import Backend
from pytriton_lite.engine.workers.device_helper import DeviceHelpers
from pytriton_lite.engine.workers.fork_server import Spawners, WorkerExit
from pytriton_lite.engine.workers.instance import Instance, Sent
from pytriton_lite.engine.workers.keeper import DEATHS_BEFORE_NOT_READY
from pytriton_lite.engine.workers.settings import WorkerSettings, model_start, shared_start
from pytriton_lite.engine.workers.shared_process import SharedSpawners
from pytriton_lite.engine.workers.state_outputs import states_of
from pytriton_lite.engine.workers.wire import ExecutionOutcome
from pytriton_lite.ipc.messages import BatchResult
from pytriton_lite.ipc.start import ModelStart
from pytriton_lite.scheduling.default import DefaultScheduler
from pytriton_lite.scheduling.dynamic_batch import DynamicBatchScheduler
from pytriton_lite.scheduling.queue import Scheduler
from pytriton_lite.scheduling.rate_limit import Claim
from pytriton_lite.scheduling.sequence_batch import SequenceBatchScheduler
from pytriton_lite.scheduling.sequence_state import StateTensors
from pytriton_lite.scheduling.ticket import Batch, Ticket

logger = logging.getLogger(__name__)


def make_scheduler(config: ModelConfig) -> Scheduler:
    """The scheduler that the configuration asks for."""
    if config.sequence_batching is not None:
        return SequenceBatchScheduler(
            config.sequence_batching,
            model=config.name,
            max_batch_size=config.max_batch_size,
            is_decoupled=config.decoupled,
            max_queue_size=config.max_queue_size,
            states=_state_tensors(config),
        )
    if config.dynamic_batching is not None:
        return DynamicBatchScheduler(config.dynamic_batching, max_batch_size=config.max_batch_size)
    return DefaultScheduler(max_queue_size=config.max_queue_size)


def _state_tensors(config: ModelConfig) -> StateTensors | None:
    states = states_of(config)
    if not states:
        return None
    return StateTensors(states, config.initial_states, model=config.name, max_batch_size=config.max_batch_size)


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
        namespace: str = "",
        clock: Clock = time.monotonic_ns,
        latencies: LatencyMetrics = LatencyMetrics(),  # noqa: B008  # frozen
        grants: ResourceGrants | None = None,
        total: UnansweredTotal | None = None,
    ) -> None:
        """*backend* is the Python-based backend whose code serves it; None where it has its own.

        *grants* are those of the server's rate limiter; None without one. *total* is as for `ServedVersion`.
        """
        super().__init__(config, version, namespace=namespace, clock=clock, latencies=latencies, total=total)
        self._directory = directory
        self._workers = workers
        self._spawners = spawners
        self._services = services
        self._backend = backend
        self._grants = grants
        self._environment: Environment | None = None
        self._shared: SharedSpawners | None = None
        """Where workers come from that share their model."""
        self._dispatcher = self._make_dispatcher()
        self._pace = Pace()
        self._warm_up: WarmUp | None = None
        if config.warm_up:
            self._warm_up = WarmUp(
                config,
                version,
                directory=directory,
                statistics=self.statistics,
                clock=clock,
                timeout_s=workers.ready_timeout_s,
                at_step=self.at_step,
            )
        self._instances: list[Instance] = []
        """Instances that execute."""
        self._passive: list[Instance] = []
        self._plans: dict[Instance, InstanceSpec] = {}
        """What each was made for, of every instance that has not ended."""
        self._arriving: list[Instance] = []
        """Instances that have started for another configuration, until it is adopted."""
        self._leaving: dict[Instance, asyncio.Task[None]] = {}
        """Instances that are not wanted any more, until they have ended."""
        self._past_restarts = 0
        self._past_host_bytes = 0
        self._adopting = asyncio.Lock()
        self._adoption: asyncio.Task[list[Instance]] | None = None
        self._adoption_is_void = False
        """The version is being unloaded: no other configuration is adopted, nor was the one that was going to be."""

    def _make_dispatcher(self) -> Dispatcher:
        config = self.config
        return Dispatcher(
            partial(make_scheduler, config),
            self.statistics,
            unanswered=self.unanswered,
            grants=self._grants,
            preserve_ordering=config.preserves_ordering,
            is_decoupled=config.decoupled,
            busy_poll_ns=self._workers.busy_poll_us * 1000,
            clock=self._clock,
        )

    # ------------------------------------------------------------------------------------------ requests

    def use_devices(self, helpers: DeviceHelpers) -> None:
        super().use_devices(helpers)
        if self._cached is None:  # what is kept, or looked up, is on the host
            self.takes_device_inputs = self.writes_to_devices = self.config.takes_device_inputs
            self._see_devices()

    def _see_devices(self) -> None:
        """Whether some instance has a device on which it may leave its outputs."""
        if self._staging is not None and self._cached is None:
            self.answers_on_device = self.takes_device_inputs or any(
                plan.kind is InstanceKind.GPU for plan in instance_names(self.config)
            )

    def _begin(self, ticket: Ticket) -> None:
        self._dispatcher.submit(ticket)

    def answer_in_order(self, deliver: Callable[[], None]) -> None:
        self._dispatcher.answer_in_order(deliver)

    @property
    def pending(self) -> int:
        """Requests that no execution has begun with."""
        return self._dispatcher.waiting

    @property
    def queued(self) -> int:
        """Requests of `pending` that were not sent ahead to a worker."""
        return self._dispatcher.queued

    @property
    def queued_by_level(self) -> dict[int, int]:
        """`queued` by priority level; empty where there are no levels."""
        return self._dispatcher.queued_by_level

    @property
    def worker_host_bytes(self) -> int:
        """See `ServedVersion.worker_host_bytes`."""
        return self._past_host_bytes + sum([one.host_bytes for one in (*self._instances, *self._leaving)])

    @property
    def shared_memory(self) -> list[SharedMemory]:
        """One for each name of instances that execute; those of one group on several GPUs share theirs."""
        by_name: dict[str, SharedMemory] = {}
        for instance in (*self._instances, *self._leaving):
            own = instance.shared_memory
            known = by_name.get(own.instance)
            by_name[own.instance] = own if known is None else _together(known, own)
        return list(by_name.values())

    @property
    def longest_executions(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for instance in (*self._instances, *self._leaving):
            found[instance.name] = max(found.get(instance.name, 0.0), instance.oversight.longest_execution_s())
        return found

    @property
    def instances(self) -> list[InstanceStatus]:
        return [
            InstanceStatus(instance.name, instance.state.value, instance.pid or 0, len(instance.in_flight))
            for instance in (*self._instances, *self._passive, *self._leaving)
        ]

    @property
    def is_ready(self) -> bool:
        """Whether a request would be served now: the version is READY and a worker of it lives, none of them overdue."""
        return self.state is VersionState.READY and any(
            instance.state is InstanceState.READY for instance in self._instances
        )

    async def says_ready(self) -> bool:
        """`is_ready`, and every instance's model agrees that has an opinion."""
        answers = await asyncio.gather(
            *(instance.keeper.says_ready() for instance in self._instances if instance.is_ready)
        )
        return self.is_ready and all(answers)

    @property
    def is_recovering(self) -> bool:
        """Whether it is UNAVAILABLE only because its workers keep dying; they are being restarted."""
        return self.state is VersionState.UNAVAILABLE and bool(self._instances)

    # ------------------------------------------------------------------------------------------ life

    async def load(self, environment: Environment | None) -> None:
        """Start every instance in *environment*."""
        assert environment is not None, "workers run in one"
        self._environment = environment
        failure: Exception | None = None
        try:
            if self._warm_up is not None:
                await self._warm_up.check()
            instances = self._make_instances(self.config, list(instance_names(self.config)), environment)
            self._take_in(instances)
            self.at_step("initialize")
            await self._start(instances)
        except Exception as error:
            failure = error
        except BaseException:
            if self._shared is not None:
                self._shared.kill()
            raise
        if failure is not None:
            if self._shared is not None:
                await self._shared.stop(_STOP_AFTER_FAILED_LOAD_S)
            self._instances.clear()
            self._passive.clear()
            if not isinstance(failure, InferenceError):
                raise failure
            self.fail_load(failure)

    def open(self) -> None:
        super().open()
        for instance in self._instances:
            self._dispatcher.add(instance)
        self._see_who_executes()

    def _make_instances(
        self,
        config: ModelConfig,
        plans: Sequence[InstanceSpec],
        environment: Environment,
        *,
        replaced: Iterable[Instance] = (),
    ) -> list[Instance]:
        """Instances that were not started yet. Raises InferenceError when the rate limiter could never serve one.

        Or when they were to share a model that is not for such instances. *replaced* are going to leave.
        """
        self._see_to_sharing(config, plans)
        instances = [self._make_instance(config, plan, environment) for plan in plans]
        if self._grants is not None:
            self._grants.register(_claims(instances), replaced=_claims(replaced))
        self._plans.update(zip(instances, plans))
        return instances

    def _see_to_sharing(self, config: ModelConfig, plans: Sequence[InstanceSpec]) -> None:
        """Know where workers come from that share their model. Raises InferenceError where one could not share it."""
        if config.instance_sharing is InstanceSharing.NONE or not plans:
            return
        first = plans[0]
        if self._shared is None:
            self._shared = SharedSpawners(
                self._spawners,
                shared_start(self._model_start(config, first), config),
                self._workers,
                self._begin_questions,
            )
        start = self._shared.start
        if (start.instance_kind, start.device_id) != (first.kind.value, first.device_id):
            raise InferenceError(
                ErrorCode.UNAVAILABLE,
                f"INSTANCE_SHARING of model '{self.name}': initialize has run for instances of kind {start.instance_kind} on "
                f"device {start.device_id}, not {first.kind.value} on device {first.device_id}; unload the model first",
            )

    def _begin_questions(self, process: WorkerLink) -> OpenQuestions:
        assert self._shared is not None, "whose process it is"
        return OpenQuestions(self._services, self, self._shared.start.instance, process)

    async def _start(self, instances: Sequence[Instance]) -> None:
        """Start all of *instances*. Raises the first failure when those that did start have ended again."""
        results = await asyncio.gather(*(instance.keeper.start() for instance in instances), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            await asyncio.gather(*(instance.keeper.stop(_STOP_AFTER_FAILED_LOAD_S) for instance in instances))
            for instance in instances:
                self._forget(instance)
            raise failures[0]

    def _take_in(self, instances: Iterable[Instance]) -> None:
        for instance in instances:
            (self._passive if self._plans[instance].passive else self._instances).append(instance)

    def _forget(self, instance: Instance) -> None:
        """*instance* has ended. Nothing happens where that was known."""
        if self._plans.pop(instance, None) is not None:
            self._past_restarts += instance.keeper.restarts
            self._past_host_bytes += instance.host_bytes
            if self._grants is not None and instance.claim is not None:
                self._grants.unregister(instance.claim)

    def _see_who_executes(self) -> None:
        """Refuse requests where nobody ever would execute them."""
        for instance in self._instances:
            instance.is_alone = len(self._instances) == 1
        only_passive = f"model '{self.name}' has only passive instances, which never execute"
        if not self._instances:
            self._closed = self._closed or only_passive
            logger.warning("%s", only_passive)
        elif self._closed == only_passive:
            self._closed = ""

    # ------------------------------------------------------------------------------------------ other instances

    def adopting(self, config: ModelConfig) -> AbstractAsyncContextManager[Callable[[], None]]:
        return _Adopting(self, config)

    async def _begin_adoption(self, config: ModelConfig) -> Callable[[], None]:
        """Prepare for *config*; the function that serves with it. `_end_adoption` must follow, unless this raises."""
        await self._adopting.acquire()
        try:
            if self._adoption_is_void:
                raise _outdated()
            return partial(self._regroup, config, await self._prepared(config))
        except BaseException:
            self._end_adoption()
            raise

    def _end_adoption(self) -> None:
        """Let go of what was prepared and not adopted. Another configuration may be."""
        if not self._adoption_is_void:  # who unloads it ends them, too
            arriving, self._arriving = self._arriving, []
            self._give_up(arriving)
        self._adopting.release()

    async def _prepared(self, config: ModelConfig) -> list[Instance]:
        """`_prepare`, until an unload begins."""
        self._adoption = self._loop.create_task(self._prepare(config))
        try:
            return await self._adoption
        except asyncio.CancelledError:
            if not self._adoption_is_void:
                raise  # it is the caller who was cancelled
            raise _outdated() from None
        finally:
            self._adoption = None

    async def _prepare(self, config: ModelConfig) -> list[Instance]:
        """Start what *config* has and we have not; the instances that it has no use for."""
        assert self._environment is not None, "load came first"
        here = {instance: self._plans[instance] for instance in (*self._instances, *self._passive)}
        kept, plans = match(list(instance_names(config)), here)
        surplus = [instance for instance in here if instance not in kept]
        plans = with_free_names(
            plans, kept=[here[instance] for instance in kept], leaving=[self._plans[gone] for gone in self._leaving]
        )
        arriving = self._make_instances(config, plans, self._environment, replaced=surplus)
        try:
            await self._start(arriving)
        except asyncio.CancelledError:
            self._give_up(arriving)
            raise
        self._arriving = arriving
        return surplus

    def _give_up(self, arriving: Iterable[Instance]) -> None:
        for instance in arriving:
            self._see_off(instance, self._end(instance, _STOP_AFTER_FAILED_LOAD_S))

    def _regroup(self, config: ModelConfig, surplus: Sequence[Instance]) -> None:
        """Serve with what was prepared for *config*. Nobody gets to see half of it."""
        if self._adoption_is_void:
            return
        arrived, self._arriving = self._arriving, []
        self.config = config
        self._see_devices()
        self.stamp = next_stamp()
        if self.state is VersionState.READY:
            self.reason = ""
        self.on_change()
        self._take_in(arrived)
        for instance in surplus:
            (self._passive if self._plans[instance].passive else self._instances).remove(instance)
        self._see_who_executes()
        for instance in arrived:
            if instance in self._instances:
                self._dispatcher.add(instance)
        if self._instances:
            self._relieve()
        for instance in surplus:
            self._let_go_of(instance)
        self._judge()

    def _let_go_of(self, instance: Instance) -> None:
        """Let *instance*, which is in nobody's list any more, end when it has nothing more to do."""
        instance.is_alone = False
        instance.keeper.retire()
        self._see_off(instance, self._leave(instance))

    def _relieve(self) -> None:
        """Let instances leave that stayed because nobody else could serve what waited."""
        for instance, task in list(self._leaving.items()):
            if instance in self._dispatcher.instances:
                task.cancel()
                self._see_off(instance, self._leave(instance))

    def _see_off(self, instance: Instance, work: Coroutine[Any, Any, None]) -> None:
        task = self._leaving[instance] = self._loop.create_task(work)
        task.add_done_callback(_log_failure)

    async def _leave(self, instance: Instance) -> None:
        if instance in self._dispatcher.everybody:
            if not self._instances:  # those that leave are the last who could serve what waits
                await self._dispatcher.wait_drained()
            await self._dispatcher.retire(instance)
        await self._end(instance, None)

    async def _end(self, instance: Instance, timeout_s: float | None) -> None:
        await instance.keeper.stop(timeout_s)
        self._forget(instance)
        self._leaving.pop(instance, None)

    async def _stop_regrouping(self) -> None:
        """Let nothing come or go any more, nor wait for that. Instances that were leaving are still to be stopped."""
        tasks: list[asyncio.Task[Any]] = list(self._leaving.values())
        self._adoption_is_void = True
        if self._adoption is not None:
            tasks.append(self._adoption)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _make_instance(self, config: ModelConfig, plan: InstanceSpec, environment: Environment) -> Instance:
        capacity = 1 if self.config.decoupled else self.config.execute_concurrency
        return Instance(
            self._model_start(config, plan),
            self._workers,
            self.config,
            self,
            self._shared or self._spawners,
            environment,
            partial(OpenCalls, self._services),
            pace=self._pace,
            capacity=capacity,
            warm_up=None if plan.passive else self._warm_up,
            claim=Claim.of(plan) if self._grants is not None and not plan.passive else None,
            limits=self._workers.execution_limits(self.config),
            clock=self._clock,
        )

    def _model_start(self, config: ModelConfig, plan: InstanceSpec) -> ModelStart:
        return model_start(
            config,
            plan,
            version=self.version,
            directory=self._directory,
            workers=self._workers,
            backend=self._backend,
        )

    async def unload(self, timeout_s: float | None = None) -> bool:
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        drained = True
        try:
            await asyncio.wait_for(self._wait_drained(), timeout_s)
        except asyncio.TimeoutError:
            drained = False
            self._dispatcher.fail_queued(_stopped_error(self.name), at_once=True)
        except asyncio.CancelledError:
            self._dispatcher.fail_queued(_stopped_error(self.name), at_once=True)
            raise
        await self._stop_regrouping()
        remaining = None if deadline is None else max(0.0, deadline - self._loop.time())
        everybody = (*self._instances, *self._passive, *self._arriving, *self._leaving)
        stopped = await asyncio.gather(*(instance.keeper.stop(remaining) for instance in everybody))
        if self._shared is not None:
            remaining = None if deadline is None else max(0.0, deadline - self._loop.time())
            stopped.append(await self._shared.stop(remaining))
        for instance in everybody:
            self._forget(instance)
        self._leaving.clear()
        self._arriving.clear()
        self._instances.clear()
        self._passive.clear()
        self._move(VersionState.UNAVAILABLE, "unloaded")
        return drained and all(stopped)

    async def _wait_drained(self) -> None:
        await self._wait_let_go()
        self._dispatcher.expect_nothing()
        await self._dispatcher.wait_drained()

    # ------------------------------------------------------------------------------------------ what instances report

    def on_result(
        self, instance: Instance, batch: Batch, result: BatchResult, outcomes: Sequence[ExecutionOutcome]
    ) -> None:
        self._dispatcher.finished(instance, batch, result, outcomes)

    def on_response(self, instance: Instance, batch: Batch, ticket: Ticket, sent: Sent) -> None:
        self._dispatcher.responded(batch, ticket, sent)

    def on_returned(self, instance: Instance, batches: list[Batch]) -> None:
        self._dispatcher.returned(batches)

    def on_lost(
        self, instance: Instance, begun: list[Batch], untouched: list[Batch], deferred: list[Batch], how: WorkerExit
    ) -> None:
        self._dispatcher.lost(instance, begun, untouched, deferred, how)
        # What was put back just now came after `_judge`, if that was the death which made us UNAVAILABLE.
        if self.state is VersionState.UNAVAILABLE:
            self._dispatcher.fail_queued(self.not_ready_error())
        elif all(known.state in _ENDING for known in (*self._instances, *self._leaving)):
            self._dispatcher.fail_queued(_stopped_error(self.name))

    def on_room(self, instance: Instance) -> None:
        self._dispatcher.has_room(instance)

    def on_state(self, instance: Instance) -> None:
        here = sum(known.keeper.restarts for known in (*self._instances, *self._passive, *self._leaving))
        self.statistics.worker_restarts = self._past_restarts + here
        self._judge()

    def _judge(self) -> None:
        """Be not ready when no instance lives and they keep dying unserved; ready again when one comes back."""
        if not self._instances:
            return
        alive = any(instance.state is InstanceState.READY for instance in self._instances)
        if self.state is VersionState.UNAVAILABLE and alive:
            self._move(VersionState.READY)
        elif (
            self.state in (VersionState.READY, VersionState.UNLOADING)
            and not alive
            and all(instance.keeper.deaths_in_a_row >= DEATHS_BEFORE_NOT_READY for instance in self._instances)
        ):
            if self.state is VersionState.READY:
                reason = self._instances[0].keeper.last_error
                self._move(VersionState.UNAVAILABLE, reason)
                fields = {"model": self.name, "version": self.version}
                logger.error("model '%s' version %d is not ready: %s", self.name, self.version, reason, extra=fields)
            self._dispatcher.fail_queued(self.not_ready_error())


class _Adopting:
    """What `WorkerVersion.adopting` returns. A class, since mypyc has no generators that are asynchronous."""

    def __init__(self, version: WorkerVersion, config: ModelConfig) -> None:
        self._version = version
        self._config = config

    async def __aenter__(self) -> Callable[[], None]:
        return await self._version._begin_adoption(self._config)

    async def __aexit__(self, *_: object) -> None:
        self._version._end_adoption()


_STOP_AFTER_FAILED_LOAD_S = 10.0

_ENDING = (InstanceState.STOPPING, InstanceState.STOPPED)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("an instance could not leave", exc_info=task.exception())


def _claims(instances: Iterable[Instance]) -> list[Claim]:
    return [instance.claim for instance in instances if instance.claim is not None]


def _together(one: SharedMemory, other: SharedMemory) -> SharedMemory:
    return SharedMemory(
        one.instance,
        one.server_bytes + other.server_bytes,
        one.worker_bytes + other.worker_bytes,
        one.slots + other.slots,
        one.device_bytes + other.device_bytes,
    )


def _outdated() -> InferenceError:
    text = "Newer operation has been applied to the model lifecycle, current load operation is out-dated."
    return InferenceError(ErrorCode.UNAVAILABLE, text)


def _stopped_error(name: str) -> InferenceError:
    return InferenceError(ErrorCode.UNAVAILABLE, f"Server is stopping before model '{name}' served this request")
