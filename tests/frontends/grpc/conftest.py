from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import pytest
from grpc_fakes import FakeServer, LoopThread
from tritonclient.grpc import InferenceServerClient, service_pb2_grpc

from pytriton_lite.frontends.grpc.http2 import Http2Listener, start_http2
from pytriton_lite.frontends.grpc.options import GrpcOptions
from pytriton_lite.frontends.grpc.server import GrpcListener, start_grpc


@pytest.fixture(scope="session")
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture
def engine() -> FakeServer:
    return FakeServer()


@pytest.fixture(params=[start_http2, start_grpc], ids=["http2", "grpcio"])
def start(request: pytest.FixtureRequest) -> Callable[[Any, GrpcOptions], Awaitable[Http2Listener | GrpcListener]]:
    """What starts a transport; every test of the front end runs over each."""
    return request.param


@pytest.fixture
def listener(loop: LoopThread, engine: FakeServer, start: Any) -> Iterator[Http2Listener | GrpcListener]:
    listener = loop.run(start(engine, GrpcOptions(address="127.0.0.1", port=0)))
    yield listener
    loop.run(listener.stop(0))


@pytest.fixture
def client(listener: Http2Listener | GrpcListener) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(listener.address) as client:
        yield client


@pytest.fixture
def channel(listener: Http2Listener | GrpcListener) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(listener.address) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.Channel) -> service_pb2_grpc.GRPCInferenceServiceStub:
    """The stock client's stub, for messages that the client would not make."""
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)
