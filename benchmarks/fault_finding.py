"""A benchmark that looks for what is off: a server with models of its own, and an exit code that says what was found."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmark_error import BenchmarkError
from measured_server import MeasuredServer, free_ports


def find_faults(
    name: str,
    command: str,
    *,
    write_models: Callable[[Path], object],
    measure: Callable[[MeasuredServer], Sequence[str]],
    timeout_s: float,
) -> int:
    """Start *command* over the models that *write_models* has made, *measure*, and print what is off.

    The exit code: 0 for nothing, 1 for faults, behind the end of the server's log, 2 where the run could not be made.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=f"{name}_") as folder:
            models = Path(folder) / "models"
            write_models(models)
            log = Path(folder) / "server.log"
            with MeasuredServer.started(
                "server", command, models=models, ports=free_ports(), log=log, timeout_s=timeout_s
            ) as server:
                faults = measure(server)
                if faults:
                    print(server.log_tail(), file=sys.stderr)
    except BenchmarkError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    for fault in faults:
        print(f"off: {fault}")
    print(f"{len(faults)} things are off" if faults else "nothing is off")
    return 1 if faults else 0
