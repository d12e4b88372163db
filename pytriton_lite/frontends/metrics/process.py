"""The server's own process, under the names that Prometheus gives these metrics in every language, and its build."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from pytriton_lite import __version__
from pytriton_lite.core.build import build_kind
from pytriton_lite.core.custom_metrics import Family
from pytriton_lite.frontends.metrics.families import counter, gauge
from pytriton_lite.frontends.metrics.machine import ReadText, read_text


def build_info() -> Family:
    python = ".".join(map(str, sys.version_info[:3]))
    labels = (("build", build_kind()), ("python", python), ("version", __version__))
    return gauge(
        "pytriton_lite_build_info", "The server's build and version, and its Python's; the value is 1", 1, labels
    )


def _count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) - 1  # but for the one that the listing itself needs


def process_families(
    read: ReadText = read_text, count_descriptors: Callable[[], int] = _count_descriptors
) -> list[Family]:
    """Families about the server alone: its workers are processes of their own. None off Linux."""
    try:
        # Behind the name, which may have blanks and brackets in it: the fields from the third on (proc(5)).
        fields = read("/proc/self/stat").rpartition(")")[2].split()
        boot_s = next(int(line.split()[1]) for line in read("/proc/stat").splitlines() if line.startswith("btime "))
        limits = read("/proc/self/limits").splitlines()
        descriptors = count_descriptors()
    except (OSError, StopIteration, ValueError):
        return []
    ticks = os.sysconf("SC_CLK_TCK")
    found = [
        counter(
            "process_cpu_seconds_total",
            "Total user and system CPU time spent in seconds.",
            (int(fields[11]) + int(fields[12])) / ticks,
        ),
        gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.", int(fields[20])),
        gauge(
            "process_resident_memory_bytes",
            "Resident memory size in bytes.",
            int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        ),
        gauge(
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
            boot_s + int(fields[19]) / ticks,
        ),
        gauge("process_open_fds", "Number of open file descriptors.", descriptors),
    ]
    most = next((line.split()[3] for line in limits if line.startswith("Max open files")), "unlimited")
    if most.isdigit():
        found.append(gauge("process_max_fds", "Maximum number of open file descriptors.", int(most)))
    return found
