"""The seam to devices: on pretended ones what it promises, without any the one clear error, and what CUDA's structures are."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import numpy as np
import pytest

from pytriton_lite.ipc import cuda, pretend_device
from pytriton_lite.ipc import device as devices
from pytriton_lite.ipc.device import DeviceError, NoDeviceMemory
from pytriton_lite.ipc.pretend_device import PretendDevice
from tests.harness import PROJECT

ASK = "from pytriton_lite.ipc import device as d; print(d.visible_device_ids(), d.visible_device_uuids())"


def host(text: bytes) -> memoryview:
    return memoryview(bytearray(text))


def content(device: PretendDevice, pointer: int, nbytes: int) -> bytes:
    buffer = bytearray(nbytes)
    device.read(pointer, memoryview(buffer))
    return bytes(buffer)


def device_files() -> list[str]:
    """Memory files of devices that this process has open."""
    gc.collect()
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # it was the one that lists them
            continue
        if pretend_device.FILE_NAME in target:
            found.append(name)
    return found


@pytest.fixture
def device() -> Iterator[PretendDevice]:
    assert device_files() == []
    yield PretendDevice(0)
    assert device_files() == []


def in_another_process(code: str, *arguments: str, fds: tuple[int, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=PROJECT,
        env={**os.environ, devices.PRETENDED: "1"},
        pass_fds=fds,
        capture_output=True,
        text=True,
        timeout=60,
    )


# ---------------------------------------------------------------------------------------------- without a device


@pytest.mark.skipif(bool(cuda.device_count()), reason="this machine has a CUDA device")
def test_without_a_driver_there_are_no_devices_and_one_clear_error() -> None:
    assert devices.visible_device_ids() == ()
    assert devices.visible_device_uuids() == ()
    texts = []
    for _ in range(2):
        with pytest.raises(DeviceError, match="CUDA device 0") as raised:
            devices.device(0)
        texts.append(str(raised.value))
    assert texts[0] == texts[1]


def test_with_no_visible_device_there_are_none() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK], env={"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "() ()\n"


def test_pretended_devices_take_the_place_of_real_ones() -> None:
    done = in_another_process(ASK)
    assert done.stdout == "(0,) ('70726574-656e-6465-6400-000000000000',)\n", done.stderr


def test_a_device_that_does_not_exist_is_refused_by_number_and_by_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(devices.PRETENDED, "2")
    with pytest.raises(DeviceError, match="CUDA device 2 cannot be used: 2 devices"):
        devices.device(2)
    assert devices.device(1) is devices.device(1) is devices.device_with(pretend_device.uuid_of(1))
    with pytest.raises(DeviceError, match="cannot be used by this process, which sees 2 devices"):
        devices.device_with(b"\0" * 16)


# ---------------------------------------------------------------------------------------------- pretended memory


def test_host_code_that_follows_a_device_pointer_crashes() -> None:
    code = """
        import ctypes
        from pytriton_lite.ipc import device
        memory = device.device(0).allocate(4096)
        ctypes.string_at(memory.pointer, 1)
    """
    assert in_another_process(code).returncode == -signal.SIGSEGV


def test_bytes_come_back_as_they_were_written_and_are_counted(device: PretendDevice) -> None:
    memory = device.allocate(100)
    device.write(memory.pointer + 10, host(b"tensor"))
    assert content(device, memory.pointer + 8, 10) == b"\0\0tensor\0\0"
    assert device.host_bytes == 16
    other = device.allocate(100)
    device.copy(other.pointer, memory.pointer, 100, source_device=device)
    assert device.host_bytes == 16
    assert content(device, other.pointer + 10, 6) == b"tensor"
    memory.close()
    other.close()


def test_a_copy_goes_from_one_device_to_another(device: PretendDevice) -> None:
    second = PretendDevice(1)
    here, there = device.allocate(3 << 20), second.allocate(3 << 20)
    device.write(here.pointer + (2 << 20), host(b"far"))
    second.copy(there.pointer, here.pointer, 3 << 20, source_device=device)
    assert content(second, there.pointer + (2 << 20), 3) == b"far"


def test_memory_is_imported_by_descriptor_also_where_its_owner_is(device: PretendDevice) -> None:
    memory = device.allocate(8192)
    device.write(memory.pointer, host(b"shared"))
    imported = device.import_memory(memory.fd, 8192)
    assert imported.pointer != memory.pointer
    assert imported.fd == -1
    memory.close()
    assert content(device, imported.pointer, 6) == b"shared"
    other = device.allocate(8192)
    with pytest.raises(DeviceError, match="has 8192 bytes, expected 8193"):
        device.import_memory(other.fd, 8193)


def test_imported_memory_outlives_its_owner(device: PretendDevice) -> None:
    ours, theirs = socket.socketpair()
    code = """
        import os, socket, sys
        from pytriton_lite.ipc import device
        ours = device.device(0)
        memory = ours.allocate(4096)
        ours.write(memory.pointer, memoryview(b"of the dead"))
        with socket.socket(fileno=int(sys.argv[1])) as there:
            socket.send_fds(there, [b"x"], [memory.fd])
        os.kill(os.getpid(), 9)
    """
    with ours, theirs:
        assert in_another_process(code, str(theirs.fileno()), fds=(theirs.fileno(),)).returncode == -signal.SIGKILL
        _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
    imported = device.import_memory(fd, 4096)
    os.close(fd)
    assert content(device, imported.pointer, 11) == b"of the dead"


def test_a_handle_opens_memory_in_another_process_and_is_worth_nothing_after_it() -> None:
    device = PretendDevice(0)
    memory = device.allocate_private(5000)
    device.write(memory.pointer, host(b"a client's"))
    handle = device.handle_of(memory.pointer)
    assert len(handle) == devices.HANDLE_BYTES
    code = """
        import sys
        from pytriton_lite.ipc import device
        ours = device.device(0)
        memory = ours.open_handle(bytes.fromhex(sys.argv[1]))
        buffer = bytearray(10)
        ours.read(memory.pointer, memoryview(buffer))
        print(memory.nbytes, buffer.decode())
    """
    assert in_another_process(code, handle.hex()).stdout == f"{2 * mmap.PAGESIZE} a client's\n"
    with pytest.raises(DeviceError, match="is invalid"):
        device.open_handle(handle)  # one's own
    memory.close()
    assert "cannot be opened: " in in_another_process(code, handle.hex()).stderr


@pytest.mark.parametrize("handle", [bytes(64), b"\xff" * 64], ids=["zeros", "ones"])
def test_a_handle_of_nobody_is_refused(device: PretendDevice, handle: bytes) -> None:
    with pytest.raises(DeviceError, match="is invalid"):
        device.open_handle(handle)


def test_no_room_on_the_device_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pretend_device.BYTES, "8192")
    device = PretendDevice(0)
    memory = device.allocate(8000)
    with pytest.raises(NoDeviceMemory, match="do not fit beside 8192, it has 8192"):
        device.allocate(1)
    assert device.memory_info() == (0, 8192)
    memory.close()
    memory.close()
    assert device.memory_info() == (8192, 8192)
    device.allocate(8192).close()


def test_what_is_no_memory_of_the_device_is_not_copied(device: PretendDevice) -> None:
    memory = device.allocate(mmap.PAGESIZE)
    array = np.zeros(4, np.uint8)
    for pointer, nbytes in ((memory.pointer, mmap.PAGESIZE + 1), (array.ctypes.data, 4), (0, 1)):
        with pytest.raises(DeviceError, match="are no memory of CUDA device 0"):
            device.read(pointer, memoryview(bytearray(nbytes)))


def test_memory_that_is_garbage_is_given_back(device: PretendDevice) -> None:
    device.allocate(1 << 20)
    gc.collect()
    assert device.memory_info()[0] == device.memory_info()[1]
    assert device_files() == []


# ---------------------------------------------------------------------------------------------- CUDA's structures


def test_structures_are_laid_out_as_in_cuda_h() -> None:
    """The sizes and offsets that a C compiler gives them on 64-bit Linux."""
    properties = cuda._AllocationProperties
    assert ctypes.sizeof(properties) == 32
    assert (properties.location.offset, properties.windows_metadata.offset, properties.compression_type.offset) == (
        8,
        16,
        24,
    )
    assert ctypes.sizeof(cuda._AccessDescription) == 12
    assert ctypes.sizeof(cuda._IpcHandle) == devices.HANDLE_BYTES


def test_memory_that_is_collected_while_other_memory_is_opened_keeps_nobody_waiting() -> None:
    done = in_another_process(
        """
        import ctypes
        import gc
        from pytriton_lite.ipc import cuda

        class Driver:
            def __getattr__(self, name):
                return lambda *_: 0

            def cuIpcOpenMemHandle_v2(self, pointer, handle, flags):
                pointer._obj.value = 4096
                return 0

        ctypes.CDLL = lambda name: Driver()
        device = cuda.CudaDevice(0)
        handles = [bytes([number]) * 64 for number in range(40)]
        for number, handle in enumerate(handles[1:]):  # the collector comes at another place each time
            gc.disable()
            gc.collect()
            circle = [device.open_handle(handles[0])]
            circle.append(circle)
            del circle
            gc.set_threshold(number)
            gc.enable()
            memory = device.open_handle(handle)
        gc.set_threshold(700)
        gc.collect()
        print(len(device._opened))
        """
    )
    assert done.stdout == "1\n", done.stderr
