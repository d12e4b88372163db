"""repeat: a response for each element of VALUES, sent by a thread after `execute` has returned.

`execute` only starts the work, so the next request begins while this one is still being answered.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        # As many requests as there are threads are answered side by side; more wait their turn.
        self.threads = ThreadPoolExecutor(max_workers=16)

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        """Return None: the answers go through each request's sender."""
        for request in requests:
            self.threads.submit(self._answer, request)

    def _answer(self, request: pb_utils.InferenceRequest) -> None:
        sender = request.get_response_sender()
        # Nobody looks at an exception in a thread: without this the client would wait for ever.
        try:
            self._repeat(request, sender)
        except Exception as error:
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(f"repeat: {error}")), flags=FINAL)
            return
        # FINAL is the end of the request. It may come with the last response, or alone, as here, which also suits an
        # empty VALUES.
        sender.send(flags=FINAL)

    def _repeat(self, request: pb_utils.InferenceRequest, sender: Any) -> None:
        values = pb_utils.get_input_tensor_by_name(request, "VALUES").as_numpy()
        # An optional input that the client left out is None.
        pause = pb_utils.get_input_tensor_by_name(request, "PAUSE_MS")
        pause_s = 0 if pause is None else int(pause.as_numpy()[0]) / 1000
        for index in range(len(values)):
            # The client may have gone meanwhile; then nobody needs the rest.
            if sender.is_cancelled():
                return
            outputs = [
                pb_utils.Tensor("VALUE", values[index : index + 1]),
                pb_utils.Tensor("INDEX", np.array([index], dtype=np.uint32)),
            ]
            sender.send(pb_utils.InferenceResponse(outputs))
            time.sleep(pause_s)

    def finalize(self) -> None:
        self.threads.shutdown()
