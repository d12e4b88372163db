"""Whether the tests catch a mutant."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path

from tools.mutants.choice import Chooser, Mutant, within
from tools.mutants.coverage_map import TestFile
from tools.mutants.suite import Run, Suite

_FIRST_S = 3.0
"""Test files of so many seconds run in a pytest of their own first: most mutants go no further."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_ARGUMENTS = ("-x", "-rfE", "--tb=no", "-p", "no:xdist", "-p", "no:schemathesis")
"""The last is half of a start of pytest; its tests use the library alone."""


class Verdict(str, Enum):
    """What became of a mutant."""

    CAUGHT = "caught"
    TIMED_OUT = "timed out"
    """A test did not end, or the machine was busy: `Judge.confirm` says which."""
    HUNG = "hung"
    """A test did not end, twice: in the whole suite its time limit would fail it."""
    SURVIVED = "survived"
    NOT_RUN = "not run"
    """No test runs the line."""


@dataclass(frozen=True)
class Judgement:
    """The verdict on one mutant: *by* is the test that failed, *change* the line before and after.

    *covering* is how many test files run the line, *tried* are the names of those that were run.
    """

    key: str
    place: str
    operator: str
    change: tuple[str, str]
    verdict: Verdict
    by: str
    covering: int
    tried: tuple[str, ...]

    @property
    def is_caught(self) -> bool:
        return self.verdict in (Verdict.CAUGHT, Verdict.HUNG)


class Judge:
    """Applies mutants to the copy of a suite, and runs the test files that could notice, until one fails.

    For each it takes test files of *seconds* together at most, by what they took without a mutant.
    """

    def __init__(self, suite: Suite, chooser: Chooser, seconds: float) -> None:
        self._suite = suite
        self._chooser = chooser
        self._seconds = seconds

    def judge(self, mutant: Mutant, before: Judgement | None = None) -> Judgement | None:
        """The judgement on *mutant*; None where nothing can be added to the one *before*.

        Test files that have been recorded since are tried then.
        """
        if before is not None and (before.is_caught or before.verdict is Verdict.TIMED_OUT):
            return None
        source = (self._suite.folder / mutant.name).read_text()
        covering = self._chooser.covering(mutant, source)
        files = within(covering, self._seconds)
        tried = before.tried if before else ()
        new = [file for file in files if file.name not in tried]
        if before is not None and not new:
            return None
        mutated = mutant.mutation.apply(source)
        verdict, by = Verdict.SURVIVED if files else Verdict.NOT_RUN, ""
        if new:
            with self._suite.changed(mutant.name, mutated):
                verdict, by = self._try(new, patience=1)
        line = mutant.mutation.line
        change = source.splitlines()[line - 1].strip(), mutated.splitlines()[line - 1].strip()
        place = f"{mutant.name}:{line}"
        names = (*tried, *(file.name for file in new))
        return Judgement(mutant.key, place, mutant.mutation.operator, change, verdict, by, len(covering), names)

    def confirm(self, mutant: Mutant, before: Judgement) -> Judgement:
        """Try a mutant whose time was up once more, with more time: then a test that does not end has caught it."""
        source = (self._suite.folder / mutant.name).read_text()
        files = [file for file in self._chooser.covering(mutant, source) if file.name in before.tried]
        with self._suite.changed(mutant.name, mutant.mutation.apply(source)):
            verdict, by = self._try(files, patience=4)
        return replace(before, verdict=Verdict.HUNG if verdict is Verdict.TIMED_OUT else verdict, by=by)

    def _try(self, files: Sequence[TestFile], patience: int) -> tuple[Verdict, str]:
        first = within(files, _FIRST_S)
        for some in filter(None, (first, files[len(first) :])):
            run = self._run(some, patience)
            if run.status is None:
                return Verdict.TIMED_OUT, some[0].name
            if run.status != 0:
                found = _FAILED.search(run.output)
                return Verdict.CAUGHT, found.group(1) if found else f"pytest ended with {run.status}"
        return Verdict.SURVIVED, ""

    def _run(self, files: Sequence[TestFile], patience: int) -> Run:
        limit_s = patience * (4 * sum(file.seconds for file in files) + 30)
        # What fails without a mutant too tells nothing.
        known = [f"--deselect={node}" for file in files for node in file.failed]
        names = [file.name for file in files]
        return self._suite.run([*_ARGUMENTS, *known, *names], limit_s=limit_s)


class Judgements:
    """A file of judgements, one JSON object a line, to which each is added as it falls; the last on a mutant counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.by_key: dict[str, Judgement] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            fields = json.loads(line)
            for name in ("change", "tried"):
                fields[name] = tuple(fields[name])
            self._note(Judgement(**{**fields, "verdict": Verdict(fields["verdict"])}))

    def _note(self, judgement: Judgement) -> None:
        self.by_key[judgement.key] = judgement

    def add(self, judgement: Judgement) -> None:
        self._note(judgement)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(judgement)) + "\n")
