"""A worker that dies: what it had fails at once, the rest is served, and the model comes back."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.contract.wire_models import Gate, metric, wait_pending, wait_until
from tests.harness import (
    MODEL_REPOSITORY,
    RunningServer,
    is_running,
    process_name_and_parent,
    tensor,
    write_model,
)

CLIENTS = 32
REQUESTS = 10_000
KILLS = 10
BODY = json.dumps(
    {
        "inputs": [
            tensor("INPUT0", "FP32", [4], [1, 2, 3, 4]),
            tensor("INPUT1", "FP32", [4], [10, 20, 30, 40]),
        ]
    }
)
NOT_HEALTHY = "Stub process 'add_sub_0_0' is not healthy."

ONE_INPUT = """
    backend: "python"
    input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""

DIES_ON_DEMAND = """
    import os
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            INITIALIZE

        def execute(self, requests):
            value = requests[0].inputs()[0].as_numpy()
            if value[0] < 0:
                os._exit(-int(value[0]))
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)])]
"""


@pytest.fixture
def add_sub(tmp_path: Path) -> Path:
    (tmp_path / "add_sub").symlink_to(MODEL_REPOSITORY / "add_sub")
    return tmp_path


def dies_on_demand(initialize: str = "pass") -> str:
    return DIES_ON_DEMAND.replace("INITIALIZE", initialize)


def only_pid(server: RunningServer, instance: str) -> int:
    (pid,) = server.worker_pids(instance)
    return pid


def wait_ready_again(server: RunningServer, instance: str, old_pid: int, *, limit_s: float = 20) -> float:
    """Seconds until another worker than *old_pid* serves; fails after *limit_s*."""
    begin = time.monotonic()
    while True:
        pids = server.worker_pids(instance)
        is_ready = server.get("/v2/models/add_sub/ready").status == 200
        took = time.monotonic() - begin
        if is_ready and pids and old_pid not in pids:
            return took
        assert took < limit_s, f"not ready {took:.2f} s after the kill:\n{server.log}"


class Load:
    """Clients that each send their share of requests and note every outcome."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.outcomes: Counter[tuple[int, str]] = Counter()
        self._noting = threading.Lock()
        self.ended = threading.Semaphore(0)
        self._threads = [threading.Thread(target=self._run, args=(share,)) for share in self._shares()]

    @staticmethod
    def _shares() -> list[int]:
        return [REQUESTS // CLIENTS + (1 if at < REQUESTS % CLIENTS else 0) for at in range(CLIENTS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()

    def _run(self, count: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        for _ in range(count):
            connection.request("POST", "/v2/models/add_sub/infer", BODY)
            reply = connection.getresponse()
            document = json.loads(reply.read())
            text = document["error"] if reply.status != 200 else str(document["outputs"][0]["data"])
            with self._noting:
                self.outcomes[(reply.status, text)] += 1
            self.ended.release()
        connection.close()


def test_every_request_ends_while_the_worker_is_killed_ten_times(add_sub: Path) -> None:
    with RunningServer(add_sub) as server:
        back_after_s = []
        with Load(server.http_port) as load:
            for _ in range(KILLS):
                for _ in range(REQUESTS // (KILLS + 1)):
                    assert load.ended.acquire(timeout=30), f"no request ended for 30 s: {load.outcomes}"
                pid = only_pid(server, "add_sub")
                os.kill(pid, signal.SIGKILL)
                back_after_s.append(wait_ready_again(server, "add_sub", pid))
        statistics = server.get("/v2/models/add_sub/stats").json["model_stats"][0]["inference_stats"]
        metrics = server.get(server.metrics_url).body.decode()
    assert load.outcomes.total() == REQUESTS
    assert load.outcomes[(200, "[11.0, 22.0, 33.0, 44.0]")] >= REQUESTS - KILLS * CLIENTS
    others = {outcome for outcome in load.outcomes if outcome[0] != 200}
    assert all(status == 503 and text.startswith(NOT_HEALTHY) for status, text in others), others
    assert statistics["success"]["count"] + statistics["fail"]["count"] == REQUESTS
    assert f'restarts{{model="add_sub",version="1"}} {KILLS}' in metrics
    print(f"killed {KILLS} times: {load.outcomes}; back after at most {max(back_after_s):.3f} s")


def test_the_request_in_hand_fails_with_the_exit_code_and_the_next_one_is_served(tmp_path: Path) -> None:
    """model_api.md rows 103 and 104, and section 3.6."""
    write_model(tmp_path, "m", dies_on_demand(), ONE_INPUT)
    with RunningServer(tmp_path) as server:
        assert server.infer("m", [tensor("IN", "INT32", [1], [1])]).status == 200
        died = server.infer("m", [tensor("IN", "INT32", [1], [-7])])
        assert died.status == 503
        assert died.error.startswith("Stub process 'm_0' is not healthy.")
        assert "exited with code 7" in died.error
        again = server.infer("m", [tensor("IN", "INT32", [1], [5])])
        assert (again.status, again.json["outputs"][0]["data"]) == (200, [5])


def test_the_log_says_of_which_model_and_version_a_worker_died_and_is_back(tmp_path: Path) -> None:
    """Instances of two versions have the same names; the latest one is asked."""
    config = ONE_INPUT + "version_policy { all {} }"
    write_model(tmp_path, "m", dies_on_demand(), config)
    write_model(tmp_path, "m", dies_on_demand(), config, version=2)
    with RunningServer(tmp_path) as server:
        assert server.infer("m", [tensor("IN", "INT32", [1], [-7])]).status == 503
        server.wait_for_log(r"worker of instance 'm_0' \(pid \d+\) exited with code 7; restarting it\" \[m:2 m_0\]")
        server.wait_for_log(r"instance 'm_0' is back \(pid \d+\)\" \[m:2 m_0\]")


def test_the_worker_of_a_passive_instance_that_is_replaced_is_counted(tmp_path: Path) -> None:
    groups = 'instance_group [ { kind: KIND_CPU }, { name: "idle" passive: true kind: KIND_CPU } ]'
    write_model(tmp_path, "m", dies_on_demand(), ONE_INPUT + groups)
    with RunningServer(tmp_path) as server:
        os.kill(only_pid(server, "idle"), signal.SIGKILL)
        server.wait_for_log(r"instance 'idle_0' is back")
        assert metric(server, "pytriton_lite_worker_restarts", "m") == 1


def test_a_model_that_dies_before_it_ever_served_becomes_not_ready_with_the_reason(tmp_path: Path) -> None:
    gate, starts = Gate(tmp_path / "gate"), tmp_path / "starts"
    # The fourth worker, behind which the version is ready again, comes up when everything has been looked at.
    initialize = (
        f"open({str(starts)!r}, 'a').write('x'); os.path.getsize({str(starts)!r}) > 3 and open({gate.path!r}).read()"
    )
    write_model(tmp_path / "models", "m", dies_on_demand(initialize), ONE_INPUT)
    with RunningServer(tmp_path / "models") as server:
        seen = [server.infer("m", [tensor("IN", "INT32", [1], [-9])]) for _ in range(3)]
        assert [reply.status for reply in seen] == [503, 503, 503]
        row = server.post("/v2/repository/index").json[0]
        assert row["state"] == "UNAVAILABLE"
        server.wait_for_log(r"model 'm' version 1 is not ready: .*\" \[m:1\]")
        assert row["reason"].startswith("Internal: Stub process 'm_0' is not healthy.")
        assert server.get("/v2/models/m/ready").status == 400
        assert server.get("/v2/health/ready").status == 400
        refused = server.infer("m", [tensor("IN", "INT32", [1], [1])])
        assert refused.status == 503
        assert refused.error == "Request for unknown model: 'm' version 1 is not at ready state"
        assert 'pytriton_lite_worker_restarts{model="m",version="1"}' in server.get(server.metrics_url).body.decode()
        gate.open()
        server.wait_for_log(
            r"instance 'm_0' is back .*\n(.*\n)*.*instance 'm_0' is back .*\n(.*\n)*.*instance 'm_0' is back"
        )
        assert server.infer("m", [tensor("IN", "INT32", [1], [4])]).status == 200


def test_requests_that_the_dead_worker_had_not_begun_with_are_served_by_the_next(tmp_path: Path) -> None:
    """One instance holds a request for ever; those queued behind it survive its death."""
    write_model(
        tmp_path,
        "m",
        """
        import threading
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                value = requests[0].inputs()[0].as_numpy()
                if value[0] == 0:
                    print("holding", flush=True)
                    threading.Event().wait()
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)])]
        """,
        ONE_INPUT,
    )
    with RunningServer(tmp_path) as server:
        replies = {}

        def ask(value: int) -> None:
            replies[value] = server.infer("m", [tensor("IN", "INT32", [1], [value])])

        threads = [threading.Thread(target=ask, args=(value,)) for value in range(5)]
        threads[0].start()
        server.wait_for_log("holding")
        for thread in threads[1:]:
            thread.start()
        wait_pending(server, "m", 4)
        os.kill(only_pid(server, "m"), signal.SIGKILL)
        for thread in threads:
            thread.join()
    assert replies[0].status == 503
    assert "was killed by signal 9" in replies[0].error
    assert [replies[value].status for value in range(1, 5)] == [200] * 4


def test_garbage_on_the_channel_ends_the_worker_and_not_the_server(tmp_path: Path) -> None:
    """User code that writes to descriptors it does not own."""
    write_model(
        tmp_path,
        "m",
        """
        import os, socket
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                value = requests[0].inputs()[0].as_numpy()
                if value[0] == 0:
                    for fd in range(3, 64):
                        try:
                            os.write(fd, b"\\xff" * 64)
                        except OSError:
                            pass
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)])]
        """,
        ONE_INPUT,
    )
    with RunningServer(tmp_path) as server:
        assert server.infer("m", [tensor("IN", "INT32", [1], [1])]).status == 200
        garbled = server.infer("m", [tensor("IN", "INT32", [1], [0])])
        assert garbled.status == 503
        assert garbled.error.startswith("Stub process 'm_0' is not healthy.")
        assert server.infer("m", [tensor("IN", "INT32", [1], [2])]).status == 200
        assert "garbage on the channel" in server.log


@pytest.mark.parametrize("where", ["initialize", "execute"])
def test_a_model_that_closes_the_servers_descriptors_is_told_so_in_one_line(tmp_path: Path, where: str) -> None:
    closes = "__import__('os').closerange(3, 256)"
    code = dies_on_demand(closes if where == "initialize" else "pass")
    write_model(tmp_path, "m", code.replace("os._exit(-int(value[0]))", closes), ONE_INPUT)
    with RunningServer(tmp_path, flags=("--exit-on-error=false",)) as server:
        if where == "execute":
            reply = server.infer("m", [tensor("IN", "INT32", [1], [-1])])
            assert (reply.status, "is not healthy" in reply.error) == (503, True)
            wait_until(lambda: server.infer("m", [tensor("IN", "INT32", [1], [1])]).status == 200)
        server.wait_for_log(
            '"the model has closed descriptors that belong to the server .*: this worker cannot go on" \\[m:1'
        )
        assert server.stop() == 0
    assert "Traceback" not in server.log


def test_what_a_worker_had_forked_dies_with_the_fork_server(tmp_path: Path) -> None:
    """The kernel kills the worker then, but not its children."""
    forks = """
    import os
    import signal
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            child = os.fork()
            if not child:
                signal.pause()
                os._exit(0)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([child], np.int32))])]
    """
    write_model(tmp_path, "m", forks, ONE_INPUT)
    with RunningServer(tmp_path) as server:
        child = server.infer("m", [tensor("IN", "INT32", [1], [1])]).json["outputs"][0]["data"][0]
        worker = only_pid(server, "m")
        assert process_name_and_parent(child)[1] == worker
        os.kill(process_name_and_parent(worker)[1], signal.SIGKILL)
        wait_until(lambda: not is_running(child))


def test_a_dead_fork_server_is_replaced_with_its_workers(add_sub: Path) -> None:
    with RunningServer(add_sub) as server:
        worker = only_pid(server, "add_sub")
        fork_server = process_name_and_parent(worker)[1]
        os.kill(fork_server, signal.SIGKILL)
        wait_ready_again(server, "add_sub", worker)
        assert server.post("/v2/models/add_sub/infer", BODY.encode()).status == 200
