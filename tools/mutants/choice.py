"""Which mutants are tried, and by which test files."""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.mutants.coverage_map import TestFile
from tools.mutants.operators import Mutation, mutations

_NEAR = 0.25
"""What a second of a test file in the mutated file's own room counts: those tests know most about it."""


@dataclass(frozen=True)
class Mutant:
    """One mutation of the product file *name*."""

    name: str
    mutation: Mutation

    @property
    def key(self) -> str:
        change = self.mutation
        return f"{self.name}:{change.line} {change.begin}-{change.end} {change.operator} {change.replacement}"


def draw(sources: Mapping[str, str], count: int, seed: int) -> list[Mutant]:
    """*count* of all mutants of *sources*, which are texts by name. More of the same seed begin with the same ones."""
    every = [Mutant(name, mutation) for name in sorted(sources) for mutation in mutations(sources[name])]
    random.Random(seed).shuffle(every)
    return every[:count]


class Chooser:
    """Knows what was recorded of each test file, and so which of them can notice a mutant."""

    def __init__(self, test_files: Sequence[TestFile]) -> None:
        self._by_name = {file.name: file for file in test_files}
        by_line: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
        for file in test_files:
            for name, lines in file.lines.items():
                for line in lines:
                    by_line[name, line].add(file.name)
        self._by_line = dict(by_line)

    def covering(self, mutant: Mutant, source: str) -> list[TestFile]:
        """Test files that run the mutated line, those first that should tell soonest."""
        mutation = mutant.mutation
        if mutation.in_function:
            first, last = mutation.statement
            names = self._running(mutant.name, [mutation.line])
            names = names or self._running(mutant.name, range(first, last + 1))
        else:
            # It runs wherever the module is imported, and matters where something of the module is used.
            names = self._running(mutant.name, _lines_of_functions(source))
        files = [self._by_name[name] for name in names]
        return sorted(files, key=lambda file: (self._cost(mutant.name, file), file.name))

    def _running(self, name: str, lines: Sequence[int] | range) -> set[str]:
        return set().union(*(self._by_line.get((name, line), ()) for line in lines))

    @staticmethod
    def _cost(name: str, file: TestFile) -> float:
        room = "/".join(["tests", *Path(name).parent.parts[1:]])
        return file.seconds * (_NEAR if str(Path(file.name).parent) == room else 1.0)


def within(files: Sequence[TestFile], seconds: float) -> list[TestFile]:
    """As many of *files*, from the first on, as took no longer than *seconds* together; one at least."""
    chosen: list[TestFile] = []
    spent = 0.0
    for file in files:
        spent += file.seconds
        if chosen and spent > seconds:
            break
        chosen.append(file)
    return chosen


def _lines_of_functions(source: str) -> list[int]:
    """Lines of statements in functions."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.update(
                inner.lineno for statement in node.body for inner in ast.walk(statement) if isinstance(inner, ast.stmt)
            )
    return sorted(found)
