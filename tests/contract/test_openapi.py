"""The OpenAPI document and the server say the same (HTTP spec, section 2).

schemathesis makes requests from the document, good and bad ones, and looks at the answers: status, content type and schema.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import pytest

from tests.contract.wire_models import tensors, write_wire_models
from tests.harness import Reply, RunningServer, write_model
from tests.openapi_answers import CHECKS, CHECKS_WITHOUT_SCHEMA, api_of, routes_of, try_whatever_is_allowed

STORY = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            text = np.array([b"once upon a time"], np.object_)
            for request in requests:
                sender = request.get_response_sender()
                response = pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)])
                sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
STORY_CONFIG = (
    'backend: "python" model_transaction_policy { decoupled: true }\n'
    + tensors("input", ("text_input", "STRING", "1"))
    + tensors("output", ("text_output", "STRING", "1"))
)

ROUTES = """
GET  /v2/health/live
GET  /v2/health/ready
GET  /v2/models/{model}/ready
GET  /v2/models/{model}/versions/{version}/ready
GET  /v2
GET  /v2/models
GET  /v2/models/{model}
GET  /v2/models/{model}/versions/{version}
GET  /v2/models/{model}/config
GET  /v2/models/{model}/versions/{version}/config
GET  /v2/models/stats
GET  /v2/models/{model}/stats
GET  /v2/models/{model}/versions/{version}/stats
POST /v2/models/{model}/infer
POST /v2/models/{model}/versions/{version}/infer
POST /v2/models/{model}/generate
POST /v2/models/{model}/versions/{version}/generate
POST /v2/models/{model}/generate_stream
POST /v2/models/{model}/versions/{version}/generate_stream
POST /v2/repository/index
POST /v2/repository/{repository}/index
POST /v2/repository/models/{model}/load
POST /v2/repository/{repository}/models/{model}/load
POST /v2/repository/models/{model}/unload
POST /v2/repository/{repository}/models/{model}/unload
GET  /v2/systemsharedmemory/status
GET  /v2/systemsharedmemory/region/{region}/status
POST /v2/systemsharedmemory/region/{region}/register
POST /v2/systemsharedmemory/register
POST /v2/systemsharedmemory/unregister
POST /v2/systemsharedmemory/region/{region}/unregister
GET  /v2/cudasharedmemory/status
GET  /v2/cudasharedmemory/region/{region}/status
POST /v2/cudasharedmemory/region/{region}/register
POST /v2/cudasharedmemory/register
POST /v2/cudasharedmemory/unregister
POST /v2/cudasharedmemory/region/{region}/unregister
GET  /v2/trace/setting
POST /v2/trace/setting
GET  /v2/models/{model}/trace/setting
POST /v2/models/{model}/trace/setting
GET  /v2/logging
POST /v2/logging
"""
"""The table of HTTP spec, section 2, but for the metrics page, which has a port of its own."""

SERVED = {
    ("POST", "/v2/models/add_sub/infer"),
    ("POST", "/v2/models/counting/infer"),
    ("POST", "/v2/models/story/generate_stream"),
    ("POST", "/v2/models/a%20half%3F/infer"),
}
"""Entries for the models that are loaded."""

COUNTING_CONFIG = (
    'backend: "python" sequence_batching { direct {} } max_batch_size: 2\n'
    + tensors("input", ("VALUES", "INT32", "3"))
    + tensors("output", ("SUM", "INT32", "1"))
)
HALF_CONFIG = (
    'name: "a half?" backend: "python"\n'
    + tensors("input", ("X", "FP16", "-1"))
    + tensors("output", ("Y", "FP16", "-1"))
)
ANSWERING = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            values = [pb_utils.get_input_tensor_by_name(request, "VALUES").as_numpy() for request in requests]
            sums = [pb_utils.Tensor("SUM", value.sum(axis=1, keepdims=True, dtype=np.int32)) for value in values]
            return [pb_utils.InferenceResponse([one]) for one in sums]
"""

NO_GPU = "/v2/cudasharedmemory/region/{region}/register"
"""Its example is right, and needs a GPU."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Models can be loaded; one has failed to."""
    repository: Path = tmp_path_factory.mktemp("openapi") / "models"
    write_wire_models(repository)
    write_model(repository, "story", STORY, STORY_CONFIG)
    write_model(repository, "counting", ANSWERING, COUNTING_CONFIG)
    write_model(repository, "a half?", STORY, HALF_CONFIG)
    loaded = [f"--load-model={name}" for name in ("add_sub", "story", "counting", "a half?")]
    flags = ("--exit-on-error=false", "--strict-readiness=false", "--allow-client-shm=true", *loaded)
    with RunningServer(repository, flags=(*flags, "--model-control-mode=explicit")) as running:
        yield running


@pytest.fixture(scope="module")
def document(server: RunningServer) -> dict[str, Any]:
    found: dict[str, Any] = server.get("/openapi.json").json
    return found


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path and what is said of them."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def test_document_has_the_routes_of_the_table_and_no_others(document: dict[str, Any]) -> None:
    table = {tuple(line.split()) for line in ROUTES.split("\n") if line}
    assert {(method, path) for method, path, _ in operations(document)} == table | SERVED


def filled(path: str, operation: dict[str, Any]) -> str:
    """*path* with the examples of its parameters."""
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", parameter["example"])
    return path


def test_every_route_is_there_and_takes_its_method_alone(server: RunningServer, document: dict[str, Any]) -> None:
    paths = {filled(path, operation): set(document["paths"][path]) for _, path, operation in operations(document)}
    for path, methods in paths.items():
        for method in ("GET", "POST", "PUT", "DELETE"):
            reply = server.request(method, path, b"" if method == "POST" else None)
            if method.lower() in methods:
                assert reply.status != 405 and b"Not Found" not in reply.body, (method, path)
            else:
                assert (reply.status, reply.error) == (405, "Method Not Allowed"), (method, path)


def examples(operation: dict[str, Any]) -> Iterator[Any]:
    for content in operation.get("requestBody", {}).get("content", {}).values():
        if "example" in content:
            yield content["example"]


def test_every_example_is_accepted(server: RunningServer, document: dict[str, Any]) -> None:
    """In the order of the document, so that a region is registered before its status is asked for."""
    segment = SharedMemory(
        create=True, size=64
    )  # whose name is in the place of the example's: others run this test, too
    try:
        tried = 0
        for method, path, operation in operations(document):
            if path == NO_GPU or method == "GET":
                continue
            if (method, path) in SERVED:
                assert operation["tags"] == ["served models"]
            for example in examples(operation):
                tried += 1
                body = json.dumps(example).replace("/pytriton_lite_example", f"/{segment.name.lstrip('/')}")
                reply = server.post(filled(path, operation), body.encode())
                assert reply.status == 200, (path, example, reply.body)
                _load_again(server, path)
        assert tried >= 15
    finally:
        server.post("/v2/systemsharedmemory/unregister")
        segment.close()
        segment.unlink()


def _load_again(server: RunningServer, path: str) -> None:
    if path.endswith("/unload"):
        assert server.post("/v2/repository/models/add_sub/load").status == 200


def test_every_operation_with_a_body_has_an_example(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        if "requestBody" in operation and "FP16" not in operation.get("description", ""):
            assert list(examples(operation)), f"{method} {path}"


def test_the_entry_of_a_model_has_its_own_tensors(document: dict[str, Any]) -> None:
    (example,) = examples(document["paths"]["/v2/models/counting/infer"]["post"])
    assert example == {
        "parameters": {"sequence_id": 1, "sequence_start": True, "sequence_end": True},
        "inputs": [{"name": "VALUES", "datatype": "INT32", "shape": [1, 3], "data": [1, 2, 3]}],
    }
    assert list(examples(document["paths"]["/v2/models/story/generate_stream"]["post"])) == [{"text_input": "text"}]


def test_a_model_without_json_form_has_an_entry_that_says_so(document: dict[str, Any]) -> None:
    operation = document["paths"]["/v2/models/a%20half%3F/infer"]["post"]
    assert not list(examples(operation))
    assert "'X' is FP16, which has no JSON form" in operation["description"]


def test_entries_follow_the_models_that_are_served(server: RunningServer) -> None:
    try:
        assert server.post("/v2/repository/models/story/unload").status == 200
        assert "/v2/models/story/generate_stream" not in server.get("/openapi.json").json["paths"]
        assert server.get("/v2/models").json == {"models": ["a half?", "add_sub", "counting"]}
    finally:
        assert server.post("/v2/repository/models/story/load").status == 200
    assert "/v2/models/story/generate_stream" in server.get("/openapi.json").json["paths"]
    assert server.get("/v2/models").json == {"models": ["a half?", "add_sub", "counting", "story"]}


# ------------------------------------------------------------------------------------------- what really comes back

# Of each: method, path, body, the status that the HTTP spec gives.
STATUSES: list[tuple[str, str, bytes, int]] = [
    ("GET", "/v2/models/{model}/ready=nope", b"", 400),
    ("GET", "/v2/models/{model}=nope", b"", 404),
    ("GET", "/v2/models/{model}/config=nope", b"", 404),
    ("GET", "/v2/models/{model}/stats=nope", b"", 400),
    ("POST", "/v2/models/{model}/infer=nope", b"{}", 404),
    ("POST", "/v2/models/{model}/infer=story", b"{}", 501),
    ("POST", "/v2/models/{model}/infer=add_sub", b"{", 500),
    ("POST", "/v2/models/{model}/infer=add_sub", b'{"inputs":[]}', 400),
    ("POST", "/v2/models/{model}/generate=add_sub", b"{", 500),
    ("POST", "/v2/models/{model}/generate=nope", b"{}", 404),
    ("POST", "/v2/models/{model}/generate_stream=story", b"{}", 400),
    ("POST", "/v2/repository/models/{model}/load=nope", b"", 500),
    ("POST", "/v2/repository/models/{model}/load=loadfail", b"", 400),
    ("POST", "/v2/repository/index", b'{"ready":1}', 400),
    ("POST", "/v2/repository/index", b"{", 500),
    ("POST", "/v2/logging", b'{"log_file":"x"}', 501),
    ("POST", "/v2/logging", b'{"log_format":"x"}', 503),
    ("POST", "/v2/logging", b"", 500),
    ("POST", "/v2/systemsharedmemory/register", b"{}", 400),
]


@pytest.mark.parametrize(("method", "route", "body", "status"), STATUSES)
def test_statuses_of_the_specification_are_documented(
    server: RunningServer, document: dict[str, Any], method: str, route: str, body: bytes, status: int
) -> None:
    path, _, model = route.partition("=")
    reply = server.request(method, path.replace("{model}", model), body if method == "POST" else None)
    assert reply.status == status, reply.body
    assert str(status) in document["paths"][path][method.lower()]["responses"]


@pytest.fixture(scope="module")
def api(server: RunningServer, document: dict[str, Any]) -> Any:
    return api_of(server, document)


# The last schemathesis for Python 3.10 compares each event of a stream with the schema of the whole.
CHECKS_OF_STREAMS = CHECKS if sys.version_info >= (3, 11) else CHECKS_WITHOUT_SCHEMA


@pytest.mark.parametrize("route", routes_of(ROUTES))
def test_answers_to_whatever_the_document_allows_are_as_it_says(api: Any, route: str) -> None:
    """Half of the names of models are one that is there. Logs stay as they are, and the model stays loaded."""
    method, path = route.split()

    def call(case: Any) -> None:
        if path.endswith("/logging") and method == "POST":
            case.body = {}
        elif path.endswith("/unload"):
            case.path_parameters["model"] = "multi"
        elif "model" in case.path_parameters and not path.endswith("/load"):
            case.path_parameters["model"] = ["add_sub", case.path_parameters["model"]][len(case.path) % 2]
        case.call_and_validate(checks=CHECKS_OF_STREAMS if path.endswith("_stream") else CHECKS)

    try_whatever_is_allowed(api, route, call, examples=15)


def test_the_server_is_as_it_was(server: RunningServer) -> None:
    reply: Reply = server.infer(
        "add_sub", [{"name": f"INPUT{at}", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]} for at in (0, 1)]
    )
    assert reply.status == 200
    assert "failed inside the server" not in server.log
