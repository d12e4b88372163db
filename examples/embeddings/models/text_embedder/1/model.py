"""text_embedder: vectors of texts by the words in them and the letters in those, without a dictionary.

Each word, and each three letters in a row, has a direction of its own, which its name decides; a text is the sum of them.
"""

from __future__ import annotations

import re
import zlib
from functools import lru_cache

import numpy as np
import triton_python_backend_utils as pb_utils

DIMENSIONS = 256
WORD = re.compile(r"\w+")


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        texts = [pb_utils.get_input_tensor_by_name(request, "text").as_numpy()[:, 0] for request in requests]
        words = [WORD.findall(text.decode("utf-8", "replace").lower()) for text in np.concatenate(texts)]
        vectors = embedded(words)
        counts = np.array([[len(one)] for one in words], np.int32)
        # Each request gets its own rows back.
        ends = np.cumsum([len(one) for one in texts])
        return [
            pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor("embedding", vectors[end - len(one) : end]),
                    pb_utils.Tensor("prompt_tokens", counts[end - len(one) : end]),
                ]
            )
            for one, end in zip(texts, ends)
        ]


def embedded(texts: list[list[str]]) -> np.ndarray:
    """A row of length 1 for each of *texts*; of zeros for one without words."""
    rows = np.zeros((len(texts), DIMENSIONS), np.float32)
    for row, words in zip(rows, texts):
        for word in words:
            row += direction(word)
            for at in range(len(word) - 2):
                row += 0.3 * direction(f"#{word[at : at + 3]}")
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)


@lru_cache(maxsize=100_000)
def direction(name: str) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(name.encode())).standard_normal(DIMENSIONS, np.float32)
