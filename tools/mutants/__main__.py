"""The command that measures the tests: coverage by branches, and the share of mutants that they catch.

make mutants
make mutants ARGS="--count 50 --seed 2 --seconds 60"
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.mutants.choice import Chooser, Mutant, draw
from tools.mutants.coverage_map import Recording
from tools.mutants.judging import Judge, Judgements, Verdict
from tools.mutants.report import coverage_table, mutants_report
from tools.mutants.suite import Suite

STEPS = ("record", "judge", "confirm", "report")
_GROUP = 8
_LATER = {
    "contract": 1,
    "adversity": 2,
    "benchmarks": 3,
    "examples": 3,
    "fuzz": 3,
    "siege": 3,
    "testing": 3,
    "torture": 3,
}
"""Rooms of tests that take long come after the others, so that a recording which is broken off has most of them."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants",
        description="Record which test files run which lines, change lines of the product at random, one at a time, and see "
        "whether a test fails. What has been done is kept in the folder of --work, and a later run goes on from there.",
    )
    parser.add_argument("steps", nargs="*", metavar="STEP", help="record, judge, confirm, report (default all)")
    parser.add_argument(
        "--tree", type=Path, default=Path.cwd(), help="the checkout that is measured (default this one)"
    )
    parser.add_argument(
        "--python", type=Path, default=Path(sys.executable), help="an interpreter with what the tree's tests need"
    )
    parser.add_argument(
        "--work", type=Path, default=Path("build/mutants"), help="where results are kept (default build/mutants)"
    )
    parser.add_argument("--count", type=int, default=300, help="mutants (default 300)")
    parser.add_argument("--seed", type=int, default=1, help="of the choice; more mutants begin with the same ones")
    parser.add_argument(
        "--seconds", type=float, default=30, help="of test files for one mutant at most, as recorded (default 30)"
    )
    parser.add_argument("--only", default="", metavar="PREFIX", help="mutants of files whose path begins so")
    parser.add_argument(
        "--tests",
        action="append",
        default=[],
        metavar="PREFIX",
        help="record test files whose paths begin so alone; may be given several times. When more have been recorded, "
        "mutants that had survived are tried with those",
    )
    parser.add_argument("--prefix", type=shlex.split, default=[], help="in front of each command, e.g. 'nice -n 5'")
    return parser


def _groups(test_files: Sequence[str]) -> Iterator[list[str]]:
    """Test files that one pytest runs after each other: those of one folder, a few at a time."""
    ordered = sorted(test_files, key=lambda name: (_LATER.get(name.split("/")[1], 0), str(Path(name).parent), name))
    for _, files in itertools.groupby(ordered, key=lambda name: Path(name).parent):
        waiting = list(files)
        while waiting:
            yield waiting[:_GROUP]
            del waiting[:_GROUP]


def _record(suite: Suite, recording: Recording, prefixes: Sequence[str]) -> None:
    wanted = [name for name in suite.test_files() if name.startswith(tuple(prefixes or ["tests"]))]
    for group in _groups([name for name in wanted if not recording.is_recorded(name)]):
        print(f"{len(group)} test files from {group[0]} on", end=": ", flush=True)
        print(recording.record(suite, group), flush=True)


def _judge(judge: Judge, mutants: Sequence[Mutant], judgements: Judgements) -> None:
    for mutant in mutants:
        judgement = judge.judge(mutant, judgements.by_key.get(mutant.key))
        if judgement is not None:
            judgements.add(judgement)
            print(f"{judgement.verdict.value}: {judgement.place} {judgement.by}", flush=True)


def _confirm(judge: Judge, mutants: Sequence[Mutant], judgements: Judgements) -> None:
    for mutant in mutants:
        before = judgements.by_key.get(mutant.key)
        if before is not None and before.verdict is Verdict.TIMED_OUT:
            judgement = judge.confirm(mutant, before)
            judgements.add(judgement)
            print(f"{judgement.verdict.value}: {judgement.place} {judgement.by}", flush=True)


def main() -> int:
    parser = _parser()
    args = parser.parse_args()
    steps = args.steps or STEPS
    if unknown := set(steps) - set(STEPS):
        parser.error(f"unknown steps: {', '.join(sorted(unknown))}")
    suite = Suite(args.tree.resolve(), args.work.resolve() / "tree", args.python.absolute(), args.prefix)
    recording = Recording(args.work.resolve() / "recording")
    judgements = Judgements(args.work / f"judgements_{args.seed}.jsonl")
    if "record" in steps:
        _record(suite, recording, args.tests)
    if "judge" in steps or "confirm" in steps:
        names = [name for name in suite.product_files() if name.startswith(args.only)]
        mutants = draw({name: (suite.folder / name).read_text() for name in names}, args.count, args.seed)
        judge = Judge(suite, Chooser(recording.test_files()), args.seconds)
        if "judge" in steps:
            _judge(judge, mutants, judgements)
        if "confirm" in steps:
            _confirm(judge, mutants, judgements)
    if "report" in steps:
        print(coverage_table(recording.branches_by_room(suite, suite.product_files())))
        print(mutants_report(list(judgements.by_key.values())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
