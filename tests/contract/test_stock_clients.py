"""tritonclient as it is published, in its four forms, does the same things and gets the same answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from tests.contract.wire_models import EVERY_DATATYPE, write_wire_models
from tests.harness import RunningServer

Array = np.ndarray[Any, Any]
VALUES = {
    "BOOL": [True, False],
    "FP16": [0.5, -65504.0],
    "FP32": [np.finfo(np.float32).max, -0.0],
    "FP64": [0.1, float("inf")],
    "STRING": [b"", "naïve \0 text".encode()],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("clients") / "models"
    write_wire_models(repository)
    with RunningServer(repository, flags=("--exit-on-error=false", "--strict-readiness=false")) as running:
        yield running


class Client:
    """One of the four forms. `call` runs any method; what it returns is never a coroutine."""

    def __init__(self, form: str, server: RunningServer) -> None:
        self.is_http = form.startswith("http")
        self.tensors: Any = tritonclient.http if self.is_http else tritonclient.grpc
        url = server.http_url if self.is_http else server.grpc_url
        self._loop = asyncio.new_event_loop() if form.endswith("aio") else None
        if self._loop is None:
            self._client: Any = self.tensors.InferenceServerClient(url)
        else:
            module: Any = tritonclient.http.aio if self.is_http else tritonclient.grpc.aio
            self._client = self._loop.run_until_complete(_made(lambda: module.InferenceServerClient(url)))

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        if self._loop is None:
            return getattr(self._client, method)(*arguments, **keywords)
        return self._loop.run_until_complete(_awaited(lambda: getattr(self._client, method)(*arguments, **keywords)))

    def as_json(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """What a method says, as a document, whichever the protocol."""
        if self.is_http:
            return self.call(method, *arguments, **keywords)
        return self.call(method, *arguments, as_json=True, **keywords)

    def input(self, name: str, datatype: str, value: Array, **how: Any) -> Any:
        given = self.tensors.InferInput(name, list(value.shape), datatype)
        given.set_data_from_numpy(value, **how)
        return given

    def close(self) -> None:
        self.call("close")
        if self._loop is not None:
            self._loop.close()


async def _made(make: Callable[[], Any]) -> Any:
    return make()  # the asyncio clients want a running loop when they are made


async def _awaited(make: Callable[[], Awaitable[Any]]) -> Any:
    return await make()


@pytest.fixture(params=["http", "http.aio", "grpc", "grpc.aio"])
def client(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[Client]:
    made = Client(request.param, server)
    yield made
    made.close()


def int_input(client: Client, value: int = 0) -> Any:
    return client.input("INPUT0", "INT32", np.array([value], np.int32))


def test_health(client: Client) -> None:
    assert client.call("is_server_live") is True
    assert client.call("is_server_ready") is True
    assert client.call("is_model_ready", "add_sub") is True
    assert client.call("is_model_ready", "multi", "3") is True
    assert client.call("is_model_ready", "multi", "2") is False
    assert client.call("is_model_ready", "loadfail") is False


def test_metadata(client: Client) -> None:
    metadata = client.as_json("get_server_metadata")
    assert metadata["name"] == "triton"
    assert "statistics" in metadata["extensions"]
    model = client.as_json("get_model_metadata", "ident_b")
    assert (model["name"], model["versions"], model["platform"]) == ("ident_b", ["1"], "python")
    assert [int(size) for size in model["inputs"][0]["shape"]] == [-1, -1]


def test_configuration(client: Client) -> None:
    """grpc.md row 13: the message round-trips through the client's JSON."""
    config = client.as_json("get_model_config", "ident_b")
    config = config if client.is_http else config["config"]
    assert (config["name"], config["backend"], config["max_batch_size"]) == ("ident_b", "python", 4)
    assert config["input"][0]["data_type"] == "TYPE_FP32"


def test_statistics_and_index(client: Client) -> None:
    client.call("infer", "multi", [int_input(client)])
    (row,) = client.as_json("get_inference_statistics", "multi", "3")["model_stats"]
    assert (row["name"], row["version"]) == ("multi", "3")
    assert int(row["inference_count"]) == int(row["inference_stats"]["success"]["count"]) >= 1
    everything = client.as_json("get_inference_statistics")["model_stats"]
    index = client.as_json("get_model_repository_index")
    rows = index if client.is_http else index["models"]
    assert len(everything) == len([row for row in rows if row.get("state") == "READY"])
    (failed,) = [row for row in rows if row["name"] == "loadfail"]
    assert failed["state"] == "UNAVAILABLE"


def every_value() -> dict[str, Array]:
    values: dict[str, Array] = {}
    for datatype in EVERY_DATATYPE:
        dtype = np.dtype(tritonclient.utils.triton_to_np_dtype(datatype))
        if datatype in VALUES:
            values[datatype] = np.array(VALUES[datatype], dtype)
        else:
            values[datatype] = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
    values["STRING"] = np.array(VALUES["STRING"], np.object_)
    return values


def test_every_datatype_comes_back_as_it_went(client: Client) -> None:
    values = every_value()
    inputs = [
        client.input(f"INPUT_{name}", "BYTES" if name == "STRING" else name, value) for name, value in values.items()
    ]
    result = client.call("infer", "every_datatype", inputs)
    for name, value in values.items():
        back = result.as_numpy(f"OUTPUT_{name}")
        assert back.dtype == value.dtype
        if name == "STRING":
            assert back.tolist() == value.tolist()
        else:
            assert back.tobytes() == value.tobytes()


def test_a_request_id_comes_back(client: Client) -> None:
    response = client.call("infer", "multi", [int_input(client)], request_id="number 7").get_response()
    assert (response["id"] if client.is_http else response.id) == "number 7"


def test_parameters_reach_the_model(client: Client) -> None:
    given = {"text": "yes", "number": -3, "flag": True}
    result = client.call("infer", "params", [int_input(client)], parameters=given, priority=1, timeout=1_000_000)
    assert json.loads(result.as_numpy("OUTPUT0")[0]) == given


def test_an_output_that_is_asked_for_is_all_that_comes(client: Client) -> None:
    value = np.arange(4, dtype=np.float32)
    inputs = [client.input("INPUT0", "FP32", value), client.input("INPUT1", "FP32", value)]
    outputs = [client.tensors.InferRequestedOutput("OUTPUT1")]
    result = client.call("infer", "add_sub", inputs, outputs=outputs)
    assert result.as_numpy("OUTPUT1").tolist() == [0.0] * 4
    assert result.as_numpy("OUTPUT0") is None


def test_a_version_can_be_asked_for(client: Client) -> None:
    result = client.call("infer", "multi", [int_input(client)], model_version="1")
    assert result.as_numpy("OUTPUT0").tolist() == [1]


def test_an_error_has_the_text_of_the_server(client: Client) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.call("infer", "nope", [int_input(client)])
    assert caught.value.message() == "Request for unknown model: 'nope' is not found"
    assert caught.value.status() == ("404" if client.is_http else "StatusCode.NOT_FOUND")


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compression_of_requests_and_answers(client: Client, algorithm: str) -> None:
    value = np.zeros((1, 10_000), np.float32)
    how = (
        {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
        if client.is_http
        else {"compression_algorithm": algorithm}
    )
    result = client.call("infer", "ident_b", [client.input("INPUT0", "FP32", value)], **how)
    assert np.array_equal(result.as_numpy("OUTPUT0"), value)


@pytest.mark.parametrize("form", ["http", "http.aio"])
def test_json_tensors_of_the_http_clients(server: RunningServer, form: str) -> None:
    """set_data_from_numpy(binary_data=False) and outputs that are wanted in JSON."""
    client = Client(form, server)
    try:
        text = np.array(["a", "ß"], np.object_)
        outputs = [client.tensors.InferRequestedOutput("OUTPUT0", binary_data=False)]
        given = client.input("INPUT0", "BYTES", text, binary_data=False)
        result = client.call("infer", "ident_bytes", [given], outputs=outputs)
        assert result.as_numpy("OUTPUT0").tolist() == ["a", "ß"]
    finally:
        client.close()


def test_requests_side_by_side_over_one_http_client(server: RunningServer) -> None:
    with tritonclient.http.InferenceServerClient(server.http_url, concurrency=4) as client:
        pending = []
        for number in range(20):
            given = tritonclient.http.InferInput("INPUT0", [1, 1], "FP32")
            given.set_data_from_numpy(np.full((1, 1), number, np.float32))
            pending.append(client.async_infer("ident_b", [given]))
        assert [int(one.get_result().as_numpy("OUTPUT0")[0, 0]) for one in pending] == list(range(20))
