"""language_name: the language with the best score. The last step."""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils

LANGUAGES = np.array([b"English", b"German", b"Italian"], dtype=np.object_)


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        scores = pb_utils.get_input_tensor_by_name(request, "SCORES").as_numpy()
        names = LANGUAGES[scores.argmax(axis=1)[:, np.newaxis]]
        return pb_utils.InferenceResponse([pb_utils.Tensor("LANGUAGE", names)])
