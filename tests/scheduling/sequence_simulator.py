"""A world for the sequence batcher: clients that send, instances that execute, a clock that is an integer.

It asks the scheduler as the engine does: once at the end of every instant at which something happened, and when the
scheduler wanted to be asked again. An instance that is not executing is free.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scheduling_simulator import MS, go_away, name_of

from pytriton_lite.config.errors import raise_first
from pytriton_lite.config.model_config import ModelConfig, SequenceBatching, parse_model_config
from pytriton_lite.config.normalise import normalise
from pytriton_lite.config.validate import broken_model
from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.request import SEQUENCE_END, SEQUENCE_START, InferenceRequest
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.scheduling.sequence_batch import SequenceBatchScheduler
from pytriton_lite.scheduling.sequence_state import StateTensors
from pytriton_lite.scheduling.ticket import Ticket
from tests.scheduling.deciding import decide

NULL = "-"

NO_FILES: Mapping[str, bytes] = {}

CONTROLS = """
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "END" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] } }
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } }
  control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
"""


def config(sequence_batching: str = "", *, max_batch_size: int = 4) -> ModelConfig:
    """A model with one input, X, read from the text of its configuration."""
    message = parse_model_config(
        f'name: "m" backend: "python" max_batch_size: {max_batch_size} '
        'input { name: "X" data_type: TYPE_INT32 dims: [ -1 ] } output { name: "Y" data_type: TYPE_INT32 dims: [ -1 ] } '
        f"sequence_batching {{ {sequence_batching} }}",
        source="config.pbtxt",
    )
    normalise(message)
    raise_first(broken_model(message))
    return ModelConfig.from_message(message)


def options(sequence_batching: str = "", *, max_batch_size: int = 4) -> SequenceBatching:
    batching = config(sequence_batching, max_batch_size=max_batch_size).sequence_batching
    assert batching is not None
    return batching


def scheduler_for(
    sequence_batching: str = "",
    *,
    max_batch_size: int = 4,
    instances: int = 1,
    is_decoupled: bool = False,
    max_queue_size: int = 0,
    initial: Mapping[str, bytes] = NO_FILES,
) -> SequenceBatchScheduler:
    """*initial* are the contents of the files that states begin with."""
    batching = options(sequence_batching, max_batch_size=max_batch_size)
    scheduler = SequenceBatchScheduler(
        batching,
        model="m",
        states=StateTensors(batching.states, initial, model="m", max_batch_size=max_batch_size)
        if batching.states
        else None,
        max_batch_size=max_batch_size,
        is_decoupled=is_decoupled,
        max_queue_size=max_queue_size,
    )
    for number in range(instances):
        scheduler.add_place(number, 0)
    return scheduler


def make_ticket(
    name: str,
    correlation_id: int | str,
    flags: str = "",
    *,
    shape: tuple[int, ...] = (1, 1),
    timeout_us: int = 0,
    batch_size: int = 1,
) -> Ticket:
    """*flags* are S for START and E for END."""
    size = 4
    for dim in shape:
        size *= dim
    request = InferenceRequest(
        "m",
        None,
        request_id=name,
        inputs=[Tensor("X", dtypes.INT32, shape, bytes([7]) * size)],
        correlation_id=correlation_id,
        sequence_flags=SEQUENCE_START * ("S" in flags) + SEQUENCE_END * ("E" in flags),
        timeout_us=timeout_us,
    )
    return Ticket(request, None, batch_size=batch_size, shape_key=shape, accepted_ns=0)


def start_error(correlation_id: int | str) -> str:
    return (
        f"INVALID_ARG inference request for sequence {correlation_id} to model 'm' must specify the START flag on the first "
        "request of the sequence"
    )


def names_of(tickets: list[Ticket]) -> list[str]:
    """Names of the requests, ``-`` for a null request."""
    return [NULL if ticket.is_null else name_of(ticket) for ticket in tickets]


def value_of(tensor: Tensor) -> object:
    """The one element of a control tensor."""
    assert tensor.data is not None
    if tensor.datatype is dtypes.BYTES:
        (text,) = bytes_tensor.decode_list(tensor.data)
        return text
    assert tensor.datatype.numpy is not None
    (value,) = np.frombuffer(tensor.data, tensor.datatype.numpy).tolist()
    return value


@dataclass(frozen=True)
class Execution:
    """One ``execute``: when it began, where, with which rows, and what the model saw of each row."""

    at_ns: int
    instance: int
    names: list[str]
    controls: list[dict[str, object]]
    flags: list[int]


@dataclass(eq=False)
class Worker:
    number: int
    batch: list[Ticket] | None = None
    execution: Execution | None = None
    """The last that began."""
    life: int = 0
    """Raised by death, so that the end of an execution that died with the worker is not taken for one."""
    answering: int = 0
    """Requests that were executed, and are not answered yet."""


@dataclass
class World:
    """Say what happens when, then `run`. All that came of it is in the public attributes.

    *iterations*: how many executions each named request takes; its model reschedules it until then. *answers_after_ns*:
    how long after its execution the final answer of a named request is sent, as a decoupled model may. *state_outputs*:
    what of its states the answer to a request has, or what is sent before it is rescheduled.
    """

    scheduler: SequenceBatchScheduler
    instances: int = 1
    execution_ns: Callable[[list[Ticket]], int] | int = 10 * MS
    iterations: dict[str, int] = field(default_factory=dict)
    answers_after_ns: dict[str, int] = field(default_factory=dict)
    state_outputs: Callable[[Ticket], list[Tensor]] | None = None

    def __post_init__(self) -> None:
        self.now_ns = 0
        self.executions: list[Execution] = []
        self.accepted: list[str] = []
        self.answered: dict[str, int] = {}
        self.expired: dict[str, int] = {}
        self.cancelled: dict[str, int] = {}
        self.failed: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.expired_text = ""
        self._tickets: dict[str, Ticket] = {}
        self._workers = {number: Worker(number) for number in range(self.instances)}
        self.left: dict[int, int] = {}
        """When each instance that was retired had nothing more to do."""
        self._retired: set[int] = set()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._next_event = 0

    @property
    def batches(self) -> list[list[str]]:
        return [execution.names for execution in self.executions]

    @property
    def starts(self) -> dict[str, int]:
        """When the (last) execution of each request began."""
        return {name: execution.at_ns for execution in self.executions for name in execution.names}

    @property
    def where(self) -> dict[str, int]:
        """The instance that executed each request last."""
        return {name: execution.instance for execution in self.executions for name in execution.names}

    @property
    def ends(self) -> list[str]:
        return [*self.answered, *self.expired, *self.cancelled, *self.failed, *self.refused]

    def send(
        self,
        name: str,
        correlation_id: int | str,
        flags: str = "",
        *,
        at: int = 0,
        shape: tuple[int, ...] = (1, 1),
        timeout_us: int = 0,
    ) -> World:
        ticket = make_ticket(name, correlation_id, flags, shape=shape, timeout_us=timeout_us)
        self._tickets[name] = ticket
        self._at(at, lambda: self._enqueue(ticket))
        return self

    def go_away(self, name: str, *, at: int) -> None:
        """The client of a request cancels it."""
        self._at(at, lambda: self._cancel(self._tickets[name]))

    def kill(self, instance: int, *, at: int, had_begun: bool = True, back_after_ns: int = MS) -> None:
        """The worker of an instance dies; another one takes its place later."""
        self._at(at, lambda: self._lose(instance, had_begun, back_after_ns))

    def add_instance(self, instance: int, *, at: int) -> None:
        """There is one more, with a number that was never used."""
        self._at(at, lambda: self._add(instance))

    def retire(self, instance: int, *, at: int) -> None:
        """An instance is one too many. One that died and was retired does not come back."""
        self._at(at, lambda: self._retire(instance))

    def run(self) -> World:
        """Until nothing is left to happen."""
        check_ns: int | None = None
        while self._events or check_ns is not None:
            times = [time for time in (self._events[0][0] if self._events else None, check_ns) if time is not None]
            self.now_ns = min(times)
            while self._events and self._events[0][0] == self.now_ns:
                heapq.heappop(self._events)[2]()
            check_ns = self._turn()
            assert check_ns is None or check_ns > self.now_ns, "the scheduler wants to be asked again without end"
        assert len(self.scheduler) == 0, "something waits for ever"
        return self

    def _at(self, time_ns: int, happens: Callable[[], None]) -> None:
        self._next_event += 1
        heapq.heappush(self._events, (time_ns, self._next_event, happens))

    def _enqueue(self, ticket: Ticket) -> None:
        try:
            self.scheduler.enqueue(ticket, self.now_ns)
        except InferenceError as error:
            self._end(ticket, self.refused, f"{error.code.name} {error.message}")
        else:
            self.accepted.append(name_of(ticket))

    def _cancel(self, ticket: Ticket) -> None:
        go_away(ticket)
        self.scheduler.notice_cancelled(ticket)

    def _turn(self) -> int | None:
        free = [worker.number for worker in self._workers.values() if worker.batch is None]
        decision = decide(self.scheduler, self.now_ns, free=free)
        for ticket in decision.expired:
            self._end(ticket, self.expired, self.now_ns)
            self.expired_text = decision.expired_text
        for ticket in decision.cancelled:
            self._end(ticket, self.cancelled, self.now_ns)
        for ticket, error in decision.failed:
            self._end(ticket, self.failed, f"{error.code.name} {error.message}")
        assert len(decision.batches) == len(decision.places) == len(set(decision.places))
        for batch, instance in zip(decision.batches, decision.places):
            assert instance in free
            self._execute(self._workers[instance], batch)
        self._see_off()
        return decision.next_check_ns

    def _add(self, instance: int) -> None:
        self._workers[instance] = Worker(instance)
        self.scheduler.add_place(instance, self.now_ns)

    def _retire(self, instance: int) -> None:
        if instance in self._workers and instance not in self._retired:
            self._retired.add(instance)
            self.scheduler.retire_place(instance)

    def _see_off(self) -> None:
        for instance in sorted(self._retired & self._workers.keys()):
            worker = self._workers[instance]
            if not worker.batch and not worker.answering and self.scheduler.is_vacant(instance):
                self.scheduler.remove_place(instance)
                self.left[instance] = self.now_ns
                del self._workers[instance]

    def _execute(self, worker: Worker, batch: list[Ticket]) -> None:
        worker.batch = batch
        life = worker.life
        takes_ns = self.execution_ns if isinstance(self.execution_ns, int) else self.execution_ns(batch)
        worker.execution = Execution(
            self.now_ns,
            worker.number,
            names_of(batch),
            [{tensor.name: value_of(tensor) for tensor in ticket.controls} for ticket in batch],
            [ticket.request.sequence_flags for ticket in batch],
        )
        self.executions.append(worker.execution)
        self._at(self.now_ns + takes_ns, lambda: self._finish(worker, life))

    def _finish(self, worker: Worker, life: int) -> None:
        if worker.life != life:
            return
        batch, worker.batch = worker.batch, None
        assert batch is not None
        for ticket in batch:
            if not ticket.is_null:
                self._executed(worker, ticket)

    def _executed(self, worker: Worker, ticket: Ticket) -> None:
        name = name_of(ticket)
        self.iterations[name] = self.iterations.get(name, 1) - 1
        if self.iterations[name]:
            try:
                self._keep_states(ticket)
                self.scheduler.rescheduled(ticket, self.now_ns)
            except InferenceError as error:
                self._end(ticket, self.failed, f"{error.code.name} {error.message}")
        else:
            worker.answering += 1
            self._at(self.now_ns + self.answers_after_ns.get(name, 0), lambda: self._answer(worker, ticket))

    def _answer(self, worker: Worker, ticket: Ticket) -> None:
        worker.answering -= 1
        try:
            self._keep_states(ticket)
        except InferenceError as error:
            self._end(ticket, self.failed, f"{error.code.name} {error.message}")
        else:
            self._end(ticket, self.answered, self.now_ns)
        self.scheduler.released(ticket, self.now_ns)

    def _keep_states(self, ticket: Ticket) -> None:
        if self.state_outputs is not None:
            assert ticket.states is not None
            ticket.states.keep(self.state_outputs(ticket))

    def _lose(self, instance: int, had_begun: bool, back_after_ns: int) -> None:
        worker = self._workers.get(instance)
        if worker is None:
            return
        worker.life += 1
        batch, worker.batch = worker.batch, []
        if batch and had_begun:
            for ticket in batch:
                if not ticket.is_null:
                    self._end(ticket, self.failed, "died with its worker")
                    self.scheduler.released(ticket, self.now_ns)
        elif batch:
            self.executions = [execution for execution in self.executions if execution is not worker.execution]
            self.scheduler.put_back(batch)
        self.scheduler.place_lost(worker.number, self.now_ns)
        life = worker.life
        self._at(self.now_ns + back_after_ns, lambda: self._come_back(worker, life))

    def _come_back(self, worker: Worker, life: int) -> None:
        if worker.life == life and worker.number not in self._retired:
            worker.batch = None

    def _end(self, ticket: Ticket, ends: dict[str, Any], how: object) -> None:
        name = name_of(ticket)
        assert name not in self.ends, f"{name} ends twice"
        ends[name] = how
