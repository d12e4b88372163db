"""Every row of the model API's checklist is named by a test that talks to a running server.

A test names its rows in its docstring, as ``model_api.md row 41``, ``model_api.md rows 24 to 26, 31 and 32`` or ``43 of
model_api.md``. In a module whose docstring is about rows of model_api.md alone, ``row 41`` at the beginning of a parameter's id
and ``test_row_41_…`` name one, too. What a module's docstring says of itself counts for nothing.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROWS = range(1, 139)

IN_PART = {130: "where there is no GPU"}
"""Rows that no test here can show whole, with what each test of such a row says of itself.

130: where the outputs of a callee on a GPU lie. Shown is that the preference changes nothing without one.
"""

ROOMS = (Path(__file__).parent, Path(__file__).parent.parent / "adversity")
"""Where tests have real servers."""

_ROW = r"\d+(?!\.?\d)"  # 2.8 is a section
_LIST = rf"{_ROW}(?:(?:, and |, | and | to |–){_ROW})*"
_AFTER_THE_NAME = re.compile(rf"model_api\.md,? rows? ({_LIST})")
_BEFORE_THE_NAME = re.compile(rf"(?:[Rr]ows? |, )({_LIST}) of model_api\.md")
_IN_AN_ID = re.compile(rf"rows? ({_LIST})")
_IN_A_NAME = re.compile(r"test_row_(\d+)_")


def numbers(text: str) -> Iterator[int]:
    """Of a list of rows, ranges included."""
    for first, last in re.findall(r"(\d+)(?:(?: to |–)(\d+))?", text):
        yield from range(int(first), int(last or first) + 1)


def named_in_docstring(text: str) -> set[int]:
    text = " ".join(text.split())
    found = _AFTER_THE_NAME.findall(text) + _BEFORE_THE_NAME.findall(text)
    return {row for rows in found for row in numbers(rows)}


def named_in_ids(test: ast.FunctionDef) -> set[int]:
    texts = (
        node.value
        for decorator in test.decorator_list
        for node in ast.walk(decorator)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return {row for text in texts if (found := _IN_AN_ID.match(text)) for row in numbers(found[1])}


def is_about_model_api_alone(module: ast.Module) -> bool:
    return set(re.findall(r"\w+\.md", ast.get_docstring(module) or "")) == {"model_api.md"}


def rows_of_tests(source: str) -> Iterator[tuple[str, str, set[int]]]:
    """Name, docstring and rows of each test in a file's *source*."""
    module = ast.parse(source)
    for test in ast.walk(module):
        if not isinstance(test, ast.FunctionDef) or not test.name.startswith("test_"):
            continue
        docstring = ast.get_docstring(test) or ""
        rows = named_in_docstring(docstring)
        if is_about_model_api_alone(module):
            rows |= named_in_ids(test) | set(map(int, _IN_A_NAME.findall(test.name)))
        yield test.name, docstring, rows


@cache
def named_rows() -> dict[int, dict[str, str]]:
    """The docstrings of the tests that name a row, by ``file::name``."""
    found: dict[int, dict[str, str]] = defaultdict(dict)
    for path in sorted(path for room in ROOMS for path in room.glob("test_*.py")):
        if path == Path(__file__):
            continue
        for name, docstring, rows in rows_of_tests(path.read_text()):
            for row in rows:
                found[row][f"{path.name}::{name}"] = docstring
    return found


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_checklist_is_named_by_a_test(row: int) -> None:
    assert named_rows().get(row), f"no test in {', '.join(room.name for room in ROOMS)} names model_api.md row {row}"


def test_no_test_names_a_row_that_is_not_there() -> None:
    strange = {row: list(tests) for row, tests in named_rows().items() if row not in ROWS}
    assert not strange


@pytest.mark.parametrize(("row", "limit"), IN_PART.items())
def test_a_row_that_is_shown_in_part_says_so(row: int, limit: str) -> None:
    for test, docstring in named_rows()[row].items():
        assert limit in docstring, test


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("model_api.md row 41.", {41}),
        ("http.md row 3; model_api.md rows 7 and 9: as written.", {7, 9}),
        ("model_api.md rows 26 to 28, 31, 32 and 35; more", {26, 27, 28, 31, 32, 35}),
        ("model_api.md, rows 1–3, and 5", {1, 2, 3, 5}),
        ("model_api.md row 134, and 2.8: each level", {134}),
        ("Rows 26 and 27 of repository.md, 101 of model_api.md.", {101}),
        ("Rows 3 and 4 of\n    model_api.md.", {3, 4}),
        ("repository.md row 2. Section 4 of model_api.md; model_api.md, section 3.7; row 12.", set()),
    ],
)
def test_rows_are_read_from_a_docstring(text: str, rows: set[int]) -> None:
    assert named_in_docstring(text) == rows


def test_ids_and_names_count_in_modules_about_the_model_api_alone() -> None:
    code = '''
"""Rows 1 to 9 of {0}."""

@pytest.mark.parametrize("x", [pytest.param(1, id="row 4, first"), pytest.param(2, id="a row 5")])
def test_row_6_is_here(x): ...
'''
    assert list(rows_of_tests(code.format("model_api.md"))) == [("test_row_6_is_here", "", {4, 6})]
    assert list(rows_of_tests(code.format("http.md and model_api.md"))) == [("test_row_6_is_here", "", set())]
