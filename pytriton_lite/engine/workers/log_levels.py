"""Levels of pb_utils.Logger that are wanted, told to every worker through its control page."""

from __future__ import annotations

from pytriton_lite.ipc.messages import CONTROL_LOG_LEVELS
from pytriton_lite.ipc.segment import Words


class LogLevels:
    """One number for all workers of a server, those that live and those that will. Bits as in `core.log_settings`."""

    def __init__(self, levels: int = 0b0111) -> None:
        self._levels = levels
        self._pages: dict[object, Words] = {}

    def set(self, levels: int) -> None:
        """Seen by the workers with the next line that their models log."""
        self._levels = levels
        for page in self._pages.values():
            page[CONTROL_LOG_LEVELS] = levels

    def enter(self, worker: object, page: Words) -> None:
        """Keep *page*, 64-bit numbers, up to date until `leave`."""
        self._pages[worker] = page
        page[CONTROL_LOG_LEVELS] = self._levels

    def leave(self, worker: object) -> None:
        """Forget the page of *worker*, if it has one here."""
        self._pages.pop(worker, None)
