"""The drawings of benchmarks/capacity.py, with the settings of plots.py: the same files give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from capacity_model import Costs
from plots import _DRAWING, _figure, _panels, _saved, _ticker

_COLOURS = {"CPU": "#0072B2", "queue time": "#D55E00", "pending": "#009E73"}
_RATES = [10**exponent for exponent in range(3, 7)]
_NBYTES = 8192
_EARLIER = ("capacity-forecasts-1.json", "capacity-forecasts-2.json")
"""Made by a simulation that shared cores evenly."""


class Checked(Protocol):
    """A forecast beside its measurement."""

    @property
    def is_saturated(self) -> bool: ...

    @property
    def forecast(self) -> float: ...

    @property
    def measured(self) -> float: ...

    @property
    def of(self) -> str: ...


def draw(costs: Costs, checked: Sequence[Checked], simulated: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the plots of all result files to *folder*; their paths."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_DRAWING):
        return [
            _saved(_forecasts(checked), folder / "capacity-forecasts.svg"),
            _saved(_layers(costs), folder / "capacity-layers.svg"),
            _saved(_scaling(simulated["runs"]), folder / "capacity-autoscaling.svg"),
        ]


def _forecasts(checked: Sequence[Checked]) -> Any:
    """Points on the diagonal are forecasts that came true; the band is 20 % to both sides."""
    figure = _figure(8, 3.8)
    panels = _panels(figure, 2)
    for axes, is_saturated, unit, scale in zip(panels, (True, False), ("requests/s", "p99, ms"), (1.0, 1e-3)):
        judged = [one for one in checked if one.is_saturated == is_saturated]
        points = [(one.forecast * scale, one.measured * scale) for one in judged]
        ends = [min(map(min, points)) * 0.7, max(map(max, points)) * 1.4]
        axes.fill_between(ends, [0.8 * end for end in ends], [1.2 * end for end in ends], color="#DDDDDD")
        axes.plot(ends, ends, color="#000000", linewidth=0.8)
        for files, colour, label in (
            (_EARLIER, "#999999", "sets 1 and 2, even shares"),
            (None, "#D55E00", "later ones"),
        ):
            chosen = [point for one, point in zip(judged, points) if (one.of in _EARLIER) == (files is not None)]
            axes.plot([x for x, _ in chosen], [y for _, y in chosen], "o", color=colour, markersize=4, label=label)
        axes.legend()
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(f"forecast, {unit}")
        axes.set_ylabel(f"measured, {unit}")
    return figure


def layers(costs: Costs, per_second: float) -> dict[str, float]:
    """Cores, by layer, for *per_second* requests of 8 KiB that take a model 2 ms of a core each."""
    return {
        "models (2 ms each)": per_second * 2e3 / 1e6,
        "servers": per_second * costs.server.of(_NBYTES) / 1e6,
        "workers, around the model": per_second * costs.worker.of(_NBYTES) / 1e6,
        "balancer": per_second * costs.balancers["haproxy"].of(_NBYTES) / 1e6,
    }


def _layers(costs: Costs) -> Any:
    figure = _figure(8, 3.4)
    (axes,) = _panels(figure, 1)
    for name, colour in zip(layers(costs, 1.0), ("#7F7F7F", "#D55E00", "#009E73", "#0072B2")):
        axes.plot(_RATES, [layers(costs, rate)[name] for rate in _RATES], marker="o", color=colour, label=name)
    axes.axhline(1.0, color="#000000", linewidth=0.8, linestyle="--")
    axes.text(_RATES[0], 1.1, "one core: the most of one server process, and of one balancer's thread", fontsize=8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(_ticker().FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(_ticker().FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.set_xlabel("requests/s")
    axes.set_ylabel("cores")
    axes.legend()
    return figure


def _scaling(runs: Sequence[Mapping[str, Any]]) -> Any:
    names = list(dict.fromkeys(run["name"] for run in runs))
    figure = _figure(9, 5.6)
    grid = figure.subplots(2, len(names), squeeze=False, sharex="col")
    for column, name in enumerate(names):
        for run in runs:
            if run["name"] != name:
                continue
            minutes = [seconds / 60 for seconds in run["seconds"]]
            colour = _COLOURS[run["signal"]]
            grid[0][column].plot(minutes, run["pods"], color=colour, label=f"by {run['signal']}")
            grid[1][column].plot(minutes, run["p99_ms"], color=colour)
        grid[0][column].set_title(name)
        grid[0][column].set_yscale("log" if column else "linear")
        grid[1][column].set_yscale("log")
        grid[1][column].set_xlabel("minutes")
        grid[0][column].legend()
    grid[0][0].set_ylabel("pods")
    grid[1][0].set_ylabel("p99, ms")
    return figure
