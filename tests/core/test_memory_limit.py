"""What a process may use, read from trees such as the kernel shows them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pytriton_lite.core.memory_limit import cgroup_limits, memory_limit


class Machine:
    """A directory like /proc/self, and hierarchies of cgroups beside it."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.proc.mkdir()
        self._folder = folder
        self._mounts = ["22 1 0:5 / /proc rw - proc proc rw"]
        self._groups: list[str] = []

    def mount(self, kind: str, options: str = "rw", *, root: str = "/", name: str = "tree") -> Path:
        top = self._folder / name
        top.mkdir()
        shown = str(top).replace(" ", "\\040")
        self._mounts.append(f"30 22 0:26 {root} {shown} rw,nosuid shared:4 - {kind} {kind} {options}")
        return top

    def join(self, line: str) -> None:
        self._groups.append(line)

    def limits(self) -> list[int]:
        (self.proc / "cgroup").write_text("\n".join(self._groups) + "\n")
        (self.proc / "mountinfo").write_text("\n".join(self._mounts) + "\n")
        return list(cgroup_limits(self.proc))


def say(directory: Path, name: str, text: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(text + "\n")


def test_version_2_walks_up_to_the_mount(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    top = machine.mount("cgroup2")
    machine.join("0::/kube/pod/box")
    say(top / "kube", "memory.max", "3000")
    say(top / "kube" / "pod", "memory.max", "max")
    say(top / "kube" / "pod" / "box", "memory.max", "5000")
    assert machine.limits() == [5000, 3000]


def test_version_2_in_a_namespace_of_its_own(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    top = machine.mount("cgroup2")
    machine.join("0::/")
    say(top, "memory.max", "4096")
    assert machine.limits() == [4096]


def test_version_1_in_a_container_that_sees_its_own_part_alone(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.mount("cgroup", "rw,cpu,cpuacct", root="/docker/abc", name="cpu")
    top = machine.mount("cgroup", "rw,memory", root="/docker/abc", name="memory")
    machine.join("5:cpu,cpuacct:/docker/abc")
    machine.join("4:memory:/docker/abc")
    say(top, "memory.limit_in_bytes", "7000")
    assert machine.limits() == [7000]


def test_group_outside_of_what_is_mounted_has_the_limit_of_the_mount(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    top = machine.mount("cgroup2", root="/docker/abc")
    machine.join("0::/../elsewhere")
    say(top, "memory.max", "9000")
    assert machine.limits() == [9000]


def test_mount_with_a_blank_in_its_path(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    top = machine.mount("cgroup2", name="a tree")
    machine.join("0::/")
    say(top, "memory.max", "10")
    assert machine.limits() == [10]


def test_no_limit_and_no_cgroups_say_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert list(cgroup_limits(tmp_path / "missing")) == []
    machine.join("0::/box")
    assert machine.limits() == []  # not mounted
    say(machine.mount("cgroup2") / "box", "memory.max", "max")
    assert machine.limits() == []


def test_this_process_may_use_no_more_than_the_machine_has() -> None:
    assert 0 < memory_limit() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_address_space_limits_too() -> None:
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29));"
        "from pytriton_lite.core.memory_limit import memory_limit; print(memory_limit())"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert int(out) <= 1 << 29
