"""A model version that other models compute: an ensemble. What runs is in `ensemble_run`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol

from pytriton_lite.config.ensemble_plan import EnsemblePlan, PlannedStep, Route
from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.core.errors import BugError, ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.states import VersionState
from pytriton_lite.core.timeline import Clock
from pytriton_lite.engine.counting.latencies import LatencyMetrics
from pytriton_lite.engine.counting.statistics import SharedMemory
from pytriton_lite.engine.counting.unanswered import UnansweredTotal
from pytriton_lite.engine.ensembles.limit import EnsembleLimit
from pytriton_lite.engine.ensembles.run import EnsembleRun
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.serving.served_version import ServedVersion
from pytriton_lite.engine.tracing.observation import Observation
from pytriton_lite.engine.workers.device_helper import DeviceHelpers
from pytriton_lite.scheduling.queue import queue_is_full
from pytriton_lite.scheduling.ticket import Ticket

PATIENCE_S = 300.0
"""How long a step waits where ``max_inflight_requests`` keeps it (scheduling spec, 6.1)."""

_MOST_ROUTES = 64
"""Sets of outputs that requests ask for, worked out once; clients choose them."""


class StepServices(Protocol):
    """What the server does for ensembles."""

    def find(self, name: str, version: int | None, namespace: str = "") -> ServedVersion:
        """The version that would serve a request now. Raises InferenceError where there is none."""

    @property
    def observation(self) -> Observation: ...


class EnsembleVersion(ServedVersion):
    """A version without workers and queue: a request of it is under way at once, and waits in the queues of the steps."""

    def __init__(
        self,
        version: int,
        *,
        plan: EnsemblePlan,
        services: StepServices,
        namespace: str = "",
        patience_s: float = PATIENCE_S,
        clock: Clock = time.monotonic_ns,
        latencies: LatencyMetrics = LatencyMetrics(),  # noqa: B008  # frozen
        total: UnansweredTotal | None = None,
    ) -> None:
        """*patience_s* is how long a step waits where ``max_inflight_requests`` keeps it. *total* is as for `ServedVersion`."""
        super().__init__(plan.config, version, namespace=namespace, clock=clock, latencies=latencies, total=total)
        self._services = services
        self.patience_s = patience_s
        self._plan = plan
        self._routes: dict[tuple[str, ...], Route] = {}
        self._runs: dict[EnsembleRun, int] = {}
        """Runs that are under way, and what they count for."""
        self._drained: asyncio.Future[None] | None = None
        self._kept: dict[int, ServedVersion] = {}
        """The versions of the steps, by the step's number, while somebody holds this one."""
        assert self.config.ensemble is not None
        most = self.config.ensemble.max_inflight_requests
        self.limits = {step.number: EnsembleLimit(most) for step in plan.steps} if most else {}
        """Limits by the number of the step; none where there is no limit."""
        self.unbounded: set[int] = set()
        """Decoupled steps that were found to wait for themselves: since then they may send as much as they like."""

    # ------------------------------------------------------------------------------------------ requests

    def use_devices(self, helpers: DeviceHelpers) -> None:
        super().use_devices(helpers)
        self.takes_device_inputs = self._cached is None  # each step sees to its own

    def _begin(self, ticket: Ticket) -> None:
        self._refuse_if_full(ticket.request)
        nbytes = self.unanswered.take(ticket.request)
        ticket.owner = run = EnsembleRun(self, ticket)
        self._runs[run] = nbytes
        run.start()

    def _refuse_if_full(self, request: InferenceRequest) -> None:
        limit = self.config.max_queue_size
        if limit and len(self._runs) >= limit:
            raise queue_is_full(request)

    def _closed_error(self, request: InferenceRequest) -> InferenceError:
        """The error of the first step: in Triton it is that one who says so."""
        error = super()._closed_error(request)
        return InferenceError(error.code, f"in ensemble '{self.name}', {error.message}")

    # ------------------------------------------------------------------------------------------ for requests under way

    @property
    def observation(self) -> Observation:
        return self._services.observation

    def now_ns(self) -> int:
        return self._clock()

    def route(self, outputs: Sequence[str]) -> Route:
        """What runs for a request for *outputs*."""
        key = tuple(outputs)
        route = self._routes.get(key)
        if route is None:
            route = self._plan.route(outputs)
            if len(self._routes) < _MOST_ROUTES:
                self._routes[key] = route
        return route

    def find(self, step: PlannedStep) -> ServedVersion:
        """The version that serves *step* now; once this one is to end, one that serves nobody else any more.

        Raises InferenceError where there is none.
        """
        if self.state is not VersionState.READY and step.number in self._kept:
            return self._kept[step.number]
        try:
            served = self._services.find(step.model, step.version, self.id.namespace)
        except InferenceError as error:
            # Nobody has asked for that model by name, so it is not a 404 (scheduling spec, 6.3).
            code = ErrorCode.INVALID_ARG if error.code is ErrorCode.NOT_FOUND else error.code
            raise InferenceError(code, error.message) from None
        if served.config.decoupled != step.is_decoupled or not _has_tensors(served.config, step):
            text = f"model '{step.model}' has changed, and the ensemble has not been loaded again yet"
            raise InferenceError(ErrorCode.UNAVAILABLE, text)
        return served

    def hold(self) -> None:
        """Hold the models of all steps, too: whoever holds it may ask it when they have been replaced, or unloaded with it."""
        super().hold()
        if self._holders > 1:
            return
        for step in self._plan.steps:
            with suppress(InferenceError):  # the request that needs this step will hear of it
                self._kept[step.number] = served = self.find(step)
                served.hold()

    def release(self) -> None:
        super().release()
        if not self._holders:
            kept, self._kept = self._kept, {}
            for served in kept.values():
                served.release()

    def ended(self, run: EnsembleRun) -> None:
        self.unanswered.give_back(run.request, self._runs.pop(run))
        if not self._runs and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # ------------------------------------------------------------------------------------------ what can be seen

    @property
    def under_way(self) -> int:
        """Requests that have not ended."""
        return len(self._runs)

    @property
    def pending(self) -> int:
        return 0

    @property
    def queued(self) -> int:
        return 0

    @property
    def queued_by_level(self) -> dict[int, int]:
        return {}

    @property
    def shared_memory(self) -> list[SharedMemory]:
        return []

    @property
    def longest_executions(self) -> dict[str, float]:
        return {}

    @property
    def is_ready(self) -> bool:
        """READY, and so is a version for every step."""
        composing = self._composing()
        return composing is not None and all(served.is_ready for served in composing)

    async def says_ready(self) -> bool:
        """`is_ready`, and the models of all steps agree that have an opinion."""
        composing = self._composing()
        if composing is None:
            return False
        return all(await asyncio.gather(*(served.says_ready() for served in composing)))

    def _composing(self) -> list[ServedVersion] | None:
        """Versions that would execute the steps now, also of ensembles inside, each once; None where one is missing."""
        found: dict[ServedVersion, None] = {self: None}
        pending: list[EnsembleVersion] = [self]
        while pending:
            ensemble = pending.pop()
            if ensemble.state is not VersionState.READY:
                return None
            try:
                steps = [ensemble.find(step) for step in ensemble._plan.steps]
            except InferenceError:
                return None
            pending += [served for served in steps if isinstance(served, EnsembleVersion) and served not in found]
            found.update(dict.fromkeys(steps))
        return [served for served in found if not isinstance(served, EnsembleVersion)]

    @property
    def is_recovering(self) -> bool:
        return False

    # ------------------------------------------------------------------------------------------ life

    async def load(self, environment: Environment | None) -> None:
        """Start nothing: the composing models are loaded."""

    def adopting(self, config: ModelConfig) -> AbstractAsyncContextManager[Callable[[], None]]:
        raise BugError(f"ensemble '{self.name}' has no instances: it is loaded again whatever changes")

    async def unload(self, timeout_s: float | None = None) -> bool:
        drained = False
        try:
            await asyncio.wait_for(self._wait_drained(), timeout_s)
            drained = True
        except asyncio.TimeoutError:
            pass
        finally:
            text = f"Server is stopping before ensemble '{self.name}' served this request"
            for run in list(self._runs):
                run.abort(InferenceError(ErrorCode.UNAVAILABLE, text))
        self._move(VersionState.UNAVAILABLE, "unloaded")
        return drained

    async def _wait_drained(self) -> None:
        await self._wait_let_go()
        while self._runs:
            self._drained = self._loop.create_future()
            await self._drained


def _has_tensors(config: ModelConfig, step: PlannedStep) -> bool:
    return config.inputs_by_name.keys() >= step.inputs.keys() and config.outputs_by_name.keys() >= step.outputs.keys()
