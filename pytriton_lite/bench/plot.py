"""A sweep as an SVG: the rate and the latencies over the levels.

It is drawn by hand: two panels of lines are no reason for a library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from pytriton_lite.bench.measuring import Result
from pytriton_lite.bench.settings import Pace

_WIDTH, _HEIGHT = 860, 400
_PANEL_WIDTH, _PANEL_HEIGHT = 340, 260
_LEFT, _TOP, _GAP = 70, 70, 90
_COLOURS = ("#0072b2", "#e69f00", "#d55e00")
"""Told apart by people who see colours otherwise (Okabe and Ito), on light and dark ground."""

_STYLE = """\
<style>
  text { font: 12px system-ui, sans-serif; fill: #222 } .title { font-size: 15px; font-weight: 600 }
  .ground { fill: #fff } .axis { stroke: #888 } .grid { stroke: #ddd } .small { font-size: 11px; fill: #555 }
  @media (prefers-color-scheme: dark) {
    text { fill: #eee } .ground { fill: #1b1b1f } .grid { stroke: #3a3a40 } .small { fill: #bbb }
  }
</style>"""


def draw(results: Sequence[Result], title: str) -> str:
    """The SVG document; *results* are the levels of one sweep."""
    levels = [result.level.name for result in results]
    axis = "requests under way" if results[0].level.pace is Pace.CONCURRENCY else "requests/s that are begun"
    rate = [("requests/s", [result.figures.requests_per_s for result in results])]
    latencies: list[tuple[str, list[float]]] = [
        (f"p{point:g}", [(result.figures.percentiles_us or {}).get(point, 0.0) / 1e3 for result in results])
        for point in (50.0, 90.0, 99.0)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
            f'aria-label="{escape(title)}">',
            _STYLE,
            f'<rect class="ground" width="{_WIDTH}" height="{_HEIGHT}"/>',
            f'<text class="title" x="{_LEFT}" y="28">{escape(title)}</text>',
            *_panel(_LEFT, levels, axis, "answered requests/s", rate),
            *_panel(_LEFT + _PANEL_WIDTH + _GAP, levels, axis, "latency, ms", latencies),
            "</svg>",
            "",
        ]
    )


def ticks(largest: float) -> list[float]:
    """Round numbers from 0 to at least *largest*, four to six of them."""
    if largest <= 0:
        return [0.0, 1.0]
    rough = largest / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    return [step * number for number in range(math.ceil(largest / step) + 1)]


def _panel(
    left: int, levels: Sequence[str], axis: str, head: str, lines: Sequence[tuple[str, Sequence[float]]]
) -> list[str]:
    marks = ticks(max(max(values) for _, values in lines))
    top, bottom = _TOP, _TOP + _PANEL_HEIGHT

    def x(index: int) -> float:
        return left + _PANEL_WIDTH * (index + 0.5) / len(levels)

    def y(value: float) -> float:
        return bottom - _PANEL_HEIGHT * value / marks[-1]

    parts = [f'<text x="{left}" y="{top - 14}">{escape(head)}</text>']
    for mark in marks:
        parts.append(
            f'<line class="grid" x1="{left}" x2="{left + _PANEL_WIDTH}" y1="{y(mark):.1f}" y2="{y(mark):.1f}"/>'
        )
        parts.append(f'<text class="small" x="{left - 6}" y="{y(mark) + 4:.1f}" text-anchor="end">{mark:,.10g}</text>')
    parts.append(f'<line class="axis" x1="{left}" x2="{left + _PANEL_WIDTH}" y1="{bottom}" y2="{bottom}"/>')
    every = max(1, math.ceil(len(levels) / 12))
    parts += [
        f'<text class="small" x="{x(index):.1f}" y="{bottom + 18}" text-anchor="middle">{escape(level)}</text>'
        for index, level in enumerate(levels)
        if index % every == 0
    ]
    parts.append(f'<text x="{left + _PANEL_WIDTH / 2}" y="{bottom + 40}" text-anchor="middle">{escape(axis)}</text>')
    for number, (name, values) in enumerate(lines):
        colour = _COLOURS[number]
        points = " ".join(f"{x(index):.1f},{y(value):.1f}" for index, value in enumerate(values))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x(index):.1f}" cy="{y(value):.1f}" r="3.5" fill="{colour}"><title>{escape(levels[index])}: '
            f"{value:,.6g} {escape(name)}</title></circle>"
            for index, value in enumerate(values)
        ]
        if len(lines) > 1:
            at = left + _PANEL_WIDTH - 50 * (len(lines) - number)
            parts.append(f'<rect x="{at}" y="{top - 22}" width="10" height="10" fill="{colour}"/>')
            parts.append(f'<text x="{at + 14}" y="{top - 13}">{escape(name)}</text>')
    return parts
