"""What a user installs: the wheel, in an environment of its own, as an ordinary user, and the steps of the Dockerfile."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import MODEL_REPOSITORY, PROJECT, RunningServer, tensor

DOCKERFILE = (PROJECT / "Dockerfile").read_text()
ORDINARY_USER = 65534
SOURCES = ("pytriton_lite", "model_api")
PACKAGES = ("pytriton_lite", "triton_python_backend_utils", "c_python_backend_utils")


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """A clean environment with the wheel and what its ``examples`` extra brings, outside the checkout; its folder.

    No folder of pytest's, which every run of it makes its owner's alone again, in the middle of somebody's import.
    """
    umask = os.umask(0o022)  # the ordinary user has to read it
    try:
        with tempfile.TemporaryDirectory(prefix="pytriton_lite_installed_") as name:
            install(Path(name))
            yield Path(name)
    finally:
        os.umask(umask)


def install(folder: Path) -> None:
    """Build the wheel into *folder*, and install it there; what it is built from is gone afterwards."""
    # The copy keeps build artefacts out of the checkout; the image is built from the same files.
    source = folder / "src"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, source)
    for name in SOURCES:
        shutil.copytree(PROJECT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    run([sys.executable, "-m", "build", "--wheel", "--outdir", str(folder / "dist"), str(source)])
    (wheel,) = (folder / "dist").glob("*.whl")
    environment = str(folder / "env")
    run([interpreter(), "-m", "venv", "--without-pip", environment])
    # Most of what is installed is never imported: to compile it all takes longer than to compile what is, several times.
    packages = ["install", "--quiet", "--no-compile", f"{wheel}[examples]"]
    run([sys.executable, "-m", "pip", "--python", environment, *packages])
    shutil.rmtree(source)
    shutil.copytree(MODEL_REPOSITORY, folder / "models", ignore=shutil.ignore_patterns("__pycache__"))
    make_readable(folder)


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def make_readable(folder: Path) -> None:
    """Let an ordinary user in: temporary folders are for their owner alone."""
    for parent in [folder, *folder.parents]:
        if os.stat(parent).st_uid == os.getuid():
            parent.chmod(parent.stat().st_mode | 0o055)


def interpreter() -> str:
    """A Python that an ordinary user may run: ours, unless it lies in somebody's home."""
    for candidate in (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin")):
        real = os.path.realpath(candidate or "")
        command = [real, "-c", "import sys; sys.exit(sys.version_info < (3, 10))"]
        try:
            done = subprocess.run(command, capture_output=True, user=ordinary_user(), cwd="/")
        except PermissionError:
            continue
        if candidate and done.returncode == 0:
            return candidate
    pytest.skip("no Python 3.10 or later is to be had here that an ordinary user may run")


def ordinary_user() -> int | None:
    """The number of an ordinary user to become; None where we are one."""
    return ORDINARY_USER if os.getuid() == 0 else None


def test_the_wheel_serves_a_copy_of_the_model_repository_as_an_ordinary_user(installed: Path) -> None:
    python = (str(installed / "env/bin/python"),)
    environ = {"PYTHONPATH": ""}  # on which the checkout may be
    with RunningServer(
        installed / "models", environ=environ, python=python, cwd=installed, user=ordinary_user()
    ) as server:
        assert "| READY" in server.log
        assert str(PROJECT / "pytriton_lite") not in server.log
        owner = Path(f"/proc/{server.process.pid}").stat().st_uid
        assert owner == (ORDINARY_USER if os.getuid() == 0 else os.getuid())
        reply = server.infer(
            "add_sub", [tensor("INPUT0", "FP32", [4], [1, 2, 3, 4]), tensor("INPUT1", "FP32", [4], [4, 3, 2, 1])]
        )
        assert [output["data"] for output in reply.json["outputs"]] == [[5.0] * 4, [-3.0, -1.0, 1.0, 3.0]]
        check_health(server)


def check_health(server: RunningServer) -> None:
    """Run the HEALTHCHECK of the Dockerfile, as it stands there, against *server*."""
    found = re.search(r"HEALTHCHECK .*?\n\s+CMD (\[.*\])", DOCKERFILE)
    assert found is not None
    command = json.loads(found.group(1))
    command[0] = sys.executable
    # Docker gives containers the proxy of its configuration.
    environ = {**os.environ, "http_proxy": "http://127.0.0.1:9", "no_proxy": ""}
    ready = subprocess.run(command, env={**environ, "PYTRITON_LITE_HTTP_PORT": str(server.http_port)}, timeout=60)
    assert ready.returncode == 0
    nobody = subprocess.run(command, env={**environ, "PYTRITON_LITE_HTTP_PORT": "9"}, capture_output=True, timeout=60)
    assert nobody.returncode != 0


def test_the_dockerfile_uses_a_slim_base_an_ordinary_user_and_the_wheel() -> None:
    assert re.search(r"^ARG PYTHON=3\.\d+$", DOCKERFILE, re.MULTILINE)
    assert re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE) == ["python:${PYTHON}-slim"] * 2
    assert re.search(r"^USER [1-9]\d*$", DOCKERFILE, re.MULTILINE)
    assert "RUN HATCH_BUILD_HOOKS_ENABLE=true python -m build --wheel" in DOCKERFILE
    assert "/v2/health/ready" in DOCKERFILE


def test_the_dockerfile_takes_extras_that_there_are() -> None:
    # Without theirs, remote repositories cannot be read, of which Vertex AI and the chart's values speak.
    last_stage = DOCKERFILE.rpartition("\nFROM ")[2]
    default = re.search(r"^ARG EXTRAS=(\S+)$", last_stage, re.MULTILINE)
    suggested = re.search(r"--build-arg EXTRAS=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert default is not None and suggested is not None
    assert "[${EXTRAS}]" in last_stage
    known = set(re.findall(r"^(\w+) = \[", (PROJECT / "pyproject.toml").read_text(), re.MULTILINE))
    assert {*default[1].split(","), *suggested[1].split(",")} <= known


def test_the_wheel_holds_the_package_and_nothing_else(installed: Path) -> None:
    (wheel,) = (installed / "dist").glob("*.whl")
    listing = subprocess.run([sys.executable, "-m", "zipfile", "-l", str(wheel)], capture_output=True, text=True).stdout
    names = [line.split()[0] for line in listing.splitlines()[1:]]
    assert names
    allowed = ("pytriton_lite-", *(f"{package}/" for package in PACKAGES))
    assert all(name.startswith(allowed) for name in names), names
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)


def test_the_api_of_models_can_be_imported_where_the_wheel_is_installed(installed: Path) -> None:
    code = (
        "import sys\nimport triton_python_backend_utils as pb_utils\nimport numpy as np\n"
        "assert pb_utils.Tensor('X', np.zeros(2)).shape() == [2]\n"
        "print(sorted({'google', 'grpc', 'fastapi', 'uvicorn', 'orjson'} & set(sys.modules)), pb_utils.__name__)"
    )
    command = [str(installed / "env/bin/python"), "-c", code]
    done = subprocess.run(command, cwd=installed, capture_output=True, text=True)
    assert done.stdout == "[] pytriton_lite.worker.pb_utils\n", done.stderr


def test_the_wheel_brings_its_fixtures_to_pytest(installed: Path) -> None:
    code = (
        "from importlib.metadata import entry_points\nprint([point.value for point in entry_points(group='pytest11')])"
    )
    command = [str(installed / "env/bin/python"), "-c", code]
    done = subprocess.run(command, cwd=installed, capture_output=True, text=True)
    assert "'pytriton_lite.pytest_plugin'" in done.stdout, done.stderr
