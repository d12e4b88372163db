"""bls: passes its two inputs on to add_sub, waits, and answers with what it got. One exec() for each request."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        call = pb_utils.InferenceRequest(
            model_name="add_sub", requested_output_names=["OUTPUT0", "OUTPUT1"], inputs=request.inputs()
        )
        answer = call.exec()
        if answer.has_error():
            raise pb_utils.TritonModelException(answer.error().message())
        return pb_utils.InferenceResponse(answer.output_tensors())
