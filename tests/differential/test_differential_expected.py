"""The list of deviations that `tests/differential/wire.py` lets pass, and the page that gives the reasons."""

from __future__ import annotations

import pytest

from tests.differential.expected import CONFIGURATIONS, DEVIATIONS, ENSEMBLES, SCHEDULERS, Deviation, row_for, rows


@pytest.mark.parametrize("deviation", DEVIATIONS + CONFIGURATIONS + ENSEMBLES + SCHEDULERS, ids=lambda found: found.row)
def test_every_deviation_has_its_row_in_the_documentation(deviation: Deviation) -> None:
    assert deviation.row in rows()


def test_a_deviation_explains_what_it_names_and_nothing_else() -> None:
    ours = "400 error Invalid value for 'ready': expected a boolean"
    assert row_for("POST index", "500 error attempt to access JSON", ours) == "index with a non-boolean `ready`"
    assert row_for("POST index", "200 json []", ours) is None
