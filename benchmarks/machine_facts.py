"""What a figure means nothing without: the machine, and the versions of everything that took part."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

# Those that lie on the way of a request, or that move its tensors.
PACKAGES = (
    "pytriton-lite",
    "numpy",
    "protobuf",
    "grpcio",
    "hpack",
    "fastapi",
    "uvicorn",
    "httptools",
    "uvloop",
    "orjson",
)


def machine_facts() -> dict[str, str]:
    return {
        "CPU": f"{_cpu_model()}, {_cores()} cores",
        "System": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "Python": f"{platform.python_version()} ({platform.python_implementation()})",
        "Packages": ", ".join(f"{name} {version}" for name, version in package_versions().items()),
        "Date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        if found:
            return found[1].strip()
    if sys.platform == "darwin":
        return first_line(["sysctl", "-n", "machdep.cpu.brand_string"])
    return platform.processor() or "unknown"


def _cores() -> int:
    """Those that this process may use: a container or taskset may leave fewer than there are."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def package_versions() -> dict[str, str]:
    """The installed ones of PACKAGES."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # the checkout may run without being installed; uvloop is not for every system
    return versions


def tool_version(tool: str) -> str:
    """The first line that the tool says about itself, without the author's name."""
    # wrk answers -v, and ends with code 1 after it.
    return re.sub(r"\s*(\[|Copyright).*", "", first_line([tool, "-v" if tool == "wrk" else "--version"]))


def first_line(command: list[str]) -> str:
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return (answer.stdout.strip() or "unknown").splitlines()[0]
