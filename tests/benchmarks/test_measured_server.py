"""Starting, asking and ending a real process by a command line."""

from __future__ import annotations

import contextlib
import socket
import sys
from pathlib import Path

import measured_server
import pytest
from benchmark_error import BenchmarkError
from measured_server import MeasuredServer, Ports, expand, free_ports

linux = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")


def started(
    command: str, folder: Path, *, ports: Ports | None = None
) -> contextlib.AbstractContextManager[MeasuredServer]:
    return MeasuredServer.started(
        "peer", command, models=folder, ports=ports or free_ports(), log=folder / "log", timeout_s=60
    )


def test_placeholders_are_filled_after_the_words_are_split() -> None:
    words = expand(
        "{python} -m 'a server' --repository={models} {http_port} {grpc_port} {metrics_port} {{}}",
        models=Path("/my models"),
        ports=Ports(1, 2, 3),
    )
    assert words == [sys.executable, "-m", "a server", "--repository=/my models", "1", "2", "3", "{}"]


@pytest.mark.parametrize("template", ["serve {port}", "serve {}", "serve {", "serve {models.name.x}", "serve 'x"])
def test_template_that_cannot_be_filled_is_refused_with_the_names_that_can(template: str) -> None:
    with pytest.raises(BenchmarkError, match=r"\{http_port\}, \{grpc_port\}, \{metrics_port\}"):
        expand(template, models=Path("/models"), ports=Ports(1, 2, 3))


def test_empty_command_is_refused() -> None:
    with pytest.raises(BenchmarkError, match="empty command line"):
        expand("  ", models=Path("/models"), ports=Ports(1, 2, 3))


def test_free_ports_are_neighbours_that_can_be_bound() -> None:
    ports = free_ports()
    assert (ports.grpc, ports.metrics) == (ports.http + 1, ports.http + 2)
    with contextlib.ExitStack() as stack:
        for port in (ports.http, ports.grpc, ports.metrics):
            stack.enter_context(socket.create_server(("127.0.0.1", port)))


def test_wish_for_ports_of_which_one_is_taken_is_refused() -> None:
    ports = free_ports()
    assert free_ports(ports.http) == ports
    with socket.create_server(("127.0.0.1", ports.metrics)), pytest.raises(BenchmarkError, match=f"{ports.http} to"):
        free_ports(ports.http)


def test_ready_server_tells_its_version_and_counts_nothing_yet(stand_in_command: str, tmp_path: Path) -> None:
    with started(stand_in_command, tmp_path) as server:
        assert server.version() == "stand-in 1.2.3"
        counters = server.counters("add_sub")
    assert (counters.succeeded, counters.failed) == (0, 0)


def test_server_that_ends_before_it_is_ready_is_reported_with_its_last_words(
    stand_in_command: str, tmp_path: Path
) -> None:
    last_words = "peer: ended with code 1 before it was ready\nits last lines:\nno licence"
    with pytest.raises(BenchmarkError, match=last_words), started(f"{stand_in_command} --die", tmp_path):
        pass


def test_server_runs_beside_its_log_and_not_where_the_benchmark_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    script = elsewhere / "server"
    script.write_text("#!/bin/sh\npwd\n")
    script.chmod(0o755)
    monkeypatch.chdir(elsewhere)
    last_words = f"before it was ready\nits last lines:\n{tmp_path}$"
    with pytest.raises(BenchmarkError, match=last_words), started("./server", tmp_path):
        pass


def test_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    refusal = pytest.raises(BenchmarkError, match="peer: cannot start 'no-such-server'")
    with refusal, started("no-such-server {models}", tmp_path):
        pass


@linux
def test_nothing_of_a_server_is_left_even_of_one_that_ignores_sigterm(
    stand_in_command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measured_server, "STOP_TIMEOUT_S", 0.1)
    monkeypatch.setattr(measured_server, "CHILDREN_TIMEOUT_S", 2)
    with started(f"{stand_in_command} --ignore-sigterm --with-child", tmp_path) as server:
        child = int(tmp_path.joinpath("log").read_text().split()[1])
        pids = [stat.pid for stat in server.tree.alive()]
        assert len(pids) == 2
        assert child in pids
    assert server.tree.alive() == []
    message = "peer: had to kill what SIGTERM left behind: " + ", ".join(str(pid) for pid in pids)
    assert capsys.readouterr().err.strip() == message


@linux
def test_server_is_ended_when_its_user_fails(stand_in_command: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="in the middle"), started(stand_in_command, tmp_path) as server:
        raise RuntimeError("in the middle")
    assert server.tree.alive() == []
