"""What the code of a Python-based backend says of the models that it serves, read without running it."""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytriton_lite.config.complete import BACKEND_FILE

_FILES = "MODEL_FILES"
"""The tuple of texts in which a backend names the files that it looks for in a version's directory; it needs one of them."""

_SAFE_FILES = "SAFE_FILES"
"""The same for patterns of files without code in them. Where it has one, the backend takes others with `ALLOW_PICKLE` alone."""

ALLOW_PICKLE = "allow-pickle"
"""The key of ``--backend-config`` with which the operator trusts files that are code."""


@dataclass(frozen=True)
class BackendFile:
    """What a backend says of itself; empty where it does not. ``not_installed`` are modules that it cannot do without."""

    files: tuple[str, ...] = ()
    safe_files: tuple[str, ...] = ()
    not_installed: tuple[str, ...] = ()


@functools.cache  # a repository may have a thousand models of one backend
def read_backend_file(folder: Path) -> BackendFile:
    """Read the backend in *folder*, once in the life of the process. What cannot be read says nothing."""
    try:
        tree = ast.parse((folder / BACKEND_FILE).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return BackendFile()
    missing = [name for name in dict.fromkeys(_imports(tree.body)) if not _is_installed(name, folder)]
    return BackendFile(_texts(tree, _FILES), _texts(tree, _SAFE_FILES), tuple(missing))


def _texts(tree: ast.Module, variable: str) -> tuple[str, ...]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [variable]:
            names = node.value.elts if isinstance(node.value, ast.Tuple) else []
            return tuple(str(name.value) for name in names if isinstance(name, ast.Constant))
    return ()


def _imports(body: list[ast.stmt]) -> Iterator[str]:
    """Names of the packages that *body* imports, but for what it can do without: where a failure is caught and not raised."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Try) and all(isinstance(handler.body[-1], ast.Raise) for handler in node.handlers):
            yield from _imports(node.body)


def _is_installed(name: str, folder: Path) -> bool:
    # Found, not imported: no code of a package runs.
    return (
        name in ("triton_python_backend_utils", "c_python_backend_utils")
        or (folder / name).is_dir()
        or (folder / f"{name}.py").is_file()
        or importlib.util.find_spec(name) is not None
    )
