"""What a machine does at the most, and what its processes cost, from loads of one server and two that were measured.

A process that is woken for one request pays for the waking; one that finds ten has the other nine for less. So each part
costs ``base + extra / group``, where *group* is how many requests it finds at a time. A model that answers one by one shows it
with a group of one; a model that does nothing shows what a third of the callers cost at a time (counted, by the switches of a
process for each request: 32 callers were found eleven at a time). Below saturation each request comes alone, and the simulation
of machine_simulation.py takes over.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

from capacity_machine import Sample
from machine_simulation import IN_MESSAGE, KIB, LATE_US, TICK_US, VISITS, Part, Parts, Workload, coldness

CALLERS = 32
MIDDLE, LARGE = 8_192, 131_072
BATCH = 16
PACE_US = 500.0
BATCH_US = 1_000.0
GROUPS = 3
"""Into how many groups the callers of a model that does nothing fall: at the client's, the server's, the worker's."""
KINDS = ("client", "balancer", "server", "worker")

DIRECT: Mapping[str, Workload] = {
    "many": Workload(cores=2, callers=CALLERS),
    "many, one core": Workload(cores=1, callers=CALLERS),
    "alone": Workload(cores=2, callers=1),
    "at times": Workload(cores=2, callers=1, think_us=1_000.0),
    "seldom": Workload(cores=2, callers=1, think_us=8_000.0),
    "paced": Workload(cores=2, callers=CALLERS, compute_us=PACE_US),
    "paced, one core": Workload(cores=1, callers=CALLERS, compute_us=PACE_US),
    "batches": Workload(cores=2, callers=2 * BATCH, compute_us=BATCH_US, batch=BATCH),
    "middle": Workload(cores=2, callers=CALLERS, nbytes=MIDDLE),
    "large": Workload(cores=2, callers=CALLERS, nbytes=LARGE),
}
THROUGH = ("many", "paced", "alone", "at times", "seldom", "large")
"""Those that are measured behind each balancer, too."""
CROWDED = ("many", "paced")
"""And those with two servers behind the first balancer: what a second one adds to everybody's costs."""


def loads(balancers: list[str]) -> dict[str, Workload]:
    """All that is measured, by name."""
    found = dict(DIRECT)
    for balancer in balancers:
        found |= {f"{balancer}: {name}": replace(DIRECT[name], balancer=balancer) for name in THROUGH}
    for balancer in balancers[:1]:
        found |= {
            f"two: {name}": replace(DIRECT[name], balancer=balancer, servers=2, callers=2 * CALLERS) for name in CROWDED
        }
    return found


def balancers_in(samples: Mapping[str, Sample]) -> list[str]:
    return sorted({name.partition(":")[0] for name in samples if ":" in name} - {"two"})


@dataclass(frozen=True)
class Forecast:
    """Requests a second, what keeps it from being more, and microseconds of a core for each request by part."""

    per_second: float
    limit: str
    part_us: Mapping[str, float]


def _coldness(mean: float) -> float:
    """The mean share of *cold_us* that is paid where a caller waits as wrk's do, an exponential time in whole milliseconds."""
    waits = range(1, int(20 * mean))
    return sum(2.0 * math.sinh(0.5 / mean) * math.exp(-wait / mean) * coldness(wait * TICK_US) for wait in waits)


class Machine:
    """What follows from *samples*, which have those of `loads`."""

    def __init__(self, samples: Mapping[str, Sample]) -> None:
        self._samples = samples
        self.balancers = balancers_in(samples)

    def saturated(self, load: Workload) -> Forecast:
        """What *load*'s callers get who wait for nothing but answers."""
        group = 1.0
        costs = self._costs(load, group)
        wait_us = load.wait_us + LATE_US if load.wait_us else 0.0
        is_paced = self._batch_us(load, costs, 1) + wait_us > costs["server"]
        if is_paced:
            group = max(1.0, min(load.batch, load.callers / load.servers / 2))
        else:
            group = max(1.0, load.callers / load.servers / GROUPS)
        costs = self._costs(load, group, is_paced=is_paced)
        found = min(load.batch, max(1.0, group)) if is_paced else 1.0
        batch_us = self._batch_us(load, costs, found)
        part_us = {**costs, "worker": batch_us / found}
        together = sum(part_us.values())
        cores = load.cores * (1.0 if load.cores == 1 or is_paced else self._efficiency(load))
        limits = {
            "the machine's cores": cores * 1e6 / together,
            "the servers' processes": load.servers * 1e6 / costs["server"],
            "the workers": load.servers * found * 1e6 / (batch_us + wait_us),
        }
        if load.balancer:
            limits["the balancer's threads"] = load.cores * 1e6 / costs["balancer"]
        limit = min(limits, key=lambda name: limits[name])
        return Forecast(limits[limit], limit, part_us)

    @property
    def parts(self) -> Parts:
        """For the simulation: of requests that come alone."""
        return Parts(
            self._part("client", ""),
            self._part("server", ""),
            self._part("worker", ""),
            {name: self._part("balancer", name) for name in self.balancers},
            self._halted_us(),
            statistics.median(sample.others for sample in self._samples.values()),
        )

    def _halted_us(self) -> float:
        """What is left of the median of seldom requests when everybody's work is taken off, for each of four wakings."""
        seldom = self._samples["seldom"]
        # The caller's own work is half before its request, which is not in the latency.
        return max(0.0, seldom.p50_us - seldom.together_us + seldom.client_us / 2) / 4

    def _cold(self, kind: str, prefix: str) -> float:
        """*cold_us*: what a single caller's request costs more when it comes after two lengths of sleep."""
        alone = self._seen(f"{prefix}alone", kind)
        shares = {name: _coldness(DIRECT[name].think_us / TICK_US) for name in ("at times", "seldom")}
        more = sum(share * (self._seen(f"{prefix}{name}", kind) - alone) for name, share in shares.items())
        return max(0.0, more / sum(share**2 for share in shares.values()))

    def _part(self, kind: str, balancer: str) -> Part:
        prefix = f"{balancer}: " if balancer else ""
        base, extra = self._line(kind, balancer, 2)
        alone = self._seen(f"{prefix}alone", kind)
        shared = self._shared_us() if kind == "worker" else 0.0
        return Part(
            base_us=base,
            wake_us=max(0.0, alone - base) / VISITS[kind],
            switch_us=extra / VISITS[kind],
            per_kib_us=self._per_kib(kind, balancer),
            arena_us=self._arena(kind, balancer),
            batch_us=min(shared, 0.9 * base),
            cold_us=self._cold(kind, prefix),
        )

    # ------------------------------------------------------------------------------------------------- costs

    def _seen(self, name: str, kind: str) -> float:
        """Of that sample; the model's own time is none of the worker's costs."""
        cost = float(getattr(self._samples[name], f"{kind}_us"))
        if kind == "worker" and "paced" in name:
            return max(1.0, cost - PACE_US)
        return cost

    def _line(self, kind: str, balancer: str, cores: int) -> tuple[float, float]:
        """*base* and *extra*."""
        suffix = ", one core" if cores == 1 else ""
        prefix = f"{balancer}: " if kind == "balancer" else ""
        many, paced = (self._seen(f"{prefix}{name}{'' if prefix else suffix}", kind) for name in ("many", "paced"))
        extra = max(0.0, paced - many) / (1.0 - GROUPS / CALLERS)
        return max(1.0, max(paced, many) - extra), extra

    def _per_kib(self, kind: str, balancer: str) -> float:
        if kind == "balancer":
            below, below_bytes, prefix = self._seen(f"{balancer}: many", kind), 16, f"{balancer}: "
        else:
            below, below_bytes, prefix = self._seen("middle", kind), MIDDLE, ""
        return max(0.0, self._seen(f"{prefix}large", kind) - below) * KIB / 2 / (LARGE - below_bytes)

    def _arena(self, kind: str, balancer: str) -> float:
        if kind == "balancer":
            return 0.0
        more = self._seen("middle", kind) - self._seen("many", kind)
        return max(0.0, more - self._per_kib(kind, balancer) * 2 * MIDDLE / KIB)

    def _shared_us(self) -> float:
        """Of a batch, however many requests it has: batches of sixteen against batches of one."""
        base, extra = self._line("worker", "", 2)
        of_one = base + extra
        each_of_many = self._samples["batches"].worker_us - BATCH_US / BATCH
        return max(0.0, min(of_one, (of_one - each_of_many) * BATCH / (BATCH - 1)))

    def _crowd(self, kind: str, load: Workload, *, is_paced: bool) -> float:
        """By how much more servers than one make everybody's work dearer."""
        if load.servers == 1 or not self.balancers:
            return 1.0
        name = "paced" if is_paced else "many"
        one, two = (self._seen(f"{prefix}: {name}", kind) for prefix in (self.balancers[0], "two"))
        return 1.0 + (load.servers - 1) * max(0.0, two / one - 1.0)

    def _costs(self, load: Workload, group: float, *, is_paced: bool = False) -> dict[str, float]:
        """Of the parts but the worker, whose are `_batch_us`'s."""
        found = {}
        for kind in KINDS:
            if kind == "worker" or (kind == "balancer" and not load.balancer):
                continue
            base, extra = self._line(kind, load.balancer, load.cores)
            found[kind] = (base + extra / group) * self._crowd(kind, load, is_paced=is_paced) + self._bytes_us(
                kind, load
            )
        return found

    def _batch_us(self, load: Workload, costs: Mapping[str, float], found: float) -> float:
        """The worker's time for a batch of *found* requests."""
        base, extra = self._line("worker", load.balancer, load.cores)
        each = (
            base + extra
            if load.compute_us or load.each_us or load.wait_us
            else base + extra * GROUPS * load.servers / load.callers
        )
        shared = min(self._shared_us(), each) if load.batch > 1 else 0.0
        crowd = self._crowd("worker", load, is_paced=bool(load.compute_us or load.wait_us))
        around = (shared + found * (each - shared)) * crowd + found * self._bytes_us("worker", load)
        return around + load.compute_us + found * load.each_us

    def _bytes_us(self, kind: str, load: Workload) -> float:
        more = self._arena(kind, load.balancer) if load.nbytes > IN_MESSAGE else 0.0
        return self._per_kib(kind, load.balancer) * 2 * load.nbytes / KIB + more

    def _efficiency(self, load: Workload) -> float:
        """The share of the cores that is used where client, server and worker wait for each other."""
        if load.servers > 1:
            seen, cores = self._samples["two: many"], DIRECT["many"].cores
        else:
            seen = self._samples[f"{load.balancer}: many" if load.balancer else "many"]
            cores = DIRECT["many"].cores
        return min(1.0, seen.per_second * seen.together_us / 1e6 / cores / (1.0 - seen.others))
