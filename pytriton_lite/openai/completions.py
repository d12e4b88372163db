"""POST /v1/completions."""

from __future__ import annotations

from typing import Any

from pytriton_lite.config.openai import Task
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.frontends.http.json_slices import pause
from pytriton_lite.openai.chat import requests_of, said_alternatives
from pytriton_lite.openai.exchange import Exchange, weight_of
from pytriton_lite.openai.members import Members, refuse_type, refuse_unsupported, refuse_value
from pytriton_lite.openai.sampling import MOST_CHOICES, Sampling, read_sampling, take_rest, want_logprobs
from pytriton_lite.openai.target import Target, Values, bytes_of, find_target
from pytriton_lite.openai.writing import Piece, Writing, now, write, written

Json = dict[str, Any]

_MOST_ALTERNATIVES = 20
_MOST_TOKENS = 1 << 20


async def completions(exchange: Exchange) -> None:
    """Answer a request."""
    target, sampling, requests, heads = await _asked(exchange)
    await write(exchange, target, sampling, requests, _Answer(exchange, target.name, sampling, heads))


async def _asked(exchange: Exchange) -> tuple[Target, Sampling, list[InferenceRequest], list[str]]:
    members = await exchange.read_members()
    values = Values(find_target(exchange.server, members, Task.COMPLETION))
    return values.target, *await exchange.work(lambda: _read(exchange, members, values))


def _read(exchange: Exchange, members: Members, values: Values) -> tuple[Sampling, list[InferenceRequest], list[str]]:
    """How to write, the engine's requests, and what goes in front of the answer to each."""
    prompts = _read_prompts(members.required("prompt"), values)
    echo = members.truth("echo") or False
    if echo and not all(isinstance(prompt, str) for prompt in prompts):
        refuse_unsupported("echo", "'echo' needs a prompt that is text.")
    sampling = _read_sampling(members, values)
    if len(prompts) * sampling.count > MOST_CHOICES:
        text = f"{len(prompts)} prompts with {sampling.count} choices each; at most {MOST_CHOICES} choices are allowed."
        refuse_value("prompt", text)
    if echo:
        exchange.check_repeated(sum(map(bytes_of, prompts)) * sampling.count, "in all choices with 'echo'")
    if len(prompts) > 1:
        others = values.bytes_of_row({"prompt", "prompt_tokens"})
        exchange.check_repeated(others * len(prompts), "beside its prompts, for all of them")
    heads = [str(prompt) if echo else "" for prompt in prompts for _ in range(sampling.count)]
    return sampling, _requests(exchange, values, sampling, prompts), heads


def _read_sampling(members: Members, values: Values) -> Sampling:
    sampling = read_sampling(members, values)
    alternatives = members.integer("logprobs", 0, _MOST_ALTERNATIVES)
    if alternatives is not None:
        want_logprobs(alternatives, values, sampling)
    suffix = members.text("suffix")
    if suffix is not None:
        values.put_tensor("suffix", suffix)
    best_of = members.integer("best_of", 1, MOST_CHOICES)
    if best_of is not None and best_of != sampling.count:
        refuse_unsupported("best_of", "'best_of' can only be 'n' here: which answer is best, the model does not say.")
    take_rest(members, values)
    return sampling


def _read_prompts(given: object, values: Values) -> list[str | list[int]]:
    """The prompts: a text, several, a list of tokens, or several of these."""
    found: list[Any] = given if isinstance(given, list) else [given]
    if found and all(type(one) is int for one in found):
        found = [found]
    if not found:
        refuse_value("prompt", "empty array.", "empty_array")
    for prompt in found:
        pause()
        if isinstance(prompt, str):
            name = "prompt"
        elif isinstance(prompt, list) and prompt and all(type(one) is int for one in prompt):
            name = "prompt_tokens"
            if len(prompt) > _MOST_TOKENS:
                refuse_value("prompt", f"expected at most {_MOST_TOKENS} tokens, but got {len(prompt)} instead.")
        else:
            refuse_type("prompt", "a string, an array of strings, or arrays of tokens", given)
        if name not in values.target.declared.inputs:
            kind = "text" if name == "prompt" else "tokens"
            refuse_unsupported("prompt", f"The model '{values.target.name}' takes no prompts that are {kind}.")
    return found


def _requests(
    exchange: Exchange, values: Values, sampling: Sampling, prompts: list[str | list[int]]
) -> list[InferenceRequest]:
    found: list[InferenceRequest] = []
    for at, prompt in enumerate(prompts):
        pause()
        name = "prompt" if isinstance(prompt, str) else "prompt_tokens"
        for request in requests_of(exchange, values, sampling, {name: prompt}):
            if at:
                request.timeline = None
                request.request_id = f"{exchange.request_id}-{len(found)}"
            found.append(request)
    return found


class _Answer:
    """The answer in the forms of this route."""

    def __init__(self, exchange: Exchange, model: str, sampling: Sampling, heads: list[str]) -> None:
        """*heads* go in front of each choice."""
        self._exchange = exchange
        self._model = model
        self._sampling = sampling
        self._heads = heads
        self._offsets = [len(head) for head in heads]
        """Where the next token of each choice begins."""
        self._created = now()

    def _document(self, choices: list[Json]) -> Json:
        identity = f"cmpl-{self._exchange.request_id}"
        return {
            "id": identity, "object": "text_completion", "created": self._created, "model": self._model,
            "choices": choices,
        }  # fmt: skip

    def _choice(self, index: int, text: str, logprobs: list[Json], finish_reason: str | None) -> Json:
        found = None if self._sampling.logprobs is None else self._logprobs(index, logprobs)
        return {"index": index, "text": text, "logprobs": found, "finish_reason": finish_reason}

    def _logprobs(self, index: int, said: list[Json]) -> Json:
        tokens = [str(one.get("token", "")) for one in said]
        offsets = []
        for token in tokens:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(token)
        alternatives = [
            {str(other.get("token", "")): other.get("logprob") for other in said_alternatives(one)} for one in said
        ]
        return {
            "tokens": tokens,
            "token_logprobs": [one.get("logprob") for one in said],
            "top_logprobs": alternatives if self._sampling.logprobs else None,
            "text_offset": offsets,
        }

    async def whole(self, writing: Writing) -> None:
        choices = await written(writing, len(self._heads))
        document = self._document(
            [
                self._choice(at, self._heads[at] + choice.text, choice.logprobs, choice.finish_reason)
                for at, choice in enumerate(choices)
            ]
        )
        usage = writing.usage()
        if usage is not None:
            document["usage"] = usage.as_json()
        weight = sum(weight_of(choice.text) for choice in choices) + sum(map(weight_of, self._heads))
        await self._exchange.send_json(document, weight=weight)

    async def stream(self, writing: Writing) -> None:
        piece = await writing.next()
        await self._exchange.begin_events()
        for index, head in enumerate(self._heads):
            if head:
                await self._send(Piece(index, head))
        while piece is not None:
            if piece.text or piece.logprobs or piece.finish_reason is not None:
                await self._send(piece)
            piece = await writing.next()
        if self._sampling.includes_usage:
            usage = writing.usage()
            document = self._document([])
            document["usage"] = None if usage is None else usage.as_json()
            await self._exchange.send_event(document)
        await self._exchange.end_events()

    async def _send(self, piece: Piece) -> None:
        document = self._document([self._choice(piece.index, piece.text, piece.logprobs, piece.finish_reason)])
        if self._sampling.includes_usage:
            document["usage"] = None
        await self._exchange.send_event(document, weight=weight_of(piece.text))
