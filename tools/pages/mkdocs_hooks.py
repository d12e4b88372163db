"""What mkdocs asks of us while it makes the site (mkdocs.yml).

The pages of docs/ link to pages that lie beside code: examples/README.md, CONTRIBUTING.md and others. Those become pages of the
site, under ``project/``, without a second copy in the repository; a folder of examples becomes a page with its files. What is
no page, a folder of results for instance, is named and not linked. Links are rewritten as the pages are read, so the files
stay as they are, and lead somewhere in the repository, too.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PROJECT = Path(__file__).resolve().parents[2]

BESIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security-policy.md",
    "LICENSE": "",
    "examples/README.md": "project/examples/index.md",
    "benchmarks/README.md": "project/benchmarks.md",
}
"""Pages beside code, and where the site has them; the README's place is that of docs/index.md, and "" is no page."""

_LANGUAGES = {".py": "python", ".pbtxt": "protobuf", ".json": "json"}
_LINK = re.compile(r"(?P<text>\[(?:[^\]\[]|\[[^\]]*\])*\])\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"^ *```.*?^ *```\s*$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put pages that nav does not name under "Reference", those beside code and the examples under titles of their own."""
    nav: list[dict[str, list[Any]]] = config.nav or []
    named = {page for section in nav for pages in section.values() for page in pages}
    docs = Path(config.docs_dir)
    others = [str(page.relative_to(docs)) for page in sorted(docs.rglob("*.md"))]
    for section in nav:
        if "Reference" in section:
            section["Reference"] += [page for page in others if page not in named]
        if "The server itself" in section:
            section["The server itself"] += [
                page for page in BESIDE.values() if page.startswith("project/") and "examples" not in page
            ]
        if "Examples" in section:
            section["Examples"] += [_page_of_folder(folder) for folder in _example_folders()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages beside code, and one for each folder of examples."""
    for source, target in BESIDE.items():
        if target.startswith("project/"):
            files.append(File.generated(config, target, content=(PROJECT / source).read_text(encoding="utf-8")))
    for folder in _example_folders():
        page = _folder_page(PROJECT / folder)
        files.append(File.generated(config, _page_of_folder(folder), content=page))
    return files


def _example_folders() -> list[str]:
    return sorted(
        f"examples/{path.name}" for path in (PROJECT / "examples").iterdir() if (path / "client.py").is_file()
    )


def _page_of_folder(folder: str) -> str:
    return f"project/{folder}.md"


def _folder_page(folder: Path) -> str:
    """The files of *folder*, each in a block of its own: configurations first, then models, then the client."""
    files = sorted(
        (path for path in folder.rglob("*") if path.suffix in _LANGUAGES and "__pycache__" not in path.parts),
        key=lambda path: (path.name == "client.py", path.parts),
    )
    parts = [f"# The example {folder.name}\n\n`make example NAME={folder.name}` runs it.\n"]
    for path in files:
        language = _LANGUAGES[path.suffix]
        parts.append(
            f"`{path.relative_to(folder)}`:\n\n````{language}\n{path.read_text(encoding='utf-8').rstrip()}\n````\n"
        )
    return "\n".join(parts)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links that lead out of docs/; those within it stay as they are."""
    at = page.file.src_uri
    beside = {target: source for source, target in BESIDE.items()}
    source = beside.get(at, f"docs/{at}") if at.startswith("project/") else f"docs/{at}"
    if at.startswith("project/examples/") and at not in beside:
        return markdown
    code: list[str] = []

    def keep(match: re.Match[str]) -> str:
        code.append(match[0])
        return f"\0{len(code) - 1}\0"

    kept = _CODE.sub(keep, markdown)
    linked = _LINK.sub(lambda match: _rewritten(match, posixpath.dirname(source), at), kept)
    while "\0" in linked:
        linked = re.sub("\0(\\d+)\0", lambda match: code[int(match[1])], linked)
    return linked


def _rewritten(match: re.Match[str], folder: str, at: str) -> str:
    target, hash_sign, anchor = match["target"].partition("#")
    if not target or re.match(r"[a-z]+:", target):
        return match[0]
    path = posixpath.normpath(posixpath.join(folder, target))
    if path.startswith("docs/"):
        found = path.removeprefix("docs/")
    elif path in BESIDE:
        found = BESIDE[path]
    else:
        found = _page_of_folder(path) if path in _example_folders() else ""
    if not found:
        return match["text"].removeprefix("[").removesuffix("]")
    relative = posixpath.relpath(found, posixpath.dirname(at) or ".")
    return f"{match['text']}({relative}{hash_sign}{anchor})"
