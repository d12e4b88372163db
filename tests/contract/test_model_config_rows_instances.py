"""Rows of model_config.md about instance groups: which instances there are, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import RunningServer, tensor, write_model

CODE = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.args = {key: args[key] for key in args if key.startswith("model_instance")}

        def execute(self, requests):
            text = np.array([json.dumps(self.args)], np.object_)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)]) for _ in requests]
"""
CONFIG = """
    backend: "python"
    input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }
"""
MODELS = {
    "kind_model": "instance_group { kind: KIND_MODEL }",
    "zero": "instance_group { count: 0 }",
    "minus_three": "instance_group { count: -3 }",
    "multi": 'instance_group [ { name: "g" count: 2 }, { } ]',
    "none": "",
    "passive": "instance_group [ { passive: true count: 2 }, { } ]",
    "only_passive": "instance_group { passive: true }",
    "idle_settings": """instance_group {
        host_policy: "p" secondary_devices { kind: KIND_NVDLA device_id: 1 } rate_limiter { priority: 3 } }""",
    "gpu": "instance_group { kind: KIND_GPU }",
    "cpu_gpus": "instance_group { kind: KIND_CPU gpus: [ 0 ] }",
    "auto_gpus": "instance_group { gpus: [ 0 ] }",
    "model_gpus": "instance_group { kind: KIND_MODEL gpus: [ 0 ] }",
    "profile": 'instance_group { name: "g" profile: "x" }',
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("instances") / "models"
    for name, groups in MODELS.items():
        write_model(repository, name, CODE, CONFIG + groups)
    # Without a GPU, whatever this machine has.
    with RunningServer(repository, flags=("--exit-on-error=false",), environ={"CUDA_VISIBLE_DEVICES": ""}) as running:
        yield running


def groups_of(server: RunningServer, model: str) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = server.get(f"/v2/models/{model}/config").json["instance_group"]
    return groups


def answering(server: RunningServer, model: str, requests: int = 6) -> dict[str, dict[str, str]]:
    """What the instances were told that have answered, by name."""
    found = {}
    for _ in range(requests):
        reply = server.infer(model, [tensor("IN", "INT32", [1], [0])])
        assert reply.status == 200, reply.body
        args = json.loads(reply.json["outputs"][0]["data"][0])
        found[args["model_instance_name"]] = args
    return found


def reason(server: RunningServer, model: str) -> str:
    """Why *model* is UNAVAILABLE, as the index says."""
    (entry,) = [entry for entry in server.post("/v2/repository/index").json if entry["name"] == model]
    assert entry["state"] == "UNAVAILABLE"
    text: str = entry["reason"]
    return text


@pytest.mark.parametrize(
    ("model", "detail"),
    [
        pytest.param(
            "gpu", "gpu_0 of model gpu has kind KIND_GPU but no GPUs are available", id="row 60: KIND_GPU without GPUs"
        ),
        pytest.param(
            "cpu_gpus",
            "cpu_gpus_0 of model cpu_gpus has kind KIND_CPU but specifies one or more GPUs",
            id="row 61: KIND_CPU with gpus",
        ),
        pytest.param(
            "auto_gpus",
            "auto_gpus_0 of model auto_gpus has kind KIND_CPU but specifies one or more GPUs",
            id="row 62: KIND_AUTO with gpus on a machine without",
        ),
        pytest.param(
            "model_gpus",
            "model_gpus_0 of model model_gpus has kind KIND_MODEL but specifies one or more GPUs",
            id="KIND_MODEL with gpus",
        ),
        pytest.param(
            "profile",
            "g of model profile and platform specifies profile field which is only supported for TensorRT models",
            id="row 66: profile",
        ),
    ],
)
def test_a_group_that_is_not_possible_fails_the_load(server: RunningServer, model: str, detail: str) -> None:
    assert reason(server, model) == f"Invalid argument: instance group {detail}"


def test_row_63_an_instance_of_kind_model_is_told_so(server: RunningServer) -> None:
    assert answering(server, "kind_model", 1) == {
        "kind_model_0_0": {
            "model_instance_kind": "MODEL",
            "model_instance_name": "kind_model_0_0",
            "model_instance_device_id": "0",
        }
    }


@pytest.mark.parametrize("model", ["zero", "minus_three"])
def test_row_64_a_count_below_one_is_one(server: RunningServer, model: str) -> None:
    assert [group["count"] for group in groups_of(server, model)] == [1]
    assert list(answering(server, model, 2)) == [f"{model}_0_0"]


def test_row_65_instances_are_named_by_their_groups(server: RunningServer) -> None:
    assert [(group["name"], group["count"]) for group in groups_of(server, "multi")] == [("g", 2), ("multi_1", 1)]
    assert set(answering(server, "multi", 12)) == {"g_0", "g_1", "multi_1_0"}
    assert set(answering(server, "none", 1)) == {"none_0"}


def test_row_67_only_an_active_instance_executes(server: RunningServer) -> None:
    assert [(group["passive"], group["count"]) for group in groups_of(server, "passive")] == [(True, 2), (False, 1)]
    assert len(server.worker_pids("passive_")) == 3, "passive ones are initialised"
    assert set(answering(server, "passive")) == {"passive_1_0"}


def test_a_model_with_passive_instances_alone_loads_and_refuses(server: RunningServer) -> None:
    assert len(server.worker_pids("only_passive_")) == 1
    reply = server.infer("only_passive", [tensor("IN", "INT32", [1], [0])])
    assert (reply.status, "only passive instances" in reply.error) == (503, True)
    server.wait_for_log("model 'only_passive' has only passive instances, which never execute")


def test_settings_without_a_meaning_here_are_shown_and_said_to_have_none(server: RunningServer) -> None:
    (group,) = groups_of(server, "idle_settings")
    assert group["host_policy"] == "p"
    assert group["secondary_devices"] == [{"kind": "KIND_NVDLA", "device_id": "1"}]
    assert set(answering(server, "idle_settings", 1)) == {"idle_settings_0_0"}
    server.wait_for_log("instance_group.host_policy")
    server.wait_for_log("instance_group.secondary_devices")
