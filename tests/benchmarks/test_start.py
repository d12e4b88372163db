"""benchmarks/start.py, over two small servers that are started for real."""

from __future__ import annotations

import re
import sys

import pytest
from start import main


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_each_number_of_models_has_its_rows(stand_in_command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--models=1,2", "--rounds=2", "--settle-seconds=0"]
    assert main([*words, f"--command={stand_in_command}", f"--peer-command={stand_in_command}"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert rows[0] == "| models | | ours | peer | ours/peer |"
    assert [row.split(" | ")[:2] for row in rows[2:]] == [
        [f"| {count}", title] for count in (1, 2) for title in ("ready (s)", "CPU until then (s)", "memory (MiB)")
    ]
    memory = re.search(r"memory \(MiB\) \| (\S+) \| (\S+) \|", rows[4])
    assert memory is not None and all(float(figure) > 1 for figure in memory.groups())


def test_a_server_that_does_not_start_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--models=1", "--rounds=1", "--command={python} -c 'raise SystemExit(3)'"]) == 2
    assert "ended with code 3 before it was ready" in capsys.readouterr().err
