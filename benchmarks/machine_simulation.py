"""One machine with callers, a balancer, servers and workers on the same cores: its rate, its latencies, where its time goes.

Processes of one thread each take from an inbox. Who was asleep pays for being woken, more the longer it slept, and then finds
all that has come meanwhile, so that a request costs less the more of them there are; nobody says how many are found at a time,
it follows. Each core has a queue of its own, as Linux has them: who has had less than its share takes the core from who has had
more, a core may be idle while somebody waits for the other one, until the clock's next tick, and one that was idle for long
takes a while to run anybody. What a request costs in each process is given (`Parts`); all else is arithmetic of queues, and no
measurement.

A request passes the caller, the balancer, the server, its worker, and goes back through the server and the balancer. The
server hands batches to its worker as the engine does: one when it is free, the next ones ahead while they are short.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

KIB = 1024.0
IN_MESSAGE = 4_096
"""Up to so many bytes a tensor is in the message to the worker; larger ones are in the arena."""
AHEAD_US, AHEAD = 400.0, 31
"""How much execution waits at a worker at the most, and how many batches (docs/design.md, "Ahead")."""
SPREAD = 0.5
"""A piece of work takes between 1 - SPREAD and 1 + SPREAD times what it costs: without that, everything would march in step."""
HALF_COLD_US = 5_000.0
"""After how long a sleep a process is half cold."""
HALTED_US = 200.0
"""For how long an idle core keeps looking for work before it halts (Linux's haltpoll, in a guest)."""
SLICE_US = 1_400.0
"""How far behind its fair share a sleeper may be remembered (Linux's base slice, on two cores)."""
CLOCK_US = 4_000.0
"""How often a core looks whether somebody else should run (250 Hz)."""
OTHERS_US = 2_000.0
"""How long it takes the core, on average."""
SCANNED, LOAD_US = 0.5, 40_000.0
"""Up to which load, averaged over so long, Linux looks for an idle core when it wakes somebody (SIS_UTIL, on two cores)."""
TICK_US, LATE_US = 1_000.0, 80.0
"""wrk's callers wait in whole milliseconds, and what has slept until a time is that late."""
VISITS = {"client": 1, "balancer": 2, "server": 2, "worker": 1}
"""How often a request wakes each process, if it finds it asleep."""


def coldness(slept_us: float) -> float:
    """How much of what it takes to be cold a process has lost after so long a sleep: caches, and a core's clock."""
    return slept_us / (slept_us + HALF_COLD_US)


@dataclass(frozen=True)
class Part:
    """What a process of one kind costs, in microseconds of a core."""

    base_us: float
    """Of a request, that is found among others."""
    wake_us: float = 0.0
    """Of being woken on a core that had nothing to do."""
    switch_us: float = 0.0
    """Of being woken where others run."""
    per_kib_us: float = 0.0
    """Of each KiB of input and output together."""
    arena_us: float = 0.0
    """Of tensors that are too large for the message to the worker."""
    batch_us: float = 0.0
    """The share of *base_us* that a batch costs, however many requests it has."""
    cold_us: float = 0.0
    """Of being woken after a long sleep, beside *wake_us*."""

    def of(self, nbytes: float) -> float:
        """Of one request whose input, and output, have *nbytes*."""
        return self.base_us + self.per_kib_us * 2 * nbytes / KIB + (self.arena_us if nbytes > IN_MESSAGE else 0.0)


@dataclass(frozen=True)
class Parts:
    """What was measured on one kind of core. *balancers* are by name."""

    client: Part
    server: Part
    worker: Part
    balancers: Mapping[str, Part] = field(default_factory=dict)
    halted_us: float = 0.0
    """Until a core that was idle for long runs a process that is woken on it; in no process's account."""
    others: float = 0.0
    """The share of the cores' time that the system and others take for themselves, `OTHERS_US` at a time."""


@dataclass(frozen=True)
class Workload:
    """What a machine has to do."""

    cores: int
    callers: int
    servers: int = 1
    balancer: str = ""
    nbytes: int = 16
    """Of the tensor that goes in, and of the one that comes out."""
    compute_us: float = 0.0
    """Of a core, of each ``execute``."""
    each_us: float = 0.0
    """The same, of each request in it."""
    wait_us: float = 0.0
    """Of no core, of each ``execute``: a model that waits for a device."""
    batch: int = 1
    """Requests in a batch at the most; batches are made of what waits."""
    think_us: float = 0.0
    """The mean of the exponential time between an answer and the caller's next request."""


@dataclass(frozen=True)
class Outcome:
    per_second: float
    p50_us: float
    p99_us: float
    part_us: Mapping[str, float]
    """Microseconds of a core for each request, of all processes of a kind together; the model's compute is the worker's."""
    busy: float
    """Share of the cores that had work."""


@dataclass
class _Request:
    caller: int
    sent_us: float = 0.0
    is_answer: bool = False
    server: int = 0


class _Group:
    """Processes that share a core as one where others want it, too: those of a session (Linux's autogroup)."""

    def __init__(self, *, is_kernel: bool = False) -> None:
        self.is_kernel = is_kernel
        """Whether it takes the core from everybody, and gives it to nobody."""
        self.clock_us = 0.0
        """What it has had of cores, put forward when it comes back to a core whose groups have had more meanwhile."""
        self.lag_us = 0.0
        """How much less than its fair share it had had when it went to sleep."""


class _Process:
    """A thread with an inbox. *cost* says what an item costs, *handle* what comes of it."""

    def __init__(
        self, kind: str, part: Part, group: _Group, cost: Callable[[Any], float], handle: Callable[[Any], None]
    ) -> None:
        self.kind, self.part, self.group, self.cost, self.handle = kind, part, group, cost, handle
        self.sleeps: Callable[[], None] = lambda: None
        """Called when it has gone to sleep."""
        self.inbox: deque[Any] = deque()
        self.found: deque[Any] = deque()
        self.is_asleep = True
        self.item: Any = None
        self.left_us = 0.0
        """Of the work in hand."""
        self.core: _Core | None = None
        """Where it runs or waits, or has run at last."""
        self.ran_us = 0.0
        """When it has run at last."""
        self.clock_us = 0.0
        """What it has had of cores, among those of its group."""

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Who has the least is the next to run."""
        return not self.group.is_kernel, self.group.clock_us, self.clock_us

    def yields_to(self, other: _Process) -> bool:
        if self.group.is_kernel or other.group.is_kernel:
            return not self.group.is_kernel
        return (
            other.clock_us < self.clock_us if other.group is self.group else other.group.clock_us < self.group.clock_us
        )


class _Core:
    """One core and who waits for it."""

    def __init__(self) -> None:
        self.runs: _Process | None = None
        self.waits: list[_Process] = []
        self.is_reached = False
        """Whether somebody is on the way to it, while it wakes."""
        self.idle_us = 0.0
        """When it has become idle at last."""
        self.from_us = 0.0
        """Since when the work in hand has gone on."""
        self.counted_us = 0.0
        """Until when the clocks of who runs have been counted."""
        self.turn = 0
        """Which end of a piece of work is still meant."""

    @property
    def is_idle(self) -> bool:
        return self.runs is None and not self.is_reached

    def present(self) -> list[_Process]:
        return [self.runs, *self.waits] if self.runs is not None else list(self.waits)


class _Machine:
    """Cores, and the processes that have work. Time is in microseconds."""

    def __init__(self, cores: int, halted_us: float, seed: int) -> None:
        self.now = 0.0
        self.used: dict[str, float] = dict.fromkeys((*VISITS, "others"), 0.0)
        self.random = random.Random(seed)
        self._halted_us = halted_us
        self._order = itertools.count()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self.cores = [_Core() for _ in range(cores)]
        self._here: _Core | None = None
        """The core on which what happens now happens."""
        self._busy = 0.0
        self._used_before = 0.0
        for core in self.cores:
            self.after(self.random.random() * CLOCK_US, lambda core=core: self._tick(core))

    def deliver(self, process: _Process, item: Any, *, is_socket: bool = True) -> None:
        """*item* to *process*, which wakes if it was asleep. What comes through a socket may have it wake beside the sender."""
        process.inbox.append(item)
        if not process.is_asleep:
            return
        process.is_asleep = False
        process.item = None
        part = process.part
        cold_us = part.cold_us * coldness(self.now - process.ran_us)
        core = self._chosen(process, is_socket)
        self._place(core, process)
        process.core = core
        if core.is_idle:
            self._give(process, part.wake_us + cold_us)
            if not self._halted_us or self.now - core.idle_us < HALTED_US:
                self._run(core, process)
            else:
                core.is_reached = True
                self.after(self._spread(self._halted_us), lambda: self._reach(core, process))
        else:
            self._give(process, part.switch_us + cold_us)
            core.waits.append(process)
            self._check(core)

    def after(self, delay_us: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self.now + delay_us, next(self._order), call))

    def run(self, until_us: float) -> None:
        while self.now < until_us:
            self.now, _, call = heapq.heappop(self._timers)
            call()

    # Who runs where ------------------------------------------------------------------------------------------------

    def _chosen(self, process: _Process, is_socket: bool) -> _Core:
        """Where it was, or beside its sender if nobody waits there. Another core is looked for only while load is low."""
        before = process.core or self.random.choice(self.cores)
        if before.is_idle or process.group.is_kernel:
            return before
        if self._busy < SCANNED:
            for core in self.cores:
                if core.is_idle:
                    return core
        if is_socket and self._here is not None and not self._here.waits:
            return self._here
        return before

    def _place(self, core: _Core, process: _Process) -> None:
        """Have the clocks of who wakes stand as far from the others' as when it went to sleep."""
        for one in self.cores:
            self._count(one)
        group = process.group
        fellows = [one.clock_us for other in self.cores for one in other.present() if one.group is group]
        if fellows:
            process.clock_us = max(process.clock_us, min(fellows) - SLICE_US)
            return
        fair_us = self._fair_us(core)
        if fair_us is not None:
            group.clock_us = fair_us - group.lag_us

    def _fair_us(self, core: _Core) -> float | None:
        """What the groups on *core* have had on average."""
        clocks = {id(one.group): one.group.clock_us for one in core.present() if not one.group.is_kernel}
        return sum(clocks.values()) / len(clocks) if clocks else None

    def _count(self, core: _Core) -> None:
        if core.runs is not None:
            had_us = self.now - core.counted_us
            core.runs.clock_us += had_us
            core.runs.group.clock_us += had_us
        core.counted_us = self.now

    def _reach(self, core: _Core, process: _Process) -> None:
        core.is_reached = False
        self._run(core, process)
        self._check(core)

    def _run(self, core: _Core, process: _Process) -> None:
        core.runs, process.core = process, core
        core.counted_us = self.now
        self._go_on(core, process)

    def _go_on(self, core: _Core, process: _Process) -> None:
        core.turn += 1
        core.from_us = self.now
        turn = core.turn
        self.after(process.left_us, lambda: self._end(core, process, turn))

    def _check(self, core: _Core) -> None:
        """Have somebody else run who has had less."""
        self._count(core)
        if core.runs is None or not core.waits:
            return
        runs, first = core.runs, min(core.waits, key=lambda one: one.rank)
        if runs.yields_to(first):
            runs.left_us = max(0.0, runs.left_us - (self.now - core.from_us))
            runs.ran_us = self.now
            core.waits.remove(first)
            core.waits.append(runs)
            self._run(core, first)

    def _tick(self, core: _Core) -> None:
        self.after(CLOCK_US, lambda: self._tick(core))
        used = sum(self.used.values())
        if core is self.cores[0]:
            self._busy += ((used - self._used_before) / CLOCK_US / len(self.cores) - self._busy) * CLOCK_US / LOAD_US
            self._used_before = used
        if not core.is_idle:
            self._check(core)
            return
        for other in self.cores:
            if other.waits:
                self._run(core, other.waits.pop(0))
                return

    def _end(self, core: _Core, process: _Process, turn: int) -> None:
        """A piece of work is done."""
        if core.turn != turn:
            return  # somebody else was given the core meanwhile
        self._here = core
        process.ran_us = core.from_us = self.now
        process.left_us = 0.0
        if process.item is not None:
            process.handle(process.item)
        self._here = None
        if not process.found:
            process.found, process.inbox = process.inbox, process.found
        if process.found:
            process.item = process.found.popleft()
            self._give(process, process.cost(process.item))
            if core.runs is process:  # and nobody whom it has woken
                self._go_on(core, process)
            return
        process.is_asleep = True
        process.item = None
        self._count(core)
        fair_us = self._fair_us(core) or 0.0
        is_left_alone = len(core.present()) == 1
        lag_us = max(-SLICE_US, min(SLICE_US, fair_us - process.group.clock_us))
        process.group.lag_us = max(0.0, lag_us) if is_left_alone else lag_us
        if core.runs is process:
            core.turn += 1
            core.runs = None
            core.idle_us = self.now
            if core.waits:
                self._run_first(core)
        else:
            core.waits.remove(process)
        process.sleeps()

    def _run_first(self, core: _Core) -> None:
        first = min(core.waits, key=lambda one: one.rank)
        core.waits.remove(first)
        self._run(core, first)

    def _give(self, process: _Process, work_us: float) -> None:
        process.left_us = self._spread(work_us)
        self.used[process.kind] += process.left_us

    def _spread(self, mean: float) -> float:
        return mean * (1.0 + SPREAD * (2.0 * self.random.random() - 1.0))


class _Server:
    """A server and its worker."""

    def __init__(self, machine: _Machine, parts: Parts, load: Workload, answered: Callable[[_Request], None]) -> None:
        self._machine, self._load, self._answered = machine, load, answered
        half = parts.server.of(load.nbytes) / 2
        session = _Group()
        self.process = _Process("server", parts.server, session, lambda request: half, self._handle)
        each = parts.worker.of(load.nbytes) - parts.worker.batch_us + load.each_us
        once = parts.worker.batch_us + load.compute_us
        self._worker = _Process("worker", parts.worker, session, lambda batch: once + each * len(batch), self._execute)
        self._held: deque[list[_Request]] = deque()
        """The batch that the worker has, and those behind it."""
        self._waiting: deque[_Request] = deque()
        self._sent = 0
        self.unanswered = 0
        execute_us = load.compute_us + load.each_us + load.wait_us
        self._most_ahead = min(AHEAD, max(1, int(AHEAD_US / execute_us))) if execute_us else AHEAD

    def _handle(self, request: _Request) -> None:
        if request.is_answer:
            self.unanswered -= 1
            self._answered(request)
        else:
            self._waiting.append(request)
        self._dispatch()

    def _dispatch(self) -> None:
        most = self._load.batch
        while self._waiting and self._sent <= self._most_ahead:
            if self._sent and len(self._waiting) < most:
                return  # somebody could join the batch yet
            count = min(most, len(self._waiting))
            self._sent += 1
            batch = [self._waiting.popleft() for _ in range(count)]
            self._held.append(batch)
            if len(self._held) == 1:
                self._machine.deliver(self._worker, batch, is_socket=False)

    def _execute(self, batch: list[_Request]) -> None:
        if self._load.wait_us:
            self._machine.after(self._load.wait_us + LATE_US, lambda: self._executed(batch))
        else:
            self._executed(batch)

    def _executed(self, batch: list[_Request]) -> None:
        # The worker has begun with the next one by the time that the server hears of it.
        self._sent -= 1
        self._held.popleft()
        if self._held:
            self._machine.deliver(self._worker, self._held[0], is_socket=False)
        for request in batch:
            request.is_answer = True
            self._machine.deliver(self.process, request, is_socket=False)


def simulate(parts: Parts, load: Workload, *, requests: int = 6_000, seed: int = 1) -> Outcome:
    """*load* until so many *requests* have been answered, behind half as many that are not counted."""
    machine = _Machine(load.cores, parts.halted_us, seed)
    latencies: list[float] = []
    answered = 0
    began: tuple[float, dict[str, float]] = (0.0, {})

    def reply(request: _Request) -> None:
        if pool:
            machine.deliver(pool[request.caller % len(pool)], request)
        else:
            machine.deliver(client, request)

    servers = [_Server(machine, parts, load, reply) for _ in range(load.servers)]

    def forward(request: _Request) -> None:
        if request.is_answer:
            machine.deliver(client, request)
            return
        least = min(server.unanswered for server in servers)
        chosen = machine.random.choice([server for server in servers if server.unanswered == least])
        chosen.unanswered += 1
        machine.deliver(chosen.process, request)

    pool: list[_Process] = []
    if load.balancer:
        part = parts.balancers[load.balancer]
        half = part.of(load.nbytes) / 2
        # A thread of haproxy, or a process of nginx, for each core; a connection stays with its own.
        session = _Group()
        pool = [_Process("balancer", part, session, lambda request: half, forward) for _ in range(load.cores)]

    def send(request: _Request) -> None:
        request.sent_us = machine.now
        request.is_answer = False
        if pool:
            machine.deliver(pool[request.caller % len(pool)], request)
        else:
            forward(request)

    def hear(request: _Request) -> None:
        nonlocal answered
        if not request.is_answer:
            send(request)
            return
        answered += 1
        if began[1]:
            latencies.append(machine.now - request.sent_us)
        if load.think_us:
            request.is_answer = False
            ticks = int(machine.random.expovariate(1.0 / load.think_us) / TICK_US + 0.5)
            heapq.heappush(waiting, (int(machine.now / TICK_US) + ticks, next(order), request))
            look()
        else:
            send(request)

    waiting: list[tuple[int, int, _Request]] = []
    order = itertools.count()
    asleep = 0

    def look() -> None:
        """Have the callers whose millisecond has come send their requests."""
        while waiting and waiting[0][0] <= int(machine.now / TICK_US):
            machine.deliver(client, heapq.heappop(waiting)[2])

    def sleep() -> None:
        """wrk sleeps for whole milliseconds, from within one, and everybody's time that has passed meanwhile has come."""
        nonlocal asleep
        asleep += 1
        if waiting:
            this = asleep
            ticks = waiting[0][0] - int(machine.now / TICK_US)
            machine.after(max(0, ticks) * TICK_US + LATE_US, lambda: wake(this))

    def wake(this: int) -> None:
        if this == asleep:
            look()

    whole = parts.client.of(load.nbytes)
    pieces = 2 if load.think_us else 1
    client = _Process("client", parts.client, _Group(), lambda request: whole / pieces, hear)
    client.sleeps = sleep

    def disturb(other: _Process) -> None:
        machine.deliver(other, other)
        machine.after(machine.random.expovariate(parts.others / OTHERS_US), lambda: disturb(other))

    for core in machine.cores if parts.others else ():
        other = _Process("others", Part(0.0), _Group(is_kernel=True), lambda _: OTHERS_US, lambda _: None)
        other.core = core
        disturb(other)
    for caller in range(load.callers):
        request = _Request(caller)
        machine.after(
            machine.random.random() * (load.think_us or 100.0), lambda request=request: machine.deliver(client, request)
        )

    while len(latencies) < requests:
        if not began[1] and answered >= requests / 2:
            began = (machine.now, dict(machine.used))
            answered = 0
        machine.run(machine.now + 1_000.0)
    elapsed_us = machine.now - began[0]
    used = {kind: machine.used[kind] - began[1][kind] for kind in VISITS}
    latencies.sort()
    return Outcome(
        per_second=len(latencies) / elapsed_us * 1e6,
        p50_us=latencies[len(latencies) // 2],
        p99_us=latencies[int(len(latencies) * 0.99)],
        part_us={kind: cost / len(latencies) for kind, cost in used.items()},
        busy=sum(used.values()) / elapsed_us / load.cores,
    )
