"""What was found, as tables in Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tools.mutants.judging import Judgement, Verdict

_Z = 1.96
"""Of a normal distribution: 95 % lie within so many standard deviations."""


def interval(hits: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of which *hits* of *count* are known."""
    share = hits / count
    middle = share + _Z**2 / (2 * count)
    half = _Z * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    scale = 1 + _Z**2 / count
    return (middle - half) / scale, (middle + half) / scale


def coverage_table(rooms: Mapping[str, tuple[int, int, int, int]]) -> str:
    """A row for each room: its statements and branches, and the shares of them that tests run."""
    lines = ["| room | statements | run | branches | taken |", "|---|---|---|---|---|"]
    total = [sum(column) for column in zip(*rooms.values())]
    for room, (statements, run, branches, taken) in [*rooms.items(), ("all", total)]:
        lines.append(
            f"| {room} | {statements:,} | {_percent(run, statements)} | {branches:,} | {_percent(taken, branches)} |"
        )
    return "\n".join(lines) + "\n"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def mutants_report(judgements: Sequence[Judgement]) -> str:
    """How many mutants were caught, with the interval; by operator; and those that were not, each with its change."""
    if not judgements:
        return "no mutants have been tried\n"
    caught = [judgement for judgement in judgements if judgement.is_caught]
    hung = sum(judgement.verdict is Verdict.HUNG for judgement in judgements)
    open_ones = sum(judgement.verdict is Verdict.TIMED_OUT for judgement in judgements)
    low, high = interval(len(caught), len(judgements))
    lines = [
        f"{len(caught)} of {len(judgements)} mutants were caught: {_percent(len(caught), len(judgements))} "
        f"(95 %: {100 * low:.1f} to {100 * high:.1f}); {hung} of them because a test did not end. "
        f"{open_ones} have timed out and are to be confirmed.",
        "",
        "| operator | mutants | caught |",
        "|---|---|---|",
    ]
    for operator in sorted({judgement.operator for judgement in judgements}):
        of_kind = [judgement for judgement in judgements if judgement.operator == operator]
        lines.append(f"| {operator} | {len(of_kind)} | {sum(one.is_caught for one in of_kind)} |")
    lines.append("")
    for one in sorted(judgements, key=lambda judgement: judgement.place):
        if not one.is_caught:
            before, after = one.change
            lines += [
                f"{one.place} {one.verdict.value} ({len(one.tried)} of {one.covering} test files)",
                f"  - {before}",
                f"  + {after}",
            ]
    return "\n".join(lines) + "\n"
