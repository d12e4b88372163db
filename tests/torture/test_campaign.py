"""A short round of ``make torture`` against a real server: nothing is wrong with it, and the faults were felt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.harness import PROJECT
from tools.torture.campaign import Plan, torture
from tools.torture.schedule import Fault, write

FAULTS = (
    Fault(1, 0.3, "kill worker", "plain", 1.0),
    Fault(1, 0.6, "misbehave: exit", "batched", 1.0),
    Fault(1, 0.9, "misbehave: segfault", "sequence", 1.0),
    Fault(1, 1.2, "load and unload", "storm_a", 2.0),
    Fault(1, 1.5, "misbehave: garbage", "count", 1.0),
    Fault(1, 1.8, "stop worker", "calls_twice", 0.5),
    Fault(1, 2.1, "break configuration", "storm_b", 1.0),
    Fault(1, 2.4, "kill fork server", "", 1.0),
)


def test_a_short_round_has_faults_errors_and_no_violation(tmp_path: Path) -> None:
    said: list[str] = []
    result = torture(tmp_path, Plan(seed=1, minutes=1, round_s=4, replayed=FAULTS), said.append)
    assert result.violations == [], "\n".join(said)
    assert result.faults.total() == len(FAULTS)
    ends = {outcome for _, outcome in result.outcomes}
    assert {"right", "truthful error: worker died"} <= ends
    assert sum(count for (_, outcome), count in result.outcomes.items() if outcome == "right") > 100


def test_the_command_plays_a_schedule_and_fails_where_something_is_wrong(tmp_path: Path) -> None:
    """This server refuses documents of 100 bytes and more, with errors that no fault explains.

    Half a second of such load may leave less in a server than the next, which is no reason to wait for its rest for long.
    """
    write(tmp_path / "faults.jsonl", [Fault(1, 0.2, "kill worker", "plain", 1.0)])
    command = [
        sys.executable,
        "-m",
        "tools.torture",
        "--round-seconds=0.5",
        "--quiet-seconds=5",
        "--server-flag=--http-max-input-size=100",
    ]
    ended = subprocess.run(
        [*command, f"--schedule={tmp_path / 'faults.jsonl'}", "--seed=3"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert ended.returncode == 1, ended.stderr
    assert "| kill worker | 1 |" in ended.stdout
    assert "VIOLATION round 1: error without a cause" in ended.stdout
    assert "again: python -m tools.torture" in ended.stdout
