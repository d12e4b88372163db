"""A page of metrics whole: the server writes it part by part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytriton_lite.core.custom_metrics import Family
from pytriton_lite.engine.counting.statistics import ModelStatistics
from pytriton_lite.frontends.metrics.model_families import version_of
from pytriton_lite.frontends.metrics.page import page_parts


def metrics_page(
    statistics: Sequence[ModelStatistics], others: Iterable[Family] = (), *, has_counters: bool = True
) -> str:
    quantiles = {version_of(row): row.freeze_quantiles()() for row in statistics if row.has_summaries}
    return "".join(page_parts(statistics, quantiles, others, has_counters=has_counters))
