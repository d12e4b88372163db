"""SageMaker's routes: ``/ping``, ``/invocations``, and those by which a multi-model endpoint loads, asks and unloads models.

For a multi-model endpoint the service unpacks the archive of a model, calls it by a hash, and sends
``POST /models {"model_name": <hash>, "url": <directory>}``; then ``POST /models/<hash>/invoke``, and in the end
``DELETE /models/<hash>``. The header ``X-Amzn-SageMaker-Target-Model`` has the archive's own name. Statuses have a meaning
to it: 404 has it load the model, 409 is a model that is there already, 507 has it unload others and try again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from pytriton_lite.core.errors import BUG, ErrorCode, InferenceError
from pytriton_lite.core.states import ServerState
from pytriton_lite.frontends.clouds.archives import Archives, ArchiveTaken
from pytriton_lite.frontends.clouds.rewriting import (
    Headers,
    WrongType,
    readdressed,
    send_empty,
    typed_answers,
    with_length,
)
from pytriton_lite.frontends.http.infer import refusing_app, send_error
from pytriton_lite.frontends.http.restricted import restricted_app
from pytriton_lite.frontends.http.routes import LIVE, MODELS, READY
from pytriton_lite.frontends.listener import AsgiApp, Message, Receive, Scope, Send
from pytriton_lite.frontends.restriction import RestrictedGroup, restrictions

if TYPE_CHECKING:
    from pytriton_lite.engine.server import Server

MIME_TYPE = b"application/vnd.sagemaker-triton.binary+json;json-header-size="
TARGET_MODEL = b"x-amzn-sagemaker-target-model"
INFERENCE_TYPES = ("infer", "generate", "generate_stream")
PING_MODES = ("ready", "live")

_MODEL = re.compile(r"/models/([^/]+)(/invoke)?")
_INDEX = "/v2/repository/index"
"""A path of the category that restricts what these routes do with models."""
_MOST_BYTES = 64 * 1024
"""Largest body of a request to load a model, which has two short texts."""
_INSUFFICIENT_STORAGE = 507
_OUT_OF_MEMORY = re.compile(
    r"out of memory|out_of_memory|MemoryError|OutOfMemory|\bOOM\b|(?:failed to|cannot|can't) allocate memory"
    r"|CUDNN_STATUS_NOT_INITIALIZED|CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)|No space left on device",
    re.IGNORECASE,
)
"""How frameworks say that a model does not fit: what Triton looks for, some of it in other cases, and the words of the C
library and of PyTorch on a CPU."""
_KILLED = "It was killed by signal 9"
"""How a load ends whose worker the kernel killed, as it does where a container has no memory left."""


@dataclass(frozen=True)
class SageMakerOptions:
    """``default_model`` is empty where the only model that is served is meant."""

    default_model: str = ""
    ping_mode: str = "ready"
    inference_type: str = "infer"
    restricted: tuple[RestrictedGroup, ...] = ()


def sagemaker_app(server: Server, app: AsgiApp, archives: Archives | None, options: SageMakerOptions) -> AsgiApp:
    """The application of SageMaker's routes. *app* is that of HTTP.

    *archives* are the models of a multi-model endpoint; None where models are not loaded on request.
    """
    routes = _Routes(server, app, archives, options)
    control = _guarded(routes.control, options.restricted)
    ping = LIVE if options.ping_mode == "live" else READY
    counts_models = archives is None or options.ping_mode == "live"

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        found = _MODEL.fullmatch(path)
        if path == "/ping" and scope["method"] == "GET" and not counts_models:
            # A model that did not load keeps a server from being ready. SageMaker asks for each of the many, and would replace
            # the container, with all of them, because of that one.
            await send_empty(send, 200 if server.state is ServerState.READY else 400)
        elif path == "/ping":
            await app(readdressed(scope, ping), receive, send)
        elif path == "/invocations":
            await routes.invoke_default(scope, receive, send)
        elif found is not None and found[2] and scope["method"] == "POST":
            await routes.invoke(found[1], scope, receive, send)
        elif path in ("/models", "/models/") or (found is not None and not found[2]):
            await control(scope, receive, send)
        else:
            await send_empty(send, 400)

    return route


def _guarded(app: AsgiApp, groups: tuple[RestrictedGroup, ...]) -> AsgiApp:
    """*app* behind the restriction of the category model-repository, if there is one."""
    restricted = restrictions(groups)
    if not restricted:
        return app

    async def restored(scope: Scope, receive: Receive, send: Send) -> None:
        await app(dict(scope, path=scope["sagemaker_path"]), receive, send)

    guard = restricted_app(restored, restricted, lambda refusal: refusal)

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        # Sorted into its category by a path of the protocol; the route's own goes along.
        await guard(dict(readdressed(scope, _INDEX), sagemaker_path=scope["path"]), receive, send)

    return guarded


class _Routes:
    def __init__(self, server: Server, app: AsgiApp, archives: Archives | None, options: SageMakerOptions) -> None:
        self._server = server
        self._loaded = archives
        self._options = options
        self._app = typed_answers(app, MIME_TYPE)
        self._method_not_allowed = refusing_app(405, "Method Not Allowed", (b"allow", b"POST"))

    @property
    def _archives(self) -> Archives:
        if self._loaded is None:
            raise InferenceError(
                ErrorCode.INVALID_ARG, "repository registration is not allowed if model control mode is not EXPLICIT"
            )
        return self._loaded

    async def invoke_default(self, scope: Scope, receive: Receive, send: Send) -> None:
        """``/invocations``: a request to the default model."""
        if scope["method"] != "POST":
            await self._method_not_allowed(scope, receive, send)
            return
        names = self._server.served_names()
        model = self._options.default_model or (names[0] if len(names) == 1 else "")
        if not model:
            await send_error(
                send,
                404,
                f"no model is called without a name: {len(names)} models are served, and the environment variable "
                "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME names none of them",
            )
            return
        await self._infer(model, scope, receive, send)

    async def invoke(self, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        """``/models/<hash>/invoke``: 404 has SageMaker load the model and ask again."""
        model = None if self._loaded is None else self._loaded.model_of(key)
        if model is None:
            await send_empty(send, 404)
            return
        await self._infer(model, scope, receive, send)

    async def _infer(self, model: str, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers: Headers = with_length(scope["headers"], MIME_TYPE)
        except WrongType as error:
            await send_error(send, 400, str(error))
            return
        path = f"{MODELS}{model}/{self._options.inference_type}"
        await self._app(readdressed(scope, path, headers=headers), receive, _storing(send))

    async def control(self, scope: Scope, receive: Receive, send: Send) -> None:
        """``/models`` and ``/models/<hash>``: what is there, and what comes and goes."""
        found = _MODEL.fullmatch(scope["path"])
        key = found[1] if found is not None else ""
        method = scope["method"]
        try:
            if method == "GET":
                await self._show(key, send)
            elif method == "POST" and not key:
                await self._load(scope, receive, send)
            elif method == "DELETE" and key:
                is_gone = self._loaded is not None and await self._loaded.unload(key)
                await send_empty(send, 200 if is_gone else 404)
            else:
                await send_empty(send, 400)
        except ArchiveTaken as error:
            await send_error(send, 409, str(error))
        except InferenceError as error:
            text = error.message
            is_full = (
                error.code is ErrorCode.RESOURCE_EXHAUSTED or _OUT_OF_MEMORY.search(text) is not None or _KILLED in text
            )
            await send_error(send, _INSUFFICIENT_STORAGE if is_full else 400, text)

    async def _show(self, key: str, send: Send) -> None:
        if not key:
            served = set(self._server.served_names())
            archives = self._loaded or ()
            shown = [_shown(archive.key, archive.url) for archive in archives if archive.model in served]
            await _send_json(send, {"models": shown})
            return
        url = None if self._loaded is None else self._loaded.url_of(key)
        if url is None:
            await send_empty(send, 404)
        else:
            await _send_json(send, _shown(key, url))

    async def _load(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read(receive)
        try:
            document = orjson.loads(body)
            key, url = document["model_name"], document["url"]
            if not isinstance(key, str) or not isinstance(url, str) or not key or "/" in key:
                raise TypeError("not two texts")
        except (ValueError, TypeError, KeyError):
            raise InferenceError(
                ErrorCode.INVALID_ARG,
                'failed to parse the request JSON buffer: expected {"model_name": <hash>, "url": <directory>}',
            ) from None
        if key in (".", ".."):
            raise InferenceError(ErrorCode.INVALID_ARG, f"invalid model_name '{key}': it is the name of no model")
        target = next((value.decode("latin-1") for name, value in scope["headers"] if name == TARGET_MODEL), key)
        await self._archives.load(key, url, target)
        await send_empty(send, 200)


def _storing(send: Send) -> Send:
    """*send*, by which an error of the model that says that its memory is short becomes 507.

    The error is in the first piece of the body, so the head waits for it where the status is one of an error.
    """
    head: Message | None = None

    async def send_stored(message: Message) -> None:
        nonlocal head
        if message["type"] == "http.response.start" and message["status"] >= 400:
            head = message
            return
        if head is not None:
            begun, head = head, None
            text = bytes(message.get("body", b"")).decode("utf-8", "replace")
            if _OUT_OF_MEMORY.search(text) is not None:
                begun["status"] = _INSUFFICIENT_STORAGE
            await send(begun)
        await send(message)

    return send_stored


def _shown(key: str, url: str) -> dict[str, str]:
    return {"modelName": key, "modelUrl": url}


async def _send_json(send: Send, value: object) -> None:
    body = orjson.dumps(value)
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _read(receive: Receive) -> bytearray:
    """A short body. Raises InferenceError(INVALID_ARG) for a long one."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise InferenceError(ErrorCode.CANCELLED, BUG)
        body += message.get("body", b"")
        if len(body) > _MOST_BYTES:
            raise InferenceError(ErrorCode.INVALID_ARG, f"a request to load a model has at most {_MOST_BYTES} bytes")
        if not message.get("more_body", False):
            return body
