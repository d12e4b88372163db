"""What is served, told to front ends as it changes, and whether all of them have heard it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

from pytriton_lite.core.states import VersionState
from pytriton_lite.engine.models.catalog import Models
from pytriton_lite.engine.serving.served_version import ServedVersion
from pytriton_lite.frontends.process import frames
from pytriton_lite.frontends.process.news import ModelNews, VersionNews


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


class ModelNewsSource:
    """Hears of models that have changed, and tells of them at the end of the loop's turn."""

    def __init__(
        self, models: Models, numbers: ModelNumbers, stamped: StampedVersions, tell: Callable[[bytes], None]
    ) -> None:
        """*stamped* gets the versions that are told of; *tell* sends a frame to every front end that there is."""
        self._stamped = stamped
        self._models = models
        self._numbers = numbers
        self._tell = tell
        self._changed: dict[str, None] = {}
        self._loop = asyncio.get_running_loop()
        models.on_change = self._on_change

    def _on_change(self, name: str) -> None:
        if not self._changed:
            self._loop.call_soon(self.tell_now)
        self._changed[name] = None

    def tell_now(self) -> None:
        """Tell what has changed."""
        changed, self._changed = self._changed, {}
        for name in changed:
            self._tell(self._frame(name))

    def everything(self) -> Iterator[bytes]:
        """Frames for a front end that knows nothing yet."""
        return (self._frame(name) for name in self._models.names())

    def _frame(self, name: str) -> bytes:
        return frames.told_frame(frames.MODEL, self._numbers.number(name), self._news(name))

    def _news(self, name: str) -> ModelNews:
        model = self._models.by_name.get(name)
        self._stamped.keep(name, () if model is None else model.versions.values())
        if model is None:
            error = self._models.not_found(name)
            return ModelNews(name, None, (error.code, error.message), ())
        versions = tuple(
            VersionNews(
                served.version,
                served.state,
                served.is_recovering,
                served.stamp,
                served.config.message.SerializeToString(),
            )
            for served in model.versions.values()
        )
        return ModelNews(name, model.id, None, versions)
