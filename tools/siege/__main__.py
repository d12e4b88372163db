"""The command of the siege.

make siege
make siege ARGS="rapid-reset ping-flood --seconds 3 --connections 1 --transports plain"
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.siege.attack import Attack
from tools.siege.attacks import ATTACKS, no_attack
from tools.siege.models import write_repository
from tools.siege.report import catalogue, line, markdown
from tools.siege.runner import Bounds, Plan, Result, run_siege

TRANSPORTS = ("plain", "tls")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.siege",
        description="Attack a server of this checkout in every known way while an honest client measures. Exit code 1 when "
        "the server did not hold.",
    )
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help="names, * and ? in them allowed (default: all)")
    parser.add_argument("--list", action="store_true", help="print the attacks and end")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each attack (default 10)")
    parser.add_argument("--connections", type=_counts, default=(1, 16), help="numbers with commas (default 1,16)")
    parser.add_argument("--transports", type=_transports, default=TRANSPORTS, help="plain, tls (default plain,tls)")
    parser.add_argument("--threshold-ms", type=float, default=250.0, help="longest honest request (default 250)")
    parser.add_argument(
        "--memory-mib", type=int, default=2048, help="resident memory of the server's process (default 2048)"
    )
    parser.add_argument(
        "--address-space-mib",
        type=int,
        default=4096,
        help="what the kernel lets each of its processes have (default 4096)",
    )
    parser.add_argument("--seed", type=int, help="of everything that is drawn (default: another one each time)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every result there")
    parser.add_argument(
        "--server-flag", action="append", default=[], metavar="FLAG", help="for the server; may be given several times"
    )
    return parser


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(int(word) for word in text.split(","))
    if min(counts) < 1:
        raise argparse.ArgumentTypeError("an attack needs a connection")
    return counts


def _transports(text: str) -> tuple[str, ...]:
    words = tuple(text.split(","))
    if unknown := set(words) - set(TRANSPORTS):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}")
    return words


def chosen(patterns: Sequence[str]) -> list[Attack]:
    """The attacks that *patterns* mean, and the run without one before them. Raises ValueError where one means none."""
    found = [no_attack]
    for pattern in patterns or ["*"]:
        matching = [attack for attack in ATTACKS if fnmatch.fnmatchcase(attack.name, pattern)]
        if not matching:
            raise ValueError(f"there is no attack {pattern!r}; --list shows all")
        found += [attack for attack in matching if attack not in found]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        attacks = chosen(options.attacks)
    except ValueError as error:
        parser.error(str(error))
    if options.list:
        print(catalogue([attack.name for attack in attacks]))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the server ends with us
    plan = Plan(
        attacks=attacks,
        connections=options.connections,
        transports=options.transports,
        seconds=options.seconds,
        seed=random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed,
        bounds=Bounds(
            latency_s=options.threshold_ms / 1000,
            memory_bytes=options.memory_mib << 20,
            address_space_bytes=options.address_space_mib << 20,
        ),
        server_flags=options.server_flag,
    )
    print(f"seed {plan.seed}", flush=True)
    results: list[Result] = []

    def tell(result: Result) -> None:
        results.append(result)
        print(line(result), flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps([done.as_json() for done in results], indent=1))

    with tempfile.TemporaryDirectory(prefix="siege-") as folder:
        run_siege(plan, Path(folder), write_repository(Path(folder) / "models"), tell)
    print(f"\n{markdown(results)}")
    return 1 if any(result.faults for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
