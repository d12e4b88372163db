"""Which environment a model gets, how it comes about, and what is said where it does not."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytriton_lite.config.model_config import ModelConfig, check_for_load, read_model_config
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.engine.environments import Environment, Environments, activation, guard
from pytriton_lite.engine.environments.build import MARKER
from pytriton_lite.engine.environments.requirements import requirements_key
from pytriton_lite.engine.environments.threads import too_many_threads
from pytriton_lite.engine.workers.fork_server import ForkServers
from pytriton_lite.ipc.messages import CONTROL_BYTES
from pytriton_lite.ipc.segment import Segment
from tests.engine.version_kit import wait_until
from tests.environment_kit import (
    make_environment,
    numpy_alone,
    pack,
    python_with_quick_pip,
    write_numpy_wheel,
    write_wheel,
)
from tests.harness import child, write_model

Act = Callable[[Environments], Coroutine[Any, Any, Any]]


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'


def config_of(repository: Path, *parameters: tuple[str, str], name: str = "m", rest: str = "") -> ModelConfig:
    text = 'backend: "python"\n' + "".join(parameter(*pair) for pair in parameters) + rest
    folder = write_model(repository, name, "class TritonPythonModel: pass", text)
    return read_model_config(folder, versions=[1])


def within(act: Act, *, python: str = sys.executable, **options: Any) -> Any:
    """What *act* gives, with environments of a server on *python* that are closed afterwards."""

    async def scenario() -> Any:
        environments = Environments(python, **options)
        try:
            return await act(environments)
        finally:
            await environments.close()

    return asyncio.run(scenario())


def prepare(repository: Path, *parameters: tuple[str, str], **options: Any) -> Environment:
    config = config_of(repository, *parameters)
    prepared: Environment = within(lambda e: e.prepare(config, repository / "m", user=object()), **options)
    return prepared


def refusal(repository: Path, *parameters: tuple[str, str], **options: Any) -> InferenceError:
    with pytest.raises(InferenceError) as refused:
        prepare(repository, *parameters, **options)
    return refused.value


@pytest.fixture(scope="module")
def numpy_from(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return numpy_alone(tmp_path_factory.mktemp("numpy"))


@pytest.fixture(scope="module")
def fine(tmp_path_factory: pytest.TempPathFactory, numpy_from: Path) -> Path:
    """A virtual environment that workers can run in. Copy it before a change."""
    return make_environment(
        tmp_path_factory.mktemp("fine") / "env", numpy_from=numpy_from, modules={"extra": "word = 'here'"}
    )


@pytest.fixture(autouse=True)
def _temporary_files_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


def output_of(environment: Environment, code: str) -> str:
    command = [environment.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def scratches(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "tmp").glob("pytriton_lite_env_*"))


# ------------------------------------------------------------------------------------------ variables


def test_a_model_without_wishes_runs_as_the_server_does(tmp_path: Path) -> None:
    assert prepare(tmp_path) == Environment(sys.executable, dict(os.environ))


def test_a_stub_of_tritons_is_left_alone_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """model_api.md, section 1.1."""
    config = config_of(tmp_path)
    (tmp_path / "m" / "triton_python_backend_stub").write_bytes(b"\x7fELF")

    async def act(environments: Environments) -> list[Environment]:
        return [await environments.prepare(config, tmp_path / "m", user=object()) for _ in range(2)]

    assert within(act) == [Environment(sys.executable, dict(os.environ))] * 2
    (message,) = caplog.messages
    assert message.startswith("model 'm' has a triton_python_backend_stub, which is not used")


def test_parameters_set_variables_of_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOTH", "of the server")
    prepared = prepare(tmp_path, ("ENV:OMP_NUM_THREADS", "2"), ("ENV:BOTH", "of the model"), ("ENV:EMPTY", ""))
    assert prepared.variables == {**os.environ, "OMP_NUM_THREADS": "2", "BOTH": "of the model", "EMPTY": ""}


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "'' is no name of a variable, expected letters, digits and underscores, the first of them no digit"),
        ("1A", "'1A' is no name of a variable"),
        ("A=B", "'A=B' is no name of a variable"),
        ("Ä", "'Ä' is no name of a variable"),
        ("PYTHONHOME", "PYTHONHOME is set by the server; choose an environment with EXECUTION_ENV_PATH"),
        ("VIRTUAL_ENV", "VIRTUAL_ENV is set by the server"),
        ("PYTRITON_LITE_HTTP_PORT", "variables that begin with PYTRITON_LITE_ are options of the server"),
    ],
)
def test_a_variable_that_cannot_be_set_is_refused(name: str, problem: str, tmp_path: Path) -> None:
    error = refusal(tmp_path, (f"ENV:{name}", "1"))
    assert error.code is ErrorCode.INVALID_ARG
    assert error.message.startswith(f"parameter 'ENV:{name}' of model 'm': {problem}")


# ------------------------------------------------------------------------------------------ a folder


def test_an_environment_in_a_folder_brings_its_interpreter_and_its_variables(
    fine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """model_api.md, 7.1."""
    monkeypatch.setenv("PYTHONHOME", sys.base_prefix)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/of/the/server")
    env = tmp_path / "env"
    shutil.copytree(fine, env, symlinks=True)
    with (env / "bin" / "activate").open("a") as script:
        script.write("echo noise; export EXPORTED='two\nlines'; export CHANGED=script; unset GONE\n")
    monkeypatch.setenv("GONE", "x")
    prepared = prepare(
        tmp_path, ("EXECUTION_ENV_PATH", str(env)), ("ENV:CHANGED", "model"), ("ENV:PATH", "/of/the/model")
    )
    assert prepared.executable == str(env / "bin" / "python")
    assert prepared.variables["PATH"] == f"{env}/bin:/of/the/model"
    assert prepared.variables["LD_LIBRARY_PATH"] == "/of/the/server"
    assert prepared.start_variables == {**prepared.variables, "LD_LIBRARY_PATH": f"{env}/lib:/of/the/server"}
    assert prepared.variables["VIRTUAL_ENV"] == str(env)
    assert prepared.variables["EXPORTED"] == "two\nlines"
    assert prepared.variables["CHANGED"] == "model"
    assert not {"PYTHONHOME", "GONE"} & set(prepared.variables)
    assert prepared.variables.get("PWD") == os.environ.get("PWD")


def test_the_path_may_begin_with_the_directory_of_the_model_and_be_a_link(fine: Path, tmp_path: Path) -> None:
    config = config_of(tmp_path, ("EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY/mine"))
    (tmp_path / "m" / "mine").symlink_to(fine)
    prepared: Environment = within(lambda e: e.prepare(config, tmp_path / "m", user=object()))
    assert prepared.executable == str(fine.resolve() / "bin" / "python")


def test_the_path_is_logged_as_it_was_meant(fine: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pytriton_lite"):
        prepare(tmp_path, ("EXECUTION_ENV_PATH", str(fine)))
    assert f"Using Python execution env {fine}" in caplog.messages
    assert any(message.startswith(f"{fine}/bin/python is Python {sys.version_info[0]}.") for message in caplog.messages)


def test_a_path_that_is_not_there_has_tritons_text(tmp_path: Path) -> None:
    """model_api.md row 19."""
    error = refusal(tmp_path, ("EXECUTION_ENV_PATH", "/not/there.tar.gz"))
    assert (error.code, error.message) == (
        ErrorCode.INTERNAL,
        "Failed to get the canonical path for /not/there.tar.gz.",
    )


def test_a_folder_without_a_script_has_tritons_text(tmp_path: Path) -> None:
    """model_api.md row 20."""
    error = refusal(tmp_path, ("EXECUTION_ENV_PATH", str(tmp_path)))
    assert error.message == (
        f"Path {tmp_path}/bin/activate does not exist. The Python environment should contain an 'activate' script."
    )


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        ("exit 3", "it exited with code 3"),
        ("exit 0", "it ended the shell"),
        ("echo no such thing >&2; exit 1", "it exited with code 1:\nno such thing"),
        ('export A=1; read word < "$PIPE"', "it did not end within 0.5 s"),
    ],
)
def test_a_script_that_fails_costs_a_warning_and_its_variables_alone(
    line: str,
    warning: str,
    fine: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = tmp_path / "env"
    shutil.copytree(fine, env, symlinks=True)
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setenv("PIPE", str(tmp_path / "pipe"))
    monkeypatch.setattr(activation, "_ACTIVATE_S", 0.5 if "PIPE" in line else 30.0)
    (env / "bin" / "activate").write_text(f"export A=1\n{line}\n")
    prepared = prepare(tmp_path, ("EXECUTION_ENV_PATH", str(env)))
    assert f"{env}/bin/activate has no effect on workers: {warning}" in caplog.messages
    assert prepared.executable == str(env / "bin" / "python")
    assert "A" not in prepared.variables


# ------------------------------------------------------------------------------------------ interpreters


def environment_with(tmp_path: Path, interpreter: str) -> Path:
    """An environment whose ``bin/python`` is a shell script; none for ""."""
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "activate").touch()
    if interpreter:
        python = tmp_path / "env" / "bin" / "python"
        python.write_text(f"#!/bin/sh\n{interpreter}\n")
        python.chmod(0o755)
    return tmp_path / "env"


OLD = """echo 'noise'; printf '{"version": [3, 9, 1], "numpy": "1.0", "problem": ""}'"""


@pytest.mark.parametrize(
    ("interpreter", "text"),
    [
        ("", "cannot run models: it is not there, or cannot be executed; expected Python 3.10 or later with numpy"),
        (OLD, "cannot run models: it is Python 3.9.1; expected Python 3.10 or later with numpy"),
        ("echo broken >&2; exit 5", "does not run: it exited with code 5:\nbroken"),
        ("kill -9 $$", "does not run: it exited with code 137"),
        ("echo 3.11", "does not run: it exited with code 0"),
    ],
)
def test_an_interpreter_that_cannot_run_models_is_named_with_what_it_is(
    interpreter: str, text: str, tmp_path: Path
) -> None:
    env = environment_with(tmp_path, interpreter)
    error = refusal(tmp_path, ("EXECUTION_ENV_PATH", str(env)))
    assert (error.code, error.message) == (ErrorCode.INTERNAL, f"the interpreter '{env}/bin/python' {text}")


def test_an_interpreter_without_numpy_is_named_until_it_has_it(numpy_from: Path, tmp_path: Path) -> None:
    env = make_environment(tmp_path / "env", numpy_from=None)
    config = config_of(tmp_path, ("EXECUTION_ENV_PATH", str(env)))

    async def act(environments: Environments) -> str:
        with pytest.raises(InferenceError) as refused:
            await environments.prepare(config, tmp_path / "m", user=object())
        (packages,) = env.glob("lib/python3.*/site-packages")
        (packages / "numpy.pth").write_text(f"{numpy_from}\n")
        await environments.prepare(config, tmp_path / "m", user=object())
        return refused.value.message

    version = ".".join(map(str, sys.version_info[:3]))
    assert within(act) == (
        f"the interpreter '{env}/bin/python' cannot run models: it is Python {version}, and numpy cannot be imported: "
        "ModuleNotFoundError: No module named 'numpy'; expected Python 3.10 or later with numpy"
    )


# ------------------------------------------------------------------------------------------ archives


def test_an_archive_is_unpacked_once_for_all_models_until_it_changes(fine: Path, tmp_path: Path) -> None:
    archive = pack(fine, tmp_path / "env.tar.gz")
    configs = [config_of(tmp_path, ("EXECUTION_ENV_PATH", str(archive)), name=name) for name in ("m", "n")]

    async def act(environments: Environments) -> list[str]:
        both = await asyncio.gather(
            *(environments.prepare(config, tmp_path / config.name, user=object()) for config in configs)
        )
        before = [*both, await environments.prepare(configs[0], tmp_path / "m", user=object())]
        os.utime(archive, (1, 1))
        after = await environments.prepare(configs[0], tmp_path / "m", user=object())
        (scratch,) = scratches(tmp_path)
        assert scratch.stat().st_mode & 0o077 == 0, "private"
        assert await asyncio.to_thread(output_of, after, "import extra; print(extra.word)") == "here"
        return [environment.executable for environment in [*before, after]]

    first, second, third, changed = within(act)
    assert first == second == third != changed
    assert scratches(tmp_path) == []


def test_whoever_asks_in_the_moment_when_an_archive_is_unpacked_has_it_too(fine: Path, tmp_path: Path) -> None:
    """Somebody asks in every turn of the loop, so that there is none in which the work is neither under way nor done."""
    config = config_of(tmp_path, ("EXECUTION_ENV_PATH", str(pack(fine, tmp_path / "env.tar.gz"))))

    async def act(environments: Environments) -> set[str]:
        asked = [asyncio.ensure_future(environments.prepare(config, tmp_path / "m", user=object()))]
        while not asked[0].done():
            asked.append(asyncio.ensure_future(environments.prepare(config, tmp_path / "m", user=object())))
            await asyncio.sleep(0)
        return {environment.executable for environment in await asyncio.gather(*asked)}

    assert len(within(act)) == 1


def test_what_was_unpacked_is_removed_behind_its_last_user(fine: Path, tmp_path: Path) -> None:
    config = config_of(tmp_path, ("EXECUTION_ENV_PATH", str(pack(fine, tmp_path / "env.tar.gz"))))

    async def act(environments: Environments) -> None:
        async def folder_of(user: str) -> Path:
            return Path((await environments.prepare(config, tmp_path / "m", user=user)).executable).parent.parent

        folder, same = await asyncio.gather(folder_of("first"), folder_of("second"))
        assert folder == same
        environments.release("first")
        environments.hand_over("second", "third")
        environments.release("second")
        assert await folder_of("fourth") == folder
        environments.release("third")
        environments.release("fourth")
        fresh = await folder_of("fifth")
        assert fresh != folder and (fresh / "bin" / "python").exists(), "it asked while the other one was being removed"
        await wait_until(lambda: not folder.exists())
        environments.release("somebody else")
        assert (fresh / "bin" / "python").exists()

    within(act)


def test_a_refused_archive_says_why_and_leaves_nothing(fine: Path, tmp_path: Path) -> None:
    archive = tmp_path / "env.tar.gz"
    archive.write_bytes(b"no archive")
    config = config_of(tmp_path, ("EXECUTION_ENV_PATH", str(archive)))

    async def act(environments: Environments) -> str:
        with pytest.raises(InferenceError) as refused:
            await environments.prepare(config, tmp_path / "m", user=object())
        (scratch,) = scratches(tmp_path)
        assert list(scratch.iterdir()) == []
        # The same file, mended: a failure is not remembered.
        times = archive.stat()
        pack(fine, archive)
        os.utime(archive, ns=(times.st_atime_ns, times.st_mtime_ns))
        await environments.prepare(config, tmp_path / "m", user=object())
        return refused.value.message

    assert within(act) == (
        f"the environment {archive} cannot be unpacked: it is damaged, or no tar archive: file could not be opened "
        "successfully: - method gz: ReadError('not a gzip file') - method bz2: ReadError('not a bzip2 file') - method xz: "
        "ReadError('not an lzma file') - method tar: ReadError('truncated header')"
    )


def test_what_conda_pack_wrote_is_given_its_new_path(
    fine: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its script is run by the environment's interpreter and finds the module beside it."""
    env = tmp_path / "env"
    shutil.copytree(fine, env, symlinks=True)
    (env / "bin" / "conda_unpack_progress.py").write_text("text = 'prefix {}'")
    script = env / "bin" / "conda-unpack"
    script.write_text(
        "#!/usr/bin/env no-such-interpreter\n"
        "import os, sys, conda_unpack_progress\n"
        "prefix = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))\n"
        "open(prefix + '/fixed', 'w').write(conda_unpack_progress.text.format(prefix) + sys.prefix)\n"
        "sys.exit('not all of it')\n"
    )
    config = config_of(tmp_path, ("EXECUTION_ENV_PATH", str(pack(env, tmp_path / "env.tar.gz"))))

    async def act(environments: Environments) -> None:
        folder = Path((await environments.prepare(config, tmp_path / "m", user=object())).executable).parent.parent
        assert (folder / "fixed").read_text() == f"prefix {folder}{folder}"
        assert f"{folder}/bin/conda-unpack: it exited with code 1:\nnot all of it" in caplog.messages

    within(act)


def test_what_a_killed_server_left_is_removed_and_what_another_uses_is_not(fine: Path, tmp_path: Path) -> None:
    left, used = tmp_path / "tmp" / "pytriton_lite_env_left", tmp_path / "tmp" / "pytriton_lite_env_used"
    (left / "1").mkdir(parents=True)
    (used / "1").mkdir(parents=True)
    lock = os.open(used, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        prepare(tmp_path, ("EXECUTION_ENV_PATH", str(pack(fine, tmp_path / "env.tar.gz"))))
    finally:
        os.close(lock)
    assert scratches(tmp_path) == [used]


# ------------------------------------------------------------------------------------------ requirements


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory, numpy_from: Path) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    write_numpy_wheel(folder, numpy_from)
    write_wheel(folder, "tiny", {"tiny.py": "word = 'installed'"})
    return folder


@pytest.fixture(params=["pip", "uv"])
def installer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The one of the two that is found on the PATH; pip is found in the environment itself."""
    uv = shutil.which("uv")
    if request.param == "uv":
        if uv is None:
            pytest.skip("uv is not installed here")
    else:
        monkeypatch.setenv("PATH", os.defpath)
        if shutil.which("uv"):
            pytest.skip("uv is in a place where every program is found")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    name: str = request.param
    return name


@pytest.fixture
def with_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """An interpreter, which builds environments with pip."""
    monkeypatch.setenv("PATH", os.defpath)
    return python_with_quick_pip(tmp_path / "python")


def write_requirements(repository: Path, text: str, name: str = "m") -> Path:
    folder = repository / name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "requirements.txt"
    path.write_text(text)
    return path


def allowed(tmp_path: Path) -> dict[str, Any]:
    return {"allow_requirements": True, "cache_directory": tmp_path / "cache"}


def word_in(environment: Environment) -> str:
    return output_of(environment, "import numpy, tiny; print(tiny.word)")


def test_requirements_become_an_environment_with_numpy_that_is_used_again(
    installer: str, wheels: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "pytriton_lite")
    monkeypatch.setenv("PYTHONPATH", str(Path(pytest.__file__).parent.parent))  # no package of the server's counts
    path = write_requirements(tmp_path, f"--no-index\n--find-links {wheels.as_uri()}\ntiny  # no numpy\n")
    first = prepare(tmp_path, **allowed(tmp_path))
    assert Path(first.executable).is_relative_to(tmp_path / "cache")
    assert word_in(first) == "installed"
    assert f"{path}: adding numpy, which every worker needs" in caplog.messages
    assert any("tiny" in message for message in caplog.messages if message.startswith(f"{path}: ")), "progress"

    caplog.clear()
    assert prepare(tmp_path, **allowed(tmp_path)).executable == first.executable
    assert [message for message in caplog.messages if "building" in message] == []


def test_modules_beside_the_requirements_are_not_taken_for_those_of_the_installer(
    wheels: Path, tmp_path: Path, with_pip: str
) -> None:
    path = write_requirements(tmp_path, f"--no-index\n--find-links {wheels.as_uri()}\ntiny\n")
    for name in ("types", "tokenize", "numpy"):  # of venv, of pip, and of the look for numpy
        path.with_name(f"{name}.py").write_text("raise RuntimeError('taken for another one')")
    assert word_in(prepare(tmp_path, python=with_pip, **allowed(tmp_path))) == "installed"


LINKS = """
import os, zipfile

def build_editable(folder, *_, **__):
    name, info = "helper-1.0-py3-none-any.whl", "helper-1.0.dist-info"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("helper.pth", os.getcwd())
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: helper\\nVersion: 1.0\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "".join(f"{each},,\\n" for each in ("helper.pth", f"{info}/METADATA")))
    return name
"""
IN_TREE = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def test_an_environment_that_refers_to_a_folder_is_not_that_of_a_copy_elsewhere(
    wheels: Path, tmp_path: Path, with_pip: str
) -> None:
    path = write_requirements(tmp_path, f"--no-index\n--find-links {wheels.as_uri()}\ntiny\nnumpy\n-e ./helper\n")
    folder = path.with_name("helper")
    folder.mkdir()
    (folder / "pyproject.toml").write_text(IN_TREE)
    (folder / "backend.py").write_text(LINKS)
    (folder / "helper.py").write_text("")
    prepare(tmp_path, python=with_pip, **allowed(tmp_path))
    shutil.move(tmp_path / "m", tmp_path / "moved" / "m")
    moved = prepare(tmp_path / "moved", python=with_pip, **allowed(tmp_path))
    assert output_of(moved, "import helper; print(helper.__file__)") == str(
        tmp_path / "moved" / "m" / "helper" / "helper.py"
    )


def test_an_environment_of_requirements_that_is_not_complete_is_built_again(
    installer: str, wheels: Path, tmp_path: Path
) -> None:
    python = sys.executable if installer == "uv" else python_with_quick_pip(tmp_path / "python")
    write_requirements(tmp_path, f"--no-index\n--find-links {wheels.as_uri()}\ntiny\nnumpy\n")
    first = prepare(tmp_path, python=python, **allowed(tmp_path))
    folder = Path(first.executable).parent.parent
    (folder / MARKER).unlink()
    (folder / "half").touch()
    again = prepare(tmp_path, python=python, **allowed(tmp_path))
    assert again.executable == first.executable
    assert word_in(again) == "installed"
    assert not (folder / "half").exists()
    assert (folder / MARKER).exists()


def test_a_requirements_file_elsewhere_is_named_by_a_parameter(wheels: Path, tmp_path: Path, with_pip: str) -> None:
    """Two servers that want it at once build it once."""
    (tmp_path / "common.txt").write_text(f"--no-index\n--find-links {wheels.as_uri()}\ntiny\nnumpy\n")
    config = config_of(tmp_path, ("REQUIREMENTS", "../common.txt"))

    async def act(one: Environments) -> list[Environment]:
        other = Environments(with_pip, **allowed(tmp_path))
        try:
            return await asyncio.gather(*(e.prepare(config, tmp_path / "m", user=object()) for e in (one, other, one)))
        finally:
            await other.close()

    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("pytriton_lite")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        prepared = within(act, python=with_pip, **allowed(tmp_path))
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    assert {word_in(environment) for environment in prepared} == {"installed"}
    assert len([line for line in lines if "Successfully installed" in line]) == 1


def test_requirements_that_do_not_resolve_are_told_in_the_installers_words(
    installer: str, wheels: Path, tmp_path: Path
) -> None:
    path = write_requirements(tmp_path, f"--no-index\n--find-links {wheels.as_uri()}\nno-such-package==9\n")
    python = sys.executable if installer == "uv" else python_with_quick_pip(tmp_path / "python")
    error = refusal(tmp_path, python=python, **allowed(tmp_path))
    assert error.code is ErrorCode.INTERNAL
    assert error.message.startswith(f"the environment of {path} cannot be built: the installer exited with code 1:\n")
    assert "no-such-package" in error.message
    assert error.message.splitlines()[-1].endswith(": exited with code 1")
    assert not list((tmp_path / "cache").glob(f"*/{MARKER}"))


def test_a_cache_that_cannot_be_written_is_named_with_its_flag(wheels: Path, tmp_path: Path) -> None:
    write_requirements(tmp_path, "tiny\n")
    (tmp_path / "cache").touch()
    error = refusal(tmp_path, **allowed(tmp_path))
    assert f"'{tmp_path}/cache'; --environment-cache-directory chooses another place" in error.message


def test_requirements_are_not_installed_unless_that_is_allowed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_requirements(tmp_path, "tiny\n")
    config = config_of(tmp_path)

    async def act(environments: Environments) -> list[Environment]:
        return [await environments.prepare(config, tmp_path / "m", user=object()) for _ in range(2)]

    assert {environment.executable for environment in within(act)} == {sys.executable}
    assert caplog.messages == [
        "model 'm' has a requirements.txt, which is not installed: it runs with the server's own packages. "
        "--allow-requirements=true builds an environment of its own for it."
    ]


@pytest.mark.parametrize(
    ("parameters", "is_allowed", "code", "text"),
    [
        (
            (("REQUIREMENTS", "r.txt"),),
            False,
            ErrorCode.UNSUPPORTED,
            "model 'm' asks with its parameter REQUIREMENTS for an environment of its own, and this server is not allowed "
            "to build any; --allow-requirements=true allows it",
        ),
        (
            (("REQUIREMENTS", "r.txt"),),
            True,
            ErrorCode.INVALID_ARG,
            "parameter REQUIREMENTS of model 'm' names 'r.txt', and there is no file {folder}/r.txt",
        ),
        (
            (("REQUIREMENTS", "r.txt"), ("EXECUTION_ENV_PATH", "/env")),
            True,
            ErrorCode.INVALID_ARG,
            "model 'm' has both parameters EXECUTION_ENV_PATH and REQUIREMENTS, expected one of them",
        ),
    ],
)
def test_a_wish_for_requirements_that_cannot_be_met_is_refused(
    parameters: tuple[tuple[str, str], ...], is_allowed: bool, code: ErrorCode, text: str, tmp_path: Path
) -> None:
    error = refusal(tmp_path, *parameters, allow_requirements=is_allowed)
    assert (error.code, error.message) == (code, text.format(folder=tmp_path / "m"))


def test_an_environment_of_its_own_goes_before_a_requirements_file(fine: Path, tmp_path: Path) -> None:
    write_requirements(tmp_path, "tiny\n")
    prepared = prepare(tmp_path, ("EXECUTION_ENV_PATH", str(fine)), **allowed(tmp_path))
    assert prepared.executable == f"{fine}/bin/python"


BLOCKING_BACKEND = """
import os, pathlib
def build_wheel(*_, **__):
    pipe = open(pathlib.Path(__file__).parent / "pipe", "w")  # opened when the test reads
    pipe.write("building\\n")
    pipe.flush()
    open(pathlib.Path(__file__).parent / "never").read()
"""


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[Path]:
    """Requirements whose build does not end; where it says that it has begun."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "endless"\nversion = "1"\n'
    )
    (source / "backend.py").write_text(BLOCKING_BACKEND)
    wheels = write_wheel(tmp_path / "elsewhere", "unused", {}).parent
    path = write_requirements(tmp_path, f"--no-index\n--find-links {wheels.as_uri()}\nendless @ {source.as_uri()}\n")
    assert path.exists()
    yield source


def test_who_gives_up_or_closes_ends_the_installer_and_all_it_started(
    endless: Path, with_pip: str, tmp_path: Path
) -> None:
    for name in ("pipe", "never"):
        os.mkfifo(endless / name)
    config = config_of(tmp_path)

    async def act(environments: Environments) -> str:
        load = asyncio.ensure_future(environments.prepare(config, tmp_path / "m", user=object()))
        reading = asyncio.ensure_future(asyncio.to_thread(open, endless / "pipe"))
        await asyncio.wait([load, reading], return_when=asyncio.FIRST_COMPLETED, timeout=120)
        if not reading.done():  # nobody has opened its other end
            os.close(os.open(endless / "pipe", os.O_WRONLY | os.O_NONBLOCK))
        with await reading as pipe:
            begun = await asyncio.to_thread(pipe.readline)
            await environments.close()
            with pytest.raises(InferenceError, match="Server is stopping"):
                await load
            return begun + await asyncio.to_thread(pipe.read)  # to its end, which is that of the last who had it open

    # pip copies the folder it builds from, but not its pipes; so it is told where they are.
    backend = endless / "backend.py"
    backend.write_text(BLOCKING_BACKEND.replace("pathlib.Path(__file__).parent", f"pathlib.Path({str(endless)!r})"))
    assert within(act, python=with_pip, **allowed(tmp_path)) == "building\n"


RUN_SOMETHING = """
import asyncio, os, sys
from pytriton_lite.engine.environments.commands import run
asyncio.run(run(["/bin/sh", "-c", sys.argv[1]], variables=dict(os.environ), timeout_s=3600))
"""


def test_a_command_and_all_it_started_end_with_a_server_that_is_killed(tmp_path: Path) -> None:
    for name in ("pipe", "never"):
        os.mkfifo(tmp_path / name)
    # Two processes, both of which hold the pipe open and wait.
    shell = "exec > pipe; echo begun; (read word < never) & read word < never"
    server = subprocess.Popen([sys.executable, "-c", RUN_SOMETHING, shell], cwd=tmp_path)
    try:
        with (tmp_path / "pipe").open() as pipe:
            assert pipe.readline() == "begun\n"
            server.kill()
            assert pipe.read() == "", "its end, which is that of the last who had it open"
    finally:
        server.kill()
        server.wait()


GUARD_WITHOUT_WAITID = """
import os, runpy, sys
for name in ("waitid", "P_ALL", "P_PID", "P_PGID"):
    delattr(os, name)
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_what_a_command_started_ends_with_it_where_python_has_no_waitid(tmp_path: Path) -> None:
    """As on macOS before Python 3.13."""
    for name in ("pipe", "never"):
        os.mkfifo(tmp_path / name)
    shell = "exec > pipe; (echo begun; read word < never) & exit 3"
    order = {"command": ["/bin/sh", "-c", shell], "variables": dict(os.environ)}
    command = [sys.executable, "-I", "-S", "-c", GUARD_WITHOUT_WAITID, guard.__file__]
    with child(command, cwd=tmp_path, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
        with (tmp_path / "pipe").open() as pipe:
            assert process.wait(30) == 3
            assert pipe.read() in ("begun\n", ""), "its end, which is that of the last who had it open"


# ------------------------------------------------------------------------------------------ the key of requirements


def key(path: Path, **changes: str) -> str:
    facts = {"python": sys.executable, "version": "3.11.7", "platform": "linux-x86_64"}
    return requirements_key(path, **{**facts, **changes})


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Requirements that say what they want in every way, and what they refer to."""
    for name in ("own", "edited", "links", "at", "with space"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "code.py").write_text("1")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "more.txt").write_text("./further[all]\n-r ../requirements.txt\n")
    (tmp_path / "deep" / "further").mkdir()
    (tmp_path / "deep" / "further" / "code.py").write_text("1")
    (tmp_path / "pins.txt").write_text("b==1\n")
    (tmp_path / "x-1.0-py3-none-any.whl").write_text("1")
    return write_requirements(
        tmp_path,
        "a==1 ; python_version > '3'\n-r deep/more.txt\n--constraint=pins.txt\n-e ./edited  # a comment\n./own \\\n  \n"
        f"--find-links links\nat @ file://{tmp_path}/at\nfile:{tmp_path}/with%20space\nx-1.0-py3-none-any.whl\n"
        "git+https://example.invalid/a/b\n--index-url https://example.invalid/simple\n",
        name=".",
    )


@pytest.mark.parametrize(
    "changed",
    [
        "requirements.txt",
        "deep/more.txt",
        "deep/further/code.py",
        "pins.txt",
        "own/code.py",
        "own/new.py",
        "edited/code.py",
        "links/code.py",
        "at/code.py",
        "with space/code.py",
        "x-1.0-py3-none-any.whl",
    ],
)
def test_the_key_changes_with_whatever_the_requirements_refer_to(many: Path, changed: str) -> None:
    before = key(many)
    assert key(many) == before
    with (many.parent / changed).open("a") as file:
        file.write("\n2")
    assert key(many) != before


def test_the_key_does_not_change_with_what_a_build_leaves_behind(many: Path) -> None:
    before = key(many)
    for name in ("build/lib/x.py", "own.egg-info/PKG-INFO", "__pycache__/code.pyc"):
        path = many.parent / "own" / name
        path.parent.mkdir(parents=True)
        path.write_text("1")
    assert key(many) == before


def test_the_key_does_not_change_with_a_link_to_nowhere(many: Path) -> None:
    """With it Emacs says that somebody has a file open."""
    before = key(many)
    (many.parent / "own" / ".#code.py").symlink_to("somebody@host.123:456")
    assert key(many) == before


@pytest.mark.parametrize("change", [{"python": "/bin/sh"}, {"version": "3.11.8"}, {"platform": "linux-aarch64"}])
def test_the_key_changes_with_the_interpreter_and_the_machine(many: Path, change: dict[str, str]) -> None:
    assert key(many, **change) != key(many)


# ------------------------------------------------------------------------------------------ threads


@pytest.mark.parametrize(
    ("instances", "variables", "cores", "says"),
    [
        (1, {}, 8, ""),
        (2, {}, 1, ""),
        (
            2,
            {},
            8,
            "2 instances with 8 threads each (OMP_NUM_THREADS is not set, so that libraries take one for each core)",
        ),
        (2, {"OMP_NUM_THREADS": "4"}, 8, ""),
        (3, {"OMP_NUM_THREADS": "4"}, 8, "3 instances with 4 threads each (OMP_NUM_THREADS is 4)"),
        (16, {"OMP_NUM_THREADS": "1"}, 8, ""),
        (3, {"OMP_NUM_THREADS": "4,2"}, 8, "3 instances with 4 threads each (OMP_NUM_THREADS is 4,2)"),
        (2, {"OMP_NUM_THREADS": "many"}, 8, "2 instances with 8 threads each (OMP_NUM_THREADS is many)"),
    ],
)
def test_instances_that_get_in_each_others_way_are_advised(
    instances: int, variables: dict[str, str], cores: int, says: str
) -> None:
    advice = too_many_threads("m", instances=instances, variables=variables, cores=cores)
    if not says:
        assert advice == ""
        return
    assert advice.startswith(f"model 'm': {says} are more than the {cores} cores of this machine.")
    assert f'"ENV:OMP_NUM_THREADS" value: {{ string_value: "{cores // instances}" }}' in advice


def test_a_bound_model_is_advised_of_what_its_program_can_do() -> None:
    advice = too_many_threads("m", instances=2, variables={}, cores=8, is_bound=True)
    assert "OMP_NUM_THREADS=4 for the program" in advice and "torch.set_num_threads(4)" in advice
    assert "ENV:" not in advice and "config.pbtxt" not in advice


def test_instances_of_one_process_are_not_advised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rest = """instance_group { count: 2 kind: KIND_CPU }
        parameters { key: "INSTANCE_SHARING" value { string_value: "threads" } }"""
    config = config_of(tmp_path, ("ENV:OMP_NUM_THREADS", "100000"), rest=rest)
    config = check_for_load(config, model_dir=tmp_path / "m", gpu_ids=())

    async def act(environments: Environments) -> None:
        environments.advise(config, await environments.prepare(config, tmp_path / "m", user=object()))

    within(act)
    assert caplog.messages == []


def test_the_advice_is_given_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = config_of(tmp_path, ("ENV:OMP_NUM_THREADS", "100000"), rest="instance_group { count: 2 kind: KIND_CPU }")
    config = check_for_load(config, model_dir=tmp_path / "m", gpu_ids=())

    async def act(environments: Environments) -> None:
        for _ in range(2):
            environments.advise(config, await environments.prepare(config, tmp_path / "m", user=object()))

    within(act)
    assert [message.partition(" (")[0] for message in caplog.messages] == [
        "model 'm': 2 instances with 100000 threads each"
    ]


# ------------------------------------------------------------------------------------------ fork servers


def has_ended(pid: int) -> bool:
    """Wait for it."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        pass  # and whoever started it has seen it
    return True


def test_a_fork_server_is_shared_within_an_environment_and_ends_when_nobody_needs_it() -> None:
    async def scenario() -> None:
        servers = ForkServers(idle_s=0.0)
        ours, theirs = socket.socketpair()
        control = Segment.create(CONTROL_BYTES, prefix="pytriton_lite_test_")
        null = os.open(os.devnull, os.O_RDWR)
        try:
            plain = Environment(sys.executable, dict(os.environ))
            first = servers.get(plain)
            assert servers.get(Environment(sys.executable, dict(os.environ))) is first
            assert servers.get(Environment(sys.executable, {**os.environ, "A": "1"})) is not first
            descriptor = theirs.fileno()
            _, exited = await first.spawn([descriptor, descriptor, control.fd, null, null])
            # It lives until we hang up; the times of the fork servers that nobody asked for are over by now.
            assert await asyncio.to_thread(ours.recv, 1)
            assert servers.get(plain) is first
            theirs.close()
            ours.close()
            await asyncio.wait_for(exited, 30)
            assert await asyncio.wait_for(asyncio.to_thread(has_ended, first.pid), 30)
            assert servers.get(plain) is not first
        finally:
            servers.close()
            control.close()
            os.close(null)

    asyncio.run(scenario())
