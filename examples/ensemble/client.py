"""Ask an ensemble of three models in what language texts are: letters, network, name."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

TEXTS = [
    ("The quality of mercy is not strained, it droppeth as the gentle rain from heaven", "English"),
    ("Es irrt der Mensch, solang er strebt, und eben darum wird er am Ende gerettet", "German"),
    ("Nel mezzo del cammin di nostra vita mi ritrovai per una selva oscura", "Italian"),
]


def infer(client: http.InferenceServerClient, texts: list[str], **wanted: Any) -> http.InferResult:
    # The batch comes first: [N, 1].
    tensor = http.InferInput("TEXT", [len(texts), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()] for text in texts], dtype=np.object_))
    return client.infer("language", [tensor], **wanted)


def executions(client: http.InferenceServerClient, model: str) -> int:
    count: int = client.get_inference_statistics(model)["model_stats"][0]["execution_count"]
    return count


def main(url: str) -> None:
    with http.InferenceServerClient(url) as client:
        result = infer(client, [text for text, _ in TEXTS])
        found = [name.decode() for name in result.as_numpy("LANGUAGE")[:, 0]]
        for (text, _), name, scores in zip(TEXTS, found, result.as_numpy("SCORES")):
            print(f"{name} ({scores.max():.2f}): {text}")
        if found != [name for _, name in TEXTS]:
            sys.exit(f"wrong answer: {found}")

        # Who wants the scores alone spares the server the last step. As classes they have the labels of the network.
        before = executions(client, "language_name")
        wanted = [http.InferRequestedOutput("SCORES", class_count=1)]
        (best,) = infer(client, [TEXTS[1][0]], outputs=wanted).as_numpy("SCORES")[0]
        print(f"best class: {best.decode()}")
        if not best.endswith(b":1:German") or executions(client, "language_name") != before:
            sys.exit("wrong answer: expected the class German, and no execution of language_name")

        # An error of a step is the answer of the ensemble.
        try:
            infer(client, ["1 + 1 = 2"])
        except InferenceServerException as error:
            print(f"1 + 1 = 2: {error.message()}")
        else:
            sys.exit("wrong answer: expected an error for a text without letters")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the HTTP service (default: %(default)s)")
    main(parser.parse_args().url)
