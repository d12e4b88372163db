"""What tests of devices have in common: clients' memory on a pretended device, and the protocols to talk about it."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http

from pytriton_lite.ipc import device as devices
from pytriton_lite.ipc import pretend_device
from pytriton_lite.ipc.device import Device
from tests.harness import RunningServer, process_name_and_parent

PRETENDED = {devices.PRETENDED: "2"}
"""Variables of a server with two devices."""
CLIENTS: dict[str, Any] = {"http": tritonclient.http, "grpc": tritonclient.grpc}


class ClientMemory:
    """Memory on a device, as ``tritonclient.utils.cuda_shared_memory`` makes it: allocated here, known by its handle."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self.device = device
        self.nbytes = nbytes
        self.memory = device.allocate_private(nbytes)
        self.handle = device.handle_of(self.memory.pointer)
        self.raw_handle = base64.b64encode(self.handle)
        """What ``get_raw_handle`` gives."""

    def put(self, data: np.ndarray[Any, Any] | bytes, offset: int = 0) -> None:
        raw = data if isinstance(data, bytes) else data.tobytes()
        self.device.write(self.memory.pointer + offset, memoryview(raw))

    def get(self, nbytes: int, offset: int = 0) -> bytes:
        buffer = bytearray(nbytes)
        self.device.read(self.memory.pointer + offset, memoryview(buffer))
        return bytes(buffer)


@contextmanager
def client_of(server: RunningServer, protocol: str) -> Iterator[Any]:
    """A stock client of *server*."""
    url = server.http_url if protocol == "http" else server.grpc_url
    with CLIENTS[protocol].InferenceServerClient(url) as client:
        yield client


def device_files(pid: int) -> int:
    """How many memory files of devices that process has, open or mapped."""
    found = 0
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                found += pretend_device.FILE_NAME in os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
        return found + Path(f"/proc/{pid}/maps").read_text().count(pretend_device.FILE_NAME)
    except OSError:
        return 0


def helper_pids(server: RunningServer) -> list[int]:
    """The device helpers of *server*."""
    return server.worker_pids("device_helper_0")


def fork_server_pid(worker: int) -> int:
    """The process that *worker* was forked from."""
    return process_name_and_parent(worker)[1]
