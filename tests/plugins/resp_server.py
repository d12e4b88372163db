"""A server on loopback that speaks as much of Redis' protocol as the response cache asks, well or badly."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PASSWORD = b"secret"


class RespServer:
    """Keeps strings. ``mood`` is how it answers from now on; ``commands`` is what it was asked."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.commands: list[list[bytes]] = []
        self.asked = asyncio.Event()
        """Set by each command."""
        self.mood = "well"
        self.asks_for_password = False
        self.gate = asyncio.Event()
        """Answers wait until it is set."""
        self.gate.set()
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def entries(self) -> dict[bytes, bytes]:
        """What is kept of requests."""
        return {key: value for key, value in self.values.items() if not key.endswith(b":generation")}

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Nobody listens at the port any more, and open connections end."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                command = [part async for part in _parts(reader)]
                self.commands.append(command)
                self.asked.set()
                answer = self._answer(command[0].upper(), command[1:])
                await self.gate.wait()
                if answer is not None:
                    writer.write(answer)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _answer(self, name: bytes, arguments: list[bytes]) -> bytes | None:
        if name == b"AUTH":
            return b"+OK\r\n" if arguments[-1] == PASSWORD else b"-WRONGPASS no such user\r\n"
        if self.asks_for_password and not any(command[0] == b"AUTH" for command in self.commands):
            return b"-NOAUTH Authentication required.\r\n"
        if self.mood == "silent":
            return None
        if self.mood == "garbage":
            return b"HTTP/1.1 400 Bad Request\r\n\r\n"
        if self.mood == "slow to keep" and name == b"SET":
            return None
        if self.mood == "full" and name == b"SET":
            return b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
        if name == b"GET":
            value = self.values.get(arguments[0])
            return b"$-1\r\n" if value is None else b"$%d\r\n%s\r\n" % (len(value), value)
        if name == b"SET" and b"NX" in arguments and arguments[0] in self.values:
            return b"$-1\r\n"
        if name == b"SET":
            self.values[arguments[0]] = arguments[1]
        if name == b"DEL":
            return b":%d\r\n" % (self.values.pop(arguments[0], None) is not None)
        return b"+PONG\r\n" if name == b"PING" else b"+OK\r\n"


async def _parts(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """One command: an array of strings."""
    for _ in range(int((await reader.readuntil(b"\r\n"))[1:])):
        length = int((await reader.readuntil(b"\r\n"))[1:])
        yield (await reader.readexactly(length + 2))[:-2]


@asynccontextmanager
async def resp_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[RespServer]:
    server = RespServer()
    await server.start(tls)
    try:
        yield server
    finally:
        await server.stop()
