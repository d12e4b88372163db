"""The fuzzer's command.

python -m tests.fuzz --requests 100000 --seed 1
python -m tests.fuzz --replay fuzz-findings/finding-1234-1.json
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from pathlib import Path

from tests.fuzz.fuzz_campaign import replay, run_campaign, running_target
from tests.fuzz.fuzz_wire import Finding


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Send bad requests to a real server.")
    parser.add_argument(
        "--requests", type=int, default=100_000, help="how many, in all layers together (default 100000)"
    )
    parser.add_argument("--seed", type=int, help="of everything that is drawn (default: another one each time)")
    parser.add_argument("--jobs", type=int, default=2, help="client processes (default 2)")
    parser.add_argument("--corpus", type=Path, default=Path("fuzz-findings"), help="where findings are written")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="play one finding again, and nothing else")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the server ends with us
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        if arguments.replay is not None:
            return _replay(Path(folder), arguments.replay)
        seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
        found = run_campaign(
            Path(folder),
            requests=arguments.requests,
            seed=seed,
            jobs=arguments.jobs,
            corpus=arguments.corpus,
            say=lambda line: print(line, flush=True),
        )
    return 1 if found else 0


def _replay(folder: Path, path: Path) -> int:
    with running_target(folder) as target:
        try:
            replay(target, path, print)
        except Finding as found:
            print(f"FOUND {found}\n{target.server.log[-4000:]}")
            return 1
    print("nothing is wrong any more")
    return 0


if __name__ == "__main__":
    sys.exit(main())
