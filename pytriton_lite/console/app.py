"""The application behind the pages: their files, and the documents that the protocol has no route for.

    GET /, /docs                the two pages
    GET /console/files/NAME     what they are made of
    GET /console/about          what this server is                                    metadata
    GET /console/statistics     counters, queues and instances of every version        statistics
    GET /console/lines?model=M  lines of a model's log; of the server without a model  logging
    GET /console/errors         errors, with tracebacks                                logging
    GET /console/given/MODEL    the configuration as its author wrote it               model-config

On the right is the category of ``--http-restricted-api`` that guards a document (`frontends.http.restricted`). The pages hold
nothing of the server, so nothing guards them: what they show they ask for, with the header that a person has typed in. Models,
their metadata and inference they ask for as every client does.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import orjson

from pytriton_lite.console.files import HEADERS, PageFile, read_files
from pytriton_lite.console.lines import Line, RecentLines
from pytriton_lite.console.options import ConsoleOptions
from pytriton_lite.core.build import build_kind
from pytriton_lite.core.errors import BUG, InferenceError
from pytriton_lite.engine.counting.statistics import ModelStatistics
from pytriton_lite.engine.views import VersionStatus
from pytriton_lite.frontends.http.errors import METHOD_NOT_ALLOWED, NOT_FOUND, STATUS, error_body
from pytriton_lite.frontends.listener import AsgiApp, Receive, Scope, Send

if TYPE_CHECKING:
    from pytriton_lite.engine.server import Server

logger = logging.getLogger(__name__)

_FILES = "/console/files/"
_GIVEN = "/console/given/"
_PAGES = {"/": "index.html", "/docs": "docs.html"}
_JSON = b"application/json"
_LONGEST_NUMBER = 18
"""Digits of a line's number. Python takes long to read thousands of them, and refuses more."""


def console_app(server: Server, options: ConsoleOptions, lines: RecentLines) -> AsgiApp:
    """The ASGI application of ``/``, ``/docs`` and ``/console/``. It reads the files of the pages."""
    return _Console(server, options, lines)


class _NotFound(Exception):
    """A path that is nothing here."""


class _Console:
    def __init__(self, server: Server, options: ConsoleOptions, lines: RecentLines) -> None:
        self._server = server
        self._options = options
        self._lines = lines
        self._files = read_files()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["method"] not in ("GET", "HEAD"):
            await _send(send, scope, 405, _JSON, error_body(METHOD_NOT_ALLOWED), (b"allow", b"GET, HEAD"))
            return
        try:
            file = self._file(scope["path"])
            if file is not None:
                await _send_file(send, scope, file)
                return
            answer = await self._document(scope["path"], dict(parse_qsl(scope["query_string"].decode("latin-1"))))
        except InferenceError as error:
            await _send(send, scope, STATUS[error.code], _JSON, error_body(error.message))
        except _NotFound:
            await _send(send, scope, 404, _JSON, error_body(NOT_FOUND))
        except Exception:
            logger.exception("GET %s failed inside the server", scope["path"])
            await _send(send, scope, 500, _JSON, error_body(BUG))
        else:
            await _send(send, scope, 200, _JSON, answer)

    def _file(self, path: str) -> PageFile | None:
        """The file that *path* names; None where it is one of a document."""
        name = _PAGES.get(path)
        if name is None and path.startswith(_FILES):
            name = path[len(_FILES) :]
        if name is None:
            return None
        if name not in self._files:
            raise _NotFound
        return self._files[name]

    async def _document(self, path: str, query: dict[str, str]) -> bytes:
        """The JSON at *path*. Raises _NotFound, InferenceError."""
        if path == "/console/about":
            return orjson.dumps(self._about())
        if path == "/console/statistics":
            return orjson.dumps(self._statistics())
        said = query.get("after", "")
        after = int(said) if said.isdecimal() and len(said) <= _LONGEST_NUMBER else 0
        if path == "/console/lines":
            model = query.get("model", "")
            return _lines(self._lines.of_model(model, after) if model else self._lines.of_server(after))
        if path == "/console/errors":
            return _lines(self._lines.errors(after))
        if path.startswith(_GIVEN) and "/" not in path[len(_GIVEN) :]:
            return orjson.dumps(asdict(await self._server.given_configuration(path[len(_GIVEN) :])))
        raise _NotFound

    def _about(self) -> dict[str, object]:
        found = self._server.metadata()
        return {
            "name": found.name,
            "version": found.version,
            "build": build_kind(),
            "python": sys.version.split()[0],
            "pid": os.getpid(),
            "mode": self._options.mode,
            "grpc_port": self._options.grpc_port,
            "grpc_tls": self._options.grpc_tls,
            "metrics_port": self._options.metrics_port,
            "metrics_tls": self._options.metrics_tls,
        }

    def _statistics(self) -> dict[str, object]:
        return {
            "time_ms": time.monotonic_ns() // 1_000_000,
            "state": self._server.state.value,
            "is_ready": self._server.is_ready(),
            "versions": [_version(status) for status in self._server.version_statuses()],
        }


def _version(status: VersionStatus) -> dict[str, object]:
    counted = status.statistics
    return {
        "model": counted.name,
        "namespace": counted.namespace,
        "version": counted.version,
        "state": status.state.value,
        "inferences": counted.inference_count,
        "executions": counted.execution_count,
        "succeeded": counted.success.count,
        "failed": counted.fail.count,
        "rejected": sum(counted.rejected.values()),
        "responses": counted.responses_given,
        "total_ns": counted.success.ns,
        "queue_ns": counted.queue.ns,
        "compute_ns": counted.compute_input.ns + counted.compute_infer.ns + counted.compute_output.ns,
        "waiting": counted.pending,
        "unanswered": counted.unanswered,
        "restarts": counted.worker_restarts,
        "load_ms": counted.load_ns // 1_000_000,
        "last_ms": counted.last_inference_ms,
        "batches": _batches(counted),
        "instances": [asdict(instance) for instance in status.instances],
    }


def _batches(counted: ModelStatistics) -> list[list[int]]:
    """Batch size and number of executions, by size."""
    return [[size, row.compute_infer.count] for size, row in sorted(counted.batches.items())]


def _lines(found: Sequence[Line]) -> bytes:
    # Strings of a log may hold half a character, which is no Unicode.
    try:
        return orjson.dumps({"lines": [asdict(line) for line in found]})
    except orjson.JSONEncodeError:
        clean = [{name: _printable(value) for name, value in asdict(line).items()} for line in found]
        return orjson.dumps({"lines": clean})


def _printable(value: object) -> object:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


async def _send_file(send: Send, scope: Scope, file: PageFile) -> None:
    asked = next((value for name, value in scope["headers"] if name == b"if-none-match"), b"")
    extra = ((b"etag", file.etag), (b"cache-control", b"no-cache"), *HEADERS)
    if file.etag in asked:
        await _send(send, scope, 304, file.content_type, b"", *extra)
    else:
        await _send(send, scope, 200, file.content_type, file.body, *extra)


async def _send(
    send: Send, scope: Scope, status: int, content_type: bytes, body: bytes, *extra: tuple[bytes, bytes]
) -> None:
    headers = [(b"content-type", content_type), *extra]
    if status != 304:
        headers.append((b"content-length", b"%d" % len(body)))
    if content_type is _JSON:
        headers.append((b"cache-control", b"no-store"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
