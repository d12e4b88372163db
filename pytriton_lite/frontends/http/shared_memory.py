"""The routes of shared memory: system and CUDA regions, registered, unregistered and listed (HTTP spec, section 12)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING

import orjson
from fastapi import FastAPI, Request, Response

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.engine.workers.regions import CUDA_HANDLE_BYTES
from pytriton_lite.frontends.http import json_dialect, json_values, openapi
from pytriton_lite.frontends.http.bodies import Documents, decode_base64

if TYPE_CHECKING:
    from pytriton_lite.engine.server import Server
    from pytriton_lite.engine.workers.regions import CudaRegion, Regions, SystemRegion

_TAG: list[str | Enum] = ["shared memory"]


def add_shared_memory(app: FastAPI, server: Server, documents: Documents) -> None:
    """Add the routes of both kinds to *app*."""
    _add_system(app, server.regions, documents)
    _add_cuda(app, server.regions, documents)


def _add_system(app: FastAPI, regions: Regions, documents: Documents) -> None:
    prefix = "/v2/systemsharedmemory"

    @app.get(f"{prefix}/status", tags=_TAG, summary="All system regions", responses=openapi.SYSTEM_REGIONS)
    async def all_system_regions() -> Response:
        return _rows(map(_system_row, regions.system_status()))

    @app.get(
        f"{prefix}/region/{{region}}/status", tags=_TAG, summary="A system region", responses=openapi.SYSTEM_REGION
    )
    async def system_region(region: str) -> Response:
        return _rows(map(_system_row, regions.system_status(region)))

    @app.post(
        f"{prefix}/region/{{region}}/register",
        tags=_TAG,
        summary="Register a system region",
        responses=openapi.REGISTER,
        openapi_extra=openapi.SYSTEM_BODY,
    )
    async def register_system(request: Request, region: str) -> Response:
        regions.check_can_register(region, "system")
        fields = await documents.read(request, _read_fields)
        for key in ("key", "byte_size"):
            if key not in fields:
                raise _no_field(key)
        offset = json_values.unsigned(fields["offset"]) if "offset" in fields else 0
        regions.register_system(
            region, json_values.string(fields["key"]), offset, json_values.unsigned(fields["byte_size"])
        )
        return _done()

    @app.post(
        f"{prefix}/register",
        tags=_TAG,
        summary="Refused: the region has to be named",
        responses=openapi.NO_REGION,
        status_code=400,
    )
    async def register_nameless_system(request: Request) -> Response:
        return await register_system(request, "")

    @app.post(f"{prefix}/unregister", tags=_TAG, summary="Unregister all system regions", responses=openapi.UNREGISTER)
    async def unregister_all_system() -> Response:
        regions.unregister_system()
        return _done()

    @app.post(
        f"{prefix}/region/{{region}}/unregister",
        tags=_TAG,
        summary="Unregister a system region; an unknown one is no error",
        responses=openapi.UNREGISTER,
    )
    async def unregister_system(region: str) -> Response:
        regions.unregister_system(region)
        return _done()


def _add_cuda(app: FastAPI, regions: Regions, documents: Documents) -> None:
    prefix = "/v2/cudasharedmemory"

    @app.get(f"{prefix}/status", tags=_TAG, summary="All CUDA regions", responses=openapi.CUDA_REGIONS)
    async def all_cuda_regions() -> Response:
        return _rows(map(_cuda_row, regions.cuda_status()))

    @app.get(f"{prefix}/region/{{region}}/status", tags=_TAG, summary="A CUDA region", responses=openapi.CUDA_REGION)
    async def cuda_region(region: str) -> Response:
        return _rows(map(_cuda_row, regions.cuda_status(region)))

    @app.post(
        f"{prefix}/region/{{region}}/register",
        tags=_TAG,
        summary="Register a CUDA region",
        responses=openapi.REGISTER,
        openapi_extra=openapi.CUDA_BODY,
    )
    async def register_cuda(request: Request, region: str) -> Response:
        regions.check_can_register(region, "cuda")
        fields = await documents.read(request, _read_fields)
        if "raw_handle" not in fields:
            raise _no_field("raw_handle")
        text = json_values.string(_member(fields["raw_handle"], "b64"))
        byte_size = json_values.unsigned(_member(fields, "byte_size"))
        device_id = json_values.unsigned(_member(fields, "device_id"))
        handle = decode_base64(text)
        if len(handle) != CUDA_HANDLE_BYTES:
            raise InferenceError(
                ErrorCode.INVALID_ARG, "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"
            )
        await regions.register_cuda(region, handle, device_id, byte_size)
        return _done()

    @app.post(
        f"{prefix}/register",
        tags=_TAG,
        summary="Refused: the region has to be named",
        responses=openapi.NO_REGION,
        status_code=400,
    )
    async def register_nameless_cuda(request: Request) -> Response:
        return await register_cuda(request, "")

    @app.post(f"{prefix}/unregister", tags=_TAG, summary="Unregister all CUDA regions", responses=openapi.UNREGISTER)
    async def unregister_all_cuda() -> Response:
        regions.unregister_cuda()
        return _done()

    @app.post(
        f"{prefix}/region/{{region}}/unregister",
        tags=_TAG,
        summary="Unregister a CUDA region; an unknown one is no error",
        responses=openapi.UNREGISTER,
    )
    async def unregister_cuda(region: str) -> Response:
        regions.unregister_cuda(region)
        return _done()


def _read_fields(body: bytearray) -> dict[str, object]:
    """The members of a register request; a document that is no object has none."""
    document = json_dialect.loads(body)
    return document if isinstance(document, dict) else {}


def _member(document: object, name: str) -> object:
    if not isinstance(document, dict) or name not in document:
        raise InferenceError(ErrorCode.INTERNAL, f"attempt to access non-existing object member '{name}'")
    return document[name]


def _no_field(name: str) -> InferenceError:
    return InferenceError(ErrorCode.INVALID_ARG, f"Shared memory register request has no '{name}' field")


def _system_row(region: SystemRegion) -> dict[str, object]:
    return {"name": region.name, "key": region.key, "offset": region.offset, "byte_size": region.byte_size}


def _cuda_row(region: CudaRegion) -> dict[str, object]:
    return {"name": region.name, "device_id": region.device_id, "byte_size": region.byte_size}


def _rows(rows: Iterable[dict[str, object]]) -> Response:
    return Response(orjson.dumps(list(rows)), media_type="application/json")


def _done() -> Response:
    return Response(media_type="application/json")
