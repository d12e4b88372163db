"""What a front end knows of models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from google.protobuf.message import DecodeError

from pytriton_lite.core.states import VersionState
from pytriton_lite.engine.counting.receive_budget import ReceiveBudget
from pytriton_lite.engine.outlet import socket_pair
from pytriton_lite.engine.workers.intake import Intake
from pytriton_lite.frontends.process.board import Board
from pytriton_lite.frontends.process.calls import RemoteCalls
from pytriton_lite.frontends.process.link import FrontEndLink
from pytriton_lite.frontends.process.news import ModelNews, VersionNews
from pytriton_lite.frontends.process.remote_server import RemoteServer
from pytriton_lite.frontends.work_share import share_of
from pytriton_lite.proto import model_config_pb
from pytriton_lite.repository.index import ModelId

CONFIG: bytes = model_config_pb.ModelConfig(name="m", backend="python", max_batch_size=8).SerializeToString()


def news(config: bytes, state: VersionState = VersionState.READY) -> ModelNews:
    return ModelNews("m", ModelId("", "m"), None, (VersionNews(1, state, False, 1, config),))


def run(scenario: Callable[[RemoteServer], None]) -> None:
    async def whole() -> None:
        (theirs, ours), (their_descriptors, our_descriptors) = socket_pair(), socket_pair()
        board = Board.create(1, prefix="server_test_")
        share = share_of(asyncio.get_running_loop())
        link = FrontEndLink(ours, our_descriptors, lambda kind, body: None, lambda why: None, share)
        budget, intake = ReceiveBudget(None), Intake(prefix="server_test_")
        with theirs, their_descriptors:
            try:
                scenario(RemoteServer(board, 0, link, RemoteCalls(), receive_budget=budget, intake=intake))
            finally:
                link.close()

    asyncio.run(whole())


def test_a_configuration_is_read_when_the_first_request_asks_for_it() -> None:
    """A front end that starts is told of all models, and may serve few of them."""

    def scenario(server: RemoteServer) -> None:
        server.on_model(0, news(b"no configuration"))
        with pytest.raises(DecodeError):
            _ = server.find("m", None).config
        server.on_model(0, news(CONFIG))
        assert server.find("m", None).config.max_batch_size == 8

    run(scenario)


def test_a_configuration_that_stays_the_same_is_read_once() -> None:
    def scenario(server: RemoteServer) -> None:
        server.on_model(0, news(CONFIG))
        read = server.find("m", None).config
        server.on_model(0, news(CONFIG, VersionState.UNAVAILABLE))
        server.on_model(0, news(CONFIG))
        assert server.find("m", None).config is read

    run(scenario)
