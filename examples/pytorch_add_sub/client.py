"""Add and subtract with PyTorch on the server: one pair of vectors, and a batch of them."""

from __future__ import annotations

import argparse
import sys

import numpy as np
import tritonclient.grpc as grpc


def main(url: str) -> None:
    with grpc.InferenceServerClient(url) as client:
        for rows in (1, 5):
            left = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
            right = np.full((rows, 4), 10, np.float32)
            inputs = [grpc.InferInput(name, [rows, 4], "FP32") for name in ("INPUT0", "INPUT1")]
            for tensor, array in zip(inputs, (left, right)):
                tensor.set_data_from_numpy(array)
            result = client.infer("pytorch_add_sub", inputs)
            for sign, output, expected in (("+", "OUTPUT0", left + right), ("-", "OUTPUT1", left - right)):
                got = result.as_numpy(output)
                print(f"{left.tolist()} {sign} 10 = {got.tolist()}")
                if not np.array_equal(got, expected):
                    sys.exit(f"wrong answer: expected {expected.tolist()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8001", help="host:port of the gRPC service (default: %(default)s)")
    main(parser.parse_args().url)
