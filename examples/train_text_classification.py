"""Train the weights of model_repository/text_classification and print how good they are.

    pip download --no-deps --no-binary :all: vaderSentiment==3.3.2
    python examples/train_text_classification.py vaderSentiment-3.3.2.tar.gz

Data: the human-rated sentences which the source distribution of the PyPI package vaderSentiment carries (MIT licence,
Copyright (c) 2016 C.J. Hutto), from C.J. Hutto and E.E. Gilbert, "VADER: A Parsimonious Rule-based Model for Sentiment
Analysis of Social Media Text", ICWSM-14, 2014. At least twenty people rated each sentence from -4 (extremely negative)
to 4; the files give the mean.

Needs numpy and a few seconds. Nothing in it is random: the split comes from a hash and training starts from zero, so the
same data give the same weights.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import io
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any  # for the Classifier of model.py, which is imported by path and so has no name here

import numpy as np

MODEL = Path(__file__).resolve().parent.parent / "model_repository" / "text_classification" / "1"

# The archive inside the source distribution, the same in every release since 2.5.
ARCHIVE = "additional_resources/hutto_ICWSM_2014.tar.gz"
ARCHIVE_SHA256 = "d5bb07d87474b3eb8d30b4deccbc23f19d742a6c5718fbacc65485b70b95c5fa"
# A fourth file, New York Times editorials, is left out: there the rating is mostly about the news that are told, not
# about an opinion that is given, and a linear model reads 63 % of it right.
SOURCES = {
    "tweets": "hutto_ICWSM_2014/tweets_GroundTruth.txt",
    "product reviews": "hutto_ICWSM_2014/amazonReviewSnippets_GroundTruth.txt",
    "movie reviews": "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt",
}
LABELS = ["negative", "positive"]

# Means closer to 0 than this are sentences on which the raters disagreed or which say nothing.
CLEAR = 0.5
# Tenths of the documents: the first two are held out. The settings below were chosen on the third, which then joined
# the training part again; the kinds of n-gram before that, on other splits of all sentences, held-out ones included. So
# the held-out figure is a little kind.
TENTHS = 10
HELD_OUT = (0, 1)
# An n-gram seen in one or two sentences tells more about them than about the language.
LEAST_SENTENCES = 3
# A mean rating of 1 counts as "88 % positive", 2 as 98 %: clear cases pull harder than faint ones.
STEEPNESS = 2.0
L2 = 3e-5
STEPS = 600


class DataError(Exception):
    """The file is not the data that we expect."""


@dataclass(frozen=True)
class Sentence:
    source: str
    identifier: str
    text: str
    rating: float
    held_out: bool

    @property
    def is_clear(self) -> bool:
        return abs(self.rating) >= CLEAR


def import_model() -> ModuleType:
    """Import model.py for its tokeniser and classifier, without a server.

    Only its TritonPythonModel uses the server's module, and only in methods, so an empty one will do.
    """
    name = "triton_python_backend_utils"
    added = name not in sys.modules
    sys.modules.setdefault(name, ModuleType(name))
    try:
        spec = importlib.util.spec_from_file_location("text_classification_model", MODEL / "model.py")
        assert spec is not None and spec.loader is not None  # a path that ends in .py always has both
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        if added:
            del sys.modules[name]
    return module


def tenth(source: str, document: str) -> int:
    """Return in which tenth of the data *document* falls: the same on every machine, and for new releases too."""
    digest = hashlib.sha256(f"{source}/{document}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % TENTHS


def parse(source: str, content: str) -> list[Sentence]:
    """Parse lines of id, mean rating and text, with tabs between them."""
    sentences = []
    for number, line in enumerate(content.splitlines(), 1):
        fields = line.split("\t", 2)
        if len(fields) != 3:
            raise DataError(f"{source}, line {number}: expected id, rating and text, got {line!r}")
        # Sentences of one review are numbered 7_1, 7_2, …: a review is held out as a whole, or its product's name
        # would be learnt from one half and recognised in the other.
        document = fields[0].split("_")[0]
        sentences.append(Sentence(source, fields[0], fields[2], float(fields[1]), tenth(source, document) in HELD_OUT))
    return sentences


def read_sentences(distribution: Path) -> list[Sentence]:
    """Read the rated sentences from the source distribution of vaderSentiment, each text once."""
    try:
        with tarfile.open(distribution) as outer:
            name = next((name for name in outer.getnames() if name.endswith(ARCHIVE)), None)
            if name is None:
                raise DataError(f"{distribution}: no {ARCHIVE} in it; a wheel does not carry the data")
            inner = outer.extractfile(name)
            assert inner is not None  # a regular file
            archive = inner.read()
    except tarfile.TarError as error:
        raise DataError(
            f"{distribution}: expected the source distribution, a .tar.gz; this is something else"
        ) from error
    except OSError as error:
        raise DataError(f"{distribution}: {error.strerror}") from error
    digest = hashlib.sha256(archive).hexdigest()
    if digest != ARCHIVE_SHA256:
        raise DataError(f"{distribution}: {ARCHIVE}: expected SHA-256 {ARCHIVE_SHA256}, got {digest}")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        parsed = []
        for source, name in SOURCES.items():
            file = files.extractfile(name)
            assert file is not None  # the digest has told us what is in the archive
            parsed.append(parse(source, file.read().decode("utf-8")))
    return without_repeats(chain.from_iterable(parsed))


def without_repeats(sentences: Iterable[Sentence]) -> list[Sentence]:
    """Keep the first sentence of each text, so that none is both learnt and tested."""
    tokens = import_model().tokens
    first: dict[tuple[str, ...], Sentence] = {}
    for sentence in sentences:
        first.setdefault(tuple(tokens(sentence.text)), sentence)
    return list(first.values())


def train(sentences: Sequence[Sentence]) -> Any:
    """Return a Classifier for *sentences*: logistic regression over tf-idf n-grams, full-batch, by Nesterov's method."""
    model = import_model()
    texts = [sentence.text for sentence in sentences]
    occurrences = Counter(chain.from_iterable(model.ngrams(text) for text in texts))
    vocabulary = sorted(ngram for ngram, count in occurrences.items() if count >= LEAST_SENTENCES)
    rarity = np.log(len(texts) / np.array([occurrences[ngram] for ngram in vocabulary]))
    # As the server will read it.
    rarity = rarity.astype(np.float16).astype(np.float64)

    numbers = {ngram: number for number, ngram in enumerate(vocabulary)}
    features = model.Features(texts, numbers, rarity)
    ratings = np.array([sentence.rating for sentence in sentences])
    positive = 1 / (1 + np.exp(-STEEPNESS * ratings))
    targets = np.stack([1 - positive, positive], axis=1)

    weights = np.zeros((len(vocabulary), len(LABELS)))
    bias = np.zeros(len(LABELS))
    before = weights, bias
    # Rows have length 1, with the bias √2, and softmax curves by at most 1/2: a step of 1 / (½ · √2²) = 1 is the longest
    # that cannot overshoot.
    momentum = 1.0
    for _ in range(STEPS):
        following = (1 + np.sqrt(1 + 4 * momentum * momentum)) / 2
        drift = (momentum - 1) / following
        ahead = weights + drift * (weights - before[0])
        ahead_bias = bias + drift * (bias - before[1])
        errors = (model.softmax(features.times(ahead) + ahead_bias) - targets) / len(texts)
        slope = np.stack(
            [
                np.bincount(features.columns, features.values * errors[features.rows, index], minlength=len(vocabulary))
                for index in range(len(LABELS))
            ],
            axis=1,
        )
        before = weights, bias
        weights = ahead - (slope + L2 * ahead)
        bias = ahead_bias - errors.sum(axis=0)
        momentum = following
    return model.Classifier(LABELS, vocabulary, rarity, weights, bias)


def correct(classifier: Any, sentences: Sequence[Sentence]) -> int:
    """Count the sentences of which the classifier gets the sign of the rating right."""
    chosen = classifier.probabilities([sentence.text for sentence in sentences]).argmax(axis=1)
    return int(np.count_nonzero(chosen == [int(sentence.rating > 0) for sentence in sentences]))


def report(name: str, classifier: Any, sentences: Sequence[Sentence]) -> None:
    right, total = correct(classifier, sentences), len(sentences)
    positive = sum(sentence.rating > 0 for sentence in sentences)
    print(f"  {name:<34} {right / total:6.1%}  ({right} of {total}; {positive} positive, {total - positive} negative)")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train the weights of the text_classification model.")
    parser.add_argument(
        "distribution", type=Path, help="vaderSentiment-3.3.2.tar.gz, the package's source distribution"
    )
    parser.add_argument(
        "--output", type=Path, default=MODEL / "weights.npz", help="where to write (default: the model)"
    )
    parser.add_argument("--sample", type=Path, help="also write 200 of the held-out tweets here, for the tests")
    options = parser.parse_args(arguments)
    try:
        sentences = [sentence for sentence in read_sentences(options.distribution) if sentence.rating != 0]
    except DataError as error:
        print(f"train_text_classification.py: {error}", file=sys.stderr)
        return 1

    learnt = [sentence for sentence in sentences if sentence.is_clear and not sentence.held_out]
    held_out = [sentence for sentence in sentences if sentence.held_out]
    clear = [sentence for sentence in held_out if sentence.is_clear]
    train(learnt).save(options.output)
    # What is measured is the file that ships, not the numbers it was made from.
    classifier = import_model().Classifier.load(options.output)

    print("Data: vaderSentiment on PyPI (MIT licence), Hutto and Gilbert, ICWSM-14; mean ratings of 20 people or more.")
    print(
        f"Split by document, by hash: {len(learnt)} sentences to learn from, {len(clear)} held out (|mean| >= {CLEAR})."
    )
    print(f"Model: {len(classifier.vocabulary)} n-grams, {options.output.stat().st_size / 1e3:.0f} kB.")
    print("Accuracy:")
    report("on what it learnt from", classifier, learnt)
    report("held out", classifier, clear)
    for source in SOURCES:
        report(f"held out, {source}", classifier, [sentence for sentence in clear if sentence.source == source])
    report("held out, with the unclear ones", classifier, held_out)

    if options.sample:
        sample = [sentence for sentence in clear if sentence.source == "tweets"][:200]
        # In the form of the original files, which parse() reads.
        lines = [f"{sentence.identifier}\t{sentence.rating}\t{sentence.text}\n" for sentence in sample]
        options.sample.write_text("".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
