"""What is learned of an environment by running things in it: its interpreter, and what ``bin/activate`` exports."""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.engine.environments.commands import run
from pytriton_lite.engine.environments.environment import Environment

logger = logging.getLogger(__name__)

_OLDEST_PYTHON = (3, 10)

_ASK_S = 120.0
"""Limit of an import of numpy, which takes seconds from a cold disk; from a network, perhaps a minute."""
_ACTIVATE_S = 30.0
_CONDA_UNPACK_S = 600.0

_OF_THE_SHELL = ("_", "SHLVL", "PWD", "OLDPWD", "PS1")
"""Variables that a shell changes by itself, and its prompt."""

# Runs under any Python at all, to say what it is.
_ASK = """
import json, sys
answer = {"version": list(sys.version_info[:3]), "numpy": None, "problem": ""}
try:
    import numpy
    answer["numpy"] = numpy.__version__
except Exception:
    error = sys.exc_info()[1]
    answer["problem"] = "%s: %s" % (type(error).__name__, str(error).strip().partition(chr(10))[0])
sys.stdout.write(chr(10) + json.dumps(answer))
"""


@dataclass(frozen=True)
class Interpreter:
    """``numpy`` is its version; where there is none it is empty and ``problem`` says why."""

    version: tuple[int, ...]
    numpy: str
    problem: str

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))


async def ask(environment: Environment) -> Interpreter:
    """Ask the interpreter what it is. Raises InferenceError(INTERNAL) when it does not run."""
    command = [environment.executable, "-B", "-c", _ASK]
    ended = await run(command, variables=environment.start_variables, timeout_s=_ASK_S)
    try:
        answer = json.loads(ended.output.rpartition(b"\n")[2])
        return Interpreter(tuple(answer["version"]), answer["numpy"] or "", answer["problem"])
    except (ValueError, KeyError, TypeError):
        raise InferenceError(
            ErrorCode.INTERNAL, f"the interpreter '{environment.executable}' does not run: it {ended.explain(_ASK_S)}"
        ) from None


async def check_interpreter(environment: Environment) -> None:
    """Raises InferenceError(INTERNAL) for one that cannot run workers: it names the interpreter, and what that lacks."""
    executable = environment.executable
    if not os.access(executable, os.X_OK):
        raise _unfit(executable, "it is not there, or cannot be executed")
    found = await ask(environment)
    if found.version < _OLDEST_PYTHON:
        raise _unfit(executable, f"it is Python {found.version_text}")
    if not found.numpy:
        raise _unfit(executable, f"it is Python {found.version_text}, and numpy cannot be imported: {found.problem}")
    logger.info("%s is Python %s with numpy %s", executable, found.version_text, found.numpy)


def _unfit(executable: str, what: str) -> InferenceError:
    return InferenceError(
        ErrorCode.INTERNAL,
        f"the interpreter '{executable}' cannot run models: {what}; expected Python 3.10 or later with numpy",
    )


async def activated(folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """*variables* as ``bin/activate`` leaves them; unchanged, with a warning, where it does not end well.

    Triton sourced the script until 25.07 and only looks for it since, so it need not work (model API, 7.1).
    """
    script = folder / "bin" / "activate"
    # That of conda-pack finds its own folder under bash, and under dash only with lsof.
    shell = shutil.which("bash") or "/bin/sh"
    env = shutil.which("env") or "/usr/bin/env"
    ended = await run(
        [shell, "-c", f". {shlex.quote(str(script))} >&2; exec {shlex.quote(env)} -0"],
        variables=variables,
        timeout_s=_ACTIVATE_S,
    )
    if ended.status != 0 or not ended.output:
        why = ended.explain(_ACTIVATE_S) if ended.status != 0 else "ended the shell"
        logger.warning("%s has no effect on workers: it %s", script, why)
        return dict(variables)
    found = dict(os.fsdecode(entry).split("=", 1) for entry in ended.output.split(b"\0") if b"=" in entry)
    for name in _OF_THE_SHELL:
        found.pop(name, None)
        if name in variables:
            found[name] = variables[name]
    return found


async def fix_prefixes(folder: Path, environment: Environment) -> None:
    """Run conda-pack's ``bin/conda-unpack``, where it is, which puts the environment's new path into its files.

    What fails is a warning: most packages do without, and Triton does not run it.
    """
    script = folder / "bin" / "conda-unpack"
    if not script.is_file():
        return
    # By the interpreter, as its first line is `env python`. It imports a module that lies beside it.
    command = [environment.executable, str(script)]
    ended = await run(command, variables=environment.start_variables, timeout_s=_CONDA_UNPACK_S)
    if ended.status != 0:
        logger.warning("%s: it %s", script, ended.explain(_CONDA_UNPACK_S))
