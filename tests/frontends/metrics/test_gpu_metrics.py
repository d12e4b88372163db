"""GPUs through a stand-in for NVML's module."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from pytriton_lite.frontends.metrics import gpu
from pytriton_lite.frontends.metrics.gpu import GpuReadings, find_gpus
from tests.frontends.metrics.fake_nvml import FakeNvml
from tests.metrics_text import metrics_page
from tests.prometheus_text import PageFamily, read_page

SECOND = 1_000_000_000


class World:
    """Its loop must be closed."""

    def __init__(self, *uuids: str) -> None:
        self.nvml = FakeNvml()
        self.now_ns = 0
        self.loop = asyncio.new_event_loop()
        find = partial(find_gpus, lambda: uuids or ("aaaa", "bbbb"), {}, lambda: self.nvml)

        async def begin() -> GpuReadings:
            readings = GpuReadings(find, 2 * SECOND, lambda: self.now_ns)
            await readings.families()
            return readings

        self.readings = self.loop.run_until_complete(begin())

    def page(self) -> dict[str, PageFamily]:
        return read_page(metrics_page([], self.loop.run_until_complete(self.readings.families())))

    def later(self) -> dict[str, PageFamily]:
        self.now_ns += 2 * SECOND
        return self.page()


@pytest.fixture
def make_world() -> Iterator[Callable[..., World]]:
    with contextlib.ExitStack() as stack:

        def make(*uuids: str) -> World:
            world = World(*uuids)
            stack.callback(world.loop.close)
            return world

        yield make


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()


def value(page: dict[str, PageFamily], name: str, uuid: str = "GPU-aaaa") -> float:
    return page[name].samples[name, (("gpu_uuid", uuid),)]


def test_every_family_has_a_series_for_each_gpu_with_tritons_texts_and_units(world: World) -> None:
    """metrics.md, section 2: shares, bytes, watts and joules from NVML's per cent, bytes, milliwatts and millijoules."""
    page = world.page()
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


def test_gpus_that_cuda_does_not_show_are_not_there(make_world: Callable[..., World]) -> None:
    page = make_world("bbbb").page()
    assert set(page["nv_gpu_utilization"].samples) == {("nv_gpu_utilization", (("gpu_uuid", "MIG-bbbb"),))}


def test_energy_is_counted_from_the_start_of_the_server(world: World) -> None:
    world.nvml.energy_mj += 1_500
    assert value(world.later(), "nv_energy_consumption") == 1.5
    world.nvml.energy_mj += 500
    assert value(world.later(), "nv_energy_consumption") == 2.0
    world.nvml.energy_mj = 0  # the driver was loaded again
    assert value(world.later(), "nv_energy_consumption") == 2.0
    world.nvml.energy_mj = 1_000
    assert value(world.later(), "nv_energy_consumption") == 3.0


def test_nothing_is_read_again_within_the_interval(world: World) -> None:
    calls = len(world.nvml.calls)
    world.nvml.per_cent = 90
    world.now_ns = 2 * SECOND - 1
    assert value(world.page(), "nv_gpu_utilization") == 0.4
    assert len(world.nvml.calls) == calls
    world.now_ns = 2 * SECOND
    assert value(world.page(), "nv_gpu_utilization") == 0.9


def test_a_value_that_cannot_be_read_is_0_and_the_others_stay(world: World) -> None:
    world.nvml.broken = {"nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption"}
    page = world.later()
    assert value(page, "nv_gpu_power_usage") == 0
    assert value(page, "nv_energy_consumption") == 0
    assert value(page, "nv_gpu_power_limit") == 700
    world.nvml.broken.clear()
    assert value(world.later(), "nv_gpu_power_usage") == 70.5


def test_a_value_that_failed_three_times_in_a_row_is_not_asked_for_again(world: World) -> None:
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
    assert find_gpus(lambda: uuids, environ, load) is None
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert reason in record.getMessage()


def test_the_environment_is_asked_before_the_driver() -> None:
    def uuids() -> tuple[str, ...]:
        pytest.fail("the driver was asked")

    assert find_gpus(uuids, {"TRITON_SERVER_CPU_ONLY": "1"}) is None


def test_devices_that_nvml_does_not_know_are_left_out(make_world: Callable[..., World]) -> None:
    assert make_world("unknown").later() == {}


def test_the_loop_runs_while_the_driver_takes_its_time(world: World) -> None:
    waited: list[bool] = []

    def wait_for_the_loop() -> None:
        loop_ran = threading.Event()
        world.loop.call_soon_threadsafe(loop_ran.set)
        waited.append(loop_ran.wait(2))

    world.nvml.waits = wait_for_the_loop
    world.later()
    assert set(waited) == {True}


def test_a_driver_that_hangs_leaves_the_last_values_and_is_asked_nothing_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answers = threading.Event(), threading.Event()
    world.nvml.per_cent = 90
    world.nvml.calls.clear()
    world.nvml.waits = lambda: (asked.set(), answers.wait())
    monkeypatch.setattr(gpu, "_PATIENCE_S", 0.01)
    assert value(world.later(), "nv_gpu_utilization") == 0.4
    assert asked.wait(10)
    assert value(world.later(), "nv_gpu_utilization") == 0.4
    assert len(world.nvml.calls) == 1
    answers.set()
    monkeypatch.undo()
    world.loop.run_until_complete(world.readings._reading)
    assert value(world.page(), "nv_gpu_utilization") == 0.9
