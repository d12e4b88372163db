"""What can be said of a model's Python without running it."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pytriton_lite.check.portability import traps
from pytriton_lite.config.regular_file import read_regular_file

_CLASS = "TritonPythonModel"
_ELSEWHERE = 'it runs here; see docs/compatibility.md, "From here to Triton"'
_COMPLETES = "auto_complete_config"
_EXECUTES = "execute"

_WRITE_NAMES = frozenset({"globals", "vars", "setattr", "exec", "eval", "__import__", "modules", "__dict__"})
"""Names with which code may define others that no parser sees."""


@dataclass(frozen=True)
class Problem:
    """``text`` is what a worker would say."""

    text: str
    line: int
    column: int
    hint: str = ""


@dataclass(frozen=True)
class ModelFile:
    """``completes`` is False where the model certainly has no ``auto_complete_config``; ``notes`` are of `portability`.

    With ``warnings`` the model loads, and fails with every request.
    """

    problems: tuple[Problem, ...]
    completes: bool
    notes: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()


def read_model_file(path: Path) -> ModelFile:
    """Parse and compile the file, which is there. What cannot be read, or is too deep for a parser, is a problem."""
    try:
        source = read_regular_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes and the like, which concern the author's linter
            tree = ast.parse(source, str(path))
            compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        text = f"{type(error).__name__}: {error.msg}"
        return ModelFile((Problem(text, error.lineno or 0, error.offset or 0),), completes=True)
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        return ModelFile((Problem(f"{type(error).__name__}: {error}", 0, 0),), completes=True)
    notes = tuple(Problem(text, node.lineno, node.col_offset + 1, _ELSEWHERE) for node, text in traps(tree))
    return replace(_examine(tree, path), notes=notes)


def _examine(tree: ast.Module, path: Path) -> ModelFile:
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == _CLASS]
    if classes:
        node = classes[-1]
        text = f"Python model {path} does not implement `{_EXECUTES}` method."
        idle = () if _may_have(_EXECUTES, node, tree) else (Problem(text, node.lineno, node.col_offset + 1),)
        return ModelFile((), completes=_may_have(_COMPLETES, node, tree), warnings=idle)
    if _CLASS in _bindings(tree) or _writes_names(tree):
        return ModelFile((), completes=True)
    text = f"AttributeError: module '{path.parent.name}.{path.stem}' has no attribute '{_CLASS}'"
    near = next((node for node in tree.body if isinstance(node, ast.ClassDef)), None)
    hint = f"the class of a model is called {_CLASS}"
    problem = Problem(text, near.lineno, near.col_offset + 1, hint) if near else Problem(text, 0, 0, hint)
    return ModelFile((problem,), completes=False)


def _may_have(method: str, node: ast.ClassDef, tree: ast.Module) -> bool:
    """Whether the class has the method, or may have it from elsewhere."""
    is_plain = all(isinstance(base, ast.Name) and base.id == "object" for base in node.bases)
    if not is_plain or node.keywords or node.decorator_list or _writes_names(tree):
        return True
    # Also assigned later, in whatever way.
    return any(_name_of(inner) == method for inner in ast.walk(tree))


def _name_of(node: ast.AST) -> str:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.name
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _bindings(tree: ast.Module) -> Iterator[str]:
    """Names that the module may have when it has been run: classes, functions, assignments, imports, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                # From a star may come anything.
                yield _CLASS if alias.name == "*" else alias.asname or alias.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name


def _writes_names(tree: ast.Module) -> bool:
    return any(_name_of(node) in _WRITE_NAMES or _name_of(node) == "__getattr__" for node in ast.walk(tree))
