"""The command against a real server: what a person types and sees."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytriton_lite.cli import main
from tests.harness import MODEL_REPOSITORY, RunningServer, write_model

SHOUT = """
import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            if b"bad" in texts:
                answers.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("I will not shout that")))
                continue
            loud = np.array([text.upper() for text in texts.ravel()], dtype=object).reshape(texts.shape)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("LOUD", loud)]))
        return answers
"""
SHOUT_CONFIG = """
max_batch_size: 8
input [{ name: "TEXT" data_type: TYPE_STRING dims: [1] }]
output [{ name: "LOUD" data_type: TYPE_STRING dims: [1] }]
"""
WORDS = """
import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[0]
            for word in text.split():
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("WORD", np.array([word], dtype=object))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
WORDS_CONFIG = """
model_transaction_policy { decoupled: true }
input [{ name: "TEXT" data_type: TYPE_STRING dims: [1] }]
output [{ name: "WORD" data_type: TYPE_STRING dims: [1] }]
"""


SAID = """
import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        texts = [np.array([request.parameters()], dtype=object) for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("PARAMETERS", text)]) for text in texts]
"""
SAID_CONFIG = 'output [{ name: "PARAMETERS" data_type: TYPE_STRING dims: [1] }]'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("repository")
    write_model(repository, "shout", SHOUT, SHOUT_CONFIG)
    write_model(repository, "words", WORDS, WORDS_CONFIG)
    write_model(repository, "said", SAID, SAID_CONFIG)
    write_model(repository, "named", SAID.replace("PARAMETERS", "file"), SAID_CONFIG.replace("PARAMETERS", "file"))
    (repository / "add_sub").symlink_to(MODEL_REPOSITORY / "add_sub")
    with RunningServer(repository) as running:
        yield running


class Typed:
    """What was typed, and what came of it."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status = status
        self.out = out
        self.err = err

    @property
    def documents(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Terminal:
    def __init__(self, server: RunningServer, capture: pytest.CaptureFixture[str]) -> None:
        self._server = server
        self._capture = capture

    def infer(self, *words: str, protocol: str = "http") -> Typed:
        url = self._server.http_url if protocol == "http" else self._server.grpc_url
        status = main(["infer", "-u", url, "-i", protocol, *words])
        captured = self._capture.readouterr()
        return Typed(status, captured.out, captured.err)


@pytest.fixture
def terminal(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(server, capsys)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_numbers_are_answered_as_a_table(terminal: Terminal, protocol: str) -> None:
    typed = terminal.infer("add_sub", "INPUT0=1,2,3,4.5", "INPUT1=[1,1,1,1]", protocol=protocol)
    assert typed.status == 0
    assert typed.out.splitlines() == ["OUTPUT0  FP32  [4]  2 3 4 5.5", "OUTPUT1  FP32  [4]  0 1 2 3.5"]


def test_a_string_gets_its_batch_and_is_shown_in_quotes(terminal: Terminal) -> None:
    assert terminal.infer("shout", "TEXT=two words\u00e9").out == 'LOUD  BYTES  [1,1]  "TWO WORDS\u00e9"\n'


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_json_is_the_protocols_document(terminal: Terminal, protocol: str) -> None:
    typed = terminal.infer(
        "-m", "add_sub", "INPUT0=1,2,3,4", "INPUT1=0,0,0,0", "--format=json", "--outputs=OUTPUT1", "--request-id=7",
        protocol=protocol,
    )  # fmt: skip
    document = json.loads(typed.out)
    assert document["id"] == "7"
    assert [output["name"] for output in document["outputs"]] == ["OUTPUT1"]
    assert document["outputs"][0]["data"] == [1, 2, 3, 4]


def test_an_answer_may_go_to_a_file(terminal: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "answer.npz"
    assert terminal.infer("add_sub", "INPUT0=1,2,3,4", "INPUT1=0,0,0,0", "-o", str(path)).status == 0
    with np.load(path) as loaded:
        assert loaded["OUTPUT0"].tolist() == [1, 2, 3, 4]


def test_without_values_it_says_what_the_model_takes_and_how_to_ask(terminal: Terminal) -> None:
    typed = terminal.infer("shout")
    assert typed.status == 0
    assert "takes  TEXT BYTES [-1,1]" in typed.out
    assert "gives  LOUD BYTES [-1,1]" in typed.out
    assert typed.out.splitlines()[-1].endswith("-i http TEXT=text")


def test_a_model_that_streams_is_to_be_asked_over_grpc(server: RunningServer, terminal: Terminal) -> None:
    """At its usual port: of the server's other one nothing is known."""
    asked = terminal.infer("words").out.splitlines()[-1]
    assert asked.endswith("infer words -u grpc://127.0.0.1:8001 -i grpc TEXT=text")
    asked = terminal.infer("words", protocol="grpc").out.splitlines()[-1]
    assert asked.endswith(f"-u grpc://{server.grpc_url} -i grpc TEXT=text")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_parameter_is_a_number_where_json_has_it_and_else_the_text_that_was_typed(
    terminal: Terminal, protocol: str
) -> None:
    texts = [
        "00123",
        "1_000",
        "nan",
        "inf",
        "1e999",
        "+1",
        " 1",
        "1.",
        ".5",
        "9223372036854775808",
        "1" * 5000,
        "yes",
        "",
    ]
    typed: dict[str, Any] = {text: text for text in texts}
    typed |= {"12": 12, "-9223372036854775808": -(2**63), "0.5": 0.5, "1e3": 1000.0, "true": True}
    words = [f"--parameter=p{number}={text}" for number, text in enumerate(typed)]
    asked = terminal.infer("said", *words, "--format=jsonl", protocol=protocol)
    (document,) = asked.documents
    assert json.loads(document["outputs"][0]["data"][0]) == {
        f"p{number}": value for number, value in enumerate(typed.values())
    }


def test_a_stream_is_shown_as_it_comes(terminal: Terminal) -> None:
    typed = terminal.infer("words", "TEXT=one two", "--format=jsonl", protocol="grpc")
    assert [document["outputs"][0]["data"] for document in typed.documents] == [["one"], ["two"]]
    assert "-i grpc" in terminal.infer("words", "TEXT=one two").err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nope"], "model 'nope': Request for unknown model"),
        ([], "which model?"),
        (["INPUT0=1"], "the model's name comes first"),
        ([os.fsdecode(b"caf\xe9")], r"the model's name: expected UTF-8, got b'caf\xe9'"),
        (["add_sub", "INPUT9=1"], "model 'add_sub' has no input 'INPUT9'; it has INPUT0, INPUT1"),
        (["add_sub", "INPUT0"], "'INPUT0': expected NAME=VALUE"),
        (["add_sub", "INPUT0=1,2"], "expects shape [4], got [2]"),
        (["add_sub", "INPUT0=1,2,3,4", "INPUT0=1,2,3,4"], "given twice"),
        (["add_sub", "INPUT0=1,2,3,4"], "missing required input(s) ['INPUT1']"),
        (["add_sub", "INPUT0=@/nowhere.json"], "cannot read /nowhere.json: No such file"),
        (["add_sub", "INPUT0=1,2,3,4", "--shape=INPUT0:2,3"], "do not fill shape [2,3]"),
        (["add_sub", "INPUT0=1,2,3,4", "--shape=X:2"], "no input 'X'"),
        (["add_sub", "INPUT0=1,2,3,4", "--shape=INPUT0:a"], "expected NAME:N,N"),
        (["add_sub", "INPUT0=1,2,3,4", "INPUT1=1,2,3,4", "--outputs=X"], "X"),
        (["add_sub", "INPUT0=1,2,3,4", "INPUT1=1,2,3,4", "--parameter=x"], "expected NAME=VALUE"),
        (["add_sub", "INPUT0=1,2,3,4", "--format=npz"], "-o FILE.npz"),
        (["add_sub", "INPUT0=1,2,3,4", "INPUT1=1,2,3,4", "-o", "/nowhere/a.json"], "cannot write /nowhere/a.json"),
        (["add_sub", "--file=/nowhere.jsonl"], "cannot read /nowhere.jsonl: No such file"),
        (["add_sub", "INPUT0=1", "--file=x"], "has no place"),
        (["add_sub", "--file=x", "--shape=INPUT0:4"], "--shape is for one request"),
        (["add_sub", "--file=x", "--request-id=mine"], "--request-id is for one request"),
        (["add_sub", "INPUT0=1,2,3,4", "--concurrency=2"], "--concurrency is for --file"),
        (["shout", "TEXT=bad"], "I will not shout that"),
        (["add_sub", "-H", "nocolon", "INPUT0=1"], "expected NAME:VALUE"),
    ],
)
def test_what_is_wrong_is_one_line_and_an_exit_status(terminal: Terminal, words: list[str], says: str) -> None:
    typed = terminal.infer(*words)
    assert typed.status == 1
    assert says in typed.err
    assert typed.err.startswith("error: ")
    assert typed.err.count("\n") == 1


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_host_of_a_header_takes_the_place_of_the_address(terminal: Terminal, protocol: str) -> None:
    typed = terminal.infer("shout", "TEXT=a", "-H", "Host: model.example.org", protocol=protocol)
    assert (typed.status, typed.err) == (0, "")


def test_options_that_are_none_end_with_the_reason(terminal: Terminal) -> None:
    latin = os.fsdecode(b"caf\xe9")
    for words, says in (
        (["--bogus"], "unrecognized option '--bogus'"),
        (["-i", "soap"], "expected one of http, grpc"),
        (["--parameter", f"place={latin}"], r"expected UTF-8, got b'place=caf\xe9'"),
        (["--request-id", latin], "expected UTF-8"),
        (["--outputs", latin], "expected UTF-8"),
        (["--model-name", latin], "expected UTF-8"),
    ):
        typed = terminal.infer("add_sub", *words)
        assert typed.status == 1
        assert says in typed.err.splitlines()[-1]


def test_nobody_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert main(["infer", "add_sub", "-u", f"127.0.0.1:{port}"]) == 1
    assert capsys.readouterr().err == f"error: no connection to http://127.0.0.1:{port}: Connection refused\n"


def test_an_address_that_is_none_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for protocol in ("http", "grpc"):
        assert main(["infer", "add_sub", "-i", protocol, "-u", "a..b:8000"]) == 1
        assert capsys.readouterr().err.endswith("a..b:8000: 'a..b' is no name of a host\n")


# Many requests ------------------------------------------------------------------------------------------------------


def lines(path: Path, *rows: Any) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_answers_stand_in_the_order_of_the_requests(terminal: Terminal, tmp_path: Path, protocol: str) -> None:
    rows = [{"INPUT0": [number] * 4, "INPUT1": [1] * 4, "id": f"r{number}"} for number in range(50)]
    typed = terminal.infer("add_sub", "--file", lines(tmp_path / "r.jsonl", *rows), protocol=protocol)
    assert typed.status == 0
    assert [document["index"] for document in typed.documents] == list(range(50))
    assert [document["id"] for document in typed.documents] == [f"r{number}" for number in range(50)]
    assert [document["outputs"][0]["data"][0] for document in typed.documents] == [number + 1 for number in range(50)]


def test_rows_may_be_documents_of_the_protocol(terminal: Terminal, tmp_path: Path) -> None:
    row = {
        "id": "mine",
        "inputs": [
            {"name": name, "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]} for name in ("INPUT0", "INPUT1")
        ],
        "outputs": [{"name": "OUTPUT1"}],
    }
    (document,) = terminal.infer("add_sub", "--file", lines(tmp_path / "r.jsonl", row)).documents
    assert document["id"] == "mine"
    assert [output["name"] for output in document["outputs"]] == ["OUTPUT1"]


def test_a_row_that_is_wrong_is_told_and_the_others_go_on(terminal: Terminal, tmp_path: Path) -> None:
    path = lines(
        tmp_path / "r.jsonl",
        {"TEXT": "fine"}, {"TEXT": "bad", "id": "b"}, "{broken", {"TXT": "x"}, "[1]", {"TEXT": 5}, {"TEXT": [["fine"]]},
        "[" * 100_000, r'{"TEXT": "\ud83d"}', r'{"TEXT": "\ud83d\ude00"}', {"TEXT": "a", "id": [1]},
        {"inputs": [{"name": "TEXT", "shape": [True], "data": ["a"]}]},
        {"inputs": [{"name": "TEXT", "shape": [1] * 65, "data": ["a"]}]},
        {"inputs": [{"name": "TEXT", "shape": [0, 1 << 64], "data": []}]},
        '{"TEXT": ' + "[" * 65 + '"a"' + "]" * 65 + "}",
    )  # fmt: skip
    typed = terminal.infer("shout", "--file", path)
    assert typed.status == 1
    errors = [document.get("error", "") for document in typed.documents]
    assert [*errors[:-3], *(error.rpartition(": ")[0] for error in errors[-3:])] == [
        "",
        "I will not shout that",
        f"{path}:3: no JSON: Expecting property name enclosed in double quotes at line 1, column 2",
        "model 'shout' has no input 'TXT'; it has TEXT",
        f"{path}:5: expected a JSON object, got list",
        "input 'TEXT': expected strings, got int '5'",
        "",
        f"{path}:8: no JSON: lists or objects are nested too deeply",
        f"{path}:9: no JSON: a string has one half of a surrogate pair",
        "",
        '"id" is to be a string or a whole number, got list',
        "input 'TEXT': \"shape\" is to be a list of lengths, got [True]",
        f"input 'TEXT': no array has shape [{','.join(65 * '1')}]",
        "input 'TEXT': no array has shape [0,18446744073709551616]",
        f"input 'TEXT': no array has shape [{','.join(65 * '1')}]",
    ]
    assert typed.documents[1]["id"] == "b"
    assert typed.err == "error: 12 of 15 requests failed, the first: request 1: I will not shout that\n"


def test_requests_may_come_from_stdin_and_go_as_a_table(server: RunningServer, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytriton_lite", "infer", "shout", "-u", server.http_url, "--file=-", "--format=table"],
        input='{"TEXT": "a", "id": "x"}\n\n{"TEXT": "b"}\n',
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["#0 x", 'LOUD  BYTES  [1,1]  "A"', "#1", 'LOUD  BYTES  [1,1]  "B"']


def test_an_answer_does_not_wait_for_the_next_request(server: RunningServer) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "pytriton_lite", "infer", "shout", "-u", server.http_url, "--file=-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        for text in ("a", "b"):
            process.stdin.write(json.dumps({"TEXT": text}).encode() + b"\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["outputs"][0]["data"] == [text.upper()]
        process.stdin.close()
        assert process.wait() == 0


def test_answers_do_not_take_the_place_of_their_requests(server: RunningServer, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"TEXT": "a"}\n')
    link = tmp_path / "link.jsonl"
    link.symlink_to(path)
    for source in (str(path), "-"):
        with path.open() as stdin:
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "pytriton_lite",
                    "infer",
                    "shout",
                    "-u",
                    server.http_url,
                    "--file",
                    source,
                    "-o",
                    link,
                ],
                stdin=stdin,
                capture_output=True,
                text=True,
                timeout=60,
            )
        assert (done.returncode, path.read_text()) == (1, '{"TEXT": "a"}\n')
        assert "the requests come from that file" in done.stderr


def test_requests_may_come_from_a_pipe_that_has_a_name(terminal: Terminal) -> None:
    """As of a shell's ``<(…)``."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe:
        pipe.write('{"TEXT": "a"}\n')
    typed = terminal.infer("shout", "--file", f"/dev/fd/{reading}")
    os.close(reading)
    assert [document["outputs"][0]["data"] for document in typed.documents] == [["A"]]


def test_parquet_has_a_request_in_each_row(terminal: Terminal, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = arrow.table({"TEXT": ["one", "two", "three"], "id": ["a", "b", "c"]})
    parquet.write_table(rows, tmp_path / "r.parquet")
    typed = terminal.infer("shout", "--file", str(tmp_path / "r.parquet"))
    assert [(document["id"], document["outputs"][0]["data"]) for document in typed.documents] == [
        ("a", ["ONE"]), ("b", ["TWO"]), ("c", ["THREE"]),
    ]  # fmt: skip
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    assert "bad.parquet" in terminal.infer("shout", "--file", str(tmp_path / "bad.parquet")).err


def test_a_page_of_parquet_that_is_damaged_ends_the_run_with_the_reason(terminal: Terminal, tmp_path: Path) -> None:
    """The rows before it are answered."""
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    path = tmp_path / "rows.parquet"
    texts = [f"a text with the number {number}" for number in range(1024)]
    parquet.write_table(arrow.table({"TEXT": texts}), path, row_group_size=256)
    content = bytearray(path.read_bytes())
    at = len(content) // 2
    content[at : at + 200] = bytes(200 * [0x5A])
    path.write_bytes(content)
    typed = terminal.infer("shout", "--file", str(path))
    assert typed.status == 1 and typed.err.startswith(f"error: cannot read {path}: ")
    assert [document["outputs"][0]["data"] for document in typed.documents[:256]] == [
        [text.upper()] for text in texts[:256]
    ]


def test_arrays_of_many_answers_are_stacked_where_they_can_be(terminal: Terminal, tmp_path: Path) -> None:
    out = tmp_path / "answers.npz"
    good = [{"INPUT0": [number] * 4, "INPUT1": [0] * 4} for number in range(3)]
    typed = terminal.infer("add_sub", "--file", lines(tmp_path / "r.jsonl", *good), "-o", str(out))
    assert typed.status == 0
    assert typed.err.startswith("3 of 3 requests answered in ")
    with np.load(out) as loaded:
        assert loaded["OUTPUT0"].tolist() == [[number] * 4 for number in range(3)]
    typed = terminal.infer("add_sub", "--file", lines(tmp_path / "r.jsonl", good[0], {"X": 1}, good[2]), "-o", str(out))
    assert typed.status == 1
    with np.load(out) as loaded:
        assert sorted(loaded.files) == ["OUTPUT0.0", "OUTPUT0.2", "OUTPUT1.0", "OUTPUT1.2"]


def test_arrays_may_have_any_name_of_an_output(terminal: Terminal, tmp_path: Path) -> None:
    """`file` is the name of a parameter of np.savez, which would take the array for that."""
    out = tmp_path / "answer.npz"
    assert terminal.infer("named", "--parameter", "a=1", "-o", str(out)).status == 0
    with np.load(out) as loaded:
        assert loaded.files == ["file"] and loaded["file"].tolist() == [b'{"a":1}']


def test_all_responses_of_a_stream_belong_to_its_row(terminal: Terminal, tmp_path: Path) -> None:
    path = lines(tmp_path / "r.jsonl", {"TEXT": "a b"}, {"TEXT": "c"})
    typed = terminal.infer("words", "--file", path, protocol="grpc")
    assert [(document["index"], document["outputs"][0]["data"]) for document in typed.documents] == [
        (0, ["a"]), (0, ["b"]), (1, ["c"]),
    ]  # fmt: skip
    assert "over gRPC, -i grpc" in terminal.infer("words", "--file", path).err


def test_ctrl_c_ends_it_without_a_traceback(server: RunningServer, tmp_path: Path) -> None:
    """While it waits for more of stdin."""
    with subprocess.Popen(
        [sys.executable, "-m", "pytriton_lite", "infer", "shout", "-u", server.http_url, "--file=-", "--concurrency=1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(b'{"TEXT": "a"}\n')
        process.stdin.flush()
        assert b'"A"' in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        error = process.stderr.read()
        assert process.wait() == 130
    assert b"Traceback" not in error
