"""What ranges mean."""

from __future__ import annotations

import pytest

from pytriton_lite.bench.settings import Level, Pace, parse_range
from pytriton_lite.client.errors import ClientError


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("4", [4]),
        ("1:4", [1, 2, 3, 4]),
        ("1:8:3", [1, 4, 7]),
        ("1:32:x2", [1, 2, 4, 8, 16, 32]),
        ("1:30:x2", [1, 2, 4, 8, 16]),
        ("1,4,16", [1, 4, 16]),
        ("0.1:0.3:0.1", [0.1, 0.2, 0.3]),
    ],
)
def test_a_range_is_its_points(text: str, points: list[float]) -> None:
    assert parse_range(text, "request-rate-range", is_whole=False) == pytest.approx(points)


@pytest.mark.parametrize(
    ("value", "name"), [(4.0, "4"), (1e6, "1000000"), (0.1 + 0.2, "0.3"), (1234567.5, "1234567.5")]
)
def test_a_level_is_named_with_all_its_digits(value: float, name: str) -> None:
    assert Level(Pace.RATE, value).name == name


@pytest.mark.parametrize(
    "text", ["", "a", "1:", "1:2:0", "1:2:x1", "1:2:3:4", "4:1", "0", "-1", "1:1e9:1", "inf", "nan", "1.5"]
)
def test_what_is_no_range_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ClientError, match=r"--concurrency-range .*expected START:END:STEP"):
        parse_range(text, "concurrency-range", is_whole=True)
