"""A page of metrics whole: the server writes it part by part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytriton_lite.core.custom_metrics import Family
from pytriton_lite.engine.counting.statistics import ModelStatistics
from pytriton_lite.frontends.metrics.page import page_parts


def metrics_page(
    statistics: Sequence[ModelStatistics], others: Iterable[Family] = (), *, has_counters: bool = True
) -> str:
    return "".join(page_parts(statistics, others, has_counters=has_counters))
