"""image_pipeline: image_preprocessing → colour_network → the name of the best score.

Each step is a model of its own, so that each can have the instances and the batching that suit it, and so that
clients may use either alone. The arrays between the steps stay on the server.
"""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils

COLOURS = np.array([b"red", b"green", b"blue"], dtype=np.object_)


class StepFailed(Exception):
    """A step answered with the TritonError in *error*."""

    def __init__(self, error: pb_utils.TritonError) -> None:
        super().__init__(error.message())
        self.error = error


def step(model: str, tensor: pb_utils.Tensor, output: str) -> pb_utils.Tensor:
    """Call *model* with one tensor and return its *output*; raise StepFailed."""
    answer = pb_utils.InferenceRequest(model_name=model, inputs=[tensor], requested_output_names=[output]).exec()
    if answer.has_error():
        raise StepFailed(answer.error())
    return pb_utils.get_output_tensor_by_name(answer, output)


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        try:
            files = pb_utils.get_input_tensor_by_name(request, "IMAGE")
            pixels = step("image_preprocessing", files, "PREPROCESSED_IMAGE")
            # The network calls its input IMAGE: the same memory under another name.
            scores = step("colour_network", pb_utils.Tensor.from_dlpack("IMAGE", pixels), "SCORES").as_numpy()
        except StepFailed as failure:
            # The client sees the text and the code of the step, for instance INVALID_ARG for a file that is no image.
            return pb_utils.InferenceResponse(error=failure.error)
        best = scores.argmax(axis=1)[:, np.newaxis]
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("COLOUR", COLOURS[best]),
                pb_utils.Tensor("SCORE", np.take_along_axis(scores, best, axis=1)),
            ]
        )
