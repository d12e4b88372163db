"""tokenizer: the first step, texts → numbers of words."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

WORD = re.compile(r"[^\W\d_]+")
FILLER = -1


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        words = (Path(pb_utils.get_model_dir()) / "vocabulary.txt").read_text(encoding="utf-8").split()
        self.numbers = {word: number for number, word in enumerate(words)}

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[:, 0]
        rows = [self._tokens(text) for text in texts]
        # A tensor is a rectangle. One column at least: an empty one would be refused by the next model.
        width = max(1, *(len(row) for row in rows))
        tokens = np.array([row + [FILLER] * (width - len(row)) for row in rows], dtype=np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("TOKENS", tokens)])

    def _tokens(self, text: bytes) -> list[int]:
        words = WORD.findall(text.decode("utf-8", errors="replace").lower())
        return [self.numbers[word] for word in words if word in self.numbers]
