"""What chat and completions have in common: how a text is to be written, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pytriton_lite.core import dtypes
from pytriton_lite.openai.errors import ApiError
from pytriton_lite.openai.members import Members, refuse_type, refuse_unsupported, refuse_value
from pytriton_lite.openai.stop_texts import StopScanner
from pytriton_lite.openai.target import Values

MOST_CHOICES = 128
"""As many as OpenAI's API allows. Each is a request to the engine."""
_MOST_STOPS = 16
"""OpenAI's API allows four."""
_LONGEST_STOP = 1024

_NUMBERS = (
    ("temperature", 0, 2),
    ("top_p", 0, 1),
    ("min_p", 0, 1),
    ("presence_penalty", -2, 2),
    ("frequency_penalty", -2, 2),
    ("repetition_penalty", 0, 100),
)
_NOT_USED = (
    "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "parallel_tool_calls", "verbosity", "reasoning_effort",
)  # fmt: skip
"""Members that clients send, and that change nothing here; a model with an input of that name is given it."""


@dataclass
class Sampling:
    """How texts are to be written: what the model is told is in `Values`, this is what is done here."""

    count: int = 1
    """Choices of each prompt (``n``)."""
    seed: int | None = None
    stops: list[str] = field(default_factory=list)
    """Texts that end an answer, for us to find; empty where the model does that."""
    max_tokens: int | None = None
    streams: bool = False
    includes_usage: bool = False
    logprobs: int | None = None
    """How many alternatives of each token are wanted; None for no logprobs."""

    def scanner(self) -> StopScanner | None:
        """One for a text that begins; None where nothing is looked for."""
        return StopScanner(self.stops) if self.stops else None

    def seed_of(self, choice: int) -> int | None:
        """The seed of a choice: choices of one request are to differ, and to be the same each time."""
        return None if self.seed is None else self.seed + choice


def read_sampling(members: Members, values: Values) -> Sampling:
    """What *members* say, for the model in *values*, which get what it is told. Raises ApiError."""
    found = Sampling()
    for name, low, high in _NUMBERS:
        number = members.number(name, low, high)
        if number is not None:
            values.put(name, number)
    top_k = members.integer("top_k", -1, (1 << 31) - 1)
    if top_k is not None:
        values.put("top_k", top_k)
    values.put_defaults()
    found.count = members.integer("n", 1, MOST_CHOICES) or 1
    found.seed = members.integer("seed", -(1 << 63), (1 << 63) - 1 - MOST_CHOICES)
    found.max_tokens = _read_max_tokens(members, values)
    _read_stream(members, values, found)
    _read_stops(members, values, found)
    bias = members.mapping("logit_bias")
    if bias:
        values.put_tensor("logit_bias", bias)
    user = members.text("user")
    if user is not None:
        values.put("user", user)
    read_response_format(members.mapping("response_format"), values)
    return found


def take_rest(members: Members, values: Values) -> None:
    """Take what all routes have: the priority, members that change nothing here, and for the model whatever else there is."""
    values.priority = members.integer("priority", 0, (1 << 31) - 1) or 0
    for name in _NOT_USED:
        if name not in values.target.config.inputs_by_name:
            members.take(name)
    values.put_rest(members)


def read_response_format(wanted: dict[str, Any] | None, values: Values, param: str = "response_format") -> None:
    """Pass JSON mode on to the model. Text is what every model writes. Raises ApiError."""
    if wanted is None:
        return
    kind = wanted.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        refuse_value(f"{param}.type", "expected one of 'text', 'json_object', 'json_schema'")
    if kind != "text" or "response_format" in values.target.declared.inputs:
        values.put_tensor("response_format", wanted, param=param)


def want_logprobs(count: int, values: Values, found: Sampling) -> None:
    """Have the model give logprobs with *count* alternatives. Raises ApiError where it has none to give."""
    if "logprobs" not in values.target.declared.outputs:
        refuse_unsupported("logprobs", f"The model '{values.target.name}' gives no logprobs.")
    found.logprobs = count
    spec = values.target.spec("logprobs")
    is_truth = spec is not None and spec.datatype is dtypes.BOOL
    values.put("logprobs", True if is_truth else count)  # without alternatives they are wanted as well


def _read_max_tokens(members: Members, values: Values) -> int | None:
    most = (1 << 31) - 1
    old, new = members.integer("max_tokens", 1, most), members.integer("max_completion_tokens", 1, most)
    found = old if new is None else new
    if found is not None:
        values.put("max_tokens", found)
        return found
    default = values.target.declared.defaults.get("max_tokens")
    return default if isinstance(default, int) else None


def _read_stream(members: Members, values: Values, found: Sampling) -> None:
    found.streams = members.truth("stream") or False
    options = members.mapping("stream_options")
    if options is not None:
        if not found.streams:
            raise ApiError(
                "The 'stream_options' parameter is only allowed when 'stream' is enabled.", param="stream_options"
            )
        found.includes_usage = Members(options, "stream_options.").truth("include_usage") or False
    if found.streams or "stream" in values.target.declared.inputs:
        values.put("stream", found.streams)


def _read_stops(members: Members, values: Values, found: Sampling) -> None:
    stop = members.take("stop")
    if stop is None:
        return
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
        refuse_type("stop", "a string or an array of strings", stop)
    if len(stops) > _MOST_STOPS:
        refuse_value("stop", f"expected at most {_MOST_STOPS} texts, but got {len(stops)} instead.")
    if any(not one or len(one) > _LONGEST_STOP for one in stops):
        refuse_value("stop", f"expected texts of 1 to {_LONGEST_STOP} characters")
    if not stops:
        return
    if "stop" in values.target.declared.inputs:
        values.fields["stop"] = stops
    else:
        found.stops = stops
