"""Reloads and version changes while clients ask: the benchmark's own judgement, on a small scale."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).parents[2] / "benchmarks" / "reload_soak.py"


def test_no_request_fails_while_code_versions_configuration_and_instances_change() -> None:
    """Row 22 of repository.md, and 23, 28 and 33 on the way: old answers, then new ones, and nothing between."""
    run = subprocess.run(
        [sys.executable, str(SOAK), "--seconds", "5", "--reloads", "15", "--clients", "12"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "3 add version, 3 break, 3 change code, 3 change config, 3 change instances" in run.stdout
