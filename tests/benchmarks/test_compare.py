"""The script as a whole, with the real load generators against two small servers. No timing is asserted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import compare
import pytest
from add_sub_calls import Protocol
from benchmark_error import BenchmarkError
from compare import check_counts, main, parse_arguments
from load_generators import Load

needs_wrk = pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
needs_h2load = pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
linux = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")

SHORT = ["--rounds=1", "--seconds=1", "--warmup=0", "--callers=2"]


def load(answered: int | None) -> Load:
    return Load(answered=answered, per_second=1.0, p50_us=1.0, p99_us=1.0)


@pytest.fixture(autouse=True)
def signal_handlers_are_put_back() -> object:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_defaults_are_three_protocols_with_1_8_and_32_callers() -> None:
    options = parse_arguments([])
    assert options.protocols == [Protocol.HTTP_JSON, Protocol.HTTP_BINARY, Protocol.GRPC]
    assert options.callers == [1, 8, 32]
    assert options.model.joinpath("config.pbtxt").is_file()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--callers=1,0"], "expected a number above 0"),
        (["--callers=1;8"], "expected a whole number, got '1;8'"),
        (["--rounds=-1"], "expected a whole number, got '-1'"),
        (["--protocols=http"], "known: http-json, http-binary, grpc"),
        (["--only=peer"], "--only peer needs --peer-command"),
    ],
)
def test_wrong_option_is_refused(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        parse_arguments(arguments)
    assert raised.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("served", [100, 104, 108])
def test_requests_that_were_under_way_may_be_counted_by_the_server_alone(served: int) -> None:
    check_counts(load(100), served=served, failed=0, callers=4)


@pytest.mark.parametrize(("answered", "served"), [(100, 99), (100, 109), (None, 0)])
def test_counts_that_do_not_agree_are_refused(answered: int | None, served: int) -> None:
    with pytest.raises(BenchmarkError, match=f"{served} successes and 7 failures"):
        check_counts(load(answered), served=served, failed=7, callers=4)


def test_missing_tools_end_it_before_a_server_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--server-command=cannot-be-started", *SHORT]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "Debian and Ubuntu: nghttp2-client" in output.err
    assert "'wrk' is not installed" in output.err


@needs_wrk
def test_folder_without_a_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--protocols=http-json", f"--model={tmp_path}", *SHORT]) == 1
    assert "is no model folder: it has no config.pbtxt" in capsys.readouterr().err


@needs_wrk
@needs_h2load
def test_both_servers_are_measured_over_http_and_grpc(
    stand_in_command: str, model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "result.json"
    arguments = [f"--server-command={stand_in_command}", f"--peer-command={stand_in_command}"]
    arguments += [f"--model={model_folder}", f"--json={result}", "--protocols=http-binary,grpc", "--markdown"]
    assert main([*arguments, *SHORT]) == 0
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[2] for line in table[2:]] == ["ours", "peer", "**ours/peer**"] * 2
    document = json.loads(result.read_text())
    assert document["facts"]["Peer"] == "stand-in 1.2.3"
    assert [(cell["protocol"], cell["generator"]) for cell in document["cells"]] == [
        ("http-binary", "wrk"),
        ("grpc", "h2load"),
    ]
    for sample in (cell["samples"][side][0] for cell in document["cells"] for side in ("ours", "peer")):
        assert sample["per_second"] > 0
        assert 0 < sample["p50_us"] <= sample["p99_us"]
        if sys.platform == "linux":
            assert sample["cpu_us"] > 0


@needs_wrk
@needs_h2load
def test_own_server_is_measured_with_nothing_said_about_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SHORT) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if " ours " in line]
    assert [(line[0], line[1]) for line in lines] == [("http-json", "2"), ("http-binary", "2"), ("grpc", "2")]


@needs_h2load
def test_grpc_errors_that_h2load_takes_for_answers_are_noticed(
    stand_in_command: str, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"--server-command={stand_in_command} --fail-after 5", f"--model={model_folder}", "--protocols=grpc"]
    assert main([*arguments, *SHORT]) == 1
    output = capsys.readouterr()
    assert output.out == "", "there is no complete round to show"
    assert "but the server counted 4 successes and" in output.err


@needs_wrk
def test_http_errors_are_noticed(stand_in_command: str, model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [f"--server-command={stand_in_command} --fail-after 5", f"--model={model_folder}"]
    assert main([*arguments, "--protocols=http-json", *SHORT]) == 1
    assert "ours: wrk met errors among" in capsys.readouterr().err


@linux
@needs_wrk
def test_sigterm_ends_the_servers_too(stand_in_command: str, model_folder: Path) -> None:
    command = [sys.executable, compare.__file__, f"--server-command={stand_in_command}", f"--model={model_folder}"]
    command += ["--protocols=http-json", "--seconds=600"]
    script = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert script.stderr is not None
    said = []
    for line in script.stderr:
        said.append(line)
        if "measurements, about" in line:  # from here on both the server and wrk may be running
            break
    server = stand_in_pid(script.pid)
    script.terminate()
    rest = script.communicate()[1]
    assert script.returncode == 128 + signal.SIGTERM, "".join(said) + rest
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


def stand_in_pid(parent: int) -> int:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    (pid,) = [int(child) for child in children if b"stand_in" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return pid
