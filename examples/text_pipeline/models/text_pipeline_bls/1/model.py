"""text_pipeline_bls: the same pipeline from models of their own: tokenizer → language_network → language_label.

Each step can have the instances, the batching and the Python packages that suit it, and be replaced without the
others. The price is a call for each step.
"""

from __future__ import annotations

import triton_python_backend_utils as pb_utils

# Each model, and which of its outputs the next one gets. The names of outputs are those of the next inputs.
STEPS = [
    ("tokenizer", ["TOKENS"]),
    ("language_network", ["SCORES"]),
    ("language_label", ["LANGUAGE", "PROBABILITY"]),
]


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        tensors = request.inputs()
        for model, outputs in STEPS:
            call = pb_utils.InferenceRequest(
                model_name=model,
                inputs=tensors,
                requested_output_names=outputs,
                # The same id in the logs of every step.
                request_id=request.request_id(),
            )
            answer = call.exec()
            if answer.has_error():
                return pb_utils.InferenceResponse(error=answer.error())
            tensors = answer.output_tensors()
        return pb_utils.InferenceResponse(tensors)
