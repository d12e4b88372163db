"""The comparison with other servers, against stand-ins of theirs. Nothing is installed, and no timing is asserted."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import peers
import pytest
from benchmark_error import BenchmarkError
from measured_server import MeasuredServer, Ports, expand, free_ports
from peers import PEERS, Peer, Server, main, parse_arguments

needs_wrk = pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")

SHORT = ["--rounds=1", "--seconds=1", "--callers=2"]
PORTS = Ports(20000, 20001, 20002)


@pytest.fixture(autouse=True)
def signal_handlers_are_put_back() -> object:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def stand_in(name: str, command: str, *, own_path: str | None = None, models: Path = Path()) -> Server:
    ready_path = peers.V2_READY if own_path is None else "/healthy"
    peer = Peer(name, name.capitalize(), name, command, ready_path, own_path, "not at all")
    return Server(peer, sys.executable, models, "1.2.3", "3.11.7")


# ----------------------------------------------------------------------------------------------------------------------
# The command line, and what is known of each peer


def test_triton_takes_part_only_if_its_command_is_known() -> None:
    assert parse_arguments([]).servers == ["ours", *PEERS]
    assert parse_arguments(["--triton=tritonserver"]).servers == ["ours", "triton", *PEERS]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--servers=ours,triton"], "--servers triton needs --triton"),
        (["--servers=mlserve"], "there is no server 'mlserve'; known: ours, triton, pytriton"),
        (["--callers=0"], "expected a number above 0"),
    ],
)
def test_option_that_cannot_be_is_refused(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(arguments)
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("peer", PEERS.values(), ids=PEERS)
def test_requirements_name_each_package_with_one_version_and_the_peer_among_them(peer: Peer) -> None:
    lines = (peers.FOLDER / peer.name / "requirements.txt").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    assert peer.distribution in [line.partition("==")[0] for line in lines]


@pytest.mark.parametrize("peer", PEERS.values(), ids=PEERS)
def test_command_of_a_peer_tells_it_the_port_and_names_files_that_are_there(peer: Peer) -> None:
    folder = peers.FOLDER / peer.name
    words = expand(peer.command, models=folder, ports=PORTS, python="the-python")
    assert "the-python" in words
    assert "20000" in re.split(r"[ =]", " ".join(words))
    named = [Path(word.rpartition("=")[2]) for word in words if str(folder) in word]
    assert named
    assert all(path.exists() for path in named)


# ----------------------------------------------------------------------------------------------------------------------
# What is sent, and what comes back


def test_requests_of_v2_and_of_an_own_form_have_the_same_ids_and_numbers() -> None:
    v2 = [body_of(request) for request in peers.requests_of(PEERS["mlserver"], PORTS)]
    own = [body_of(request) for request in peers.requests_of(PEERS["bentoml"], PORTS)]
    assert len({json.dumps(body) for body in own}) == len(own) == len(v2) == 4096
    for ours, theirs in zip(v2, own):
        numbers = {tensor["name"]: tensor["data"] for tensor in ours["inputs"]}
        assert {"id": ours["id"], **numbers} == theirs


def body_of(request: bytes) -> dict[str, object]:
    head, _, body = request.partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head.lower().split(b"\r\n")
    document: dict[str, object] = json.loads(body)
    return document


def test_request_goes_to_the_path_of_its_server() -> None:
    assert peers.requests_of(PEERS["kserve"], PORTS)[0].startswith(b"POST /v2/models/add_sub/infer HTTP/1.1\r\n")
    assert peers.requests_of(PEERS["litserve"], PORTS)[0].startswith(b"POST /predict HTTP/1.1\r\n")


@pytest.mark.parametrize("own_path", [None, "/infer"])
def test_right_answer_passes_and_a_wrong_one_is_refused(
    own_path: str | None, stand_in_command: str, tmp_path: Path
) -> None:
    right = stand_in("peer", stand_in_command, own_path=own_path)
    with right.started(tmp_path, timeout_s=60) as running:
        peers.check(right.peer, running.ports)
    wrong = stand_in("peer", f"{stand_in_command} --wrong", own_path=own_path)
    with wrong.started(tmp_path, timeout_s=60) as running, pytest.raises(BenchmarkError, match=r"expected OUTPUT0 \[2"):
        peers.check(wrong.peer, running.ports)


def test_answer_in_an_own_form_has_to_have_the_id_of_its_request(stand_in_command: str, tmp_path: Path) -> None:
    server = stand_in("peer", f"{stand_in_command} --own-id=another", own_path="/infer")
    refusal = pytest.raises(BenchmarkError, match="expected the id 'request-0000', got 'another'")
    with server.started(tmp_path, timeout_s=60) as running, refusal:
        peers.check(server.peer, running.ports)


def test_server_that_never_says_it_is_ready_is_given_up(stand_in_command: str, tmp_path: Path) -> None:
    refusal = pytest.raises(BenchmarkError, match="not ready within 1 s")
    with (
        refusal,
        MeasuredServer.started(
            "peer",
            stand_in_command,
            models=tmp_path,
            ports=free_ports(),
            log=tmp_path / "log",
            timeout_s=1,
            ready_path="/v2/models/unknown/ready",
        ),
    ):
        pass


# ----------------------------------------------------------------------------------------------------------------------
# Environments


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines that would have made environments and installed into them."""
    ran: list[list[str]] = []

    def record(command: list[str], *, limit_s: float) -> str:
        ran.append(command)
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True, exist_ok=True)
        return ""

    monkeypatch.setattr(peers, "run_bounded", record)
    return ran


def steps(commands: Sequence[Sequence[str]]) -> list[str]:
    return ["venv" if "venv" in command else Path(command[-1]).name for command in commands]


def test_environment_of_a_peer_is_kept_until_its_requirements_change(
    commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "peers" / "mlserver"
    folder.mkdir(parents=True)
    folder.joinpath("requirements.txt").write_text("mlserver==1\n")
    monkeypatch.setattr(peers, "FOLDER", tmp_path / "peers")
    options = parse_arguments([f"--environments={tmp_path / 'environments'}"])
    peers.installed(PEERS["mlserver"], options, tmp_path / "first")
    assert steps(commands) == ["venv", "requirements.txt"]
    peers.installed(PEERS["mlserver"], options, tmp_path / "second")
    assert len(commands) == 2
    folder.joinpath("requirements.txt").write_text("mlserver==2\n")
    peers.installed(PEERS["mlserver"], options, tmp_path / "third")
    assert steps(commands) == ["venv", "requirements.txt"] * 2


def test_environment_that_could_not_be_filled_is_made_anew(
    commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(environment: Path, *what: str) -> None:
        raise BenchmarkError("no network")

    options = parse_arguments([f"--environments={tmp_path / 'environments'}"])
    with monkeypatch.context() as patch, pytest.raises(BenchmarkError, match="no network"):
        patch.setattr(peers, "install", fail)
        peers.installed(PEERS["ray"], options, tmp_path / "first")
    peers.installed(PEERS["ray"], options, tmp_path / "second")
    assert steps(commands) == ["venv", "venv", "requirements.txt"]


def test_checkout_is_installed_anew_each_time_into_the_environment_that_is_there(
    commands: list[list[str]], tmp_path: Path
) -> None:
    options = parse_arguments([f"--environments={tmp_path}"])
    assert [peers.ours(sys.executable, options, tmp_path).name for _ in range(2)] == ["ours", "ours"]
    assert steps(commands) == ["venv", peers.PROJECT.name, peers.PROJECT.name]


def test_peer_that_cannot_be_had_is_left_out_and_the_others_go_on(
    commands: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "--servers=triton,mlserver",
        "--triton=cannot-be-started",
        f"--environments={tmp_path / 'environments'}",
    ]
    found = peers.prepared(parse_arguments(arguments), tmp_path)
    assert [server.name for server in found] == ["mlserver"]
    assert "triton is left out: triton: cannot start 'cannot-be-started'" in capsys.readouterr().err


def test_python_that_is_none_leaves_this_server_out_under_it_alone(
    commands: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--servers=ours", "--python=no-such-python", f"--python={sys.executable}"]
    found = peers.prepared(parse_arguments([*arguments, f"--environments={tmp_path}"]), tmp_path)
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert [(server.name, server.peer.title) for server in found] == [
        (f"ours-{minor}", f"pytriton-lite, Python {minor}")
    ]
    assert "'no-such-python' is no Python that can be started" in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------------------------------
# The whole program


def run_with(servers: Sequence[Server], arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(peers, "prepared", lambda options, folder: list(servers))
    return main([*SHORT, *arguments])


@needs_wrk
def test_servers_of_both_forms_are_measured_and_one_that_dies_is_left_out(
    stand_in_command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = [
        stand_in("v2", stand_in_command),
        stand_in("mortal", f"{stand_in_command} --die"),
        stand_in("own", stand_in_command, own_path="/infer"),
    ]
    result = tmp_path / "result.json"
    assert run_with(servers, [f"--result={result}"], monkeypatch) == 0
    output = capsys.readouterr()
    assert "mortal is left out: mortal: ended with code 1 before it was ready" in output.err
    rows = [line.split() for line in output.out.splitlines() if re.match(r"(v2|own|mortal) +2 ", line)]
    assert [row[0] for row in rows] == ["v2", "own"]
    document = json.loads(result.read_text())
    assert [(server["name"], server["form"]) for server in document["servers"]] == [
        ("v2", "V2"),
        ("own", "its own, `/infer`"),
    ]
    (cell,) = document["cells"]
    assert cell["callers"] == 2
    assert cell["medians"].keys() == cell["samples"].keys() == {"v2", "own"}
    assert cell["medians"]["own"]["per_second"] == cell["samples"]["own"][0]["per_second"] > 0
    assert str(tmp_path) not in result.read_text()


@needs_wrk
def test_exit_code_is_1_if_no_server_is_left(
    stand_in_command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_with([stand_in("mortal", f"{stand_in_command} --die")], [], monkeypatch) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "no server is left" in output.err


@needs_wrk
def test_server_that_fails_in_a_later_round_has_no_figures_of_earlier_ones(
    stand_in_command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = tmp_path / "once"
    dying = f"env sh -c 'mkdir {once} && exec \"$@\"' sh {stand_in_command}"
    result = tmp_path / "result.json"
    servers = [stand_in("lasting", stand_in_command), stand_in("fading", dying)]
    assert run_with(servers, ["--rounds=2", f"--result={result}"], monkeypatch) == 0
    document = json.loads(result.read_text())
    assert [server["name"] for server in document["servers"]] == ["lasting"]
    assert {name: len(samples) for name, samples in document["cells"][0]["samples"].items()} == {"lasting": 2}
