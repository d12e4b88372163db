"""Which test shows which behaviour of Triton: ``python -m tools.parity`` writes the last column of docs/parity/*.md anew.

A page has a table of rows: a number, what is given, what Triton answers. A test names its rows in its docstring, as
``model_api.md row 41``, ``http.md rows 24 to 26, 31 and 32`` or ``43 of grpc.md``. In a module whose docstring is about the
rows of one of these pages alone, ``row 41`` at the beginning of a parameter's id, ``Row 41.`` at the beginning of a docstring
and ``test_row_41_…`` name one, too. What a module's docstring says of itself counts for nothing.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

Row = tuple[str, int]
"""The name of a page, and the number of a row on it."""

PROJECT = Path(__file__).resolve().parent.parent
PAGES = PROJECT / "docs" / "parity"
TESTS = PROJECT / "tests"

WITH_SERVERS = ("contract/test_*.py", "adversity/test_*.py", "frontends/grpc/test_grpc_stream_models.py")
"""Where tests have real servers."""

WITH_A_FAKE_CLOCK = ("scheduling/test_*.py",)

_ROW = r"\d+(?!\.?\d)"  # 2.8 is a section
_LIST = rf"{_ROW}(?:(?:, and |, | and | to |–){_ROW})*"
_AFTER_THE_NAME = re.compile(rf"(\w+\.md),? rows? ({_LIST})")
_BEFORE_THE_NAME = re.compile(rf"(?:[Rr]ows? |, )({_LIST}) of (\w+\.md)")
_AT_THE_BEGINNING = re.compile(rf"Rows? ({_LIST})(?! of \w+\.md|\d)")
_IN_AN_ID = re.compile(rf"rows? ({_LIST})")
_IN_A_NAME = re.compile(r"test_row_(\d+)_")
_TABLE_ROW = re.compile(r"\| (\d+) \|.*\|")


@cache
def all_rows() -> tuple[Row, ...]:
    """Every row of every page, in their order."""
    return tuple(
        (page.name, int(found[1]))
        for page in sorted(PAGES.glob("*.md"))
        for line in page.read_text().splitlines()
        if (found := _TABLE_ROW.fullmatch(line))
    )


def numbers(text: str) -> Iterator[int]:
    """The numbers of a list of rows, ranges included."""
    for first, last in re.findall(r"(\d+)(?:(?: to |–)(\d+))?", text):
        yield from range(int(first), int(last or first) + 1)


def named_in_docstring(text: str) -> set[Row]:
    """The rows that *text* names together with their page."""
    text = " ".join(text.split())
    pages = {name for name, _ in all_rows()}
    lists = [*_AFTER_THE_NAME.findall(text), *((name, rows) for rows, name in _BEFORE_THE_NAME.findall(text))]
    return {(name, row) for name, rows in lists if name in pages for row in numbers(rows)}


def _named_in_ids(test: ast.FunctionDef) -> set[int]:
    texts = (
        node.value
        for decorator in test.decorator_list
        for node in ast.walk(decorator)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return {row for text in texts if (found := _IN_AN_ID.match(text)) for row in numbers(found[1])}


def _only_page_of(module: ast.Module) -> str | None:
    """The page that a module is about; None where it is about others, too."""
    names = set(re.findall(r"\w+\.md", ast.get_docstring(module) or ""))
    return names.pop() if len(names) == 1 and names <= {name for name, _ in all_rows()} else None


def _named_without_the_page(test: ast.FunctionDef, docstring: str) -> set[int]:
    rows = _named_in_ids(test) | set(map(int, _IN_A_NAME.findall(test.name)))
    if found := _AT_THE_BEGINNING.match(" ".join(docstring.split())):
        rows |= set(numbers(found[1]))
    return rows


def rows_of_tests(source: str) -> Iterator[tuple[str, str, set[Row]]]:
    """Name, docstring and rows of each test in a file's *source*."""
    module = ast.parse(source)
    page = _only_page_of(module)
    for test in ast.walk(module):
        if not isinstance(test, ast.FunctionDef) or not test.name.startswith("test_"):
            continue
        docstring = ast.get_docstring(test) or ""
        rows = named_in_docstring(docstring)
        if page is not None:
            rows |= {(page, row) for row in _named_without_the_page(test, docstring)}
        yield test.name, docstring, rows


@cache
def named_rows(places: tuple[str, ...] = WITH_SERVERS) -> dict[Row, dict[str, str]]:
    """The docstrings of the tests in *places* that name a row, by ``folder/file::name``."""
    found: dict[Row, dict[str, str]] = defaultdict(dict)
    for path in sorted(chain.from_iterable(map(TESTS.glob, places))):
        if path.name == "test_checklist_coverage.py":
            continue
        for name, docstring, rows in rows_of_tests(path.read_text()):
            for row in rows:
                found[row][f"{path.relative_to(TESTS)}::{name}"] = docstring
    return found


def with_tests(page: str, text: str) -> str:
    """*text* of *page* with the tests of each row in the last column of its table."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        found = _TABLE_ROW.fullmatch(line)
        if found is not None:
            row = (page, int(found[1]))
            kept = line[: line.rstrip("|").rindex("|")]
            lines[at] = (
                f"{kept}| {_listed([*named_rows().get(row, ()), *named_rows(WITH_A_FAKE_CLOCK).get(row, ())])} |"
            )
    return "\n".join(lines) + "\n"


def _listed(tests: Iterable[str]) -> str:
    return ", ".join(f"`{test}`" for test in tests)


def main() -> None:
    """Write the pages."""
    for path in sorted(PAGES.glob("*.md")):
        path.write_text(with_tests(path.name, path.read_text()))


if __name__ == "__main__":
    main()
