"""mul_div: OUTPUT0 = INPUT0 * INPUT1 and OUTPUT1 = INPUT0 / INPUT1; a zero to divide by is the caller's error."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        left = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        right = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
        if not right.all():
            text = f"input 'INPUT1' of model 'mul_div': expected no zero, got {right.tolist()}"
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, pb_utils.TritonError.INVALID_ARG))
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUTPUT0", left * right), pb_utils.Tensor("OUTPUT1", left / right)]
        )
