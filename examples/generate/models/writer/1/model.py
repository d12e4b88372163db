"""writer: goes on from a word, with as many more as the parameter ``max_tokens`` says; with ``stream``, one by one.

It stands for a language model: what it knows of a language is below.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
FOLLOWS = {"once": "upon", "upon": "a", "a": "time", "time": "there", "there": "was", "was": "a"}


def words_behind(word: str) -> Iterator[str]:
    while word in FOLLOWS:
        word = FOLLOWS[word]
        yield word


def response(text: str) -> pb_utils.InferenceResponse:
    return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array([text.encode()], dtype=np.object_))])


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        for request in requests:
            self._write(request, request.get_response_sender())

    def _write(self, request: pb_utils.InferenceRequest, sender: Any) -> None:
        # Whatever the client's JSON has beside the inputs.
        parameters = json.loads(request.parameters())
        most = parameters.get("max_tokens", 4)
        if most < 1:
            error = pb_utils.TritonError(
                f"max_tokens: expected 1 or more, got {most}", pb_utils.TritonError.INVALID_ARG
            )
            sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
            return
        first = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0].decode()
        words = itertools.islice(words_behind(first), most)
        if not parameters.get("stream", False):
            sender.send(response(" ".join([first, *words])), flags=FINAL)
            return
        for word in words:
            # The client has closed its connection: nobody needs the rest.
            if request.is_cancelled():
                break
            sender.send(response(word))
        sender.send(flags=FINAL)
