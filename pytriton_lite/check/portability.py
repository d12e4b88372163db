"""What in a model's Python runs here, and would fail under Triton: for whoever wants to take the model there.

Asked of Triton 2.51. Its stub gives ``pb_utils`` most of its names only when it has imported the model; and it prints in ASCII.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

_MODULE = "triton_python_backend_utils"

_AFTER_IMPORT = frozenset(
    {
        "InferenceRequest",
        "InferenceResponse",
        "Logger",
        "MetricFamily",
        "PreferredMemory",
        "TRITONSERVER_MEMORY_CPU",
        "TRITONSERVER_MEMORY_GPU",
        "Tensor",
        "TritonError",
        "TritonModelException",
        "get_model_dir",
        "is_model_ready",
        "load_model",
        "unload_model",
    }
)
"""Names of Triton's ``pb_utils`` that are there when ``initialize`` runs, and not while the model's file is imported."""

_ONLY_HERE = frozenset(
    {
        "InferenceResponseSender",
        "InferenceTrace",
        "MemoryType",
        "Metric",
        "MetricKind",
        "ResponseIterator",
        "SharedMemory",
    }
)
"""Names of ours that Triton's has nowhere: there these classes are reached by their objects alone."""


def traps(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """The places that would fail under Triton, and why; *tree* is a model's file."""
    names = set(_aliases(tree))
    for node in _run_at_import(tree.body, has_annotations=not _postpones_annotations(tree)):
        if isinstance(node, ast.Attribute) and _is_of(node, names) and node.attr in _AFTER_IMPORT:
            yield node, f"Triton's pb_utils has no {node.attr} yet while the model's file is imported"
        elif isinstance(node, ast.ImportFrom) and node.module == _MODULE:
            for alias in node.names:
                if alias.name in _AFTER_IMPORT:
                    yield node, f"Triton's pb_utils has no {alias.name} yet while the model's file is imported"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_of(node, names) and node.attr in _ONLY_HERE:
            yield node, f"Triton's pb_utils has no {node.attr}"
        elif _is_response_with_parameters(node, names):
            yield node, "InferenceResponse takes no parameters in Triton 2.51, but in later ones"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            strange = next(filter(None, map(_not_ascii, (*node.args, *(word.value for word in node.keywords)))), "")
            if strange:
                yield node, f"Triton's stub prints in ASCII, and {strange!r} is not: UnicodeEncodeError"


def _aliases(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.asname or alias.name for alias in node.names if alias.name == _MODULE)


def _is_of(node: ast.Attribute, names: set[str]) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in names


def _is_response_with_parameters(node: ast.AST, names: set[str]) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and _is_of(node.func, names)
        and node.func.attr == "InferenceResponse"
        and any(word.arg == "parameters" for word in node.keywords)
    )


def _postpones_annotations(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module == "__future__"
        and "annotations" in {a.name for a in node.names}
        for node in tree.body
    )


def _run_at_import(body: list[ast.stmt], *, has_annotations: bool) -> Iterator[ast.AST]:
    """Every node that is evaluated when the module is imported; not what a function does, nor what a try would catch."""
    ahead = body[::-1]  # no recursion: of a chain of elifs each is in the one before
    while ahead:
        statement = ahead.pop()
        inside: list[ast.stmt] = []
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for part in _of_signature(statement, has_annotations=has_annotations):
                yield from _expressions(part)
        elif isinstance(statement, ast.ClassDef):
            for part in (*statement.bases, *statement.decorator_list, *(word.value for word in statement.keywords)):
                yield from _expressions(part)
            inside = statement.body
        elif isinstance(statement, ast.If) and _asks_for_type_checking(statement.test):
            inside = statement.orelse
        elif isinstance(statement, ast.Try):
            inside = [*([] if statement.handlers else statement.body), *statement.finalbody]
        elif isinstance(statement, (ast.If, ast.For, ast.While, ast.With)):
            yield from _expressions(getattr(statement, "test", None) or getattr(statement, "iter", None))
            inside = [*statement.body, *getattr(statement, "orelse", [])]
        elif isinstance(statement, ast.AnnAssign):
            yield from _expressions(statement.value)
            if has_annotations:
                yield from _expressions(statement.annotation)
        else:
            yield from _expressions(statement)
        ahead += reversed(inside)


def _asks_for_type_checking(test: ast.expr) -> bool:
    return any("TYPE_CHECKING" in (getattr(node, "id", ""), getattr(node, "attr", "")) for node in ast.walk(test))


def _of_signature(function: ast.FunctionDef | ast.AsyncFunctionDef, *, has_annotations: bool) -> Iterator[ast.AST]:
    arguments = function.args
    yield from function.decorator_list
    yield from (*arguments.defaults, *filter(None, arguments.kw_defaults))
    if has_annotations:
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
        yield from (given.annotation for given in every if given is not None and given.annotation is not None)
        if function.returns is not None:
            yield function.returns


def _expressions(node: ast.AST | None) -> Iterator[ast.AST]:
    """*node* and what is in it, in the order of the file, but for the bodies of lambdas."""
    ahead = [] if node is None else [node]  # no recursion: a sum of a thousand terms is as many deep
    while ahead:
        inner = ahead.pop()
        yield inner
        inside = ast.iter_child_nodes(inner.args if isinstance(inner, ast.Lambda) else inner)
        ahead += reversed(list(inside))


def _not_ascii(node: ast.expr) -> str:
    """The first text in *node*, as it stands there, that is not ASCII; "" for none."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and not inner.value.isascii():
            return inner.value
    return ""
