"""Which test files run which lines of the product, and how much of it all of them run."""

from __future__ import annotations

import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coverage import Coverage, CoverageData
from coverage.exceptions import CoverageException

from tools.mutants.recording import FOLDER_VARIABLE, RUNNING, SETTINGS, name_of
from tools.mutants.suite import PRODUCT, Suite

_SETTINGS = """\
[run]
branch = true
parallel = true
data_file = {running}/data
source =
{sources}
patch =
    subprocess
    fork
    _exit
sigterm = true
disable_warnings = no-data-collected, module-not-measured, already-imported, module-not-imported, couldnt-parse
"""
_LIMIT_S = 1500
"""A group of test files takes a minute or two; on a busy machine with measuring much longer."""


@dataclass(frozen=True)
class TestFile:
    """What was recorded of one test file: its *lines* by file of the product, and the ids of tests that *failed*."""

    name: str
    seconds: float
    failed: Sequence[str]
    lines: dict[str, frozenset[int]] = field(repr=False)


class Recording:
    """The folder in which a tree's coverage is kept, one test file at a time, so that it can go on where it stopped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._raw = folder / "raw"
        self._files = folder / "files"
        self._total = folder / "all_tests.coverage"
        self._files.mkdir(parents=True, exist_ok=True)

    def is_recorded(self, test_file: str) -> bool:
        return self._document(test_file).exists()

    def record(self, suite: Suite, test_files: Sequence[str]) -> str:
        """Run *test_files* in one pytest, and keep what each of them ran; pytest's last line."""
        shutil.rmtree(self._raw, ignore_errors=True)
        (self._raw / RUNNING).mkdir(parents=True)
        sources = "\n".join(f"    {suite.folder / name}" for name in PRODUCT)
        settings = _SETTINGS.format(running=self._raw / RUNNING, sources=sources)
        (self._raw / SETTINGS).write_text(settings)
        run = suite.run(
            ["-p", "tools.mutants.recording", "-p", "no:xdist", *test_files],
            limit_s=_LIMIT_S,
            environ={FOLDER_VARIABLE: str(self._raw)},
        )
        for test_file in test_files:
            self._keep(suite, test_file)
        self._add_to_total(self._raw / "imported")
        (self._folder / "last_run.txt").write_text(run.output)
        return (run.output.strip().splitlines() or ["nothing was printed"])[-1]

    def _document(self, test_file: str) -> Path:
        return self._files / f"{name_of(test_file)}.json"

    def _keep(self, suite: Suite, test_file: str) -> None:
        """Read what the processes of *test_file* have written; nothing where it has not come to its end."""
        folder = self._raw / name_of(test_file)
        if not (folder / "run.json").exists():
            return
        found: defaultdict[str, set[int]] = defaultdict(set)
        for data in self._add_to_total(folder):
            for measured in data.measured_files():
                if lines := data.lines(measured):
                    found[str(Path(measured).relative_to(suite.folder))].update(lines)
        document = json.loads((folder / "run.json").read_text())
        document["lines"] = {name: sorted(lines) for name, lines in sorted(found.items())}
        self._document(test_file).write_text(json.dumps(document))

    def _add_to_total(self, folder: Path) -> list[CoverageData]:
        total = CoverageData(str(self._total))
        total.read()
        found = []
        for path in sorted(folder.glob("data.*")):
            data = CoverageData(str(path))
            try:
                data.read()
                total.update(data)
            except CoverageException as error:  # of a process that was killed while it wrote
                print(f"{path.name} cannot be read: {error}", file=sys.stderr)
            else:
                found.append(data)
        return found

    def test_files(self) -> list[TestFile]:
        """What has been recorded so far."""
        found = []
        for path in sorted(self._files.glob("*.json")):
            document = json.loads(path.read_text())
            lines = {name: frozenset(numbers) for name, numbers in document["lines"].items()}
            found.append(TestFile(document["test_file"], document["seconds"], document["failed"], lines))
        return found

    def branches_by_room(self, suite: Suite, names: Iterable[str]) -> dict[str, tuple[int, int, int, int]]:
        """By room: statements, those that ran, branches, those that were taken. *names* are files of the product."""
        coverage = Coverage(data_file=str(self._total), config_file=False, source=[])
        coverage.set_option("run:branch", True)
        coverage.load()
        rooms: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        for name in names:
            numbers = coverage._analyze(str(suite.folder / name)).numbers
            counted = numbers.n_statements, numbers.n_executed, numbers.n_branches, numbers.n_executed_branches
            rooms[room_of(name)] = [total + more for total, more in zip(rooms[room_of(name)], counted)]
        return {room: (a, b, c, d) for room, (a, b, c, d) in sorted(rooms.items())}


def room_of(name: str) -> str:
    """The room in which a file of the product lies: ``engine/serving``, ``core``, or the package itself."""
    package, *folders = Path(name).parent.parts
    if package != "pytriton_lite":
        return package
    deep = 2 if folders[:1] in (["engine"], ["frontends"], ["plugins"]) else 1
    return "/".join(folders[:deep]) or package
