"""language_label: the last step, scores → the name of the best and its probability."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        names = (Path(pb_utils.get_model_dir()) / "labels.txt").read_text(encoding="utf-8").split()
        self.labels = np.array(names, dtype=np.object_)

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        scores = pb_utils.get_input_tensor_by_name(request, "SCORES").as_numpy()
        # exp of a large number overflows; a constant for each row does not change the result.
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        probabilities = powers / powers.sum(axis=1, keepdims=True)
        best = scores.argmax(axis=1)[:, np.newaxis]
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("LANGUAGE", self.labels[best]),
                pb_utils.Tensor("PROBABILITY", np.take_along_axis(probabilities, best, axis=1)),
            ]
        )
