#!/usr/bin/env python3
"""What to expect of how many servers: costs of a request measured, rates forecast and checked, pods and money planned.

    python benchmarks/capacity.py calibrate --out costs.json           # two minutes on a quiet machine
    python benchmarks/capacity.py forecast --seed 7 --out seven.json   # cases drawn by the seed; nothing is measured
    python benchmarks/capacity.py forecast --scaling --out scaling.json  # one, two and four servers behind each balancer
    git commit seven.json
    python benchmarks/capacity.py check seven.json --out seven-measured.json
    python benchmarks/capacity.py plan --rate 100000 --p99-ms 50 --compute-us 4000 --batch 8 --bytes 4096
    python benchmarks/capacity.py simulate --out simulation.json       # SimPy: pip install simpy, or --group capacity
    python benchmarks/capacity.py draw                                 # docs/plots/capacity-*.svg

A forecast is a blind one: `forecast` knows the costs of a few loads of one server, draws cases at random, and writes them down
with what it expects; `check` measures a file that has been committed, and no other. The client is wrk, on the same machine, and
part of the sum. A load beside which others have used the machine is repeated, and the least disturbed one counts.
machine_simulation.py says what is assumed of a machine, capacity_model.py what is of a cluster, cluster_simulation.py has the
queues and the autoscaler.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import capacity_cases
import capacity_fit
from balancers import find_program
from benchmark_error import BenchmarkError
from capacity_machine import UNDISTURBED, Measured, Sample
from capacity_model import Cost, Costs, Plan, Unattainable, Wanted, plan
from load_generators import require_tools
from machine_facts import machine_facts
from machine_simulation import Part, Parts, Workload
from machine_simulation import simulate as simulate_machine

RESULTS = Path(__file__).resolve().parent / "results"
PLOTS = Path(__file__).resolve().parents[1] / "docs" / "plots"
BALANCERS = ("haproxy", "nginx")
WITHIN = 0.20
"""How far a forecast may be off."""
REQUESTS = 20_000
"""So many are simulated for a forecast: its own p99 is then within some percent."""


# Measuring and forecasting -------------------------------------------------------------------------------------------------


def calibrate(arguments: argparse.Namespace, folder: Path) -> int:
    """Measure what requests cost, in loads of one server. 1 where the time was over before all were measured."""
    measured = _measured(arguments, folder)
    measured.document["machine"] = machine_facts()
    is_whole = True
    for name, load in capacity_fit.loads(_present(BALANCERS)).items():
        seen = measured.measure(name, load)
        is_whole = is_whole and seen is not None
        if seen is not None:
            print(
                f"{name:<28} {seen.per_second:>8,.0f}/s  client {seen.client_us:>5.1f}  balancer {seen.balancer_us:>5.1f}  "
                f"server {seen.server_us:>6.1f}  worker {seen.worker_us:>6.1f} µs  others {seen.others:.1%}",
                flush=True,
            )
    if is_whole:
        print(_fit_text(measured.samples))
    return int(not is_whole)


def _measured(arguments: argparse.Namespace, folder: Path) -> Measured:
    return Measured(arguments.out, folder, seconds=arguments.seconds, limit_s=arguments.limit)


def _fit_text(samples: dict[str, Sample]) -> str:
    """How the loads that the costs come from are forecast with them: rates, to which nothing was fitted."""
    machine = capacity_fit.Machine(samples)
    lines = [str(machine.parts)]
    for name, load in capacity_fit.loads(machine.balancers).items():
        if load.think_us:
            seen = simulate_machine(machine.parts, load)
            off = seen.p99_us / samples[name].p99_us - 1
            costs = ", ".join(f"{kind} {cost:.0f}" for kind, cost in seen.part_us.items())
            lines.append(f"{name:<28} p99 {seen.p99_us / 1e3:.2f} ms, {off:+.1%}; p50 {seen.p50_us / 1e3:.2f}; {costs}")
        elif load.callers > 1:
            found = machine.saturated(load)
            off = found.per_second / samples[name].per_second - 1
            costs = ", ".join(f"{kind} {cost:.0f}" for kind, cost in found.part_us.items())
            lines.append(f"{name:<28} {found.per_second:>8,.0f}/s, {off:+.1%}; {found.limit}; {costs}")
    return "\n".join(lines)


def read_samples(paths: Sequence[Path]) -> dict[str, Sample]:
    """The means of what several times `calibrate` has written. Raises BenchmarkError."""
    runs = [_read_samples(path) for path in paths]
    fields = [field.name for field in dataclasses.fields(Sample)]
    common = set.intersection(*(set(run) for run in runs))
    return {
        name: Sample(**{field: statistics.fmean(getattr(run[name], field) for run in runs) for field in fields})
        for name in runs[0]
        if name in common
    }


def _read_samples(path: Path) -> dict[str, Sample]:
    try:
        written: dict[str, Any] = json.loads(path.read_text())["samples"]
        samples = {name: Sample(**one) for name, one in written.items()}
        missing = capacity_fit.loads(capacity_fit.balancers_in(samples)).keys() - samples.keys()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchmarkError(f"{path} is not what `capacity.py calibrate --out` writes: {error!r}") from error
    if missing:
        raise BenchmarkError(f"{path} is not what `capacity.py calibrate --out` writes: {sorted(missing)} are missing")
    return samples


def _present(names: Sequence[str]) -> list[str]:
    require_tools(["wrk"])
    if len(os.sched_getaffinity(0)) < 2:
        raise BenchmarkError("two cores are needed, and there is one")
    return [name for name in names if find_program(name) is not None]


def write_forecasts(arguments: argparse.Namespace) -> int:
    """Draw cases and write down what is expected of them. A file that is there is not written again."""
    if arguments.out.exists():
        raise BenchmarkError(f"{arguments.out} is there already: a forecast is made once")
    machine = capacity_fit.Machine(read_samples(arguments.costs))
    rows = []
    if arguments.scaling:
        cases = capacity_cases.scaling(machine)
    else:
        cases = capacity_cases.drawn(machine, seed=arguments.seed, count=arguments.count)
    for case in cases:
        most = machine.saturated(case.load)
        row = {
            "case": case.name,
            "load": dataclasses.asdict(case.load),
            "per_second": most.per_second,
            "limit": most.limit,
        }
        text = f"{case.name:<110} {most.per_second:>8,.0f}/s, {most.limit}"
        if not case.is_saturated:
            found = simulate_machine(machine.parts, case.load, requests=REQUESTS)
            row |= {"per_second": found.per_second, "p99_us": found.p99_us, "p50_us": found.p50_us, "busy": found.busy}
            text = f"{case.name:<110} {found.per_second:>8,.0f}/s, p99 {found.p99_us / 1e3:>7.2f} ms, busy {found.busy:.0%}"
        rows.append(row)
        print(text)
    arguments.out.write_text(json.dumps({"seed": arguments.seed, "rows": rows}, indent=1) + "\n")
    return 0


def check(arguments: argparse.Namespace, folder: Path) -> int:
    """Measure what is forecast, and show both; 1 where a judged figure is off by more than `WITHIN`, or not measured yet."""
    _present(())
    blob = committed(arguments.forecasts)
    rows = json.loads(arguments.forecasts.read_text())["rows"]
    measured = _measured(arguments, folder)
    measured.document |= {"forecasts": arguments.forecasts.name, "blob": blob, "machine": machine_facts()}
    found = []
    for row in rows:
        seen = measured.measure(row["case"], Workload(**row["load"]))
        if seen is not None:
            found.append(compared(row, seen))
            print(found[-1].text, flush=True)
    within = sum(abs(one.off) <= WITHIN for one in found)
    print(f"{within} of {len(found)} within {WITHIN:.0%}, {len(rows) - len(found)} not measured yet")
    return int(within < len(rows))


@dataclasses.dataclass(frozen=True)
class Compared:
    """A forecast beside its measurement. *off* is of what is judged: the rate, or the p99 of callers who think."""

    case: str
    is_saturated: bool
    forecast: float
    measured: float
    text: str
    of: str = ""
    """The file of the forecasts."""
    seen: tuple[float, ...] = ()
    """All that was measured of it, the first time and again, as far as nobody disturbed it."""

    @property
    def off(self) -> float:
        return self.forecast / self.measured - 1


def compared(row: dict[str, Any], seen: Sample) -> Compared:
    is_saturated = not row["load"]["think_us"]
    forecast, measured = (row["per_second"], seen.per_second) if is_saturated else (row["p99_us"], seen.p99_us)
    off = forecast / measured - 1
    p99s = f"{row.get('p99_us', 0.0) / 1e3:>6.2f} {seen.p99_us / 1e3:>6.2f} ms"
    text = (
        f"{row['case']:<110} {row['per_second']:>7,.0f} {seen.per_second:>7,.0f}/s   p99 {p99s}   "
        f"{'rate' if is_saturated else 'p99'} {off:>+6.1%}  others {seen.others:.1%}"
    )
    return Compared(row["case"], is_saturated, forecast, measured, text)


def committed(path: Path) -> str:
    """git's name of the content of *path*. Raises BenchmarkError where it is not as it was committed."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=path.parent, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    blob = git("rev-parse", "--verify", "--quiet", f"HEAD:./{path.name}")
    if not blob or blob != git("hash-object", path.name):
        raise BenchmarkError(f"{path} is to be committed before anything is measured: else it is no forecast")
    return blob


def read_costs(paths: Sequence[Path]) -> Costs:
    """What `calibrate` has written, of requests that come one by one: plans are for those. Raises BenchmarkError."""
    return alone(capacity_fit.Machine(read_samples(paths)).parts)


def alone(parts: Parts) -> Costs:
    """Costs of requests each of which wakes everybody: the dear case."""

    def cost(part: Part, visits: int) -> Cost:
        return Cost(part.base_us + visits * part.wake_us, part.per_kib_us)

    return Costs(
        server=cost(parts.server, 2),
        worker=Cost(parts.worker.base_us + parts.worker.switch_us, parts.worker.per_kib_us),  # it has always work
        balancers={name: cost(part, 2) for name, part in parts.balancers.items()},
    )


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
    """Draw the plots of docs/deploying.md, and print its table."""
    import capacity_plots

    checked = checks_in(RESULTS)
    simulated = json.loads(arguments.simulation.read_text())
    for path in capacity_plots.draw(read_costs(arguments.costs), checked, simulated, arguments.folder):
        print(path)
    before = ""
    for one in checked:
        if one.of != before:
            before = one.of
            print(before)
        scale, digits = (1.0, 0) if one.is_saturated else (1e-3, 1)
        figures = f"{one.forecast * scale:,.{digits}f} | {one.measured * scale:,.{digits}f} | {100 * one.off:+.0f}%"
        seen = " to ".join(f"{scale * end(one.seen):,.{digits}f}" for end in (min, max)) if len(one.seen) > 1 else ""
        print(f"| {one.case} | {'requests/s' if one.is_saturated else 'p99, ms'} | {figures} | {seen} |")
    return 0


def checks_in(folder: Path) -> list[Compared]:
    """All forecasts of *folder* that were measured, in the order of their files. What was measured first is what counts."""
    found = []
    for path in sorted(folder.glob("capacity-measured-*.json")):
        written = json.loads(path.read_text())
        rows = json.loads((folder / written["forecasts"]).read_text())["rows"]
        samples = _samples_in(path)
        again = [
            _samples_in(one) for one in sorted(folder.glob(path.name.replace("measured", "again").replace(".", "*.")))
        ]
        for row in rows:
            name = row["case"]
            if name in samples:
                others = [run[name] for run in again if name in run and run[name].others <= UNDISTURBED]
                seen = tuple(compared(row, sample).measured for sample in (samples[name], *others))
                found.append(dataclasses.replace(compared(row, samples[name]), of=written["forecasts"], seen=seen))
    return found


def _samples_in(path: Path) -> dict[str, Sample]:
    return {name: Sample(**one) for name, one in json.loads(path.read_text())["samples"].items()}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    costs = argparse.ArgumentParser(add_help=False)
    costs.add_argument(
        "--costs",
        type=Path,
        nargs="+",
        default=sorted(RESULTS.glob("capacity-costs*.json")),
        help="what `calibrate` has written, once or several times: then the means count",
    )
    loads = argparse.ArgumentParser(add_help=False)
    loads.add_argument("--out", type=Path, required=True, help="what is measured; a file that is there is completed")
    loads.add_argument("--seconds", type=int, default=4, help="of each load")
    loads.add_argument(
        "--limit", type=float, default=1e9, help="seconds after which no load is begun: call again for the rest"
    )
    commands.add_parser("calibrate", help="measure what a request costs", parents=[loads])
    forecast = commands.add_parser(
        "forecast", help="draw cases and write down what is expected of them", parents=[costs]
    )
    which = forecast.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="of cases that nobody chose")
    which.add_argument("--scaling", action="store_true", help="one, two and four servers behind each balancer")
    forecast.add_argument("--count", type=int, default=18)
    forecast.add_argument("--out", type=Path, required=True)
    checked = commands.add_parser(
        "check",
        help="measure what was forecast and committed; exit code 1 where one is off by 20 %% or not measured yet",
        parents=[loads],
    )
    checked.add_argument("forecasts", type=Path)
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
        if arguments.command in ("calibrate", "check"):
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers and balancers end with it
            with tempfile.TemporaryDirectory() as folder:
                return {"calibrate": calibrate, "check": check}[arguments.command](arguments, Path(folder))
        return {"forecast": write_forecasts, "plan": show_plan, "simulate": simulate, "draw": draw}[arguments.command](
            arguments
        )
    except BenchmarkError as error:
        print(f"capacity: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
