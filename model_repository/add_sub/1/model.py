"""add_sub: OUTPUT0 = INPUT0 + INPUT1 and OUTPUT1 = INPUT0 - INPUT1.

Start here to see the shape of every model: the server makes one `TritonPythonModel` per instance, in a process
of its own, and calls `execute` with a list of requests.
"""

from __future__ import annotations

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The name is fixed: the server looks for this class."""

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Answer each request; the list that is returned has one response for each, in the same order."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        # The server has checked names, data types and shapes against config.pbtxt, so both are FP32 [4] here.
        left = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        right = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
        # float32 + float32 stays float32. Outputs are sent with the type they have, whatever the config says, so a
        # model that computes in numpy's default float64 has to convert before it answers.
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUTPUT0", left + right), pb_utils.Tensor("OUTPUT1", left - right)]
        )
