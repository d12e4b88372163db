"""bls_async: call two models at once and join what they answer.

`async_exec` needs a running event loop, so `execute` is a coroutine. The server runs it to its end before it sends
the next batch.
"""

from __future__ import annotations

import asyncio

import triton_python_backend_utils as pb_utils

# What OUTPUT0 and OUTPUT1 of each callee are called here.
CALLEES = {"add_sub": ("SUM", "DIFFERENCE"), "mul_div": ("PRODUCT", "QUOTIENT")}


class TritonPythonModel:
    async def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return await asyncio.gather(*(self._answer(request) for request in requests))

    async def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        calls = [
            pb_utils.InferenceRequest(
                model_name=callee, requested_output_names=["OUTPUT0", "OUTPUT1"], inputs=request.inputs()
            )
            for callee in CALLEES
        ]
        # A call starts when async_exec is called; both callees are at work while we wait for the slower one.
        answers = await asyncio.gather(*(call.async_exec() for call in calls))

        outputs = []
        for names, answer in zip(CALLEES.values(), answers):
            if answer.has_error():
                return pb_utils.InferenceResponse(error=answer.error())
            for theirs, ours in zip(("OUTPUT0", "OUTPUT1"), names):
                tensor = pb_utils.get_output_tensor_by_name(answer, theirs)
                # The name of a tensor cannot be changed; a new one over the same memory costs no copy.
                outputs.append(pb_utils.Tensor.from_dlpack(ours, tensor))
        return pb_utils.InferenceResponse(outputs)
