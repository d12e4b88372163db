"""From microseconds of CPU per request to pods, cores and money. Pure arithmetic: nothing is measured here.

What a request costs is a sum of three parts, each linear in its bytes: the server's process (front end and engine), the
worker's, and the balancer's. The compute of a model is the worker's own: its time for a batch divided by the batch. What one
machine does, where all of them share its cores with their client, is in capacity_fit.py and machine_simulation.py.

Assumptions, in the order of how soon they fail:

1. A server's process is one thread, as it is without ``--frontends``; so it serves at the most one core's worth.
2. A worker executes one batch at a time, and each instance has one.
3. Requests arrive independently (Poisson) and a balancer of least requests keeps the pods even.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

KIB = 1024.0


@dataclass(frozen=True)
class Cost:
    """Microseconds of CPU per request: *base_us*, and *per_kib_us* for each KiB of input and output together."""

    base_us: float
    per_kib_us: float = 0.0

    def of(self, nbytes: float) -> float:
        return self.base_us + self.per_kib_us * nbytes / KIB


@dataclass(frozen=True)
class Costs:
    """What was measured on one kind of core. *balancers* are by name."""

    server: Cost
    worker: Cost
    balancers: Mapping[str, Cost] = field(default_factory=dict)


# Queues ------------------------------------------------------------------------------------------------------------------


def erlang_c(servers: int, load: float) -> float:
    """The share of arrivals that wait, of *load* in servers' time; 1 from saturation on."""
    if load >= servers:
        return 1.0
    inverse = 1.0  # of Erlang B, by its recursion, which no number of servers overflows
    for number in range(1, servers + 1):
        inverse = 1.0 + inverse * number / load if load else math.inf
    blocked = 1.0 / inverse
    return blocked / (1.0 - load / servers * (1.0 - blocked))


def wait_quantile(servers: int, rate: float, service_s: float, quantile: float, *, variation: float = 0.0) -> float:
    """Seconds that a share *quantile* of requests wait at the most, of *rate* a second with *service_s* each.

    M/G/c by the approximation of Lee and Longton: M/M/c times (1 + *variation*²) / 2, *variation* being the service time's
    coefficient of variation: 0 for a model that takes the same time for every batch.
    """
    load = rate * service_s
    if load >= servers:
        return math.inf
    waits = erlang_c(servers, load)
    if waits <= 1.0 - quantile:
        return 0.0
    return math.log(waits / (1.0 - quantile)) * service_s / (servers - load) * (1.0 + variation**2) / 2.0


# Plans -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """What is to be served. *compute_us* is of a batch of *batch* requests; *p99_ms* includes it."""

    per_second: float
    p99_ms: float
    nbytes: float
    compute_us: float
    batch: int = 1
    is_cpu: bool = True
    """Whether compute takes a core; a GPU's does not."""
    instances: int = 1
    price_per_core_hour: float = 0.04
    spare: float = 0.2
    """Share of the pods that may be gone: an update, a node."""


@dataclass(frozen=True)
class Plan:
    per_pod: float
    """Requests a second for which a pod keeps the latency."""
    limit: str
    cores_per_pod: float
    pods: int
    cores: float
    balancer_cores: float
    price_per_hour: float
    price_per_million: float


class Unattainable(ValueError):
    """No number of pods gives this latency: one request alone takes longer."""


def plan(costs: Costs, wanted: Wanted, *, balancer: str = "haproxy") -> Plan:
    """Pods and money for *wanted*. Raises Unattainable."""
    server_us, worker_us = costs.server.of(wanted.nbytes), costs.worker.of(wanted.nbytes)
    # A worker's server is a batch: its time, and what each of its requests costs around it.
    batch_s = (wanted.compute_us + wanted.batch * worker_us) / 1e6
    alone_ms = (wanted.compute_us + worker_us + server_us) / 1e3
    if alone_ms > wanted.p99_ms:
        raise Unattainable(f"one request alone takes {alone_ms:.2f} ms, and {wanted.p99_ms:g} ms are wanted")
    by_server = 0.8 * 1e6 / server_us  # beyond that its own queue is long
    most = wanted.instances * wanted.batch / batch_s
    low, high = 0.0, most
    for _ in range(60):  # the largest rate whose 99th percentile is short enough
        rate = (low + high) / 2
        waits_s = wait_quantile(wanted.instances, rate / wanted.batch, batch_s, 0.99)
        # A batch begins when the one before it ends: who comes in between has waited for that, and then for its own batch.
        if (waits_s + batch_s) * 1e3 + server_us / 1e3 <= wanted.p99_ms:
            low = rate
        else:
            high = rate
    by_worker = low
    per_pod, limit = min((by_server, "the server's process"), (by_worker, "the workers"))
    if per_pod <= 0:
        raise Unattainable(
            f"a batch of {wanted.batch} takes {batch_s * 1e3:.2f} ms, and {wanted.p99_ms:g} ms are wanted"
        )
    pods = math.ceil(wanted.per_second / per_pod / (1 - wanted.spare))
    share = wanted.per_second / pods
    busy_us = server_us + worker_us + (wanted.compute_us / wanted.batch if wanted.is_cpu else 0.0)
    # Requests of Kubernetes: what is used, and not below what the busiest thread needs to be free when it is wanted.
    cores_per_pod = max(math.ceil(share * busy_us / 1e6 * 10) / 10, 1.0)
    balancer_cores = wanted.per_second * costs.balancers[balancer].of(wanted.nbytes) / 1e6 if balancer else 0.0
    cores = pods * cores_per_pod + balancer_cores
    per_hour = cores * wanted.price_per_core_hour
    return Plan(
        per_pod,
        limit,
        cores_per_pod,
        pods,
        cores,
        balancer_cores,
        per_hour,
        per_hour / (wanted.per_second * 3600) * 1e6,
    )
