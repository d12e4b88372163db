"""A front end's inference requests in the engine: CALL, and the REPLYs to it."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse, ResponseReceiver
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.serving.busy_poll import BusyPoll
from pytriton_lite.event_loop import on_loop
from pytriton_lite.frontends.process import frames
from pytriton_lite.frontends.process.frames import Checked, ExtrasTable
from pytriton_lite.frontends.process.link import FrontEndLink
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import frame
from pytriton_lite.ipc.device_segment import DeviceSegment, is_on_device
from pytriton_lite.ipc.lending import Lending, take_all
from pytriton_lite.ipc.messages import INLINE_BYTES, Kind, Place, SegmentKind, SpecTable, TensorRef
from pytriton_lite.ipc.process_memory import InputMemory, OutputMemory
from pytriton_lite.ipc.region import ClientSegment
from pytriton_lite.ipc.segment import Segment

_FIRST_LENT_SEGMENT = 1 << 29
"""What requests were received in has numbers between those of our arena and those of devices' memory."""

logger = logging.getLogger(__name__)


class RemoteCall:
    """A request that the engine has: a `core.request.PendingRequest`."""

    __slots__ = ("_calls", "model_name", "number", "receiver", "request_id")

    def __init__(self, calls: RemoteCalls, number: int, request: InferenceRequest, receiver: ResponseReceiver) -> None:
        self._calls = calls
        self.number = number
        self.model_name = request.model_name
        self.request_id = request.request_id
        self.receiver: ResponseReceiver | None = receiver
        """Is told the responses; None when the call is over or cancelled. It refers to the call: kept, they were a cycle."""

    def consumed(self, count: int = 1) -> None:
        """See `core.request.PendingRequest`."""
        if self.receiver is not None:
            self._calls.consumed(self.number, count)

    def cancel(self) -> None:
        """See `core.request.PendingRequest`."""
        if self.receiver is not None:
            self.receiver = None
            self._calls.cancel(self.number)


class RemoteCalls:
    """All requests of this process that the engine has, and the memory that their tensors lie in: a `link.FrameTaker`."""

    def __init__(self) -> None:
        self._regions: weakref.WeakKeyDictionary[ClientSegment | DeviceSegment, int] = weakref.WeakKeyDictionary()
        """Numbers by which the engine knows segments of clients."""
        self._specs = SpecTable()
        self._extras = ExtrasTable()
        self._open: dict[int, RemoteCall] = {}
        self._is_trimmed = True
        self._next = self._next_before = 1
        """The number of the next call, and what it was when somebody looked last."""
        self._consumed: dict[int, int] = {}
        self._loop = asyncio.get_running_loop()
        self.on_release = on_loop(lambda: self._link.flush_soon())
        """To be called when a slot of the engine's memory is not looked at any more; a thread may be who finds that out."""

    def use(self, link: FrontEndLink, inputs: InputMemory, outputs: OutputMemory, busy_poll_ns: int = 0) -> None:
        """Speak through *link* from now on. *inputs* is the engine's memory here, *outputs* is ours.

        The loop stays awake for *busy_poll_ns* after each request and each response.
        """
        self._busy_poll = BusyPoll(self._loop, busy_poll_ns) if busy_poll_ns else None
        self._link = link
        self._inputs = inputs
        self._outputs = outputs
        self._lending = Lending(self.on_release, first_segment=_FIRST_LENT_SEGMENT)
        """What the engine has of memory that requests were received in."""
        link.taker = self

    def trim_if_idle(self) -> None:
        """Give memory back that a burst has taken, where nothing was begun since the last time."""
        if self._open or self._next != self._next_before:
            self._next_before = self._next
            self._is_trimmed = False
        elif not self._is_trimmed:
            self._is_trimmed = True
            # Responses in circles of objects would keep memory of workers until somebody asks for something.
            gc.collect()
            self._outputs.trim()
            self._link.flush_soon()

    def know_region(self, segment: ClientSegment | DeviceSegment, number: int) -> None:
        """The engine knows *segment* by *number* for as long as it lives here."""
        self._regions[segment] = number

    def news(self) -> list[bytes]:
        """See `link.FrameTaker`: of memory, and of responses that were passed on."""
        found = self._outputs.announcements() + self._lending.frames(self._link.send_descriptor)
        inputs = self._inputs
        if inputs.released:
            found.append(messages.release_frame(take_all(inputs.released)))
        if self._consumed:
            found.append(frames.pairs_frame(frames.CONSUMED, list(self._consumed.items())))
            self._consumed.clear()
        return found

    # ------------------------------------------------------------------------------------------ out

    def begin(
        self, checked: Checked, request: InferenceRequest, receiver: ResponseReceiver, timeline: int
    ) -> RemoteCall:
        """Have the engine take *request*.

        Raises InferenceError where there is no memory for its tensors, or those of a client's are not there any more.
        """
        if self._busy_poll is not None:
            self._busy_poll.keep_awake()
        number = self._next
        self._next = number + 1
        parts: list[bytes] = []
        windows: list[tuple[str, int, int, int]] = []
        if request.output_windows is not None:
            for name, window in request.output_windows.items():
                windows.append((name, self._regions[window.segment], window.offset, window.nbytes))
        frames.put_call(parts, number, checked, request, self._extras.encode(request, timeline, windows))
        packed = request.packed
        if packed is not None:
            parts.append(packed.data)
        else:
            lent: list[int] = []
            try:
                self._put_inputs(parts, request.inputs, lent)
            except BaseException:
                self._outputs.undo()
                self._release(lent)
                raise
        self._outputs.commit()
        call = RemoteCall(self, number, request, receiver)
        self._open[number] = call
        self._link.add(frame(frames.CALL, parts))
        return call

    def _put_inputs(self, parts: list[bytes], inputs: list[Tensor], lent: list[int]) -> None:
        """Append *inputs*; slots of those that stay where they were received go into *lent*."""
        for tensor in inputs:
            spec = self._specs.encode(tensor.name, tensor.datatype, tensor.shape)
            if tensor.nbytes <= INLINE_BYTES and (tensor.data is not None or not is_on_device(tensor)):
                messages.put_inline(parts, spec, tensor.content())
            else:
                self._put_large(parts, spec, tensor, lent)

    def _put_large(self, parts: list[bytes], spec: bytes, tensor: Tensor, lent: list[int]) -> None:
        if tensor.home is not None:
            segment, offset = tensor.home
            if isinstance(segment, Segment):
                number, slot = self._lending.lend(segment, tensor)
                lent.append(slot)
                nbytes = tensor.nbytes
                messages.put_reference(
                    parts, spec, place=Place.SLOT, segment=number, slot=slot, offset=offset, nbytes=nbytes
                )
                return
            messages.put_reference(
                parts,
                spec,
                place=Place.REGION,
                segment=self._regions[segment],
                offset=offset,
                nbytes=tensor.nbytes,
            )
            return
        assert tensor.data is not None
        self._outputs.put_bytes(parts, spec, tensor.data)

    def _release(self, slots: tuple[int, ...] | list[int]) -> None:
        ours = [slot for slot in slots if not self._lending.release(slot)]
        if ours:
            self._outputs.release(ours)

    def consumed(self, number: int, count: int) -> None:
        self._consumed[number] = self._consumed.get(number, 0) + count
        self._link.flush_soon()

    def cancel(self, number: int) -> None:
        if self._open.pop(number, None) is not None:
            self._consumed.pop(number, None)
            # Behind its CALL, which may not have left yet.
            self._link.add(frames.numbers_frame(frames.CANCEL, [number]))

    # ------------------------------------------------------------------------------------------ in

    def take(self, kind: int, body: memoryview) -> bool:
        """See `link.FrameTaker`."""
        if kind == frames.REPLY:
            self._on_reply(body)
        elif kind == Kind.RELEASE:
            self._release(messages.read_release(body))
        elif kind == Kind.SEGMENT:
            announced = messages.read_segment(body)
            is_region = announced.kind == SegmentKind.REGION
            self._inputs.attach(announced.number, announced.nbytes, is_region=is_region)
        elif kind == Kind.DROP:
            self._inputs.drop(messages.read_drop(body))
        else:
            return False
        return True

    def _on_reply(self, body: memoryview) -> None:
        if self._busy_poll is not None:
            self._busy_poll.keep_awake()
        reply = frames.read_reply(body, self._specs)
        call = self._open.get(reply.number)
        outputs: list[Tensor] = []
        error = reply.error
        try:
            outputs = [self._tensor(ref) for ref in reply.outputs]
        except InferenceError as unmapped:
            # Not itself: its traceback keeps what was held.
            error = InferenceError(unmapped.code, unmapped.message)
        if call is None:  # it was cancelled; what came with it is released
            return
        receiver = call.receiver
        assert receiver is not None, "it is open"
        if reply.is_final:
            del self._open[reply.number]
            self._consumed.pop(reply.number, None)
            call.receiver = None
        response: InferenceResponse | InferenceError | None = error
        if response is None and not reply.is_empty:
            packed = reply.packed
            response = InferenceResponse(
                call.model_name,
                reply.version,
                call.request_id,
                outputs if packed is None else None,
                reply.parameters,
                packed,
            )
        try:
            receiver.on_response(response, is_final=reply.is_final)
        except Exception:
            # A bug of a receiver's is no other request's.
            logger.exception("a response could not be passed on")
            call.cancel()

    def _tensor(self, ref: TensorRef) -> Tensor:
        shape = ref.shape
        if ref.place == Place.INLINE:
            return Tensor(ref.name, ref.datatype, shape, ref.inline)
        lease = self._inputs.hold(ref)
        if not lease.size:
            return Tensor(ref.name, ref.datatype, shape, self._inputs.copy(ref))
        held = memoryview(lease)  # type: ignore[arg-type]  # an array has the buffer protocol
        return Tensor(ref.name, ref.datatype, shape, held[ref.offset : ref.offset + ref.nbytes])
