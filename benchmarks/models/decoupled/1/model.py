"""decoupled: a hundred responses to each request, OUT = IN, IN + 1, IN + 2, and so on; then the final flag alone."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils

# benchmarks/scenarios.py expects as many.
RESPONSES = 100


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            for number in range(RESPONSES):
                # float32 plus a Python int stays float32, under numpy 1 and 2 alike.
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values + number)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
