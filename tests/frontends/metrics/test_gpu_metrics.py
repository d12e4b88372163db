"""GPUs through a stand-in for NVML's module."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from pytriton_lite.frontends.metrics.gpu import Gpus, find_gpus
from tests.frontends.metrics.fake_nvml import FakeNvml
from tests.metrics_text import metrics_page
from tests.prometheus_text import PageFamily, read_page

SECOND = 1_000_000_000


class World:
    def __init__(self, *uuids: str) -> None:
        self.nvml = FakeNvml()
        self.now_ns = 0
        self.gpus: Gpus | None = find_gpus(
            lambda: uuids or ("aaaa", "bbbb"), 2 * SECOND, lambda: self.now_ns, environ={}, load=lambda: self.nvml
        )

    def page(self) -> dict[str, PageFamily]:
        assert self.gpus is not None
        return read_page(metrics_page([], self.gpus.families()))

    def later(self) -> dict[str, PageFamily]:
        self.now_ns += 2 * SECOND
        return self.page()


def value(page: dict[str, PageFamily], name: str, uuid: str = "GPU-aaaa") -> float:
    return page[name].samples[name, (("gpu_uuid", uuid),)]


def test_every_family_has_a_series_for_each_gpu_with_tritons_texts_and_units() -> None:
    """metrics.md, section 2: shares, bytes, watts and joules from NVML's per cent, bytes, milliwatts and millijoules."""
    page = World().page()
    assert {name: (family.kind, family.help) for name, family in page.items()} == {
        "nv_gpu_utilization": ("gauge", "GPU utilization rate [0.0 - 1.0)"),
        "nv_gpu_memory_total_bytes": ("gauge", "GPU total memory, in bytes"),
        "nv_gpu_memory_used_bytes": ("gauge", "GPU used memory, in bytes"),
        "nv_gpu_power_usage": ("gauge", "GPU power usage in watts"),
        "nv_gpu_power_limit": ("gauge", "GPU power management limit in watts"),
        "nv_energy_consumption": ("counter", "GPU energy consumption in joules since the Triton Server started"),
    }
    assert [value(page, name) for name in page] == [0.4, float(80 << 30), float(1 << 30), 70.5, 700.0, 0.0]
    assert value(page, "nv_gpu_utilization", "MIG-bbbb") == 0.41
    assert value(page, "nv_gpu_memory_used_bytes", "MIG-bbbb") == float(2 << 30)


def test_gpus_that_cuda_does_not_show_are_not_there() -> None:
    page = World("bbbb").page()
    assert set(page["nv_gpu_utilization"].samples) == {("nv_gpu_utilization", (("gpu_uuid", "MIG-bbbb"),))}


def test_energy_is_counted_from_the_start_of_the_server() -> None:
    world = World()
    world.nvml.energy_mj += 1_500
    assert value(world.later(), "nv_energy_consumption") == 1.5
    world.nvml.energy_mj += 500
    assert value(world.later(), "nv_energy_consumption") == 2.0
    world.nvml.energy_mj = 0  # the driver was loaded again
    assert value(world.later(), "nv_energy_consumption") == 2.0
    world.nvml.energy_mj = 1_000
    assert value(world.later(), "nv_energy_consumption") == 3.0


def test_nothing_is_read_again_within_the_interval() -> None:
    world = World()
    calls = len(world.nvml.calls)
    world.nvml.per_cent = 90
    world.now_ns = 2 * SECOND - 1
    assert value(world.page(), "nv_gpu_utilization") == 0.4
    assert len(world.nvml.calls) == calls
    world.now_ns = 2 * SECOND
    assert value(world.page(), "nv_gpu_utilization") == 0.9


def test_a_value_that_cannot_be_read_is_0_and_the_others_stay() -> None:
    world = World()
    world.nvml.broken = {"nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption"}
    page = world.later()
    assert value(page, "nv_gpu_power_usage") == 0
    assert value(page, "nv_energy_consumption") == 0
    assert value(page, "nv_gpu_power_limit") == 700
    world.nvml.broken.clear()
    assert value(world.later(), "nv_gpu_power_usage") == 70.5


def test_a_value_that_failed_three_times_in_a_row_is_not_asked_for_again() -> None:
    world = World()
    world.nvml.broken = {"nvmlDeviceGetPowerUsage"}
    for _ in range(2):
        world.later()
    world.nvml.broken.clear()
    assert value(world.later(), "nv_gpu_power_usage") == 70.5
    world.nvml.broken = {"nvmlDeviceGetPowerUsage"}
    for _ in range(3):
        world.later()
    world.nvml.broken.clear()
    world.nvml.calls.clear()
    assert value(world.later(), "nv_gpu_power_usage") == 0
    assert "nvmlDeviceGetPowerUsage" not in world.nvml.calls
    assert value(world.page(), "nv_gpu_utilization") == 0.4


def broken_module() -> Any:
    raise ImportError("No module named 'pynvml'")


def module_without_a_driver() -> Any:
    nvml = FakeNvml()
    nvml.broken = {"nvmlInit"}
    return nvml


@pytest.mark.parametrize(
    ("uuids", "environ", "load", "reason"),
    [
        ((), {}, FakeNvml, "no GPU that CUDA lets this process use"),
        (("aaaa",), {"TRITON_SERVER_CPU_ONLY": "1"}, FakeNvml, "TRITON_SERVER_CPU_ONLY is set"),
        (("aaaa",), {}, broken_module, "No module named 'pynvml'"),
        (("aaaa",), {}, module_without_a_driver, "Not Supported"),
    ],
)
def test_where_there_is_nothing_to_read_one_verbose_line_says_why(
    uuids: tuple[str, ...], environ: dict[str, str], load: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    assert find_gpus(lambda: uuids, 0, lambda: 0, environ, load) is None
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert reason in record.getMessage()


def test_the_environment_is_asked_before_the_driver() -> None:
    def uuids() -> tuple[str, ...]:
        pytest.fail("the driver was asked")

    assert find_gpus(uuids, 0, lambda: 0, {"TRITON_SERVER_CPU_ONLY": "1"}) is None


def test_devices_that_nvml_does_not_know_are_left_out() -> None:
    assert World("unknown").gpus is None
