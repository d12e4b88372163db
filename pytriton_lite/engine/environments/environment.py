"""The noun: an interpreter and its variables; and the arithmetic of variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytriton_lite.core.errors import ErrorCode, InferenceError

PARAMETER = "ENV:"
"""``parameters { key: "ENV:OMP_NUM_THREADS" value: { string_value: "2" } }`` in config.pbtxt."""

_LIBRARY_PATH = "LD_LIBRARY_PATH"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OURS = ("PYTHONHOME", "VIRTUAL_ENV")
"""Variables that say which environment is used, so that they come from there (model API, 7.1)."""
_OUR_PREFIX = "PYTRITON_LITE_"
"""Options of the server; in a worker they would mean nothing."""


@dataclass(frozen=True)
class Environment:
    """What runs a worker: ``executable``, an interpreter, under exactly these ``variables``. Nobody changes them.

    ``libraries`` is where the interpreter finds its own while it starts; a worker does not see it (model API, 7.1).
    """

    executable: str
    variables: Mapping[str, str]
    libraries: str = ""

    def __hash__(self) -> int:
        return hash((self.executable, frozenset(self.variables.items()), self.libraries))

    @property
    def start_variables(self) -> dict[str, str]:
        """What its interpreter is started under."""
        if not self.libraries:
            return dict(self.variables)
        return {**self.variables, _LIBRARY_PATH: _in_front(self.libraries, self.variables.get(_LIBRARY_PATH, ""))}


def parameter_variables(model: str, parameters: Mapping[str, str]) -> dict[str, str]:
    """The variables that the parameters of *model* set. Raises InferenceError(INVALID_ARG)."""
    variables: dict[str, str] = {}
    for key, value in parameters.items():
        if not key.startswith(PARAMETER):
            continue
        name = key[len(PARAMETER) :]
        problem = _problem(name, value)
        if problem:
            raise InferenceError(ErrorCode.INVALID_ARG, f"parameter '{key}' of model '{model}': {problem}")
        variables[name] = value
    return variables


def _problem(name: str, value: str) -> str:
    if not _NAME.fullmatch(name):
        return (
            f"'{name}' is no name of a variable, expected letters, digits and underscores, the first of them no digit"
        )
    if name in _OURS:
        return f"{name} is set by the server; choose an environment with EXECUTION_ENV_PATH"
    if name.startswith(_OUR_PREFIX):
        return f"variables that begin with {_OUR_PREFIX} are options of the server"
    if "\0" in value:
        return f"the value of {name} has a zero byte"
    return ""


def environment_in(folder: Path, variables: Mapping[str, str]) -> Environment:
    """The environment in *folder*, with *variables* otherwise (model API, 7.1)."""
    own = {name: value for name, value in variables.items() if name != "PYTHONHOME"}
    own["PATH"] = _in_front(str(folder / "bin"), variables.get("PATH", os.defpath))
    own["VIRTUAL_ENV"] = str(folder)
    return Environment(str(folder / "bin" / "python"), own, libraries=str(folder / "lib"))


def _in_front(first: str, entries: str) -> str:
    return first + os.pathsep + entries if entries else first
