"""The messages between engine and worker, each a frame of the channel. Structs throughout: no pickle of a peer's bytes.

Engine to worker                         Worker to engine
----------------                         ----------------
START    version, what to load (JSON)    HELLO    version, pid: the process is up
EXECUTE  batches of requests             READY    initialize returned
RELEASE  slots of the worker's arena     FAILED   loading failed: code and text
SEGMENT  a segment of the engine's       RESULT   batches of answers
DROP     one is not used any more        RELEASE, SEGMENT, DROP, as the other way round
TRIM     give idle memory back           LOG      a line from pb_utils.Logger
STOP     finalize and exit

Numbers are little-endian. A tensor is a fixed head, a *spec* (data type, name, shape) and, for a small one, its bytes.
Specs repeat from request to request, so both sides keep the encoded and the decoded form in a table.

Who ends what: a slot that EXECUTE or RESULT names belongs to the receiver until it sends RELEASE with its number. Every
batch of an EXECUTE comes back exactly once in a RESULT, or the channel ends.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from pytriton_lite.core import dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.errors import ErrorCode
from pytriton_lite.ipc.channel import ProtocolError, frame

VERSION = 1
"""Raised with every change of a layout below; the handshake compares it."""

INLINE_BYTES = 4096
"""Tensors up to here travel inside the message: for so few bytes a slot costs more than the two copies through a socket."""


class Kind(enum.IntEnum):
    START = 1
    EXECUTE = 2
    RELEASE = 3
    SEGMENT = 4
    DROP = 5
    TRIM = 6
    STOP = 7
    HELLO = 16
    READY = 17
    FAILED = 18
    RESULT = 19
    LOG = 20


class Place(enum.IntEnum):
    """Where a tensor's bytes are."""

    INLINE = 0
    """Behind the spec, in this message."""
    SLOT = 1
    """In a slot of the sender's arena."""
    INPUT = 2
    """Answers only: the request's own input number ``offset``, with the data that came in (model API, 5.3)."""


# ---------------------------------------------------------------------------------------------- control page

CONTROL_BYTES = 4096
"""A shared page beside the channel for what must be seen without a message."""

CONTROL_STARTED = 0
"""u64 index: number of the batch whose ``execute`` began last. The worker writes, the engine reads, also after death."""
CONTROL_LOG_LEVELS = 1
"""u64 index: bit n is set when pb_utils.Logger level n is wanted (INFO 0, WARNING 1, ERROR 2, VERBOSE 3). The engine writes."""

# ---------------------------------------------------------------------------------------------- tensors

_TENSOR = struct.Struct("<HBxIQQQ")
"""spec bytes, place, segment, slot, offset, nbytes"""
_SPEC = struct.Struct("<BBH")
"""data type number, rank, name bytes; then the name, then rank × i64"""

Spec = tuple[str, DataType, tuple[int, ...]]
_LARGEST_TABLE = 4096
"""Specs kept per direction; a model with ever new shapes starts the table afresh instead of growing it."""


class SpecTable:
    """Encoded and decoded tensor specs, remembered."""

    __slots__ = ("_decoded", "_encoded")

    def __init__(self) -> None:
        self._encoded: dict[Spec, bytes] = {}
        self._decoded: dict[bytes, Spec] = {}

    def encode(self, name: str, datatype: DataType, shape: tuple[int, ...]) -> bytes:
        key = (name, datatype, shape)
        spec = self._encoded.get(key)
        if spec is None:
            raw = name.encode()
            spec = _SPEC.pack(datatype.number, len(shape), len(raw)) + raw + struct.pack(f"<{len(shape)}q", *shape)
            if len(self._encoded) >= _LARGEST_TABLE:
                self._encoded.clear()
            self._encoded[key] = spec
        return spec

    def decode(self, raw: bytes) -> Spec:
        spec = self._decoded.get(raw)
        if spec is None:
            number, rank, name_bytes = _SPEC.unpack_from(raw)
            name = raw[4 : 4 + name_bytes].decode()
            spec = (name, dtypes.BY_NUMBER[number], struct.unpack_from(f"<{rank}q", raw, 4 + name_bytes))
            if len(self._decoded) >= _LARGEST_TABLE:
                self._decoded.clear()
            self._decoded[raw] = spec
        return spec


class TensorRef:
    """A tensor as a message carries it. ``inline`` is set for Place.INLINE; segment, slot and offset for the others."""

    __slots__ = ("datatype", "inline", "name", "nbytes", "offset", "place", "segment", "shape", "slot")

    def __init__(
        self,
        spec: Spec,
        place: int,
        nbytes: int,
        *,
        inline: bytes | memoryview | None = None,
        segment: int = 0,
        slot: int = 0,
        offset: int = 0,
    ) -> None:
        self.name, self.datatype, self.shape = spec
        self.place = place
        self.nbytes = nbytes
        self.inline = inline
        self.segment = segment
        self.slot = slot
        self.offset = offset


def put_inline(parts: list[bytes], spec: bytes, data: bytes | bytearray | memoryview) -> None:
    nbytes = len(data)
    parts.append(_TENSOR.pack(len(spec), 0, 0, 0, 0, nbytes))
    parts.append(spec)
    if nbytes:
        parts.append(data)  # type: ignore[arg-type]  # bytes.join takes any buffer


def put_reference(
    parts: list[bytes], spec: bytes, *, place: Place, segment: int = 0, slot: int = 0, offset: int = 0, nbytes: int
) -> None:
    parts.append(_TENSOR.pack(len(spec), place, segment, slot, offset, nbytes))
    parts.append(spec)


def _take_tensor(body: memoryview, at: int, specs: SpecTable) -> tuple[TensorRef, int]:
    spec_bytes, place, segment, slot, offset, nbytes = _TENSOR.unpack_from(body, at)
    at += 32
    spec = specs.decode(bytes(body[at : at + spec_bytes]))
    at += spec_bytes
    if place == 0:
        return TensorRef(spec, 0, nbytes, inline=body[at : at + nbytes]), at + nbytes
    return TensorRef(spec, place, nbytes, segment=segment, slot=slot, offset=offset), at


# ---------------------------------------------------------------------------------------------- EXECUTE

_COUNT = struct.Struct("<I")
_BATCH = struct.Struct("<QI")
"""batch number, requests"""
_REQUEST = struct.Struct("<QQIIIIHH")
"""correlation id, timeout µs, sequence flags, request id bytes, string correlation id bytes, parameter bytes, mask bytes,
inputs"""


@dataclass(slots=True)
class RequestMessage:
    """One request as the worker gets it. ``outputs_mask`` bit n asks for the n-th configured output; 0 asks for all."""

    request_id: str
    correlation_id: int | str
    timeout_us: int
    sequence_flags: int
    parameters_json: str
    outputs_mask: int
    inputs: list[TensorRef]


def put_request(
    parts: list[bytes],
    *,
    request_id: str,
    correlation_id: int | str,
    timeout_us: int,
    sequence_flags: int,
    parameters_json: str,
    outputs_mask: int,
    input_count: int,
) -> None:
    """Append the head of a request; *input_count* tensors must follow."""
    if not (request_id or correlation_id or timeout_us or sequence_flags or parameters_json or outputs_mask):
        parts.append(_plain_request(input_count))
        return
    raw_id = request_id.encode("utf-8", "surrogateescape")
    raw_correlation = correlation_id.encode() if isinstance(correlation_id, str) else b""
    raw_parameters = parameters_json.encode("utf-8", "surrogateescape")
    raw_mask = outputs_mask.to_bytes((outputs_mask.bit_length() + 7) // 8, "little")
    parts.append(
        _REQUEST.pack(
            0 if isinstance(correlation_id, str) else correlation_id,
            timeout_us,
            sequence_flags,
            len(raw_id),
            len(raw_correlation),
            len(raw_parameters),
            len(raw_mask),
            input_count,
        )
    )
    parts.append(raw_id + raw_correlation + raw_parameters + raw_mask)


_PLAIN_REQUESTS = tuple(_REQUEST.pack(0, 0, 0, 0, 0, 0, 0, inputs) for inputs in range(65))


def _plain_request(input_count: int) -> bytes:
    """The head of a request without id, parameters and the rest: always the same bytes."""
    if input_count < len(_PLAIN_REQUESTS):
        return _PLAIN_REQUESTS[input_count]
    return _REQUEST.pack(0, 0, 0, 0, 0, 0, 0, input_count)


def put_batch(parts: list[bytes], number: int, requests: int) -> None:
    parts.append(_BATCH.pack(number, requests))


def execute_frame(batches: int, parts: list[bytes]) -> bytes:
    """The frame around *batches* that `put_batch`, `put_request` and the tensors wrote into *parts*."""
    return frame(Kind.EXECUTE, [_COUNT.pack(batches), *parts])


def read_execute(body: memoryview, specs: SpecTable) -> list[tuple[int, list[RequestMessage]]]:
    """(batch number, requests) of an EXECUTE, in order."""
    (batches,) = _COUNT.unpack_from(body)
    at = 4
    found: list[tuple[int, list[RequestMessage]]] = []
    for _ in range(batches):
        number, count = _BATCH.unpack_from(body, at)
        at += 12
        requests: list[RequestMessage] = []
        for _ in range(count):
            (correlation, timeout_us, flags, id_bytes, correlation_bytes, parameter_bytes, mask_bytes, inputs) = (
                _REQUEST.unpack_from(body, at)
            )
            at += 36
            request_id = parameters_json = ""
            correlation_id: int | str = correlation
            mask = 0
            if id_bytes:
                request_id = str(body[at : at + id_bytes], "utf-8", "surrogateescape")
                at += id_bytes
            if correlation_bytes:
                correlation_id = str(body[at : at + correlation_bytes], "utf-8")
                at += correlation_bytes
            if parameter_bytes:
                parameters_json = str(body[at : at + parameter_bytes], "utf-8", "surrogateescape")
                at += parameter_bytes
            if mask_bytes:
                mask = int.from_bytes(body[at : at + mask_bytes], "little")
                at += mask_bytes
            tensors: list[TensorRef] = []
            for _ in range(inputs):
                tensor, at = _take_tensor(body, at, specs)
                tensors.append(tensor)
            requests.append(
                RequestMessage(request_id, correlation_id, timeout_us, flags, parameters_json, mask, tensors)
            )
        found.append((number, requests))
    return found


# ---------------------------------------------------------------------------------------------- RESULT

_RESULT = struct.Struct("<QQQQQII")
"""batch number; CLOCK_MONOTONIC ns at: batch taken up, inputs ready, execute returned, outputs placed; answers; error bytes"""
_ANSWER = struct.Struct("<BxHI")
"""error code + 1 or 0, outputs, bytes of the parameters or of the error text"""


@dataclass(slots=True)
class Answer:
    """What one request gets: outputs, or an error that the model returned for it."""

    outputs: list[TensorRef] = field(default_factory=list)
    parameters_json: str = ""
    error: tuple[ErrorCode, str] | None = None


@dataclass(slots=True)
class BatchResult:
    """The end of a batch. ``failure`` is the text of an ``execute`` that failed as a whole; then there are no answers."""

    number: int
    taken_ns: int
    inputs_ns: int
    executed_ns: int
    placed_ns: int
    answers: list[Answer]
    failure: str


def put_result(
    parts: list[bytes],
    number: int,
    *,
    taken_ns: int,
    inputs_ns: int,
    executed_ns: int,
    placed_ns: int,
    answers: int,
    failure: str = "",
) -> None:
    """Append the head of a batch's result; *answers* times `put_answer` with its tensors must follow."""
    raw = failure.encode("utf-8", "replace")
    parts.append(_RESULT.pack(number, taken_ns, inputs_ns, executed_ns, placed_ns, answers, len(raw)))
    if raw:
        parts.append(raw)


def put_answer(parts: list[bytes], *, outputs: int, parameters_json: str = "") -> None:
    raw = parameters_json.encode("utf-8", "surrogateescape")
    parts.append(_ANSWER.pack(0, outputs, len(raw)))
    if raw:
        parts.append(raw)


def put_error(parts: list[bytes], code: int, text: str) -> None:
    raw = text.encode("utf-8", "replace")
    parts.append(_ANSWER.pack(code + 1, 0, len(raw)))
    parts.append(raw)


def result_frame(batches: int, parts: list[bytes]) -> bytes:
    return frame(Kind.RESULT, [_COUNT.pack(batches), *parts])


def read_result(body: memoryview, specs: SpecTable) -> list[BatchResult]:
    """The results of a RESULT, in order."""
    (batches,) = _COUNT.unpack_from(body)
    at = 4
    results: list[BatchResult] = []
    for _ in range(batches):
        number, taken, inputs, executed, placed, count, failure_bytes = _RESULT.unpack_from(body, at)
        at += 48
        failure = ""
        if failure_bytes:
            failure = str(body[at : at + failure_bytes], "utf-8")
            at += failure_bytes
        answers: list[Answer] = []
        for _ in range(count):
            code, outputs, text_bytes = _ANSWER.unpack_from(body, at)
            at += 8
            text = ""
            if text_bytes:
                text = str(body[at : at + text_bytes], "utf-8", "surrogateescape")
                at += text_bytes
            if code:
                answers.append(Answer(error=(ErrorCode(code - 1), text)))
                continue
            tensors: list[TensorRef] = []
            for _ in range(outputs):
                tensor, at = _take_tensor(body, at, specs)
                tensors.append(tensor)
            answers.append(Answer(tensors, text))
        results.append(BatchResult(number, taken, inputs, executed, placed, answers, failure))
    return results


# ---------------------------------------------------------------------------------------------- the small ones

_SEGMENT = struct.Struct("<IxxxxQ")
_HELLO = struct.Struct("<II")
_LOG = struct.Struct("<BxHI")


def release_frame(slots: Sequence[int]) -> bytes:
    return frame(Kind.RELEASE, [struct.pack(f"<{len(slots)}Q", *slots)])


def read_release(body: memoryview) -> tuple[int, ...]:
    return struct.unpack(f"<{len(body) // 8}Q", body)


def segment_frame(segment_id: int, nbytes: int) -> bytes:
    """Announce a segment whose descriptor was sent just before."""
    return frame(Kind.SEGMENT, [_SEGMENT.pack(segment_id, nbytes)])


def read_segment(body: memoryview) -> tuple[int, int]:
    segment_id, nbytes = _SEGMENT.unpack(body)
    return segment_id, nbytes


def drop_frame(segment_id: int) -> bytes:
    return frame(Kind.DROP, [_COUNT.pack(segment_id)])


def read_drop(body: memoryview) -> int:
    return int(_COUNT.unpack(body)[0])


def hello_frame(pid: int) -> bytes:
    return frame(Kind.HELLO, [_HELLO.pack(VERSION, pid)])


def read_hello(body: memoryview) -> int:
    """The worker's pid. Raises ProtocolError when it speaks another version."""
    version, pid = _HELLO.unpack(body)
    if version != VERSION:
        raise ProtocolError(f"the worker speaks version {version} of the messages, the engine {VERSION}")
    return int(pid)


def failed_frame(code: ErrorCode, text: str) -> bytes:
    return frame(Kind.FAILED, [_COUNT.pack(code), text.encode("utf-8", "replace")])


def read_failed(body: memoryview) -> tuple[ErrorCode, str]:
    return ErrorCode(_COUNT.unpack_from(body)[0]), str(body[4:], "utf-8")


def log_frame(level: int, filename: str, line: int, text: str) -> bytes:
    raw = filename.encode("utf-8", "replace")
    return frame(Kind.LOG, [_LOG.pack(level, len(raw), line), raw, text.encode("utf-8", "replace")])


def read_log(body: memoryview) -> tuple[int, str, int, str]:
    """(level, file, line, text)"""
    level, name_bytes, line = _LOG.unpack_from(body)
    return level, str(body[8 : 8 + name_bytes], "utf-8"), line, str(body[8 + name_bytes :], "utf-8")
