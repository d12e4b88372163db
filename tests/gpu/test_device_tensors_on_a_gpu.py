"""What `contract/test_device_tensors.py` shows of pretended devices, on a real one.

Left out is what only pretended ones can show: two devices where there is one, no room, and handles that kill.
"""

from __future__ import annotations

import pytest

from pytriton_lite.ipc import device as devices
from pytriton_lite.ipc.device import Device
from tests.contract.test_device_tensors import (  # noqa: F401  # fixtures and tests, which pytest finds by their names
    client,
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
