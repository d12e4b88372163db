"""Restricted protocols (gRPC spec, section 1): methods sorted into categories."""

from __future__ import annotations

from collections.abc import Iterable

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.frontends.grpc.control_methods import HEALTH_SERVICE, INFERENCE_SERVICE
from pytriton_lite.frontends.grpc.service_streams import REFLECTION_METHOD, REFLECTION_SERVICES
from pytriton_lite.frontends.restriction import RestrictedGroup, Restriction, restrictions

_KEY_PREFIX = "triton-grpc-protocol-"

_METHODS = {
    "health": ("ServerLive", "ServerReady", "ModelReady"),
    "metadata": ("ServerMetadata", "ModelMetadata"),
    "inference": ("ModelInfer", "ModelStreamInfer"),
    "shared-memory": (
        "SystemSharedMemoryStatus",
        "SystemSharedMemoryRegister",
        "SystemSharedMemoryUnregister",
        "CudaSharedMemoryStatus",
        "CudaSharedMemoryRegister",
        "CudaSharedMemoryUnregister",
    ),
    "model-config": ("ModelConfig",),
    "model-repository": ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
    "statistics": ("ModelStatistics",),
    "trace": ("TraceSetting",),
    "logging": ("LogSettings",),
}
_HEALTH_METHODS = ("Check", "Watch")

_REFLECTION_CATEGORY = "metadata"
"""Not Triton's, which has no reflection: it tells what the server is, as metadata do."""

CATEGORY_OF = (
    {f"/{INFERENCE_SERVICE}/{method}": category for category, methods in _METHODS.items() for method in methods}
    | {f"/{HEALTH_SERVICE}/{method}": "health" for method in _HEALTH_METHODS}
    | {f"/{service}/{REFLECTION_METHOD}": _REFLECTION_CATEGORY for service in REFLECTION_SERVICES}
)
"""Categories by path."""


def restrictions_by_path(groups: Iterable[RestrictedGroup]) -> dict[str, Restriction]:
    """The restriction of each method that has one; empty where nothing is restricted."""
    by_category = restrictions(groups, prefix=_KEY_PREFIX)
    return {path: by_category[category] for path, category in CATEGORY_OF.items() if category in by_category}


def refusal(restriction: Restriction) -> InferenceError:
    return InferenceError(
        ErrorCode.UNAVAILABLE, f"This protocol is restricted, expecting header '{restriction.header}'"
    )
