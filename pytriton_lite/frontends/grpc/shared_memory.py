"""The shared-memory RPCs over the engine's registry of regions (gRPC spec, section 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton_lite.proto import grpc_service_pb as pb

if TYPE_CHECKING:
    from pytriton_lite.engine.workers.regions import Regions


class SharedMemoryMethods:
    """Methods that take a parsed message and return the answer. Failure is a raised InferenceError, as in `servicer`."""

    def __init__(self, regions: Regions) -> None:
        self._regions = regions

    def system_status(self, message: pb.SystemSharedMemoryStatusRequest) -> pb.SystemSharedMemoryStatusResponse:
        response = pb.SystemSharedMemoryStatusResponse()
        for region in self._regions.system_status(message.name):
            place = response.regions[region.name]
            place.name = region.name
            place.key = region.key
            place.offset = region.offset
            place.byte_size = region.byte_size
        return response

    def system_register(self, message: pb.SystemSharedMemoryRegisterRequest) -> pb.SystemSharedMemoryRegisterResponse:
        self._regions.register_system(message.name, message.key, message.offset, message.byte_size)
        return pb.SystemSharedMemoryRegisterResponse()

    def system_unregister(
        self, message: pb.SystemSharedMemoryUnregisterRequest
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        self._regions.unregister_system(message.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    def cuda_status(self, message: pb.CudaSharedMemoryStatusRequest) -> pb.CudaSharedMemoryStatusResponse:
        response = pb.CudaSharedMemoryStatusResponse()
        for region in self._regions.cuda_status(message.name):
            place = response.regions[region.name]
            place.name = region.name
            place.device_id = region.device_id
            place.byte_size = region.byte_size
        return response

    async def cuda_register(self, message: pb.CudaSharedMemoryRegisterRequest) -> pb.CudaSharedMemoryRegisterResponse:
        await self._regions.register_cuda(message.name, message.raw_handle, message.device_id, message.byte_size)
        return pb.CudaSharedMemoryRegisterResponse()

    def cuda_unregister(self, message: pb.CudaSharedMemoryUnregisterRequest) -> pb.CudaSharedMemoryUnregisterResponse:
        self._regions.unregister_cuda(message.name)
        return pb.CudaSharedMemoryUnregisterResponse()
