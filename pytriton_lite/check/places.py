"""Where in a file the field stands that a finding is about."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

Place = tuple[int, int]
"""Line and column, from 1; (0, 0) is the file as a whole."""

_INDEX = re.compile(r'\["[^"]*"\]|\[\d+\]')


def place_of(field: str, places: Mapping[str, Place]) -> Place:
    """The place of *field*, or of the innermost that is written of those that it belongs to."""
    while field:
        if field in places:
            return places[field]
        field = _around(field)
    return (0, 0)


def _around(field: str) -> str:
    """``input[1]`` for ``input[1].dims``, ``input`` for ``input[1]``, "" for ``input``."""
    if field.endswith('"]'):
        return field[: field.rindex('["')]
    if field.endswith("]"):
        return field[: field.rindex("[")]
    return field.rpartition(".")[0]


def places_of_all(path: str, places: Mapping[str, Place]) -> Iterator[tuple[str, Place]]:
    """Each field whose path is *path* when indices are left out, or else the first that is written of those around it."""
    prefix, _, key = path.partition(".")
    if prefix == "parameters":
        path = f'parameters["{key}"]'
        yield path, place_of(path, places)
        return
    found = [(field, place) for field, place in places.items() if _INDEX.sub("", field) == path and field[-1] != "]"]
    yield from found or [(path, place_of(path, places))]
