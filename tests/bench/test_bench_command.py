"""The command against a real server: what a person types and gets. Windows are short, and no time is asserted."""

from __future__ import annotations

import csv
import json
import os
import re
import select
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytriton_lite.cli import main
from pytriton_lite.testing.server import RunningServer as ShippedServer
from tests.harness import MODEL_REPOSITORY, PROJECT, RunningServer, child, write_model

COUNTER = """
import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}
    def execute(self, requests):
        answers = []
        for request in requests:
            value = lambda name: pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel()[0]
            key = value("ID")
            before = 0 if value("START") else self.sums.get(key, 0)  # slots without a request are asked, too
            self.sums[key] = before + value("IN")
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("SUM", np.array([[self.sums[key]]], np.int32))]))
        return answers
"""
# A load ends in the middle of some sequences, which keep their slots: there are enough for those of other tests. In a second,
# the time that a sequence may be silent by default, a busy machine may let the load stand still.
COUNTER_CONFIG = """
max_batch_size: 32
sequence_batching {
  max_sequence_idle_microseconds: 20000000
  control_input [
    { name: "START" control [{ kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] }] },
    { name: "ID" control [{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }] }
  ]
}
input [{ name: "IN" data_type: TYPE_INT32 dims: [1] }]
output [{ name: "SUM" data_type: TYPE_INT32 dims: [1] }]
"""
NEGATE = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            numbers = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if (numbers == 13).any():
                answers.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("13 brings bad luck")))
            else:
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", -numbers)]))
        return answers
"""
NEGATE_CONFIG = """
max_batch_size: 8
dynamic_batching {}
input [{ name: "IN" data_type: TYPE_INT32 dims: [-1] }]
output [{ name: "OUT" data_type: TYPE_INT32 dims: [-1] }]
"""
# Right as long as it is only looked at.
FALSE = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            number = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            is_look = request.request_id().startswith("bench-look-")
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", -number if is_look else number)]))
        return answers
"""
FALTERS = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            number = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if (number == 0).all():
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                continue
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", -number)]))
            if (number == 13).any():
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("13 brings bad luck")))
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", number)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
FALTERS_CONFIG = """
model_transaction_policy { decoupled: true }
input [{ name: "IN" data_type: TYPE_INT32 dims: [1] }]
output [{ name: "OUT" data_type: TYPE_INT32 dims: [1] }]
"""
# By count: on a busy machine a short window may have no answer at all.
QUICK = (
    "--measurement-mode=count_windows", "--measurement-request-count=5", "-r", "3", "-s", "1000", "--warmup-interval", "20"
)  # fmt: skip


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write_model(folder, "counter", COUNTER, COUNTER_CONFIG)
    write_model(folder, "negate", NEGATE, NEGATE_CONFIG)
    optional = 'input [{ name: "MORE" data_type: TYPE_INT32 dims: [-1] optional: true }]'
    write_model(folder, "negate_optional", NEGATE, NEGATE_CONFIG + optional)
    write_model(folder, "false", FALSE, NEGATE_CONFIG)
    write_model(folder, "falters", FALTERS, FALTERS_CONFIG)
    (folder / "add_sub").symlink_to(MODEL_REPOSITORY / "add_sub")
    (folder / "square").symlink_to(PROJECT / "examples" / "decoupled" / "models" / "square")
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RunningServer]:
    with RunningServer(repository) as running:
        yield running


class Terminal:
    def __init__(self, server: RunningServer, capture: pytest.CaptureFixture[str]) -> None:
        self._server = server
        self._capture = capture
        self.err = ""

    def bench(self, *words: str, protocol: str = "http", status: int = 0) -> str:
        url = self._server.http_url if protocol == "http" else self._server.grpc_url
        found = main(["bench", "-u", url, "-i", protocol, *QUICK, *words])
        captured = self._capture.readouterr()
        self.err = captured.err
        assert found == status, captured
        return captured.out

    def levels(self, *words: str, protocol: str = "http", status: int = 0) -> list[dict[str, Any]]:
        levels: list[dict[str, Any]] = json.loads(self.bench(*words, "--json=-", protocol=protocol, status=status))[
            "levels"
        ]
        return levels


@pytest.fixture
def terminal(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(server, capsys)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_sweep_has_a_row_for_each_level(
    terminal: Terminal, server: RunningServer, tmp_path: Path, protocol: str
) -> None:
    paths = [str(tmp_path / name) for name in ("all.json", "plot.svg", "report.csv")]
    out = terminal.bench(
        "-m", "add_sub", "--concurrency-range", "1:4:x2", "--json", paths[0], "--plot", paths[1], "-f", paths[2],
        protocol=protocol,
    )  # fmt: skip
    lines = out.splitlines()
    assert (
        lines[0]
        == f"add_sub at {protocol}://{server.http_url if protocol == 'http' else server.grpc_url}, 1,024 different requests"
    )
    assert lines[1].split()[:2] == ["callers", "requests/s"]
    assert [line.split()[0] for line in lines[2:5]] == ["1", "2", "4"]
    levels = json.loads(Path(paths[0]).read_text())["levels"]
    assert [level["concurrency"] for level in levels] == [1, 2, 4]
    for level in levels:
        assert level["failed"] == 0
        assert 0 < level["answered"] <= level["server"]["successes"], "the server's own count has the warm-up, too"
        assert level["latency_us"]["p50"] <= level["latency_us"]["p90"] <= level["latency_us"]["p99"]
        assert level["is_steady"] and len(level["windows"]) == 3
    drawing = ElementTree.parse(paths[1]).getroot()
    assert drawing.tag.endswith("svg")
    assert len(drawing.findall("{*}circle")) == 3 * 4
    with open(paths[2]) as file:
        rows = list(csv.DictReader(file))
    assert [row["Concurrency"] for row in rows] == ["1", "2", "4"]
    assert all(float(row["Inferences/Second"]) > 0 and float(row["p99 latency"]) > 0 for row in rows)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_rate_is_kept_and_begins_are_told_from_dues(terminal: Terminal, protocol: str) -> None:
    (level,) = terminal.levels(
        "-m", "add_sub", "--request-rate-range", "50", "--request-distribution=poisson", protocol=protocol
    )
    assert level["request_rate"] == 50
    assert level["distribution"] == "poisson"
    assert 0 < level["answered"] <= level["server"]["successes"]
    assert level["begun_late_p99_us"] >= 0


def test_tensors_may_go_as_json(terminal: Terminal) -> None:
    (level,) = terminal.levels("-m", "add_sub", "--input-tensor-format=json", "--output-tensor-format=json")
    assert level["answered"] > 0 and level["failed"] == 0


def test_batches_have_so_many_rows(terminal: Terminal) -> None:
    (level,) = terminal.levels("-m", "negate", "--shape=IN:3", "-b", "4", "--concurrency-range=2", "--input-data=zero")
    assert level["inferences_per_s"] == pytest.approx(4 * level["requests_per_s"], rel=0.01)
    assert level["server"]["inferences"] == 4 * level["server"]["successes"]
    assert "inferences/s" in terminal.bench("-m", "negate", "--shape=IN:3", "-b", "4", "--input-data=zero")


def test_a_batch_has_rows_of_one_list(terminal: Terminal, tmp_path: Path) -> None:
    """Also while the first answers are looked at: rows of another list may have another shape."""
    data = tmp_path / "data.json"
    rows = [{"IN": [1, 2]}, {"IN": [3, 4]}], [{"IN": [5, 6, 7]}]
    expected = [[{"OUT": [-value for value in row["IN"]]} for row in one] for one in rows]
    data.write_text(json.dumps({"data": rows, "validation_data": expected}))
    (level,) = terminal.levels("-m", "negate", "-b", "2", "--input-data", str(data))
    assert level["answered"] > 0 and level["failed"] == 0


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_rows_may_lack_optional_inputs(terminal: Terminal, tmp_path: Path, protocol: str) -> None:
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"data": [{"IN": [1]}, {"IN": [2], "MORE": [3]}]}))
    words = ("-m", "negate_optional", "--input-data", str(data))
    (level,) = terminal.levels(*words, protocol=protocol)
    assert level["answered"] > 0 and level["failed"] == 0
    terminal.bench(*words, "-b", "2", protocol=protocol, status=1)
    assert "rows of one batch have different tensors" in terminal.err


def test_a_decoupled_model_is_asked_in_streams_and_every_response_counted(terminal: Terminal, tmp_path: Path) -> None:
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"data": [{"N": [5]}]}))
    words = ("-m", "square", "--input-data", str(data), "--concurrency-range=2")
    (level,) = terminal.levels(*words, protocol="grpc")
    assert level["failed"] == 0
    assert level["responses_per_s"] == pytest.approx(5 * level["requests_per_s"], rel=0.01)
    assert level["first_response_us"]["p50"] <= level["latency_us"]["p50"]
    assert "in streams" in terminal.bench(*words, protocol="grpc")
    terminal.bench(*words, status=1)
    assert "-i grpc" in terminal.err


def test_models_with_one_response_may_be_asked_in_streams(terminal: Terminal) -> None:
    (level,) = terminal.levels("-m", "add_sub", "--streaming", "--concurrency-range=2", protocol="grpc")
    assert level["failed"] == 0 and level["answered"] > 0


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("pace", ["--concurrency-range=3", "--request-rate-range=100"])
def test_sequences_are_sent_from_start_to_end(terminal: Terminal, tmp_path: Path, protocol: str, pace: str) -> None:
    """The model sums what a sequence has sent; a wrong order, or a mix of two, is another sum."""
    data = tmp_path / "data.json"
    data.write_text(
        json.dumps(
            {
                "data": [[{"IN": [1]}, {"IN": [2]}, {"IN": [3]}], [{"IN": [10]}, {"IN": [20]}]],
                "validation_data": [[{"SUM": [1]}, {"SUM": [3]}, {"SUM": [6]}], [{"SUM": [10]}, {"SUM": [30]}]],
            }
        )
    )
    (level,) = terminal.levels("-m", "counter", "--input-data", str(data), pace, "--processes=2", protocol=protocol)
    assert level["failed"] == 0, level["errors"]
    assert level["answered"] > 0 and level["processes"] == 2


def test_a_list_of_one_sequence_is_that_sequence(terminal: Terminal, tmp_path: Path) -> None:
    data = tmp_path / "data.json"
    data.write_text(
        json.dumps(
            {
                "data": [[{"IN": [1]}, {"IN": [2]}, {"IN": [3]}]],
                "validation_data": [[{"SUM": [1]}, {"SUM": [3]}, {"SUM": [6]}]],
            }
        )
    )
    (level,) = terminal.levels("-m", "counter", "--input-data", str(data))
    assert level["failed"] == 0, level["errors"]
    assert level["answered"] > 3


def test_random_sequences_have_the_length_that_was_asked_for(terminal: Terminal) -> None:
    (level,) = terminal.levels(
        "-m", "counter", "--sequence-length=4", "--sequence-id-range=100:104", "--concurrency-range=4"
    )
    assert level["failed"] == 0 and level["answered"] > 0


# Wrong answers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_error_of_the_model_is_counted_and_ends_with_status_1(
    terminal: Terminal, tmp_path: Path, protocol: str
) -> None:
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"data": [{"IN": [1]}] * 8 + [{"IN": [13]}]}))  # behind what is looked at before
    words = ("-m", "negate", "--input-data", str(data))
    (level,) = terminal.levels(*words, protocol=protocol, status=1)
    assert level["answered"] > 0
    (text,) = level["errors"]
    assert text.endswith("13 brings bad luck")
    out = terminal.bench(*words, protocol=protocol, status=1)
    assert re.search(r"! concurrency 1: [\d,]+ of [\d,]+ answers were wrong\n! concurrency 1: [\d,]+ × .*bad luck", out)


def test_an_error_in_the_middle_of_a_stream_is_that_of_one_request(terminal: Terminal, tmp_path: Path) -> None:
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"data": [{"IN": [1]}] * 8 + [{"IN": [13]}]}))  # behind what is looked at before
    (level,) = terminal.levels("-m", "falters", "--input-data", str(data), protocol="grpc", status=1)
    assert level["errors"] == {"13 brings bad luck": level["failed"]}
    assert level["failed"] <= level["answered"]


@pytest.mark.parametrize(("protocol", "words"), [("http", []), ("grpc", []), ("grpc", ["--streaming"])])
def test_an_answer_that_is_not_as_the_data_say_is_wrong_under_load(
    terminal: Terminal, tmp_path: Path, protocol: str, words: list[str]
) -> None:
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"data": [{"IN": [0]}, {"IN": [1]}], "validation_data": [{"OUT": [0]}, {"OUT": [-1]}]}))
    (level,) = terminal.levels("-m", "false", "--input-data", str(data), *words, protocol=protocol, status=1)
    assert level["errors"] == {"output 'OUT' is not as validation_data says": level["failed"]}
    assert level["answered"] > 0


def test_of_many_responses_the_first_is_to_be_as_the_data_say(terminal: Terminal, tmp_path: Path) -> None:
    data = tmp_path / "data.json"
    words = ("-m", "falters", "--input-data", str(data))
    data.write_text(json.dumps({"data": [{"IN": [1]}], "validation_data": [{"OUT": [-1]}]}))
    (level,) = terminal.levels(*words, protocol="grpc")
    assert level["failed"] == 0 and level["answered"] > 0
    data.write_text(json.dumps({"data": [{"IN": [0]}], "validation_data": [{"OUT": [0]}]}))
    terminal.bench(*words, protocol="grpc", status=1)
    assert terminal.err == "error: row 0 of the data: there was no response\n"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_answer_that_is_not_as_the_data_say_is_told_before_the_load(
    terminal: Terminal, tmp_path: Path, protocol: str
) -> None:
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"data": [{"IN": [1]}, {"IN": [2]}], "validation_data": [{"OUT": [-1]}, {"OUT": [2]}]}))
    assert terminal.bench("-m", "negate", "--input-data", str(data), protocol=protocol, status=1) == ""
    assert terminal.err == "error: row 1 of the data: output 'OUT' is not as validation_data says\n"


def test_the_levels_of_a_threshold_are_found(terminal: Terminal) -> None:
    levels = terminal.levels("-m", "add_sub", "--concurrency-range", "1:8", "-l", "100000", "--binary-search")
    assert [level["concurrency"] for level in levels][-1] == 8, "all are below it"
    assert len(levels) < 8, "and few of them had to be measured"


def test_a_list_of_levels_is_searched_in_their_order(terminal: Terminal) -> None:
    levels = terminal.levels("-m", "add_sub", "--concurrency-range", "8,1,4", "-l", "100000", "--binary-search")
    assert [level["concurrency"] for level in levels][-1] == 8


def test_the_value_of_a_parameter_may_have_colons(terminal: Terminal) -> None:
    (level,) = terminal.levels("-m", "add_sub", "--request-parameter=url:http://x:string")
    assert level["failed"] == 0 and level["answered"] > 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "which model?"),
        (["-m", "nope"], "model 'nope': Request for unknown model"),
        (["add_sub"], "the model is -m NAME"),
        (["-m", "add_sub", "-b", "2"], "takes no batches"),
        (["-m", "add_sub", "--concurrency-range=0"], "expected START:END:STEP"),
        (["-m", "add_sub", "--concurrency-range=1", "--request-rate-range=1"], "choose one"),
        (["-m", "add_sub", "--request-distribution=poisson"], "is for --request-rate-range"),
        (["-m", "add_sub", "--measurement-mode=time_windows"], "count_windows"),
        (["-m", "add_sub", "--binary-search"], "needs --latency-threshold"),
        (["-m", "add_sub", "--shape=X:1"], "no such input; it has INPUT0, INPUT1"),
        (["-m", "add_sub", "--shape=X"], "expected NAME:N,N"),
        (["-m", "negate"], "say the lengths with --shape IN:N"),
        (["-m", "add_sub", "--input-data=/nowhere"], "expected random, zero, a folder or a JSON file"),
        (["-m", "add_sub", "--request-parameter=a:b:c"], "expected NAME:VALUE:TYPE"),
        (["-m", "add_sub", "--request-parameter=a:string"], "expected NAME:VALUE:TYPE"),
        (["-m", "add_sub", "--request-parameter=priority:x:int"], "expected NAME:VALUE:TYPE"),
        (["-m", "add_sub", f"--request-parameter=n:{1 << 70}:int"], "of string, int of 64 bits, float or bool"),
        (["-m", "counter", "--sequence-id-range=0"], "expected START:END"),
        (["-m", "counter", "--sequence-id-range=1:5", "--concurrency-range=1:5"], "these are 4 ids, and 5 sequences"),
        (["-m", "counter", "--sequence-id-range=1:4", "--request-rate-range=9"], "these are 3 ids, and 4 sequences"),
        (
            ["-m", "counter", "--input-data=x.json", "--sequence-length-variation=5"],
            "goes with --sequence-length where",
        ),
        (["-m", "add_sub", "--streaming"], "-i grpc"),
        (["-m", "add_sub", "--json=/nowhere/x.json"], "cannot write /nowhere/x.json: No such file"),
        (
            ["-m", "add_sub", "--json=/nowhere/x", "-f", "/nowhere/x"],
            "/nowhere/x is named for two of -f, --json and --plot",
        ),
        (["-m", "add_sub", "--tune-delays=1"], "is for --tune"),
        (["-m", "add_sub", "--tune"], "--url does not go with --tune"),
    ],
)
def test_what_is_wrong_is_one_line_and_an_exit_status(terminal: Terminal, words: list[str], says: str) -> None:
    assert terminal.bench(*words, status=1) == ""
    assert says in terminal.err
    assert terminal.err.startswith("error: ") and terminal.err.count("\n") == 1


def test_bytes_that_are_no_utf8_are_refused(terminal: Terminal) -> None:
    latin = os.fsdecode(b"caf\xe9")
    for option in ("-m", "--string-data", "--request-parameter"):
        terminal.bench("-m", "add_sub", option, latin, status=1)
        assert terminal.err.endswith("expected UTF-8, got b'caf\\xe9'\n")


def test_a_page_that_is_no_v2_server_is_told(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = server.metrics_url.removeprefix("http://").partition("/")[0]
    assert main(["bench", "-m", "add_sub", "-u", metrics]) == 1
    assert f"http://{metrics} does not speak the v2 protocol" in capsys.readouterr().err


def test_a_server_that_dies_under_load_is_one_line(repository: Path) -> None:
    with ShippedServer(repository / "add_sub") as running:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytriton_lite", "bench", "-m", "add_sub", "-u", running.http_url, "-v", "-p", "50",
             "-r", "1000", "-s", "0.01"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        with process:
            assert process.stderr is not None
            assert "window 1" in process.stderr.readline()
            os.kill(running.process.pid, signal.SIGKILL)
            last = process.stderr.read().splitlines()[-1]
            assert process.wait() == 1
    assert last.startswith("error: no connection to http://")


def test_a_server_that_dies_leaves_the_levels_that_were_measured_before(repository: Path, tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    with ShippedServer(repository / "add_sub") as running:
        command = [
            sys.executable, "-m", "pytriton_lite", "bench", "-m", "add_sub", "-u", running.http_url, "-v", *QUICK,
            "--concurrency-range", "1:1000", "--json", str(found),
        ]  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None and process.stdout is not None
            while "concurrency 3: window 1" not in process.stderr.readline():
                pass
            os.kill(running.process.pid, signal.SIGKILL)
            out, err = process.stdout.read(), process.stderr.read()
            assert process.wait() == 1
    assert [line.split()[0] for line in out.splitlines()[2:4]] == ["1", "2"]
    assert err.splitlines()[-1].startswith("error: no connection to http://")
    assert [level["concurrency"] for level in json.loads(found.read_text())["levels"]][:2] == [1, 2]


def test_a_run_that_measures_nothing_leaves_no_files(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "old.svg").write_text("old")
    files = [f"{flag}={tmp_path / name}" for flag, name in (("--json", "a"), ("--plot", "old.svg"))]
    terminal.bench("-m", "nope", *files, "-f", str(tmp_path / "b"), status=1)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("old.svg", "old")]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_a_full_disk_is_one_line(terminal: Terminal) -> None:
    assert "requests/s" in terminal.bench("-m", "add_sub", "--json=/dev/full", status=1)
    assert terminal.err == "error: cannot write /dev/full: No space left on device\n"


def test_a_threshold_may_be_any_number_of_milliseconds(terminal: Terminal) -> None:
    levels = terminal.levels("-m", "add_sub", "--concurrency-range", "1:8", "-l", "0.001")
    assert [level["concurrency"] for level in levels] == [1], "its latency is above that, so nothing else is measured"


def test_ctrl_c_prints_the_levels_that_were_measured(server: RunningServer) -> None:
    command = [
        sys.executable, "-m", "pytriton_lite", "bench", "-m", "add_sub", "-u", server.http_url, "-v", *QUICK,
        "--concurrency-range", "1:1000",
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None and process.stdout is not None
        while "concurrency 3: window 1" not in process.stderr.readline():
            pass
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to all of them
        out, err = process.stdout.read(), process.stderr.read()
        assert process.wait() == 130
    assert "Traceback" not in err
    assert [line.split()[0] for line in out.splitlines()[2:4]] == ["1", "2"]


# --tune -------------------------------------------------------------------------------------------------------------


def test_tune_tries_settings_on_a_copy_and_says_which_is_best(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = repository / "negate" / "config.pbtxt"
    before = config.read_text()
    found = tmp_path / "found.json"
    status = main(
        [
            "bench", "-m", "negate", "--tune", "--model-repository", str(repository), "--shape=IN:3", "--concurrency-range=4",
            "--input-data=zero", "--tune-instances=2", "--tune-threads=1", "--tune-delays=100", "--json", str(found), *QUICK,
        ]
    )  # fmt: skip
    out = capsys.readouterr().out
    assert status == 0
    rows = [
        line for line in out.splitlines() if line.startswith(("instances", " ", "as configured")) and "/s" not in line
    ]
    assert next(line.split()[:3] for line in rows if line.lstrip().startswith("2")) == ["2", "1", "as"]
    assert sum(line.rstrip().endswith("best") for line in rows) == 1
    assert "best for negate: " in out
    assert config.read_text() == before
    document = json.loads(found.read_text())
    trials = document["trials"]
    assert [(trial["instances"], trial["threads"]) for trial in trials[:2]] == [(None, None), (2, 1)]
    assert trials[-1]["delay_us"] == 100
    assert all(trial["level"]["answered"] > 0 and not trial["error"] for trial in trials)
    assert document["config"] in out and 0 <= document["best"] < len(trials)


def test_a_setting_that_does_not_load_is_a_row_with_its_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = NEGATE + (
        "    def initialize(self, args):\n"
        "        if '_1' in args['model_instance_name']:\n"
        "            raise ValueError('no memory for two')\n"
    )
    write_model(tmp_path, "negate", code, NEGATE_CONFIG.replace("dynamic_batching {}", "instance_group [{ count: 1 }]"))
    words = (
        "--tune-instances=2,1",
        "--tune-threads=1",
        "--tune-delays=0",
        "--shape=IN:3",
        "--input-data=zero",
        "--json=-",
        *QUICK,
    )
    assert main(["bench", "-m", "negate", "--tune", "--model-repository", str(tmp_path), *words]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    errors = [trial["error"] for trial in document["trials"]]
    assert "no memory for two" in errors[1] and errors[0] == errors[2] == ""
    assert document["trials"][1]["level"] is None
    assert "instances 2, threads 1, delay us as configured: " in captured.err


@pytest.mark.parametrize("word", ["--header=a:b", "--cacert=x", "--insecure", "--plot=x", "-fx", "--binary-search"])
def test_what_tune_cannot_heed_it_refuses(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "-m", "add_sub", "--tune", "-l", "5", word]) == 1
    assert "does not go with --tune" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="finds its server in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_tune_that_is_ended_leaves_no_server_behind(repository: Path, tmp_path: Path, number: signal.Signals) -> None:
    command = [
        sys.executable, "-m", "pytriton_lite", "bench", "-m", "negate", "--tune", "--model-repository", str(repository),
        "--shape=IN:3", "--input-data=zero", *QUICK,
    ]  # fmt: skip
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    with child(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environ) as process:
        assert "as configured" in process.stderr.readline()
        (server,) = [pid for pid in children_of(process.pid) if str(tmp_path).encode() in command_line_of(pid)]
        with open(os.pidfd_open(server), "rb") as end:
            process.send_signal(number)
            assert select.select([end], [], [], 60)[0]
        process.stderr.read()
        if number != signal.SIGKILL:
            assert process.wait() == 128 + number
            assert list(tmp_path.iterdir()) == [], "the copy has gone"


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_line_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_tune_copies_no_link_that_leads_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = tmp_path / "models"
    write_model(models, "negate", NEGATE, NEGATE_CONFIG.replace("dynamic_batching {}", ""))
    (models / "nowhere").symlink_to("gone")
    (tmp_path / "weights").write_text("w")
    (models / "negate" / "1" / "weights").symlink_to("../../../weights")
    words = ("--tune-instances=1", "--tune-threads=1", "--tune-delays=0", "--shape=IN:3", "--input-data=zero", *QUICK)
    assert main(["bench", "-m", "negate", "--tune", "--model-repository", str(models), *words]) == 0
    (models / "negate" / "1" / "weights").unlink()
    os.mkfifo(models / "negate" / "1" / "pipe")
    assert main(["bench", "-m", "negate", "--tune", "--model-repository", str(models), *words]) == 1
    assert re.fullmatch(r"error: cannot copy \S+/1/pipe: [^\[\n]*\n", capsys.readouterr().err.splitlines(True)[-1])


def test_tune_needs_a_model_in_a_repository(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, says in (
        ([], "--tune needs --model-repository"),
        (["--model-repository", str(repository)], "no model 'nope' in it"),
    ):
        assert main(["bench", "-m", "nope", "--tune", *words]) == 1
        assert says in capsys.readouterr().err
