"""A front end in a process of its own (``--frontends``): started by the server, and ended with it.

It is given three descriptors: the channel to the engine, the one for descriptors, and the cells that all share. Connections
come through the channel, and what they ask goes back through it (`frontends.process`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine
from typing import Any

from pytriton_lite import freed_memory, logs
from pytriton_lite.core import heap, prctl
from pytriton_lite.core.errors import DescriptorLost, InferenceError
from pytriton_lite.core.file_limit import raise_file_limit
from pytriton_lite.engine.counting.receive_budget import ReceiveBudget
from pytriton_lite.engine.workers.intake import Intake
from pytriton_lite.event_loop import run
from pytriton_lite.frontends.accepting import Arrivals, Places, Throttle
from pytriton_lite.frontends.addresses import ListenError
from pytriton_lite.frontends.grpc import http2
from pytriton_lite.frontends.grpc.http2 import Http2Listener, make_http2
from pytriton_lite.frontends.grpc.servicer import Servicer
from pytriton_lite.frontends.http.bodies import LargeDocuments
from pytriton_lite.frontends.http.hot_path import hot_path
from pytriton_lite.frontends.http.server import door_app
from pytriton_lite.frontends.listener import Listener, make_listener
from pytriton_lite.frontends.process import frames
from pytriton_lite.frontends.process.board import Board
from pytriton_lite.frontends.process.calls import RemoteCalls
from pytriton_lite.frontends.process.following import refused_teller
from pytriton_lite.frontends.process.link import FrontEndLink
from pytriton_lite.frontends.process.log_lines import LinkHandler
from pytriton_lite.frontends.process.news import FrontEndStart, RegionNews
from pytriton_lite.frontends.process.questions import ForwardedMethods
from pytriton_lite.frontends.process.remote_server import RemoteServer
from pytriton_lite.frontends.unread import UnreadBudget
from pytriton_lite.frontends.work_share import share_of
from pytriton_lite.full_collections import FullCollections
from pytriton_lite.ipc.arena import DEFAULT_BYTES
from pytriton_lite.ipc.device_segment import DeviceSegment
from pytriton_lite.ipc.process_memory import InputMemory, OutputMemory, most_segments
from pytriton_lite.ipc.region import ClientSegment
from pytriton_lite.listening import connection_limits, grpc_options, http_options, tls_context

logger = logging.getLogger(__name__)

_BEAT_EVERY_S = 0.25
_LOOK_EVERY_S = 2.5
"""How often idle memory is looked for."""


def main() -> None:
    """Be the front end that the command line says: three descriptors, its number, and the number of all."""
    channel_fd, descriptors_fd, board_fd, number, front_ends = map(int, sys.argv[1:])
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)  # they are for the server, which ends us
    prctl.die_with_parent()
    prctl.name_thread(f"front end {number}")
    heap.keep_some()
    raise_file_limit()
    channel, descriptors = socket.socket(fileno=channel_fd), socket.socket(fileno=descriptors_fd)
    board = Board.attach(board_fd, front_ends)
    run(_serve(channel, descriptors, board, number))


async def _serve(channel: socket.socket, descriptors: socket.socket, board: Board, number: int) -> None:
    FrontEnd(channel, descriptors, board, number)
    await asyncio.get_running_loop().create_future()  # the end of the channel is ours


class _GivenPlaces(Places):
    """Places of connections that the engine has counted; it is told when they are given back."""

    def __init__(self, front_end: FrontEnd, listener: int) -> None:
        super().__init__(1 << 30)
        self._front_end = front_end
        self._listener = listener

    def give_back(self) -> None:
        self._front_end.lost(self._listener)


class FrontEnd:
    """The listeners of this process, fed by the engine."""

    def __init__(self, channel: socket.socket, descriptors: socket.socket, board: Board, number: int) -> None:
        self._board = board
        self._number = number
        self._loop = asyncio.get_running_loop()
        self._calls = RemoteCalls()
        share = share_of(self._loop)
        self._link = FrontEndLink(channel, descriptors, self._on_frame, self._on_end, share)
        self._descriptors = descriptors
        self._server: RemoteServer | None = None
        self._log: logs.Log | None = None
        self._arrivals: dict[int, Arrivals] = {}
        self._http: Listener | None = None
        self._grpc: Http2Listener | None = None
        self._lost: dict[int, int] = {}
        """Connections by listener of whose end the engine has not been told."""
        self._dropped = Throttle(self._loop.time)
        self._closing: asyncio.Task[None] | None = None
        self._beat()

    def _beat(self) -> None:
        self._board.beat(self._number, time.monotonic_ns())
        self._loop.call_later(_BEAT_EVERY_S, self._beat)

    def _look(self) -> None:
        self._calls.trim_if_idle()
        self._loop.call_later(_LOOK_EVERY_S, self._look)

    def lost(self, listener: int) -> None:
        """A connection of *listener* has ended."""
        if not self._lost:
            self._loop.call_soon(self._tell_lost)
        self._lost[listener] = self._lost.get(listener, 0) + 1

    def _tell_lost(self) -> None:
        lost, self._lost = self._lost, {}
        self._link.add(frames.pairs_frame(frames.GONE, lost.items()))

    def _on_end(self, reason: str) -> None:
        """The engine is gone, or will have nothing more of us."""
        os._exit(1 if reason else 0)

    # ------------------------------------------------------------------------------------------ frames

    def _on_frame(self, kind: int, body: memoryview) -> None:
        server = self._server
        if kind == frames.START:
            self._start(frames.read_told(body)[1])
            return
        assert server is not None, "START comes first"
        if server.questions.on_frame(kind, body):
            return
        if kind == frames.CONNECTION:
            for listener in frames.read_numbers(body):
                self._take_connection(listener)
        elif kind == frames.MODEL:
            server.on_model(*frames.read_told(body))
        elif kind == frames.REGION:
            region, news = frames.read_told(body)
            try:
                segment = None if isinstance(news, str) else self._segment_of(news)
            except DescriptorLost as error:
                logger.error(
                    "the shared memory region '%s' cannot be used through this front end: %s", news.name, error
                )
                server.on_region(region, news.name, None)
                return
            server.on_region(region, news, segment)
        elif kind == frames.WATCH:
            server.observation.is_on = frames.read_told(body)[1]
        elif kind == frames.LOGGING:
            assert self._log is not None
            self._log.apply(frames.read_told(body)[1])
        elif kind == frames.SYNC:
            self._link.add(frames.numbers_frame(frames.SYNCED, frames.read_numbers(body)))
        elif kind == frames.DRAIN:
            for served in (self._http, self._grpc):
                if served is not None:
                    served.begin_drain()
        elif kind == frames.CLOSE:
            self._closing = self._loop.create_task(self._close(frames.read_told(body)[1]))

    def _take_connection(self, listener: int) -> None:
        try:
            connection = socket.socket(fileno=self._link.receive_descriptor())
        except DescriptorLost as error:
            # The engine counts, and gives no more than there is room for: something else of this process takes descriptors.
            count = self._dropped.count()
            if count:
                logger.error("%d connections were closed at once: %s", count, error)
            self.lost(listener)
            return
        connection.setblocking(False)
        self._arrivals[listener].take(connection)

    async def _close(self, timeout_s: float) -> None:
        ending: list[Coroutine[Any, Any, bool]] = []
        if self._http is not None:
            ending.append(self._http.close_gracefully(timeout_s))
        if self._grpc is not None:
            ending.append(self._grpc.stop(timeout_s))
        ended = await asyncio.gather(*ending)
        self._link.add(frames.numbers_frame(frames.DRAINED, [all(ended)]))

    def _segment_of(self, news: RegionNews) -> ClientSegment | DeviceSegment:
        """The memory of a region that was registered."""
        if news.device:
            return DeviceSegment(news.device, news.nbytes)
        return ClientSegment(self._link.receive_descriptor(), news.nbytes)

    # ------------------------------------------------------------------------------------------ start

    def _start(self, start: FrontEndStart) -> None:
        self._log = logs.follow(LinkHandler(self._link.add, self._loop), start.log_settings)
        inputs = InputMemory(self._descriptors, self._calls.on_release)
        # The engine has to map those of all, and what requests were received in.
        most = max(2, most_segments() * 3 // 4 // self._board.front_ends)
        outputs = OutputMemory(self._descriptors, prefix=start.shm_prefix, ring_bytes=DEFAULT_BYTES, most_segments=most)
        self._calls.use(self._link, inputs, outputs, start.settings.busy_poll_us * 1000)
        budget = ReceiveBudget(start.max_receiving_bytes, start.overload_code, self._board.taken, self._number + 1)
        self._server = RemoteServer(
            self._board,
            self._number,
            self._link,
            self._calls,
            receive_budget=budget,
            intake=Intake(prefix=start.shm_prefix),
        )
        try:
            self._make_listeners(self._server, start)
        except (ListenError, InferenceError, ValueError) as error:
            self._link.add(frames.said_frame(frames.FAILED, 0, str(error)))
            self._link.flush()
            os._exit(1)
        self._collections = FullCollections()
        self._trimming = freed_memory.begin_giving_back()
        self._look()
        self._link.add(frames.numbers_frame(frames.READY, []))

    def _make_listeners(self, server: RemoteServer, start: FrontEndStart) -> None:
        settings = start.settings
        unread = UnreadBudget(start.max_unread_bytes)
        if frames.GRPC in start.addresses:
            options = grpc_options(settings)
            self._grpc = make_http2(
                Servicer(server, ForwardedMethods(server.questions)),
                start.addresses[frames.GRPC],
                functools.partial(self._source, frames.GRPC),
                _GivenPlaces(self, frames.GRPC),
                options,
                http2.tls_context(options),
                unread,
            )
        if frames.HTTP in start.addresses:
            of_http = http_options(settings, refused_teller(self._link.add) if start.tells_refused else None)
            large = LargeDocuments()
            self._http = make_listener(
                door_app(server, of_http, large, server.questions.app),
                start.addresses[frames.HTTP],
                functools.partial(self._source, frames.HTTP),
                _GivenPlaces(self, frames.HTTP),
                name="HTTPService",
                protocol=hot_path(server, of_http, large),
                tls=tls_context(settings.http_tls),
                limits=connection_limits(settings),
                unread=unread,
                budget=server.receive_budget,
            )

    def _source(self, listener: int, arrivals: Arrivals) -> Arrivals:
        """Connections of *listener* come from the engine."""
        self._arrivals[listener] = arrivals
        return arrivals
