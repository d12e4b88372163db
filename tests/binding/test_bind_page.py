"""docs/bind.md: what it shows runs, and prints what it says."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.harness import PROJECT

PAGE = (PROJECT / "docs" / "bind.md").read_text()
SHOWN = re.findall(r"`(\w+\.py)`:\n\n```python\n(.*?)```\n\nprints\n\n```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("name", "code", "printed"), SHOWN, ids=[name for name, _, _ in SHOWN])
def test_what_the_page_shows_prints_what_it_says(name: str, code: str, printed: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == (printed, "", 0)


def test_there_is_something_to_run() -> None:
    assert len(SHOWN) == 2
