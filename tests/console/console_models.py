"""The repository that the tests of the console serve: a model of each kind that has something of its own to be shown."""

from __future__ import annotations

from pathlib import Path

from tests.harness import write_model

ADD_SUB = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                one, other = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("INPUT0", "INPUT1"))
                print("adding", one.tolist())
                outputs = [pb_utils.Tensor("SUM", one + other), pb_utils.Tensor("DIFFERENCE", one - other)]
                answers.append(pb_utils.InferenceResponse(outputs))
            return answers
"""
ADD_SUB_CONFIG = """
    # Two vectors in.
    backend: "python"
    input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "INPUT1" data_type: TYPE_FP32 dims: [ 4 ] } ]
    output [ { name: "SUM" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "DIFFERENCE" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
DIVIDE = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            pairs = [[pb_utils.get_input_tensor_by_name(one, name).as_numpy() for name in "AB"] for one in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Q", self.divide(a, b))]) for a, b in pairs]

        def divide(self, a, b):
            return np.array([[int(x) // int(y)] for x, y in zip(a[:, 0], b[:, 0])], np.int64)
"""
DIVIDE_CONFIG = """
    backend: "python"
    max_batch_size: 8
    dynamic_batching { }
    input [ { name: "A" data_type: TYPE_INT64 dims: [ 1 ] }, { name: "B" data_type: TYPE_INT64 dims: [ 1 ] } ]
    output [ { name: "Q" data_type: TYPE_INT64 dims: [ 1 ] } ]
    instance_group [ { count: 2 kind: KIND_CPU } ]
"""
MIRROR = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            images = [pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy() for request in requests]
            return [
                pb_utils.InferenceResponse([
                    pb_utils.Tensor("MIRRORED", np.ascontiguousarray(image[:, ::-1])),
                    pb_utils.Tensor("MEAN", image.reshape(-1, 3).mean(axis=0).astype(np.float16)),
                ])
                for image in images
            ]
"""
MIRROR_CONFIG = """
    backend: "python"
    input [ { name: "IMAGE" data_type: TYPE_UINT8 dims: [ -1, -1, 3 ] } ]
    output [
      { name: "MIRRORED" data_type: TYPE_UINT8 dims: [ -1, -1, 3 ] }, { name: "MEAN" data_type: TYPE_FP16 dims: [ 3 ] }
    ]
"""
WORDS = """
    import os
    import time
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[0].decode()
                words = text.split("|") if "|" in text else text.split()
                for number, word in enumerate(words, 1):
                    if word == "wait":
                        time.sleep(0.5)
                    while word.startswith("until:") and not os.path.exists(word.removeprefix("until:")):
                        time.sleep(0.01)
                    outputs = {"REASON": "stop" if number == len(words) else "", "WORD": word}
                    sender.send(pb_utils.InferenceResponse(
                        [pb_utils.Tensor(name, np.array([value], np.object_)) for name, value in outputs.items()]
                    ))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
WORDS_CONFIG = """
    backend: "python"
    model_transaction_policy { decoupled: true }
    input [
      { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }, { name: "UNUSED" data_type: TYPE_INT32 dims: [ 1 ] optional: true }
    ]
    output [ { name: "REASON" data_type: TYPE_STRING dims: [ 1 ] }, { name: "WORD" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
SIZE = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            files = [pb_utils.get_input_tensor_by_name(request, "FILE").as_numpy() for request in requests]
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("SIZE", np.array([[len(one)] for one in file[:, 0]], np.int32))])
                for file in files
            ]
"""
SIZE_CONFIG = """
    backend: "python"
    max_batch_size: 4
    input [ { name: "FILE" data_type: TYPE_STRING dims: [ 1 ] } ]
    output [ { name: "SIZE" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
BROKEN = """
    class TritonPythonModel:
        def initialize(self, args):
            self.weights = open("/there/is/no/such.file", "rb")

        def execute(self, requests):
            return []
"""
BROKEN_CONFIG = """
    backend: "python"
    input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
    output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


def write_console_models(repository: Path) -> None:
    """add_sub, broken, divide, mirror, size and words."""
    write_model(repository, "add_sub", ADD_SUB, ADD_SUB_CONFIG)
    write_model(repository, "broken", BROKEN, BROKEN_CONFIG)
    write_model(repository, "divide", DIVIDE, DIVIDE_CONFIG)
    write_model(repository, "mirror", MIRROR, MIRROR_CONFIG)
    write_model(repository, "size", SIZE, SIZE_CONFIG)
    write_model(repository, "words", WORDS, WORDS_CONFIG)


FLAGS = (
    "--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false", "--strict-readiness=false",
)  # fmt: skip
"""Models come and go on request, and one that does not load harms nobody."""
