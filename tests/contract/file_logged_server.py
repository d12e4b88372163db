"""A server with ``--log-file``."""

from __future__ import annotations

import re
from pathlib import Path

from tests.contract.wire_models import wait_until
from tests.harness import RunningServer


class FileLoggedServer(RunningServer):
    """Its ``log`` is what is in *path* now, which a test may have moved away."""

    def __init__(self, path: Path, *repositories: Path, flags: tuple[str, ...] = ()) -> None:
        super().__init__(*repositories, flags=(f"--log-file={path}", *flags))
        self.path = path

    @property
    def log(self) -> str:
        return self.path.read_text() if self.path.exists() else ""

    def wait_for_log(self, pattern: str, *, timeout_s: float = 20) -> re.Match[str]:
        expression = re.compile(pattern)
        wait_until(
            lambda: expression.search(self.log) is not None or self.process.poll() is not None, limit_s=timeout_s
        )
        match = expression.search(self.log)
        assert match is not None, f"{pattern!r} is not in the log:\n{self.log}"
        return match
