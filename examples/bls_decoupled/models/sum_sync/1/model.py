"""sum_sync: call a decoupled model and add up its responses as they come."""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        call = pb_utils.InferenceRequest(
            model_name="countdown", requested_output_names=["LEFT"], inputs=request.inputs()
        )
        total = 0
        # With decoupled=True the call returns an iterator; each step waits for the next response.
        for response in call.exec(decoupled=True):
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
            # The end of the request comes as a response without outputs when it was sent alone.
            if response.output_tensors():
                total += pb_utils.get_output_tensor_by_name(response, "LEFT").as_numpy()[0]
        return pb_utils.InferenceResponse([pb_utils.Tensor("TOTAL", np.array([total], dtype=np.int32))])
