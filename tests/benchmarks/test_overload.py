"""The generators of the overload benchmark, and short forms of it and of the soak: what they judge, not how fast it is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import overload
import pytest
import soak

BENCHMARKS = Path(overload.__file__).parent


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def test_requests_differ_and_their_answers_too() -> None:
    requests = overload.Requests(elements=2, first=7)
    pairs = [requests.next() for _ in range(2)]
    assert pairs[0][0].endswith((8).to_bytes(8, "little") + bytes(8))
    assert pairs[0][1] == (9).to_bytes(8, "little") + (1).to_bytes(8, "little")
    assert pairs[0] != pairs[1]


def test_quantiles_are_of_the_ordered_times() -> None:
    times = [number / 1000 for number in range(1, 101)]
    assert overload.quantiles(times[::-1]) == "p50 51.00 ms, p99 100.00 ms, max 100.00 ms"
    assert overload.quantiles([]) == "none"


def test_slope_is_by_the_hour() -> None:
    states = [soak.State(at_s=at, memory_bytes=2 * at, descriptors=5, threads=1, processes=1) for at in range(10)]
    assert soak.slope(states, lambda state: state.memory_bytes) == pytest.approx(7200)
    assert soak.slope(states, lambda state: state.descriptors) == pytest.approx(0, abs=1e-6)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_what_is_too_much_is_refused_and_nothing_is_wrong() -> None:
    """How much of the peak is answered is for a machine that has nothing else to do."""
    done = run("overload.py", "--seconds", "2", "--execute-ms", "50", "--times", "5", "--limit", "8")
    refused = re.search(r"^refused:  (\d+),", done.stdout, re.MULTILINE)
    assert refused and int(refused[1]) > 0, done.stdout + done.stderr
    off = [line for line in done.stdout.splitlines() if line.startswith("off: ")]
    assert not [line for line in off if "×" in line or "requests failed" in line or "refused" in line], off


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_every_feature_at_once_gives_right_answers() -> None:
    done = run("soak.py", "--seconds", "4", "--reload-s", "1")
    assert "; 0 wrong" in done.stdout, done.stdout + done.stderr
    off = [line for line in done.stdout.splitlines() if line.startswith("off: ") and "an hour" not in line]
    assert off == []
