"""square: N responses of N each, from a coroutine.

In a decoupled model `async def execute` is started and not waited for: many run at once on the one event loop of the
instance. Whatever waits must be awaited; a blocking call stops all of them.
"""

from __future__ import annotations

import asyncio

import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    async def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        await asyncio.gather(*(self._answer(request) for request in requests))

    async def _answer(self, request: pb_utils.InferenceRequest) -> None:
        sender = request.get_response_sender()
        number = pb_utils.get_input_tensor_by_name(request, "N").as_numpy()
        if number[0] < 0:
            # An error is a response like another, and ends the request because of its flag.
            text = f"input 'N' of model 'square': expected 0 or more, got {number[0]}"
            error = pb_utils.TritonError(text, pb_utils.TritonError.INVALID_ARG)
            sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
            return
        for _ in range(number[0]):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", number)]))
            # Here a real model would await something. It lets the other requests have their turn.
            await asyncio.sleep(0)
        sender.send(flags=FINAL)
