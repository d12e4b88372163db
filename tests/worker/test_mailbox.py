"""Waiting threads that read for each other, and frames that leave whole and in order, over real sockets."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from pytriton_lite.ipc.channel import HEADER, FrameReader, frame
from pytriton_lite.worker.mailbox import EngineGone, Mailbox, Outbox, Waiter
from tests.harness import stat_fields

WAIT_S = 20


def until(condition: Callable[[], bool]) -> None:
    """Give the other threads the processor until *condition* holds."""
    give_up = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < give_up
        os.sched_yield()


class Waiting(threading.Thread):
    """A thread in `Mailbox.wait`; the test is told what came of it by `result`."""

    def __init__(self, mailbox: Mailbox, waiter: Waiter) -> None:
        super().__init__(daemon=True)
        self._mailbox = mailbox
        self._waiter = waiter
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._mailbox.wait(self._waiter)
        except BaseException as error:
            self._error = error

    def result(self) -> None:
        """Return when the wait is over; raises what it raised."""
        self.join(WAIT_S)
        assert not self.is_alive(), "still waiting"
        if self._error is not None:
            raise self._error


class Office:
    """A mailbox and the engine's end of its channel. A frame of kind n finishes what ``expect(n)`` gave.

    ``seen`` has each frame as (kind, body, the thread that read it).
    """

    def __init__(self) -> None:
        self.engine, self._ours = socket.socketpair()
        self.mailbox = Mailbox(self._ours, self._on_frame)
        self.seen: list[tuple[int, bytes, int | None]] = []
        self._expected: dict[int, Waiter] = {}

    def expect(self, kind: int) -> Waiter:
        return self._expected.setdefault(kind, Waiter())

    def wait_for(self, kind: int) -> Waiting:
        return Waiting(self.mailbox, self.expect(kind))

    def reader(self, kind: int) -> Waiting:
        """A thread that waits for *kind* and reads for all."""
        waiting = self.wait_for(kind)
        until(lambda: self.mailbox._reading_thread == waiting.ident)
        return waiting

    def follower(self, kind: int, *, ahead: int = 0) -> Waiting:
        """A thread that waits for *kind* while another one reads, *ahead* others being in line before it."""
        waiting = self.wait_for(kind)
        until(lambda: len(self.mailbox._waiting) == ahead + 1)
        return waiting

    def send(self, *kinds: int, body: bytes = b"") -> None:
        """Frames of these *kinds*, in one piece."""
        self.engine.sendall(b"".join(frame(kind, [body]) for kind in kinds))

    def _on_frame(self, kind: int, body: memoryview) -> None:
        self.seen.append((kind, bytes(body), threading.get_ident()))
        if kind in self._expected:
            self.mailbox.finish(self._expected[kind])

    def close(self) -> None:
        self.engine.close()
        self._ours.close()


@pytest.fixture
def office() -> Iterator[Office]:
    office = Office()
    yield office
    office.close()


# ---------------------------------------------------------------------------------------------- Mailbox


def test_who_waits_reads(office: Office) -> None:
    office.send(7, body=b"hello")
    office.mailbox.wait(office.expect(7))
    assert office.seen == [(7, b"hello", threading.get_ident())]


def test_what_is_done_is_not_waited_for(office: Office) -> None:
    waiter = office.expect(1)
    office.mailbox.finish(waiter)
    office.mailbox.wait(waiter)
    office.send(2)
    office.mailbox.wait(office.expect(2))
    assert [kind for kind, _, _ in office.seen] == [2]


def test_a_wait_goes_on_over_frames_for_others(office: Office) -> None:
    office.send(1, 2, 3)
    office.mailbox.wait(office.expect(3))
    assert [kind for kind, _, _ in office.seen] == [1, 2, 3]


def test_a_frame_may_come_byte_by_byte(office: Office) -> None:
    reader = office.reader(1)
    for byte in frame(1, [b"slow"]):
        office.engine.sendall(bytes([byte]))
    reader.result()
    assert office.seen == [(1, b"slow", reader.ident)]


def test_one_thread_reads_for_the_others(office: Office) -> None:
    reader = office.reader(1)
    follower = office.follower(2)
    office.send(2)
    follower.result()
    assert office.seen == [(2, b"", reader.ident)]
    assert reader.is_alive()
    office.send(1)
    reader.result()


def test_the_next_in_line_reads_when_the_reader_has_what_it_waited_for(office: Office) -> None:
    reader = office.reader(1)
    followers = [office.follower(2), office.follower(3, ahead=1)]
    office.send(1)
    reader.result()
    office.send(3)
    followers[1].result()
    office.send(2)
    followers[0].result()
    assert [thread for _, _, thread in office.seen] == [reader.ident, followers[0].ident, followers[0].ident]


def test_frames_that_came_together_end_all_the_waits_they_are_for(office: Office) -> None:
    reader = office.reader(1)
    followers = [office.follower(2), office.follower(3, ahead=1)]
    office.send(2, 1)  # of one read: the reader is done before it looks again
    followers[0].result()
    reader.result()
    office.send(3)
    followers[1].result()


def test_any_number_of_threads_find_what_they_wait_for(office: Office) -> None:
    kinds = range(1, 33)
    threads = [office.wait_for(kind) for kind in kinds]
    for kind in sorted(kinds, key=lambda kind: kind * 7 % 33):
        office.send(kind)
    for thread in threads:
        thread.result()
    assert sorted(kind for kind, _, _ in office.seen) == list(kinds)


def test_finishing_twice_is_finishing_once(office: Office) -> None:
    reader = office.reader(1)
    follower = office.follower(2)
    office.send(2, 2, 1)
    follower.result()
    reader.result()


def test_poll_reads_what_has_come(office: Office) -> None:
    office.send(1, 2)
    office.mailbox.poll()
    assert office.seen == [(1, b"", threading.get_ident()), (2, b"", threading.get_ident())]


def test_poll_does_not_wait(office: Office) -> None:
    office.mailbox.poll()
    office.engine.sendall(frame(1, [b"body"])[:5])
    office.mailbox.poll()
    assert office.seen == []
    office.engine.sendall(frame(1, [b"body"])[5:])
    office.mailbox.poll()
    assert office.seen == [(1, b"body", threading.get_ident())]


def test_poll_leaves_the_reading_to_who_reads(office: Office) -> None:
    reader = office.reader(1)
    office.mailbox.poll()
    office.send(1)
    reader.result()
    assert office.seen == [(1, b"", reader.ident)]


def test_after_a_poll_who_waits_reads(office: Office) -> None:
    office.send(1)
    office.mailbox.poll()
    reader = office.reader(2)
    office.send(2)
    reader.result()


def test_a_thread_that_reads_can_be_woken_without_a_frame(office: Office) -> None:
    office.mailbox.allow_wakeups()
    waiter = office.expect(1)
    reader = office.reader(1)
    office.mailbox.finish(waiter)
    reader.result()
    assert office.seen == []


def test_a_thread_that_waits_in_line_can_be_woken_without_a_frame(office: Office) -> None:
    reader = office.reader(1)
    waiter = office.expect(2)
    follower = office.follower(2)
    office.mailbox.finish(waiter)
    follower.result()
    office.send(1)
    reader.result()


def test_a_wakeup_takes_no_frame_from_the_next_who_waits(office: Office) -> None:
    office.mailbox.allow_wakeups()
    for kind in range(1, 50):
        waiter, later = office.expect(100 + kind), office.expect(kind)
        reader = office.reader(100 + kind)
        office.send(kind)
        office.mailbox.finish(waiter)
        reader.result()
        office.mailbox.wait(later)
    assert [kind for kind, _, _ in office.seen] == list(range(1, 50))


def test_the_woken_reader_hands_over(office: Office) -> None:
    office.mailbox.allow_wakeups()
    waiter = office.expect(1)
    reader = office.reader(1)
    follower = office.follower(2)
    office.mailbox.finish(waiter)
    reader.result()
    office.send(2)
    follower.result()
    assert office.seen == [(2, b"", follower.ident)]


@pytest.mark.parametrize("with_wakeups", [False, True])
def test_end_of_file_is_told_to_everyone_who_waits(office: Office, with_wakeups: bool) -> None:
    if with_wakeups:
        office.mailbox.allow_wakeups()
    threads = [office.reader(1), office.follower(2), office.follower(3, ahead=1)]
    office.engine.shutdown(socket.SHUT_WR)
    for thread in threads:
        with pytest.raises(EngineGone):
            thread.result()
    with pytest.raises(EngineGone):
        office.mailbox.poll()


def test_what_came_before_the_end_of_file_is_read(office: Office) -> None:
    office.send(1)
    office.engine.shutdown(socket.SHUT_WR)
    office.mailbox.wait(office.expect(1))
    with pytest.raises(EngineGone):
        office.mailbox.wait(office.expect(2))


def test_a_frame_that_cannot_be_taken_ends_the_channel_for_all_who_wait(capfd: pytest.CaptureFixture[str]) -> None:
    """What is lost with it, somebody would wait for it for ever."""

    def on_frame(kind: int, body: memoryview) -> None:
        raise OSError(24, "no descriptor for you")

    engine, ours = socket.socketpair()
    mailbox = Mailbox(ours, on_frame)
    with engine, ours:
        reader = Waiting(mailbox, Waiter())
        until(lambda: mailbox._reading_thread == reader.ident)
        follower = Waiting(mailbox, Waiter())
        until(lambda: len(mailbox._waiting) == 1)
        engine.sendall(frame(1, []) + frame(2, []))
        for waiting in (reader, follower):
            with pytest.raises(EngineGone):
                waiting.result()
        assert engine.recv(1) == b""  # the engine hears of it, and ends this worker
    assert "no descriptor for you" in capfd.readouterr().err


# ---------------------------------------------------------------------------------------------- Outbox


class Post:
    """An outbox and the engine's end of its channel."""

    def __init__(self) -> None:
        self.engine, self.ours = socket.socketpair()
        self.engine.settimeout(WAIT_S)
        self.outbox = Outbox(self.ours)
        self._frames = FrameReader()

    def receive(self, count: int) -> list[tuple[int, bytes]]:
        """The next *count* frames, and none more."""
        frames: list[tuple[int, bytes]] = []
        while len(frames) < count:
            data = self.engine.recv(1 << 16)
            assert data, "end of file"
            frames += [(kind, bytes(body)) for kind, body in self._frames.feed(data)]
        assert len(frames) == count
        return frames

    def kinds(self, count: int) -> list[int]:
        return [kind for kind, _ in self.receive(count)]


@pytest.fixture
def post() -> Iterator[Post]:
    post = Post()
    with post.engine, post.ours:
        yield post


def test_frames_of_many_threads_leave_whole(post: Post) -> None:
    """Larger than the buffer of the socket, so that each takes several writes."""
    size, each = 600_000, 5

    def send(kind: int) -> None:
        for _ in range(each):
            if kind % 2:
                post.outbox.send(frame(kind, [bytes([kind]) * size]))
            else:
                post.outbox.post(frame(kind, [bytes([kind]) * size]))

    threads = [threading.Thread(target=send, args=(kind,), daemon=True) for kind in range(1, 5)]
    for thread in threads:
        thread.start()
    received = post.receive(4 * each)
    for thread in threads:
        thread.join(WAIT_S)
    assert all(body == bytes([kind]) * size for kind, body in received)
    assert sorted(kind for kind, _ in received) == sorted([1, 2, 3, 4] * each)


def test_what_is_posted_leaves_before_what_is_sent_later(post: Post) -> None:
    holder_may_go, is_held = threading.Event(), threading.Event()

    def hold() -> None:
        with post.outbox:
            is_held.set()
            assert holder_may_go.wait(WAIT_S)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert is_held.wait(WAIT_S)
    post.outbox.post(frame(1, []))
    post.outbox.post(frame(2, []))
    sender = threading.Thread(target=post.outbox.send, args=(frame(3, []),), daemon=True)
    sender.start()
    holder_may_go.set()
    assert post.kinds(3) == [1, 2, 3]


def test_posting_never_waits_for_who_holds_the_outbox(post: Post) -> None:
    """A destructor may run in the thread that holds it."""

    class Posting:
        def __del__(self) -> None:
            post.outbox.post(frame(1, []))

    with post.outbox:
        Posting()
        post.outbox.send_held(frame(2, []))
    assert post.kinds(2) == [2, 1], "the end of a request overtook what refers to its inputs"


def test_what_was_posted_meanwhile_leaves_before_the_next_holder_sends(post: Post) -> None:
    with post.outbox:
        post.outbox.post(frame(1, []))
    with post.outbox:
        post.outbox.send_held(frame(2, []))
    assert post.kinds(2) == [1, 2]


def test_posting_leaves_at_once_when_nobody_holds_the_outbox(post: Post) -> None:
    post.outbox.post(frame(1, [b"body"]))
    assert post.receive(1) == [(1, b"body")]


def test_an_error_in_the_hands_of_the_holder_gives_the_outbox_back(post: Post) -> None:
    with pytest.raises(ValueError, match="of the holder"), post.outbox:
        raise ValueError("of the holder")
    post.outbox.send(frame(1, []))
    assert post.kinds(1) == [1]


def test_posting_to_an_engine_that_is_gone_is_silent(post: Post) -> None:
    """The thread that reads will see it; a destructor has nobody to tell."""
    post.engine.close()
    post.outbox.post(frame(1, []))
    post.outbox.post(frame(2, []))


def test_sending_to_an_engine_that_is_gone_is_an_error_and_gives_the_outbox_back(post: Post) -> None:
    post.engine.close()
    for _ in range(2):
        with pytest.raises(BrokenPipeError):
            post.outbox.send(HEADER.pack(0, 1))


class Looking:
    """A mailbox that looks for work, by a clock that goes on by 1 ns each time that it is read."""

    def __init__(self, busy_poll_ns: int, at: Callable[[int], None]) -> None:
        """*at* is called with the time."""
        self.engine, self._ours = socket.socketpair()
        self.now_ns = 0
        self._at = at
        self.inbox: deque[int] = deque()
        self.mailbox = Mailbox(self._ours, lambda kind, body: self.inbox.append(kind), busy_poll_ns, self._clock)

    def _clock(self) -> int:
        self.now_ns += 1
        self._at(self.now_ns)
        return self.now_ns

    def close(self) -> None:
        self.engine.close()
        self._ours.close()


def test_what_comes_while_it_looks_for_work_is_read_without_sleep() -> None:
    def send(now_ns: int) -> None:
        if now_ns == 50:
            looking.engine.sendall(frame(7, []))

    looking = Looking(1000, send)
    try:
        assert looking.mailbox.fill(looking.inbox)
        assert (list(looking.inbox), looking.now_ns) == ([7], 50)
    finally:
        looking.close()


def test_it_sleeps_when_nothing_has_come_for_the_time() -> None:
    looking = Looking(1000, lambda now_ns: None)
    sender = threading.Thread(
        target=lambda: (until(lambda: looking.now_ns > 1000), looking.engine.sendall(frame(7, [])))
    )
    sender.start()
    try:
        assert looking.mailbox.fill(looking.inbox)
        assert list(looking.inbox) == [7]
        assert 1000 < looking.now_ns < 1010
    finally:
        sender.join()
        looking.close()


def test_the_end_of_the_engine_is_seen_while_it_looks_for_work() -> None:
    looking = Looking(1000, lambda now_ns: looking.engine.close() if now_ns == 50 else None)
    try:
        with pytest.raises(EngineGone):
            looking.mailbox.fill(looking.inbox)
        assert looking.now_ns == 50
    finally:
        looking.close()


ECHO = """
import resource, socket, sys
from collections import deque
from pytriton_lite.ipc.channel import frame
from pytriton_lite.worker.mailbox import Mailbox
channel, inbox = socket.socket(fileno=int(sys.argv[1])), deque()
mailbox = Mailbox(channel, lambda kind, body: inbox.append(kind))
channel.sendall(frame(1, []))
before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
while mailbox.fill(inbox) and inbox.popleft():
    channel.sendall(frame(1, []))
print(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_that_waits_is_not_woken_when_the_engine_reads_what_it_has_sent() -> None:
    rounds = 50
    engine, theirs = socket.socketpair()
    with engine, theirs:
        engine.settimeout(WAIT_S)
        command = [sys.executable, "-c", ECHO, str(theirs.fileno())]
        with subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True) as worker:

            def sleeps() -> bool:
                return stat_fields(worker.pid)[0] == "S"

            for left in reversed(range(rounds)):
                assert select.select([engine], [], [], WAIT_S)[0]
                until(sleeps)  # what wakes it from here on is no answer of its own
                engine.recv(64)
                until(sleeps)
                engine.sendall(frame(min(left, 1), []))
            output, _ = worker.communicate(timeout=WAIT_S)
    # It sleeps once in each round, and now and then for a page or a lock; twice where each answer that is read wakes it.
    assert int(output) < 1.5 * rounds
