#!/usr/bin/env python3
"""What to expect of how many servers: costs of a request measured, rates forecast and checked, pods and money planned.

    python benchmarks/capacity.py measure --out capacity.json      # a minute or two on a quiet machine
    python benchmarks/capacity.py plan --rate 100000 --p99-ms 50 --compute-us 4000 --batch 8 --bytes 4096
    python benchmarks/capacity.py simulate --out simulation.json   # SimPy: pip install simpy, or --group capacity
    python benchmarks/capacity.py draw                             # docs/plots/capacity-*.svg

`measure` takes the costs from short loads of one server, directly and behind each balancer, and then loads what it has forecast
from them: one core and two, two servers and four behind haproxy and nginx. The client is wrk, on the same machine, and part of
the sum. A load beside which others have used the machine is repeated, and the least disturbed one counts. capacity_model.py has
the arithmetic and what it assumes, cluster_simulation.py the queues and the autoscaler.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from balancers import find_program, running_balancer
from benchmark_error import BenchmarkError
from calls import Call, Protocol
from capacity_model import Cost, Costs, Plan, Unattainable, Wanted, fitted, forecast, plan
from load_generators import Load, Wrk, require_tools
from machine_facts import machine_facts
from measured_server import SERVE, MeasuredServer, Ports, free_ports
from process_tree import ProcessTree, everyone_cpu_seconds

RESULTS = Path(__file__).resolve().parent / "results"
PLOTS = Path(__file__).resolve().parents[1] / "docs" / "plots"
BALANCERS = ("haproxy", "nginx")
SMALL, MIDDLE, LARGE = 16, 8_192, 65_536
"""Bytes of the tensor that goes in, and comes out again."""
IN_MESSAGE = 4_096
"""Up to so many bytes a tensor is in the message to the worker; larger ones are in the arena, which costs a step."""
COMPUTE_US = 500.0
FEWER = 4
"""By how much fewer callers are fewer."""
WITHIN = 0.20
"""How far a forecast may be off."""
_UNDISTURBED = 0.03
"""Share of the machine's time that others may have used during a load."""
_TRIES = 2
_START_S = 60.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")

CONFIG = """
backend: "python"
max_batch_size: 0
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
"""
CODE = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            until = time.perf_counter_ns() + SPIN_NS
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())]))
            while time.perf_counter_ns() < until:
                pass
        return responses
"""


def write_models(folder: Path) -> None:
    """Two models that give back what they get: ``echo`` at once, ``busy`` after `COMPUTE_US` of a core's time."""
    for name, spin_us in (("echo", 0.0), ("busy", COMPUTE_US)):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(CONFIG)
        (folder / name / "1" / "model.py").write_text(CODE.replace("SPIN_NS", str(int(spin_us * 1e3))))


# Measuring -----------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Sample:
    """One load: its rate and latencies, and microseconds of CPU per request by part."""

    per_second: float
    p50_us: float
    p99_us: float
    server_us: float
    worker_us: float
    client_us: float
    balancer_us: float
    others: float = 0.0
    """Share of the cores' time that went to anybody else."""

    @property
    def together_us(self) -> float:
        return self.server_us + self.worker_us + self.client_us + self.balancer_us


@dataclasses.dataclass(frozen=True)
class Bench:
    """What a load needs: the folder of models, and how long and with how many callers."""

    folder: Path
    seconds: int
    callers: int


@contextlib.contextmanager
def running(bench: Bench, count: int) -> Iterator[list[MeasuredServer]]:
    """*count* servers, ready."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                MeasuredServer.started(
                    f"server {number}",
                    SERVE,
                    models=bench.folder / "models",
                    ports=free_ports(),
                    log=bench.folder / f"server-{number}.log",
                    timeout_s=_START_S,
                )
            )
            for number in range(count)
        ]


def _cpu_s(servers: Sequence[MeasuredServer]) -> tuple[float, float]:
    """Seconds of the servers' processes, and of all that they have started."""
    own = others = 0.0
    for server in servers:
        for member in server.tree.members():
            if member.pid == server.tree.root:
                own += member.cpu_ticks * _TICK_S
            else:
                others += member.cpu_ticks * _TICK_S
    return own, others


def load(
    bench: Bench,
    servers: Sequence[MeasuredServer],
    ports: Ports,
    *,
    model: str,
    nbytes: int,
    callers: int,
    proxy: ProcessTree | None,
) -> Sample:
    """Load what listens at *ports* with tensors of *nbytes*. The first second warms up."""
    call = Call(
        model, {"IN": np.arange(nbytes // 4, dtype=np.float32)}, [{"OUT": np.arange(nbytes // 4, dtype=np.float32)}]
    )
    wrk = Wrk(call, Protocol.HTTP_BINARY, bench.folder)
    wrk.run(ports, callers=callers, seconds=1)
    own, others = _cpu_s(servers)
    before_proxy = proxy.cpu_seconds() or 0.0 if proxy is not None else 0.0
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    everyone, began = everyone_cpu_seconds() or 0.0, time.monotonic()
    seen: Load = wrk.run(ports, callers=callers, seconds=bench.seconds)
    everyone_after, elapsed_s = everyone_cpu_seconds() or 0.0, time.monotonic() - began
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    own_after, others_after = _cpu_s(servers)
    after_proxy = proxy.cpu_seconds() or 0.0 if proxy is not None else 0.0
    count = seen.answered or seen.per_second * bench.seconds
    client_s = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    ours_s = own_after - own + others_after - others + client_s + after_proxy - before_proxy
    share = max(0.0, everyone_after - everyone - ours_s) / elapsed_s / (os.cpu_count() or 1)
    return Sample(
        seen.per_second,
        seen.p50_us,
        seen.p99_us,
        server_us=(own_after - own) / count * 1e6,
        worker_us=(others_after - others) / count * 1e6,
        client_us=client_s / count * 1e6,
        balancer_us=(after_proxy - before_proxy) / count * 1e6,
        others=share,
    )


def sample(
    bench: Bench, count: int, *, through: str = "", model: str = "echo", nbytes: int = SMALL, callers: int = 0
) -> Sample:
    """The least disturbed of a few loads of *count* fresh servers, with a balancer of that name before them.

    *callers* are `Bench.callers` for each server unless they are given.
    """
    callers = callers or bench.callers * count
    least: Sample | None = None
    for _ in range(_TRIES):
        seen = _sample(bench, count, through, model, nbytes, callers)
        if least is None or seen.others < least.others:
            least = seen
        if least.others <= _UNDISTURBED:
            break
    assert least is not None
    return least


def _sample(bench: Bench, count: int, through: str, model: str, nbytes: int, callers: int) -> Sample:
    with running(bench, count) as servers:
        if not through:
            return load(bench, servers, servers[0].ports, model=model, nbytes=nbytes, callers=callers, proxy=None)
        with running_balancer(through, [server.ports for server in servers], bench.folder) as (pid, ports):
            return load(bench, servers, ports, model=model, nbytes=nbytes, callers=callers, proxy=ProcessTree(pid))


def costs_of(
    samples: Mapping[str, Sample],
    cores: int,
    *,
    servers: int = 1,
    paced: bool = False,
    nbytes: int = SMALL,
    is_full: bool = False,
) -> Costs:
    """The costs of a request to each of *servers*, with tensors of *nbytes*.

    A process that is woken for one request pays for the waking, and one that finds ten has the other nine for less. So costs
    are measured with many callers, with a quarter of them, and with one alone. *paced*: a model that answers one after the
    other has its server woken for each, whoever calls; the worker has always work. Servers that share cores behind a balancer
    find as many requests at a time as if their callers were divided among them. Where all cores are full (*is_full*) everything
    costs more, for switching and for caches: as much more as one core shows that has to do all of it.
    """
    small, few, alone = samples["small"], samples["few"], samples["alone"]
    large, below = samples["large"], samples["middle" if nbytes > IN_MESSAGE else "small"]
    below_bytes = MIDDLE if nbytes > IN_MESSAGE else SMALL
    surcharge = max(1.0, samples["one core"].together_us / small.together_us) if is_full else 1.0
    # The share of a waking is one through the number of requests found, which goes with the number of callers.
    towards_few = (servers - 1) / (FEWER - 1)

    def part(name: str, *, wakes: bool = True) -> Cost:
        # Bytes go in and come out.
        many = getattr(small, name)
        line = fitted((2.0 * below_bytes, getattr(below, name)), (2.0 * LARGE, getattr(large, name)))
        more = max(0.0, getattr(few, name) - many) * towards_few
        if paced:
            more = getattr(alone, name) - many if wakes else 0.0
        return Cost((line.base_us + more) * surcharge, line.per_kib_us * surcharge)

    suffix = " alone" if paced else ""
    used = small.per_second * small.together_us / 1e6
    is_one_chain = servers == 1 and not paced
    return Costs(
        server=part("server_us"),
        worker=part("worker_us", wakes=False) if paced else part("worker_us"),
        client=part("client_us"),
        balancers={name: Cost(samples[name + suffix].balancer_us * surcharge) for name in BALANCERS if name in samples},
        # Several chains of client, server and worker leave no core idle; one does.
        efficiency=min(1.0, max(0.0, (used - 1) / max(available(small, cores) - 1, 0.1))) if is_one_chain else 1.0,
    )


def available(seen: Sample, cores: int) -> float:
    """Of *cores* those that others have left to a load."""
    return min(float(cores), (os.cpu_count() or 1) * (1.0 - seen.others))


@dataclasses.dataclass(frozen=True)
class Case:
    """Something that is forecast, and then measured."""

    name: str
    cores: int
    servers: int
    through: str = ""
    model: str = "echo"
    nbytes: int = SMALL


CASES = (
    Case("one server, one core, 16 KiB", 1, 1, nbytes=16_384),
    Case("one server, one core, 500 µs of compute", 1, 1, model="busy"),
    Case("one server, two cores, 500 µs of compute", 2, 1, model="busy"),
    Case("one server, two cores, 16 KiB", 2, 1, nbytes=16_384),
    Case("2 servers behind haproxy", 2, 2, "haproxy"),
    Case("4 servers behind haproxy", 2, 4, "haproxy"),
    Case("2 servers behind nginx", 2, 2, "nginx"),
    Case("4 servers behind nginx", 2, 4, "nginx"),
    Case("2 servers behind haproxy, 500 µs of compute", 2, 2, "haproxy", model="busy"),
    Case("4 servers behind haproxy, 500 µs of compute", 2, 4, "haproxy", model="busy"),
)


def forecast_of(samples: Mapping[str, Sample], case: Case, cores: float) -> float:
    """Requests a second, on as many *cores* as others have left."""
    is_busy = case.model == "busy"
    found = forecast(
        costs_of(
            samples,
            2,
            servers=case.servers,
            paced=is_busy,
            nbytes=case.nbytes,
            is_full=case.cores == 1 or case.servers > 1,
        ),
        cores=cores,
        servers=case.servers,
        nbytes=2.0 * case.nbytes,
        balancer=case.through,
        compute_us=COMPUTE_US if is_busy else 0.0,
    )
    return found.per_second


@contextlib.contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Have this process and all that it starts use *count* cores alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(before)[:count]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measure(arguments: argparse.Namespace, folder: Path) -> int:
    require_tools(["wrk"])
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        raise BenchmarkError("two cores are needed, and there is one")
    present = [name for name in BALANCERS if find_program(name) is not None]
    write_models(folder / "models")
    bench = Bench(folder, arguments.seconds, arguments.callers)
    with on_cores(2):
        samples = {
            "small": sample(bench, 1),
            "middle": sample(bench, 1, nbytes=MIDDLE),
            "large": sample(bench, 1, nbytes=LARGE),
            "few": sample(bench, 1, callers=bench.callers // FEWER),
            "alone": sample(bench, 1, callers=1),
        }
        for name in present:
            samples[name] = sample(bench, 1, through=name)
            samples[f"{name} alone"] = sample(bench, 1, through=name, callers=1)
    with on_cores(1):
        samples["one core"] = sample(bench, 1)
    rows = []
    for case in CASES:
        if case.through and case.through not in present:
            continue
        with on_cores(case.cores):
            seen = sample(bench, case.servers, through=case.through, model=case.model, nbytes=case.nbytes)
        said = forecast_of(samples, case, available(seen, case.cores))
        rows.append({
            "case": case.name, "forecast": said, "measured": seen.per_second, "off": said / seen.per_second - 1,
            **dataclasses.asdict(seen),
        })  # fmt: skip
        print(
            f"{case.name:<46} {said:>9,.0f} {seen.per_second:>9,.0f} {rows[-1]['off']:>+7.1%}  "
            f"p99 {seen.p99_us / 1e3:.1f} ms, others {seen.others:.1%}",
            flush=True,
        )
    document = {
        "machine": machine_facts(),
        "callers": bench.callers,
        "seconds": bench.seconds,
        "samples": {name: dataclasses.asdict(one) for name, one in samples.items()},
        "costs": dataclasses.asdict(costs_of(samples, 2)),
        "costs_alone": dataclasses.asdict(costs_of(samples, 2, paced=True)),
        "rows": rows,
    }
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    return int(any(abs(row["off"]) > WITHIN for row in rows))


def read_costs(path: Path) -> Costs:
    """What `measure` has written, of requests that come one by one: plans are for those. Raises BenchmarkError."""
    try:
        written: dict[str, Any] = json.loads(path.read_text())["costs_alone"]
        return Costs(
            Cost(**written["server"]),
            Cost(**written["worker"]),
            Cost(**written["client"]),
            {name: Cost(**cost) for name, cost in written["balancers"].items()},
            written["efficiency"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchmarkError(f"{path} is not what `capacity.py measure --out` writes: {error!r}") from error


# Planning ------------------------------------------------------------------------------------------------------------------


def plan_text(wanted: Wanted, found: Plan) -> str:
    """A few lines for whoever has to buy it."""
    return "\n".join((
        f"a pod serves   {found.per_pod:,.0f} requests/s with a p99 below {wanted.p99_ms:g} ms; the limit is {found.limit}",
        f"pods           {found.pods:,}, cores of each {found.cores_per_pod:g}, {wanted.spare:.0%} of them to spare",
        f"cores          {found.cores:,.0f}, {found.balancer_cores:,.1f} of them for the balancer",
        f"price          {found.price_per_hour:,.2f} an hour, {found.price_per_million:.4f} for a million requests",
    ))  # fmt: skip


def show_plan(arguments: argparse.Namespace) -> int:
    wanted = Wanted(
        per_second=arguments.rate,
        p99_ms=arguments.p99_ms,
        nbytes=arguments.bytes,
        compute_us=arguments.compute_us,
        batch=arguments.batch,
        is_cpu=not arguments.gpu,
        instances=arguments.instances,
        price_per_core_hour=arguments.price,
    )
    try:
        print(plan_text(wanted, plan(read_costs(arguments.costs), wanted, balancer=arguments.balancer)))
    except Unattainable as error:
        raise BenchmarkError(str(error)) from error
    return 0


# Simulating and drawing ----------------------------------------------------------------------------------------------------


def simulate(arguments: argparse.Namespace) -> int:
    import cluster_simulation

    document = cluster_simulation.study(read_costs(arguments.costs), seed=arguments.seed)
    for row in document["runs"]:
        print(
            f"{row['signal']:<12} {row['name']:<28} pods {row['first_pods']:>6,} to {row['most_pods']:>6,}  "
            f"late {row['late_share']:>7.2%}  pod hours {row['pod_hours']:>9,.0f}"
        )
    arguments.out.write_text(json.dumps(document) + "\n")
    return 0


def draw(arguments: argparse.Namespace) -> int:
    import capacity_plots

    for path in capacity_plots.draw(
        json.loads(arguments.costs.read_text()), json.loads(arguments.simulation.read_text()), arguments.folder
    ):
        print(path)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    costs = argparse.ArgumentParser(add_help=False)
    costs.add_argument("--costs", type=Path, default=RESULTS / "capacity.json", help="what `measure` has written")
    measured = commands.add_parser(
        "measure", help="forecasts beside measurements; exit code 1 where one is off by 20 %%"
    )
    measured.add_argument("--out", type=Path)
    measured.add_argument("--seconds", type=int, default=4, help="of each load")
    measured.add_argument("--callers", type=int, default=32, help="for each server")
    planned = commands.add_parser("plan", help="pods, cores and money for a rate and a latency", parents=[costs])
    planned.add_argument("--rate", type=float, required=True, help="requests a second")
    planned.add_argument("--p99-ms", type=float, required=True)
    planned.add_argument("--bytes", type=float, default=4096, help="of inputs and outputs of a request together")
    planned.add_argument("--compute-us", type=float, required=True, help="of one batch in `execute`")
    planned.add_argument("--batch", type=int, default=1, help="requests in a batch under load")
    planned.add_argument("--instances", type=int, default=1, help="of the model in a pod")
    planned.add_argument("--gpu", action="store_true", help="compute takes no core")
    planned.add_argument("--price", type=float, default=0.04, help="of a core for an hour")
    planned.add_argument("--balancer", choices=["", *BALANCERS], default="haproxy")
    simulated = commands.add_parser("simulate", help="queues, batches and autoscaling, to 10,000 pods", parents=[costs])
    simulated.add_argument("--out", type=Path, default=RESULTS / "capacity-simulation.json")
    simulated.add_argument("--seed", type=int, default=1)
    drawn = commands.add_parser("draw", help="the plots of docs/deploying.md", parents=[costs])
    drawn.add_argument("--simulation", type=Path, default=RESULTS / "capacity-simulation.json")
    drawn.add_argument("--folder", type=Path, default=PLOTS)
    arguments = parser.parse_args(argv)
    try:
        if arguments.command == "measure":
            with tempfile.TemporaryDirectory() as folder:
                return measure(arguments, Path(folder))
        return {"plan": show_plan, "simulate": simulate, "draw": draw}[arguments.command](arguments)
    except BenchmarkError as error:
        print(f"capacity: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
