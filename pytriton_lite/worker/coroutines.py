"""The event loop for ``async def execute``: one per worker, in a daemon thread, made for the first coroutine (4.4)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

Done = Callable[["asyncio.Future[Any]"], None]


class ModelLoop:
    """The loop and the coroutines of ``execute`` that have not ended.

    The same loop for all of them; tasks that a model makes beside them live on after its ``execute`` has returned.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    def prepare(self, coroutine: Coroutine[Any, Any, Any], on_done: Done) -> Running:
        """*coroutine*, to be started; *on_done* is called in the loop's thread with its task, however it ends.

        With a future that has the exception where no task could be made of it.
        """
        return Running(self._started(), coroutine, on_done)

    def runs_here(self) -> bool:
        """Whether this is the loop's thread."""
        return self._thread is threading.current_thread()

    def stop(self) -> None:
        """Tell the loop to stop, as Triton does before ``finalize``."""
        self._is_stopping = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def close(self) -> None:
        """Stop the loop and free what it has, for a process that lives on. Tasks that have not ended do not end."""
        if self._loop is not None and self._thread is not None:
            self.stop()
            self._thread.join()
            self._loop.close()
            asyncio.set_event_loop(None)

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)  # also the current loop of the main thread, where this runs
            self._thread = threading.Thread(target=self._run, args=(loop,), name="Thread-1 (run_forever)", daemon=True)
            self._thread.start()
        return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run until `stop`, whatever coroutines do: without its loop the worker would never answer them, or any others."""
        while not self._is_stopping:
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                # asyncio gives them to the task, whose callbacks are still due, and lets them pass through the loop.
                continue


class Running:
    """One coroutine in the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], on_done: Done) -> None:
        self._loop = loop
        self._task: asyncio.Task[Any] | None = None
        self._coroutine: Coroutine[Any, Any, Any] | None = coroutine
        self._on_done = on_done

    def start(self) -> None:
        """Begin, in a copy of the caller's context."""
        self._loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        coroutine, self._coroutine = self._coroutine, None  # the frame of a coroutine that ended holds the requests
        assert coroutine is not None
        try:
            self._task = self._loop.create_task(coroutine)
        except BaseException as error:  # of a task factory of the model's
            failed = self._loop.create_future()
            failed.set_exception(error)
            self._on_done(failed)
        else:
            self._task.add_done_callback(self._on_done)

    def cancel(self) -> None:
        """Cancel its task, from any thread."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
