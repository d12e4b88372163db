from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from grpc_fakes import FakeServer, LoopThread
from tritonclient.grpc import InferenceServerClient, service_pb2_grpc

from pytriton_lite.frontends.grpc.server import GrpcListener, GrpcOptions, start_grpc


@pytest.fixture(scope="session")
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture
def engine() -> FakeServer:
    return FakeServer()


@pytest.fixture
def listener(loop: LoopThread, engine: FakeServer) -> Iterator[GrpcListener]:
    listener = loop.run(start_grpc(engine, GrpcOptions(address="127.0.0.1", port=0)))
    yield listener
    loop.run(listener.stop(0))


@pytest.fixture
def client(listener: GrpcListener) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(listener.address) as client:
        yield client


@pytest.fixture
def channel(listener: GrpcListener) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(listener.address) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.Channel) -> service_pb2_grpc.GRPCInferenceServiceStub:
    """The stock client's stub, for messages that the client would not make."""
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)
