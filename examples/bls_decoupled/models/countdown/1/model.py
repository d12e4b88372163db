"""countdown: N, N - 1, ... 1, each in a response of its own; see examples/decoupled for more of its kind."""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            start = pb_utils.get_input_tensor_by_name(request, "N").as_numpy()[0]
            for left in range(start, 0, -1):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("LEFT", np.array([left], dtype=np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
