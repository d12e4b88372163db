"""Time of an event loop that the bytes of clients may take, shared between all connections of all its listeners.

A piece of 64 KiB from one client may hold seven thousand frames, or hundreds of requests, and whoever works all of it off at
once makes everybody else wait. So a connection works in slices, and all of them together only so long in a turn of the loop:

    data_received ── begin() ──▶ True: work until is_over(), then end(); where something is left, wait()
                              ─▶ False: keep the data, wait(), and read no more until then
    WorkShare, in each turn ───▶ go_on() of those that wait, as many as fit into the turn

What holds at any time:

* A connection waits at most once. It keeps its own data, and stops reading meanwhile, or when more come.
* Newcomers and those that have had a slice already wait in two lines, which take turns: an honest request is not behind
  everything that a thousand busy connections have left.
* Between two turns the loop looks at every socket, timer and worker.
* Where they make work for another process (`frontends.process.link`), and it is behind, all of them wait.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Protocol

SLICE_S = 0.0015
"""What a connection may take at a time: enough for a read of 256 KiB of tensors, or for some fifteen small requests."""
TURN_S = 0.004
"""What all of them may take in a turn of the loop."""
_DECRYPTED_S = 3e-9
"""What it took to read and to decrypt a byte before its connection heard of it: of 256 KiB, as much as a loop reads at once,
0.8 ms. Plain text takes a tenth of that, which is not counted."""
_INTO_PLACE_S = 1e-9
"""What it takes to read a byte of a large body into memory that was not touched before."""
# Less than this need not be counted by turns: a busy loop would schedule a callback for each of its turns.
_UNCOUNTED_S = 0.001


class Waiting(Protocol):
    """A connection that has data to work on."""

    def go_on(self) -> None:
        """Work on what was kept until `WorkShare.is_over`, and `WorkShare.wait` again where something is left.

        It is called between a `begin` and an `end`, and in a connection that has been closed meanwhile, too.
        """


class WorkShare:
    """One for all connections of a loop: `share_of` gives it."""

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """*call_soon* is the loop's; *clock* counts seconds."""
        self._call_soon = call_soon
        self._clock = clock
        self._spent_s = 0.0
        """Time spent in this turn; up to `_UNCOUNTED_S` of it in earlier ones."""
        self.began_at = 0.0
        """When the last slice began, by the clock."""
        self._newcomers: deque[Waiting] = deque()
        self._others: deque[Waiting] = deque()
        self._next_line = 0
        """Whose turn it is: 0 for newcomers, 1 for others. It is kept from turn to turn, each of which may be over at once."""
        self._is_turn_due = False
        """`_on_turn` follows in the next turn of the loop."""
        self._is_held = False

    def hold(self) -> None:
        """Have nobody work until `let_go`: what they make is more than is taken from here. Who works now is over."""
        self._is_held = True

    def let_go(self) -> None:
        """Go on with those that wait. Where nothing is held it changes nothing."""
        self._is_held = False
        if (self._newcomers or self._others) and not self._is_turn_due:
            self._schedule()

    def begin(self, decrypted: int = 0, *, into_place: int = 0) -> bool:
        """Whether a connection that has got data may work on them now; then it calls `end`, whatever happens.

        *decrypted* bytes have come over TLS since it asked last, *into_place* bytes of a body past the parser. Where the
        answer is no it stops reading: what the loop takes to read for a connection that has to wait is time of the others, too.
        """
        if decrypted or into_place:
            self._spent_s += decrypted * _DECRYPTED_S + into_place * _INTO_PLACE_S
        if self._spent_s >= TURN_S or self._is_held:
            return False
        self.began_at = self._clock()
        return True

    def is_over(self) -> bool:
        """Whether the slice has been used up. Ask between two steps, each of which is short."""
        return self._is_held or self._clock() - self.began_at >= SLICE_S

    def end(self) -> None:
        self._spent_s += self._clock() - self.began_at
        if self._spent_s >= _UNCOUNTED_S and not self._is_turn_due:
            self._schedule()

    def wait(self, connection: Waiting, *, is_new: bool) -> None:
        """Call `Waiting.go_on` as soon as it is the turn of *connection*, which does not wait yet.

        *is_new* says that it has not worked on these data at all, because `begin` said no.
        """
        (self._newcomers if is_new else self._others).append(connection)
        if not self._is_turn_due and not self._is_held:
            self._schedule()

    def _schedule(self) -> None:
        self._is_turn_due = True
        self._call_soon(self._on_turn)

    def _on_turn(self) -> None:
        self._is_turn_due = False
        self._spent_s = 0.0
        if not self._newcomers and not self._others:
            return
        lines = (self._newcomers, self._others)
        # Only those that wait now: who waits again behind its slice has had its part of this turn.
        counts = [len(line) for line in lines]
        try:
            while any(counts):
                index = self._next_line
                if counts[index]:
                    if not self.begin():
                        break
                    counts[index] -= 1
                    try:
                        lines[index].popleft().go_on()
                    finally:
                        self.end()
                self._next_line = 1 - index
        finally:  # also where a connection raises, which the loop reports
            if (self._newcomers or self._others) and not self._is_turn_due and not self._is_held:
                self._schedule()


# By loop, as a loop's running state is: listeners that know nothing of each other share the time of one loop.
_shares: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, WorkShare] = weakref.WeakKeyDictionary()


def share_of(loop: asyncio.AbstractEventLoop) -> WorkShare:
    """The one that belongs to *loop*."""
    share = _shares.get(loop)
    if share is None:
        share = _shares[loop] = WorkShare(_caller(weakref.ref(loop)))
    return share


def _caller(loop: weakref.ref[asyncio.AbstractEventLoop]) -> Callable[[Callable[[], None]], object]:
    """``loop.call_soon`` without a reference to the loop, which would keep its own key alive."""

    def call_soon(callback: Callable[[], None]) -> object:
        alive = loop()
        assert alive is not None, "a connection outlived its loop"
        return alive.call_soon(callback)

    return call_soon
