"""What a requirements file stands for: a key under which its environment is kept."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pytriton_lite.config.regular_file import read_regular_file

_FORMAT = "1"
"""Part of every key: changes when environments are built differently."""

_INCLUDE = re.compile(r"(?:-r|--requirement|-c|--constraint)(?:\s+|=|(?<=-[rc]))(?P<path>\S.*)")
_FROM = re.compile(r"(?:-e|--editable|-f|--find-links)(?:\s+|=|(?<=-[ef]))(?P<path>\S.*)")
_EDITABLE = re.compile(r"-e|--editable")
_ARCHIVES = (".whl", ".zip", ".tar.gz", ".tar.bz2", ".tgz")

_MADE_BY_BUILDS = re.compile(r"build|dist|.*\.egg-info|__pycache__|\.git")
"""Installing from a folder leaves these in it; they say nothing about what is installed."""

_READ_WHOLE_BYTES = 1 << 20


def requirements_key(requirements: Path, *, python: str, version: str, platform: str) -> str:
    """The name of the folder for the environment of *requirements* on the interpreter *python*.

    It changes with the text, with files that the text includes, and with what it names on this machine: folders, wheels; and
    with where a folder is that is installed with ``-e``.
    What a package index offers is not looked at. Raises OSError when the file cannot be read.
    """
    digest = hashlib.sha256()
    for word in (_FORMAT, os.path.realpath(python), version, platform):
        _add(digest, word.encode())
    _add_requirements(digest, requirements, set())
    return digest.hexdigest()[:32]


def _add(digest: hashlib._Hash, data: bytes) -> None:
    digest.update(len(data).to_bytes(8, "little"))
    digest.update(data)


def _add_requirements(digest: hashlib._Hash, path: Path, seen: set[Path]) -> None:
    path = path.resolve()
    if path in seen:
        return
    seen.add(path)
    text = read_regular_file(path)
    _add(digest, text)
    for line in _lines(text.decode("utf-8", "replace")):
        include = _INCLUDE.fullmatch(line)
        if include:
            included = path.parent / include["path"]
            if included.is_file():
                _add_requirements(digest, included, seen)
            continue
        place = _local_place(line, path.parent)
        if place is not None:
            if _EDITABLE.match(line):  # the environment only refers to it
                _add(digest, os.fsencode(place.resolve()))
            _add_tree(digest, place)


def _lines(text: str) -> Iterator[str]:
    for line in re.sub(r"\\\r?\n", "", text).splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).strip()
        if line:
            yield line


def _local_place(line: str, folder: Path) -> Path | None:
    """The file or folder that a line installs from; None when it is not on this machine."""
    found = _FROM.fullmatch(line)
    word = found["path"] if found else line.rpartition(" @ ")[2]
    word = word.partition(";")[0].strip()
    if word.startswith("file:"):
        word = unquote(urlsplit(word).path)
    word = re.sub(r"\[[^\]]*\]$", "", word)
    looks_local = found is not None or word.startswith((".", "/")) or "/" in word or word.endswith(_ARCHIVES)
    if not word or not looks_local:
        return None
    place = folder / word
    try:
        return place if place.exists() else None
    except (OSError, ValueError):
        return None


def _add_tree(digest: hashlib._Hash, place: Path) -> None:
    if not place.is_dir():
        _add_file(digest, place)
        return
    for folder, folders, files in os.walk(place):
        folders[:] = sorted(name for name in folders if not _MADE_BY_BUILDS.fullmatch(name))
        for name in sorted(files):
            path = Path(folder, name)
            if not path.exists():
                continue  # a link to nowhere, such as an editor puts beside a file that is open in it
            _add(digest, os.fsencode(path.relative_to(place)))
            _add_file(digest, path)


def _add_file(digest: hashlib._Hash, path: Path) -> None:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        return
    if status.st_size <= _READ_WHOLE_BYTES:
        _add(digest, path.read_bytes())
    else:
        _add(digest, f"{status.st_size} {status.st_mtime_ns}".encode())
