"""From samples to tables: medians over the rounds, ratios between two servers, and how far both scatter."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

OURS = "ours"
PEER = "peer"


@dataclass(frozen=True)
class Sample:
    """One run of a load generator against one server.

    *cpu_us* is user and system time of the server's whole process tree per request that it counted; None where there is
    no /proc. *others_cores* is how many cores everybody else kept busy meanwhile, that is neither the server nor the load
    generator: the other server, which should be idle, strangers, a hypervisor's other guests.
    """

    per_second: float
    p50_us: float
    p99_us: float
    cpu_us: float | None
    others_cores: float | None = None


@dataclass(frozen=True)
class Cell:
    """One place in the table: what was sent, by how many callers, with which generator."""

    protocol: str
    callers: int
    generator: str


@dataclass
class CellResult:
    """The samples of a cell by side, in order of rounds: those of the same index were taken one after the other."""

    cell: Cell
    samples: dict[str, list[Sample]] = field(default_factory=dict)


@dataclass(frozen=True)
class Ratio:
    """Ours divided by the peer's: the median of the ratios of each round, and the outermost ones.

    Taken per round, and not of the medians, because what slows the machine for a while slows both halves of a round.
    """

    median: float
    lowest: float
    highest: float


Figure = Callable[[Sample], "float | None"]
FIGURES: Mapping[str, Figure] = {
    "per_second": lambda sample: sample.per_second,
    "p50_us": lambda sample: sample.p50_us,
    "p99_us": lambda sample: sample.p99_us,
    "cpu_us": lambda sample: sample.cpu_us,
}
HEADINGS = ("protocol", "callers", "server", "requests/s", "spread", "p50 µs", "p99 µs", "CPU µs/request")


def median(samples: Sequence[Sample], figure: Figure) -> float | None:
    """None if a round has no such figure."""
    values = [figure(sample) for sample in samples]
    known = [value for value in values if value is not None]
    return statistics.median(known) if known and len(known) == len(values) else None


def spread_percent(samples: Sequence[Sample]) -> float:
    """How far the rates of the rounds lie apart, largest minus smallest, in percent of their median."""
    rates = [sample.per_second for sample in samples]
    return 100 * (max(rates) - min(rates)) / statistics.median(rates)


def ratio(result: CellResult, figure: Figure) -> Ratio | None:
    """None without a peer, or where a figure is missing or the peer's is zero."""
    pairs = [
        (figure(ours), figure(peer)) for ours, peer in zip(result.samples.get(OURS, []), result.samples.get(PEER, []))
    ]
    ratios = [ours / peer for ours, peer in pairs if ours is not None and peer]
    if not ratios or len(ratios) != len(pairs):
        return None
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def rows(results: Sequence[CellResult]) -> list[tuple[str, ...]]:
    """Two lines for a cell, one for each server, and a third with the ratios."""
    table = []
    for result in results:
        name = result.cell.protocol
        if result.cell.generator == "perf_analyzer":  # the cross-check stands beside the cell that it checks
            name += " (perf_analyzer)"
        lead = (name, str(result.cell.callers))
        for side in (OURS, PEER):
            if samples := result.samples.get(side):
                table.append((*lead, side, *_figures(samples)))
        if (rate := ratio(result, FIGURES["per_second"])) is not None:
            others = [ratio(result, FIGURES[key]) for key in ("p50_us", "p99_us", "cpu_us")]
            texts = [f"{other.median:.2f}" if other else "–" for other in others]
            table.append((*lead, "ours/peer", f"{rate.median:.2f}", f"{rate.lowest:.2f}–{rate.highest:.2f}", *texts))
    return table


def _figures(samples: Sequence[Sample]) -> tuple[str, ...]:
    per_second, p50, p99, cpu = (median(samples, figure) for figure in FIGURES.values())
    return (
        _number(per_second),
        f"{spread_percent(samples):.0f} %",
        _number(p50),
        _number(p99),
        "–" if cpu is None else f"{cpu:.1f}",
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def others_cores(results: Sequence[CellResult]) -> tuple[float, float] | None:
    """Median and maximum of *others_cores* over all samples; None where it is not known."""
    shares = [
        sample.others_cores
        for result in results
        for samples in result.samples.values()
        for sample in samples
        if sample.others_cores is not None
    ]
    return (statistics.median(shares), max(shares)) if shares else None


def as_text(facts: Mapping[str, str], results: Sequence[CellResult]) -> str:
    table = [HEADINGS, *rows(results)]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADINGS))]
    lines = [f"{name}: {fact}" for name, fact in facts.items()]
    lines.append("")
    for row in table:
        texts = [
            text.ljust(width) if column in (0, 2) else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join(texts).rstrip())
        if row[2] in ("ours/peer", "server"):
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def as_markdown(facts: Mapping[str, str], results: Sequence[CellResult]) -> str:
    lines = [f"* {name}: {fact}" for name, fact in facts.items()]
    alignment = ["---" if column in (0, 2) else "---:" for column in range(len(HEADINGS))]
    lines += ["", _markdown_row(HEADINGS), _markdown_row(alignment)]
    for row in rows(results):
        is_ratio = row[2] == "ours/peer"
        lines.append(
            _markdown_row([f"**{text}**" if is_ratio and column > 1 else text for column, text in enumerate(row)])
        )
    return "\n".join(lines) + "\n"


def _markdown_row(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def as_json(
    facts: Mapping[str, str], options: Mapping[str, object], results: Sequence[CellResult]
) -> dict[str, object]:
    """Everything that was measured, sample by sample, and what the tables make of it."""
    return {
        "facts": dict(facts),
        "options": dict(options),
        "cells": [
            {
                **asdict(result.cell),
                "samples": {side: [asdict(sample) for sample in samples] for side, samples in result.samples.items()},
                "medians": {
                    side: {key: median(samples, figure) for key, figure in FIGURES.items()}
                    for side, samples in result.samples.items()
                },
                "ratios": {
                    key: asdict(found)
                    for key, figure in FIGURES.items()
                    if (found := ratio(result, figure)) is not None
                },
            }
            for result in results
        ],
    }
