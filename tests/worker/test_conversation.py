"""What waits for the main thread of a worker, over a real socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import FrameReader
from pytriton_lite.ipc.messages import Kind
from pytriton_lite.worker.conversation import Conversation, Work
from pytriton_lite.worker.mailbox import Waiter
from pytriton_lite.worker.readiness import ReadinessProbe

pytestmark = pytest.mark.interpreted("a fake in the place of a compiled class")


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(20)
        yield ours, theirs


def conversation(
    channel: socket.socket, on_frame: Callable[[int, memoryview], None] = lambda kind, body: None
) -> Conversation:
    arena = SimpleNamespace(announced=[], dropped=[])
    memory = SimpleNamespace(
        inputs=SimpleNamespace(held=0, released=[]), outputs=SimpleNamespace(arena=arena), has_device_news=False
    )
    return Conversation(channel, on_frame, cast(Any, memory), 0)


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


def test_what_is_asked_by_somebody_who_is_interrupted_leaves_nothing_behind(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a model may be by a signal handler of its own. The answer comes nevertheless, and the next question has its own."""
    ours, theirs = ends
    talking = conversation(ours, lambda kind, body: talking.on_answer(body))
    with monkeypatch.context() as interrupting:
        interrupting.setattr(talking.mailbox, "wait", interrupted)
        with pytest.raises(TimeoutError):
            talking.ask("is_model_ready", {"name": "m"})
    assert not talking._asked
    theirs.sendall(messages.answer_frame(1, "late") + messages.answer_frame(2, "in time"))
    assert talking.ask("is_model_ready", {"name": "m"}) == "in time"


def interrupted(waiter: Waiter) -> None:
    raise TimeoutError


def test_a_thread_that_could_not_be_started_to_read_is_started_the_next_time(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = ends
    talking = conversation(ours)
    with monkeypatch.context() as short_of_threads:
        short_of_threads.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start"):
            talking.start_reading()
    talking.start_reading()
    theirs.close()  # which ends the thread
    talking.close()


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_model_that_cannot_be_asked_for_want_of_a_thread_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    said: list[str] = []
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    ReadinessProbe(None, sent.append, said.append).start()
    assert sent == [messages.probed_frame(is_ready=False)]
    assert said == ["is_ready of the model cannot be asked: can't start new thread"]


def test_where_no_batch_waits_nothing_is_said(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    talking = conversation(ours)
    talking.on_work([Work(Kind.STOP)])
    talking.return_unbegun()
    assert talking.next_work().kind == Kind.STOP
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(1)
