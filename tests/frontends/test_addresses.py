"""Addresses, and the files of Unix sockets: stale ones go, served ones stay."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest

from pytriton_lite.frontends.addresses import ListenError, bare_host, bind_socket, format_address, socket_file


def bind(host: str) -> socket.socket:
    async def bound() -> socket.socket:
        return await bind_socket(asyncio.get_running_loop(), host, 0, reuse_port=False)

    return asyncio.run(bound())


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
    with bind(f"unix:{path}"):
        file = socket_file(f"unix:{path}")
        assert file is not None
        assert stat.S_ISSOCK(path.stat().st_mode)
        file.remove()
        file.remove()  # which is no error
    assert not path.exists()


def test_the_umask_says_who_may_connect(short_path: Path) -> None:
    before = os.umask(0o117)
    try:
        with bind(f"unix:{short_path / 'a.sock'}"):
            assert stat.S_IMODE((short_path / "a.sock").stat().st_mode) == 0o660
    finally:
        os.umask(before)


def test_a_socket_that_nobody_serves_is_replaced(short_path: Path) -> None:
    """What a server leaves that was killed."""
    path = short_path / "a.sock"
    bind(f"unix:{path}").close()
    assert path.exists()
    with bind(f"unix:{path}"), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_socket_that_is_served_is_in_use_and_stays(short_path: Path) -> None:
    path = short_path / "a.sock"
    with bind(f"unix:{path}"):
        with pytest.raises(ListenError) as caught:
            bind(f"unix:{path}")
        assert str(caught.value) == f"Socket 'unix:{path}' already in use "
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_another_file_is_not_touched(short_path: Path) -> None:
    path = short_path / "notes"
    path.write_text("mine")
    with pytest.raises(ListenError, match=f"^Socket 'unix:{path}' cannot be bound: {path} is there, and is no socket$"):
        bind(f"unix:{path}")
    assert path.read_text() == "mine"


def test_a_socket_that_somebody_else_has_put_there_meanwhile_stays(short_path: Path) -> None:
    path = short_path / "a.sock"
    with bind(f"unix:{path}"):
        file = socket_file(f"unix:{path}")
        assert file is not None
        path.rename(short_path / "moved")  # so that its number is not given again
        with bind(f"unix:{path}"):
            file.remove()
            assert path.exists()


@pytest.mark.parametrize(
    ("name", "reason"), [("no-such-folder/a.sock", "No such file or directory"), ("a" * 200, "AF_UNIX path too long")]
)
def test_a_path_that_cannot_be_is_told(short_path: Path, name: str, reason: str) -> None:
    with pytest.raises(ListenError) as caught:
        bind(f"unix:{short_path / name}")
    assert str(caught.value) == f"Socket 'unix:{short_path / name}' cannot be bound: {reason}"
