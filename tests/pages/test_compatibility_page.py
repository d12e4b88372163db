"""docs/compatibility.md: it begins with what a reader wants to know first, and every row has its reason."""

from __future__ import annotations

import re

from tests.harness import PROJECT

PAGE = (PROJECT / "docs" / "compatibility.md").read_text()


def test_it_begins_with_ten_sentences() -> None:
    _, first, *_ = PAGE.split("\n## ")
    assert first.startswith("Will my repository run?\n")
    assert re.findall(r"^(\d+)\. ", first, re.MULTILINE) == [str(number) for number in range(1, 11)]


def test_every_row_says_what_is_different_and_why() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    assert len(rows) > 300
    for row in rows:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        assert len(cells) == 4, row
        assert all(cells), row
