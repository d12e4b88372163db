"""ModelStreamInfer over real sockets and both transports, with the stock client. ``row`` is a row of grpc.md's checklist."""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio
from grpc_fakes import FakeServer, FakeStream, LoopThread
from tritonclient.grpc import InferenceServerClient, InferInput, service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceResponse
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.frontends.grpc import infer_stream
from pytriton_lite.frontends.grpc.errors import BUG
from pytriton_lite.frontends.grpc.http2 import Http2Listener
from pytriton_lite.frontends.grpc.options import GrpcOptions
from pytriton_lite.frontends.grpc.server import GrpcListener

Status = grpc.StatusCode
SHUTTING_DOWN = "GRPC server is shutting down and has stopped accepting new requests."
WAIT_S = 20


def request(model: str = "echo", request_id: str = "", size: int = 4, **parameters: Any) -> Any:
    """Integers are ``int64_param``, booleans ``bool_param``."""
    message = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    message.inputs.add(name="X", datatype="UINT8", shape=[size])
    message.raw_input_contents.append(b"\1" * size)
    for key, value in parameters.items():
        if isinstance(value, bool):
            message.parameters[key].bool_param = value
        else:
            message.parameters[key].int64_param = value
    return message


class Conversation:
    """A stream that the test writes to and reads from as it likes."""

    def __init__(self, stub: Any, **call: Any) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.call = stub.ModelStreamInfer(iter(self._requests.get, None), **{"timeout": WAIT_S, **call})

    def send(self, *requests: Any) -> None:
        for one in requests:
            self._requests.put(one)

    def end(self) -> None:
        self._requests.put(None)

    def next(self) -> Any:
        return next(self.call)

    def rest(self) -> list[Any]:
        """What comes after the client's half has ended."""
        self.end()
        return list(self.call)


@pytest.fixture
def talk(stub: Any) -> Iterator[Callable[..., Conversation]]:
    """Starts conversations, and cancels what is left of them."""
    started: list[Conversation] = []

    def start(*requests: Any, **call: Any) -> Conversation:
        started.append(Conversation(stub, **call))
        started[-1].send(*requests)
        return started[-1]

    yield start
    for conversation in started:
        conversation.end()
        conversation.call.cancel()


def entered(engine: FakeServer, count: int = 1) -> FakeStream:
    """The newest request, once the engine has got *count* more."""
    for _ in range(count):
        assert engine.streamed.acquire(timeout=WAIT_S)
    return engine.streams[-1]


def response_of(stream: FakeStream, value: int = 0, **parameters: Any) -> InferenceResponse:
    tensor = Tensor("OUT", dtypes.UINT8, (1,), bytes([value]))
    return InferenceResponse(stream.request.model_name, 3, stream.request.request_id, [tensor], parameters)


@pytest.fixture
def deliver(loop: LoopThread) -> Callable[..., None]:
    """Let the model behind a `FakeStream` answer, in the loop: with a number, an error, or None for the last flag alone."""

    def deliver(stream: FakeStream, answer: int | InferenceError | None, *, is_final: bool = False) -> None:
        async def act() -> None:
            response = response_of(stream, answer) if isinstance(answer, int) else answer
            stream.deliver(response, is_final=is_final)

        loop.run(act())

    return deliver


def is_final(answer: Any) -> bool:
    parameter = answer.infer_response.parameters["triton_final_response"]
    assert parameter.WhichOneof("parameter_choice") == "bool_param"
    return bool(parameter.bool_param)


def value(answer: Any) -> int:
    assert answer.error_message == ""
    return int(answer.infer_response.raw_output_contents[0][0])


def ids(answers: list[Any]) -> list[str]:
    return [answer.infer_response.id for answer in answers]


class TestDefaultMode:
    def test_answers_come_in_order_and_a_failed_one_is_an_error_in_the_stream(self, talk: Any) -> None:
        """Row 59."""
        stream = talk(request(request_id="a"), request(request_id="b"), request(request_id="c", refuse=1), request())
        answers = stream.rest()
        assert ids(answers) == ["a", "b", "c", ""]
        assert [answer.error_message for answer in answers] == ["", "", "Exceeds maximum queue size", ""]
        assert answers[2].infer_response == service_pb2.ModelInferResponse(id="c")
        assert [is_final(answers[index]) for index in (0, 1, 3)] == [True] * 3
        assert answers[0].infer_response.raw_output_contents == [b"\1" * 4]
        assert (answers[0].infer_response.model_name, answers[0].infer_response.model_version) == ("echo", "3")

    def test_error_of_the_model_names_the_request_in_its_own_words(self, engine: Any, talk: Any, deliver: Any) -> None:
        """Row 59, from the model: the version is the request's text."""
        asked = request("held", "w")
        asked.model_version = "3abc"
        stream = talk(asked)
        deliver(entered(engine), InferenceError(ErrorCode.INTERNAL, "it broke \udc80"), is_final=True)
        (answer,) = stream.rest()
        assert answer.error_message == "it broke ?"
        said = answer.infer_response
        assert (said.id, said.model_name, said.model_version) == ("w", "held", "3abc")
        assert is_final(answer)

    def test_slow_first_request_holds_back_those_behind_it(self, engine: Any, talk: Any, deliver: Any) -> None:
        """Row 60; refused ones, and models that do not exist, keep their place."""
        stream = talk(request("held", "slow"), request("nope", "none"), request(request_id="fast"))
        entered(engine, 2)  # so the second was executed before the first had answered
        deliver(engine.streams[0], 7, is_final=True)
        assert ids(stream.rest()) == ["slow", "none", "fast"]

    def test_unknown_model_is_an_error_with_nothing_but_the_id(self, talk: Any) -> None:
        """Row 61."""
        first, second = talk(request("nope", "u"), request(request_id="v")).rest()
        assert first.error_message == "Request for unknown model: 'nope' is not found"
        assert first.infer_response == service_pb2.ModelInferResponse(id="u")
        assert second.infer_response.id == "v"

    @pytest.mark.parametrize(
        ("fields", "text"),
        [
            ({"model_version": "x"}, "failed to get model version from specified version string 'x'"),
            (
                {"parameters": {"triton_x": service_pb2.InferParameter(int64_param=1)}},
                "parameter keys starting with 'triton_' are reserved",
            ),
            ({"raw_input_contents": []}, "unable to find data for input tensor 'X' for model 'echo' in request."),
        ],
    )
    def test_what_unary_calls_refuse_is_refused(self, talk: Any, fields: dict[str, Any], text: str) -> None:
        asked = request(request_id="r")
        for name in fields:
            asked.ClearField(name)
        asked.MergeFrom(service_pb2.ModelInferRequest(**fields))
        (answer,) = talk(asked).rest()
        assert answer.error_message.startswith(text)
        assert answer.infer_response == service_pb2.ModelInferResponse(id="r")

    def test_single_response_with_empty_final_enabled_stays_single(self, talk: Any) -> None:
        """Row 66."""
        (answer,) = talk(request(triton_enable_empty_final_response=True)).rest()
        assert is_final(answer)

    def test_empty_stream_is_ok(self, talk: Any) -> None:
        """Row 69."""
        stream = talk()
        assert stream.rest() == []
        assert stream.call.code() is Status.OK

    def test_requests_by_the_thousand_are_answered_in_order(self, talk: Any) -> None:
        count = 2 * infer_stream.MAX_REQUESTS + 100
        answers = talk(*(request(request_id=str(index)) for index in range(count))).rest()
        assert ids(answers) == [str(index) for index in range(count)]

    def test_large_tensors_go_both_ways(self, talk: Any) -> None:
        answers = talk(*(request(size=3 << 20) for _ in range(5))).rest()
        assert [len(answer.infer_response.raw_output_contents[0]) for answer in answers] == [3 << 20] * 5


class TestDecoupledMode:
    def test_last_flag_alone_is_not_seen(self, engine: Any, talk: Any, deliver: Any) -> None:
        """Row 62; model_api.md row 80. Each answer comes when the model gives it."""
        stream = talk(request("decoupled", "d"))
        served = entered(engine)
        for number in range(3):
            deliver(served, number)
            answer = stream.next()
            assert (value(answer), answer.infer_response.id, is_final(answer)) == (number, "d", False)
        deliver(served, None, is_final=True)
        assert stream.rest() == []

    def test_last_flag_with_a_response_makes_it_final(self, engine: Any, talk: Any, deliver: Any) -> None:
        """Row 63; model_api.md row 81. No empty answer follows, though the client would take one."""
        stream = talk(request("decoupled", triton_enable_empty_final_response=True))
        deliver(entered(engine), 5, is_final=True)
        (answer,) = stream.rest()
        assert (value(answer), is_final(answer)) == (5, True)

    def test_no_response_is_no_message(self, engine: Any, talk: Any, deliver: Any) -> None:
        """Row 64; model_api.md row 82."""
        stream = talk(request("decoupled"))
        deliver(entered(engine), None, is_final=True)
        assert stream.rest() == []

    @pytest.mark.parametrize("version", ["", "3"])
    def test_empty_final_response_on_request(self, engine: Any, talk: Any, deliver: Any, version: str) -> None:
        """Row 65; model_api.md rows 80 and 82."""
        asked = request("decoupled", "e", triton_enable_empty_final_response=True)
        asked.model_version = version
        stream = talk(asked)
        served = entered(engine)
        deliver(served, 1)
        deliver(served, 2)
        deliver(served, None, is_final=True)
        first, second, last = stream.rest()
        assert [(value(answer), is_final(answer)) for answer in (first, second)] == [(1, False), (2, False)]
        expected = service_pb2.ModelInferResponse(id="e", model_name="decoupled", model_version=version)
        expected.parameters["triton_final_response"].bool_param = True
        assert (last.error_message, last.infer_response) == ("", expected)

    def test_empty_final_response_that_is_declined(self, engine: Any, talk: Any, deliver: Any) -> None:
        stream = talk(request("decoupled", triton_enable_empty_final_response=False))
        deliver(entered(engine), None, is_final=True)
        assert stream.rest() == []

    def test_error_does_not_end_the_request(self, engine: Any, talk: Any, deliver: Any) -> None:
        """Row 67; model_api.md row 85."""
        stream = talk(request("decoupled", "e", triton_enable_empty_final_response=True))
        served = entered(engine)
        deliver(served, InferenceError(ErrorCode.UNAVAILABLE, "for now"))
        deliver(served, 4)
        deliver(served, None, is_final=True)
        error, answer, last = stream.rest()
        assert (error.error_message, error.infer_response.id, is_final(error)) == ("for now", "e", False)
        assert error.infer_response.model_name == "decoupled"
        assert (value(answer), is_final(answer)) == (4, False)
        assert (last.error_message, is_final(last)) == ("", True)

    def test_requests_interleave_and_each_keeps_its_order(self, engine: Any, talk: Any, deliver: Any) -> None:
        """Row 68."""
        stream = talk(request("decoupled", "a"), request("decoupled", "b"))
        entered(engine, 2)
        a, b = engine.streams
        for served, number, last in ((b, 1, False), (a, 2, False), (b, 3, True), (a, 4, True)):
            deliver(served, number, is_final=last)
        answers = stream.rest()
        assert [(answer.infer_response.id, value(answer)) for answer in answers] == [
            ("b", 1), ("a", 2), ("b", 3), ("a", 4),
        ]  # fmt: skip

    def test_slow_default_model_does_not_hold_it_back(self, engine: Any, talk: Any, deliver: Any) -> None:
        """Section 4, ordering: it overtakes the slow one, and the default model behind it does not."""
        stream = talk(request("held", "slow"), request("decoupled", "d"), request(request_id="fast"))
        entered(engine, 3)
        deliver(engine.streams[1], 1, is_final=True)
        assert stream.next().infer_response.id == "d"
        deliver(engine.streams[0], 1, is_final=True)
        assert ids(stream.rest()) == ["slow", "fast"]

    def test_parameters_of_the_response_are_there_beside_ours(self, loop: LoopThread, engine: Any, talk: Any) -> None:
        stream = talk(request("decoupled"))
        served = entered(engine)

        async def act() -> None:
            served.deliver(response_of(served, 1, n=5, triton_final_response=True), is_final=False)
            served.deliver(None, is_final=True)

        loop.run(act())
        (answer,) = stream.rest()
        assert answer.infer_response.parameters["n"].int64_param == 5
        assert not is_final(answer)

    def test_response_that_cannot_be_sent_is_an_error(
        self, loop: LoopThread, engine: Any, talk: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        stream = talk(request("decoupled"))
        served = entered(engine)

        async def act() -> None:
            response = response_of(served, 1)
            response.outputs[0].shape = (1 << 64,)
            served.deliver(response, is_final=False)
            served.deliver(response_of(served, 2), is_final=True)

        loop.run(act())
        error, answer = stream.rest()
        assert (error.error_message, is_final(error)) == (BUG, False)
        assert (value(answer), is_final(answer)) == (2, True)
        assert "ModelStreamInfer failed" in caplog.text

    def test_parameter_that_cannot_be_sent_is_an_error_that_names_it(
        self, loop: LoopThread, engine: Any, talk: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        stream = talk(request("decoupled"))
        served = entered(engine)

        async def act() -> None:
            served.deliver(response_of(served, 1, bad="\udc80"), is_final=False)
            served.deliver(response_of(served, 2), is_final=True)

        loop.run(act())
        error, answer = stream.rest()
        assert "parameter 'bad' of a response of model 'decoupled' cannot be sent" in error.error_message
        assert (value(answer), is_final(answer)) == (2, True)
        assert caplog.text == ""


class TestErrorsAsStatus:
    def test_error_of_the_model_ends_the_stream(self, engine: Any, talk: Any, deliver: Any) -> None:
        """Row 70: what was written is delivered, and the other requests are cancelled."""
        stream = talk(request("decoupled", "a"), request("decoupled", "b"), metadata=[("triton_grpc_error", "true")])
        entered(engine, 2)
        a, b = engine.streams
        deliver(b, 9)
        deliver(a, InferenceError(ErrorCode.UNAVAILABLE, "code 5"))
        assert value(stream.next()) == 9
        with pytest.raises(grpc.RpcError) as caught:
            stream.next()
        assert (caught.value.code(), caught.value.details()) == (Status.UNAVAILABLE, "code 5")
        assert a.was_cancelled.wait(WAIT_S) and b.was_cancelled.wait(WAIT_S)

    def test_error_found_before_execution_stays_in_the_stream(self, talk: Any) -> None:
        """Row 71."""
        stream = talk(request("nope"), request(request_id="b"), metadata=[("triton_grpc_error", "true")])
        first, second = stream.rest()
        assert first.error_message and second.infer_response.id == "b"

    def test_other_spellings_do_not_count(self, engine: Any, talk: Any, deliver: Any) -> None:
        """Row 72."""
        stream = talk(request("decoupled"), metadata=[("triton_grpc_error", "True")])
        deliver(entered(engine), InferenceError(ErrorCode.UNAVAILABLE, "code 5"), is_final=True)
        (answer,) = stream.rest()
        assert answer.error_message == "code 5"
        assert stream.call.code() is Status.OK


class TestEnds:
    @pytest.fixture(autouse=True)
    def quiet(self, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
        """What a client does with its own stream is nothing to write of."""
        yield
        assert [record.message for record in caplog.get_records("call") if record.levelno >= logging.WARNING] == []

    def test_half_close_waits_for_the_answers(self, engine: Any, talk: Any, deliver: Any) -> None:
        stream = talk(request("decoupled"))
        stream.end()
        served = entered(engine)
        deliver(served, 1)
        assert value(stream.next()) == 1
        deliver(served, 2, is_final=True)
        assert [value(answer) for answer in stream.rest()] == [2]

    def test_cancelled_stream_cancels_the_requests_that_wait_before_the_one_that_runs(
        self, engine: Any, talk: Any
    ) -> None:
        """Section 4.7 of model_api.md: a model that hears of the first must find none behind it that is not cancelled."""
        stream = talk(*(request("held") for _ in range(20)))
        entered(engine, 20)
        stream.call.cancel()
        assert engine.streams[0].was_cancelled.wait(WAIT_S)
        cancellations = [served.cancellation for served in engine.streams]
        assert cancellations == sorted(cancellations, reverse=True)
        assert min(cancellations) >= 0

    def test_cancelled_stream_cancels_every_request_in_it(self, engine: Any, talk: Any, deliver: Any) -> None:
        """Row 73; model_api.md rows 99 and 100."""
        stream = talk(request("decoupled"), request("held"))
        entered(engine, 2)
        deliver(engine.streams[0], 1)
        stream.next()
        stream.call.cancel()
        assert all(served.was_cancelled.wait(WAIT_S) for served in engine.streams)
        with pytest.raises(grpc.RpcError) as caught:
            stream.next()
        assert caught.value.code() is Status.CANCELLED

    def test_deadline_cancels_every_request_in_it(self, engine: Any, talk: Any, channel: grpc.Channel) -> None:
        """Row 75, of a stream."""
        grpc.channel_ready_future(channel).result(WAIT_S)
        stream = talk(request("decoupled"), request("held"), timeout=3)
        entered(engine, 2)
        with pytest.raises(grpc.RpcError) as caught:
            stream.next()
        assert caught.value.code() is Status.DEADLINE_EXCEEDED
        assert all(served.was_cancelled.wait(WAIT_S) for served in engine.streams)

    def test_request_that_has_ended_is_not_cancelled_with_its_stream(
        self, engine: Any, talk: Any, deliver: Any
    ) -> None:
        stream = talk(request("decoupled"), request("held"))
        entered(engine, 2)
        ended, open_one = engine.streams
        deliver(ended, 1, is_final=True)
        stream.next()
        stream.call.cancel()
        assert open_one.was_cancelled.wait(WAIT_S)
        assert not ended.was_cancelled.is_set()

    def test_message_that_is_no_request_ends_the_stream(self, engine: Any, channel: grpc.Channel) -> None:
        sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
        sent.put(request("held").SerializeToString())
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(
            iter(sent.get, None), timeout=WAIT_S
        )
        served = entered(engine)
        sent.put(b"\xff")
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        sent.put(None)
        assert (caught.value.code(), caught.value.details()) == (Status.INTERNAL, "Unable to parse request")
        assert served.was_cancelled.wait(WAIT_S)


class TestWhileExiting:
    def test_new_request_is_not_begun_and_those_inside_are_served(
        self, loop: LoopThread, engine: Any, listener: Http2Listener | GrpcListener, talk: Any, deliver: Any
    ) -> None:
        stream = talk(request("decoupled", "inside"))
        served = entered(engine)
        engine.exiting = True
        stopping = asyncio.run_coroutine_threadsafe(listener.stop(WAIT_S), loop.loop)
        stream.send(request("decoupled", "late"))
        deliver(served, 1)
        deliver(served, 2, is_final=True)
        answers = []
        with pytest.raises(grpc.RpcError) as caught:  # the client had not ended its half
            while True:
                answers.append(stream.next())
        assert [value(answer) for answer in answers if not answer.error_message] == [1, 2]
        # Refused, or passed over, by when it came.
        refused = [(answer.error_message, answer.infer_response.id) for answer in answers if answer.error_message]
        assert refused in ([], [(SHUTTING_DOWN, "late")])
        assert (caught.value.code(), caught.value.details()) == (Status.UNAVAILABLE, SHUTTING_DOWN)
        assert stopping.result(WAIT_S) is True

    def test_idle_stream_does_not_hold_up_the_stop(
        self, loop: LoopThread, engine: Any, listener: Http2Listener | GrpcListener, talk: Any
    ) -> None:
        stream = talk(request(request_id="a"))
        assert stream.next().infer_response.id == "a"
        engine.exiting = True
        assert loop.run(listener.stop(600)) is True
        with pytest.raises(grpc.RpcError) as caught:
            stream.next()
        assert caught.value.code() is Status.UNAVAILABLE

    def test_request_that_does_not_end_is_cut_off(
        self, loop: LoopThread, engine: Any, listener: Http2Listener | GrpcListener, talk: Any
    ) -> None:
        stream = talk(request("decoupled"))
        served = entered(engine)
        assert loop.run(listener.stop(0.1)) is False
        with pytest.raises(grpc.RpcError):
            stream.next()
        assert served.was_cancelled.wait(WAIT_S)


class TestBackPressure:
    def test_model_is_not_far_ahead_of_a_client_that_reads_slowly(
        self, engine: Any, listener: Http2Listener | GrpcListener
    ) -> None:
        """Others are served meanwhile, on the same connection and on another one."""
        count, size = 2000, 64 << 10
        fixed_window = [("grpc.http2.bdp_probe", 0)]  # else the client's library takes up to 64 MiB ahead of its user
        with grpc.insecure_channel(listener.address, fixed_window) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            stream = Conversation(stub)
            stream.send(request("flood", count=count, bytes_each=size))
            stream.end()
            stream.next()
            served = entered(engine)
            assert ids(list(stub.ModelStreamInfer(iter([request(request_id="s")]), timeout=WAIT_S))) == ["s"]
            with grpc.insecure_channel(listener.address) as other:
                unary = service_pb2_grpc.GRPCInferenceServiceStub(other).ModelInfer
                assert unary(request(request_id="u"), timeout=WAIT_S).id == "u"
            numbers = [1]
            ahead = 0
            for answer in stream.call:
                numbers.append(answer.infer_response.parameters["n"].int64_param)
                ahead = max(ahead, served.sent - len(numbers))
        assert numbers == list(range(1, count + 1))
        assert ahead <= served.WINDOW + (8 << 20) // size  # the rest lies in buffers of the socket and of libraries

    def test_every_response_is_consumed_once(self, engine: Any, talk: Any) -> None:
        count = 1000
        talk(request("flood", count=count, bytes_each=1)).rest()
        served = entered(engine)
        assert served.sent == count
        # Behind the last response nobody waits for room, so the last ones need not be counted.
        assert count - served.WINDOW <= served.consumed_count <= count


class TestCompression:
    SIZES = (10, 200_000, 3, 100_000, 50, 70_000, 1)

    @pytest.fixture
    def compressing(self, loop: LoopThread, engine: Any, start: Any) -> Iterator[Any]:
        options = GrpcOptions(address="127.0.0.1", port=0, infer_response_compression_level="high")
        listener = loop.run(start(engine, options))
        with grpc.insecure_channel(listener.address) as channel:
            yield service_pb2_grpc.GRPCInferenceServiceStub(channel)
        loop.run(listener.stop(0))

    def test_answers_small_and_large_are_compressed_in_order(self, compressing: Any) -> None:
        """Row 53, of a stream: whatever a thread compresses keeps its place."""
        requests = [request(request_id=str(index), size=size) for index, size in enumerate(self.SIZES)]
        answers = list(compressing.ModelStreamInfer(iter(requests), timeout=WAIT_S))
        assert ids(answers) == [str(index) for index in range(len(self.SIZES))]
        assert [len(answer.infer_response.raw_output_contents[0]) for answer in answers] == list(self.SIZES)

    @pytest.mark.parametrize("kind", [grpc.Compression.Gzip, grpc.Compression.Deflate])
    def test_compressed_requests_keep_their_order(self, stub: Any, kind: grpc.Compression) -> None:
        """Row 52, of a stream."""
        requests = [request(request_id=str(index), size=size) for index, size in enumerate(self.SIZES)]
        answers = list(stub.ModelStreamInfer(iter(requests), timeout=WAIT_S, compression=kind))
        assert ids(answers) == [str(index) for index in range(len(self.SIZES))]


class TestStockClients:
    """Section 8."""

    @staticmethod
    def tensors() -> list[InferInput]:
        tensor = InferInput("X", [4], "UINT8")
        tensor.set_data_from_numpy(np.arange(4, dtype=np.uint8))
        return [tensor]

    def test_callbacks(self, engine: Any, client: InferenceServerClient, deliver: Any) -> None:
        heard: queue.Queue[tuple[Any, Any]] = queue.Queue()
        client.start_stream(lambda result, error: heard.put((result, error)))
        client.async_stream_infer("echo", self.tensors(), request_id="one")
        result, error = heard.get(timeout=WAIT_S)
        assert error is None and result.get_response().id == "one"
        assert result.as_numpy("X").tolist() == [0, 1, 2, 3]
        client.async_stream_infer("nope", self.tensors())
        result, error = heard.get(timeout=WAIT_S)
        assert isinstance(error, InferenceServerException)
        assert error.message() == "Request for unknown model: 'nope' is not found"
        client.async_stream_infer("decoupled", self.tensors(), enable_empty_final_response=True)
        deliver(entered(engine, 2), None, is_final=True)
        result, error = heard.get(timeout=WAIT_S)
        assert result.get_response().parameters["triton_final_response"].bool_param
        client.stop_stream()

    def test_stream_that_is_stopped_with_cancellation(self, engine: Any, client: InferenceServerClient) -> None:
        heard: queue.Queue[tuple[Any, Any]] = queue.Queue()
        client.start_stream(lambda result, error: heard.put((result, error)))
        client.async_stream_infer("decoupled", self.tensors())
        served = entered(engine)
        client.stop_stream(cancel_requests=True)
        assert served.was_cancelled.wait(WAIT_S)
        _, error = heard.get(timeout=WAIT_S)
        assert error.status() == "StatusCode.CANCELLED"

    def test_asyncio(self, listener: Http2Listener | GrpcListener) -> None:
        async def run() -> list[str]:
            async def requests() -> Any:
                for name in ("a", "b"):
                    yield {"model_name": "echo", "inputs": self.tensors(), "request_id": name}

            async with tritonclient.grpc.aio.InferenceServerClient(listener.address) as client:
                answers = client.stream_infer(requests())
                return [result.get_response().id async for result, error in answers if error is None]

        assert asyncio.run(asyncio.wait_for(run(), WAIT_S)) == ["a", "b"]
