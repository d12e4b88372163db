#!/usr/bin/env python3
"""Throughput, latency and CPU per request of this server, beside those of a peer that speaks the same protocol.

    python benchmarks/compare.py --peer-command 'tritonserver --model-repository={models} --http-port={http_port} ...'

Both servers run throughout, on 127.0.0.1, with the models of the scenarios (scenarios.py). In every round each cell of
the table is measured on ours and at once on the peer (A B A B), so that what disturbs the machine for a while disturbs
both. README.md beside this file tells how to read the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmark_error import BenchmarkError
from calls import Protocol, check_answer
from client_regions import outputs_of, registered
from comparison_report import OURS, PEER, Cell, CellResult, Sample, as_json, as_markdown, as_text, others_cores
from load_generators import PACKAGES, Generator, GrpcLoad, H2load, Load, PerfAnalyzer, Wrk, require_tools
from machine_facts import machine_facts, tool_version
from measured_server import SERVE, MeasuredServer, expand, free_ports
from process_tree import everyone_cpu_seconds
from scenarios import ADD_SUB, SCENARIOS, Scenario

PROJECT = Path(__file__).resolve().parent.parent
# Those that only the benchmark asks; add_sub is the project's own.
MODELS = Path(__file__).resolve().parent / "models"
OUR_COMMAND = f"{SERVE} --allow-client-shm=true"
# Everybody else on a quiet machine, the kernel's own threads and the idle peer among them, needs a few hundredths.
QUIET_CORES = 0.1


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure scenarios on this server and, interleaved, on a peer.",
        epilog="In the two commands {python}, {models}, {http_port}, {grpc_port} and {metrics_port} are filled in. "
        "The ports follow each other, so a command may also be told {http_port} alone and count on from there.",
    )
    parser.add_argument("--server-command", metavar="COMMAND", default=OUR_COMMAND, help="default: %(default)s")
    parser.add_argument(
        "--peer-command", metavar="COMMAND", help="starts the server to compare with, for example Triton"
    )
    parser.add_argument("--only", choices=(OURS, PEER), help="measure one side alone")
    parser.add_argument(
        "--scenarios",
        type=_scenarios,
        default=[ADD_SUB.name],
        metavar="S,...",
        help=f"of {','.join(SCENARIOS)}; default: {ADD_SUB.name}",
    )
    parser.add_argument(
        "--protocols",
        type=_protocols,
        metavar="P,...",
        help=f"of {','.join(Protocol)}; default: {_defaults(lambda scenario: scenario.protocols)}",
    )
    parser.add_argument(
        "--callers",
        type=positive_list,
        metavar="N,...",
        help=f"default: {_defaults(lambda scenario: map(str, scenario.callers))}",
    )
    parser.add_argument("--rounds", type=positive, default=3, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--seconds", type=positive, default=5, metavar="S", help="each measurement; default: %(default)s"
    )
    parser.add_argument(
        "--warmup",
        type=_whole,
        default=1,
        metavar="S",
        help="before each measurement, 0: not at all; default: %(default)s",
    )
    parser.add_argument(
        "--perf-analyzer",
        metavar="COMMAND",
        help="measure with perf_analyzer too, as a cross-check (neither JSON tensors nor streams)",
    )
    parser.add_argument(
        "--model",
        type=Path,
        default=PROJECT / "model_repository" / ADD_SUB.name,
        metavar="FOLDER",
        help="add_sub's folder; default: the project's own",
    )
    parser.add_argument(
        "--port-base", type=positive, metavar="PORT", help="use this port and the five after it; default: free ones"
    )
    parser.add_argument("--start-timeout", type=positive, default=120, metavar="S", help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there as well")
    parser.add_argument("--markdown", action="store_true", help="print the result as Markdown")
    options = parser.parse_args(argv)
    if options.only == PEER and options.peer_command is None:
        parser.error("--only peer needs --peer-command")
    for scenario in _chosen(options):
        for protocol in options.protocols or ():
            if not scenario.can_be_asked_over(protocol):
                what = "has sequences" if scenario.call.steps else "streams its responses"
                parser.error(f"scenario {scenario.name} {what}, which {protocol.value} cannot carry")
    return options


def _defaults(values: Callable[[Scenario], Iterable[str]]) -> str:
    return "; ".join(f"{name}: {','.join(values(scenario))}" for name, scenario in SCENARIOS.items())


def _chosen(options: argparse.Namespace) -> list[Scenario]:
    return [SCENARIOS[name] for name in options.scenarios]


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")
    return int(text)


def positive(text: str) -> int:
    if (number := _whole(text)) == 0:
        raise argparse.ArgumentTypeError("expected a number above 0, got 0")
    return number


def positive_list(text: str) -> list[int]:
    """Numbers above 0 between commas; for argparse, as is `positive`."""
    return [positive(part.strip()) for part in text.split(",")]


def _protocols(text: str) -> list[Protocol]:
    return [Protocol(name) for name in known_names(text, [protocol.value for protocol in Protocol], "protocol")]


def _scenarios(text: str) -> list[str]:
    return known_names(text, list(SCENARIOS), "scenario")


def known_names(text: str, known: Sequence[str], kind: str) -> list[str]:
    """Names between commas, each one of *known*. Raises ArgumentTypeError with the word *kind*."""
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"there is no {kind} {name!r}; known: {', '.join(known)}")
    return names


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_arguments(argv)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    results: list[CellResult] = []
    facts = machine_facts()
    try:
        compare(options, facts, results)
    except BenchmarkError as error:
        # What was measured before it is still worth reading; without a complete round there is nothing.
        if any(result.samples for result in results):
            _report(options, facts, results)
        print(f"compare.py: {error}", file=sys.stderr)
        return 1
    _report(options, facts, results)
    return 0


def leave(number: int, _frame: object) -> None:
    """Let the servers be ended on the way out."""
    raise SystemExit(128 + number)


def compare(options: argparse.Namespace, facts: dict[str, str], results: list[CellResult]) -> None:
    """Fill *results*, and add to *facts* what is known only when the servers run. Raises BenchmarkError."""
    scenarios = _chosen(options)
    tools = sorted(
        {
            tool
            for scenario in scenarios
            for protocol in _protocols_of(scenario, options)
            for tool in _tools(scenario, protocol)
        }
    )
    require_tools(tools)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compare-")))
        models = _repository(scenarios, options.model, folder / "models")
        servers = {
            side: stack.enter_context(_started(side, command, options, models, folder))
            for side, command in _sides(options).items()
        }
        facts.update({side.capitalize(): server.version() for side, server in servers.items()})
        for scenario in scenarios:
            if any(protocol.uses_regions for protocol in _protocols_of(scenario, options)):
                stack.enter_context(registered(scenario.call, [server.ports for server in servers.values()]))
        plan = [
            Measurement(scenario, generator, callers, _checked(scenario, generator.protocol, servers))
            for scenario in scenarios
            for generator in _generators(scenario, options, folder)
            for callers in options.callers or scenario.callers
        ]
        facts["Load generators"] = ", ".join(tool_version(tool) for tool in tools)
        facts["Measured"] = (
            f"{options.rounds} rounds, {options.seconds} s each time after {options.warmup} s to warm up; shown are medians,"
            " and for the ratio of the rates also the outermost rounds"
        )
        results += [CellResult(measurement.cell) for measurement in plan]
        _announce(options, len(plan), len(servers))
        for number in range(1, options.rounds + 1):
            for measurement, result in zip(plan, results):
                measured = {side: measure(measurement, server, options) for side, server in servers.items()}
                for side, sample in measured.items():  # a round counts when both halves of it are there
                    result.samples.setdefault(side, []).append(sample)
                say(f"round {number}: {_brief(result.cell, measured)}")


@dataclass(frozen=True)
class Measurement:
    """What one cell of the table asks for. *body_bytes* is, by side, what the body of each right answer has."""

    scenario: Scenario
    generator: Generator
    callers: int
    body_bytes: Mapping[str, int]

    @property
    def cell(self) -> Cell:
        generator = self.generator
        return Cell(self.scenario.name, generator.protocol.value, self.callers, generator.name, self.scenario.responses)


def _protocols_of(scenario: Scenario, options: argparse.Namespace) -> Sequence[Protocol]:
    return options.protocols or scenario.protocols


def _generator(scenario: Scenario, protocol: Protocol) -> type[Wrk] | type[H2load] | type[GrpcLoad]:
    if protocol.is_http:
        return Wrk
    return GrpcLoad if len(scenario.call.over(protocol)) > 1 else H2load


def _tools(scenario: Scenario, protocol: Protocol) -> Sequence[str]:
    """Programs that the generator for *protocol* is, which have to be installed."""
    return [name for name in (_generator(scenario, protocol).name,) if name in PACKAGES]


def _checked(scenario: Scenario, protocol: Protocol, servers: Mapping[str, MeasuredServer]) -> dict[str, int]:
    """Ask each server once; by side, the bytes of the answer's body. Raises BenchmarkError if one answers wrongly."""
    sizes = {}
    for side, server in servers.items():
        with _naming(server):
            read = outputs_of if protocol.uses_regions else None
            sizes[side] = check_answer(scenario.call.over(protocol)[0], protocol, server.ports, read)
    return sizes


def _sides(options: argparse.Namespace) -> dict[str, str]:
    commands = {OURS: options.server_command}
    if options.peer_command is not None:
        commands[PEER] = options.peer_command
    return {side: command for side, command in commands.items() if options.only in (None, side)}


def _repository(scenarios: Sequence[Scenario], add_sub: Path, repository: Path) -> Path:
    """A repository with copies of what the scenarios need, so that both servers serve the same and nothing else."""
    for name in sorted({model for scenario in scenarios for model in scenario.models}):
        model = add_sub if name == ADD_SUB.name else MODELS / name
        if not model.joinpath("config.pbtxt").is_file():
            raise BenchmarkError(f"{model} is no model folder: it has no config.pbtxt")
        shutil.copytree(model, repository / name, ignore=shutil.ignore_patterns("__pycache__"))
    return repository


@contextlib.contextmanager
def _started(
    side: str, command: str, options: argparse.Namespace, models: Path, folder: Path
) -> Iterator[MeasuredServer]:
    base = options.port_base
    if base is not None and side == PEER:
        base += 3
    ports = free_ports(base)
    say(f"{side}: {' '.join(expand(command, models=models, ports=ports))}")
    log = folder / f"{side}.log"
    with MeasuredServer.started(
        side, command, models=models, ports=ports, log=log, timeout_s=options.start_timeout
    ) as server:
        yield server


def _generators(scenario: Scenario, options: argparse.Namespace, folder: Path) -> list[Generator]:
    generators: list[Generator] = []
    for protocol in _protocols_of(scenario, options):
        generators.append(_generator(scenario, protocol)(scenario.call, protocol, folder))
        if options.perf_analyzer is not None and protocol in PerfAnalyzer.PROTOCOLS:
            generators.append(PerfAnalyzer(options.perf_analyzer, scenario.call, protocol, folder))
    return generators


def measure(measurement: Measurement, server: MeasuredServer, options: argparse.Namespace) -> Sample:
    """Warm up, load, and compare what the generator saw with what the server has counted.

    The server's count is what CPU is divided by: it includes the few requests that were under way when the generator
    went, which it has paid for too.
    """
    generator, callers = measurement.generator, measurement.callers
    models = measurement.scenario.models
    with _naming(server):
        if options.warmup:
            generator.run(server.ports, callers=callers, seconds=options.warmup)
        before = {model: server.counters(model) for model in models}
        clock = CpuClock.now(server)
        load = generator.run(server.ports, callers=callers, seconds=options.seconds)
        spent = CpuClock.now(server).since(clock)
        served = {}
        for model in models:
            after = server.counters_with(model, before[model].succeeded + (load.answered or 1))
            served[model] = after.succeeded - before[model].succeeded
            failed = after.failed - before[model].failed
            check_counts(load, model=model, served=served[model], failed=failed, callers=callers)
        check_bytes(load, each=measurement.body_bytes[server.side], callers=callers)
    requests = served[measurement.scenario.name]
    return Sample(
        per_second=load.per_second,
        p50_us=load.p50_us,
        p99_us=load.p99_us,
        cpu_us=None if spent is None else spent.server_s / requests * 1e6,
        others_cores=None if spent is None else spent.others_s / spent.elapsed_s,
    )


@dataclass(frozen=True)
class Spent:
    elapsed_s: float
    server_s: float
    others_s: float


@dataclass(frozen=True)
class CpuClock:
    """What the server, everyone on the machine, and this process with its load generators have used up to a moment."""

    monotonic_s: float
    server_s: float | None
    everyone_s: float | None
    generators_s: float

    @classmethod
    def now(cls, server: MeasuredServer) -> CpuClock:
        # The servers are children too, but children count only once they have been waited for.
        us = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return cls(
            monotonic_s=time.monotonic(),
            server_s=server.tree.cpu_seconds(),
            everyone_s=everyone_cpu_seconds(),
            generators_s=sum(usage.ru_utime + usage.ru_stime for usage in us),
        )

    def since(self, before: CpuClock) -> Spent | None:
        """None where there is no /proc."""
        if self.server_s is None or self.everyone_s is None or before.server_s is None or before.everyone_s is None:
            return None
        server_s = self.server_s - before.server_s
        others_s = self.everyone_s - before.everyone_s - server_s - (self.generators_s - before.generators_s)
        # Each process is counted in whole ticks, so that on a quiet machine a little less than nothing may be left.
        return Spent(self.monotonic_s - before.monotonic_s, server_s, max(0.0, others_s))


def check_counts(load: Load, *, model: str, served: int, failed: int, callers: int) -> None:
    """Raises BenchmarkError unless every answer that the generator got was one that the server counts as a success.

    Of a model that is called once for each request, too. The server may have served more: each caller's request that was
    under way when the generator left, and one more of each from the warm-up that was counted late.
    """
    if served == 0 or (load.answered is not None and not load.answered <= served <= load.answered + 2 * callers):
        answered = "an unknown number of" if load.answered is None else load.answered
        raise BenchmarkError(
            f"the load generator got {answered} answers, but the server counted {served} successes and {failed} failures"
            f" of {model}"
        )


def check_bytes(load: Load, *, each: int, callers: int) -> None:
    """Raises BenchmarkError unless the answers had together what so many whole ones have, of *each* bytes.

    A stream that breaks off, or that ends in an error, looks like any other to the generator. There may be more: a part
    of an answer to each caller, which was under way when the generator left.
    """
    if load.answered is None or load.body_bytes is None:
        return
    if not load.answered * each <= load.body_bytes <= (load.answered + callers) * each:
        raise BenchmarkError(
            f"the load generator got {load.answered} answers of together {load.body_bytes} bytes, where a right one has {each}"
        )


@contextlib.contextmanager
def _naming(server: MeasuredServer) -> Iterator[None]:
    """Say of every error which server it was about, and what that server has said."""
    try:
        yield
    except BenchmarkError as error:
        raise BenchmarkError(f"{server.side}: {error}\n{server.log_tail()}") from error


def _announce(options: argparse.Namespace, cells: int, sides: int) -> None:
    runs = cells * sides * options.rounds
    minutes = runs * (options.seconds + options.warmup + 0.5) / 60
    say(f"{runs} measurements, about {minutes:.1f} minutes")


def _brief(cell: Cell, measured: dict[str, Sample]) -> str:
    rates = ", ".join(f"{side} {sample.per_second:,.0f}/s" for side, sample in measured.items())
    return f"{cell.scenario}, {cell.protocol}, {cell.callers} callers, {cell.generator}: {rates}"


def say(text: str) -> None:
    """Progress goes to standard error: standard output is the result."""
    print(text, file=sys.stderr, flush=True)


def _report(options: argparse.Namespace, facts: dict[str, str], results: list[CellResult]) -> None:
    if (others := others_cores(results)) is not None:
        facts["Everybody else"] = f"kept {others[0]:.2f} cores busy meanwhile (median), at most {others[1]:.2f}"
        if others[0] > QUIET_CORES:
            facts["Everybody else"] += "; this machine was not the benchmark's own, and the figures show it"
    measured = [result for result in results if result.samples]
    print(as_markdown(facts, measured) if options.markdown else as_text(facts, measured), end="", flush=True)
    if options.json is not None:
        content = as_json(facts, {name: _plain(value) for name, value in vars(options).items()}, measured)
        options.json.write_text(json.dumps(content, indent=2) + "\n")


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


if __name__ == "__main__":
    sys.exit(main())
