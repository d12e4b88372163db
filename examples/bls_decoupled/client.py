"""Ask models that call a decoupled model, and add up what it streams to them."""

from __future__ import annotations

import argparse
import sys

import numpy as np
import tritonclient.http as http


def totals(client: http.InferenceServerClient, model: str, name: str, numbers: list[int], output: str) -> list[int]:
    tensor = http.InferInput(name, [len(numbers)], "INT32")
    tensor.set_data_from_numpy(np.array(numbers, np.int32))
    return client.infer(model, [tensor]).as_numpy(output).tolist()


def main(url: str) -> None:
    numbers = [4, 0, 10, 100]
    # n + (n - 1) + ... + 1
    expected = [number * (number + 1) // 2 for number in numbers]
    with http.InferenceServerClient(url) as client:
        one_by_one = [totals(client, "sum_sync", "N", [number], "TOTAL")[0] for number in numbers]
        at_once = totals(client, "sum_async", "NUMBERS", numbers, "TOTALS")
    for model, got in (("sum_sync", one_by_one), ("sum_async", at_once)):
        print(f"{model}: {numbers} → {got}")
        if got != expected:
            sys.exit(f"wrong answer: {model} gave {got}, expected {expected}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the HTTP service (default: %(default)s)")
    main(parser.parse_args().url)
