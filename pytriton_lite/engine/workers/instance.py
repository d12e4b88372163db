"""A model instance: the batches that its worker has, and what else is said to it.

    WorkerKeeper    one worker process after another, and the state of the instance
    Wire            requests and answers in messages and in shared memory
    Oversight       executions that take too long

Batches whose execution had begun when a worker dies fail; those that it had not looked at yet go back to the queue, because
nothing happened to them. A batch is in flight until its RESULT; it stays *open* while requests of it are to be answered by
RESPONSE frames, which leaves the instance free for the next batch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.core.errors import ErrorCode, InferenceError, ProtocolError
from pytriton_lite.core.pace import SLOW_NS, Pace
from pytriton_lite.core.request import InferenceResponse
from pytriton_lite.core.states import InstanceState, RequestState
from pytriton_lite.engine.counting.statistics import SharedMemory
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.workers.asking import Asking, BeginAsking, CallOutcome, WorkerLink
from pytriton_lite.engine.workers.execution_watch import ExecutionLimits
from pytriton_lite.engine.workers.fork_server import Spawners, WorkerExit
from pytriton_lite.engine.workers.keeper import WorkerKeeper
from pytriton_lite.engine.workers.oversight import Oversight
from pytriton_lite.engine.workers.process import WorkerProcess
from pytriton_lite.engine.workers.settings import WorkerSettings
from pytriton_lite.engine.workers.wire import MOST_BATCH_BYTES, ExecutionOutcome, Wire
from pytriton_lite.event_loop import on_loop
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import frame
from pytriton_lite.ipc.messages import BatchResult, Fate, Kind, SegmentKind
from pytriton_lite.ipc.start import ModelStart
from pytriton_lite.scheduling.rate_limit import Claim
from pytriton_lite.scheduling.ticket import Batch, Ticket, Waited

logger = logging.getLogger(__name__)

_AHEAD_BUDGET_NS = 400_000
"""How much execution time may wait behind the batch that is being executed: the time of a few messages to and fro."""

_MOST_AHEAD = 31

_LOOK_EVERY_S = 2.5
"""How often a used instance is looked at. Idle from one look to the next, it gives back memory that a burst had made it take.
A timer that began anew with every request would be dearer than the request's own bookkeeping."""

_MOST_LOOKS = 24
"""Looks between two searches for garbage, at most: a minute."""

_CANNOT_ENCODE = "internal error of the server: the request cannot be handed to the model; the log has the details"


class Sent:
    """What a sender gave: a response, or None for an end alone.

    ``infer_ns`` went by since the one before, or since the execution began, when the model sent it, at ``sent_ns``. An error
    that ``is_failure`` was not sent by the model: its ``execute`` failed after it had returned.
    """

    __slots__ = ("infer_ns", "is_failure", "is_final", "response", "sent_ns")

    def __init__(
        self,
        response: InferenceResponse | InferenceError | None,
        is_final: bool,
        infer_ns: int,
        sent_ns: int,
        is_failure: bool = False,
    ) -> None:
        self.response = response
        self.is_final = is_final
        self.infer_ns = infer_ns
        self.sent_ns = sent_ns
        self.is_failure = is_failure


class InstanceOwner(Protocol):
    """What an instance asks of the version it belongs to."""

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """Labels by output: what its elements stand for."""

    def on_result(
        self, instance: Instance, batch: Batch, result: BatchResult, outcomes: Sequence[ExecutionOutcome]
    ) -> None:
        """``execute`` is done with a batch. *outcomes* go with its tickets; empty when ``result.failure`` says why."""

    def on_response(self, instance: Instance, batch: Batch, ticket: Ticket, sent: Sent) -> None:
        """Take *sent*, for *ticket* of *batch*, perhaps before the batch's result."""

    def on_returned(self, instance: Instance, batches: list[Batch]) -> None:
        """The worker gave back what it had not begun with."""

    def on_lost(
        self, instance: Instance, begun: list[Batch], untouched: list[Batch], deferred: list[Batch], how: WorkerExit
    ) -> None:
        """The worker died with batches in flight, and with *deferred* ones of which requests had not ended."""

    def on_room(self, instance: Instance) -> None:
        """The instance can take batches (again)."""

    def on_state(self, instance: Instance) -> None:
        """``state`` or ``deaths_in_a_row`` changed."""


class WarmUpOfWorkers(Protocol):
    """What a worker executes before it is READY."""

    async def run(self, instance: Instance, owner: InstanceOwner, *, counts: bool) -> None:
        """Have *instance* report here, not to *owner*, and execute. *counts*: in the statistics.

        Raises InferenceError when it does not go well; the worker is stopped then.
        """


class _Lost(NamedTuple):
    """What a worker that is gone had in hand."""

    begun: list[Batch]
    untouched: list[Batch]
    deferred: list[Batch]


class Instance:
    """Takes batches while its worker is READY. `keeper` starts and stops it."""

    def __init__(
        self,
        start: ModelStart,
        workers: WorkerSettings,
        config: ModelConfig,
        owner: InstanceOwner,
        spawners: Spawners,
        environment: Environment,
        begin_asking: BeginAsking,
        *,
        pace: Pace,
        capacity: int = 1,
        warm_up: WarmUpOfWorkers | None = None,
        claim: Claim | None = None,
        limits: ExecutionLimits = ExecutionLimits(),  # noqa: B008  # frozen
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """*pace* is that of the model, in all instances. *capacity* is how many batches it executes at a time, *claim* what it
        needs of the rate limiter for each.

        *clock* is the one that the worker reads, CLOCK_MONOTONIC in nanoseconds.
        """
        self.name = start.instance
        self.claim = claim
        self.owner = owner
        """The version that it belongs to."""
        self._owner: InstanceOwner = owner
        """The one who is told: the owner, or the warm-up of a worker that is not READY yet."""
        self.keeper = WorkerKeeper(start, workers, spawners, environment, self)
        self.oversight = Oversight(self, start, limits, overlaps=capacity > 1, clock=clock)
        self.wire = Wire(
            start,
            config,
            labels=lambda: self._owner.labels,
            batch_at=self._batch_at,
            on_news=on_loop(self._flush_soon),
        )
        self.is_alone = False
        """Whether its model has no other instance that takes requests."""
        self.capacity = capacity
        self.has_room = False
        """Whether another batch would be executed at once. Kept, because everybody asks for every request."""
        self.in_flight: dict[int, Batch] = {}
        """Batches by number that the worker was sent and has not given a result for."""
        self.open: dict[int, Batch] = {}
        """Batches by number whose ``execute`` has returned, and whose requests have not all ended."""
        self.moved_ns = 0
        """When the last response to a request of those came, or the last of them returned."""
        self._warm_up = warm_up
        self._begin_asking = begin_asking
        self._asking: Asking | None = None
        """What the present worker asks. None before it has asked for anything."""
        self._makes_calls = False
        """Whether its model calls others, and may therefore wait for one of them."""
        self._has_sequences = config.sequence_batching is not None
        """Whether no other instance could take what was sent here."""
        self._credits: dict[tuple[int, int], int] = {}
        self._next_batch = 1
        self._execute_ns = 0.0
        """How long an execution takes, of those of lately; 0 before the first."""
        self._pace = pace
        self._lost: _Lost | None = None
        """What a worker that has ended had in hand, until it was reported."""
        self._loop = asyncio.get_running_loop()
        self._look: asyncio.TimerHandle | None = None
        """Due as long as something may be given back."""
        self._seen = (0, 0)
        """What the next batch's number and `moved_ns` were at the last look."""
        self._quiet_looks = 0
        """Looks, since garbage was last searched for, that found no news of the requests in hand."""
        self._search_after = 1
        """So many of them are followed by a search."""
        self._flush_is_due = False
        self._past_host_bytes = 0
        """What workers that have ended had copied between devices and the host."""

    @property
    def state(self) -> InstanceState:
        return self.keeper.state

    @property
    def worker(self) -> WorkerProcess | None:
        """The process of the moment."""
        return self.keeper.worker

    @property
    def pid(self) -> int | None:
        """The worker's process id, None while there is none."""
        return None if self.worker is None else self.worker.pid

    @property
    def is_ready(self) -> bool:
        return self.keeper.state is InstanceState.READY

    @property
    def is_new(self) -> bool:
        """Whether it was never READY: a load waits for its first worker."""
        return self.state is InstanceState.STARTING and not self.keeper.restarts

    @property
    def is_warming_up(self) -> bool:
        """Whether its worker executes what has to be executed before it takes batches."""
        return self.state is InstanceState.STARTING and bool(self.in_flight)

    @property
    def is_empty(self) -> bool:
        """Whether every request that came here has ended. Those of a warm-up are nobody's."""
        return self.state is InstanceState.STARTING or (not self.in_flight and not self.open)

    @property
    def shared_memory(self) -> SharedMemory:
        memory = self.wire.memory
        return SharedMemory(
            self.name, memory.reserved_bytes, memory.worker_bytes, memory.live_slots, memory.device_bytes
        )

    @property
    def host_bytes(self) -> int:
        """Bytes of tensors that its workers have copied between devices and the host."""
        return self._past_host_bytes + (self.worker.host_bytes if self.worker is not None else 0)

    @property
    def pending_requests(self) -> int:
        """Requests sent to the worker that it has not begun with."""
        worker = self.worker
        if worker is None or self.state is InstanceState.STARTING:
            return 0
        started = worker.started_batch
        return sum(len(batch.tickets) for batch in self.in_flight.values() if batch.number > started)

    def room_ahead(self) -> int:
        """How many batches may be sent to follow those in flight.

        As many as are expected to be executed within a few messages' time, so that the worker never waits for us. Behind
        slow batches none, nor where one may be slow, though most are quick: another instance might be free sooner; where there
        is no other, at least one. Behind a model that calls others none either: what waits there could be what it waits for,
        and another instance could serve it.
        """
        if not self.is_ready or ((self._makes_calls or self._pace.may_be_slow) and not self.is_alone):
            return 0
        ahead = min(_MOST_AHEAD, int(_AHEAD_BUDGET_NS / self._execute_ns)) if self._execute_ns else 0
        if self.is_alone and ahead == 0:
            ahead = 1
        return max(0, self.capacity + ahead - max(self.capacity, len(self.in_flight)))

    # ------------------------------------------------------------------------------------------ requests

    def dispatch(self, batches: list[list[Ticket]]) -> list[tuple[list[Ticket], InferenceError]]:
        """Send *batches*, in one message if it can hold them.

        Those that cannot be sent, for want of memory mostly, come back with the error.
        """
        parts: list[bytes] = []
        refused: list[tuple[list[Ticket], InferenceError]] = []
        sent = total_bytes = 0
        for tickets in batches:
            number = self._next_batch
            written = len(parts)
            try:
                slots, nbytes = self.wire.put_batch(parts, number, tickets)
            except InferenceError as error:
                refused.append((tickets, error))
                continue
            except Exception:
                # A hole in admission or in a front end. The requests end here, and the instance serves the next ones.
                logger.exception("requests to instance '%s' cannot be encoded", self.name)
                refused.append((tickets, InferenceError(ErrorCode.INTERNAL, _CANNOT_ENCODE)))
                continue
            self._next_batch += 1
            self.in_flight[number] = Batch(self, number, tickets, slots)
            if total_bytes + nbytes > MOST_BATCH_BYTES:
                self._send(sent, parts[:written])
                parts = parts[written:]
                sent = total_bytes = 0
            sent += 1
            total_bytes += nbytes
        if sent:
            self.has_room = len(self.in_flight) < self.capacity
            self._send(sent, parts)
            self.oversight.begin()
            if self._look is None:
                self._look_later()
        return refused

    def _send(self, batches: int, parts: list[bytes]) -> None:
        worker = self.worker
        assert worker is not None, "dispatch is only called while READY"
        message = messages.execute_frame(batches, parts)
        if self.wire.memory.is_touched:
            message = b"".join([*self.wire.memory.frames(worker.send_descriptor), message])
        worker.send(message)

    def cancel(self, ticket: Ticket) -> None:
        """Tell the worker that nobody waits for *ticket*, which it has, any more."""
        batch = ticket.batch
        if batch is not None and self.worker is not None:
            self.worker.send_cancel(batch.number, ticket.index)
            if not any(map(_is_waited_for, batch.tickets)):
                # Nobody waits for a null request either, and the model might look for somebody who does.
                for mate in batch.tickets:
                    if mate.is_null:
                        self.worker.send_cancel(batch.number, mate.index)

    def credit(self, batch: Batch, ticket: Ticket) -> None:
        """Tell the worker how many responses to *ticket* in *batch* have been passed on, at the end of this turn."""
        self._credits[batch.number, ticket.index] = ticket.passed_on - ticket.credited_from
        self._flush_soon()

    def recall(self) -> None:
        """Ask for the batches back that the worker has not begun with."""
        if len(self.in_flight) > self.capacity and self.worker is not None:
            self.worker.send(frame(Kind.RECALL, []))

    @property
    def batches_in_flight(self) -> Collection[Batch]:
        return self.in_flight.values()

    def has_begun(self, batch: Batch) -> bool:
        """Whether the worker has begun with *batch*: read from its memory, since no message tells."""
        return self.worker is not None and batch.number <= self.worker.started_batch

    def executions(self) -> list[Batch]:
        """What the worker has begun with, and not ended."""
        return [batch for batch in self.in_flight.values() if self.has_begun(batch)]

    def needs(self, batch: Batch) -> list[Waited]:
        """What must come true before ``execute`` of *batch* can return."""
        needs: list[Waited] = []
        if self._asking is not None:
            needs += self._asking.blocking(batch.number)
        if self._waits_to_send:
            # Which of them it waits for is not known here, nor whether it does so in `execute`.
            needs += [ticket.reader for ticket in batch.tickets if ticket.reader is not None and ticket.unread]
        return needs

    @property
    def _waits_to_send(self) -> bool:
        return self.worker is not None and self.worker.waits_for_clients

    def _batch_at(self, number: int) -> Batch | None:
        return self.in_flight.get(number) or self.open.get(number)

    def _update_room(self) -> None:
        self.has_room = self.is_ready and len(self.in_flight) < self.capacity

    # ------------------------------------------------------------------------------------------ answers

    def on_frame(self, worker: WorkerProcess, kind: int, body: memoryview) -> None:
        """The worker has said something. Whatever is raised here ends it."""
        memory = self.wire.memory
        if kind == Kind.RESULT:
            for result in messages.read_result(body, self.wire.specs):
                self._finish(result)
            self.keeper.served()
            self._update_room()
            self._owner.on_room(self)
        elif kind == Kind.RESPONSE:
            self._respond(body)
        elif kind == Kind.RELEASE:
            memory.release(messages.read_release(body))
            self._look_later_if_used()
        elif kind == Kind.SEGMENT:
            announced = messages.read_segment(body)
            fd = worker.receive_descriptor()
            if announced.kind == SegmentKind.DEVICE:
                memory.attach_device(announced.number, fd, announced.nbytes, announced.uuid)
            else:
                memory.attach(announced.number, fd, announced.nbytes)
        elif kind == Kind.DROP:
            memory.drop(messages.read_drop(body))
        elif kind == Kind.LOG:
            worker.log(body)
        elif kind == Kind.PROBED:
            self.keeper.end_probe(is_ready=messages.read_probed(body))
        elif kind == Kind.FINALIZED:
            worker.expect_exit()
        elif kind == Kind.RETURNED:
            self._take_back(messages.read_returned(body))
        else:
            if self._asking is None:
                self._asking = self._begin_asking(self, worker)
            self._asking.on_frame(kind, body)

    def _finish(self, result: BatchResult) -> None:
        batch = self.in_flight[result.number]
        took = result.placed_ns - result.taken_ns
        if self._execute_ns:
            self._execute_ns = self._execute_ns * 0.9 + took * 0.1
            # A warm-up says little of what is to come.
            if (took > SLOW_NS or self._pace.may_be_slow) and self._owner is self.owner:
                self._pace.add(result.taken_ns, result.placed_ns)
        else:
            self._execute_ns = float(took)
        outcome = self.wire.outcome
        outcomes = [outcome(answer, batch, ticket) for answer, ticket in zip(result.answers, batch.tickets)]
        self._owner.on_result(self, batch, result, outcomes)
        # Last: if anything above fails, the worker is killed, and what is still in flight is answered for.
        del self.in_flight[result.number]
        if batch.open:
            self.open[result.number] = batch
            self.moved_ns = result.placed_ns

    def _respond(self, body: memoryview) -> None:
        wire = self.wire
        number, index, answer, is_final, infer_ns, sent_ns, is_failure = messages.read_response(body, wire.specs)
        batch = self._batch_at(number)
        if batch is None or batch.tickets[index].batch is not batch:
            # The end that a destructor sends takes no lock: ``execute`` may fail, and end the whole batch, meanwhile.
            wire.refuse(answer.outputs if answer is not None else ())
            return
        self.keeper.served()
        self.moved_ns = sent_ns
        ticket = batch.tickets[index]
        response: InferenceResponse | InferenceError | None = None
        if answer is not None:
            outcome = wire.outcome(answer, batch, ticket)
            assert not isinstance(outcome, Fate), "a RESPONSE carries outputs or an error"
            response = outcome if isinstance(outcome, InferenceError) else wire.response(ticket, outcome, answer)
        self._owner.on_response(self, batch, ticket, Sent(response, is_final, infer_ns, sent_ns, is_failure))
        if not batch.open and self.open.pop(number, None) is not None:
            self._owner.on_room(self)

    def _take_back(self, numbers: Sequence[int]) -> None:
        """Batches that the worker gives back unseen: somebody else may be free for them.

        Raises ProtocolError, and takes none, where it does not have one of them.
        """
        if len(set(numbers)) < len(numbers) or not self.in_flight.keys() >= set(numbers):
            raise ProtocolError(f"batches {list(numbers)} were given back, of which it does not have all")
        batches = [self.in_flight[number] for number in numbers]
        for batch in batches:
            self.wire.memory.release(batch.slots)
        # After that: where it fails the worker is killed, and what is still in flight is answered for.
        for number in numbers:
            del self.in_flight[number]
        self._update_room()
        self._owner.on_returned(self, batches)
        self._owner.on_room(self)  # the results of those before them may have come already

    # ------------------------------------------------------------------------------------------ calls

    @property
    def is_held_up(self) -> bool:
        """Whether it takes no batch at the moment, and its model has called others, or waits until it may send more."""
        return not self.has_room and (self._asking is not None or self._waits_to_send)

    def is_waited_for(self, batch: int) -> bool:
        """Whether the model may be waiting for another one that it has called in *batch*; in any for 0."""
        return self._asking is not None and self._asking.is_waited_for(batch)

    def on_call(self, *, is_in_execute: bool) -> None:
        """The model calls another one: what waits behind it may be what it is going to wait for.

        Where ``execute`` calls by itself, and not a coroutine of it, the instance executes one batch at a time, whatever
        EXECUTE_CONCURRENCY says: it is there for coroutines.
        """
        is_new = not self._makes_calls or (is_in_execute and self.capacity > 1)
        self._makes_calls = True
        if is_in_execute and self.capacity > 1:
            self.capacity = 1
            self._update_room()
        if is_new and not self.is_alone and not self._has_sequences:
            self.recall()

    def reply(self, worker: WorkerLink, call: int, outcome: CallOutcome, *, is_final: bool) -> None:
        """Hand a response to a call of *worker*, which lives.

        Its model may call as soon as it has said READY: before the keeper knows of it.
        """
        worker.send(self.wire.reply_frames(worker, call, outcome, is_final=is_final))

    def end_asking(self) -> None:
        """Forget what the model asks: nobody is there any more to whom it could be answered."""
        self._credits.clear()
        if self._asking is not None:
            self._asking.close()
            self._asking = None

    # ------------------------------------------------------------------------------------------ memory

    def _flush_soon(self) -> None:
        """Send releases and credits at the end of this turn of the loop, all in one message."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        credits, self._credits = self._credits, {}
        if self.worker is not None:
            frames = self.wire.memory.frames(self.worker.send_descriptor)
            if credits:
                frames.append(messages.credit_frame([(*key, consumed) for key, consumed in credits.items()]))
            if frames:
                self.worker.send(b"".join(frames))
        if self.wire.keeps_states:  # a sequence may have ended when nothing executed
            self._look_later_if_used()

    def _look_later_if_used(self) -> None:
        if self._look is None and self.wire.memory.is_used:
            self._look_later()

    def _look_later(self) -> None:
        self._seen = (self._next_batch, self.moved_ns)
        self._look = self._loop.call_later(_LOOK_EVERY_S, self._on_look)

    def _on_look(self) -> None:
        self._look = None
        is_quiet = self._seen == (self._next_batch, self.moved_ns)
        if is_quiet and self.open and self.has_room:  # whose main thread waits
            self._search_for_garbage()
        else:
            self._quiet_looks = 0
            self._search_after = 1
        if is_quiet and self.is_empty:
            self.trim()
        else:
            self._look_later()

    def _search_for_garbage(self) -> None:
        """Have the worker collect now and then, ever more seldom: what alone could answer may be garbage that refers to itself.

        As likely the model takes its time. So the first search is among young objects, which is quickly done.
        """
        worker = self.worker
        assert worker is not None, "there is room only while READY"
        self._quiet_looks += 1
        if self._quiet_looks < self._search_after:
            return
        worker.send(messages.collect_frame(1 if self._search_after == 1 else 2))
        self._quiet_looks = 0
        self._search_after = min(2 * self._search_after, _MOST_LOOKS)

    def _stop_looking(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def trim(self) -> None:
        """Give back memory that nothing needs now: shared memory here and there, and what the worker keeps of its heap."""
        worker = self.worker
        if worker is not None and self.is_ready:
            self.wire.memory.trim()
            worker.send(b"".join([*self.wire.memory.frames(worker.send_descriptor), frame(Kind.TRIM, [])]))

    # ------------------------------------------------------------------------------------------ what the keeper says

    def begin_anew(self) -> None:
        """Another process is about to start."""
        self.wire.begin_anew()

    async def warm_up(self, *, counts: bool) -> None:
        """Execute the samples of the configuration. Raises InferenceError when that does not go well."""
        try:
            if self._warm_up is not None:
                await self._warm_up.run(self, self.owner, counts=counts)
        finally:
            self._owner = self.owner
            self._execute_ns = 0.0  # the first executions say little of those to come

    def report_to(self, owner: InstanceOwner) -> None:
        """Tell *owner* what happens from now on, until the worker is READY."""
        self._owner = owner

    def give_up(self, error: InferenceError) -> None:
        """The worker is going to be killed, for *error*."""
        self.keeper.give_up(error)

    def end_worker(self, worker: WorkerProcess) -> bool:
        """The process is gone: take what it had in hand. Whether some of that had kept it for longer than it may."""
        started = worker.started_batch
        self._past_host_bytes += worker.host_bytes
        self.oversight.end()
        self.wire.memory.close()
        in_flight, self.in_flight = list(self.in_flight.values()), {}
        deferred, self.open = [batch for batch in self.open.values() if batch not in in_flight], {}
        self.end_asking()
        self._lost = _Lost(
            [batch for batch in in_flight if batch.number <= started],
            [batch for batch in in_flight if batch.number > started],
            deferred,
        )
        return any(batch.error is not None for batch in (*in_flight, *deferred))

    @property
    def lost_ids(self) -> list[str]:
        """See `KeptInstance.lost_ids`."""
        assert self._lost is not None, "a worker of which this is asked has ended"
        batches = (*self._lost.begun, *self._lost.deferred)
        return [ticket.request.request_id for batch in batches for ticket in batch.tickets if ticket.batch is batch]

    def report_lost(self, how: WorkerExit) -> None:
        """Tell whoever owns the requests of what `end_worker` has taken."""
        lost, self._lost = self._lost, None
        assert lost is not None, "a worker that is reported has ended"
        self._owner.on_lost(self, *lost, how)

    def on_state(self) -> None:
        """The keeper's state has changed."""
        self._update_room()
        if self.state in (InstanceState.STOPPING, InstanceState.STOPPED):
            self._stop_looking()
        self._owner.on_state(self)

    def on_room(self) -> None:
        """The worker is READY again."""
        self._owner.on_room(self)


def _is_waited_for(ticket: Ticket) -> bool:
    """Whether somebody waits for its answer: not where its caller has withdrawn it, who hears of the end all the same."""
    return not (ticket.is_null or ticket.is_cancelled or ticket.state is RequestState.ENDED)
