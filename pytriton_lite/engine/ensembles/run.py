"""One request on its way through an ensemble (scheduling spec, section 6).

```
EnsembleVersion ── start ──▶ EnsembleRun ── infer ──▶ ServedVersion of a step
        ◀── ended ──                   │  ▲                              │
client  ◀── its ticket: responses ─────┘  └───── on_response ── _StepCall ◀
        ── consumed ──▶ its ticket ──▶ the step whose responses wait for it
```

* What a step gives lies in an *iteration*: the request's own, or one that a response of a decoupled step opened. A step looks
  for its inputs in its iteration and in those around it. Tensors keep their place in memory: a step's worker maps what another
  step's worker has written (`Tensor.home`).
* Steps begin when the loop is at its turn's end, never inside the callback that brought what they waited for: it may belong
  to the very queue that they enter.
* An iteration is *closed* when everything in it has ended and the client has taken its response. Only then may the decoupled
  step that opened it send another one, so that no more of them are open than that step's model may have unread. But where
  an iteration needs the instance that sends, the step would wait for itself: it is looked for, and not held up any more.
* After the first error no step begins any more; the client hears it when those that run have ended. Decoupled ones are told
  that nobody wants their responses. A cancelled request does the same.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from functools import partial
from typing import Protocol

from pytriton_lite.config.ensemble_plan import PlannedStep, Route
from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.config.reshape import reshaped
from pytriton_lite.core.errors import BUG, ErrorCode, InferenceError
from pytriton_lite.core.request import DevicePlaces, InferenceRequest, InferenceResponse, Origin
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.core.timeline import Timeline
from pytriton_lite.engine.counting.statistics import FailureReason, ModelStatistics, ResponseKind
from pytriton_lite.engine.ensembles.limit import EnsembleLimit
from pytriton_lite.engine.ensembles.tensors import EnsembleTensor, Sequence, sequence_in
from pytriton_lite.engine.serving.calls import Servable
from pytriton_lite.engine.serving.deadlock import LOOK_AGAIN_S, chain, chain_text, is_stuck
from pytriton_lite.engine.tracing.observation import Observation
from pytriton_lite.engine.workers.outputs import arranged
from pytriton_lite.ipc.device_segment import any_on_device
from pytriton_lite.scheduling.ticket import Caller, Executor, Outcome, Ticket, Waited, Ways

logger = logging.getLogger(__name__)


class Step(Servable, Protocol):
    """The version that serves a step."""

    @property
    def takes_device_inputs(self) -> bool:
        """Whether its inputs may be in memory of a device."""

    def hold(self) -> None:
        """Stay able to serve until `release`."""

    def release(self) -> None:
        """Undo one `hold`."""


class Ensemble(Protocol):
    """What a run asks of its ensemble."""

    name: str
    version: int
    config: ModelConfig
    statistics: ModelStatistics
    limits: dict[int, EnsembleLimit]
    """Limits of steps, by their numbers; none where there is no limit."""
    unbounded: set[int]
    """Numbers of decoupled steps that were found to wait for themselves, and that nothing holds up any more."""
    patience_s: float
    """How long a step waits for room."""

    @property
    def observation(self) -> Observation: ...

    @property
    def labels(self) -> Mapping[str, SequenceOf[str]]:
        """Labels by output: what its elements stand for."""

    def now_ns(self) -> int: ...

    def route(self, outputs: SequenceOf[str]) -> Route:
        """What runs for a request for *outputs*."""

    def find(self, step: PlannedStep) -> Step:
        """The version that serves *step* now. Raises InferenceError where there is none."""

    def ended(self, run: EnsembleRun) -> None:
        """*run* is over."""


class _Iteration:
    """Tensors by name, None for one that a step left out, and the steps that are still to begin."""

    __slots__ = (
        "around",
        "children",
        "holds_up",
        "is_unread",
        "lacks_response",
        "opened_by",
        "running",
        "takers",
        "tensors",
        "uses",
        "waiting",
    )

    def __init__(self, route: Route, opened_by: _StepCall | None) -> None:
        number = None if opened_by is None else opened_by.step.number
        self.opened_by = opened_by
        self.around: _Iteration | None = None if opened_by is None else opened_by.iteration
        self.tensors: dict[str, EnsembleTensor | None] = {}
        self.waiting = {step.number: step for step in route.steps.get(number, ())}
        self.takers = route.takers.get(number, {})
        self.uses = dict(route.uses.get(number, {}))
        """How many steps are still to take a tensor that nobody else wants."""
        self.running = 0
        self.children: dict[_Iteration, None] = {}
        self.lacks_response = number == route.iterates
        """Whether the ensemble's response is to be made from here, and has not been."""
        self.is_unread = False
        """Whether the client has the response before it."""
        self.holds_up = True
        """Whether the step that opened it may send another response when it is closed, and not before."""
        if self.around is not None:
            self.around.children[self] = None

    def where(self, name: str) -> _Iteration | None:
        """The iteration, this one or one around it, that has the tensor *name*; None where it does not exist yet."""
        iteration: _Iteration | None = self
        while iteration is not None and name not in iteration.tensors:
            iteration = iteration.around
        return iteration

    def take(self, name: str) -> EnsembleTensor | None:
        """A tensor for a step of this iteration. Nothing is kept here for which there is no further use."""
        holder = self.where(name)
        assert holder is not None
        tensor = holder.tensors[name]
        if name in self.uses:
            self.uses[name] -= 1
            if not self.uses[name]:
                holder.tensors[name] = None
        return tensor

    def waiting_for(self, names: Iterable[str]) -> list[PlannedStep]:
        """The steps of this iteration that may be able to begin now that there are tensors of these *names*."""
        if not self.waiting:
            return []
        return [step for name in names for step in self.takers.get(name, ()) if step.number in self.waiting]

    def within(self) -> Iterator[_Iteration]:
        """The iteration itself, and all inside of it."""
        yield self
        for child in list(self.children):
            yield from child.within()

    def dissolve(self) -> None:
        """Let go of everything: iterations refer to each other, and tensors would wait for a collection."""
        for iteration in list(self.within()):
            iteration.tensors.clear()
            iteration.children.clear()

    @property
    def is_closed(self) -> bool:
        return not (self.waiting or self.running or self.children or self.lacks_response or self.is_unread)


class _StepCall:
    """The request of one step in one iteration: what receives its responses, and what waits where there is a limit."""

    def __init__(self, run: EnsembleRun, step: PlannedStep, iteration: _Iteration) -> None:
        self._run = run
        self.step = step
        self.iteration = iteration
        self.sequence: Sequence | None = None
        """The sequence of its inputs, where a step before has said something else of it than the ensemble's request."""
        self.ticket: Ticket | None = None
        """None while it waits for room, and where it is refused."""
        self.timeline: Timeline | None = None
        self.is_over = False
        """Whether what it sends is of no use any more, because of an error behind responses that still are."""
        self.patience: asyncio.TimerHandle | None = None
        """While it waits for room."""
        self.next_look: asyncio.TimerHandle | None = None
        """While it waits for room, and a model for it."""

    def begin(self) -> None:
        self._run.has_room(self)

    def ways_on(self) -> Ways:
        """Ways in which a decoupled step may send more (`Ticket.reader`)."""
        return self._run.ways_to_send(self)

    def lift(self) -> bool:
        return self._run.let_send(self)

    @property
    def is_held_up(self) -> bool:
        """Whether an instance executes it, and may have to wait until it may send more."""
        batch = None if self.ticket is None else self.ticket.batch
        if batch is None:
            return False
        executor = batch.executor
        return any(self in executor.needs(begun) for begun in executor.executions())

    def on_response(self, response: Outcome | None, *, is_final: bool) -> None:
        try:
            self._run.on_response(self, response, is_final=is_final)
        except Exception as error:
            self._run.fail_inside(error)


class EnsembleRun:
    """Ends exactly once: with the last response, an error, or unheard."""

    def __init__(self, ensemble: Ensemble, ticket: Ticket) -> None:
        self._ensemble = ensemble
        self._ticket = ticket
        self.request = ticket.request
        self._route = ensemble.route(ticket.request.requested_outputs)
        self._batch_size = ticket.batch_size
        self._accepted_ns = self._responded_ns = ticket.accepted_ns
        self._loop = asyncio.get_running_loop()
        self._served: dict[int, Step] = {}
        """The versions of the steps that are needed, by the step's number."""
        self._held: set[int] = set()
        """The numbers of those that are held because more may be asked of them: to the end where a step runs in iterations."""
        self._root: _Iteration | None = None
        """The iteration of the request itself."""
        self._calls: dict[_StepCall, None] = {}
        """Calls that have not ended, waiting ones included."""
        self._admitted: list[_StepCall] = []
        """Calls that have waited, and for which there is room now."""
        self._grown: dict[_Iteration, list[PlannedStep]] = {}
        """Iterations where steps may be able to begin, and which steps."""
        self._turn_is_due = False
        self._next_look: asyncio.TimerHandle | None = None
        """While a decoupled step sends, which may come to wait for itself."""
        self._unread: deque[_Iteration] = deque()
        """Iterations of the responses that the client has not taken yet, in order."""
        self._responses = 0
        self._failure: InferenceError | None = None
        self._error_behind: InferenceError | None = None
        """What the request fails with when the responses have gone through that a decoupled step had sent before."""
        self._is_cancelled = False
        self._is_ended = False
        self._input_ns = self._infer_ns = self._output_ns = 0

    # ------------------------------------------------------------------------------------------ begin

    def start(self) -> None:
        """Begin with the steps that need nothing but the request. The client hears nothing before this returns."""
        if self.request.timeline is not None:
            self.request.timeline.is_composed = True
        try:
            self._hold_versions()
        except InferenceError as error:
            self._failure = self._framed(error)
            self._turn_soon()
            return
        iteration = self._root = _Iteration(self._route, None)
        given = {tensor.name: tensor for tensor in self.request.inputs}
        for spec in self._ensemble.config.inputs:
            iteration.tensors[spec.name] = self._given(given[spec.name]) if spec.name in given else None
        steps = list(iteration.waiting.values())
        if self._ticket.caller is None:  # otherwise a step may close a chain of calls, and end the request at once
            self._begin_steps(iteration, steps)
        if not self._calls:
            self._grown[iteration] = steps
            self._turn_soon()

    def _hold_versions(self) -> None:
        """Decide on the versions of all steps now, and keep them able to serve."""
        for steps in self._route.steps.values():
            for step in steps:
                served = self._ensemble.find(step)
                served.hold()
                self._served[step.number] = served
                self._held.add(step.number)

    def _given(self, tensor: Tensor) -> EnsembleTensor:
        """An input of the request, in the shape in which the steps get it."""
        config = self._ensemble.config
        spec = config.inputs_by_name[tensor.name]
        if spec.reshape is not None:
            shape = self._reshaped(tensor.shape, spec.dims, spec.reshape)
            tensor = Tensor(tensor.name, tensor.datatype, shape, tensor.data, tensor.nbytes, home=tensor.home)
        return EnsembleTensor(tensor, config.max_batch_size > 0, None)

    def _reshaped(self, shape: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...]:
        batch = shape[:1] if self._ensemble.config.max_batch_size else ()
        inner = reshaped(source, target, shape[len(batch) :])
        return shape if inner is None else batch + inner

    # ------------------------------------------------------------------------------------------ steps

    def has_room(self, call: _StepCall) -> None:
        """*call* has waited long enough."""
        _stop_timers(call)
        self._admitted.append(call)
        self._turn_soon()

    def _turn_soon(self) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._turn)

    def fail_inside(self, error: Exception) -> None:
        """*error* is a bug of ours: nobody else would ever answer the request."""
        logger.error("a request to ensemble '%s' failed inside the server", self._ensemble.name, exc_info=error)
        text = f"ensemble '{self._ensemble.name}' failed inside the server; its log has the details"
        self.abort(InferenceError(ErrorCode.INTERNAL, text))

    def _turn(self) -> None:
        try:
            self._take_turn()
        except Exception as error:
            self.fail_inside(error)

    def _take_turn(self) -> None:
        self._turn_is_due = False
        admitted, self._admitted = self._admitted, []
        for call in admitted:
            if call in self._calls:
                self._submit(call)
        grown, self._grown = self._grown, {}
        for iteration, steps in grown.items():
            self._begin_steps(iteration, steps)
        self._respond_if_complete(list(grown))  # nothing needs to be executed for an input that is an output
        self._end_if_idle()

    def _begin_steps(self, iteration: _Iteration, steps: list[PlannedStep]) -> None:
        """Begin with those of *steps* that have not begun and of which all inputs exist."""
        for step in steps:
            if self._failure is not None:
                return
            is_waiting = step.number in iteration.waiting
            if is_waiting and all(iteration.where(tensor) is not None for tensor in step.inputs.values()):
                del iteration.waiting[step.number]
                iteration.running += 1
                call = _StepCall(self, step, iteration)
                self._calls[call] = None
                limit = self._ensemble.limits.get(step.number)
                if limit is None or limit.take(call):
                    self._submit(call)
                else:
                    self._wait_for_room(call, limit)

    def _wait_for_room(self, call: _StepCall, limit: EnsembleLimit) -> None:
        call.patience = self._loop.call_later(self._ensemble.patience_s, self._lose_patience, call, limit)
        self._abort_if_room_is_stuck(call, limit)

    def _abort_if_room_is_stuck(self, call: _StepCall, limit: EnsembleLimit) -> None:
        caller = self._caller()
        if caller is None:
            return
        if is_stuck(limit):
            text = (
                f"the call waits for itself: {chain(caller)} -> {call.step.model}. None of the {limit.most} requests of this "
                "step that max_inflight_requests allows can end before this call is answered"
            )
            self.abort(self._framed(InferenceError(ErrorCode.UNAVAILABLE, text)))
        else:
            # A client's request, of which nobody asks whether it is stuck, may be the next one inside, and close the chain.
            call.next_look = self._loop.call_later(LOOK_AGAIN_S, self._abort_if_room_is_stuck, call, limit)

    def _lose_patience(self, call: _StepCall, limit: EnsembleLimit) -> None:
        text = (
            f"{self.request.error_prefix}the step of model '{call.step.model}' has waited for {self._ensemble.patience_s:g} s "
            f"because {limit.most} requests of it are running, as many as max_inflight_requests allows"
        )
        self._fail(self._framed(InferenceError(ErrorCode.UNAVAILABLE, text)))
        self._end_if_idle()

    def _submit(self, call: _StepCall) -> None:
        try:
            request = self._step_request(call)
            call.timeline = request.timeline = self._observe(call.step)
            ticket = call.ticket = self._served[call.step.number].infer(request, call, self._caller())
        except InferenceError as error:
            self._refused(call, error)
            return
        except Exception:
            logger.exception("a step of ensemble '%s' failed inside the server", self._ensemble.name)
            self._refused(call, InferenceError(ErrorCode.INTERNAL, BUG))
            return
        if call.step.iterates is None:
            # It has the request, and is asked for nothing more: one that keeps sequences waits for none that is silent.
            self._held.remove(call.step.number)
            self._served[call.step.number].release()
        if call.step.is_decoupled:
            ticket.reader = call
        ticket.on_times = self._add_times
        if ticket.caller is not None:
            ticket.on_stuck = partial(self._abort_stuck, call, ticket.caller)

    def _refused(self, call: _StepCall, error: InferenceError) -> None:
        self._loop.call_soon(partial(call.on_response, error, is_final=True))

    def _caller(self) -> Caller | None:
        """The caller that steps are told of."""
        caller = self._ticket.caller
        return None if caller is None else Caller(caller.instance, (*caller.ensembles, self._ensemble.name))

    def _abort_stuck(self, call: _StepCall, caller: Caller) -> None:
        ticket = call.ticket
        if ticket is not None and not ticket.is_over:
            text = chain_text(caller, ticket)
            self.abort(self._framed(InferenceError(ErrorCode.UNAVAILABLE, text)))

    # ------------------------------------------------------------------------------------------ what the ticket says

    def may_be_stuck(self, ticket: Ticket) -> bool:
        """Always False: steps are looked at when they begin."""
        return False

    def servers_of(self, ticket: Ticket) -> list[Executor]:
        return []

    def ways_on(self, ticket: Ticket) -> Ways:
        """One way on: all steps that run have to be answered, whatever else may begin."""
        return [[waited for call in self._calls for waited in self._waited_by(call)]]

    def _waited_by(self, call: _StepCall) -> list[Waited]:
        if call.patience is not None:
            return [self._ensemble.limits[call.step.number]]
        return [] if call.ticket is None else [call.ticket]

    # ------------------------------------------------------------------------------------------ steps that wait to send

    def ways_to_send(self, sending: _StepCall) -> Ways:
        """One for each iteration that *sending* has opened: all that runs in it has to end, and its response to be taken."""
        needed: dict[_Iteration, list[Waited]] = {each: [] for each in self._opened_by(sending)}
        for call in self._calls:
            iteration: _Iteration | None = call.iteration
            while iteration is not None and iteration not in needed:
                iteration = iteration.around
            if iteration is not None:
                needed[iteration] += self._waited_by(call)
        reader = self._ticket.reader  # of an ensemble inside of another; else a client, or a model, reads
        for iteration, waited in needed.items():
            if reader is not None and any(inner.is_unread for inner in iteration.within()):
                waited.append(reader)
        return list(needed.values()) or [[]]

    def let_send(self, call: _StepCall) -> bool:
        """Hold *call*, and others of its step, up no more; whether something did."""
        self._ensemble.unbounded.add(call.step.number)
        opened = self._opened_by(call)
        for iteration in opened:
            iteration.holds_up = False
            assert call.ticket is not None
            call.ticket.consumed()
        return bool(opened)

    def _opened_by(self, call: _StepCall) -> list[_Iteration]:
        """The iterations that are not closed and hold *call* up."""
        return [each for each in call.iteration.children if each.opened_by is call and each.holds_up]

    def _look_at_senders(self) -> None:
        self._next_look = None
        for call in list(self._calls):
            if call.is_held_up:
                is_stuck(call)  # which lifts it
        if any(call.step.is_decoupled for call in self._calls):
            self._look_later()

    def _look_later(self) -> None:
        if self._next_look is None and not self._is_ended:
            self._next_look = self._loop.call_later(LOOK_AGAIN_S, self._look_at_senders)

    # ------------------------------------------------------------------------------------------ requests of steps

    def _step_request(self, call: _StepCall) -> InferenceRequest:
        step = call.step
        config = self._served[step.number].config
        batches = config.max_batch_size > 0
        inputs: list[Tensor] = []
        for name, ensemble_name in step.inputs.items():
            tensor = call.iteration.take(ensemble_name)
            if tensor is not None:
                call.sequence = call.sequence or tensor.sequence
                inputs.append(tensor.given_to(name, config.inputs_by_name[name].dims, batches=batches))
        request = self.request
        sequence = call.sequence or Sequence(request.correlation_id, request.sequence_flags)
        made = InferenceRequest(
            step.model,
            step.version,
            request_id=request.request_id,
            inputs=inputs,
            requested_outputs=list(step.outputs),
            parameters=request.parameters,
            correlation_id=sequence.correlation_id,
            sequence_flags=sequence.flags,
            priority=request.priority,
            timeout_us=request.timeout_us,
            origin=Origin.ENSEMBLE,
        )
        made.on_device = any_on_device(inputs)
        if self._served[step.number].answers_on_device:
            made.device_outputs = self._device_places(step)
        return made

    def _device_places(self, step: PlannedStep) -> DevicePlaces | None:
        """Which outputs of *step* may stay on a device: those that steps alone take, all of which take them there."""
        staying = {name for name, tensor in step.outputs.items() if self._stays_on_device(tensor)}
        return DevicePlaces(frozenset(staying)) if staying else None

    def _stays_on_device(self, tensor: str) -> bool:
        if tensor in self._route.outputs:
            return False
        takers = [step for taken in self._route.takers.values() for step in taken.get(tensor, ())]
        return bool(takers) and all(self._served[step.number].takes_device_inputs for step in takers)

    def _observe(self, step: PlannedStep) -> Timeline | None:
        observation = self._ensemble.observation
        if not observation.is_on:
            return None
        around = self.request.timeline
        timeline = observation.begin_call(step.model, around.step_context if around is not None else "")
        if timeline is not None and around is not None:
            around.hold()
            timeline.on_complete += (lambda _: around.release(),)
        return timeline

    # ------------------------------------------------------------------------------------------ responses of steps

    def on_response(self, call: _StepCall, response: Outcome | None, *, is_final: bool) -> None:
        if call not in self._calls:
            return  # it was given up
        if is_final:
            self._end_call(call, response.message if isinstance(response, InferenceError) else "")
        if self._failure is None:
            if isinstance(response, InferenceError):
                self._fail_for(call, self._framed(response))
            elif response is not None and not call.is_over:
                self._take(call, response)
            if is_final:
                self._close(call.iteration)
        self._end_if_idle()

    def _end_call(self, call: _StepCall, error: str = "") -> None:
        del self._calls[call]
        call.iteration.running -= 1
        _stop_timers(call)
        limit = self._ensemble.limits.get(call.step.number)
        if limit is not None:
            limit.give_back(call)
        if call.timeline is not None:
            call.timeline.finish(error)

    def _take(self, call: _StepCall, response: InferenceResponse) -> None:
        step = call.step
        before = call.sequence.correlation_id if call.sequence is not None else self.request.correlation_id
        try:
            sequence = sequence_in(response.parameters, before) or call.sequence
        except InferenceError as error:
            self._fail(self._framed(error))
            return
        iteration = call.iteration
        if step.is_decoupled:
            iteration = _Iteration(self._route, call)
            if step.number in self._ensemble.unbounded and call.ticket is not None:
                iteration.holds_up = False
                call.ticket.consumed()
            self._look_later()
        is_batched = self._served[step.number].config.max_batch_size > 0
        given = {tensor.name: tensor for tensor in response.outputs}
        for name, ensemble_name in step.outputs.items():
            is_kept = name in given and ensemble_name in self._route.wanted
            iteration.tensors[ensemble_name] = EnsembleTensor(given[name], is_batched, sequence) if is_kept else None
        inside = list(iteration.within())
        for grown in inside:
            steps = grown.waiting_for(step.outputs.values())
            if steps:
                self._grown.setdefault(grown, []).extend(steps)
        if self._grown:
            self._turn_soon()
        self._respond_if_complete(inside)

    def _close(self, iteration: _Iteration) -> None:
        """Close *iteration*, and those around it, as far as they are at their end."""
        while iteration.around is not None and iteration in iteration.around.children and iteration.is_closed:
            del iteration.around.children[iteration]
            assert iteration.opened_by is not None and iteration.opened_by.ticket is not None
            if iteration.holds_up:
                iteration.opened_by.ticket.consumed()
            iteration = iteration.around

    def _add_times(self, input_ns: int, infer_ns: int, output_ns: int) -> None:
        if self._is_ended:  # the result of a decoupled step comes after its last response
            if self._failure is None:
                self._ensemble.statistics.add_times(self._batch_size, input_ns, infer_ns, output_ns)
        else:
            self._input_ns += input_ns
            self._infer_ns += infer_ns
            self._output_ns += output_ns
        if self._ticket.on_times is not None:
            self._ticket.on_times(input_ns, infer_ns, output_ns)

    # ------------------------------------------------------------------------------------------ to the client

    def consumed(self, ticket: Ticket, count: int) -> None:
        """The client has taken so many responses."""
        for _ in range(min(count, len(self._unread))):
            iteration = self._unread.popleft()
            iteration.is_unread = False
            self._close(iteration)

    def _respond_if_complete(self, iterations: list[_Iteration]) -> None:
        complete = [
            iteration
            for iteration in iterations
            if iteration.lacks_response and all(iteration.where(name) is not None for name in self._route.outputs)
        ]
        for iteration in complete:
            if self._failure is not None:
                return
            self._respond(iteration, is_last=iteration is complete[-1] and self._is_idle and self._error_behind is None)

    def _respond(self, iteration: _Iteration, *, is_last: bool) -> None:
        iteration.lacks_response = False
        try:
            response = self._response(iteration)
        except InferenceError as error:
            self._fail(error)
            return
        self._note_response(ResponseKind.SUCCESS)
        if self.request.timeline is not None:
            self.request.timeline.responded(response.outputs)
        if is_last:
            self._end(response)
        else:
            iteration.tensors.clear()  # every step that is needed leads to an output, so none of this one is left
            iteration.is_unread = True
            self._unread.append(iteration)
            self._ticket.deliver(response, is_final=False)

    def _response(self, iteration: _Iteration) -> InferenceResponse:
        """Raises InferenceError for an output that cannot become what the request wants."""
        config, request = self._ensemble.config, self.request
        outputs: list[Tensor] = []
        sequence: Sequence | None = None
        for name in self._route.outputs:
            holder = iteration.where(name)
            tensor = holder.tensors[name] if holder is not None else None
            if tensor is None:
                logger.debug("Composing models did not output tensor %s", name)
                continue
            sequence = sequence or tensor.sequence
            spec = config.outputs_by_name[name]
            dims = spec.dims if spec.reshape is None else spec.reshape
            output = tensor.given_to(name, dims, batches=config.max_batch_size > 0)
            if spec.reshape is not None:
                output.shape = self._reshaped(output.shape, spec.reshape, spec.dims)
            outputs.append(output)
        if request.output_windows is not None or request.classes is not None:
            labels = self._ensemble.labels
            outputs = arranged(outputs, request, has_batch_dimension=config.max_batch_size > 0, labels=labels)
        sequence = sequence or Sequence(request.correlation_id, request.sequence_flags)
        return InferenceResponse(
            self._ensemble.name, self._ensemble.version, request.request_id, outputs, sequence.as_parameters()
        )

    def _note_response(self, kind: ResponseKind) -> None:
        """A response, or the end in its place."""
        statistics = self._ensemble.statistics
        now_ns = self._ensemble.now_ns()
        self._observe_first_response(now_ns)
        if statistics.is_decoupled:
            statistics.streamed += kind is ResponseKind.SUCCESS
            statistics.add_response(self._responses, kind, now_ns - self._responded_ns, 0)
        self._responded_ns = now_ns
        self._responses += 1

    def _observe_first_response(self, now_ns: int) -> None:
        histogram = self._ensemble.statistics.first_response
        if histogram is not None and not self._responses:
            histogram.observe((now_ns - self._accepted_ns) // 1_000_000)

    # ------------------------------------------------------------------------------------------ end

    def cancelled(self, ticket: Ticket) -> None:
        """Begin with no step any more, and end when those that run have."""
        if self._is_ended:
            return
        self._ensemble.statistics.cancellations += 1
        self._is_cancelled = True
        self._failure = InferenceError(ErrorCode.CANCELLED, "")
        self._stop_steps(everywhere=True)
        self._end_if_idle()

    def abort(self, error: InferenceError) -> None:
        """End with *error* now, whatever runs."""
        if self._is_ended:
            return
        self._failure = error
        for call in list(self._calls):
            if call.ticket is not None:
                call.ticket.cancel()
            self._end_call(call, error.message)
        self._end(None)

    def _fail_for(self, call: _StepCall, error: InferenceError) -> None:
        """*error* ends *call*. What this had sent before goes its way first, if the client would hear of each."""
        if call.is_over:
            return
        if not call.step.is_decoupled or not call.iteration.children or not self._ensemble.config.decoupled:
            self._fail(error)
            return
        self._error_behind = self._error_behind or error
        over: _StepCall | None = call
        while over is not None:  # and those that would go on in front of it
            over.is_over = True
            if over in self._calls and over.ticket is not None:
                over.ticket.withdraw()
            over = over.iteration.opened_by

    def _fail(self, error: InferenceError) -> None:
        """*error*, if it is the first, comes when nothing runs any more."""
        self._failure = self._error_behind or error
        self._stop_steps(everywhere=False)

    def _stop_steps(self, *, everywhere: bool) -> None:
        """Begin with none any more. Those that would go on sending are told; with *everywhere* all that run are."""
        self._grown.clear()
        for call in list(self._calls):
            if call.ticket is None:
                self._end_call(call)
            elif everywhere or call.step.is_decoupled:
                call.ticket.withdraw()

    @property
    def _is_idle(self) -> bool:
        return not (self._calls or self._admitted or self._grown)

    def _end_if_idle(self) -> None:
        if not self._is_ended and self._is_idle:
            self._end(None)

    def _end(self, response: InferenceResponse | None) -> None:
        """*response* is the last one, if there is one that was not delivered yet."""
        self._is_ended = True
        if self._next_look is not None:
            self._next_look.cancel()
        self._failure = self._failure or self._error_behind
        if self._failure is None and not self._responses and not self._ensemble.config.decoupled:
            text = "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"
            error = InferenceError(ErrorCode.INVALID_ARG, self.request.error_prefix + text)
            self._failure = self._framed(error)
        self._count(response)
        timeline = self.request.timeline
        if timeline is not None:
            error_text = self._failure.message if self._failure is not None else ""
            timeline.answered(enqueued_ns=self._accepted_ns, error=error_text)
        for number in self._held:
            self._served[number].release()
        self._unread.clear()
        if self._root is not None:
            self._root.dissolve()
        self._ensemble.ended(self)
        self._ticket.deliver(self._failure or response, is_final=True)

    def _count(self, response: InferenceResponse | None) -> None:
        statistics = self._ensemble.statistics
        now_ns = self._ensemble.now_ns()
        total_ns = now_ns - self._accepted_ns
        if self._failure is not None:
            if self._is_cancelled:
                self._observe_first_response(now_ns)
            else:
                self._note_response(ResponseKind.FAIL)
            reason = FailureReason.CANCELED if self._is_cancelled else FailureReason.OTHER
            statistics.add_failure(reason, total_ns)
            return
        if response is None:
            self._note_response(ResponseKind.EMPTY)
        times = {"input_ns": self._input_ns, "infer_ns": self._infer_ns, "output_ns": self._output_ns}
        statistics.add_success(batch_size=self._batch_size, total_ns=total_ns, queue_ns=0, **times)
        statistics.add_execution(batch_size=self._batch_size, now_ms=int(time.time() * 1000), **times)

    def _framed(self, error: InferenceError) -> InferenceError:
        return InferenceError(error.code, f"in ensemble '{self._ensemble.name}', {error.message}")


def _stop_timers(call: _StepCall) -> None:
    for timer in (call.patience, call.next_look):
        if timer is not None:
            timer.cancel()
    call.patience = call.next_look = None
