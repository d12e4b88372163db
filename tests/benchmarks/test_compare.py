"""The script as a whole, with the real load generators against two small servers. No timing is asserted."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import compare
import pytest
from benchmark_error import BenchmarkError
from compare import check_bytes, check_counts, main, parse_arguments
from load_generators import Load

needs_wrk = pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
needs_h2load = pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
linux = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")

SHORT = ["--rounds=1", "--seconds=1", "--warmup=0", "--callers=2"]


def load(answered: int | None, body_bytes: int | None = None) -> Load:
    return Load(answered=answered, per_second=1.0, p50_us=1.0, p99_us=1.0, body_bytes=body_bytes)


@pytest.fixture(autouse=True)
def signal_handlers_are_put_back() -> object:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_add_sub_of_the_project_is_measured_unless_something_else_is_asked_for() -> None:
    options = parse_arguments([])
    assert options.scenarios == ["add_sub"]
    assert options.model.joinpath("config.pbtxt").is_file()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--callers=1,0"], "expected a number above 0"),
        (["--callers=1;8"], "expected a whole number, got '1;8'"),
        (["--rounds=-1"], "expected a whole number, got '-1'"),
        (
            ["--protocols=http"],
            "no protocol 'http'; known: http-json, http-json-gzip, http-binary, grpc, http-json-repeated",
        ),
        (["--scenarios=add_sub,blz"], "no scenario 'blz'; known: add_sub, bls, ensemble, decoupled, bls_decoupled"),
        (["--scenarios=add_sub,decoupled", "--protocols=grpc"], "decoupled streams its responses, which grpc cannot"),
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
    check_counts(load(100), model="add_sub", served=served, failed=0, callers=4)


@pytest.mark.parametrize(("answered", "served"), [(100, 99), (100, 109), (None, 0)])
def test_counts_that_do_not_agree_are_refused(answered: int | None, served: int) -> None:
    with pytest.raises(BenchmarkError, match=f"{served} successes and 7 failures of add_sub"):
        check_counts(load(answered), model="add_sub", served=served, failed=7, callers=4)


@pytest.mark.parametrize("body_bytes", [1000, 1001, 1040, None])
def test_answers_under_way_may_have_brought_some_bytes_of_their_own(body_bytes: int | None) -> None:
    check_bytes(load(100, body_bytes), each=10, callers=4)


@pytest.mark.parametrize("body_bytes", [999, 1041])
def test_bytes_that_so_many_right_answers_do_not_have_are_refused(body_bytes: int) -> None:
    with pytest.raises(BenchmarkError, match=f"100 answers of together {body_bytes} bytes, where a right one has 10"):
        check_bytes(load(100, body_bytes), each=10, callers=4)


def test_missing_tools_end_it_before_a_server_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--server-command=cannot-be-started", "--protocols=http-json,grpc-repeated", *SHORT]) == 1
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
    arguments += [f"--model={model_folder}", f"--json={result}", "--protocols=http-binary,grpc,grpc-repeated"]
    assert main([*arguments, "--markdown", *SHORT]) == 0
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[3] for line in table[2:]] == ["ours", "peer", "**ours/peer**"] * 3
    document = json.loads(result.read_text())
    assert document["facts"]["Peer"] == "stand-in 1.2.3"
    assert [(cell["protocol"], cell["generator"]) for cell in document["cells"]] == [
        ("http-binary", "wrk"),
        ("grpc", "grpc_load"),
        ("grpc-repeated", "h2load"),
    ]
    for sample in (cell["samples"][side][0] for cell in document["cells"] for side in ("ours", "peer")):
        assert sample["per_second"] > 0
        assert 0 < sample["p50_us"] <= sample["p99_us"]
        if sys.platform == "linux":
            assert sample["cpu_us"] > 0


@needs_wrk
def test_own_server_is_measured_with_nothing_said_about_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SHORT) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if " ours " in line]
    assert [line[:3] for line in lines] == [["add_sub", p, "2"] for p in ("http-json", "http-binary", "grpc")]


@needs_wrk
@needs_h2load
def test_other_scenarios_are_measured_on_the_real_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = tmp_path / "result.json"
    scenarios = ["bls", "ensemble", "decoupled", "bls_decoupled", "batched", "sequences"]
    assert main([f"--scenarios={','.join(scenarios)}", f"--json={result}", *SHORT]) == 0
    headings = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("scenario"))
    assert headings.split()[-1] == "responses/s"
    cells = json.loads(result.read_text())["cells"]
    assert [(cell["scenario"], cell["protocol"], cell["responses"]) for cell in cells] == [
        ("bls", "http-binary", 1),
        ("ensemble", "http-binary", 1),
        ("decoupled", "grpc-stream", 100),
        ("bls_decoupled", "http-binary", 1),
        ("batched", "http-binary", 1),
        ("sequences", "grpc", 1),
    ]
    assert all(cell["samples"]["ours"][0]["per_second"] > 0 for cell in cells)


@needs_h2load
def test_streams_that_break_off_under_load_are_noticed(
    stand_in_command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"--server-command={stand_in_command} --short-after 3"
    assert main([command, "--scenarios=decoupled", *SHORT]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "bytes, where a right one has" in output.err


@needs_wrk
def test_called_model_that_was_not_called_is_noticed(
    stand_in_command: str, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"--server-command={stand_in_command} --forget-calls", f"--model={model_folder}", "--scenarios=bls"]
    assert main([*arguments, *SHORT]) == 1
    assert "but the server counted 0 successes and 0 failures of add_sub" in capsys.readouterr().err


@needs_h2load
def test_grpc_errors_that_h2load_takes_for_answers_are_noticed(
    stand_in_command: str, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"--server-command={stand_in_command} --fail-after 5", f"--model={model_folder}"]
    assert main([*arguments, "--protocols=grpc-repeated", *SHORT]) == 1
    output = capsys.readouterr()
    assert output.out == "", "there is no complete round to show"
    assert "but the server counted 4 successes and" in output.err


def test_a_grpc_error_is_told_in_its_own_words(
    stand_in_command: str, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"--server-command={stand_in_command} --fail-after 5", f"--model={model_folder}"]
    assert main([*arguments, "--protocols=grpc", *SHORT]) == 1
    said = capsys.readouterr().err
    assert re.search(r"grpc_load met an error behind \d answers: status 13: told to fail", said), said


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
    try:
        server = stand_in_pid(script.pid)
    finally:
        script.terminate()
        rest = script.communicate()[1]
    assert script.returncode == 128 + signal.SIGTERM, "".join(said) + rest
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


def stand_in_pid(parent: int) -> int:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    # A load generator that has just been forked still has the command line of its parent, in which the stand-in occurs, too.
    parents = Path(f"/proc/{parent}/cmdline").read_bytes()
    commands = {int(child): Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
    (pid,) = [child for child, command in commands.items() if b"stand_in" in command and command != parents]
    return pid
