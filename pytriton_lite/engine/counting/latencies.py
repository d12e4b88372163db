"""Families of latencies that the metrics page has: ``--metrics-config`` (metrics spec, section 4)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from pytriton_lite.engine.counting.quantiles import DEFAULT_QUANTILES, LEAST_ERROR, Quantile

logger = logging.getLogger(__name__)

_SWITCHES = ("counter_latencies", "summary_latencies", "histogram_latencies")


@dataclass(frozen=True)
class LatencyMetrics:
    """What there is. Nothing is kept for what there is not."""

    has_counters: bool = True
    quantiles: tuple[Quantile, ...] | None = None
    """Quantiles of the summaries; None where there are none."""
    has_histograms: bool = False


def read_latency_metrics(settings: Iterable[tuple[str, str]]) -> LatencyMetrics:
    """Read (key, value) pairs; the last of a key wins. As in Triton texts are literal, and unknown keys are passed over.

    What has no effect is warned of.
    """
    given = dict(settings)
    for key, value in given.items():
        if key in _SWITCHES:
            if value not in ("true", "false"):
                logger.warning("--metrics-config %s=%s has no effect: expected 'true' or 'false'", key, value)
        elif key != "summary_quantiles":
            logger.warning("--metrics-config %s=%s has no effect: there is no setting of this name", key, value)
    text = given.get("summary_quantiles")
    quantiles = DEFAULT_QUANTILES if text is None else _read_quantiles(text)
    return LatencyMetrics(
        has_counters=given.get("counter_latencies") != "false",
        quantiles=quantiles if given.get("summary_latencies") == "true" else None,
        has_histograms=given.get("histogram_latencies") == "true",
    )


def _read_quantiles(text: str) -> tuple[Quantile, ...]:
    """``Q:E,Q:E,…``, ascending. What cannot be read is left out, with an error in the log."""
    found: dict[float, float] = {}
    for pair in text.split(","):
        try:
            quantile, error = map(float, pair.split(":"))
        except ValueError:
            quantile = error = -1.0
        if 0 <= quantile <= 1 and LEAST_ERROR <= error < 1:
            found[quantile] = error
        else:
            logger.error(
                "summary_quantiles: '%s' is left out, expected <quantile>:<error> with a quantile from 0 to 1 and an error "
                "from %g on",
                pair,
                LEAST_ERROR,
            )
    return tuple(Quantile(*item) for item in sorted(found.items()))
