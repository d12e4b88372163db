"""Ask text_embedder for vectors by OpenAI's route, and find the sentence that is nearest to a question."""

from __future__ import annotations

import argparse
import base64
import json
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np

TIMEOUT_S = 60
SENTENCES = [
    "The cat sleeps on the warm roof.",
    "Batches of requests are executed together.",
    "A train leaves for Oslo every hour.",
    "Tensors are arrays of numbers.",
]
QUESTIONS = {
    "trains to Oslo": 2,
    "what is an array of numbers?": 3,
    "cats on roofs": 0,
    "a batch of requests": 1,
}


def embed(url: str, texts: str | list[str], **members: str) -> tuple[np.ndarray, int]:
    """A row for each of *texts*, and how many tokens they were."""
    body = json.dumps({"model": "text_embedder", "input": texts, **members}).encode()
    request = urllib.request.Request(f"http://{url}/v1/embeddings", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
        document = json.load(reply)
    vectors = [one["embedding"] for one in document["data"]]
    if members.get("encoding_format") == "base64":
        return np.array([np.frombuffer(base64.b64decode(text), "<f4") for text in vectors]), document["usage"][
            "total_tokens"
        ]
    return np.array(vectors, np.float32), document["usage"]["total_tokens"]


def main(url: str) -> None:
    known, tokens = embed(url, SENTENCES)
    print(f"{len(known)} vectors of {known.shape[1]} numbers, {tokens} tokens")
    if not np.array_equal(embed(url, SENTENCES, encoding_format="base64")[0], known):
        sys.exit("the vectors as base64 are others")
    # All at once: the server puts them into one batch.
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        asked = np.concatenate([row for row, _ in pool.map(lambda text: embed(url, text), QUESTIONS)])
    nearest = (asked @ known.T).argmax(axis=1)
    for question, at in zip(QUESTIONS, nearest):
        print(f"{question}  →  {SENTENCES[at]}")
    if nearest.tolist() != list(QUESTIONS.values()):
        sys.exit(f"wrong answer: expected the sentences {list(QUESTIONS.values())}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the HTTP service (default: %(default)s)")
    main(parser.parse_args().url)
