"""Runs the tests while their processes are stopped for moments, as on a machine that has other things to do.

    make test-stalled ARGS="tests/binding tests/embedding"
    python -m tools.stalled --seed 7 tests/contract

A test that then fails waits for too little, or takes an order for granted that nothing guarantees. Every other time one of the
processes that run tests is stopped, else one that these have started. Linux only. The exit status is pytest's.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time

from tools.torture.processes import descendants, read_process

_STOPS_S = (0.005, 0.03, 0.1, 0.3)
_PAUSE_S = 0.01
_STOPPED = "Tt"  # by a test, which is to find it so


def stop_for(pid: int, seconds: float) -> None:
    """Stop *pid* and let it go on, unless it has ended or stands still already."""
    process = read_process(pid)
    if process is None or process.is_zombie or process.state in _STOPPED:
        return
    try:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass  # it has just ended


def main() -> int:
    """Run pytest with the arguments that are left, and disturb it; its exit status."""
    text = "Run the tests while their processes are stopped for moments; other arguments are pytest's."
    parser = argparse.ArgumentParser(prog="python -m tools.stalled", description=text)
    parser.add_argument(
        "--seed", type=int, default=None, help="of what is stopped when (default: another one each time)"
    )
    options, rest = parser.parse_known_args()
    seed = random.randrange(1 << 16) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    chance = random.Random(seed)
    with subprocess.Popen([sys.executable, "-m", "pytest", *rest]) as tests:
        try:
            while tests.poll() is None:
                started = descendants(tests.pid)
                testing = [process for process in started if process.parent == tests.pid]
                chosen = [chance.choice(testing)] if testing and chance.random() < 0.5 else started
                for process in chance.sample(chosen, min(2, len(chosen))):
                    stop_for(process.pid, chance.choice(_STOPS_S))
                time.sleep(_PAUSE_S)
        except KeyboardInterrupt:
            pass  # pytest has heard it, too
        return tests.wait()


if __name__ == "__main__":
    sys.exit(main())
