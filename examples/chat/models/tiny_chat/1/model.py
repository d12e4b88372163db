"""tiny_chat: a word for each `execute`, sent when it is there; the request comes again until its answer has ended."""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).parent))
from network import END, NUMBERS, VOCABULARY, Writer, encode  # beside this file

# Twice max_candidate_sequences: answers beyond that have lost their request.
REMEMBERED = 128


@dataclass
class Answer:
    """What there is of an answer: the prompt and the words behind it."""

    words: list[int]
    prompt_tokens: int
    max_tokens: int
    temperature: float
    seed: int

    @property
    def written(self) -> int:
        return len(self.words) - self.prompt_tokens


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self.writer = Writer()
        # By correlation id, which the server makes up for each request; last advanced, last here.
        self.answers: OrderedDict[int, Answer] = OrderedDict()

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        answers = [self._answer(request) for request in requests]
        # The whole batch goes through the network at once.
        words = self.writer.next_words(
            [answer.words for answer in answers],
            [answer.temperature for answer in answers],
            [answer.seed for answer in answers],
        )
        for request, answer, word in zip(requests, answers, words):
            self._send(request, answer, word)

    def _answer(self, request: pb_utils.InferenceRequest) -> Answer:
        # The request is the same each time. START is set on its first coming only.
        if not request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            return self.answers.pop(request.correlation_id())
        prompt = encode(value(request, "text_input").decode()) or [NUMBERS[END]]
        return Answer(
            prompt,
            len(prompt),
            int(value(request, "max_tokens")),
            float(value(request, "temperature")),
            int(value(request, "seed")),
        )

    def _send(self, request: pb_utils.InferenceRequest, answer: Answer, word: int) -> None:
        answer.words.append(word)
        is_end = VOCABULARY[word] == END
        is_long = not is_end and answer.written >= answer.max_tokens
        piece = "" if is_end else spaced(VOCABULARY[word], is_first=answer.written == 1)
        reason = "stop" if is_end else "length" if is_long else ""
        response = pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("text_output", np.array([[piece.encode()]], np.object_)),
                pb_utils.Tensor("finish_reason", np.array([[reason.encode()]], np.object_)),
                pb_utils.Tensor("prompt_tokens", np.array([[answer.prompt_tokens]], np.int32)),
                pb_utils.Tensor("completion_tokens", np.array([[answer.written]], np.int32)),
            ]
        )
        sender = request.get_response_sender()
        if reason:
            # The last round, which is not rescheduled, sends FINAL.
            sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return
        sender.send(response)
        self._remember(request.correlation_id(), answer)
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)

    def _remember(self, number: int, answer: Answer) -> None:
        self.answers[number] = answer
        # A request that is cancelled does not come again, and nobody tells: forget who has not come for longest.
        while len(self.answers) > REMEMBERED:
            self.answers.popitem(last=False)


def value(request: pb_utils.InferenceRequest, name: str):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0, 0]


def spaced(word: str, *, is_first: bool) -> str:
    """A word with the blank in front of it; none is before a sign, nor at the beginning."""
    return word if is_first or not word[0].isalnum() else f" {word}"
