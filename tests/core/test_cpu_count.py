"""Cores that a process may use, read from trees such as the kernel shows them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytriton_lite.core.cpu_count import cgroup_quotas, cpu_count


def machine(folder: Path, kind: str, groups: str, options: str = "rw") -> tuple[Path, Path]:
    """A directory like /proc/self, and the top of a hierarchy."""
    proc, top = folder / "proc", folder / "tree"
    proc.mkdir()
    top.mkdir()
    (proc / "cgroup").write_text(groups + "\n")
    (proc / "mountinfo").write_text(f"30 22 0:26 / {top} rw,nosuid shared:4 - {kind} {kind} {options}\n")
    return proc, top


@pytest.mark.parametrize(
    ("text", "quotas"), [("200000 100000", [2.0]), ("50000 100000", [0.5]), ("max 100000", []), ("", [])]
)
def test_quota_of_version_2(text: str, quotas: list[float], tmp_path: Path) -> None:
    proc, top = machine(tmp_path, "cgroup2", "0::/")
    (top / "cpu.max").write_text(text + "\n")
    assert list(cgroup_quotas(proc)) == quotas


def test_quotas_of_the_groups_above_count(tmp_path: Path) -> None:
    proc, top = machine(tmp_path, "cgroup2", "0::/pod/box")
    (top / "pod" / "box").mkdir(parents=True)
    (top / "pod" / "cpu.max").write_text("300000 100000\n")
    (top / "pod" / "box" / "cpu.max").write_text("400000 100000\n")
    assert list(cgroup_quotas(proc)) == [4.0, 3.0]


@pytest.mark.parametrize(("text", "quotas"), [("150000", [1.5]), ("-1", [])])
def test_quota_of_version_1(text: str, quotas: list[float], tmp_path: Path) -> None:
    proc, top = machine(tmp_path, "cgroup", "4:cpu,cpuacct:/", "rw,cpu,cpuacct")
    (top / "cpu.cfs_quota_us").write_text(text + "\n")
    assert list(cgroup_quotas(proc)) == quotas


def test_this_process_has_at_least_one_core_and_no_more_than_it_may_run_on() -> None:
    assert 1 <= cpu_count() <= (os.cpu_count() or 1)
