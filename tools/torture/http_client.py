"""HTTP/1.1 over one connection, which hears everything that comes, also what was not asked for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


class ConnectionLost(Exception):
    """The server closed the connection, or reset it, before the whole answer had come."""


class Unasked(Exception):
    """Bytes came that belong to no answer."""


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        """The text of an error; the body as it is where it has another form."""
        try:
            document = json.loads(self.body)
            return str(document["error"])
        except (ValueError, KeyError, TypeError):
            return self.body[:500].decode(errors="replace")


@dataclass
class Tally:
    """Answers by status, over all connections, and requests that got none that is known of."""

    answers: Counter[int] = field(default_factory=Counter)
    unanswered: int = 0


class HttpConnection:
    """Made by `connect`; `close` or `reset` must follow. Not for two requests at a time, but they may be pipelined."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tally: Tally) -> None:
        self._reader = reader
        self._writer = writer
        self._tally = tally
        self._owed = 0
        self.is_lost = False
        """Whether nothing more can be asked on it."""

    @classmethod
    async def connect(cls, port: int, tally: Tally, *, receive_bytes: int | None = None) -> HttpConnection:
        """*receive_bytes* makes the socket's buffer small, for a client that is going to read slowly."""
        sock = socket.socket()
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
            reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 16)
        except OSError as error:
            sock.close()
            raise ConnectionLost(f"cannot connect: {error}") from error
        return cls(reader, writer, tally)

    async def request(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
        """Raises ConnectionLost, and Unasked where bytes were there before anything was asked."""
        self.send(method, path, body, headers)
        return await self.receive()

    def send(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        if not self._owed and self._reader._buffer:  # type: ignore[attr-defined]  # StreamReader has no other look
            raise Unasked(bytes(self._reader._buffer)[:300])  # type: ignore[attr-defined]
        self._owed += 1
        self._tally.unanswered += 1
        self.write(head(method, path, len(body), headers) + body)

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def receive(self) -> Answer:
        try:
            status, headers = await self._read_head()
            while status < 200:  # the server asks so whether a client that closed its side is still there
                status, headers = await self._read_head()
            if headers.get("transfer-encoding") == "chunked":
                body = await self._read_chunks()
            else:
                body = await self._reader.readexactly(int(headers.get("content-length", "0")))
        except (OSError, asyncio.IncompleteReadError) as error:
            partial = error.partial[:100] if isinstance(error, asyncio.IncompleteReadError) else b""
            raise ConnectionLost(f"{error!r} {partial!r}") from error
        self._owed -= 1
        self._tally.unanswered -= 1
        self._tally.answers[status] += 1
        return Answer(status, headers, body)

    async def _read_head(self) -> tuple[int, dict[str, str]]:
        status_line, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = (line.partition(":") for line in lines if line)
        return int(status_line.split()[1]), {name.lower(): value.strip() for name, _, value in fields}

    async def _read_chunks(self) -> bytes:
        pieces = []
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            pieces.append(await self._reader.readexactly(size))
            await self._reader.readexactly(2)
        await self._reader.readexactly(2)
        return b"".join(pieces)

    def finish_sending(self) -> None:
        """Close this side alone; answers still come."""
        self._writer.write_eof()

    async def drain(self) -> None:
        try:
            await self._writer.drain()
        except OSError as error:
            raise ConnectionLost(repr(error)) from error

    def close(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        """Leave as a machine that crashed: the server's next byte is answered with RST."""
        sock = self._writer.get_extra_info("socket")
        with contextlib.suppress(OSError):  # a front end was killed, and the connection is closed already
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


def head(method: str, path: str, size: int, headers: dict[str, str] | None = None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: torture", f"Content-Length: {size}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode()


async def ask(port: int, tally: Tally, path: str, *, method: str = "GET", body: bytes = b"") -> Answer:
    """One request on a connection of its own."""
    connection = await HttpConnection.connect(port, tally)
    try:
        return await connection.request(method, path, body)
    finally:
        connection.close()


async def ask_json(port: int, tally: Tally, path: str) -> Any:
    answer = await ask(port, tally, path)
    if answer.status != 200:
        raise ConnectionLost(f"GET {path}: {answer.status} {answer.body[:300]!r}")
    return json.loads(answer.body)
