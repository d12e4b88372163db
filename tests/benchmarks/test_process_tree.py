"""CPU accounting on real processes. Each burns a fixed amount of its own CPU time, however long that takes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from process_tree import ProcessTree, everyone_cpu_seconds, parse_stat, thread_times

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")

BURN = "import os\nwhile sum(os.times()[:2]) < {seconds}: pass\n"
BURNT_S = 0.3
# A process is counted in whole ticks of 10 ms, and starting Python costs something too.
SLACK_S = 0.05


@contextmanager
def running(code: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that leads a session; it is killed with its group in the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        ProcessTree(process.pid).kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def cpu_seconds(tree: ProcessTree) -> float:
    seconds = tree.cpu_seconds()
    assert seconds is not None
    return seconds


def test_name_with_blanks_and_parentheses_does_not_shift_the_fields() -> None:
    line = "17 (a) b (c 9) S 4 17 12 0 -1 4194304 1 2 3 4 100 20 3 1 20 0 1 0 5555 1 1\n"
    stat = parse_stat(line)
    assert (stat.pid, stat.parent, stat.session) == (17, 4, 12)
    assert (stat.cpu_ticks, stat.started_ticks, stat.state) == (124, 5555, "S")


def test_own_line_agrees_with_what_the_system_says_of_this_process() -> None:
    with open(f"/proc/{os.getpid()}/stat") as file:
        stat = parse_stat(file.read())
    assert (stat.pid, stat.parent, stat.session) == (os.getpid(), os.getppid(), os.getsid(0))
    times = os.times()
    assert stat.cpu_ticks / os.sysconf("SC_CLK_TCK") == pytest.approx(sum(times[:4]), abs=SLACK_S)


def test_work_of_a_living_grandchild_is_counted() -> None:
    grandchild = BURN.format(seconds=BURNT_S) + "print('burnt', flush=True)\ninput()\n"
    with running(f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {grandchild!r}])") as process:
        tree = ProcessTree(process.pid)
        assert line_of(process) == "burnt"
        assert len(tree.members()) == 2
        assert cpu_seconds(tree) >= BURNT_S - SLACK_S


def test_work_of_a_child_that_died_meanwhile_stays_counted() -> None:
    code = f"""
        import subprocess, sys
        print('started', flush=True)
        input()
        subprocess.run([sys.executable, '-c', {BURN.format(seconds=BURNT_S)!r}])
        print('child is gone', flush=True)
        input()
    """
    with running(code) as process:
        tree = ProcessTree(process.pid)
        assert line_of(process) == "started"
        before = cpu_seconds(tree)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert line_of(process) == "child is gone"
        assert len(tree.members()) == 1
        assert cpu_seconds(tree) - before >= BURNT_S - SLACK_S


def test_child_in_a_session_of_its_own_is_a_member() -> None:
    code = """
        import subprocess, sys
        child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE, start_new_session=True)
        print(child.pid, flush=True)
        input()
    """
    with running(code) as process:
        child = int(line_of(process))
        assert child in {stat.pid for stat in ProcessTree(process.pid).members()}


def test_member_whose_parent_has_gone_remains_a_member_and_is_killed() -> None:
    code = """
        import subprocess, sys
        child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'], start_new_session=True)
        print(child.pid, flush=True)
        input()
    """
    with running(code) as process:
        child = int(line_of(process))
        tree = ProcessTree(process.pid)
        process.kill()
        process.wait()
        assert [stat.pid for stat in tree.alive()] == [child]
        assert [stat.pid for stat in tree.kill()] == [child]
    while tree.alive():  # SIGKILL is under way; a member that it did not reach would live for an hour
        os.sched_yield()


def test_what_this_process_burns_is_part_of_what_everybody_uses() -> None:
    before, mine = everyone_cpu_seconds(), sum(os.times()[:2])
    while sum(os.times()[:2]) - mine < BURNT_S:
        pass
    after = everyone_cpu_seconds()
    assert before is not None
    assert after is not None
    assert after - before >= BURNT_S - SLACK_S


def test_the_time_of_a_thread_is_found() -> None:
    here = threading.get_native_id()
    before = thread_times([os.getpid()])[os.getpid(), here][1]
    began = time.thread_time_ns()
    while time.thread_time_ns() - began < 20_000_000:
        pass
    assert thread_times([os.getpid()])[os.getpid(), here][1] - before >= 10_000_000
