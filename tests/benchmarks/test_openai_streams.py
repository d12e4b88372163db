"""benchmarks/openai_streams.py: every stream is whole, and each server has its row."""

from __future__ import annotations

import subprocess
import sys

from tests.harness import PROJECT


def test_each_server_has_a_row_of_times_and_rates() -> None:
    command = [sys.executable, str(PROJECT / "benchmarks" / "openai_streams.py"), "--streams", "2", "--seconds", "0.05"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, timeout=120)
    assert done.returncode == 0, done.stderr
    _, _, *rows = done.stdout.splitlines()
    assert [row[:12].strip() for row in rows] == ["this server", "FastAPI"]
    for row in rows:
        streams, *times, rate = row[12:].split()
        assert streams == "2"
        assert all(float(time) > 0 for time in times) and float(rate.replace(",", "")) > 0
