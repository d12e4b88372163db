"""The life of an instance: one worker process after another, until nobody wants it any more.

A worker that dies is replaced: at once if it had served a request, with back-off if not. So an instance has one state
(`core.states.InstanceState`), whatever becomes of its processes, and whoever owns requests hears of each death once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request_ids import described
from pytriton_lite.core.states import INSTANCE_TRANSITIONS, InstanceState, move
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.workers.fork_server import ForkServerStuck, Spawners, WorkerExit
from pytriton_lite.engine.workers.process import WorkerProcess
from pytriton_lite.engine.workers.settings import WorkerSettings
from pytriton_lite.ipc.channel import frame
from pytriton_lite.ipc.messages import Kind
from pytriton_lite.ipc.start import ModelStart

logger = logging.getLogger(__name__)

_FIRST_BACK_OFF_S = 0.1
_LONGEST_BACK_OFF_S = 30.0

DEATHS_BEFORE_NOT_READY = 3
"""Deaths in a row without a served request that make the version not ready, with the reason in the index."""

_FINALIZE_S = 10.0
"""How long ``finalize`` may take after a warm-up that failed."""

_PROBE_S = 5.0
"""Triton's limit for ``is_ready``."""


class KeptInstance(Protocol):
    """What a keeper asks of the instance whose workers it keeps."""

    def begin_anew(self) -> None:
        """Another process is about to start."""

    def on_frame(self, worker: WorkerProcess, kind: int, body: memoryview) -> None:
        """The process has said something; also before it is READY, when its model asks for something."""

    async def warm_up(self, *, counts: bool) -> None:
        """Execute what is to be executed before the worker, which is up, is READY. *counts*: in the statistics.

        Raises InferenceError when it does not go well.
        """

    def end_worker(self, worker: WorkerProcess) -> bool:
        """The process is gone: take what it had in hand. Whether some of that had kept it for longer than it may."""

    @property
    def lost_ids(self) -> list[str]:
        """Between `end_worker` and `report_lost`: ids of the requests that the process executed, or was still to answer."""

    def report_lost(self, how: WorkerExit) -> None:
        """Tell whoever owns the requests of what `end_worker` has taken."""

    def end_asking(self) -> None:
        """Forget what the model asks: nobody is there any more to whom it could be answered."""

    def on_state(self) -> None:
        """``state`` or ``deaths_in_a_row`` changed."""

    def on_room(self) -> None:
        """The worker is READY again."""


class WorkerKeeper:
    """Owns the worker of an instance, and says what state the instance is in."""

    def __init__(
        self,
        start: ModelStart,
        workers: WorkerSettings,
        spawners: Spawners,
        environment: Environment,
        instance: KeptInstance,
    ) -> None:
        self.state = InstanceState.STARTING
        self.worker: WorkerProcess | None = None
        """The process of the moment, from READY, or the begin of its warm-up, to its end."""
        self.deaths_in_a_row = 0
        """Deaths since the last served request."""
        self.last_error = ""
        self.restarts = 0
        self._name = start.instance
        self._start = start
        self._workers = workers
        self._spawners = spawners
        self._environment = environment
        self._instance = instance
        self._loop = asyncio.get_running_loop()
        self._has_served = False
        self._is_retired = False
        self._restart: asyncio.Task[None] | None = None
        self._probed: asyncio.Future[bool] | None = None
        """What the model will say of its readiness; everybody who asks meanwhile shares it."""

    async def start(self) -> None:
        """Start the first worker. Raises InferenceError when the model does not load."""
        try:
            await self._launch()
        except BaseException:
            self.move(InstanceState.STOPPED)
            raise

    def served(self) -> None:
        """The worker has answered a request: its death would be no reason to believe that the next one dies as well."""
        self._has_served = True
        self.deaths_in_a_row = 0

    def give_up(self, error: InferenceError) -> None:
        """The worker is going to be killed, for *error*, and is to be replaced then."""
        self.last_error = f"{error.code.label}: {error.message}"
        self.move(InstanceState.OVERDUE)

    def kill(self) -> None:
        """End the worker now; what it had in hand is lost."""
        if self.worker is not None:
            self.worker.kill()

    def retire(self) -> None:
        """Finish what is here; a worker that dies is not replaced any more. `stop` must follow."""
        if not self._is_retired and self._restart is not None and not self._restart.done():
            self._restart.cancel()  # once: it is to end its worker then, and not to be kept from waiting for that
        self._is_retired = True

    async def stop(self, timeout_s: float | None) -> bool:
        """Finalize and end. Whether the worker ended by itself within *timeout_s*. May be called by several."""
        self.retire()
        if self._restart is not None:
            await asyncio.wait([self._restart])
        if self.state is InstanceState.STOPPING and self.worker is not None:
            return await self.worker.stop(timeout_s)
        if self.state in (InstanceState.READY, InstanceState.OVERDUE) and self.worker is not None:
            worker = self.worker
            self.move(InstanceState.STOPPING)
            return await worker.stop(timeout_s)
        if self.state is not InstanceState.STOPPED:
            self.move(InstanceState.STOPPED)
        return True

    def move(self, target: InstanceState) -> None:
        """Raises BugError where the table does not allow it."""
        self.state = move(INSTANCE_TRANSITIONS, self.state, target)
        self._instance.on_state()

    # ------------------------------------------------------------------------------------------ readiness

    async def says_ready(self) -> bool:
        """What the model's ``is_ready`` says, within `_PROBE_S`; True for a model without one (model API, 3.5)."""
        worker = self.worker
        if worker is None or self.state is not InstanceState.READY:
            return False
        if not worker.has_is_ready:
            return True
        if self._probed is None:
            self._probed = self._loop.create_future()
            worker.send(frame(Kind.PROBE, []))
        try:
            return await asyncio.wait_for(asyncio.shield(self._probed), _PROBE_S)
        except asyncio.TimeoutError:
            return False

    def end_probe(self, *, is_ready: bool) -> None:
        """The model has said *is_ready*, or will not say anything any more."""
        probed, self._probed = self._probed, None
        if probed is not None:
            probed.set_result(is_ready)

    # ------------------------------------------------------------------------------------------ start, death, restart

    async def _launch(self) -> None:
        self._instance.begin_anew()
        self._has_served = False
        try:
            self.worker = await self._launch_worker()
        except OSError as error:  # no descriptors or processes left
            text = f"the worker of instance '{self._name}' cannot be started: {error}"
            raise InferenceError(ErrorCode.INTERNAL, text) from error
        except BaseException:
            self._instance.end_asking()
            raise
        await self._warm_up()
        self.move(InstanceState.READY)

    async def _launch_worker(self) -> WorkerProcess:
        try:
            return await self._launch_from_fork_server()
        except ForkServerStuck:
            pass
        return await self._launch_from_fork_server()  # another one

    async def _launch_from_fork_server(self) -> WorkerProcess:
        spawner = await self._spawners.prepared(self._environment)
        return await WorkerProcess.launch(
            self._start,
            self._workers,
            spawner,
            on_frame=self._instance.on_frame,
            on_gone=self._on_gone,
        )

    async def _warm_up(self) -> None:
        """Raises InferenceError, and leaves no worker then."""
        deaths = self.deaths_in_a_row
        failure: BaseException | None = None
        try:
            try:
                await self._instance.warm_up(counts=not self.restarts)
                if self.worker is None:
                    raise InferenceError(ErrorCode.INTERNAL, self.last_error.removeprefix("Internal: "))
            except BaseException as error:
                failure = error
            if failure is not None:
                await self._give_up_worker(is_hopeless=not isinstance(failure, InferenceError))
                raise failure
        finally:
            failure = None  # its traceback has this frame
            # What was served was nobody's.
            self.deaths_in_a_row = deaths
            self._has_served = False

    async def _give_up_worker(self, *, is_hopeless: bool) -> None:
        """Stop a worker that is not to become READY. Its model may finalize, unless that *is_hopeless*."""
        worker = self.worker
        if worker is None:
            return
        if is_hopeless:
            worker.kill()
        await worker.stop(_FINALIZE_S)

    def _on_gone(self, worker: WorkerProcess, how: WorkerExit) -> None:
        self.worker = None
        was_overdue = self._instance.end_worker(worker)
        self.end_probe(is_ready=False)
        if self.state is InstanceState.STOPPING:
            self.move(InstanceState.STOPPED)
        elif self.state is InstanceState.STARTING:
            self.last_error = f"Internal: Stub process '{self._name}' is not healthy. It {how} after the warm-up."
        elif self._is_retired:
            text = "worker of instance '%s' (pid %d), which was to go, %s"
            logger.error(text, self._name, worker.pid, how, extra=self._lost_fields())
            self.move(InstanceState.STOPPED)
        elif self.state is InstanceState.OVERDUE:
            # Its requests kept it, not its start: so it is no reason to believe that the next worker dies as well.
            if not was_overdue:
                self.deaths_in_a_row += 1
            self._begin_restart(worker, how, at_once=True)
        elif self.state is InstanceState.READY:
            self.deaths_in_a_row += 1
            self.last_error = f"Internal: Stub process '{self._name}' is not healthy. It {how}."
            self._begin_restart(worker, how, at_once=self._has_served)
        self._instance.report_lost(how)

    def _begin_restart(self, worker: WorkerProcess, how: WorkerExit, *, at_once: bool) -> None:
        text = "worker of instance '%s' (pid %d) %s; restarting it"
        logger.error(text, self._name, worker.pid, how, extra=self._lost_fields())
        self.move(InstanceState.BACKING_OFF)
        self._restart = self._loop.create_task(self._restart_until_ready(at_once=at_once))

    def _lost_fields(self) -> dict[str, object]:
        """What a line on the death of a worker says beside its text: one of the requests may have killed it."""
        return {**self._start.log_fields, "request_id": described(self._instance.lost_ids) or None}

    async def _restart_until_ready(self, *, at_once: bool) -> None:
        """Try again and again, ever more slowly. Ends with READY or by being cancelled."""
        while not self._is_retired:  # up to Python 3.11 asyncio.wait_for may keep a cancel for itself
            if not at_once:
                await asyncio.sleep(self._back_off_s())
            at_once = False
            self.move(InstanceState.STARTING)
            self.restarts += 1
            try:
                await self._launch()
            except Exception as error:
                # Whatever it is, an instance that gave up here would leave its requests waiting for ever.
                known = error if isinstance(error, InferenceError) else None
                self.deaths_in_a_row += 1
                self.last_error = f"{known.code.label}: {known.message}" if known else f"Internal: {error!r}"
                trace = None if known else error
                text = "instance '%s' did not come back: %s"
                logger.error(text, self._name, error, exc_info=trace, extra=self._start.log_fields)
                self.move(InstanceState.BACKING_OFF)
                continue
            pid = None if self.worker is None else self.worker.pid
            logger.info("instance '%s' is back (pid %s)", self._name, pid, extra=self._start.log_fields)
            self._instance.on_room()
            return

    def _back_off_s(self) -> float:
        return float(min(_LONGEST_BACK_OFF_S, _FIRST_BACK_OFF_S * 2 ** max(0, self.deaths_in_a_row - 1)))
