"""What is done to the server, and when: drawn from a seed, written down, and read again."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.torture.models import MISDEEDS, MODELS, STORMS, STUCK, WITH_WORKERS

_STEADY_WORKERS = tuple(name for name in WITH_WORKERS if name not in STORMS)

ON_WORKERS = ("kill worker", "kill workers again and again", "stop worker", "starve worker of memory")
ON_FORK_SERVER = ("kill fork server", "stop fork server")
ON_FRONT_END = ("kill front end", "stop front end")
"""Where the server has some: `kinds_of`."""
ON_SYSTEM = ("fill shared memory", "fill disk", "take descriptors")
ON_REPOSITORY = ("load and unload", "change instances", "change model", "break configuration", "break code")
OF_CLIENTS = ("burst", "truncate region")
EXECUTION_LIMIT_S = 4.0
"""The server gives up what takes longer, so that nothing is stuck for ever."""
FOR_EVER_S = 3 * EXECUTION_LIMIT_S
"""What is stopped for so long is missed: the server has replaced it by then."""
MISBEHAVE = "misbehave: "
"""Followed by one of `MISDEEDS`."""

KINDS = (
    *ON_WORKERS,
    *ON_FORK_SERVER,
    *ON_FRONT_END,
    *ON_SYSTEM,
    *ON_REPOSITORY,
    *OF_CLIENTS,
    *(MISBEHAVE + one for one in MISDEEDS if one != "none"),
)

_WEIGHTS = {
    "kill worker": 6,
    "stop worker": 3,
    "kill fork server": 2,
    "kill front end": 4,
    "load and unload": 3,
    "change instances": 3,
}
"""One for all others."""


def kinds_of(kinds: Iterable[str], server_flags: Iterable[str]) -> tuple[str, ...]:
    """Those of *kinds* that can be done to a server with such flags."""
    has_front_ends = any(flag.startswith("--frontends=") and flag != "--frontends=0" for flag in server_flags)
    return tuple(kind for kind in kinds if has_front_ends or kind not in ON_FRONT_END)


@dataclass(frozen=True)
class Fault:
    """*at_s* seconds after the round's load began."""

    round: int
    at_s: float
    kind: str
    target: str
    """A model; empty where it is none's."""
    number: float
    """Seconds for what lasts, or a count, or a choice."""

    def __str__(self) -> str:
        target = f" of {self.target}" if self.target else ""
        return f"round {self.round}, {self.at_s:6.2f} s: {self.kind}{target} ({self.number:g})"


def draw(seed: int, round_number: int, *, seconds: float, count: int, kinds: Iterable[str] = KINDS) -> list[Fault]:
    """*count* faults within *seconds*, the same ones for the same arguments, in the order of their time."""
    rng = random.Random(f"{seed}/{round_number}/faults")
    known = list(kinds)
    drawn = rng.choices(known, [_WEIGHTS.get(kind, 1) for kind in known], k=count)
    return sorted((_fault(rng, round_number, kind, seconds) for kind in drawn), key=lambda fault: fault.at_s)


def _fault(rng: random.Random, round_number: int, kind: str, seconds: float) -> Fault:
    at_s = round(rng.uniform(0.2, seconds), 2)
    target, number = "", round(rng.uniform(0.3, 2.5), 2)
    if kind in ON_WORKERS:
        target = rng.choice(WITH_WORKERS)
    if kind in ("stop worker", "stop fork server", "stop front end") and rng.random() < 0.3:
        number = FOR_EVER_S
    elif kind in ON_REPOSITORY:
        target, number = rng.choice(STORMS), float(rng.randrange(1, 5))
    elif kind == "burst":
        target, number = (
            rng.choice(("plain", "batched", "calls_twice", "chain", "cached")),
            float(rng.randrange(50, 400)),
        )
    elif kind.startswith(MISBEHAVE):
        misdeed = kind.removeprefix(MISBEHAVE)
        target = rng.choice([name for name in _STEADY_WORKERS if _can(name, misdeed)])
        number = float(rng.choice((1, 1, 3)))  # how many requests do it
    return Fault(round_number, at_s, kind, target, number)


def _can(model: str, misdeed: str) -> bool:
    """A model that works in threads ends with its process at most; coroutines must not wait for ever one by one."""
    return not (MODELS[model].defers and misdeed == "wrong_count")


def is_stuck(fault: Fault) -> bool:
    """Whether a worker never goes on by itself."""
    return fault.kind.removeprefix(MISBEHAVE) in STUCK


def write(path: Path, faults: Iterable[Fault]) -> None:
    """One line for each, appended."""
    with path.open("a") as file:
        for fault in faults:
            file.write(json.dumps(asdict(fault)) + "\n")


def read(path: Path) -> list[Fault]:
    return [Fault(**json.loads(line)) for line in path.read_text().splitlines() if line.strip()]
