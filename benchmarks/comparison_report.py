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
    """One place in the table: what was sent, by how many callers, with which generator.

    *responses* is how many came for each request.
    """

    scenario: str
    protocol: str
    callers: int
    generator: str
    responses: int = 1


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
HEADINGS = ("scenario", "protocol", "callers", "server", "requests/s", "spread", "p50 µs", "p99 µs", "CPU µs/request")
# A column more, where any scenario has several responses to a request.
RESPONSES_HEADING = "responses/s"
_SERVER_COLUMN = HEADINGS.index("server")
_LEFT_ALIGNED = [HEADINGS.index(heading) for heading in ("scenario", "protocol", "server")]


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


def table(results: Sequence[CellResult]) -> list[tuple[str, ...]]:
    """The headings; then for a cell two lines, one for each server, and a third with the ratios."""
    streams = any(result.cell.responses > 1 for result in results)
    lines = [(*HEADINGS, RESPONSES_HEADING) if streams else HEADINGS]
    for result in results:
        name = result.cell.protocol
        if result.cell.generator == "perf_analyzer":  # the cross-check stands beside the cell that it checks
            name += " (perf_analyzer)"
        lead = (result.cell.scenario, name, str(result.cell.callers))
        for side in (OURS, PEER):
            if samples := result.samples.get(side):
                lines.append((*lead, side, *_figures(samples)))
                if streams:
                    lines[-1] += (_number(_median_rate(samples) * result.cell.responses),)
        if (found := ratio(result, FIGURES["per_second"])) is not None:
            others = [ratio(result, FIGURES[key]) for key in ("p50_us", "p99_us", "cpu_us")]
            texts = [f"{other.median:.2f}" if other else "–" for other in others]
            # Responses stand in the same ratio as requests.
            texts += [f"{found.median:.2f}"] if streams else []
            lines.append((*lead, "ours/peer", f"{found.median:.2f}", f"{found.lowest:.2f}–{found.highest:.2f}", *texts))
    return lines


def _median_rate(samples: Sequence[Sample]) -> float:
    return statistics.median(sample.per_second for sample in samples)


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
    lines = table(results)
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    texts = [f"{name}: {fact}" for name, fact in facts.items()]
    texts.append("")
    for line in lines:
        columns = [
            text.ljust(width) if column in _LEFT_ALIGNED else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths))
        ]
        texts.append("  ".join(columns).rstrip())
        if line[_SERVER_COLUMN] in ("ours/peer", "server"):
            texts.append("")
    return "\n".join(texts).rstrip() + "\n"


def as_markdown(facts: Mapping[str, str], results: Sequence[CellResult]) -> str:
    headings, *lines = table(results)
    alignment = ["---" if column in _LEFT_ALIGNED else "---:" for column in range(len(headings))]
    texts = [f"* {name}: {fact}" for name, fact in facts.items()]
    texts += ["", markdown_row(headings), markdown_row(alignment)]
    for line in lines:
        is_ratio = line[_SERVER_COLUMN] == "ours/peer"
        texts.append(
            markdown_row(
                [f"**{text}**" if is_ratio and column >= _SERVER_COLUMN else text for column, text in enumerate(line)]
            )
        )
    return "\n".join(texts) + "\n"


def markdown_row(texts: Sequence[str]) -> str:
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
