"""The application of OpenAI's routes.

    GET  /v1/models, /v1/models/{model}                      what declares itself                      metadata
    POST /v1/chat/completions, /v1/completions               texts, whole or as they are written       inference
    POST /v1/responses                                       the same, in the newer form
    POST /v1/embeddings, /v1/rerank, /rerank                 vectors, and how documents fit a query
    POST /v1/audio/transcriptions                            what was said

On the right is the category of ``--http-restricted-api`` that guards a route (`frontends.http.restricted`).
"""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pytriton_lite.core.custom_metrics import Family
from pytriton_lite.core.errors import BUG, InferenceError
from pytriton_lite.core.timeline import CLIENT_GONE
from pytriton_lite.frontends.http.bodies import Disconnected, LargeDocuments
from pytriton_lite.frontends.http.observed import admin_told
from pytriton_lite.frontends.listener import AsgiApp, Receive, Scope, Send
from pytriton_lite.openai.chat import chat
from pytriton_lite.openai.completions import completions
from pytriton_lite.openai.embeddings import embeddings
from pytriton_lite.openai.errors import ApiError, bug, no_memory, of_engine, unknown_model
from pytriton_lite.openai.exchange import Exchange, Surroundings
from pytriton_lite.openai.options import OpenAiOptions
from pytriton_lite.openai.rerank import rerank
from pytriton_lite.openai.responses import responses
from pytriton_lite.openai.transcriptions import transcriptions

if TYPE_CHECKING:
    from pytriton_lite.engine.server import Server

logger = logging.getLogger(__name__)

Json = dict[str, Any]

_MODELS = "/v1/models"
_ROUTES: Mapping[str, Callable[[Exchange], Awaitable[None]]] = {
    "/v1/chat/completions": chat,
    "/v1/completions": completions,
    "/v1/responses": responses,
    "/v1/embeddings": embeddings,
    "/v1/rerank": rerank,
    "/rerank": rerank,
    "/v1/audio/transcriptions": transcriptions,
}
_BEARER = b"bearer "


class OpenAiApp:
    """The ASGI application of ``/v1/`` and ``/rerank``, and what it has counted."""

    def __init__(self, server: Server, options: OpenAiOptions, large: LargeDocuments) -> None:
        self._around = Surroundings(server, options, large)
        self._server = server
        self._keys = tuple(key.encode() for key in options.keys)
        self._began = int(time.time())
        on_admin = options.on_admin
        self._others: AsgiApp = self._answer if on_admin is None else admin_told(self._answer, on_admin)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        is_inference = scope["path"] in _ROUTES and scope["method"] == "POST"
        await (self._answer if is_inference else self._others)(scope, receive, send)

    def families(self, taken: Iterable[str] = ()) -> Iterable[Family]:
        """Metrics of the models that were asked and still declare themselves, without those of names *taken* by models' own."""
        metrics = self._around.metrics
        metrics.forget_others(set(self._declared()))
        return metrics.families(set(taken))

    async def close(self) -> None:
        """End what was started for requests."""
        await self._around.templates.close()

    # ------------------------------------------------------------------------------------------ one request

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(self._around, scope, receive, send)
        error_text = ""
        try:
            self._check_key(exchange)
            route = _ROUTES.get(scope["path"])
            if route is None:
                await self._answer_about_models(exchange)
            elif scope["method"] != "POST":
                raise _not_allowed(scope["method"], b"POST")
            else:
                await route(exchange)
        except ApiError as error:
            error_text = error.message
            await self._send_failure(exchange, error)
        except InferenceError as error:
            error_text = error.message
            await self._send_failure(exchange, of_engine(error))
        except MemoryError:
            failure = no_memory()
            error_text = failure.message
            await self._send_failure(exchange, of_engine(failure))
        except Disconnected:
            error_text = CLIENT_GONE
            self._observe_any_model(exchange)
        except Exception:
            error_text = BUG
            logger.exception("%s %s failed inside the server", scope["method"], scope["path"])
            await self._send_failure(exchange, bug())
        finally:
            exchange.release_body()
            if exchange.timeline is not None:
                exchange.timeline.finish(error_text)

    async def _send_failure(self, exchange: Exchange, error: ApiError) -> None:
        self._observe_any_model(exchange)
        await exchange.send_failure(error)

    @staticmethod
    def _observe_any_model(exchange: Exchange) -> None:
        """Begin the timeline of a request that ends before it is known what model it asks."""
        if exchange.scope["path"] in _ROUTES and exchange.scope["method"] == "POST":
            exchange.observe("")

    def _check_key(self, exchange: Exchange) -> None:
        """Raises ApiError where keys are asked for, and the request has none of them. How long it takes tells nothing."""
        if not self._keys:
            return
        values = [value for name, value in exchange.scope["headers"] if name == b"authorization"]
        given = values[0] if len(values) == 1 else b""
        key = given[len(_BEARER) :].strip() if given[: len(_BEARER)].lower() == _BEARER else b""
        if not any([hmac.compare_digest(key, known) for known in self._keys]):  # noqa: C419  # each of them is compared
            text = (
                "Incorrect API key provided."
                if key
                else "You didn't provide an API key: send it as Authorization: Bearer."
            )
            headers = ((b"www-authenticate", b"Bearer"),)
            raise ApiError(text, status=401, code="invalid_api_key", headers=headers)

    # ------------------------------------------------------------------------------------------ models

    def _declared(self) -> list[str]:
        """The names of the models that declare themselves, and would be found now."""
        found = []
        for name in self._server.served_names():
            try:
                if self._server.find(name, None).config.openai is not None:
                    found.append(name)
            except InferenceError:
                continue  # it was unloaded a moment ago
        return found

    async def _answer_about_models(self, exchange: Exchange) -> None:
        path: str = exchange.scope["path"]
        if path == _MODELS:
            document: Json = {"object": "list", "data": [self._model(name) for name in self._declared()]}
        elif path.startswith(f"{_MODELS}/"):
            name = path[len(_MODELS) + 1 :]
            if name not in self._declared():
                raise unknown_model(name)
            document = self._model(name)
        else:
            text = f"Invalid URL ({exchange.scope['method']} {path})"
            raise ApiError(text, status=404, code="unknown_url")
        if exchange.scope["method"] != "GET":
            raise _not_allowed(exchange.scope["method"], b"GET")
        await exchange.send_json(document)

    def _model(self, name: str) -> Json:
        return {"id": name, "object": "model", "created": self._began, "owned_by": "pytriton-lite"}


def _not_allowed(method: str, allowed: bytes) -> ApiError:
    text = f"Not allowed to {method} here; {allowed.decode()} it"
    return ApiError(text, status=405, code="method_not_supported", headers=((b"allow", allowed),))
