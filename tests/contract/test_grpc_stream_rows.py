"""ModelStreamInfer with real models, over both transports: rows 59 to 75 of grpc.md, and its section 4.

`frontends/grpc/test_grpc_stream.py` has the same rules with an engine that the test plays, message by message.
"""

from __future__ import annotations

import json
import queue
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.contract.scripted_model import (
    BATCHING,
    CONFIG,
    DEADLINES_S,
    DECOUPLED,
    SCRIPT_CODE,
    WAIT_S,
    Gate,
    Stream,
    request_message,
    stream_of,
    write_script_model,
)
from tests.contract.wire_models import metric, wait_pending, wait_until, write_wire_models
from tests.harness import RunningServer, write_model

AS_STATUS = {"triton_grpc_error": "true"}
SHUTTING_DOWN = "GRPC server is shutting down and has stopped accepting new requests."

ANSWER = "return [response({!r})]"
FAIL = "return [error('code 5', pb_utils.TritonError.UNAVAILABLE)]"
THREE = """
    sender = request.get_response_sender()
    for number in range(3):
        sender.send(response(number))
    sender.send(flags=FINAL)
"""
UNTIL_CANCELLED = """
    tell({0}, "begun")
    seen = until(request.is_cancelled)
    tell({0}, seen)
    return [response(0)]
"""

SUMMING = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        # Answers with the sum over the sequence so far.
        def initialize(self, args):
            self.sums = {}

        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            values = {tensor.name(): tensor.as_numpy().reshape(-1) for tensor in request.inputs()}
            name = int(values["CORRID"][0])
            if values["START"][0]:
                self.sums[name] = 0
            if values["READY"][0]:  # else it is a row of a batch that nobody asked for
                self.sums[name] += int(values["INPUT0"][0])
            out = np.array([[self.sums.get(name, 0)]], np.int32)
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", out)])
"""

SUMMING_CONFIG = """
    backend: "python"
    max_batch_size: 4
    input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
    sequence_batching {
      control_input {
        name: "START"
        control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }
      }
      control_input {
        name: "READY"
        control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] }
      }
      control_input {
        name: "CORRID"
        control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }
      }
      max_sequence_idle_microseconds: 3600000000
      STRATEGY
    }
    instance_group [ { kind: KIND_CPU } ]
"""


@pytest.fixture(scope="module", params=["http2", "grpcio"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = tmp_path_factory.mktemp("streams") / "models"
    write_wire_models(models)
    write_script_model(models, "plain")
    write_script_model(models, "two", instances=2)
    write_script_model(models, "decoupled_script", DECOUPLED, instances=2)
    write_script_model(models, "batching", BATCHING)
    write_script_model(models, "small_queue", CONFIG + "max_batch_size: 1 dynamic_batching { QUEUE }".replace(
        "QUEUE", "default_queue_policy { max_queue_size: 1 }"
    ))  # fmt: skip
    for strategy in ("direct", "oldest"):
        text = SUMMING_CONFIG.replace("STRATEGY", f"{strategy} {{ }}")
        write_model(models, f"sum_{strategy}", SUMMING, text)
    flags = (f"--grpc-transport={request.param}", "--exit-on-error=false")
    with RunningServer(models, flags=flags) as running:
        yield running


@pytest.fixture
def stub(server: RunningServer) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc_url) as channel:
        grpc.channel_ready_future(channel).result(WAIT_S)  # no deadline passes meanwhile
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


# ---------------------------------------------------------------------------------------------- models that answer once


def test_four_requests_get_four_answers_in_order_and_one_of_them_is_an_error(stub: Any) -> None:
    """Row 59."""
    requests = [
        request_message("plain", FAIL if name == "c" else ANSWER.format(name), request_id=name) for name in "abcd"
    ]
    requests[2].model_version = "1"
    call = stub.ModelStreamInfer(iter(requests), timeout=WAIT_S)
    answers = list(call)
    assert [answer.infer_response.id for answer in answers] == ["a", "b", "c", "d"]
    assert [answer.error_message for answer in answers] == ["", "", "code 5", ""]
    assert [answer.infer_response.parameters["triton_final_response"].bool_param for answer in answers] == [True] * 4
    failed = answers[2].infer_response
    assert (failed.model_name, failed.model_version, list(failed.outputs)) == ("plain", "1", [])
    assert call.code() is grpc.StatusCode.OK


def test_a_slow_request_holds_back_the_answers_behind_it_and_not_their_execution(server: RunningServer) -> None:
    """Row 60, across models."""
    with Gate() as gate, Gate() as fast, Stream(server) as stream:
        stream.send("plain", f"gate({gate.port}); return [response('slow')]", request_id="slow")
        gate.wait()
        stream.send("two", f"tell({fast.port}, 'executed'); return [response('fast')]", request_id="fast")
        assert fast.told() == "executed"
        gate.open()
        assert [message.value for message in stream.rest()] == ["slow", "fast"]


def test_a_request_that_is_refused_says_nothing_but_its_id_and_the_stream_goes_on(stub: Any) -> None:
    """Row 61, and what else is found before the model is asked."""
    unknown = request_message("nope", "", request_id="u")
    version = request_message("plain", "", request_id="v")
    version.model_version = "x"
    reserved = request_message("plain", "", request_id="w", triton_x=1)
    output = request_message("plain", "", request_id="x", outputs=("NOPE",))
    start = request_message("sequence", "", request_id="y", sequence_id=9)
    start.ClearField("inputs")
    start.inputs.add(name="INPUT0", datatype="INT32", shape=[1]).contents.int_contents.append(1)
    good = request_message("plain", ANSWER.format(7), request_id="z")
    answers = list(
        stub.ModelStreamInfer(iter([unknown, version, reserved, output, start, good]), timeout=WAIT_S)
    )  # fmt: skip
    assert [answer.infer_response for answer in answers[:5]] == [
        service_pb2.ModelInferResponse(id=name) for name in "uvwxy"
    ]
    assert [answer.error_message for answer in answers] == [
        "Request for unknown model: 'nope' is not found",
        "failed to get model version from specified version string 'x' (details: stol), version should be an integral "
        "value > 0",
        "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with "
        "'triton_' are allowed: triton_enable_empty_final_response",
        "unexpected inference output 'NOPE' for model 'plain'",
        "inference request for sequence 9 to model 'sequence' must specify the START flag on the first request of the "
        "sequence",
        "",
    ]
    assert answers[5].infer_response.model_name == "plain"


def test_a_single_answer_is_final_already(server: RunningServer) -> None:
    """Row 66."""
    (message,) = stream_of(server, "plain", ANSWER.format(1), wants_empty_final=True)
    assert (message.value, message.is_final) == (1, True)
    (message,) = stream_of(server, "plain", FAIL, wants_empty_final=True)
    assert (message.error, message.is_final) == ("code 5", True)


def test_a_stream_without_requests_is_ok(server: RunningServer) -> None:
    """Row 69."""
    with Stream(server) as stream:
        assert list(stream.rest()) == []
        assert stream.call.code() is grpc.StatusCode.OK


def test_requests_of_one_stream_are_batched(server: RunningServer) -> None:
    """Section 4: the next request does not wait for an answer to the one before it."""
    with Stream(server) as stream:
        for name in "abc":
            code = "return [response(len(requests)) for _ in requests]"
            stream.send("batching", code, request_id=name, batches=True)
        assert [(message.id, message.value) for message in stream.rest()] == [("a", 3), ("b", 3), ("c", 3)]


# ---------------------------------------------------------------------------------------------- decoupled models


def test_responses_come_one_by_one_and_the_last_flag_alone_is_not_seen(server: RunningServer) -> None:
    """Row 62. Each is there before the model sends the next one."""
    with Stream(server) as stream, Gate() as first, Gate() as second:
        code = f"""
            sender = request.get_response_sender()
            sender.send(response(0))
            gate({first.port})
            sender.send(response(1))
            gate({second.port})
            sender.send(response(2))
            sender.send(flags=FINAL)
        """
        stream.send("decoupled_script", code, request_id="d")
        messages = [stream.receive()]
        for gate in (first, second):
            gate.wait()
            gate.open()
            messages.append(stream.receive())
        assert [(one.id, one.value, one.is_final) for one in messages] == [("d", n, False) for n in range(3)]
        assert list(stream.rest()) == []
        assert stream.call.code() is grpc.StatusCode.OK


def test_the_flag_on_the_last_response_makes_it_final(server: RunningServer) -> None:
    """Row 63. No empty answer follows, whether or not the client would take one."""
    code = THREE.replace("sender.send(flags=FINAL)", "sender.send(response(3), FINAL)")
    for wants_empty_final in (False, True):
        messages = stream_of(server, "decoupled_script", code, wants_empty_final=wants_empty_final)
        assert [(one.value, one.is_final) for one in messages] == [(0, False), (1, False), (2, False), (3, True)]


def test_no_response_is_no_message(server: RunningServer) -> None:
    """Row 64."""
    with Stream(server) as stream:
        stream.send("decoupled_script", "request.get_response_sender().send(flags=FINAL)")
        assert list(stream.rest()) == []
        assert stream.call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("version", ["", "1"])
def test_an_empty_final_response_is_in_the_words_of_the_request(stub: Any, version: str) -> None:
    """Row 65."""
    asked = request_message("decoupled_script", THREE, request_id="e", wants_empty_final=True)
    asked.model_version = version
    answers = list(stub.ModelStreamInfer(iter([asked]), timeout=WAIT_S))
    assert [len(answer.infer_response.outputs) for answer in answers] == [1, 1, 1, 0]
    assert {answer.infer_response.model_version for answer in answers[:3]} == {"1"}
    last = service_pb2.ModelInferResponse(id="e", model_name="decoupled_script", model_version=version)
    last.parameters["triton_final_response"].bool_param = True
    assert (answers[3].error_message, answers[3].infer_response) == ("", last)


@pytest.mark.parametrize(
    ("wants_empty_final", "expected"),
    [(True, [("for now", False), ("", True)]), (False, [("for now", False)])],
    ids=["row 67", "not enabled"],
)
def test_an_error_is_not_the_last_word(
    server: RunningServer, wants_empty_final: bool, expected: list[tuple[str, bool]]
) -> None:
    code = """
        sender = request.get_response_sender()
        sender.send(error("for now"))
        sender.send(flags=FINAL)
    """
    messages = stream_of(server, "decoupled_script", code, request_id="e", wants_empty_final=wants_empty_final)
    assert [(one.error, one.is_final) for one in messages] == expected
    assert {one.id for one in messages} == {"e"}


def test_requests_interleave_and_each_keeps_its_order(server: RunningServer) -> None:
    """Row 68."""
    with Stream(server) as stream, Gate() as a, Gate() as b:
        for name, gate in (("a", a), ("b", b)):
            code = f"""
                sender = request.get_response_sender()
                sender.send(response("{name}1"))
                gate({gate.port})
                sender.send(response("{name}2"), FINAL)
            """
            stream.send("decoupled_script", code, request_id=name)
            assert stream.receive().value == f"{name}1"
            gate.wait()
        b.open()
        assert stream.receive().value == "b2"
        a.open()
        assert [message.value for message in stream.rest()] == ["a2"]


def test_decoupled_models_overtake_a_slow_one_and_its_like_do_not(server: RunningServer) -> None:
    """Section 4, ordering."""
    with Stream(server) as stream, Gate() as gate:
        stream.send("plain", f"gate({gate.port}); return [response('slow')]")
        gate.wait()
        stream.send("two", ANSWER.format("behind"))
        stream.send("decoupled_script", THREE)
        assert [stream.receive().value for _ in range(3)] == [0, 1, 2]
        gate.open()
        assert [message.value for message in stream.rest()] == ["slow", "behind"]


# ---------------------------------------------------------------------------------------------- errors as a status


def test_an_error_of_a_model_ends_the_stream_and_cancels_its_other_requests(server: RunningServer) -> None:
    """Row 70."""
    with Stream(server, **AS_STATUS) as stream, Gate() as other, Gate() as same:
        stream.send("decoupled_script", THREE)
        assert [stream.receive().value for _ in range(3)] == [0, 1, 2]
        begun = "tell({0}, 'begun'); seen = until(request.is_cancelled); tell({0}, seen)"
        stream.send("decoupled_script", begun.format(other.port))
        assert other.told() == "begun"
        stream.send("two", begun.format(same.port) + "; return [response(0)]")
        assert same.told() == "begun"
        stream.send("plain", FAIL)
        with pytest.raises(grpc.RpcError) as caught:
            stream.receive()
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, "code 5")
        assert other.told() is same.told() is True


def test_an_error_found_before_a_model_is_asked_does_not_end_the_stream(server: RunningServer) -> None:
    """Row 71."""
    with Stream(server, **AS_STATUS) as stream:
        stream.send("nope", "", request_id="u")
        stream.send("plain", ANSWER.format(1), request_id="v")
        first, second = stream.rest()
        assert (first.error, first.id) == ("Request for unknown model: 'nope' is not found", "u")
        assert (second.value, second.id) == (1, "v")
        assert stream.call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("word", ["True", "1", "false"])
def test_only_true_asks_for_a_status(server: RunningServer, word: str) -> None:
    """Row 72."""
    with Stream(server, triton_grpc_error=word) as stream:
        stream.send("plain", FAIL)
        assert [message.error for message in stream.rest()] == ["code 5"]
        assert stream.call.code() is grpc.StatusCode.OK


# ---------------------------------------------------------------------------------------------- cancellation


def test_cancelling_a_stream_cancels_every_request_in_it(server: RunningServer) -> None:
    """Row 73: those that are executed see it, those that wait are dropped and counted."""
    with Stream(server) as stream, Gate() as plain, Gate() as decoupled:
        stream.send("plain", UNTIL_CANCELLED.format(plain.port))
        assert plain.told() == "begun"
        stream.send("decoupled_script", UNTIL_CANCELLED.format(decoupled.port).replace("return [response(0)]", ""))
        assert decoupled.told() == "begun"
        dropped = metric(server, "nv_inference_request_failure", "batching", reason="CANCELED")
        stream.send("batching", ANSWER.format(0), batches=True)
        wait_pending(server, "batching", 1)
        stream.cancel()
        assert plain.told() is decoupled.told() is True
        wait_until(lambda: metric(server, "nv_inference_request_failure", "batching", reason="CANCELED") > dropped)
        with pytest.raises(grpc.RpcError) as caught:
            stream.receive()
        assert caught.value.code() is grpc.StatusCode.CANCELLED


def test_a_queued_request_that_is_cancelled_is_counted(server: RunningServer, stub: Any) -> None:
    """Row 74."""
    dropped = metric(server, "nv_inference_request_failure", "batching", reason="CANCELED")
    call = stub.ModelInfer.future(request_message("batching", ANSWER.format(0), batches=True), timeout=WAIT_S)
    wait_pending(server, "batching", 1)
    call.cancel()
    wait_until(lambda: metric(server, "nv_inference_request_failure", "batching", reason="CANCELED") == dropped + 1)
    assert call.cancelled()


def test_a_deadline_is_a_cancellation(server: RunningServer, stub: Any) -> None:
    """Row 75."""
    code = """
        gate({0})
        tell({1}, until(request.is_cancelled))
        return [response(0)]
    """
    for deadline_s in DEADLINES_S:
        with Gate() as gate, Gate() as tells:
            asked = request_message("plain", code.format(gate.port, tells.port))
            call = stub.ModelInfer.future(asked, timeout=deadline_s)
            has_come = gate.comes(unless=call)
            assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            if has_come:
                gate.open()
                assert tells.told() is True
                return
    raise AssertionError("the model was not reached")


# ---------------------------------------------------------------------------------------------- sequences


def number_message(model: str, sequence: int, value: int, **flags: bool) -> Any:
    message = service_pb2.ModelInferRequest(model_name=model, id=f"{sequence}:{value}")
    message.inputs.add(name="INPUT0", datatype="INT32", shape=[1, 1]).contents.int_contents.append(value)
    message.parameters["sequence_id"].int64_param = sequence
    for key, flag in flags.items():
        message.parameters[key].bool_param = flag
    return message


@pytest.mark.parametrize("strategy", ["direct", "oldest"])
def test_sequences_share_a_stream(stub: Any, strategy: str) -> None:
    """Section 4: everything is sent at once, and each sequence sees its requests in order."""
    sequences, length = (11, 12, 13), 20
    requests = [
        number_message(
            f"sum_{strategy}", sequence, value, sequence_start=value == 1, sequence_end=value == length
        )
        for value in range(1, length + 1)
        for sequence in sequences
    ]  # fmt: skip
    answers = list(stub.ModelStreamInfer(iter(requests), timeout=WAIT_S))
    assert [answer.infer_response.id for answer in answers] == [request.id for request in requests]
    assert {answer.error_message for answer in answers} == {""}
    sums = [int.from_bytes(answer.infer_response.raw_output_contents[0], "little") for answer in answers]
    assert sums == [sum(range(1, value + 1)) for value in range(1, length + 1) for _ in sequences]


def test_a_sequence_outlives_its_stream(stub: Any) -> None:
    """It belongs to the model, and goes on over another stream, or without one."""
    first = number_message("sum_direct", 21, 1, sequence_start=True)
    assert [answer.error_message for answer in stub.ModelStreamInfer(iter([first]), timeout=WAIT_S)] == [""]
    (second,) = stub.ModelStreamInfer(iter([number_message("sum_direct", 21, 2)]), timeout=WAIT_S)
    assert second.infer_response.raw_output_contents == [(3).to_bytes(4, "little")]
    last = stub.ModelInfer(number_message("sum_direct", 21, 3, sequence_end=True), timeout=WAIT_S)
    assert last.raw_output_contents == [(6).to_bytes(4, "little")]


# ---------------------------------------------------------------------------------------------- limits and the end


def test_a_full_queue_refuses_in_the_stream(server: RunningServer) -> None:
    """Found when the request is queued, so with nothing but the id, and not as a status."""
    with Stream(server, **AS_STATUS) as stream, Gate() as gate:
        held = f"gate({gate.port}); return [response('held')]"
        stream.send("small_queue", held, request_id="held", batches=True)
        gate.wait()
        for name in ("waits", "refused"):
            stream.send("small_queue", ANSWER.format(name), request_id=name, batches=True)
        stream.send("decoupled_script", THREE)
        assert stream.receive().value == 0  # so the engine has heard of those before it
        gate.open()
        messages = [message for message in stream.rest() if message.id]
        assert [(one.id, one.value, one.error, one.is_final) for one in messages] == [
            ("held", "held", "", True),
            ("waits", "waits", "", True),
            ("refused", None, "[request id: refused] Exceeds maximum queue size", None),
        ]


@pytest.mark.parametrize("transport", ["http2", "grpcio"])
def test_open_streams_are_served_out_and_take_nothing_new_when_the_server_ends(
    tmp_path: Path, transport: str
) -> None:  # fmt: skip
    """Section 4, shutdown. A request that comes before the stream knows is served; a later one gets no answer of its own."""
    write_model(tmp_path / "models", "d", SCRIPT_CODE, DECOUPLED)
    with (
        RunningServer(tmp_path / "models", flags=(f"--grpc-transport={transport}",)) as server,
        Stream(server) as stream,
        Stream(server) as idle,
        Gate() as gate,
    ):
        code = f"""
            sender = request.get_response_sender()
            sender.send(response(1))
            gate({gate.port})
            sender.send(response(2), FINAL)
        """
        stream.send("d", code, request_id="inside")
        assert stream.receive().value == 1
        idle.send("nope", "")
        assert idle.receive().error
        gate.wait()
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("Waiting for in-flight requests")
        stream.send("d", THREE, request_id="late")
        gate.open()
        answered = []
        for left in (stream, idle):
            with pytest.raises(grpc.RpcError) as caught:
                while True:
                    answered.append(left.receive())
            assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, SHUTTING_DOWN)
        assert [(last.value, last.is_final) for last in answered if last.id == "inside"] == [(2, True)]
        assert [late.value for late in answered if late.id == "late"] in ([], [0, 1, 2])
        assert server.wait() == 0


def test_a_client_that_writes_and_does_not_read_is_held_back_and_answered(server: RunningServer) -> None:
    """Flow control: nothing is lost, and others are served meanwhile."""
    size, count = 1 << 20, 40
    big = request_message("plain", f"return [response('x' * {size})]")
    fixed_window = [("grpc.http2.bdp_probe", 0), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.grpc_url, fixed_window) as channel:
        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for number in range(count):
            one = service_pb2.ModelInferRequest()
            one.CopyFrom(big)
            one.id = str(number)
            requests.put(one)
        requests.put(None)
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(
            iter(requests.get, None), timeout=2 * WAIT_S
        )
        first = next(call)
        (other,) = stream_of(server, "two", ANSWER.format("other"))
        assert other.value == "other"
        answers = [first, *call]
    assert [answer.infer_response.id for answer in answers] == [str(number) for number in range(count)]
    assert {len(json.loads(answer.infer_response.raw_output_contents[0][4:])) for answer in answers} == {size}
