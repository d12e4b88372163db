"""Texts that end an answer, looked for in pieces of it; no I/O."""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """Passes text on until one of *stops* comes; what could be the beginning of one waits for the next piece."""

    def __init__(self, stops: Sequence[str]) -> None:
        """*stops* are not empty, nor is any of them."""
        self._stops = tuple(stops)
        self._longest = max(map(len, stops))
        self._held = ""
        self.is_stopped = False
        """Whether one of them has come: nothing is passed on any more."""

    def feed(self, piece: str) -> str:
        """What of the text can be passed on, now that *piece* has come."""
        if self.is_stopped:
            return ""
        text = self._held + piece
        found = [at for at in map(text.find, self._stops) if at >= 0]
        if found:
            self.is_stopped, self._held = True, ""
            return text[: min(found)]
        keep = self._begun(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def rest(self) -> str:
        """What was held back, when nothing more comes."""
        text, self._held = self._held, ""
        return text

    def _begun(self, text: str) -> int:
        """How long the longest end of *text* is with which a stop begins."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[len(text) - length :]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
