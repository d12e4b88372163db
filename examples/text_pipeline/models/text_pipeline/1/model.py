"""text_pipeline: tokenise → network → label, in one model: three functions, one after the other.

The simplest way, and the fastest while one process is enough: nothing travels between the steps. Compare
text_pipeline_bls, which has the same steps as models of their own.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

WORD = re.compile(r"[^\W\d_]+")


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        # The files of this version, wherever the repository lies.
        folder = Path(pb_utils.get_model_dir())
        words = (folder / "vocabulary.txt").read_text(encoding="utf-8").split()
        self.numbers = {word: number for number, word in enumerate(words)}
        self.weights = np.loadtxt(folder / "weights.csv", delimiter=",", dtype=np.float32)
        self.labels = np.array((folder / "labels.txt").read_text(encoding="utf-8").split(), dtype=np.object_)

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        # [N, 1], elements are bytes.
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[:, 0]
        scores = np.stack([self._score(self._tokens(text)) for text in texts])
        languages, probabilities = self._label(scores)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("LANGUAGE", languages), pb_utils.Tensor("PROBABILITY", probabilities)]
        )

    def _tokens(self, text: bytes) -> list[int]:
        """Return the numbers of the known words."""
        words = WORD.findall(text.decode("utf-8", errors="replace").lower())
        return [self.numbers[word] for word in words if word in self.numbers]

    def _score(self, tokens: list[int]) -> np.ndarray:
        """Return [languages]: what the words say together."""
        return self.weights[tokens].sum(axis=0)

    def _label(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return name and probability of the best of each row, both [N, 1]."""
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        probabilities = powers / powers.sum(axis=1, keepdims=True)
        best = scores.argmax(axis=1)[:, np.newaxis]
        return self.labels[best], np.take_along_axis(probabilities, best, axis=1)
