"""Carries out a schedule of faults, and takes back in the end what lasts."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools.torture import processes
from tools.torture.http_client import ConnectionLost, ask
from tools.torture.load import END_BOUND_S, Load
from tools.torture.models import BROKEN_CODES, BROKEN_CONFIGS, MODELS, STORMS, storm_config
from tools.torture.records import cause_of
from tools.torture.schedule import MISBEHAVE, Fault

_DISK_RESERVE = 4096
_BUSY_DESCRIPTORS = 3
"""So many more may be opened while descriptors are taken."""
_MORE_LOADS, _LOAD_AGAIN_S = 20, 0.5
"""So often is a model loaded again that did not load, and after so long."""


@dataclass(frozen=True)
class Done:
    """A fault that was carried out, from when until when it worked."""

    fault: Fault
    began_s: float
    ended_s: float
    effect: str


class Injector:
    """Of one round. `run`, then `lift` what lasts."""

    def __init__(self, load: Load, repository: Path, faults: list[Fault], *, seed: str) -> None:
        self.done: list[Done] = []
        self.problems: list[str] = []
        """What the server answered to control requests, and should not have."""
        self._load = load
        self._target = load.target
        self._repository = repository
        self._faults = faults
        self._rng = random.Random(f"{seed}/injector")
        self._lasting: list[asyncio.Task[None]] = []
        self._changing = {name: asyncio.Lock() for name in STORMS}
        self._undo: dict[str, Callable[[], None]] = {}

    @property
    def kinds(self) -> Counter[str]:
        return Counter(done.fault.kind for done in self.done)

    async def run(self) -> None:
        """Returns when the last one was begun and everything has ended that it begun."""
        clock = self._load.ledger.clock
        began_s = clock()
        for fault in self._faults:
            await asyncio.sleep(max(0.0, began_s + fault.at_s - clock()))
            self._lasting.append(asyncio.create_task(self._carry_out(fault)))
        if self._lasting:
            await asyncio.wait(self._lasting)
        for task in self._lasting:
            task.result()

    async def _carry_out(self, fault: Fault) -> None:
        began_s = self._load.ledger.clock()
        kind = fault.kind
        if kind.startswith(MISBEHAVE):
            effect = await self._misbehave(fault)
        elif kind == "kill worker":
            effect = self._signal(self._worker(fault.target), signal.SIGKILL)
        elif kind == "kill fork server":
            effect = self._signal(self._fork_server(), signal.SIGKILL)
        elif kind == "kill front end":
            effect = self._signal(self._front_end(), signal.SIGKILL)
        elif kind == "stop front end":
            effect = await self._stop(self._front_end(), fault.number)
        elif kind == "kill workers again and again":
            effect = await self._kill_again_and_again(fault)
        elif kind == "burst":
            await self._load.burst(fault.target, int(fault.number))
            effect = "sent"
        elif kind == "truncate region":
            effect = self._truncate_region()
        elif kind in ("stop worker", "stop fork server"):
            effect = await self._stop(self._worker(fault.target) if fault.target else self._fork_server(), fault.number)
        elif kind == "starve worker of memory":
            effect = await self._starve(fault)
        elif kind == "fill shared memory":
            effect = await self._fill(self._target.shared_memory, fault.number)
        elif kind == "fill disk":
            effect = await self._fill(self._target.scratch, fault.number)
        elif kind == "take descriptors":
            effect = await self._take_descriptors(fault.number)
        else:
            async with self._changing[fault.target]:
                effect = await self._change_repository(fault)
        self.done.append(Done(fault, began_s, self._load.ledger.clock(), effect))

    # ------------------------------------------------------------------------------------------ processes

    def _worker(self, model: str) -> int | None:
        workers = processes.workers_of(self._target.pid, model)
        return self._rng.choice(workers).pid if workers else None

    def _fork_server(self) -> int | None:
        found = processes.fork_servers(self._target.pid)
        return self._rng.choice(found).pid if found else None

    def _front_end(self) -> int | None:
        found = processes.front_ends(self._target.pid)
        return self._rng.choice(found).pid if found else None

    def _signal(self, pid: int | None, number: signal.Signals) -> str:
        if pid is None:
            return "nobody there"
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return f"{pid} had gone"
        return f"{number.name} to {pid}"

    async def _kill_again_and_again(self, fault: Fault) -> str:
        """Every worker of the model as soon as there is one, for some seconds."""
        deadline, killed = self._load.ledger.clock() + fault.number, 0
        while self._load.ledger.clock() < deadline:
            for worker in processes.workers_of(self._target.pid, fault.target):
                self._signal(worker.pid, signal.SIGKILL)
                killed += 1
            await asyncio.sleep(0.05)
        return f"{killed} killed"

    def _truncate_region(self) -> str:
        """A client makes its region empty while it is in use."""
        if not self._load.regions:
            return "nobody has one"
        os.ftruncate(self._rng.choice(sorted(self._load.regions)), 0)
        return "truncated"

    async def _stop(self, pid: int | None, seconds: float) -> str:
        effect = self._signal(pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        self._signal(pid, signal.SIGCONT)
        return effect

    async def _starve(self, fault: Fault) -> str:
        """The worker may not take more address space than it has, for some seconds."""
        pid = self._worker(fault.target)
        if pid is None:
            return "nobody there"
        try:
            before = resource.prlimit(pid, resource.RLIMIT_AS)
            room = processes.address_space_bytes(pid) + (1 << 20)
            resource.prlimit(pid, resource.RLIMIT_AS, (room, before[1]))
            await asyncio.sleep(fault.number)
            resource.prlimit(pid, resource.RLIMIT_AS, before)
        except (ProcessLookupError, FileNotFoundError):
            return f"{pid} died"
        return f"{pid} had {room >> 20} MiB"

    async def _misbehave(self, fault: Fault) -> str:
        requests = [
            asyncio.create_task(self._load.misbehave(fault.target, fault.kind.removeprefix(MISBEHAVE)))
            for _ in range(int(fault.number))
        ]
        records = [await request for request in requests]
        return ", ".join(record.outcome.value if record.outcome else "?" for record in records)

    # ------------------------------------------------------------------------------------------ the system

    async def _fill(self, folder: Path, seconds: float) -> str:
        """Take all room of the file system that *folder* is, for some seconds."""
        path = folder / f"torture_ballast_{self._rng.getrandbits(32):x}"
        size = 0
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except OSError as error:
            return f"{error}"
        try:
            step = 1 << 20
            while step >= _DISK_RESERVE:
                try:
                    os.posix_fallocate(fd, size, step)
                    size += step
                except OSError:
                    step >>= 1
            await asyncio.sleep(seconds)
        finally:
            os.close(fd)
            os.unlink(path)
        return f"{size >> 10} KiB"

    async def _take_descriptors(self, seconds: float) -> str:
        if "descriptors" in self._undo:
            return "taken already"
        pid = self._target.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        self._undo["descriptors"] = lambda: None
        # The limit bounds the numbers, not how many there are: those below the highest that are free may still be given out.
        highest = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
        limit = min(processes.count_descriptors(pid) + _BUSY_DESCRIPTORS, highest + _BUSY_DESCRIPTORS)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[1]))
        try:
            await asyncio.sleep(seconds)
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            del self._undo["descriptors"]
        return f"limit {limit}"

    # ------------------------------------------------------------------------------------------ the repository

    async def _change_repository(self, fault: Fault) -> str:
        name, number = fault.target, int(fault.number)
        if fault.kind == "load and unload":
            every = [await self._control(name, verb) for _ in range(number) for verb in ("unload", "load")]
            # Another fault may end its workers while they start; it would be unknown to the end of the round then.
            while every[-1] != "200" and len(every) < 2 * number + _MORE_LOADS:
                await asyncio.sleep(_LOAD_AGAIN_S)
                every.append(await self._control(name, "load"))
            return ", ".join(every)
        config, code = self._repository / name / "config.pbtxt", self._repository / name / "1" / "model.py"
        if fault.kind == "change instances":
            _replace(config, storm_config(1 + number % 3))
            return await self._control(name, "load")
        if fault.kind == "change model":
            _replace(config, storm_config(1, note=self._rng.randrange(1 << 30)))
            return await self._control(name, "load")
        path, broken = (
            (config, BROKEN_CONFIGS[number % len(BROKEN_CONFIGS)])
            if fault.kind == "break configuration"
            else (code, BROKEN_CODES[number % len(BROKEN_CODES)])
        )
        good = path.read_text()
        _replace(path, broken)
        try:
            said = await self._control(name, "load")
            if said == "200":
                self.problems.append(f"{fault}: the server loaded what is broken")
            return said
        finally:
            _replace(path, good)

    async def _control(self, name: str, verb: str) -> str:
        """Load or unload; the status, and the text of an error."""
        path = f"/v2/repository/models/{name}/{verb}"
        try:
            answer = await asyncio.wait_for(
                ask(self._target.http_port, self._load.tally, path, method="POST", body=b"{}"), END_BOUND_S
            )
        except ConnectionLost as error:
            return f"no answer: {error}"
        except (asyncio.TimeoutError, TimeoutError):
            self.problems.append(f"{verb} of '{name}' did not end within {END_BOUND_S:g} s")
            return "no end"
        if answer.status != 200 and cause_of(answer.error) is None:
            self.problems.append(
                f"{verb} of '{name}': {answer.status} {answer.error[:500]!r} has no cause that is known"
            )
        return "200" if answer.status == 200 else f"{answer.status} {answer.error[:80]}"

    async def restore(self) -> None:
        """Storm models as they were in the beginning, and loaded. The faults are over."""
        for name in STORMS:
            MODELS[name].write(self._repository)
            said = await self._control(name, "load")
            if said != "200":
                self.problems.append(f"'{name}' does not load after the faults: {said}")


def _replace(path: Path, text: str) -> None:
    """In one step, as tools that deploy do it."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text)
    os.replace(fresh, path)
