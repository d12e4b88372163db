"""Who may load or unload which model now: one operation on a model at a time, and so many loads over all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(eq=False)
class _Wanted:
    model: Hashable
    takes_slot: bool
    granted: asyncio.Future[None]


class Turns:
    """Operations on one model come in the order in which they asked.

    A turn and a slot are granted together. Who had the one and waited for the other could keep out just the load that the
    holder of the other waits for, since models may load others in their own ``initialize``.
    """

    def __init__(self, slots: int) -> None:
        self._free_slots = slots
        self._busy: set[Hashable] = set()
        self._waiting: list[_Wanted] = []

    @asynccontextmanager
    async def turn(self, model: Hashable, *, takes_slot: bool) -> AsyncIterator[None]:
        """Nobody else works on *model* inside; with *takes_slot* it is one of the loads that are counted."""
        wanted = _Wanted(model, takes_slot, asyncio.get_running_loop().create_future())
        self._waiting.append(wanted)
        self._grant()
        try:
            await wanted.granted
            yield
        finally:
            if wanted in self._waiting:
                self._waiting.remove(wanted)
            else:
                self._give_back(wanted)

    def _grant(self) -> None:
        for wanted in list(self._waiting):
            if wanted.model in self._busy or (wanted.takes_slot and not self._free_slots):
                continue
            self._waiting.remove(wanted)
            self._busy.add(wanted.model)
            self._free_slots -= wanted.takes_slot
            if not wanted.granted.done():  # who was cancelled just now gives it back in its own time
                wanted.granted.set_result(None)

    def _give_back(self, wanted: _Wanted) -> None:
        self._busy.remove(wanted.model)
        self._free_slots += wanted.takes_slot
        self._grant()
