"""Ensembles of models that a test answers itself."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import numpy as np

from pytriton_lite.config.ensemble_plan import check_ensemble_for_load, plan_ensemble
from pytriton_lite.config.model_config import ModelConfig, check_for_load, read_model_config
from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse, Origin, ParameterValue, ResponseReceiver
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.ensembles.version import EnsembleVersion
from pytriton_lite.engine.tracing.observation import Observation
from pytriton_lite.scheduling.ticket import Caller, Executor, Ticket, Ways
from tests.contract.ensemble_models import DECOUPLED, write_ensemble, write_step_model

Outcome = InferenceResponse | InferenceError | None
Test = Callable[..., Coroutine[Any, Any, None]]


def in_loop(test: Test) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        asyncio.run(test(*args, **named))

    return run


async def turns() -> None:
    """Let everything happen that is due: an answer and the step after it take a turn each."""
    for _ in range(4):
        await asyncio.sleep(0)


class Asked:
    """A request that a step has got: the owner of its ticket."""

    def __init__(
        self, model: Step, request: InferenceRequest, receiver: ResponseReceiver, caller: Caller | None
    ) -> None:
        self.model = model
        self.request = request
        self.ticket = Ticket(request, receiver, batch_size=1, shape_key=None, accepted_ns=0, caller=caller)
        self.ticket.owner = self
        self.credits = 0
        """Responses that were passed on."""

    def cancelled(self, ticket: Ticket) -> None:
        pass

    def consumed(self, ticket: Ticket, count: int) -> None:
        self.credits += count

    def may_be_stuck(self, ticket: Ticket) -> bool:
        return False

    def ways_on(self, ticket: Ticket) -> Ways:
        return [[]]

    def servers_of(self, ticket: Ticket) -> list[Executor]:
        return []

    def answer(
        self, value: float = 0, *, is_final: bool = True, parameters: dict[str, ParameterValue] | None = None
    ) -> None:
        """Every output is *value*."""
        outputs = [tensor(name, value) for name in self.model.config.outputs_by_name]
        response = InferenceResponse(self.model.config.name, 1, self.request.request_id, outputs, parameters or {})
        self.ticket.deliver(response, is_final=is_final)

    def fail(self, text: str, code: ErrorCode = ErrorCode.INTERNAL, *, is_final: bool = True) -> None:
        self.ticket.deliver(InferenceError(code, text), is_final=is_final)

    def end(self) -> None:
        """With its last flag alone."""
        self.ticket.deliver(None, is_final=True)


class Step:
    """In the place of a version that serves a step."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.asked: list[Asked] = []
        self.holders = 0
        self.inside: list[bool] = []
        self.is_ready = True
        self.takes_device_inputs = self.answers_on_device = False
        self.is_willing = True
        self.questions = 0
        """How often it was asked whether it is."""
        self.refusal: Exception | None = None

    def infer(self, request: InferenceRequest, receiver: ResponseReceiver, caller: Caller | None = None) -> Ticket:
        self.inside.append(request.origin is Origin.ENSEMBLE)
        if self.refusal is not None:
            raise self.refusal
        self.asked.append(Asked(self, request, receiver, caller))
        return self.asked[-1].ticket

    def hold(self) -> None:
        self.holders += 1

    def release(self) -> None:
        self.holders -= 1

    async def says_ready(self) -> bool:
        self.questions += 1
        return self.is_ready and self.is_willing

    @property
    def last(self) -> Asked:
        return self.asked[-1]


class Services:
    """Knows the steps by the name of their model."""

    def __init__(self, steps: dict[str, Step]) -> None:
        self.steps = steps
        self.observation = Observation()

    def find(self, name: str, version: int | None, namespace: str = "") -> Step:
        if name not in self.steps:
            raise InferenceError(ErrorCode.NOT_FOUND, f"Request for unknown model: '{name}' has no available versions")
        return self.steps[name]


class Heard:
    """A client that takes streams."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[Outcome, bool]] = []

    def on_response(self, response: Outcome, *, is_final: bool) -> None:
        self.outcomes.append((response, is_final))

    @property
    def values(self) -> list[float | str | None]:
        """What the first outputs are, or the texts of errors."""
        return [first_value(outcome) for outcome, _ in self.outcomes]

    @property
    def has_ended(self) -> bool:
        return bool(self.outcomes) and self.outcomes[-1][1]


def first_value(outcome: Outcome) -> float | str | None:
    if isinstance(outcome, InferenceError):
        return outcome.message
    if outcome is None:
        return None
    return float(np.frombuffer(outcome.outputs[0].content(), np.float32)[0])


def tensor(name: str, value: float = 0) -> Tensor:
    return Tensor(name, dtypes.FP32, (4,), np.full(4, value, np.float32).tobytes())


class World:
    """Step models ``a``, ``b``, ``two`` (of two inputs and outputs), ``d`` and ``e`` (decoupled), and ensembles of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps: dict[str, Step] = {}
        for name in ("a", "b", "two", "d", "e"):
            inputs = "IN0:FP32:4 IN1:FP32:4" if name == "two" else "IN0:FP32:4"
            outputs = "OUT0:FP32:4 OUT1:FP32:4" if name == "two" else "OUT0:FP32:4"
            path = write_step_model(folder, name, DECOUPLED if name in "de" else "", inputs=inputs, outputs=outputs)
            config = check_for_load(read_model_config(path, versions=(1,)), model_dir=path, gpu_ids=())
            self.steps[name] = Step(config)
        self.services = Services(self.steps)

    def __getattr__(self, name: str) -> Step:
        return self.steps[name]

    def ensemble(
        self, *steps: tuple[str, str, str], name: str = "ens", patience_s: float = 300.0, **fields: str
    ) -> EnsembleVersion:
        """READY. Raises InferenceError where it does not fit its models."""
        path = write_ensemble(self.folder, name, *steps, **fields)  # type: ignore[arg-type]
        config = check_ensemble_for_load(read_model_config(path, versions=(1,)), model_dir=path)
        plan = plan_ensemble(config, lambda name, version: self.steps[name].config)
        made = EnsembleVersion(1, plan=plan, services=cast(Any, self.services), patience_s=patience_s)
        made.begin_load()
        made.open()
        return made
