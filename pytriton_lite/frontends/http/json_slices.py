"""Large JSON documents, parsed in slices, so that no single call keeps the interpreter to itself for long.

orjson holds the interpreter lock for its whole call: 60 MB of numbers are a second in which the event loop stands still,
whichever thread the call is in. So the long arrays of a document, which are tensor data, are cut out of it:

    document    {"inputs":[{"name":"IN","shape":[2,500000],"datatype":"FP32","data":[[0.1, … ]]}]}
    skeleton    {"inputs":[{"name":"IN","shape":[2,500000],"datatype":"FP32","data":"<mark>0"}]}   parsed at once
    LargeArray                                                                    [[0.1, … ]]      parsed in slices

* The skeleton is bounded by what it would take to parse: `MAX_CONTAINERS`, `MAX_VALUES`. What no request needs is refused.
* A slice of an array ends at a comma between two elements. Whatever lists are open there are closed for it, and opened again
  for the next one, so that the slices are valid exactly if the array is.
* Finding the arrays is numpy's work on 64 KiB at a time: which bytes are inside strings, and how deep brackets are.
"""

from __future__ import annotations

import asyncio
import mmap
import secrets
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pytriton_lite.core.tensor import Buffer

MAX_CONTAINERS = 20_000
"""Objects and lists outside long arrays: what orjson makes in 5 ms, and on a busy machine in 20."""
MAX_VALUES = 200_000
"""Values outside long arrays, in 15 ms."""
LONG_BYTES = 4 << 10
"""An array as long as this is cut out."""
PIECE_BYTES = 64 << 10
SMALL_BYTES = 64 << 10
"""Up to this weight a document is parsed in one go: the worst, twenty thousand lists, takes 10 ms."""
_LIGHT_BYTES = 256 << 10
_PART_BYTES = 4

_QUOTE, _COMMA = ord('"'), ord(",")
_OPEN, _CLOSE, _OPEN_OBJECT, _CLOSE_OBJECT = b"[]{}"
_BLANKS = b" \t\r\n"

_ORJSON_MEMORY = 16
"""Bytes that orjson allocates for each of a document: 12, and the values."""
_ORJSON_MORE_MEMORY = 4 << 20
"""Memory for values that are larger than their text, in as much text as is parsed or written at a time."""

Bytes = npt.NDArray[np.uint8]
Result = TypeVar("Result")


def weight(document: Buffer) -> int:
    """The length of *document*, or, where that is not much, of one of short numbers that takes as long to parse.

    A long string takes a fraction of the time of its length in numbers.
    """
    nbytes = len(document)
    if not SMALL_BYTES < nbytes <= _LIGHT_BYTES:
        return nbytes
    found = np.frombuffer(document, np.uint8)  # whose comparisons are five times as fast as bytes.count
    parts = sum(int(np.count_nonzero(found == one)) for one in (_COMMA, _OPEN, _OPEN_OBJECT))
    return max(nbytes // 4, parts * _PART_BYTES)


def count_parts(document: Buffer) -> tuple[int, int]:
    """How many objects and lists *document* has, and how many commas, outside of its strings; of what is no JSON about so."""
    containers = commas = 0
    for _, found in _pieces(memoryview(document), 0, len(document)):
        containers += int(np.count_nonzero((found | 0x20) == _OPEN_OBJECT))  # brackets become braces
        commas += int(np.count_nonzero(found == _COMMA))
    return containers, commas


def is_small(document: Buffer) -> bool:
    """Whether *document* is parsed in one go."""
    return weight(document) <= SMALL_BYTES


_job: ContextVar[Job | None] = ContextVar("job", default=None)


class GivenUp(Exception):
    """The client has gone: nobody waits for what was being parsed."""


_SLICE_S = 0.001
_LONGEST_PAUSE_S = 1.0
"""A loop that has no turn in this time is about to end."""


class Job:
    """Work in a thread that parses, and stops between two pieces when somebody sets ``is_given_up``.

    Between two slices of a millisecond the event loop has a turn. It gives the interpreter up for every call to the system
    and every record of TLS, a hundred times in a turn when it is busy, and a thread that wanted it at once would make it wait
    as often for the end of a piece.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_given_up = False
        self._loop = loop
        self._had_turn = threading.Event()
        self._began_at = 0.0

    def pause(self) -> None:
        """Let the loop have its turn if it is time. Raises GivenUp where nobody waits for the work any more."""
        if time.monotonic() - self._began_at >= _SLICE_S and not self.is_given_up:
            self._had_turn.clear()
            try:
                self._loop.call_soon_threadsafe(self._had_turn.set)
            except RuntimeError:  # it is closed
                raise GivenUp from None
            self._had_turn.wait(_LONGEST_PAUSE_S)
            self._began_at = time.monotonic()
        if self.is_given_up:
            raise GivenUp

    def run(self, work: Callable[[], Result]) -> Result:
        """What *work* returns or raises. Raises GivenUp."""
        token = _job.set(self)
        self._began_at = time.monotonic()
        try:
            if self.is_given_up:
                raise GivenUp
            return work()
        finally:
            _job.reset(token)


def pause() -> None:
    """`Job.pause` of the job that this thread works on, if it does; between two pieces of what is written."""
    job = _job.get()
    if job is not None:
        job.pause()


def need_memory(nbytes: int) -> None:
    """Raise MemoryError where orjson would not get what it needs for a text of *nbytes* bytes.

    It does not look whether it got it, and kills the process (seen with 3.13). Nobody takes the memory in between: who works
    with orjson has the interpreter from this question on.
    """
    try:
        mmap.mmap(-1, _ORJSON_MEMORY * nbytes + _ORJSON_MORE_MEMORY).close()
    except OSError:
        raise MemoryError from None


class DocumentError(ValueError):
    """A syntax error at byte ``offset``."""

    def __init__(self, detail: str, offset: int) -> None:
        super().__init__(detail)
        self.detail = detail
        self.offset = offset


class TooComplex(ValueError):
    """A document of more parts than any request needs; the text says which."""


@dataclass(frozen=True)
class LargeArray:
    """An array of a document that nobody has parsed yet: ``document[start:end]``, with its brackets."""

    document: memoryview
    start: int
    end: int
    parse: Callable[[bytes], object]
    """Parses a document. Raises DocumentError."""

    def slices(self) -> Iterator[list[object]]:
        """The elements in their order, some thousand at a time, in lists as deep as they are in the array.

        Raises DocumentError.
        """
        at, depth, depth_at = self.start, 0, 0
        for start, found in _pieces(self.document, self.start, self.end):
            brackets = _depth_changes(found)
            commas = np.flatnonzero(found == _COMMA)
            if len(commas):
                cut = int(commas[-1])
                depth_at_cut = depth_at + int(brackets[:cut].sum(dtype=np.int64))
                if depth_at_cut > 0:
                    yield self._slice(at, start + cut, depth, depth_at_cut)
                    at, depth = start + cut + 1, depth_at_cut
            depth_at += int(brackets.sum(dtype=np.int64))
        yield self._slice(at, self.end, depth, 0)

    def count(self) -> int:
        """How many elements it has, each list in it counted as one."""
        commas, depth = 0, 0
        for _, found in _pieces(self.document, self.start, self.end):
            depths = np.cumsum(_depth_changes(found), dtype=np.int64) + depth
            commas += int(np.count_nonzero((found == _COMMA) & (depths == 1)))
            depth = int(depths[-1])
        return commas + 1

    def _slice(self, start: int, end: int, depth: int, depth_behind: int) -> list[object]:
        piece = bytes(self.document[start:end])
        contents = piece.strip(_BLANKS)
        # A list may be empty, but not beside the comma where it was cut.
        if start > self.start and contents[:1] in (b"", b"]"):
            raise DocumentError("Invalid value.", start + len(piece) - len(piece.lstrip(_BLANKS)))
        if end < self.end and contents[-1:] in (b"", b"["):
            raise DocumentError("Invalid value.", end)
        try:
            value = self.parse(b"".join((b"[" * depth, piece, b"]" * depth_behind)))
        except DocumentError as error:
            raise DocumentError(error.detail, min(max(start + error.offset - depth, start), end)) from None
        if type(value) is not list:
            raise DocumentError("Invalid value.", start)
        return value


@dataclass(frozen=True)
class Skeleton:
    """A document without its long arrays. ``arrays`` tells which string stands for which."""

    text: bytes
    arrays: dict[str, LargeArray]
    _begins: list[int]
    _origins: list[int]

    def origin(self, offset: int) -> int:
        """Where in the document byte *offset* of the skeleton is."""
        index = bisect_right(self._begins, offset) - 1
        return self._origins[index] + offset - self._begins[index]


def split(document: memoryview, parse: Callable[[bytes], object]) -> Skeleton:
    """The skeleton of *document*, whose arrays *parse* will parse. Raises TooComplex."""
    return _Splitter(document, parse).split()


class _Splitter:
    def __init__(self, document: memoryview, parse: Callable[[bytes], object]) -> None:
        self._document = document
        self._parse = parse
        self._mark = secrets.token_hex(12)  # nobody can have written it into the document
        self._arrays: dict[str, LargeArray] = {}
        self._parts: list[bytes | memoryview] = []
        self._begins: list[int] = []
        self._origins: list[int] = []
        self._length = 0
        """Length of the parts together."""
        self._kept = 0
        """Up to where the document is in the parts, or cut out."""
        self._containers = 0
        self._values = 0
        self._walked = 0
        """Brackets that were looked at one by one."""
        self._array_start = -1
        """Start of the array that may be cut out; -1 outside one."""
        self._depth = 0
        """Depth inside that array."""
        self._array_containers = 0
        self._array_values = 0

    def split(self) -> Skeleton:
        for at, found in _pieces(self._document, 0, len(self._document)):
            self._walk(at, found)
        self._leave_array()
        self._keep(len(self._document))
        return Skeleton(b"".join(self._parts), self._arrays, self._begins, self._origins)

    def _walk(self, at: int, found: Bytes) -> None:
        """Take the piece at *at*: jump over arrays, look at each bracket outside of them."""
        folded = found | 0x20  # brackets become braces
        places = np.flatnonzero((folded == _OPEN_OBJECT) | (folded == _CLOSE_OBJECT))
        kinds = found[places]
        commas = np.flatnonzero(found == _COMMA)
        is_object = (kinds == _OPEN_OBJECT) | (kinds == _CLOSE_OBJECT)
        objects = np.flatnonzero(is_object)
        depths = np.cumsum(_depth_changes(kinds), dtype=np.int64)
        index, behind = 0, 0
        while index < len(places) or self._array_start >= 0:
            if self._array_start < 0:
                place = int(places[index])
                kind = int(kinds[index])
                index += 1
                self._walked += 1
                if self._walked > 2 * MAX_CONTAINERS + 1:
                    raise TooComplex(f"more than {MAX_CONTAINERS} objects and lists outside of tensor data")
                if kind in (_OPEN, _OPEN_OBJECT):
                    self._count(containers=1)
                if kind == _OPEN and self._is_member(at + place):
                    self._count(values=_between(commas, behind, place))
                    behind = place
                    self._array_start, self._depth = at + place, 1
                    self._array_containers = self._array_values = 0
                continue
            # The array ends where its depth is 0, if no object comes before that.
            before = int(depths[index - 1]) if index else 0
            ends = np.flatnonzero(depths[index:] == before - self._depth)
            end = index + int(ends[0]) if len(ends) else len(places)
            next_object = np.searchsorted(objects, index)
            if next_object < len(objects) and objects[next_object] < end:
                self._leave_array()  # it may have begun in an earlier piece, of which its parts have to be counted
                continue
            stop = int(places[end]) + 1 if end < len(places) else len(found)
            self._array_containers += int((kinds[index:end] == _OPEN).sum())
            self._array_values += _between(commas, behind, stop)
            behind = stop
            if end == len(places):
                self._depth += (int(depths[-1]) if len(depths) else 0) - before
                return
            self._end_array(at + stop)
            index = end + 1
        self._count(values=_between(commas, behind, len(found)))

    def _is_member(self, place: int) -> bool:
        """Whether what begins at *place* is the value of an object's member."""
        before = bytes(self._document[max(place - 64, 0) : place]).rstrip(_BLANKS)
        return before.endswith(b":")

    def _end_array(self, end: int) -> None:
        start = self._array_start
        if end - start < LONG_BYTES:
            self._leave_array()
            return
        self._array_start = -1
        mark = f"{self._mark}{len(self._arrays)}"
        self._arrays[mark] = LargeArray(self._document, start, end, self._parse)
        self._keep(start)
        self._append(b'"%b"' % mark.encode(), start)
        self._kept = end

    def _leave_array(self) -> None:
        """Leave an array that stays in the skeleton."""
        if self._array_start >= 0:
            self._array_start = -1
            self._count(containers=self._array_containers, values=self._array_values)

    def _keep(self, end: int) -> None:
        self._append(self._document[self._kept : end], self._kept)
        self._kept = end

    def _append(self, part: bytes | memoryview, origin: int) -> None:
        self._begins.append(self._length)
        self._origins.append(origin)
        self._parts.append(part)
        self._length += len(part)

    def _count(self, *, containers: int = 0, values: int = 0) -> None:
        self._containers += containers
        self._values += values
        if self._containers > MAX_CONTAINERS:
            raise TooComplex(f"more than {MAX_CONTAINERS} objects and lists outside of tensor data")
        if self._values > MAX_VALUES:
            raise TooComplex(f"more than {MAX_VALUES} values outside of tensor data")


def _depth_changes(found: Bytes) -> npt.NDArray[np.int8]:
    changes: npt.NDArray[np.int8] = (found == _OPEN).view(np.int8) - (found == _CLOSE).view(np.int8)
    return changes


def _between(places: npt.NDArray[np.intp], start: int, end: int) -> int:
    return int(np.searchsorted(places, end) - np.searchsorted(places, start))


def _pieces(document: memoryview, start: int, end: int) -> Iterator[tuple[int, Bytes]]:
    """Position and bytes of each piece of a part that begins outside strings; what is inside strings is zero."""
    at, is_inside = start, 0
    job = _job.get()
    while at < end:
        if job is not None:
            job.pause()
        stop = min(at + PIECE_BYTES, end)
        piece = bytes(document[at:stop])
        if b"\\" in piece:
            if (len(piece) - len(piece.rstrip(b"\\"))) % 2 and stop < end:  # what it escapes belongs to it
                stop += 1
                piece = bytes(document[at:stop])
            piece = piece.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
        found = np.frombuffer(piece, dtype=np.uint8)
        if is_inside or b'"' in piece:
            parity = np.bitwise_xor.accumulate((found == _QUOTE).view(np.uint8)) ^ np.uint8(is_inside)
            is_inside = int(parity[-1])
            found = found * (parity ^ 1)
        yield at, found
        at = stop
