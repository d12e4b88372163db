"""Cases that nobody chose: workloads drawn by a seed, for forecasts that are written down before anything is measured."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from capacity_fit import Machine
from machine_simulation import Workload, simulate


@dataclass(frozen=True)
class Case:
    """A workload that is forecast, and then measured. What is judged is its rate, or, below saturation, its p99."""

    name: str
    load: Workload

    @property
    def is_saturated(self) -> bool:
        return not self.load.think_us


def drawn(machine: Machine, *, seed: int, count: int) -> list[Case]:
    """*count* cases, of each kind as many as of any other. The same seed draws the same ones, but for the callers' thinking:
    below saturation they ask for as much as has *machine* busy for a share of the time."""
    dice = random.Random(seed)
    balancers = machine.balancers
    kinds: list[Callable[[], Workload]] = [
        lambda: _payload(dice),
        lambda: _balanced(dice, balancers),
        lambda: _computing(dice, balancers),
        lambda: _batching(dice, balancers),
        lambda: _below(dice, _computing(dice, balancers), machine),
        lambda: _below(dice, _batching(dice, balancers), machine),
    ]
    loads = [kinds[number % len(kinds)]() for number in range(count)]
    return [Case(_named(load), load) for load in loads]


def scaling(machine: Machine) -> list[Case]:
    """One, two and four servers behind each balancer: all that they can, and half of it. The model waits, as for a device, so
    that they do not take the cores from each other."""
    loads = []
    for balancer in machine.balancers:
        for servers in (1, 2, 4):
            load = Workload(
                cores=2, callers=8 * servers, servers=servers, balancer=balancer, nbytes=1_024, wait_us=10e3, batch=4
            )
            half = machine.saturated(load).per_second / 2
            loads += [load, replace(load, callers=16 * servers, think_us=round(16 * servers / half * 1e3) * 1e3)]
    return [Case(_named(load), load) for load in loads]


def _between(dice: random.Random, low: float, high: float) -> float:
    """Evenly by ratio, with two digits."""
    return float(f"{low * (high / low) ** dice.random():.2g}")


def _nbytes(dice: random.Random, high: int) -> int:
    return int(_between(dice, 16, high)) // 4 * 4


def _callers(dice: random.Random, servers: int) -> int:
    return dice.choice((8, 16, 24, 48)) * servers


def _payload(dice: random.Random) -> Workload:
    return Workload(cores=dice.choice((1, 2)), callers=_callers(dice, 1), nbytes=_nbytes(dice, 131_072))


def _before(dice: random.Random, balancers: Sequence[str]) -> tuple[int, str]:
    servers = dice.choice((1, 2, 4))
    return servers, dice.choice(balancers) if servers > 1 else ""


def _balanced(dice: random.Random, balancers: Sequence[str]) -> Workload:
    servers = dice.choice((1, 2, 4))
    return Workload(
        cores=2,
        callers=_callers(dice, servers),
        servers=servers,
        balancer=dice.choice(balancers),
        nbytes=_nbytes(dice, 65_536),
    )


def _computing(dice: random.Random, balancers: Sequence[str]) -> Workload:
    servers, balancer = _before(dice, balancers)
    return Workload(
        cores=dice.choice((1, 2)),
        callers=_callers(dice, servers),
        servers=servers,
        balancer=balancer,
        nbytes=_nbytes(dice, 16_384),
        compute_us=_between(dice, 100, 3_000),
    )


def _batching(dice: random.Random, balancers: Sequence[str]) -> Workload:
    servers, balancer = _before(dice, balancers)
    return Workload(
        cores=2,
        callers=_callers(dice, servers),
        servers=servers,
        balancer=balancer,
        nbytes=_nbytes(dice, 16_384),
        compute_us=_between(dice, 300, 4_000),
        each_us=_between(dice, 10, 200),
        batch=dice.choice((2, 4, 8, 16, 32)),
    )


def _below(dice: random.Random, load: Workload, machine: Machine) -> Workload:
    """*load* from callers so many that each asks seldom, and who keep the cores busy for a share of the time, as simulated."""
    wanted = dice.choice((0.3, 0.5, 0.7))
    load = replace(load, cores=2, callers=64, think_us=1e3)
    parts = machine.parts
    low, high = 1, 1_000  # milliseconds
    while high - low > max(1, low // 50):
        middle = round((low * high) ** 0.5)
        found = simulate(parts, replace(load, think_us=middle * 1e3), requests=3_000)
        low, high = (middle, high) if found.busy > wanted else (low, middle)
    return replace(load, think_us=high * 1e3)


def _named(load: Workload) -> str:
    words = [
        "one server" if load.servers == 1 else f"{load.servers} servers",
        *([f"behind {load.balancer}"] if load.balancer else []),
        "on one core" if load.cores == 1 else "on two cores",
    ]
    tensor = f"{load.nbytes / 1024:.1f} KiB" if load.nbytes >= 1024 else f"{load.nbytes} B"
    said = [" ".join(words), tensor]
    if load.wait_us:
        said.append(f"batches of {load.batch} wait {load.wait_us / 1e3:.0f} ms")
    elif load.batch > 1:
        said.append(f"batches of {load.batch}: {load.compute_us:.0f} + n × {load.each_us:.0f} µs")
    elif load.compute_us:
        said.append(f"{load.compute_us:.0f} µs")
    if load.think_us:
        said.append(f"{load.callers} callers who wait {load.think_us / 1e3:.0f} ms")
    else:
        said.append(f"{load.callers} callers")
    return ", ".join(said)
