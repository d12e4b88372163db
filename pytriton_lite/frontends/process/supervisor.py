"""The front ends of a server: started, told, watched, replaced, drained. It lives in the engine's process.

```
STARTING → READY → STOPPED          a process, from its start to its end
STARTING → STOPPED                  it could not start, or was stopped meanwhile
```

A front end that ends takes its connections with it and nothing else: what it asked for is cancelled, its memory is taken back,
and another process takes its place. One that does not give a sign of life, or does not read what it is told, is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pytriton_lite.core.errors import InferenceError, ProtocolError
from pytriton_lite.core.log_settings import LogSettings
from pytriton_lite.core.states import StateEnum, move
from pytriton_lite.core.timeline import Listener
from pytriton_lite.engine.outlet import socket_pair
from pytriton_lite.engine.server import Server
from pytriton_lite.engine.workers.intake import most_descriptors
from pytriton_lite.engine.workers.memory import PeerMemory
from pytriton_lite.engine.workers.regions import CudaRegion
from pytriton_lite.event_loop import on_loop
from pytriton_lite.frontends.accepting import Places
from pytriton_lite.frontends.process import frames
from pytriton_lite.frontends.process.board import Board
from pytriton_lite.frontends.process.control import Answers, Control
from pytriton_lite.frontends.process.following import Followed, refused_timeline
from pytriton_lite.frontends.process.link import EngineLink
from pytriton_lite.frontends.process.model_news import ModelNewsSource
from pytriton_lite.frontends.process.news import FrontEndStart, RegionNews
from pytriton_lite.frontends.process.numbering import ModelNumbers, StampedVersions
from pytriton_lite.frontends.process.peer import Peer
from pytriton_lite.frontends.process.regions import RegionNumbers
from pytriton_lite.frontends.work_share import share_of
from pytriton_lite.ipc.arena import DEFAULT_BYTES

logger = logging.getLogger(__name__)

_START_S = 60.0
"""How long a front end may take to be ready. It takes half a second of a core."""
_LOOK_EVERY_S = 0.5
_SILENT_NS = 5_000_000_000
"""A front end that has given no sign of life for so long is killed. It gives four in a second."""
_LATE_NS = 2_000_000_000
"""A look that comes so long after the one before says nothing: this process itself stood still, and so did front ends."""
_IDLE_NS = 2_500_000_000
"""How often a look is taken at the memory of a front end; idle from one to the next it is given back."""
_UNHEARD_S = 1.0
"""How long a front end may take to read what it is told, before somebody is answered who will rely on that."""
_UNHEARD_WAITS = 10
"""In how many pieces that is waited for."""
_MOST_WAITING = 64
"""Connections that wait here for a front end with room."""
_BACK_OFF_S = (0.1, 30.0)
"""The first pause before a front end is started again that did not get ready, and the longest."""
_OWN_DESCRIPTORS = 64
"""What a front end needs beside those of connections, large bodies and regions: some twenty, and segments on their way."""
_DRAINED_S = 1.0
"""What a front end may take beyond the time that it was given to end its connections."""
# A group of its own, so that Ctrl-C at a terminal is the server's. Not a session, where that can be helped: the scheduler of
# Linux may give each session a share of the machine (autogroup), and let one with work to do wait for 0.4 s.
_APART: Mapping[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}


class FrontEndError(Exception):
    """A front end cannot be started; the text is the reason."""


class ProcessState(StateEnum):
    STARTING = "starting"
    READY = "ready"
    STOPPED = "stopped"


_TRANSITIONS = {
    ProcessState.STARTING: frozenset({ProcessState.READY, ProcessState.STOPPED}),
    ProcessState.READY: frozenset({ProcessState.STOPPED}),
    ProcessState.STOPPED: frozenset[ProcessState](),
}


class Shared:
    """What all front ends of a server have in common."""

    def __init__(
        self,
        server: Server,
        board: Board,
        start: FrontEndStart,
        command: list[str],
        answers: Answers,
        on_refused: Listener | None,
    ) -> None:
        """*command* starts a front end: the numbers of its descriptors, its own and that of all are added.

        *on_refused* hears of requests that are no inference and that a front end has refused itself.
        """
        self.on_refused = on_refused
        self.server = server
        self.board = board
        self.start = start
        self.command = command
        self.answers = answers
        self.names = ModelNumbers()
        self.regions = RegionNumbers()
        self.versions = StampedVersions()
        self.places: dict[int, Places] = {}
        """Places for connections by the number of the listener."""


class _Handed:
    """A connection on its way to a front end. It is closed here when it has left, or nobody takes it any more."""

    __slots__ = ("fd", "listener")

    def __init__(self, listener: int, connection: socket.socket) -> None:
        self.listener = listener
        self.fd = connection.detach()

    def connection(self) -> socket.socket:
        """The connection, which is the caller's from now on."""
        fd, self.fd = self.fd, -1
        return socket.socket(fileno=fd)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class FrontEndProcess:
    """One process, which begins to start at once. Its end is reported once, to *on_end*."""

    def __init__(
        self,
        shared: Shared,
        number: int,
        on_ready: Callable[[FrontEndProcess], None],
        on_gone: Callable[[], None],
        on_undelivered: Callable[[int, socket.socket], None],
        on_end: Callable[[FrontEndProcess, str], None],
    ) -> None:
        """*on_ready* is to tell it everything that the others know, before it gets its first connection.

        *on_gone* hears of connections that have ended. *on_undelivered* gets those, with the numbers of their listeners, that
        were handed to a process which had died and that have not left this one.

        Raises FrontEndError where it cannot be started.
        """
        self.number = number
        self.state = ProcessState.STARTING
        self.connections = 0
        """Connections that it has."""
        self._shared = shared
        self._on_ready = on_ready
        self._on_gone = on_gone
        self._on_undelivered = on_undelivered
        self._on_end = on_end
        self._by_listener = {frames.HTTP: 0, frames.GRPC: 0}
        self._loop = asyncio.get_running_loop()
        self._waited_since_ns = self._looked_ns = time.monotonic_ns()
        """Since when it is waited for a sign of life."""
        self._failure = ""
        self._syncs: dict[int, asyncio.Future[None]] = {}
        self._last_sync = 0
        self._is_unheard = False
        """Whether it was told of something that others rely on, since it was last asked whether it has heard all."""
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.drained: asyncio.Future[bool] = self._loop.create_future()
        """Whether everything ended by itself, when it has."""
        shared.board.beat(number, 0)
        channel, their_channel = socket_pair()
        descriptors, their_descriptors = socket_pair()
        self._memory = PeerMemory(
            f"front end {number} has its requests",
            prefix=shared.start.shm_prefix,
            ring_bytes=DEFAULT_BYTES,
            on_news=on_loop(lambda: self._link.flush_soon()),
        )
        share = share_of(self._loop)
        self._link = EngineLink(channel, descriptors, self._on_frame, self._on_link_end, share)
        self._peer = Peer(
            shared.server,
            self._link,
            self._memory,
            followed=Followed(shared.server.observation),
            regions=shared.regions,
            versions=shared.versions,
            name_of=shared.names.name,
        )
        self._link.taker = self._peer
        self._control = Control(shared.answers, self._link.add)
        with their_channel, their_descriptors:
            given = [their_channel.fileno(), their_descriptors.fileno(), shared.board.segment.fd]
            arguments = [*map(str, given), str(number), str(shared.board.front_ends)]
            try:
                self._process = subprocess.Popen(
                    [*shared.command, *arguments], pass_fds=given, stdin=subprocess.DEVNULL, **_APART
                )
                self._pidfd = os.pidfd_open(self._process.pid)
            except OSError as error:  # one that was started, and cannot be watched, ends with its link
                self._link.close()
                raise FrontEndError(f"front end {number} cannot be started: {error.strerror}") from error
        self._loop.add_reader(self._pidfd, self._on_exit)
        self._link.add(frames.told_frame(frames.START, 0, shared.start))

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, frame: bytes, fd: int = -1, owner: object = None) -> None:
        """Send what others rely on; see `Link.add`. `heard` says when it was read."""
        self._is_unheard = True
        self._link.add(frame, fd, owner)

    # ------------------------------------------------------------------------------------------ what it is told

    @property
    def has_room(self) -> bool:
        """Whether it lives and has a descriptor for one connection more. It may have as many as this process."""
        if not self._link.is_open:  # its end is reported a moment later
            return False
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        others = _OWN_DESCRIPTORS + most_descriptors() + self._shared.regions.count
        return most == resource.RLIM_INFINITY or self.connections < max(1, most - others)

    def take(self, listener: int, connection: socket.socket) -> None:
        """Hand over a connection, which is closed here."""
        self.connections += 1
        self._by_listener[listener] += 1
        handed = _Handed(listener, connection)
        self._link.add(frames.numbers_frame(frames.CONNECTION, [listener]), handed.fd, handed)

    def tell_region(self, name: str) -> None:
        """Tell of a region that was registered, or is not any more."""
        shared = self._shared
        number = shared.regions.number(name)
        region = shared.server.regions.get(name)
        if number is None or region is None:
            self.tell(frames.told_frame(frames.REGION, 0, name))
            return
        if isinstance(region, CudaRegion):
            device = region.segment.uuid
            news = RegionNews(name, "", 0, region.byte_size, region.segment.nbytes, device, region.device_id)
            self.tell(frames.told_frame(frames.REGION, number, news))
            return
        news = RegionNews(name, region.key, region.offset, region.byte_size, region.segment.nbytes)
        self.tell(frames.told_frame(frames.REGION, number, news), region.segment.fd, region.segment)

    def heard(self) -> asyncio.Future[None] | None:
        """Done when it has read everything that it was told; None where it has already, or has ended."""
        if self.state is not ProcessState.READY:
            return None
        if not self._is_unheard:
            return self._syncs.get(self._last_sync)
        self._is_unheard = False
        self._last_sync += 1
        heard = self._syncs[self._last_sync] = self._loop.create_future()
        self._link.add(frames.numbers_frame(frames.SYNC, [self._last_sync]))
        return heard

    def replace(self, why: str) -> None:
        """Kill it; its end follows."""
        if self.state is not ProcessState.STOPPED and not self._failure:
            self._failure = why
            self.kill()

    def kill(self) -> None:
        """Kill it. Harmless when its end was reported, behind which the number may be somebody else's."""
        if self.state is not ProcessState.STOPPED:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    # ------------------------------------------------------------------------------------------ what it says

    def _on_frame(self, kind: int, body: memoryview) -> None:
        if self._control.on_frame(kind, body):
            return
        if kind == frames.GONE:
            for listener, count in frames.read_pairs(body):
                self._gone(listener, count)
            self._on_gone()
        elif kind == frames.SYNCED:
            for number in frames.read_numbers(body):
                heard = self._syncs.pop(number, None)
                if heard is not None and not heard.done():
                    heard.set_result(None)
        elif kind == frames.READY:
            self.state = move(_TRANSITIONS, self.state, ProcessState.READY)
            self._on_ready(self)
            if not self.ready.done():
                self.ready.set_result(None)
        elif kind == frames.FAILED:
            self._failure = str(frames.read_said(body)[1])
        elif kind == frames.LOGGED:
            self._log(frames.read_said(body)[1])
        elif kind == frames.TOLD:
            if self._shared.on_refused is not None:
                self._shared.on_refused(refused_timeline(frames.read_said(body)[1]))
        elif kind == frames.DRAINED:
            if not self.drained.done():
                self.drained.set_result(bool(frames.read_numbers(body)[0]))
        else:
            raise ProtocolError(f"frame of kind {kind}")

    def _gone(self, listener: int, count: int) -> None:
        self.connections -= count
        self._by_listener[listener] -= count
        for _ in range(count):
            self._shared.places[listener].give_back()

    def _log(self, said: dict[str, Any]) -> None:
        record = logging.makeLogRecord({**said, "process": self.pid})
        logging.getLogger(record.name).handle(record)

    # ------------------------------------------------------------------------------------------ its end

    def wait_anew(self, now_ns: int) -> None:
        """Have what it did not do until now not count against it."""
        self._waited_since_ns = now_ns

    def look(self, now_ns: int) -> None:
        """Kill it where it does not live any more, or does not get ready; give idle memory back."""
        if now_ns - self._looked_ns > _IDLE_NS:
            self._looked_ns = now_ns
            self._peer.trim_if_idle()
        beat = max(self._shared.board.heartbeat_ns(self.number), self._waited_since_ns)
        if self.state is ProcessState.STARTING and now_ns - self._waited_since_ns > _START_S * 1e9:
            self.replace(f"it was not ready within {_START_S:g} s")
        elif self.state is ProcessState.READY and now_ns - beat > _SILENT_NS:
            self.replace(f"it gave no sign of life for {_SILENT_NS / 1e9:g} s")

    def _on_link_end(self, reason: str) -> None:
        if reason:
            self.replace(f"it said what is no message: {reason}")
        else:
            self.kill()  # it is about to end, or cannot be spoken to
        self._take_back_undelivered()

    def _take_back_undelivered(self) -> None:
        for owner in self._link.take_undelivered():
            if isinstance(owner, _Handed):
                self.connections -= 1
                self._by_listener[owner.listener] -= 1
                self._on_undelivered(owner.listener, owner.connection())

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        code = self._process.wait()
        self.state = move(_TRANSITIONS, self.state, ProcessState.STOPPED)
        self._link.close()
        self._take_back_undelivered()
        self._control.close()
        self._peer.close()
        for listener, count in self._by_listener.items():
            self._gone(listener, count)
        self._shared.board.taken[self.number + 1] = 0
        for heard in self._syncs.values():
            if not heard.done():
                heard.set_result(None)
        why = self._failure or (f"it was killed by signal {-code}" if code < 0 else f"it exited with code {code}")
        if not self.ready.done():
            self.ready.set_exception(FrontEndError(f"front end {self.number} cannot be started: {why}"))
            self.ready.exception()  # seen: who starts it may have gone
        if not self.drained.done():
            self.drained.set_result(False)
        self._on_end(self, why)


class _Taker:
    """Hands the connections of one listener to front ends: an `accepting.ConnectionTaker`."""

    def __init__(self, front_ends: FrontEnds, listener: int) -> None:
        self._front_ends = front_ends
        self._listener = listener

    @property
    def has_room(self) -> bool:
        return self._front_ends.has_room

    def take(self, connection: socket.socket) -> None:
        self._front_ends.hand_over(self._listener, connection)

    async def wait_arrived(self, timeout_s: float) -> None:
        """Return at once: the front ends wait themselves."""


class FrontEnds:
    """All front ends of a server."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._processes: dict[int, FrontEndProcess] = {}
        self._waiting: deque[tuple[int, socket.socket]] = deque()
        """Connections that no front end has room for yet."""
        self._back_off: dict[int, float] = {}
        self._restarts: dict[int, asyncio.TimerHandle] = {}
        self._dropping: set[asyncio.Future[None]] = set()
        self._is_stopping = False
        self._is_started = False
        self._is_draining = False
        self._looking: asyncio.TimerHandle | None = None
        self._looked_ns = time.monotonic_ns()
        self.restarts = 0
        """How often a front end was started in place of one that had ended."""
        server = shared.server
        server.request_counts.elsewhere += [shared.board.counts(number) for number in range(shared.board.front_ends)]
        self._models = ModelNewsSource(server.models, shared.names, shared.versions, self._tell)
        server.regions.on_change = self._on_region
        server.observation.on_change = self._on_observation
        server.on_state = self._on_state
        self._on_state(server.state)

    # ------------------------------------------------------------------------------------------ start

    def start(self) -> None:
        """Have all of them begin to start. Raises FrontEndError; `close` must follow then."""
        for number in range(self._shared.board.front_ends):
            self._spawn(number)
        self._looking = self._loop.call_later(_LOOK_EVERY_S, self._look)

    async def wait_ready(self) -> None:
        """Wait until each of them has got ready, and those that took the place of one that has ended since, too.

        Raises FrontEndError where one does not.
        """
        while not self._is_started:
            # Not gather: who is cancelled here would cancel what others look at.
            starting = [process.ready for process in self._processes.values()]
            await asyncio.wait(starting, return_when=asyncio.FIRST_EXCEPTION)
            for ready in starting:
                if ready.done():
                    ready.result()
            self._is_started = all(process.ready.done() for process in self._processes.values())

    def _spawn(self, number: int) -> None:
        self._processes[number] = FrontEndProcess(
            self._shared, number, self._introduce, self._hand_over_waiting, self.hand_over, self._on_end
        )

    def _introduce(self, process: FrontEndProcess) -> None:
        """Tell a front end that has just got ready what all others know."""
        shared = self._shared
        for frame in self._models.everything():
            process.tell(frame)
        for name in shared.server.regions.names():
            process.tell_region(name)
        process.tell(frames.told_frame(frames.WATCH, 0, shared.server.observation.is_on))
        process.tell(frames.told_frame(frames.LOGGING, 0, shared.start.log_settings))
        if self._is_draining:
            process.tell(frames.numbers_frame(frames.DRAIN, []))
        self._hand_over_waiting()

    def _ready(self) -> list[FrontEndProcess]:
        return [process for process in self._processes.values() if process.state is ProcessState.READY]

    @property
    def ready(self) -> int:
        """How many can take connections."""
        return len(self._ready())

    # ------------------------------------------------------------------------------------------ connections

    def taker(self, listener: int, places: Places) -> _Taker:
        """The callable to which a listener gives its connections, each of which has one of *places*."""
        self._shared.places[listener] = places
        return _Taker(self, listener)

    @property
    def has_room(self) -> bool:
        """Whether another connection may wait here, if it must: each takes a descriptor that a new front end would need."""
        return len(self._waiting) < _MOST_WAITING

    def hand_over(self, listener: int, connection: socket.socket) -> None:
        """Give *connection* to the front end that has the fewest, or keep it until there is one with room for it."""
        if self._is_stopping:
            connection.close()
            return
        self._waiting.append((listener, connection))
        self._hand_over_waiting()

    def _hand_over_waiting(self) -> None:
        while self._waiting and not self._is_stopping:
            with_room = [process for process in self._ready() if process.has_room]
            if not with_room:
                return
            min(with_room, key=_connections).take(*self._waiting.popleft())

    # ------------------------------------------------------------------------------------------ news

    def _tell(self, frame: bytes) -> None:
        for process in self._ready():
            process.tell(frame)

    def _on_region(self, name: str) -> None:
        shared = self._shared
        region = shared.server.regions.get(name)
        before = shared.regions.forget(name)
        if region is not None:
            shared.regions.add(name, region.segment)
        for process in self._ready():
            process.tell_region(name)
        if before is not None:
            forgetting = asyncio.ensure_future(self._drop_region(before))
            self._dropping.add(forgetting)
            forgetting.add_done_callback(self._dropping.discard)

    async def _drop_region(self, number: int) -> None:
        settled = self.settle()
        if settled is not None:
            await settled
        self._shared.regions.drop(number)

    def _on_observation(self) -> None:
        self._tell(frames.told_frame(frames.WATCH, 0, self._shared.server.observation.is_on))

    def _on_state(self, state: Any) -> None:
        self._shared.board.state = state

    def update_log_settings(self, settings: LogSettings) -> None:
        """Have front ends log as *settings* say."""
        self._shared.start = self._shared.start._replace(log_settings=settings)
        self._tell(frames.told_frame(frames.LOGGING, 0, settings))

    def settle(self) -> asyncio.Task[None] | None:
        """Done when all front ends know what has changed; None where they do already. One that does not listen is replaced."""
        self._models.tell_now()
        waiting: dict[asyncio.Future[None], FrontEndProcess] = {}
        for process in self._ready():
            heard = process.heard()
            if heard is not None:
                waiting[heard] = process
        return self._loop.create_task(self._all_heard(waiting)) if waiting else None

    async def _all_heard(self, waiting: Mapping[asyncio.Future[None], FrontEndProcess]) -> None:
        unheard: Collection[asyncio.Future[None]] = waiting.keys()
        # Where all processes stood still together, as in a container that is paused, one piece has gone by, and nine are left.
        for _ in range(_UNHEARD_WAITS):
            if unheard:
                _, unheard = await asyncio.wait(unheard, timeout=_UNHEARD_S / _UNHEARD_WAITS)
        for heard in unheard:
            waiting[heard].replace(f"it did not hear what it was told for {_UNHEARD_S:g} s")

    # ------------------------------------------------------------------------------------------ ends

    def _look(self) -> None:
        now_ns = time.monotonic_ns()
        is_late = now_ns - self._looked_ns > _LATE_NS
        self._looked_ns = now_ns
        for process in list(self._processes.values()):
            if is_late:
                process.wait_anew(now_ns)
            process.look(now_ns)
        self._looking = self._loop.call_later(_LOOK_EVERY_S, self._look)

    def _on_end(self, process: FrontEndProcess, why: str) -> None:
        """Start another one in its place. One that does not get ready while the server starts ends that (`wait_ready`)."""
        number = process.number
        was_ready = process.ready.exception() is None
        if self._is_stopping or not (self._is_started or was_ready):
            return
        shortest_s, longest_s = _BACK_OFF_S
        pause_s = 0.0 if was_ready else min(self._back_off.get(number, shortest_s), longest_s)
        self._back_off[number] = shortest_s if was_ready else pause_s * 2
        logger.error(
            "front end %d (pid %d) has ended: %s. Its connections are lost; another one is started%s",
            number,
            process.pid,
            why,
            f" in {pause_s:g} s" if pause_s else "",
        )
        self._restarts[number] = self._loop.call_later(pause_s, self._restart, number)

    def _restart(self, number: int) -> None:
        self.restarts += 1
        try:
            self._spawn(number)
        except (FrontEndError, OSError, InferenceError) as error:  # no descriptors, or no memory
            logger.error("%s", error)
            self._restarts[number] = self._loop.call_later(_BACK_OFF_S[1], self._restart, number)
            return

    def begin_drain(self) -> None:
        """Have clients take their next requests elsewhere. A second time changes nothing."""
        if not self._is_draining:
            self._is_draining = True
            self._tell(frames.numbers_frame(frames.DRAIN, []))

    async def close_gracefully(self, timeout_s: float) -> bool:
        """End every connection, behind what it waits for. Whether all ended by themselves within *timeout_s*."""
        self.begin_drain()
        for _, connection in self._waiting:
            connection.close()
        self._waiting.clear()
        ready = self._ready()
        for process in ready:
            process.tell(frames.told_frame(frames.CLOSE, 0, timeout_s))
        if not ready:
            return True
        drained, late = await asyncio.wait([process.drained for process in ready], timeout=timeout_s + _DRAINED_S)
        return not late and all(one.result() for one in drained)

    async def close(self) -> None:
        """End every process."""
        self._is_stopping = True
        if self._looking is not None:
            self._looking.cancel()
        for restart in self._restarts.values():
            restart.cancel()
        for _, connection in self._waiting:
            connection.close()
        self._waiting.clear()
        for process in self._processes.values():
            process.kill()
        ends = [process.drained for process in self._processes.values() if process.state is not ProcessState.STOPPED]
        if ends:
            await asyncio.wait(ends, timeout=_DRAINED_S)


def _connections(process: FrontEndProcess) -> int:
    return process.connections


def command_of(module: str) -> list[str]:
    """The start of a command that runs ``main`` of *module* in this interpreter, which finds it where this one does."""
    code = f"import sys; sys.path[:] = {json.dumps(sys.path)}; from {module} import main; main()"
    return [sys.executable, "-c", code]
