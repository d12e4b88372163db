"""Frames out of a byte stream, and descriptors beside it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import hypothesis.strategies as st
import pytest
from hypothesis import given

from pytriton_lite.ipc.channel import (
    HEADER,
    LARGEST_FRAME,
    FrameReader,
    ProtocolError,
    frame,
    receive_descriptor,
    send_descriptor,
    wait_descriptor,
)

FRAMES = st.lists(st.tuples(st.integers(0, (1 << 32) - 1), st.binary(max_size=60)), max_size=10)


@given(FRAMES, st.lists(st.integers(1, 40), min_size=1))
def test_frames_are_cut_out_of_any_pieces(frames: list[tuple[int, bytes]], piece_sizes: list[int]) -> None:
    stream = b"".join(frame(kind, [body]) for kind, body in frames)
    reader = FrameReader()
    found: list[tuple[int, memoryview]] = []
    at = pieces = 0
    while at < len(stream):
        size = piece_sizes[pieces % len(piece_sizes)]
        found += reader.feed(stream[at : at + size])
        at += size
        pieces += 1
    assert [(kind, bytes(body)) for kind, body in found] == frames, "bodies stay valid after later feeds"
    assert reader.is_between_frames


def test_a_cut_frame_is_noticed() -> None:
    reader = FrameReader()
    assert reader.feed(frame(1, [b"body"])[:-1]) == []
    assert not reader.is_between_frames


@given(st.binary(max_size=30), st.integers(LARGEST_FRAME + 1, (1 << 32) - 1), st.integers(0, (1 << 32) - 1))
def test_an_impossible_length_is_garbage(before: bytes, length: int, kind: int) -> None:
    reader = FrameReader()
    with pytest.raises(ProtocolError, match=f"frame of {length} bytes and kind {kind}"):
        reader.feed(frame(1, [before]) + HEADER.pack(length, kind))


def test_the_largest_frame_is_none() -> None:
    reader = FrameReader()
    assert reader.feed(HEADER.pack(LARGEST_FRAME, 1)) == []
    assert not reader.is_between_frames


def test_a_body_may_have_many_parts() -> None:
    ((kind, body),) = FrameReader().feed(frame(7, [b"a", b"", b"bc"]))
    assert (kind, bytes(body)) == (7, b"abc")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_descriptors_arrive_in_order_and_ours_stay_open(pair: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    pipes = [os.pipe() for _ in range(3)]
    try:
        for read_fd, _ in pipes:
            send_descriptor(sender, read_fd)
        for number, (read_fd, write_fd) in enumerate(pipes):
            received = receive_descriptor(receiver)
            os.write(write_fd, b"%d" % number)
            assert os.read(received, 10) == b"%d" % number
            assert not os.get_inheritable(received)
            os.close(received)
            os.fstat(read_fd)
    finally:
        for fds in pipes:
            for fd in fds:
                os.close(fd)


def test_a_worker_waits_for_a_descriptor_that_is_announced(pair: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    with ThreadPoolExecutor(1) as pool, open(os.devnull) as sent:
        waiting = pool.submit(wait_descriptor, receiver)
        send_descriptor(sender, sent.fileno())
        received = waiting.result(20)
        assert os.path.sameopenfile(received, sent.fileno())
        os.close(received)


def test_a_byte_without_descriptor_is_garbage(pair: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    sender.send(b"f")
    with pytest.raises(ProtocolError, match="expected a descriptor, got b'f'"):
        receive_descriptor(receiver)


def test_a_peer_that_is_gone_sends_no_descriptor(pair: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    sender.close()
    with pytest.raises(ProtocolError, match="expected a descriptor, got b''"):
        receive_descriptor(receiver)
