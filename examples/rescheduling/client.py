"""Ask models that work at a request in many steps: for the whole answer, and for a stream of its parts."""

from __future__ import annotations

import argparse
import queue
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tritonclient.grpc as grpc

TIMEOUT_S = 60
# First word and limit of each story, and the story.
STORIES = {
    ("once", 4): "once upon a time",
    ("there", 3): "there was a",
    ("time", 12): "time there was a time there was a time there was a",
    ("dragons", 5): "dragons",
    ("a", 1): "a",
}


def inputs(word: str, limit: int) -> list[grpc.InferInput]:
    first = grpc.InferInput("WORD", [1, 1], "BYTES")
    first.set_data_from_numpy(np.array([[word.encode()]], dtype=np.object_))
    most = grpc.InferInput("LIMIT", [1, 1], "INT32")
    most.set_data_from_numpy(np.array([[limit]], np.int32))
    return [first, most]


def whole(client: grpc.InferenceServerClient, word: str, limit: int) -> str:
    result = client.infer("story", inputs(word, limit), client_timeout=TIMEOUT_S)
    return result.as_numpy("STORY")[0, 0].decode()


def word_by_word(client: grpc.InferenceServerClient) -> list[list[str]]:
    """Ask for all STORIES on one stream; return the words of each."""
    replies: queue.Queue = queue.Queue()
    client.start_stream(lambda result, error: replies.put((result, error)))
    for number, (word, limit) in enumerate(STORIES):
        client.async_stream_infer("story_stream", inputs(word, limit), request_id=str(number))
    stories: list[list[str]] = [[] for _ in STORIES]
    unfinished = len(STORIES)
    while unfinished:
        result, error = replies.get(timeout=TIMEOUT_S)
        if error is not None:
            raise error
        response = result.get_response()
        stories[int(response.id)].append(result.as_numpy("NEXT")[0, 0].decode())
        unfinished -= response.parameters["triton_final_response"].bool_param
    client.stop_stream()
    return stories


def main(url: str) -> None:
    with grpc.InferenceServerClient(url) as client:
        # All at once: their steps are executed together, and a short story does not wait for a long one.
        with ThreadPoolExecutor(len(STORIES)) as pool:
            told = list(pool.map(lambda begin: whole(client, *begin), STORIES))
        streamed = word_by_word(client)
    for story, words, expected in zip(told, streamed, STORIES.values()):
        print(f"{story}  |  {' + '.join(words)}")
        if story != expected or words != expected.split():
            sys.exit(f"wrong answer: expected {expected!r} from both models")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8001", help="host:port of the gRPC service (default: %(default)s)")
    main(parser.parse_args().url)
