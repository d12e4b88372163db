"""docs/bind.md: what it shows runs, and prints what it says."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import pytriton_lite
from tests.harness import PROJECT

PAGE = (PROJECT / "docs" / "bind.md").read_text()
SHOWN = re.findall(r"`(\w+\.py)`:\n\n```python\n(.*?)```\n\nprints\n\n```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("name", "code", "printed"), SHOWN, ids=[name for name, _, _ in SHOWN])
def test_what_the_page_shows_prints_what_it_says(name: str, code: str, printed: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == (printed, "", 0)


def test_the_decorators_of_the_page_are_names_of_the_package() -> None:
    (section,) = re.findall(r"^## Decorators\n(.*?)^`\w+\.py`:", PAGE, re.DOTALL | re.MULTILINE)
    named = {*re.findall(r"`@(\w+)", section), *re.findall(r"`(?:pad_fn=)?([A-Z]\w+)(?:\(\))?`", section)}
    assert {"batch", "triton_context", "ConstantPadder"} <= named
    assert [name for name in sorted(named) if not hasattr(pytriton_lite, name)] == []


def test_there_is_something_to_run() -> None:
    assert len(SHOWN) == 2
