"""Rounds of load and faults against one server, each followed by an audit; and what is told of them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from tools.torture import audit, processes, schedule
from tools.torture.audit import Counters, Vitals
from tools.torture.http_client import ConnectionLost, Tally, ask
from tools.torture.inject import Injector
from tools.torture.load import Load, Sightings
from tools.torture.records import Ledger
from tools.torture.schedule import Fault
from tools.torture.server import TorturedServer

_LOOK_AGAIN_S = 0.25
_IDLE_S = 6.0
"""A little longer than an instance keeps memory that it does not use."""
_STOP_S = 60.0


@dataclass(frozen=True)
class Plan:
    """What a run is made from; the same plan is the same run, as far as processes and clocks allow."""

    seed: int
    minutes: float
    round_s: float = 20.0
    faults_per_round: int = 24
    kinds: tuple[str, ...] = schedule.KINDS
    replayed: tuple[Fault, ...] = ()
    """Faults of a file, by their rounds, in place of drawn ones."""
    rounds: int | None = None
    """So many, whatever the time; None for as many as fit."""
    written: Path | None = None
    """The file to which the faults of each round are appended."""
    server_flags: tuple[str, ...] = ()
    quiet_s: float = 90.0
    """How long a server without load may take until everything in it is as it was."""

    def faults_of(self, number: int) -> list[Fault]:
        if self.replayed:
            return [fault for fault in self.replayed if fault.round == number]
        kinds = schedule.kinds_of(self.kinds, self.server_flags)
        return schedule.draw(self.seed, number, seconds=self.round_s, count=self.faults_per_round, kinds=kinds)

    @property
    def last_round(self) -> int | None:
        return max(fault.round for fault in self.replayed) if self.replayed else self.rounds


@dataclass
class Result:
    """Of a run."""

    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    rounds: int = 0
    seconds: float = 0.0


class Campaign:
    """One run against one server."""

    def __init__(self, server: TorturedServer, plan: Plan, say: Callable[[str], None]) -> None:
        self.result = Result()
        self._server = server
        self._plan = plan
        self._say = say
        self._tally = Tally()
        self._baseline: Vitals | None = None

    async def run(self) -> Result:
        """A round without faults, which everything is compared with, then those with faults until the time is over."""
        began_s = time.monotonic()
        await self._round(0, [])
        number = 0
        while self._goes_on(number, began_s):
            number += 1
            faults = self._plan.faults_of(number)
            if self._plan.written is not None:
                schedule.write(self._plan.written, faults)
            if not self._server.is_private:
                faults = [fault for fault in faults if not fault.kind.startswith("fill ")]
            await self._round(number, faults)
        self.result.rounds = number
        self.result.seconds = time.monotonic() - began_s
        return self.result

    def _goes_on(self, number: int, began_s: float) -> bool:
        if self._server.running.process.poll() is not None:
            return False
        if self._plan.last_round is not None:
            return number < self._plan.last_round
        return time.monotonic() - began_s < 60 * self._plan.minutes

    async def _round(self, number: int, faults: list[Fault]) -> None:
        server, seed = self._server, f"{self._plan.seed}/{number}"
        ledger, sightings = Ledger(number), Sightings()
        before = await server.counters(self._tally)
        heard_before = Counter(self._tally.answers)
        unheard_before = self._tally.unanswered
        load = Load(server.target, ledger, self._tally, sightings, seed)
        injector = Injector(load, server.repository, faults, seed=seed)
        loading = asyncio.create_task(load.run())
        attacking = asyncio.create_task(injector.run())
        await asyncio.wait([loading, attacking], timeout=self._plan.round_s, return_when=asyncio.FIRST_EXCEPTION)
        for task in (loading, attacking):
            if task.done():
                task.result()  # raises what a mistake of ours raised
        await attacking
        load.stop()
        await loading
        wrong = [*injector.problems]
        if server.running.process.poll() is not None:
            wrong.append(f"the server ended with {server.running.process.returncode}")
        else:
            if faults:
                await injector.restore()
                wrong += injector.problems
            wrong += await self._audit(ledger, before, heard_before, unheard_before, load.calls)
        wrong += audit.check_ends(ledger, sightings, injector.done)
        wrong += audit.check_causes(ledger, injector.done)
        wrong += audit.check_log(server.new_log())
        self._tell(number, ledger, injector, wrong)

    async def _audit(
        self, ledger: Ledger, before: Counters, heard_before: Counter[int], unheard_before: int, calls: Counter[str]
    ) -> list[str]:
        """What is wrong with a server that nobody asks anything any more."""
        server = self._server
        wrong = await self._settle(self._unready)
        if server.running.process.poll() is not None:
            return wrong

        async def counters_are_wrong() -> list[str]:
            after = await server.counters(self._tally)
            heard = self._tally.answers - heard_before
            unheard = max(0, self._tally.unanswered - unheard_before)
            return [
                *audit.check_counters(before, after, ledger.records.values()),
                *audit.check_answers(before, after, heard, unheard + 2),
                *audit.check_calls(before, after, calls),
            ]

        async def vitals_are_wrong() -> list[str]:
            counters = await server.counters(self._tally)
            now = server.vitals(counters.slots.total())
            if self._baseline is None:
                wrong = [] if now.slots == 0 else [f"{now.slots} slots are in use, and nobody asks"]
            else:
                wrong = audit.check_vitals(self._baseline, now)
            return [*wrong, f"slots by instance: {dict(+counters.slots)}"] if wrong and now.slots else wrong

        wrong += await self._settle(counters_are_wrong)
        found = await self._settle(vitals_are_wrong)
        if found:
            found.append(f"tasks: {server.look_inside()[1]}")
        wrong += found
        self._baseline = self._baseline or await self._look_when_steady()
        now = await self._look()
        self._say(f"    {now}")
        wrong += audit.check_access_log(await server.take_access_log(), ledger)
        return wrong

    async def _look(self) -> Vitals:
        return self._server.vitals((await self._server.counters(self._tally)).slots.total())

    async def _look_when_steady(self) -> Vitals:
        """When memory that the warm-up had needed was given back, which workers do that are idle for some seconds."""
        deadline, earlier = time.monotonic() + self._plan.quiet_s, await self._look()
        while time.monotonic() < deadline:
            await asyncio.sleep(_IDLE_S)
            now = await self._look()
            if now.descriptors == earlier.descriptors:
                return now
            earlier = now
        return earlier

    async def _unready(self) -> list[str]:
        answer = await ask(self._server.target.http_port, self._tally, "/v2/health/ready")
        return (
            []
            if answer.status == 200
            else [f"the server is not ready again after {self._plan.quiet_s:g} s without load"]
        )

    async def _settle(self, look: Callable[[], Awaitable[list[str]]]) -> list[str]:
        """What *look*, a coroutine function, finds wrong, once it finds nothing or the plan's ``quiet_s`` are over."""
        deadline = time.monotonic() + self._plan.quiet_s
        while True:
            try:
                wrong = await asyncio.wait_for(look(), 30)
            except (ConnectionLost, OSError, asyncio.TimeoutError, TimeoutError) as error:
                wrong = [f"the server does not answer: {error!r}"]
            if not wrong or time.monotonic() > deadline or self._server.running.process.poll() is not None:
                return wrong
            await asyncio.sleep(_LOOK_AGAIN_S)

    def _tell(self, number: int, ledger: Ledger, injector: Injector, wrong: list[str]) -> None:
        outcomes = ledger.outcomes()
        self.result.faults += injector.kinds
        self.result.outcomes += outcomes
        ends = Counter[str]()
        for (_, outcome), count in outcomes.items():
            ends[outcome] += count
        self._say(
            f"round {number}: {len(injector.done)} faults, {len(ledger.records)} requests: "
            + ", ".join(f"{name} {count}" for name, count in sorted(ends.items()))
        )
        for text in dict.fromkeys(wrong):
            self.result.violations.append(f"round {number}: {text}")
            self._say(f"  VIOLATION {text}")
        if wrong:
            for done in injector.done:
                self._say(f"    {done.fault} -> {done.effect} [{done.began_s:.3f} to {done.ended_s:.3f}]")


def check_end(server: TorturedServer, exit_code: int) -> list[str]:
    """After SIGTERM: the server ended by itself, and nobody stayed behind."""
    wrong = [] if exit_code == 0 else [f"the server ended with {exit_code} after SIGTERM"]
    deadline = time.monotonic() + _STOP_S
    while (left := processes.marked(server.mark)) and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)
    if left:
        wrong.append(f"processes were left behind: {[processes.read_process(pid) for pid in left]}")
    return wrong + audit.check_log(server.new_log())


def torture(folder: Path, plan: Plan, say: Callable[[str], None]) -> Result:
    """Start a server in *folder*, which is empty, run *plan* against it, and stop it."""
    with TorturedServer.started(folder, *plan.server_flags) as server:
        say(
            f"server {server.target.pid}, file systems {'of its own' if server.is_private else 'shared: none is filled'}"
        )
        campaign = Campaign(server, plan, say)
        try:
            result = asyncio.run(campaign.run())
        except BaseException:
            say(server.running.log[-4000:])
            raise
        if server.running.process.poll() is None:
            try:
                result.violations += check_end(server, server.running.stop(timeout_s=_STOP_S))
            except AssertionError as error:
                result.violations.append(str(error)[:5000])
        else:
            say(server.running.log[-5000:])
    return result


def report(result: Result, plan: Plan, command: str) -> str:
    """Tables of faults, requests and violations, and how to see it again."""
    lines = [f"{result.rounds} rounds in {result.seconds:.0f} s", "", "| fault | times |", "|---|---|"]
    lines += [f"| {kind} | {count} |" for kind, count in sorted(result.faults.items())]
    lines += [f"| all | {result.faults.total()} |", ""]
    kinds = sorted({kind for kind, _ in result.outcomes})
    lines += [f"| requests ended as | {' | '.join(kinds)} | all |", "|---|" + "---|" * (len(kinds) + 1)]
    for outcome in sorted({outcome for _, outcome in result.outcomes}):
        counts = [result.outcomes[kind, outcome] for kind in kinds]
        lines.append(f"| {outcome} | {' | '.join(map(str, counts))} | {sum(counts)} |")
    totals = [sum(count for (of, _), count in result.outcomes.items() if of == kind) for kind in kinds]
    lines += [f"| all | {' | '.join(map(str, totals))} | {sum(totals)} |", ""]
    lines += [f"VIOLATION {text}" for text in result.violations]
    lines += [f"{len(result.violations)} violations with seed {plan.seed}; again: {command}"]
    return "\n".join(lines)
