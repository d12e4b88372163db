"""Three models on a GPU, asked with tensors in the request, and with tensors in GPU memory of the client."""

from __future__ import annotations

import argparse
import sys

import numpy as np
import tritonclient.http as http
import tritonclient.utils.cuda_shared_memory as cuda_shared_memory


def expected(rows: np.ndarray) -> np.ndarray:
    normal = (rows - rows.mean(axis=1, keepdims=True)) / rows.std(axis=1, keepdims=True)
    return np.tanh(normal[:, ::-1])


def check(how: str, got: np.ndarray, rows: np.ndarray) -> None:
    if not np.allclose(got, expected(rows), atol=1e-4):
        sys.exit(f"wrong answer {how}")
    print(f"{how}: {rows.shape[0]} rows, as numpy has them")


def by_request(client: http.InferenceServerClient, rows: np.ndarray) -> None:
    """Tensors travel in the request and in the response; what is between the models stays on the GPU."""
    tensor = http.InferInput("ROWS", list(rows.shape), "FP32")
    tensor.set_data_from_numpy(rows)
    check("in the request", client.infer("gpu_chain", [tensor]).as_numpy("SQUASHED"), rows)


def by_regions(client: http.InferenceServerClient, rows: np.ndarray) -> None:
    """The client's memory on GPU 0, for a model that takes its input from there and puts its output there."""
    regions = {name: cuda_shared_memory.create_shared_memory_region(name, rows.nbytes, 0) for name in ("in", "out")}
    try:
        cuda_shared_memory.set_shared_memory_region(regions["in"], [rows])
        for name, region in regions.items():
            client.register_cuda_shared_memory(name, cuda_shared_memory.get_raw_handle(region), 0, rows.nbytes)
        tensor, output = http.InferInput("IN", list(rows.shape), "FP32"), http.InferRequestedOutput("OUT")
        tensor.set_shared_memory("in", rows.nbytes)
        output.set_shared_memory("out", rows.nbytes)
        client.infer("gpu_squash", [tensor], outputs=[output])
        got = cuda_shared_memory.get_contents_as_numpy(regions["out"], np.float32, list(rows.shape))
        if not np.allclose(got, np.tanh(rows), atol=1e-4):
            sys.exit("wrong answer in GPU memory of the client")
        print(f"in GPU memory of the client: {rows.shape[0]} rows, as numpy has them")
    finally:
        client.unregister_cuda_shared_memory()
        for region in regions.values():
            cuda_shared_memory.destroy_shared_memory_region(region)


def main(url: str) -> None:
    rows = np.random.default_rng(1).normal(size=(1000, 64)).astype(np.float32)
    with http.InferenceServerClient(url) as client:
        by_request(client, rows)
        by_regions(client, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the HTTP service (default: %(default)s)")
    main(parser.parse_args().url)
