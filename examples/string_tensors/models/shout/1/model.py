"""shout: how strings come in and go out. TYPE_STRING is BYTES on the wire: any bytes, text or not."""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        # An object array whose elements are bytes, never str: what they mean is for client and model to agree on.
        given = pb_utils.get_input_tensor_by_name(request, "TEXTS").as_numpy()
        try:
            texts = [element.decode("utf-8") for element in given]
        except UnicodeDecodeError as error:
            text = f"input 'TEXTS' of model 'shout': expected UTF-8, got {error.object!r}"
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, pb_utils.TritonError.INVALID_ARG))
        # Two kinds of array go out. An object array may hold bytes or str, which is sent as UTF-8, of any lengths ...
        loud = np.array([text.upper() for text in texts], dtype=np.object_)
        # ... and an array of np.bytes_ has a fixed width (here 4, the longest letter in UTF-8); numpy drops zero bytes
        # at the end of its elements. Arrays of numpy's own text type, U, are refused.
        initials = np.array([text[:1].encode() for text in texts], dtype="S4")
        return pb_utils.InferenceResponse([pb_utils.Tensor("LOUD", loud), pb_utils.Tensor("INITIALS", initials)])
