"""Loading where the server has no descriptors left: it says so, keeps none, and loads when there are some again."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.contract.wire_models import wait_until
from tests.harness import RunningServer, tensor, write_model

IDENTITY = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            return config

        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
CONFIG = """
    backend: "python"
    input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""
ENOUGH = 40


def descriptors(pid: int) -> set[int]:
    return {int(name) for name in os.listdir(f"/proc/{pid}/fd")}


@contextmanager
def descriptors_left(pid: int, count: int) -> Iterator[None]:
    """Only so many numbers are free for new descriptors."""
    used = descriptors(pid)
    free = [number for number in range(max(used) + count + 2) if number not in used]
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free[count], before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_a_load_without_descriptors_fails_with_the_reason_and_leaves_nothing(tmp_path: Path) -> None:
    write_model(tmp_path, "m", IDENTITY, CONFIG)
    failed = 0
    with RunningServer(tmp_path, flags=("--model-control-mode=explicit", "--log-verbose=0")) as server:
        pid = server.process.pid
        assert server.post("/v2/repository/models/m/load", {}).status == 200  # whatever a first load opens for good
        assert server.post("/v2/repository/models/m/unload", {}).status == 200
        wait_until(lambda: not server.worker_pids())
        usual = len(descriptors(pid))
        for left in range(1, ENOUGH):
            with descriptors_left(pid, left):
                answer = server.post("/v2/repository/models/m/load", {})
            if answer.status == 200:
                break
            failed += 1
            # The second one where even the repository cannot be read.
            assert re.search("Too many open files|failed to poll from model repository", answer.error), answer.error
            wait_until(lambda: len(descriptors(pid)) <= usual)
        assert failed > 5
        assert "Too many open files" in server.log
        assert server.post("/v2/repository/models/m/load", {}).status == 200
        assert server.infer("m", [tensor("IN", "INT32", [1], [7])]).json["outputs"][0]["data"] == [7]
        assert "failed inside the server" not in server.log
