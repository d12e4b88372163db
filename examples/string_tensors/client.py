"""Send texts to a model and get texts back: as binary tensors, as JSON, and through gRPC."""

from __future__ import annotations

import argparse
import sys
from types import ModuleType
from typing import Any

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

TEXTS = ["hello", "", "grüße aus köln", "two\nlines and a \0 byte", "日本"]
LOUD = [text.upper() for text in TEXTS]
INITIALS = [text[:1] for text in TEXTS]


def texts(module: ModuleType, elements: list[bytes], **how: Any) -> Any:
    tensor = module.InferInput("TEXTS", [len(elements)], "BYTES")
    # The client, too, takes bytes in an object array.
    tensor.set_data_from_numpy(np.array(elements, dtype=np.object_), **how)
    return tensor


def check(how: str, result: Any) -> None:
    for output, expected in (("LOUD", LOUD), ("INITIALS", INITIALS)):
        # tritonclient gives what came as JSON as str, and what came as binary data as bytes.
        got = [text if isinstance(text, str) else text.decode() for text in result.as_numpy(output)]
        print(f"{how}: {output} {got}")
        if got != expected:
            sys.exit(f"wrong answer: expected {expected}")


def main(url: str, grpc_url: str) -> None:
    elements = [text.encode() for text in TEXTS]
    with http.InferenceServerClient(url) as client:
        check("HTTP, binary", client.infer("shout", [texts(http, elements)]))
        wanted = [http.InferRequestedOutput(name, binary_data=False) for name in ("LOUD", "INITIALS")]
        as_json = [texts(http, elements, binary_data=False)]
        check("HTTP, JSON", client.infer("shout", as_json, outputs=wanted))
        # Bytes that are no text get through to the model; this one does not want them.
        try:
            client.infer("shout", [texts(http, [b"fine", b"\xff\xfe"])])
        except InferenceServerException as error:
            print(f"two bytes that are no text: {error.message()}")
        else:
            sys.exit("wrong answer: expected an error for bytes that are no text")
    with grpc.InferenceServerClient(grpc_url) as client:
        check("gRPC", client.infer("shout", [texts(grpc, elements)]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the HTTP service (default: %(default)s)")
    parser.add_argument("--grpc-url", default="localhost:8001", help="and of the gRPC service (default: %(default)s)")
    options = parser.parse_args()
    main(options.url, options.grpc_url)
