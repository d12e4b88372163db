"""bls_decoupled: asks the model "decoupled", reads all of its responses, and answers with their sum."""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        call = pb_utils.InferenceRequest(
            model_name="decoupled", requested_output_names=["OUT"], inputs=request.inputs()
        )
        total = np.zeros(4, np.float32)
        for response in call.exec(decoupled=True):
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
            # The callee ends with the final flag alone, which comes as a response without outputs.
            for tensor in response.output_tensors():
                total += tensor.as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", total)])
