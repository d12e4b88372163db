"""The worker's end of the channel. There is no thread that reads: whoever waits, reads.

    Mailbox     one waiting thread at a time reads for all; when it has what it waited for, the next one takes over
    Outbox      frames leave whole and in order, from any thread, also from a destructor

A lone request costs no hand-over between threads: the main thread waits for work, so it reads. It may as well be waiting
in ``execute`` for the answer to a BLS call, in a `send` for a slow client, or for a coroutine; then work that arrives
meanwhile is put aside.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from pytriton_lite.core.give_way import give_way
from pytriton_lite.ipc.channel import RECEIVE_BYTES, FrameReader

OnFrame = Callable[[int, memoryview], None]


class EngineGone(Exception):
    """End-of-file on the channel: nobody is left to work for."""


class Waiter:
    """Something that a thread waits for. Done when it is finished, and only once."""

    __slots__ = ("_signal", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self._signal: threading.Lock | None = None


_FILLING = Waiter()
"""Stands for the thread that is in `Mailbox.fill`, which waits for nothing that could be finished."""


class Mailbox:
    """Frames as they come, each given to *on_frame* in the thread that reads."""

    def __init__(
        self,
        sock: socket.socket,
        on_frame: OnFrame,
        busy_poll_ns: int = 0,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """*busy_poll_ns* is how long `fill` looks for work, by *clock*, before it sleeps."""
        self._busy_poll_ns = busy_poll_ns
        self._clock = clock
        self._sock = sock
        self._on_frame = on_frame
        self._frames = FrameReader()
        self._mutex = threading.Lock()
        self._reader: Waiter | None = None
        self._reading_thread = 0
        self._waiting: deque[Waiter] = deque()
        self._wake_read = self._wake_write = -1
        # A thread that sleeps in recv on a Unix stream is woken for nothing each time that the engine has read a message, as
        # there is room to write again; one that polls is not. It has cost a worker a tenth of its time.
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)

    def wait(self, waiter: Waiter) -> None:
        """Return when *waiter* is done; read the channel meanwhile, or let another thread do it.

        Raises EngineGone on end-of-file.
        """
        if waiter.is_done:
            return
        # From the first line on: the handler of a signal may raise anywhere, and nobody may be left in line who is gone.
        try:
            with self._mutex:
                if waiter.is_done:
                    return
                signal = None
                if self._reader is None:
                    self._reader = waiter
                else:
                    signal = waiter._signal = threading.Lock()
                    signal.acquire()
                    self._waiting.append(waiter)
            if signal is not None:
                signal.acquire()  # until it is done, or it is this thread's turn to read
                if waiter.is_done:
                    return
            self._reading_thread = threading.get_ident()
            while not waiter.is_done:
                self._read()
        finally:
            self._leave(waiter)

    def fill(self, inbox: deque[Any]) -> bool:
        """Read until `on_frame` has put something into *inbox*: a cheaper `wait`, for the thread that reads most often.

        False when another thread reads already, which may put something there. Raises EngineGone on end-of-file.
        """
        with self._mutex:
            if self._reader is not None:
                return False
            self._reader = _FILLING
        try:
            self._reading_thread = threading.get_ident()
            while not inbox:
                data = self._look() if self._busy_poll_ns and self._wake_read < 0 else None
                if data is None:
                    self._read()
                else:
                    self._take(data)
        finally:
            self._hand_over()
        return True

    def _look(self) -> bytes | None:
        """What comes soon; None where nothing does. Other threads get the interpreter with each call to the system."""
        until_ns = self._clock() + self._busy_poll_ns
        while True:
            try:
                return self._sock.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if self._clock() >= until_ns:
                    return None
                give_way()

    def finish(self, waiter: Waiter) -> None:
        """Say that *waiter* is done: from `on_frame`, or from any thread once `allow_wakeups` was called."""
        with self._mutex:
            if waiter.is_done:
                return
            waiter.is_done = True
            if waiter is self._reader:
                if self._wake_write >= 0 and self._reading_thread != threading.get_ident():
                    os.write(self._wake_write, b"w")
                return
            try:
                self._waiting.remove(waiter)
            except ValueError:
                return  # it has not begun to wait
            assert waiter._signal is not None
            waiter._signal.release()

    def poll(self) -> None:
        """Read what has come, without waiting; nothing when another thread reads. Raises EngineGone on end-of-file."""
        with self._mutex:
            if self._reader is not None:
                return
            self._reader = Waiter()
        try:
            self._reading_thread = threading.get_ident()
            while True:
                try:
                    data = self._sock.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    return
                self._take(data)
        finally:
            self._hand_over()

    @property
    def is_read_here(self) -> bool:
        """Whether it is this thread that reads: what comes here all the same must not wait for what is read."""
        return self._reading_thread == threading.get_ident()

    def allow_wakeups(self) -> None:
        """Have `finish` wake a thread that reads without a frame, from now on."""
        with self._mutex:
            if self._wake_write >= 0:
                return
            wake_read, self._wake_write = os.pipe()
            self._poll.register(wake_read, select.POLLIN)
            self._wake_read = wake_read  # last: another thread may be about to read

    def close(self) -> None:
        """Free what the end of a process would. Nobody waits any more, nor will."""
        self._on_frame = _ignore  # its owner has this mailbox: memory that they have mapped would wait for a collection
        if self._wake_write >= 0:
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._wake_read = self._wake_write = -1

    def _read(self) -> None:
        ready = self._poll.poll()
        if self._wake_read >= 0 and (self._wake_read, select.POLLIN) in ready:
            os.read(self._wake_read, 4096)
            if len(ready) == 1:
                return
        self._take(self._sock.recv(RECEIVE_BYTES))

    def _take(self, data: bytes) -> None:
        if not data:
            raise EngineGone
        try:
            for kind, body in self._frames.feed(data):
                self._on_frame(kind, body)
        except EngineGone:
            raise
        except BaseException:
            # It and what came behind it is lost, in whatever thread of the model this is: somebody would wait for it for ever.
            traceback.print_exc()
            self.break_off()
            raise EngineGone from None

    def break_off(self) -> None:
        """Shut the channel down, without which the engine ends this worker, and answers what it had."""
        self._sock.shutdown(socket.SHUT_RDWR)

    def _leave(self, waiter: Waiter) -> None:
        """The thread of *waiter* does not wait any more, for whatever reason: it must not be given the channel to read."""
        if self._reader is waiter:
            self._hand_over()
        elif not waiter.is_done:
            with self._mutex:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
                    return
            if self._reader is waiter:  # it has just been given it
                self._hand_over()

    def _hand_over(self) -> None:
        """Let the next thread that waits read. On end-of-file each of them finds out for itself."""
        with self._mutex:
            self._reader = None
            self._reading_thread = 0
            if self._waiting:
                self._reader = self._waiting.popleft()
                assert self._reader._signal is not None
                self._reader._signal.release()


def _ignore(kind: int, body: memoryview) -> None:
    """What comes when nobody is there any more."""


class Outbox:
    """Frames to the engine.

    Holding it (``with outbox:``) makes a frame, the memory that it refers to and the descriptors that it needs one step:
    hold it from the first allocation to `send_held`. `post` never waits for it, so a destructor may call that, wherever
    it runs. What a thread posted leaves before what it sends later. A destructor that has to do more than that asks
    `is_held_here` first, and uses `postpone`.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.posted: deque[bytes] = deque()
        self.postponed: deque[Callable[[], None]] = deque()
        self.lock = threading.Lock()
        self.send_held = sock.sendall
        """`send` for who holds the outbox."""
        self.holder = 0
        """The thread that holds it, else 0."""

    def __enter__(self) -> None:
        self.lock.acquire()
        self.holder = threading.get_ident()
        try:
            self.send_posted()
        except BaseException:
            self.holder = 0
            self.lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self.holder = 0
        self.lock.release()
        if self.posted or self.postponed:
            self.settle()

    def settle(self) -> None:
        """See to what came up while this thread held the outbox, which it has given back."""
        self.try_posted()
        while self.postponed:
            try:
                action = self.postponed.popleft()
            except IndexError:  # another thread has just taken it
                return
            action()

    @property
    def is_held_here(self) -> bool:
        """Whether this thread holds it."""
        return self.holder == threading.get_ident()

    def postpone(self, action: Callable[[], None]) -> None:
        """Run *action* when whoever holds the outbox, this thread most often, has given it back."""
        self.postponed.append(action)

    def soon(self, action: Callable[[], None]) -> None:
        """Run *action*, which may hold the outbox, soon: from any thread and any place, also where this thread holds it."""
        self.postpone(action)
        if self.lock.acquire(blocking=False):  # else whoever has it sees to that when it is given back
            self.lock.release()
            self.settle()

    def send(self, data: bytes) -> None:
        """Send whole frames; returns when the kernel has them."""
        with self:
            self._sock.sendall(data)

    def post(self, data: bytes) -> None:
        """Send whole frames soon, from any thread and from any place; never waits for who holds the outbox."""
        self.posted.append(data)
        self.try_posted()

    def send_posted(self) -> None:
        while self.posted:
            self._sock.sendall(self.posted.popleft())

    def try_posted(self) -> None:
        # Whoever holds the lock looks here again after its release, so nothing is left lying.
        while self.posted and self.lock.acquire(blocking=False):
            try:
                self.send_posted()
            except (BrokenPipeError, ConnectionResetError):
                self.posted.clear()  # the engine is gone; the thread that reads will see it
            finally:
                self.lock.release()
