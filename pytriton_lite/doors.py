"""Doors of the server: what a package may add to it, by an entry point (docs/plugins.md).

A door is the name of a group of entry points; behind each name of it is an object that the door says how to use. Nothing is
looked up, let alone imported, before somebody asks for a name, so what nobody uses costs nothing. What comes with the server
enters in the same way, and keeps its names: a stranger of the same name is passed over, with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytriton_lite.core.errors import ErrorCode, InferenceError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

logger = logging.getLogger(__name__)

_OURS = "pytriton_lite."

RESPONSE_CACHES = "pytriton_lite.response_caches"
"""``--cache-config NAME,…``: a `engine.cache.response_cache.MakeCache`."""

TRACE_SINKS = "pytriton_lite.trace_sinks"
"""``--trace-config mode=NAME``: a `engine.tracing.sink.MakeSink`."""

REPOSITORY_SOURCES = "pytriton_lite.repository_sources"
"""``--model-repository=NAME://…``: a `remote.source.OpenSource`."""

BACKENDS = "pytriton_lite.backends"
"""``backend: "NAME"`` in a configuration: a package whose folder has the ``model.py`` of a Python-based backend.

Found and never imported here: workers read it by path, under the model's interpreter.
"""


def folders(door: str) -> dict[str, Path]:
    """The folder of each package behind *door*, by name. Nothing is imported; what cannot be found is left out."""
    from importlib.metadata import entry_points
    from importlib.util import find_spec

    found: dict[str, Path] = {}
    for entry in _chosen(door, entry_points(group=door)).values():
        top, _, rest = entry.module.partition(".")
        # Not of the whole name: that would import what stands before its last dot.
        spec = find_spec(top)
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            folder = Path(place, *rest.split(".")) if rest else Path(place)
            if folder.is_dir():
                found[entry.name] = folder
                break
    return found


def names(door: str) -> list[str]:
    """What is installed behind *door*, sorted."""
    from importlib.metadata import entry_points  # 20 ms, and nobody may want it

    return sorted({entry.name for entry in entry_points(group=door)})


def load(door: str, name: str) -> Any:
    """The object that *name* stands for behind *door*; None where nothing of that name is installed.

    Raises InferenceError(UNAVAILABLE) where it cannot be imported.
    """
    from importlib.metadata import entry_points

    found = _chosen(door, entry_points(group=door, name=name)).get(name)
    if found is None:
        return None
    try:
        return found.load()
    except Exception as error:  # whatever a stranger's module does when it is imported
        logger.debug("the plug-in '%s' (%s: %s)", name, door, found.value, exc_info=True)
        reason = error if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: {error}"
        raise InferenceError(
            ErrorCode.UNAVAILABLE, f"the plug-in '{name}' ({door}: {found.value}) cannot be imported: {reason}"
        ) from error


def _readable(door: str, entries: Iterable[EntryPoint]) -> Iterator[EntryPoint]:
    """The *entries* that name a module: not every tool that builds packages looks at what is written there."""
    for entry in entries:
        if entry.pattern.match(entry.value) is None:
            text = "the plug-in '%s' (%s: %s) is not used: that is no name of a module"
            logger.warning(text, entry.name, door, entry.value)
        else:
            yield entry


def _chosen(door: str, entries: Iterable[EntryPoint]) -> dict[str, EntryPoint]:
    """One of *entries* for each name: the server's own, or the first that was found."""
    chosen: dict[str, EntryPoint] = {}
    for entry in sorted(_readable(door, entries), key=lambda entry: not entry.module.startswith(_OURS)):
        kept = chosen.setdefault(entry.name, entry)
        if kept.value != entry.value:
            text = "the plug-in '%s' (%s: %s) is not used: %s has that name"
            logger.warning(text, entry.name, door, entry.value, kept.value)
    return chosen
