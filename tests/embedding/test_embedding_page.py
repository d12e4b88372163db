"""docs/embedding.md: what it shows runs, and what it names is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytriton_lite.embedding
from tests.harness import PROJECT

PAGE = (PROJECT / "docs" / "embedding.md").read_text()
FILES: dict[str, str] = dict(re.findall(r"`([\w./]+)`:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL))


def test_the_first_example_prints_what_the_page_says(tmp_path: Path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (printed,) = re.findall(r"^prints\n\n```text\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
    command = [sys.executable, "embed.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(PROJECT)})
    assert (done.stdout, done.stderr, done.returncode) == (printed, "", 0)


def test_every_public_method_is_on_the_page() -> None:
    public = [name for name in vars(pytriton_lite.embedding.Server) if not name.startswith("_")]
    assert len(public) > 20
    assert [name for name in public if name not in PAGE and name != "is_running"] == []
