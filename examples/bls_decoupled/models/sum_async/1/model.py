"""sum_async: call a decoupled model several times at once, and add up each stream of responses."""

from __future__ import annotations

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return await asyncio.gather(*(self._answer(request) for request in requests))

    async def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        numbers = pb_utils.get_input_tensor_by_name(request, "NUMBERS").as_numpy()
        calls = [
            pb_utils.InferenceRequest(
                model_name="countdown",
                requested_output_names=["LEFT"],
                inputs=[pb_utils.Tensor("N", numbers[index : index + 1])],
            )
            for index in range(len(numbers))
        ]
        # Awaiting gives an iterator when the first response is there. All streams fill while we read one.
        streams = await asyncio.gather(*(call.async_exec(decoupled=True) for call in calls))

        totals = np.zeros(len(numbers), dtype=np.int32)
        for index, stream in enumerate(streams):
            # An ordinary `for`: the iterator is not an asynchronous one, and blocks the event loop while it waits.
            for response in stream:
                if response.has_error():
                    return pb_utils.InferenceResponse(error=response.error())
                if response.output_tensors():
                    totals[index] += pb_utils.get_output_tensor_by_name(response, "LEFT").as_numpy()[0]
        return pb_utils.InferenceResponse([pb_utils.Tensor("TOTALS", totals)])
