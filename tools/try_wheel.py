"""Tries a distribution before it leaves the house: ``make wheel``.

Compares the version with the tag of a release, if one is given, installs the wheel in an environment of its own, and has it
serve as the build that its name says.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import urllib.request
import venv
from pathlib import Path

from pytriton_lite.testing import RunningServer


def try_wheel(folder: Path, tag: str = "") -> str:
    """The version of the one wheel in *folder*, which serves. Raises SystemExit with the reason where something is wrong."""
    wheels = sorted(folder.glob("*.whl"))
    archives = sorted(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(archives) != 1:
        raise SystemExit(
            f"{folder}: expected one wheel and one source archive, found {len(wheels)} and {len(archives)}"
        )
    version = wheels[0].name.split("-")[1]
    if tag and tag != f"v{version}":
        raise SystemExit(f"the tag is {tag}, and the version is {version}: expected v{version}")
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        venv.create(home / "env", with_pip=True)
        python = str(home / "env" / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheels[0].resolve())], check=True)
        said = subprocess.run([python, "-m", "pytriton_lite", "--version"], cwd=home, capture_output=True, text=True)
        build = "interpreted" if wheels[0].name.endswith("-none-any.whl") else "compiled"
        if said.stdout.split() != ["pytriton-lite", version, f"({build})"]:
            raise SystemExit(f"{wheels[0].name} is not the {build} build: {said.stdout}{said.stderr}")
        (home / "models").mkdir()
        # Not here: Python would find the checkout first.
        with (
            RunningServer(home / "models", python=(python,), cwd=home) as server,
            urllib.request.urlopen(f"http://{server.http_url}/v2/health/ready") as answer,
        ):
            assert answer.status == 200
    return version


if __name__ == "__main__":
    print(f"version {try_wheel(Path(sys.argv[1]), *sys.argv[2:])} serves")
