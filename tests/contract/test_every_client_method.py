"""Every public method of tritonclient, in its four forms, does what it says against a running server.

The methods are enumerated from the installed package. A test looks for the function below that is registered for its method,
runs it, and sees that the method was called: one that a new version of the package brings fails until somebody writes its
function. Most of them pass all optional arguments: headers, query parameters, time limits, compression, JSON forms.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import inspect
import json
import queue
import urllib.request
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.grpc.auth
import tritonclient.http
import tritonclient.http.aio
import tritonclient.http.auth
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from tests.contract.wire_models import IDENTITY, write_wire_models
from tests.harness import RunningServer, until, write_model

Array = np.ndarray[Any, Any]

FORMS = {
    "http": tritonclient.http,
    "http.aio": tritonclient.http.aio,
    "grpc": tritonclient.grpc,
    "grpc.aio": tritonclient.grpc.aio,
}
MODELS = ("ident_b", "params", "decoupled", "multi", "patient")
PATIENT = """
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        # Answers when nobody wants to hear it any more.
        def execute(self, requests):
            for request in requests:
                while not request.is_cancelled():
                    time.sleep(0.001)
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError("given up")) for _ in requests]
"""
FORWARDED = "^authorization$"
WAIT_S = 30
BASIC_AUTH = "Basic dXNlcjpzZWNyZXQ="
"""user:secret"""


# ---------------------------------------------------------------------------------------------------- server and client


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], RunningServer]]:
    """One for each transport of gRPC, started when it is first asked for."""
    repository = tmp_path_factory.mktemp("methods") / "models"
    write_wire_models(repository)
    config = repository.joinpath("ident_b", "config.pbtxt").read_text().replace("ident_b", "patient")
    write_model(repository, "patient", PATIENT, config)
    with contextlib.ExitStack() as stack:
        started: dict[str, RunningServer] = {}

        def server(transport: str) -> RunningServer:
            if transport not in started:
                started[transport] = stack.enter_context(serve(repository, transport))
            return started[transport]

        yield server


@pytest.fixture
def server(request: pytest.FixtureRequest, servers: Callable[[str], RunningServer]) -> RunningServer:
    return servers(request.param)


def serve(repository: Path, transport: str) -> RunningServer:
    flags = (
        "--model-control-mode=explicit",
        *(f"--load-model={name}" for name in MODELS),
        "--allow-client-shm=true",
        f"--http-header-forward-pattern={FORWARDED}",
        f"--grpc-header-forward-pattern={FORWARDED}",
        f"--grpc-transport={transport}",
    )
    return RunningServer(repository, flags=flags)


class Client:
    """One form of the client. What `call` returns is never a coroutine."""

    def __init__(self, form: str, server: RunningServer) -> None:
        self.form = form
        self.is_http = form.startswith("http")
        self.server = server
        self.module: Any = FORMS[form]
        self._loop = asyncio.new_event_loop() if form.endswith("aio") else None
        self.made: Any = self.run(self._make)

    async def _make(self) -> Any:
        if self.is_http:
            return self.module.InferenceServerClient(self.server.http_url, verbose=True)
        keepalive = tritonclient.grpc.KeepAliveOptions(keepalive_time_ms=600_000)
        return self.module.InferenceServerClient(self.server.grpc_url, verbose=True, keepalive_options=keepalive)

    def run(self, make: Callable[[], Awaitable[Any]]) -> Any:
        """The result of a coroutine, where the asyncio clients are at home."""
        if self._loop is not None:
            return self._loop.run_until_complete(asyncio.wait_for(make(), WAIT_S))
        return asyncio.run(make())

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        function = getattr(self.made, method)
        if self._loop is None:
            return function(*arguments, **keywords)

        async def act() -> Any:
            value = function(*arguments, **keywords)
            return await value if inspect.isawaitable(value) else value

        return self.run(act)

    @property
    def options(self) -> dict[str, Any]:
        """What every call that asks the server takes besides."""
        headers = {"X-Anything": "a b"}
        if self.is_http:
            return {"headers": headers, "query_params": {"key": "a b/c", "many": [1, 2]}}
        return {"headers": {"x-anything": "a b"}, "client_timeout": WAIT_S}

    def ask(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """A document, whichever the protocol; of gRPC the message has been seen as well."""
        if self.is_http:
            return self.call(method, *arguments, **self.options, **keywords)
        message = self.call(method, *arguments, **self.options, **keywords)
        assert message.DESCRIPTOR.full_name.startswith("inference.")
        return self.call(method, *arguments, as_json=True, **self.options, **keywords)

    def do(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        return self.call(method, *arguments, **self.options, **keywords)

    def refusal(self, method: str, *arguments: Any, **keywords: Any) -> str:
        with pytest.raises(InferenceServerException) as caught:
            self.do(method, *arguments, **keywords)
        message: str = caught.value.message()
        return message

    @property
    def compression(self) -> dict[str, str]:
        if self.is_http:
            return {"request_compression_algorithm": "gzip", "response_compression_algorithm": "deflate"}
        return {"compression_algorithm": "gzip"}

    def close(self) -> None:
        self.call("close")
        if self._loop is not None:
            self._loop.close()


@pytest.fixture
def client(form: str, server: RunningServer) -> Iterator[Client]:
    made = Client(form, server)
    yield made
    made.close()


VALUE: Array = np.arange(4, dtype=np.float32).reshape(2, 2)


def given(client: Client, value: Array = VALUE, datatype: str = "FP32") -> Any:
    """INPUT0 with *value*."""
    made = client.module.InferInput("INPUT0", list(value.shape), datatype)
    return made.set_data_from_numpy(value)


def number(client: Client) -> Any:
    return given(client, np.array([5], np.int32), "INT32")


def inferred(client: Client, inputs: list[Any], model: str = "ident_b", **keywords: Any) -> Any:
    return client.call("infer", model, inputs, **keywords)


@contextlib.contextmanager
def system_region(client: Client, byte_size: int = 64, offset: int = 0) -> Iterator[tuple[str, Any]]:
    """The name and the handle of a segment that the server knows."""
    name = f"region {uuid.uuid4()}"
    key = f"/pytriton_lite_test_{uuid.uuid4().hex}"
    handle = shm.create_shared_memory_region(name, key, byte_size)
    try:
        client.do("register_system_shared_memory", name, key, byte_size - offset, offset=offset)
        yield name, handle
        client.do("unregister_system_shared_memory", name)
    finally:
        shm.destroy_shared_memory_region(handle)


# ---------------------------------------------------------------------------------------------------- one for each method

CLIENT_METHODS: dict[str, Callable[[Client], None]] = {}


def of_client(function: Callable[[Client], None]) -> Callable[[Client], None]:
    """Register *function* for the method of the client that it is called after."""
    CLIENT_METHODS[function.__name__] = function
    return function


@of_client
def close(client: Client) -> None:
    client.call("close")
    client.made = client.run(client._make)


@of_client
def is_server_live(client: Client) -> None:
    assert client.do("is_server_live") is True


@of_client
def is_server_ready(client: Client) -> None:
    assert client.do("is_server_ready") is True


@of_client
def is_model_ready(client: Client) -> None:
    assert client.do("is_model_ready", "multi") is client.do("is_model_ready", "multi", "3") is True
    assert client.do("is_model_ready", "multi", "2") is False


@of_client
def get_server_metadata(client: Client) -> None:
    metadata = client.ask("get_server_metadata")
    assert metadata["name"] == "triton"
    assert {"statistics", "system_shared_memory", "trace", "logging"} <= set(metadata["extensions"])


@of_client
def get_model_metadata(client: Client) -> None:
    metadata = client.ask("get_model_metadata", "multi")
    assert (metadata["name"], metadata["versions"], metadata["platform"]) == ("multi", ["1", "3"], "python")
    assert client.ask("get_model_metadata", "multi", "3")["versions"] == ["3"]


@of_client
def get_model_config(client: Client) -> None:
    config = client.ask("get_model_config", "multi", "1")
    assert (config if client.is_http else config["config"])["backend"] == "python"


@of_client
def get_model_repository_index(client: Client) -> None:
    assert {row["name"] for row in indexed(client) if row.get("state") == "READY"} >= set(MODELS)


def unload(client: Client, name: str, **keywords: Any) -> None:
    """Unload it, and wait for its end: the server is not ready meanwhile, which is for others to rely on."""
    client.do("unload_model", name, **keywords)
    until(lambda: "UNLOADING" not in {row.get("state") for row in indexed(client)})


def indexed(client: Client) -> list[dict[str, Any]]:
    index = client.ask("get_model_repository_index")
    rows: list[dict[str, Any]] = index if client.is_http else index["models"]
    return rows


@of_client
def load_model(client: Client) -> None:
    client.do("load_model", "ident_u8")
    assert client.do("is_model_ready", "ident_u8")
    config = json.dumps(
        {
            "backend": "python",
            "input": [{"name": "INPUT0", "data_type": "TYPE_INT8", "dims": [-1]}],
            "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT8", "dims": [-1]}],
        }
    )
    client.do("load_model", "of_files", config=config, files={"file:7/model.py": inspect.cleandoc(IDENTITY).encode()})
    value = np.array([-1, 5], np.int8)
    result = inferred(client, [given(client, value, "INT8")], "of_files", model_version="7")
    assert result.as_numpy("OUTPUT0").tolist() == [-1, 5]
    for name in ("ident_u8", "of_files"):
        unload(client, name)
    text = "failed to load 'no such/model', failed to poll from model repository"
    assert client.refusal("load_model", "no such model") == text.replace("/", " ")


@of_client
def unload_model(client: Client) -> None:
    client.do("load_model", "ident_bool")
    unload(client, "ident_bool", unload_dependents=True)
    assert client.do("is_model_ready", "ident_bool") is False


@of_client
def get_inference_statistics(client: Client) -> None:
    inferred(client, [number(client)], "multi")
    (row,) = client.ask("get_inference_statistics", "multi", "3")["model_stats"]
    assert int(row["inference_count"]) >= 1
    names = {row["name"] for row in client.ask("get_inference_statistics")["model_stats"]}
    assert names >= set(MODELS)


def trace_of(client: Client, settings: Any) -> dict[str, Any]:
    """Lists of texts by name, whichever the protocol."""
    if client.is_http:
        return {key: [value] if isinstance(value, str) else value for key, value in settings.items()}
    return {key: value.get("value", []) for key, value in settings["settings"].items()}


@of_client
def get_trace_settings(client: Client) -> None:
    for model in (None, "ident_b"):
        settings = trace_of(client, client.ask("get_trace_settings", model))
        assert (settings["trace_level"], settings["trace_rate"]) == (["OFF"], ["1000"])


@of_client
def update_trace_settings(client: Client) -> None:
    changed = client.ask("update_trace_settings", settings={"trace_rate": "5", "log_frequency": "7"})
    assert trace_of(client, changed)["trace_rate"] == ["5"]
    own = client.ask("update_trace_settings", "ident_b", {"trace_rate": "6"})
    assert trace_of(client, own)["trace_rate"] == ["6"]
    for model, rate, frequency in (("ident_b", "5", "7"), (None, "1000", "0")):
        cleared = client.ask("update_trace_settings", model, {"trace_rate": None, "log_frequency": None})
        settings = trace_of(client, cleared)
        assert (settings["trace_rate"], settings["log_frequency"]) == ([rate], [frequency])


def log_of(client: Client, settings: Any) -> dict[str, Any]:
    return settings if client.is_http else {k: next(iter(v.values())) for k, v in settings["settings"].items()}


@of_client
def get_log_settings(client: Client) -> None:
    settings = log_of(client, client.ask("get_log_settings"))
    assert (settings["log_info"], settings["log_verbose_level"], settings["log_format"]) == (True, 0, "default")


@of_client
def update_log_settings(client: Client) -> None:
    changed = log_of(client, client.ask("update_log_settings", {"log_verbose_level": 1, "log_format": "ISO8601"}))
    assert (changed["log_verbose_level"], changed["log_format"]) == (1, "ISO8601")
    changed = log_of(client, client.ask("update_log_settings", {"log_verbose_level": 0, "log_format": "default"}))
    assert (changed["log_verbose_level"], changed["log_format"]) == (0, "default")


def regions_of(client: Client, status: Any) -> dict[str, Any]:
    """By name, whichever the protocol."""
    if client.is_http:
        return {row["name"]: row for row in status}
    return dict(status.get("regions", {}))


@of_client
def register_system_shared_memory(client: Client) -> None:
    with system_region(client, offset=16) as (name, handle):
        (row,) = regions_of(client, client.ask("get_system_shared_memory_status", name)).values()
        assert (row["name"], int(row["offset"]), int(row["byte_size"])) == (name, 16, 48)
        key = row["key"]
        assert client.refusal("register_system_shared_memory", name, key, 16) == (
            f"shared memory region '{name}' already in manager"
        )
        shm.set_shared_memory_region(handle, [VALUE], offset=16)
        read = client.module.InferInput("INPUT0", [2, 2], "FP32").set_shared_memory(name, 16)
        assert inferred(client, [read]).as_numpy("OUTPUT0").tolist() == VALUE.tolist()


@of_client
def get_system_shared_memory_status(client: Client) -> None:
    assert regions_of(client, client.ask("get_system_shared_memory_status")) == {}
    with system_region(client) as (one, _), system_region(client) as (other, _):
        assert set(regions_of(client, client.ask("get_system_shared_memory_status"))) == {one, other}
        assert set(regions_of(client, client.ask("get_system_shared_memory_status", one))) == {one}
    assert client.refusal("get_system_shared_memory_status", one) == (
        f"Unable to find system shared memory region: '{one}'"
    )


@of_client
def unregister_system_shared_memory(client: Client) -> None:
    with system_region(client) as (one, _), system_region(client):
        client.do("unregister_system_shared_memory", one)
        assert len(regions_of(client, client.ask("get_system_shared_memory_status"))) == 1
        client.do("unregister_system_shared_memory")
        assert regions_of(client, client.ask("get_system_shared_memory_status")) == {}


@of_client
def register_cuda_shared_memory(client: Client) -> None:
    handle = base64.b64encode(bytes(64)) if client.is_http else bytes(64)
    assert client.refusal("register_cuda_shared_memory", "c", handle, 0, 64) == (
        "failed to register CUDA shared memory region: 'c', GPUs not supported"
    )


@of_client
def get_cuda_shared_memory_status(client: Client) -> None:
    assert regions_of(client, client.ask("get_cuda_shared_memory_status")) == {}
    assert client.refusal("get_cuda_shared_memory_status", "c") == "Unable to find cuda shared memory region: 'c'"


@of_client
def unregister_cuda_shared_memory(client: Client) -> None:
    client.do("unregister_cuda_shared_memory", "c")
    client.do("unregister_cuda_shared_memory")


@of_client
def infer(client: Client) -> None:
    outputs = [client.module.InferRequestedOutput("OUTPUT0")]
    result = inferred(
        client,
        [given(client)],
        model_version="1",
        outputs=outputs,
        request_id="a b",
        sequence_id=5,
        sequence_start=True,
        sequence_end=True,
        priority=2,
        timeout=10_000_000,
        parameters={"text": "yes"},
        **client.options,
        **client.compression,
    )
    response = result.get_response()
    assert (response["id"] if client.is_http else response.id) == "a b"
    assert result.as_numpy("OUTPUT0").tolist() == VALUE.tolist()
    parameters = {"text": "ß", "number": -3, "flag": True, "part": 0.5}
    result = inferred(client, [number(client)], "params", parameters=parameters)
    assert json.loads(result.as_numpy("OUTPUT0")[0]) == parameters
    with pytest.raises(InferenceServerException) as caught:
        inferred(client, [given(client)], "nope")
    assert caught.value.message() == "Request for unknown model: 'nope' is not found"
    assert caught.value.status() == ("404" if client.is_http else "StatusCode.NOT_FOUND")


@of_client
def async_infer(client: Client) -> None:
    if client.is_http:
        pending = client.made.async_infer("ident_b", [given(client)], request_id="1", **client.options)
        assert pending.get_result(timeout=WAIT_S).as_numpy("OUTPUT0").tolist() == VALUE.tolist()
        refused = client.made.async_infer("nope", [given(client)])
        with pytest.raises(InferenceServerException, match="'nope' is not found"):
            refused.get_result()
        return
    heard: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()

    def hear(result: Any, error: Any) -> None:
        heard.put((result, error))

    client.made.async_infer("ident_b", [given(client)], hear, **client.options, **client.compression)
    result, error = heard.get(timeout=WAIT_S)
    assert (result.as_numpy("OUTPUT0").tolist(), error) == (VALUE.tolist(), None)
    client.made.async_infer("nope", [given(client)], hear)
    result, error = heard.get(timeout=WAIT_S)
    assert (result, error.status()) == (None, "StatusCode.NOT_FOUND")


@of_client
def start_stream(client: Client) -> None:
    heard: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    client.made.start_stream(
        lambda result, error: heard.put((result, error)),
        stream_timeout=WAIT_S,
        headers={"triton_grpc_error": "true"},
        compression_algorithm="deflate",
    )
    client.made.async_stream_infer("ident_b", [given(client)])
    assert heard.get(timeout=WAIT_S)[0].as_numpy("OUTPUT0").tolist() == VALUE.tolist()
    client.made.async_stream_infer("fail", [])
    assert "'fail' is not found" in heard.get(timeout=WAIT_S)[1].message()
    client.made.stop_stream()


@of_client
def async_stream_infer(client: Client) -> None:
    heard: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    client.made.start_stream(lambda result, error: heard.put((result, error)))
    client.made.async_stream_infer(
        "params",
        [number(client)],
        model_version="1",
        outputs=[client.module.InferRequestedOutput("OUTPUT0")],
        request_id="s",
        sequence_id="a name",
        sequence_start=True,
        sequence_end=True,
        enable_empty_final_response=True,
        priority=1,
        timeout=10_000_000,
        parameters={"key": "value"},
    )
    client.made.stop_stream()
    result, error = heard.get(timeout=WAIT_S)
    assert error is None
    assert result.get_response().id == "s"
    assert json.loads(result.as_numpy("OUTPUT0")[0]) == {"key": "value"}
    assert heard.empty()


@of_client
def stop_stream(client: Client) -> None:
    heard: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    client.made.start_stream(lambda result, error: heard.put((result, error)))
    for _ in range(20):
        client.made.async_stream_infer("ident_b", [given(client)])
    client.made.stop_stream()
    assert [heard.get(timeout=WAIT_S)[1] for _ in range(20)] == [None] * 20
    client.made.start_stream(lambda result, error: heard.put((result, error)))
    client.made.stop_stream(cancel_requests=True)
    assert heard.get(timeout=WAIT_S)[1].status() == "StatusCode.CANCELLED"


@of_client
def stream_infer(client: Client) -> None:
    async def requests() -> Any:
        for name in "ab":
            yield {
                "model_name": "ident_b",
                "inputs": [given(client)],
                "request_id": name,
                "enable_empty_final_response": True,
            }

    async def answers() -> list[tuple[Any, Any]]:
        stream = client.made.stream_infer(
            requests(), stream_timeout=WAIT_S, headers={"x-anything": "1"}, compression_algorithm="gzip"
        )
        return [pair async for pair in stream]

    heard = client.run(answers)
    assert [(result.get_response().id, error) for result, error in heard] == [("a", None), ("b", None)]


@of_client
def generate_request_body(client: Client) -> None:
    parse_response_body(client)


@of_client
def parse_response_body(client: Client) -> None:
    """The two static methods are for a transport of one's own."""
    kind = client.module.InferenceServerClient
    body, size = kind.generate_request_body(
        [given(client)], outputs=[client.module.InferRequestedOutput("OUTPUT0")], request_id="own"
    )
    asked = urllib.request.Request(
        f"http://{client.server.http_url}/v2/models/ident_b/infer",
        data=body,
        headers={"Inference-Header-Content-Length": str(size)},
    )
    with urllib.request.urlopen(asked, timeout=WAIT_S) as reply:
        length = int(reply.headers["Inference-Header-Content-Length"])
        result = kind.parse_response_body(reply.read(), header_length=length)
    assert result.get_response()["id"] == "own"
    assert result.as_numpy("OUTPUT0").tolist() == VALUE.tolist()


def seen_authorization(client: Client) -> str | None:
    """What the server has got, by way of a header that it forwards to the model."""
    result = inferred(client, [number(client)], "params")
    seen = json.loads(result.as_numpy("OUTPUT0")[0])
    return {key.lower(): value for key, value in seen.items()}.get("authorization")


def basic_auth(client: Client) -> Any:
    kind = tritonclient.http.auth.BasicAuth if client.is_http else tritonclient.grpc.auth.BasicAuth
    return kind("user", "secret")


@of_client
def register_plugin(client: Client) -> None:
    client.made.register_plugin(basic_auth(client))
    assert seen_authorization(client) == BASIC_AUTH
    with pytest.raises(InferenceServerException, match="already registered"):
        client.made.register_plugin(basic_auth(client))


@of_client
def plugin(client: Client) -> None:
    assert client.made.plugin() is None
    auth = basic_auth(client)
    client.made.register_plugin(auth)
    assert client.made.plugin() is auth


@of_client
def unregister_plugin(client: Client) -> None:
    client.made.register_plugin(basic_auth(client))
    client.made.unregister_plugin()
    assert seen_authorization(client) is None


TENSOR_METHODS: dict[str, Callable[[Client], None]] = {}


def of_tensors(name: str) -> Callable[[Callable[[Client], None]], Callable[[Client], None]]:
    """Register a function for ``Class.method``."""

    def register(function: Callable[[Client], None]) -> Callable[[Client], None]:
        TENSOR_METHODS[name] = function
        return function

    return register


@of_tensors("InferInput.name")
@of_tensors("InferInput.datatype")
@of_tensors("InferInput.shape")
@of_tensors("InferInput.set_shape")
@of_tensors("InferInput.set_data_from_numpy")
def an_input_says_what_it_is(client: Client) -> None:
    made = client.module.InferInput("INPUT0", [1, 1], "FP32")
    made.set_shape([2, 2])
    made.set_data_from_numpy(VALUE)
    assert (made.name(), made.datatype(), list(made.shape())) == ("INPUT0", "FP32", [2, 2])
    assert inferred(client, [made]).as_numpy("OUTPUT0").tolist() == VALUE.tolist()


@of_tensors("InferRequestedOutput.name")
def a_requested_output_has_a_name(client: Client) -> None:
    made = client.module.InferRequestedOutput("OUTPUT0", class_count=1)
    assert made.name() == "OUTPUT0"
    result = inferred(client, [given(client)], outputs=[made])
    assert result.as_numpy("OUTPUT0").tolist() == [[b"1.000000:1"], [b"3.000000:1"]]


@of_tensors("InferInput.set_shared_memory")
@of_tensors("InferRequestedOutput.set_shared_memory")
@of_tensors("InferRequestedOutput.unset_shared_memory")
def tensors_lie_in_shared_memory(client: Client) -> None:
    with system_region(client, 64) as (name, handle):
        shm.set_shared_memory_region(handle, [VALUE], offset=8)
        read = client.module.InferInput("INPUT0", [2, 2], "FP32").set_shared_memory(name, 16, offset=8)
        written = client.module.InferRequestedOutput("OUTPUT0")
        written.set_shared_memory(name, 16, offset=32)
        result = inferred(client, [read], outputs=[written])
        assert result.get_output("OUTPUT0") is not None
        back = shm.get_contents_as_numpy(handle, np.float32, [2, 2], offset=32)
        assert back.tolist() == VALUE.tolist()
        del back
        written.unset_shared_memory()
        result = inferred(client, [read], outputs=[written])
        assert result.as_numpy("OUTPUT0").tolist() == VALUE.tolist()


@of_tensors("InferResult.as_numpy")
@of_tensors("InferResult.get_output")
@of_tensors("InferResult.get_response")
def a_result_can_be_read(client: Client) -> None:
    result = inferred(client, [given(client)], request_id="r")
    assert result.as_numpy("OUTPUT0").dtype == np.float32
    assert result.as_numpy("NOPE") is result.get_output("NOPE") is None
    if client.is_http:
        output, response = result.get_output("OUTPUT0"), result.get_response()
    else:
        assert result.get_output("OUTPUT0").name == "OUTPUT0"
        assert result.get_response().model_name == "ident_b"
        response = result.get_response(as_json=True)
        output = response["outputs"][0]  # get_output(as_json=True) of the client forgets to return it
    assert (output["name"], output["datatype"]) == ("OUTPUT0", "FP32")
    assert [int(size) for size in output["shape"]] == [2, 2]
    assert (response["id"], response["model_name"]) == ("r", "ident_b")


@of_tensors("InferAsyncRequest.get_result")
def a_pending_answer_can_be_waited_for(client: Client) -> None:
    """Only the synchronous HTTP client makes them; the asyncio one has the class and does not use it."""
    made = tritonclient.http.InferenceServerClient(client.server.http_url)
    pending = made.async_infer("ident_b", [given(client)])
    assert pending.get_result(block=True, timeout=WAIT_S).as_numpy("OUTPUT0").tolist() == VALUE.tolist()
    made.close()


# ---------------------------------------------------------------------------------------------------- the tests


def methods(kind: type) -> list[str]:
    return [name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")]


TENSOR_CLASSES = ("InferInput", "InferRequestedOutput", "InferResult", "InferAsyncRequest")

CARRIED = [("http2", form) for form in FORMS] + [("grpcio", "grpc"), ("grpcio", "grpc.aio")]
"""Each form, and those of gRPC over either transport of the server."""

CLIENT_CASES = [
    pytest.param(transport, form, name, id=f"{form}-{transport}-{name}")
    for transport, form in CARRIED
    for name in methods(FORMS[form].InferenceServerClient)
]
TENSOR_CASES = [
    pytest.param(transport, form, f"{kind}.{name}", id=f"{form}-{transport}-{kind}.{name}")
    for transport, form in CARRIED
    for kind in TENSOR_CLASSES
    if hasattr(FORMS[form], kind)
    for name in methods(getattr(FORMS[form], kind))
]


def watch(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> list[str]:
    """The names of the calls of a method from now on; it does what it always did."""
    calls: list[str] = []
    static = inspect.getattr_static(kind, name)
    function = getattr(kind, name)

    @functools.wraps(function)
    def watched(*arguments: Any, **keywords: Any) -> Any:
        calls.append(name)
        return function(*arguments, **keywords)

    monkeypatch.setattr(kind, name, staticmethod(watched) if isinstance(static, staticmethod) else watched)
    return calls


@pytest.mark.parametrize(("server", "form", "method"), CLIENT_CASES, indirect=["server"])
def test_a_method_of_the_client(client: Client, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert method in CLIENT_METHODS, f"{client.form} has a method that nobody calls here: {method}"
    calls = watch(monkeypatch, client.module.InferenceServerClient, method)
    CLIENT_METHODS[method](client)
    assert calls


@pytest.mark.parametrize(("server", "form", "method"), TENSOR_CASES, indirect=["server"])
def test_a_method_of_what_the_client_takes_and_gives(
    client: Client, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert method in TENSOR_METHODS, f"{client.form} has a method that nobody calls here: {method}"
    kind, name = method.split(".")
    calls = watch(monkeypatch, getattr(client.module, kind), name)
    TENSOR_METHODS[method](client)
    assert calls


def test_every_function_here_is_for_a_method_that_there_is() -> None:
    assert set(CLIENT_METHODS) == {case.values[2] for case in CLIENT_CASES}
    assert set(TENSOR_METHODS) == {case.values[2] for case in TENSOR_CASES}


@pytest.mark.parametrize(("server", "form"), [case for case in CARRIED if case[1] != "http"], indirect=["server"])
def test_a_request_that_is_given_up_is_an_error_of_the_client(client: Client) -> None:
    """Its own time limit, or a cancellation of the task that waits; the next request is served."""
    if client.is_http:
        with pytest.raises(asyncio.TimeoutError):
            client.run(lambda: asyncio.wait_for(client.made.infer("patient", [given(client)]), 0.1))
    else:
        with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
            inferred(client, [given(client)], "patient", client_timeout=0.1)
    assert inferred(client, [given(client)]).as_numpy("OUTPUT0").tolist() == VALUE.tolist()
