"""The rules of scheduling.md, sections 4 and 5, written down once more: slow, obvious, and sharing no code with ours.

Everything is worked out anew from lists. Workers do not die here; test_sequence_properties.py has that.
"""

from __future__ import annotations

from collections.abc import Sequence as Listed
from dataclasses import dataclass, field

from scheduling_reference import ReferenceBatcher, Waiting

from pytriton_lite.config.model_config import DirectStrategy, DynamicBatching, QueuePolicy, SequenceBatching

NULL = "-"


@dataclass(eq=False)
class Request:
    name: str
    correlation_id: int | str
    starts: bool
    ends: bool
    shape: object
    timeout_us: int
    arrived_ns: int = 0
    entered_ns: int | None = None
    """Oldest: when it came into the hands of its instance's batcher, None before."""
    passed_over: tuple[int, int] | None = None
    """Direct: the batch that it did not fit into first, and its row."""
    is_cancelled: bool = False
    is_again: bool = False
    """It waits for its next iteration."""


@dataclass(eq=False)
class Slot:
    instance: int
    index: int
    sequence: Sequence | None = None
    in_hand: int = 0


@dataclass(eq=False)
class Sequence:
    correlation_id: int | str
    waiting: list[Request] = field(default_factory=list)
    is_open: bool = True
    slot: Slot | None = None
    heard_ns: int = 0
    deadline_ns: int | None = None


@dataclass
class Outcome:
    batches: list[list[str]] = field(default_factory=list)
    instances: list[int] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)
    next_check_ns: int | None = None


class ReferenceSequences:
    def __init__(
        self, options: SequenceBatching, *, max_batch_size: int, instances: int, is_decoupled: bool, limit: int
    ) -> None:
        self.options = options
        self.is_decoupled = is_decoupled
        self.rows = max(1, max_batch_size)
        self.max_batch_size = max_batch_size
        self.limit = limit
        self.idle_ns = options.max_sequence_idle_us * 1000
        is_direct = isinstance(options.strategy, DirectStrategy)
        self.one_at_a_time = not is_direct or options.is_iterative or not is_decoupled
        self.sequences: list[Sequence] = []
        """All of which something waits or that are open, in the order of their first requests."""
        self.slots: list[Slot] = []
        self.in_hand: dict[str, tuple[Sequence, Slot, Request]] = {}
        self.lines: dict[int, list[Request]] = {}
        """Oldest: what each instance's batcher has, in order."""
        self.behind: dict[int, list[Sequence]] = {}
        """Oldest: sequences in slots of which others have something in hand, in the order in which they came there."""
        self.retired: set[int] = set()
        self.made_up_ids = 0
        self.picks = 0
        self.left: set[str] = set()
        """Cancelled with their sequences, and not reported yet."""
        for number in range(instances):
            self.add_instance(number)

    # ---------------------------------------------------------------- instances

    def add_instance(self, number: int, now_ns: int = 0) -> None:
        each = self.rows
        if not isinstance(self.options.strategy, DirectStrategy):
            each = self.options.strategy.max_candidate_sequences or self.rows
        self.slots += [Slot(number, index) for index in range(each)]
        self.lines[number] = []
        self.behind[number] = []
        self.fill_slots(now_ns)

    def remove_instance(self, number: int) -> None:
        self.slots = [slot for slot in self.slots if slot.instance != number]

    def is_vacant(self, number: int) -> bool:
        return all(slot.sequence is None and not slot.in_hand for slot in self.slots if slot.instance == number)

    # ---------------------------------------------------------------- slots

    @property
    def backlog(self) -> list[Sequence]:
        return [sequence for sequence in self.sequences if sequence.slot is None]

    def fill_slots(self, now_ns: int) -> None:
        while self.backlog:
            free = [slot for slot in self.slots if slot.sequence is None and slot.instance not in self.retired]
            if not free:
                return
            slot = min(free, key=lambda slot: (slot.index, self.hands_full(slot.instance), slot.instance))
            sequence = self.backlog[0]
            slot.sequence, sequence.slot = sequence, slot
            sequence.deadline_ns = None
            sequence.heard_ns = now_ns
            self.enter(sequence, now_ns)

    def hands_full(self, instance: int) -> int:
        return sum(slot.in_hand for slot in self.slots if slot.instance == instance)

    def leave_if_over(self, sequence: Sequence, *, at_once: bool = False) -> None:
        """What executes keeps its slot, but for END."""
        is_held = self.is_in_hand(sequence) and self.one_at_a_time and not at_once
        if not sequence.is_open and not sequence.waiting and not is_held and sequence in self.sequences:
            self.sequences.remove(sequence)
            if sequence.slot is not None:
                sequence.slot.sequence = None

    def enter(self, sequence: Sequence, now_ns: int, *, is_free: bool = False) -> None:
        """Oldest: the first waiting request comes into the batcher's hands when none of the sequence is.

        If another's is, in the same slot, when the instance is free.
        """
        if isinstance(self.options.strategy, DirectStrategy) or sequence.slot is None:
            return
        if self.is_in_hand(sequence) or not sequence.waiting or sequence.waiting[0].entered_ns is not None:
            return
        behind = self.behind[sequence.slot.instance]
        if sequence.slot.in_hand and not is_free:
            if sequence not in behind:
                behind.append(sequence)
            return
        if sequence in behind:
            behind.remove(sequence)
        sequence.waiting[0].entered_ns = now_ns
        self.lines[sequence.slot.instance].append(sequence.waiting[0])

    def is_in_hand(self, sequence: Sequence) -> bool:
        return any(owner is sequence for owner, _, _ in self.in_hand.values())

    def cut_silent(self, now_ns: int) -> None:
        silent = [s for s in self.sequences if s.slot and s.is_open and now_ns >= s.heard_ns + self.idle_ns]
        for sequence in silent:
            sequence.is_open = False
            self.leave_if_over(sequence)
        self.fill_slots(now_ns)

    # ---------------------------------------------------------------- requests

    def open_sequence(self, correlation_id: int | str) -> Sequence | None:
        # 1 and "1" are different ids.
        found = [s for s in self.sequences if s.is_open and s.correlation_id == correlation_id]
        return found[0] if found else None

    def enqueue(self, request: Request, now_ns: int) -> str:
        """Why it is refused; empty when it is taken."""
        self.cut_silent(now_ns)
        if not request.correlation_id and not self.options.is_iterative:
            return "no id"
        if self.options.is_iterative:
            request.ends = False
            if not request.correlation_id:
                self.made_up_ids += 1
                while self.open_sequence(self.made_up_ids) is not None:
                    self.made_up_ids += 1
                request.correlation_id, request.starts = self.made_up_ids, True
        if self.limit and len(self.counted()) >= self.limit:
            self.drop_cancelled(now_ns)
        sequence = self.open_sequence(request.correlation_id)
        if sequence is None and not request.starts:
            return "no start"
        is_next = sequence is not None and sequence.slot is not None and not sequence.waiting
        if self.limit and len(self.counted()) >= self.limit and not is_next:
            return "full"
        if sequence is None:
            sequence = Sequence(request.correlation_id)
            self.sequences.append(sequence)
        request.arrived_ns = now_ns
        sequence.waiting.append(request)
        if sequence.slot is not None:
            sequence.heard_ns = now_ns
            self.enter(sequence, now_ns)
        elif request.timeout_us:
            deadline_ns = now_ns + request.timeout_us * 1000
            sequence.deadline_ns = min(deadline_ns, sequence.deadline_ns or deadline_ns)
        self.fill_slots(now_ns)
        if request.ends:
            sequence.is_open = False
        return ""

    def counted(self) -> list[Request]:
        return [request for s in self.sequences for request in s.waiting if not request.is_again]

    def drop_cancelled(self, now_ns: int) -> None:
        for sequence in list(self.sequences):
            if not any(request.is_cancelled for request in sequence.waiting):
                continue
            gone = [r for r in sequence.waiting if r.is_cancelled or not self.options.is_iterative]
            sequence.waiting = [request for request in sequence.waiting if request not in gone]
            self.left |= {request.name for request in gone}
            for line in self.lines.values():
                line[:] = [request for request in line if request not in gone]
            if self.options.is_iterative and (sequence.waiting or (sequence.slot and sequence.slot.in_hand)):
                self.enter(sequence, now_ns)  # a request of another client may want its next iteration
                continue
            sequence.is_open = False
            self.leave_if_over(sequence)

    def released(self, name: str, now_ns: int) -> None:
        sequence, slot, _ = self.in_hand.pop(name)
        slot.in_hand -= 1
        if self.options.is_iterative and not sequence.waiting:
            sequence.is_open = False
        self.go_on(slot, now_ns)

    def rescheduled(self, name: str, now_ns: int) -> bool:
        """Whether the request waits again; its sequence may have been silent for too long."""
        self.cut_silent(now_ns)
        sequence, slot, request = self.in_hand.pop(name)
        slot.in_hand -= 1
        if not sequence.is_open:
            self.go_on(slot, now_ns)
            return False
        request.starts, request.is_again, request.arrived_ns, request.entered_ns = False, True, now_ns, None
        request.passed_over = None
        sequence.waiting.insert(0, request)
        sequence.heard_ns = now_ns
        self.enter(sequence, now_ns)
        return True

    def go_on(self, slot: Slot, now_ns: int) -> None:
        if slot.sequence is not None:
            self.leave_if_over(slot.sequence)
        if slot.sequence is not None:
            self.enter(slot.sequence, now_ns)
        self.fill_slots(now_ns)

    # ---------------------------------------------------------------- batches

    def decide(self, now_ns: int, free: Listed[int]) -> Outcome:
        outcome = Outcome()
        self.drop_cancelled(now_ns)
        self.cut_silent(now_ns)
        for sequence in self.backlog:
            if sequence.deadline_ns is not None and sequence.deadline_ns <= now_ns:
                outcome.expired += [request.name for request in sequence.waiting]
                sequence.waiting = []
                sequence.is_open = False
                self.leave_if_over(sequence)
        checks: list[int] = []
        for instance in free:
            rows, check_ns = self.pick(instance, now_ns)
            if check_ns is not None:
                checks.append(check_ns)
            if rows:
                outcome.batches.append([NULL if sequence is None else self.take(sequence) for sequence in rows])
                outcome.instances.append(instance)
            self.fill_slots(now_ns)
        checks += [s.heard_ns + self.idle_ns for s in self.sequences if s.slot is not None and s.is_open]
        checks += [s.deadline_ns for s in self.backlog if s.deadline_ns is not None]
        outcome.next_check_ns = min(checks, default=None)
        outcome.cancelled, self.left = self.left, set()
        return outcome

    def take(self, sequence: Sequence) -> str:
        request = sequence.waiting.pop(0)
        request.is_again = False
        assert sequence.slot is not None
        sequence.slot.in_hand += 1
        self.in_hand[request.name] = (sequence, sequence.slot, request)
        line = self.lines[sequence.slot.instance]
        if request in line:
            line.remove(request)
        self.leave_if_over(sequence, at_once=request.ends)
        return request.name

    def pick(self, instance: int, now_ns: int) -> tuple[list[Sequence | None], int | None]:
        if isinstance(self.options.strategy, DirectStrategy):
            return self.pick_rows(self.options.strategy, instance, now_ns)
        return self.pick_oldest(instance, now_ns)

    def pick_rows(
        self, options: DirectStrategy, instance: int, now_ns: int
    ) -> tuple[list[Sequence | None], int | None]:
        rows = [slot for slot in self.slots if slot.instance == instance]
        ready = [
            slot
            for slot in rows
            if slot.sequence and slot.sequence.waiting and not (self.one_at_a_time and slot.in_hand)
        ]
        if not ready:
            return [], None
        first = {slot.index: slot.sequence.waiting[0] for slot in ready if slot.sequence}
        delay_ns = options.max_queue_delay_us * 1000
        oldest_ns = min(request.arrived_ns for request in first.values())
        # U is a 32-bit float; the utilizations of the tests are exact.
        is_enough = len(ready) / self.rows >= options.minimum_slot_utilization
        if delay_ns and options.minimum_slot_utilization and not is_enough and now_ns < oldest_ns + delay_ns:
            return [], oldest_ns + delay_ns
        waited = [(request.passed_over, at) for at, request in first.items() if request.passed_over is not None]
        decides = first[min(waited)[1]] if waited else first[min(first)]
        self.picks += 1
        batch: list[Sequence | None] = []
        for slot in rows[: max(first) + 1]:
            request = first.get(slot.index)
            if request is not None and request.shape == decides.shape:
                batch.append(slot.sequence)
                continue
            batch.append(None)
            if request is not None and request.passed_over is None:
                request.passed_over = (self.picks, slot.index)
        return batch, None

    def pick_oldest(self, instance: int, now_ns: int) -> tuple[list[Sequence | None], int | None]:
        options = self.options.strategy
        assert not isinstance(options, DirectStrategy)
        behind, self.behind[instance] = self.behind[instance], []
        for sequence in behind:
            self.enter(sequence, now_ns, is_free=True)
        batcher = ReferenceBatcher(
            DynamicBatching(
                preferred_batch_sizes=options.preferred_batch_sizes,
                max_queue_delay_us=options.max_queue_delay_us,
                preserve_ordering=False,
                priority_levels=0,
                default_priority_level=0,
                default_queue_policy=QueuePolicy(),
                priority_queue_policies={},
            ),
            self.max_batch_size,
        )
        for request in self.lines[instance]:
            assert request.entered_ns is not None
            batcher.enqueue(Waiting(request.name, 1, request.shape, 0), request.entered_ns)
        outcome = batcher.decide(now_ns, 1)
        names = outcome.batches[0] if outcome.batches else []
        by_name = {s.waiting[0].name: s for s in self.sequences if s.waiting}
        return [by_name[name] for name in names], outcome.next_check_ns
