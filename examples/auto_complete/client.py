"""Ask the server for the configuration of models that have no config.pbtxt, and use them."""

from __future__ import annotations

import argparse
import sys

import numpy as np
import tritonclient.http as http


def check(what: str, got: object, expected: object) -> None:
    print(f"  {what}: {got}")
    if got != expected:
        sys.exit(f"wrong answer: {what} is {got}, expected {expected}")


def main(url: str) -> None:
    with http.InferenceServerClient(url) as client:
        for model, max_batch_size, shape in (("nobatch", 0, [4]), ("batch", 4, [3, 4])):
            print(model)
            config = client.get_model_config(model)
            check("max_batch_size", config["max_batch_size"], max_batch_size)
            check("dynamic batching", "dynamic_batching" in config, max_batch_size > 0)
            for end, name in (("input", "INPUT"), ("output", "OUTPUT")):
                [tensor] = config[end]
                check(end, (tensor["name"], tensor["data_type"], tensor["dims"]), (name, "TYPE_FP32", [4]))

            numbers = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
            sent = http.InferInput("INPUT", shape, "FP32")
            sent.set_data_from_numpy(numbers)
            check("answer", client.infer(model, [sent]).as_numpy("OUTPUT").tolist(), (numbers + 1).tolist())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the HTTP service (default: %(default)s)")
    main(parser.parse_args().url)
