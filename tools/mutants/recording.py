"""A pytest plugin that records which lines each test file runs, in this process and in all that its tests start.

``tools.mutants.suite`` runs pytest with it, with the folder for what it records in the environment (`FOLDER_VARIABLE`).
Measuring begins before the first module of the product is imported, and coverage.py goes along into processes that are
started or forked. Each of them writes a file of its own when it ends; a test file's servers end with its last test, so what has
been written then is that file's. A process that is killed with SIGKILL takes what it knows with it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage

FOLDER_VARIABLE = "MUTANTS_RECORDED"
SETTINGS = "coveragerc"
"""In the folder: the settings of coverage.py, which all processes read."""
RUNNING = "running"
"""In the folder: what processes write, until the test file they belong to is done."""


def name_of(test_file: str) -> str:
    """The name of a folder for what belongs to *test_file*, a path in the project."""
    return test_file.removesuffix(".py").replace("/", ".")


class Recorder:
    """Gives each test file what was measured while it ran, with its duration and the tests that failed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._coverage = Coverage(config_file=str(folder / SETTINGS))
        self._coverage.start()
        self._began = time.monotonic()
        self._failed: list[str] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
        test_file = _file_of(item)
        result = yield
        if nextitem is None or _file_of(nextitem) != test_file:
            self._finish(test_file)
        return result

    def pytest_collection_finish(self) -> None:
        self._keep(self._folder / "imported")  # lines of modules, which belong to whoever imports them
        self._began = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self._failed:
            self._failed.append(report.nodeid)

    def _finish(self, test_file: str) -> None:
        seconds = time.monotonic() - self._began
        folder = self._folder / name_of(test_file)
        self._keep(folder)
        document = {"test_file": test_file, "seconds": round(seconds, 3), "failed": self._failed}
        (folder / "run.json").write_text(json.dumps(document))
        self._failed = []
        self._began = time.monotonic()

    def _keep(self, folder: Path) -> None:
        """Save what this process measured, and move everything that was saved into *folder*."""
        folder.mkdir(exist_ok=True)
        self._coverage.stop()
        self._coverage.save()
        for path in (self._folder / RUNNING).iterdir():
            if not path.name.endswith("-journal"):
                path.rename(folder / path.name)
        self._coverage.erase()
        self._coverage.start()


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


_folder = os.environ.get(FOLDER_VARIABLE)
# At once: plug-ins and tests import the product next.
_RECORDER = Recorder(Path(_folder)) if _folder else None


def pytest_configure(config: pytest.Config) -> None:
    if _RECORDER is not None:
        config.pluginmanager.register(_RECORDER)
