"""docs/developing.md: what it shows is run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.harness import PROJECT

PAGE = (PROJECT / "docs" / "developing.md").read_text()
FILES: dict[str, str] = dict(re.findall(r"`([\w./]+)`:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL))


def test_the_tests_on_the_page_pass_for_the_models_on_the_page(tmp_path: Path) -> None:
    tests = [name for name in FILES if name.startswith("test_")]
    assert len(tests) == 4
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    shown = sum(content.count("\ndef test_") for content in FILES.values())
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "pytriton_lite.pytest_plugin", *tests]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{shown} passed" in done.stdout


def test_the_first_example_runs_where_there_is_no_server() -> None:
    (code,) = re.findall(r"script:\n\n```python\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "goes to standard error here" in done.stderr
