"""story_stream: the same as story for a decoupled model, which sends each word when it has it."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import triton_python_backend_utils as pb_utils

NEXT_WORD = {b"once": b"upon", b"upon": b"a", b"a": b"time", b"time": b"there", b"there": b"was", b"was": b"a"}
# Twice max_candidate_sequences: stories beyond that have lost their request.
REMEMBERED = 16


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        # How many words a story has and its last one, by correlation id; last advanced, last here.
        self.stories: OrderedDict[int, tuple[int, bytes]] = OrderedDict()

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        for request in requests:
            self._advance(request)

    def _advance(self, request: pb_utils.InferenceRequest) -> None:
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            count, word = 1, pb_utils.get_input_tensor_by_name(request, "WORD").as_numpy()[0, 0]
        else:
            count, last = self.stories.pop(request.correlation_id())
            count, word = count + 1, NEXT_WORD[last]

        limit = pb_utils.get_input_tensor_by_name(request, "LIMIT").as_numpy()[0, 0]
        text = np.array([[word]], dtype=np.object_)
        response = pb_utils.InferenceResponse([pb_utils.Tensor("NEXT", text)])
        sender = request.get_response_sender()
        if count < limit and word in NEXT_WORD:
            # Responses may be sent in every round; the last round, which is not rescheduled, sends FINAL.
            sender.send(response)
            self._remember(request.correlation_id(), count, word)
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        else:
            sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _remember(self, story: int, count: int, word: bytes) -> None:
        self.stories[story] = (count, word)
        # A request that is cancelled does not come again, and nobody tells: forget who has not come for longest.
        while len(self.stories) > REMEMBERED:
            self.stories.popitem(last=False)
