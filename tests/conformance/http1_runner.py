"""What a case of HTTP/1.1 says, and how it is played: bytes go out over a real socket, and the answers are counted and read.

A `Row` is data. It is played over several ways through the server, because requests are read in more than one place. Where the
connection is to stay open, a request for a path that there is not follows: its 404 must be the next thing that comes, so that a
request that hides in another's body is noticed.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

WAIT_S = 30.0
"""For anything that the server owes; only a server that fails a case takes so long."""

BODY = json.dumps(
    {
        "inputs": [
            {"name": name, "shape": [4], "datatype": "FP32", "data": [1.0, 2.0, 3.0, 4.0]}
            for name in ("INPUT0", "INPUT1")
        ]
    }
).encode()
_MIDDLE = len(BODY) // 2
CHUNKS = b"%x\r\n%s\r\n%x\r\n%s\r\n" % (_MIDDLE, BODY[:_MIDDLE], len(BODY) - _MIDDLE, BODY[_MIDDLE:])
"""The body in two chunks, without the last one that says that there are no more."""

_PROBE = b"GET /no-such-path HTTP/1.1\r\nHost: h\r\n\r\n"


@dataclass(frozen=True)
class Way:
    """A route, and with it the code that reads a request."""

    name: str
    method: bytes
    target: bytes
    is_metrics: bool = False
    forwards: bool = False
    """Is for a server that forwards headers to models, and so keeps their names as the client wrote them."""


HOT = Way("infer", b"POST", b"/v2/models/add_sub/infer")
LONG = Way("infer, long way", b"POST", b"/v2/models/add_sub/infer?query")
"""What the hot path leaves to the application: a query is unusual."""
FORWARDING = Way("infer, forwarded headers", b"POST", b"/v2/models/add_sub/infer", forwards=True)
HEALTH = Way("health", b"GET", b"/v2/health/live")
METADATA = Way("metadata", b"GET", b"/v2")
METRICS = Way("metrics", b"GET", b"/metrics", is_metrics=True)

POSTS = (HOT, LONG, FORWARDING)
GETS = (HEALTH, METADATA, METRICS)
ALL = (*POSTS, *GETS)


class End(Enum):
    """What becomes of the connection behind the answers."""

    OPEN = "open"
    CLOSED = "closed"
    EITHER = "open or closed"
    UNSEEN = "whatever follows"
    """The request is not complete: what would be sent next is the rest of it."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    """Names in small letters."""
    body: bytes

    def values(self, name: str) -> list[str]:
        return [value for known, value in self.headers if known == name]


Check = Callable[[Answer], bool]


@dataclass(frozen=True)
class Wants:
    """These answers and no others, each of one of several statuses, and then the *end*."""

    answers: tuple[tuple[int, ...], ...]
    end: End
    check: Check = field(default=lambda answer: True)
    """Of the last answer."""
    says: str = ""
    """What `check` is about, as the page has it."""

    def matches(self, seen: Seen) -> bool:
        if len(seen.answers) != len(self.answers) or seen.trouble or not self.begins_with(seen.answers):
            return False
        if self.end in (End.OPEN, End.CLOSED) and self.end is not seen.end:
            return False
        return not seen.answers or self.check(seen.answers[-1])

    def begins_with(self, answers: list[Answer]) -> bool:
        """Whether *answers* may be the first of those that are wanted."""
        statuses = [answer.status for answer in answers]
        return len(answers) <= len(self.answers) and all(map(tuple.__contains__, self.answers, statuses))

    def __str__(self) -> str:
        counted: list[tuple[str, int]] = []
        for statuses in self.answers:
            text = " or ".join(map(str, statuses))
            if counted and counted[-1][0] == text:
                counted[-1] = text, counted[-1][1] + 1
            else:
                counted.append((text, 1))
        told = [text if count == 1 else f"{count} × {text}" for text, count in counted]
        if self.says:
            told.append(self.says)
        return ", ".join([*told, self.end.value])


@dataclass(frozen=True)
class OneOf:
    """Any of several, between which the RFC leaves the choice."""

    choices: tuple[Wants, ...]

    def matches(self, seen: Seen) -> bool:
        return any(choice.matches(seen) for choice in self.choices)

    def __str__(self) -> str:
        return "; or ".join(map(str, self.choices))


def _fewest_answers(wants: Wants | OneOf) -> int:
    return min(len(choice.answers) for choice in _choices(wants))


def _choices(wants: Wants | OneOf) -> tuple[Wants, ...]:
    return wants.choices if isinstance(wants, OneOf) else (wants,)


@dataclass
class Seen:
    answers: list[Answer] = field(default_factory=list)
    end: End = End.CLOSED
    trouble: str = ""
    """What is wrong beyond the answers: bytes that are no answer, or nothing at all for `WAIT_S`."""

    def __str__(self) -> str:
        told = [f"{answer.status} {answer.body[:80]!r}" for answer in self.answers]
        return ", ".join([*told, self.trouble or self.end.value])


class Step(Enum):
    NEXT = "wait for the next answer"
    HALF_CLOSE = "end the client's side"


@dataclass(frozen=True)
class Row:
    id: str
    """RFC, section, number in that."""
    what: str
    """What the client does: a sentence without a subject."""
    sends: bytes | tuple[bytes | Step, ...]
    """``<START>`` stands for method and target, ``<METHOD>`` and ``<TARGET>`` for each; ``<BODY>``, ``<LENGTH>`` and
    ``<CHUNKS>`` for a body, its length, and the same in chunks."""
    wants: Wants | OneOf
    ways: tuple[Way, ...] = ALL
    note: str = ""
    is_head: bool = False
    """The answers have no bodies, whatever their headers say."""
    is_impatient: bool = False
    """Is for a server that gives a head one second."""


@dataclass(frozen=True)
class Deviation:
    """What the server does in place of what the RFC has, and why it stays so."""

    does: Wants
    reason: str


def play(row: Row, wants: Wants | OneOf, way: Way, host: str, port: int) -> Seen:
    with socket.create_connection((host, port), WAIT_S) as sock:
        player = _Player(sock, is_head=row.is_head)
        try:
            player.play(row, wants, way)
        except _Trouble as trouble:
            player.seen.trouble = str(trouble)
        return player.seen


class _Trouble(Exception):
    pass


class _End(Exception):
    """The server has closed."""


class _Player:
    def __init__(self, sock: socket.socket, *, is_head: bool) -> None:
        self._sock = sock
        self._is_head = is_head
        self._data = b""
        self.seen = Seen()

    def play(self, row: Row, wants: Wants | OneOf, way: Way) -> None:
        steps = (row.sends,) if isinstance(row.sends, bytes) else row.sends
        try:
            for step in steps:
                if step is Step.NEXT:
                    self._take()
                elif step is Step.HALF_CLOSE:
                    self._sock.shutdown(socket.SHUT_WR)
                elif isinstance(step, bytes):
                    self._send(_filled(step, way))
            answers = self.seen.answers
            while len(answers) < _fewest_answers(wants) or (answers and answers[-1].status < 200):
                self._take()
            if not answers or any(choice.begins_with(answers) for choice in _choices(wants)):
                self._find_end({choice.end for choice in _choices(wants)})
        except _End:
            self.seen.end = End.CLOSED

    def _find_end(self, ends: set[End]) -> None:
        """Ask once more: the answer tells that the connection is open, and that nothing else was to come."""
        if End.UNSEEN in ends:
            return
        if ends != {End.CLOSED}:
            self._send(_PROBE)
            self._is_head = False
        while True:
            answer = self._answer()
            if answer.status == 404:
                self.seen.end = End.OPEN
                return
            self.seen.answers.append(answer)

    def _take(self) -> None:
        self.seen.answers.append(self._answer())

    def _answer(self) -> Answer:
        head = self._until(b"\r\n\r\n")
        line, *fields = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        version, _, rest = line.partition(" ")
        if version != "HTTP/1.1" or not rest[:3].isdigit() or rest[3:4] != " ":
            raise _Trouble(f"no status line: {line!r}")
        headers = []
        for text in fields:
            name, colon, value = text.partition(":")
            if not colon or name != name.strip():
                raise _Trouble(f"no header: {text!r}")
            headers.append((name.lower(), value.strip()))
        status = int(rest[:3])
        answer = Answer(status, tuple(headers), b"")
        if self._is_head or status < 200 or status == 204:
            return answer
        lengths = answer.values("content-length")
        if len(lengths) != 1:
            raise _Trouble(f"{len(lengths)} lengths of an answer")
        return Answer(status, tuple(headers), self._exactly(int(lengths[0])))

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._data:
            self._receive()
        end = self._data.index(mark) + len(mark)
        taken, self._data = self._data[:end], self._data[end:]
        return taken

    def _exactly(self, size: int) -> bytes:
        while len(self._data) < size:
            self._receive()
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def _receive(self) -> None:
        try:
            data = self._sock.recv(1 << 16)
        except TimeoutError:
            raise _Trouble("nothing more comes") from None
        except ConnectionResetError:
            data = b""
        if not data:
            if self._data:
                raise _Trouble(f"closed behind {self._data[:80]!r}")
            raise _End
        self._data += data

    def _send(self, data: bytes) -> None:
        try:
            self._sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return  # the server has closed already, perhaps with a word that is to be read


def _filled(template: bytes, way: Way) -> bytes:
    for mark, text in (
        (b"<START>", way.method + b" " + way.target),
        (b"<METHOD>", way.method),
        (b"<TARGET>", way.target),
        (b"<BODY>", BODY),
        (b"<LENGTH>", b"%d" % len(BODY)),
        (b"<CHUNKS>", CHUNKS),
    ):
        template = template.replace(mark, text)
    return template
