"""GPUs, read through NVML when somebody asks (metrics spec, section 2): one series for each that CUDA lets this process use.

NVML's Python module is the extra ``gpu``. Without it, without a GPU, or with TRITON_SERVER_CPU_ONLY there are no families.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pytriton_lite.core.custom_metrics import Family, Kind
from pytriton_lite.daemon_threads import in_daemon_thread
from pytriton_lite.frontends.metrics.families import labelled
from pytriton_lite.frontends.metrics.machine import Clock

logger = logging.getLogger(__name__)

_MOST_FAILURES = 3
"""Failures in a row after which a value is not asked for any more, as in Triton; it stays 0."""

_PATIENCE_S = 1.0
"""How long a page waits for a reading. Prometheus gives up after ten seconds, and then shows nothing of the server at all."""

_CPU_ONLY = "TRITON_SERVER_CPU_ONLY"


class Nvml(Protocol):
    """What we use of the module ``pynvml``. Each call raises NVMLError where the driver cannot say."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...  # NVML's names

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any: ...

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        """``gpu`` is the per cent of time in which a kernel ran."""

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        """``total`` and ``used`` bytes."""

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:
        """Milliwatts."""

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any) -> int:
        """Milliwatts."""

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any) -> int:
        """Millijoules since the driver was loaded."""


Read = Callable[[Nvml, Any], float]

_GAUGES: Sequence[tuple[str, str, Read]] = (
    (
        "nv_gpu_utilization",
        "GPU utilization rate [0.0 - 1.0)",
        lambda nvml, device: nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100,
    ),
    (
        "nv_gpu_memory_total_bytes",
        "GPU total memory, in bytes",
        lambda nvml, device: nvml.nvmlDeviceGetMemoryInfo(device).total,
    ),
    (
        "nv_gpu_memory_used_bytes",
        "GPU used memory, in bytes",
        lambda nvml, device: nvml.nvmlDeviceGetMemoryInfo(device).used,
    ),
    (
        "nv_gpu_power_usage",
        "GPU power usage in watts",
        lambda nvml, device: nvml.nvmlDeviceGetPowerUsage(device) / 1000,
    ),
    (
        "nv_gpu_power_limit",
        "GPU power management limit in watts",
        lambda nvml, device: nvml.nvmlDeviceGetEnforcedPowerLimit(device) / 1000,
    ),
)
_ENERGY = "nv_energy_consumption"


class GpuReadings:
    """The families of GPUs, read in threads of their own: a driver that has lost a GPU takes seconds, or for ever."""

    def __init__(self, find: Callable[[], Gpus | None], interval_ns: int, clock: Clock) -> None:
        """*find* is asked once. They are read at most once in *interval_ns*, and now; a loop must be running."""
        self._find = find
        self._interval_ns = interval_ns
        self._clock = clock
        self._gpus: Gpus | None = None
        self._families: list[Family] = []
        self._begin()
        self._given_up: asyncio.Task[None] | None = None
        """The reading that nobody waits for any more."""

    async def families(self) -> list[Family]:
        """What was read last; a reading that takes longer than `_PATIENCE_S` goes on, and none begins beside it."""
        if self._reading.done() and self._gpus is not None and self._clock() - self._read_ns >= self._interval_ns:
            self._begin()
        if not self._reading.done() and self._reading is not self._given_up:
            done, _ = await asyncio.wait([self._reading], timeout=_PATIENCE_S)
            if not done:
                self._given_up = self._reading
        return self._families

    def _begin(self) -> None:
        self._read_ns = self._clock()
        self._reading = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        try:
            if self._gpus is None:
                self._gpus = await in_daemon_thread(self._find)
            if self._gpus is not None:
                self._families = await in_daemon_thread(self._gpus.read)
        except Exception:  # of a module that we know nothing of
            logger.exception("GPUs cannot be read")


class Gpus:
    """The GPUs with these UUIDs, as ``GPU-…`` or ``MIG-…``. `find_gpus` makes one."""

    def __init__(self, nvml: Nvml, devices: Mapping[str, Any]) -> None:
        """*devices* are NVML's handles by UUID."""
        self._nvml = nvml
        self._devices = devices
        self._failures: dict[tuple[str, str], int] = {}
        self._values: dict[str, dict[str, float]] = {name: {} for name, _, _ in _GAUGES}
        self._energy_mj: dict[str, float] = {}
        """What NVML said last; where it could not say, nothing."""
        self._joules = dict.fromkeys(devices, 0.0)

    def read(self) -> list[Family]:
        """Ask NVML for everything. Energy is counted from the first time on."""
        self._read_all()
        found = [
            labelled(name, text, Kind.GAUGE, [({"gpu_uuid": uuid}, v) for uuid, v in self._values[name].items()])
            for name, text, _ in _GAUGES
        ]
        text = "GPU energy consumption in joules since the Triton Server started"
        joules = [({"gpu_uuid": uuid}, value) for uuid, value in self._joules.items()]
        return [*found, labelled(_ENERGY, text, Kind.COUNTER, joules)]

    def _read_all(self) -> None:
        for uuid in self._devices:
            for name, _, read in _GAUGES:
                self._values[name][uuid] = self._ask(name, uuid, read) or 0.0
            energy_mj = self._ask(_ENERGY, uuid, _energy_mj)
            if energy_mj is not None:
                self._joules[uuid] += max(0.0, energy_mj - self._energy_mj.get(uuid, energy_mj)) * 0.001
                self._energy_mj[uuid] = energy_mj

    def _ask(self, name: str, uuid: str, read: Read) -> float | None:
        failures = self._failures.get((name, uuid), 0)
        if failures >= _MOST_FAILURES:
            return None
        try:
            value = read(self._nvml, self._devices[uuid])
        except self._nvml.NVMLError as error:
            self._failures[name, uuid] = failures + 1
            logger.debug("%s of %s cannot be read: %s", name, uuid, error)
            return None
        self._failures[name, uuid] = 0
        return value


def _energy_mj(nvml: Nvml, device: Any) -> float:
    return nvml.nvmlDeviceGetTotalEnergyConsumption(device)


def find_gpus(
    uuids: Callable[[], Sequence[str]],
    environ: Mapping[str, str] = os.environ,
    load: Callable[[], Nvml] | None = None,
) -> Gpus | None:
    """The GPUs of *uuids*, without their prefix; None, and a line in the verbose log, where there is nothing to be read."""
    if environ.get(_CPU_ONLY):
        logger.debug("no GPU metrics: %s is set", _CPU_ONLY)
        return None
    visible = uuids()
    if not visible:
        logger.debug("no GPU metrics: there is no GPU that CUDA lets this process use")
        return None
    try:
        nvml = (load or _import_nvml)()
        nvml.nvmlInit()
    except Exception as error:  # of a module that we know nothing of before it is there
        logger.debug("no GPU metrics: NVML cannot be used (pip install 'pytriton-lite[gpu]'): %s", error)
        return None
    devices = dict(found for uuid in visible if (found := _open(nvml, uuid)) is not None)
    return Gpus(nvml, devices) if devices else None


def _import_nvml() -> Nvml:
    module: Any = importlib.import_module("pynvml")
    nvml: Nvml = module
    return nvml


def _open(nvml: Nvml, uuid: str) -> tuple[str, Any] | None:
    """CUDA does not say whether the device is a slice of a GPU, NVML wants to know."""
    for name in (f"GPU-{uuid}", f"MIG-{uuid}"):
        try:
            return name, nvml.nvmlDeviceGetHandleByUUID(name)
        except nvml.NVMLError as error:
            logger.debug("NVML has no device %s: %s", name, error)
    return None
