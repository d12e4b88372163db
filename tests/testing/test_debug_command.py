"""``pytriton-lite debug MODEL_FOLDER``: the model in the foreground process, where ``breakpoint()`` stops in the terminal."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import venv
from pathlib import Path
from typing import Any

import pytest

from pytriton_lite.cli import main
from tests.harness import MODEL_REPOSITORY, PROJECT, write_model

CONFIG = 'input [{ name: "X" data_type: TYPE_FP32 dims: [-1] }] output [{ name: "Y" data_type: TYPE_FP32 dims: [-1] }]'
PROMPT = r"\(Pdb\) "

STOPS_IN_EXECUTE = """
    import os
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            print("initialized in", os.getpid(), "as", args["model_instance_name"], flush=True)

        def execute(self, requests):
            doubled = 2 * requests[0].inputs()[0].as_numpy()
            breakpoint()
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", doubled)])]

        def finalize(self):
            print("finalized", flush=True)
"""


class Debugging:
    """The command under a terminal of its own, as a user sees it."""

    def __init__(self, folder: Path, *options: str) -> None:
        terminal, theirs = os.openpty()
        self._terminal = terminal
        self._seen = ""
        self.screen = ""
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "pytriton_lite", "debug", str(folder), "--http-port=0", "--grpc-port=0",
                "--metrics-port=0", *options,
            ],
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=PROJECT, start_new_session=True,
            env={**os.environ, "TERM": "dumb"},
        )  # fmt: skip
        os.close(theirs)
        self.answers: list[Any] = []
        self._asking: list[threading.Thread] = []

    def __enter__(self) -> Debugging:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        try:
            self.until_end()  # the server has it open as well: it sees our end, and ends
        finally:
            os.close(self._terminal)

    def until(self, pattern: str, *, timeout_s: float = 60) -> re.Match[str]:
        """The next match of *pattern* on the screen."""
        while (found := re.search(pattern, self._seen)) is None:
            assert self._read(timeout_s), f"the command ended before {pattern!r} appeared:\n{self.screen}"
        self._seen = self._seen[found.end() :]
        return found

    def until_end(self) -> str:
        """The whole screen, when every process that writes on it has ended."""
        while self._read():
            pass
        return self.screen

    def _read(self, timeout_s: float = 60) -> bool:
        """What the screen shows next; not at its end."""
        ready, _, _ = select.select([self._terminal], [], [], timeout_s)
        assert ready, f"nothing was written for {timeout_s} s, behind:\n{self.screen}"
        try:
            data = os.read(self._terminal, 4096)
        except OSError:  # what Linux says at the end of a terminal
            data = b""
        text = data.decode(errors="replace").replace("\r\n", "\n")
        self.screen += text
        self._seen += text
        return bool(data)

    def type(self, line: str) -> None:
        os.write(self._terminal, line.encode() + b"\n")

    def press_ctrl_c(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def wait_ready(self) -> None:
        self._url = "http://127.0.0.1:" + self.until(r"HTTPService at [^ ]+:(\d+)").group(1)
        self.until("Started Metrics Service")

    def infer(self, model: str, *values: float) -> threading.Thread:
        """Send a request; what it is answered is in ``answers`` when the thread has ended."""
        body = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [len(values)], "data": values}]}
        url = f"{self._url}/v2/models/{model}/infer"

        def ask() -> None:
            try:
                with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=200) as reply:
                    self.answers.append(json.load(reply)["outputs"][0]["data"])
            except urllib.error.HTTPError as error:
                with error:
                    self.answers.append(json.load(error)["error"])

        thread = threading.Thread(target=ask)
        thread.start()
        return thread


def test_a_breakpoint_in_execute_stops_in_the_terminal_and_the_client_gets_its_answer(tmp_path: Path) -> None:
    with Debugging(write_model(tmp_path, "stops", STOPS_IN_EXECUTE, CONFIG)) as command:
        pid = int(command.until(r"initialized in (\d+) as stops_0").group(1))
        assert pid == command.process.pid
        command.wait_ready()
        asking = command.infer("stops", 1, 2)
        command.until(PROMPT)
        command.type("p doubled")
        command.until(r"array\(\[2\., 4\.\], dtype=float32\)")
        assert command.answers == []
        command.until(PROMPT)
        command.type("c")
        asking.join()
        assert command.answers == [[2.0, 4.0]]
        command.press_ctrl_c()
        command.until("finalized")
        assert command.process.wait(60) == 0
        assert "Found 0 live models" in command.until_end()


def test_the_server_listens_on_the_loopback_and_warns_of_nothing_that_it_chose(tmp_path: Path) -> None:
    code = "class TritonPythonModel:\n    def execute(self, requests):\n        breakpoint()\n"
    with Debugging(write_model(tmp_path, "plain", code, CONFIG)) as command:
        command.wait_ready()
        command.press_ctrl_c()
        screen = command.until_end()
    assert re.findall(r"Started [\w ]+ at (.*):\d+", screen) == ["127.0.0.1"] * 3
    assert "To stop: Ctrl-C; while the model executes it interrupts that alone" in screen
    assert not re.search(r"^W", screen, re.MULTILINE)


def test_what_the_environment_says_of_backends_holds_beside_what_debug_itself_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTRITON_LITE_BACKEND_CONFIG", "python,frobnicate=1")
    with Debugging(write_model(tmp_path, "stops", STOPS_IN_EXECUTE, CONFIG)) as command:
        command.until("frobnicate")
        command.wait_ready()


def test_an_environment_with_very_many_variables_is_that_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
        import os
        class TritonPythonModel:
            def initialize(self, args):
                print("has", sum(name.startswith("MANY_") for name in os.environ), "variables", flush=True)
            def execute(self, requests):
                pass
    """
    for number in range(500):
        monkeypatch.setenv(f"MANY_{number}", "x" * 1000)
    with Debugging(write_model(tmp_path, "many", code, CONFIG)) as command:
        command.until("has 500 variables")
        command.wait_ready()


def test_leaving_the_debugger_fails_the_request_and_the_model_serves_on(tmp_path: Path) -> None:
    with Debugging(write_model(tmp_path, "stops", STOPS_IN_EXECUTE, CONFIG)) as command:
        command.wait_ready()
        for line in ("q", "c"):
            asking = command.infer("stops", 1)
            command.until(PROMPT)
            command.type(line)
            asking.join()
        assert "BdbQuit" in command.answers[0]
        assert command.answers[1] == [2.0]


def test_ctrl_c_interrupts_execute_and_not_the_server(tmp_path: Path) -> None:
    code = """
        import threading
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                array = requests[0].inputs()[0].as_numpy()
                if array[0] == 0:
                    print("hangs", flush=True)
                    threading.Event().wait()
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)])]
    """
    with Debugging(write_model(tmp_path, "hangs", code, CONFIG)) as command:
        command.wait_ready()
        asking = command.infer("hangs", 0)
        command.until("hangs\n")
        command.press_ctrl_c()
        asking.join()
        assert "KeyboardInterrupt" in command.answers[0]
        command.infer("hangs", 5).join()
        assert command.answers[1] == [5.0]


def test_what_the_model_has_left_running_ends_before_the_command_and_at_the_latest_by_ctrl_c(tmp_path: Path) -> None:
    code = """
        import threading

        def work(name):
            threading.main_thread().join()
            print(name, "ends", flush=True)

        class TritonPythonModel:
            def initialize(self, args):
                threading.Thread(target=work, args=("a thread",)).start()
                threading.Thread(target=threading.Event().wait).start()
    """
    with Debugging(write_model(tmp_path, "m", code, CONFIG)) as command:
        command.wait_ready()
        command.press_ctrl_c()
        command.until("a thread ends")
        command.press_ctrl_c()
        command.until_end()
        assert command.process.wait() == -signal.SIGINT


def test_a_breakpoint_in_initialize_stops_before_anything_is_served(tmp_path: Path) -> None:
    code = "class TritonPythonModel:\n    def initialize(self, args):\n        breakpoint()\n        print('went on')\n"
    with Debugging(write_model(tmp_path, "early", code, CONFIG)) as command:
        command.until(PROMPT)
        assert "Started" not in command.screen
        command.type("p args['model_name']")
        command.until("'early'")
        command.until(PROMPT)
        command.type("c")
        command.until("went on")
        command.wait_ready()


def test_a_model_that_does_not_load_ends_the_command_with_its_reason(tmp_path: Path) -> None:
    code = "class TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('no weights')\n"
    with Debugging(write_model(tmp_path, "broken", code, CONFIG)) as command:
        assert "no weights" in command.until_end()
        assert command.process.wait(60) == 1


def test_the_model_has_one_instance_and_another_model_an_ordinary_worker_that_it_can_call(tmp_path: Path) -> None:
    caller = """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                X = requests[0].inputs()[0]
                call = pb_utils.InferenceRequest(model_name="callee", requested_output_names=["Y"], inputs=[X])
                response = call.exec()
                return [response]
    """
    callee = """
        import os
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([os.getpid()], np.float32))])]
    """
    folder = write_model(tmp_path, "caller", caller, CONFIG + " instance_group [{ count: 3 kind: KIND_CPU }]")
    write_model(tmp_path, "callee", callee, CONFIG)
    with Debugging(folder, "--load-model=callee") as command:
        command.wait_ready()
        command.infer("caller", 1).join()
        (answer,) = command.answers
        assert answer[0] not in (0.0, float(command.process.pid))


def test_the_server_ends_with_the_command_that_is_killed(tmp_path: Path) -> None:
    with Debugging(write_model(tmp_path, "stops", STOPS_IN_EXECUTE, CONFIG)) as command:
        command.wait_ready()
        command.process.kill()
        command.process.wait()
        command.until_end()  # nobody has the terminal open any more


def test_a_model_with_an_environment_of_its_own_is_debugged_in_that(tmp_path: Path) -> None:
    import numpy

    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True, with_pip=False)
    (site_packages,) = environment.glob("lib/python*/site-packages")
    (site_packages / "numpy.pth").write_text(str(Path(numpy.__file__).parent.parent))
    parameter = f'parameters {{ key: "EXECUTION_ENV_PATH" value: {{ string_value: "{environment}" }} }}'
    code = """
        import os
        import sys

        class TritonPythonModel:
            def initialize(self, args):
                breakpoint()
    """
    with Debugging(write_model(tmp_path / "models", "apart", code, f"{CONFIG} {parameter}")) as command:
        command.until(PROMPT)
        command.type("p sys.prefix, os.getpid()")
        found = command.until(r"\('([^']*)', (\d+)\)")
        assert found.groups() == (str(environment), str(command.process.pid))


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["debug"], "error: debug needs the folder of a model, as in: pytriton-lite debug model_repository/add_sub"),
        (["debug", "nowhere"], "is no directory"),
        (["debug", str(MODEL_REPOSITORY)], "debug needs one model, not a repository"),
        (
            ["debug", str(MODEL_REPOSITORY / "add_sub"), "--watch"],
            "debug runs one model in this terminal to its end; --watch",
        ),
        (
            ["debug", str(MODEL_REPOSITORY / "add_sub"), "--htp-port=1"],
            "unrecognized option '--htp-port=1'; the nearest known one is '--http-port'",
        ),
    ],
)
def test_a_mistake_is_told_before_anything_is_started(
    argv: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 1
    assert text in capsys.readouterr().err
