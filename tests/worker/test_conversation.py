"""What waits for the main thread of a worker, over a real socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import FrameReader
from pytriton_lite.ipc.messages import Kind
from pytriton_lite.worker.conversation import Conversation, Work

pytestmark = pytest.mark.interpreted("a fake in the place of a compiled class")


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(20)
        yield ours, theirs


def conversation(channel: socket.socket) -> Conversation:
    memory = SimpleNamespace(inputs=SimpleNamespace(held=0), outputs=SimpleNamespace(arena=None))
    return Conversation(channel, lambda kind, body: None, cast(Any, memory), 0)


def frames(channel: socket.socket) -> list[tuple[int, tuple[int, ...]]]:
    return [(kind, messages.read_returned(body)) for kind, body in FrameReader().feed(channel.recv(4096))]


def test_batches_that_were_not_begun_go_back_and_what_else_has_come_stays_in_its_order(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    talking = conversation(ours)
    talking.on_work([Work(Kind.TRIM), Work(Kind.EXECUTE, 7), Work(Kind.EXECUTE, 5), Work(Kind.BRANCH), Work(Kind.STOP)])
    talking.return_unbegun()
    assert frames(theirs) == [(Kind.RETURNED, (5, 7))]
    assert [talking.next_work().kind for _ in range(3)] == [Kind.TRIM, Kind.BRANCH, Kind.STOP]


def test_where_no_batch_waits_nothing_is_said(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    talking = conversation(ours)
    talking.on_work([Work(Kind.STOP)])
    talking.return_unbegun()
    assert talking.next_work().kind == Kind.STOP
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(1)
