"""The page's text, written when it is asked for, from the integers that the engine counts with.

The text format 0.0.4 of Prometheus, by hand: the names are final (metrics spec, section 1), and prometheus-client would
append ``_total`` to every counter and add ``_created`` beside it. Its counters also cost a lock per touch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pytriton_lite.core.custom_metrics import Family, Histogram, Labels, Number
from pytriton_lite.engine.counting.statistics import ModelStatistics
from pytriton_lite.frontends.metrics.model_families import (
    ModelFamily,
    Quantiles,
    Sample,
    histogram_samples,
    model_families,
    number,
)

_ROWS_AT_A_TIME = 50
"""Rows of one part of a page: a fraction of a millisecond for most families, 4 ms for histograms."""

_NO_LABEL_CHARACTER = re.compile(r"[^a-zA-Z0-9_]")
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_HELP_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n"})


def page_parts(
    statistics: Sequence[ModelStatistics],
    quantiles: Quantiles,
    others: Iterable[Family] = (),
    *,
    has_counters: bool = True,
) -> Iterator[str]:
    """The series of each family for each row, then the *others*; one without series is not named at all.

    Each part is some lines of one family, of `_ROWS_AT_A_TIME` rows or series at most. Without *has_counters*
    (``counter_latencies=false``) the counters of latencies are left out.
    """
    labelled = [(row, labels, _label_text(labels)) for row in statistics for labels in [_model_labels(row)]]
    for model_family in model_families(quantiles, has_counters=has_counters):
        head = f"# HELP {model_family.name} {model_family.help}\n# TYPE {model_family.name} {model_family.kind}\n"
        for begin in range(0, len(labelled), _ROWS_AT_A_TIME):
            lines = _model_lines(model_family, labelled[begin : begin + _ROWS_AT_A_TIME])
            if lines:
                yield head + lines
                head = ""
    for family in others:
        yield from _family_parts(family)


def _model_lines(family: ModelFamily, labelled: Iterable[tuple[ModelStatistics, Mapping[str, str], str]]) -> str:
    """Labels of each row, and their text: most lines have just these, and a page may have 100000 of them."""
    return "".join(
        f"{_line(family.name, sample, _label_text({**labels, **sample.labels}) if sample.labels else text)}\n"
        for row, labels, text in labelled
        for sample in family.samples(row)
    )


def _family_parts(family: Family) -> Iterator[str]:
    name = family.name
    # Triton writes the text as it is; a line feed in it would spoil the page.
    head = f"# HELP {name} {family.description.translate(_HELP_ESCAPES)}\n# TYPE {name} {family.kind.name.lower()}\n"
    # A copy: models make series and give them back between two parts.
    found = list(family.series.items())
    for begin in range(0, len(found), _ROWS_AT_A_TIME):
        lines = (
            line for pairs, series in found[begin : begin + _ROWS_AT_A_TIME] for line in _lines(name, pairs, series)
        )
        yield head + "".join(f"{line}\n" for line in lines)
        head = ""


def _lines(name: str, pairs: Labels, series: Number | Histogram) -> Iterator[str]:
    text = _label_text(dict(pairs))
    if isinstance(series, Histogram):
        for sample in histogram_samples(series.bounds, series.cumulative(), series.sum):
            yield _line(name, sample, text)
    else:
        yield _line(name, Sample(series.value), text)


def _label_text(labels: Mapping[str, str]) -> str:
    """The labels in alphabetical order, without the braces."""
    return ",".join(f'{key}="{labels[key].translate(_ESCAPES)}"' for key in sorted(labels))


def _line(name: str, sample: Sample, labels: str) -> str:
    """*labels* come first, and behind them the one that belongs to the family's type, as Triton prints them."""
    if sample.last is not None:
        key, value = sample.last
        last = f'{key}="{value}"'
        labels = f"{labels},{last}" if labels else last
    return f"{name}{sample.suffix}{f'{{{labels}}}' if labels else ''} {number(sample.value)}"


def _model_labels(row: ModelStatistics) -> dict[str, str]:
    """``model``, ``version``, ``namespace`` where there are some, and ``_tag`` for each metric tag of the configuration.

    A tag's name is free text there. Triton 2.51 ends its process where it is no label name; here what a label cannot
    have becomes an underscore, as one bad line makes Prometheus refuse the whole page.
    """
    labels = {_NO_LABEL_CHARACTER.sub("_", f"_{tag}"): value for tag, value in row.metric_tags.items()}
    if row.namespace:
        labels["namespace"] = row.namespace
    return {**labels, "model": row.name, "version": str(row.version)}
