"""A real Triton and ours beside each other: what one is asked, what it answers, what nobody expected."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import shlex
import signal
import subprocess
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.differential.expected import DEVIATIONS, Deviation, row_for

LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class Sent:
    """A request: what it is about, and what goes over the wire."""

    name: str
    method: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What of an answer is compared."""

    status: int
    kind: str
    content: str


def ask(address: str, sent: Sent) -> Answer:
    """The answer of the server at *address*; its going away is an answer too."""
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request(sent.method, sent.path, sent.body or None, sent.headers)
        reply = connection.getresponse()
        body = reply.read()
        encoding = reply.headers.get("Content-Encoding", "")
        if encoding:
            body = gzip.decompress(body) if encoding == "gzip" else zlib.decompress(body)
        return _answer(reply.status, encoding, reply.headers.get(LENGTH), body)
    except (http.client.HTTPException, OSError) as error:
        return Answer(0, "no answer", type(error).__name__)
    finally:
        connection.close()


# Left out of what is compared: Triton's order of received inputs is unspecified, and so is which of them it complains about;
# and it shows frames of the import machinery.
_GOT_LIST = re.compile(r"(?<=Got input\(s\) \[)[^\]]*(?=\])")
_OF_SEVERAL = re.compile(r"input '[^']*' (?=batch size does not match)")
_IMPORTLIB_FRAME = re.compile(r"  <frozen importlib[^>]*>\(\d+\): \w+\\n")


STATISTICS_OF = ("add_sub", "repeat")


def _form(row: Any) -> Any:
    """A row of the statistics without its numbers, of which times cannot be the same."""
    if isinstance(row, dict):
        return {key: _form(value) for key, value in row.items()}
    if isinstance(row, list):
        return [_form(value) for value in row[:1]]
    return 0 if isinstance(row, int) else row


def in_order(text: str) -> str:
    """*text* with the received inputs, which it may name, in one order: Triton's is unspecified."""
    return _GOT_LIST.sub(lambda names: ",".join(sorted(names.group().split(","))), text)


def _answer(status: int, encoding: str, length: str | None, body: bytes) -> Answer:
    part = body[: int(length)] if length is not None else body
    try:
        document = json.loads(part)
    except ValueError:
        return Answer(status, "empty" if not body else "no JSON", repr(part[:500]))
    if isinstance(document, dict) and set(document) == {"error"}:
        text = _OF_SEVERAL.sub("an input ", str(document["error"]))
        return Answer(status, "error", in_order(text))
    if isinstance(document, dict) and "extensions" in document:
        document = {**document, "version": ""}
    if isinstance(document, dict) and "model_stats" in document:
        document = {"model_stats": [_form(row) for row in document["model_stats"] if row["name"] in STATISTICS_OF]}
    kind = "json" if length is None else "binary"
    data = b"" if length is None else body[int(length) :]
    written = _IMPORTLIB_FRAME.sub("", json.dumps(document, sort_keys=True))
    return Answer(status, f"{kind} {encoding}".strip(), f"{written} {data.hex()}".strip())


def told(answer: Answer) -> str:
    return f"{answer.status} {answer.kind} {answer.content}"


@dataclass
class Tally:
    """What was compared, and what nobody expected."""

    total: int = 0
    explained: Counter[str] = field(default_factory=Counter)
    unexpected: list[tuple[str, str, str]] = field(default_factory=list)
    """Of each: what was asked, what the peer said, what we said."""
    ended_by: list[str] = field(default_factory=list)
    """What ended the peer, which was started again."""
    peer: Peer | None = None
    deviations: Sequence[Deviation] = DEVIATIONS
    """Those that are expected."""

    def note(self, asked: str, theirs: str, of_us: str) -> None:
        self.total += 1
        if theirs == of_us:
            return
        if self.peer is not None and theirs.startswith(("0 no answer", "UNAVAILABLE")) and self.peer.restored():
            self.ended_by.append(asked)
            return
        row = row_for(asked, theirs, of_us, self.deviations)
        if row is None:
            self.unexpected.append((asked, theirs, of_us))
        else:
            self.explained[row] += 1

    def smallest(self) -> list[tuple[str, str, str]]:
        """Of the differences that look the same the shortest, the commonest look first."""
        looks: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
        for found in self.unexpected:
            looks.setdefault((_look(found[1]), _look(found[2])), []).append(found)
        groups = sorted(looks.values(), key=len, reverse=True)
        return [min(group, key=lambda found: len(found[0])) for group in groups]

    def show(self, say: Callable[[str], None]) -> None:
        for asked, theirs, of_us in self.smallest():
            say(f"{asked[:900]}\n    peer {theirs[:500]}\n    ours {of_us[:500]}")
        for asked in self.ended_by:
            say(f"ended the peer: {asked[:300]}")
        explained = sum(self.explained.values())
        say(f"{self.total} requests, {len(self.unexpected)} unexpected differences, {explained} expected:")
        for row, times in self.explained.most_common():
            say(f"    {times:4d}  {row}")


def _look(text: str) -> str:
    """An answer without names and numbers."""
    return re.sub(r"'[^']*'|\[[^\]]*\]|-?[0-9.]+|[0-9a-f]{8,}", "~", text)[:120]


@dataclass(frozen=True)
class Server:
    """Where one listens."""

    http: str
    grpc: str


class Peer:
    """The process that *command* starts. `restored` starts it again when a request has ended it, which 2.51 happens to do."""

    def __init__(self, command: str, models: Path, port: int) -> None:
        self._ports = range(port, port + 3)
        given = dict(zip(("http_port", "grpc_port", "metrics_port"), self._ports), models=models)
        self._arguments = [argument.format(**given) for argument in shlex.split(command)]
        self.log = models.parent / "peer.log"
        self.server = Server(f"127.0.0.1:{self._ports[0]}", f"127.0.0.1:{self._ports[1]}")

    def __enter__(self) -> Peer:
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(self._arguments, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + 120
        while ask(self.server.http, Sent("live", "GET", "/v2/health/live")).status != 200:
            if self._process.poll() is not None or time.monotonic() > end:
                self._kill()
                raise SystemExit(f"the peer did not start:\n{self.log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.2)  # a command, not a test
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            pass
        self._kill()

    def _kill(self) -> None:
        """What is left of it: its workers outlive it when it dies."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def restored(self) -> bool:
        """Whether it had ended, and runs again."""
        try:
            self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            return False
        self._kill()
        self.__enter__()
        return True

    def restart(self) -> None:
        """End it, whether it hangs or has ended itself, and start it again."""
        self.__exit__()
        self.__enter__()
