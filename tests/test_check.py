"""``pytriton-lite check``: what it finds, where, how it says so, and that it says what a server would say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton_lite import cli
from pytriton_lite.check import repositories
from pytriton_lite.check.findings import Finding, Severity
from pytriton_lite.check.repositories import Rules
from pytriton_lite.config.ensemble_plan import check_ensemble_for_load
from pytriton_lite.config.errors import PollError
from pytriton_lite.config.model_config import check_for_load, read_model_config
from pytriton_lite.config.text_tokens import Refused, tokens_of
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.engine.workers.backends import Backends
from tests.harness import MODEL_REPOSITORY, PROJECT, write_model
from tests.scheduling.property_settings import examples

CODE = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return []
"""
PYTHON = 'backend: "python"\n'
TENSORS = 'input { name: "I" data_type: TYPE_FP32 dims: 4 }\noutput { name: "O" data_type: TYPE_FP32 dims: 4 }\n'
MODEL = PYTHON + TENSORS


def check(*roots: Path, rules: Rules | None = None) -> list[Finding]:
    return repositories.check(roots, rules or Rules())[0]


def said(findings: list[Finding]) -> list[str]:
    return [finding.text for finding in findings]


# The command ---------------------------------------------------------------------------------------------------------


def test_the_repository_that_comes_with_the_server_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(MODEL_REPOSITORY)]) == 0
    count = sum(entry.is_dir() for entry in MODEL_REPOSITORY.iterdir())
    assert capsys.readouterr().out == f"{count} models, 0 errors, 0 warnings\n"


def test_a_finding_is_a_line_with_its_place_and_the_last_line_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path, "a", CODE, PYTHON + 'input { name: "I" data_typ: TYPE_FP32 }\nmax_batch_size: many')
    write_model(tmp_path, "b", CODE, MODEL + "optimization { priority: PRIORITY_MAX }")
    assert cli.main(["check", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f'{tmp_path}/a/config.pbtxt:2:19: error: Message type "inference.ModelInput" has no field named "data_typ". (did you '
        "mean data_type?)",
        f"{tmp_path}/a/config.pbtxt:3:17: error: Expected integer, got: many",
        f"{tmp_path}/b/config.pbtxt:4:16: warning: field 'optimization.priority' has no effect for Python models",
        "2 models, 2 errors, 1 warning",
    ]


def test_json_has_one_object_on_each_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_model(tmp_path, "a", CODE, MODEL + "max_batch_size: -1")
    shutil.rmtree(folder / "1")
    assert cli.main(["check", "--format=json", str(tmp_path)]) == 1
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {
            "severity": "error",
            "model": "a",
            "file": f"{folder}/config.pbtxt",
            "line": 4,
            "column": 1,
            "field": "max_batch_size",
            "text": "'max_batch_size' must be non-negative value for a",
            "hint": "0 is for a model that does not batch",
        }
    ]


def test_a_place_that_is_no_line_is_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path, "a", "", MODEL)
    assert cli.main(["check", "--format=json", str(tmp_path)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["file"], found["line"], found["column"]) == (f"{tmp_path}/a/1/model.py", None, None)


def test_warnings_count_when_they_are_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path, "a", CODE, MODEL + 'cc_model_filenames { key: "7.5" value: "x" }')
    assert cli.main(["check", str(tmp_path)]) == 0
    assert cli.main(["check", "--warnings-as-errors", str(tmp_path)]) == 1
    assert capsys.readouterr().out.endswith("1 model, 0 errors, 1 warning\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "error: check needs a directory of models, as in: pytriton-lite check model_repository"),
        (["x", "--format=xml"], "invalid argument for --format: xml; expected one of text, json"),
        (["x", "--formt=json"], "the nearest known one is '--format'"),
    ],
)
def test_a_wrong_command_line_is_told_as_by_the_other_commands(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert cli.main(["check", *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("Usage: ")
    assert error.rstrip().endswith(says)


def test_help_lists_what_the_command_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(
        f"  --{flag}" in out for flag in ("format", "warnings-as-errors", "model-config-name", "backend-directory")
    )
    assert "--http-port" not in out


def test_options_of_the_server_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path, "a", CODE)
    monkeypatch.setenv("PYTRITON_LITE_DISABLE_AUTO_COMPLETE_CONFIG", "true")
    monkeypatch.setenv("PYTRITON_LITE_MODEL_REPOSITORY", str(tmp_path))
    monkeypatch.setenv("PYTRITON_LITE_HTTP_PORT", "no number")
    assert cli.main(["check"]) == 1
    assert "config.pbtxt: No such file or directory" in capsys.readouterr().out


def test_no_code_of_a_model_is_executed(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    code = f"open({str(trap)!r}, 'w').close()\n"
    write_model(
        tmp_path / "models", "a", code + "class TritonPythonModel:\n    def execute(self, requests): return []\n"
    )
    command = [sys.executable, "-m", "pytriton_lite", "check", str(tmp_path / "models")]
    assert subprocess.run(command, cwd=PROJECT, timeout=60, capture_output=True).returncode == 0
    assert not trap.exists()
    assert not list(tmp_path.rglob("__pycache__"))


# Configurations ------------------------------------------------------------------------------------------------------


def test_every_broken_rule_is_found_in_its_place(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "a",
        CODE,
        """backend: "python"
max_batch_size: 4
input [ { name: "A" dims: 1 }, { name: "B" data_type: TYPE_FP32 dims: [ 1,
  0 ] } ]
output { name: "O" data_type: TYPE_FP32 dims: 1 label_filename: "nope" }
instance_group { kind: KIND_CPU gpus: 0 }
parameters { key: "EXECUTE_CONCURRENCY" value { string_value: "0" } }
parameters { key: "EXECUTION_TIMEOUT_SECONDS" value { string_value: "-1" } }
metric_tags { key: "a-b" value: "c" }
""",
    )
    assert [(finding.line, finding.column, finding.field) for finding in check(tmp_path)] == [
        (3, 9, "input[0].data_type"),
        (4, 3, "input[1].dims[1]"),
        (5, 49, "output[0].label_filename"),
        (6, 33, "instance_group[0].gpus"),
        (7, 1, 'parameters["EXECUTE_CONCURRENCY"]'),
        (8, 1, 'parameters["EXECUTION_TIMEOUT_SECONDS"]'),
        (9, 1, 'metric_tags["a-b"]'),
    ]


def test_what_polling_refuses_hides_what_a_load_would_refuse(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "a",
        CODE,
        PYTHON + 'max_batch_size: -1 name: "b" input { }\ndynamic_batching { preferred_batch_size: [ 0, -1 ] }',
    )
    assert said(check(tmp_path)) == [
        "'max_batch_size' must be non-negative value for b",
        "unexpected directory name 'a' for model 'b', directory name must equal model name",
        "dynamic batching preferred size must be positive for b",
        "dynamic batching preferred size must be positive for b",
    ]


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("dynamic_batchin { }", "did you mean dynamic_batching?"),
        ("decoupled: true", "decoupled is a field of model_transaction_policy"),
        ("input { dtype: TYPE_FP32 }", ""),
        ("input { data_type: FP32 }", "did you mean TYPE_FP32?"),
        ("input { data_type: TYPE_BYTES }", "did you mean TYPE_STRING?"),
        ("input { data_type: TYPE_DOUBLE }", "did you mean TYPE_FP64?"),
        ("input { data_type: float }", "did you mean TYPE_FP32?"),
        ("instance_group { kind: CPU }", "did you mean KIND_CPU?"),
        ('input { data_type: "TYPE_FP32" }', "names of values stand without quotes: TYPE_FP32"),
        ("version_policy { newest { } }", "its fields are latest, all, specific"),
        ('parameters { key: "A" value: "8" }', "braces belong here"),
        ("dynamic_batching: true", "braces belong here"),
        ('parameters: { "A": "8" }', "not JSON"),
        ("input { dims: 4, 5 }", "several values stand in brackets"),
        ("name: “a”", "save the file as UTF-8; quotes are straight"),
    ],
)
def test_a_hint_names_what_was_meant(tmp_path: Path, written: str, hint: str) -> None:
    write_model(tmp_path, "a", CODE, written)
    (finding,) = check(tmp_path)
    assert finding.hint.startswith(hint) if hint else True
    assert bool(finding.hint) or not hint


def test_a_parameter_that_looks_like_a_known_one_is_a_warning(tmp_path: Path) -> None:
    parameters = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "4" }} }}\n' for key in ("threshold", "EXECUTE_CONCURENCY")
    )
    write_model(tmp_path, "a", CODE, MODEL + parameters)
    (finding,) = check(tmp_path)
    assert (finding.severity, finding.line, finding.hint) == (Severity.WARNING, 5, "did you mean EXECUTE_CONCURRENCY?")


def test_each_place_of_a_field_without_effect_is_named(tmp_path: Path) -> None:
    write_model(tmp_path, "a", CODE, MODEL + 'instance_group [ { }, { host_policy: "a" }, { host_policy: "b" } ]')
    assert [finding.field for finding in check(tmp_path)] == [
        "instance_group[1].host_policy",
        "instance_group[2].host_policy",
    ]


def test_a_list_of_no_gpus_has_a_hint(tmp_path: Path) -> None:
    write_model(tmp_path, "a", CODE, MODEL + "instance_group { kind: KIND_GPU gpus: 0 }")
    (finding,) = check(tmp_path)
    assert finding.text.endswith("are: ")
    assert finding.hint.startswith("this machine has none")
    (finding,) = check(tmp_path, rules=Rules(gpu_ids=(1, 2)))
    assert (finding.text[-4:], finding.hint) == ("1, 2", "")


@pytest.mark.parametrize(
    ("written", "is_told"),
    [
        (CODE.replace("execute", "exceute"), True),
        ("class TritonPythonModel:\n    pass\n", True),
        ("from base import Model\nclass TritonPythonModel(Model):\n    pass\n", False),
        ("class TritonPythonModel:\n    pass\nTritonPythonModel.execute = print\n", False),
        ("class TritonPythonModel:\n    pass\nsetattr(TritonPythonModel, 'exe' + 'cute', print)\n", False),
    ],
)
def test_a_class_without_execute_is_a_warning(tmp_path: Path, written: str, is_told: bool) -> None:
    write_model(tmp_path, "a", written, MODEL)
    text = f"Python model {tmp_path}/a/1/model.py does not implement `execute` method."
    findings = check(tmp_path)
    assert [(finding.severity, finding.text) for finding in findings] == [(Severity.WARNING, text)] * is_told
    assert not is_told or findings[0].line > 0


def test_a_model_of_passive_instances_is_a_warning(tmp_path: Path) -> None:
    write_model(tmp_path, "a", CODE, MODEL + "instance_group { passive: true }")
    assert said(check(tmp_path)) == ["model 'a' has only passive instances, which never execute"]


def test_a_strict_server_wants_a_file_and_a_named_one_is_taken(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "a", CODE)
    assert not any(finding.is_error for finding in check(tmp_path))
    (finding,) = check(tmp_path, rules=Rules(strict_config=True))
    assert finding.file == f"{folder}/config.pbtxt"
    (folder / "configs").mkdir()
    (folder / "configs" / "small.pbtxt").write_text("max_batch_size: x")
    (finding,) = check(tmp_path, rules=Rules(config_name="small"))
    assert (finding.file, finding.line) == (f"{folder}/configs/small.pbtxt", 1)


@pytest.mark.parametrize("name", ["config.pbtxt.txt", "Config.pbtxt", "config.txt"])
def test_a_configuration_under_a_wrong_name_is_named(tmp_path: Path, name: str) -> None:
    (write_model(tmp_path, "a", CODE) / name).write_text(MODEL)
    (tmp_path / "ensemble" / "1").mkdir(parents=True)
    (tmp_path / "ensemble" / name).write_text('platform: "ensemble"')
    findings = check(tmp_path)
    assert [finding.severity for finding in findings] == [Severity.WARNING, Severity.ERROR]
    assert {finding.hint for finding in findings} == {f"{name} is not read: its name must be config.pbtxt"}


def test_what_is_no_file_in_the_place_of_a_configuration_is_to_be_one(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "a", CODE)
    (folder / "config.pbtxt").mkdir()
    _, finding = check(tmp_path)  # the first is that it is no version
    assert (finding.text.rpartition(": ")[2], finding.hint) == ("Is a directory", "put a text file there")
    (folder / "config.pbtxt").rmdir()
    os.mkfifo(folder / "config.pbtxt")
    (finding,) = check(tmp_path)
    assert (finding.text.rpartition(": ")[2], finding.hint) == ("it is no regular file", "put a text file there")
    (folder / "config.pbtxt").unlink()
    (folder / "config.pbtxt").symlink_to("nowhere")
    (finding,) = check(tmp_path)
    assert (finding.text.rpartition(": ")[2], finding.hint) == (
        "it is a link that leads nowhere",
        "put a text file there",
    )
    (folder / "config.pbtxt").unlink()
    (finding,) = check(tmp_path, rules=Rules(strict_config=True))
    assert finding.hint == "write it, or serve without --disable-auto-complete-config"


def test_a_file_name_that_is_no_python_s_is_an_error_and_no_file_is_looked_for(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "a", CODE, MODEL + 'default_model_filename: "model.txt"')
    (finding,) = check(tmp_path)
    assert finding.is_error
    assert finding.text == "Model name must end with '.py'. Model name is \"model.txt\"."
    assert (finding.file, finding.field) == (f"{folder}/config.pbtxt", "default_model_filename")
    # What the file may say is not known: tensors that it might complete are no errors.
    write_model(tmp_path, "a", config=PYTHON + 'default_model_filename: "model.txt" input { name: "I" }')
    assert [finding.field for finding in check(tmp_path) if finding.is_error] == ["default_model_filename"]


def test_a_backend_may_be_one_of_the_directory(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "a", CODE, 'backend: "mine"')
    assert len(check(tmp_path / "models")) == 1
    backend = tmp_path / "backends" / "mine"
    backend.mkdir(parents=True)
    (backend / "model.py").write_text("class TritonPythonModel: pass")
    assert not any(finding.is_error for finding in check(tmp_path / "models", rules=Rules(backends={"mine": backend})))


@pytest.mark.parametrize(
    ("backend", "files"),
    [
        ("onnxruntime", ["model.onnx"]),
        ("sklearn", ["model.skops", "model.joblib", "model.pkl", "model.pickle"]),
        ("xgboost", ["model.json", "model.ubj"]),
        ("lightgbm", ["model.txt"]),
        ("pytorch", ["model.pt", "model.pt2"]),
        ("transformers", ["config.json"]),
    ],
)
def test_a_version_has_a_file_that_its_backend_needs(tmp_path: Path, backend: str, files: list[str]) -> None:
    folder = write_model(tmp_path, "a", config=f'backend: "{backend}"')
    rules = Rules(backends=Backends(None).folders())
    (error,) = [finding for finding in check(tmp_path, rules=rules) if finding.is_error]
    assert error.file == f"{folder}/1"
    assert error.text == f"model file of backend '{backend}' not found, expected {' or '.join(files)}"
    for file in files:
        (folder / "1" / file).touch()
        assert not any(finding.is_error for finding in check(tmp_path, rules=rules))
        (folder / "1" / file).unlink()
    (folder / "config.pbtxt").write_text(f'backend: "{backend}" default_model_filename: "other"')
    (folder / "1" / "other").touch()
    assert not any(finding.is_error for finding in check(tmp_path, rules=rules))


@pytest.mark.parametrize(
    ("backend", "files", "safe"),
    [
        ("sklearn", ["model.joblib"], "*.skops"),
        ("sklearn", ["model.skops"], ""),
        ("pytorch", ["model.pt2"], "*.pt"),
        ("pytorch", ["model.pt"], ""),
        ("transformers", ["config.json", "pytorch_model.bin"], "*.safetensors"),
        ("transformers", ["config.json", "pytorch_model.bin", "model.safetensors"], ""),
        ("onnxruntime", ["model.onnx"], ""),
    ],
)
def test_a_file_that_serve_refuses_as_a_pickle_is_a_warning_that_names_the_flag(
    tmp_path: Path, backend: str, files: list[str], safe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_model(tmp_path, "a", config=f'backend: "{backend}"') / "1"
    for file in files:
        (folder / file).touch()
    flag = f"--backend-config={backend},allow-pickle=true"
    said = f"{folder}: warning: no {safe} is here: where the model is a pickle, it is refused without {flag}"
    cli.main(["check", str(tmp_path)])
    assert (said in capsys.readouterr().out) is bool(safe)
    cli.main(["check", str(tmp_path), flag])
    assert "pickle" not in capsys.readouterr().out


def test_of_several_files_the_one_that_the_configuration_names_is_looked_at(tmp_path: Path) -> None:
    config = 'backend: "sklearn" default_model_filename: "old.pkl"'
    folder = write_model(tmp_path, "a", config=config) / "1"
    for name in ("model.skops", "old.pkl"):
        (folder / name).touch()
    found = check(tmp_path, rules=Rules(backends=Backends(None).folders()))
    assert any("no *.skops is here" in text for text in said(found))


BACKEND = """
    raise SystemExit("it is not to be run")
    import helper
    import pltest_missing.part
    import triton_python_backend_utils as pb_utils

    try:
        from pltest_needed import name
    except ImportError as error:
        raise RuntimeError("install it") from error
    try:
        import pltest_optional
    except ImportError:
        pltest_optional = None

    class TritonPythonModel:
        def auto_complete_config(config):
            import pltest_later
"""


def test_a_module_that_a_backend_imports_and_that_is_not_installed_is_a_warning(tmp_path: Path) -> None:
    backend = tmp_path / "backends" / "mine"
    backend.mkdir(parents=True)
    (backend / "model.py").write_text(textwrap.dedent(BACKEND))
    (backend / "helper.py").touch()
    folder = write_model(tmp_path / "models", "a", config='backend: "mine"')
    rules = Rules(backends={"mine": backend})
    findings = check(tmp_path / "models", rules=rules)
    assert said(findings) == [
        f"backend 'mine' imports {name}, which is not installed here" for name in ("pltest_missing", "pltest_needed")
    ]
    assert {(finding.severity, finding.field) for finding in findings} == {(Severity.WARNING, "backend")}
    # What is installed in an environment of the model's own is not known.
    (folder / "requirements.txt").touch()
    parameter = 'parameters { key: "REQUIREMENTS" value: { string_value: "requirements.txt" } }'
    (folder / "config.pbtxt").write_text(f'backend: "mine" {parameter}')
    assert check(tmp_path / "models", rules=replace(rules, allow_requirements=True)) == []


# Files ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "text", "line"),
    [
        ("class TritonPythonModel:\n    def execute(self:\n", "SyntaxError", 2),
        ("class Model: pass", "AttributeError: module '1.model' has no attribute 'TritonPythonModel'", 1),
        ("x = 1", "AttributeError: module '1.model' has no attribute 'TritonPythonModel'", 0),
        ("x = 1\0", "source code", 0),
        ("return 5\nclass TritonPythonModel: pass", "SyntaxError: 'return' outside function", 1),
    ],
)
def test_a_python_file_that_cannot_be_a_model(tmp_path: Path, code: str, text: str, line: int) -> None:
    folder = write_model(tmp_path, "a", "", MODEL)
    (folder / "1" / "model.py").write_text(code)
    (finding,) = check(tmp_path)
    assert finding.file == f"{folder}/1/model.py"
    assert text in finding.text
    assert finding.line == line


@pytest.mark.parametrize(
    "code",
    [
        "from helper import TritonPythonModel",
        "from helper import *",
        "try:\n    import x\nexcept ImportError:\n    class TritonPythonModel: pass",
        "TritonPythonModel = type('M', (), {})",
        "globals()['Triton' + 'PythonModel'] = object",
    ],
)
def test_a_class_that_may_come_from_elsewhere_is_not_missed(tmp_path: Path, code: str) -> None:
    write_model(tmp_path, "a", code, MODEL)
    assert check(tmp_path) == []


def test_only_versions_that_would_be_served_are_looked_at(tmp_path: Path) -> None:
    write_model(tmp_path, "a", "class Nothing: pass", MODEL)
    write_model(tmp_path, "a", CODE, MODEL, version=2)
    assert check(tmp_path) == []
    write_model(tmp_path, "a", CODE, MODEL + "version_policy { all { } }", version=2)
    assert [finding.file for finding in check(tmp_path)] == [f"{tmp_path}/a/1/model.py"]


def test_versions_that_are_not_there_or_no_numbers(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "a", CODE, MODEL + "version_policy { specific { versions: [ 1, 3 ] } }")
    (folder / "01").mkdir()
    (folder / "next").mkdir()
    assert [(finding.severity, finding.text) for finding in check(tmp_path)] == [
        (
            Severity.WARNING,
            "ignore version directory '01' which contains leading zeros in its directory name (model 'a')",
        ),
        (Severity.WARNING, "ignore version directory 'next' which fails to convert to integral number (model 'a')"),
        (Severity.WARNING, "version 3 is specified for model 'a', but the version directory is not present"),
    ]
    shutil.rmtree(folder / "1")
    assert "at least one version must be available under the version policy of model 'a'" in said(check(tmp_path))


def test_another_interpreter_may_read_the_file_differently(tmp_path: Path) -> None:
    parameter = 'parameters { key: "A" } '
    parameter += (
        'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/env.tar.gz" } }'
    )
    folder = write_model(tmp_path, "a", "class TritonPythonModel: ???", MODEL + parameter)
    (folder / "env.tar.gz").touch()
    assert [finding.severity for finding in check(tmp_path)] == [Severity.WARNING]
    (folder / "env.tar.gz").unlink()
    [finding] = [finding for finding in check(tmp_path) if finding.is_error]
    assert finding.text == f"Failed to get the canonical path for {folder}/env.tar.gz."
    assert finding.field == 'parameters["EXECUTION_ENV_PATH"]'


def test_tensors_that_a_model_may_complete_itself_are_warnings(tmp_path: Path) -> None:
    code = CODE + "\n        @staticmethod\n        def auto_complete_config(config):\n            return config\n"
    write_model(tmp_path, "a", code, PYTHON + 'input { name: "I" }')
    assert [finding.severity for finding in check(tmp_path)] == [Severity.WARNING]
    assert [finding.severity for finding in check(tmp_path, rules=Rules(strict_config=True))] == [Severity.ERROR]
    write_model(tmp_path, "a", CODE.replace("TritonPythonModel", "TritonPythonModel(Base)"))
    assert [finding.severity for finding in check(tmp_path)] == [Severity.WARNING]


def test_files_of_warm_up_and_of_states_must_be_there(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "a",
        CODE,
        MODEL
        + """model_warmup { name: "w" batch_size: 1 inputs { key: "I" value { data_type: TYPE_FP32 dims: 4
  input_data_file: "w.raw" } } }
model_warmup { name: "v" batch_size: 3 inputs { key: "I" value { data_type: TYPE_INT32 dims: 4 zero_data: true } } }
sequence_batching { state { input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: 1
  initial_state { name: "i" data_type: TYPE_FP32 dims: 1 data_file: "s.raw" } } }
""",
    )
    where = [(finding.line, finding.text) for finding in check(tmp_path)]
    assert where[0][0] == 4
    assert where[0][1].endswith("a/warmup/w.raw: No such file or directory")
    assert where[-1][0] == 8
    assert where[-1][1].endswith("a/initial_state/s.raw: No such file or directory")
    (tmp_path / "a" / "warmup").mkdir()
    (tmp_path / "a" / "warmup" / "w.raw").write_bytes(bytes(16))
    (tmp_path / "a" / "initial_state").mkdir()
    (tmp_path / "a" / "initial_state" / "s.raw").write_bytes(bytes(4))
    assert [(finding.line, finding.text) for finding in check(tmp_path)] == [
        (
            6,
            "[request id: <id_unknown>] inference input 'I' data-type is 'INT32', but model 'a' expects 'FP32'",
        ),
        (6, "failed to run warmup sample 'v': batch size 3 for 'a_0', max allowed is 0; "),
    ]


def test_a_sample_that_cannot_be_made_does_not_hide_another(tmp_path: Path) -> None:
    samples = (
        f'model_warmup {{ batch_size: 1 inputs {{ key: "I" value {{ data_type: TYPE_{kind} dims: 4 {data} }} }} }}\n'
        for kind, data in (("FP32", 'input_data_file: "nope"'), ("INT32", "zero_data: true"))
    )
    write_model(tmp_path, "a", CODE, MODEL + "".join(samples))
    assert [finding.field for finding in check(tmp_path)] == ["model_warmup[0]", "model_warmup[1]"]


def test_a_sample_without_a_batch_size_is_a_warning(tmp_path: Path) -> None:
    samples = (f'model_warmup {{ name: "{name}" {size} }}\n' for name, size in (("a", ""), ("b", "batch_size: 0")))
    write_model(tmp_path, "a", CODE, MODEL + "".join(samples))
    assert [(finding.severity, finding.text, finding.line, finding.hint) for finding in check(tmp_path)] == [
        (Severity.WARNING, "warmup sample 'a' has no batch_size and is skipped", 4, "write batch_size: 1"),
        (Severity.WARNING, "warmup sample 'b' has no batch_size and is skipped", 5, "write batch_size: 1"),
    ]


@pytest.mark.parametrize(
    ("written", "text", "hint"),
    [
        (
            "dynamic_batching { default_queue_policy { allow_timeout_override: true } }",
            "allow_timeout_override without default_timeout_microseconds has no effect",
            "a request's timeout counts where it is shorter than the default",
        ),
        (
            "dynamic_batching { priority_levels: 1 default_priority_level: 1 "
            "priority_queue_policy { key: 1 value { allow_timeout_override: true } } }",
            "allow_timeout_override without default_timeout_microseconds has no effect",
            "a request's timeout counts where it is shorter than the default",
        ),
        (
            "dynamic_batching { priority_queue_policy { key: 1 value { max_queue_size: 1 } } }",
            "priority_queue_policy without priority_levels has no effect",
            "",
        ),
        (
            "dynamic_batching { default_priority_level: 1 }",
            "default_priority_level without priority_levels has no effect",
            "",
        ),
        (
            "sequence_batching { direct { max_queue_delay_microseconds: 1 } }",
            "max_queue_delay_microseconds without minimum_slot_utilization has no effect",
            "a batch waits, at most for the delay, until so many of its rows are taken",
        ),
        (
            "sequence_batching { direct { minimum_slot_utilization: 0.5 } }",
            "minimum_slot_utilization without max_queue_delay_microseconds has no effect",
            "a batch waits, at most for the delay, until so many of its rows are taken",
        ),
        (
            'parameters { key: "BATCH_ANY_SHAPES" value { string_value: "yes" } }',
            "BATCH_ANY_SHAPES without dynamic_batching or sequence_batching has no effect",
            "",
        ),
        (
            'parameters { key: "BATCH_TENSORS" value { string_value: "yes" } }',
            "BATCH_TENSORS without batch_input or batch_output has no effect",
            "",
        ),
        (
            'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "N" data_type: TYPE_INT32 source_input: "I" }',
            "field 'batch_input' has no effect for Python models",
            'parameters { key: "BATCH_TENSORS" value { string_value: "yes" } } gives it one',
        ),
    ],
)
def test_what_does_nothing_without_something_else_is_a_warning(
    tmp_path: Path, written: str, text: str, hint: str
) -> None:
    write_model(tmp_path, "a", CODE, MODEL + "max_batch_size: 2\n" + written)
    (finding,) = check(tmp_path)
    assert (finding.severity, finding.text, finding.hint, finding.line) == (Severity.WARNING, text, hint, 5)


@pytest.mark.parametrize(
    "written",
    [
        "dynamic_batching { default_queue_policy { allow_timeout_override: true default_timeout_microseconds: 1 } }",
        "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 1 value { } } }",
        "sequence_batching { direct { max_queue_delay_microseconds: 1 minimum_slot_utilization: 0.5 } }",
        "sequence_batching { oldest { max_queue_delay_microseconds: 1 } }",
        'dynamic_batching { } parameters { key: "BATCH_ANY_SHAPES" value { string_value: "yes" } }',
        'sequence_batching { } parameters { key: "BATCH_ANY_SHAPES" value { string_value: "yes" } }',
        'parameters { key: "BATCH_ANY_SHAPES" value { string_value: "no" } }',
    ],
)
def test_what_has_all_that_it_needs_is_no_warning(tmp_path: Path, written: str) -> None:
    write_model(tmp_path, "a", CODE, MODEL + "max_batch_size: 2\n" + written)
    assert check(tmp_path) == []


@pytest.mark.parametrize(
    ("written", "is_told"),
    [
        ("dynamic_batching { }", True),
        ("dynamic_batching { max_queue_delay_microseconds: 100 }", True),
        ("dynamic_batching { priority_levels: 2 default_priority_level: 1 }", False),
        ("dynamic_batching { default_queue_policy { max_queue_size: 1 } }", False),
        ("max_batch_size: 1 dynamic_batching { }", False),
    ],
)
def test_a_batcher_that_can_form_no_batch_is_a_warning(tmp_path: Path, written: str, is_told: bool) -> None:
    write_model(tmp_path, "a", CODE, MODEL + written)
    text = "dynamic_batching without max_batch_size forms no batches: requests are executed one by one"
    assert [(finding.text, finding.field) for finding in check(tmp_path)] == [(text, "dynamic_batching")] * is_told
    completing = (
        CODE + "\n        @staticmethod\n        def auto_complete_config(config):\n            return config\n"
    )
    write_model(tmp_path, "a", completing, MODEL + written)
    assert check(tmp_path) == []


def test_nothing_is_warmed_that_never_executes(tmp_path: Path) -> None:
    sample = 'name: "w" batch_size: 3 inputs { key: "I" value { data_type: TYPE_FP32 dims: 4 zero_data: true } }'
    write_model(tmp_path, "a", CODE, MODEL + f"model_warmup {{ {sample} }} instance_group {{ passive: true }}")
    assert [finding.severity for finding in check(tmp_path)] == [Severity.WARNING]


# Several models ------------------------------------------------------------------------------------------------------


def test_a_name_in_two_repositories(tmp_path: Path) -> None:
    for root in ("one", "two"):
        write_model(tmp_path / root, "a", CODE, MODEL)
    twice = "failed to poll model 'a': not unique across all model repositories"
    found = check(tmp_path / "one", tmp_path / "two")
    assert [(finding.file, finding.text) for finding in found] == [
        (f"{tmp_path}/one/a", twice),
        (f"{tmp_path}/two/a", twice),
    ]
    assert check(tmp_path / "one", tmp_path / "two", rules=Rules(namespacing=True)) == []
    assert check(tmp_path / "one", tmp_path / "one") == []


def test_a_repository_that_is_none(tmp_path: Path) -> None:
    write_model(tmp_path, "a", CODE, MODEL)
    assert said(check(tmp_path / "nope", tmp_path / "a" / "config.pbtxt", tmp_path / "a"))[:3] == [
        f"failed to stat file {tmp_path}/nope",
        f"repository path is not a valid directory: {tmp_path}/a/config.pbtxt",
        "each directory in here is taken for a model",
    ]


def test_a_repository_and_a_configuration_that_cannot_be_looked_at_keep_nothing_else_from_being_checked(
    tmp_path: Path,
) -> None:
    long = "n" * 300
    write_model(tmp_path / "models", "a", CODE, MODEL)
    (tmp_path / "models" / "a" / "configs").mkdir()
    write_model(tmp_path / "models", "b", CODE, MODEL + "foo: 1")
    assert said(check(tmp_path / long, tmp_path / "models", rules=Rules(config_name=long))) == [
        f"failed to stat file {tmp_path}/{long}: File name too long",
        f"failed to look at {tmp_path}/models/a/configs/{long}.pbtxt: File name too long",
        'Message type "inference.ModelConfig" has no field named "foo".',
    ]


def test_a_path_that_is_misspelt_is_taken_for_a_repository_alone(tmp_path: Path) -> None:
    """A folder with a name like it may be anything, of source code for instance."""
    write_model(tmp_path / "mine" / "models", "a", CODE, MODEL)
    (tmp_path / "modelling" / "models").mkdir(parents=True)
    (tmp_path / "models_of_data").mkdir()
    wrong = [tmp_path / "models", tmp_path / "mine" / "model", tmp_path / "mien" / "models"]
    assert [finding.hint for finding in check(*wrong)] == [
        f"there is no such directory in {tmp_path}",
        f"did you mean {tmp_path}/mine/models?",
        f"did you mean {tmp_path}/mine/models?",
    ]


def test_a_directory_whose_name_is_not_utf8_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / os.fsdecode(b"models\xff")
    for name in (b"a\xff", b"b"):
        write_model(root, os.fsdecode(name), CODE, MODEL)
    assert cli.main(["check", str(root)]) == 1
    shown = f"{tmp_path}/models\\udcff"
    assert capsys.readouterr().out == (
        f"{shown}: error: skipping directory 'a\\udcff' of model repository {shown}: its name is not UTF-8\n"
        "1 model, 1 error, 0 warnings\n"
    )


def test_a_repository_without_models_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    write_model(tmp_path / "models", "a", CODE, MODEL)
    assert cli.main(["check", str(tmp_path / "models"), str(tmp_path / "empty")]) == 0
    assert capsys.readouterr().out == (
        f"{tmp_path}/empty: warning: there are no models (each model is a directory in it)\n1 model, 0 errors, 1 warning\n"
    )


def needs(*resources: str) -> str:
    return MODEL + "".join(f"instance_group {{ rate_limiter {{ resources {{ {each} }} }} }}\n" for each in resources)


def test_resources_that_the_rate_limiter_does_not_have_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path, "a", CODE, needs('name: "R" count: 2', 'name: "R" count: 3', 'name: "S" count: 1'))
    assert cli.main(["check", str(tmp_path), "--rate-limit-resource=R:2"]) == 0
    assert cli.main(["check", str(tmp_path), "--rate-limit=execution_count"]) == 0
    capsys.readouterr()
    assert cli.main(["check", str(tmp_path), "--rate-limit=execution_count", "--rate-limit-resource=R:2"]) == 1
    text = "will prevent scheduling of one or more model instances, the minimum required count is"
    assert [line.partition(" (")[0] for line in capsys.readouterr().out.splitlines()] == [
        f'{tmp_path}/a/config.pbtxt:5:18: error: Resource count for "R" is limited to 2 which {text} 3',
        f'{tmp_path}/a/config.pbtxt:6:18: error: Resource count for "S" is limited to 0 which {text} 1',
        "1 model, 2 errors, 0 warnings",
    ]


def test_a_resource_is_global_for_all_models_or_for_none(tmp_path: Path) -> None:
    write_model(tmp_path, "a", CODE, needs('name: "R" count: 1 global: true', 'name: "R" count: 1'))
    write_model(tmp_path, "b", CODE, needs('name: "R" count: 1'))
    write_model(tmp_path, "c", CODE, needs('name: "R" count: 1 global: true') + "instance_group { passive: true }")
    found = check(tmp_path, rules=Rules(resources=()))
    both = 'Resource "R" is present as both global and device-specific resource in the model configuration.'
    # What is refused takes part in nothing: b is not held against a.
    assert [(finding.model, finding.line, finding.text) for finding in found] == [("a", 5, both), ("c", 4, both)]


def ensemble(*steps: str) -> str:
    return 'platform: "ensemble"\n' + TENSORS + "ensemble_scheduling {\n" + "\n".join(steps) + "\n}\n"


def step(model: str, source: str, target: str, version: int = -1) -> str:
    return (
        f'step {{ model_name: "{model}" model_version: {version} input_map {{ key: "I" value: "{source}" }} '
        f'output_map {{ key: "O" value: "{target}" }} }}'
    )


def write_ensemble(repository: Path, name: str, *steps: str) -> None:
    write_model(repository, name, "", ensemble(*steps))
    (repository / name / "1").mkdir(exist_ok=True)


def test_an_ensemble_is_held_against_its_models(tmp_path: Path) -> None:
    write_model(tmp_path, "float", CODE, MODEL)
    write_model(tmp_path, "int", CODE, MODEL.replace("FP32", "INT32"))
    write_ensemble(tmp_path, "right", step("float", "I", "X"), step("float", "X", "O", 1))
    write_ensemble(tmp_path, "types", step("float", "I", "X"), step("int", "X", "O"))
    write_ensemble(tmp_path, "versions", step("float", "I", "X", 7), step("nowhere", "X", "O"))
    write_ensemble(tmp_path, "nested", step("types", "I", "O"))
    assert [(finding.model, finding.line, finding.text.split(":")[0]) for finding in check(tmp_path)] == [
        (
            "nested",
            5,
            "ensemble 'nested' depends on 'types' which has no loaded version. Model 'types' loading failed with error",
        ),
        ("types", 6, "in ensemble types, ensemble tensor X"),
        ("versions", 5, "ensemble 'versions' depends on 'float' whose required version 7 is not loaded."),
        ("versions", 6, "ensemble versions contains models that are not available or ambiguous"),
    ]


def test_an_ensemble_that_is_wrong_itself_is_held_against_its_models_too(tmp_path: Path) -> None:
    write_model(tmp_path, "of_it", "", ensemble(step("nowhere", "I", "O")).replace("dims: 4", "dims: 0", 1))
    (tmp_path / "of_it" / "1").mkdir(exist_ok=True)
    assert [finding.field for finding in check(tmp_path)] == [
        "input[0].dims[0]",
        "ensemble_scheduling.step[0].model_name",
    ]


def test_ensembles_in_a_circle(tmp_path: Path) -> None:
    write_ensemble(tmp_path, "a", step("b", "I", "O"))
    write_ensemble(tmp_path, "b", step("a", "I", "O"))
    assert said(check(tmp_path)) == [
        "circular dependency between ensembles: a -> ... -> b -> a",
        "circular dependency between ensembles: b -> ... -> a -> b",
    ]


def test_an_ensemble_of_a_broken_model_does_not_load_either(tmp_path: Path) -> None:
    write_model(tmp_path, "broken", CODE, PYTHON + "max_batch_size: -1")
    write_ensemble(tmp_path, "of_it", step("broken", "I", "O"))
    assert [finding.model for finding in check(tmp_path) if finding.is_error] == ["broken", "of_it"]


def test_tensors_of_a_model_that_completes_itself_are_not_held_against_it(tmp_path: Path) -> None:
    completing = (
        CODE + "\n        @staticmethod\n        def auto_complete_config(config):\n            return config\n"
    )
    write_model(tmp_path, "late", completing, PYTHON)
    write_ensemble(tmp_path, "of_it", step("late", "I", "O"))
    assert [finding.severity for finding in check(tmp_path)] == [Severity.WARNING]


# Anything ------------------------------------------------------------------------------------------------------------

CORPUS = (
    MODEL + "max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 2, 4 ] priority_levels: 2 "
    "default_priority_level: 1 priority_queue_policy { key: 2 value { max_queue_size: 3 timeout_action: DELAY } } }",
    PYTHON + 'input [ { name: "A" data_type: TYPE_STRING dims: [ 1, -1 ] reshape { shape: [ -1 ] } }, { name: "B" '
    "data_type: TYPE_BF16 dims: 1 optional: true format: FORMAT_NONE } ] version_policy { specific { versions: [ 1, 2 ] } }",
    MODEL
    + 'sequence_batching { control_input [ { name: "S" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] '
    '} }, { name: "C" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } } ] oldest { max_candidate_sequences: '
    '4 } state { input_name: "P" output_name: "Q" data_type: TYPE_FP32 dims: 1 initial_state { name: "i" data_type: '
    "TYPE_FP32 dims: 1 zero_data: true } } }",
    MODEL
    + 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "X" data_type: TYPE_INT32 source_input: "I" } batch_output '
    '{ target_name: "O" source_input: "I" } instance_group { count: 2 kind: KIND_CPU name: "g" } metric_tags { key: "a" value: '
    '"b" } response_cache { enable: true } parameters { key: "BATCH_TENSORS" value { string_value: "yes" } }',
    MODEL
    + 'model_warmup { name: "w" batch_size: 1 inputs { key: "I" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } '
    "} model_metrics { metric_control { metric_identifier { family: "
    '"nv_inference_first_response_histogram_ms" } histogram_options { buckets: [ 1, 2.5 ] } } } optimization { graph { level: '
    "1 } input_pinned_memory { enable: true } } model_transaction_policy { decoupled: true }",
    ensemble(step("m", "I", "X"), step("m", "X", "O")).replace("\n", " "),
)


def words_of(text: str) -> list[str]:
    return [token.text for token in tokens_of(text) if token.text]


WORDS = sorted(
    {word for text in CORPUS for word in words_of(text)}
    | {"-1", "0", "5", '"m"', '""', "# x\n", "[", "é", "99999999999"}
)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A configuration in which some words were removed, doubled, or replaced by others."""
    words = words_of(draw(st.sampled_from(CORPUS)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(words) - 1))
        words[at : at + 1] = draw(
            st.one_of(st.just([]), st.just([words[at]] * 2), st.sampled_from(WORDS).map(lambda word: [word]))
        ) or ["#\n"]
    return " ".join(words)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), "m", CODE)
        yield Path(folder)


def refusal(model_dir: Path) -> str:
    """What a server says that loads the model; "" if it would."""
    try:
        config = read_model_config(model_dir, versions=(1,))
        if config.ensemble is not None:
            check_ensemble_for_load(config, model_dir=model_dir)
        else:
            check_for_load(config, model_dir=model_dir, gpu_ids=())
    except PollError as error:
        return error.detail
    except InferenceError as error:
        return error.message
    return ""


OF_OTHERS = ("circular dependency", "at least one version", "[request id: ", "failed to run warmup", "warmup setting")
"""What a server finds out later, from other models, directories or samples."""


@examples(150)
@given(text=mutated())
def test_anything_is_judged_as_a_server_judges_it(place: Path, text: str) -> None:
    (place / "m" / "config.pbtxt").write_text(text)
    findings = [finding for finding in check(place) if finding.is_error]
    own = [finding.text for finding in findings if not finding.text.startswith(OF_OTHERS)]
    expected = refusal(place / "m")
    own = [text for text in own if "Python model file not found" not in text and "must end with '.py'" not in text]
    assert bool(own) == bool(expected), (own, expected)
    assert not expected or any(expected.endswith(text) for text in own), (own, expected)


@examples(100)
@given(text=st.text(st.sampled_from('ab_"\\{}[]<>:,;#\n-.5x é\0')))
def test_no_text_is_too_strange_to_be_read(place: Path, text: str) -> None:
    (place / "m" / "config.pbtxt").write_text(text)
    check(place)
    try:
        assert list(tokens_of(text))
    except Refused as refused:
        assert 0 <= refused.offset <= len(text)
