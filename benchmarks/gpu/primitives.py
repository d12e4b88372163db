"""Checks of the driver itself, through the seam that the server uses."""

from __future__ import annotations

import os
import signal
import socket
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pytriton_lite.ipc import device as devices
from pytriton_lite.ipc.device import Device, DeviceError, DeviceMemory

_PROJECT = Path(__file__).resolve().parents[2]
_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = (4 * _KIB, 64 * _KIB, _MIB, 16 * _MIB, 64 * _MIB, 256 * _MIB, _GIB)


def checks() -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Names, and what finds out."""
    yield "device", _device
    yield "exported-memory", _exported_memory
    yield "handles", _handles
    yield "copies", _copies
    yield "dead-exporter", _dead_exporter
    yield "bad-handles", _bad_handles
    yield "memory-of-others", _memory_of_others


def _device() -> dict[str, Any]:
    began = time.perf_counter()
    device = devices.device(0)
    context_ms = (time.perf_counter() - began) * 1e3
    free, total = device.memory_info()
    memory = device.allocate(1)
    granularity = memory.nbytes
    memory.close()
    return {
        "result": "PASS",
        "devices": len(devices.visible_device_ids()),
        "uuids": list(devices.visible_device_uuids()),
        "driver": _driver_version(),
        "context_ms": round(context_ms, 1),
        "free_mib": free >> 20,
        "total_mib": total >> 20,
        "granularity_kib": granularity >> 10,
    }


def _driver_version() -> int | None:
    """1000 * major + 10 * minor of the CUDA that the driver speaks."""
    if devices.pretended_devices() is not None:
        return None
    import ctypes

    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return version.value


def _exported_memory() -> dict[str, Any]:
    """µs for memory of 2 MiB to be made and exported, imported and mapped, and given back."""
    device = devices.device(0)
    created, imported, closed = [], [], []
    for _ in range(50):
        began = time.perf_counter()
        memory = device.allocate(2 * _MIB)
        made = time.perf_counter()
        other = device.import_memory(memory.fd, memory.nbytes)
        mapped = time.perf_counter()
        other.close()
        memory.close()
        created.append(made - began)
        imported.append(mapped - made)
        closed.append(time.perf_counter() - mapped)
    return {"create_us": _us(created), "import_us": _us(imported), "close_both_us": _us(closed)}


def _handles() -> dict[str, Any]:
    """µs for a legacy handle to be got here and opened and closed in another process."""
    device = devices.device(0)
    memory = device.allocate_private(2 * _MIB)
    began = time.perf_counter()
    handle = device.handle_of(memory.pointer)
    got_us = (time.perf_counter() - began) * 1e6
    code = """
        import sys, time
        from pytriton_lite.ipc import device
        ours = device.device(0)
        opens, closes = [], []
        for _ in range(50):
            began = time.perf_counter()
            memory = ours.open_handle(bytes.fromhex(sys.argv[1]))
            opened = time.perf_counter()
            memory.close()
            opens.append(opened - began)
            closes.append(time.perf_counter() - opened)
        print(sorted(opens)[25] * 1e6, sorted(closes)[25] * 1e6)
    """
    done = _python(code, handle.hex())
    if done.returncode:
        return {"result": "FAIL", "error": done.stderr[-400:]}
    opened, closed = map(float, done.stdout.split())
    return {"result": "PASS", "get_us": round(got_us, 1), "open_us": round(opened, 1), "close_us": round(closed, 1)}


def _copies() -> dict[str, Any]:
    """µs for a copy by size: on the device, and between it and memory of the host that is not pinned."""
    device = devices.device(0)
    found: dict[str, Any] = {}
    for nbytes in SIZES:
        if nbytes * 3 > device.memory_info()[0]:
            continue
        source, target = device.allocate_private(nbytes), device.allocate_private(nbytes)
        host = memoryview(bytearray(nbytes))
        rounds = max(3, min(100, (256 * _MIB) // nbytes))
        found[str(nbytes)] = {
            "d2d_us": bare_copy_us(device, target, source, nbytes, rounds),
            "d2h_us": _time(partial(device.read, source.pointer, host), rounds),
            "h2d_us": _time(partial(device.write, target.pointer, host), rounds),
        }
        source.close()
        target.close()
    return {"bytes": found}


def bare_copy_us(device: Device, target: DeviceMemory, source: DeviceMemory, nbytes: int, rounds: int) -> float:
    """The median of a copy from *source* to *target* on *device*, in µs, waiting included."""
    return _time(lambda: device.copy(target.pointer, source.pointer, nbytes, source_device=device), rounds)


def _dead_exporter() -> dict[str, Any]:
    """Whether memory that was imported stays as it is when who exported it is killed."""
    device = devices.device(0)
    ours, theirs = socket.socketpair()
    code = """
        import os, socket, sys
        from pytriton_lite.ipc import device
        ours = device.device(0)
        memory = ours.allocate(8 << 20)
        ours.write(memory.pointer + (8 << 20) - 11, memoryview(b"of the dead"))
        with socket.socket(fileno=int(sys.argv[1])) as there:
            socket.send_fds(there, [memory.nbytes.to_bytes(8, "little")], [memory.fd])
            there.recv(1)
        os.kill(os.getpid(), 9)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(theirs.fileno())], cwd=_PROJECT, pass_fds=[theirs.fileno()]
    )
    theirs.close()
    with ours:
        size, descriptors, _, _ = socket.recv_fds(ours, 8, 1)
        memory = device.import_memory(descriptors[0], int.from_bytes(size, "little"))
        os.close(descriptors[0])
        before = _content(device, memory.pointer + (8 << 20) - 11, 11)
        ours.send(b"x")
        child.wait()
    after = _content(device, memory.pointer + (8 << 20) - 11, 11)
    memory.close()
    is_right = before == after == b"of the dead" and child.returncode == -signal.SIGKILL
    return {
        "result": "PASS" if is_right else "FAIL",
        "before": before.decode(errors="replace"),
        "after": after.decode(errors="replace"),
    }


def _bad_handles() -> dict[str, Any]:
    """What becomes of a process that opens a handle which it should not. PASS: this one goes on, whatever it is."""
    device = devices.device(0)
    memory = device.allocate_private(_MIB)
    handle = device.handle_of(memory.pointer)
    freed = device.allocate_private(_MIB)
    freed_handle = device.handle_of(freed.pointer)
    freed.close()
    code = """
        import sys
        from pytriton_lite.ipc import device
        ours = device.device(0)
        try:
            first = ours.open_handle(bytes.fromhex(sys.argv[1]))
            second = ours.open_handle(bytes.fromhex(sys.argv[1]))
            print("opened twice" if first.pointer == second.pointer else "opened at two places", first.nbytes)
        except device.DeviceError as error:
            print("refused:", error)
    """
    found = {}
    for name, raw in (
        ("good", handle),
        ("zeros", bytes(64)),
        ("ones", b"\xff" * 64),
        ("one bit wrong", bytes([handle[0] ^ 1]) + handle[1:]),
        ("freed", freed_handle),
    ):
        done = _python(code, raw.hex())
        found[name] = done.stdout.strip() or f"exit {done.returncode}: {done.stderr.strip()[-200:]}"
    try:
        device.open_handle(handle)
        found["one's own"] = "opened"
    except DeviceError as error:
        found["one's own"] = f"refused: {error}"
    device.write(memory.pointer, memoryview(b"alive"))
    is_right = _content(device, memory.pointer, 5) == b"alive" and found["good"].startswith("opened")
    return {"result": "PASS" if is_right else "FAIL", **found}


def _memory_of_others() -> dict[str, Any]:
    """What each way of exporting says of memory that was allocated in another one."""
    device = devices.device(0)
    exported, private = device.allocate(_MIB), device.allocate_private(_MIB)
    found = {}
    for name, memory in (("handle of exported memory", exported), ("handle of ordinary memory", private)):
        try:
            found[name] = f"{len(device.handle_of(memory.pointer))} bytes"
        except DeviceError as error:
            found[name] = f"refused: {error}"
    return found


def _content(device: Device, pointer: int, nbytes: int) -> bytes:
    buffer = bytearray(nbytes)
    device.read(pointer, memoryview(buffer))
    return bytes(buffer)


def _python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=_PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
    )


def _time(call: Callable[[], None], rounds: int) -> float:
    call()  # what is made on first use
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return _us(found)


def _us(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1e6, 1)
