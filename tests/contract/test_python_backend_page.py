"""docs/python-backend.md: the tests that it names are there, its links lead somewhere, its snippets can be read."""

from __future__ import annotations

import ast
import re

import pytest

from pytriton_lite.settings import OPTIONS
from tests.harness import PROJECT

DOCS = PROJECT / "docs"
PAGE = (DOCS / "python-backend.md").read_text()
TABLE = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| section ")
]
TESTS = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)))
PARAMETERS = re.findall(r'key: "([\w:]+)"', PAGE)


@pytest.mark.parametrize(("path", "name"), TESTS)
def test_a_test_that_the_page_names_is_there(path: str, name: str) -> None:
    module = ast.parse((PROJECT / "tests" / path).read_text())
    assert name in {node.name for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_section_works_or_says_what_differs_or_why_it_does_not_apply() -> None:
    for section, here, shown_by in TABLE:
        assert here.startswith(("works", "differs: ", "does not apply: ")), section
        assert shown_by == "–" or re.fullmatch(r"`[\w/]+\.py::\w+`", shown_by), section
        assert shown_by != "–" or here.startswith("does not apply: "), section


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)]+)\)", PAGE))))
def test_a_link_of_the_page_leads_somewhere(link: str) -> None:
    assert link.startswith("https://") or (DOCS / link.partition("#")[0]).is_file()


def test_parameters_and_flags_of_the_page_exist() -> None:
    flags = {option.flag for option in OPTIONS}
    named = {flag for flag in re.findall(r"--([a-z][a-z-]+)", PAGE) if flag != "shm-size"}  # which is docker's
    assert named <= flags
    source = "".join(path.read_text() for path in (PROJECT / "pytriton_lite").rglob("*.py"))
    assert [key for key in PARAMETERS if f'"{key.partition(":")[0]}' not in source] == []
