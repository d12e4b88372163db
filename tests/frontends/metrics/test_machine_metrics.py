"""Processors, memory and the process, from files as Linux writes them."""

from __future__ import annotations

import os
import sys
import time

import pytest

from pytriton_lite.core.custom_metrics import Family, Number
from pytriton_lite.frontends.metrics.machine import Machine
from pytriton_lite.frontends.metrics.process import process_families
from tests.metrics_text import metrics_page
from tests.prometheus_text import read_page

MS = 1_000_000
MEMORY = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\nHugePages_Total:       0\n"


class FakeMachine:
    def __init__(self) -> None:
        self.now_ns = 0
        self.busy = [100, 0, 50, 0, 0, 0]
        """user, nice, system, irq, softirq, steal"""
        self.idle = [1000, 10]
        """idle, iowait"""
        self.memory: str | None = MEMORY
        self.reads = 0

    def read(self, path: str) -> str:
        if path == "/proc/meminfo" and self.memory is not None:
            return self.memory
        if path == "/proc/stat" and self.idle:
            self.reads += 1
            user, nice, system, irq, softirq, steal = self.busy
            idle, iowait = self.idle
            return f"cpu  {user} {nice} {system} {idle} {iowait} {irq} {softirq} {steal} 99 99\ncpu0 1 2 3\nbtime 5\n"
        raise FileNotFoundError(path)

    def machine(self, interval_ms: int = 2000) -> Machine:
        return Machine(interval_ms * MS, lambda: self.now_ns, self.read)


def values(families: list[Family]) -> dict[str, float]:
    found = {}
    for family in families:
        (series,) = family.series.values()
        assert isinstance(series, Number)
        found[family.name] = series.value
    return found


def test_utilization_is_the_busy_share_of_all_cores_since_the_reading_before() -> None:
    """metrics.md, section 2: busy is user, nice, system, irq, softirq and steal; idle is idle and iowait."""
    fake = FakeMachine()
    machine = fake.machine()
    assert "nv_cpu_utilization" not in values(machine.families())
    fake.now_ns = 2000 * MS
    fake.busy = [101, 2, 53, 4, 5, 6]
    fake.idle = [1050, 39]
    assert values(machine.families())["nv_cpu_utilization"] == 21 / 100
    fake.now_ns = 4000 * MS
    fake.busy[0] += 10
    assert values(machine.families())["nv_cpu_utilization"] == 1.0


def test_who_asks_again_within_the_interval_is_told_the_same() -> None:
    fake = FakeMachine()
    machine = fake.machine()
    fake.now_ns, fake.busy[0], fake.idle[0] = 2000 * MS, 110, 1010
    assert values(machine.families())["nv_cpu_utilization"] == 0.5
    reads = fake.reads
    fake.now_ns, fake.busy[0] = 3999 * MS, 1000
    assert values(machine.families())["nv_cpu_utilization"] == 0.5
    assert fake.reads == reads
    fake.now_ns = 4000 * MS
    assert values(machine.families())["nv_cpu_utilization"] == 1.0


def test_utilization_stays_where_no_tick_went_by() -> None:
    fake = FakeMachine()
    machine = fake.machine(interval_ms=0)
    fake.busy[0] += 1
    assert values(machine.families())["nv_cpu_utilization"] == 1.0
    assert values(machine.families())["nv_cpu_utilization"] == 1.0


def test_used_memory_is_what_is_not_available() -> None:
    found = values(FakeMachine().machine().families())
    assert (found["nv_cpu_memory_total_bytes"], found["nv_cpu_memory_used_bytes"]) == (1000 * 1024, 600 * 1024)


def test_what_cannot_be_read_is_not_there() -> None:
    fake = FakeMachine()
    fake.memory, fake.idle = None, []
    machine = fake.machine(interval_ms=0)
    assert machine.families() == []
    fake.memory = "MemTotal: 1000 kB\n"  # a kernel before 3.14
    assert machine.families() == []


def test_families_of_the_machine_have_tritons_texts() -> None:
    fake = FakeMachine()
    machine = fake.machine(interval_ms=0)
    fake.busy[0] += 1
    families = read_page(metrics_page([], machine.families()))
    assert {name: (family.kind, family.help) for name, family in families.items()} == {
        "nv_cpu_utilization": ("gauge", "CPU utilization rate [0.0 - 1.0]"),
        "nv_cpu_memory_total_bytes": ("gauge", "CPU total memory (RAM), in bytes"),
        "nv_cpu_memory_used_bytes": ("gauge", "CPU used memory (RAM), in bytes"),
    }


def test_the_process_is_read_behind_a_name_with_brackets() -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    ticks = os.sysconf("SC_CLK_TCK")
    files = {
        "/proc/self/stat": "42 (a ) b) S 1 1 1 0 -1 4194560 1 0 0 0 "
        f"{3 * ticks} {2 * ticks} 0 0 20 0 4 0 {50 * ticks} 123456 7 0 0",
        "/proc/stat": "cpu 1 2 3 4 5 6 7 8\nbtime 1000\n",
        "/proc/self/limits": "Limit   Soft Limit   Hard Limit   Units\nMax open files   1024   4096   files\n",
    }
    assert values(process_families(files.__getitem__, lambda: 9)) == {
        "process_cpu_seconds_total": 5.0,
        "process_virtual_memory_bytes": 123456.0,
        "process_resident_memory_bytes": 7.0 * page,
        "process_start_time_seconds": 1050.0,
        "process_open_fds": 9.0,
        "process_max_fds": 1024.0,
    }
    files["/proc/self/limits"] = "Max open files   unlimited   unlimited   files\n"
    assert "process_max_fds" not in values(process_families(files.__getitem__, lambda: 9))


def test_without_proc_nothing_is_said_of_the_process() -> None:
    def read(path: str) -> str:
        raise FileNotFoundError(path)

    assert process_families(read) == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_this_process_is_told_as_it_is() -> None:
    families = process_families()
    found = values(families)
    assert 0 < found["process_start_time_seconds"] <= time.time() + 1
    assert found["process_resident_memory_bytes"] < found["process_virtual_memory_bytes"]
    assert 3 <= found["process_open_fds"] <= found.get("process_max_fds", found["process_open_fds"])
    page = read_page(metrics_page([], families))
    assert {name: family.kind for name, family in page.items()}["process_cpu_seconds_total"] == "counter"
