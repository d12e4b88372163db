"""The device helper: a process that has a context on one device, where the engine has none and no model is at hand.

It opens memory that clients and workers have exported, and copies between it and the host. A handle that nobody made, or whose
memory is gone, may crash a driver; it ends this process then, and the engine starts another one.

It is started as workers are, by START with `Task.DEVICE_HELPER` and the device's number, and says READY. From then on the
engine asks, and each ASK gets its ANSWER, in order:

    open    memory, nbytes                      check that it can be opened and has so many bytes, and keep it open
    read    memory, offset, nbytes              copy from the device into a segment whose descriptor comes along
    write   memory, offset, nbytes, from        copy to the device from a segment whose descriptor comes along
    close   memory                              let go of it

*memory* is a number that the engine chooses. With all questions but the last comes how it is opened, if it is not yet:
``handle`` (hex) or ``exported`` (its size), and then its descriptor, in front of that of a segment.
"""

from __future__ import annotations

import mmap
import os
import socket
from typing import Any

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.ipc import device as devices
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import RECEIVE_BYTES, FrameReader, wait_descriptor
from pytriton_lite.ipc.device import Device, DeviceError, DeviceMemory
from pytriton_lite.ipc.messages import Kind
from pytriton_lite.ipc.start import ModelStart


def serve(channel: socket.socket, descriptors: socket.socket, start: ModelStart) -> None:
    """Live as the helper of the device that *start* names, until the engine closes the channel."""
    try:
        device = devices.device(start.device_id)
    except DeviceError as error:
        channel.sendall(messages.failed_frame(ErrorCode.UNAVAILABLE, str(error)))
        return
    channel.sendall(messages.ready_frame(has_is_ready=False))
    helper = DeviceHelper(device, descriptors)
    reader = FrameReader()
    while data := channel.recv(RECEIVE_BYTES):
        for kind, body in reader.feed(data):
            assert kind == Kind.ASK, f"expected ASK, got frame {kind}"
            number, operation, arguments = messages.read_ask(body)
            channel.sendall(messages.answer_frame(number, helper.answer(operation, arguments)))


class DeviceHelper:
    """The memory that is open, and what is done with it."""

    def __init__(self, device: Device, descriptors: socket.socket) -> None:
        self._device = device
        self._descriptors = descriptors
        self._open: dict[int, DeviceMemory] = {}

    def answer(self, operation: str, arguments: dict[str, Any]) -> int | InferenceError:
        """What the engine is answered: the bytes that were copied, or the error."""
        exported = wait_descriptor(self._descriptors) if "exported" in arguments else -1
        segment = wait_descriptor(self._descriptors) if operation in ("read", "write") else -1
        try:
            if operation == "close":
                memory = self._open.pop(arguments["memory"], None)
                if memory is not None:
                    memory.close()
                return 0
            return self._answer(operation, exported, segment, **arguments)
        except DeviceError as error:
            return InferenceError(ErrorCode.INTERNAL, str(error))
        except OSError as error:  # no room for the mapping
            return InferenceError(ErrorCode.UNAVAILABLE, f"the device helper cannot map a segment: {error.strerror}")
        finally:
            for fd in (exported, segment):
                if fd >= 0:
                    os.close(fd)

    def _answer(
        self,
        operation: str,
        exported_fd: int,
        segment: int,
        *,
        memory: int,
        nbytes: int,
        offset: int = 0,
        begin: int = 0,
        handle: str = "",
        exported: int = 0,
    ) -> int:
        """*begin* is where in the segment the bytes are to be read from; they are written at its beginning."""
        opened = self._open.get(memory)
        if opened is None:
            if exported:
                opened = self._device.import_memory(exported_fd, exported)
            else:
                opened = self._device.open_handle(bytes.fromhex(handle))
            self._open[memory] = opened
        if offset + nbytes > opened.nbytes:
            if operation == "open":
                del self._open[memory]
                opened.close()
            raise DeviceError(
                f"{nbytes} bytes at offset {offset} are more than the memory of the device has, {opened.nbytes} bytes"
            )
        if operation == "open":
            return 0
        # What is only read may be a segment that nobody but who made it may write to: a request was received there.
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if operation == "read" else 0)
        with mmap.mmap(segment, begin + nbytes, prot=protection) as mapped:
            view = memoryview(mapped)[begin : begin + nbytes]
            try:
                if operation == "read":
                    self._device.read(opened.pointer + offset, view)
                else:
                    self._device.write(opened.pointer + offset, view)
            finally:
                view.release()
        return nbytes
