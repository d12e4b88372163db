"""What is served, told to front ends as it changes, and whether all of them have heard it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from pytriton_lite.engine.models.catalog import Models
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


class ModelNewsSource:
    """Hears of models that have changed, and tells of them at the end of the loop's turn."""

    def __init__(self, models: Models, numbers: ModelNumbers, tell: Callable[[bytes], None]) -> None:
        """*tell* sends a frame to every front end that there is."""
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
        if model is None:
            error = self._models.not_found(name)
            return ModelNews(name, None, (error.code, error.message), ())
        versions = tuple(
            VersionNews(served.version, served.state, served.is_recovering, served.config.message.SerializeToString())
            for served in model.versions.values()
        )
        return ModelNews(name, model.id, None, versions)
