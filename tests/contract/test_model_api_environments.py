"""Environments of models: model_api.md rows 19 to 23, and section 7.1, through one running server."""

from __future__ import annotations

import json
import os
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.test_bare_environment import PYTHONS, install_numpy, skip_unless_it_runs
from tests.environment_kit import make_environment, numpy_alone, pack, write_numpy_wheel, write_wheel
from tests.harness import RunningServer, until, write_model

CONFIG = 'backend: "python"\n'

AUTO_COMPLETE = """
    @staticmethod
    def auto_complete_config(config):
        config.add_output({"name": "OUT", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_max_batch_size(0)
        return config
"""

TELL = """
    def execute(self, requests):
        import json, os, sys
        import numpy as np
        import triton_python_backend_utils as pb_utils
        facts = {
            "python": sys.version_info[:2], "prefix": sys.prefix, "word": word, "variables": dict(os.environ),
            "array": np.arange(3).tolist(),
        }
        text = np.array([json.dumps(facts)], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)]) for _ in requests]
"""

# The module is imported when the configuration is completed, too.
WITH_MODULE = f"from extra_module import word\n\nclass TritonPythonModel:{AUTO_COMPLETE}{TELL}"
WITHOUT_MODULE = f"word = 'none'\n\nclass TritonPythonModel:{AUTO_COMPLETE}{TELL}"

# Its child imports this file anew, and runs in the environment, too.
WITH_A_CHILD = f"""
import triton_python_backend_utils as pb_utils
import c_python_backend_utils as compiled
from extra_module import word

def told(text):
    return text + (" by both" if pb_utils.Tensor is compiled.Tensor else "")

class TritonPythonModel:{AUTO_COMPLETE}
    def execute(self, requests):
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        import numpy as np
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            text = np.array([pool.submit(told, word).result()], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)]) for _ in requests]
"""


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'


def environment_path(path: str) -> str:
    return parameter("EXECUTION_ENV_PATH", path)


def write_models(repository: Path, numpy_from: Path) -> None:
    folder = write_model(repository, "folder", WITH_MODULE, CONFIG + environment_path("$$TRITON_MODEL_DIRECTORY/env"))
    environment = make_environment(
        folder / "env", numpy_from=numpy_from, modules={"extra_module": "word = 'brought along'"}
    )
    with (environment / "bin" / "activate").open("a") as script:
        script.write("export BY_THE_SCRIPT=yes\n")
    write_model(repository, "parent", WITH_A_CHILD, CONFIG + environment_path(str(environment)))
    packed = write_model(
        repository, "packed", WITH_MODULE, CONFIG + environment_path("$$TRITON_MODEL_DIRECTORY/env.tar.gz")
    )
    pack(environment, packed / "env.tar.gz")
    write_model(repository, "shared", WITH_MODULE, CONFIG + environment_path(str(packed / "env.tar.gz")))

    write_model(repository, "plain", WITHOUT_MODULE, CONFIG)
    write_model(
        repository,
        "threads",
        WITHOUT_MODULE,
        CONFIG + parameter("ENV:OMP_NUM_THREADS", "7") + "instance_group { count: 3 kind: KIND_CPU }",
    )
    required = write_model(repository, "required", WITH_MODULE, CONFIG)
    (required / "requirements.txt").write_text("--no-index\n--find-links ./wheels\nextra\n")
    write_wheel(required / "wheels", "extra", {"extra_module.py": "word = 'installed'"})
    write_numpy_wheel(required / "wheels", numpy_from)

    write_model(repository, "missing", WITHOUT_MODULE, CONFIG + environment_path("/not/there.tar.gz"))
    write_model(repository, "no_script", WITHOUT_MODULE, CONFIG + environment_path("$$TRITON_MODEL_DIRECTORY"))
    escaping = write_model(
        repository, "escaping", WITHOUT_MODULE, CONFIG + environment_path("$$TRITON_MODEL_DIRECTORY/env.tar")
    )
    with tarfile.open(escaping / "env.tar", "w") as tar:
        tar.add(__file__, "../x")
    unresolved = write_model(repository, "unresolved", WITHOUT_MODULE, CONFIG)
    (unresolved / "requirements.txt").write_text("--no-index\nno-such-package\n")
    write_model(repository, "refused", WITHOUT_MODULE, CONFIG + parameter("ENV:PYTHONHOME", "/"))


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server puts its temporary files."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write_models(folder, numpy_alone(tmp_path_factory.mktemp("numpy")))
    return folder


@pytest.fixture(scope="module")
def server(repository: Path, temporary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    flags = (
        "--exit-on-error=false",
        "--allow-requirements=true",
        f"--environment-cache-directory={tmp_path_factory.mktemp('cache')}",
    )
    environ = {"TMPDIR": str(temporary), "OF_THE_SERVER": "seen", "LD_LIBRARY_PATH": "/of/the/server"}
    with RunningServer(repository, flags=flags, environ=environ) as running:
        yield running
    assert running.exit_code == 0
    assert list(temporary.iterdir()) == [], "what was unpacked is removed at exit"


def facts(server: RunningServer, model: str) -> dict[str, Any]:
    reply = server.infer(model, [])
    assert reply.status == 200, reply.body
    told: dict[str, Any] = json.loads(reply.json["outputs"][0]["data"][0])
    assert told["array"] == [0, 1, 2]
    return told


def reason(server: RunningServer, model: str) -> str:
    (row,) = [row for row in server.post("/v2/repository/index").json if row["name"] == model]
    assert row["state"] == "UNAVAILABLE"
    text: str = row["reason"]
    return text


def test_row_19_a_path_that_is_not_there(server: RunningServer) -> None:
    assert reason(server, "missing") == "Internal: Failed to get the canonical path for /not/there.tar.gz."


def test_row_20_a_folder_without_a_script(server: RunningServer, repository: Path) -> None:
    assert reason(server, "no_script") == (
        f"Internal: Path {repository}/no_script/bin/activate does not exist. "
        "The Python environment should contain an 'activate' script."
    )


@pytest.mark.parametrize("model", ["folder", "packed", "shared"])
def test_row_21_a_module_of_the_environment_is_imported(
    model: str, server: RunningServer, repository: Path, temporary: Path
) -> None:
    """The variables are those of section 7.1; the environment's libraries are not seen by what the model starts."""
    told = facts(server, model)
    assert told["word"] == "brought along"
    prefix = Path(told["prefix"])
    assert prefix == repository / "folder" / "env" or prefix.is_relative_to(temporary)
    variables = told["variables"]
    assert variables["PATH"].split(":")[0] == f"{prefix}/bin"
    assert variables["VIRTUAL_ENV"] == str(prefix)
    assert variables["LD_LIBRARY_PATH"] == "/of/the/server"
    assert variables["BY_THE_SCRIPT"] == "yes"
    assert variables["OF_THE_SERVER"] == "seen"


def test_a_process_that_a_model_spawns_in_its_environment_finds_pb_utils(server: RunningServer) -> None:
    """Model API, 1.2: the folder of the Python backend is on the path, which multiprocessing hands on."""
    reply = server.infer("parent", [])
    assert (reply.status, reply.json["outputs"][0]["data"]) == (200, ["brought along by both"])


def test_an_archive_is_unpacked_once_and_its_path_is_logged(server: RunningServer, repository: Path) -> None:
    assert facts(server, "packed")["prefix"] == facts(server, "shared")["prefix"]
    assert server.log.count("unpacking") == 2, "that of the two, and the one that is refused"
    assert server.log.count(f"Using Python execution env {repository}/packed/env.tar.gz") == 2


def test_row_22_an_archive_that_writes_outside_is_refused(
    server: RunningServer, repository: Path, temporary: Path
) -> None:
    assert reason(server, "escaping") == (
        f"Internal: the environment {repository}/escaping/env.tar cannot be unpacked: entry '../x': Path contains '..'"
    )
    assert list(temporary.rglob("x")) == []


def test_row_23_a_variable_of_the_server_is_seen_by_the_model(server: RunningServer) -> None:
    """No variable is added (model_api.md, 1.5)."""
    variables = facts(server, "plain")["variables"]
    assert variables["OF_THE_SERVER"] == "seen"
    assert set(variables) == {*os.environ, "OF_THE_SERVER", "TMPDIR", "LD_LIBRARY_PATH"}


def test_requirements_are_installed_into_an_environment_of_the_model(server: RunningServer, repository: Path) -> None:
    told = facts(server, "required")
    assert told["word"] == "installed"
    assert f"building the environment of {repository}/required/requirements.txt" in server.log


def test_requirements_that_do_not_resolve_are_told_in_the_installers_words(
    server: RunningServer, repository: Path
) -> None:
    text = reason(server, "unresolved")
    assert text.startswith(f"Internal: the environment of {repository}/unresolved/requirements.txt cannot be built: ")
    assert "no-such-package" in text


def test_a_parameter_sets_a_variable_of_the_workers_and_too_many_threads_are_told_once(server: RunningServer) -> None:
    assert facts(server, "threads")["variables"]["OMP_NUM_THREADS"] == "7"
    assert facts(server, "plain")["variables"].get("OMP_NUM_THREADS") == os.environ.get("OMP_NUM_THREADS")
    cores = len(os.sched_getaffinity(0))
    said = server.log.count("model 'threads': 3 instances with 7 threads each (OMP_NUM_THREADS is 7)")
    assert said == (1 if cores < 21 else 0)


def test_a_variable_that_is_the_servers_to_set_fails_the_load(server: RunningServer) -> None:
    assert reason(server, "refused").startswith("Invalid argument: parameter 'ENV:PYTHONHOME' of model 'refused': ")


OTHERS = {version: python for version, python in PYTHONS.items() if version != sys.version_info[:2]}


@pytest.mark.skipif(not OTHERS, reason="there is no other Python from 3.10 on")
def test_an_environment_may_have_another_python_than_the_server(tmp_path: Path) -> None:
    version, python = max(OTHERS.items())
    skip_unless_it_runs(version)
    other = write_model(
        tmp_path / "repository",
        "other",
        WITH_MODULE,
        CONFIG + environment_path("$$TRITON_MODEL_DIRECTORY/env") + parameter("ENV:OF_THE_MODEL", "too"),
    )
    environment = make_environment(
        other / "env", python=python, numpy_from=None, modules={"extra_module": "word = 'there'"}
    )
    install_numpy(str(environment / "bin" / "python"))
    write_model(tmp_path / "repository", "plain", WITHOUT_MODULE, CONFIG)
    with RunningServer(tmp_path / "repository") as server:
        told = facts(server, "other")
        assert tuple(told["python"]) == version
        assert (told["word"], told["variables"]["OF_THE_MODEL"]) == ("there", "too")
        assert tuple(facts(server, "plain")["python"]) == sys.version_info[:2]
    assert server.exit_code == 0


def test_an_unpacked_archive_is_removed_with_the_last_version_that_runs_in_it(tmp_path: Path) -> None:
    numpy_from = numpy_alone(tmp_path / "numpy")
    environment = make_environment(tmp_path / "env", numpy_from=numpy_from, modules={"extra_module": "word = 'here'"})
    parameters = CONFIG + environment_path("$$TRITON_MODEL_DIRECTORY/env.tar.gz")
    for name, code in (("packed", WITH_MODULE), ("broken", "import extra_module, nothing_of_that_name")):
        pack(environment, write_model(tmp_path / "models", name, code, parameters) / "env.tar.gz")
    (tmp_path / "tmp").mkdir()

    def unpacked() -> set[Path]:
        return set((tmp_path / "tmp").glob("pytriton_lite_env_*/*"))

    flags = ("--model-control-mode=explicit",)
    with RunningServer(tmp_path / "models", flags=flags, environ={"TMPDIR": str(tmp_path / "tmp")}) as server:
        assert server.post("/v2/repository/models/broken/load").status == 400
        until(lambda: not unpacked())
        assert server.post("/v2/repository/models/packed/load").status == 200
        (before,) = unpacked()
        for seconds in (1, 2):
            os.utime(tmp_path / "models" / "packed" / "env.tar.gz", (seconds, seconds))
            (tmp_path / "models" / "packed" / "touched").write_text(str(seconds))
            assert server.post("/v2/repository/models/packed/load").status == 200
            until(lambda: len(unpacked()) == 1)
        (after,) = unpacked()
        assert after != before
        assert facts(server, "packed")["word"] == "here"
        assert server.post("/v2/repository/models/packed/unload").status == 200
        until(lambda: not unpacked())
