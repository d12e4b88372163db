"""Finding Python-based backends, and the table of those in use (model API, section 1.6; repository spec, section 8)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.engine.workers import backends
from pytriton_lite.engine.workers.backends import Backends
from pytriton_lite.engine.workers.fork_process import BOOTSTRAP
from pytriton_lite.proto import model_config_pb
from tests.harness import PROJECT
from tests.unprivileged import UNPRIVILEGED, needs_no_privileges

_PLUGINS = PROJECT / "pytriton_lite/plugins"
SHIPPED = {
    **{name: _PLUGINS / name for name in ("onnxruntime", "pytorch", "transformers")},
    **{name: _PLUGINS / "tabular" / name for name in ("lightgbm", "sklearn", "xgboost")},
}


def write(directory: Path, name: str, *files: str) -> Path:
    folder = directory / name
    folder.mkdir()
    for file in files:
        (folder / file).touch()
    return folder


def config(backend: str) -> ModelConfig:
    return ModelConfig.from_message(model_config_pb.ModelConfig(name="m", backend=backend))


def test_a_folder_with_a_model_py_is_a_backend(tmp_path: Path) -> None:
    mine = write(tmp_path, "mine", "model.py")
    write(tmp_path, "native", "libtriton_native.so")
    (tmp_path / "model.py").touch()
    assert Backends(tmp_path).folders() == {**SHIPPED, "mine": mine}


def test_a_native_library_beside_a_model_py_is_passed_over(tmp_path: Path) -> None:
    mine = write(tmp_path, "mine", "model.py", "libtriton_mine.so")
    assert Backends(tmp_path).folders()["mine"] == mine


@needs_no_privileges
def test_a_folder_that_may_not_be_entered_hides_no_backend(tmp_path: Path) -> None:
    mine = write(tmp_path, "mine", "model.py")
    shut = write(tmp_path, "lost+found")
    code = (
        "import sys, pathlib; from pytriton_lite.engine.workers.backends import Backends; "
        "print(Backends(pathlib.Path(sys.argv[1])).folders().get('mine'))"
    )
    command = [*UNPRIVILEGED, sys.executable, "-c", code, str(tmp_path)]
    shut.chmod(0)
    try:
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60)
    finally:
        shut.chmod(0o755)
    assert done.stdout == f"{mine}\n", done.stderr


def test_a_backend_of_the_operator_goes_before_one_that_comes_with_the_server(tmp_path: Path) -> None:
    theirs = write(tmp_path, "onnxruntime", "model.py")
    assert Backends(tmp_path).folders() == {**SHIPPED, "onnxruntime": theirs}


def test_a_native_backend_of_the_operator_leaves_the_one_that_comes_with_the_server(tmp_path: Path) -> None:
    write(tmp_path, "onnxruntime", "libtriton_onnxruntime.so")
    assert Backends(tmp_path).folders() == SHIPPED


def test_python_is_no_python_based_backend(tmp_path: Path) -> None:
    write(tmp_path, "python", "model.py")
    assert "python" not in Backends(tmp_path).folders()


def test_packages_are_not_looked_through_for_models_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> dict[str, Path]:
        raise AssertionError("packages were looked through")

    monkeypatch.setattr(backends, "_of_packages", fail)
    found = Backends(tmp_path)
    assert found.folders_for("python") == {}
    assert [name for name, _, _ in found.table([config("python")])] == ["python"]
    with pytest.raises(AssertionError, match="looked through"):
        found.folders_for("onnxruntime")


def test_a_directory_that_is_not_there_holds_no_backends(tmp_path: Path) -> None:
    assert Backends(tmp_path / "missing").folders() == SHIPPED


def test_a_backend_may_come_while_the_server_runs(tmp_path: Path) -> None:
    backends = Backends(tmp_path)
    assert backends.find("mine", backends.folders()) is None
    mine = write(tmp_path, "mine", "model.py")
    found = backends.find("mine", backends.folders())
    assert found is not None
    assert found.folder == mine


def test_settings_of_a_backend_go_before_those_of_all(tmp_path: Path) -> None:
    write(tmp_path, "mine", "model.py")
    settings = {"": {"size": "1", "shape": "round"}, "mine": {"size": "2"}, "other": {"size": "3"}}
    backends = Backends(tmp_path, settings)
    found = backends.find("mine", backends.folders())
    assert found is not None
    assert found.settings == {"size": "2", "shape": "round"}


def test_the_table_has_python_first_and_every_backend_in_use_once(tmp_path: Path) -> None:
    mine = write(tmp_path, "mine", "model.py")
    write(tmp_path, "idle", "model.py")
    backends = Backends(tmp_path, {"": {"size": "1"}, "mine": {"size": "2"}})
    table = backends.table([config("mine"), config("nosuch"), config("mine"), config("")])
    assert [(name, path, json.loads(settings)) for name, path, settings in table] == [
        ("python", str(BOOTSTRAP), {"cmdline": {"size": "1"}}),
        ("mine", str(mine / "model.py"), {"cmdline": {"size": "2"}}),
    ]


def test_the_table_of_a_server_without_models_is_empty() -> None:
    assert Backends().table([]) == []
