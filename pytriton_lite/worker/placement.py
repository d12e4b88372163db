"""Tensors between messages and the model: what came in as it is read, what goes out as it is written.

A tensor goes by reference where the engine can find it: as an input of a batch that is open, in memory of another worker, in
the worker's own arena. What is small lies in the message.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import LARGEST_FRAME
from pytriton_lite.ipc.messages import (
    INLINE_BYTES,
    STAYS_ON_DEVICE,
    Announced,
    Answer,
    Place,
    RequestMessage,
    SegmentKind,
    SpecTable,
    TensorRef,
)
from pytriton_lite.ipc.process_memory import Array, InputMemory, OutputMemory, most_segments
from pytriton_lite.ipc.region import MappedRegion
from pytriton_lite.ipc.start import ModelStart
from pytriton_lite.ipc.tensor_io import check_room
from pytriton_lite.worker.api_errors import TritonModelException, error_of
from pytriton_lite.worker.batches import Batches
from pytriton_lite.worker.device_tensors import DeviceTensors
from pytriton_lite.worker.execute import keep_wanted
from pytriton_lite.worker.response import InferenceResponse, Windows
from pytriton_lite.worker.tensor import Tensor

_MOST_PARTS = 3 * (LARGEST_FRAME // 4) // 4096
"""Parts of a message, three for each tensor that lies in it, beyond which small ones go into the arena, too. The server takes
a message of more than `LARGEST_FRAME` for garbage, and a batch of hundreds may have a thousand outputs for each request."""

_MOST_SELECTIONS = 1024
"""Sets of requested outputs that are remembered."""


class Placement:
    """Both sides of a worker's shared memory, and the forms that its tensors have in messages.

    What is written, `put_response` and `put_tensor`, is written by whoever holds the outbox, who then commits or undoes it:
    nobody but the engine may be told of a slot. Reading is for any thread.
    """

    def __init__(
        self, start: ModelStart, descriptors: socket.socket, batches: Batches, on_release: Callable[[], None]
    ) -> None:
        """*on_release* is as for `InputMemory`."""
        self.specs = SpecTable()
        self.inputs = InputMemory(descriptors, on_release)
        self.outputs = OutputMemory(
            descriptors, prefix=start.shm_prefix, ring_bytes=start.ring_bytes, most_segments=most_segments()
        )
        self._batches = batches
        self._names = start.outputs
        self._all_outputs = frozenset(start.outputs)
        self._state_outputs = frozenset(start.state_outputs)
        self._reads_views = start.shared_memory_views
        self._selections: dict[int, frozenset[str]] = {0: self._all_outputs}
        self._takes_device_inputs = start.takes_device_inputs
        self._descriptors = descriptors
        self._devices: DeviceTensors | None = None
        """Tensors on devices; None as long as there was none."""

    @property
    def devices(self) -> DeviceTensors:
        """What has to do with memory of devices, made when it is first needed."""
        if self._devices is None:
            self._devices = DeviceTensors(self._descriptors, self.inputs.give_back)
            self.outputs.release_device = self._devices.release
        return self._devices

    # ------------------------------------------------------------------------------------------ segments

    @property
    def has_device_news(self) -> bool:
        """Whether the engine must be told of memory of devices before it is told of anything in it."""
        return self._devices is not None and self._devices.has_news

    def announcements(self) -> list[bytes]:
        """Frames for new and dropped segments since the last call; descriptors of new ones are sent by this call."""
        frames: list[bytes] = []
        if self._devices is not None:
            frames += self._devices.announcements()
        return frames + self.outputs.announcements()

    def attach(self, announced: Announced) -> None:
        """Know a segment that the engine has told of, whose descriptor, if it has one, comes with the frame."""
        if announced.kind >= SegmentKind.DEVICE:
            self.devices.attach(announced)
        else:
            is_region = announced.kind == SegmentKind.REGION
            self.inputs.attach(announced.number, announced.nbytes, is_region=is_region)

    def drop(self, segment_id: int) -> None:
        """Forget a segment; who has something of it keeps that."""
        if self._devices is None or not self._devices.drop(segment_id):
            self.inputs.drop(segment_id)

    def trim(self) -> None:
        """Give back memory that a burst has made the arenas take."""
        self.outputs.trim()
        if self._devices is not None:
            self._devices.trim()

    # ------------------------------------------------------------------------------------------ in

    def inputs_of(self, batch: int, index: int, message: RequestMessage) -> list[Tensor]:
        """The inputs of request *index* of *batch*; each is read when the model looks at it."""
        if self._takes_device_inputs:
            return [
                self._device_tensor(ref) if ref.place == Place.DEVICE else self._input(batch, index, number, ref)
                for number, ref in enumerate(message.inputs)
            ]
        return [self._input(batch, index, number, ref) for number, ref in enumerate(message.inputs)]

    def _input(self, batch: int, index: int, number: int, ref: TensorRef) -> Tensor:
        # What lies in a message is handed on as it is: to look it up would cost the engine more than its bytes.
        origin = None if ref.place == Place.INLINE else (self, int(Place.INPUT), batch, index << 32 | number)
        return Tensor._of_request(ref.name, ref.datatype, ref.shape, origin, self._reader_of(ref), ref.nbytes)

    def _device_tensor(self, ref: TensorRef) -> Tensor:
        return Tensor._on_device(ref.name, ref.datatype, ref.shape, self.devices.storage(ref))

    def skip(self, requests: list[RequestMessage]) -> None:
        """Give back the memory of inputs that nobody is going to look at."""
        # Held and let go, all together: a slot is given back once, however many inputs lie in it.
        held = [self._hold(ref) for message in requests for ref in message.inputs if ref.place != Place.INLINE]
        held.clear()

    def _hold(self, ref: TensorRef) -> object:
        return self.devices.storage(ref) if ref.place == Place.DEVICE else self.inputs.hold(ref)

    def response_of(self, answer: Answer) -> InferenceResponse:
        """What another model has answered to a call."""
        if answer.error is not None:
            return InferenceResponse(error=error_of(*answer.error))
        response = InferenceResponse([self._given_tensor(ref) for ref in answer.outputs])
        response._parameters = answer.parameters_json
        return response

    def _given_tensor(self, ref: TensorRef) -> Tensor:
        if ref.place == Place.DEVICE:
            return self._device_tensor(ref)
        origin = None if ref.place == Place.INLINE else (self, int(Place.GIVEN), ref.slot, 0)
        return Tensor._of_request(ref.name, ref.datatype, ref.shape, origin, self._reader_of(ref), ref.nbytes)

    def windows_of(self, message: RequestMessage) -> Windows:
        """Where outputs of the request, which has some, go in memory of the client, and which stay on a device."""
        names = self._names
        return {names[output]: (segment, offset, nbytes) for output, segment, offset, nbytes in message.windows}

    def selection(self, mask: int) -> frozenset[str]:
        """The names of the outputs whose bits *mask* has; all of them for 0."""
        selection = self._selections.get(mask)
        if selection is None:
            selection = frozenset(name for bit, name in enumerate(self._names) if mask >> bit & 1)
            if len(self._selections) < _MOST_SELECTIONS:
                self._selections[mask] = selection
        return selection

    def _reader_of(self, ref: TensorRef) -> Callable[[], Any]:
        if ref.place == Place.INLINE:
            return partial(bytearray, ref.inline)
        lease = self.inputs.hold(ref)
        if not lease.size and ref.nbytes:
            return partial(self._read_late, lease, ref)
        if ref.place == Place.SLOT:
            return partial(_slice, lease, ref.offset, ref.nbytes)
        if ref.place == Place.REGION:
            read = _slice_of_others if self._reads_views else _copy
            return partial(_checked, self.inputs.region(ref.segment), read, lease, ref.offset, ref.nbytes)
        # Texts are copied one by one when they are read. Where a tensor begins in a message is chance.
        itemsize = ref.datatype.itemsize or 1
        is_seen = ref.datatype is dtypes.BYTES or (self._reads_views and ref.offset % itemsize == 0)
        return partial(_slice_of_others if is_seen else _copy, lease, ref.offset, ref.nbytes)

    def _read_late(self, lease: Array, ref: TensorRef) -> bytearray:
        """The bytes of *ref*, whose segment could not be mapped when *lease* was made, which keeps the slot until then."""
        try:
            return self.inputs.copy(ref)
        except InferenceError as error:
            raise TritonModelException(error.message) from None

    # ------------------------------------------------------------------------------------------ out

    def put_response(
        self, parts: list[bytes], requested: frozenset[str], windows: Windows | None, response: InferenceResponse
    ) -> None:
        """Append *response*; outputs that nobody asked for are taken out of the object itself (model API, 2.4)."""
        error = response._error
        if error is not None:
            messages.put_error(parts, error._code, error._message)
            return
        wanted = requested & self._all_outputs
        if self._state_outputs:
            wanted |= self._state_outputs
        outputs = keep_wanted(response, wanted)
        if windows is not None:
            if self._concerns_devices(windows):
                self._put_placed(parts, outputs, windows, response)
            else:
                self._put_windowed(parts, outputs, windows, response)
            return
        messages.put_answer(parts, outputs=len(outputs), parameters_json=response._parameters)
        for tensor in outputs:
            self.put_tensor(parts, tensor)

    def _put_windowed(
        self, parts: list[bytes], outputs: list[Tensor], windows: Windows, response: InferenceResponse
    ) -> None:
        """Append a response of which outputs go into the client's memory, or the error where one does not fit there.

        An input that is returned as it came is still to be found with the engine alone, perhaps in memory where another
        output is to go. So the engine puts all of them there, where there is such a one among them.
        """
        here = {} if any(tensor._read is not None for tensor in outputs) else windows
        tensors: list[bytes] = []
        placed = len(self.outputs.uncommitted)
        try:
            pieces = [(tensor, tensor._buffer() if tensor._name in here else None) for tensor in outputs]
            for tensor, data in pieces:
                if data is not None:
                    check_room(tensor._name, len(data), here[tensor._name][2])
            for tensor, data in pieces:
                if data is None:
                    self.put_tensor(tensors, tensor)
                else:
                    self._put_into_window(tensors, tensor, data, *here[tensor._name][:2])
        except InferenceError as error:
            self.outputs.undo(placed)
            messages.put_error(parts, error.code, error.message)
            return
        messages.put_answer(parts, outputs=len(outputs), parameters_json=response._parameters)
        parts += tensors

    def _concerns_devices(self, windows: Windows) -> bool:
        """Whether some output stays on a device, or goes to one."""
        for segment, _, _ in windows.values():  # noqa: SIM110  # asked for every request with windows: no generator
            if segment == STAYS_ON_DEVICE or self._is_device_region(segment):
                return True
        return False

    def _is_device_region(self, segment: int) -> bool:
        return self._devices is not None and self._devices.has(segment)

    def _put_placed(
        self, parts: list[bytes], outputs: list[Tensor], windows: Windows, response: InferenceResponse
    ) -> None:
        """Append a response of which outputs stay on a device, or go to one, or the error where one does not fit there."""
        tensors: list[bytes] = []
        placed = len(self.outputs.uncommitted)
        try:
            for tensor in outputs:
                segment, first, second = windows.get(tensor._name, (-1, 0, 0))
                if segment == STAYS_ON_DEVICE:
                    self._put_on_device(tensors, tensor, messages.uuid_of_numbers(first, second))
                elif segment > 0 and self._is_device_region(segment):
                    nbytes = tensor._nbytes()
                    check_room(tensor._name, nbytes, second)
                    self.devices.write(segment, first, tensor)
                    spec = self.specs.encode(tensor._name, tensor._datatype, tensor._shape)
                    messages.put_reference(tensors, spec, place=Place.REGION, nbytes=nbytes)
                elif segment > 0 and tensor._read is None:
                    data = tensor._buffer()
                    check_room(tensor._name, len(data), second)
                    self._put_into_window(tensors, tensor, data, segment, first)
                else:
                    self.put_tensor(tensors, tensor)
        except InferenceError as error:
            self.outputs.undo(placed)
            messages.put_error(parts, error.code, error.message)
            return
        messages.put_answer(parts, outputs=len(outputs), parameters_json=response._parameters)
        parts += tensors

    def _put_on_device(self, parts: list[bytes], tensor: Tensor, uuid: bytes) -> None:
        """Append *tensor*, a copy on the device *uuid*, or on its own for b"", where that can be; otherwise as ever."""
        spec = self.specs.encode(tensor._name, tensor._datatype, tensor._shape)
        slot = self.devices.put(parts, spec, tensor, uuid)
        if slot is None:
            self.put_tensor(parts, tensor)
        else:
            self.outputs.uncommitted.append(slot)

    def put_call_input(self, parts: list[bytes], tensor: Tensor) -> None:
        """Append *tensor*, on the device that it is on; otherwise as an output."""
        if tensor.is_cpu():
            self.put_tensor(parts, tensor)
        else:
            self._put_on_device(parts, tensor, b"")

    def _put_into_window(self, parts: list[bytes], tensor: Tensor, data: memoryview, segment: int, offset: int) -> None:
        nbytes = len(data)
        if nbytes:
            self.inputs.window(segment, offset, nbytes)[:] = np.frombuffer(data, np.uint8)
        spec = self.specs.encode(tensor._name, tensor._datatype, tensor._shape)
        messages.put_reference(parts, spec, place=Place.REGION, nbytes=nbytes)

    def put_tensor(self, parts: list[bytes], tensor: Tensor) -> None:
        """Append *tensor*: by reference what came from the engine, inline what is small, else a copy in the arena."""
        spec = self.specs.encode(tensor._name, tensor._datatype, tensor._shape)
        origin = tensor._origin
        if origin is not None:
            owner, place, slot, offset = origin
            # Of another instance in this process it is, to the engine, another tensor that the numbers stand for.
            if owner is self and (place == Place.GIVEN or self._batches.is_open(slot)):
                messages.put_reference(parts, spec, place=Place(place), slot=slot, offset=offset, nbytes=0)
                return
        if tensor._read is not None:
            # Afresh: what the model wrote into its array is its own affair.
            self._put_bytes(parts, spec, tensor._read())
            return
        if tensor._datatype is dtypes.BYTES or tensor._array is None or tensor._storage is not None:
            self._put_bytes(parts, spec, tensor._buffer())  # BYTES, or memory of a DLPack producer
            return
        array = np.asarray(tensor._array)  # a subclass has bytes of its own making
        if array.nbytes <= INLINE_BYTES and len(parts) < _MOST_PARTS:
            messages.put_inline(parts, spec, array.tobytes())
        else:
            self.outputs.put(parts, spec, array)

    def _put_bytes(self, parts: list[bytes], spec: bytes, data: Any) -> None:
        if len(data) <= INLINE_BYTES and len(parts) < _MOST_PARTS:
            messages.put_inline(parts, spec, bytes(data))
        else:
            self.outputs.put_bytes(parts, spec, data)


def _slice(lease: Array, offset: int, nbytes: int) -> Array:
    return lease[offset : offset + nbytes]


def _slice_of_others(lease: Array, offset: int, nbytes: int) -> Array:
    view = lease[offset : offset + nbytes]
    view.flags.writeable = False
    return view


def _copy(lease: Array, offset: int, nbytes: int) -> Array:
    # Not a bytearray: numpy asks for large pages, which are had four times as fast.
    copy: Array = lease[offset : offset + nbytes].copy()
    return copy


def _checked(region: MappedRegion, read: Callable[..., Any], lease: Array, offset: int, nbytes: int) -> Any:
    """*read*, where the client still has what is to be read."""
    try:
        region.check(offset, nbytes)
    except InferenceError as error:
        raise TritonModelException(error.message) from None
    return read(lease, offset, nbytes)
