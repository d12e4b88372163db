"""The shared-memory RPCs (gRPC spec, section 6). What the registry refuses is in tests/engine/workers/test_regions.py."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_fakes import FakeServer
from tritonclient.grpc import InferenceServerClient, service_pb2

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.engine.workers.regions import Regions
from pytriton_lite.ipc.device_segment import DeviceSegment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="makes segments as files")

Status = grpc.StatusCode
DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
HANDLE = bytes(range(64))
METHODS = (
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister",
)


@pytest.fixture
def engine() -> FakeServer:
    """One whose device knows `HANDLE`."""

    async def open_cuda(handle: bytes, device_id: int, byte_size: int) -> DeviceSegment:
        if handle != HANDLE:
            raise InferenceError(ErrorCode.INTERNAL, "CUDA_ERROR_INVALID_VALUE")
        return DeviceSegment(bytes(16), byte_size, handle=handle)

    return FakeServer(regions=Regions(is_allowed=True, open_cuda=open_cuda))


@pytest.fixture
def key() -> Iterator[str]:
    """Of a segment of 64 bytes."""
    name = f"rpcs-{secrets.token_hex(8)}"
    segment = Path("/dev/shm") / name
    segment.write_bytes(bytes(64))
    yield name
    segment.unlink()


def refusal(stub: Any, method: str, **fields: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        getattr(stub, method)(getattr(service_pb2, method + "Request")(**fields), timeout=30)
    error: Any = caught.value
    return error.code(), error.details()


def test_a_system_region_is_registered_listed_and_unregistered(client: InferenceServerClient, key: str) -> None:
    client.register_system_shared_memory("r", f"/{key}", 56, offset=8)
    client.register_system_shared_memory("ä", key, 64)
    regions = client.get_system_shared_memory_status().regions
    row = regions["r"]
    assert (row.name, row.key, row.offset, row.byte_size) == ("r", f"/{key}", 8, 56)
    assert set(regions) == {"r", "ä"}
    assert set(client.get_system_shared_memory_status("ä").regions) == {"ä"}
    client.unregister_system_shared_memory("nope")
    client.unregister_system_shared_memory("r")
    assert set(client.get_system_shared_memory_status().regions) == {"ä"}
    client.unregister_system_shared_memory()
    assert not client.get_system_shared_memory_status().regions


def test_a_cuda_region_is_registered_listed_and_unregistered(stub: Any, client: InferenceServerClient) -> None:
    for name, device in (("a", 1), ("b", 0)):
        message = service_pb2.CudaSharedMemoryRegisterRequest(
            name=name, raw_handle=HANDLE, device_id=device, byte_size=8
        )
        stub.CudaSharedMemoryRegister(message, timeout=30)
    row = client.get_cuda_shared_memory_status("a").regions["a"]
    assert (row.name, row.device_id, row.byte_size) == ("a", 1, 8)
    client.unregister_cuda_shared_memory("a")
    assert set(client.get_cuda_shared_memory_status().regions) == {"b"}
    client.unregister_cuda_shared_memory()
    assert not client.get_cuda_shared_memory_status().regions


def test_errors_have_the_codes_of_the_spec(stub: Any, key: str) -> None:
    stub.SystemSharedMemoryRegister(
        service_pb2.SystemSharedMemoryRegisterRequest(name="r", key=key, byte_size=64), timeout=30
    )
    for method, fields, expected in (
        (
            "SystemSharedMemoryRegister",
            {"name": "r", "key": key, "byte_size": 64},
            (Status.ALREADY_EXISTS, "shared memory region 'r' already in manager"),
        ),
        (
            "SystemSharedMemoryRegister",
            {"name": "x", "key": "/nono", "byte_size": 64},
            (Status.INTERNAL, "Unable to open shared memory region: '/nono'"),
        ),
        (
            "SystemSharedMemoryRegister",
            {"name": "x", "key": key, "offset": (1 << 64) - 1, "byte_size": (1 << 64) - 1},
            (Status.INVALID_ARGUMENT, "failed to register shared memory region 'x': invalid args"),
        ),
        (
            "SystemSharedMemoryRegister",
            {"key": key, "byte_size": 64},
            (Status.INVALID_ARGUMENT, "'region name' is necessary to register system shared memory region"),
        ),
        (
            "CudaSharedMemoryRegister",
            {"raw_handle": HANDLE, "byte_size": 64},
            (Status.INVALID_ARGUMENT, "'region name' is necessary to register cuda shared memory region"),
        ),
        (
            "CudaSharedMemoryRegister",
            {"name": "c", "raw_handle": HANDLE[1:], "byte_size": 64},
            (Status.INVALID_ARGUMENT, "failed to register shared memory region: invalid args"),
        ),
        (
            "SystemSharedMemoryStatus",
            {"name": "x"},
            (Status.NOT_FOUND, "Unable to find system shared memory region: 'x'"),
        ),
        (
            "CudaSharedMemoryStatus",
            {"name": "r"},
            (
                Status.NOT_FOUND,
                "The region named 'r' is registered as system shared memory, not CUDA shared memory",
            ),
        ),
    ):
        assert refusal(stub, method, **fields) == expected


class TestWhereItIsNotAllowed:
    @pytest.fixture
    def engine(self) -> FakeServer:
        return FakeServer(regions=Regions(is_allowed=False))

    @pytest.mark.parametrize("method", METHODS)
    def test_nothing_is_registered_or_unregistered(self, stub: Any, method: str) -> None:
        """The refusal of grpc.md row 86."""
        assert refusal(stub, method, name="r") == (Status.UNIMPLEMENTED, DISABLED)

    def test_status_works(self, client: InferenceServerClient) -> None:
        assert not client.get_system_shared_memory_status().regions
        assert not client.get_cuda_shared_memory_status().regions
