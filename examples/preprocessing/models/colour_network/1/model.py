"""colour_network: how red, green and blue a picture is. One convolution of the size of the picture, so to speak."""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils

# One row for each score: its own channel counts for it, the others against it.
WEIGHTS = np.array([[1, -0.5, -0.5], [-0.5, 1, -0.5], [-0.5, -0.5, 1]], dtype=np.float32)


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Run the requests of a batch through the network together, then give each its rows."""
        batches = [pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy() for request in requests]
        scores = np.concatenate(batches).mean(axis=(1, 2)) @ WEIGHTS.T
        ends = np.cumsum([len(batch) for batch in batches])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SCORES", rows)]) for rows in np.split(scores, ends[:-1])]
