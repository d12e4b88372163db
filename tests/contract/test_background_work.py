"""What a model has left running when it ends: threads, executors, exit handlers (docs/python-backend.md)."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.contract.life_kit import CONFIG, EXPLICIT, closed_gate, must_load, unload, value_of, wait_unloaded, waits
from tests.harness import RunningServer, is_running, write_model

MODEL = """
import atexit
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.threads, self.processes = ThreadPoolExecutor(2), ProcessPoolExecutor(2)

    def execute(self, requests):
        {statement}
        out = np.array([os.getpid()], np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]) for _ in requests]


def work():
    {work}
"""

IN_A_POOL = "self.threads.submit(work)"
IN_A_THREAD = "threading.Thread(target=work, name='writer').start()"


def write(folder: Path, name: str, statement: str, *, work: str = "pass", sharing: str = "") -> None:
    parameter = f'parameters {{ key: "INSTANCE_SHARING" value {{ string_value: "{sharing}" }} }}\n' if sharing else ""
    write_model(folder / "models", name, MODEL.format(statement=statement, work=work), parameter + CONFIG)


def test_an_open_pool_of_processes_does_not_keep_its_model_from_ending(tmp_path: Path) -> None:
    """Its processes are told to end before exit handlers of multiprocessing wait for them."""
    write(tmp_path, "m", "assert list(self.processes.map(abs, [-1, 2])) == [1, 2]")
    with RunningServer(tmp_path / "models", flags=(EXPLICIT,)) as server:
        for _ in range(5):
            must_load(server, "m")
            pid = value_of(server, "m")
            assert unload(server, "m").status == 200
            wait_unloaded(server, "m")
            assert not is_running(pid)
        must_load(server, "m")
        value_of(server, "m")
        assert server.stop() == 0
    assert "killing" not in server.log
    assert "have not ended" not in server.log


@pytest.mark.parametrize("sharing", ["", "fork", "threads"], ids=["a process", "a fork", "a thread"])
@pytest.mark.parametrize("statement", [IN_A_POOL, IN_A_THREAD], ids=["executor", "thread"])
def test_what_a_model_does_in_the_background_is_finished_when_it_is_unloaded(
    tmp_path: Path, statement: str, sharing: str
) -> None:
    with closed_gate(tmp_path) as gate:
        work = f"{waits(gate)}; pb_utils.Logger.log_info('written'); Path({str(tmp_path / 'file')!r}).touch()"
        write(tmp_path, "m", statement, work=work, sharing=sharing)
        with RunningServer(tmp_path / "models", flags=(EXPLICIT,)) as server:
            must_load(server, "m")
            value_of(server, "m")
            gate.wait_held(server)
            assert unload(server, "m").status == 200
            assert not (tmp_path / "file").exists()
            gate.open()
            wait_unloaded(server, "m")
            assert (tmp_path / "file").exists()
            server.wait_for_log('"written"')


@pytest.mark.parametrize("statement", [IN_A_POOL, IN_A_THREAD], ids=["executor", "thread"])
def test_what_a_model_does_in_the_background_is_finished_when_the_server_stops(tmp_path: Path, statement: str) -> None:
    with closed_gate(tmp_path) as gate:
        write(tmp_path, "m", statement, work=f"{waits(gate)}; Path({str(tmp_path / 'file')!r}).touch()")
        with RunningServer(tmp_path / "models") as server:
            value_of(server, "m")
            gate.wait_held(server)
            server.process.send_signal(signal.SIGTERM)
            server.wait_for_log("Found 1 live models and 0 in-flight")
            gate.open()
            assert server.wait() == 0
    assert (tmp_path / "file").exists()


@pytest.mark.parametrize("sharing", ["", "fork", "threads"], ids=["a process", "a fork", "a thread"])
def test_a_thread_that_looks_whether_the_main_thread_lives_ends_with_it(tmp_path: Path, sharing: str) -> None:
    """As where the interpreter itself ends."""
    work = "threading.main_thread().join(); print('the main thread has ended', flush=True)"
    write(tmp_path, "m", IN_A_THREAD, work=work, sharing=sharing)
    with RunningServer(tmp_path / "models") as server:
        value_of(server, "m")
        assert server.stop() == 0
    assert "the main thread has ended" in server.log
    assert "have not ended" not in server.log


def test_what_never_ends_is_named_and_ended_with_its_process(tmp_path: Path) -> None:
    """Triton waits for ever."""
    write(tmp_path, "thread", IN_A_THREAD, work="threading.Event().wait()")
    write(tmp_path, "handler", "atexit.register(threading.Event().wait)")
    # Nothing in the process can end it then, as nothing can where a library keeps the interpreter's lock.
    write(tmp_path, "stopped", "atexit.register(os.kill, os.getpid(), signal.SIGSTOP)")
    names = ("thread", "handler", "stopped")
    with RunningServer(tmp_path / "models", flags=("--exit-timeout-secs=1", EXPLICIT)) as server:
        for name in names:
            must_load(server, name)
        pids = [value_of(server, name) for name in names]
        for name in names:
            assert unload(server, name).status == 200
        for name in names:
            wait_unloaded(server, name)
        assert not any(is_running(pid) for pid in pids)
        assert server.stop() == 0
    log = server.log
    ended = "finalized 0.5 s ago, and"
    assert f"{ended} these threads have not ended: 'writer'; the process ends without\" [thread:1" in log
    assert f'{ended} an exit handler has not returned; the process ends without" [handler:1' in log
    assert 'has not ended 5.5 s after finalize, killing it and what it has started" [stopped:1 stopped_0]' in log


def test_what_never_ends_is_ended_with_its_process_where_nothing_can_be_said_of_it(tmp_path: Path) -> None:
    write(tmp_path, "m", f"{IN_A_THREAD}; __import__('sys').stderr.close()", work="threading.Event().wait()")
    with RunningServer(tmp_path / "models", flags=("--exit-timeout-secs=1", EXPLICIT)) as server:
        must_load(server, "m")
        value_of(server, "m")
        assert unload(server, "m").status == 200
        wait_unloaded(server, "m")
        assert server.stop() == 0
    assert "killing" not in server.log
