"""The reader that other tests trust: it must see what Prometheus, or a person, would stumble over."""

from __future__ import annotations

import pytest

from tests.prometheus_text import read_page

GOOD = """\
# HELP c text
# TYPE c counter
c{a="1",b="x\\"y\\n\\\\"} 1
c{a="2",b=""} 2.5
# HELP h text
# TYPE h histogram
h_count{z="1"} 2
h_sum{z="1"} 3
h_bucket{z="1",le="1"} 1
h_bucket{z="1",le="+Inf"} 2
# HELP s text
# TYPE s summary
s_count 0
s_sum 0
s{quantile="0.5"} NaN
"""


def test_a_good_page_is_read() -> None:
    families = read_page(GOOD)
    assert {name: family.kind for name, family in families.items()} == {
        "c": "counter",
        "h": "histogram",
        "s": "summary",
    }
    assert families["c"].samples == {
        ("c", (("a", "1"), ("b", 'x"y\n\\'))): 1.0,
        ("c", (("a", "2"), ("b", ""))): 2.5,
    }


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# HELP c text\n", ""),
        ("# TYPE c counter\n", ""),
        ("# HELP c text\n# TYPE c counter\n", "# TYPE c counter\n# HELP c text\n"),
        ("# HELP h text\n", "# HELP c text\n"),
        ("# HELP h text\n", "# HELP empty text\n# TYPE empty gauge\n# HELP h text\n"),
        ('a="2",b=""', 'b="",a="2"'),
        ('a="2",b=""', 'a="1",b="x\\"y\\n\\\\"'),
        ('c{a="2",b=""} 2.5', 'c{a="2",b=""} many'),
        ('c{a="2",b=""} 2.5', 'c{a="2",b=""} -1'),
        ('c{a="2",b=""}', 'c_total{a="2",b=""}'),
        ('c{a="2",b=""}', "c{a=2}"),
        ('z="1",le="1"', 'le="1",z="1"'),
        ('h_bucket{z="1",le="1"} 1', 'h_bucket{z="1",le="1"} 3'),
        ('h_bucket{z="1",le="+Inf"} 2\n', ""),
        ('h_bucket{z="1",le="+Inf"} 2', 'h_bucket{z="1",le="+Inf"} 1'),
        ('s{quantile="0.5"} NaN\n', 's{quantile="0.5"} NaN'),
    ],
)
def test_a_fault_is_found(old: str, new: str) -> None:
    assert old in GOOD
    with pytest.raises((AssertionError, ValueError, KeyError)):
        read_page(GOOD.replace(old, new))
