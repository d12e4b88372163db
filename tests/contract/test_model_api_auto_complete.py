"""auto_complete_config: model_api.md rows 1 to 4 and 24 to 35, and section 3.1, through one running server.

``worker/test_model_config_object.py`` has every text of ModelConfig; here is what becomes of them.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.wire_models import wait_until
from tests.harness import RunningServer, is_running, tensor, write_model

CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
OTHER_TYPE = CONFIG.replace('"IN" data_type: TYPE_FP32', '"IN" data_type: TYPE_INT32')
FOUR = CONFIG + "max_batch_size: 4\n"

ADD_IN = 'config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [4]})\n'
ADD_OUT = 'config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]})\n'

EXECUTE = """
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy() * 2)]) for r in requests
        ]
"""


def completing(body: str, *, decorator: str = "@staticmethod", returns: str = "return config") -> str:
    """A model with *body* in its ``auto_complete_config``, whose argument is called config; it doubles its input."""
    body = textwrap.indent(textwrap.dedent(body).strip() + f"\n{returns}\n", " " * 8)
    arguments = {"@staticmethod": "config", "@classmethod": "cls, config"}[decorator]
    return f"""
import json, os, sys, threading
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    {decorator}
    def auto_complete_config({arguments}):
{body}
{EXECUTE}
"""


WITHOUT_METHOD = f"""
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
{EXECUTE}
"""

TWO_PROCESSES = f"""
import os
import triton_python_backend_utils as pb_utils

seen = "nothing"
print("module code in", os.getpid())


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        global seen
        seen = "auto_complete_config"
        pb_utils.left_behind = True
        print("completed in", os.getpid())
        return config

    def initialize(self, args):
        print("initialized in", os.getpid(), "after", seen, hasattr(pb_utils, "left_behind"))
{EXECUTE}
"""

SPEAKING = completing("""
print("printed to stdout")
print("printed to stderr", file=sys.stderr)
pb_utils.Logger.log_info("logged")
pb_utils.Logger.log_verbose("not wanted")
pb_utils.Logger.log_error("went wrong")
""")

INTERRUPTED = completing("""
import signal

def look(frame, event, argument):
    if event == "c_call" and argument.__name__ == "sendall":
        sys.setprofile(None)
        signal.raise_signal(signal.SIGUSR1)

signal.signal(signal.SIGUSR1, lambda *_: pb_utils.Logger.log_info("from the handler"))
sys.setprofile(look)
pb_utils.Logger.log_info("from the method")
""")

LOOKS_AROUND = completing("""
print("sees", json.dumps([config.as_dict(), pb_utils.get_model_dir(), threading.current_thread().name]))
""")

CALLS_ANOTHER = completing(
    "pb_utils.InferenceRequest(model_name='minimal', requested_output_names=[], inputs=[]).exec()"
)
MAKES_A_METRIC = completing("pb_utils.MetricFamily('calls', 'how many', pb_utils.MetricFamily.COUNTER)")

DYNAMIC = "config.set_max_batch_size(4)\nconfig.set_dynamic_batching()\n"
SECOND_INPUT = 'config.add_input({"name": "IN2", "data_type": "TYPE_FP32", "dims": [4]})'
OTHER_CHANGES = """
config.as_dict()["parameters"] = {"k": {"string_value": "v"}}
config.as_dict()["instance_group"][0]["count"] = 3
config.as_dict()["default_model_filename"] = "other.py"
"""
DECOUPLED = 'config.set_model_transaction_policy({"decoupled": True})'
WRONG_TYPE = 'config.add_input({"name": "IN", "data_type": "FP32", "dims": [4]})'

LOADABLE: dict[str, tuple[str, str]] = {
    "minimal": (completing(ADD_IN + ADD_OUT), ""),
    "without_method": (WITHOUT_METHOD, ""),
    "dynamic": (completing(ADD_IN + ADD_OUT + DYNAMIC), ""),
    "class_method": (completing(ADD_IN + ADD_OUT, decorator="@classmethod"), ""),
    "raised_batch": (completing("config.set_max_batch_size(8)"), FOUR),
    "only_names": (completing(ADD_IN + ADD_OUT), 'backend: "python" input { name: "IN" } output { name: "OUT" }'),
    "second_input": (completing(SECOND_INPUT), CONFIG),
    "decoupled": (completing(DECOUPLED), CONFIG),
    "other_changes": (completing(OTHER_CHANGES), CONFIG),
    "two_processes": (TWO_PROCESSES, CONFIG),
    "speaking": (SPEAKING, CONFIG),
    "looks_around": (LOOKS_AROUND, ""),
    "complete_already": (completing("print('called for a complete configuration')"), CONFIG),
}
"""Name, then code and config.pbtxt."""

UNLOADABLE: dict[str, tuple[str, str]] = {
    "returns_none": (completing("", returns="return None"), CONFIG),
    "returns_dict": (completing("", returns="return config.as_dict()"), CONFIG),
    "is_async": (completing("").replace("def auto_complete_config", "async def auto_complete_config"), CONFIG),
    "raises": (completing("raise ValueError('ac boom')"), CONFIG),
    "exits": (completing("sys.exit(3)"), CONFIG),
    "dies": (completing("os._exit(3)"), CONFIG),
    "is_killed": (completing("os.kill(os.getpid(), 9)"), CONFIG),
    "lowered_batch": (completing("config.set_max_batch_size(2)"), FOUR),
    "other_type": (completing(ADD_IN), OTHER_TYPE),
    "other_dims": (completing('config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]})'), CONFIG),
    "sequence": (completing("config.set_dynamic_batching()"), CONFIG + "sequence_batching { }"),
    "not_decoupled": (completing(DECOUPLED), CONFIG + "model_transaction_policy { decoupled: false }"),
    "unknown_property": (completing('config.add_input({"name": "IN", "shape": [4]})'), CONFIG),
    "no_data_type": (completing('config.add_input({"name": "IN", "dims": [4]})'), CONFIG),
    "optional_output": (
        completing('config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [4], "optional": True})'),
        CONFIG,
    ),
    "wrong_type": (completing(WRONG_TYPE), ""),
    "calls_another": (CALLS_ANOTHER, CONFIG),
    "makes_a_metric": (MAKES_A_METRIC, CONFIG),
    "loads_another": (completing("pb_utils.load_model('minimal')"), CONFIG),
    "asks_for_another": (completing("pb_utils.is_model_ready('minimal')"), CONFIG),
    "other_name": (WITHOUT_METHOD, CONFIG + 'name: "somebody_else"'),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("repository")
    for name, (code, config) in {**LOADABLE, **UNLOADABLE}.items():
        write_model(repository, name, code, config)
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RunningServer]:
    with RunningServer(
        repository, flags=("--exit-on-error=false", "--backend-config=default-max-batch-size=7")
    ) as running:
        yield running


@pytest.fixture(scope="module")
def strict_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One with --disable-auto-complete-config."""
    repository = tmp_path_factory.mktemp("strict")
    write_model(repository, "minimal", *LOADABLE["minimal"])
    write_model(repository, "raises", *UNLOADABLE["raises"])
    with RunningServer(repository, flags=("--exit-on-error=false", "--disable-auto-complete-config")) as running:
        yield running


def config_of(server: RunningServer, model: str) -> Any:
    reply = server.get(f"/v2/models/{model}/config")
    assert reply.status == 200, reply.body
    return reply.json


def reason(server: RunningServer, model: str) -> str:
    """Why the index says that *model* is UNAVAILABLE."""
    (row,) = [row for row in server.post("/v2/repository/index").json if row["name"] == model]
    assert row["state"] == "UNAVAILABLE"
    text: str = row["reason"]
    return text


def tensors(server: RunningServer, model: str, kind: str) -> list[tuple[str, str, list[int]]]:
    return [(entry["name"], entry["data_type"], entry["dims"]) for entry in config_of(server, model)[kind]]


FOUR_FLOATS = tensor("IN", "FP32", [4], [1, 2, 3, 4])

# ---------------------------------------------------------------------------------------------- what loads


@pytest.mark.parametrize("model", ["minimal", "class_method"])
def test_a_directory_with_only_a_model_file_is_completed_and_serves(server: RunningServer, model: str) -> None:
    """model_api.md row 1; default-max-batch-size does not concern Python models (model_config.md, 6.3)."""
    assert config_of(server, model)["max_batch_size"] == 0
    assert tensors(server, model, "input") == [("IN", "TYPE_FP32", [4])]
    assert tensors(server, model, "output") == [("OUT", "TYPE_FP32", [4])]
    reply = server.infer(model, [FOUR_FLOATS])
    assert reply.status == 200, reply.body
    assert reply.json["outputs"][0]["data"] == [2, 4, 6, 8]


def test_a_directory_with_only_a_model_file_and_no_method_loads(server: RunningServer) -> None:
    """model_api.md row 2."""
    assert tensors(server, "without_method", "input") == tensors(server, "without_method", "output") == []
    reply = server.infer("without_method", [FOUR_FLOATS])
    assert reply.status == 400
    assert "expected 0 inputs but got 1 inputs for model 'without_method'" in reply.error


def test_the_completed_configuration_is_normalised(server: RunningServer) -> None:
    """model_config.md row 85."""
    config = config_of(server, "dynamic")
    assert (config["max_batch_size"], config["dynamic_batching"]["preferred_batch_size"]) == (4, [4])
    reply = server.infer("dynamic", [tensor("IN", "FP32", [1, 4], [1, 2, 3, 4])])
    assert reply.json["outputs"][0]["data"] == [2, 4, 6, 8]


def test_the_batch_size_may_be_raised(server: RunningServer) -> None:
    """model_api.md row 26."""
    assert config_of(server, "raised_batch")["max_batch_size"] == 8
    assert server.infer("raised_batch", [tensor("IN", "FP32", [8, 4], [1] * 32)]).status == 200


def test_names_are_completed_with_types_and_dims(server: RunningServer) -> None:
    """model_api.md row 29."""
    assert tensors(server, "only_names", "input") == [("IN", "TYPE_FP32", [4])]
    assert tensors(server, "only_names", "output") == [("OUT", "TYPE_FP32", [4])]


def test_a_second_input_is_required_like_the_configured_one(server: RunningServer) -> None:
    """model_api.md row 30."""
    reply = server.infer("second_input", [FOUR_FLOATS])
    assert reply.status == 400
    assert "expected 2 inputs but got 1 inputs for model 'second_input'" in reply.error
    assert server.infer("second_input", [FOUR_FLOATS, {**FOUR_FLOATS, "name": "IN2"}]).status == 200


def test_a_model_may_say_that_it_is_decoupled(server: RunningServer) -> None:
    """model_api.md row 32."""
    assert config_of(server, "decoupled")["model_transaction_policy"] == {"decoupled": True}
    reply = server.infer("decoupled", [FOUR_FLOATS])
    assert (reply.status, reply.error) == (
        501,
        "HTTP end point doesn't support models with decoupled transaction policy",
    )


def test_other_changes_are_lost(server: RunningServer) -> None:
    """model_api.md row 33."""
    config = config_of(server, "other_changes")
    assert (config["parameters"], config["default_model_filename"]) == ({}, "model.py")
    assert config["instance_group"][0]["count"] == 1


def test_the_method_runs_in_a_process_that_is_thrown_away(server: RunningServer) -> None:
    """model_api.md row 34: module code runs once there and once in each instance."""
    where = r"\[two_processes:1 two_processes_{}\]"
    completed = server.wait_for_log(r'"completed in (\d+)" ' + where.format("auto_complete")).group(1)
    initialized = server.wait_for_log(r'"initialized in (\d+) after nothing False" ' + where.format("0")).group(1)
    assert completed != initialized
    assert sorted(re.findall(r'"module code in (\d+)"', server.log)) == sorted([completed, initialized])
    wait_until(lambda: server.worker_pids("two_processes") == [int(initialized)])
    assert not is_running(int(completed))


def test_it_is_called_for_a_complete_configuration_too(server: RunningServer) -> None:
    """Model API, 3.1."""
    server.wait_for_log(r'"called for a complete configuration" \[complete_already:1 complete_already_auto_complete\]')


def test_prints_and_log_lines_are_in_the_log(server: RunningServer) -> None:
    """Model API, 2.8: with file and line, and at their own levels."""
    line = 1 + SPEAKING.splitlines().index('        pb_utils.Logger.log_info("logged")')
    who = r"\[speaking:1 speaking_auto_complete\]"
    server.wait_for_log(rf'I\d{{4}} [\d:.]+ \d+ stdout\] "printed to stdout" {who}')
    server.wait_for_log(rf'W\d{{4}} [\d:.]+ \d+ stderr\] "printed to stderr" {who}')
    server.wait_for_log(rf'I\d{{4}} [\d:.]+ \d+ model.py:{line}\] "logged" {who}')
    server.wait_for_log(rf'E\d{{4}} [\d:.]+ \d+ model.py:{line + 2}\] "went wrong" {who}')
    assert "not wanted" not in server.log


@pytest.mark.interpreted("it is seen when a line is sent")
def test_a_handler_of_a_signal_may_log_while_a_line_is_sent(tmp_path: Path) -> None:
    write_model(tmp_path, "interrupted", INTERRUPTED, CONFIG)
    with RunningServer(tmp_path, flags=("--backend-config=python,ready-timeout-seconds=20",)) as server:
        server.wait_for_log(r'"from the method" \[interrupted:1 interrupted_auto_complete\]')
        server.wait_for_log(r'"from the handler" \[interrupted:1 interrupted_auto_complete\]')


def test_the_method_sees_the_normalised_configuration(server: RunningServer, repository: Path) -> None:
    """Model API, 3.1: of a model without config.pbtxt; on the main thread, as everything else (1.3)."""
    line = server.wait_for_log(r'"sees (.*)" \[looks_around:1').group(1)
    config, model_dir, thread = json.loads(json.loads(f'"{line}"'))
    assert (model_dir, thread) == (str(repository / "looks_around" / "1"), "MainThread")
    assert (config["name"], config["backend"], config["max_batch_size"]) == ("looks_around", "python", 0)
    assert (config["input"], config["output"]) == ([], [])
    (group,) = config["instance_group"]
    assert (group["name"], group["kind"], group["count"]) == ("looks_around", "KIND_CPU", 1)
    assert config == config_of(server, "looks_around")


# ---------------------------------------------------------------------------------------------- what does not


@pytest.mark.parametrize("model", ["returns_none", "returns_dict", "is_async"])
def test_anything_but_a_model_config_is_refused(server: RunningServer, model: str) -> None:
    """model_api.md row 24."""
    assert reason(server, model) == (
        f"Internal: auto_complete_config function in model '{model}' must return a valid pb.ModelConfig object."
    )


@pytest.mark.parametrize(("model", "head"), [("raises", "ValueError: ac boom"), ("exits", "SystemExit: 3")])
def test_an_exception_is_told_with_its_frames(server: RunningServer, repository: Path, model: str, head: str) -> None:
    """model_api.md row 25."""
    path = repository / model / "1" / "model.py"
    line = 2 + next(n for n, text in enumerate(path.read_text().splitlines()) if "def auto_complete_config" in text)
    assert reason(server, model) == f"Internal: {head}\n\nAt:\n  {path}({line}): auto_complete_config\n"


@pytest.mark.parametrize(("model", "how"), [("dies", "exited with code 3"), ("is_killed", "was killed by signal 9")])
def test_a_process_that_dies_fails_the_load_with_its_status(server: RunningServer, model: str, how: str) -> None:
    """Model API, 3.1."""
    assert reason(server, model) == (
        f"Internal: Stub process '{model}_auto_complete' is not healthy. It {how} before auto_complete_config returned."
    )
    wait_until(lambda: server.worker_pids(model) == [])


@pytest.mark.parametrize(
    ("model", "text"),
    [
        pytest.param(
            "lowered_batch",
            "configuration specified max_batch_size 4, but in auto-complete-config function for model 'lowered_batch' "
            "specified max_batch_size 2",
            id="row 26",
        ),
        pytest.param(
            "other_type",
            "unable to load model 'other_type', configuration expects datatype TYPE_INT32 for input 'IN', model provides "
            "TYPE_FP32",
            id="row 27",
        ),
        pytest.param(
            "other_dims",
            "model 'other_dims', tensor 'IN': the model expects dims [-1] but the model configuration specifies dims [4]",
            id="row 28",
        ),
        pytest.param(
            "sequence",
            "Configuration specified scheduling_choice as 'sequence_batching', but auto-complete-config function for "
            "model 'sequence' tries to set scheduling_choice as 'dynamic_batching'",
            id="row 31",
        ),
        pytest.param(
            "not_decoupled",
            "trying to change decoupled property in auto-complete-config for model 'not_decoupled', which is already set "
            "to 'False'.",
            id="row 32",
        ),
        pytest.param(
            "unknown_property",
            "input 'IN' in auto-complete-config function for model 'unknown_property' contains property other than "
            "'name', 'data_type', 'dims' and 'optional'.",
            id="row 35, unknown property",
        ),
        pytest.param(
            "no_data_type",
            "input 'IN' in auto-complete-config function for model 'no_data_type' is missing 'data_type' property.",
            id="row 35, no data_type",
        ),
        pytest.param(
            "optional_output",
            "output 'OUT' in auto-complete-config function for model 'optional_output' contains property other than "
            "'name', 'data_type' and 'dims'.",
            id="row 35, optional output",
        ),
    ],
)
def test_a_broken_rule_of_model_config_fails_the_load(
    server: RunningServer, repository: Path, model: str, text: str
) -> None:
    """model_api.md rows 26 to 28, 31, 32 and 35; the frames are the model's own."""
    path = repository / model / "1" / "model.py"
    assert re.fullmatch(
        re.escape(f"Internal: ValueError: {text}\n\nAt:\n  {path}(") + r"\d+\): auto_complete_config\n",
        reason(server, model),
    )


def test_a_data_type_that_is_none_names_input_and_value(server: RunningServer) -> None:
    """Model API, 3.1."""
    assert reason(server, "wrong_type").startswith(
        "Invalid argument: model input 'IN' has the unknown data_type 'FP32' for wrong_type; expected one of TYPE_BOOL, "
    )


def test_other_models_are_out_of_reach(server: RunningServer) -> None:
    """Model API, 3.1 and 4.9."""
    assert reason(server, "calls_another").startswith(
        "Internal: TritonModelException: BLS is only supported during the 'execute' function.\n\nAt:\n"
    )


@pytest.mark.parametrize("model", ["makes_a_metric", "loads_another", "asks_for_another"])
def test_metrics_and_the_repository_are_out_of_reach(server: RunningServer, model: str) -> None:
    """Model API, 2.9 and 4.8."""
    text = reason(server, model)
    assert text.startswith("Internal: TritonModelException: ")
    assert "auto_complete_config" in text.partition("\n\nAt:\n")[0]


def test_a_name_that_is_not_the_directorys_is_not_polled(server: RunningServer) -> None:
    """model_api.md row 4: the module is not even imported."""
    server.wait_for_log(r"Poll failed for model directory 'other_name': .*somebody_else")
    assert server.get("/v2/models/other_name/config").status == 404
    assert "other_name_auto_complete" not in server.log


# ---------------------------------------------------------------------------------------------- other servers


def test_without_completion_a_configuration_file_must_be_there(strict_server: RunningServer) -> None:
    """model_api.md row 3; model_config.md row 89."""
    strict_server.wait_for_log(
        r"Poll failed for model directory 'minimal': failed to open text file for read .*: No such file or directory"
    )
    assert strict_server.get("/v2/models/minimal/config").status == 404


def test_without_completion_the_method_is_not_called(strict_server: RunningServer) -> None:
    reply = strict_server.infer("raises", [FOUR_FLOATS])
    assert reply.status == 200, reply.body
    assert "raises_auto_complete" not in strict_server.log


def test_a_method_that_does_not_return_meets_the_deadline(tmp_path: Path) -> None:
    """The deadline is ours, that of ``initialize``: python,ready-timeout-seconds."""
    write_model(tmp_path, "waits", completing("threading.Event().wait()"), CONFIG)
    flags = ("--exit-on-error=false", "--backend-config=python,ready-timeout-seconds=1")
    with RunningServer(tmp_path, flags=flags) as server:
        assert reason(server, "waits") == (
            "Internal: Stub process 'waits_auto_complete' is not healthy: it did not return from auto_complete_config "
            "within 1 s."
        )
        wait_until(lambda: server.worker_pids("waits") == [])


def test_a_process_whose_end_takes_a_moment_ends_by_itself(tmp_path: Path) -> None:
    lasts = "import atexit, time\natexit.register(print, 'it has ended', flush=True)\natexit.register(time.sleep, 1)"
    write_model(tmp_path, "lasts", completing(lasts), CONFIG)
    with RunningServer(tmp_path) as server:
        assert re.search(r"it has ended.*lasts_auto_complete", server.log)
        assert "did not end by itself" not in server.log
