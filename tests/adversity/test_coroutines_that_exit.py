"""Coroutines of ``execute`` that would take the event loop of their worker along: they end alone, and the next is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import RunningServer, tensor, write_model

MODEL = """
    import asyncio
    import sys
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        async def execute(self, requests):
            value = requests[0].inputs()[0].as_numpy()
            await asyncio.sleep(0)
            if value[0] < 0:
                ACTION
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)])]
"""
CONFIG = """
    backend: "python"
    input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
    parameters { key: "EXECUTE_CONCURRENCY" value { string_value: "4" } }
"""


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ("sys.exit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise BaseException('told to')", "BaseException: told to"),
    ],
)
def test_what_is_no_exception_fails_its_request_alone(tmp_path: Path, action: str, text: str) -> None:
    write_model(tmp_path, "m", MODEL.replace("ACTION", action), CONFIG)
    with RunningServer(tmp_path) as server:
        for _ in range(3):
            failed = server.infer("m", [tensor("IN", "INT32", [1], [-1])])
            assert failed.status == 500
            assert text in failed.error
            served = server.infer("m", [tensor("IN", "INT32", [1], [7])])
            assert (served.status, served.json["outputs"][0]["data"]) == (200, [7])
        assert server.stop() == 0


def test_a_model_that_stops_the_loop_is_served_on(tmp_path: Path) -> None:
    write_model(tmp_path, "m", MODEL.replace("ACTION", "asyncio.get_running_loop().stop()"), CONFIG)
    with RunningServer(tmp_path) as server:
        for value in (-1, 7):
            served = server.infer("m", [tensor("IN", "INT32", [1], [value])])
            assert (served.status, served.json["outputs"][0]["data"]) == (200, [value])
        assert server.stop() == 0


BREAKS_TASKS = """
    import asyncio
    import triton_python_backend_utils as pb_utils

    def broken(loop, coroutine, **options):
        loop.set_task_factory(None)
        coroutine.close()
        raise ValueError("no task today")

    class TritonPythonModel:
        async def execute(self, requests):
            value = requests[0].inputs()[0].as_numpy()
            if value[0] < 0:
                asyncio.get_running_loop().set_task_factory(broken)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)])]
"""


def test_a_task_factory_of_the_models_that_fails_fails_its_request_alone(tmp_path: Path) -> None:
    write_model(tmp_path, "m", BREAKS_TASKS, CONFIG)
    with RunningServer(tmp_path) as server:
        assert server.infer("m", [tensor("IN", "INT32", [1], [-1])]).status == 200
        failed = server.infer("m", [tensor("IN", "INT32", [1], [7])])
        assert failed.status == 500
        assert "ValueError: no task today" in failed.error
        served = server.infer("m", [tensor("IN", "INT32", [1], [7])])
        assert (served.status, served.json["outputs"][0]["data"]) == (200, [7])
        assert server.stop() == 0
