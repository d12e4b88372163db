from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pb_utils_stand_in import execute, strings

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = ROOT / "model_repository" / "text_classification" / "1" / "weights.npz"
SAMPLE = Path(__file__).with_name("data") / "held_out_tweets.tsv"


@pytest.fixture(scope="module")
def module(load_model: Callable[[str], ModuleType]) -> ModuleType:
    return load_model("text_classification")


@pytest.fixture(scope="module")
def model(module: ModuleType) -> Any:
    model = module.TritonPythonModel()
    model.initialize({})
    return model


def classify(model: Any, *texts: bytes) -> list[tuple[int, bytes, float]]:
    """Send *texts* as one request; return CLASS, LABEL and PROB of each."""
    [response] = execute(model, {"TEXT": strings(*texts)})
    columns = response.arrays()
    assert {name: (array.shape, array.dtype) for name, array in columns.items()} == {
        "CLASS": ((len(texts), 1), np.int32),
        "LABEL": ((len(texts), 1), np.object_),
        "PROB": ((len(texts), 1), np.float32),
    }
    return list(zip(*(columns[name][:, 0].tolist() for name in ("CLASS", "LABEL", "PROB"))))


def score_by_hand(ngrams: list[str]) -> list[float]:
    """Compute the probabilities from the file's arrays one number at a time."""
    with np.load(WEIGHTS) as file:
        vocabulary = file["vocabulary"].tobytes().decode().split("\n")
        numbers = [vocabulary.index(ngram) for ngram in ngrams if ngram in vocabulary]
        rarity = {number: float(file["rarity"][number]) for number in numbers}
        weights = {number: file["weights"][number].astype(float).tolist() for number in numbers}
        bias = file["bias"].tolist()
    length = math.sqrt(sum(value**2 for value in rarity.values()))
    scores = [bias[k] + sum(rarity[n] / length * weights[n][k] for n in numbers) for k in range(2)]
    powers = [math.exp(score) for score in scores]
    return [power / sum(powers) for power in powers]


def test_probability_is_the_softmax_of_the_weights_in_the_file(model: Any) -> None:
    ngrams = ["a", "great", "camera", "a great", "great camera"]
    expected = score_by_hand(ngrams)
    [(label_number, label, probability)] = classify(model, b"A great camera")
    assert (label_number, label) == (1, b"positive")
    assert probability == pytest.approx(expected[1], abs=1e-6)
    assert expected[0] + expected[1] == pytest.approx(1)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("An instant classic, brilliantly acted.", b"positive"),
        ("I love this phone, the screen is gorgeous!", b"positive"),
        ("Thank you so much, you made my day :)", b"positive"),
        ("The battery died after two days.", b"negative"),
        ("This is not a good camera.", b"negative"),
        ("Dull, predictable and far too long.", b"negative"),
    ],
)
def test_plain_opinions_are_understood(model: Any, text: str, label: bytes) -> None:
    [(_, answer, _)] = classify(model, text.encode())
    assert answer == label


def test_three_quarters_of_held_out_tweets_are_right(model: Any, training: ModuleType) -> None:
    sentences = training.parse("tweets", SAMPLE.read_text(encoding="utf-8"))
    right = 0
    for start in range(0, len(sentences), 32):
        batch = sentences[start : start + 32]
        answers = classify(model, *(sentence.text.encode() for sentence in batch))
        right += sum(
            label == (b"positive" if s.rating > 0 else b"negative") for (_, label, _), s in zip(answers, batch)
        )
    assert len(sentences) == 200
    assert right / len(sentences) >= 0.75


def test_sample_holds_nothing_that_the_weights_were_trained_on(training: ModuleType) -> None:
    sentences = training.parse("tweets", SAMPLE.read_text(encoding="utf-8"))
    assert all(sentence.held_out for sentence in sentences)


def test_weights_stay_small_enough_to_live_in_the_repository() -> None:
    assert WEIGHTS.stat().st_size < 2_000_000


def test_negation_marks_the_four_words_that_follow_until_a_but(module: ModuleType) -> None:
    found = module.ngrams("not a very good or new film")
    assert {ngram for ngram in found if ngram.startswith("not_")} == {"not_a", "not_very", "not_good", "not_or"}
    found = module.ngrams("don't like the plot but love the cast")
    assert {ngram for ngram in found if ngram.startswith("not_")} == {"not_like", "not_the", "not_plot"}


def test_tokens_are_words_emoticons_and_exclamations(module: ModuleType) -> None:
    assert module.tokens("It’s &lt;3 WOW!! 24/7 :-) naïve, isn't it?") == [
        *("it's", "<3", "wow", "!!", ":-)", "naïve", "isn't", "it", "?"),
    ]


@pytest.mark.parametrize("text", [b"", b"   ", b"12345", "你好".encode(), b"zzqx qqzz"])
def test_text_without_a_known_word_gets_a_probability_near_one_half(model: Any, text: bytes) -> None:
    [(_, _, probability)] = classify(model, text)
    assert 0.5 <= probability < 0.6


def test_bytes_that_are_not_utf8_leave_the_words_around_them_readable(model: Any) -> None:
    assert classify(model, b"\xff\xfe great \x80 camera") == classify(
        model, "great \N{REPLACEMENT CHARACTER} camera".encode()
    )
    [(_, label, _)] = classify(model, b"awful \xff\xfe horrible")
    assert label == b"negative"


def test_requests_of_a_batch_get_their_own_rows(model: Any) -> None:
    texts = [[b"great"], [b"awful", b"great", b""], [b"awful"]]
    responses = execute(model, *({"TEXT": strings(*request)} for request in texts))
    labels = [response.arrays()["LABEL"][:, 0].tolist() for response in responses]
    assert labels[0] == [b"positive"]
    assert labels[1][:2] == [b"negative", b"positive"] and len(labels[1]) == 3
    assert labels[2] == [b"negative"]


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None, database=None)
def test_any_bytes_get_the_same_answer_alone_and_in_company(model: Any, texts: list[bytes]) -> None:
    together = classify(model, *texts)
    assert together == [classify(model, text)[0] for text in texts]
    assert all(0.5 <= probability <= 1 for _, _, probability in together)
