"""A model whose ``execute`` runs the code that the request brings, so that a test shows what its model does.

It has the tensors of the model ``M`` of the model API's checklist: input ``IN`` (the code) and optional ``X``; outputs
``OUT``, ``Y`` and ``Y2``. The code sees ``requests``, ``request`` (the first), ``model``, ``pb_utils``, ``np``, ``json`` and
``Response``, and sets ``returned``; ``answer(value)`` sets it to one response whose OUT is the JSON of *value*.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from tests.harness import Reply, RunningServer, tensor, write_model

CONFIG = """
backend: "python"
input [
  { name: "IN" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "X" data_type: TYPE_FP32 dims: [ -1 ] optional: true }
]
output [
  { name: "OUT" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "Y2" data_type: TYPE_FP32 dims: [ 2 ] }
]
instance_group [ { kind: KIND_CPU } ]
"""

CODE = """
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.args = args

    def execute(self, requests):
        code = pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy()[0].decode()
        scope = {
            "requests": requests,
            "request": requests[0],
            "model": self,
            "pb_utils": pb_utils,
            "np": np,
            "json": json,
            "Response": pb_utils.InferenceResponse,
        }

        def answer(value):
            text = np.array([json.dumps(value)], dtype=object)
            scope["returned"] = [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)])]

        scope["answer"] = answer
        exec(compile(code, "script", "exec"), scope)
        return scope["returned"]
"""

INSTANCE = "scripted_0_0"


def write_scripted_model(repository: Path, name: str = "scripted", *, config: str = CONFIG) -> Path:
    return write_model(repository, name, CODE, config)


def run(server: RunningServer, code: str, *inputs: dict[str, Any], model: str = "scripted", **fields: Any) -> Reply:
    """The reply to a request that brings *code*, indented with its test or not."""
    return server.infer(model, [tensor("IN", "BYTES", [1], [textwrap.dedent(code)]), *inputs], **fields)


def answer(server: RunningServer, code: str, *inputs: dict[str, Any], model: str = "scripted", **fields: Any) -> Any:
    """The value that *code* gave to ``answer``."""
    reply = run(server, code, *inputs, model=model, **fields)
    assert reply.status == 200, reply.body
    return json.loads(outputs_of(reply)["OUT"]["data"][0])


def outputs_of(reply: Reply) -> dict[str, dict[str, Any]]:
    """The output tensors by name."""
    return {output["name"]: output for output in reply.json["outputs"]}


def execute_failed(text: str, instance: str = INSTANCE) -> str:
    """EXEC(text) of the model API's shorthand."""
    return f"Failed to process the request(s) for model '{instance}', message: {text}"
