"""One front end as the engine has it: the requests that it has made, and the memory between the two."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from pytriton_lite.core.errors import BUG, ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.tensor import PackedTensors, Tensor, Window
from pytriton_lite.engine.counting.statistics import Refusal
from pytriton_lite.engine.server import Server
from pytriton_lite.engine.workers.memory import Parcel, PeerMemory, room_for
from pytriton_lite.frontends.cancellations import Cancellations
from pytriton_lite.frontends.process import frames
from pytriton_lite.frontends.process.following import Followed
from pytriton_lite.frontends.process.frames import Call, Extras, ExtrasTable
from pytriton_lite.frontends.process.link import EngineLink
from pytriton_lite.frontends.process.numbering import StampedVersions
from pytriton_lite.frontends.process.regions import RegionNumbers
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import frame
from pytriton_lite.ipc.device_segment import DeviceSegment, any_on_device
from pytriton_lite.ipc.messages import INLINE_BYTES, Kind, Place, SpecTable, TensorRef
from pytriton_lite.ipc.region import ClientSegment
from pytriton_lite.scheduling.ticket import Ticket

logger = logging.getLogger(__name__)

FRONT_END_GONE = "the front end of the client was lost"
"""What the access log and traces say of a request whose front end has ended, though it may have answered at the last moment."""
_NO_EXTRAS = Extras({})


class PeerCall:
    """A request of a front end: a `core.request.ResponseReceiver`."""

    __slots__ = ("_number", "_peer", "ticket")

    def __init__(self, peer: Peer, number: int) -> None:
        self._peer = peer
        self._number = number
        self.ticket: Ticket | None = None
        """None before it is begun."""

    def on_response(self, response: InferenceResponse | InferenceError | None, *, is_final: bool) -> None:
        """See `core.request.ResponseReceiver`."""
        self._peer.reply(self._number, response, is_final=is_final)


class Peer:
    """The calls of one front end process: a `link.FrameTaker`. `close` when it is gone."""

    def __init__(
        self,
        server: Server,
        link: EngineLink,
        memory: PeerMemory,
        *,
        followed: Followed,
        regions: RegionNumbers,
        versions: StampedVersions,
        name_of: Callable[[int], str],
    ) -> None:
        """*versions* are those that front ends know by their stamps.

        *name_of* gives the name of a model by the number under which front ends know it.
        """
        self._versions = versions
        self._server = server
        self._link = link
        self._memory = memory
        self._followed = followed
        self._regions = regions
        self._name_of = name_of
        self._specs = SpecTable()
        self._extras = ExtrasTable()
        self._calls: dict[int, PeerCall] = {}
        self._begun = self._begun_before = 0
        """Calls that have come, and how many that were when somebody looked last."""
        self._is_closed = False

    def news(self) -> list[bytes]:
        """See `link.FrameTaker`: memory that the next replies lie in."""
        return self._memory.frames(self._link.send_descriptor) if self._memory.is_touched else []

    def take(self, kind: int, body: memoryview) -> bool:
        """See `link.FrameTaker`."""
        if kind == frames.CALL:
            self._begin(bytes(body))
        elif kind == frames.CONSUMED:
            for number, count in frames.read_pairs(body):
                call = self._calls.get(number)
                if call is not None and call.ticket is not None:
                    call.ticket.consumed(count)
        elif kind == frames.CANCEL:
            for number in frames.read_numbers(body):
                call = self._calls.pop(number, None)
                if call is not None and call.ticket is not None:
                    call.ticket.cancel()
        elif kind == Kind.RELEASE:
            self._memory.release(messages.read_release(body))
        elif kind == Kind.SEGMENT:
            segment_id, nbytes, *_ = messages.read_segment(body)
            self._memory.attach(segment_id, self._link.receive_descriptor(), nbytes)
        elif kind == Kind.DROP:
            self._memory.drop(messages.read_drop(body))
        elif kind == frames.REFUSED:
            self._count_refusal(frames.read_said(body)[1])
        elif kind == frames.BEGUN:
            number, said, _ = frames.read_said(body)
            self._followed.begin(number, said)
        elif kind == frames.ENDED:
            number, said, _ = frames.read_said(body)
            self._followed.end(number, said)
        else:
            return False
        return True

    def _begin(self, body: bytes) -> None:
        message = frames.read_call(body)
        end, nbytes, form = self._specs.measure(body, message.at, message.tensors)
        number = message.number
        self._begun += 1
        call = self._calls[number] = PeerCall(self, number)
        try:
            if nbytes >= 0:
                packed = PackedTensors(body[message.at : end], message.tensors, nbytes, self._specs.unpack, form)
                request = self._request(message, None, packed)
            else:
                refs = frames.read_inputs(body, message, self._specs)
                request = self._request(message, [self._tensor(ref) for ref in refs], None)
            served = self._versions.get(message.stamp)
            if served is not None:
                call.ticket = served.infer_checked(
                    request, call, message.batch_size, has_shape_key=message.has_shape_key
                )
            else:  # it has changed since the front end looked
                found = self._server.find_again(request, is_decoupled=message.is_decoupled)
                call.ticket = self._server.infer(found, request, call)
        except InferenceError as error:
            if nbytes < 0:
                self._memory.refuse(frames.read_inputs(body, message, self._specs))
            error.is_refusal = True
            self.reply(number, error, is_final=True)
        except Exception:
            # A bug of ours is no other request's, and none of the connections of its front end.
            logger.exception("request to model '%s' failed inside the server", self._name_of(message.model))
            self.reply(number, InferenceError(ErrorCode.INTERNAL, BUG), is_final=True)

    def _request(self, message: Call, inputs: list[Tensor] | None, packed: PackedTensors | None) -> InferenceRequest:
        extras = self._extras.decode(message.extras) if message.extras else _NO_EXTRAS
        request = InferenceRequest(
            self._name_of(message.model),
            None if message.version < 0 else message.version,
            request_id=message.request_id,
            inputs=inputs,
            packed=packed,
            requested_outputs=extras.requested_outputs,
            parameters=extras.parameters,
            correlation_id=extras.correlation_id,
            sequence_flags=extras.sequence_flags,
            priority=extras.priority,
            timeout_us=extras.timeout_us,
            classes=extras.classes,
        )
        if extras.windows:
            request.output_windows = {
                name: Window(self._regions.segment(region), offset, nbytes)
                for name, region, offset, nbytes in extras.windows
            }
            request.on_device = any(
                isinstance(window.segment, DeviceSegment) for window in request.output_windows.values()
            )
        if inputs is not None and not request.on_device:
            request.on_device = any_on_device(inputs)
        if extras.timeline:
            request.timeline = self._followed.get(extras.timeline)
        return request

    def _tensor(self, ref: TensorRef) -> Tensor:
        if ref.place == Place.INLINE:
            return Tensor(ref.name, ref.datatype, ref.shape, ref.inline)
        if ref.place == Place.REGION:
            home = (self._regions.segment(ref.segment), ref.offset)
            return Tensor(ref.name, ref.datatype, ref.shape, None, ref.nbytes, home=home)
        data, lies = self._memory.read(ref)
        return Tensor(ref.name, ref.datatype, ref.shape, data, home=lies)

    def _count_refusal(self, said: list[Any]) -> None:
        """A front end has found a request wrong before it was whole."""
        name, version = said
        try:
            self._server.find(name, version).statistics.refusals[Refusal.INVALID] += 1
        except InferenceError:
            return  # it is gone meanwhile, and its statistics with it

    # ------------------------------------------------------------------------------------------ replies

    def reply(self, number: int, response: InferenceResponse | InferenceError | None, *, is_final: bool) -> None:
        """Send a response to the call with that *number*."""
        if self._is_closed:
            return
        if is_final:
            self._calls.pop(number, None)
        parts: list[bytes] = []
        if response is None or isinstance(response, InferenceError):
            frames.put_failure(parts, number, response, is_final=is_final)
        else:
            try:
                self._put_response(parts, number, response, is_final=is_final)
            except InferenceError as error:  # no shared memory left
                parts.clear()
                frames.put_failure(parts, number, error, is_final=is_final)
        self._link.add(frame(frames.REPLY, parts))

    def _put_response(self, parts: list[bytes], number: int, response: InferenceResponse, *, is_final: bool) -> None:
        frames.put_response(parts, number, response, is_final=is_final)
        packed = response.packed
        if packed is not None:
            parts.append(packed.data)
            return
        parcels: list[Parcel] = []
        try:
            for tensor in response.outputs:
                if tensor.home is not None and isinstance(tensor.home[0], ClientSegment):
                    # A copy: a process that maps what a client may shorten can be killed by it.
                    tensor = Tensor(tensor.name, tensor.datatype, tensor.shape, tensor.content())
                spec = self._specs.encode(tensor.name, tensor.datatype, tensor.shape)
                if tensor.nbytes <= INLINE_BYTES:
                    messages.put_inline(parts, spec, tensor.data)
                else:
                    parcels.append(Parcel(self._memory, room_for(tensor)))
                    parcels[-1].put(parts, spec, tensor)
        except InferenceError:
            for parcel in parcels:
                self._memory.release(parcel.slots)
            raise

    def trim_if_idle(self) -> None:
        """Give memory back that a burst has taken, where nothing was asked since the last time."""
        if self._memory.is_touched and not self._calls and self._begun == self._begun_before:
            self._memory.trim()
            self._link.flush_soon()
        self._begun_before = self._begun

    def close(self) -> None:
        """The process is gone: cancel what it waited for."""
        self._is_closed = True
        calls, self._calls = self._calls, {}
        Cancellations().add(call.ticket for call in calls.values() if call.ticket is not None)
        self._followed.close(FRONT_END_GONE)
        self._memory.close()
