"""A stand-in for NVML's module, with the functions that the server calls."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class FakeNvml:
    """Two devices. ``broken`` are the functions that fail."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.names = ["GPU-aaaa", "MIG-bbbb"]
        self.per_cent = 40
        self.energy_mj = 5_000_000
        self.broken: set[str] = set()
        self.calls: list[str] = []
        self.waits: Callable[[], object] = int
        """Called by each function before it answers."""

    def __getattr__(self, function: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.calls.append(function)
            self.waits()
            if function in self.broken:
                raise self.NVMLError("Not Supported")
            return getattr(self, f"_{function}")(*arguments)

        if not function.startswith("nvml"):
            raise AttributeError(function)
        return call

    def _nvmlInit(self) -> None:
        pass

    def _nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        if uuid not in self.names:
            raise self.NVMLError("Not Found")
        return self.names.index(uuid)

    def _nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=self.per_cent + handle, memory=0)

    def _nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=80 << 30, used=(1 + handle) << 30)

    def _nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 70_500

    def _nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        return 700_000

    def _nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        return self.energy_mj
