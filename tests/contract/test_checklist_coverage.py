"""docs/parity: every row is named by a test that talks to a running server, and by one on a fake clock where it is about a
scheduler. `tools.parity` says how a test names its rows.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.parity import (
    PAGES,
    WITH_A_FAKE_CLOCK,
    WITH_SERVERS,
    Row,
    all_rows,
    named_in_docstring,
    named_rows,
    rows_of_tests,
    with_tests,
)

ROWS = all_rows()

SCHEDULER_ROWS: list[Row] = [
    ("scheduling.md", row)
    for row in (
        *range(1, 6),
        *range(19, 59),
        *range(61, 64),
        *range(65, 100),
        101,
        102,
        *range(124, 130),
        *range(148, 151),
    )
]
"""What a scheduler decides; the rest of that checklist is about what stands around it."""

IN_PART: dict[Row, str] = {("model_api.md", 130): "no GPU"}
"""Rows that no test here can show whole, with what each test of such a row says of itself.

130: where the outputs of a callee on a GPU lie. Shown is that the preference changes nothing without one, and on pretended
devices what it changes.
"""


def id_of(row: Row) -> str:
    return f"{row[0]} row {row[1]}"


@pytest.mark.parametrize("row", ROWS, ids=id_of)
def test_a_row_of_a_checklist_is_named_by_a_test(row: Row) -> None:
    assert named_rows().get(row), f"no test in {', '.join(WITH_SERVERS)} names {id_of(row)}"


@pytest.mark.parametrize("row", SCHEDULER_ROWS, ids=id_of)
def test_a_row_about_a_scheduler_is_named_by_a_test_on_a_fake_clock(row: Row) -> None:
    assert named_rows(WITH_A_FAKE_CLOCK).get(row), f"no test in {', '.join(WITH_A_FAKE_CLOCK)} names {id_of(row)}"


def test_there_are_all_rows() -> None:
    """A page that lost its form would lose its rows."""
    last = dict(ROWS)
    assert last == {
        "grpc.md": 90, "http.md": 119, "model_api.md": 138, "model_config.md": 100, "repository.md": 86, "scheduling.md": 154,
    }  # fmt: skip
    assert tuple((page, row) for page, rows in last.items() for row in range(1, rows + 1)) == ROWS


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.name)
def test_a_page_lists_the_tests_of_its_rows(page: Path) -> None:
    text = page.read_text()
    assert with_tests(page.name, text) == text, "write it anew: python -m tools.parity"


def test_no_test_names_a_row_that_is_not_there() -> None:
    named = {**named_rows(), **named_rows(WITH_A_FAKE_CLOCK)}
    strange = {id_of(row): list(tests) for row, tests in named.items() if row not in ROWS}
    assert not strange


@pytest.mark.parametrize(("row", "limit"), IN_PART.items(), ids=map(id_of, IN_PART))
def test_a_row_that_is_shown_in_part_says_so(row: Row, limit: str) -> None:
    for test, docstring in named_rows()[row].items():
        assert limit in docstring, test


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("model_api.md row 41.", {("model_api.md", 41)}),
        ("http.md row 3; model_api.md rows 7 and 9: ok.", {("http.md", 3), ("model_api.md", 7), ("model_api.md", 9)}),
        ("grpc.md rows 26 to 28, 31, 32 and 35; more", {("grpc.md", row) for row in (26, 27, 28, 31, 32, 35)}),
        ("http.md, rows 1–3, and 5", {("http.md", row) for row in (1, 2, 3, 5)}),
        ("model_api.md row 134, and 2.8: each level", {("model_api.md", 134)}),
        ("Rows 26 and 27 of cli.md, 101 of model_api.md.", {("model_api.md", 101)}),
        ("Rows 3 and 4 of\n    grpc.md.", {("grpc.md", 3), ("grpc.md", 4)}),
        ("cli.md row 2. Section 4 of model_api.md; model_api.md, section 3.7; row 12.", set()),
    ],
)
def test_rows_are_read_from_a_docstring(text: str, rows: set[Row]) -> None:
    assert named_in_docstring(text) == rows


def test_rows_without_their_file_count_in_modules_about_one_checklist() -> None:
    code = '''
"""Rows 1 to 9 of {0}."""

@pytest.mark.parametrize("x", [pytest.param(1, id="row 4, first"), pytest.param(2, id="a row 5")])
def test_row_6_is_here(x): ...

def test_more():
    """Rows 7 and 8: as written. Row 9."""

def test_another_file():
    """Row 10 of cli.md."""
'''
    assert [rows for _, _, rows in rows_of_tests(code.format("grpc.md"))] == [
        {("grpc.md", 4), ("grpc.md", 6)},
        {("grpc.md", 7), ("grpc.md", 8)},
        set(),
    ]
    assert [rows for _, _, rows in rows_of_tests(code.format("http.md and model_api.md"))] == [set(), set(), set()]
