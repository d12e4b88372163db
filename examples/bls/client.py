"""Ask models that call other models: one after the choice of the client, and two at the same time."""

from __future__ import annotations

import argparse
import sys

import numpy as np
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

LEFT = np.array([6, 8, 10, 12], np.float32)
RIGHT = np.array([1, 2, 4, 8], np.float32)
EXPECTED = {"SUM": LEFT + RIGHT, "DIFFERENCE": LEFT - RIGHT, "PRODUCT": LEFT * RIGHT, "QUOTIENT": LEFT / RIGHT}


def vectors(left: np.ndarray, right: np.ndarray) -> list[http.InferInput]:
    inputs = [http.InferInput(name, [4], "FP32") for name in ("INPUT0", "INPUT1")]
    for tensor, array in zip(inputs, (left, right)):
        tensor.set_data_from_numpy(array)
    return inputs


def model_name(name: str) -> http.InferInput:
    tensor = http.InferInput("MODEL_NAME", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([name.encode()], dtype=np.object_))
    return tensor


def check(result: http.InferResult, names: dict[str, str]) -> None:
    """Compare the outputs with EXPECTED; *names* says what each output is."""
    for output, meaning in names.items():
        array = result.as_numpy(output)
        print(f"  {meaning.lower()}: {array}")
        if not np.array_equal(array, EXPECTED[meaning]):
            sys.exit(f"wrong answer: {output} is {array}, expected {EXPECTED[meaning]}")


def check_refused(client: http.InferenceServerClient, callee: str, right: np.ndarray, text: str) -> None:
    try:
        client.infer("bls_sync", [model_name(callee), *vectors(LEFT, right)])
    except InferenceServerException as error:
        print(f"bls_sync with {callee}: {error.message()}")
        if text not in error.message():
            sys.exit(f"wrong answer: expected an error with {text!r}")
    else:
        sys.exit(f"wrong answer: expected an error with {text!r}, got none")


def main(url: str) -> None:
    with http.InferenceServerClient(url) as client:
        for callee, meanings in (("add_sub", ("SUM", "DIFFERENCE")), ("mul_div", ("PRODUCT", "QUOTIENT"))):
            print(f"bls_sync with {callee}")
            result = client.infer("bls_sync", [model_name(callee), *vectors(LEFT, RIGHT)])
            check(result, dict(zip(("OUTPUT0", "OUTPUT1"), meanings)))

        # What a callee answers, and that there is none of that name, comes back as the error of our own request.
        check_refused(client, "mul_div", np.zeros(4, np.float32), "expected no zero")
        check_refused(client, "nobody", RIGHT, "nobody")

        print("bls_async")
        check(client.infer("bls_async", vectors(LEFT, RIGHT)), {name: name for name in EXPECTED})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the HTTP service (default: %(default)s)")
    main(parser.parse_args().url)
