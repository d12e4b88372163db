"""Streams and cancellation with real workers behind real sockets, over both transports of gRPC and over HTTP."""

from __future__ import annotations

import json
import queue
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.harness import RunningServer, tensor, write_model

WAIT_S = 30
FINAL = "triton_final_response"
EMPTY_FINAL = "triton_enable_empty_final_response"

CONFIG = """
    backend: "python"
    max_batch_size: 0
    input [{ name: "IN", data_type: TYPE_INT32, dims: [1] }]
    output [{ name: "OUT", data_type: TYPE_INT32, dims: [-1] }]
    instance_group [{ kind: KIND_CPU }]
"""
DECOUPLED = CONFIG + "model_transaction_policy { decoupled: true }"

SCRIPT = """
    import threading
    import numpy as np
    import triton_python_backend_utils as pb_utils

    FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


    def answer(value, size=1):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(size, value, dtype=np.int32))])


    def error(text):
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, pb_utils.TritonError.UNAVAILABLE))


    def watch(request, sender):
        '''Say when the request is seen to be cancelled, and that sending is no error then.'''
        print("watching", request.request_id(), request.is_cancelled(), sender.is_cancelled(), flush=True)
        while not (request.is_cancelled() and sender.is_cancelled()):
            threading.Event().wait(0.01)
        sender.send(answer(0))
        sender.send(flags=FINAL)
        print("cancelled", request.request_id(), flush=True)


    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                kind = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
                if kind == 0:
                    sender.send(answer(1))
                    sender.send(answer(2))
                    sender.send(flags=FINAL)
                elif kind == 1:
                    sender.send(answer(1), FINAL)
                elif kind == 2:
                    sender.send(flags=FINAL)
                elif kind == 3:
                    sender.send(error("for now"))
                    sender.send(answer(5))
                    sender.send(flags=FINAL)
                elif kind == 4:
                    threading.Thread(target=watch, args=(request, sender)).start()
                elif kind == 5:
                    for number in range(1000):
                        sender.send(answer(number, 16_384))
                        print("sent", number, flush=True)
                    sender.send(flags=FINAL)
                elif kind == 6:
                    sender.send(error("the end"), FINAL)
                else:
                    for number in range(kind):
                        sender.send(answer(number))
                    sender.send(flags=FINAL)
"""

POLITE = """
    import time
    import numpy as np
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
                if value[0] < 0:
                    print("watching", request.request_id(), request.is_cancelled(), flush=True)
                    while not request.is_cancelled():
                        time.sleep(0.01)
                    print("cancelled", request.request_id(), flush=True)
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]))
            return responses
"""


@pytest.fixture(scope="module", params=["http2", "grpcio"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = tmp_path_factory.mktemp("models")
    write_model(models, "scripted", SCRIPT, DECOUPLED)
    write_model(models, "polite", POLITE, CONFIG)
    with RunningServer(models, flags=(f"--grpc-transport={request.param}",)) as running:
        yield running


@pytest.fixture
def stub(server: RunningServer) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc_url, [("grpc.http2.bdp_probe", 0)]) as channel:
        grpc.channel_ready_future(channel).result(WAIT_S)  # no deadline passes meanwhile
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def ask(kind: int, request_id: str = "", *, model: str = "scripted", empty_final: bool = False) -> Any:
    message = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    message.inputs.add(name="IN", datatype="INT32", shape=[1])
    message.raw_input_contents.append(kind.to_bytes(4, "little", signed=True))
    if empty_final:
        message.parameters[EMPTY_FINAL].bool_param = True
    return message


def told(answers: Any) -> list[tuple[Any, bool]]:
    """The value, or the error's text, or None, of each; and whether it says that it is the last."""
    found: list[tuple[Any, bool]] = []
    for answer in answers:
        response = answer.infer_response
        raw = response.raw_output_contents
        value = answer.error_message or (int.from_bytes(raw[0][:4], "little") if raw else None)
        found.append((value, response.parameters[FINAL].bool_param))
    return found


def stream(stub: Any, *requests: Any, **call: Any) -> list[tuple[Any, bool]]:
    return told(stub.ModelStreamInfer(iter(requests), timeout=WAIT_S, **call))


class TestWhatDecoupledModelsSend:
    """model_api.md, section 4.3."""

    def test_other_ways_to_ask_are_refused(self, server: RunningServer, stub: Any) -> None:
        """Row 79."""
        reply = server.infer("scripted", [tensor("IN", "INT32", [1], [0])])
        assert reply.status == 501
        assert reply.error == "HTTP end point doesn't support models with decoupled transaction policy"
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(ask(0))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert caught.value.details() == "ModelInfer RPC doesn't support models with decoupled transaction policy"

    @pytest.mark.parametrize(
        ("kind", "empty_final", "expected"),
        [
            pytest.param(0, False, [(1, False), (2, False)], id="row 80"),
            pytest.param(0, True, [(1, False), (2, False), (None, True)], id="row 80, empty final enabled"),
            pytest.param(1, False, [(1, True)], id="row 81"),
            pytest.param(1, True, [(1, True)], id="row 81, empty final enabled"),
            pytest.param(2, False, [], id="row 82"),
            pytest.param(2, True, [(None, True)], id="row 82, empty final enabled"),
            pytest.param(3, False, [("for now", False), (5, False)], id="row 85"),
            pytest.param(3, True, [("for now", False), (5, False), (None, True)], id="row 85, empty final enabled"),
            pytest.param(6, True, [("the end", True)], id="error with the last flag"),
        ],
    )
    def test_responses_and_the_last_flag(
        self, stub: Any, kind: int, empty_final: bool, expected: list[tuple[Any, bool]]
    ) -> None:
        assert stream(stub, ask(kind, empty_final=empty_final)) == expected

    def test_default_and_decoupled_models_share_a_stream(self, stub: Any) -> None:
        answers = stream(stub, ask(7, model="polite"), ask(1), ask(8, model="polite"), ask(0))
        assert sorted(answers, key=str) == [(1, False), (1, True), (2, False), (7, True), (8, True)]
        assert answers.index((7, True)) < answers.index((8, True))

    def test_more_responses_than_the_window_come_in_order(self, stub: Any) -> None:
        assert stream(stub, ask(500)) == [(number, False) for number in range(500)]

    def test_error_as_a_status(self, stub: Any) -> None:
        """grpc.md row 70."""
        with pytest.raises(grpc.RpcError) as caught:
            stream(stub, ask(6), metadata=[("triton_grpc_error", "true")])
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, "the end")


class TestBackPressure:
    def test_model_waits_for_a_client_that_does_not_read_and_others_do_not(
        self, server: RunningServer, stub: Any
    ) -> None:
        """64 MiB are due; what is ahead of the client is the window of 64 responses, and buffers."""
        sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
        sent.put(ask(5, "flood"))
        call = stub.ModelStreamInfer(iter(sent.get, None), timeout=2 * WAIT_S)
        answers = iter(call)
        assert told([next(answers)]) == [(0, False)]
        server.wait_for_log(r"sent 63\"")
        assert stub.ModelInfer(ask(9, model="polite"), timeout=WAIT_S).raw_output_contents == [b"\x09\0\0\0"]
        assert stream(stub, ask(9, model="polite")) == [(9, True)]
        ahead = server.log.count('"sent ')
        assert ahead < 64 + (8 << 20) // (64 << 10)
        sent.put(None)
        assert told(answers) == [(number, False) for number in range(1, 1000)]


class TestCancellation:
    """model_api.md, section 4.7."""

    def test_unary_call_that_is_cancelled(self, server: RunningServer, stub: Any) -> None:
        """Row 99."""
        call = stub.ModelInfer.future(ask(-1, "unary", model="polite"))
        server.wait_for_log(r"watching unary False\"")
        call.cancel()
        server.wait_for_log(r"cancelled unary\"")
        assert call.cancelled()

    def test_deadline_of_a_unary_call(self, server: RunningServer, stub: Any) -> None:
        """Row 100; grpc.md row 75."""
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(ask(-1, "late", model="polite"), timeout=3)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        server.wait_for_log(r"cancelled late\"")

    @pytest.mark.parametrize("model", ["scripted", "polite"])
    def test_stream_that_is_cancelled(self, server: RunningServer, stub: Any, model: str) -> None:
        """Row 100; grpc.md row 73. A later `send` raises nothing."""
        sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
        sent.put(ask(4 if model == "scripted" else -1, f"stream-{model}", model=model))
        call = stub.ModelStreamInfer(iter(sent.get, None), timeout=WAIT_S)
        server.wait_for_log(rf"watching stream-{model} False")
        call.cancel()
        sent.put(None)
        server.wait_for_log(rf"cancelled stream-{model}\"")
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        assert caught.value.code() is grpc.StatusCode.CANCELLED

    def test_stream_that_ends_before_its_answer_is_not_cancelled(self, stub: Any) -> None:
        """The client has said everything, and waits."""
        assert stream(stub, ask(1)) == [(1, True)]

    def test_client_whose_connection_is_lost(self, server: RunningServer) -> None:
        with grpc.insecure_channel(server.grpc_url) as channel:
            sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
            sent.put(ask(4, "lost"))
            call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter(sent.get, None))
            server.wait_for_log(r"watching lost False False\"")
            assert call.is_active()
        sent.put(None)
        server.wait_for_log(r"cancelled lost\"")

    @pytest.mark.parametrize("head", ["", "Content-Encoding: identity\r\n"], ids=["hot path", "application"])
    def test_http_client_that_goes_away(self, server: RunningServer, head: str) -> None:
        """HTTP spec, section 17: better than Triton, which does not notice."""
        name = f"http-{len(head)}"
        body = json.dumps({"id": name, "inputs": [tensor("IN", "INT32", [1], [-1])]})
        with socket.create_connection(("127.0.0.1", server.http_port), WAIT_S) as client:
            start = f"POST /v2/models/polite/infer HTTP/1.1\r\nHost: h\r\n{head}Content-Length: {len(body)}\r\n\r\n"
            client.sendall((start + body).encode())
            server.wait_for_log(rf"watching {name} False\"")
        server.wait_for_log(rf"cancelled {name}\"")
