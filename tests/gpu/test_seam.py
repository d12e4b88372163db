"""The seam to devices on a real one: every call of the driver that it makes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from pytriton_lite.ipc import device as devices
from pytriton_lite.ipc.device import Device, DeviceError, NoDeviceMemory
from tests.harness import PROJECT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not devices.visible_device_ids(), reason="this machine has no CUDA device"),
]
MIB = 1 << 20


@pytest.fixture
def device() -> Iterator[Device]:
    found = devices.device(0)
    found.synchronize()
    before = found.memory_info()[0]
    yield found
    found.synchronize()
    assert abs(before - found.memory_info()[0]) < 8 * MIB


def content(device: Device, pointer: int, nbytes: int) -> bytes:
    buffer = bytearray(nbytes)
    device.read(pointer, memoryview(buffer))
    return bytes(buffer)


def in_another_process(code: str, *arguments: str, fds: tuple[int, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=PROJECT,
        pass_fds=fds,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_device_is_the_one_that_was_counted(device: Device) -> None:
    assert device.uuid == devices.visible_uuids()[0]
    free, total = device.memory_info()
    assert 0 < free <= total
    assert device.side_stream() == device.side_stream() > 2


@pytest.mark.parametrize("nbytes", [1, 4096, 3 * MIB + 1, 64 * MIB])
def test_bytes_go_to_exported_memory_and_back(device: Device, nbytes: int) -> None:
    memory, other = device.allocate(nbytes), device.allocate_private(nbytes)
    assert memory.nbytes >= nbytes
    assert memory.fd >= 0
    text = os.urandom(nbytes)
    device.write(memory.pointer, memoryview(text))
    device.copy(other.pointer, memory.pointer, nbytes, source_device=device)
    assert content(device, other.pointer, nbytes) == text
    memory.close()
    other.close()


def test_exported_memory_is_imported_where_it_was_made(device: Device) -> None:
    memory = device.allocate(4096)
    imported = device.import_memory(memory.fd, memory.nbytes)
    device.write(memory.pointer, memoryview(b"shared"))
    assert imported.pointer != memory.pointer
    memory.close()
    assert content(device, imported.pointer, 6) == b"shared"
    imported.close()


def test_imported_memory_outlives_the_process_that_exported_it(device: Device) -> None:
    ours, theirs = socket.socketpair()
    code = """
        import os, socket, sys
        from pytriton_lite.ipc import device
        ours = device.device(0)
        memory = ours.allocate(4096)
        ours.write(memory.pointer, memoryview(b"of the dead"))
        with socket.socket(fileno=int(sys.argv[1])) as there:
            socket.send_fds(there, [memory.nbytes.to_bytes(8, "little")], [memory.fd])
        os.kill(os.getpid(), 9)
    """
    with ours, theirs:
        in_another_process(code, str(theirs.fileno()), fds=(theirs.fileno(),))
        size, (fd,), _, _ = socket.recv_fds(ours, 8, 1)
    imported = device.import_memory(fd, int.from_bytes(size, "little"))
    os.close(fd)
    assert content(device, imported.pointer, 11) == b"of the dead"
    imported.close()


def test_a_handle_opens_memory_in_another_process(device: Device) -> None:
    memory = device.allocate_private(3 * MIB)
    device.write(memory.pointer, memoryview(b"a client's"))
    code = """
        import sys
        from pytriton_lite.ipc import device
        ours = device.device(0)
        handle = bytes.fromhex(sys.argv[1])
        memory, again = ours.open_handle(handle), ours.open_handle(handle)
        assert memory.pointer == again.pointer
        again.close()
        buffer = bytearray(10)
        ours.read(memory.pointer, memoryview(buffer))
        memory.close()
        print(memory.nbytes, buffer.decode())
    """
    done = in_another_process(code, device.handle_of(memory.pointer).hex())
    size, _, text = done.stdout.strip().partition(" ")
    assert (int(size) >= 3 * MIB, text) == (True, "a client's"), done.stderr
    memory.close()


def test_a_handle_of_nobody_is_an_error_or_the_end_of_who_opens_it(device: Device) -> None:
    code = """
        from pytriton_lite.ipc import device
        try:
            device.device(0).open_handle(b"\\xff" * 64)
        except device.DeviceError as error:
            print(error)
    """
    done = in_another_process(code)
    assert done.returncode != 0 or "cuIpcOpenMemHandle_v2 for CUDA device 0 failed" in done.stdout


def test_no_room_is_an_error_of_its_own(device: Device) -> None:
    with pytest.raises(NoDeviceMemory, match="CUDA_ERROR_OUT_OF_MEMORY"):
        device.allocate(device.memory_info()[1] * 4)


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(DeviceError, match="CUDA device 99"):
        devices.device(99)
