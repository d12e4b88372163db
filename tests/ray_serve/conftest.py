"""A repository for replicas."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.harness import MODEL_REPOSITORY, write_model

DOUBLE = """
    import os
    import signal
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                values = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
                if (values == 13).any():
                    os.kill(os.getpid(), signal.SIGKILL)
                tensors = [pb_utils.Tensor("Y", 2 * values), pb_utils.Tensor("PID", np.full((len(values), 1), os.getpid()))]
                responses.append(pb_utils.InferenceResponse(tensors))
            return responses
"""
DOUBLE_CONFIG = """
    max_batch_size: 4
    input [{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }]
    output [{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "PID" data_type: TYPE_INT64 dims: [ 1 ] }]
    dynamic_batching { }
"""
COUNT = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                limit = int(pb_utils.get_input_tensor_by_name(request, "LIMIT").as_numpy()[0])
                sender = request.get_response_sender()
                for number in range(limit):
                    if request.is_cancelled():
                        break
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("N", np.array([number], np.int32))]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
COUNT_CONFIG = """
    model_transaction_policy { decoupled: true }
    input [{ name: "LIMIT" data_type: TYPE_INT32 dims: [ 1 ] }]
    output [{ name: "N" data_type: TYPE_INT32 dims: [ 1 ] }]
"""


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``double``, whose worker dies of a 13, ``count``, a stream, and ``add_sub``, without a batch dimension."""
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "double", DOUBLE, DOUBLE_CONFIG)
    write_model(folder, "count", COUNT, COUNT_CONFIG)
    shutil.copytree(MODEL_REPOSITORY / "add_sub", folder / "add_sub", ignore=shutil.ignore_patterns("__pycache__"))
    return folder
