"""Numbers by which front ends name models and versions in each call, as the engine reads them."""

from __future__ import annotations

from collections.abc import Iterable

from pytriton_lite.core.states import VersionState
from pytriton_lite.engine.serving.served_version import ServedVersion


class ModelNumbers:
    """Numbers for the names of models, which are in every call."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []

    def number(self, name: str) -> int:
        """The number of *name*, the same for ever."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._names)
            self._names.append(name)
        return number

    def name(self, number: int) -> str:
        """The name that has *number*."""
        return self._names[number]


class StampedVersions:
    """Versions by their stamps: those that front ends have been told of last."""

    def __init__(self) -> None:
        self._versions: dict[int, ServedVersion] = {}
        self._stamps: dict[str, list[int]] = {}

    def keep(self, name: str, versions: Iterable[ServedVersion]) -> None:
        """*versions* are all that *name* has now."""
        for stamp in self._stamps.pop(name, ()):
            self._versions.pop(stamp, None)
        for served in versions:
            self._versions[served.stamp] = served
            self._stamps.setdefault(name, []).append(served.stamp)

    def get(self, stamp: int) -> ServedVersion | None:
        """The version that has *stamp*, if it can be found by its name and is READY."""
        served = self._versions.get(stamp)
        return served if served is not None and served.state is VersionState.READY else None
