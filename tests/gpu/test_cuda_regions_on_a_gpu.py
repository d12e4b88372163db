"""What `contract/test_cuda_regions.py` shows of pretended devices, on a real one: clients' memory for models on the host."""

from __future__ import annotations

import pytest

from pytriton_lite.ipc import device as devices
from pytriton_lite.ipc.device import Device
from tests.contract.test_cuda_regions import (  # noqa: F401  # fixtures and tests, which pytest finds by their names
    client,
    protocol,
    repository,
    server,
    test_a_helper_that_is_killed_is_replaced_and_regions_stay_registered,
    test_a_region_and_ordinary_tensors_go_together,
    test_inputs_are_read_from_regions_and_outputs_written_to_them,
    test_responses_of_a_stream_reach_their_region_in_order,
    test_sizes_and_offsets_are_checked,
    test_texts_in_a_region_are_checked_after_they_were_read,
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
