"""The fifteen mistakes that people make in their first hour: the last line says what is wrong, where, and what to do.

Nine of them end a start, or should have been told there, and `check` tells them, too; six are requests.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pytriton_lite.cli import main
from tests.forked_servers import CAN_FORK, nursery
from tests.harness import PROJECT, RunningServer, tensor, write_model
from tests.unprivileged import UNPRIVILEGED, needs_no_privileges

CODE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
"""
CONFIG = """\
backend: "python"
max_batch_size: 4
input [{ name: "X" data_type: TYPE_FP32 dims: [ 3 ] }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [ 3 ] }]
"""
PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1")


def wrong_path(at: Path) -> Path:
    write_model(at / "models", "double", CODE, CONFIG)
    return at / "modles"


def folder_of_a_model(at: Path) -> Path:
    return write_model(at / "models", "double", CODE, CONFIG)


def no_version(at: Path) -> Path:
    folder = write_model(at / "models", "double", "", CONFIG)
    (folder / "1").rename(folder / "v1")
    (folder / "model.py").write_text(CODE)
    return at / "models"


def unknown_field(at: Path) -> Path:
    write_model(at / "models", "double", CODE, CONFIG + "instance_groups [{ count: 2 }]\n")
    return at / "models"


def syntax_error(at: Path) -> Path:
    write_model(at / "models", "double", CODE.replace("requests):", "requests)"), CONFIG)
    return at / "models"


def missing_package(at: Path) -> Path:
    write_model(at / "models", "double", f"import no_such_package.deeper\n{CODE}", CONFIG)
    return at / "models"


def misnamed_module(at: Path) -> Path:
    write_model(at / "models", "double", f"import triton_python_backend\n{CODE}", CONFIG)
    return at / "models"


def initialize_raises(at: Path) -> Path:
    code = f"{CODE}\n    def initialize(self, args):\n        self.weights = open('/nowhere/weights.npy')\n"
    write_model(at / "models", "double", code, CONFIG)
    return at / "models"


class Start(NamedTuple):
    """``last`` is the last line that is printed, of ``serve``; ``found`` what `check` says in any line, "" for nothing."""

    mistake: Callable[[Path], Path]
    last: str
    found: str


STARTS = [
    Start(wrong_path, "{at}/modles: did you mean {at}/models?", "(did you mean {at}/models?)"),
    Start(
        folder_of_a_model,
        "{at}/models/double: this is a model's folder; serve its parent: {at}/models",
        "each directory in here is taken for a model (this is a model's folder; serve its parent: {at}/models)",
    ),
    Start(
        no_version,
        "model 'double': at least one version must be available under the version policy of model 'double' (a version is a "
        "directory with a number: move model.py into {at}/models/double/1)",
        "(a version is a directory with a number: move model.py into {at}/models/double/1)",
    ),
    Start(
        unknown_field,
        "model 'double': {at}/models/double/config.pbtxt:5:1: Message type \"inference.ModelConfig\" has no field named "
        '"instance_groups". (did you mean instance_group?)',
        '{at}/models/double/config.pbtxt:5:1: error: Message type "inference.ModelConfig" has no field named '
        '"instance_groups". (did you mean instance_group?)',
    ),
    Start(
        syntax_error,
        "model 'double' version 1: {at}/models/double/1/model.py:5: SyntaxError: expected ':'",
        "{at}/models/double/1/model.py:5:32: error: SyntaxError: expected ':'",
    ),
    Start(
        missing_package,
        "model 'double' version 1: {at}/models/double/1/model.py:1: ModuleNotFoundError: No module named 'no_such_package' "
        "(pip install no_such_package where the server runs; or name no_such_package in a requirements.txt beside config.pbtxt "
        "and serve with --allow-requirements=true; or give the model an environment of its own with EXECUTION_ENV_PATH)",
        "",
    ),
    Start(
        misnamed_module,
        "model 'double' version 1: {at}/models/double/1/model.py:1: ModuleNotFoundError: No module named "
        "'triton_python_backend' (Triton's module is triton_python_backend_utils: import triton_python_backend_utils as "
        "pb_utils)",
        "",
    ),
    Start(
        initialize_raises,
        "model 'double' version 1: {at}/models/double/1/model.py:9: FileNotFoundError: [Errno 2] No such file or directory: "
        "'/nowhere/weights.npy'",
        "",
    ),
]


def serve_to_its_end(*arguments: str) -> str:
    """What a server prints that does not start."""
    words = ["serve", *arguments]
    if CAN_FORK and nursery().can_fork(os.environ):
        with open(os.devnull, "rb") as nothing:
            server = nursery().fork(words, os.environ, nothing.fileno())
        with server.stdout:
            output = server.stdout.read()
        assert server.wait(60) == 1
        return output.decode()
    command = [sys.executable, "-m", "pytriton_lite", *words]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, cwd=PROJECT)
    assert ended.returncode == 1
    return ended.stdout.decode()


@pytest.mark.parametrize("row", STARTS, ids=lambda row: row.mistake.__name__)
def test_the_last_line_of_a_failed_start_is_the_cause(row: Start, tmp_path: Path) -> None:
    output = serve_to_its_end(str(row.mistake(tmp_path)), *PORTS)
    last = output.splitlines()[-1]
    assert last.endswith(row.last.format(at=tmp_path)), output
    assert "+-------+---------+--------+" not in output, "a table without rows"
    assert "\\n" not in output.replace("config\\n", ""), "a traceback is lines"


@pytest.mark.parametrize("row", [row for row in STARTS if row.found], ids=lambda row: row.mistake.__name__)
def test_check_says_it_before_anything_is_started(
    row: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(row.mistake(tmp_path))]) == 1
    assert row.found.format(at=tmp_path) in capsys.readouterr().out


def test_a_port_in_use_is_named_with_its_flag(tmp_path: Path) -> None:
    write_model(tmp_path, "double", CODE, CONFIG)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        output = serve_to_its_end(str(tmp_path), *PORTS, f"--metrics-port={port}")
    *_, error, last = output.splitlines()
    assert f"error: creating server: Socket '127.0.0.1:{port}' already in use " in error
    assert last.startswith(
        f"another process listens at 127.0.0.1:{port}: end it, or choose another port with --metrics-port="
    )


def test_packages_that_cannot_be_installed_are_told_with_the_reason(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "double", CODE, CONFIG)
    (folder / "requirements.txt").write_text("numpy\n")
    flags = ("--allow-requirements=true", "--environment-cache-directory=/proc/nowhere")
    last = serve_to_its_end(str(tmp_path), *PORTS, *flags).splitlines()[-1]
    assert "No such file or directory '/proc/nowhere'; --environment-cache-directory chooses another place" in last


def test_of_many_causes_ten_are_named(tmp_path: Path) -> None:
    for number in range(12):
        write_model(tmp_path, f"m{number:02}", CODE, CONFIG + "instance_groups [{ count: 2 }]\n")
    output = serve_to_its_end(str(tmp_path), *PORTS)
    *_, first, last = [line for line in output.splitlines() if not line.startswith("model 'm0")]
    assert first == "12 did not load; the first 10 of them:" or last == "12 did not load; the first 10 of them:"
    assert output.splitlines()[-1].startswith("model 'm09': ")


@needs_no_privileges
def test_a_version_that_may_not_be_entered_keeps_no_other_model_from_being_served_or_checked(tmp_path: Path) -> None:
    write_model(tmp_path, "shut", CODE, "")
    write_model(tmp_path, "double", CODE, CONFIG)
    (tmp_path / "shut" / "1").chmod(0)
    try:
        with RunningServer(
            tmp_path, flags=("--exit-on-error=false",), python=(*UNPRIVILEGED, sys.executable)
        ) as server:
            server.wait_for_log(f"Poll failed for model directory 'shut': .*{tmp_path}/shut/1.*Permission denied")
            server.wait_for_log("Serving 1 model: double; not loaded: shut")
        command = [*UNPRIVILEGED, sys.executable, "-m", "pytriton_lite", "check", str(tmp_path)]
        found = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60).stdout
    finally:
        (tmp_path / "shut" / "1").chmod(0o755)
    assert f"{tmp_path}/shut: error: failed to look at {tmp_path}/shut/1" in found
    assert "2 models, 1 error, 0 warnings" in found


@needs_no_privileges
def test_a_repository_below_a_folder_that_may_not_be_entered_is_one_that_cannot_be_read(tmp_path: Path) -> None:
    write_model(tmp_path / "shut" / "models", "m", CODE, CONFIG)
    write_model(tmp_path / "open", "double", CODE, CONFIG)
    (tmp_path / "shut").chmod(0)
    text = f"failed to stat file {tmp_path}/shut/models: Permission denied"
    try:
        with RunningServer(
            tmp_path / "shut" / "models",
            flags=("--exit-on-error=false",),
            python=(*UNPRIVILEGED, sys.executable),
        ) as server:
            server.wait_for_log(f'"Internal: {text}"')
            server.wait_for_log("Serving no model")
        roots = [str(tmp_path / "shut" / "models"), str(tmp_path / "open")]
        command = [*UNPRIVILEGED, sys.executable, "-m", "pytriton_lite", "check", *roots]
        found = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60).stdout
    finally:
        (tmp_path / "shut").chmod(0o755)
    assert f"{roots[0]}: error: {text}\n1 model, 1 error, 0 warnings" in found


@needs_no_privileges
def test_a_model_without_configuration_whose_version_may_not_be_entered_is_checked(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "shut", CODE)
    (folder / "1").chmod(0)
    try:
        command = [*UNPRIVILEGED, sys.executable, "-m", "pytriton_lite", "check", str(folder)]
        found = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60).stdout
    finally:
        (folder / "1").chmod(0o755)
    assert f"{folder}/1: error: failed to open directory {folder}/1: Permission denied" in found


@needs_no_privileges
@pytest.mark.parametrize("shut", ["", "models"], ids=["a directory above it", "the repository"])
def test_a_repository_that_may_not_be_entered_is_named_and_ends_no_server_that_goes_on(
    tmp_path: Path, shut: str
) -> None:
    """One that may be read and not entered has names of models, and nothing more."""
    repository = tmp_path / "above" / "models"
    write_model(repository, "double", CODE, CONFIG)
    write_model(tmp_path / "open", "wrong", CODE, CONFIG + "instance_groups [{ count: 2 }]\n")
    python = (*UNPRIVILEGED, sys.executable)
    (tmp_path / "above" / shut).chmod(0o644)
    try:
        with RunningServer(repository, flags=("--exit-on-error=false",), python=python) as server:
            server.wait_for_log("Serving no model")
            server.wait_for_log(r"Permission denied|model not found in any model repository")
            log = server.log
        command = [*python, "-m", "pytriton_lite", "check", str(repository), str(tmp_path / "open")]
        found = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60).stdout
    finally:
        (tmp_path / "above" / shut).chmod(0o755)
    assert "Traceback" not in log
    assert "Permission denied" in found
    assert 'no field named "instance_groups"' in found


def test_a_configuration_larger_than_memory_keeps_no_other_model_from_being_served_or_checked(tmp_path: Path) -> None:
    """A sparse file, which costs nothing."""
    write_model(tmp_path, "vast", CODE, CONFIG)
    os.truncate(tmp_path / "vast" / "config.pbtxt", 1 << 36)
    write_model(tmp_path, "double", CODE, CONFIG)
    python = ("sh", "-c", 'ulimit -v 16777216 && exec "$@"', "sh", sys.executable)
    with RunningServer(tmp_path, flags=("--exit-on-error=false",), python=python) as server:
        server.wait_for_log("Poll failed for model directory 'vast': .*/vast/config.pbtxt: there is no memory for it")
        server.wait_for_log("Serving 1 model: double; not loaded: vast")
    command = [*python, "-m", "pytriton_lite", "check", str(tmp_path)]
    found = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60).stdout
    assert f"{tmp_path}/vast/config.pbtxt: error: failed to open text file for read" in found
    assert "2 models, 1 error, 0 warnings" in found


def test_of_many_models_that_are_not_loaded_eight_are_named_and_the_others_counted(tmp_path: Path) -> None:
    for number in range(10):
        write_model(tmp_path, f"m{number}", CODE, "nonsense")
    with RunningServer(tmp_path, flags=("--exit-on-error=false",)) as server:
        server.wait_for_log("Serving no model.*not loaded: m0, m1, m2, m3, m4, m5, m6, m7 and 2 more")


# Requests -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("repository")
    write_model(repository, "double", CODE, CONFIG)
    write_model(
        repository,
        "silent",
        CODE,
        'backend: "python" parameters { key: "EXECUTION_ENVPATH" value { string_value: "" } } dynamic_batching { } '
        'model_warmup { name: "w" }',
    )
    with RunningServer(repository) as running:
        yield running


def test_a_model_without_tensors_is_warned_of(
    server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "no input and no output is declared, so a request that brings a tensor, or asks for one, is refused (declare them"
    assert f"model 'silent': {text}" in server.log
    assert "model 'double': no input" not in server.log
    write_model(tmp_path, "silent", CODE, 'backend: "python"')
    assert main(["check", str(tmp_path)]) == 0
    assert f"warning: {text}" in capsys.readouterr().out
    reply = server.infer("silent", [tensor("X", "FP32", [1], [1.0])])
    assert reply.status == 400
    assert "expected 0 inputs but got 1 inputs for model 'silent'." in reply.error


def test_a_sample_and_a_batcher_that_do_nothing_are_warned_of(server: RunningServer) -> None:
    assert "model 'silent': warmup sample 'w' has no batch_size and is skipped (write batch_size: 1)" in server.log
    assert "model 'silent': dynamic_batching without max_batch_size forms no batches: " in server.log
    assert "model 'double': dynamic_batching" not in server.log


def test_a_parameter_that_looks_like_one_of_ours_is_warned_of(server: RunningServer) -> None:
    text = "parameter 'EXECUTION_ENVPATH' means nothing to the server, which gives it to the model"
    assert f"model 'silent': {text} (did you mean EXECUTION_ENV_PATH?)" in server.log


X = tensor("X", "FP32", [1, 3], [1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("model", "given", "status", "text"),
    [
        ("double", {**X, "name": "x"}, 400, "unexpected inference input 'x' for model 'double'"),
        ("double", {**X, "datatype": "FP64"}, 400, "input 'X' data-type is 'FP64', but model 'double' expects 'FP32'"),
        ("double", {**X, "datatype": "float32"}, 400, "invalid datatype for input X"),
        (
            "double",
            {**X, "shape": [1, 4], "data": [1, 2, 3, 4]},
            400,
            "Expected [-1,3], got [1,4]. NOTE: Setting a non-zero",
        ),
        (
            "double",
            {**X, "shape": [5, 3], "data": [0] * 15},
            400,
            "inference request batch-size must be <= 4 for 'double'",
        ),
        ("duoble", X, 404, "Request for unknown model: 'duoble' is not found"),
    ],
    ids=["wrong name", "dtype", "numpy's dtype", "shape", "batch size", "unknown model"],
)
def test_a_wrong_request_is_told_what_was_expected_and_what_came(
    server: RunningServer, model: str, given: dict[str, object], status: int, text: str
) -> None:
    reply = server.infer(model, [given])
    assert reply.status == status
    assert text in reply.error


def test_wrong_json_is_told_where_it_is_wrong(server: RunningServer) -> None:
    reply = server.post("/v2/models/double/infer", b'{"inputs":[{"name":"X",}]}')
    assert reply.error == "failed to parse the request JSON buffer: Missing a name for object member. at 23"
