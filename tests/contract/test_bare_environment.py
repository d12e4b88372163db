"""A worker runs where there is numpy and nothing else, under any Python that a model may bring.

What the server needs is kept from it: the environments here hold numpy alone. For the Python that runs the tests it is
linked from its own packages; another Python found on this machine gets it from the package index.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pytriton_lite
from pytriton_lite.core import dtypes
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.states import VersionState
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.server import Server, ServerOptions
from pytriton_lite.engine.workers.settings import WorkerSettings
from pytriton_lite.frontends.pending_answer import PendingAnswer
from tests.harness import write_model

PACKAGE = Path(pytriton_lite.__file__).parent
ROOMS = ("core", "ipc", "worker")
SOURCES = sorted([PACKAGE / "__init__.py", *(path for room in ROOMS for path in (PACKAGE / room).rglob("*.py"))])

Version = tuple[int, int]


def version_of(python: str) -> Version | None:
    """None for what cannot be run, like a shim without a Python behind it."""
    try:
        code = "import sys; print(*sys.version_info[:2])"
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=30)
        major, minor = done.stdout.split()
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def other_pythons() -> dict[Version, str]:
    """One for each other version from 3.10 on, by their names: where pyenv keeps its own, or on the PATH."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    kept = [(path.parents[1].name, str(path)) for path in sorted(root.glob("versions/3.*/bin/python"))]
    on_path = [(f"3.{minor}", found) for minor in range(10, 20) if (found := shutil.which(f"python3.{minor}"))]
    found: dict[Version, str] = {}
    for name, python in (*kept, *on_path):
        major, minor = (int(number) for number in re.findall(r"\d+", name)[:2])
        if (major, minor) >= (3, 10) and (major, minor) != sys.version_info[:2]:
            found.setdefault((major, minor), python)
    return dict(sorted(found.items()))


PYTHONS: dict[Version, str] = {(sys.version_info.major, sys.version_info.minor): sys.executable, **other_pythons()}


def skip_unless_it_runs(version: Version) -> None:
    """A shim on the PATH may have no Python behind it."""
    if version_of(PYTHONS[version]) != version:
        pytest.skip(f"{PYTHONS[version]} is no Python {version[0]}.{version[1]}")


def make_environment(folder: Path, python: str) -> str:
    """A virtual environment without anything in it; its interpreter."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
    return str(folder / "bin" / "python")


def link_numpy(environment: Path) -> None:
    (packages,) = environment.glob("lib/python3.*/site-packages")
    ours = Path(np.__file__).parent
    packages.joinpath("numpy").symlink_to(ours)
    libraries = ours.parent / "numpy.libs"
    if libraries.exists():
        packages.joinpath("numpy.libs").symlink_to(libraries)


def install_numpy(python: str) -> None:
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-compile",
    ]
    done = subprocess.run([*pip, "--only-binary=:all:", "numpy"], capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"no numpy for {python}: {done.stderr.strip().splitlines()[-1]}")


@pytest.fixture(scope="module", params=list(PYTHONS), ids=lambda version: f"python{version[0]}.{version[1]}")
def bare_python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An interpreter with numpy alone."""
    skip_unless_it_runs(request.param)
    folder = tmp_path_factory.mktemp("bare")
    python = make_environment(folder, PYTHONS[request.param])
    if request.param == sys.version_info[:2]:
        link_numpy(folder)
    else:
        install_numpy(python)
    yield python
    shutil.rmtree(folder)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_what_workers_run_is_python_3_10(path: Path) -> None:
    ast.parse(path.read_text(), filename=str(path), feature_version=(3, 10))


IMPORT_ALL = """
import sys
from_the_start = set(sys.modules)  # a distribution's sitecustomize, for instance
import importlib, json, pkgutil
sys.path.insert(0, sys.argv[1])
import pytriton_lite
from pytriton_lite.worker.loader import BACKEND_DIRECTORY
sys.path.append(BACKEND_DIRECTORY)
names = [module.name for module in pkgutil.walk_packages(pytriton_lite.__path__, "pytriton_lite.")]
for name in names:
    importlib.import_module(name)
known = {*sys.stdlib_module_names, *from_the_start, "numpy", "pytriton_lite"}
known |= {"triton_python_backend_utils", "c_python_backend_utils"}
from_files = [name for name, module in sys.modules.items() if getattr(module, "__file__", None)]
print(json.dumps({"imported": names, "strangers": [n for n in from_files if n.partition(".")[0] not in known]}))
"""


def test_core_ipc_and_worker_import_where_there_is_numpy_alone(bare_python: str, tmp_path: Path) -> None:
    """The three rooms stand in a folder without their neighbours."""
    package = tmp_path / "pytriton_lite"
    package.mkdir()
    package.joinpath("__init__.py").symlink_to(PACKAGE / "__init__.py")
    for part in (*ROOMS, *(library.name for library in PACKAGE.glob("compiled__mypyc.*"))):
        package.joinpath(part).symlink_to(PACKAGE / part)
    command = [bare_python, "-I", "-B", "-W", "error", "-c", IMPORT_ALL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    modules = {
        "pytriton_lite." + str(path.relative_to(PACKAGE).with_suffix("")).replace("/", ".").removesuffix(".__init__")
        for path in SOURCES
    }
    assert {name for name in said["imported"] if name.count(".") > 1} == {
        name for name in modules if name.count(".") > 1
    }
    assert said["strangers"] == []


MODEL = """
    import importlib.util
    import json
    import sys

    import numpy as np
    import triton_python_backend_utils as pb_utils


    def is_here(name):
        return importlib.util.find_spec(name) is not None


    class TritonPythonModel:
        def execute(self, requests):
            facts = {
                "python": list(sys.version_info[:2]),
                "environment": sys.prefix,
                "server's packages": [n for n in ("fastapi", "google", "grpc", "orjson", "uvicorn") if is_here(n)],
            }
            answers = []
            for request in requests:
                array = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
                doubled = pb_utils.Tensor("DOUBLED", array * 2)
                said = pb_utils.Tensor("FACTS", np.array([json.dumps(facts)], dtype=object))
                answers.append(pb_utils.InferenceResponse([doubled, said]))
            return answers
"""

CONFIG = """
    backend: "python"
    input { name: "X" data_type: TYPE_FP32 dims: -1 }
    output { name: "DOUBLED" data_type: TYPE_FP32 dims: -1 }
    output { name: "FACTS" data_type: TYPE_STRING dims: 1 }
"""


SHARING = ("fork", "threads") if sys.platform == "linux" else ("threads",)


def make_server(repository: Path, python: str) -> Server:
    write_model(repository, "facts", MODEL, CONFIG)
    for sharing in SHARING:
        parameter = f'parameters {{ key: "INSTANCE_SHARING" value {{ string_value: "{sharing}" }} }}\n'
        write_model(repository, f"facts_{sharing}", MODEL, f"{CONFIG}{parameter} instance_group {{ count: 2 }}\n")
    workers = WorkerSettings(
        executable=python,
        shm_prefix="bare_environment_test_",
        ring_bytes=1 << 20,
        hello_timeout_s=30,
        ready_timeout_s=30,
    )
    return Server(ServerOptions(repositories=(repository,), workers=workers))


async def ask(server: Server, arrays: list[np.ndarray]) -> list[InferenceResponse]:
    """Load, have each model infer once for each array, stop."""
    try:
        assert await server.load_all(), server.load_table()
        server.start_serving()
        answers = []
        for name in ("facts", *(f"facts_{sharing}" for sharing in SHARING)):
            served = server.find(name, None)
            for array in arrays:
                tensor = Tensor("X", dtypes.FP32, array.shape, array.tobytes())
                answers.append(await PendingAnswer.to(server, served, InferenceRequest(name, None, inputs=[tensor])))
        return answers
    finally:
        assert await server.stop(timeout_s=30)


def test_a_worker_serves_where_there_is_numpy_alone(bare_python: str, tmp_path: Path) -> None:
    """Tensors in the message, in slots and in segments of their own cross between the two Pythons."""
    arrays = [np.arange(count, dtype=np.float32) for count in (4, 5_000, 6_000_000)]
    answers = asyncio.run(ask(make_server(tmp_path, bare_python), arrays))
    assert len(answers) == len(arrays) * (1 + len(SHARING))
    for array, answer in zip(arrays * (1 + len(SHARING)), answers):
        doubled, facts = answer.outputs
        assert doubled.data is not None
        assert np.array_equal(np.frombuffer(doubled.data, np.float32), array * 2)
        assert facts.data is not None
        said = json.loads(bytes(facts.data[4:]))
        assert tuple(said["python"]) == version_of(bare_python)
        assert Path(said["environment"]) == Path(bare_python).parent.parent
        assert said["server's packages"] == []


def test_an_interpreter_without_numpy_is_told_in_the_reason(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "empty", sys.executable)

    async def load() -> tuple[VersionState, str]:
        server = make_server(tmp_path / "repository", python)
        try:
            assert not await server.load_all()
            entry, *_ = await server.repository_index()
            return entry.state, entry.reason
        finally:
            await server.stop(timeout_s=30)

    state, reason = asyncio.run(load())
    assert state is VersionState.UNAVAILABLE
    assert reason.startswith(f"Internal: the worker interpreter '{python}' ended: Traceback")
    assert "ModuleNotFoundError: No module named 'numpy'" in reason


def test_an_interpreter_that_is_not_there_is_told_in_the_reason(tmp_path: Path) -> None:
    python = str(tmp_path / "nowhere" / "python")

    async def load() -> str:
        server = make_server(tmp_path / "repository", python)
        try:
            assert not await server.load_all()
            entry, *_ = await server.repository_index()
            return entry.reason
        finally:
            await server.stop(timeout_s=30)

    assert asyncio.run(load()) == (
        f"Internal: the worker interpreter '{python}' cannot be started: No such file or directory"
    )
