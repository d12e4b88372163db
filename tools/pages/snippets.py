"""Fenced blocks of a page, and what their authors say of them.

A comment before a block says what a reader need not see:

    <!-- fragment: why -->          python or protobuf that stands for a part of a whole: parsed, names may be unknown
    <!-- run by: tests/x.py -->     a test of its own runs it
    <!-- not run: why -->           in a page that is followed (follow.py): this block is parsed only
    <!-- installs: what -->         in such a page: not run where the environment has it already, as in the tests
    <!-- background: NAME -->       in such a page: goes on while later blocks run, until it has printed that it is ready
    <!-- stop: NAME -->             ends that one before this block runs
    <!-- needs: MODULE -->          anywhere: such a page is not followed without that module
    <!-- page run by: … -->         anywhere: the same for all blocks of the page
    <!-- prints -->                 in such a page: what the last command printed; a line of `…` stands for any lines

A line that consists of a path in backquotes and a colon names the file whose content is in the block below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
FOLLOWED = "<!-- followed -->"
"""In pages whose blocks are run one after the other, as a reader would."""

_PAGE_RUN_BY = re.compile(r"^<!-- page run by: (?P<test>.*) -->$", re.MULTILINE)

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+)(?P<language>[\w-]*)(?P<rest>[^\n]*)$")
_NOTE = re.compile(r"^\s*<!-- (?P<key>fragment|run by|not run|installs|background|stop|prints)(: (?P<value>.*))? -->$")
_FILE = re.compile(r"^\s*`(?P<path>[\w./-]+)`.*:$")


@dataclass(frozen=True)
class Snippet:
    """A block of *page*, whose fence is in *line*. ``file`` is the path that the line before it names, or ""."""

    page: Path
    line: int
    language: str
    text: str
    file: str = ""
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(PROJECT)}:{self.line}"


def pages() -> list[Path]:
    """Every page that people read: those of docs/ and the ones that lie beside code."""
    beside = (
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "examples/README.md",
        "benchmarks/README.md",
    )
    return [*sorted((PROJECT / "docs").rglob("*.md")), *(PROJECT / name for name in beside)]


def snippets(page: Path) -> list[Snippet]:
    """The blocks of *page*, in their order. Raises ValueError for a block that is not closed."""
    text = page.read_text(encoding="utf-8")
    by_test = _PAGE_RUN_BY.search(text)
    found = list(_read(page, iter(enumerate(text.splitlines(), 1))))
    if by_test is not None:
        for snippet in found:
            snippet.notes.setdefault("run by", by_test["test"])
    return found


def _read(page: Path, lines: Iterator[tuple[int, str]]) -> Iterator[Snippet]:
    notes: dict[str, str] = {}
    file = ""
    for number, line in lines:
        fence = _FENCE.match(line)
        if fence is not None:
            text = _body(lines, fence, f"{page}:{number}")
            yield Snippet(page, number, fence["language"], text, file, notes)
            notes, file = {}, ""
        elif (note := _NOTE.match(line)) is not None:
            notes[note["key"]] = note["value"] or ""
        elif line.strip():
            named = _FILE.match(line)
            file = named["path"] if named else ""
            notes = notes if named else {}


def _body(lines: Iterator[tuple[int, str]], fence: re.Match[str], place: str) -> str:
    indent = len(fence["indent"])
    taken: list[str] = []
    for _, line in lines:
        if line.strip() == fence["ticks"]:
            return "".join(f"{line}\n" for line in taken)
        taken.append(line[indent:] if line[:indent].isspace() else line)
    raise ValueError(f"{place}: the block is not closed")
