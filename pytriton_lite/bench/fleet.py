"""The processes that load a server, and their windows put together."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection, wait

from pytriton_lite.bench.calls import Plan
from pytriton_lite.bench.orders import Failed, Order, Stop, Stopped, Window
from pytriton_lite.bench.settings import Level
from pytriton_lite.client.errors import ClientError

_STOP_TIMEOUT_S = 10.0
_TICK_S = 0.1


class _Sender:
    """One process. Whoever has it closes it."""

    def __init__(self, plan: Plan) -> None:
        ours, theirs = socket.socketpair()
        # It has the mask from its first moment on: Ctrl-C is for the command, which closes our connection.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "pytriton_lite.bench.sender", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self.connection = Connection(ours.detach())
        self.connection.send(plan)

    def close(self) -> None:
        self.connection.close()
        try:
            self.process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Fleet:
    """Senders of one plan. A context manager, which ends them.

    Windows of all senders with the same number are one window; since they began within milliseconds of each other, its rate is
    the sum of their rates.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._senders: list[_Sender] = []

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *error: object) -> None:
        for sender in self._senders:
            sender.connection.close()  # all at once, so that they end together
        for sender in self._senders:
            sender.close()

    def run(
        self,
        level: Level,
        *,
        processes: int,
        warm_up_s: float,
        window_s: float,
        on_window: Callable[[Window], bool],
        on_tick: Callable[[], None],
    ) -> None:
        """Load the server at *level* until *on_window*, which gets every window behind the warm-up, returns False.

        *on_tick* is called ten times a second. Raises ClientError where a sender cannot go on.
        """
        while len(self._senders) < processes:
            self._senders.append(_Sender(self._plan))
        senders = self._senders[:processes]
        parts: dict[_Sender, list[Window]] = {sender: [] for sender in senders}
        for part, sender in enumerate(senders):
            sender.connection.send(Order(level, part, processes, warm_up_s, window_s))
        try:
            is_warm = False
            is_wanted = True
            while is_wanted:
                self._receive(parts)
                on_tick()
                while is_wanted and all(parts.values()):
                    window = together([windows.pop(0) for windows in parts.values()])
                    if is_warm:
                        is_wanted = on_window(window)
                    elif window.failed and not window.latencies:
                        raise ClientError(f"no request succeeds: {next(iter(window.errors))}")
                    is_warm = True
        finally:
            self._stop(parts)

    def _receive(self, parts: dict[_Sender, list[Window]]) -> None:
        by_connection = {sender.connection: sender for sender in parts}
        for ready in wait(list(by_connection), _TICK_S):
            assert isinstance(ready, Connection)
            sender = by_connection[ready]
            try:
                message = ready.recv()
            except (EOFError, OSError):
                status = sender.process.wait()
                raise ClientError(f"a process of the load generator has ended with status {status}") from None
            if isinstance(message, Failed):
                raise ClientError(message.text)
            if isinstance(message, Window):
                parts[sender].append(message)

    def _stop(self, parts: dict[_Sender, list[Window]]) -> None:
        for sender in parts:
            try:
                sender.connection.send(Stop())
                while not isinstance(sender.connection.recv(), Stopped):
                    pass
            except (EOFError, OSError):
                pass  # it has ended; the cause was raised by whoever noticed


def together(parts: list[Window]) -> Window:
    """One window of those that senders have measured at the same time."""
    whole = Window(min(part.began_ns for part in parts), max(part.ended_ns for part in parts))
    for part in parts:
        whole.latencies.extend(part.latencies)
        whole.firsts.extend(part.firsts)
        whole.lags.extend(part.lags)
        whole.responses += part.responses
        whole.waiting += part.waiting
        for text, number in part.errors.items():
            whole.count_error(text, number)
        whole.failed = whole.failed - sum(part.errors.values()) + part.failed
        whole.cpu_s = max(whole.cpu_s, part.cpu_s)
    return whole
