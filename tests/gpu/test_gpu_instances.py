"""What only a machine with a CUDA device can show."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytriton_lite.ipc import device as devices
from tests.harness import RunningServer, tensor, write_model
from tests.prometheus_text import read_page

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not devices.visible_device_ids(), reason="this machine has no CUDA device"),
]

TELLS_ITS_DEVICE = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.told = np.array([args["model_instance_kind"], args["model_instance_device_id"]], dtype=object)

        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.told)]) for _ in requests]
"""
CONFIG = """
    backend: "python"
    input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "OUT" data_type: TYPE_STRING dims: [ 2 ] }
"""


def test_a_model_without_instance_groups_gets_an_instance_on_each_gpu(tmp_path: Path) -> None:
    """model_config.md section 4.6."""
    write_model(tmp_path, "m", TELLS_ITS_DEVICE, CONFIG)
    with RunningServer(tmp_path) as server:
        group = server.get("/v2/models/m/config").json["instance_group"][0]
        assert (group["kind"], group["gpus"]) == ("KIND_GPU", list(devices.visible_device_ids()))
        told = server.infer("m", [tensor("IN", "INT32", [1], [1])]).json["outputs"][0]["data"]
    assert told[0] == "GPU"
    assert int(told[1]) in devices.visible_device_ids()


def test_the_metrics_page_shows_the_gpus_of_this_process(tmp_path: Path) -> None:
    """metrics.md section 2, as NVML has it."""
    pytest.importorskip("pynvml")
    write_model(tmp_path, "m", TELLS_ITS_DEVICE, CONFIG)
    with RunningServer(tmp_path) as server:
        families = read_page(server.get(server.metrics_url).body.decode())
    uuids = {labels[0][1].partition("-")[2] for _, labels in families["nv_gpu_memory_total_bytes"].samples}
    assert uuids == set(devices.visible_device_uuids())
    for (_, labels), total in families["nv_gpu_memory_total_bytes"].samples.items():
        assert 0 < families["nv_gpu_memory_used_bytes"].samples["nv_gpu_memory_used_bytes", labels] < total
        assert 0 <= families["nv_gpu_utilization"].samples["nv_gpu_utilization", labels] <= 1
