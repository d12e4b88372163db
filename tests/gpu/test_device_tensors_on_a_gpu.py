"""What `contract/test_device_tensors.py` shows of pretended devices, on a real one.

Left out is what only pretended ones can show: two devices where there is one, no room, and handles that kill.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytriton_lite.ipc import device as devices
from pytriton_lite.ipc.device import Device
from tests.contract.test_device_tensors import (  # noqa: F401  # fixtures and tests, which pytest finds by their names
    client,
    fp32,
    http,
    protocol,
    repository,
    server,
    test_a_clients_region_reaches_the_model_and_back_without_the_host,
    test_a_request_that_is_executed_again_has_its_tensor_still,
    test_a_state_that_a_model_leaves_on_the_device_is_kept_on_the_host,
    test_a_step_that_wants_the_host_gets_it,
    test_an_ensemble_hands_tensors_on_by_the_device,
    test_an_output_on_a_device_comes_in_the_body_where_no_region_is_named,
    test_answers_that_are_kept_are_on_the_host,
    test_awaited_and_decoupled_calls_hand_tensors_on_by_the_device,
    test_bf16_stays_on_the_device,
    test_calls_hand_tensors_on_by_the_device,
)
from tests.device_kit import fork_server_pid
from tests.harness import RunningServer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not devices.visible_device_ids(), reason="this machine has no CUDA device"),
]


@pytest.fixture(scope="module")
def device_environ() -> dict[str, str]:
    """Nothing is pretended."""
    return {}


@pytest.fixture
def device() -> Device:
    return devices.device(0)


def test_neither_the_engine_nor_a_fork_server_has_a_context(server: RunningServer, http: Any) -> None:  # noqa: F811
    """The driver's own list of processes has the workers; a fork server has not even loaded the driver."""
    array = np.arange(1 << 18, dtype=np.float32)
    http.infer("chain", [fp32(array, "T0")])
    (worker,) = server.worker_pids("add_one_0")
    assert "libcuda.so" not in Path(f"/proc/{fork_server_pid(worker)}/maps").read_text()
    nvml = pytest.importorskip("pynvml")
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    with_context = {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    if os.getpid() not in with_context:
        pytest.skip("the driver counts processes in another namespace")
    assert server.process.pid not in with_context
