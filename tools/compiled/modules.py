"""The modules that are compiled, and the rules for what stands in them (docs/design.md, "Two builds")."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "pytriton_lite"
LIBRARY = f"{PACKAGE}.compiled"
"""mypyc's name for all of them together; the shared library is ``compiled__mypyc`` in the package's folder."""

_ROOMS = {
    "core": "byte_budget bytes_tensor dtypes pace request states tensor timeline",
    "engine": "outlet",
    "engine/counting": "*",
    "engine/ensembles": "*",
    "engine/models": "catalog incomplete",
    "engine/serving": "*",
    "engine/workers": "asking device_helper execution_watch instance keeper memory outputs oversight process shared_process "
    "state_outputs wire",
    "frontends": "cancellations deflating unread work_share",
    "frontends/process": "calls frames link numbering peer remote_server",
    "frontends/grpc": "calls codec compression http2_* parameters parsing servicer templates",
    "frontends/http": "codec generate_codec json_dialect json_tensors json_values ordinary reading templates",
    "ipc": "arena channel lending line_mark messages process_memory start tensor_io",
    "scheduling": "*",
    "worker": "batches conversation execute executions mailbox placement request_ids senders",
}
"""Files by folder: what every request goes through, and what inherits from that."""

_NOT = {
    "scheduling/line": "inherits from OrderedDict, whose layout mypyc does not know",
}

_LAYOUTS = {"object", "ABC", "Exception", "Generic", "NamedTuple", "Protocol", "Enum", "IntEnum", "StateEnum", "str"}
"""Bases that a compiled class may have beside compiled ones: mypyc knows how their objects lie in memory, or leaves the class
to the interpreter. With any other it writes over memory that is not its own, and says nothing."""


def modules(root: Path) -> list[str]:
    """The files that are compiled, as paths in *root*, the folder of the project. Raises ValueError where one is missing."""
    found: list[str] = []
    for room, names in _ROOMS.items():
        for name in names.split():
            files = [
                file
                for file in (root / PACKAGE / room).glob(f"{name}.py")
                if file.stem != "__init__" and f"{room}/{file.stem}" not in _NOT
            ]
            if not files:
                raise ValueError(f"{PACKAGE}/{room} has no module '{name}'")
            found += [file.relative_to(root).as_posix() for file in files]
    return sorted(found)


def broken_rules(root: Path) -> list[str]:
    """What in the compiled modules would run otherwise than interpreted, a line each."""
    trees = {file: ast.parse((root / file).read_text()) for file in modules(root)}
    compiled = {node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    return [
        f"{file}:{line}"
        for file, tree in trees.items()
        for line in (*_bases(tree, compiled), *_names(tree, compiled), *_waits(tree))
    ]


def _bases(tree: ast.AST, compiled: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for base in node.bases:
            written = ast.unparse(base).partition("[")[0].removeprefix("enum.")
            if written not in compiled | _LAYOUTS:
                name = written.rpartition(".")[2]
                yield f"{node.lineno}: class {node.name} inherits from {name}, which is not compiled"


def _names(tree: ast.AST, compiled: set[str]) -> Iterator[str]:
    """Names that stand for exceptions of several types in one function: mypyc gives a name one type, that of its first use."""
    for function in ast.walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        types: dict[str, set[str]] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.ExceptHandler) and node.name and node.type:
                types.setdefault(node.name, set()).add(ast.unparse(node.type))
        for name, found in types.items():
            if len(found) > 1 and found & compiled:
                yield f"{function.lineno}: in {function.name} '{name}' stands for {' and for '.join(sorted(found))}"


def _waits(tree: ast.AST) -> Iterator[str]:
    """Places where a coroutine or generator stands still in a handler: what runs meanwhile seems to handle its exception."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            handled = [statement for handler in node.handlers for statement in handler.body] + node.finalbody
            for statement in handled:
                for inner in ast.walk(statement):
                    if isinstance(inner, (ast.Await, ast.Yield, ast.YieldFrom, ast.AsyncFor, ast.AsyncWith)):
                        yield f"{inner.lineno}: {ast.unparse(inner)} is waited for while an exception is handled"
