"""Every row of the checklists is named by a test that talks to a running server, and by one on a fake clock where it is
about a scheduler.

A test names its rows in its docstring, as ``model_api.md row 41``, ``http.md rows 24 to 26, 31 and 32`` or ``43 of
grpc.md``. In a module whose docstring is about the rows of one of these files alone, ``row 41`` at the beginning of a
parameter's id, ``Row 41.`` at the beginning of a docstring and ``test_row_41_…`` name one, too. What a module's docstring says
of itself counts for nothing.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

Row = tuple[str, int]

CHECKLISTS = {
    "model_api.md": 138,
    "http.md": 119,
    "grpc.md": 90,
    "model_config.md": 100,
    "repository.md": 86,
    "scheduling.md": 154,
}
"""The last row of each."""

ROWS: list[Row] = [(checklist, row) for checklist, last in CHECKLISTS.items() for row in range(1, last + 1)]

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

IN_PART: dict[Row, str] = {("model_api.md", 130): "where there is no GPU"}
"""Rows that no test here can show whole, with what each test of such a row says of itself.

130: where the outputs of a callee on a GPU lie. Shown is that the preference changes nothing without one.
"""

TESTS = Path(__file__).parent.parent
PLACES = ("contract/test_*.py", "adversity/test_*.py", "frontends/grpc/test_grpc_stream_models.py")
"""Where tests have real servers."""

FAKE_CLOCK_PLACES = ("scheduling/test_*.py",)

_ROW = r"\d+(?!\.?\d)"  # 2.8 is a section
_LIST = rf"{_ROW}(?:(?:, and |, | and | to |–){_ROW})*"
_AFTER_THE_NAME = re.compile(rf"(\w+\.md),? rows? ({_LIST})")
_BEFORE_THE_NAME = re.compile(rf"(?:[Rr]ows? |, )({_LIST}) of (\w+\.md)")
_AT_THE_BEGINNING = re.compile(rf"Rows? ({_LIST})(?! of \w+\.md|\d)")
_IN_AN_ID = re.compile(rf"rows? ({_LIST})")
_IN_A_NAME = re.compile(r"test_row_(\d+)_")


def numbers(text: str) -> Iterator[int]:
    """Of a list of rows, ranges included."""
    for first, last in re.findall(r"(\d+)(?:(?: to |–)(\d+))?", text):
        yield from range(int(first), int(last or first) + 1)


def named_in_docstring(text: str) -> set[Row]:
    text = " ".join(text.split())
    lists = [*_AFTER_THE_NAME.findall(text), *((name, rows) for rows, name in _BEFORE_THE_NAME.findall(text))]
    return {(name, row) for name, rows in lists if name in CHECKLISTS for row in numbers(rows)}


def named_in_ids(test: ast.FunctionDef) -> set[int]:
    texts = (
        node.value
        for decorator in test.decorator_list
        for node in ast.walk(decorator)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return {row for text in texts if (found := _IN_AN_ID.match(text)) for row in numbers(found[1])}


def only_checklist_of(module: ast.Module) -> str | None:
    """The one that a module is about; None where it is about others, too."""
    names = set(re.findall(r"\w+\.md", ast.get_docstring(module) or ""))
    return names.pop() if len(names) == 1 and names <= CHECKLISTS.keys() else None


def named_without_the_file(test: ast.FunctionDef, docstring: str) -> set[int]:
    rows = named_in_ids(test) | set(map(int, _IN_A_NAME.findall(test.name)))
    if found := _AT_THE_BEGINNING.match(" ".join(docstring.split())):
        rows |= set(numbers(found[1]))
    return rows


def rows_of_tests(source: str) -> Iterator[tuple[str, str, set[Row]]]:
    """Name, docstring and rows of each test in a file's *source*."""
    module = ast.parse(source)
    checklist = only_checklist_of(module)
    for test in ast.walk(module):
        if not isinstance(test, ast.FunctionDef) or not test.name.startswith("test_"):
            continue
        docstring = ast.get_docstring(test) or ""
        rows = named_in_docstring(docstring)
        if checklist is not None:
            rows |= {(checklist, row) for row in named_without_the_file(test, docstring)}
        yield test.name, docstring, rows


@cache
def named_rows(places: tuple[str, ...] = PLACES) -> dict[Row, dict[str, str]]:
    """The docstrings of the tests in *places* that name a row, by ``file::name``."""
    found: dict[Row, dict[str, str]] = defaultdict(dict)
    for path in sorted(chain.from_iterable(map(TESTS.glob, places))):
        if path == Path(__file__):
            continue
        for name, docstring, rows in rows_of_tests(path.read_text()):
            for row in rows:
                found[row][f"{path.name}::{name}"] = docstring
    return found


def id_of(row: Row) -> str:
    return f"{row[0]} row {row[1]}"


@pytest.mark.parametrize("row", ROWS, ids=id_of)
def test_a_row_of_a_checklist_is_named_by_a_test(row: Row) -> None:
    assert named_rows().get(row), f"no test in {', '.join(PLACES)} names {id_of(row)}"


@pytest.mark.parametrize("row", SCHEDULER_ROWS, ids=id_of)
def test_a_row_about_a_scheduler_is_named_by_a_test_on_a_fake_clock(row: Row) -> None:
    assert named_rows(FAKE_CLOCK_PLACES).get(row), f"no test in {', '.join(FAKE_CLOCK_PLACES)} names {id_of(row)}"


def test_no_test_names_a_row_that_is_not_there() -> None:
    named = {**named_rows(), **named_rows(FAKE_CLOCK_PLACES)}
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
