"""Threads for what may never come back: a disk that hangs, a host that says nothing.

The executors of the standard library wait for their threads when the process ends. These do not: nothing waits for one whose
caller has given up, neither the loop nor the interpreter.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class DaemonThreads:
    """Up to *limit* functions at a time, each in a thread of its own. One that was given up does not count any more."""

    def __init__(self, limit: int, name: str) -> None:
        self._places = asyncio.Semaphore(limit)
        self._name = name

    async def run(self, function: Callable[..., Answer], *arguments: Any, **options: Any) -> Answer:
        """Call *function* in a thread; its answer, or what it raises. Cancelling leaves the thread to itself."""
        async with self._places:
            return await in_daemon_thread(function, *arguments, name=self._name, **options)


async def in_daemon_thread(
    function: Callable[..., Answer], *arguments: Any, name: str = "reading", **options: Any
) -> Answer:
    """Run *function* in a daemon thread of its own, as `DaemonThreads.run` does, without a limit on how many there are."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Answer] = loop.create_future()
    work = functools.partial(function, *arguments, **options)
    threading.Thread(target=_work, args=(loop, done, work), name=name, daemon=True).start()
    try:
        return await done
    finally:
        # A failure has this frame in its traceback: in a cycle with it, what *work* was given would wait for a full collection.
        del done, work


def _work(loop: asyncio.AbstractEventLoop, done: asyncio.Future[Answer], work: Callable[[], Answer]) -> None:
    answer: Any = None
    failure: BaseException | None = None
    try:
        answer = work()
    except BaseException as error:  # whatever it is belongs to the caller
        failure = error
    try:
        loop.call_soon_threadsafe(_settle, done, answer, failure)
    except RuntimeError:  # the loop has ended, and with it whoever waited
        return
    finally:
        del done, work, failure  # as above


def _settle(done: asyncio.Future[Answer], answer: Answer, failure: BaseException | None) -> None:
    if done.done():  # given up
        return
    if failure is None:
        done.set_result(answer)
    else:
        done.set_exception(failure)
