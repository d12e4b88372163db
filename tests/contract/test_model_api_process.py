"""The process that a model lives in: model_api.md sections 1.2, 1.3, 1.5, 3.4, and rows 23, 42, 44 and 134."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytriton_lite.worker.loader import BACKEND_DIRECTORY
from tests.contract.scripted_model import CONFIG, INSTANCE, answer, run, write_scripted_model
from tests.harness import PROJECT, RunningServer, write_model

ENVIRONMENT = {"MODEL_SETTING": "é 1", "OMP_NUM_THREADS": "2"}

COUNTED = """
import os

import numpy as np
import triton_python_backend_utils as pb_utils

print("imported by", os.getpid())
seen = []


class TritonPythonModel:
    def execute(self, requests):
        seen.append(1)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([os.getpid(), len(seen)]))]) for _ in requests]
"""

COUNTED_CONFIG = """
backend: "python"
output [ { name: "Y" data_type: TYPE_INT64 dims: [ 2 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("repository")


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RunningServer]:
    write_scripted_model(repository)
    write_model(repository, "counted", COUNTED, COUNTED_CONFIG)
    with RunningServer(repository, environ=ENVIRONMENT) as running:
        yield running


# ---------------------------------------------------------------------------------------------- the interpreter


def test_arguments_directory_and_name_are_those_that_a_model_expects(server: RunningServer) -> None:
    """Model API, 1.2."""
    code = """
    import os, sys
    answer([sys.argv, os.getcwd(), type(model).__module__, sys.executable, sys.stdin.read()])
    """
    assert answer(server, code) == [[""], str(PROJECT), "1.model", sys.executable, ""]


def test_the_path_ends_with_version_model_and_backend_directory(server: RunningServer, repository: Path) -> None:
    """Model API, 1.2: the interpreter's own first, with '' in front."""
    path = answer(server, "import sys\nanswer(sys.path)")
    assert path[0] == ""
    assert path[-3:] == [str(repository / "scripted" / "1"), str(repository / "scripted"), BACKEND_DIRECTORY]
    assert answer(server, "answer(pb_utils.get_model_dir())") == str(repository / "scripted" / "1")


def test_both_modules_of_pb_utils_can_be_imported(server: RunningServer) -> None:
    """Model API, 1.2."""
    code = """
    import c_python_backend_utils as compiled
    answer([pb_utils.Tensor is compiled.Tensor, compiled.Tensor.__module__])
    """
    assert answer(server, code) == [True, "c_python_backend_utils"]


def test_the_environment_is_the_servers(server: RunningServer) -> None:
    """model_api.md row 23: nothing is added, nothing taken away."""
    environ = answer(server, "import os\nanswer(dict(os.environ))")
    ours = {**os.environ, **ENVIRONMENT}
    for both in (environ, ours):
        both.pop("PYTEST_CURRENT_TEST", None)  # pytest changes it while we run
    assert environ == ours


def test_no_bytecode_is_left_beside_the_model(server: RunningServer, repository: Path) -> None:
    """A new file would look like a changed model (repository.md, 3.1)."""
    assert answer(server, "answer('loaded')") == "loaded"
    assert list(repository.rglob("__pycache__")) == []


# ---------------------------------------------------------------------------------------------- processes


def test_every_instance_is_a_process_that_runs_the_module_itself(server: RunningServer) -> None:
    """Model API, 1.3: nothing is shared between instances."""
    told = [server.infer("counted", []).json["outputs"][0]["data"] for _ in range(4)]
    pids = server.worker_pids("counted_0_")
    assert len(pids) == 2
    assert sorted(told) == sorted([pid, count] for pid in pids for count in (1, 2))
    for pid in pids:
        server.wait_for_log(rf'"imported by {pid}" \[counted:1 counted_0_[01]\]')
    assert len(re.findall(r"imported by .* counted_0_\d\]", server.log)) == 2


def test_user_code_runs_on_the_main_thread(server: RunningServer) -> None:
    """Model API, 1.3."""
    code = "import threading\nanswer(threading.current_thread() is threading.main_thread())"
    assert answer(server, code) is True


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_that_asks_for_the_end_does_nothing(server: RunningServer, name: str) -> None:
    """Model API, 1.3: no KeyboardInterrupt reaches a model."""
    code = f"""
    import os, signal
    os.kill(os.getpid(), signal.{name})
    answer(os.getpid())
    """
    assert answer(server, code) == answer(server, "import os\nanswer(os.getpid())")


def test_a_model_may_fork_in_execute(server: RunningServer) -> None:
    """Model API, 1.3."""
    code = """
    import multiprocessing
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=lambda: queue.put(sum(range(10))))
    process.start()
    got = queue.get()
    process.join()
    with context.Pool(2) as pool:
        answer([got, process.exitcode, pool.map(len, ["a", "bb"])])
    """
    assert answer(server, code) == [45, 0, [1, 2]]
    assert answer(server, "answer('still there')") == "still there"


def test_a_child_that_comes_out_of_a_method_that_forked_it_is_no_second_worker(tmp_path: Path) -> None:
    """Beside ``execute``, for which test_model_api_execute.py has it."""
    events = tmp_path / "events"
    code = f"""
        import os

        import numpy as np
        import triton_python_backend_utils as pb_utils

        def forks(method, fails):
            pid = os.fork()
            if pid == 0:
                if fails:
                    raise ValueError("the child's")
                return
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with open({str(events)!r}, "a") as file:
                print(method, status, file=file)

        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                forks("auto_complete_config", fails=True)
                return config

            def initialize(self, args):
                forks("initialize", fails=False)

            def execute(self, requests):
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([os.getpid()]))]) for _ in requests]

            def finalize(self):
                forks("finalize", fails=True)
        """
    config = """
        backend: "python"
        output [ { name: "Y" data_type: TYPE_INT64 dims: [ 1 ] } ]
        """
    write_model(tmp_path / "models", "forks", code, config)
    with RunningServer(tmp_path / "models") as server:
        reply = server.post("/v2/models/forks/infer", {"inputs": []})
        assert reply.json["outputs"][0]["data"] == server.worker_pids("forks")
    assert events.read_text().splitlines() == ["auto_complete_config 1", "initialize 0", "finalize 1"]


@pytest.mark.parametrize(
    "start",
    [
        "child = multiprocessing.get_context('fork').Process(target=threading.Event().wait)\nchild.start()",
        "child = subprocess.Popen(['sleep', '3600'])",
    ],
    ids=["a forked process", "a program"],
)
def test_what_a_model_starts_can_be_terminated(server: RunningServer, start: str) -> None:
    """It does not inherit the worker's deafness to signals: waiting for its end would be waiting for ever."""
    code = (
        f"import multiprocessing, subprocess, threading\n{start}\nchild.terminate()\n"
        "answer(child.wait() if isinstance(child, subprocess.Popen) else (child.join(), child.exitcode)[1])"
    )
    assert answer(server, code) == -15


# ---------------------------------------------------------------------------------------------- output


def test_prints_are_in_the_log_line_by_line(server: RunningServer) -> None:
    """Model API, 1.5, with model, version and instance."""
    run(server, "print('first line\\nsecond \"line\"', flush=False)")
    server.wait_for_log(rf'I\d{{4}} .* stdout\] "first line" \[scripted:1 {INSTANCE}\]')
    server.wait_for_log(rf'I\d{{4}} .* stdout\] "second \\"line\\"" \[scripted:1 {INSTANCE}\]')


def test_errors_of_programs_and_of_threads_are_in_the_log(server: RunningServer) -> None:
    code = """
    import subprocess, threading
    subprocess.run("echo from a program >&2", shell=True, check=True)
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    answer(0)
    """
    answer(server, code)
    server.wait_for_log(rf'W\d{{4}} .* stderr\] "from a program" \[scripted:1 {INSTANCE}\]')
    server.wait_for_log(rf'W\d{{4}} .* stderr\] "ZeroDivisionError: division by zero" \[scripted:1 {INSTANCE}\]')


def test_log_lines_have_their_level_and_the_callers_line(server: RunningServer) -> None:
    """Model API, 2.8: newlines escaped; usable from any thread."""
    code = """
    import threading
    pb_utils.Logger.log_info("as info")
    pb_utils.Logger.log_warn("as\\nwarning")
    pb_utils.Logger.log("as error", pb_utils.Logger.ERROR)
    thread = threading.Thread(target=pb_utils.Logger.log_info, args=("from a thread",))
    thread.start()
    thread.join()
    answer(0)
    """
    answer(server, code)
    server.wait_for_log(rf'I\d{{4}} .* script:3\] "as info" \[scripted:1 {INSTANCE}\]')
    server.wait_for_log(rf'W\d{{4}} .* script:4\] "as\\nwarning" \[scripted:1 {INSTANCE}\]')
    server.wait_for_log(rf'E\d{{4}} .* script:5\] "as error" \[scripted:1 {INSTANCE}\]')
    server.wait_for_log(r'"from a thread"')


VERBOSE = "pb_utils.Logger.log_verbose('chatter')\npb_utils.Logger.log_info('after it')\nanswer(0)"


def test_a_line_of_any_length_is_written_in_pieces(server: RunningServer) -> None:
    code = "pb_utils.Logger.log_info('a' * 262_144 + 'b' * 262_144 + 'the rest')\npb_utils.Logger.log_info('')\n"
    answer(server, code + "answer(0)")
    server.wait_for_log(
        r'script:1\] "a{262144}".*\n.*script:1\] "b{262144}".*\n.*script:1\] "the rest".*\n.*script:2\] ""'
    )


def test_verbose_lines_are_not_in_the_log_by_default(server: RunningServer) -> None:
    """model_api.md row 134."""
    answer(server, VERBOSE)
    server.wait_for_log('"after it"')
    assert "chatter" not in server.log


def test_levels_follow_the_flags_of_the_server(tmp_path: Path) -> None:
    """model_api.md row 134, and 2.8: each level has its flag."""
    write_scripted_model(tmp_path)
    with RunningServer(tmp_path, flags=("--log-verbose=1", "--log-warning=false")) as server:
        answer(server, "pb_utils.Logger.log_warn('a warning')\n" + VERBOSE)
        server.wait_for_log('I.* script:2\\] "chatter"')
        server.wait_for_log('"after it"')
        assert "a warning" not in server.log


# ---------------------------------------------------------------------------------------------- the end


FINALIZING = """
import atexit
import os

import triton_python_backend_utils as pb_utils

atexit.register(print, "atexit of", os.getpid())


class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]

    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]

    def finalize(self):
        print("finalize of", self.name)
        pb_utils.Logger.log_info("logged by " + self.name)
        {statement}

    def __del__(self):
        print("del of", self.name)
"""


def test_finalize_runs_at_shutdown_and_its_faults_are_logged_and_ignored(tmp_path: Path) -> None:
    """model_api.md row 42, and 3.4: the object goes after finalize."""
    statements = {
        "quiet": "pass",
        "raising": "raise ValueError('fin boom')",
        "exiting": "raise SystemExit(3)",
        "dying": "os._exit(3)",
    }
    for name, statement in statements.items():
        write_model(tmp_path, name, FINALIZING.format(statement=statement), CONFIG)
    write_model(tmp_path, "without", "class TritonPythonModel: pass", CONFIG)
    with RunningServer(tmp_path) as server:
        assert "finalize of" not in server.log
        assert server.stop() == 0
    log = server.log
    for name in statements:
        assert log.count(f'"finalize of {name}"') == 1
        assert log.count(f'model.py:19] "logged by {name}" [{name}:1 {name}_0_0]') == 1
    for name in ("quiet", "raising", "exiting"):
        assert log.index(f'"finalize of {name}"') < log.index(f'"del of {name}"')
    assert len(re.findall(r'"atexit of \w+" \[\w+:1 \w+_0_0\]', log)) == 3
    server.wait_for_log(r'I.*ValueError: fin boom" \[raising:1.*\n  At:\n    .*/raising/1/model.py\(20\): finalize\n')
    server.wait_for_log(r'I.*SystemExit: 3" \[exiting:1.*\n  At:\n')


def test_a_model_that_has_replaced_its_standard_streams_ends_as_any_other(tmp_path: Path) -> None:
    streams = {"none": "None", "write_only": "type('Quiet', (), {'write': lambda *_: None})"}
    for name, stream in streams.items():
        write_model(tmp_path, name, FINALIZING.format(statement=f"import sys; sys.stdout = {stream}"), CONFIG)
    with RunningServer(tmp_path) as server:
        assert server.stop() == 0
    assert "Traceback" not in server.log
    for name in streams:
        assert f"successfully unloaded '{name}'" in server.log


def test_a_failed_initialize_is_not_followed_by_finalize(tmp_path: Path) -> None:
    """Model API, 3.2."""
    code = """
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("init boom")

    def finalize(self):
        print("finalized after all")
"""
    write_model(tmp_path, "failing", code, CONFIG)
    with RunningServer(tmp_path, flags=("--exit-on-error=false",)) as server:
        server.wait_for_log("init boom")
        server.stop()
    assert "finalized after all" not in server.log


def test_a_model_that_fails_to_load_ends_the_server_by_default(tmp_path: Path) -> None:
    """model_api.md row 36, without --exit-on-error=false; the models that did load are finalized."""
    write_model(tmp_path, "failing", "raise ValueError('import boom')", CONFIG)
    write_model(tmp_path, "quiet", FINALIZING.format(statement="pass"), CONFIG)
    server = RunningServer(tmp_path)
    with pytest.raises(AssertionError), server:
        pytest.fail("the server started")
    assert server.process.returncode == 1
    assert "import boom" in server.log
    assert '"finalize of quiet"' in server.log
