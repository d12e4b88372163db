"""Links of a page: targets, and the anchors that its headings make."""

from __future__ import annotations

import re
from pathlib import Path

_BLOCK = re.compile(r"^ *```.*?^ *```\s*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)(?: \"[^\"]*\")?\)")
_HEADING = re.compile(r"^#+ +(?P<title>.*?)\s*$", re.MULTILINE)
_MARKUP = re.compile(r"[`*]|\[(?P<text>[^\]]*)\]\([^)]*\)")


def targets(text: str) -> list[str]:
    """Where the links of a page's *text* lead, pictures too; code is passed over."""
    return [match["target"] for match in _LINK.finditer(_CODE.sub("", _BLOCK.sub("", text)))]


def anchors(text: str) -> set[str]:
    """The ids of the headings of a page's *text*, as the site makes them: small letters, digits, hyphens for spaces."""
    found: set[str] = set()
    for match in _HEADING.finditer(_BLOCK.sub("", text)):
        title = _MARKUP.sub(lambda markup: markup["text"] or "", match["title"])
        slug = re.sub(r"[^\w\s-]", "", title.lower()).strip()
        slug, number = re.sub(r"[\s-]+", "-", slug), 0
        while (name := f"{slug}_{number}" if number else slug) in found:
            number += 1
        found.add(name)
    return found


def broken(page: Path) -> list[str]:
    """Targets of *page*'s links within the project that are not there, each with what is missing."""
    wrong = []
    for target in targets(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page if not path else page.parent / path
        if not file.exists():
            wrong.append(f"{target}: there is no such file")
        elif anchor and (file.suffix != ".md" or anchor not in anchors(file.read_text(encoding="utf-8"))):
            wrong.append(f"{target}: there is no such heading")
    return wrong
