#!/usr/bin/env python3
"""Ten thousand requests with tensors of 4 MiB over each protocol: what the server keeps of them in memory.

    python benchmarks/large_soak.py --requests 10000

Memory is the proportional set size of all processes of the server: pages that several of them share count once. It is read
when a tenth of the requests is done, so that every ring has its size and every allocator its habits, and again at the end.
The exit code is 1 where it has grown by more than `--allowed-mib`, and 2 when the run could not be made.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmark_error import BenchmarkError
from calls import check_answer
from client_regions import outputs_of, registered
from compare import MODELS, OUR_COMMAND
from load_generators import Generator, H2load, Wrk, require_tools
from measured_server import MeasuredServer, free_ports
from process_tree import ProcessTree
from scenarios import IDENTITY

MIB = 1 << 20
START_TIMEOUT_S = 60.0
_RUN_S = 2


def memory_bytes(tree: ProcessTree) -> int:
    """Raises BenchmarkError where the system does not tell."""
    total = 0
    try:
        for process in tree.alive():
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            total += next(int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Pss:"))
    except OSError as error:
        raise BenchmarkError(f"the memory of the server cannot be read: {error}") from error
    return total


def serve(server: MeasuredServer, generator: Generator, *, callers: int, requests: int) -> int:
    """Load the server until it has answered *requests* more; how many it has answered altogether."""
    model = IDENTITY.name
    begin = server.counters(model)
    cancelled = 0
    while True:
        generator.run(server.ports, callers=callers, seconds=_RUN_S)
        cancelled += callers  # at most: those that were under way when the generator left
        now = server.counters(model)
        if now.failed - begin.failed > cancelled:
            raise BenchmarkError(f"{now.failed - begin.failed} requests failed\n{server.log_tail()}")
        if now.succeeded - begin.succeeded >= requests:
            return now.succeeded - begin.succeeded


def soak(server: MeasuredServer, folder: Path, *, callers: int, requests: int, allowed_bytes: int) -> bool:
    """Whether memory stayed where it was."""
    is_steady = True
    print("protocol        requests    after a tenth        at the end          growth")
    for protocol in IDENTITY.protocols:
        kind = Wrk if protocol.is_http else H2load
        generator = kind(IDENTITY.call, protocol, folder)
        with registered(IDENTITY.call, [server.ports]) if protocol.uses_regions else contextlib.nullcontext():
            check_answer(IDENTITY.call, protocol, server.ports, outputs_of if protocol.uses_regions else None)
            done = serve(server, generator, callers=callers, requests=requests // 10)
            before = memory_bytes(server.tree)
            done += serve(server, generator, callers=callers, requests=requests - done)
            after = memory_bytes(server.tree)
        growth = after - before
        is_steady = is_steady and growth <= allowed_bytes
        print(
            f"{protocol.value:<12}{done:>12,}{before / MIB:>13.1f} MiB{after / MIB:>14.1f} MiB{growth / MIB:>12.1f} MiB",
            flush=True,
        )
    return is_steady


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=10_000, help="over each protocol; default: %(default)s")
    parser.add_argument("--callers", type=int, default=4, help="at a time; default: %(default)s")
    parser.add_argument("--allowed-mib", type=float, default=16.0, help="growth that is none; default: %(default)s")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    try:
        require_tools({"wrk" if protocol.is_http else "h2load" for protocol in IDENTITY.protocols})
        with tempfile.TemporaryDirectory(prefix="large_soak_") as name:
            folder = Path(name)
            models = folder / "models"
            models.mkdir()
            (models / IDENTITY.name).symlink_to(MODELS / IDENTITY.name)
            with MeasuredServer.started(
                "server",
                OUR_COMMAND,
                models=models,
                ports=free_ports(),
                log=folder / "server.log",
                timeout_s=START_TIMEOUT_S,
            ) as server:
                is_steady = soak(
                    server,
                    folder,
                    callers=arguments.callers,
                    requests=arguments.requests,
                    allowed_bytes=int(arguments.allowed_mib * MIB),
                )
    except BenchmarkError as error:
        print(f"large_soak: {error}", file=sys.stderr)
        return 2
    print("memory is steady" if is_steady else "memory has grown")
    return 0 if is_steady else 1


if __name__ == "__main__":
    sys.exit(main())
