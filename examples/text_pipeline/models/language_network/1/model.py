"""language_network: the second step, numbers of words → scores. The sum of one row of weights for each word."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        weights = np.loadtxt(Path(pb_utils.get_model_dir()) / "weights.csv", delimiter=",", dtype=np.float32)
        # The tokenizer fills with -1, which is numpy's last row: let it say nothing.
        self.weights = np.vstack([weights, np.zeros_like(weights[:1])])

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        tokens = pb_utils.get_input_tensor_by_name(request, "TOKENS").as_numpy()
        # Clients may call this model, too, with any number.
        if tokens.min() < -1 or tokens.max() >= len(self.weights) - 1:
            text = f"input 'TOKENS' of model 'language_network': expected -1 to {len(self.weights) - 2}"
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, pb_utils.TritonError.INVALID_ARG))
        # [N, words, languages] → [N, languages]
        return pb_utils.InferenceResponse([pb_utils.Tensor("SCORES", self.weights[tokens].sum(axis=1))])
