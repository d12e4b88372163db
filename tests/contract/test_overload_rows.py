"""Bounds on what waits (docs/security.md, Overload): who is refused, how, and who is not."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from tritonclient.grpc import service_pb2_grpc

from pytriton_lite.core import bytes_tensor
from tests.contract.wire_models import (
    RECORDING_CONFIG,
    Traffic,
    grpc_channel,
    infer_message,
    metric,
    report_of,
    wait_until,
    write_recording,
)
from tests.harness import Reply, RunningServer, tensor, write_model

CALLER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            gate = pb_utils.Tensor("GATE", np.array([b""], np.object_))
            call = pb_utils.InferenceRequest(model_name="narrow", requested_output_names=["REPORT"], inputs=[gate])
            answer = call.exec()
            if answer.has_error():
                raise pb_utils.TritonModelException(answer.error().message())
            return [pb_utils.InferenceResponse([answer.output_tensors()[0]]) for _ in requests]
"""
FEW = 'parameters { key: "MAX_UNANSWERED_REQUESTS" value { string_value: "2" } } '
SMALL = 'parameters { key: "MAX_UNANSWERED_BYTES" value { string_value: "1000" } } '
FREE = """parameters { key: "MAX_UNANSWERED_REQUESTS" value { string_value: "0" } } """
ENSEMBLE = """
    platform: "ensemble"
    input { name: "GATE" data_type: TYPE_STRING dims: [ 1 ] }
    output { name: "REPORT" data_type: TYPE_STRING dims: [ 1 ] }
    ensemble_scheduling { step {
        model_name: "narrow" model_version: -1
        input_map { key: "GATE" value: "GATE" } output_map { key: "REPORT" value: "REPORT" } } }
"""


def write_models(repository: Path) -> None:
    write_recording(repository, "narrow", FEW)
    write_recording(repository, "light", SMALL)
    write_recording(repository, "free", FREE)
    write_recording(repository, "plain", "")
    write_recording(repository, "dynamic", FEW + "max_batch_size: 4 dynamic_batching { }")
    sequences = "max_batch_size: 4 sequence_batching { max_sequence_idle_microseconds: 3600000000 }"
    write_recording(repository, "sequential", FEW + sequences)
    write_recording(repository, "cached", FEW + "response_cache { enable: true }")
    write_model(repository, "caller", CALLER, RECORDING_CONFIG)
    write_model(repository, "composed", "", ENSEMBLE)
    (repository / "composed" / "1").mkdir(exist_ok=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The server may have 8 requests unanswered, and so a model that says nothing 4."""
    repository = tmp_path_factory.mktemp("overload") / "models"
    write_models(repository)
    flags = ("--max-unanswered-requests=8", "--cache-config=local,size=1048576")
    with RunningServer(repository, flags=flags) as running:
        yield running


Open = Callable[[str], Traffic]


@pytest.fixture
def traffic_to(server: RunningServer, tmp_path: Path) -> Iterator[Open]:
    """Opens a `Traffic` to a model, which is closed after the test. Then nothing may be left of it."""
    opened: list[Traffic] = []

    def open_to(model: str) -> Traffic:
        folder = tmp_path / str(len(opened))
        folder.mkdir()
        opened.append(Traffic(server, model, folder))
        return opened[-1]

    yield open_to
    for traffic in opened:
        traffic.close()
    for traffic in opened:
        wait_until(lambda model=traffic.model: not unanswered(server, model))  # type: ignore[misc]
        assert metric(server, "pytriton_lite_unanswered_bytes", traffic.model) == 0


def unanswered(server: RunningServer, model: str) -> int:
    return int(metric(server, "pytriton_lite_unanswered_requests", model))


def fill(traffic: Traffic, count: int) -> list[Future[Reply]]:
    """One request in ``execute``, and more behind it, *count* in all."""
    sent = [traffic.block()]
    sent += [traffic.send(f"r{at}") for at in range(count - 1)]
    wait_until(lambda: unanswered(traffic.server, traffic.model) == count)
    return sent


def ask(server: RunningServer, model: str, text: str = "", **fields: Any) -> Reply:
    shape = [1, 1] if model in ("dynamic", "sequential") else [1]
    return server.infer(model, [tensor("GATE", "BYTES", shape, [text])], **fields)


def retry_after(reply: Reply) -> int:
    """Whole seconds; 0 where nothing is said."""
    return int({name.lower(): value for name, value in reply.headers.items()}.get("retry-after", "0"))


REFUSED = "too much waits: a request of 4 bytes to model '{0}' is refused, for model '{0}' has 2 requests, limit 2"


@pytest.mark.parametrize("model", ["narrow", "dynamic", "cached"])
def test_one_request_too_many_is_refused_at_once_and_told_when_to_come_again(
    server: RunningServer, traffic_to: Open, model: str
) -> None:
    traffic = traffic_to(model)
    sent = fill(traffic, 2)
    before = metric(server, "pytriton_lite_rejected_requests", model, reason="QUEUE_FULL")
    reply = ask(server, model)
    assert (reply.status, reply.error) == (503, REFUSED.format(model))
    assert retry_after(reply) >= 1
    assert metric(server, "pytriton_lite_rejected_requests", model, reason="QUEUE_FULL") == before + 1
    assert metric(server, "nv_inference_request_failure", model, reason="REJECTED") == 0
    assert server.get("/v2/health/ready").status == 200
    assert server.get(f"/v2/models/{model}/ready").status == 200
    traffic.open_gates()
    assert [future.result(30).status for future in sent] == [200, 200]
    assert ask(server, model).status == 200


def test_over_grpc_it_is_unavailable_with_retry_info(server: RunningServer, traffic_to: Open) -> None:
    fill(traffic_to("narrow"), 2)
    with grpc_channel(server) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(infer_message("narrow", ("GATE", "BYTES", [1], bytes_tensor.encode([b""]))))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.details() == REFUSED.format("narrow")
    told = status_pb2.Status.FromString(dict(caught.value.trailing_metadata())["grpc-status-details-bin"])
    info = error_details_pb2.RetryInfo()
    assert told.details[0].Unpack(info)
    assert info.retry_delay.seconds >= 1


def test_in_a_stream_it_is_the_text_of_the_message(server: RunningServer, traffic_to: Open) -> None:
    fill(traffic_to("narrow"), 2)
    message = infer_message("narrow", ("GATE", "BYTES", [1], bytes_tensor.encode([b""])))
    with grpc_channel(server) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        (answer,) = stub.ModelStreamInfer(iter([message]))
    assert answer.error_message == REFUSED.format("narrow")


def test_generate_is_refused_with_the_same_header(server: RunningServer, traffic_to: Open) -> None:
    fill(traffic_to("narrow"), 2)
    reply = server.post("/v2/models/narrow/generate", {"GATE": ""})
    assert (reply.status, reply.error) == (503, REFUSED.format("narrow"))
    assert retry_after(reply) >= 1


def test_bytes_are_bounded_as_well_and_what_is_too_large_for_ever_hears_no_time(
    server: RunningServer, traffic_to: Open
) -> None:
    traffic = traffic_to("light")
    blocker = traffic.block()  # its input is a path
    small = ask_bytes(server, 996)
    assert small.status == 503
    assert "of inputs, limit 1000" in small.error and retry_after(small) >= 1
    large = ask_bytes(server, 2000)
    assert (large.status, retry_after(large)) == (503, 0)
    assert (
        large.error
        == "a request of 2004 bytes to model 'light' is refused: model 'light' takes 1000 bytes of inputs at most"
    )
    traffic.open_gates()
    assert blocker.result(30).status == 200


def ask_bytes(server: RunningServer, size: int) -> Reply:
    return ask(server, "light", "x" * size)


def test_the_server_has_a_limit_for_all_models_together(server: RunningServer, traffic_to: Open) -> None:
    """One that may have as many as it likes does not keep the others from what it leaves them."""
    fill(traffic_to("free"), 6)
    fill(traffic_to("plain"), 2)
    reply = ask(server, "narrow")
    assert reply.status == 503
    assert reply.error.endswith("to model 'narrow' is refused, for the server has 8 requests, limit 8")


def test_a_model_that_says_nothing_has_half(server: RunningServer, traffic_to: Open) -> None:
    fill(traffic_to("plain"), 4)
    assert ask(server, "plain").error.endswith("for model 'plain' has 4 requests, limit 4")
    assert ask(server, "free").status == 200


@pytest.mark.parametrize("model", ["composed", "caller"])
def test_requests_that_were_accepted_get_past_full_queues_inside(
    server: RunningServer, traffic_to: Open, model: str
) -> None:
    narrow, outer = traffic_to("narrow"), traffic_to(model)
    sent = fill(narrow, 2)
    inside = outer.send("inside")
    wait_until(lambda: unanswered(server, "narrow") == 3)
    assert ask(server, "narrow").status == 503  # clients give way
    narrow.open_gates()
    assert report_of(inside.result(30))
    assert [future.result(30).status for future in sent] == [200, 200]


def test_a_request_in_the_middle_of_a_sequence_can_be_sent_again(server: RunningServer, traffic_to: Open) -> None:
    first = ask(server, "sequential", parameters={"sequence_id": 7, "sequence_start": True})
    assert first.status == 200
    traffic = traffic_to("sequential")
    gate = traffic.gate()
    other = {"sequence_id": 8, "sequence_start": True, "sequence_end": True}
    held = traffic.send("other", gate=gate, parameters=other)
    gate.wait_held(server)
    behind = traffic.send("behind", parameters={"sequence_id": 9, "sequence_start": True, "sequence_end": True})
    wait_until(lambda: unanswered(server, "sequential") == 2)
    assert ask(server, "sequential", parameters={"sequence_id": 7}).status == 503
    traffic.open_gates()
    assert held.result(30).status == behind.result(30).status == 200
    for flags in ({}, {"sequence_end": True}):
        assert ask(server, "sequential", parameters={"sequence_id": 7, **flags}).status == 200


def test_dead_worker_frees_its_places(server: RunningServer, traffic_to: Open) -> None:
    sent = fill(traffic_to("narrow"), 2)
    (pid,) = server.worker_pids("narrow_0")
    os.kill(pid, signal.SIGKILL)
    assert sent[0].result(30).status == 503
    assert sent[1].result(30).status == 200
    wait_until(lambda: not unanswered(server, "narrow"))


def test_client_that_leaves_frees_its_place_when_the_model_has_done_with_it(
    server: RunningServer, tmp_path: Path
) -> None:
    with Traffic(server, "plain", tmp_path) as traffic, grpc_channel(server) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        gate = traffic.gate()
        executing = stub.ModelInfer.future(gated("plain", gate.path))
        gate.wait_held(server)
        ahead = traffic.send("ahead")  # which the worker has, too
        wait_until(lambda: unanswered(server, "plain") == 2)
        queued = stub.ModelInfer.future(gated("plain", ""))
        wait_until(lambda: unanswered(server, "plain") == 3)
        queued.cancel()
        wait_until(lambda: unanswered(server, "plain") == 2)
        executing.cancel()
        wait_until(lambda: metric(server, "pytriton_lite_cancelled_requests", "plain") == 2)
        assert unanswered(server, "plain") == 2
        traffic.open_gates()
        assert ahead.result(30).status == 200
        wait_until(lambda: not unanswered(server, "plain"))


def gated(model: str, path: str) -> Any:
    return infer_message(model, ("GATE", "BYTES", [1], bytes_tensor.encode([path.encode()])))


def test_by_a_flag_it_is_429_and_resource_exhausted(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write_recording(repository, "narrow", FEW)
    with (
        RunningServer(repository, flags=("--overload-status=429",)) as server,
        Traffic(server, "narrow", tmp_path) as traffic,
        grpc_channel(server) as channel,
    ):
        fill(traffic, 2)
        reply = ask(server, "narrow")
        assert (reply.status, reply.error) == (429, REFUSED.format("narrow"))
        assert retry_after(reply) >= 1
        assert metric(server, "pytriton_lite_rejected_requests", "narrow", reason="QUEUE_FULL") == 1
        with pytest.raises(grpc.RpcError) as caught:
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(gated("narrow", ""))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
