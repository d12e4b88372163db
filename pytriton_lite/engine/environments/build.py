"""Builds the environment of a requirements file.

Started by path with the server's interpreter; standard library only. Its one argument is JSON: ``folder``, where the
environment is to be; ``requirements``, the file; ``python``, the interpreter it is built on; ``uv``, its path or null.
What it and the installers say goes to standard error; exit status 0 when the environment is there.

What holds:

* One builder at a time works on a folder, over all servers of this machine: it holds the lock beside it.
* An environment is complete when `MARKER` is in it, which is written last. Anything else is removed and built anew. (It is
  not built elsewhere and renamed: scripts of an environment have its path in their first line.)
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

MARKER = "pytriton_lite_built.json"

# What is meant for the server's interpreter would make pip take the server's packages for installed ones.
_NOT_FOR_INSTALLERS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_USER", "PIP_TARGET", "PIP_PREFIX")

_HAS_NUMPY = "import importlib.util, sys; sys.exit(importlib.util.find_spec('numpy') is None)"


def is_complete(folder: Path) -> bool:
    """Whether the environment in *folder* was built to the end, and its base is still there."""
    return (folder / MARKER).is_file() and os.access(folder / "bin" / "python", os.X_OK)


class _Failed(Exception):
    """The text is the command that failed, and how."""


def build(folder: Path, requirements: Path, python: str, uv: str | None) -> None:
    """Make the environment in *folder* complete."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(folder.with_name(folder.name + ".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("waiting for another build of the same requirements")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if is_complete(folder):
            return
        if folder.exists():
            _say(f"removing {folder}, which is incomplete")
            shutil.rmtree(folder)
        # An installer that is killed leaves its temporary files; here the next build finds and removes them.
        temporary = folder.with_name(folder.name + ".tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        os.environ["TMPDIR"] = str(temporary)
        try:
            _install(folder, requirements, python, uv)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        _mark(folder, requirements)


def _install(folder: Path, requirements: Path, python: str, uv: str | None) -> None:
    own = str(folder / "bin" / "python")
    if uv is not None:
        make = [uv, "venv", "--no-project", "--python", python, str(folder)]
        # Workers write no bytecode, so what is not compiled now would be compiled at every start.
        install = [uv, "pip", "install", "--python", own, "--compile-bytecode", "--no-progress"]
    else:
        make = [python, "-I", "-m", "venv", str(folder)]
        install = [own, "-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    # Commands run where relative paths of the file begin. -I: what lies there is no module of theirs, types.py for instance.
    _run(make, requirements.parent)
    _run([*install, "-r", str(requirements)], requirements.parent)
    if _status([own, "-I", "-c", _HAS_NUMPY], requirements.parent):
        _say("adding numpy, which every worker needs")
        # With the file again, because its constraints and its indexes hold for numpy, too.
        _run([*install, "-r", str(requirements), "numpy"], requirements.parent)


def _run(command: list[str], folder: Path) -> None:
    status = _status(command, folder)
    if status:
        raise _Failed(f"{' '.join(command)}: exited with code {status}")


def _status(command: list[str], folder: Path) -> int:
    variables = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_INSTALLERS}
    return subprocess.run(command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=sys.stderr).returncode


def _mark(folder: Path, requirements: Path) -> None:
    unfinished = folder / (MARKER + ".new")
    unfinished.write_text(json.dumps({"requirements": requirements.read_text(errors="replace")}, indent=2))
    unfinished.replace(folder / MARKER)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _main() -> int:
    order = json.loads(sys.argv[1])
    try:
        build(Path(order["folder"]), Path(order["requirements"]), order["python"], order["uv"])
    except _Failed as error:
        _say(str(error))
        return 1
    except OSError as error:
        place = f" '{error.filename}'" if error.filename else ""
        _say(f"{error.strerror}{place}; --environment-cache-directory chooses another place for environments")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
