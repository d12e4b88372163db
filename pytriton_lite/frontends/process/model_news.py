"""What is served, told to front ends as it changes, and whether all of them have heard it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from pytriton_lite.engine.models.catalog import Models
from pytriton_lite.frontends.process import frames
from pytriton_lite.frontends.process.news import ModelNews, VersionNews
from pytriton_lite.frontends.process.numbering import ModelNumbers, StampedVersions


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
