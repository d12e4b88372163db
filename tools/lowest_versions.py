"""Prints pip constraints that hold every dependency in pyproject.toml at its lower bound: ``make test-lowest`` installs them.

An argument adds the requirements of an extra or of a group, ``examples``, or one of them, ``dev:grpcio-tools``. What has no
lower bound is left to pip, as is what others depend on.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:  # every environment that has pip has it
    from pip._vendor import tomli as tomllib

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"

# A name, perhaps with extras, and its first bound; further bounds and a marker may follow.
_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*(?:>=|==)\s*(?P<version>[0-9][0-9A-Za-z.]*)[^;]*(?P<marker>;.*)?"
)


def constraints(requirements: Iterable[str], only: str = "") -> Iterator[str]:
    """``name==version``, and the marker, of each of *requirements* that has a lower bound; only that name's if one is given."""
    for requirement in requirements:
        found = _REQUIREMENT.fullmatch(requirement.strip())
        if found is not None and only in ("", found["name"]):
            yield f"{found['name']}=={found['version']}{found['marker'] or ''}"


def lowest(pyproject: str, additions: Iterable[str] = ()) -> list[str]:
    """The constraints for what *pyproject*, the text of the file, requires always, and for *additions*."""
    document: dict[str, Any] = tomllib.loads(pyproject)
    project = document["project"]
    known = {**document.get("dependency-groups", {}), **project["optional-dependencies"]}
    found = set(constraints(project["dependencies"]))
    for addition in additions:
        extra, _, name = addition.partition(":")
        added = set(constraints(known[extra], only=name))
        if not added:
            raise ValueError(f"nothing that {addition!r} names has a lower bound")
        found |= added
    return sorted(found)


if __name__ == "__main__":
    print("\n".join(lowest(PYPROJECT.read_text(), sys.argv[1:])))
