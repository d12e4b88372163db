"""What all clients together may leave unread, and who is closed when that is too much."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from pytriton_lite.frontends.unread import UnreadBudget
from tests.contract.scripted_model import request_message, write_script_model
from tests.contract.wire_models import wait_until
from tests.frontends.grpc.http2_peer import PREFACE, Http2Peer, settings, window_update
from tests.harness import RunningServer

LIMIT = 1000


class Client:
    """Reads what it is told to."""

    def __init__(self, budget: UnreadBudget) -> None:
        self._budget = budget
        self.unread = 0
        self.is_open = True

    def unread_bytes(self) -> int:
        return self.unread

    def cut_off(self) -> None:
        self.is_open = False
        self._budget.forget(self)

    def is_given(self, nbytes: int) -> None:
        self.unread += nbytes
        self._budget.wrote(self, nbytes)

    def reads(self, nbytes: int) -> None:
        self.unread -= nbytes


def with_clients(count: int, scenario: Callable[..., None], limit: int | None = LIMIT) -> None:
    async def run() -> None:
        budget = UnreadBudget(limit)
        scenario(budget, *(Client(budget) for _ in range(count)))

    asyncio.run(run())


def test_nobody_is_looked_at_before_the_sum_is_too_much() -> None:
    def scenario(budget: UnreadBudget, *clients: Client) -> None:
        for client in clients:
            client.is_given(LIMIT // 2)
            client.reads(LIMIT // 2)
        clients[0].is_given(LIMIT)
        assert not budget.is_exceeded
        clients[1].is_given(1)
        assert budget.is_exceeded
        budget.look()
        assert not clients[0].is_open

    with_clients(10, scenario)


def test_who_has_come_since_the_last_look_has_had_no_time_to_read() -> None:
    def scenario(budget: UnreadBudget, first: Client, second: Client, third: Client) -> None:
        first.is_given(LIMIT // 2)
        second.is_given(LIMIT)
        third.is_given(LIMIT)
        budget.look()
        assert (first.is_open, second.is_open, third.is_open) == (False, False, True)
        assert not budget.is_exceeded

    with_clients(3, scenario)


def test_those_go_first_who_would_need_longest() -> None:
    def scenario(budget: UnreadBudget, fast: Client, slow: Client, still: Client) -> None:
        for client, nbytes in ((slow, 600), (still, 400), (fast, 3000)):
            client.is_given(nbytes)
        fast.reads(2000)  # half a second for the rest
        slow.reads(100)  # five seconds
        budget.look()
        assert (fast.is_open, slow.is_open, still.is_open) == (True, False, False)
        assert not budget.is_exceeded

    with_clients(3, scenario)


def test_no_more_are_closed_than_it_takes() -> None:
    def scenario(budget: UnreadBudget, *clients: Client) -> None:
        for client in clients:
            client.is_given(300)
        budget.look()
        assert sum(client.is_open for client in clients) == 3

    with_clients(5, scenario)


def test_who_reads_fast_enough_stays_though_there_is_too_much() -> None:
    def scenario(budget: UnreadBudget, client: Client) -> None:
        client.is_given(5 * LIMIT)
        client.reads(2 * LIMIT)
        budget.look()
        assert (client.is_open, budget.is_exceeded) == (True, True)
        client.is_given(3 * LIMIT)
        client.reads(3 * LIMIT)
        budget.look()
        assert client.is_open
        client.reads(3 * LIMIT)
        budget.look()
        assert (client.is_open, budget.is_exceeded) == (True, False)

    with_clients(1, scenario)


def test_a_connection_that_is_lost_counts_no_more() -> None:
    def scenario(budget: UnreadBudget, gone: Client, other: Client) -> None:
        gone.is_given(LIMIT)
        budget.forget(gone)
        other.is_given(LIMIT)
        assert not budget.is_exceeded

    with_clients(2, scenario)


def test_who_holds_back_requests_is_told_when_there_is_no_longer_too_much() -> None:
    def scenario(budget: UnreadBudget, idle: Client, gone: Client, reading: Client, still: Client) -> None:
        told: list[str] = []
        for name, client in (("idle", idle), ("gone", gone), ("still", still)):
            client.is_given(LIMIT // 2)
            budget.call_back(client, lambda name=name: told.append(name))
        reading.is_given(3 * LIMIT)
        reading.reads(LIMIT)
        gone.cut_off()
        idle.reads(LIMIT // 2)
        still.reads(LIMIT // 2)
        budget.look()
        assert (budget.is_exceeded, told) == (True, [])
        reading.reads(2 * LIMIT)
        budget.look()
        budget.look()
        assert (budget.is_exceeded, told) == (False, ["idle", "still"])

    with_clients(4, scenario)


def test_no_limit() -> None:
    def scenario(budget: UnreadBudget, client: Client) -> None:
        client.is_given(1 << 50)
        assert not budget.is_exceeded

    with_clients(1, scenario, limit=None)


# ---------------------------------------------------------------------------------------------- on the wire

NBYTES = 32 << 20
FLOATS = f"return [Response([pb_utils.Tensor('Y', np.arange({NBYTES // 4}, dtype=np.float32))])]"


def asked(server: RunningServer) -> socket.socket:
    """A connection over HTTP with a request for a large answer on it."""
    given = {"name": "IN", "datatype": "BYTES", "shape": [1], "data": [FLOATS]}
    body = json.dumps({"inputs": [given], "outputs": [{"name": "Y", "parameters": {"binary_data": True}}]}).encode()
    client = socket.create_connection(("127.0.0.1", server.http_port), timeout=30)
    head = f"POST /v2/models/script/infer HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)
    return client


def read_all(client: socket.socket) -> int:
    """How many bytes come until the answer is whole or the connection is closed."""
    received = 0
    try:
        while received < NBYTES:
            piece = client.recv(1 << 20)
            if not piece:
                break
            received += len(piece)
    except ConnectionResetError:
        pass
    return received


def asked_over_grpc(server: RunningServer, opened: ExitStack) -> Http2Peer:
    host, _, port = server.grpc_url.rpartition(":")
    peer = Http2Peer(opened.enter_context(socket.create_connection((host, int(port)), 30)))
    peer.send(PREFACE + settings(initial_window_size=0))
    peer.request(1, request_message("script", FLOATS, outputs=("Y",)).SerializeToString())
    return peer


def closed(server: RunningServer) -> int:
    """How many connections the log says were closed for what they left unread."""
    return sum(map(int, re.findall(r"(\d+) connections? closed whose clients did not read", server.log)))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unread")
    write_script_model(folder, "script")
    return folder


def test_clients_that_read_nothing_are_closed_and_those_that_read_are_not(repository: Path) -> None:
    limit = NBYTES * 5 // 4
    with RunningServer(repository, flags=(f"--max-unread-bytes={limit}",)) as server, ExitStack() as opened:
        lazy = [opened.enter_context(asked(server)) for _ in range(4)]
        lazy_over_grpc = [asked_over_grpc(server, opened) for _ in range(2)]
        wait_until(lambda: closed(server) >= 4)  # then the rest fits into the limit, and into the system's buffers
        for _ in range(3):
            with asked(server) as honest:
                assert read_all(honest) >= NBYTES
        whole = sum(read_all(client) >= NBYTES for client in lazy)
        for peer in lazy_over_grpc:
            with suppress(ConnectionError, AssertionError):
                peer.send(window_update(0, 1 << 30), window_update(1, 1 << 30))
                whole += peer.answer(1).trailers == {"grpc-status": "0"}
        # Whoever was closed may have heard of it before the line is written.
        wait_until(lambda: whole == 6 - closed(server))
        assert whole >= 1
