#!/usr/bin/env python3
"""Draw the plots of docs/performance.md from result files, and write the tables between its markers.

    make plots

Nothing is measured here. The same result file gives the same bytes, as long as matplotlib is the one that pyproject.toml
names (group `plots`): no date is written, and the ids within a drawing come from a fixed salt. matplotlib is imported where
something is drawn; tables need none.
"""

from __future__ import annotations

import argparse
import json
import operator
import re
import shlex
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark_error import BenchmarkError
from comparison_report import FIGURES, OURS, Sample, markdown_row, spread_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PROJECT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
PAGE = PROJECT / "docs" / "performance.md"
TRITON_COMMAND = (
    "tritonserver --model-repository={models} --http-port={http_port} --grpc-port={grpc_port}"
    " --metrics-port={metrics_port}"
)

Document = Mapping[str, Any]
"""What peers.py or growth.py has written, as json reads it."""

# ----------------------------------------------------------------------------------------------------------------------
# What is in a result file


@dataclass(frozen=True)
class Line:
    """Medians of one server by callers, in their order."""

    name: str
    title: str
    callers: Sequence[int]
    medians: Sequence[Mapping[str, float | None]]

    def points(self, figure: str) -> tuple[list[int], list[float]]:
        """Callers and values; without those numbers of callers for which a figure is not known."""
        pairs = [(callers, medians[figure]) for callers, medians in zip(self.callers, self.medians)]
        known = [(callers, value) for callers, value in pairs if value is not None]
        return [callers for callers, _ in known], [value for _, value in known]


def lines_of(document: Document) -> list[Line]:
    """One for each server, in the order of the file."""
    cells = document["cells"]
    callers = [cell["callers"] for cell in cells]
    return [
        Line(server["name"], server["title"], callers, [cell["medians"][server["name"]] for cell in cells])
        for server in document["servers"]
    ]


def growth_of(document: Document) -> dict[str, dict[int, list[float]]]:
    """Microseconds of the server's process by axis and size, one for each round; axes and sizes in the order of the file."""
    found: dict[str, dict[int, list[float]]] = {}
    for row in document["rows"]:
        found.setdefault(row["axis"], {}).setdefault(row["size"], []).append(row["engine_us"])
    return found


# ----------------------------------------------------------------------------------------------------------------------
# Text for the page


def servers_block(document: Document) -> str:
    """Versions of all servers, and how each is configured."""
    rows: list[Sequence[str]] = [("server", "version", "Python", "form of a request", "configured")]
    rows += [
        tuple(str(server[column]) for column in ("title", "version", "python", "form", "configured"))
        for server in document["servers"]
    ]
    return _table(rows, left=len(rows[0]))


def peers_block(document: Document) -> str:
    """Command, machine and figures of a result of peers.py."""
    rows = [("server", "callers", "requests/s", "spread", "p50 µs", "p99 µs", "CPU µs/request")]
    for server in document["servers"]:
        for cell in document["cells"]:
            samples = [Sample(**sample) for sample in cell["samples"][server["name"]]]
            rate, p50, p99, cpu = (cell["medians"][server["name"]][figure] for figure in FIGURES)
            cells = [server["title"], str(cell["callers"]), f"{rate:,.0f}", f"{spread_percent(samples):.0f} %"]
            rows.append((*cells, f"{p50:,.0f}", f"{p99:,.0f}", "–" if cpu is None else f"{cpu:,.0f}"))
    parts = [_command_block(peers_command(document)), _facts(document["facts"]), _table(rows, left=1)]
    return "\n\n".join([*parts, better_than_ours(document)] if _has_one_of_ours(document) else parts)


def _has_one_of_ours(document: Document) -> bool:
    return [server["name"] for server in document["servers"]].count(OURS) == 1


_BETTER: Mapping[str, tuple[str, Callable[[float, float], bool]]] = {
    "per_second": ("requests/s", operator.gt),
    "p50_us": ("p50", operator.lt),
    "p99_us": ("p99", operator.lt),
    "cpu_us": ("CPU", operator.lt),
}


def better_than_ours(document: Document) -> str:
    """A sentence that names every median of another server that is better than ours with as many callers."""
    found = []
    for line in lines_of(document):
        for key, (label, is_better) in _BETTER.items():
            where = [
                str(cell["callers"])
                for cell in document["cells"]
                if None not in (theirs := cell["medians"][line.name][key], ours := cell["medians"][OURS][key])
                and is_better(theirs, ours)
            ]
            if where:
                found.append(f"{line.title} in {label} (callers: {', '.join(where)})")
    if not found:
        return "In no row of this table is another server better than this one."
    return f"Better than this server: {'; '.join(found)}."


def peers_command(document: Document) -> str:
    """The command line that measures what is in the file; where it had a Triton, that of a Triton on PATH."""
    options, servers = document["options"], document["servers"]
    ours = [server for server in servers if server["name"].startswith(OURS)]
    words = [f"--servers={','.join(options['servers'])}", f"--callers={','.join(map(str, options['callers']))}"]
    words += [f"--rounds={options['rounds']}", f"--seconds={options['seconds']}"]
    if len(ours) > 1:
        words += [f"--python=python{server['python'].rpartition('.')[0]}" for server in ours]
    if "triton" in options["servers"]:
        words.append(f"--triton={shlex.quote(TRITON_COMMAND)}")
    words.append(f"--result=benchmarks/results/{'pythons' if len(ours) > 1 else 'peers'}.json")
    compiled = any("(compiled)" in server["version"] for server in ours)
    return f'{"HATCH_BUILD_HOOKS_ENABLE=true " if compiled else ""}make bench-peers ARGS="{" ".join(words)}"'


def growth_block(document: Document) -> str:
    """Command, machine and figures of a result of growth.py."""
    rows = [("axis", "size", "server µs", "to the smallest")]
    for axis, sizes in growth_of(document).items():
        smallest = statistics.median(next(iter(sizes.values())))
        for size, values in sizes.items():
            middle = statistics.median(values)
            rows.append((axis, f"{size:,}", f"{middle:.1f}", f"{middle / smallest:.2f}"))
    return "\n\n".join([_command_block(growth_command(document)), _facts(document["facts"]), _table(rows, left=1)])


def growth_command(document: Document) -> str:
    words = [f"--axes={','.join(growth_of(document))}"]
    # Results of before growth.py wrote its options have none.
    options = document.get("options", {})
    words += [f"--{name}={options[name]}" for name in ("largest", "rounds", "seconds") if name in options]
    return f"python benchmarks/growth.py {' '.join(words)} --result=benchmarks/results/growth.json"


def _command_block(command: str) -> str:
    return f"    {command}"


def _facts(facts: Mapping[str, str]) -> str:
    return "\n".join(f"* {name}: {fact}" for name, fact in facts.items())


def _table(rows: Sequence[Sequence[str]], *, left: int) -> str:
    """The first row has the headings; *left* columns are aligned to the left, the others to the right."""
    alignment = ["---" if column < left else "---:" for column in range(len(rows[0]))]
    return "\n".join(markdown_row(row) for row in (rows[0], alignment, *rows[1:]))


def with_block(page: str, name: str, text: str) -> str:
    """The page with *text* between the two comments that mark the block *name*. Raises BenchmarkError if they are not there."""
    begin, end = f"<!-- {name}: written by benchmarks/plots.py -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
    if len(pattern.findall(page)) != 1:
        raise BenchmarkError(f"the page has to have the lines {begin!r} and {end!r} once, in this order")
    return pattern.sub(lambda _: f"{begin}\n\n{text}\n\n{end}", page)


# ----------------------------------------------------------------------------------------------------------------------
# Drawings

# matplotlib's settings; their type lists every name there is.
_DRAWING: Any = {
    "svg.fonttype": "none",  # letters as letters: a tenth of the size of outlines, and found by a search
    "svg.hashsalt": "pytriton-lite",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.axisbelow": True,
    "legend.frameon": False,
}
# The palette of Okabe and Ito, whose colours differ for every kind of sight, with grey for its yellow, which is hard to see on
# white. A server keeps its colour and its mark when others are left out.
_LOOKS = {
    OURS: ("#D55E00", "o"),
    "triton": ("#000000", "s"),
    "pytriton": ("#0072B2", "^"),
    "mlserver": ("#009E73", "D"),
    "kserve": ("#CC79A7", "v"),
    "litserve": ("#56B4E9", "P"),
    "bentoml": ("#E69F00", "X"),
    "ray": ("#7F7F7F", "*"),
}
_SHADES = ("#F5C9A8", "#EE9D68", "#D55E00", "#8A3D00")
"""Of the colour of ours, from light to dark."""


def draw_peers(document: Document, folder: Path) -> list[Path]:
    lines = lines_of(document)
    return [
        _saved(_against_callers(lines, title, panels), folder / f"peers-{name}.svg")
        for name, title, panels in (
            ("throughput", "add_sub as JSON over HTTP/1.1: throughput", [("per_second", "requests/s")]),
            ("latency", "add_sub as JSON over HTTP/1.1: latency", [("p50_us", "p50, µs"), ("p99_us", "p99, µs")]),
            (
                "cpu",
                "add_sub as JSON over HTTP/1.1: CPU of all processes of the server",
                [("cpu_us", "µs of CPU per request")],
            ),
        )
    ]


def _against_callers(lines: Sequence[Line], title: str, panels: Sequence[tuple[str, str]]) -> Figure:
    """A panel for each figure, both axes logarithmic: servers lie two orders of magnitude apart."""
    figure = _figure(3.2 + 3.8 * len(panels), 4.2)
    figure.suptitle(title)
    for axes, (key, label) in zip(_panels(figure, len(panels)), panels):
        for line in lines:
            is_ours = line.name.startswith(OURS)
            colour, mark = _LOOKS[OURS if is_ours else line.name]
            axes.plot(
                *line.points(key),
                color=colour,
                marker=mark,
                markersize=8 if is_ours else 6,
                linewidth=3 if is_ours else 1.3,
                zorder=3 if is_ours else 2,
                label=line.title,
            )
        axes.set_xscale("log")
        if any(line.points(key)[0] for line in lines):  # nothing cannot be put on such an axis
            axes.set_yscale("log")
        axes.set_xlabel("callers")
        axes.set_ylabel(label)
        axes.set_xticks(lines[0].callers, labels=[str(count) for count in lines[0].callers])
        axes.xaxis.set_minor_locator(_ticker().NullLocator())
        axes.yaxis.set_major_formatter(_ticker().FuncFormatter(lambda value, _: f"{value:,.0f}"))
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center")
    return figure


def draw_pythons(document: Document, folder: Path) -> list[Path]:
    """Bars by version of Python, one for each number of callers."""
    lines = lines_of(document)
    versions = [server["python"] for server in document["servers"]]
    figure = _figure(9, 3.8)
    figure.suptitle("add_sub as JSON over HTTP/1.1, by version of Python")
    for axes, (key, label) in zip(
        _panels(figure, 2), [("per_second", "requests/s"), ("cpu_us", "µs of CPU per request")]
    ):
        counts = lines[0].callers
        width = 0.8 / len(counts)
        for index, count in enumerate(counts):
            heights = [line.medians[index][key] or 0.0 for line in lines]
            places = [place + (index - (len(counts) - 1) / 2) * width for place in range(len(lines))]
            name = f"{count} caller" if count == 1 else f"{count} callers"
            axes.bar(places, heights, width, color=_SHADES[index % len(_SHADES)], label=name)
        axes.set_xticks(range(len(lines)), labels=versions)
        axes.grid(visible=False, axis="x")
        axes.set_ylabel(label)
        axes.yaxis.set_major_formatter(_ticker().FuncFormatter(lambda value, _: f"{value:,.0f}"))
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center")
    return [_saved(figure, folder / "pythons.svg")]


def draw_growth(document: Document, folder: Path) -> list[Path]:
    """A panel for each axis. Sizes stand side by side, whatever lies between them, because one of them is none at all."""
    found = growth_of(document)
    figure = _figure(2.6 * len(found) + 0.8, 3.4)
    figure.suptitle("CPU of the server's process per request, as something else grows (bars: all rounds)")
    for axes, (axis, sizes) in zip(_panels(figure, len(found)), found.items()):
        middles = [statistics.median(values) for values in sizes.values()]
        below = [middle - min(values) for middle, values in zip(middles, sizes.values())]
        above = [max(values) - middle for middle, values in zip(middles, sizes.values())]
        axes.errorbar(range(len(sizes)), middles, yerr=[below, above], color=_LOOKS[OURS][0], marker="o", capsize=3)
        axes.set_ylim(0, 1.15 * max(map(max, sizes.values())))
        axes.set_xticks(range(len(sizes)), labels=[_short(size) for size in sizes])
        axes.set_xlabel(f"{axis} (requests)" if axis == "queue" else axis)
    figure.axes[0].set_ylabel("µs per request")
    return [_saved(figure, folder / "growth.svg")]


def _short(size: int) -> str:
    return f"{size // 1000:,} k" if size >= 1000 and size % 1000 == 0 else f"{size:,}"


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _panels(figure: Figure, count: int) -> Iterable[Axes]:
    grid = figure.subplots(1, count, squeeze=False)
    return list(grid[0])


def _ticker() -> Any:
    """The module matplotlib.ticker."""
    from matplotlib import ticker

    return ticker


def _saved(figure: Figure, path: Path) -> Path:
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    return path


# ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """What one result file is drawn and written as. *blocks* are those of the page, by name."""

    draw: Callable[[Document, Path], list[Path]]
    blocks: Mapping[str, Callable[[Document], str]]


KINDS = {
    "peers": Kind(draw_peers, {"servers": servers_block, "peers": peers_block}),
    "pythons": Kind(draw_pythons, {"pythons": peers_block}),
    "growth": Kind(draw_growth, {"growth": growth_block}),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Draw result files, and write their tables into the page.")
    for name in KINDS:
        parser.add_argument(
            f"--{name}", type=Path, default=RESULTS / f"{name}.json", metavar="FILE", help="default: %(default)s"
        )
    parser.add_argument("--plots", type=Path, default=PROJECT / "docs" / "plots", metavar="FOLDER")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE")
    options = parser.parse_args(argv)
    try:
        page = options.page.read_text()
        documents = {name: json.loads(getattr(options, name).read_text()) for name in KINDS}
        for name, kind in KINDS.items():
            for block, text in kind.blocks.items():
                page = with_block(page, block, text(documents[name]))
        written = draw(documents, options.plots)
    except (OSError, ValueError, KeyError, ImportError, BenchmarkError) as error:
        print(f"plots.py: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    options.page.write_text(page)
    for path in [*written, options.page]:
        print(path)
    return 0


def draw(documents: Mapping[str, Document], folder: Path) -> list[Path]:
    """Draw everything into *folder*. Raises ImportError without matplotlib."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_DRAWING):
        return [path for name, document in documents.items() for path in KINDS[name].draw(document, folder)]


if __name__ == "__main__":
    sys.exit(main())
