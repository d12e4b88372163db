"""The command.

python -m tools.torture --seed 1 --minutes 10
python -m tools.torture --schedule faults.jsonl
"""

from __future__ import annotations

import argparse
import random
import shlex
import signal
import sys
import tempfile
from pathlib import Path

from tools.torture import schedule
from tools.torture.campaign import Plan, report, torture


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.torture", description="Random faults in a real server under load, and an audit of it."
    )
    parser.add_argument("--seed", type=int, help="of everything that is drawn (default: another one each time)")
    parser.add_argument("--minutes", type=float, default=3.0, help="begin no round after so many (default 3)")
    parser.add_argument("--rounds", type=int, help="so many rounds, whatever --minutes says")
    parser.add_argument("--round-seconds", type=float, default=20.0, help="of load in each round (default 20)")
    parser.add_argument("--faults", type=int, default=24, help="in each round (default 24)")
    parser.add_argument(
        "--only", action="append", metavar="WORDS", help="kinds of faults that begin with WORDS; repeatable"
    )
    parser.add_argument("--without", action="append", default=[], metavar="WORDS", help="all but those; repeatable")
    parser.add_argument("--schedule", type=Path, metavar="FILE", help="play the faults of FILE again")
    parser.add_argument("--write-schedule", type=Path, metavar="FILE", help="append the faults of each round to FILE")
    parser.add_argument(
        "--quiet-seconds", type=float, default=90.0, help="for a server to come to rest after a round (default 90)"
    )
    parser.add_argument("--server-flag", action="append", default=[], metavar="FLAG", help="one more for the server")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the server ends with us
    kinds = tuple(
        kind
        for kind in schedule.KINDS
        if (not arguments.only or kind.startswith(tuple(arguments.only)))
        and not kind.startswith(tuple(arguments.without))
    )
    seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    plan = Plan(
        seed=seed,
        minutes=arguments.minutes,
        round_s=arguments.round_seconds,
        faults_per_round=arguments.faults,
        kinds=kinds,
        replayed=() if arguments.schedule is None else tuple(schedule.read(arguments.schedule)),
        rounds=arguments.rounds,
        written=arguments.write_schedule,
        server_flags=tuple(arguments.server_flag),
        quiet_s=arguments.quiet_seconds,
    )
    words = sys.argv[1:] if arguments.seed is not None else [*sys.argv[1:], "--seed", str(seed)]
    command = shlex.join(["python", "-m", "tools.torture", *words])
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        result = torture(Path(folder), plan, lambda line: print(line, flush=True))
    print(report(result, plan, command))
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main())
