#!/usr/bin/env python3
"""Throughput, latency and CPU of other Python model servers beside this one, each in an environment of its own.

    python benchmarks/peers.py --rounds 5 --triton 'tritonserver --model-repository={models} --http-port={http_port} ...'

The folder peers/ has the model add_sub and the requirements of each peer. Every server computes the same, in one instance,
and gets the same numbers from wrk over HTTP/1.1 as JSON: in the form of V2 where it knows that, else in its own. One server
runs at a time; a round is one run of each, so that what disturbs the machine for a while disturbs several of them.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmark_error import BenchmarkError
from calls import Call, HttpRequest, Protocol, check_answer, check_tensors, post, raw_http_request, raw_post
from compare import OUR_COMMAND, PROJECT, QUIET_CORES, CpuClock, known_names, leave, positive, positive_list, say
from comparison_report import FIGURES, OURS, Cell, CellResult, Sample, as_json, median, others_cores, spread_percent
from load_generators import Wrk, require_tools, run_bounded, run_wrk_with
from machine_facts import first_line, machine_facts, tool_version
from measured_server import MeasuredServer, Ports, free_ports
from scenarios import ADD_SUB

FOLDER = Path(__file__).resolve().parent / "peers"
TRITON = "triton"
CALL = ADD_SUB.call
V2_READY = f"/v2/models/{CALL.model}/ready"
WARM_UP_S = 1
CALLERS = (1, 8, 32, 128)
# The largest has 700 MB to download.
INSTALL_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class Peer:
    """A server to measure. *distribution* is what its version is asked of, if it has an environment of ours.

    *own_path* is where it takes the numbers as `{"id": ..., "INPUT0": [...], "INPUT1": [...]}`; None where it speaks V2.
    *configured* says in words what differs from the server's defaults, for docs/performance.md.
    """

    name: str
    title: str
    distribution: str
    command: str
    ready_path: str
    own_path: str | None
    configured: str

    @property
    def form(self) -> str:
        """What a request looks like, in a word for tables."""
        return "V2" if self.own_path is None else f"its own, `{self.own_path}`"


PEERS: Mapping[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            "pytriton",
            "PyTriton",
            "nvidia-pytriton",
            "{python} {models}/server.py {http_port} {grpc_port} {metrics_port}",
            V2_READY,
            None,
            "one inference callable, `batching=False`; the Triton is the one in its wheel",
        ),
        Peer(
            "mlserver",
            "MLServer",
            "mlserver",
            "env MLSERVER_HTTP_PORT={http_port} MLSERVER_GRPC_PORT={grpc_port} MLSERVER_METRICS_PORT={metrics_port}"
            " {python} -c 'from mlserver.cli.main import main; main()' start {models}",
            V2_READY,
            None,
            "`parallel_workers: 1`, `debug: false` (no access log), `gzip_enabled: false`",
        ),
        Peer(
            "kserve",
            "KServe",
            "kserve",
            "{python} {models}/server.py --http_port={http_port} --workers=1 --enable_grpc=false"
            " --enable_latency_logging=false --log_config_file={models}/logging.json",
            V2_READY,
            None,
            "`--workers=1`, which runs the model in the server's process; no gRPC, no latency log, no access log",
        ),
        Peer(
            "litserve",
            "LitServe",
            "litserve",
            "{python} {models}/server.py {http_port}",
            "/health",
            "/predict",
            '`workers_per_device=1`, `num_api_servers=1`, `log_level="warning"` (no access log)',
        ),
        Peer(
            "bentoml",
            "BentoML",
            "bentoml",
            "env BENTOML_DO_NOT_TRACK=true {python} -m bentoml serve service:AddSub --working-dir={models}"
            " --host=127.0.0.1 --port={http_port}",
            "/readyz",
            "/infer",
            "`workers=1`, which runs the model in a thread of the server; no access log, no usage statistics",
        ),
        Peer(
            "ray",
            "Ray Serve",
            "ray",
            "env RAY_SERVE_THROUGHPUT_OPTIMIZED=1 RAY_USAGE_STATS_ENABLED=0 {python} {models}/server.py {http_port}",
            "/-/healthz",
            "/infer",
            "`num_replicas=1`, `max_ongoing_requests=1000`, `RAY_SERVE_THROUGHPUT_OPTIMIZED=1`; no dashboard,"
            " no access log, no usage statistics",
        ),
    )
}
NAMES = (OURS, TRITON, *PEERS)


@dataclass(frozen=True)
class Server:
    """A peer, a Triton or one of ours that is there to be started. *models* is what {models} stands for."""

    peer: Peer
    python: str
    models: Path
    version: str
    python_version: str

    @property
    def name(self) -> str:
        return self.peer.name

    @contextlib.contextmanager
    def started(self, folder: Path, *, timeout_s: int) -> Iterator[MeasuredServer]:
        with MeasuredServer.started(
            self.name,
            self.peer.command,
            models=self.models,
            ports=free_ports(),
            log=folder / f"{self.name}.log",
            timeout_s=timeout_s,
            python=self.python,
            ready_path=self.peer.ready_path,
        ) as server:
            yield server

    def described(self) -> dict[str, str]:
        """What a result file tells of it. A command line is not in it: it may hold paths of the machine."""
        peer = self.peer
        return {
            "name": self.name,
            "title": peer.title,
            "version": self.version,
            "python": self.python_version,
            "form": peer.form,
            "configured": peer.configured,
        }


# ----------------------------------------------------------------------------------------------------------------------
# The command line


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure other model servers beside this one.",
        epilog="In the command of --triton {models}, {http_port}, {grpc_port} and {metrics_port} are filled in."
        " The ports follow each other, so a command may also be told {http_port} alone and count on from there.",
    )
    parser.add_argument(
        "--servers",
        type=lambda text: known_names(text, NAMES, "server"),
        metavar="S,...",
        help=f"of {','.join(NAMES)}; default: all, {TRITON} if --triton says how it is started",
    )
    parser.add_argument(
        "--callers", type=positive_list, default=list(CALLERS), metavar="N,...", help="default: %(default)s"
    )
    parser.add_argument("--rounds", type=positive, default=3, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--seconds", type=positive, default=5, metavar="S", help="each measurement; default: %(default)s"
    )
    parser.add_argument("--triton", metavar="COMMAND", help="starts a Triton; without it Triton is left out")
    parser.add_argument(
        "--python",
        action="append",
        metavar="COMMAND",
        help="a Python for this server, which is installed from this checkout; may be repeated; default: the running one",
    )
    parser.add_argument(
        "--peer-python",
        default=sys.executable,
        metavar="COMMAND",
        help="the Python of the peers; default: the running one",
    )
    parser.add_argument(
        "--environments",
        type=Path,
        default=PROJECT / ".peers",
        metavar="FOLDER",
        help="where environments are made, and found by the next run; default: .peers in the project",
    )
    parser.add_argument("--start-timeout", type=positive, default=120, metavar="S", help="default: %(default)s")
    parser.add_argument("--result", type=Path, metavar="FILE", help="write every figure there as well, as JSON")
    options = parser.parse_args(argv)
    if options.servers is None:
        options.servers = [name for name in NAMES if name != TRITON or options.triton is not None]
    if TRITON in options.servers and options.triton is None:
        parser.error(f"--servers {TRITON} needs --triton")
    options.python = options.python or [sys.executable]
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_arguments(argv)
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, leave)
    try:
        require_tools([Wrk.name])
    except BenchmarkError as error:
        print(f"peers.py: {error}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        folder = Path(name)
        servers = prepared(options, folder)
        results = [
            CellResult(Cell(ADD_SUB.name, Protocol.HTTP_JSON.value, callers, Wrk.name)) for callers in options.callers
        ]
        for number in range(1, options.rounds + 1):
            for server in list(servers):
                try:
                    samples = run(server, folder, options)
                except BenchmarkError as error:
                    leave_out(server, error, servers, results)
                    continue
                for result, sample in zip(results, samples):
                    result.samples.setdefault(server.name, []).append(sample)
                say(f"round {number}: {server.name}: {brief(options.callers, samples)}")
    if not servers:
        print("peers.py: no server is left", file=sys.stderr)
        return 1
    facts = facts_of(options, results)
    print(as_text(facts, servers, results), end="")
    if options.result is not None:
        options.result.write_text(json.dumps(document(facts, options, servers, results), indent=1) + "\n")
    return 0


def leave_out(server: Server, error: BenchmarkError, servers: list[Server], results: Sequence[CellResult]) -> None:
    """Say why, and forget what was measured of it: medians of fewer rounds are not to be compared."""
    say(f"{server.name} is left out: {error}")
    servers.remove(server)
    for result in results:
        result.samples.pop(server.name, None)


def brief(callers: Sequence[int], samples: Sequence[Sample]) -> str:
    return ", ".join(f"{count} callers {sample.per_second:,.0f}/s" for count, sample in zip(callers, samples))


# ----------------------------------------------------------------------------------------------------------------------
# Environments


def prepared(options: argparse.Namespace, folder: Path) -> list[Server]:
    """All that were asked for and can be had, each with an environment. Says of the others why they are left out."""
    repository = folder / "models"
    shutil.copytree(
        PROJECT / "model_repository" / ADD_SUB.name,
        repository / ADD_SUB.name,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    servers: list[Server] = []
    for name in options.servers:
        for python in options.python if name == OURS else [options.peer_python]:
            try:
                if name == OURS:
                    server = ours(python, options, repository)
                elif name == TRITON:
                    server = triton(options.triton, options, folder)
                else:
                    server = installed(PEERS[name], options, folder)
            except BenchmarkError as error:
                say(f"{name} is left out: {error}")
                continue
            if any(other.name == server.name for other in servers):
                say(f"{server.name}: the second one with this Python is left out")
                continue
            servers.append(server)
    return servers


def ours(python: str, options: argparse.Namespace, repository: Path) -> Server:
    """This checkout, installed anew: it may have changed since the last run."""
    version = python_version(python)
    minor = version.rpartition(".")[0]
    several = len(options.python) > 1
    name = f"{OURS}-{minor}" if several else OURS
    environment = options.environments / f"{OURS}-{minor}"
    if not holds(environment, version):
        make_empty(environment, python)
    say(f"{name}: installing this checkout")
    install(environment, str(PROJECT))
    environment.joinpath(STAMP).write_text(version)
    found = python_of(environment)
    # The command, and not `python -m`, which would find the checkout in the working directory.
    told = first_line([str(found.with_name("pytriton-lite")), "--version"])
    peer = Peer(
        name,
        f"pytriton-lite, Python {minor}" if several else "pytriton-lite",
        "pytriton-lite",
        OUR_COMMAND,
        V2_READY,
        None,
        "defaults; one instance",
    )
    return Server(peer, str(found), repository, told.removeprefix("pytriton-lite "), version)


def triton(command: str, options: argparse.Namespace, folder: Path) -> Server:
    """Starts it once, to have its version: nobody else knows."""
    peer = Peer(TRITON, "Triton", "", command, V2_READY, None, "defaults; one instance, Python backend")
    server = Server(peer, sys.executable, folder / "models", "", "its own")
    with server.started(folder, timeout_s=options.start_timeout) as running:
        version = running.version().rpartition(" ")[2]
    return Server(peer, server.python, server.models, version, server.python_version)


def installed(peer: Peer, options: argparse.Namespace, folder: Path) -> Server:
    """The peer with exactly what its requirements.txt says. What is there from an earlier run is kept."""
    requirements = FOLDER / peer.name / "requirements.txt"
    version = python_version(options.peer_python)
    wanted = f"{version}\n{requirements.read_text()}"
    environment = options.environments / peer.name
    if not holds(environment, wanted):
        say(f"{peer.name}: making an environment")
        make_empty(environment, options.peer_python)
        install(environment, "-r", str(requirements))
        environment.joinpath(STAMP).write_text(wanted)
    found = python_of(environment)
    models = folder / peer.name
    shutil.copytree(requirements.parent, models, ignore=shutil.ignore_patterns("__pycache__"))
    told = f"import importlib.metadata as metadata; print(metadata.version({peer.distribution!r}))"
    return Server(peer, str(found), models, first_line([str(found), "-c", told]), version)


STAMP = "installed.txt"
"""Says what an environment holds; absent until all of it is there."""


def holds(environment: Path, wanted: str) -> bool:
    stamp = environment / STAMP
    return stamp.exists() and stamp.read_text() == wanted


def make_empty(environment: Path, python: str) -> None:
    run_bounded([python, "-m", "venv", "--clear", str(environment)], limit_s=INSTALL_TIMEOUT_S)


def install(environment: Path, *what: str) -> None:
    pip = [str(python_of(environment)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run_bounded([*pip, *what], limit_s=INSTALL_TIMEOUT_S)


def python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


def python_version(python: str) -> str:
    found = first_line([python, "-c", "import platform; print(platform.python_version())"])
    if found == "unknown":
        raise BenchmarkError(f"{python!r} is no Python that can be started")
    return found


# ----------------------------------------------------------------------------------------------------------------------
# Measurements


def run(server: Server, folder: Path, options: argparse.Namespace) -> list[Sample]:
    """Start the server, look at one answer, and load it with each number of callers."""
    with server.started(folder, timeout_s=options.start_timeout) as running:
        try:
            check(server.peer, running.ports)
            requests = requests_of(server.peer, running.ports)
            return [measure(running, requests, folder, callers, options.seconds) for callers in options.callers]
        except BenchmarkError as error:
            raise BenchmarkError(f"{error}\n{running.log_tail()}") from error


def measure(server: MeasuredServer, requests: Sequence[bytes], folder: Path, callers: int, seconds: int) -> Sample:
    """CPU is divided by the answers that wrk got. What was under way when it left, one request of each caller at most, is paid
    for and not counted, because most peers do not tell how many requests they have served.
    """
    run_wrk_with(requests, folder, server.ports, callers=callers, seconds=WARM_UP_S)
    clock = CpuClock.now(server)
    load = run_wrk_with(requests, folder, server.ports, callers=callers, seconds=seconds)
    spent = CpuClock.now(server).since(clock)
    assert load.answered is not None  # wrk tells
    return Sample(
        per_second=load.per_second,
        p50_us=load.p50_us,
        p99_us=load.p99_us,
        cpu_us=None if spent is None else spent.server_s / load.answered * 1e6,
        others_cores=None if spent is None else spent.others_s / spent.elapsed_s,
    )


def requests_of(peer: Peer, ports: Ports) -> list[bytes]:
    """The requests, each with an id and numbers of its own, in the form that the server takes."""
    calls = CALL.over(Protocol.HTTP_JSON)
    if peer.own_path is None:
        return [raw_http_request(call, Protocol.HTTP_JSON, ports.http) for call in calls]
    return [raw_post(peer.own_path, own_request(call), ports.http) for call in calls]


def own_request(call: Call) -> HttpRequest:
    """The numbers of a V2 request, in the least JSON that has them and the id."""
    tensors = {name: tensor.tolist() for name, tensor in call.inputs.items()}
    return HttpRequest({"Content-Type": "application/json"}, json.dumps({"id": call.request_id, **tensors}).encode())


def check(peer: Peer, ports: Ports) -> None:
    """Ask once. Raises BenchmarkError unless the answer has the id and the numbers that it must have."""
    call = CALL.over(Protocol.HTTP_JSON)[0]
    if peer.own_path is None:
        check_answer(call, Protocol.HTTP_JSON, ports)
        return
    try:
        _, body = post(peer.own_path, own_request(call), ports.http)
        answer = json.loads(body)
        found = {name: np.array(answer[name], np.float32) for name in call.responses[0]}
        told = answer["id"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise BenchmarkError(f"no answer that could be read: {error!r}") from error
    if told != call.request_id:
        raise BenchmarkError(f"wrong answer: expected the id {call.request_id!r}, got {told!r}")
    check_tensors(call.responses[0], found, where=peer.own_path)


# ----------------------------------------------------------------------------------------------------------------------
# The result


def facts_of(options: argparse.Namespace, results: Sequence[CellResult]) -> dict[str, str]:
    """What the figures mean nothing without; the versions of servers are told server by server."""
    machine = machine_facts()
    facts = {name: machine[name] for name in ("CPU", "System", "Date")}
    facts["Load generator"] = tool_version(Wrk.name)
    facts["Measured"] = (
        f"rounds: {options.rounds}, {options.seconds} s for each number of callers after {WARM_UP_S} s to warm up; medians"
    )
    if (others := others_cores(results)) is not None:
        facts["Everybody else"] = f"kept {others[0]:.2f} cores busy meanwhile (median), at most {others[1]:.2f}"
        if others[0] > QUIET_CORES:
            facts["Everybody else"] += "; this machine was not the benchmark's own, and the figures show it"
    return facts


def document(
    facts: Mapping[str, str], options: argparse.Namespace, servers: Sequence[Server], results: Sequence[CellResult]
) -> dict[str, object]:
    """What the result file holds: that of compare.py, with the servers by name in place of ours and a peer."""
    chosen = {name: getattr(options, name) for name in ("servers", "callers", "rounds", "seconds")}
    return {"servers": [server.described() for server in servers], **as_json(facts, chosen, results)}


HEADINGS = ("server", "callers", "requests/s", "spread", "p50 µs", "p99 µs", "CPU µs/request")


def as_text(facts: Mapping[str, str], servers: Sequence[Server], results: Sequence[CellResult]) -> str:
    lines = [f"{name}: {fact}" for name, fact in facts.items()]
    lines += [f"{server.peer.title}: {server.version}, Python {server.python_version}" for server in servers]
    rows = [HEADINGS]
    for server in servers:
        for result in results:
            samples = result.samples[server.name]
            rate, p50, p99, cpu = (median(samples, figure) for figure in FIGURES.values())
            figures = (f"{rate:,.0f}", f"{spread_percent(samples):.0f} %", f"{p50:,.0f}", f"{p99:,.0f}")
            rows.append((server.name, str(result.cell.callers), *figures, "–" if cpu is None else f"{cpu:,.0f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    for row in rows:
        lines.append("  ".join([row[0].ljust(widths[0]), *(text.rjust(n) for text, n in zip(row[1:], widths[1:]))]))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
