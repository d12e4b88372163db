"""benchmarks/shared_weights.py: what it sends and prints; the run itself takes minutes and gigabytes."""

from __future__ import annotations

from shared_weights import Cell, Row, body, table


def test_requests_differ() -> None:
    assert len({body(number) for number in range(100)}) == 100


def test_the_table_compares_with_one_instance_in_the_same_round() -> None:
    rows = {
        Cell("fork", 1): Row(500.0, 2.0, [10.0, 30.0, 20.0], [5.0, 5.0, 6.0], [0.0, 0.2, 0.1]),
        Cell("fork", 4): Row(530.0, 2.5, [20.0, 30.0, 20.0], [7.0, 8.0, 9.0], [0.5, 0.5, 0.5]),
    }
    assert table(rows).splitlines()[2:] == [
        "| fork | 1 | 500 | – | 2.0 | 20.0 (10.0–30.0) | 1.00 | 5.0 (5.0–6.0) | 0.10 (0.00–0.20) |",
        "| fork | 4 | 530 | 10 | 2.5 | 20.0 (20.0–30.0) | 1.00 | 8.0 (7.0–9.0) | 0.50 (0.50–0.50) |",
    ]
