"""Links of every page within the project. Those to other hosts are not followed: a test depends on nobody else's server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.pages import links
from tools.pages.snippets import PROJECT, pages


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert links.broken(page) == []


def test_a_link_to_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b` [c](d.md)\n[one](#a-b-c) [two](#a-b) [three](gone.md) `[code](x)`\n```\n[block](y)\n```\n")
    (tmp_path / "d.md").touch()
    assert links.broken(page) == ["#a-b: there is no such heading", "gone.md: there is no such file"]
