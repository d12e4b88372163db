"""Versions that can be seen and serve nobody: one whose configuration is still to be completed, or one that has ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import NoReturn

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.core.errors import BugError
from pytriton_lite.core.states import VersionState
from pytriton_lite.engine.counting.statistics import SharedMemory
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.serving.served_version import ServedVersion
from pytriton_lite.scheduling.ticket import Ticket


class IncompleteVersion(ServedVersion):
    """Holds the place of a version in the index. The one that serves is made when its configuration is complete."""

    @property
    def pending(self) -> int:
        return 0

    @property
    def queued(self) -> int:
        return 0

    @property
    def is_ready(self) -> bool:
        return False

    @property
    def is_recovering(self) -> bool:
        return False

    @property
    def queued_by_level(self) -> dict[int, int]:
        return {}

    @property
    def shared_memory(self) -> list[SharedMemory]:
        return []

    @property
    def longest_executions(self) -> dict[str, float]:
        return {}

    async def says_ready(self) -> bool:
        return False

    def _begin(self, ticket: Ticket) -> None:
        raise self.not_ready_error()

    async def load(self, environment: Environment | None) -> None:
        self._refuse("loaded")

    def adopting(self, config: ModelConfig) -> AbstractAsyncContextManager[Callable[[], None]]:
        self._refuse("changed")

    async def unload(self, timeout_s: float | None = None) -> bool:
        self._move(VersionState.UNAVAILABLE, "unloaded")
        return True

    def _refuse(self, what: str) -> NoReturn:
        raise BugError(
            f"version {self.version} of model '{self.id}' cannot be {what}: its configuration is not complete"
        )


class EndedVersion(IncompleteVersion):
    """What the index goes on telling of a version that has ended, without what it needed to serve: labels say, or queues."""

    def __init__(self, served: ServedVersion) -> None:
        config = dataclasses.replace(served.config, labels={}, initial_states={}, chat_template=None)
        super().__init__(config, served.version, namespace=served.id.namespace)
        self.state = served.state
        self.reason = served.reason
