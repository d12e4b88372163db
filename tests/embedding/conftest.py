"""Models for servers in the test's own process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import write_model

ECHO = """
    import time
    from pathlib import Path
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                wait_for = pb_utils.get_input_tensor_by_name(request, "WAIT_FOR")
                if wait_for is not None:
                    path = Path(wait_for.as_numpy()[0].decode())
                    path.with_suffix(".begun").touch()
                    while not path.exists():
                        time.sleep(0.005)
                tensors = [
                    pb_utils.Tensor(tensor.name() + "_OUT", tensor.as_numpy())
                    for tensor in request.inputs() if tensor.name() != "WAIT_FOR"
                ]
                responses.append(pb_utils.InferenceResponse(tensors, parameters={"id": request.request_id()}))
            return responses
"""
ECHO_CONFIG = """
    input [
      { name: "NUMBERS" data_type: TYPE_FP32 dims: [ -1 ] optional: true },
      { name: "TABLE" data_type: TYPE_INT64 dims: [ -1, -1 ] optional: true },
      { name: "TEXTS" data_type: TYPE_STRING dims: [ -1 ] optional: true },
      { name: "FLAGS" data_type: TYPE_BOOL dims: [ -1 ] optional: true },
      { name: "WORDS" data_type: TYPE_UINT64 dims: [ -1 ] optional: true },
      { name: "HALVES" data_type: TYPE_FP16 dims: [ -1 ] optional: true },
      { name: "WAIT_FOR" data_type: TYPE_STRING dims: [ 1 ] optional: true }
    ]
    output [
      { name: "NUMBERS_OUT" data_type: TYPE_FP32 dims: [ -1 ] },
      { name: "TABLE_OUT" data_type: TYPE_INT64 dims: [ -1, -1 ] },
      { name: "TEXTS_OUT" data_type: TYPE_STRING dims: [ -1 ] },
      { name: "FLAGS_OUT" data_type: TYPE_BOOL dims: [ -1 ] },
      { name: "WORDS_OUT" data_type: TYPE_UINT64 dims: [ -1 ] },
      { name: "HALVES_OUT" data_type: TYPE_FP16 dims: [ -1 ] }
    ]
"""
COUNT = """
    import os
    import signal
    from pathlib import Path
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                limit = int(pb_utils.get_input_tensor_by_name(request, "LIMIT").as_numpy()[0])
                log = pb_utils.get_input_tensor_by_name(request, "LOG")
                log = Path(log.as_numpy()[0].decode()) if log is not None else None
                sender = request.get_response_sender()
                for number in range(limit):
                    if request.is_cancelled():
                        log.with_suffix(".cancelled").touch()
                        break
                    if number == 5 and limit == 13:
                        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("five is skipped")))
                        continue
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("N", np.array([number], np.int32))]))
                    if log is not None:
                        log.write_text(str(number + 1))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
COUNT_CONFIG = """
    model_transaction_policy { decoupled: true }
    input [ { name: "LIMIT" data_type: TYPE_INT32 dims: [ 1 ] },
            { name: "LOG" data_type: TYPE_STRING dims: [ 1 ] optional: true } ]
    output [ { name: "N" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""


SAID = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                said = {
                    "id": request.request_id(),
                    "sequence": request.correlation_id(),
                    "flags": request.flags(),
                    "timeout_us": request.timeout(),
                    "parameters": json.loads(request.parameters() or "{}"),
                    "outputs": sorted(request.requested_output_names()),
                }
                text = np.array([json.dumps(said)], dtype=object)
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor(name, text) for name in ("A", "B")]))
            return responses
"""
SAID_CONFIG = """
    output [ { name: "A" data_type: TYPE_STRING dims: [ 1 ] }, { name: "B" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``echo``, in two instances, the decoupled ``count``, and ``said``, which answers with what a request says."""
    folder = tmp_path_factory.mktemp("embedded")
    write_model(folder, "echo", ECHO, ECHO_CONFIG + "instance_group [ { kind: KIND_CPU count: 2 } ]")
    write_model(folder, "count", COUNT, COUNT_CONFIG)
    write_model(folder, "said", SAID, SAID_CONFIG)
    return folder
