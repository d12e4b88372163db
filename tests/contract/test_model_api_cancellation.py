"""Cancellation and death as a model and its clients see them: model_api.md rows 99, 100 and 103 to 105, section 4.7.

Rows 101 and 102, about unloading, are in test_model_life.py.
"""

from __future__ import annotations

import json
import queue
import re
import socket
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.contract.scripted_model import (
    BATCHING,
    DEADLINES_S,
    DECOUPLED,
    WAIT_S,
    Gate,
    Stream,
    request_message,
    run,
    stream_of,
    value_of,
    write_script_model,
)
from tests.contract.wire_models import wait_until
from tests.harness import Reply, RunningServer, tensor


@pytest.fixture(scope="module", params=["http2", "grpcio"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository: Path = tmp_path_factory.mktemp("repository")
    write_script_model(repository, "script")
    write_script_model(repository, "queue")
    write_script_model(repository, "one_of_two", instances=2)
    write_script_model(repository, "batching", BATCHING)
    write_script_model(repository, "decoupled", DECOUPLED)
    write_script_model(repository, "dying", DECOUPLED)
    with RunningServer(repository, flags=(f"--grpc-transport={request.param}",)) as running:
        yield running


@pytest.fixture
def stub(server: RunningServer) -> Iterator[service_pb2_grpc.GRPCInferenceServiceStub]:
    """Its calls share one connection, so the server hears of them, and of their cancellation, in order."""
    with grpc.insecure_channel(server.grpc_url) as channel:
        grpc.channel_ready_future(channel).result(WAIT_S)  # no deadline passes meanwhile
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def script(server: RunningServer, code: str, model: str = "script") -> Reply:
    return run(server, code, model=model)


ASK = """
sender = request.get_response_sender()
before = [request.is_cancelled(), sender.is_cancelled()]
gate({gate})
is_cancelled = until(request.is_cancelled)
after = [is_cancelled, sender.is_cancelled(), request.is_cancelled()]
tell({tells}, before + after)
return [response("nobody wants it")]
"""
TOLD = [False, False, True, True, True]


# ---------------------------------------------------------------------------------------------- a running request


def test_a_cancelled_call_is_seen_by_the_model_and_ends_at_once_for_its_client(server: RunningServer) -> None:
    """model_api.md row 99: the client has its end before the model knows anything."""
    ended: queue.SimpleQueue[InferenceServerException] = queue.SimpleQueue()
    with Gate() as gate, Gate() as tells, triton_grpc.InferenceServerClient(server.grpc_url) as client:
        given = triton_grpc.InferInput("IN", [1], "BYTES")
        given.set_data_from_numpy(np.array([ASK.format(gate=gate.port, tells=tells.port)], dtype=object))
        call = client.async_infer("script", [given], callback=lambda result, error: ended.put(error))
        gate.wait()
        call.cancel()
        gate.open()
        assert tells.told() == TOLD
        assert ended.get(timeout=WAIT_S).status() == str(grpc.StatusCode.CANCELLED)
    assert value_of(script(server, "return [response('next')]")) == "next"


def test_a_call_whose_deadline_passes_is_cancelled(
    server: RunningServer, stub: service_pb2_grpc.GRPCInferenceServiceStub
) -> None:
    """model_api.md row 100."""
    for deadline_s in DEADLINES_S:
        with Gate() as gate, Gate() as tells:
            code = ASK.format(gate=gate.port, tells=tells.port)
            call = stub.ModelInfer.future(request_message("script", code), timeout=deadline_s)
            has_come = gate.comes(unless=call)
            assert call.exception().code() is grpc.StatusCode.DEADLINE_EXCEEDED
            gate.open()
            if has_come and (told := tells.told()) == TOLD:
                return
    raise AssertionError(f"it was told {told}" if has_come else "the model was not reached")


def test_a_cancelled_stream_is_seen_by_request_and_sender(server: RunningServer) -> None:
    """model_api.md row 100: sending goes on to succeed."""
    with Gate() as gate, Gate() as tells:
        code = f"""
        sender = request.get_response_sender()
        before = [request.is_cancelled(), sender.is_cancelled()]
        gate({gate.port})
        after = [until(sender.is_cancelled), request.is_cancelled()]
        refusals = [refusal(sender.send, response(1)), refusal(sender.send, flags=FINAL)]
        tell({tells.port}, before + after + refusals)
        """
        with Stream(server) as stream:
            stream.send("decoupled", code)
            gate.wait()
        gate.open()
        assert tells.told() == [False, False, True, True, None, None]


def test_tritonclient_cancels_the_requests_of_its_stream(server: RunningServer) -> None:
    """model_api.md row 100, through the client's own call."""
    with Gate() as gate, Gate() as tells:
        code = f"gate({gate.port})\ntell({tells.port}, until(request.is_cancelled))"
        given = triton_grpc.InferInput("IN", [1], "BYTES")
        given.set_data_from_numpy(np.array([code], dtype=object))
        with triton_grpc.InferenceServerClient(server.grpc_url) as client:
            client.start_stream(lambda result, error: None)
            client.async_stream_infer("decoupled", [given])
            gate.wait()
            client.stop_stream(cancel_requests=True)
        gate.open()
        assert tells.told() is True


def test_a_request_that_nobody_cancels_is_not_cancelled(server: RunningServer) -> None:
    code = "return [response([request.is_cancelled(), request.get_response_sender().is_cancelled()])]"
    assert value_of(script(server, code)) == [False, False]


def test_only_the_cancelled_request_of_a_batch_is_cancelled(
    server: RunningServer, stub: service_pb2_grpc.GRPCInferenceServiceStub
) -> None:
    """Section 4.7: its batch mates are answered."""
    with Gate() as gate:
        code = f"""
        by_id = {{request.request_id(): request for request in requests}}
        gate({gate.port})
        until(by_id["b"].is_cancelled)
        told = {{key: request.is_cancelled() for key, request in by_id.items()}}
        return [response(told) for request in requests]
        """
        calls = {
            key: stub.ModelInfer.future(request_message("batching", code, request_id=key, batches=True), timeout=WAIT_S)
            for key in ("a", "b", "c")
        }
        gate.wait()
        calls["b"].cancel()
        gate.open()
        for key in ("a", "c"):
            told = json.loads(calls[key].result().raw_output_contents[0][4:])
            assert told == {"a": False, "b": True, "c": False}
        assert calls["b"].cancelled()


def test_a_cancelled_request_stays_cancelled_after_its_end(server: RunningServer) -> None:
    """Section 4.7, Lite: Triton crashes when a kept request is asked."""
    with Gate() as gate, Gate() as tells:
        with Stream(server) as stream:
            code = f"""
            model.notes = [request, request.get_response_sender()]
            gate({gate.port})
            tell({tells.port}, until(request.is_cancelled))
            model.notes[1].send(flags=FINAL)
            """
            stream.send("decoupled", code)
            gate.wait()
        gate.open()
        assert tells.told() is True
    code = """
    told = [note.is_cancelled() for note in model.notes]
    model.notes = []
    request.get_response_sender().send(response(told), FINAL)
    """
    (message,) = stream_of(server, "decoupled", code)
    assert message.value == [True, True]


# ---------------------------------------------------------------------------------------------- HTTP


def http_request(model: str, code: str, *, head: str = "") -> bytes:
    body = json.dumps({"inputs": [tensor("IN", "BYTES", [1], [textwrap.dedent(code)])]}).encode()
    start = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\n{head}Content-Length: {len(body)}\r\n\r\n"
    return start.encode() + body


@pytest.mark.parametrize(
    "head", ["", "Content-Type: application/json\r\nExpect: 100-continue\r\n"], ids=["short way", "long way"]
)
def test_a_client_that_hangs_up_over_http_is_noticed(server: RunningServer, head: str) -> None:
    """Issue 3, item 4: where Triton's stays False."""
    with Gate() as gate, Gate() as tells:
        with socket.create_connection(("127.0.0.1", server.http_port), WAIT_S) as client:
            client.sendall(http_request("script", ASK.format(gate=gate.port, tells=tells.port), head=head))
            gate.wait()
        gate.open()
        assert tells.told() == TOLD
    assert value_of(script(server, "return [response('next')]")) == "next"


# ---------------------------------------------------------------------------------------------- a waiting request


def metric(server: RunningServer, name: str, model: str, **labels: str) -> float:
    wanted = [f'model="{model}"', *(f'{key}="{value}"' for key, value in labels.items())]
    for line in server.get(server.metrics_url).body.decode().splitlines():
        if line.startswith(f"{name}{{") and all(label in line for label in wanted):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"no {name} of {model}")


@pytest.mark.parametrize(("model", "instances"), [("queue", 1), ("one_of_two", 2)])
def test_cancelled_requests_that_wait_never_reach_the_model(
    server: RunningServer, stub: service_pb2_grpc.GRPCInferenceServiceStub, model: str, instances: int
) -> None:
    """Section 4.7, Lite, under the default scheduler: those in the queue, and the one sent ahead to the only worker."""
    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(instances))
        gates = [stack.enter_context(Gate()) for _ in range(instances)]
        running = []
        for gate in gates:
            running.append(threads.submit(script, server, f"gate({gate.port})\nreturn [response('ran')]", model))
            gate.wait()
        code = "with open(os.path.join(pb_utils.get_model_dir(), 'ran'), 'a') as file: file.write('x')\nreturn [response(0)]"
        calls = [stub.ModelInfer.future(request_message(model, code), timeout=WAIT_S) for _ in range(4)]
        wait_until(lambda: metric(server, "nv_inference_pending_request_count", model) == 4)
        for call in calls:  # the first is sent ahead to the worker where there is only one
            call.cancel()
        wait_until(lambda: metric(server, "pytriton_lite_cancelled_requests", model) == 4)
        for gate in gates:
            gate.open()
        assert [value_of(reply.result()) for reply in running] == ["ran"] * instances
    code = "return [response(os.path.exists(os.path.join(pb_utils.get_model_dir(), 'ran')))]"
    assert value_of(script(server, code, model)) is False
    assert metric(server, "nv_inference_pending_request_count", model) == 0
    assert metric(server, "nv_inference_request_failure", model, reason="CANCELED") == 4
    (row,) = server.get(f"/v2/models/{model}/stats").json["model_stats"]
    assert row["execution_count"] == instances + 1


def test_a_cancelled_request_leaves_the_queue_of_a_batcher(
    server: RunningServer, stub: service_pb2_grpc.GRPCInferenceServiceStub
) -> None:
    """Section 4.7: the batch is made of others."""
    code = "return [response(sorted(request.request_id() for request in requests)) for request in requests]"
    cancelled = metric(server, "pytriton_lite_cancelled_requests", "batching")
    gone = stub.ModelInfer.future(request_message("batching", code, request_id="gone", batches=True), timeout=WAIT_S)
    wait_until(lambda: metric(server, "nv_inference_pending_request_count", "batching") == 1)
    gone.cancel()
    wait_until(lambda: metric(server, "pytriton_lite_cancelled_requests", "batching") == cancelled + 1)
    calls = [
        stub.ModelInfer.future(request_message("batching", code, request_id=key, batches=True), timeout=WAIT_S)
        for key in ("a", "b", "c")
    ]
    for call in calls:
        assert json.loads(call.result().raw_output_contents[0][4:]) == ["a", "b", "c"]


def test_a_waiting_request_of_a_cancelled_stream_never_reaches_the_model(server: RunningServer) -> None:
    """Section 4.7, decoupled: the one that runs is told, the one behind it is dropped."""
    with Gate() as gate:
        with Stream(server) as stream:
            stream.send("decoupled", f"gate({gate.port})\nuntil(request.is_cancelled)\nmodel.notes = ['first']")
            gate.wait()
            stream.send("decoupled", "model.notes.append('second')")
            wait_until(lambda: metric(server, "nv_inference_pending_request_count", "decoupled") == 1)
        gate.open()
        (message,) = stream_of(server, "decoupled", "request.get_response_sender().send(response(model.notes), FINAL)")
        assert message.value == ["first"]


# ---------------------------------------------------------------------------------------------- death


def died(text: str, instance: str) -> bool:
    return re.match(rf"Stub process '{instance}' is not healthy\.", text) is not None


@pytest.mark.parametrize("sent", [0, 1, 3])
def test_a_stream_hears_that_its_worker_died(server: RunningServer, sent: int) -> None:
    """model_api.md rows 103 and 105: the responses that were sent, then an error that is final."""
    code = f"""
    sender = request.get_response_sender()
    for n in range({sent}):
        sender.send(response(n))
    os._exit(1)
    """
    *responses, last = stream_of(server, "dying", code)
    assert [(message.value, message.is_final) for message in responses] == [(n, False) for n in range(sent)]
    assert died(last.error, "dying_0_0")
    assert last.is_final


def test_the_request_after_a_death_is_served_by_a_new_worker(server: RunningServer) -> None:
    """model_api.md row 104, decoupled."""
    pid = "request.get_response_sender().send(response(os.getpid()), FINAL)"
    (before,) = stream_of(server, "dying", pid)
    stream_of(server, "dying", "os._exit(1)")
    (after,) = stream_of(server, "dying", pid)
    assert after.value != before.value


def test_every_request_in_flight_hears_of_the_death(server: RunningServer) -> None:
    """model_api.md row 103: also those whose execute has returned long ago, and one that had sent already."""
    with Gate() as gate, Stream(server) as stream:
        stream.send("dying", "model.notes.append(request.get_response_sender())", request_id="kept")
        stream.send(
            "dying",
            "sender = request.get_response_sender()\nsender.send(response(1))\nmodel.notes.append(sender)",
            request_id="sent",
        )
        assert stream.receive().value == 1
        stream.send("dying", f"gate({gate.port})\nos._exit(1)", request_id="killer")
        gate.wait()
        gate.open()
        ends: dict[str, Any] = {message.id: message for message in stream.rest()}
    assert sorted(ends) == ["kept", "killer", "sent"]
    for message in ends.values():
        assert died(message.error, "dying_0_0")
        assert message.is_final
