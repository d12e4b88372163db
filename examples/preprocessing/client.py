"""Send image files to a pipeline on the server: decode and resize, network, name of the best class."""

from __future__ import annotations

import argparse
import io
import sys

import numpy as np
import tritonclient.http as http
from PIL import Image
from tritonclient.utils import InferenceServerException

# Pictures to send, and what they are: mostly of one colour, in sizes and formats of their own.
PICTURES = [
    ("JPEG", (640, 480), (220, 40, 30), "red"),
    ("PNG", (50, 300), (20, 60, 10), "green"),
    ("PNG", (1000, 10), (120, 130, 250), "blue"),
]


def file_of(form: str, size: tuple[int, int], colour: tuple[int, int, int]) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, form)
    return file.getvalue()


def infer(client: http.InferenceServerClient, files: list[bytes]) -> http.InferResult:
    # The batch comes first: [N, 1].
    tensor = http.InferInput("IMAGE", [len(files), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[data] for data in files], dtype=np.object_))
    return client.infer("image_pipeline", [tensor])


def main(url: str) -> None:
    with http.InferenceServerClient(url) as client:
        result = infer(client, [file_of(form, size, colour) for form, size, colour, _ in PICTURES])
        found = [name.decode() for name in result.as_numpy("COLOUR")[:, 0]]
        for (form, size, colour, _), name, score in zip(PICTURES, found, result.as_numpy("SCORE")[:, 0]):
            print(f"{form} of {size[0]} x {size[1]} in {colour}: {name} ({score:+.2f})")
        expected = [name for *_, name in PICTURES]
        if found != expected:
            sys.exit(f"wrong answer: {found}, expected {expected}")

        # An error in the first step is the answer of the pipeline.
        try:
            infer(client, [b"no image at all"])
        except InferenceServerException as error:
            print(f"15 bytes of text: {error.message()}")
        else:
            sys.exit("wrong answer: expected an error for 15 bytes of text")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the HTTP service (default: %(default)s)")
    main(parser.parse_args().url)
