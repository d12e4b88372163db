"""bls_sync: call another model and wait for its answer ("business logic scripting").

The call goes through the server like a client's: it is checked, queued, batched and counted. It does not go through
the network.
"""

from __future__ import annotations

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        # Elements of a string tensor are bytes.
        callee = pb_utils.get_input_tensor_by_name(request, "MODEL_NAME").as_numpy()[0].decode()
        call = pb_utils.InferenceRequest(
            model_name=callee,
            requested_output_names=["OUTPUT0", "OUTPUT1"],
            # Tensors of our own request may be passed on as they are, where the callee uses the same names.
            inputs=[
                pb_utils.get_input_tensor_by_name(request, "INPUT0"),
                pb_utils.get_input_tensor_by_name(request, "INPUT1"),
            ],
        )
        answer = call.exec()
        # A failed call is an answer, too: nothing is raised.
        if answer.has_error():
            return pb_utils.InferenceResponse(error=answer.error())
        return pb_utils.InferenceResponse(answer.output_tensors())
