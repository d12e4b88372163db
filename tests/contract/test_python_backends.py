"""Python-based backends (model_api.md, section 1.6): one model.py in the backend directory serves every model that names it."""

from __future__ import annotations

import importlib.util
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytriton_lite.worker.loader import BACKEND_DIRECTORY
from tests.harness import RunningServer, write_model

BACKEND = """
    import json
    import sys

    import helper
    import numpy as np
    import triton_python_backend_utils as pb_utils

    NAMES = [__name__, __package__, __file__, helper.WORD]


    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            config.add_input({"name": "ASK", "data_type": "TYPE_STRING", "dims": [1]})
            config.add_output({"name": "TOLD", "data_type": "TYPE_STRING", "dims": [1]})
            return config

        def initialize(self, args):
            weights = open(pb_utils.get_model_dir() + "/weights.txt").read()
            self.told = {
                "names": NAMES,
                "path": sys.path,
                "model_dir": pb_utils.get_model_dir(),
                "weights": weights,
                "settings": BACKEND_SETTINGS,
                "config": json.loads(args.pop("model_config")),
                "args": args,
            }

        def execute(self, requests):
            told = np.array([json.dumps(self.told).encode()], dtype=object)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", told)]) for _ in requests]
"""

ECHO = """
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy() * 2)])
                for request in requests
            ]
"""

ECHO_CONFIG = """
    backend: "python"
    max_batch_size: 0
    input { name: "IN" data_type: TYPE_FP32 dims: 1 }
    output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
"""


def write_backend(directory: Path, name: str, code: str) -> Path:
    folder = directory / name
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(textwrap.dedent(code))
    (folder / "helper.py").write_text(f"WORD = {name!r}\n")
    return folder


def write_weights(repository: Path, name: str, config: str, *, version: int = 1) -> None:
    folder = write_model(repository, name, code="raise RuntimeError('not ours')", config=config, version=version)
    (folder / str(version) / "weights.txt").write_text(f"weights of {name} {version}")


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("backends")
    write_backend(directory, "mybk", BACKEND)
    write_backend(directory, "other", BACKEND)
    (directory / "python").mkdir()
    (directory / "python" / "model.py").write_text("raise RuntimeError('models bring code of their own')")
    (directory / "native").mkdir()
    (directory / "native" / "libtriton_native.so").touch()
    return directory


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, backends: Path) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("models")
    write_weights(repository, "first", 'backend: "mybk"')
    write_weights(repository, "second", 'backend: "mybk" default_model_filename: "weights.txt" runtime: "model.py"')
    write_weights(repository, "versions", 'backend: "mybk" version_policy { all { } }', version=1)
    write_weights(repository, "versions", "", version=3)
    write_weights(repository, "third", 'backend: "other"')
    write_weights(repository, "named.mybk", "")
    (repository / "named.mybk" / "1" / "model.py").unlink()  # it would say that the backend is python
    write_weights(repository, "unknown", 'backend: "nosuch"')
    write_weights(repository, "native", 'backend: "native"')
    write_weights(repository, "tensorflow", 'platform: "tensorflow_savedmodel"')
    write_model(repository, "own", ECHO, ECHO_CONFIG)
    (write_model(repository, "graph") / "1" / "model.onnx").touch()
    flags = (
        f"--backend-directory={backends}",
        "--exit-on-error=false",
        "--backend-config=mybk,beam=4",
        "--backend-config=everybody=7",
    )
    with RunningServer(repository, flags=flags) as running:
        yield running


def told(server: RunningServer, model: str, version: int | None = None) -> dict[str, Any]:
    """What the backend says about the model that it serves."""
    part = model if version is None else f"{model}/versions/{version}"
    reply = server.infer(part, [{"name": "ASK", "datatype": "BYTES", "shape": [1], "data": ["?"]}])
    assert reply.status == 200, reply.body
    found: dict[str, Any] = json.loads(reply.json["outputs"][0]["data"][0])
    return found


def test_the_code_of_the_backend_serves_and_a_broken_model_py_of_the_model_is_ignored(
    server: RunningServer, backends: Path
) -> None:
    """model_api.md row 17."""
    found = told(server, "first")
    assert found["names"] == ["model", "", str(backends / "mybk" / "model.py"), "mybk"]
    assert found["model_dir"] == str(Path(found["args"]["model_repository"]) / "1")
    assert found["model_dir"].endswith("/first/1")
    assert found["weights"] == "weights of first 1"


def test_the_path_has_the_directory_of_the_backend_and_not_those_of_the_model(
    server: RunningServer, backends: Path
) -> None:
    found = told(server, "first")
    assert found["path"][-2:] == [str(backends / "mybk"), BACKEND_DIRECTORY]
    assert not [entry for entry in found["path"] if entry.startswith(found["args"]["model_repository"])]


def test_the_configuration_names_backend_and_runtime_and_is_completed_by_the_backend(server: RunningServer) -> None:
    shown = server.get("/v2/models/first/config").json
    seen = told(server, "first")["config"]
    for config in (shown, seen):
        assert (config["backend"], config["runtime"], config["platform"]) == ("mybk", "model.py", "")
        assert config["default_model_filename"] == ""
        assert [tensor["name"] for tensor in config["input"] + config["output"]] == ["ASK", "TOLD"]
    assert server.get("/v2/models/first").json["platform"] == "mybk"


def test_the_file_name_of_a_configuration_is_left_to_the_backend(server: RunningServer) -> None:
    config = told(server, "second")["config"]
    assert (config["default_model_filename"], config["runtime"]) == ("weights.txt", "model.py")


def test_several_models_and_backends_are_served_beside_models_with_code_of_their_own(server: RunningServer) -> None:
    assert told(server, "second")["weights"] == "weights of second 1"
    assert told(server, "third")["names"][3] == "other"
    reply = server.infer("own", [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [2]}])
    assert reply.json["outputs"][0]["data"] == [4.0]


def test_every_version_has_its_own_directory(server: RunningServer) -> None:
    assert told(server, "versions", 1)["weights"] == "weights of versions 1"
    assert told(server, "versions", 3)["weights"] == "weights of versions 3"
    assert told(server, "versions", 3)["args"]["model_version"] == "3"


def test_a_model_may_name_its_backend_after_a_dot(server: RunningServer) -> None:
    """model_config.md, section 6.1."""
    config = told(server, "named.mybk")["config"]
    assert (config["backend"], config["default_model_filename"]) == ("mybk", "model.mybk")


@pytest.mark.parametrize(
    ("model", "backend"), [("unknown", "nosuch"), ("native", "native"), ("tensorflow", "tensorflow")]
)
def test_a_backend_without_a_model_py_is_not_found(server: RunningServer, model: str, backend: str) -> None:
    rows = server.post("/v2/repository/index").json
    (reason,) = [row["reason"] for row in rows if row["name"] == model]
    assert reason == (
        f"Invalid argument: unable to find backend library for backend '{backend}', try specifying runtime on the model "
        "configuration."
    )


def test_a_backend_is_told_of_its_settings_and_of_those_for_all(server: RunningServer, backends: Path) -> None:
    first, third = told(server, "first")["settings"], told(server, "third")["settings"]
    assert (first["beam"], first["everybody"], first["default-max-batch-size"]) == ("4", "7", "4")
    assert "beam" not in third
    assert "has no effect" not in server.log


@pytest.mark.skipif(importlib.util.find_spec("onnxruntime") is not None, reason="onnxruntime is installed")
def test_the_onnxruntime_backend_says_what_to_install(server: RunningServer) -> None:
    rows = server.post("/v2/repository/index").json
    (reason,) = [row["reason"] for row in rows if row["name"] == "graph"]
    assert reason == (
        "Unavailable: backend 'onnxruntime' cannot import onnxruntime (No module named 'onnxruntime'): pip install "
        "'pytriton-lite[onnxruntime]'"
    )


def test_the_backends_in_use_are_printed_at_start_up(server: RunningServer, backends: Path) -> None:
    """repository.md, section 8."""
    table = server.log.partition("| Backend ")[2].partition("| Model ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in table.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows] == ["python", "mybk", "onnxruntime", "other"]
    assert [row[1] for row in (rows[1], rows[3])] == [str(backends / name / "model.py") for name in ("mybk", "other")]
    assert rows[2][1].endswith("/pytriton_lite/plugins/onnxruntime/model.py")
    settings = json.loads(rows[1][2])["cmdline"]
    assert (settings["beam"], settings["backend-directory"]) == ("4", str(backends))
