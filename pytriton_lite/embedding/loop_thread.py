"""An event loop in a thread of its own, and the ways into it from other threads and other loops."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import queue
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

Answer = TypeVar("Answer")

LOOK_S = 1.0
"""How often who waits looks whether the thread is still there, which ends at a server's stop, and whether a signal has come."""


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def post_if_alive(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: Any) -> None:
    """Call *function* in *loop*, from any thread, or not at all when that has ended, and with it whoever waited."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)


class LoopThread:
    """Runs from its construction to `close`. The thread is a daemon: a program that has forgotten it can end."""

    def __init__(self, name: str) -> None:
        """Raises OSError where there can be no more threads."""
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._loop.close()
            raise OSError(errno.EAGAIN, str(error)) from None

    def _run(self) -> None:
        # A script may have the default for SIGPIPE back, so that `head` ends it. A worker that dies, or a client, is not to.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            try:
                self._end_tasks()
                self._loop.run_until_complete(self._loop.shutdown_asyncgens())
                # At the end of Python 3.12.0 and 3.12.1 there are no new threads.
                with contextlib.suppress(RuntimeError):
                    self._loop.run_until_complete(self._loop.shutdown_default_executor())
            finally:
                asyncio.set_event_loop(None)
                self._loop.close()

    def _end_tasks(self) -> None:
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    @property
    def is_current(self) -> bool:
        """Whether the caller is in this thread."""
        return threading.current_thread() is self._thread

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call *function* in the loop. Raises RuntimeError when that has ended."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def post_if_alive(self, function: Callable[..., object], *arguments: Any) -> None:
        """`post`, or nothing when the loop has ended."""
        post_if_alive(self._loop, function, *arguments)

    def begin(self, work: Coroutine[Any, Any, Answer]) -> Future[Answer]:
        """Have *work* done in the loop."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise

    def do(self, work: Coroutine[Any, Any, Answer], timeout_s: float | None = None) -> Answer:
        """Have *work* done in the loop, and wait for it. Raises what it raises.

        Raises queue.Empty behind *timeout_s*, and whatever interrupts the wait; *work* is cancelled then. Raises
        asyncio.CancelledError where the loop ends first, and RuntimeError where it has ended.
        """
        # As in `SingleCall.wait`, an interrupt may come anywhere here: hence no Future, which two threads lock.
        begun: list[asyncio.Task[Answer]] = []
        done: queue.SimpleQueue[asyncio.Task[Answer]] = queue.SimpleQueue()

        def begin() -> None:
            begun.append(self._loop.create_task(work))
            begun[0].add_done_callback(done.put)

        def cancel() -> None:
            for task in begun:
                task.cancel()

        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            self.post(begin)
        except RuntimeError:
            work.close()
            raise
        try:
            while True:
                left_s = LOOK_S if end_s is None else min(LOOK_S, max(end_s - time.monotonic(), 0))
                try:
                    return done.get(timeout=left_s).result()
                except queue.Empty:
                    if not self.is_alive:
                        if not begun:
                            work.close()
                        raise asyncio.CancelledError from None
                    if end_s is not None and time.monotonic() >= end_s:
                        raise
        except BaseException:
            self.post_if_alive(cancel)
            raise

    def close(self, timeout_s: float) -> bool:
        """End the loop, and what still runs in it. Whether the thread has ended within *timeout_s*."""
        self.post_if_alive(self._loop.stop)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()
