"""The whole front end over real sockets, with the stock client and its stub. ``row`` is a row of grpc.md's checklist."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_fakes import FakeServer, LoopThread
from tritonclient.grpc import InferenceServerClient, InferInput, service_pb2
from tritonclient.utils import InferenceServerException

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.frontends.addresses import ListenError
from pytriton_lite.frontends.grpc.control_methods import ControlMethods
from pytriton_lite.frontends.grpc.errors import BUG
from pytriton_lite.frontends.grpc.http2 import Http2Listener
from pytriton_lite.frontends.grpc.options import GrpcOptions
from pytriton_lite.frontends.grpc.server import GrpcListener, channel_arguments
from pytriton_lite.proto import health_pb
from pytriton_lite.proto.grpc_service_pb import ModelInferRequest, ModelStatisticsRequest
from tests.frontends.loop_turns import LoopTurns

Status = grpc.StatusCode
LOCAL = GrpcOptions(address="127.0.0.1", port=0)

Listener = Http2Listener | GrpcListener


@contextmanager
def retry_told(seconds: int, nanos: int) -> Iterator[None]:
    """What is done inside fails with a `google.rpc.Status` that has one detail: the delay."""
    with pytest.raises(grpc.RpcError) as caught:
        yield
    told = status_pb2.Status.FromString(dict(caught.value.trailing_metadata())["grpc-status-details-bin"])
    assert (told.code, told.message) == (caught.value.code().value[0], caught.value.details())
    (packed,) = told.details
    info = error_details_pb2.RetryInfo()
    assert packed.Unpack(info)
    assert (info.retry_delay.seconds, info.retry_delay.nanos) == (seconds, nanos)
    raise caught.value


@contextmanager
def failing(status: grpc.StatusCode, text: str) -> Iterator[None]:
    with pytest.raises((grpc.RpcError, InferenceServerException)) as caught:
        yield
    error: Any = caught.value
    if isinstance(error, InferenceServerException):
        assert (error.status(), error.message()) == (str(status), text)
    else:
        assert (error.code(), error.details()) == (status, text)


def request(model: str = "echo", size: int = 4, **fields: Any) -> Any:
    message = service_pb2.ModelInferRequest(model_name=model, **fields)
    message.inputs.add(name="X", datatype="UINT8", shape=[size])
    message.raw_input_contents.append(b"\1" * size)
    return message


class TestHealth:
    def test_live_and_ready(self, client: InferenceServerClient) -> None:
        """Row 1."""
        assert client.is_server_live()
        assert client.is_server_ready()

    def test_not_ready_is_ok_with_false(self, engine: FakeServer, client: InferenceServerClient) -> None:
        """Row 2."""
        engine.ready = False
        assert client.is_server_ready() is False

    @pytest.mark.parametrize(
        ("name", "version", "expected"),
        [
            pytest.param("echo", "", True, id="row 3"),
            ("echo", "3", True),
            ("echo", "3abc", True),
            pytest.param("nope", "", False, id="row 4, unknown model"),
            pytest.param("echo", "9", False, id="row 4, unknown version"),
            pytest.param("", "", False, id="row 4, empty name"),
        ],
    )
    def test_model_ready(self, client: InferenceServerClient, name: str, version: str, expected: bool) -> None:
        assert client.is_model_ready(name, version) is expected

    @pytest.mark.parametrize(
        ("version", "text"),
        [
            pytest.param(
                "x",
                "failed to get model version from specified version string 'x' (details: stol), version should be an "
                "integral value > 0",
                id="row 5",
            ),
            pytest.param(
                "-1", "invalid model version specified '-1' , version should be an integral value > 0", id="row 6"
            ),
        ],
    )
    def test_version_that_is_no_number(self, client: InferenceServerClient, version: str, text: str) -> None:
        with failing(Status.INVALID_ARGUMENT, text):
            client.is_model_ready("echo", version)

    @pytest.mark.parametrize("service", ["", "foo"])
    def test_standard_health_check_ignores_the_service(
        self, engine: FakeServer, channel: grpc.Channel, service: str
    ) -> None:
        """Row 7."""
        check = health_check(channel)
        assert check(health_pb.HealthCheckRequest(service=service)).status == health_pb.HealthCheckResponse.SERVING
        engine.ready = False
        assert check(health_pb.HealthCheckRequest(service=service)).status == health_pb.HealthCheckResponse.NOT_SERVING

    @pytest.mark.parametrize(
        "path", ["/grpc.health.v1.Health/Nope", "/inference.GRPCInferenceService/Nope", "/no.Service/Nope"]
    )
    def test_unknown_method_is_unimplemented(self, channel: grpc.Channel, path: str) -> None:
        """Rows 8 and 9."""
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(path)(b"")
        assert caught.value.code() is Status.UNIMPLEMENTED


def health_check(channel: grpc.Channel) -> Any:
    return channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb.HealthCheckResponse.FromString,
    )


class TestWhatTheServerSays:
    def test_server_metadata(self, client: InferenceServerClient) -> None:
        """Row 10, with the extensions that the engine names."""
        metadata = client.get_server_metadata()
        assert (metadata.name, metadata.version) == ("triton", "9.8.7")
        assert list(metadata.extensions) == ["binary_tensor_data", "statistics"]

    def test_model_metadata(self, client: InferenceServerClient) -> None:
        metadata = client.get_model_metadata("echo", as_json=True)
        tensor = {"name": "X", "datatype": "BYTES", "shape": ["-1", "4"]}
        assert metadata == {
            "name": "echo",
            "versions": ["1", "3"],
            "platform": "python",
            "inputs": [tensor],
            "outputs": [tensor, tensor],
        }

    def test_metadata_of_an_unknown_model(self, client: InferenceServerClient) -> None:
        """Row 11."""
        with failing(Status.NOT_FOUND, "Request for unknown model: 'nope' is not found"):
            client.get_model_metadata("nope")

    def test_model_config(self, client: InferenceServerClient) -> None:
        """Row 13."""
        assert client.get_model_config("echo", as_json=True) == {
            "config": {
                "name": "echo",
                "backend": "python",
                "max_batch_size": 8,
                "input": [{"name": "X", "data_type": "TYPE_STRING", "dims": ["4"]}],
            }
        }

    def test_statistics_of_all_models(self, client: InferenceServerClient) -> None:
        """Row 14; every duration is present, zero ones too."""
        busy, idle = client.get_inference_statistics().model_stats
        assert (idle.name, idle.version, idle.last_inference, len(idle.batch_stats)) == ("idle", "1", 0, 0)
        assert [field.name for field, _ in idle.inference_stats.ListFields()] == [
            field.name for field in idle.inference_stats.DESCRIPTOR.fields
        ]
        assert (busy.name, busy.version, busy.last_inference) == ("echo", "3", 1_795_224_537_509)
        assert (busy.inference_count, busy.execution_count) == (2, 2)
        durations = {field.name: (value.count, value.ns) for field, value in busy.inference_stats.ListFields()}
        assert durations == {
            "success": (1, 9_000),
            "fail": (1, 700),
            "queue": (1, 1_000),
            "compute_input": (1, 2_000),
            "compute_infer": (1, 3_000),
            "compute_output": (1, 500),
            "cache_hit": (0, 0),
            "cache_miss": (0, 0),
        }
        rows = [
            (row.batch_size, row.compute_input.ns, row.compute_infer.ns, row.compute_output.ns)
            for row in busy.batch_stats
        ]
        assert rows == [(1, 2, 3, 5), (2, 2_000, 3_000, 500)]

    def test_statistics_of_many_models_are_written_in_turns_of_the_loop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        turns, engine = LoopTurns(monkeypatch), FakeServer()
        monkeypatch.setattr(engine, "statistics", lambda *asked: turns.models(10))
        answer = turns.run(ControlMethods(engine).model_statistics(ModelStatisticsRequest()))
        assert [row.name for row in answer.model_stats] == [f"m{number}" for number in range(10)]
        assert len(set(turns.read)) == len(turns.read) == 10

    def test_statistics_of_an_unknown_model(self, client: InferenceServerClient) -> None:
        """Row 15."""
        with failing(Status.INVALID_ARGUMENT, "requested model 'nope' is not available"):
            client.get_inference_statistics("nope")

    def test_repository_index(self, client: InferenceServerClient, stub: Any) -> None:
        """Row 16."""
        rows = [(row.name, row.version, row.state, row.reason) for row in client.get_model_repository_index().models]
        assert rows == [
            ("echo", "3", "READY", ""),
            ("broken", "1", "UNAVAILABLE", "it does not import"),
            ("never loaded", "", "", ""),
        ]
        ready = stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(ready=True)).models
        assert [row.name for row in ready] == ["echo"]

    @pytest.mark.parametrize("method", ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"])
    def test_repository_name_is_not_supported(self, stub: Any, method: str) -> None:
        """Row 17."""
        message = getattr(service_pb2, method + "Request")(repository_name="x")
        with failing(Status.UNIMPLEMENTED, "'repository_name' specification is not supported"):
            getattr(stub, method)(message)

    def test_load_and_unload_are_not_allowed(self, client: InferenceServerClient) -> None:
        text = "explicit model load / unload is not allowed if polling is enabled"
        with failing(Status.UNAVAILABLE, text):
            client.load_model("echo", config=json.dumps({"backend": "python"}), files={"file:1/model.py": b"pass"})
        with failing(Status.UNAVAILABLE, text):
            client.unload_model("echo", unload_dependents=True)

    def test_load_and_unload_reach_the_engine(self, client: InferenceServerClient, engine: FakeServer) -> None:
        engine.explicit = True
        client.load_model("echo")
        client.load_model("echo", config='{"backend": "python"}', files={"file:1/model.py": b"pass\0"})
        client.unload_model("echo")
        client.unload_model("echo", unload_dependents=True)
        assert engine.changes == [
            ("load", "echo", None, {}),
            ("load", "echo", '{"backend": "python"}', {"1/model.py": b"pass\0"}),
            ("unload", "echo", False),
            ("unload", "echo", True),
        ]

    @pytest.mark.parametrize(
        ("method", "key", "text"),
        [
            pytest.param(
                "RepositoryModelLoad",
                "config",
                "invalid value type for load parameter 'config', expected string_param.",
                id="row 77",
            ),
            (
                "RepositoryModelLoad",
                "file:1/model.py",
                "invalid value type for load parameter 'file:1/model.py', expected bytes_param.",
            ),
            ("RepositoryModelLoad", "foo", "unrecognized load parameter 'foo'."),
            (
                "RepositoryModelUnload",
                "unload_dependents",
                "invalid value type for 'unload_dependents' parameter, expected bool_param.",
            ),
        ],
    )
    def test_wrong_load_parameter_is_refused(self, stub: Any, method: str, key: str, text: str) -> None:
        message = getattr(service_pb2, method + "Request")(model_name="echo")
        message.parameters[key].int64_param = 1
        with failing(Status.INVALID_ARGUMENT, text):
            getattr(stub, method)(message)

    def test_every_method_of_the_service_is_answered(self) -> None:
        served = {"ModelInfer", "ModelStreamInfer", *ControlMethods(FakeServer()).inference_methods()}
        (service,) = ModelInferRequest.DESCRIPTOR.file.services_by_name.values()
        assert sorted(served) == sorted(method.name for method in service.methods)


class TestWhileExiting:
    """repository.md row 79."""

    @pytest.fixture(autouse=True)
    def exiting(self, engine: FakeServer) -> None:
        engine.exiting = True

    def test_health_says_that_the_server_is_exiting(self, stub: Any, channel: grpc.Channel) -> None:
        for call, message in (
            (stub.ServerLive, service_pb2.ServerLiveRequest()),
            (stub.ServerReady, service_pb2.ServerReadyRequest()),
            (health_check(channel), health_pb.HealthCheckRequest()),
        ):
            with failing(Status.UNAVAILABLE, "Server exiting"):
                call(message)

    @pytest.mark.parametrize(
        "method",
        [
            "ModelReady",
            "ModelMetadata",
            "ModelStatistics",
            "RepositoryIndex",
            "RepositoryModelLoad",
            "RepositoryModelUnload",
        ],
    )
    def test_what_is_about_models_is_not_ready(self, stub: Any, method: str) -> None:
        with failing(Status.UNAVAILABLE, "Server not ready"):
            getattr(stub, method)(getattr(service_pb2, method + "Request")())

    def test_server_metadata_is_still_given(self, client: InferenceServerClient) -> None:
        assert client.get_server_metadata().name == "triton"


class TestInfer:
    def test_raw_request_of_the_stock_client(self, client: InferenceServerClient) -> None:
        """Row 18."""
        data = np.arange(4, dtype=np.float32).reshape(1, 4)
        tensor = InferInput("INPUT0", [1, 4], "FP32")
        tensor.set_data_from_numpy(data)
        result = client.infer("echo", [tensor], request_id="abc")
        response = result.get_response()
        assert (response.id, response.model_name, response.model_version) == ("abc", "echo", "3")
        assert (response.outputs[0].datatype, list(response.outputs[0].shape)) == ("FP32", [1, 4])
        assert list(response.raw_output_contents) == [data.tobytes()]
        np.testing.assert_array_equal(result.as_numpy("INPUT0"), data)

    def test_typed_request_is_answered_in_raw_form(self, stub: Any) -> None:
        """Row 19."""
        message = service_pb2.ModelInferRequest(model_name="echo")
        message.inputs.add(name="X", datatype="FP32", shape=[2]).contents.fp32_contents.extend([1, 2])
        response = stub.ModelInfer(message)
        assert response.raw_output_contents == [np.array([1, 2], np.float32).tobytes()]
        assert not response.outputs[0].HasField("contents")

    def test_zero_element_tensor(self, stub: Any) -> None:
        """Row 27."""
        response = stub.ModelInfer(request(size=0))
        assert (list(response.outputs[0].shape), list(response.raw_output_contents)) == ([0], [b""])

    def test_bytes_contents_come_back_with_lengths(self, stub: Any) -> None:
        """Row 28."""
        message = service_pb2.ModelInferRequest(model_name="echo")
        message.inputs.add(name="X", datatype="BYTES", shape=[2]).contents.bytes_contents.extend([b"a", b"\xff"])
        assert stub.ModelInfer(message).raw_output_contents == [b"\x01\0\0\0a\x01\0\0\0\xff"]

    def test_parameters_in_both_directions(self, engine: FakeServer, client: InferenceServerClient) -> None:
        engine.parameters = {"s": "é", "i": -1, "b": False, "d": 0.5}
        tensor = InferInput("X", [1], "UINT8").set_data_from_numpy(np.zeros(1, np.uint8))
        sent = {"text": "x", "flag": True, "count": 5, "ratio": 1.5}
        result = client.infer("echo", [tensor], parameters=sent, priority=2, timeout=77, sequence_id=4)
        (seen,) = engine.seen
        assert seen.parameters == sent
        assert (seen.priority, seen.timeout_us, seen.correlation_id) == (2, 77, 4)
        parameters = result.get_response().parameters
        assert {key: getattr(value, value.WhichOneof("parameter_choice")) for key, value in parameters.items()} == (
            engine.parameters
        )

    @pytest.mark.parametrize(
        ("fields", "status", "text"),
        [
            pytest.param(
                {"model": "nope"},
                Status.NOT_FOUND,
                "Request for unknown model: 'nope' is not found",
                id="row 36, unknown model",
            ),
            pytest.param(
                {"model": "nope", "model_version": "x"},
                Status.INVALID_ARGUMENT,
                "failed to get model version from specified version string 'x' (details: stol), version should be an "
                "integral value > 0",
                id="row 36, version x comes before the model",
            ),
            pytest.param(
                {"model": "decoupled"},
                Status.UNIMPLEMENTED,
                "ModelInfer RPC doesn't support models with decoupled transaction policy",
                id="row 37",
            ),
        ],
    )
    def test_refused_before_the_tensors_are_read(
        self, stub: Any, fields: dict[str, str], status: grpc.StatusCode, text: str
    ) -> None:
        message = request(**fields)
        del message.raw_input_contents[:]
        with failing(status, text):
            stub.ModelInfer(message)

    @pytest.mark.parametrize(
        ("code", "status"),
        [
            (ErrorCode.UNKNOWN, Status.UNKNOWN),
            (ErrorCode.INTERNAL, Status.INTERNAL),
            (ErrorCode.NOT_FOUND, Status.NOT_FOUND),
            (ErrorCode.INVALID_ARG, Status.INVALID_ARGUMENT),
            (ErrorCode.UNAVAILABLE, Status.UNAVAILABLE),
            (ErrorCode.UNSUPPORTED, Status.UNIMPLEMENTED),
            (ErrorCode.ALREADY_EXISTS, Status.ALREADY_EXISTS),
            (ErrorCode.CANCELLED, Status.CANCELLED),
            (ErrorCode.DEADLINE_EXCEEDED, Status.DEADLINE_EXCEEDED),
        ],
    )
    def test_error_codes_are_mapped_and_texts_kept(
        self, engine: FakeServer, stub: Any, code: ErrorCode, status: grpc.StatusCode
    ) -> None:
        """Row 47."""
        engine.error = InferenceError(code, "line one\nline two: 100 % é")
        with failing(status, "line one\nline two: 100 % é"):
            stub.ModelInfer(request())

    def test_very_long_text_reaches_the_client(self, engine: FakeServer, stub: Any) -> None:
        """Triton's clients get RESOURCE_EXHAUSTED from their own stack in place of the error."""
        engine.error = InferenceError(ErrorCode.INTERNAL, "Traceback:\n" * 5_000)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(request())
        assert caught.value.code() is Status.INTERNAL
        assert caught.value.details().startswith("Traceback:\nTraceback:\n")
        assert caught.value.details().endswith("(cut, 55000 bytes in all)")

    def test_overload_says_when_to_try_again(self, engine: FakeServer, stub: Any) -> None:
        """Read with the messages that clients have for it."""
        engine.error = InferenceError(ErrorCode.UNAVAILABLE, "too much waits", retry_after_s=1.25)
        with failing(Status.UNAVAILABLE, "too much waits"), retry_told(1, 250_000_000):
            stub.ModelInfer(request())

    def test_overload_may_be_told_as_resource_exhausted(self, engine: FakeServer, stub: Any) -> None:
        engine.error = InferenceError(ErrorCode.RESOURCE_EXHAUSTED, "too much waits", retry_after_s=1)
        with failing(Status.RESOURCE_EXHAUSTED, "too much waits"), retry_told(1, 0):
            stub.ModelInfer(request())

    def test_what_is_refused_otherwise_has_no_details(self, engine: FakeServer, stub: Any) -> None:
        engine.error = InferenceError(ErrorCode.UNAVAILABLE, "gone")
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(request())
        assert "grpc-status-details-bin" not in dict(caught.value.trailing_metadata())

    def test_message_that_cannot_be_parsed(self, channel: grpc.Channel) -> None:
        for method in ("ModelInfer", "ModelReady"):
            with failing(Status.INTERNAL, "Unable to parse request"):
                channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(b"\xff\xff")

    def test_defect_of_the_server_is_internal_and_logged(
        self, engine: FakeServer, stub: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine.error = ZeroDivisionError("a bug")
        with failing(Status.INTERNAL, BUG):
            stub.ModelInfer(request())
        (record,) = caplog.records
        assert (record.name, record.levelno) == ("pytriton_lite.frontends.grpc.errors", logging.ERROR)
        assert record.exc_info is not None
        assert record.exc_info[1] is engine.error

    def test_24_mib_in_and_out(self, client: InferenceServerClient) -> None:
        """Row 51."""
        data = np.random.default_rng(0).integers(0, 256, 24 << 20, np.uint8)
        tensor = InferInput("X", list(data.shape), "UINT8").set_data_from_numpy(data)
        np.testing.assert_array_equal(client.infer("echo", [tensor]).as_numpy("X"), data)

    @pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
    def test_compressed_request(self, client: InferenceServerClient, algorithm: str) -> None:
        """Row 52."""
        data = np.zeros(100_000, np.uint8)
        tensor = InferInput("X", list(data.shape), "UINT8").set_data_from_numpy(data)
        result = client.infer("echo", [tensor], compression_algorithm=algorithm)
        np.testing.assert_array_equal(result.as_numpy("X"), data)


class TestEndsOfARequest:
    def test_cancelled_call_cancels_the_request(self, engine: FakeServer, stub: Any) -> None:
        """Row 74, up to the engine's door."""
        call = stub.ModelInfer.future(request("waiting"))
        assert engine.entered.wait(60)
        call.cancel()
        assert engine.cancelled.wait(60)

    def test_deadline_cancels_the_request(self, engine: FakeServer, stub: Any, channel: grpc.Channel) -> None:
        """Row 75, up to the engine's door."""
        grpc.channel_ready_future(channel).result(60)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(request("waiting"), timeout=2)
        assert caught.value.code() is Status.DEADLINE_EXCEEDED
        assert engine.cancelled.wait(60)

    def test_client_that_goes_away_cancels_its_request(self, engine: FakeServer, listener: Listener) -> None:
        client = InferenceServerClient(listener.address)
        tensor = InferInput("X", [1], "UINT8").set_data_from_numpy(np.zeros(1, np.uint8))
        client.async_infer("waiting", [tensor], callback=lambda result, error: None)
        assert engine.entered.wait(60)
        client.close()
        assert engine.cancelled.wait(60)

    def test_cancelled_call_leaves_others_alone(self, engine: FakeServer, loop: LoopThread, stub: Any) -> None:
        first = stub.ModelInfer.future(request("waiting", id="first"))
        assert engine.entered.wait(60)
        engine.entered.clear()
        second = stub.ModelInfer.future(request("waiting", id="second"))
        assert engine.entered.wait(60)
        first.cancel()
        assert engine.cancelled.wait(60)
        answer(loop, engine, 1)
        assert second.result(60).id == "second"


def answer(loop: LoopThread, engine: FakeServer, index: int) -> None:
    """End request *index* of the model ``waiting`` with its own inputs."""

    async def resolve() -> None:
        served = engine.find("waiting", None)
        engine.waiting[index].set_result(engine.echo(served, engine.seen[index]))

    loop.run(resolve())


class TestListening:
    def test_stop_lets_calls_in_flight_end_and_refuses_new_ones(
        self, engine: FakeServer, loop: LoopThread, start: Any
    ) -> None:
        listener = loop.run(start(engine, LOCAL))
        with grpc.insecure_channel(listener.address) as channel, grpc.insecure_channel(listener.address) as other:
            call = infer_on(channel).future(request("waiting"))
            assert engine.entered.wait(60)
            stopping = asyncio.run_coroutine_threadsafe(listener.stop(20), loop.loop)
            engine.error = InferenceError(ErrorCode.UNAVAILABLE, "Server is stopping")
            for of in (channel, other):
                with pytest.raises(grpc.RpcError) as caught:
                    infer_on(of)(request())
                assert caught.value.code() is Status.UNAVAILABLE
            assert not stopping.done()
            engine.error = None
            answer(loop, engine, 0)
            assert call.result(60).model_name == "waiting"
            assert stopping.result(60) is True
        refuses_connections(listener)

    def test_stop_cuts_off_what_outlasts_the_grace(self, engine: FakeServer, loop: LoopThread, start: Any) -> None:
        listener = loop.run(start(engine, LOCAL))
        with grpc.insecure_channel(listener.address) as channel:
            call = infer_on(channel).future(request("waiting"))
            assert engine.entered.wait(60)
            assert loop.run(listener.stop(0.05)) is False
            assert engine.cancelled.wait(60)
            assert isinstance(call.exception(60), grpc.RpcError)

    def test_second_stop_cuts_off_sooner(self, engine: FakeServer, loop: LoopThread, start: Any) -> None:
        listener = loop.run(start(engine, LOCAL))
        with grpc.insecure_channel(listener.address) as channel:
            call = infer_on(channel).future(request("waiting"))
            assert engine.entered.wait(60)
            first = asyncio.run_coroutine_threadsafe(listener.stop(1000), loop.loop)
            assert loop.run(listener.stop(0)) is False
            first.result(60)
            assert isinstance(call.exception(60), grpc.RpcError)

    def test_answer_on_its_way_is_not_cut_off(self, engine: FakeServer, loop: LoopThread, start: Any) -> None:
        """A large answer is still being written when the last call has ended for the servicer."""
        size = 32 << 20
        listener = loop.run(start(engine, LOCAL))
        unlimited = [("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(listener.address, options=unlimited) as channel:
            call = infer_on(channel).future(request("waiting", size=size))
            assert engine.entered.wait(60)
            stopping = asyncio.run_coroutine_threadsafe(listener.stop(20), loop.loop)
            answer(loop, engine, 0)
            assert len(call.result(20).raw_output_contents[0]) == size
            assert stopping.result(20) is True

    def test_busy_port_is_refused_with_its_number(self, engine: FakeServer, loop: LoopThread, start: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(ListenError, match=f"^Socket '127.0.0.1:{port}' already in use $"):
                loop.run(start(engine, GrpcOptions(address="127.0.0.1", port=port)))

    def test_address_of_another_machine_is_refused_with_the_reason(
        self, engine: FakeServer, loop: LoopThread, start: Any
    ) -> None:
        with pytest.raises(ListenError, match=r"^Socket '192\.0\.2\.1:0' cannot be bound: Cannot assign"):
            loop.run(start(engine, GrpcOptions(address="192.0.2.1", port=0)))

    def test_port_is_shared_only_when_asked(self, engine: FakeServer, loop: LoopThread, start: Any) -> None:
        def listen(port: int, *, reuse_port: bool) -> Listener:
            return loop.run(start(engine, GrpcOptions(address="127.0.0.1", port=port, reuse_port=reuse_port)))

        first = listen(0, reuse_port=True)
        second = listen(first.port, reuse_port=True)
        try:
            assert first.port == second.port != 0
        finally:
            loop.run(second.stop(0))
        with pytest.raises(ListenError):
            listen(first.port, reuse_port=False)
        loop.run(first.stop(0))

    def test_ipv6_address(self, engine: FakeServer, loop: LoopThread, start: Any) -> None:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("this machine has no IPv6 loopback")
        listener = loop.run(start(engine, GrpcOptions(address="::1", port=0)))
        assert listener.address == f"[::1]:{listener.port}"
        with InferenceServerClient(listener.address) as client:
            assert client.is_server_live()
        loop.run(listener.stop(0))

    def test_connection_older_than_its_limit_is_replaced(
        self, engine: FakeServer, loop: LoopThread, start: Any
    ) -> None:
        options = GrpcOptions(address="127.0.0.1", port=0, max_connection_age_ms=100, max_connection_age_grace_ms=100)
        listener = loop.run(start(engine, options))
        with InferenceServerClient(listener.address) as client:
            tensor = InferInput("X", [1], "UINT8").set_data_from_numpy(np.zeros(1, np.uint8))
            client.async_infer("waiting", [tensor], callback=lambda result, error: None)
            assert engine.cancelled.wait(60)
            assert client.is_server_live()
        loop.run(listener.stop(0))


def infer_on(channel: grpc.Channel) -> Any:
    return channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        request_serializer=service_pb2.ModelInferRequest.SerializeToString,
        response_deserializer=service_pb2.ModelInferResponse.FromString,
    )


def refuses_connections(listener: Listener) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((listener.host, listener.port), 10)


def test_channel_arguments_are_triton_s_by_default() -> None:
    """grpc.md section 1."""
    assert dict(channel_arguments(GrpcOptions())) == {
        "grpc.max_receive_message_length": 2147483647,
        "grpc.max_send_message_length": 2147483647,
        "grpc.max_allowed_incoming_connections": 65536,
        "grpc.server_handshake_timeout_ms": 120000,
        "grpc.so_reuseport": 0,
        "grpc.keepalive_time_ms": 7200000,
        "grpc.keepalive_timeout_ms": 20000,
        "grpc.keepalive_permit_without_calls": 0,
        "grpc.http2.max_pings_without_data": 2,
        "grpc.http2.min_recv_ping_interval_without_data_ms": 300000,
        "grpc.http2.max_ping_strikes": 2,
        "grpc.default_compression_level": 0,
    }


class TestResponseCompression:
    """Row 53, measured on the wire."""

    @pytest.mark.parametrize(
        ("level", "accept", "compressed"),
        [
            ("none", "identity, deflate, gzip", False),
            ("low", "identity, deflate, gzip", True),
            ("medium", "identity, deflate, gzip", True),
            ("high", "identity, deflate, gzip", True),
            ("high", "identity", False),
        ],
    )
    def test_infer_responses_alone_are_compressed(
        self, engine: FakeServer, loop: LoopThread, start: Any, level: Any, accept: str, compressed: bool
    ) -> None:
        options = GrpcOptions(address="127.0.0.1", port=0, infer_response_compression_level=level)
        listener = loop.run(start(engine, options))
        proxy = loop.run(CountingProxy.start(listener.port))
        # The enabled algorithms as bits: identity 1, deflate 2, gzip 4.
        bits = sum({"identity": 1, "deflate": 2, "gzip": 4}[name] for name in accept.split(", "))
        arguments = [("grpc.compression_enabled_algorithms_bitset", bits)]
        with grpc.insecure_channel(f"127.0.0.1:{proxy.port}", options=arguments) as channel:
            response = infer_on(channel)(request(size=100_000))
            assert response.raw_output_contents == [b"\1" * 100_000]
            assert (proxy.received < 20_000) is compressed

            before = proxy.received
            engine.server_name = "n" * 100_000
            metadata = channel.unary_unary("/inference.GRPCInferenceService/ServerMetadata")(b"")
            assert len(metadata) > 100_000
            assert proxy.received - before > 100_000
        loop.run(proxy.close())
        loop.run(listener.stop(0))


class CountingProxy:
    """Counts the bytes that the server sends."""

    def __init__(self) -> None:
        self.received = 0
        self.port = 0
        self._pumps: set[asyncio.Task[None]] = set()

    @classmethod
    async def start(cls, target: int) -> CountingProxy:
        proxy = cls()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", target)
            proxy._pumps.add(asyncio.create_task(proxy._pump(reader, there_writer, counted=False)))
            proxy._pumps.add(asyncio.create_task(proxy._pump(there_reader, writer, counted=True)))

        proxy._server = await asyncio.start_server(connected, "127.0.0.1", 0)
        proxy.port = proxy._server.sockets[0].getsockname()[1]
        return proxy

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, counted: bool) -> None:
        with contextlib.suppress(ConnectionError):  # a client that goes may not have read what the server said last
            while data := await source.read(1 << 16):
                if counted:
                    self.received += len(data)
                sink.write(data)
        sink.close()

    async def close(self) -> None:
        self._server.close()
        await asyncio.gather(*self._pumps)
