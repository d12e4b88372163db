"""What the engine and a front end say to each other, each a frame of `ipc.channel`.

Engine to front end                              Front end to engine
-------------------                              -------------------
START       settings, to begin with              READY      it can take connections
CONNECTION  an accepted one; its descriptor      FAILED     it cannot, or not any more, and why
            goes before                          GONE       connections of a listener that have ended
MODEL       what can be found by a name          CALL       an inference request
REGION      a client's region, or its end        CONSUMED   responses that were passed on
WATCH       whether somebody follows requests    CANCEL     requests that nobody waits for
LOGGING     log settings                         REFUSED    a request was found wrong before it was whole
SYNC        say when you have read this          SYNCED     it has read everything up to that SYNC
TAKEN       what counts so much was worked on    BEGUN      a request that somebody may want to follow
REPLY       a response to a CALL                 ENDED      and its end
ANSWERED    the answer to an ASK                 PART       of the message of an ASK that follows
PULL        the next piece of a body, please     ASK        a question, or a unary call of gRPC
WRITE       a piece of an answer                 REQUEST    an HTTP request that the engine answers
DRAIN       clients are to go elsewhere          PIECE      of its body
CLOSE       end what is open                     WRITTEN    a piece of its answer was taken
                                                 LEFT       nobody waits for the answer to one of the two
                                                 LOGGED     a line for the log
                                                 DRAINED    everything has ended
                                                 TOLD       a request that it has refused itself, for the access log
RELEASE, SEGMENT, DROP in both directions, as between engine and worker (`ipc.messages`).

Tensors are written as in `ipc.messages`. What only the engine says may be pickled; nothing is that a front end says, for it
speaks with the world.
"""

from __future__ import annotations

import json
import math
import pickle
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.tensor import PackedTensors
from pytriton_lite.ipc.channel import frame
from pytriton_lite.ipc.messages import SpecTable, TensorRef, take_tensor

START: Final = 64
CONNECTION: Final = 65
MODEL: Final = 66
REGION: Final = 67
WATCH: Final = 68
LOGGING: Final = 69
SYNC: Final = 70
REPLY: Final = 71
ANSWERED: Final = 72
PULL: Final = 73
WRITE: Final = 74
DRAIN: Final = 75
CLOSE: Final = 76
TAKEN: Final = 77

READY: Final = 96
FAILED: Final = 97
GONE: Final = 98
CALL: Final = 99
CONSUMED: Final = 100
CANCEL: Final = 101
REFUSED: Final = 102
SYNCED: Final = 103
BEGUN: Final = 104
ENDED: Final = 105
ASK: Final = 106
REQUEST: Final = 107
PIECE: Final = 108
WRITTEN: Final = 109
LEFT: Final = 110
LOGGED: Final = 111
DRAINED: Final = 112
TOLD: Final = 113
PART: Final = 114

HTTP: Final = 0
GRPC: Final = 1
"""Listeners, by number."""

_NUMBER = struct.Struct("<Q")
_PAIR = struct.Struct("<QQ")

# ---------------------------------------------------------------------------------------------- CALL

_CALL = struct.Struct("<QqQIIIIIB7x")
"""number, version or -1, stamp, number of the model's name, bytes of the id and the rest (JSON), inputs, batch size, flags"""
_CALL_BYTES = _CALL.size
_HAS_SHAPE_KEY: Final = 1
_IS_DECOUPLED: Final = 2
_LARGEST_TABLE: Final = 1024


class Extras:
    """What most requests do not have. ``windows`` are (output, number of the region, offset, nbytes)."""

    __slots__ = (
        "classes",
        "correlation_id",
        "parameters",
        "priority",
        "requested_outputs",
        "sequence_flags",
        "timeline",
        "timeout_us",
        "windows",
    )

    def __init__(self, members: dict[str, Any]) -> None:
        self.parameters: dict[str, Any] = members.get("parameters", {})
        self.requested_outputs: list[str] = members.get("outputs", [])
        self.correlation_id: int | str = members.get("correlation", 0)
        self.sequence_flags: int = members.get("flags", 0)
        self.priority: int = members.get("priority", 0)
        self.timeout_us: int = members.get("timeout", 0)
        self.windows: list[tuple[str, int, int, int]] = [(w[0], w[1], w[2], w[3]) for w in members.get("windows", [])]
        self.classes: dict[str, int] | None = members.get("classes")
        self.timeline: int = members.get("timeline", 0)


class ExtrasTable:
    """Encoded and decoded extras, remembered where a client is likely to send the same again: names of outputs alone."""

    __slots__ = ("_decoded", "_encoded")

    def __init__(self) -> None:
        self._encoded: dict[tuple[str, ...], bytes] = {}
        self._decoded: dict[bytes, Extras] = {}

    def encode(self, request: InferenceRequest, timeline: int, windows: Sequence[tuple[str, int, int, int]]) -> bytes:
        """Nothing for a request that has none. *timeline* is the number of one that is followed, or 0."""
        outputs = request.requested_outputs
        if not (
            request.parameters
            or request.correlation_id
            or request.sequence_flags
            or request.priority
            or request.timeout_us
            or windows
            or request.classes is not None
            or timeline
        ):
            if not outputs:
                return b""
            key = tuple(outputs)
            known = self._encoded.get(key)
            if known is None:
                known = json.dumps({"outputs": outputs}).encode()
                if len(self._encoded) >= _LARGEST_TABLE:
                    self._encoded.clear()
                self._encoded[key] = known
            return known
        members: dict[str, Any] = {}
        if request.parameters:
            members["parameters"] = request.parameters
        if outputs:
            members["outputs"] = outputs
        if request.correlation_id:
            members["correlation"] = request.correlation_id
        if request.sequence_flags:
            members["flags"] = request.sequence_flags
        if request.priority:
            members["priority"] = request.priority
        if request.timeout_us:
            members["timeout"] = request.timeout_us
        if windows:
            members["windows"] = windows
        if request.classes is not None:
            members["classes"] = request.classes
        if timeline:
            members["timeline"] = timeline
        return json.dumps(members).encode()

    def decode(self, raw: bytes) -> Extras:
        """What `encode` made, which is not to be changed."""
        known = self._decoded.get(raw)
        if known is None:
            members = json.loads(raw)
            known = Extras(members)
            if len(members) == 1 and "outputs" in members:
                if len(self._decoded) >= _LARGEST_TABLE:
                    self._decoded.clear()
                self._decoded[raw] = known
        return known


class Checked:
    """What a front end has found when it checked a request, against the version that has ``stamp``."""

    __slots__ = ("batch_size", "has_shape_key", "is_decoupled", "model", "stamp")

    def __init__(self, model: int, stamp: int, batch_size: int, has_shape_key: bool, is_decoupled: bool) -> None:
        self.model = model
        """The number of the model's name."""
        self.stamp = stamp
        self.batch_size = batch_size
        self.has_shape_key = has_shape_key
        """Whether only requests of equal shapes may share a batch with this one."""
        self.is_decoupled = is_decoupled
        """Whether the model may send any number of responses, so that whoever asked is ready for them."""


def put_call(parts: list[bytes], number: int, checked: Checked, request: InferenceRequest, extras: bytes) -> None:
    """Append the head of a CALL; its inputs must follow."""
    raw_id = request.request_id.encode("utf-8", "surrogateescape")
    parts.append(
        _CALL.pack(
            number,
            -1 if request.version is None else request.version,
            checked.stamp,
            checked.model,
            len(raw_id),
            len(extras),
            request.input_count,
            checked.batch_size,
            _HAS_SHAPE_KEY * checked.has_shape_key | _IS_DECOUPLED * checked.is_decoupled,
        )
    )
    if raw_id or extras:
        parts.append(raw_id + extras)


class Call:
    """The head of a CALL. ``version`` is -1 where the server is to choose; so many ``tensors`` begin at ``at``."""

    __slots__ = (
        "at",
        "batch_size",
        "extras",
        "has_shape_key",
        "is_decoupled",
        "model",
        "number",
        "request_id",
        "stamp",
        "tensors",
        "version",
    )

    def __init__(
        self,
        number: int,
        version: int,
        stamp: int,
        model: int,
        request_id: str,
        extras: bytes,
        tensors: int,
        batch_size: int,
        has_shape_key: bool,
        is_decoupled: bool,
        at: int,
    ) -> None:
        self.number = number
        self.version = version
        self.stamp = stamp
        self.model = model
        self.request_id = request_id
        self.extras = extras
        self.tensors = tensors
        self.batch_size = batch_size
        self.has_shape_key = has_shape_key
        self.is_decoupled = is_decoupled
        self.at = at


def read_call(body: bytes) -> Call:
    number, version, stamp, model, id_bytes, extra_bytes, count, batch_size, flags = _CALL.unpack_from(body)
    at = _CALL_BYTES
    request_id = ""
    if id_bytes:
        request_id = body[at : at + id_bytes].decode("utf-8", "surrogateescape")
        at += id_bytes
    extras = b""
    if extra_bytes:
        extras = body[at : at + extra_bytes]
        at += extra_bytes
    has_shape_key = flags & _HAS_SHAPE_KEY != 0
    is_decoupled = flags & _IS_DECOUPLED != 0
    return Call(number, version, stamp, model, request_id, extras, count, batch_size, has_shape_key, is_decoupled, at)


def read_inputs(body: bytes, call: Call, specs: SpecTable) -> list[TensorRef]:
    """The inputs of *call*, whose frame has *body*, and where they are."""
    found: list[TensorRef] = []
    at = call.at
    for _ in range(call.tensors):
        tensor, at = take_tensor(body, at, specs)
        found.append(tensor)
    return found


# ---------------------------------------------------------------------------------------------- REPLY

_REPLY = struct.Struct("<QqdIIBBxx")
"""number, version, seconds until a retry or NaN, bytes of the parameters (JSON) or text, outputs, flags, code"""
_REPLY_BYTES = _REPLY.size
_FINAL: Final = 1
_EMPTY: Final = 2
_ERROR: Final = 4
_REFUSED: Final = 8


def put_response(parts: list[bytes], number: int, response: InferenceResponse, *, is_final: bool) -> None:
    """Append the head of a REPLY with *response*; its outputs must follow."""
    parameters = json.dumps(response.parameters).encode() if response.parameters else b""
    count = len(response.outputs) if response.packed is None else response.packed.count
    parts.append(_REPLY.pack(number, response.version, math.nan, len(parameters), count, _FINAL * is_final, 0))
    if parameters:
        parts.append(parameters)


def put_failure(parts: list[bytes], number: int, error: InferenceError | None, *, is_final: bool) -> None:
    """Append the head of a REPLY with *error* in place of a response, or with none at all."""
    if error is None:
        parts.append(_REPLY.pack(number, 0, math.nan, 0, 0, _FINAL * is_final | _EMPTY, 0))
        return
    text = error.message.encode("utf-8", "surrogatepass")
    retry_after_s = math.nan if error.retry_after_s is None else error.retry_after_s
    flags = _FINAL * is_final | _ERROR | _REFUSED * error.is_refusal
    parts.append(_REPLY.pack(number, 0, retry_after_s, len(text), 0, flags, error.code))
    parts.append(text)


class Reply:
    """A REPLY as it came: an error, or else a response, unless it ``is_empty``. ``packed`` has outputs that are all there."""

    __slots__ = ("error", "is_empty", "is_final", "number", "outputs", "packed", "parameters", "version")

    def __init__(
        self,
        number: int,
        is_final: bool,
        is_empty: bool,
        error: InferenceError | None,
        version: int,
        parameters: dict[str, Any],
        outputs: list[TensorRef],
        packed: PackedTensors | None,
    ) -> None:
        self.number = number
        self.is_final = is_final
        self.is_empty = is_empty
        self.error = error
        self.version = version
        self.parameters = parameters
        self.outputs = outputs
        self.packed = packed


def read_reply(body: memoryview, specs: SpecTable) -> Reply:
    number, version, retry_after_s, text_bytes, count, flags, code = _REPLY.unpack_from(body)
    at = _REPLY_BYTES
    text = bytes(body[at : at + text_bytes])
    at += text_bytes
    is_final = bool(flags & _FINAL)
    if flags & _ERROR:
        seconds = None if math.isnan(retry_after_s) else retry_after_s
        error = InferenceError(ErrorCode(code), text.decode("utf-8", "surrogatepass"), retry_after_s=seconds)
        error.is_refusal = bool(flags & _REFUSED)
        return Reply(number, is_final, False, error, 0, {}, [], None)
    outputs: list[TensorRef] = []
    packed: PackedTensors | None = None
    parameters = json.loads(text) if text else {}
    if count:
        data = bytes(body[at:])
        end, nbytes, form = specs.measure(data, 0, count)
        if nbytes >= 0:
            packed = PackedTensors(data[:end], count, nbytes, specs.unpack, form)
        else:
            for _ in range(count):
                tensor, at = take_tensor(body, at, specs)
                outputs.append(tensor)
    return Reply(number, is_final, bool(flags & _EMPTY), None, version, parameters, outputs, packed)


# ---------------------------------------------------------------------------------------------- the small ones


def numbers_frame(kind: int, numbers: Sequence[int]) -> bytes:
    """CANCEL, SYNC, TAKEN, SYNCED, PULL, WRITTEN, LEFT, CONNECTION."""
    return frame(kind, [_NUMBER.pack(number) for number in numbers])


def read_numbers(body: memoryview) -> list[int]:
    return [number for (number,) in _NUMBER.iter_unpack(body)]


def pairs_frame(kind: int, pairs: Iterable[tuple[int, int]]) -> bytes:
    """CONSUMED: how many responses more of each call. GONE: how many connections of each listener."""
    return frame(kind, [_PAIR.pack(first, second) for first, second in pairs])


def read_pairs(body: memoryview) -> list[tuple[int, int]]:
    return [(first, second) for first, second in _PAIR.iter_unpack(body)]


def told_frame(kind: int, number: int, what: object) -> bytes:
    """What only the engine says: START, MODEL, REGION, WATCH, LOGGING, ANSWERED, WRITE, CLOSE."""
    return frame(kind, [_NUMBER.pack(number), pickle.dumps(what, pickle.HIGHEST_PROTOCOL)])


def read_told(body: memoryview) -> tuple[int, Any]:
    """(number, what)"""
    return _NUMBER.unpack_from(body)[0], pickle.loads(body[8:])  # of the engine


def said_frame(kind: int, number: int, what: Any, data: bytes | bytearray | memoryview = b"") -> bytes:
    """What a front end says: *what* in JSON, and *data* behind it."""
    raw = json.dumps(what).encode()
    return frame(kind, [_PAIR.pack(number, len(raw)), raw, data])  # type: ignore[list-item]  # bytes.join takes any buffer


def read_said(body: memoryview) -> tuple[int, Any, memoryview]:
    """(number, what, data)"""
    number, length = _PAIR.unpack_from(body)
    return number, json.loads(bytes(body[16 : 16 + length])), body[16 + length :]
