"""A level of load from one process: closed or open loop, and what was measured of it, window by window."""

from __future__ import annotations

import gc
import random
import select
import selectors
import time
from collections import deque
from collections.abc import Callable

from pytriton_lite.bench.callers import Caller, kind_of
from pytriton_lite.bench.calls import Plan, Prepared, Sequence_, SequenceMaker
from pytriton_lite.bench.orders import Order, Window
from pytriton_lite.bench.settings import Distribution, Pace
from pytriton_lite.client.target import tls_context

_LONGEST_WAIT_S = 0.05
_MOST_LATE = 1_000_000
"""Requests whose time has come and that no connection was free for. Beyond it, the rate is far above what the server can do."""


class Load:
    """One level, run by `run` until *is_over* says so.

    A request's latency begins when it was meant to begin: in a closed loop that is when it was sent, in an open loop its place
    in the schedule, however late a connection was free for it. So a server that stands still for a second shows in every
    request that would have been sent in that second.
    """

    def __init__(
        self, plan: Plan, order: Order, on_window: Callable[[Window], None], is_over: Callable[[], bool]
    ) -> None:
        """*on_window* gets each window as it ends; *is_over* is asked some twenty times a second."""
        self._plan = plan
        self._order = order
        self._on_window = on_window
        self._is_over = is_over
        self._traffic = plan.traffic
        self._selector = selectors.DefaultSelector()
        self._tls = tls_context(self._traffic.target)
        self._kind = kind_of(plan)
        self._callers: list[Caller] = []
        self._is_open = order.level.pace is Pace.RATE
        self._next = order.part * len(plan.prepared) // order.parts
        self._idle: deque[Caller] = deque()
        self._late: deque[int] = deque()
        self._sequences: dict[Caller, Sequence_] = {}
        self._maker = (
            SequenceMaker(plan, self._traffic.sequences, order.part, order.parts)
            if self._traffic.sequences is not None
            else None
        )
        self._window = Window(time.monotonic_ns())

    def run(self) -> None:
        """Load the server. Raises ClientError where it is gone or is no server of the protocol."""
        was_enabled = gc.isenabled()
        gc.collect()
        gc.disable()
        try:
            for _ in range(self._connections_at_first()):
                self._add_caller()
            self._loop()
        finally:
            for caller in self._callers:
                caller.close()
            self._selector.close()
            if was_enabled:
                gc.enable()

    # Loops ------------------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        now = time.monotonic_ns()
        self._window = Window(now)
        self._cpu_s = time.process_time()
        end_of_window = now + round(self._order.warm_up_s * 1e9)
        window_ns = round(self._order.window_s * 1e9)
        look_at = now + round(_LONGEST_WAIT_S * 1e9)
        due = now
        gap_ns = 0.0
        if self._is_open:
            gap_ns = 1e9 * self._order.parts / self._order.level.value
            due += round(gap_ns * self._order.part / self._order.parts)  # processes take turns
            self._idle.extend(self._callers)
        else:
            for caller in self._callers:
                self._begin(caller, time.monotonic_ns())
        exact_due = float(due)
        draw = random.Random(self._order.part).expovariate
        is_poisson = self._order.level.distribution is Distribution.POISSON
        while True:
            if self._is_open:
                self._wait_until(min(due, end_of_window, look_at))
            else:
                self._dispatch(_LONGEST_WAIT_S)
            now = time.monotonic_ns()
            if self._is_open:
                while due <= now:
                    self._send_due(due)
                    exact_due += draw(1.0) * gap_ns if is_poisson else gap_ns
                    due = round(exact_due)
            if now >= end_of_window:
                self._end_window(now)
                end_of_window += window_ns
                if end_of_window <= now:
                    end_of_window = now + window_ns
            if now >= look_at:
                look_at = now + round(_LONGEST_WAIT_S * 1e9)
                self._look_for_stuck(now)
                if self._is_over():
                    return

    def _dispatch(self, timeout_s: float) -> None:
        for key, mask in self._selector.select(timeout_s):
            caller = key.data
            if mask & selectors.EVENT_READ:
                caller.on_readable()
            if mask & selectors.EVENT_WRITE:
                caller.on_writable()

    def _wait_until(self, until_ns: int) -> None:
        """Serve what comes until *until_ns*. `select.select` waits by the microsecond, where epoll has milliseconds."""
        wait_ns = until_ns - time.monotonic_ns()
        if wait_ns > 0:
            ready, _, _ = select.select([self._selector], (), (), wait_ns / 1e9)
            if not ready:
                return
        self._dispatch(0)

    def _connections_at_first(self) -> int:
        order = self._order
        if not self._is_open:
            return _share(round(order.level.value), order.part, order.parts)
        if self._traffic.sequences is not None:
            return max(1, _share(self._traffic.sequences.count, order.part, order.parts))
        return 1

    def _most_connections(self) -> int:
        if self._traffic.sequences is not None:
            return len(self._callers)
        return max(1, _share(self._traffic.max_connections, self._order.part, self._order.parts))

    def _add_caller(self) -> Caller:
        caller = self._kind(self._plan, self, self._selector, self._tls)
        self._callers.append(caller)
        return caller

    # Requests ---------------------------------------------------------------------------------------------------------

    def _send_due(self, due_ns: int) -> None:
        if self._idle:
            # Sequences take turns, so that all go on: one that stood still would be given up by the server. Else the connection
            # that was used last is the best.
            caller = self._idle.popleft() if self._maker is not None else self._idle.pop()
            self._begin(caller, due_ns)
        elif len(self._callers) < self._most_connections():
            self._begin(self._add_caller(), due_ns)
        elif len(self._late) < _MOST_LATE:
            self._late.append(due_ns)
        else:
            self._window.count_error(
                "a million requests wait for their turn: the rate is far above what the server can do"
            )

    def _begin(self, caller: Caller, intended_ns: int) -> None:
        caller.begin(self._next_request(caller), intended_ns)

    def _next_request(self, caller: Caller) -> Prepared:
        if self._maker is not None:
            sequence = self._sequences.get(caller)
            if sequence is None:
                sequence = self._sequences[caller] = self._maker.make()
            return self._maker.prepare(sequence)
        prepared = self._plan.prepared
        at = self._next
        self._next = at + 1 if at + 1 < len(prepared) else 0
        return prepared[at]

    def on_done(self, caller: Caller, now_ns: int, error: str) -> None:
        """See `callers.Done`."""
        window = self._window
        if error:
            window.count_error(error)
        else:
            window.latencies.append(now_ns - caller.intended_ns)
            window.responses += caller.responses
            if self._traffic.is_streaming and caller.responses:
                window.firsts.append(caller.first_ns - caller.intended_ns)
        if self._maker is not None and (error or self._sequences[caller].is_over):
            self._maker.end(self._sequences.pop(caller))  # behind an error the server may not know it any more
        if self._is_open:
            window.lags.append(caller.began_ns - caller.intended_ns)
            if self._late:
                self._begin(caller, self._late.popleft())
            else:
                self._idle.append(caller)
        else:
            self._begin(caller, time.monotonic_ns())

    def _look_for_stuck(self, now_ns: int) -> None:
        limit_s = self._traffic.timeout_s
        oldest = now_ns - round(limit_s * 1e9)
        for caller in self._callers:
            if not caller.is_idle and caller.began_ns < oldest:
                caller.give_up(f"no answer within {limit_s:g} s (--timeout)")

    def _end_window(self, now_ns: int) -> None:
        window = self._window
        window.ended_ns = now_ns
        window.waiting = len(self._late)
        cpu_s = time.process_time()
        window.cpu_s, self._cpu_s = cpu_s - self._cpu_s, cpu_s
        self._window = Window(now_ns)
        self._on_window(window)


def _share(whole: int, part: int, parts: int) -> int:
    """What falls to *part* when *whole* things are dealt out."""
    return whole // parts + (part < whole % parts)
