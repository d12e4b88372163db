"""The messages between engine and worker, each a frame of the channel. Structs throughout: no pickle of a peer's bytes.

Engine to worker                          Worker to engine
----------------                          ----------------
START     version, what to load (JSON)    HELLO     version, pid: the process is up
EXECUTE   batches of requests             READY     initialize returned
RELEASE   slots of the worker's arena     FAILED    loading failed: code and text
SEGMENT   a segment to read from          RESULT    batches of answers
DROP      one is not used any more        RELEASE, SEGMENT, DROP, as the other way round
TRIM      give idle memory back           LOG       a line from pb_utils.Logger
STOP      finalize and exit               RESPONSE  one response of a request, in its own time
CANCEL    a request nobody waits for      CALL      a request to another model (BLS)
CREDIT    responses were passed on        ABANDON   a call nobody waits for
REPLY     a response to a CALL            TAKEN     responses to a CALL have arrived
ANSWER    to an ASK                       ASK       a question, answered with JSON
RECALL    give back what is not begun     TELL      news, not answered
PROBE     does the model say it is ready  PROBED    its answer
COLLECT   look for garbage                RETURNED  batches that a RECALL asked for
                                          FINALIZED finalize returned: the process ends
                                          COMPLETED what a process that serves nothing found (JSON)
BRANCH    make an instance of yourself    BRANCHED  it is there: its pid, or why it is not
                                          ENDED     an instance that was a thread, and how

Numbers are little-endian. A tensor is a fixed head, a *spec* (data type, name, shape) and, for a small one, its bytes.
Specs repeat from request to request, so both sides keep the encoded and the decoded form in a table.

Who ends what: a slot that EXECUTE or RESULT names belongs to the receiver until it sends RELEASE with its number. Every
batch of an EXECUTE comes back exactly once in a RESULT or a RETURNED, or the channel ends. A request that RESULT defers is
ended by the RESPONSE that is flagged final; a CALL by the REPLY that is, also after ABANDON.
"""

from __future__ import annotations

import enum
import json
import re
import signal
import struct
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from pytriton_lite.core import dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.errors import ErrorCode, InferenceError, ProtocolError
from pytriton_lite.core.tensor import PackedForm, PackedTensors, Tensor
from pytriton_lite.ipc.channel import LARGEST_FRAME, frame
from pytriton_lite.ipc.segment import HAS_MEMORY_FILES

VERSION = 7
"""Raised with every change of a layout below; the handshake compares it."""

INLINE_BYTES = 4096 if HAS_MEMORY_FILES or sys.platform != "linux" else LARGEST_FRAME // 2
"""Tensors up to here travel inside the message: for so few bytes a slot costs more than the two copies through a socket.

All of them, where the system has no memory that the server could map without fear (segment.py).
"""


class Kind(enum.IntEnum):
    START = 1
    EXECUTE = 2
    RELEASE = 3
    SEGMENT = 4
    DROP = 5
    TRIM = 6
    STOP = 7
    CANCEL = 8
    CREDIT = 9
    REPLY = 10
    ANSWER = 11
    RECALL = 12
    PROBE = 13
    BRANCH = 14
    COLLECT = 15
    HELLO = 16
    READY = 17
    FAILED = 18
    RESULT = 19
    LOG = 20
    RESPONSE = 21
    CALL = 22
    ABANDON = 23
    TAKEN = 24
    ASK = 25
    TELL = 26
    RETURNED = 27
    COMPLETED = 28
    PROBED = 29
    BRANCHED = 30
    ENDED = 31
    FINALIZED = 32


class Task(str, enum.Enum):
    """What START starts a process for."""

    SERVE = "serve"
    """READY, then batches until STOP."""
    AUTO_COMPLETE = "auto_complete"
    """COMPLETED with what ``auto_complete_config`` returned, and the process ends."""
    SHARE = "share"
    """READY, then an instance of its model for each BRANCH (worker/shared_process.py), until STOP."""
    DEVICE_HELPER = "device_helper"
    """READY, then an ANSWER to each ASK of the engine (worker/device_helper.py), until the channel ends. There is no model."""


class Place(enum.IntEnum):
    """Where a tensor's bytes are."""

    INLINE = 0
    """The bytes follow the tensor's description in this message."""
    SLOT = 1
    """The bytes are in a slot of the sender's arena."""
    INPUT = 2
    """Said by a worker: input number ``offset`` (request << 32 | input) of batch ``slot``, with the data that came in (5.3)."""
    GIVEN = 3
    """Said by a worker: what the engine gave it in ``slot``, from ``offset`` on, and it still holds: a tensor of a REPLY."""
    SHARED = 4
    """Said by the engine: in a slot that others may look at, too; who wants to write takes a copy."""
    REGION = 5
    """Memory of a client. Said by a worker: an output that it has put into the window that the request gave for it."""
    DEVICE = 6
    """In memory of a device, in ``segment``; ``slot`` as for SLOT, said by a worker, or as for SHARED, said by the engine."""


class SegmentKind(enum.IntEnum):
    """What a SEGMENT announces. A descriptor comes with all but the last."""

    HOST = 0
    REGION = 1
    """A client's shared memory."""
    DEVICE = 2
    """Memory of a device, to be imported by its descriptor."""
    DEVICE_REGION = 3
    """A client's memory of a device, to be opened by its handle."""


STAYS_ON_DEVICE = 0
"""In place of a segment in a window: the output may stay on its device, or is to go to the device whose UUID the other two
numbers are (`uuid_numbers`)."""


# ---------------------------------------------------------------------------------------------- control page

CONTROL_BYTES = 4096
"""A shared page beside the channel for what must be seen without a message."""

CONTROL_STARTED = 0
"""u64 index: number of the batch whose ``execute`` began last. The worker writes, the engine reads, also after death."""
CONTROL_LOG_LEVELS = 1
"""u64 index: bit n is set when pb_utils.Logger level n is wanted (INFO 0, WARNING 1, ERROR 2, VERBOSE 3). The engine writes."""
CONTROL_CANCELS = 2
"""u64 index: how many CANCELs were sent. The engine writes; a worker that has read fewer looks into its channel."""
CONTROL_LINE_MARK = 3
"""u64 index: the number in the marks of printed lines (line_mark.py). The engine writes it before the worker starts."""
CONTROL_STARTED_NS = 4
"""u64 index: when that ``execute`` began (CLOCK_MONOTONIC). Written before its number."""

CONTROL_HOST_BYTES = 6
"""u64 index: bytes of tensors that the worker has copied between a device and the host. The worker writes."""

CONTROL_WAITING_SENDS = 5
"""u64 index: how many of the model's threads wait in ``send`` for a client that does not read. The worker writes."""

STACKS_SIGNAL = signal.SIGRTMAX - 2 if hasattr(signal, "SIGRTMAX") else signal.SIGUSR2
"""Has a worker write the Python stacks of its threads to its stderr, whoever holds the interpreter's lock."""

BOTTOM_OF_STACKS = re.compile(r'File ".*bootstrap\.py", line \d+ in _become_worker$')
"""Where a worker began, in the main thread, which is written last. Lines below are of the processes that it was forked from."""
STACK_LINE = '  File "'
"""How a line of a stack begins."""

# ---------------------------------------------------------------------------------------------- tensors

_TENSOR = struct.Struct("<HBxIQQQ")
"""spec bytes, place, segment, slot, offset, nbytes"""
_SPEC = struct.Struct("<BBH")
"""data type number, rank, name bytes; then the name, then rank × i64"""

Spec = tuple[str, DataType, tuple[int, ...]]
_MOST_HEADS = 64
_LARGEST_TABLE = 4096
"""Specs kept per direction; a model with ever new shapes starts the table afresh instead of growing it."""


class SpecTable:
    """Encoded and decoded tensor specs, remembered."""

    __slots__ = ("_decoded", "_encoded", "_form", "_heads")

    def __init__(self) -> None:
        self._heads: list[tuple[bytes, int, int]] = []
        """What `measure` has seen last, by the number of a tensor: its head, the head's length, and the bytes behind it."""
        self._form: PackedForm | None = None
        """The form of those tensors, where the same have come twice."""
        self._encoded: dict[Spec, bytes] = {}
        self._decoded: dict[bytes, Spec] = {}

    def encode(self, name: str, datatype: DataType, shape: tuple[int, ...]) -> bytes:
        key = (name, datatype, shape)
        spec = self._encoded.get(key)
        if spec is None:
            spec = encode_spec(name, datatype, shape)
            if len(self._encoded) >= _LARGEST_TABLE:
                self._encoded.clear()
            self._encoded[key] = spec
        return spec

    def measure(self, body: bytes, at: int, count: int) -> tuple[int, int, PackedForm | None]:
        """Where *count* tensors end that begin at *at*, and their bytes where all of them are there; -1 where not.

        What they are is looked at, so that whoever unpacks them later finds no garbage. Raises ProtocolError and others for
        that. Their form is known where it is that of the tensors before, which makes a few comparisons of it.
        """
        form = self._form
        if form is not None and len(form.sizes) == count and form.begins(body, at):
            return at + form.length, form.nbytes, form
        return self._measure(body, at, count)

    def _measure(self, body: bytes, at: int, count: int) -> tuple[int, int, PackedForm | None]:
        heads = self._heads
        nbytes = 0
        is_known = count > 0
        for number in range(count):
            if number < len(heads):
                head, length, behind = heads[number]
                if body.startswith(head, at):
                    at += length + behind
                    if nbytes >= 0:
                        nbytes += behind
                    continue
            is_known = False
            begin = at
            spec_bytes, place, _, _, _, size = _TENSOR.unpack_from(body, at)
            at += 32
            self.decode(body[at : at + spec_bytes])
            at += spec_bytes
            if place:
                nbytes = -1
                continue
            known = (body[begin:at], at - begin, size)
            if number < len(heads):
                heads[number] = known
            elif number == len(heads) and number < _MOST_HEADS:
                heads.append(known)
            at += size
            if nbytes >= 0:
                nbytes += size
        if at > len(body):
            raise ProtocolError(f"tensors of {at} bytes in a frame of {len(body)}")
        if is_known:
            self._form = self._form_of_heads(count)
        return at, nbytes, None

    def _form_of_heads(self, count: int) -> PackedForm:
        tensors: list[Spec] = []
        heads: list[bytes] = []
        sizes: list[int] = []
        for head, _, nbytes in self._heads[:count]:
            tensors.append(self.decode(head[32:]))
            heads.append(head)
            sizes.append(nbytes)
        return PackedForm(tensors, heads, sizes)

    def unpack(self, data: bytes, count: int) -> list[Tensor]:
        """*count* tensors that lie in *data*, all of them with their bytes."""
        tensors: list[Tensor] = []
        at = 0
        for _ in range(count):
            spec_bytes, _, _, _, _, nbytes = _TENSOR.unpack_from(data, at)
            at += 32
            name, datatype, shape = self.decode(data[at : at + spec_bytes])
            at += spec_bytes
            tensors.append(Tensor(name, datatype, shape, data[at : at + nbytes]))
            at += nbytes
        return tensors

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


def encode_spec(name: str, datatype: DataType, shape: tuple[int, ...]) -> bytes:
    raw = name.encode()
    return _SPEC.pack(datatype.number, len(shape), len(raw)) + raw + struct.pack(f"<{len(shape)}q", *shape)


def form_of(tensors: Sequence[Tensor]) -> PackedForm | None:
    """The form of *tensors*, with which others like them are packed; None where one cannot lie in a message.

    It is too large, or has a name or a shape that nobody has looked at yet, and that no message can hold.
    """
    specs: list[Spec] = []
    heads: list[bytes] = []
    sizes: list[int] = []
    for tensor in tensors:
        if tensor.nbytes > INLINE_BYTES or tensor.home is not None:
            return None
        try:
            spec = encode_spec(tensor.name, tensor.datatype, tensor.shape)
        except struct.error:
            return None
        specs.append((tensor.name, tensor.datatype, tensor.shape))
        heads.append(_TENSOR.pack(len(spec), 0, 0, 0, 0, tensor.nbytes) + spec)
        sizes.append(tensor.nbytes)
    return PackedForm(specs, heads, sizes)


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


def put_inline(parts: list[bytes], spec: bytes, data: bytes | bytearray | memoryview | None) -> None:
    """Append a tensor with its bytes, which are there."""
    assert data is not None
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


def take_tensor(body: bytes | memoryview, at: int, specs: SpecTable) -> tuple[TensorRef, int]:
    spec_bytes, place, segment, slot, offset, nbytes = _TENSOR.unpack_from(body, at)
    at += 32
    spec = specs.decode(bytes(body[at : at + spec_bytes]))
    at += spec_bytes
    if place == 0:
        return TensorRef(spec, 0, nbytes, inline=body[at : at + nbytes]), at + nbytes
    return TensorRef(spec, place, nbytes, segment=segment, slot=slot, offset=offset), at


def _take_tensors(body: bytes | memoryview, at: int, count: int, specs: SpecTable) -> tuple[list[TensorRef], int]:
    tensors: list[TensorRef] = []
    for _ in range(count):
        tensor, at = take_tensor(body, at, specs)
        tensors.append(tensor)
    return tensors, at


# ---------------------------------------------------------------------------------------------- EXECUTE

_COUNT = struct.Struct("<I")
_BATCH = struct.Struct("<QI")
"""batch number, requests"""
_REQUEST = struct.Struct("<QQIIIIHHHH")
"""correlation id, timeout µs, sequence flags, request id bytes, string correlation id bytes, parameter bytes, mask bytes,
trace context bytes, windows, inputs"""
_REQUEST_BYTES = _REQUEST.size
_WINDOW = struct.Struct("<HxxIQQ")
"""number of the output, segment, offset, nbytes"""


class RequestMessage:
    """One request as the worker gets it. ``outputs_mask`` bit n asks for the n-th configured output; 0 asks for all.

    ``windows`` are (number of an output, segment, offset, nbytes): where in a client's memory that output is to go, or that it
    may stay on a device (`STAYS_ON_DEVICE`).
    ``trace_context`` is empty for a request that is not traced; a CALL gives it back for the request that it is made for.
    """

    __slots__ = (
        "correlation_id",
        "inputs",
        "outputs_mask",
        "parameters_json",
        "request_id",
        "sequence_flags",
        "timeout_us",
        "trace_context",
        "windows",
    )

    def __init__(
        self,
        request_id: str,
        correlation_id: int | str,
        timeout_us: int,
        sequence_flags: int,
        parameters_json: str,
        outputs_mask: int,
        inputs: list[TensorRef],
        windows: list[tuple[int, int, int, int]],
        trace_context: str = "",
    ) -> None:
        self.request_id = request_id
        self.correlation_id = correlation_id
        self.timeout_us = timeout_us
        self.sequence_flags = sequence_flags
        self.parameters_json = parameters_json
        self.outputs_mask = outputs_mask
        self.inputs = inputs
        self.windows = windows
        self.trace_context = trace_context


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
    windows: Sequence[tuple[int, int, int, int]] = (),
    trace_context: str = "",
) -> None:
    """Append the head of a request; *input_count* tensors must follow. *windows* as in `RequestMessage`."""
    raw_id = request_id.encode("utf-8", "surrogateescape")
    raw_correlation = correlation_id.encode() if isinstance(correlation_id, str) else b""
    raw_parameters = parameters_json.encode("utf-8", "surrogateescape")
    raw_mask = outputs_mask.to_bytes((outputs_mask.bit_length() + 7) // 8, "little")
    raw_trace = trace_context.encode()
    parts.append(
        _REQUEST.pack(
            0 if isinstance(correlation_id, str) else correlation_id,
            timeout_us,
            sequence_flags,
            len(raw_id),
            len(raw_correlation),
            len(raw_parameters),
            len(raw_mask),
            len(raw_trace),
            len(windows),
            input_count,
        )
    )
    parts.append(raw_id + raw_correlation + raw_parameters + raw_mask + raw_trace)
    parts += [_WINDOW.pack(*window) for window in windows]


_PLAIN_REQUESTS = tuple(_REQUEST.pack(0, 0, 0, 0, 0, 0, 0, 0, 0, inputs) for inputs in range(65))


def put_plain_request(parts: list[bytes], input_count: int) -> None:
    """Append the head of a request without id, parameters and the rest: always the same bytes."""
    if input_count < len(_PLAIN_REQUESTS):
        parts.append(_PLAIN_REQUESTS[input_count])
    else:
        parts.append(_REQUEST.pack(0, 0, 0, 0, 0, 0, 0, 0, 0, input_count))


def put_batch(parts: list[bytes], number: int, requests: int) -> None:
    parts.append(_BATCH.pack(number, requests))


def execute_frame(batches: int, parts: list[bytes]) -> bytes:
    """The frame around *batches* that `put_batch`, `put_request` and the tensors wrote into *parts*."""
    return frame(Kind.EXECUTE, [_COUNT.pack(batches), *parts])


def _take_head(body: bytes | memoryview, at: int) -> tuple[RequestMessage, int, int]:
    """What `put_request` wrote: a request whose inputs are still to be read, where they begin, and how many they are."""
    (
        correlation,
        timeout_us,
        flags,
        id_bytes,
        correlation_bytes,
        parameter_bytes,
        mask_bytes,
        trace_bytes,
        window_count,
        inputs,
    ) = _REQUEST.unpack_from(body, at)
    at += _REQUEST_BYTES
    request_id = parameters_json = trace_context = ""
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
    if trace_bytes:
        trace_context = str(body[at : at + trace_bytes], "utf-8")
        at += trace_bytes
    windows: list[tuple[int, int, int, int]] = []
    for _ in range(window_count):
        windows.append(_WINDOW.unpack_from(body, at))
        at += _WINDOW.size
    request = RequestMessage(
        request_id, correlation_id, timeout_us, flags, parameters_json, mask, [], windows, trace_context
    )
    return request, at, inputs


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
            request, at, inputs = _take_head(body, at)
            request.inputs, at = _take_tensors(body, at, inputs, specs)
            requests.append(request)
        found.append((number, requests))
    return found


# ---------------------------------------------------------------------------------------------- RESULT

_RESULT = struct.Struct("<QQQQQII")
"""batch number; CLOCK_MONOTONIC ns at: batch taken up, inputs ready, execute returned, outputs placed; answers; error bytes"""
_ANSWER = struct.Struct("<BxHI")
"""error code + 1, or 0, or one of the three below; outputs; bytes of the parameters or of the error text"""


class Fate(enum.IntEnum):
    """What became of a request in its batch, other than an answer or an error, as `_ANSWER` says it."""

    SKIPPED = 253
    """Cancelled before ``execute`` began, which was not called for the request, or its coroutine was cancelled with it."""
    RESCHEDULED = 254
    """The model wants it again (model API, 4.5)."""
    DEFERRED = 255
    """The request is answered by RESPONSE frames: one flagged final has come before, or will come."""


class Answer:
    """What one request gets: outputs, or an error that the model returned for it, or neither for a ``fate``."""

    __slots__ = ("_data", "_form", "_nbytes", "_specs", "count", "error", "fate", "parameters_json")

    def __init__(
        self,
        data: bytes,
        count: int,
        nbytes: int,
        specs: SpecTable,
        *,
        parameters_json: str = "",
        form: PackedForm | None = None,
        error: tuple[ErrorCode, str] | None = None,
        fate: Fate | None = None,
    ) -> None:
        """*data* has *count* outputs, of *nbytes* bytes where all of them are there, and -1 where some are elsewhere."""
        self._data = data
        self.count = count
        self._nbytes = nbytes
        self._specs = specs
        self._form = form
        self.parameters_json = parameters_json
        self.error = error
        self.fate = fate

    @property
    def packed(self) -> PackedTensors | None:
        """The outputs as they came; None where some of them are elsewhere."""
        if self._nbytes < 0:
            return None
        return PackedTensors(self._data, self.count, self._nbytes, self._specs.unpack, self._form)

    @property
    def outputs(self) -> list[TensorRef]:
        """The outputs, and where they are."""
        return _take_tensors(self._data, 0, self.count, self._specs)[0]


class BatchResult:
    """The end of a batch. ``failure`` is the text of an ``execute`` that failed as a whole; then there are no answers."""

    __slots__ = ("answers", "executed_ns", "failure", "inputs_ns", "number", "placed_ns", "taken_ns")

    def __init__(
        self,
        number: int,
        taken_ns: int,
        inputs_ns: int,
        executed_ns: int,
        placed_ns: int,
        answers: list[Answer],
        failure: str,
    ) -> None:
        self.number = number
        self.taken_ns = taken_ns
        self.inputs_ns = inputs_ns
        self.executed_ns = executed_ns
        self.placed_ns = placed_ns
        self.answers = answers
        self.failure = failure


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


def put_fate(parts: list[bytes], fate: Fate) -> None:
    parts.append(_ANSWER.pack(fate, 0, 0))


def result_frame(batches: int, parts: list[bytes]) -> bytes:
    return frame(Kind.RESULT, [_COUNT.pack(batches), *parts])


def _take_answer(body: bytes, at: int, specs: SpecTable) -> tuple[Answer, int]:
    code, outputs, text_bytes = _ANSWER.unpack_from(body, at)
    at += 8
    text = ""
    if text_bytes:
        text = body[at : at + text_bytes].decode("utf-8", "surrogateescape")
        at += text_bytes
    if code:
        if code >= Fate.SKIPPED:
            return Answer(b"", 0, 0, specs, fate=Fate(code)), at
        return Answer(b"", 0, 0, specs, error=(ErrorCode(code - 1), text)), at
    end, nbytes, form = specs.measure(body, at, outputs)
    return Answer(body[at:end], outputs, nbytes, specs, parameters_json=text, form=form), end


def read_result(body: memoryview, specs: SpecTable) -> list[BatchResult]:
    """The results of a RESULT, in order."""
    whole = bytes(body)  # small tensors are handed on as they are, and of bytes that is quicker than of views
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
            answer, at = _take_answer(whole, at, specs)
            answers.append(answer)
        results.append(BatchResult(number, taken, inputs, executed, placed, answers, failure))
    return results


# ---------------------------------------------------------------------------------------------- RESPONSE, REPLY

_RESPONSE = struct.Struct("<QIBxxxQQ")
"""batch number, request in it, flags, infer ns, sent ns"""
_REPLY = struct.Struct("<QBxxx")
"""call number, flags"""

FLAG_FINAL = 1
"""The last that comes for this request, or call."""
FLAG_EMPTY = 2
"""No response, only the end."""
FLAG_FAILED = 4
"""An error that the model did not send: its ``execute`` failed, or has left nobody who could answer."""


def response_frame(
    batch: int,
    index: int,
    *,
    is_final: bool,
    infer_ns: int,
    sent_ns: int,
    parts: list[bytes],
    is_failure: bool = False,
) -> bytes:
    """One response of request *index* of *batch*; *parts* from `put_answer` or `put_error`, empty for an end alone.

    *sent_ns* is when the model sent it (CLOCK_MONOTONIC), *infer_ns* what it took until then. *is_failure* for `FLAG_FAILED`.
    """
    flags = FLAG_FINAL * is_final | FLAG_EMPTY * (not parts) | FLAG_FAILED * is_failure
    return frame(Kind.RESPONSE, [_RESPONSE.pack(batch, index, flags, infer_ns, sent_ns), *parts])


def read_response(body: memoryview, specs: SpecTable) -> tuple[int, int, Answer | None, bool, int, int, bool]:
    """(batch, request, what it is answered, whether that was the last, infer_ns, sent_ns, whether it is a failure)"""
    batch, index, flags, infer_ns, sent_ns = _RESPONSE.unpack_from(body)
    answer = None if flags & FLAG_EMPTY else _take_answer(bytes(body), _RESPONSE.size, specs)[0]
    return batch, index, answer, bool(flags & FLAG_FINAL), infer_ns, sent_ns, bool(flags & FLAG_FAILED)


def reply_frame(call: int, *, is_final: bool, parts: list[bytes]) -> bytes:
    """One response to *call*; *parts* as in `response_frame`."""
    flags = FLAG_FINAL * is_final | FLAG_EMPTY * (not parts)
    return frame(Kind.REPLY, [_REPLY.pack(call, flags), *parts])


def read_reply(body: memoryview, specs: SpecTable) -> tuple[int, Answer | None, bool]:
    """(call, the response, whether that was the last)"""
    call, flags = _REPLY.unpack_from(body)
    answer = None if flags & FLAG_EMPTY else _take_answer(bytes(body), _REPLY.size, specs)[0]
    return call, answer, bool(flags & FLAG_FINAL)


# ---------------------------------------------------------------------------------------------- CALL

_CALL = struct.Struct("<QqQBxHI16s")
"""call number, model version or -1, batch that waits for it or 0, flags, bytes of the model's name, of the outputs, UUID
of the device that the outputs are to be on"""
_NAME = struct.Struct("<I")
"""bytes of the name of an output that is asked for, before it"""

FLAG_DECOUPLED = 1
"""The caller takes any number of responses."""

FLAG_IN_EXECUTE = 2
"""The call is made by ``execute`` itself, not by a coroutine of it: nothing else is executed before it has returned."""

FLAG_PREFERS_HOST = 4
"""The outputs are to be on the host (PreferredMemory)."""


class CallMessage:
    """A request that a model makes of another one. ``version`` is -1 where the server is to choose.

    ``waiting_batch`` is the batch whose ``execute`` cannot end before the call does, 0 where nothing hangs on it. ``packed``
    has the inputs where all of them are in the message; ``request.inputs`` is empty then.
    """

    __slots__ = (
        "is_decoupled",
        "is_in_execute",
        "model_name",
        "number",
        "packed",
        "preferred_device",
        "prefers_host",
        "request",
        "requested_outputs",
        "version",
        "waiting_batch",
    )

    def __init__(
        self,
        number: int,
        model_name: str,
        version: int,
        waiting_batch: int,
        is_decoupled: bool,
        is_in_execute: bool,
        prefers_host: bool,
        preferred_device: bytes,
        requested_outputs: list[str],
        request: RequestMessage,
        packed: PackedTensors | None,
    ) -> None:
        self.number = number
        self.model_name = model_name
        self.version = version
        self.waiting_batch = waiting_batch
        self.is_decoupled = is_decoupled
        self.is_in_execute = is_in_execute
        self.prefers_host = prefers_host
        """Whether the outputs are to be on the host, wherever the callee leaves them."""
        self.preferred_device = preferred_device
        """UUID of the device that the outputs are to be on; empty where it does not matter."""
        self.requested_outputs = requested_outputs
        self.request = request
        self.packed = packed


def put_call(
    parts: list[bytes],
    number: int,
    *,
    model_name: str,
    version: int,
    waiting_batch: int,
    is_decoupled: bool,
    is_in_execute: bool,
    requested_outputs: Sequence[str],
    prefers_host: bool = False,
    preferred_device: bytes = b"",
) -> None:
    """Append the head of a CALL; `put_request` and the inputs must follow, then `call_frame` around them."""
    raw_name = model_name.encode("utf-8", "surrogateescape")
    raw_outputs = _packed_names(requested_outputs)
    flags = FLAG_DECOUPLED * is_decoupled | FLAG_IN_EXECUTE * is_in_execute | FLAG_PREFERS_HOST * prefers_host
    parts.append(_CALL.pack(number, version, waiting_batch, flags, len(raw_name), len(raw_outputs), preferred_device))
    parts.append(raw_name + raw_outputs)


def _packed_names(names: Sequence[str]) -> bytes:
    """Each with its length before it. Text of JSON would take both sides longer than everything else in the head of a CALL."""
    packed = b""
    for name in names:
        raw = name.encode("utf-8", "surrogatepass")
        packed += _NAME.pack(len(raw)) + raw
    return packed


def _names(packed: bytes) -> list[str]:
    names: list[str] = []
    at = 0
    while at < len(packed):
        (nbytes,) = _NAME.unpack_from(packed, at)
        at += _NAME.size
        names.append(str(packed[at : at + nbytes], "utf-8", "surrogatepass"))
        at += nbytes
    return names


def call_frame(parts: list[bytes]) -> bytes:
    return frame(Kind.CALL, parts)


def read_call(body: memoryview, specs: SpecTable) -> CallMessage:
    """The CALL in *body*. *specs* are those of calls alone: results in between would have their forms forgotten."""
    whole = bytes(body)
    number, version, waiting_batch, flags, name_bytes, output_bytes, device = _CALL.unpack_from(whole)
    at = _CALL.size
    name = str(whole[at : at + name_bytes], "utf-8", "surrogateescape")
    at += name_bytes
    outputs = _names(whole[at : at + output_bytes])
    at += output_bytes
    request, at, inputs = _take_head(whole, at)
    end, nbytes, form = specs.measure(whole, at, inputs)
    packed: PackedTensors | None = None
    if nbytes >= 0:
        packed = PackedTensors(whole[at:end], inputs, nbytes, specs.unpack, form)
    else:
        request.inputs, _ = _take_tensors(whole, at, inputs, specs)
    return CallMessage(
        number,
        name,
        version,
        waiting_batch,
        bool(flags & FLAG_DECOUPLED),
        bool(flags & FLAG_IN_EXECUTE),
        bool(flags & FLAG_PREFERS_HOST),
        device if any(device) else b"",
        outputs,
        request,
        packed,
    )


# ---------------------------------------------------------------------------------------------- the small ones

_SEGMENT = struct.Struct("<IBxxxQ")
_SEGMENT_DEVICE = struct.Struct("<16s64s")
"""UUID, handle: behind a segment of a device"""
_HELLO = struct.Struct("<II")
_LOG = struct.Struct("<BxHIHxx")
"""level, bytes of the file's name, line, bytes of the request id"""


def release_frame(slots: Sequence[int]) -> bytes:
    return frame(Kind.RELEASE, [struct.pack(f"<{len(slots)}Q", *slots)])


def read_release(body: memoryview) -> tuple[int, ...]:
    return struct.unpack(f"<{len(body) // 8}Q", body)


class Announced(NamedTuple):
    """What a SEGMENT says. ``uuid`` and ``handle`` are empty for memory of the host, the handle for what has a descriptor."""

    number: int
    nbytes: int
    kind: SegmentKind
    uuid: bytes
    handle: bytes


def segment_frame(segment_id: int, nbytes: int, *, is_region: bool = False) -> bytes:
    """Announce a segment whose descriptor was sent just before; *is_region* for memory that belongs to a client."""
    return frame(Kind.SEGMENT, [_SEGMENT.pack(segment_id, is_region, nbytes)])


def device_segment_frame(segment_id: int, nbytes: int, uuid: bytes, handle: bytes = b"") -> bytes:
    """Announce memory of the device *uuid*, whose descriptor was sent just before, or which *handle* opens."""
    kind = SegmentKind.DEVICE_REGION if handle else SegmentKind.DEVICE
    return frame(Kind.SEGMENT, [_SEGMENT.pack(segment_id, kind, nbytes), _SEGMENT_DEVICE.pack(uuid, handle)])


def read_segment(body: memoryview) -> Announced:
    """Raises ProtocolError for a kind that there is not."""
    segment_id, number, nbytes = _SEGMENT.unpack_from(body)
    if number > SegmentKind.DEVICE_REGION:
        raise ProtocolError(f"a segment of kind {number} was announced")
    kind = SegmentKind(number)
    uuid = handle = b""
    if kind >= SegmentKind.DEVICE:
        uuid, handle = _SEGMENT_DEVICE.unpack_from(body, _SEGMENT.size)
    return Announced(segment_id, nbytes, kind, uuid, handle if kind == SegmentKind.DEVICE_REGION else b"")


def uuid_numbers(uuid: bytes) -> tuple[int, int]:
    """The two numbers that stand for the UUID of a device in a window; (0, 0) for b""."""
    return int.from_bytes(uuid[:8], "little"), int.from_bytes(uuid[8:], "little")


def uuid_of_numbers(first: int, second: int) -> bytes:
    """The inverse of `uuid_numbers`."""
    return first.to_bytes(8, "little") + second.to_bytes(8, "little") if first or second else b""


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


def completed_frame(answer: Any) -> bytes:
    """*answer* is what JSON can carry; whatever json.dumps raises passes through."""
    return frame(Kind.COMPLETED, [json.dumps(answer).encode()])


def read_completed(body: memoryview) -> Any:
    return json.loads(bytes(body))


class LogLine(NamedTuple):
    """A line of pb_utils.Logger: *level* is the number of its level; *request_id* is empty outside of requests."""

    level: int
    filename: str
    line: int
    text: str
    request_id: str


def log_frame(level: int, filename: str, line: int, text: str, request_id: str = "") -> bytes:
    raw_name = filename.encode("utf-8", "replace")
    raw_id = request_id.encode("utf-8", "replace")
    head = _LOG.pack(level, len(raw_name), line, len(raw_id))
    return frame(Kind.LOG, [head, raw_name, raw_id, text.encode("utf-8", "replace")])


def read_log(body: memoryview) -> LogLine:
    level, name_bytes, line, id_bytes = _LOG.unpack_from(body)
    id_at = _LOG.size + name_bytes
    text_at = id_at + id_bytes
    name, request_id, text = body[_LOG.size : id_at], body[id_at:text_at], body[text_at:]
    return LogLine(level, str(name, "utf-8"), line, str(text, "utf-8"), str(request_id, "utf-8"))


_CANCEL = struct.Struct("<QI")
_CREDIT = struct.Struct("<QIQ")
_TAKEN = struct.Struct("<QQ")
_NUMBER = struct.Struct("<Q")
_REFUSAL = struct.Struct("<QB")


def cancel_frame(batch: int, index: int) -> bytes:
    """The frame that says that nobody waits for request *index* of *batch* any more."""
    return frame(Kind.CANCEL, [_CANCEL.pack(batch, index)])


def read_cancel(body: memoryview) -> tuple[int, int]:
    batch, index = _CANCEL.unpack(body)
    return batch, index


def credit_frame(credits: Sequence[tuple[int, int, int]]) -> bytes:
    """How many responses of (batch, request) have been passed on, since its beginning."""
    return frame(Kind.CREDIT, [_CREDIT.pack(*credit) for credit in credits])


def read_credit(body: memoryview) -> list[tuple[int, int, int]]:
    return list(_CREDIT.iter_unpack(body))


def taken_frame(taken: Sequence[tuple[int, int]]) -> bytes:
    """How many responses to each call have arrived, since its beginning."""
    return frame(Kind.TAKEN, [_TAKEN.pack(*pair) for pair in taken])


def read_taken(body: memoryview) -> list[tuple[int, int]]:
    return list(_TAKEN.iter_unpack(body))


def abandon_frame(call: int) -> bytes:
    return frame(Kind.ABANDON, [_NUMBER.pack(call)])


def read_abandon(body: memoryview) -> int:
    return int(_NUMBER.unpack(body)[0])


def returned_frame(batches: Sequence[int]) -> bytes:
    return frame(Kind.RETURNED, [struct.pack(f"<{len(batches)}Q", *batches)])


def read_returned(body: memoryview) -> tuple[int, ...]:
    return struct.unpack(f"<{len(body) // 8}Q", body)


def ask_frame(number: int, operation: str, arguments: dict[str, Any]) -> bytes:
    return frame(Kind.ASK, [_NUMBER.pack(number), json.dumps([operation, arguments]).encode()])


def read_ask(body: memoryview) -> tuple[int, str, dict[str, Any]]:
    """(number, operation, arguments)"""
    operation, arguments = json.loads(bytes(body[8:]))
    return _NUMBER.unpack_from(body)[0], operation, arguments


def tell_frame(operation: str, arguments: dict[str, Any]) -> bytes:
    return frame(Kind.TELL, [json.dumps([operation, arguments]).encode()])


def read_tell(body: memoryview) -> tuple[str, dict[str, Any]]:
    operation, arguments = json.loads(bytes(body))
    return operation, arguments


def answer_frame(number: int, answer: object) -> bytes:
    """The answer to an ASK: what JSON can carry, or the InferenceError that refuses it."""
    if isinstance(answer, InferenceError):
        return frame(Kind.ANSWER, [_REFUSAL.pack(number, answer.code + 1), answer.message.encode("utf-8", "replace")])
    return frame(Kind.ANSWER, [_REFUSAL.pack(number, 0), json.dumps(answer).encode()])


def read_answer(body: memoryview) -> tuple[int, Any]:
    """(number, the answer or the InferenceError that refuses it)"""
    number, code = _REFUSAL.unpack_from(body)
    if code:
        return number, InferenceError(ErrorCode(code - 1), str(body[9:], "utf-8"))
    return number, json.loads(bytes(body[9:]))


def ready_frame(*, has_is_ready: bool) -> bytes:
    """The model is loaded; whether it wants to be asked for its readiness."""
    return frame(Kind.READY, [bytes((has_is_ready,))])


def read_ready(body: bytes) -> bool:
    return body == b"\x01"


def collect_frame(generation: int) -> bytes:
    """Collect *generation*, as Python's collector counts them, and those younger than it."""
    return frame(Kind.COLLECT, [bytes((generation,))])


def read_collect(body: memoryview) -> int:
    return body[0]


_BRANCHED = struct.Struct("<Qi")


def branch_frame(number: int) -> bytes:
    """Make instance *number* with the five descriptors that were sent before (bootstrap.py lists them)."""
    return frame(Kind.BRANCH, [_NUMBER.pack(number)])


def read_branch(body: memoryview) -> int:
    return int(_NUMBER.unpack(body)[0])


def branched_frame(number: int, pid: int, refusal: str = "") -> bytes:
    """Instance *number* lives in process *pid*; 0 where it does not, for which *refusal* is the reason."""
    return frame(Kind.BRANCHED, [_BRANCHED.pack(number, pid), refusal.encode("utf-8", "replace")])


def read_branched(body: memoryview) -> tuple[int, int, str]:
    """(number, pid, refusal)"""
    number, pid = _BRANCHED.unpack_from(body)
    return number, pid, str(body[_BRANCHED.size :], "utf-8")


def ended_frame(number: int, status: int) -> bytes:
    """Instance *number*, a thread, has ended with *status*, which is that of wait."""
    return frame(Kind.ENDED, [_BRANCHED.pack(number, status)])


def read_ended(body: memoryview) -> tuple[int, int]:
    """(number, status)"""
    number, status = _BRANCHED.unpack(body)
    return number, status


def probed_frame(*, is_ready: bool) -> bytes:
    return frame(Kind.PROBED, [bytes((is_ready,))])


def read_probed(body: memoryview) -> bool:
    return bytes(body) == b"\x01"
