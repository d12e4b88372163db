"""story: a word for each `execute`; the request comes again until its story has ended, and is answered then.

Where a language model would compute the next token, a table has the next word.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import triton_python_backend_utils as pb_utils

NEXT_WORD = {b"once": b"upon", b"upon": b"a", b"a": b"time", b"time": b"there", b"there": b"was", b"was": b"a"}
# Twice max_candidate_sequences: stories beyond that have lost their request.
REMEMBERED = 16


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        # The words so far by correlation id, which the server makes up for each request; last advanced, last here.
        self.stories: OrderedDict[int, list[bytes]] = OrderedDict()

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse | None]:
        return [self._advance(request) for request in requests]

    def _advance(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse | None:
        """Add a word. Return None when the request is to come again."""
        # The request is the same each time. START is set on its first coming only.
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            words = [pb_utils.get_input_tensor_by_name(request, "WORD").as_numpy()[0, 0]]
        else:
            words = self.stories.pop(request.correlation_id())
            words.append(NEXT_WORD[words[-1]])

        limit = pb_utils.get_input_tensor_by_name(request, "LIMIT").as_numpy()[0, 0]
        if len(words) < limit and words[-1] in NEXT_WORD:
            self._remember(request.correlation_id(), words)
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        text = np.array([[b" ".join(words)]], dtype=np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("STORY", text)])

    def _remember(self, story: int, words: list[bytes]) -> None:
        self.stories[story] = words
        # A request that is cancelled does not come again, and nobody tells: forget who has not come for longest.
        while len(self.stories) > REMEMBERED:
            self.stories.popitem(last=False)
