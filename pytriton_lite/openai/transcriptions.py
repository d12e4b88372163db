"""POST /v1/audio/transcriptions: a form with a file."""

from __future__ import annotations

import io
import math
import wave
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from pytriton_lite.config.openai import Task
from pytriton_lite.core import dtypes
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.openai.answers import AllResponses, while_connected
from pytriton_lite.openai.errors import ApiError
from pytriton_lite.openai.exchange import Exchange, weight_of
from pytriton_lite.openai.forms import Form, read_form
from pytriton_lite.openai.members import Members, refuse_unsupported, refuse_value
from pytriton_lite.openai.sampling import take_rest
from pytriton_lite.openai.target import Target, Values, find_target
from pytriton_lite.openai.tensors import Array, Outputs
from pytriton_lite.openai.usage import Usage

Json = dict[str, Any]

_FORMATS = ("json", "text", "verbose_json", "srt", "vtt")
_FILE = "file"
_LONGEST_NUMBER = 64
"""Characters; the longest that a double is written with are 24."""
_MOST_CHUNKS = 1024
"""Chunks of a WAV file, of which most have three. `wave` takes a microsecond or two for each, and 64 MiB have millions."""


async def transcriptions(exchange: Exchange) -> None:
    """Answer a request."""
    asked = await _asked(exchange)
    heard = await _hear(exchange, asked)
    if asked.form == "text":
        await exchange.send_text(heard.text + "\n", b"text/plain; charset=utf-8")
    elif asked.form == "json":
        await exchange.send_json(_with_usage({"text": heard.text}, heard.usage), weight=weight_of(heard.text))
    elif asked.form == "verbose_json":
        await exchange.send_json(_verbose(heard, asked.language), weight=2 * weight_of(heard.text))
    else:
        await exchange.send_text(_subtitles(heard.segments, asked.form), b"text/plain; charset=utf-8")


@dataclass
class _Asked:
    """The model, the engine's request, none once the engine has it, and what the answer has of the client's."""

    target: Target
    requests: list[InferenceRequest]
    form: str
    language: str


async def _asked(exchange: Exchange) -> _Asked:
    body = await exchange.read_body()
    content_type = exchange.headers.get(b"content-type", b"")
    large = exchange.around.large
    form = await large.run(len(body), lambda: read_form(body, content_type), exchange.scope)
    exchange.observe(form.texts.get("model", ""))
    values = Values(find_target(exchange.server, Members(form.texts), Task.TRANSCRIPTION))
    members = _members(form, values.target)
    members.take("model")
    members.take(_FILE)
    if _FILE not in form.files:
        raise ApiError("Missing required parameter: 'file'.", param=_FILE, code="missing_required_parameter")
    file = form.files[_FILE]
    changed = await large.run(len(file), lambda: _audio(file, values), exchange.scope)
    form_of_answer = members.choice("response_format", *_FORMATS) or "json"
    if form_of_answer in ("verbose_json", "srt", "vtt") and "segments" not in values.target.declared.outputs:
        refuse_unsupported(
            "response_format", f"'{form_of_answer}' needs segments, which '{values.target.name}' does not give."
        )
    for name in ("language", "prompt", "user"):
        text = members.text(name)
        if text is not None:
            values.put(name, text)
    temperature = members.number("temperature", 0, 1)
    if temperature is not None:
        values.put("temperature", temperature)
    values.put_defaults()
    if members.truth("stream"):
        refuse_unsupported("stream", "Transcriptions are not streamed here.")
    for name in ("timestamp_granularities[]", "include[]", "chunking_strategy"):
        members.take(name)
    language = members.take("language") or values.target.declared.defaults.get("language", "")
    take_rest(members, values)
    request = values.request(exchange.request_id, changed)
    request.timeline = exchange.timeline
    return _Asked(values.target, [request], form_of_answer, str(language))


async def _hear(exchange: Exchange, asked: _Asked) -> _Heard:
    """What the model says. Raises InferenceError and Disconnected."""
    counted = exchange.counted(asked.target.name)
    counted.begun()
    try:
        # In no variable: an error that it has would have this frame, and so itself and the request.
        found = await while_connected(_begun(exchange, asked), exchange.receive)
        parts = [Outputs(response, asked.target.declared.outputs) for response in found]
        heard = _Heard.of(parts)
        counted.wrote(0)
        counted.finished("stop")
        counted.ended(heard.usage, 0)
        return heard
    finally:
        counted.ended(None, 1)  # unless it has


def _begun(exchange: Exchange, asked: _Asked) -> AllResponses:
    """The responses of the engine, which has the request from now on."""
    responses = AllResponses.to(exchange.server, asked.target.served, asked.requests.pop())
    exchange.release_body()
    return responses


@dataclass
class _Heard:
    """What the model says of the audio."""

    text: str
    segments: list[Json]
    usage: Usage | None
    language: str
    duration: float | None

    @classmethod
    def of(cls, parts: list[Outputs]) -> _Heard:
        """Of all responses: a decoupled model sends texts and segments as it goes. Raises InferenceError."""
        found = cls("", [], None, "", None)
        texts: list[bytes] = []
        tokens: int | None = None
        written: int | None = None
        for part in parts:
            texts.append(part.content("text") or b"")
            found.segments += _segments(part)
            found.language = part.text("language") or found.language
            seconds = part.numbers("duration")
            if seconds is not None and seconds.size:
                found.duration = float(seconds.ravel()[0])
            tokens = part.total("prompt_tokens") if part.total("prompt_tokens") is not None else tokens
            written = part.total("completion_tokens") if part.total("completion_tokens") is not None else written
        found.text = b"".join(texts).decode("utf-8", "replace")
        found.usage = None if tokens is None or written is None else Usage(tokens, written)
        return found


def _with_usage(document: Json, usage: Usage | None) -> Json:
    if usage is not None:
        document["usage"] = {
            "type": "tokens",
            "input_tokens": usage.prompt_tokens,
            "output_tokens": usage.completion_tokens,
            "total_tokens": usage.total,
        }
    return document


def _verbose(heard: _Heard, language: str) -> Json:
    ends = [float(one["end"]) for one in heard.segments]
    return {
        "task": "transcribe",
        "language": heard.language or language,
        "duration": heard.duration if heard.duration is not None else max(ends, default=0.0),
        "text": heard.text,
        "segments": [
            {
                "id": at, "seek": 0, "start": one["start"], "end": one["end"], "text": str(one["text"]),
                "tokens": one.get("tokens", []), "temperature": one.get("temperature", 0.0),
                "avg_logprob": one.get("avg_logprob", 0.0), "compression_ratio": one.get("compression_ratio", 1.0),
                "no_speech_prob": one.get("no_speech_prob", 0.0),
            }
            for at, one in enumerate(heard.segments)
        ],
    }  # fmt: skip


def _segments(outputs: Outputs) -> list[Json]:
    """What the model said of its segments: each has ``start``, ``end`` and ``text``. Raises InferenceError."""
    try:
        found = orjson.loads(outputs.content("segments") or b"[]")
        for one in found:
            if not (math.isfinite(float(one["start"])) and math.isfinite(float(one["end"]))):
                raise ValueError("a time is not finite")
            one["text"]
    except (orjson.JSONDecodeError, TypeError, KeyError, ValueError):
        raise outputs.wrong("the output for 'segments' is no list of objects with start, end and text") from None
    segments: list[Json] = found
    return segments


def _subtitles(segments: list[Json], form: str) -> str:
    mark = "," if form == "srt" else "."
    parts = ["WEBVTT\n"] if form == "vtt" else []
    for at, one in enumerate(segments, 1):
        times = f"{_clock(float(one['start']), mark)} --> {_clock(float(one['end']), mark)}"
        head = f"{at}\n{times}" if form == "srt" else times
        parts.append(f"{head}\n{str(one['text']).strip()}\n")
    return "\n".join(parts) + ("\n" if form == "srt" else "")


def _clock(seconds: float, mark: str) -> str:
    whole = round(seconds * 1000)
    return f"{whole // 3_600_000:02}:{whole // 60_000 % 60:02}:{whole // 1000 % 60:02}{mark}{whole % 1000:03}"


def _members(form: Form, target: Target) -> Members:
    """The texts of *form* as JSON would have them: a form has no numbers, and an input of the model may take some."""
    values: Json = {}
    for name, text in form.texts.items():
        spec = target.config.inputs_by_name.get(name)
        values[name] = text if spec is None or spec.datatype is dtypes.BYTES else _number(text)
    for name in ("temperature", "priority"):
        if name in form.texts:
            try:
                number = float(form.texts[name])
            except ValueError:
                number = math.nan
            if not math.isfinite(number):
                refuse_value(name, f"expected a number, but got '{form.texts[name]}' instead.")
            values[name] = number
    if "stream" in form.texts:
        words = {"true": True, "false": False}
        values["stream"] = words.get(form.texts["stream"].lower(), form.texts["stream"])
    return Members(values)


def _number(text: str) -> object:
    """The number or truth value that *text* is to JSON; *text*, which no tensor of numbers takes, where it is neither."""
    try:
        found = orjson.loads(text) if len(text) <= _LONGEST_NUMBER else text
    except orjson.JSONDecodeError:
        return text
    return found if isinstance(found, (bool, int, float)) else text


# Audio --------------------------------------------------------------------------------------------------------------


def _audio(data: bytes, values: Values) -> Json:
    """The values of the fields that the model takes audio by: the file, or the samples in it."""
    spec = values.target.spec("audio")
    assert spec is not None, "the declaration was checked"
    if not data:
        refuse_value(_FILE, "the file is empty.")
    if spec.datatype is dtypes.BYTES:
        return {"audio": [data]}
    samples, rate = _samples(data)
    return {"audio": samples, "sample_rate": rate}


def _samples(data: bytes) -> tuple[Array, int]:
    """The samples of a WAV file as one channel from -1 to 1, and how many there are in a second. Raises ApiError."""
    _check_chunks(data)
    try:
        with wave.open(io.BytesIO(data)) as file:
            channels, width, rate, frames = file.getparams()[:4]
            raw = file.readframes(frames)
    except (wave.Error, EOFError, ValueError, RuntimeError):  # the last: of a chunk that is larger than what it is in
        refuse_value(_FILE, "the model takes samples, which the server reads from WAV files with PCM; this is none.")
    if width not in (1, 2, 4):
        refuse_value(_FILE, f"expected samples of 1, 2 or 4 bytes, but these have {width}.")
    count = len(raw) // width
    samples = np.frombuffer(raw, np.uint8 if width == 1 else f"<i{width}", count).astype(np.float32)
    samples /= 2.0 ** (8 * width - 1)  # in place: a file of the largest size takes four times as much as it is
    if width == 1:
        samples -= 1
    if not count or channels < 1:
        refuse_value(_FILE, "the file has no samples.")
    if channels == 1:
        return samples, rate
    return samples[: count // channels * channels].reshape(-1, channels).mean(axis=1, dtype=np.float32), rate


def _check_chunks(data: bytes) -> None:
    """Raises ApiError where the samples of a WAV file come behind more chunks than any file has."""
    at = len(b"RIFF....WAVE")
    for _ in range(_MOST_CHUNKS):
        if data[at : at + 4] in (b"data", b""):
            return
        nbytes = int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8 + nbytes + nbytes % 2
    refuse_value(_FILE, f"the file has more than {_MOST_CHUNKS} chunks in front of its samples.")
