"""Models that never come back, and workers that are stopped: their clients hear of it, and everybody else is served."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from tests.contract.wire_models import wait_pending
from tests.harness import Reply, RunningServer, tensor, write_model

TENSORS = """
    backend: "python"
    input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""
SLEEPS = """
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            value = requests[0].inputs()[0].as_numpy()
            if value[0] == 0:
                self.oversleep()
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]

        def oversleep(self):
            print("asleep", flush=True)
            time.sleep(1e9)
"""
LIMIT = 'parameters { key: "EXECUTION_TIMEOUT_SECONDS" value { string_value: "1" } }'
"""So long that on a busy machine nobody exceeds it who is not to."""
OVER_LIMIT = (
    "model 'm' version 1 has not answered within its limit of 1 s for an execution; the worker of instance 'm_0' is "
    "replaced"
)
STACK = r'File .*model.py\\", line \d+ in oversleep'
SLOW = ("--slow-execution-warning-secs=0.2",)


def limited(seconds: float) -> str:
    return LIMIT.replace('"1"', f'"{seconds}"')


def ask(server: RunningServer, value: int, model: str = "m") -> Reply:
    return server.infer(model, [tensor("IN", "INT32", [1], [value])])


class Asking:
    """A request in a thread of its own."""

    def __init__(self, server: RunningServer, value: int, model: str = "m") -> None:
        self._server, self._value, self._model = server, value, model
        self._reply: Reply | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._reply = ask(self._server, self._value, self._model)

    @property
    def is_waiting(self) -> bool:
        return self._thread.is_alive()

    def reply(self) -> Reply:
        self._thread.join(60)
        assert self._reply is not None, f"no answer:\n{self._server.log}"
        return self._reply


def wake_by_death(server: RunningServer, asleep: Asking, instance: str) -> None:
    """End *asleep*, for which the server would wait when it stops."""
    os.kill(server.worker_pids(instance)[0], signal.SIGKILL)
    assert asleep.reply().status == 503


def test_a_stuck_execution_ends_with_its_limit_and_those_behind_it_are_served(tmp_path: Path) -> None:
    write_model(tmp_path, "m", SLEEPS, TENSORS + LIMIT)
    with RunningServer(tmp_path) as server:
        assert ask(server, 1).status == 200
        (first,) = server.worker_pids("m_0")
        stuck = Asking(server, 0)
        server.wait_for_log("asleep")
        behind = [Asking(server, value) for value in range(2, 6)]
        assert (stuck.reply().status, stuck.reply().error) == (504, OVER_LIMIT)
        assert [asking.reply().status for asking in behind] == [200] * 4
        assert server.worker_pids("m_0") != [first]
        assert "over its limit of 1 s" in server.log
        assert re.search(STACK + r".*\[m:1 m_0\]", server.log), server.log
        *_, bottom = re.findall(r'File .*", line \d+ in (\w+)', server.log)
        assert bottom == "_become_worker"  # not what the server did before it forked
        assert 'restarts{model="m",version="1"} 1' in server.get(server.metrics_url).body.decode()


def test_the_limit_of_the_server_holds_for_models_without_their_own_and_grpc_says_deadline(tmp_path: Path) -> None:
    write_model(tmp_path, "m", SLEEPS, TENSORS)
    write_model(tmp_path, "patient", SLEEPS, TENSORS + limited(0))
    with RunningServer(tmp_path, flags=("--execution-timeout-secs=1",)) as server:
        asleep = Asking(server, 0, "patient")
        server.wait_for_log("asleep")
        with grpcclient.InferenceServerClient(server.grpc_url) as client:
            given = grpcclient.InferInput("IN", [1], "INT32")
            given.set_data_from_numpy(np.zeros(1, np.int32))
            with pytest.raises(InferenceServerException) as caught:
                client.infer("m", [given])
        assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
        assert caught.value.message() == OVER_LIMIT
        assert asleep.is_waiting
        assert ask(server, 1).status == 200
        wake_by_death(server, asleep, "patient_0")


def test_a_model_that_is_always_stuck_ends_every_request_and_stays_ready(tmp_path: Path) -> None:
    """Each of them is the fault of its request, as far as anybody can tell: the next one may be a good one."""
    write_model(tmp_path, "m", SLEEPS, TENSORS + LIMIT)
    with RunningServer(tmp_path) as server:
        asking = [Asking(server, 0) for _ in range(4)] + [Asking(server, 7)]
        assert sorted(one.reply().status for one in asking) == [200, 504, 504, 504, 504]
        assert ask(server, 8).status == 200  # by a successor, if it was not the last that was stuck
        assert server.get("/v2/models/m/ready").status == 200


def test_a_worker_that_is_stopped_while_idle_is_replaced_and_its_request_served(tmp_path: Path) -> None:
    write_model(tmp_path, "m", SLEEPS, TENSORS + LIMIT)
    with RunningServer(tmp_path) as server:
        (pid,) = server.worker_pids("m_0")
        os.kill(pid, signal.SIGSTOP)
        assert ask(server, 1).status == 200
        assert "is stopped, by SIGSTOP or a debugger: its stacks cannot be had" in server.log
        assert "the same request that it has not begun with" in server.log


def test_a_worker_that_holds_the_interpreter_is_seen_and_its_stacks_as_well(tmp_path: Path) -> None:
    holds = SLEEPS.replace("time.sleep(1e9)", "import re; re.match('(a+)+b', 'a' * 60)")
    write_model(tmp_path, "m", holds, TENSORS + LIMIT)
    with RunningServer(tmp_path) as server:
        assert ask(server, 0).status == 504
        assert re.search(STACK, server.log), server.log


def test_a_version_whose_only_instance_is_over_its_limit_is_not_ready_until_its_successor_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    (tmp_path / "starts").touch()
    # The second worker does not come up before the gate is opened.
    starts = f"""
        def initialize(self, args):
            with open({str(tmp_path / "starts")!r}, "r+") as starts:
                is_second = starts.read() == "x"
                starts.write("x")
            if is_second:
                open({str(tmp_path / "gate")!r}).read()
    """
    code = SLEEPS.replace("        def execute", starts.replace("\n    ", "\n    ") + "\n        def execute", 1)
    write_model(tmp_path / "models", "m", code, TENSORS + LIMIT)
    with RunningServer(tmp_path / "models") as server:
        assert server.get("/v2/models/m/ready").status == 200
        assert ask(server, 0).status == 504
        assert server.get("/v2/models/m/ready").status == 400
        assert server.get("/v2/health/ready").status == 400
        waiting = Asking(server, 5)
        with open(tmp_path / "gate", "w"):
            pass
        assert waiting.reply().status == 200
        assert server.get("/v2/models/m/ready").status == 200


def test_without_a_limit_the_stacks_are_logged_and_the_request_goes_on(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    waits = f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    code = SLEEPS.replace("import time", "import os, time").replace("time.sleep(1e9)", waits)
    write_model(tmp_path / "models", "m", code, TENSORS)
    with RunningServer(tmp_path / "models", flags=SLOW) as server:
        asleep = Asking(server, 0)
        server.wait_for_log("(?s)at the same execution for .* at the same execution for")
        server.wait_for_log(STACK)
        gate.touch()
        assert asleep.reply().status == 200
        warned = re.findall(r"at the same execution for ([0-9.]+) s", server.log)
        # At 0.2, 0.4, 0.8 … or later; one whose time comes while the machine does something else may be left out.
        assert all(float(said) > 0.19 * 2**at for at, said in enumerate(warned)), warned
        assert 1 <= len(re.findall(STACK, server.log)) <= len(warned)
        assert "worker_restarts" in server.get(server.metrics_url).body.decode()
        assert len(server.worker_pids("m_0")) == 1


def test_the_longest_execution_is_on_the_metrics_page(tmp_path: Path) -> None:
    write_model(tmp_path, "m", SLEEPS, TENSORS)
    with RunningServer(tmp_path, flags=SLOW) as server:

        def longest() -> float:
            page = server.get(server.metrics_url).body.decode()
            found = re.search(r'longest_execution_secs\{model="m",model_instance="m_0",version="1"\} (\S+)', page)
            assert found is not None, page
            return float(found[1])

        assert longest() == 0
        asleep = Asking(server, 0)
        server.wait_for_log("at the same execution for")
        once = longest()
        assert once >= 0.2
        server.wait_for_log("(?s)at the same execution for .* at the same execution for")
        assert longest() > once
        wake_by_death(server, asleep, "m_0")
        assert longest() == 0


CALLS = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                call = pb_utils.InferenceRequest(model_name="slow", requested_output_names=["OUT"], inputs=request.inputs())
                called = call.exec()
                if called.has_error():
                    answers.append(pb_utils.InferenceResponse(error=called.error()))
                else:
                    answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([42], np.int32))]))
            return answers
"""


def test_the_time_of_a_called_model_is_its_own_and_not_the_callers(tmp_path: Path) -> None:
    write_model(tmp_path, "m", CALLS, TENSORS + LIMIT)
    write_model(tmp_path, "slow", SLEEPS.replace("1e9", "2.5"), TENSORS)
    with RunningServer(tmp_path) as server:
        answered = ask(server, 0)
        assert (answered.status, answered.json["outputs"][0]["data"]) == (200, [42])


def test_where_the_called_model_is_stuck_it_is_replaced_and_its_caller_hears_the_reason(tmp_path: Path) -> None:
    write_model(tmp_path, "m", CALLS, TENSORS + LIMIT)
    write_model(tmp_path, "slow", SLEEPS, TENSORS + limited(2))
    with RunningServer(tmp_path) as server:
        (caller,) = server.worker_pids("m_0")
        failed = ask(server, 0)
        assert failed.status == 503
        assert "model 'slow' version 1 has not answered within its limit of 2 s" in failed.error
        assert server.worker_pids("m_0") == [caller]


OVERLAPS = """
    import asyncio
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        async def execute(self, requests):
            value = requests[0].inputs()[0].as_numpy()
            print("began", value[0], flush=True)
            if value[0] < 2:
                await asyncio.sleep(1e9 if value[0] == 0 else 0)
            elif value[0] == 2:
                await asyncio.sleep(1e8)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)])]
"""


def test_one_coroutine_over_the_limit_takes_the_worker_and_the_others_hear_of_its_death(tmp_path: Path) -> None:
    concurrent = 'parameters { key: "EXECUTE_CONCURRENCY" value { string_value: "2" } }'
    write_model(tmp_path, "m", OVERLAPS, TENSORS + limited(2) + concurrent)
    with RunningServer(tmp_path) as server:
        stuck = Asking(server, 0)
        server.wait_for_log("began 0")
        for value in range(10, 20):  # pass by
            assert ask(server, value).status == 200
        late = Asking(server, 2)
        assert stuck.reply().status == 504
        assert late.reply().status in (503, 504)
        assert ask(server, 1).status == 200


STREAMS = """
    import threading
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                threading.Thread(target=self.answer, args=(request, request.get_response_sender()), daemon=True).start()

        def answer(self, request, sender):
            value = request.inputs()[0].as_numpy()
            out = pb_utils.Tensor("OUT", value)
            for _ in range(6):
                time.sleep(0.5 if value[0] else 0)
                sender.send(pb_utils.InferenceResponse([out]))
            if value[0] == 0:
                time.sleep(1e9)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_a_stream_that_moves_is_not_over_the_limit_and_one_that_fell_silent_is(tmp_path: Path) -> None:
    """Six responses take longer than the limit; six others come, and then nothing any more."""
    write_model(tmp_path, "m", STREAMS, TENSORS + limited(2) + "model_transaction_policy { decoupled: true }")
    with RunningServer(tmp_path) as server:
        whole = server.post("/v2/models/m/generate_stream", {"IN": 1})
        assert (whole.status, whole.body.count(b"data:")) == (200, 6)
        cut = server.post("/v2/models/m/generate_stream", {"IN": 0})
        assert cut.body.count(b'"OUT"') == 6
        assert b"has not answered within its limit of 2 s" in cut.body
        assert "the same request whose execute has returned" in server.log


def test_a_stopped_worker_with_requests_sent_ahead_gives_them_to_its_successor(tmp_path: Path) -> None:
    write_model(tmp_path, "m", SLEEPS, TENSORS + limited(4))
    with RunningServer(tmp_path) as server:
        stuck = Asking(server, 0)
        server.wait_for_log("asleep")
        os.kill(server.worker_pids("m_0")[0], signal.SIGSTOP)
        behind = [Asking(server, value) for value in (1, 2, 3)]
        wait_pending(server, "m", 3)
        assert stuck.reply().status == 504
        assert [asking.reply().status for asking in behind] == [200] * 3
