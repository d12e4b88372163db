"""letters: what a text looks like to the network. The first step."""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[:, 0]
        counts = np.stack([self._count(text) for text in texts])
        lengths = np.linalg.norm(counts, axis=1, keepdims=True)
        if not lengths.all():
            # The client of the ensemble sees this with the ensemble's name in front.
            error = pb_utils.TritonError("there is a text without letters", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        return pb_utils.InferenceResponse([pb_utils.Tensor("LETTERS", counts / lengths)])

    @staticmethod
    def _count(text: bytes) -> np.ndarray:
        """How often each of a to z is in *text*, which is UTF-8."""
        letters = [ord(letter) - ord("a") for letter in text.decode().lower() if "a" <= letter <= "z"]
        return np.bincount(letters, minlength=26).astype(np.float32)
