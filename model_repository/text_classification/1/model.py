"""text_classification: TEXT → CLASS, LABEL and PROB, the whole pipeline in one model.

Tokenise, look up n-grams, score, softmax. The model is linear over words and pairs of words, trained by
examples/train_text_classification.py, which imports this file: serving and training cannot drift apart.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

# Emoticons, words with their apostrophes, and runs of ! and ?, which carry feeling too.
TOKEN = re.compile(r"[:;=]['^-]?[()\[\]dp/\\|]+|<3|[^\W\d_]+(?:'[^\W\d_]+)*|[!?]+")
NEGATION = re.compile(r"not|no|never|nor|cannot|without|hardly|barely|.*n't")
# "not" turns the words that follow it, up to a "but" or a "!".
NEGATION_REACH = 4
NEGATION_ENDS = re.compile(r"but|[!?]+")


def tokens(text: str) -> list[str]:
    """Return the lower-case words and emoticons of *text*, in order."""
    # Texts copied from the web carry &amp; and typographic apostrophes.
    return TOKEN.findall(html.unescape(text).lower().replace("’", "'"))


def ngrams(text: str) -> set[str]:
    """Return what the model can know about *text*: its words, pairs of neighbours, and words after a negation.

    "not a good film" gives not, a, good, film, "not a", "a good", "good film", and not_a, not_good, not_film.
    """
    words = tokens(text)
    found = set(words)
    found.update(f"{left} {right}" for left, right in pairwise(words))
    negated = 0
    for word in words:
        if NEGATION_ENDS.fullmatch(word):
            negated = 0
        elif negated:
            found.add(f"not_{word}")
            negated -= 1
        if NEGATION.fullmatch(word):
            negated = NEGATION_REACH
    return found


def softmax(scores: np.ndarray) -> np.ndarray:
    """Turn scores [N, classes] into probabilities that sum to 1 along the last axis."""
    # exp of a large number overflows; a constant for each row does not change the result.
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


class Features:
    """A batch of texts as a sparse matrix [texts, n-grams]; each row has length 1, or 0 when no n-gram is known.

    Three arrays of equal length name the entries: *rows*, *columns*, *values*.
    """

    def __init__(self, texts: Sequence[str], vocabulary: dict[str, int], rarity: np.ndarray) -> None:
        # Sorted: the order of a set of strings differs between processes, and with it the last bit of a sum.
        known = [sorted(vocabulary[ngram] for ngram in ngrams(text) if ngram in vocabulary) for text in texts]
        self.texts = len(texts)
        self.rows = np.repeat(np.arange(len(texts)), [len(columns) for columns in known])
        self.columns = np.fromiter(chain.from_iterable(known), dtype=np.int64)
        values = rarity[self.columns]
        # Long texts have many n-grams; without this they would all look certain.
        lengths = np.sqrt(np.bincount(self.rows, values * values, minlength=self.texts))
        self.values = values / lengths[self.rows]

    def times(self, weights: np.ndarray) -> np.ndarray:
        """Return the product with *weights* [n-grams, classes]: the scores [texts, classes]."""
        return np.stack(
            [
                np.bincount(self.rows, self.values * weights[self.columns, index], minlength=self.texts)
                for index in range(weights.shape[1])
            ],
            axis=1,
        )


class Classifier:
    """The trained model without any server.

    *vocabulary* gives each n-gram its number, *rarity* [n-grams] how telling it is that it occurs at all (inverse
    document frequency), *weights* [n-grams, classes] and *bias* [classes] what it says about each label.
    """

    def __init__(
        self, labels: list[str], vocabulary: list[str], rarity: np.ndarray, weights: np.ndarray, bias: np.ndarray
    ) -> None:
        self.labels = labels
        self.vocabulary = {ngram: number for number, ngram in enumerate(vocabulary)}
        # Stored in half precision, computed in double.
        self.rarity = rarity.astype(np.float64)
        self.weights = weights.astype(np.float64)
        self.bias = bias.astype(np.float64)

    @classmethod
    def load(cls, path: Path) -> Classifier:
        """Read what `save` wrote."""
        # Plain arrays only: an .npz with pickled objects in it could run code.
        with np.load(path, allow_pickle=False) as file:
            return cls(
                labels=file["labels"].tobytes().decode().split("\n"),
                vocabulary=file["vocabulary"].tobytes().decode().split("\n"),
                rarity=file["rarity"],
                weights=file["weights"],
                bias=file["bias"],
            )

    def save(self, path: Path) -> None:
        """Write everything to one .npz; half precision costs no accuracy and halves the file."""
        np.savez_compressed(
            path,
            labels=np.frombuffer("\n".join(self.labels).encode(), dtype=np.uint8),
            vocabulary=np.frombuffer("\n".join(self.vocabulary).encode(), dtype=np.uint8),
            rarity=self.rarity.astype(np.float16),
            weights=self.weights.astype(np.float16),
            bias=self.bias.astype(np.float32),
        )

    def probabilities(self, texts: Sequence[str]) -> np.ndarray:
        """Return [texts, classes]. A text without any known word gets what the bias says: no opinion, nearly."""
        return softmax(Features(texts, self.vocabulary, self.rarity).times(self.weights) + self.bias)


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        # Beside this file, wherever the repository lies.
        self.classifier = Classifier.load(Path(__file__).with_name("weights.npz"))
        # BYTES outputs are object arrays of bytes.
        self.labels = np.array([label.encode() for label in self.classifier.labels], dtype=object)

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """Score the texts of all requests in one go, then give each request its rows."""
        batches = [pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().reshape(-1) for request in requests]
        # Bytes that are not UTF-8 become replacement characters, which are no words: the rest of the text counts.
        texts = [text.decode("utf-8", errors="replace") for text in chain.from_iterable(batches)]
        probabilities = self.classifier.probabilities(texts)
        # [texts, 1]: the batch dimension, then the dims of config.pbtxt.
        classes = probabilities.argmax(axis=1).astype(np.int32)[:, np.newaxis]
        certainty = probabilities.max(axis=1).astype(np.float32)[:, np.newaxis]
        labels = self.labels[classes]

        responses = []
        start = 0
        for batch in batches:
            mine = slice(start, start + len(batch))
            start = mine.stop
            responses.append(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor("CLASS", classes[mine]),
                        pb_utils.Tensor("LABEL", labels[mine]),
                        pb_utils.Tensor("PROB", certainty[mine]),
                    ]
                )
            )
        return responses
