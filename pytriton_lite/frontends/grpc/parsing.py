"""Serialized requests to messages, in bounded time: what is large is cut out first, what is wide is refused.

Protobuf takes 35 ns for a field of two bytes that makes an object, and holds the interpreter for the whole of a message: two
megabytes of them are 70 ms and 90 MB. So large messages are walked over before protobuf sees them. Tensors are cut out and
stay where they are, numbers in typed contents are decoded by numpy, and of everything else there may only be so much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pytriton_lite.core import bytes_tensor
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.tensor import MAX_DIMENSIONS, Buffer, Elements
from pytriton_lite.ipc.messages import INLINE_BYTES
from pytriton_lite.proto.grpc_service_pb import ModelInferRequest
from pytriton_lite.proto.message import DecodeError

LARGE_BYTES = 64 << 10
"""Bytes from which on tensors are not copied where it can be helped, and messages are walked over."""

MAX_FIELDS = 1 << 16
"""Fields of a request, at most: inputs, outputs, parameters, raw contents, elements of ``bytes_contents``, parts of inputs. A
message of `LARGE_BYTES` cannot have more."""
MAX_TENSORS = 4096
"""Inputs, and requested outputs, that a request may have; each takes the loop some microseconds."""
MAX_WEIGHT_BYTES = 1 << 18
"""What a request may hold beside tensors; parameters and texts count an eighth. 10 ms of protobuf's at worst."""
_QUICK_FIELDS = 512
_PARAMETER_SHARE = 8  # protobuf takes 5 ns for a field inside of a parameter, since none of them makes an object
_TEXT_SHARE = 8  # and copies a text, which is one object and was counted as a field
_STEP_FIELDS = 256
"""Fields that are walked over without looking at the clock: a quarter of a millisecond."""
_LARGE_ELEMENT_BYTES = 1 << 10

_VARINT, _LENGTH_DELIMITED = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}
# Fields of ModelInferRequest, of its inputs and of their contents, all of them length-delimited.
_PARAMETERS, _INPUTS, _RAW_INPUT_CONTENTS = 0x22, 0x2A, 0x3A
_CONTENTS = 0x2A
_VALUE = 0x12  # in an entry of parameters
_BYTES_CONTENTS = 0x42
_NUMBERS: dict[int, npt.DTypeLike] = {
    0x0A: np.bool_,
    0x12: np.int32,
    0x1A: np.int64,
    0x22: np.uint32,
    0x2A: np.uint64,
    0x32: np.float32,
    0x3A: np.float64,
}
"""Packed fields of the contents, and what they are made of."""

Numbers = npt.NDArray[np.generic]


class Typed(NamedTuple):
    """A field of `InferTensorContents` that was cut out."""

    number: int
    values: Numbers


class Parsed(NamedTuple):
    """A ModelInferRequest, and what was cut out of it."""

    message: ModelInferRequest
    raw: Sequence[Buffer]
    """The request's ``raw_input_contents``."""
    typed: Mapping[int, Typed]
    """Typed contents of inputs, by their place among them, of which the contents in the message are empty."""
    texts: Mapping[int, Elements] | None = None
    """What the elements of BYTES tensors were found to be, by their place in ``raw``; None where nobody has counted them."""


NOTHING_TYPED: Mapping[int, Typed] = {}


def parse_request(data: bytes | memoryview, *, large_bytes: int = LARGE_BYTES) -> Parsed:
    """Parse *data*, and cut out tensors and numbers where it has *large_bytes*.

    It takes up to 100 ms: call it in a thread, or `parse_quickly` first. Raises DecodeError for what is no request,
    InferenceError for one that is too wide.
    """
    if len(data) < large_bytes:
        return _parse_whole(data)
    parsing = SlowParsing(data)
    parsing.walk(lambda: False)
    return parsing.finish()


class SlowParsing:
    """The same in slices, for a loop that has others to serve: `walk` until it says that it is done, then `finish`."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._cutter = _Cutter(memoryview(data), MAX_FIELDS, MAX_WEIGHT_BYTES, weighs_numbers=False)
        self._steps = self._cutter.steps()

    def walk(self, is_over: Callable[[], bool]) -> bool:
        """Go on until *is_over*; True when nothing but `finish` is left. Raises as `parse_request`."""
        try:
            for _ in self._steps:
                if is_over():
                    return False
        except _TooWide as error:
            raise InferenceError(ErrorCode.INVALID_ARG, str(error)) from error
        return True

    @property
    def is_quick(self) -> bool:
        """Whether `finish` takes no longer than a millisecond or two, and needs no thread."""
        return self._cutter.left_bytes < LARGE_BYTES

    def finish(self) -> Parsed:
        """Raises DecodeError."""
        return self._cutter.finish()


class TextCounting:
    """What `SlowParsing` is, for a request that is parsed and has BYTES tensors of very many elements: it counts them."""

    is_quick = True

    def __init__(self, parsed: Parsed, places: list[int]) -> None:
        """*places* are those of the tensors in ``parsed.raw``."""
        self._parsed = parsed
        self._texts: dict[int, Elements] = {}
        self._steps = self._count(places)

    @staticmethod
    def of(parsed: Parsed) -> TextCounting | None:
        """None for a request that the engine can look through at once, or whose elements are counted."""
        least_bytes = 4 * bytes_tensor.MANY_ELEMENTS
        if parsed.texts is not None or max(map(len, parsed.raw), default=0) <= least_bytes:
            return None
        inputs = parsed.message.inputs
        if len(inputs) > MAX_TENSORS:  # it is refused, and so are tensors of too many dimensions
            return None
        places: list[int] = []
        place = 0
        for tensor in inputs:
            if tensor.HasField("contents") or "shared_memory_region" in tensor.parameters:
                continue
            if place == len(parsed.raw):
                break
            nbytes = len(parsed.raw[place])
            is_large = nbytes > least_bytes and tensor.datatype == "BYTES" and len(tensor.shape) <= MAX_DIMENSIONS
            if is_large and bytes_tensor.most_elements(nbytes, tuple(tensor.shape)) > bytes_tensor.MANY_ELEMENTS:
                places.append(place)
            place += 1
        return TextCounting(parsed, places) if places else None

    def walk(self, is_over: Callable[[], bool]) -> bool:
        """Go on until *is_over*; True when nothing but `finish` is left."""
        return all(not is_over() for _ in self._steps)

    def finish(self) -> Parsed:
        """The request, with what was found."""
        return self._parsed._replace(texts=self._texts)

    def _count(self, places: list[int]) -> Iterator[None]:
        for place in places:
            for found in bytes_tensor.counting(self._parsed.raw[place]):
                self._texts[place] = found
                yield


def parse_quickly(data: bytes | memoryview) -> Parsed | None:
    """The same within milliseconds; None for a message that takes `parse_request` longer. Raises DecodeError."""
    if len(data) < LARGE_BYTES:
        return _parse_whole(data)
    try:
        cutter = _Cutter(memoryview(data), _QUICK_FIELDS, LARGE_BYTES, weighs_numbers=True)
        for _ in cutter.steps():
            pass
        return cutter.finish()
    except _TooWide:
        return None


def check_width(data: bytes | memoryview, *, entries: int, fields: int, nested_fields: int) -> None:
    """Refuse a message where it has more than *fields*, or a message in its fields tagged *entries* more than *nested_fields*.

    Raises InferenceError; what is no message is left to protobuf, which is no slower for it.
    """
    walk = _Walk(memoryview(data), fields)
    at, end = 0, len(data)
    found: list[tuple[int, int]] = []
    try:
        while at < end:
            tag, begin, at = walk.next(at, end)
            if tag == entries:
                found.append((begin, at))
        for begin, at in found:  # not before there are few of them
            nested = _Walk(walk.view, nested_fields)
            while begin < at:
                _, _, begin = nested.next(begin, at)
    except _Group as group:  # behind which anything may follow
        raise InferenceError(ErrorCode.INVALID_ARG, "request has a field of a kind that nobody sends") from group
    except DecodeError:
        return
    except _TooWide as error:
        text = f"request may have {fields} fields, and each of its parameters {nested_fields}"
        raise InferenceError(ErrorCode.INVALID_ARG, text) from error


def tensor_at(begun: Buffer, nbytes: int) -> int:
    """Where the first large tensor begins in a request of *nbytes* that begins with *begun*; 0 where that is not to be seen."""
    view = memoryview(begun)
    walk = _Walk(view, _QUICK_FIELDS)
    at = 0
    try:
        while at < len(view):
            tag, begin, at = walk.next(at, nbytes)
            if tag == _RAW_INPUT_CONTENTS and at - begin > INLINE_BYTES:
                return begin
    except (DecodeError, IndexError, _TooWide, _Group):  # whoever reads all of it will say so
        pass
    return 0


def _parse_whole(data: bytes | memoryview) -> Parsed:
    message = ModelInferRequest.FromString(data)
    return Parsed(message, message.raw_input_contents, NOTHING_TYPED)


class _TooWide(Exception):
    """The text is for the client."""


class _Walk:
    """Goes from field to field, so many times."""

    def __init__(self, view: memoryview, max_fields: int) -> None:
        self.view = view
        self._left = self._limit = max_fields

    @property
    def is_step(self) -> bool:
        """Whether a step of so many fields ends here."""
        return self._left % _STEP_FIELDS == 0

    def next(self, at: int, end: int) -> tuple[int, int, int]:
        """Tag of the field at *at*, where its content begins and where it ends. Raises DecodeError, _TooWide, _Group."""
        self._left -= 1
        if self._left < 0:
            raise _TooWide(
                f"request has more than {self._limit} fields: inputs, outputs, parameters, and texts in contents; send "
                "tensors in raw_input_contents"
            )
        tag, at = _read_varint(self.view, at, end)
        kind = tag & 7
        if kind == _LENGTH_DELIMITED:
            nbytes, at = _read_varint(self.view, at, end)
        elif kind == _VARINT:
            return tag, at, _read_varint(self.view, at, end)[1]
        elif kind in _FIXED_BYTES:
            nbytes = _FIXED_BYTES[kind]
        else:
            raise _Group
        if nbytes > end - at:
            raise DecodeError("a field ends behind its message")
        return tag, at, at + nbytes


class _Group(Exception):
    """A field of whose end only protobuf knows, or none at all."""


class _Cutter:
    """Parses one large request."""

    def __init__(self, view: memoryview, max_fields: int, max_weight: int, *, weighs_numbers: bool) -> None:
        self._view = view
        self._walk = _Walk(view, max_fields)
        self._max_weight = self._left = max_weight
        self._weighs_numbers = weighs_numbers
        self._raw: list[Buffer] = []
        self._typed: dict[int, tuple[int, memoryview]] = {}
        self._inputs = 0
        self._is_whole = False
        """Whether only protobuf can read it; it was weighed as a whole."""
        self._kept: list[Buffer] = []
        self._keep_from = 0
        """What lies from here on is not in `_kept` yet, and is kept up to where something is cut out."""

    def steps(self) -> Iterator[None]:
        """Walk over all of it, and stop every few hundred fields. Raises DecodeError, _TooWide."""
        walk, end = self._walk, len(self._view)
        at = 0
        try:
            while at < end:
                if walk.is_step:
                    yield
                tag_at = at
                tag, begin, at = walk.next(at, end)
                if tag == _RAW_INPUT_CONTENTS:
                    self._raw.append(self._view[begin:at])
                    self._cut(tag_at, at)
                elif tag == _INPUTS:
                    yield from self._input(tag_at, begin, at)
                    self._inputs += 1
                elif tag == _PARAMETERS:
                    yield from self._parameter(begin, at)
                else:
                    self._weigh(at - tag_at)
        except _Group:
            self._weigh(end)
            self._is_whole = True
            return
        self._cut(end, end)

    @property
    def left_bytes(self) -> int:
        """Bytes that `finish` has to parse."""
        if self._is_whole:
            return len(self._view)
        return sum(map(len, self._kept)) + sum(len(packed) for _, packed in self._typed.values())

    def finish(self) -> Parsed:
        """Parse what was kept, behind the last of `steps`. Raises DecodeError."""
        if self._is_whole:
            return _parse_whole(self._view)
        message = ModelInferRequest.FromString(b"".join(self._kept))
        return Parsed(message, self._raw, {index: _numbers(*found) for index, found in self._typed.items()})

    def _cut(self, begin: int, end: int) -> None:
        """Keep what lies before *begin*, and go on from *end*."""
        if self._keep_from < begin:
            self._kept.append(self._view[self._keep_from : begin])
        self._keep_from = end

    def _weigh(self, nbytes: int) -> None:
        self._left -= nbytes
        if self._left < 0:
            raise _TooWide(
                f"request has more than {self._max_weight} bytes beside its tensors; send tensors in raw_input_contents"
            )

    def _weigh_text(self, nbytes: int) -> None:
        self._weigh(min(nbytes, _LARGE_ELEMENT_BYTES) // _TEXT_SHARE)

    def _input(self, tag_at: int, begin: int, end: int) -> Iterator[None]:
        if end - begin < _LARGE_ELEMENT_BYTES:
            self._weigh(end - tag_at)
            return
        contents: list[tuple[int, int, int]] = []
        at = begin
        while at < end:
            if self._walk.is_step:
                yield
            field_at = at
            tag, content, at = self._walk.next(at, end)
            if tag == _CONTENTS:
                contents.append((field_at, content, at))
            else:
                self._weigh(at - field_at)
        if len(contents) != 1:  # protobuf would merge them; nobody sends several
            self._weigh(sum(after - content for _, content, after in contents))
            return
        field_at, content, after = contents[0]
        found = self._packed(content, after)
        if found is None:
            yield from self._texts(content, after)
            return
        self._typed[self._inputs] = found
        if self._weighs_numbers:
            self._weigh(after - content)
        # The input without its contents, whose place an empty one takes.
        kept = end - begin - (after - field_at) + 2
        self._cut(tag_at, begin)
        self._kept.append(field_header(_INPUTS, kept))
        self._cut(field_at, after)
        self._kept.append(bytes((_CONTENTS, 0)))
        self._cut(end, end)

    def _parameter(self, at: int, end: int) -> Iterator[None]:
        if end - at < _LARGE_ELEMENT_BYTES:
            self._weigh((end - at) // _PARAMETER_SHARE)
            return
        while at < end:
            if self._walk.is_step:
                yield
            tag, inner, at = self._walk.next(at, end)
            if tag != _VALUE:
                self._weigh_text(at - inner)
                continue
            while inner < at:
                if self._walk.is_step:
                    yield
                begin = inner
                _, _, inner = self._walk.next(inner, at)
                self._weigh_text(inner - begin)

    def _packed(self, begin: int, end: int) -> tuple[int, memoryview] | None:
        """Number and bytes of the only field of contents, where that is packed numbers."""
        if begin == end:
            return None
        tag, content, after = self._walk.next(begin, end)
        return (tag >> 3, self._view[content:after]) if tag in _NUMBERS and after == end else None

    def _texts(self, at: int, end: int) -> Iterator[None]:
        while at < end:
            if self._walk.is_step:
                yield
            begin = at
            tag, _, at = self._walk.next(at, end)
            if tag == _BYTES_CONTENTS:
                self._weigh_text(at - begin)
            else:
                self._weigh(at - begin)


def _numbers(number: int, packed: memoryview) -> Typed:
    dtype = np.dtype(_NUMBERS[number << 3 | _LENGTH_DELIMITED])
    if dtype.kind == "f":
        if len(packed) % dtype.itemsize:
            raise DecodeError("packed numbers end within one")
        return Typed(number, np.frombuffer(packed, dtype.newbyteorder("<")))
    values = _varints(np.frombuffer(packed, np.uint8))
    return Typed(number, values != 0 if dtype.kind == "b" else values.astype(dtype))


_CHUNK = 1 << 18  # numbers that are decoded at a time, so that what is computed in between stays small


def _varints(octets: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64] | npt.NDArray[np.uint8]:
    """The numbers of a packed field, of 64 bits where not all of them are of one octet. Raises DecodeError."""
    last = np.flatnonzero(octets < 0x80)
    if len(last) == len(octets):
        return octets
    if not len(last) or last[-1] != len(octets) - 1:
        raise DecodeError("a number is cut off")
    values = np.empty(len(last), np.uint64)
    first = 0
    for begin in range(0, len(last), _CHUNK):
        lasts = last[begin : begin + _CHUNK]
        firsts = np.empty_like(lasts)
        firsts[0], firsts[1:] = first, lasts[:-1] + 1
        lengths = lasts - firsts + 1
        longest = int(lengths.max())
        if longest > 10:
            raise DecodeError("a number has no end")
        part = (octets[firsts] & np.uint8(0x7F)).astype(np.uint64)
        for index in range(1, longest):
            goes_on = np.flatnonzero(lengths > index)
            part[goes_on] |= (octets[firsts[goes_on] + index] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(
                7 * index
            )
        values[begin : begin + _CHUNK] = part
        first = int(lasts[-1]) + 1
    return values


def _read_varint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    """The number that begins at *at*, and where it ends. Raises DecodeError for one that is cut off, or has no end."""
    number = shift = 0
    while at < end and shift < 64:
        octet = view[at]
        at += 1
        number |= (octet & 0x7F) << shift
        if not octet & 0x80:
            return number, at
        shift += 7
    raise DecodeError("a number is cut off")


def field_header(tag: int, nbytes: int) -> bytes:
    """Tag and varint length of a length-delimited field."""
    header = [tag]
    while nbytes > 0x7F:
        header.append(nbytes & 0x7F | 0x80)
        nbytes >>= 7
    header.append(nbytes)
    return bytes(header)
