"""Server reflection and the health service's Watch, over both transports, with the gRPC project's own clients."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_fakes import FakeServer, LoopThread
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from pytriton_lite.frontends.grpc.calls import CallsInFlight
from pytriton_lite.frontends.grpc.control_methods import HEALTH_SERVICE, INFERENCE_SERVICE, ControlMethods, Method
from pytriton_lite.frontends.grpc.service_streams import Watching
from pytriton_lite.proto import files, health_pb, reflection_pb
from pytriton_lite.proto.reflection_pb import ServerReflectionRequest, ServerReflectionResponse

Code = grpc.StatusCode
WATCH = "/grpc.health.v1.Health/Watch"
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"
PATHS = [f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo" for version in ("v1", "v1alpha")]


def ask(channel: grpc.Channel, path: str, *questions: ServerReflectionRequest) -> list[ServerReflectionResponse]:
    method = channel.stream_stream(path)
    messages = [question.SerializeToString() for question in questions]
    return [ServerReflectionResponse.FromString(answer) for answer in method(iter(messages), timeout=30)]


# Reflection ---------------------------------------------------------------------------------------------------------


def test_the_projects_own_client_finds_every_service_and_makes_messages_of_it(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    assert sorted(database.get_services()) == sorted(files.services())
    pool = DescriptorPool(database)
    service = pool.FindServiceByName(INFERENCE_SERVICE)
    names = {method.name for method in service.methods}
    assert {"ModelInfer", "ModelStreamInfer", "ServerLive"} <= names
    method = service.FindMethodByName("ServerLive")
    answer = channel.unary_unary(f"/{INFERENCE_SERVICE}/ServerLive")(
        GetMessageClass(method.input_type)().SerializeToString()
    )
    assert GetMessageClass(method.output_type).FromString(answer).live is True


def test_what_is_described_is_what_is_served(channel: grpc.Channel, engine: FakeServer) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    pool = DescriptorPool(database)
    methods = ControlMethods(engine)
    described = {method.name for method in pool.FindServiceByName(INFERENCE_SERVICE).methods}
    assert described == {*methods.inference_methods(), "ModelInfer", "ModelStreamInfer"}
    assert {method.name for method in pool.FindServiceByName(HEALTH_SERVICE).methods} == {"Check", "Watch"}


@pytest.mark.parametrize("path", PATHS)
def test_questions_are_answered_in_their_order_with_what_was_asked(channel: grpc.Channel, path: str) -> None:
    questions = [
        ServerReflectionRequest(host="h", list_services=""),
        ServerReflectionRequest(file_by_filename="grpc_service.proto"),
        ServerReflectionRequest(file_containing_symbol="inference.GRPCInferenceService.ModelInfer"),
        ServerReflectionRequest(all_extension_numbers_of_type="inference.ModelInferRequest"),
    ]
    services, by_name, by_symbol, extensions = ask(channel, path, *questions)
    assert [one.original_request for one in (services, by_name, by_symbol, extensions)] == questions
    assert services.valid_host == "h"
    assert [service.name for service in services.list_services_response.service] == files.services()
    assert len(by_name.file_descriptor_response.file_descriptor_proto) == 2, "with what it imports"
    assert list(by_symbol.file_descriptor_response.file_descriptor_proto) == list(
        by_name.file_descriptor_response.file_descriptor_proto
    )
    assert extensions.all_extension_numbers_response.base_type_name == "inference.ModelInferRequest"
    assert list(extensions.all_extension_numbers_response.extension_number) == []


@pytest.mark.parametrize(
    ("question", "code", "text"),
    [
        (ServerReflectionRequest(file_by_filename="nope.proto"), 5, "file 'nope.proto' is not found"),
        (ServerReflectionRequest(file_containing_symbol="no.Symbol"), 5, "symbol 'no.Symbol' is not found"),
        (ServerReflectionRequest(file_containing_symbol=""), 5, "symbol '' is not found"),
        (ServerReflectionRequest(all_extension_numbers_of_type="x"), 5, "type 'x' is not found"),
        (
            ServerReflectionRequest(
                file_containing_extension=reflection_pb.ExtensionRequest(containing_type="x", extension_number=1)
            ),
            5,
            "type 'x' has no extensions",
        ),
        (ServerReflectionRequest(), 3, "the request asks for nothing that this server knows"),
    ],
)
def test_what_is_not_there_is_an_answer_and_the_stream_goes_on(
    channel: grpc.Channel, question: ServerReflectionRequest, code: int, text: str
) -> None:
    refused, services = ask(channel, PATHS[0], question, ServerReflectionRequest(list_services=""))
    assert (refused.error_response.error_code, refused.error_response.error_message) == (code, text)
    assert services.WhichOneof("message_response") == "list_services_response"


def test_many_questions_are_answered_however_slowly_they_are_read(channel: grpc.Channel) -> None:
    question = ServerReflectionRequest(file_by_filename="grpc_service.proto")
    answers = ask(channel, PATHS[0], *[question] * 300)
    assert len(answers) == 300 and len({len(one.SerializeToString()) for one in answers}) == 1


@pytest.mark.parametrize(
    ("message", "code"), [(b"\xff", Code.INTERNAL), (b"\x1a\x80\x80\x08" + bytes(1 << 17), Code.RESOURCE_EXHAUSTED)]
)
def test_a_message_that_is_none_ends_the_call(channel: grpc.Channel, message: bytes, code: Code) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(channel.stream_stream(PATHS[0])(iter([message]), timeout=30))
    assert caught.value.code() == code
    assert ask(channel, PATHS[0], ServerReflectionRequest(list_services=""))


# Watch --------------------------------------------------------------------------------------------------------------


class Watched:
    """A Watch, read by a thread."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.call = channel.unary_stream(WATCH)(b"", timeout=60)
        self._states: queue.Queue[bytes | Code] = queue.Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for state in self.call:
                self._states.put(state)
            self._states.put(Code.OK)
        except grpc.RpcError as error:
            self._states.put(error.code())

    def next(self) -> bytes | Code:
        """The next state, or how the call ended; waits for it."""
        return self._states.get(timeout=60)

    def close(self) -> None:
        self.call.cancel()
        self._thread.join()


@pytest.fixture
def watched(channel: grpc.Channel) -> Iterator[Watched]:
    watched = Watched(channel)
    yield watched
    watched.close()


def test_a_watch_is_told_the_state_and_every_change(watched: Watched, engine: FakeServer) -> None:
    assert watched.next() == SERVING
    engine.ready = False
    assert watched.next() == NOT_SERVING
    engine.ready = True
    assert watched.next() == SERVING
    engine.exiting = True
    assert watched.next() == NOT_SERVING
    engine.exiting = False


def test_several_watch_and_each_is_told(channel: grpc.Channel, watched: Watched, engine: FakeServer) -> None:
    assert watched.next() == SERVING
    second = Watched(channel)
    assert second.next() == SERVING
    engine.ready = False
    assert (watched.next(), second.next()) == (NOT_SERVING, NOT_SERVING)
    second.close()
    engine.ready = True
    assert watched.next() == SERVING


def test_a_watch_after_the_last_one_has_left_is_told_the_state_of_now(
    channel: grpc.Channel, engine: FakeServer
) -> None:
    first = Watched(channel)
    assert first.next() == SERVING
    first.close()
    engine.ready = False
    second = Watched(channel)
    assert second.next() == NOT_SERVING
    second.close()


def test_a_watch_ends_with_the_listener_behind_a_last_state(watched: Watched, listener: Any, loop: LoopThread) -> None:
    assert watched.next() == SERVING
    loop.run(listener.stop(10))
    assert watched.next() == NOT_SERVING
    assert watched.next() == Code.UNAVAILABLE


def test_the_last_state_goes_behind_one_that_is_being_sent() -> None:
    """A client has often read it before the server knows that it has left."""
    sent: list[bytes] = []
    ended: list[Exception | None] = []

    class Slow:
        def __init__(self) -> None:
            self.began = asyncio.Event()

        def send(self, message: bytes, on_left: Callable[[], None]) -> None:
            sent.append(message)
            self.began.set()

        def on_room(self) -> None: ...

        def end(self, error: Exception | None) -> None:
            ended.append(error)

    async def watch() -> None:
        calls = CallsInFlight()
        outlet = Slow()
        state = health_pb.HealthCheckResponse.FromString(SERVING)
        stream = Watching(Method(health_pb.HealthCheckRequest, lambda _: state)).open(outlet, calls)
        stream.take(b"")
        await outlet.began.wait()
        await calls.wait_drained(0)

    asyncio.run(watch())
    assert sent == [SERVING, NOT_SERVING]
    assert len(ended) == 1


@pytest.mark.parametrize(
    ("messages", "text"), [([], "none was sent"), ([b"", b""], "more was sent"), ([b"\xff"], "Unable to parse request")]
)
def test_a_watch_takes_one_message(channel: grpc.Channel, messages: list[bytes], text: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(channel.stream_stream(WATCH)(iter(messages), timeout=30))
    assert caught.value.code() == Code.INTERNAL
    assert text in caught.value.details()


def test_the_state_is_that_of_check(channel: grpc.Channel, engine: FakeServer) -> None:
    engine.ready = False
    check = channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
    assert health_pb.HealthCheckResponse.FromString(check).status == health_pb.HealthCheckResponse.NOT_SERVING
    watched = Watched(channel)
    assert watched.next() == check
    watched.close()
