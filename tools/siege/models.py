"""The models of the besieged server: one for the honest client, and those that attackers call.

An attacker who floods a model with whole requests fills that model's queue, which every client of it then waits in; that is
overload, and measured elsewhere. Here the honest client has a model of its own, so what it feels comes from the server.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

HONEST = b"honest"
ATTACKED = b"attacked"
"""The same model as HONEST, for vectors of any length."""
LARGE = b"large"
"""From SIZE, so many zeros."""
REPEATED = b"repeated"
"""From COUNT, so many responses of REPEATED_BYTES."""

LARGE_ANSWER_BYTES = 256 << 10
REPEATED_BYTES = 16 << 10

_ADD_SUB = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            left = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            right = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            outputs = [pb_utils.Tensor("OUTPUT0", left + right), pb_utils.Tensor("OUTPUT1", left - right)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""
_ADD_SUB_CONFIG = """
backend: "python"
input [
  {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ {size} ] }},
  {{ name: "INPUT1" data_type: TYPE_FP32 dims: [ {size} ] }}
]
output [
  {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ {size} ] }},
  {{ name: "OUTPUT1" data_type: TYPE_FP32 dims: [ {size} ] }}
]
"""
_LARGE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            size = int(pb_utils.get_input_tensor_by_name(request, "SIZE").as_numpy()[0])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("ZEROS", np.zeros(size, np.float32))]))
        return responses
"""
_LARGE_CONFIG = """
backend: "python"
input [ { name: "SIZE" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "ZEROS" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
_REPEATED = f"""
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            text = np.array([b"x" * {REPEATED_BYTES}], np.object_)
            for _ in range(int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])):
                if request.is_cancelled():
                    break
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_REPEATED_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


def write_repository(folder: Path) -> Path:
    """Write the models into *folder* and return it."""
    models = {
        HONEST: (_ADD_SUB, _ADD_SUB_CONFIG.format(size=4)),
        ATTACKED: (_ADD_SUB, _ADD_SUB_CONFIG.format(size=-1)),
        LARGE: (_LARGE, _LARGE_CONFIG),
        REPEATED: (_REPEATED, _REPEATED_CONFIG),
    }
    for name, (code, config) in models.items():
        model = folder / name.decode()
        (model / "1").mkdir(parents=True)
        (model / "1" / "model.py").write_text(textwrap.dedent(code).lstrip())
        (model / "config.pbtxt").write_text(config.lstrip())
    return folder
