"""Turns to load or unload a model: one operation on a model at a time, and so many versions over all that load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass


@dataclass(eq=False)
class _Wanted:
    take: Callable[[], bool]
    """Takes what is wanted, if it is there; whether it was."""
    granted: asyncio.Future[None]


class Turns:
    """Operations on one model come one after the other; those that take no slot may pass others that wait for one.

    A turn and a slot are granted together. Who had the one and waited for the other could keep out just the load that the
    holder of the other waits for, since models may load others in their own ``initialize``.
    """

    def __init__(self, slots: int) -> None:
        self._free_slots = slots
        self._busy: set[Hashable] = set()
        self._waiting: list[_Wanted] = []

    @asynccontextmanager
    async def turn(self, model: Hashable, *, takes_slot: bool) -> AsyncIterator[Turn]:
        """Keep everybody else from *model* inside. Without *takes_slot* it has the slot of an operation that waits for it."""

        def take() -> bool:
            if model in self._busy or (takes_slot and not self._free_slots):
                return False
            self._busy.add(model)
            self._free_slots -= takes_slot
            return True

        def give_back() -> None:
            self._busy.remove(model)
            self._free_slots += takes_slot

        async with self._taken(take, give_back):
            yield Turn(self)

    @asynccontextmanager
    async def slot(self, turn: Turn) -> AsyncIterator[None]:
        """One of the versions that load at a time: it has the slot of *turn*, or another one that is free."""
        is_own = False

        def take() -> bool:
            nonlocal is_own
            is_own = turn.has_free_slot
            if is_own:
                turn.has_free_slot = False
            elif self._free_slots:
                self._free_slots -= 1
            else:
                return False
            return True

        def give_back() -> None:
            turn.has_free_slot |= is_own
            self._free_slots += not is_own

        async with self._taken(take, give_back):
            yield

    @asynccontextmanager
    async def _taken(self, take: Callable[[], bool], give_back: Callable[[], None]) -> AsyncIterator[None]:
        wanted = _Wanted(take, asyncio.get_running_loop().create_future())
        self._waiting.append(wanted)
        self._grant()
        try:
            await wanted.granted
            yield
        finally:
            if wanted in self._waiting:
                self._waiting.remove(wanted)
            else:
                give_back()
                self._grant()

    def _grant(self) -> None:
        for wanted in list(self._waiting):
            if wanted.take():
                self._waiting.remove(wanted)
                if not wanted.granted.done():  # who was cancelled just now gives it back in its own time
                    wanted.granted.set_result(None)


class Turn:
    """An operation on a model, which can always load one version, and more at a time where slots are free."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.has_free_slot = True
        """Whether no version has the slot that came with the turn."""

    def slot(self) -> AbstractAsyncContextManager[None]:
        """A slot, to be held while a version loads."""
        return self._turns.slot(self)
