"""Finding, loading and initializing models: model_api.md rows 4 to 18 and 36 to 44, through one running server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.wire_models import wait_until
from tests.harness import RunningServer, tensor, write_model

CONFIG = """
backend: "python"
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
"""

TELL = """
    def execute(self, requests):
        import json
        import numpy as np
        import triton_python_backend_utils as pb_utils
        text = np.array([json.dumps(self.told)], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)]) for _ in requests]
"""
"""An ``execute`` that answers what the model put into ``self.told``."""

TELL_ARGS = f"""
class TritonPythonModel:
    def initialize(self, args):
        self.told = [args, __name__, __package__, __file__]
{TELL}
"""

MINIMAL = f"""
class TritonPythonModel:
    told = "here"
{TELL}
"""

INITIALIZE_FAILS = """
class TritonPythonModel:
    def initialize(self, args):
        {statement}
"""


def write_loadable(repository: Path) -> None:
    write_model(repository, "other_file", TELL_ARGS, CONFIG + 'default_model_filename: "foo.py"', filename="foo.py")
    write_model(repository, "minimal", MINIMAL, CONFIG)
    write_model(repository, "told_args", TELL_ARGS, CONFIG)
    write_model(repository, "cpu_group", TELL_ARGS, CONFIG + "instance_group [ { kind: KIND_CPU } ]")
    write_model(
        repository,
        "groups",
        TELL_ARGS,
        CONFIG + 'instance_group [ { name: "zz" count: 2 kind: KIND_CPU }, { kind: KIND_MODEL } ]',
    )
    write_model(repository, "second_version", TELL_ARGS, CONFIG, version=2)
    write_model(
        repository,
        "with_parameters",
        TELL_ARGS,
        CONFIG + 'parameters { key: "custom_key" value: { string_value: "custom_value" } }',
    )
    helpers = write_model(
        repository,
        "helpers",
        f"""
import helper_a
from . import helper_b
import topmod


class TritonPythonModel:
    told = [helper_a.word, helper_b.word, topmod.word]
{TELL}
""",
        CONFIG,
    )
    (helpers / "1" / "helper_a.py").write_text("word = 'a'")
    (helpers / "1" / "helper_b.py").write_text("word = 'b'")
    (helpers / "topmod.py").write_text("word = 'top'")
    write_model(
        repository,
        "async_initialize",
        f"""
class TritonPythonModel:
    told = "class"

    async def initialize(self, args):
        self.told = "initialized"
{TELL}
""",
        CONFIG,
    )
    write_model(
        repository,
        "speaking",
        f"""
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    told = ""

    def initialize(self, args):
        print("printed in initialize")
        pb_utils.Logger.log_info("logged in initialize")
{TELL}
""",
        CONFIG,
    )


def write_unloadable(repository: Path) -> None:
    write_model(repository, "text_file", MINIMAL, CONFIG + 'default_model_filename: "foo.txt"', filename="foo.txt")
    write_model(repository, "no_file", config=CONFIG)
    write_model(repository, "no_class", "class Model: pass", CONFIG)
    write_model(repository, "bad_syntax", "def def", CONFIG)
    write_model(repository, "bad_import", "import nonexistent", CONFIG)
    write_model(repository, "exits_at_import", "import sys\nsys.exit('not today')", CONFIG)
    write_model(repository, "gpu", MINIMAL, CONFIG + "instance_group [ { kind: KIND_GPU } ]")
    write_model(
        repository,
        "maybe",
        MINIMAL,
        CONFIG + 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value: { string_value: "maybe" } }',
    )
    write_model(repository, "value_error", INITIALIZE_FAILS.format(statement="raise ValueError('init boom')"), CONFIG)
    write_model(
        repository,
        "model_exception",
        "import triton_python_backend_utils as pb_utils\n"
        + INITIALIZE_FAILS.format(statement="raise pb_utils.TritonModelException('tme init')"),
        CONFIG,
    )
    write_model(repository, "system_exit", INITIALIZE_FAILS.format(statement="raise SystemExit(3)"), CONFIG)
    write_model(repository, "os_exit", INITIALIZE_FAILS.format(statement="import os; os._exit(3)"), CONFIG)
    write_model(repository, "killed", INITIALIZE_FAILS.format(statement="import os; os.kill(os.getpid(), 9)"), CONFIG)
    write_model(
        repository,
        "one_instance_fails",
        INITIALIZE_FAILS.format(statement="assert args['model_instance_name'].endswith('_0'), 'not this one'"),
        CONFIG + "instance_group [ { count: 2 kind: KIND_CPU } ]",
    )
    write_model(repository, "argument", "class TritonPythonModel:\n    def __init__(self, x): pass", CONFIG)
    write_model(repository, "other_name", MINIMAL, CONFIG + 'name: "somebody_else"')


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("repository")


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RunningServer]:
    write_loadable(repository)
    write_unloadable(repository)
    with RunningServer(repository, flags=("--exit-on-error=false",)) as running:
        yield running


def told(server: RunningServer, model: str) -> Any:
    reply = server.infer(model, [])
    assert reply.status == 200, reply.body
    return json.loads(reply.json["outputs"][0]["data"][0])


def reason(server: RunningServer, model: str) -> str:
    """Why the index says that *model* is UNAVAILABLE."""
    (row,) = [row for row in server.post("/v2/repository/index").json if row["name"] == model]
    assert row["state"] == "UNAVAILABLE"
    text: str = row["reason"]
    return text


# ---------------------------------------------------------------------------------------------- what loads


def test_another_file_name_gives_another_module_name(server: RunningServer, repository: Path) -> None:
    """model_api.md row 5."""
    _, name, package, file = told(server, "other_file")
    assert (name, package, file) == ("1.foo", "1", str(repository / "other_file" / "1" / "foo.py"))


def test_helpers_are_found(server: RunningServer) -> None:
    """model_api.md row 11."""
    assert told(server, "helpers") == ["a", "b", "top"]


def test_initialize_gets_exactly_seven_strings(server: RunningServer, repository: Path) -> None:
    """model_api.md row 12."""
    args = told(server, "told_args")[0]
    config = json.loads(args.pop("model_config"))
    assert args == {
        "model_instance_kind": "CPU",
        "model_instance_name": "told_args_0",
        "model_instance_device_id": "0",
        "model_repository": str(repository / "told_args"),
        "model_version": "1",
        "model_name": "told_args",
    }
    assert config == server.get("/v2/models/told_args/config").json


def test_the_configuration_in_args_is_complete(server: RunningServer) -> None:
    """Model API, 1.4: these keys are always there, 64-bit integers are numbers."""
    config = json.loads(told(server, "told_args")[0]["model_config"])
    assert set(config) == {
        "name", "platform", "backend", "runtime", "version_policy", "max_batch_size", "input", "output", "batch_input",
        "batch_output", "optimization", "instance_group", "default_model_filename", "cc_model_filenames", "metric_tags",
        "parameters", "model_warmup",
    }  # fmt: skip
    assert config["version_policy"] == {"latest": {"num_versions": 1}}
    assert config["output"] == [
        {
            "name": "OUT",
            "data_type": "TYPE_STRING",
            "dims": [1],
            "label_filename": "",
            "is_shape_tensor": False,
            "is_non_linear_format_io": False,
        }
    ]


def test_instances_are_named_after_their_group(server: RunningServer) -> None:
    """model_api.md row 13."""
    assert told(server, "told_args")[0]["model_instance_name"] == "told_args_0"
    assert told(server, "cpu_group")[0]["model_instance_name"] == "cpu_group_0_0"


def test_each_instance_is_a_process_with_its_own_name_and_kind(server: RunningServer) -> None:
    """model_api.md row 13: three instances of two groups."""
    seen = {}
    while len(seen) < 3:  # a free instance takes the request that is idle longest: three requests meet all three
        args = told(server, "groups")[0]
        assert args["model_instance_name"] not in seen, "an instance was asked twice before another one"
        seen[args["model_instance_name"]] = args["model_instance_kind"]
    assert seen == {"zz_0": "CPU", "zz_1": "CPU", "groups_1_0": "MODEL"}


def test_the_version_directory_gives_version_and_module(server: RunningServer) -> None:
    """model_api.md row 14."""
    args, name, _, _ = told(server, "second_version")
    assert (args["model_version"], name) == ("2", "2.model")


def test_custom_parameters_are_in_args(server: RunningServer) -> None:
    """model_api.md row 15."""
    config = json.loads(told(server, "with_parameters")[0]["model_config"])
    assert config["parameters"] == {"custom_key": {"string_value": "custom_value"}}


def test_a_model_without_initialize_loads(server: RunningServer) -> None:
    """model_api.md row 40."""
    assert told(server, "minimal") == "here"


def test_an_async_initialize_is_not_run(server: RunningServer) -> None:
    """model_api.md row 40: nor does Python warn of a coroutine that was never awaited."""
    assert told(server, "async_initialize") == "class"
    assert "never awaited" not in server.log


def test_prints_and_log_lines_of_initialize_are_in_the_log(server: RunningServer) -> None:
    """model_api.md row 44, with model, version and instance."""
    server.wait_for_log(r'I\d{4} [\d:.]+ \d+ stdout\] "printed in initialize" \[speaking:1 speaking_0\]')
    server.wait_for_log(r'I\d{4} [\d:.]+ \d+ model.py:10\] "logged in initialize" \[speaking:1 speaking_0\]')


# ---------------------------------------------------------------------------------------------- what does not


def test_a_name_that_is_not_the_directorys_is_not_polled(server: RunningServer) -> None:
    """model_api.md row 4: there is no such model; the log says why."""
    assert server.get("/v2/models/other_name/config").status == 404
    server.wait_for_log(r"Poll failed for model directory 'other_name': .*somebody_else")


def test_a_file_that_is_no_python_is_refused(server: RunningServer) -> None:
    """model_api.md row 6."""
    assert reason(server, "text_file") == "Internal: Model name must end with '.py'. Model name is \"foo.txt\"."


def test_a_missing_file_is_named(server: RunningServer, repository: Path) -> None:
    """model_api.md row 7."""
    path = repository / "no_file" / "1" / "model.py"
    assert reason(server, "no_file") == f"Internal: Python model file not found in '{path}'"


def test_a_missing_class_is_named(server: RunningServer) -> None:
    """model_api.md row 8."""
    assert reason(server, "no_class") == (
        "Internal: AttributeError: module '1.model' has no attribute 'TritonPythonModel'"
    )


def test_a_syntax_error_names_file_and_line(server: RunningServer) -> None:
    """model_api.md row 9."""
    assert reason(server, "bad_syntax") == "Internal: SyntaxError: invalid syntax (model.py, line 1)"


def test_a_missing_module_is_named_with_the_importing_line(server: RunningServer, repository: Path) -> None:
    """model_api.md row 10."""
    path = repository / "bad_import" / "1" / "model.py"
    assert reason(server, "bad_import") == (
        f"Internal: ModuleNotFoundError: No module named 'nonexistent'\n\nAt:\n  {path}(1): <module>\n"
    )


def test_an_exit_at_import_is_a_failure_to_load(server: RunningServer) -> None:
    assert reason(server, "exits_at_import").startswith("Internal: SystemExit: not today\n\nAt:\n")


def test_an_instance_on_a_gpu_that_is_not_there_is_refused(server: RunningServer) -> None:
    """model_api.md row 16."""
    assert reason(server, "gpu") == (
        "Invalid argument: instance group gpu_0 of model gpu has kind KIND_GPU but no GPUs are available"
    )


def test_a_wrong_value_for_the_place_of_inputs_is_refused(server: RunningServer) -> None:
    """model_api.md row 18, the stray quote being Triton's."""
    assert reason(server, "maybe") == "Unsupported: Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: maybe'"


@pytest.mark.parametrize(
    ("model", "head"),
    [
        ("value_error", "ValueError: init boom"),
        ("model_exception", "TritonModelException: tme init"),
        ("system_exit", "SystemExit: 3"),
    ],
)
def test_an_exception_in_initialize_is_told_with_its_frames(
    server: RunningServer, repository: Path, model: str, head: str
) -> None:
    """model_api.md rows 36 and 37."""
    path = repository / model / "1" / "model.py"
    line = path.read_text().splitlines().index("    def initialize(self, args):") + 2
    assert reason(server, model) == f"Internal: {head}\n\nAt:\n  {path}({line}): initialize\n"


@pytest.mark.parametrize("model", ["os_exit", "killed"])
def test_a_process_that_ends_in_initialize_is_not_healthy(server: RunningServer, model: str) -> None:
    """model_api.md row 38."""
    assert reason(server, model).startswith(f"Internal: Stub process '{model}_0' is not healthy. It ")
    how = {"os_exit": "exited with code 3", "killed": "was killed by signal 9"}[model]
    assert f"{how} before the model was ready" in reason(server, model)


def test_one_instance_that_fails_fails_the_version(server: RunningServer) -> None:
    """Model API, 3.2; the other instance's process does not stay."""
    assert reason(server, "one_instance_fails").startswith("Internal: AssertionError: not this one\n\nAt:\n")
    wait_until(lambda: server.worker_pids("one_instance_fails") == [])


def test_a_constructor_with_an_argument_fails(server: RunningServer) -> None:
    """model_api.md row 39."""
    assert reason(server, "argument") == (
        "Internal: TypeError: TritonPythonModel.__init__() missing 1 required positional argument: 'x'"
    )


def test_failures_are_in_the_start_up_log(server: RunningServer) -> None:
    assert re.search(
        r"E.*\"failed to load 'value_error' version 1: Internal: ValueError: init boom\" \[value_error:1\]\n  At:\n    /",
        server.log,
    )
    assert re.search(r"^\| value_error +\| 1 +\| UNAVAILABLE: Internal: ValueError: init boom +\|$", server.log, re.M)


def test_a_model_that_failed_is_not_ready_and_harms_nobody(server: RunningServer) -> None:
    assert server.get("/v2/models/value_error/ready").status == 400
    assert server.infer("value_error", [tensor("IN", "FP32", [1], [1])]).status == 404
    assert server.get("/v2/models/minimal/ready").status == 200
    assert server.get("/v2/health/live").status == 200
    assert server.get("/v2/health/ready").status == 400
