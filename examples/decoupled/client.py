"""Ask decoupled models, which answer one request with many responses, or with none.

Responses come through a gRPC stream: tritonclient calls a function for each, from a thread of its own.
"""

from __future__ import annotations

import argparse
import queue
import sys

import numpy as np
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

TIMEOUT_S = 60


def ask(client: grpc.InferenceServerClient, model: str, requests: dict[str, dict[str, np.ndarray]]) -> dict:
    """Send *requests*, input arrays by name for each request id, all at once; return the results by request id."""
    replies: queue.Queue = queue.Queue()
    client.start_stream(lambda result, error: replies.put((result, error)))
    for request_id, arrays in requests.items():
        inputs = []
        for name, array in arrays.items():
            tensor = grpc.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        # Without this the end of a request is only seen when it comes with a response.
        client.async_stream_infer(model, inputs, request_id=request_id, enable_empty_final_response=True)

    results: dict[str, list[grpc.InferResult]] = {request_id: [] for request_id in requests}
    unfinished = set(requests)
    while unfinished:
        result, error = replies.get(timeout=TIMEOUT_S)
        if error is not None:
            client.stop_stream()
            raise error
        response = result.get_response()
        if response.outputs:
            results[response.id].append(result)
        if response.parameters["triton_final_response"].bool_param:
            unfinished.remove(response.id)
    client.stop_stream()
    return results


def main(url: str) -> None:
    with grpc.InferenceServerClient(url) as client:
        # Two requests on one stream: their responses come as they are sent, those of the second in between.
        slow = {"VALUES": np.array([4, 2, 0, 1], np.int32), "PAUSE_MS": np.array([20], np.uint32)}
        quick = {"VALUES": np.array([7, 8], np.int32)}
        results = ask(client, "repeat", {"slow": slow, "quick": quick})
        for request_id, expected in (("slow", [4, 2, 0, 1]), ("quick", [7, 8])):
            values = [result.as_numpy("VALUE").item() for result in results[request_id]]
            indices = [result.as_numpy("INDEX").item() for result in results[request_id]]
            print(f"repeat, request '{request_id}': {values}")
            if values != expected or indices != list(range(len(expected))):
                sys.exit(f"wrong answer: expected {expected} in this order, got {values} with the indices {indices}")

        numbers = (3, 0, 5)
        results = ask(client, "square", {str(number): {"N": np.array([number], np.int32)} for number in numbers})
        for number in numbers:
            values = [result.as_numpy("OUT").item() for result in results[str(number)]]
            print(f"square of {number}: {len(values)} responses, sum {sum(values)}")
            if values != [number] * number:
                sys.exit(f"wrong answer: expected {number} responses of {number}, got {values}")

        try:
            ask(client, "square", {"negative": {"N": np.array([-1], np.int32)}})
        except InferenceServerException as error:
            print(f"square of -1: {error.message()}")
        else:
            sys.exit("wrong answer: expected an error for -1")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8001", help="host:port of the gRPC service (default: %(default)s)")
    main(parser.parse_args().url)
