"""Addresses, and the files of Unix sockets: stale ones go, served ones stay."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytriton_lite.frontends.addresses import BoundSocket, ListenError, bare_host, bind_socket, format_address


@contextmanager
def bind(host: str, port: int = 0, *, reuse_port: bool = False) -> Iterator[BoundSocket]:
    async def bound() -> BoundSocket:
        return await bind_socket(asyncio.get_running_loop(), host, port, reuse_port=reuse_port)

    taken = asyncio.run(bound())
    try:
        yield taken
    finally:
        taken.close()


@contextmanager
def listen(host: str) -> Iterator[BoundSocket]:
    with bind(host) as bound:
        bound.listen()
        yield bound


@pytest.mark.parametrize(
    ("host", "port", "text"),
    [
        ("0.0.0.0", 8000, "0.0.0.0:8000"),
        ("::1", 8001, "[::1]:8001"),
        ("unix:/run/a.sock", 0, "unix:/run/a.sock"),
    ],
)
def test_an_address_is_written_as_it_would_be_typed(host: str, port: int, text: str) -> None:
    assert format_address(host, port) == text


def test_prefixes_and_brackets_of_ipv6_are_taken_off() -> None:
    assert [bare_host(host) for host in ("::1", "[::1]", "ipv6:[::1]", "localhost")] == ["::1"] * 3 + ["localhost"]


def test_a_socket_file_is_left_by_nobody(short_path: Path) -> None:
    path = short_path / "a.sock"
    with bind(f"unix:{path}") as bound:
        assert stat.S_ISSOCK(path.stat().st_mode)
        bound.close()
        assert not path.exists()
        bound.close()  # which is no error


def test_the_umask_says_who_may_connect(short_path: Path) -> None:
    before = os.umask(0o117)
    try:
        with listen(f"unix:{short_path / 'a.sock'}"):
            assert stat.S_IMODE((short_path / "a.sock").stat().st_mode) == 0o660
    finally:
        os.umask(before)


def test_a_socket_that_nobody_serves_is_replaced(short_path: Path) -> None:
    """What a server leaves that was killed."""
    path = short_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    with listen(f"unix:{path}"), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_socket_that_is_served_is_in_use_and_stays(short_path: Path) -> None:
    path = short_path / "a.sock"
    with listen(f"unix:{path}"):
        with pytest.raises(ListenError) as caught, bind(f"unix:{path}"):
            pass
        assert str(caught.value) == f"Socket 'unix:{path}' already in use "
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_another_file_is_not_touched(short_path: Path) -> None:
    path = short_path / "notes"
    path.write_text("mine")
    reason = f"^Socket 'unix:{path}' cannot be bound: {path} is there, and is no socket$"
    with pytest.raises(ListenError, match=reason), bind(f"unix:{path}"):
        pass
    assert path.read_text() == "mine"


def test_a_socket_that_somebody_else_has_put_there_meanwhile_stays_and_is_not_ours(short_path: Path) -> None:
    path = short_path / "a.sock"
    with bind(f"unix:{path}") as first:
        path.rename(short_path / "moved")  # so that its number is not given again
        with listen(f"unix:{path}"):
            with pytest.raises(ListenError) as caught:
                first.listen()
            assert str(caught.value) == f"Socket 'unix:{path}' already in use "
            first.close()
            assert path.exists()


def test_an_address_that_is_taken_refuses_connections_and_other_servers() -> None:
    with bind("127.0.0.1") as bound, socket.socket() as client:
        host, port = bound.address
        assert client.connect_ex((host, port)) == errno.ECONNREFUSED
        with pytest.raises(ListenError) as caught, bind("127.0.0.1", port):
            pass
        assert str(caught.value) == f"Socket '127.0.0.1:{port}' already in use "
        bound.listen()
        assert client.connect_ex((host, port)) == 0


def test_a_port_whose_connections_linger_can_be_taken_at_once() -> None:
    """A server that closes first has its connections in TIME_WAIT for a minute."""
    with listen("127.0.0.1") as bound:
        _, port = bound.address
        with socket.create_connection(bound.address) as client:
            bound.socket.setblocking(True)
            served, _ = bound.socket.accept()
            served.close()
            assert client.recv(1) == b""
    with bind("127.0.0.1", port) as again:
        again.listen()


def test_servers_that_share_a_port_take_it_one_after_the_other() -> None:
    with bind("127.0.0.1", reuse_port=True) as first, bind("127.0.0.1", first.address[1], reuse_port=True) as second:
        second.listen()
        for _ in range(20):  # none of them is given to the one that does not listen
            with socket.create_connection(first.address):
                pass


@pytest.mark.parametrize(
    ("name", "reason"), [("no-such-folder/a.sock", "No such file or directory"), ("a" * 200, "AF_UNIX path too long")]
)
def test_a_path_that_cannot_be_is_told(short_path: Path, name: str, reason: str) -> None:
    with pytest.raises(ListenError) as caught, bind(f"unix:{short_path / name}"):
        pass
    assert str(caught.value) == f"Socket 'unix:{short_path / name}' cannot be bound: {reason}"


def test_a_socket_that_the_system_does_not_give_is_an_address_that_cannot_be_taken() -> None:
    """As IPv6 is, where the kernel has none, or systemd's RestrictAddressFamilies leaves it out."""

    async def bind_without_descriptors() -> BoundSocket:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            return await bind_socket(asyncio.get_running_loop(), "127.0.0.1", 0, reuse_port=False)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    with pytest.raises(ListenError, match=r"Socket '127.0.0.1:0' cannot be bound: Too many open files"):
        asyncio.run(bind_without_descriptors())
