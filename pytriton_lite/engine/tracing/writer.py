"""What traces are handed to: a bounded queue, and a thread that makes of them whatever is wanted and writes it.

The event loop only puts complete timelines into the queue. A disk or a collector that is slow holds up nobody: what does not
fit is dropped and counted.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from pytriton_lite.core.timeline import Timeline

logger = logging.getLogger(__name__)

_MOST_WAITING = 8192
"""Traces: with their timelines some 10 MB."""
_MOST_WAITING_BYTES = 64 << 20
"""Bytes of tensors that were copied for waiting traces."""
_QUIET_S = 60.0
"""Time without a failure after which one like the last is news: the disk is full again."""


class Recorder(Protocol):
    """Called in the thread, one after another; may raise and may block."""

    def record(self, timeline: Timeline) -> None: ...

    def finish(self) -> None:
        """Write what is left: nothing more comes."""


class TraceWriter:
    """`close` must follow."""

    def __init__(self, make_recorder: Callable[[], Recorder], clock: Callable[[], float] = time.monotonic) -> None:
        """*make_recorder* is called in the thread, with the first trace: one that exports imports half a hundred modules.

        *clock* counts seconds.
        """
        self._make_recorder = make_recorder
        self._clock = clock
        self._recorder: Recorder | None = None
        self._queue: queue.SimpleQueue[tuple[Timeline, int] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting_bytes = 0
        self._dropped = 0
        self._has_warned = False
        self._last_failure = ""
        self._failed_s = 0.0
        self._is_late = False
        """Whether the end has waited in vain: what is left is lost, and its failures are no news."""
        self._thread = threading.Thread(target=self._work, name="traces", daemon=True)
        self._thread.start()

    def put(self, timeline: Timeline, nbytes: int) -> None:
        """*nbytes* are those of the tensors that the trace has copied. Nothing may write to *timeline* that is recorded."""
        with self._lock:
            is_full = self._queue.qsize() >= _MOST_WAITING or self._waiting_bytes + nbytes > _MOST_WAITING_BYTES
            if not is_full:
                self._waiting_bytes += nbytes
        if not is_full:
            self._queue.put((timeline, nbytes))
            return
        self._dropped += 1
        if not self._has_warned:
            self._has_warned = True
            logger.warning("traces come faster than they can be written: some are dropped")

    def close(self, timeout_s: float) -> bool:
        """Write what waits, for so long at most; whether all of it was. Otherwise nothing more is begun."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        self._is_late = self._thread.is_alive()
        if self._is_late:
            logger.error("the last traces are lost: they could not be written within %g s", timeout_s)
        if self._dropped:
            logger.warning("%d traces were dropped, because they came faster than they could be written", self._dropped)
        return not self._is_late

    def wait(self, timeout_s: float) -> None:
        """Wait, for so long at most, until what was being written behind `close` is or has failed."""
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None and not self._is_late:
            timeline, nbytes = item
            self._guard(partial(self._record, timeline))
            with self._lock:
                self._waiting_bytes -= nbytes
        if self._recorder is not None and not self._is_late:
            self._guard(self._recorder.finish)

    def _record(self, timeline: Timeline) -> None:
        if self._recorder is None:
            self._recorder = self._make_recorder()
        self._recorder.record(timeline)

    def _guard(self, work: Callable[[], None]) -> None:
        """A failure of the system, say a full disk, is told once and not for every trace: those may be as many as requests."""
        try:
            work()
        except OSError as error:
            if self._is_late:
                return
            now_s = self._clock()
            if str(error) != self._last_failure or now_s - self._failed_s >= _QUIET_S:
                logger.error("traces cannot be written: %s", error)
            self._last_failure, self._failed_s = str(error), now_s
        except Exception:
            if not self._is_late:
                logger.exception("a trace cannot be written")
