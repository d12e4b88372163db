"""Shared memory that only garbage in a worker refers to, garbage that refers to itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.contract.wire_models import metric, wait_until
from tests.harness import RunningServer, tensor, write_model

CONFIG = """
    backend: "python"
    input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
    output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }
"""
MODEL = """
    import gc
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                cycle = [request.inputs()[0].as_numpy()]
                cycle.append(cycle)
                del cycle
                {how}
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.float32))]) for _ in requests]
"""


@pytest.mark.parametrize("age", ["young", "old"])
def test_an_idle_worker_gives_it_back(tmp_path: Path, age: str) -> None:
    """Nothing executes any more that would have the interpreter look for it."""
    # What was frozen comes back as old as can be.
    how = "gc.disable()" if age == "young" else "gc.freeze(); gc.unfreeze()"
    write_model(tmp_path, "keeps", MODEL.replace("{how}", how), CONFIG)
    with RunningServer(tmp_path) as server:
        large = np.zeros(50_000, np.float32).tolist()
        assert server.infer("keeps", [tensor("IN", "FP32", [50_000], large)]).status == 200
        wait_until(lambda: metric(server, "pytriton_lite_shared_memory_slots", "keeps") == 0)
