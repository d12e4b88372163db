"""The loops, against a server of this file whose answers are held, swapped or withheld."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pytriton_lite.bench.calls import Plan, Prepared
from pytriton_lite.bench.input_data import Row
from pytriton_lite.bench.load import Load
from pytriton_lite.bench.orders import Order, Window
from pytriton_lite.bench.settings import Distribution, Level, Pace, Sequences, Traffic
from pytriton_lite.client.errors import ClientError
from pytriton_lite.client.target import Protocol, parse_target


class Scripted:
    """Answers every request with what *answer* makes of its id, in a thread for each connection; closes it for b""."""

    def __init__(self, answer: Callable[[str], bytes]) -> None:
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        self.under_way = self.most_under_way = 0
        self.ids: list[str] = []
        """Of the requests, in the order in which they came."""
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def connections(self) -> int:
        """How many it has accepted."""
        return len(self._open)

    def close(self) -> None:
        try:
            self._listening.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # closed before
        self._listening.close()
        self._accepting.join()
        for connection in self._open:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # its client has gone
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        received = b""
        with connection:
            try:
                while data := connection.recv(65536):
                    received += data
                    while (found := re.search(rb'"id":"(bench-[\d-]+)"', received)) is not None:
                        received = received[found.end() :]
                        body = self._answered(found[1].decode())
                        if not body:
                            return
                        connection.sendall(body)
            except OSError:
                pass  # the client has gone

    def _answered(self, name: str) -> bytes:
        with self._lock:
            self.ids.append(name)
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            return self._answer(name)
        finally:
            with self._lock:
                self.under_way -= 1


def ok(name: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(name)}\r\n\r\n{name}".encode()


@contextmanager
def scripted(answer: Callable[[str], bytes] = ok) -> Iterator[Scripted]:
    server = Scripted(answer)
    try:
        yield server
    finally:
        server.close()


def plan(server: Scripted, *, different: int = 16, **traffic: Any) -> Plan:
    target = parse_target(f"127.0.0.1:{server.port}", Protocol.HTTP)
    prepared = [
        Prepared(f'POST / HTTP/1.1\r\n\r\n{{"id":"bench-{number}-"}}'.encode(), f"bench-{number}-".encode())
        for number in range(different)
    ]
    return Plan(Traffic(target, "m", **traffic), prepared, checks_ids=True)


def run(
    plan: Plan, level: Level, until: Callable[[list[Window]], bool], *, part: int = 0, parts: int = 1
) -> list[Window]:
    windows: list[Window] = []
    Load(plan, Order(level, part, parts, 0.0, 0.02), windows.append, lambda: until(windows)).run()
    return windows


def answered(windows: list[Window]) -> int:
    return sum(len(window.latencies) for window in windows)


def failed(windows: list[Window]) -> int:
    return sum(window.failed for window in windows)


def texts(windows: list[Window]) -> set[str]:
    return {text for window in windows for text in window.errors}


def test_a_closed_loop_keeps_so_many_requests_under_way_and_they_differ() -> None:
    with scripted() as server:
        windows = run(plan(server), Level(Pace.CONCURRENCY, 3), lambda windows: answered(windows) > 200)
        assert server.most_under_way <= 3
        assert failed(windows) == 0
        assert len(set(server.ids)) == 16


@pytest.mark.parametrize(("part", "callers"), [(0, 2), (1, 1)])
def test_processes_share_a_level(part: int, callers: int) -> None:
    with scripted() as server:
        run(plan(server), Level(Pace.CONCURRENCY, 3), lambda windows: answered(windows) > 50, part=part, parts=2)
        assert 1 <= server.most_under_way <= callers


def test_an_open_loop_counts_from_when_a_request_was_due() -> None:
    """One connection, whose first answer is held: the requests that were due meanwhile have waited, and say so.

    A closed loop would have sent nothing, and have one long latency among many short ones: coordinated omission.
    """
    held: list[int] = []

    def hold_the_first(name: str) -> bytes:
        if not held:
            began = time.monotonic_ns()
            threading.Event().wait(0.5)
            held.append(time.monotonic_ns() - began)
        return ok(name)

    rate = 500
    with scripted(hold_the_first) as server:
        windows = run(
            plan(server, max_connections=1),
            Level(Pace.RATE, rate),
            lambda windows: bool(held) and answered(windows) > rate * held[0] / 1e9,
        )
        assert server.most_under_way == 1
    # Those that were due in the first half of that time have waited for more than half of it.
    waited = [latency for window in windows for latency in window.latencies if latency > held[0] / 2]
    assert len(waited) >= 0.9 * rate * held[0] / 1e9 / 2
    assert max(window.waiting for window in windows) > 0


def test_an_open_loop_takes_another_connection_where_all_are_busy() -> None:
    gate = threading.Event()

    def hold(name: str) -> bytes:
        gate.wait()
        return ok(name)

    with scripted(hold) as server:

        def until(windows: list[Window]) -> bool:
            if server.under_way == 8:
                gate.set()
            return answered(windows) > 20

        windows = run(plan(server, max_connections=8), Level(Pace.RATE, 200, Distribution.POISSON), until)
        assert server.most_under_way == 8
        assert failed(windows) == 0


def test_sequences_take_turns_in_an_open_loop() -> None:
    sequences = Sequences(count=3, length=100, variation_percent=0, first_id=1, end_id=None)
    with scripted() as server:
        target = parse_target(f"127.0.0.1:{server.port}", Protocol.HTTP)
        to_be_sent = Plan(Traffic(target, "m", sequences=sequences), streams=[[Row(())]], checks_ids=True)
        windows = run(to_be_sent, Level(Pace.RATE, 50), lambda windows: answered(windows) > 12)
        assert failed(windows) == 0
    of_sequences = [name.split("-")[1] for name in server.ids[:12]]
    assert min(of_sequences.count(sequence) for sequence in ("1", "2", "3")) > 1


def test_an_answer_to_another_request_is_an_error() -> None:
    with scripted(lambda name: ok("bench-x-")) as server:
        windows = run(plan(server), Level(Pace.CONCURRENCY, 1), lambda windows: failed(windows) > 5)
    assert answered(windows) == 0
    assert "that of another request" in texts(windows).pop()


def test_an_error_of_the_server_is_counted_with_its_text() -> None:
    busy = b'HTTP/1.1 503 Busy\r\nContent-Length: 16\r\n\r\n{"error":"busy"}'
    with scripted(lambda name: busy if name == "bench-1-" else ok(name)) as server:
        windows = run(plan(server, different=2), Level(Pace.CONCURRENCY, 1), lambda windows: answered(windows) > 10)
    assert texts(windows) == {"503: busy"}
    assert abs(failed(windows) - answered(windows)) <= 1


def test_a_connection_that_is_closed_with_a_request_under_way_is_an_error_and_another_is_opened() -> None:
    with scripted(lambda name: b"" if name == "bench-1-" else ok(name)) as server:
        windows = run(plan(server, different=2), Level(Pace.CONCURRENCY, 1), lambda windows: answered(windows) > 10)
    assert texts(windows) and all("with a request under way" in text for text in texts(windows))
    assert server.connections >= failed(windows)


def test_a_connection_that_is_closed_behind_an_answer_is_no_error() -> None:
    def close(name: str) -> bytes:
        return ok(name).replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")

    with scripted(close) as server:
        windows = run(plan(server), Level(Pace.CONCURRENCY, 2), lambda windows: answered(windows) > 20)
    assert failed(windows) == 0
    assert server.connections > 10


def test_a_request_without_an_answer_is_given_up() -> None:
    gate = threading.Event()

    def hold(name: str) -> bytes:
        gate.wait()
        return b""

    with scripted(hold) as server:
        try:
            timed_out = plan(server, timeout_s=0.05)
            windows = run(timed_out, Level(Pace.CONCURRENCY, 1), lambda windows: failed(windows) > 2)
        finally:
            gate.set()
    assert texts(windows) == {"no answer within 0.05 s (--timeout)"}


def test_a_server_that_is_gone_ends_the_load() -> None:
    with scripted() as server:

        def until(windows: list[Window]) -> bool:
            if answered(windows) > 5:
                server.close()
            return False

        with pytest.raises(ClientError, match=r"no connection to http://127.0.0.1:\d+: Connection refused"):
            run(plan(server), Level(Pace.CONCURRENCY, 1), until)
