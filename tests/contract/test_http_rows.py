"""The HTTP checklist (http.md, section 20) against a real server. Ids and docstrings name the rows."""

from __future__ import annotations

import gzip
import http.client
import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.contract.wire_models import statistics, write_wire_models
from tests.harness import Reply, RunningServer, tensor

FP32_4 = struct.pack("<4f", 1, 2, 3, 4)
EXTENSIONS = [
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
]
HEADER_LENGTH = "Inference-Header-Content-Length"
NO_ID = "[request id: <id_unknown>] "
NO_FIELD = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But no field is set"
)
BATCHING_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input "
    "shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("http") / "models"
    write_wire_models(repository)
    with RunningServer(repository, flags=("--exit-on-error=false",)) as running:
        yield running


def add_sub_inputs() -> list[dict[str, Any]]:
    return [tensor("INPUT0", "FP32", [4], [1, 2, 3, 4]), tensor("INPUT1", "FP32", [4], [1, 2, 3, 4])]


def binary_input(name: str, data: bytes, shape: list[int], datatype: str = "FP32") -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}


def post_binary(
    server: RunningServer, model: str, document: dict[str, Any], data: bytes, headers: dict[str, str] | None = None
) -> Reply:
    head = json.dumps(document).encode()
    return server.post(f"/v2/models/{model}/infer", head + data, {HEADER_LENGTH: str(len(head)), **(headers or {})})


def header(reply: Reply, name: str) -> str:
    """The value of a header, "" when it is not there; case does not matter."""
    return {key.lower(): value for key, value in reply.headers.items()}.get(name.lower(), "")


def binary_parts(reply: Reply) -> tuple[dict[str, Any], bytes]:
    """The JSON part and the rest; checks that the header and the sizes add up to the body."""
    size = int(header(reply, HEADER_LENGTH))
    document = json.loads(reply.body[:size])
    sizes = [output.get("parameters", {}).get("binary_data_size", 0) for output in document["outputs"]]
    assert size + sum(sizes) == len(reply.body) == int(header(reply, "Content-Length"))
    return document, reply.body[size:]


# ---------------------------------------------------------------------------------------------------- health


def test_a_live_server_says_so_with_an_empty_text(server: RunningServer) -> None:
    """Row 1."""
    reply = server.get("/v2/health/live")
    assert (reply.status, reply.body) == (200, b"")
    assert header(reply, "content-type").startswith("text/plain")


def test_a_failed_model_makes_the_server_not_ready(server: RunningServer) -> None:
    """Row 2."""
    reply = server.get("/v2/health/ready")
    assert (reply.status, reply.body) == (400, b"")


def test_a_ready_model_says_so_with_an_empty_body(server: RunningServer) -> None:
    """Row 8."""
    for path in ("/v2/models/add_sub/ready", "/v2/models/multi/versions/3/ready"):
        reply = server.get(path)
        assert (reply.status, reply.body) == (200, b"")


@pytest.mark.parametrize("path", ["nope/ready", "add_sub/versions/9/ready", "loadfail/ready"])
def test_a_model_that_is_not_there_is_not_ready(server: RunningServer, path: str) -> None:
    """Row 9."""
    reply = server.get(f"/v2/models/{path}")
    assert (reply.status, reply.error) == (400, "Model version not ready")


# ---------------------------------------------------------------------------------------------------- routes


@pytest.mark.parametrize(
    ("method", "path"),
    [
        pytest.param("POST", "/v2/health/live", id="row 6"),
        pytest.param("GET", "/v2/repository/index", id="row 95"),
        pytest.param("GET", "/v2/models/add_sub/infer", id="infer"),
    ],
)
def test_the_wrong_method_is_refused(server: RunningServer, method: str, path: str) -> None:
    reply = server.request(method, path)
    assert (reply.status, reply.error) == (405, "Method Not Allowed")


@pytest.mark.parametrize(
    "path",
    ["/v2/health/live/", "/v2/", "/v2//models/add_sub", "/v2/models/add_sub/versions/abc", "/metrics"],
)
def test_a_path_that_is_no_route_is_not_found(server: RunningServer, path: str) -> None:
    """Rows 7 and 14."""
    reply = server.get(path)
    assert (reply.status, reply.error) == (404, "Not Found")


@pytest.mark.parametrize("suffix", ["", "/config", "/infer"])
@pytest.mark.parametrize(
    ("model", "status", "text"),
    [
        pytest.param(
            "add_sub/versions/99999999999999999999",
            400,
            "failed to get model version from specified version string '99999999999999999999' (details: stol), version "
            "should be an integral value > 0",
            id="row 15",
        ),
        pytest.param(
            "add_sub/versions/2", 404, "Request for unknown model: 'add_sub' version 2 is not found", id="row 16"
        ),
        pytest.param(
            "multi/versions/2", 404, "Request for unknown model: 'multi' version 2 is not found", id="not selected"
        ),
        pytest.param("nope", 404, "Request for unknown model: 'nope' is not found", id="row 17"),
        pytest.param("loadfail", 404, "Request for unknown model: 'loadfail' has no available versions", id="row 18"),
        pytest.param(
            "loadfail/versions/1",
            503,
            "Request for unknown model: 'loadfail' version 1 is not at ready state",
            id="row 19",
        ),
    ],
)
def test_a_model_that_is_not_there_is_refused(
    server: RunningServer, model: str, suffix: str, status: int, text: str
) -> None:
    path = f"/v2/models/{model}{suffix}"
    reply = server.post(path, {"inputs": []}) if suffix == "/infer" else server.get(path)
    assert (reply.status, reply.error) == (status, text)


# ---------------------------------------------------------------------------------------------------- metadata


def test_server_metadata_has_its_keys_in_order(server: RunningServer) -> None:
    """Row 10; grpc.md row 10, for that says the same."""
    reply = server.get("/v2")
    assert reply.status == 200
    assert list(reply.json) == ["name", "version", "extensions"]
    assert reply.json["name"] == "triton"
    assert reply.json["extensions"] == EXTENSIONS


def test_model_metadata_ignores_the_query_and_counts_the_batch_dimension(server: RunningServer) -> None:
    """Rows 11 and 12."""
    assert server.get("/v2/models/add_sub?x=1").json == {
        "name": "add_sub",
        "versions": ["1"],
        "platform": "python",
        "inputs": [{"name": f"INPUT{n}", "datatype": "FP32", "shape": [4]} for n in (0, 1)],
        "outputs": [{"name": f"OUTPUT{n}", "datatype": "FP32", "shape": [4]} for n in (0, 1)],
    }
    assert server.get("/v2/models/ident_b").json["inputs"][0]["shape"] == [-1, -1]


def test_model_metadata_names_every_ready_version_or_the_one_asked_for(server: RunningServer) -> None:
    """Row 13; with a version in the path Triton 2.51 names that one alone, whatever section 4 says."""
    assert server.get("/v2/models/multi").json["versions"] == ["1", "3"]
    assert server.get("/v2/models/multi/versions/1").json["versions"] == ["1"]


def test_the_configuration_is_printed_with_its_defaults(server: RunningServer) -> None:
    """Row 20: the example of section 5, to the letter."""
    reply = server.get("/v2/models/add_sub/config")
    assert reply.status == 200
    config = reply.json
    assert config["version_policy"] == {"latest": {"num_versions": 1}}
    assert config["input"][0] == {
        "name": "INPUT0",
        "data_type": "TYPE_FP32",
        "format": "FORMAT_NONE",
        "dims": [4],
        "is_shape_tensor": False,
        "allow_ragged_batch": False,
        "optional": False,
        "is_non_linear_format_io": False,
    }
    assert (config["name"], config["platform"], config["backend"]) == ("add_sub", "", "python")
    assert (config["max_batch_size"], config["default_model_filename"]) == (0, "model.py")
    assert config["instance_group"][0]["name"] == "add_sub_0"
    assert "dynamic_batching" not in config


# ---------------------------------------------------------------------------------------------------- statistics, index


@pytest.mark.parametrize(
    ("path", "text"),
    [
        pytest.param("nope/stats", "requested model 'nope' is not available", id="row 21"),
        pytest.param("loadfail/stats", "requested model 'loadfail' is not available", id="failed to load"),
        pytest.param(
            "add_sub/versions/9/stats", "requested model version is not available for model 'add_sub'", id="row 22"
        ),
    ],
)
def test_statistics_of_what_is_not_there_are_refused(server: RunningServer, path: str, text: str) -> None:
    reply = server.get(f"/v2/models/{path}")
    assert (reply.status, reply.error) == (400, text)


def test_statistics_of_all_have_a_row_for_each_ready_version(server: RunningServer) -> None:
    """Row 23."""
    rows = [(row["name"], row["version"]) for row in server.get("/v2/models/stats").json["model_stats"]]
    index = server.post("/v2/repository/index", {"ready": True}).json
    assert sorted(rows) == sorted((row["name"], row["version"]) for row in index)
    assert ("multi", "1") in rows and ("multi", "3") in rows
    assert "loadfail" not in dict(rows)


def test_the_index_can_be_cut_down_to_ready_versions(server: RunningServer) -> None:
    """Row 94."""
    everything = server.post("/v2/repository/index").json
    ready = server.post("/v2/repository/index", {"ready": True}).json
    assert {row["state"] for row in ready} == {"READY"}
    failed = [row for row in everything if row["state"] == "UNAVAILABLE"]
    assert [row["name"] for row in failed] == ["loadfail", "nofile"]
    assert len(ready) == len(everything) - len(failed)


@pytest.mark.parametrize("action", ["load", "unload"])
def test_models_do_not_come_and_go_by_request(server: RunningServer, action: str) -> None:
    """Rows 96 and 102."""
    reply = server.post(f"/v2/repository/models/add_sub/{action}")
    assert (reply.status, reply.error) == (
        503,
        "explicit model load / unload is not allowed if polling is enabled",
    )
    reply = server.post(f"/v2/repository/foo/models/add_sub/{action}")
    assert (reply.status, reply.error) == (501, "'repository_name' specification is not supported")


# ---------------------------------------------------------------------------------------------------- infer, JSON


def test_json_tensors_are_answered_in_json(server: RunningServer) -> None:
    """Row 24."""
    reply = server.infer("add_sub", add_sub_inputs())
    assert reply.status == 200
    assert header(reply, "content-type") == "application/json"
    assert reply.json == {
        "model_name": "add_sub",
        "model_version": "1",
        "outputs": [
            tensor("OUTPUT0", "FP32", [4], [2.0, 4.0, 6.0, 8.0]),
            tensor("OUTPUT1", "FP32", [4], [0.0, 0.0, 0.0, 0.0]),
        ],
    }


def test_a_request_id_comes_back_first_and_an_empty_one_not_at_all(server: RunningServer) -> None:
    """Row 25."""
    assert server.infer("add_sub", add_sub_inputs(), id="abc").body.startswith(b'{"id":"abc"')
    assert "id" not in server.infer("add_sub", add_sub_inputs(), id="").json


def test_the_newest_version_answers_unless_another_is_asked_for(server: RunningServer) -> None:
    """Row 27."""
    inputs = {"inputs": [tensor("INPUT0", "INT32", [1], [0])]}
    for path, version in (("multi", 3), ("multi/versions/1", 1), ("multi/versions/003", 3)):
        document = server.post(f"/v2/models/{path}/infer", inputs).json
        assert document["model_version"] == str(version)
        assert document["outputs"][0]["data"] == [version]


def test_requested_outputs_select_and_do_not_order(server: RunningServer) -> None:
    """Row 28."""
    outputs = [{"name": "OUTPUT1"}, {"name": "OUTPUT0"}]
    both = server.infer("add_sub", add_sub_inputs(), outputs=outputs).json
    assert [output["name"] for output in both["outputs"]] == ["OUTPUT0", "OUTPUT1"]
    one = server.infer("add_sub", add_sub_inputs(), outputs=outputs[:1]).json
    assert [output["name"] for output in one["outputs"]] == ["OUTPUT1"]


def got_inputs(model: str, wanted: int, got: int, names: str, missing: str) -> str:
    return (
        f"{NO_ID}expected {wanted} inputs but got {got} inputs for model '{model}'. Got input(s) {names}, but missing "
        f"required input(s) {missing}. Please provide all required input(s)."
    )


def nested(value: int, depth: int) -> Any:
    """*value* within *depth* arrays."""
    return [nested(value, depth - 1)] if depth else value


INPUT0, INPUT1 = add_sub_inputs()
FOO = tensor("FOO", "FP32", [4], [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("model", "document", "status", "text"),
    [
        pytest.param(
            "add_sub",
            {"id": 1, "inputs": add_sub_inputs()},
            500,
            "Unable to parse 'id': attempt to access JSON non-string as string",
            id="row 26",
        ),
        pytest.param(
            "add_sub",
            {"inputs": add_sub_inputs(), "outputs": [{"name": "FOO"}]},
            400,
            "unexpected inference output 'FOO' for model 'add_sub'",
            id="row 29",
        ),
        pytest.param(
            "add_sub",
            {"inputs": add_sub_inputs(), "outputs": [{"name": "OUTPUT1"}, {"name": "OUTPUT1"}]},
            400,
            NO_ID + "output 'OUTPUT1' already exists in request",
            id="row 30",
        ),
        pytest.param(
            "add_sub",
            {"inputs": []},
            400,
            got_inputs("add_sub", 2, 0, "[]", "['INPUT0','INPUT1']"),
            id="row 33",
        ),
        pytest.param(
            "add_sub",
            {"inputs": [INPUT0]},
            400,
            got_inputs("add_sub", 2, 1, "['INPUT0']", "['INPUT1']"),
            id="row 34",
        ),
        pytest.param(
            "add_sub",
            {"inputs": [INPUT0, FOO]},
            400,
            "unexpected inference input 'FOO' for model 'add_sub'",
            id="row 35",
        ),
        pytest.param(
            "add_sub",
            {"inputs": [INPUT0, INPUT0]},
            400,
            NO_ID + "input 'INPUT0' already exists in request",
            id="row 36",
        ),
        pytest.param(
            "add_sub",
            {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [4]}]},
            400,
            NO_FIELD,
            id="row 37",
        ),
        pytest.param(
            "ident_b",
            {"id": "my id", "inputs": [tensor("INPUT0", "INT32", [1, 1], [1])]},
            400,
            "[request id: my id] inference input 'INPUT0' data-type is 'INT32', but model 'ident_b' expects 'FP32'",
            id="row 38",
        ),
        pytest.param(
            "add_sub",
            {"inputs": [tensor("INPUT0", "fp32", [4], [1, 2, 3, 4]), INPUT1]},
            400,
            "invalid datatype for input INPUT0",
            id="row 39",
        ),
        pytest.param(
            "add_sub",
            {"inputs": [tensor("INPUT0", "FP32", [3], [1, 2, 3]), INPUT1]},
            400,
            NO_ID + "unexpected shape for input 'INPUT0' for model 'add_sub'. Expected [4], got [3]. ",
            id="row 40",
        ),
        pytest.param(
            "add_sub",
            {"inputs": [tensor("INPUT0", "FP32", [4], [1, 2, 3, 4, 5]), INPUT1]},
            500,
            "Unable to parse 'data': Shape does not match true shape of 'data' field",
            id="row 44",
        ),
        pytest.param(
            "ident_bool",
            {"inputs": [tensor("INPUT0", "BOOL", [1], [1])]},
            500,
            "Unable to parse 'data': attempt to access JSON non-boolean as boolean",
            id="row 49",
        ),
        pytest.param(
            "ident_bytes",
            {"inputs": [tensor("INPUT0", "BYTES", [1], ["a", "b"])]},
            400,
            NO_ID
            + "unexpected number of string elements 2 for inference input 'INPUT0' for model 'ident_bytes', expecting 1",
            id="row 52",
        ),
        pytest.param(
            "params",
            {"inputs": [tensor("INPUT0", "INT32", [1], nested(7, 100))]},
            400,
            "Unable to parse 'data': JSON nesting depth exceeds maximum allowed limit (100)",
            id="row 54",
        ),
        pytest.param(
            "ident_b",
            {"inputs": [tensor("INPUT0", "FP32", [5, 1], [1, 2, 3, 4, 5])]},
            400,
            NO_ID + "inference request batch-size must be <= 4 for 'ident_b'",
            id="row 55, scheduling.md rows 6 and 7",
        ),
        pytest.param(
            "add_sub",
            {"inputs": add_sub_inputs(), "parameters": {"a": None}},
            400,
            "parameter 'a' has invalid type. It should be either 'int', 'bool', or 'string'.",
            id="row 79",
        ),
        pytest.param(
            "add_sub",
            {"inputs": add_sub_inputs(), "parameters": {"triton_x": 1}},
            400,
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
            id="row 80",
        ),
        pytest.param(
            "sequence",
            {"inputs": [tensor("INPUT0", "INT32", [1], [1])]},
            400,
            "inference request to model 'sequence' must specify a non-zero or non-empty correlation ID",
            id="row 81, no id",
        ),
        pytest.param(
            "sequence",
            {"inputs": [tensor("INPUT0", "INT32", [1], [1])], "parameters": {"sequence_id": 5}},
            400,
            "inference request for sequence 5 to model 'sequence' must specify the START flag on the first request of the "
            "sequence",
            id="row 81, no start",
        ),
        pytest.param(
            "decoupled",
            {"inputs": [tensor("INPUT0", "INT32", [1], [1])]},
            501,
            "HTTP end point doesn't support models with decoupled transaction policy",
            id="row 84",
        ),
    ],
)
def test_a_request_that_is_wrong_is_refused(
    server: RunningServer, model: str, document: dict[str, Any], status: int, text: str
) -> None:
    before = statistics(server, model)
    reply = server.post(f"/v2/models/{model}/infer", document)
    assert (reply.status, reply.error) == (status, text)
    assert statistics(server, model) == before, "scheduling.md row 18: what is refused is counted nowhere"


def test_a_body_that_is_no_json_is_refused(server: RunningServer) -> None:
    """Rows 31 and 32."""
    reply = server.post("/v2/models/add_sub/infer", b"{")
    assert reply.status == 500
    assert reply.error.startswith("failed to parse the request JSON buffer: ")
    reply = server.post("/v2/models/add_sub/infer", b"[]")
    assert (reply.status, reply.error) == (
        500,
        "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'",
    )


def test_json_values_keep_what_json_cannot_say(server: RunningServer) -> None:
    """Rows 45, 46 and 47, through a model."""
    body = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,4],"data":[[NaN,Inf],[-Infinity,1e40]]}]}'
    reply = server.post("/v2/models/ident_b/infer", body)
    assert reply.status == 200
    assert b'"data":[NaN,Infinity,-Infinity,Infinity]' in reply.body
    tenth = server.infer("ident_b", [tensor("INPUT0", "FP32", [1, 1], [0.1])])
    assert b'"data":[0.10000000149011612]' in tenth.body


def test_data_may_be_nested_deeply(server: RunningServer) -> None:
    """Row 54: 99 arrays are not too many."""
    assert server.infer("multi", [tensor("INPUT0", "INT32", [1], nested(7, 99))]).status == 200


def test_a_sequence_goes_from_start_to_end(server: RunningServer) -> None:
    """Row 81, and how it is done: ids are numbers or texts, and its end is the end of an id."""
    given = [tensor("INPUT0", "INT32", [1], [5])]
    for name in (7, "seven"):
        for flags in ({"sequence_start": True}, {}, {"sequence_end": True}):
            reply = server.infer("sequence", given, parameters={"sequence_id": name, **flags})
            assert (reply.status, reply.json["outputs"][0]["data"]) == (200, [5])
        reply = server.infer("sequence", given, parameters={"sequence_id": name})
        assert reply.status == 400
        assert reply.error.endswith("must specify the START flag on the first request of the sequence")


def test_an_integer_out_of_range_wraps_as_in_c(server: RunningServer) -> None:
    """Row 48."""
    reply = server.infer("ident_u8", [tensor("INPUT0", "UINT8", [2], [256, 255])])
    assert (reply.status, reply.json["outputs"][0]["data"]) == (200, [0, 255])


@pytest.mark.parametrize("data", [[], [1]])
def test_a_tensor_of_no_elements_passes(server: RunningServer, data: list[int]) -> None:
    """Row 53."""
    reply = server.infer("ident_u8", [tensor("INPUT0", "UINT8", [0], data)])
    assert reply.status == 200
    assert reply.json["outputs"] == [tensor("OUTPUT0", "UINT8", [0], [])]


# ---------------------------------------------------------------------------------------------------- infer, binary


def binary_document(**fields: Any) -> dict[str, Any]:
    return {"inputs": [binary_input("INPUT0", FP32_4, [4]), binary_input("INPUT1", FP32_4, [4])], **fields}


def test_binary_in_json_out(server: RunningServer) -> None:
    """Row 56."""
    reply = post_binary(server, "add_sub", binary_document(), FP32_4 * 2)
    assert (reply.status, header(reply, "content-type")) == (200, "application/json")
    assert reply.json["outputs"][0]["data"] == [2.0, 4.0, 6.0, 8.0]


def test_binary_in_binary_out(server: RunningServer) -> None:
    """Row 57."""
    document = binary_document(parameters={"binary_data_output": True})
    reply = post_binary(server, "add_sub", document, FP32_4 * 2)
    assert (reply.status, header(reply, "content-type")) == (200, "application/octet-stream")
    _, data = binary_parts(reply)
    assert np.frombuffer(data, np.float32).tolist() == [2, 4, 6, 8, 0, 0, 0, 0]


def test_each_output_has_the_form_that_was_asked_for(server: RunningServer) -> None:
    """Rows 58 and 59."""
    outputs = [{"name": "OUTPUT0", "parameters": {"binary_data": True}}, {"name": "OUTPUT1"}]
    document = binary_document(parameters={"binary_data_output": True}, outputs=outputs)
    answer, data = binary_parts(post_binary(server, "add_sub", document, FP32_4 * 2))
    assert answer["outputs"][0]["parameters"] == {"binary_data_size": 16}
    assert answer["outputs"][1]["data"] == [0.0, 0.0, 0.0, 0.0]
    assert len(data) == 16


def test_inputs_may_be_mixed(server: RunningServer) -> None:
    """Row 60."""
    document = {"inputs": [binary_input("INPUT0", FP32_4, [4]), INPUT1]}
    reply = post_binary(server, "add_sub", document, FP32_4)
    assert (reply.status, reply.json["outputs"][0]["data"]) == (200, [2.0, 4.0, 6.0, 8.0])


@pytest.mark.parametrize(
    ("document", "data", "text"),
    [
        pytest.param(
            binary_document(),
            FP32_4 * 2,
            None,
            id="nothing wrong",
        ),
        pytest.param(
            binary_document(),
            (FP32_4 * 2)[:-4],
            "unexpected size for input 'INPUT1', expecting 4 additional bytes for model 'add_sub'",
            id="row 61",
        ),
        pytest.param(
            binary_document(),
            FP32_4 * 2 + b"xx",
            "unexpected additional input data for model 'add_sub'",
            id="row 62",
        ),
        pytest.param(
            {"inputs": [binary_input("INPUT0", FP32_4[:12], [4]), INPUT1]},
            FP32_4[:12],
            NO_ID + "input byte size mismatch for input 'INPUT0' for model 'add_sub'. Expected 16, got 12",
            id="row 63",
        ),
    ],
)
def test_the_binary_part_must_be_as_long_as_it_says(
    server: RunningServer, document: dict[str, Any], data: bytes, text: str | None
) -> None:
    reply = post_binary(server, "add_sub", document, data)
    assert (reply.status, reply.json.get("error")) == (400 if text else 200, text)


@pytest.mark.parametrize(
    ("length", "text"),
    [
        pytest.param("99999", "inference header size should be in range (0, {length}), got: 99999", id="row 64"),
        pytest.param("-1", "inference header size should be in range (0, {length}), got: -1", id="negative"),
        pytest.param("abc", "Unable to parse Inference-Header-Content-Length, got: abc", id="row 65"),
    ],
)
def test_the_length_of_the_json_part_must_make_sense(server: RunningServer, length: str, text: str) -> None:
    body = json.dumps({"inputs": add_sub_inputs()}).encode()
    reply = server.post("/v2/models/add_sub/infer", body, {HEADER_LENGTH: length})
    assert (reply.status, reply.error) == (400, text.format(length=len(body)))


def test_a_binary_output_of_no_bytes_needs_no_binary_part(server: RunningServer) -> None:
    """Row 66."""
    document = {"inputs": [binary_input("INPUT0", b"", [0], "UINT8")], "parameters": {"binary_data_output": True}}
    reply = post_binary(server, "ident_u8", document, b"")
    assert (reply.status, header(reply, "content-type")) == (200, "application/json")
    assert header(reply, HEADER_LENGTH) == ""
    (output,) = reply.json["outputs"]
    assert output["parameters"] == {"binary_data_size": 0}
    assert "data" not in output


def test_bytes_elements_come_back_byte_for_byte(server: RunningServer) -> None:
    """Row 67."""
    data = b"\x03\0\0\0\xff\xfe\0"
    document = {"inputs": [binary_input("INPUT0", data, [1], "BYTES")], "parameters": {"binary_data_output": True}}
    assert binary_parts(post_binary(server, "ident_bytes", document, data))[1] == data


def test_fp16_goes_in_and_out_in_binary_only(server: RunningServer) -> None:
    """Rows 50 and 51."""
    data = np.array([0.5, -2], np.float16).tobytes()
    document = {"inputs": [binary_input("INPUT0", data, [2], "FP16")]}
    reply = post_binary(server, "ident_fp16", document, data)
    assert (reply.status, reply.error) == (
        400,
        "sending FP16 data via JSON is not supported. Please use the binary data format for output",
    )
    reply = post_binary(server, "ident_fp16", {**document, "parameters": {"binary_data_output": True}}, data)
    assert binary_parts(reply)[1] == data
    reply = server.infer("ident_fp16", [tensor("INPUT0", "FP16", [1], [0.5])])
    assert (reply.status, reply.error) == (
        400,
        "receiving FP16 data via JSON is not supported. Please use the binary data format for input INPUT0",
    )


# ---------------------------------------------------------------------------------------------------- raw


def raw(server: RunningServer, model: str, body: bytes) -> Reply:
    return server.post(f"/v2/models/{model}/infer", body, {HEADER_LENGTH: "0"})


def test_a_raw_body_is_the_only_input(server: RunningServer) -> None:
    """Rows 68 and 70."""
    document, data = binary_parts(raw(server, "ident_b", FP32_4))
    assert document["outputs"][0]["shape"] == [1, 4]
    assert data == FP32_4
    document, data = binary_parts(raw(server, "one_bytes", b"hello"))
    assert document["outputs"][0]["shape"] == [1, 1]
    assert data == b"\5\0\0\0hello"


@pytest.mark.parametrize(
    ("model", "body", "text"),
    [
        pytest.param(
            "add_sub",
            FP32_4,
            "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'add_sub' model configuration",
            id="row 69",
        ),
        pytest.param(
            "ident_2d",
            FP32_4,
            "The shape of the raw input 'INPUT0' can not be deduced because there are more than one variable-sized "
            "dimension",
            id="two open dims",
        ),
        pytest.param(
            "ident_bytes", b"x", "For BYTE datatype raw input 'INPUT0', the model must have input shape [1]", id="BYTES"
        ),
        pytest.param(
            "ident_fixed",
            FP32_4 + b"x",
            "input byte size mismatch for input 'raw_input' for model 'ident_fixed'. Expected 16, got 17",
            id="odd size",
        ),
    ],
)
def test_a_raw_body_that_fits_no_shape_is_refused(server: RunningServer, model: str, body: bytes, text: str) -> None:
    reply = raw(server, model, body)
    assert (reply.status, reply.error) == (400, NO_ID + text)


# ---------------------------------------------------------------------------------------------------- compression


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_compressed_body_is_unpacked_whole(server: RunningServer, encoding: str, pack: Any) -> None:
    """Row 71."""
    head = json.dumps(binary_document()).encode()
    reply = server.post(
        "/v2/models/add_sub/infer",
        pack(head + FP32_4 * 2),
        {"Content-Encoding": encoding, HEADER_LENGTH: str(len(head))},
    )
    assert (reply.status, reply.json["outputs"][0]["data"]) == (200, [2.0, 4.0, 6.0, 8.0])


def test_an_unknown_encoding_is_refused_with_those_that_are_known(server: RunningServer) -> None:
    """Row 72."""
    reply = server.post("/v2/models/add_sub/infer", b"x", {"Content-Encoding": "br"})
    assert (reply.status, reply.error) == (501, "Unsupported compression type")
    assert header(reply, "accept-encoding") == "gzip, deflate"


@pytest.mark.parametrize(
    ("accept", "encoding"),
    [
        pytest.param("gzip, deflate, br", "gzip", id="row 73"),
        pytest.param("gzip;q=0.5, deflate;q=0.8", "deflate", id="row 74"),
    ],
)
def test_an_answer_is_compressed_as_the_client_likes_it(server: RunningServer, accept: str, encoding: str) -> None:
    document = binary_document(parameters={"binary_data_output": True})
    reply = post_binary(server, "add_sub", document, FP32_4 * 2, {"Accept-Encoding": accept})
    assert header(reply, "content-encoding") == encoding
    plain = gzip.decompress(reply.body) if encoding == "gzip" else zlib.decompress(reply.body)
    size = int(header(reply, HEADER_LENGTH))
    assert json.loads(plain[:size])["model_name"] == "add_sub"
    assert len(plain) == size + 32


@pytest.mark.parametrize("path", ["/v2", "/v2/models/nope", "/v2/models/stats"])
def test_nothing_but_an_inference_is_compressed(server: RunningServer, path: str) -> None:
    """Row 75."""
    reply = server.request("GET", path, headers={"Accept-Encoding": "gzip"})
    assert header(reply, "content-encoding") == ""
    json.loads(reply.body)


def test_an_error_of_infer_is_not_compressed(server: RunningServer) -> None:
    """Row 75."""
    reply = server.post("/v2/models/add_sub/infer", {"inputs": []}, {"Accept-Encoding": "gzip"})
    assert reply.status == 400
    assert "expected 2 inputs" in reply.error


# ---------------------------------------------------------------------------------------------------- the rest


def test_parameters_reach_the_model(server: RunningServer) -> None:
    """Section 7.6: the reserved keys do not, everything else does."""
    parameters = {
        "s": "text",
        "i": -5,
        "b": True,
        "f": 1.5,
        "headers": "h",
        "priority": 1,
        "timeout": 7,
        "sequence_id": 3,
    }
    reply = server.infer("params", [tensor("INPUT0", "INT32", [1], [0])], parameters=parameters)
    assert reply.status == 200
    seen = json.loads(reply.json["outputs"][0]["data"][0])
    assert seen == {"s": "text", "i": -5, "b": True, "f": 1.5, "headers": "h"}


def test_an_exception_in_the_model_is_the_answer_to_its_request(server: RunningServer) -> None:
    """Row 85."""
    reply = server.infer("fail", [tensor("INPUT0", "BYTES", [1], ["raise"])])
    assert reply.status == 500
    assert reply.error.startswith(
        "Failed to process the request(s) for model 'fail_0', message: ValueError: boom\n\nAt:\n"
    )


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("NOT_FOUND", 404),
        ("UNAVAILABLE", 503),
        ("UNSUPPORTED", 501),
        ("INVALID_ARG", 400),
        ("ALREADY_EXISTS", 400),
        ("CANCELLED", 400),
        ("UNKNOWN", 400),
        ("INTERNAL", 500),
    ],
)
def test_an_error_of_the_model_keeps_its_code_and_text(server: RunningServer, code: str, status: int) -> None:
    """Row 86."""
    reply = server.infer("fail", [tensor("INPUT0", "BYTES", [1], [code])])
    assert (reply.status, reply.error) == (status, "as the model says")


def test_an_error_of_the_model_without_a_code_is_internal(server: RunningServer) -> None:
    """Row 86."""
    reply = server.infer("fail", [tensor("INPUT0", "BYTES", [1], ["no code"])])
    assert (reply.status, reply.error) == (500, "no code given")


def test_a_chunked_body_may_have_binary_tensors(server: RunningServer) -> None:
    """Row 117."""
    head = json.dumps(binary_document()).encode()
    body = head + FP32_4 * 2
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    connection.request(
        "POST",
        "/v2/models/add_sub/infer",
        iter([body[:10], body[10 : len(head) + 3], body[len(head) + 3 :]]),
        {HEADER_LENGTH: str(len(head))},
        encode_chunked=True,
    )
    reply = connection.getresponse()
    assert (reply.status, json.loads(reply.read())["outputs"][0]["data"]) == (200, [2.0, 4.0, 6.0, 8.0])
    connection.close()
