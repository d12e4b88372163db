"""Pages that are followed from top to bottom: what they say is done, and what they show is printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tools.pages.follow import Following, NotAsWritten, environment
from tools.pages.snippets import FOLLOWED, PROJECT, pages

FOLLOWED_PAGES = [page for page in pages() if FOLLOWED in page.read_text(encoding="utf-8")]


@pytest.fixture
def environ() -> dict[str, str]:
    """What a reader's commands have: the programs of this environment."""
    return {**environment(Path(sys.executable).parent), "PYTHONPATH": str(PROJECT)}


@pytest.mark.parametrize("page", FOLLOWED_PAGES, ids=lambda page: page.name)
def test_a_reader_who_does_what_the_page_says_sees_what_it_shows(
    page: Path, tmp_path: Path, environ: dict[str, str]
) -> None:
    for module in re.findall(r"^<!-- needs: (\w+) -->$", page.read_text(encoding="utf-8"), re.MULTILINE):
        pytest.importorskip(module)
    with Following(tmp_path, environ) as following:
        following.follow(page)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```sh\nfalse\n```\n", "status 1"),
        ("```sh\necho a\n```\n\n<!-- prints -->\n```text\nb\n```\n", "expected\nb\n\ncame\na"),
        ("<!-- background: it -->\n```sh\necho no server\n```\n", "did not get ready\nno server"),
    ],
)
def test_what_is_not_as_written_is_told(
    tmp_path: Path, environ: dict[str, str], text: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    monkeypatch.setattr("tools.pages.snippets.PROJECT", tmp_path)
    with pytest.raises(NotAsWritten, match=expected), Following(tmp_path, environ) as following:
        following.follow(page)


def test_files_are_written_and_any_lines_may_stand_for_others(tmp_path: Path, environ: dict[str, str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`a/b.txt`:\n\n```text\none\ntwo\nthree 3.4 s\n```\n\n```sh\ncat a/b.txt\n```\n\n"
        "<!-- prints -->\n```text\n…\nthree … s\n```\n"
    )
    with Following(tmp_path, environ) as following:
        following.follow(page)
    assert (tmp_path / "a" / "b.txt").read_text() == "one\ntwo\nthree 3.4 s\n"
