"""Ask two pipelines for the language of texts: one that is a single model, and one that calls a model for each step."""

from __future__ import annotations

import argparse
import sys

import numpy as np
import tritonclient.http as http

TEXTS = {
    "It was the best of times, it was the worst of times.": "english",
    "Ich weiß nicht, was soll es bedeuten, dass ich so traurig bin.": "german",
    "Longtemps, je me suis couché de bonne heure, et les nuits sont pour nous.": "french",
    "En un lugar de la Mancha, de cuyo nombre no quiero acordarme.": "spanish",
}


def main(url: str) -> None:
    sent = http.InferInput("TEXT", [len(TEXTS), 1], "BYTES")
    sent.set_data_from_numpy(np.array([[text.encode()] for text in TEXTS], dtype=np.object_))
    with http.InferenceServerClient(url) as client:
        single, steps = (client.infer(model, [sent]) for model in ("text_pipeline", "text_pipeline_bls"))

    languages = [name.decode() for name in single.as_numpy("LANGUAGE")[:, 0]]
    probabilities = single.as_numpy("PROBABILITY")[:, 0]
    for text, language, probability in zip(TEXTS, languages, probabilities):
        print(f"{language} ({probability:.2f}): {text}")
    if languages != list(TEXTS.values()):
        sys.exit(f"wrong answer: expected {list(TEXTS.values())}")
    if [name.decode() for name in steps.as_numpy("LANGUAGE")[:, 0]] != languages:
        sys.exit(f"wrong answer: text_pipeline_bls found {steps.as_numpy('LANGUAGE')[:, 0]}")
    if not np.allclose(steps.as_numpy("PROBABILITY")[:, 0], probabilities):
        sys.exit(f"wrong answer: the probabilities of text_pipeline_bls are {steps.as_numpy('PROBABILITY')[:, 0]}")
    print("text_pipeline_bls agrees")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the HTTP service (default: %(default)s)")
    main(parser.parse_args().url)
