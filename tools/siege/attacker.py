"""The attacker's process: `python -m tools.siege.attacker` runs one attack for a while, says how it went, and ends.

It reads an `Order` from its standard input and writes two lines: that it is ready, and an `Outcome` at the end. It begins when
a second line comes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import faulthandler
import json
import random
import re
import resource
import ssl
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tools.siege.attack import Attack, HangUp, Pause, Port, Step, Window
from tools.siege.attacks import attack_named
from tools.siege.http2_wire import (
    DATA,
    DEFAULT_WINDOW,
    ERROR_NAMES,
    GOAWAY,
    HEADERS,
    RST_STREAM,
    WINDOW_UPDATE,
)

_HOST = "127.0.0.1"
_WRITE_BYTES = 256 << 10
_HANDSHAKE_S = 10.0
_LAST_LOOK_S = 0.5
"""How long those who did not read may read in the end, so that they see what became of their connections."""
_CONNECTIONS_PER_S = 1000
"""Of all connections together. More would use up the client's ports, of which there are 28,000, before the time is over."""
_GRACE_S = 15
"""After its time the process ends itself, whatever it hangs in, and says where that was."""
_STATUS = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) ")


@dataclass(frozen=True)
class Order:
    attack: str
    connections: int
    seconds: float
    ports: dict[str, int]
    """By the value of `Port`."""
    root: str | None
    """The authority's certificate; None is plain text."""
    seed: int


@dataclass
class Outcome:
    """What the attackers did, and what became of their connections."""

    sent_bytes: int = 0
    answered: dict[str, int] = dataclasses.field(default_factory=dict)
    """Answers by status, and streams by the code that reset them."""
    ended: dict[str, int] = dataclasses.field(default_factory=dict)
    """Connections by how they ended."""
    cpu_s: float = 0.0

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        return cls(**json.loads(text))

    def count_answer(self, what: str) -> None:
        self.answered[what] = self.answered.get(what, 0) + 1

    def count_end(self, how: str) -> None:
        self.ended[how] = self.ended.get(how, 0) + 1


class Http1Reader:
    """Statuses of answers, found anywhere in what comes."""

    window = 0

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self.last_word = ""

    def feed(self, data: bytes) -> None:
        for status in _STATUS.findall(data):
            self.last_word = f"{status.decode()}, "
            self._outcome.count_answer(status.decode())


class Http2Reader:
    """Frames that come: windows, resets, and GOAWAY. What answers contain is passed over."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._rest = b""
        self._skip = 0
        self.window = DEFAULT_WINDOW
        self.last_word = ""

    def feed(self, data: bytes) -> None:
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            data = data[skipped:]
        data = self._rest + data
        at, end = 0, len(data)
        while end - at >= 9:
            length, kind = int.from_bytes(data[at : at + 3], "big"), data[at + 3]
            if kind == DATA:
                self._skip = max(0, at + 9 + length - end)
            elif at + 9 + length > end:
                break
            else:
                self._on_frame(kind, int.from_bytes(data[at + 5 : at + 9], "big"), data[at + 9 : at + 9 + length])
            at += 9 + length
        self._rest = data[at:]

    def _on_frame(self, kind: int, stream: int, payload: bytes) -> None:
        if kind == WINDOW_UPDATE and not stream:
            self.window += int.from_bytes(payload, "big")
        elif kind == RST_STREAM:
            self._outcome.count_answer(f"RST {_error_name(payload)}")
        elif kind == HEADERS:
            self._outcome.count_answer("headers")
        elif kind == GOAWAY:
            self.last_word = f"GOAWAY {_error_name(payload[4:8])} {payload[8:].decode(errors='replace')}, ".replace(
                " ,", ","
            )


def _error_name(payload: bytes) -> str:
    code = int.from_bytes(payload, "big")
    return ERROR_NAMES[code] if code < len(ERROR_NAMES) else str(code)


class Connection(asyncio.Protocol):
    """One connection that does what the script says."""

    def __init__(self, attack: Attack, script: Iterator[Step], outcome: Outcome) -> None:
        self._attack = attack
        self._script = script
        self._outcome = outcome
        self._reader = Http2Reader(outcome) if attack.port is Port.GRPC else Http1Reader(outcome)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        """None before the connection is made, and when it is over."""
        self._is_full = False
        self._is_pausing = False
        """Until a timer ends it: a pause of the script, or the turn of the other connections."""
        self._needed = 0
        """Bytes of DATA that the next step needs windows for."""
        self._end_is_told = False
        self.lost: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvloop's is no subclass
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_BYTES)
        if not self._attack.reads:
            transport.pause_reading()
        self._act()

    def _act(self) -> None:
        """The next steps, until one has to wait."""
        written = 0
        while self._transport is not None and not (self._is_full or self._is_pausing or self._transport.is_closing()):
            if self._reader.window < self._needed:
                return
            self._reader.window -= self._needed
            self._needed = 0
            if written >= _WRITE_BYTES:  # a peer that reads as fast as we write never makes the transport full
                self._pause(0)
                return
            step = next(self._script, None)
            if step is None:
                return
            if isinstance(step, bytes):
                written += len(step)
                self._outcome.sent_bytes += len(step)
                self._transport.write(step)
            elif isinstance(step, Window):
                self._needed = step.octets
            elif isinstance(step, Pause):
                self._pause(step.seconds)
            elif isinstance(step, HangUp):
                self._leave("hung up")

    def _pause(self, seconds: float) -> None:
        self._is_pausing = True
        self._loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._is_pausing = False
        self._act()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._act()

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        if self._needed:
            self._act()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._tell_end(self._reader.last_word + ("closed" if exc is None else "reset"))
        if not self.lost.done():
            self.lost.set_result(None)

    def read_at_last(self) -> None:
        if self._transport is not None and not self._attack.reads and not self._transport.is_closing():
            self._transport.resume_reading()

    def stop(self) -> None:
        """The attack is over; who is still connected by now could have gone on."""
        self._leave(self._reader.last_word + "open to the end")

    def _leave(self, how: str) -> None:
        if self._transport is not None:
            self._tell_end(how)
            self._transport.abort()
            self._transport = None

    def _tell_end(self, how: str) -> None:
        if not self._end_is_told:
            self._end_is_told = True
            self._outcome.count_end(how)


class Attackers:
    """All connections of one attack."""

    def __init__(self, order: Order) -> None:
        self._attack = attack_named(order.attack)
        self._order = order
        self._outcome = Outcome()
        self._open: set[Connection] = set()
        self._dice = random.Random(order.seed)
        self._tls = None if order.root is None or self._attack.is_below_tls else self._context(order.root)
        self._next_connection_at = 0.0

    def _context(self, root: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=root)
        if self._attack.port is Port.GRPC:
            context.set_alpn_protocols(["h2"])
        return context

    def prepare(self) -> None:
        """Make what is made once."""
        script = self._attack.script(random.Random(self._order.seed))
        for _ in range(3):
            next(script, None)

    async def run(self) -> Outcome:
        count = self._order.connections * self._attack.sockets
        attackers = [asyncio.ensure_future(self._attack_again_and_again()) for _ in range(count)]
        try:
            await asyncio.sleep(self._order.seconds)
            for connection in self._open:
                connection.read_at_last()
            if not self._attack.reads:
                await asyncio.sleep(_LAST_LOOK_S)
        finally:
            for task in attackers:
                task.cancel()
            for connection in self._open:
                connection.stop()
            results = await asyncio.gather(*attackers, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self._outcome.cpu_s = usage.ru_utime + usage.ru_stime
        return self._outcome

    async def _attack_again_and_again(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._turn()
            script = self._attack.script(random.Random(self._dice.random()))
            connection = Connection(self._attack, script, self._outcome)
            self._open.add(connection)  # before it is made: what is cancelled meanwhile may have been made
            try:
                await loop.create_connection(
                    lambda connection=connection: connection,
                    _HOST,
                    self._order.ports[self._attack.port.value],
                    ssl=self._tls,
                    server_hostname="localhost" if self._tls else None,
                    ssl_handshake_timeout=_HANDSHAKE_S if self._tls else None,
                )
            except OSError as error:
                self._open.discard(connection)
                self._outcome.count_end(f"not connected: {type(error).__name__}")
                await asyncio.sleep(0.1)
                continue
            await connection.lost
            self._open.discard(connection)

    async def _turn(self) -> None:
        """Wait until the next connection may be opened."""
        now = time.monotonic()
        at = max(now, self._next_connection_at)
        self._next_connection_at = at + 1 / _CONNECTIONS_PER_S
        if at > now:
            await asyncio.sleep(at - now)


def _run(attackers: Attackers) -> Outcome:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(attackers.run())
    return uvloop.run(attackers.run())


def main() -> int:
    order = Order(**json.loads(sys.stdin.readline()))
    attackers = Attackers(order)
    attackers.prepare()
    print("ready", flush=True)
    sys.stdin.readline()
    faulthandler.dump_traceback_later(order.seconds + _GRACE_S, exit=True)
    print(_run(attackers).as_json(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
