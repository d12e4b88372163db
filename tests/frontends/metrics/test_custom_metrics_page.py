"""How the metrics of models stand on the page: what Triton 2.51 printed for the same families, and what Prometheus reads."""

from __future__ import annotations

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pytriton_lite.core.custom_metrics import Family, Histogram, Kind, Labels, Number
from pytriton_lite.engine.counting.statistics import ModelStatistics
from tests.metrics_text import metrics_page


def gauge(value: float, labels: Labels = (), description: str = "text") -> Family:
    return Family("g", description, Kind.GAUGE, {labels: Number(value)})


def histogram(labels: Labels, bounds: tuple[float, ...], *values: float) -> Family:
    series = Histogram(bounds)
    for value in values:
        series.observe(value)
    return Family("h", "text", Kind.HISTOGRAM, {labels: series})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (3.5, "3.5"),
        (-1.9, "-1.9"),
        (1 / 3, "0.3333333333333333"),
        (0.1 + 0.2, "0.3"),
        (123456.789, "123456.789"),
        (1e16, "1e+16"),
        (1e-5, "1e-05"),
        (1e300, "1e+300"),
        (123456789012345678.0, "1.234567890123457e+17"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
    ],
)
def test_number_is_written_as_triton_writes_it(value: float, text: str) -> None:
    """But for NaN, which is ``Nan`` there."""
    assert metrics_page([], [gauge(value)]).splitlines()[-1] == f"g {text}"


def test_counter_of_row_131_stands_with_its_labels_escaped() -> None:
    """model_api.md row 131."""
    family = Family("cc", "a counter", Kind.COUNTER, {(("a", "1"), ("b", 'x"y')): Number(3.5)})
    assert metrics_page([], [family]) == (
        '# HELP cc a counter\n# TYPE cc counter\ncc{a="1",b="x\\"y"} 3.5\n'  # as the row has it
    )


def test_histogram_of_row_132_counts_upwards() -> None:
    """model_api.md row 132, in Triton's order; ``le`` comes last, also behind a label that sorts after it."""
    family = histogram((("z", "1"),), (0.1, 1.0, 2.5), 0.05, 1.0, 5.0)
    assert metrics_page([], [family]) == (
        "# HELP h text\n"
        "# TYPE h histogram\n"
        'h_count{z="1"} 3\n'
        'h_sum{z="1"} 6.05\n'
        'h_bucket{z="1",le="0.1"} 1\n'
        'h_bucket{z="1",le="1"} 2\n'
        'h_bucket{z="1",le="2.5"} 2\n'
        'h_bucket{z="1",le="+Inf"} 3\n'
    )


def test_histogram_without_labels_or_bounds_has_the_bucket_of_all() -> None:
    assert metrics_page([], [histogram((), (), 1.0)]).splitlines()[2:] == [
        "h_count 1",
        "h_sum 1",
        'h_bucket{le="+Inf"} 1',
    ]


def test_family_without_series_is_not_named() -> None:
    assert metrics_page([], [Family("f", "text", Kind.COUNTER)]) == ""


def test_families_of_models_come_after_those_of_the_server() -> None:
    rows = [ModelStatistics("m", 1, {})]
    page = metrics_page(rows, [gauge(1.0)])
    assert page == metrics_page(rows) + "# HELP g text\n# TYPE g gauge\ng 1\n"


@pytest.mark.parametrize("text", ["", "\n", "\\", "\\n", 'a\nb\\c"d', "é€", "} 1"])
def test_any_description_and_label_value_is_read_back(text: str) -> None:
    """Triton writes a description's line feed as it is, and Prometheus then refuses the page."""
    page = metrics_page([], [gauge(1.5, (("v", text),), text), histogram((("v", text),), (1.0,), 1.0)])
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert families["g"].documentation == text
    assert [(sample.labels, sample.value) for sample in families["g"].samples] == [({"v": text}, 1.5)]
    assert {sample.labels["v"] for sample in families["h"].samples} == {text}
