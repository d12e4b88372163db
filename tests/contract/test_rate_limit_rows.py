"""Rows 124 to 129 of scheduling.md: instances that wait for resources."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.contract.wire_models import Traffic, executions, pending, report_of, write_recording
from tests.harness import RunningServer, tensor, write_model

ON = "--rate-limit=execution_count"
SHARED = 'instance_group { rate_limiter { resources { name: "R1" count: 1 global: true } } }'
PRIORITY_TWO = 'instance_group { rate_limiter { resources { name: "R1" count: 1 global: true } priority: 2 } }'
OF_DEVICE = 'instance_group { rate_limiter { resources { name: "R1" count: 1 } } }'

# A model that calls another: what that needs is held by the caller.
CALLING = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            calls = [
                pb_utils.InferenceRequest(model_name="a", requested_output_names=["REPORT"], inputs=request.inputs())
                for request in requests
            ]
            answers = [call.exec() for call in calls]
            return [
                pb_utils.InferenceResponse(answer.output_tensors(), answer.error() if answer.has_error() else None)
                for answer in answers
            ]
"""
CALLING_CONFIG = """
    backend: "python"
    input { name: "GATE" data_type: TYPE_STRING dims: [ 1 ] }
    output { name: "REPORT" data_type: TYPE_STRING dims: [ 1 ] }
"""


TWO = 'instance_group { rate_limiter { resources { name: "R2" count: 2 global: true } } }'
ONE_OF_TWO = 'instance_group { rate_limiter { resources { name: "R2" count: 1 global: true } } }'

# A model that calls first one that needs nothing, with what it was given, and then one that needs what it has, too.
CALLING_LATER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            self.call("free", request.inputs())
            asked = self.call("helping", [pb_utils.Tensor("GATE", np.array([b""], np.object_))])
            return pb_utils.InferenceResponse(asked.output_tensors(), asked.error() if asked.has_error() else None)

        def call(self, model, inputs):
            return pb_utils.InferenceRequest(
                model_name=model, requested_output_names=["REPORT"], inputs=inputs
            ).exec()
"""


@contextmanager
def serving(folder: Path, *flags: str, **models: str) -> Iterator[RunningServer]:
    for name, more in models.items():
        write_recording(folder / "models", name, more)
    with RunningServer(folder / "models", flags=("--exit-on-error=false", *flags)) as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """With a limiter, and as much of R1 as one instance needs."""
    folder = tmp_path_factory.mktemp("limited")
    write_model(folder / "models", "calling", CALLING, CALLING_CONFIG + SHARED)
    write_model(folder / "models", "later", CALLING_LATER, CALLING_CONFIG + ONE_OF_TWO)
    recording = {"a": SHARED, "b": SHARED, "low": PRIORITY_TWO, "free": "", "large": TWO, "helping": ONE_OF_TWO}
    with serving(folder, "--rate-limit=Execution_COUNT", **recording) as running:
        yield running


Open = Callable[[RunningServer, str], Traffic]


@pytest.fixture
def traffic_to(tmp_path: Path) -> Iterator[Open]:
    opened: list[Traffic] = []

    def open_to(server: RunningServer, model: str) -> Traffic:
        folder = tmp_path / model
        folder.mkdir()
        opened.append(Traffic(server, model, folder))
        return opened[-1]

    yield open_to
    for traffic in opened:
        traffic.open_gates()
    for traffic in opened:
        traffic.close()


def reasons(server: RunningServer) -> dict[str, str]:
    return {entry["name"]: entry.get("reason", "") for entry in server.post("/v2/repository/index").json}


def test_row_124_without_the_limiter_its_settings_are_ignored_and_the_log_says_so(
    tmp_path: Path, traffic_to: Open
) -> None:
    """What the limiter would refuse is taken as well."""
    unlimited = "--rate-limit-resource=R1:0"
    with serving(tmp_path, unlimited, "--rate-limit=OFF", a=SHARED, b=SHARED, c=OF_DEVICE) as server:
        models = [traffic_to(server, model) for model in "abc"]
        held = [model.block() for model in models]
        assert not any(future.done() for future in held), "all of them execute"
        for model in models:
            model.open_gates()
        for model in "abc":
            text = "rate_limiter has no effect, this server has no limiter (--rate-limit=execution_count)"
            assert f"model '{model}' version 1: {text}" in server.log
        assert "--rate-limit-resource has no effect" in server.log
        assert server.get("/v2/models/a/config").json["instance_group"][0]["rate_limiter"] == {
            "resources": [{"name": "R1", "global": True, "count": 1}],
            "priority": 0,
        }


def test_row_125_two_models_that_need_one_resource_run_one_after_the_other(
    server: RunningServer, traffic_to: Open
) -> None:
    first, second = traffic_to(server, "a"), traffic_to(server, "b")
    blocker = first.block()
    waiting = second.queue("waiting")
    assert server.infer("free", [tensor("GATE", "BYTES", [1], [""])]).status == 200, "who needs nothing does not wait"
    assert pending(server, "b") == 1
    first.open_gates()
    assert executions([report_of(future.result(30)) for future in (blocker, waiting)]) == [["blocker"], ["waiting"]]


def test_row_126_with_two_of_the_resource_they_run_side_by_side(tmp_path: Path, traffic_to: Open) -> None:
    with serving(tmp_path, ON, "--rate-limit-resource=R1:2", a=SHARED, b=SHARED, c=SHARED) as server:
        first, second, third = (traffic_to(server, model) for model in "abc")
        held = [first.block(), second.block()]
        waiting = third.queue("waiting")
        assert not any(future.done() for future in held)
        for model in (first, second):
            model.open_gates()
        assert report_of(waiting.result(30))["ids"] == ["waiting"]


def test_row_127_a_need_that_is_never_met_fails_the_load(tmp_path: Path) -> None:
    with serving(tmp_path, ON, "--rate-limit-resource=R1:0", a=SHARED, b=OF_DEVICE, free="") as server:
        text = (
            'Invalid argument: Resource count for "R1" is limited to 0 which will prevent scheduling of one or more model '
            "instances, the minimum required count is 1"
        )
        assert reasons(server) == {"a": text, "b": text, "free": ""}


def test_row_128_a_resource_is_either_global_or_of_a_device(tmp_path: Path) -> None:
    both = """instance_group { rate_limiter {
        resources { name: "R1" count: 1 } resources { name: "R1" count: 1 global: true } } }"""
    with serving(tmp_path, ON, both=both, a=SHARED, b=OF_DEVICE) as server:
        text = (
            'Invalid argument: Resource "R1" is present as both global and device-specific resource in the model '
            "configuration."
        )
        found = reasons(server)
        assert found.pop("both") == text
        assert sorted(found.values()) == ["", text], "the one that came first serves"


def test_row_129_priority_two_executes_half_as_often(server: RunningServer, traffic_to: Open) -> None:
    high, low = traffic_to(server, "a"), traffic_to(server, "low")
    blocker = high.block()
    queued = [high.queue(f"high{at}") for at in range(8)] + [low.queue(f"low{at}") for at in range(8)]
    high.open_gates()
    blocker.result(30)
    begun = executions([report_of(future.result(30)) for future in queued])
    assert [ids[0].rstrip("0123456789") for ids in begun[:12]] == ["high", "high", "low"] * 4


def test_a_call_for_what_its_caller_holds_is_found_to_wait_for_itself(server: RunningServer) -> None:
    reply = server.infer("calling", [tensor("GATE", "BYTES", [1], [""])])
    assert reply.status == 503
    assert "the call waits for itself: calling_0_0 -> a" in reply.error
    assert server.infer("a", [tensor("GATE", "BYTES", [1], [""])]).status == 200


def test_a_call_goes_past_one_that_waits_for_what_its_caller_holds(server: RunningServer, traffic_to: Open) -> None:
    later, large = traffic_to(server, "later"), traffic_to(server, "large")
    caller = later.block()
    first = large.queue("first")
    later.open_gates()
    assert caller.result(30).status == 200
    assert first.result(30).status == 200


def test_a_bad_resource_ends_the_server_with_usage(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as caught, serving(tmp_path, ON, "--rate-limit-resource=R1", a=SHARED):
        pass
    assert (
        "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. Got R1"
    ) in str(caught.value)
