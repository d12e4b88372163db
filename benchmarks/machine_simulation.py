"""One machine with callers, a balancer, servers and workers on the same cores: its rate, its latencies, where its time goes.

Processes of one thread each take from an inbox, and share the cores evenly among those that have work (processor sharing, at
most one core each). Who was asleep pays for being woken, more the longer it slept, and then finds all that has come
meanwhile, so that a request costs less the more of them there are; nobody says how many are found at a time, it follows. A
core that was idle for long takes a while to run anybody. What a request costs in each process is given (`Parts`); all else is
arithmetic of queues, and no measurement.

A request passes the caller, the balancer, the server, its worker, and goes back through the server and the balancer. The
server hands batches to its worker as the engine does: one when it is free, the next ones ahead while they are short.
"""

from __future__ import annotations

import heapq
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
HALTED_US = 200.0
"""For how long an idle core keeps looking for work before it halts (Linux's haltpoll, in a guest)."""
VISITS = {"client": 1, "balancer": 2, "server": 2, "worker": 1}
"""How often a request wakes each process, if it finds it asleep."""


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
    """Of being woken after a long sleep, beside *wake_us*; after *half_us* of sleep half of it."""
    half_us: float = 0.0

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


class _Process:
    """A thread with an inbox. *cost* says what an item costs, *handle* what comes of it."""

    def __init__(self, kind: str, part: Part, cost: Callable[[Any], float], handle: Callable[[Any], None]) -> None:
        self.kind, self.part, self.cost, self.handle = kind, part, cost, handle
        self.inbox: deque[Any] = deque()
        self.found: deque[Any] = deque()
        self.is_asleep = True
        self.slept_us = 0.0
        """Since when."""
        self.item: Any = None


class _Machine:
    """Cores, and the processes that have work. Time is in microseconds.

    Processor sharing by virtual time: it passes as fast as each of those runs, so that work begun now ends at a virtual time
    that no later arrival changes.
    """

    def __init__(self, cores: int, halted_us: float, seed: int) -> None:
        self.cores = cores
        self.now = 0.0
        self._halted_us = halted_us
        self._idle_since = [0.0] * cores
        self._halted = 0
        """Cores that are on their way to a process that was woken on them."""
        self.used: dict[str, float] = dict.fromkeys(VISITS, 0.0)
        self.random = random.Random(seed)
        self._virtual = 0.0
        self._order = 0
        self._awake = 0
        self._ends: list[tuple[float, int, _Process]] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []

    def deliver(self, process: _Process, item: Any) -> None:
        process.inbox.append(item)
        if not process.is_asleep:
            return
        process.is_asleep = False
        process.item = None
        part, slept_us = process.part, self.now - process.slept_us
        cold_us = part.cold_us * slept_us / (slept_us + part.half_us) if slept_us else 0.0
        if not self._idle_since:
            self._wake(process, part.switch_us + cold_us)
        elif self.now - self._idle_since.pop() < HALTED_US or not self._halted_us:
            self._wake(process, part.wake_us + cold_us)
        else:
            spread = 1.0 + SPREAD * (2.0 * self.random.random() - 1.0)
            self._halted += 1
            self.after(self._halted_us * spread, lambda: self._reach(process, part.wake_us + cold_us))

    def _reach(self, process: _Process, work_us: float) -> None:
        self._halted -= 1
        self._wake(process, work_us)

    def _wake(self, process: _Process, work_us: float) -> None:
        self._awake += 1
        self._work(process, work_us)

    def after(self, delay_us: float, call: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._timers, (self.now + delay_us, self._order, call))

    def run(self, until_us: float) -> None:
        while self.now < until_us:
            rate = min(1.0, self.cores / self._awake) if self._awake else 1.0
            ends = self.now + (self._ends[0][0] - self._virtual) / rate if self._ends else float("inf")
            if self._timers and self._timers[0][0] <= ends:
                at, _, call = heapq.heappop(self._timers)
                self._virtual += (at - self.now) * rate
                self.now = at
                call()
                continue
            self._virtual, _, process = heapq.heappop(self._ends)
            self.now = ends
            if process.item is not None:
                process.handle(process.item)
            self._go_on(process)

    def _go_on(self, process: _Process) -> None:
        if not process.found:
            process.found, process.inbox = process.inbox, process.found
        if process.found:
            process.item = process.found.popleft()
            self._work(process, process.cost(process.item))
        else:
            process.is_asleep = True
            process.slept_us = self.now
            self._awake -= 1
            if self._awake + self._halted + len(self._idle_since) < self.cores:
                self._idle_since.append(self.now)

    def _work(self, process: _Process, work_us: float) -> None:
        work_us *= 1.0 + SPREAD * (2.0 * self.random.random() - 1.0)
        self.used[process.kind] += work_us
        self._order += 1
        heapq.heappush(self._ends, (self._virtual + work_us, self._order, process))


class _Server:
    """A server and its worker."""

    def __init__(self, machine: _Machine, parts: Parts, load: Workload, answered: Callable[[_Request], None]) -> None:
        self._machine, self._load, self._answered = machine, load, answered
        half = parts.server.of(load.nbytes) / 2
        self.process = _Process("server", parts.server, lambda request: half, self._handle)
        each = parts.worker.of(load.nbytes) - parts.worker.batch_us + load.each_us
        once = parts.worker.batch_us + load.compute_us
        self._worker = _Process("worker", parts.worker, lambda batch: once + each * len(batch), self._executed)
        self._waiting: deque[_Request] = deque()
        self._sent = 0
        self.unanswered = 0
        execute_us = load.compute_us + load.each_us
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
            self._machine.deliver(self._worker, [self._waiting.popleft() for _ in range(count)])

    def _executed(self, batch: list[_Request]) -> None:
        # The worker has begun with the next one by the time that the server hears of it.
        self._sent -= 1
        for request in batch:
            request.is_answer = True
            self._machine.deliver(self.process, request)


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
        pool = [_Process("balancer", part, lambda request: half, forward) for _ in range(load.cores)]

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
            delay_us = machine.random.expovariate(1.0 / load.think_us)
            machine.after(delay_us, lambda: machine.deliver(client, request))
        else:
            send(request)

    whole = parts.client.of(load.nbytes)
    pieces = 2 if load.think_us else 1
    client = _Process("client", parts.client, lambda request: whole / pieces, hear)
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
    used = {kind: machine.used[kind] - began[1][kind] for kind in machine.used}
    latencies.sort()
    return Outcome(
        per_second=len(latencies) / elapsed_us * 1e6,
        p50_us=latencies[len(latencies) // 2],
        p99_us=latencies[int(len(latencies) * 0.99)],
        part_us={kind: cost / len(latencies) for kind, cost in used.items()},
        busy=sum(used.values()) / elapsed_us / load.cores,
    )
