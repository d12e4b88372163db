"""What every route that takes a body needs: the body itself, under a limit, and bytes that travel in JSON."""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import string
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.cores import usable_cores
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.tensor import MAX_DIMENSIONS
from pytriton_lite.engine.counting.receive_budget import ReceiveBudget
from pytriton_lite.engine.workers.intake import home_of, own_memory
from pytriton_lite.frontends.http.codec import check_limit
from pytriton_lite.frontends.http.json_slices import Job, pause, weight
from pytriton_lite.frontends.listener import Receive, Scope, read_body_into, when_gone

if TYPE_CHECKING:
    from fastapi import Request  # half of what a process that serves HTTP would import

    from pytriton_lite.core.request import InferenceRequest
    from pytriton_lite.core.tensor import Tensor
    from pytriton_lite.engine.workers.intake import Intake

Result = TypeVar("Result")

_LARGE_BYTES = 64 << 10
"""JSON of so many bytes goes to a thread: it takes up to 10 ms on the loop, with NaN among strings 25."""

_VERY_LARGE_BYTES = 1 << 20
"""About 50 ms."""
_INFLATIONS = 2
"""Bodies that are decompressed at a time: the threads take the interpreter from the loop, and memory for what they make. One
core is the loop's."""

_UNCOUNTED_BYTES = 64 << 10
_COPIED_BYTES = 256 << 10
"""An input of no more is copied when it goes to its worker, in a tenth of a millisecond: a thread takes as long to begin."""
_BASE64_STEP = 1 << 20
_NOT_BASE64 = bytes(set(range(256)) - set((string.ascii_letters + string.digits + "+/").encode()))


class Disconnected(Exception):
    """The client went away before its request was complete, or before it was answered; there is nobody to answer."""


def is_large(nbytes: int) -> bool:
    """Whether `LargeDocuments` has work on *nbytes* of JSON done elsewhere."""
    return nbytes >= _LARGE_BYTES


class LargeDocuments:
    """Threads for JSON that would keep the event loop busy: two of them, one for very large documents.

    They share the interpreter with the loop, which waits for it after every call that gives it up, as each record of TLS
    does. So there is one of these for all routes, and what is done here is done in slices (`json_slices`). Between two of
    them it is given up when nobody waits for it any more.
    """

    def __init__(self) -> None:
        self.inflations = asyncio.Semaphore(max(1, min(_INFLATIONS, usable_cores() - 1)))
        """Turns to decompress a body in a thread."""
        self._turn = asyncio.Semaphore(1)
        self._turn_of_very_large = asyncio.Semaphore(1)

    async def run(self, nbytes: int, work: Callable[[], Result], scope: Scope | None = None) -> Result:
        """What *work* returns or raises, which reads or writes about *nbytes*; at once where that takes no time.

        *scope* is that of the request it is done for. Raises Disconnected when its client has gone away.
        """
        if not is_large(nbytes):
            try:
                return work()
            except MemoryError:
                raise _no_memory(nbytes) from None
        gone = None if scope is None else when_gone(scope)
        if gone is None:
            return await self._in_turn(nbytes, work)
        if gone.done():
            raise Disconnected
        working = asyncio.ensure_future(self._in_turn(nbytes, work))
        give_up = partial(cancel, working)
        gone.add_done_callback(give_up)
        try:
            return await working
        except asyncio.CancelledError:
            if gone.done():
                raise Disconnected from None
            raise
        finally:
            gone.remove_done_callback(give_up)
            # What it raised has this frame, and with it the document, which would wait for a collection.
            del working, give_up

    async def _in_turn(self, nbytes: int, work: Callable[[], Result]) -> Result:
        turn = self._turn if nbytes < _VERY_LARGE_BYTES else self._turn_of_very_large
        await turn.acquire()
        loop = asyncio.get_running_loop()
        job = Job(loop)
        try:
            done = loop.run_in_executor(None, job.run, work)
        except RuntimeError:  # no thread can be started
            job.is_given_up = True  # a thread of later on finds it in its line
            turn.release()
            raise
        done.add_done_callback(lambda _: turn.release())
        try:
            # Not `done` itself, which would be cancelled: the thread keeps its turn until it has seen that it may stop.
            await asyncio.wait({done})
        except asyncio.CancelledError:
            job.is_given_up = True
            done.add_done_callback(_forget)
            raise
        try:
            return done.result()
        except InferenceError as refusal:
            # Whoever answers it need not keep the frames of the thread, which have the document.
            refusal.__context__ = None
            raise refusal.with_traceback(None) from None
        except MemoryError:
            raise _no_memory(nbytes) from None
        finally:
            del done  # as above


def many_texts(request: InferenceRequest) -> list[Tensor]:
    """The BYTES inputs of *request*, where the engine's look at each of their elements would take long; none otherwise."""
    texts = [
        tensor
        for tensor in request.inputs
        if tensor.datatype is dtypes.BYTES
        and tensor.data
        and tensor.elements is None
        and len(tensor.shape) <= MAX_DIMENSIONS  # others are refused
    ]
    if sum(bytes_tensor.most_elements(text.nbytes, text.shape) for text in texts) <= bytes_tensor.MANY_ELEMENTS:
        return []
    return texts


async def count_texts(texts: Sequence[Tensor], large: LargeDocuments, scope: Scope | None = None) -> None:
    """Count the elements of *texts*, which `many_texts` has found, in a thread.

    *scope* is that of their request. Raises Disconnected when its client has gone away.
    """
    if not texts:
        return

    def count() -> None:
        for text in texts:
            for found in bytes_tensor.counting(text.content()):
                text.elements = found
                pause()

    await large.run(sum(text.nbytes for text in texts), count, scope)


async def move_inputs(
    request: InferenceRequest, intake: Intake, large: LargeDocuments, scope: Scope | None = None
) -> None:
    """Move large inputs of *request* from memory of this process alone to where their worker finds them, in a thread.

    Whoever hands requests to a worker would copy them, those of a whole batch at once, while nobody else is served. They stay
    where they are where *intake* has no room. *scope* is that of the request. Raises Disconnected when its client has gone.
    """
    moved: list[tuple[Tensor, memoryview]] = []
    for tensor in request.inputs:
        if tensor.data is not None and tensor.home is None and tensor.nbytes > _COPIED_BYTES:
            with contextlib.suppress(MemoryError):
                room = intake.room(tensor.nbytes)
                if home_of(room) is not None:
                    moved.append((tensor, room))
    if not moved:
        return

    def move() -> None:
        for tensor, room in moved:
            # By numpy, which lets go of the interpreter meanwhile.
            np.copyto(np.frombuffer(room, np.uint8), np.frombuffer(tensor.content(), np.uint8))
            pause()

    await large.run(sum(tensor.nbytes for tensor, _ in moved), move, scope)
    for tensor, room in moved:
        tensor.data, tensor.home = room, home_of(room)


def _no_memory(nbytes: int) -> InferenceError:
    text = f"no memory to read or write {nbytes} bytes of tensors as JSON; send smaller ones, or as binary data"
    return InferenceError(ErrorCode.UNAVAILABLE, text)


def cancel(working: asyncio.Future[Any], _: asyncio.Future[None]) -> None:
    """Cancel *working*: a callback of the future that says that its client has gone."""
    working.cancel()


def _forget(done: asyncio.Future[Result]) -> None:
    """Look at the end of what was given up, for which nobody waits."""
    if not done.cancelled():
        done.exception()


async def next_piece(receive: Receive) -> tuple[bytes, bool]:
    """More of the body, and whether that was not all. Raises Disconnected."""
    message = await receive()
    if message["type"] != "http.request":
        raise Disconnected
    return message["body"], message.get("more_body", False)


class Receiving:
    """The bytes of one body that is not whole, in the server's budget of them; a context that gives them back.

    Bodies of up to 64 KiB are not counted: what a connection buffers anyway is as much.
    """

    __slots__ = ("_budget", "_taken")

    def __init__(self, budget: ReceiveBudget) -> None:
        self._budget = budget
        self._taken = 0

    def __enter__(self) -> Receiving:
        return self

    def __exit__(self, *exception: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        """Give back what was taken: the bytes are the engine's, or nobody's."""
        self._budget.give_back(self._taken)
        self._taken = 0

    def hold(self, nbytes: int) -> None:
        """Take room for *nbytes* of the body, which are here now. Raises InferenceError where the budget has none."""
        if nbytes <= _UNCOUNTED_BYTES or nbytes <= self._taken:
            return
        # In steps, so that a body in single bytes is not counted byte by byte.
        more = -(-(nbytes - self._taken) // _UNCOUNTED_BYTES) * _UNCOUNTED_BYTES
        if not self._budget.try_take(more):
            raise self._budget.refusal(nbytes)
        self._taken += more


async def read_up_to(
    limit: int,
    scope: Scope,
    receive: Receive,
    first: bytes,
    length: int | None,
    what: str,
    receiving: Receiving,
    *,
    intake: Intake | None = None,
) -> bytearray | memoryview:
    """A whole body of which *first* has come and more will. *length* is its Content-Length, *what* the limit's name for it.

    With *intake* a large one, whose length is known, lies there.

    Raises InferenceError as soon as it is known to be larger than *limit* bytes, or that *receiving* has no room; and
    Disconnected.
    """
    if length is not None:
        check_limit(what, length, limit)
        if length > _UNCOUNTED_BYTES:
            # Not one that grows: sixteen of those leave holes as large as themselves in the heap.
            room = allocate(length, intake=intake)
            filled, _, _ = await fill(room, receive, first, receiving, all_of=scope)
            return room[:filled]
    body = bytearray(first)
    more = True
    while more:
        piece, more = await next_piece(receive)
        body += piece
        check_limit(what, len(body), limit)
        receiving.hold(len(body))
    return body


async def fill(
    room: memoryview,
    receive: Receive,
    first: bytes,
    receiving: Receiving,
    *,
    before: int = 0,
    all_of: Scope | None = None,
) -> tuple[int, bytes, bool]:
    """Put what comes of a body, *first* to begin with, into *room*, until that is full or the body ends.

    How much of it was filled, what has come and found no room, and whether more will. *before* are bytes that have come
    before, and are kept. *all_of* is the scope of the request where *room* is as long as all that is left of its body.
    Raises as `read_up_to`.
    """
    if all_of is not None:
        begun = len(first)
        room[:begun] = first
        whole = read_body_into(all_of, room[begun:], lambda nbytes: receiving.hold(before + begun + nbytes))
        if whole is not None:
            try:
                is_whole = await whole
            finally:
                # The error that it may have raised refers to this frame: the room would stay until a collection.
                del whole
            if not is_whole:
                raise Disconnected
            return len(room), b"", False
    filled, more, piece = 0, True, first
    while True:
        end = min(filled + len(piece), len(room))
        room[filled:end] = piece[: end - filled]
        rest = piece[end - filled :]
        filled = end
        receiving.hold(before + filled + len(rest))
        if not more or filled == len(room):
            return filled, rest, more
        piece, more = await next_piece(receive)


def allocate(size: int, *, before: int = 0, intake: Intake | None = None) -> memoryview:
    """Memory that costs nothing before it is written: a client that declares a huge body and sends none takes none.

    For what comes behind *before* bytes of a body; with *intake* it is a room there. Raises InferenceError where there is none.
    """
    try:
        return own_memory(size) if intake is None else intake.room(size)
    except MemoryError:
        raise InferenceError(
            ErrorCode.UNAVAILABLE, f"no memory for a request body of {before + size} bytes; send smaller tensors"
        ) from None


async def wait_disconnected(receive: Receive) -> None:
    """Wait for the end of the connection; what else may come belongs to no body."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Documents:
    """The JSON bodies of routes other than those of inference."""

    def __init__(self, budget: ReceiveBudget, max_size: int, large: LargeDocuments) -> None:
        self._budget = budget
        self._max_size = max_size
        self._large = large

    async def read(self, request: Request, decode: Callable[[bytearray], Result]) -> Result:
        """What *decode* makes of the whole body, in a thread where that may take long.

        Raises InferenceError where the body is larger than ``--http-max-input-size``, or there is no room for it.
        """
        body = bytearray()
        with Receiving(self._budget) as receiving:
            async for piece in request.stream():
                body += piece
                check_limit("JSON", len(body), self._max_size)
                receiving.hold(len(body))
            return await self._large.run(weight(body), lambda: decode(body), request.scope)


def decode_base64(text: str) -> bytes:
    """Decode as Triton does: what is not of the alphabet is passed over, padding need not be there."""
    end = text.find("=")
    length = len(text) if end < 0 else end
    parts: list[bytes] = []
    rest = b""
    # In steps: the interpreter is kept for each call, and there may be 64 MiB.
    for at in range(0, length, _BASE64_STEP):
        part = text[at : min(at + _BASE64_STEP, length)]
        digits = rest + part.encode("ascii", "ignore").translate(None, _NOT_BASE64)
        whole = len(digits) - len(digits) % 4
        parts.append(binascii.a2b_base64(digits[:whole]))
        rest = digits[whole:]
    if len(rest) > 1:  # one alone is six bits of a byte whose end is missing
        parts.append(binascii.a2b_base64(rest + b"=" * (4 - len(rest))))
    return b"".join(parts)
