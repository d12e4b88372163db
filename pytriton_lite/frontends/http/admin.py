"""Every route but those of inference and health: metadata, configuration, statistics, repository and more.

HTTP spec, sections 2, 4 to 6 and 12 to 14. FastAPI routes them and documents them in ``/openapi.json``. Handlers stay on the
loop (``async def``): the engine's state is plain and belongs to it. Nothing here is ever compressed, because the asyncio client
of Triton undoes compression only for infer.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route

import pytriton_lite
from pytriton_lite.core.errors import BUG, ErrorCode, InferenceError
from pytriton_lite.engine.counting.statistics import ModelStatistics
from pytriton_lite.frontends.http import json_dialect, json_values, openapi, served_openapi
from pytriton_lite.frontends.http.bodies import Disconnected, Documents, LargeDocuments, decode_base64
from pytriton_lite.frontends.http.errors import METHOD_NOT_ALLOWED, NOT_FOUND, STATUS, error_body, retry_headers
from pytriton_lite.frontends.http.log_routes import add_logging
from pytriton_lite.frontends.http.options import HttpOptions
from pytriton_lite.frontends.http.routes import is_version, parse_version
from pytriton_lite.frontends.http.shared_memory import add_shared_memory
from pytriton_lite.frontends.http.trace_routes import add_tracing
from pytriton_lite.frontends.http.view_json import index_json, metadata_json, statistics_json
from pytriton_lite.frontends.pauses import Pauses

if TYPE_CHECKING:
    from pytriton_lite.engine.server import Server

_FILE = "file:"
_NO_REPOSITORY_NAME = "'repository_name' specification is not supported"

logger = logging.getLogger(__name__)


class _Api(FastAPI):
    """FastAPI, with the routes of inference and health, which it does not serve, and the models of now in its document."""

    def __init__(self, server: Server, *, has_openai: bool, **options: Any) -> None:
        super().__init__(**options)
        self._server = server
        self._has_openai = has_openai

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = get_openapi(
                title=self.title, version=self.version, description=self.description, routes=self.routes
            )
            self.openapi_schema = openapi.with_the_rest(document)
        return served_openapi.with_served(self.openapi_schema, self._server, has_openai=self._has_openai)


def admin_app(server: Server, options: HttpOptions, large: LargeDocuments) -> FastAPI:
    """The FastAPI application of all routes but those of inference and health."""
    app = _Api(
        server,
        has_openai=options.has_openai,
        title="pytriton-lite",
        version=pytriton_lite.__version__,
        description="A model server that speaks the KServe v2 protocol with Triton's extensions.",
        docs_url=None,  # the page is the console's: FastAPI's own needs the internet
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        redirect_slashes=False,
    )
    _answer_errors(app)
    _add_metadata(app, server)
    documents = Documents(server.receive_budget, options.max_input_size, large)
    _add_repository(app, server, documents)
    add_shared_memory(app, server, documents)
    add_logging(app, server, documents)
    add_tracing(app, server, documents)
    return app


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(InferenceError)
    async def refused(request: Request, error: InferenceError) -> Response:
        answer = _error(STATUS[error.code], error.message)
        answer.raw_headers.extend(retry_headers(error))
        return answer

    @app.exception_handler(HTTPException)
    async def not_routed(request: Request, error: HTTPException) -> Response:
        text = {404: NOT_FOUND, 405: METHOD_NOT_ALLOWED}.get(error.status_code, error.detail)
        answer = _error(error.status_code, text)
        if error.status_code == 405:
            answer.headers["allow"] = ", ".join(_allowed_methods(app, request))
        return answer

    @app.exception_handler(ClientDisconnect)
    @app.exception_handler(Disconnected)
    async def gone(request: Request, error: ClientDisconnect | Disconnected) -> Response:
        return Response(status_code=400)  # which nobody reads

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        logger.error("%s %s failed inside the server", request.method, request.url.path, exc_info=error)
        return _error(500, BUG)


def _allowed_methods(app: FastAPI, request: Request) -> list[str]:
    """Methods of all routes with the path of *request*: Starlette names those of the first alone."""
    methods: set[str] = set()
    for route in app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return sorted(methods)


def _add_metadata(app: FastAPI, server: Server) -> None:
    @app.get("/v2", tags=["metadata"], summary="Server metadata", responses=openapi.SERVER_METADATA)
    async def metadata() -> Response:
        found = server.metadata()
        return _json({"name": found.name, "version": found.version, "extensions": found.extensions})

    @app.get("/v2/models", tags=["metadata"], summary="Names of the models that are served", responses=openapi.MODELS)
    async def models() -> Response:
        return _json({"models": server.served_names()})

    # Before the models' own routes: to Triton, too, a model called "stats" has no metadata route.
    @app.get(
        "/v2/models/stats", tags=["statistics"], summary="Statistics of all models", responses=openapi.ALL_STATISTICS
    )
    async def all_statistics() -> Response:
        return await _statistics(server.statistics())

    async def statistics(model: str, version: int | None) -> Response:
        return await _statistics(server.statistics(model, version))

    def config(model: str, version: int | None) -> Response:
        return _json(server.model_config(model, version).json)

    def model_metadata(model: str, version: int | None) -> Response:
        return _json(metadata_json(server.model_metadata(model, version)))

    _add_for_models(app, "/stats", statistics, tag="statistics", what="Statistics", responses=openapi.STATISTICS)
    _add_for_models(app, "/config", config, tag="metadata", what="Configuration", responses=openapi.CONFIG)
    _add_for_models(app, "", model_metadata, tag="metadata", what="Metadata", responses=openapi.METADATA)


def _add_for_models(
    app: FastAPI,
    suffix: str,
    answer: Callable[[str, int | None], Response | Awaitable[Response]],
    *,
    tag: str,
    what: str,
    responses: dict[int | str, dict[str, Any]],
) -> None:
    """Route a question about a model, with and without a version in the path."""

    @app.get(f"/v2/models/{{model}}{suffix}", tags=[tag], summary=f"{what} of a model", responses=responses)
    async def of_model(model: str) -> Response:
        return await _answered(answer(model, None))

    @app.get(
        f"/v2/models/{{model}}/versions/{{version}}{suffix}",
        tags=[tag],
        summary=f"{what} of a model version",
        responses=responses,
    )
    async def of_version(model: str, version: str) -> Response:
        if not is_version(version):
            raise HTTPException(404)  # to Triton it is another path, which nobody serves
        return await _answered(answer(model, parse_version(version)))


async def _answered(answer: Response | Awaitable[Response]) -> Response:
    return await answer if isinstance(answer, Awaitable) else answer


def _add_repository(app: FastAPI, server: Server, documents: Documents) -> None:
    # Triton takes a repository name here, and ignores it.
    @app.post(
        "/v2/repository/{repository}/index",
        tags=["repository"],
        summary="The same, whatever name is given",
        responses=openapi.INDEX,
        openapi_extra=openapi.INDEX_BODY,
    )
    @app.post(
        "/v2/repository/index",
        tags=["repository"],
        summary="Models of the repository",
        responses=openapi.INDEX,
        openapi_extra=openapi.INDEX_BODY,
    )
    async def index(request: Request) -> Response:
        ready = await documents.read(request, _read_ready)
        return _json([index_json(entry) for entry in await server.repository_index(ready=ready)])

    @app.post(
        "/v2/repository/models/{model}/load",
        tags=["repository"],
        summary="Load a model, or load it anew; answers when it serves",
        responses=openapi.LOAD,
        openapi_extra=openapi.LOAD_BODY,
    )
    async def load(request: Request, model: str) -> Response:
        config, files = await documents.read(request, _load_parameters)
        await server.load_model(model, config, files)
        return Response(media_type="application/json")

    @app.post(
        "/v2/repository/models/{model}/unload",
        tags=["repository"],
        summary="Unload a model; answers at once, requests inside it are served",
        responses=openapi.UNLOAD,
        openapi_extra=openapi.UNLOAD_BODY,
    )
    async def unload(request: Request, model: str) -> Response:
        await server.unload_model(model, await documents.read(request, _unloads_dependents))
        return Response(media_type="application/json")

    @app.post(
        "/v2/repository/{repository}/models/{model}/unload",
        tags=["repository"],
        summary="Refused: the repository cannot be named",
        responses=openapi.NO_REPOSITORY,
        status_code=501,
    )
    @app.post(
        "/v2/repository/{repository}/models/{model}/load",
        tags=["repository"],
        summary="Refused: the repository cannot be named",
        responses=openapi.NO_REPOSITORY,
        status_code=501,
    )
    async def change_in_repository(repository: str, model: str) -> Response:
        raise InferenceError(ErrorCode.UNSUPPORTED, _NO_REPOSITORY_NAME)


def _read_ready(body: bytearray) -> bool:
    """The option of the index request. An empty body has none, nor has one that is no object."""
    options = json_dialect.loads(body) if body else {}
    ready = options.get("ready", False) if type(options) is dict else False
    if type(ready) is not bool:
        raise InferenceError(ErrorCode.INVALID_ARG, "Invalid value for 'ready': expected a boolean")
    return ready


def _load_parameters(body: bytearray) -> tuple[str | None, dict[str, bytes]]:
    """The configuration and the files of a load request (section 13). Raises InferenceError with Triton's texts.

    An empty body has none, nor has one that is no object.
    """
    document = json_dialect.loads(body) if body else {}
    parameters = document.get("parameters", {}) if type(document) is dict else {}
    if type(parameters) is not dict:
        raise InferenceError(ErrorCode.INTERNAL, "attempt to get members for non-object")
    config: str | None = None
    files: dict[str, bytes] = {}
    for key, value in parameters.items():
        text = json_values.string(value)
        if key == "config":
            config = text
        elif key.startswith(_FILE):
            files[key.removeprefix(_FILE)] = decode_base64(text)
        else:
            raise InferenceError(ErrorCode.INTERNAL, "unexpected error on creating Triton parameter")
    return config, files


def _unloads_dependents(body: bytearray) -> bool:
    """The option of an unload request. Triton passes over whatever it cannot read there."""
    try:
        document = json_dialect.loads(body) if body else {}
    except InferenceError:
        return False
    parameters = document.get("parameters") if type(document) is dict else None
    return type(parameters) is dict and parameters.get("unload_dependents") is True


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


def _error(status: int, text: str) -> Response:
    return Response(error_body(text), status_code=status, media_type="application/json")


async def _statistics(models: list[ModelStatistics]) -> Response:
    """A model whose responses are tokens has a thousand rows."""
    pauses = Pauses()
    rows = []
    for model in models:
        rows.append(statistics_json(model))
        await pauses.rest()
    return _json({"model_stats": rows})
