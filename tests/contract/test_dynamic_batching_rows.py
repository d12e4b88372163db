"""scheduling.md, sections 1, 9 and 10, end to end: what is refused before it waits, what is counted, and how requests wait.

The last part is ours: MAX_QUEUE_SIZE, BATCH_ANY_SHAPES and BATCH_TENSORS.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from tests.contract.wire_models import (
    IDENTITY,
    Gate,
    Traffic,
    executions,
    infer_message,
    metric,
    report_of,
    statistics,
    wait_pending,
    wait_until,
    write_recording,
)
from tests.harness import Reply, RunningServer, tensor, write_model

HOUR_US = 3_600_000_000
FULL_BATCH = f"dynamic_batching {{ max_queue_delay_microseconds: {HOUR_US} }}"
"""With max_batch_size 2: two requests leave together, when the second has come."""

RECORDING_MODELS = {
    "sized": "max_batch_size: 6 dynamic_batching { }",
    "held": "max_batch_size: 4",
    "never": "max_batch_size: 4",
    "limited": 'max_batch_size: 4 parameters { key: "MAX_QUEUE_SIZE" value { string_value: "2" } }',
    "limited_sequences": """
        parameters { key: "MAX_QUEUE_SIZE" value { string_value: "1" } }
        sequence_batching { max_sequence_idle_microseconds: 3600000000 }""",
    "sequences": "max_batch_size: 1 sequence_batching { max_sequence_idle_microseconds: 3600000000 }",
    "any_shapes": f"""
        max_batch_size: 3 {FULL_BATCH} parameters {{ key: "BATCH_ANY_SHAPES" value {{ string_value: "yes" }} }}
        input {{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }}
        input {{ name: "MAYBE" data_type: TYPE_FP32 dims: [ -1 ] optional: true }}""",
}

# What the MOOD of a request asks for: an exception for the whole batch, an error for itself, or an answer.
MOODY = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            moods = [request.inputs()[0].as_numpy()[0, 0].decode() for request in requests]
            if "raise" in moods:
                raise ValueError("boom")
            return [self.answer(mood) for mood in moods]

        def answer(self, mood):
            if mood == "error":
                return pb_utils.InferenceResponse(error=pb_utils.TritonError("not this one"))
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[mood.encode()]], np.object_))])
"""

# Answers the last request of a batch first, with MANY responses each.
BACKWARDS = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in reversed(requests):
                sender = request.get_response_sender()
                for number in range(10):
                    out = np.array([[float(number)]], np.float32)
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT0", out)]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
UNREAD_RESPONSES = 4
"""So many may wait for a client, and then the model does."""

# The batch inputs of each request as JSON, and under OUT all elements of X of the batch that are the request's, flat.
BATCH_TENSORS = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            given = {t.name(): t.as_numpy() for t in request.inputs()}
            x = given.pop("X")
            seen = {name: [str(array.dtype), list(array.shape), array.tolist()] for name, array in given.items()}
            out = x.reshape(-1) if x[0, 0] >= 0 else x.reshape(-1)[1:]
            return pb_utils.InferenceResponse([
                pb_utils.Tensor("SEEN", np.array([[json.dumps(seen).encode()]] * len(x), np.object_)),
                pb_utils.Tensor("OUT", out),
            ])
"""

BATCH_TENSORS_CONFIG = f"""
    backend: "python" max_batch_size: 4 {FULL_BATCH}
    input {{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }}
    output {{ name: "SEEN" data_type: TYPE_STRING dims: [ 1 ] }}
    output {{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }}
    batch_input {{ kind: BATCH_ELEMENT_COUNT target_name: "COUNT" data_type: TYPE_FP32 source_input: "X" }}
    batch_input {{
        kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: [ "ENDS", "STOPS" ] data_type: TYPE_INT32 source_input: "X" }}
    batch_input {{
        kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO target_name: "OFFSETS" data_type: TYPE_INT32 source_input: "X" }}
    batch_input {{
        kind: BATCH_MAX_ELEMENT_COUNT_AS_SHAPE target_name: "MOST" data_type: TYPE_INT32 source_input: "X" }}
    batch_input {{ kind: BATCH_ITEM_SHAPE target_name: "SHAPES" data_type: TYPE_INT32 source_input: "X" }}
    batch_input {{ kind: BATCH_ITEM_SHAPE_FLATTEN target_name: "FLAT" data_type: TYPE_INT32 source_input: "X" }}
    batch_output {{ target_name: "OUT" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "X" }}
"""

LIMITED_ENSEMBLE = """
    platform: "ensemble" max_batch_size: 1 parameters { key: "MAX_QUEUE_SIZE" value { string_value: "2" } }
    input { name: "GATE" data_type: TYPE_STRING dims: [ 1 ] }
    output { name: "REPORT" data_type: TYPE_STRING dims: [ 1 ] }
    ensemble_scheduling { step {
        model_name: "step" model_version: -1
        input_map { key: "GATE" value: "GATE" } output_map { key: "REPORT" value: "REPORT" } } }
"""

ASKED_FOR = 'parameters { key: "BATCH_TENSORS" value { string_value: "yes" } }'


def fp32_inputs(*names: str, dims: str = "4") -> str:
    return "".join(f'input {{ name: "{name}" data_type: TYPE_FP32 dims: [ {dims} ] }}\n' for name in names)


def write_checked_models(repository: Path) -> None:
    """For the checks of section 1."""
    rest = 'output { name: "OUT0" data_type: TYPE_FP32 dims: [ 4 ] } backend: "python" '
    write_model(repository, "m", IDENTITY, fp32_inputs("IN0") + rest + "max_batch_size: 4")
    write_model(repository, "unbatched", IDENTITY, fp32_inputs("IN0") + rest)
    write_model(repository, "two", IDENTITY, fp32_inputs("A", "B") + rest + "max_batch_size: 4")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("batching") / "models"


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RunningServer]:
    write_checked_models(repository)
    for name, more in RECORDING_MODELS.items():
        write_recording(repository, name, more)
    moods = """
        backend: "python" input { name: "MOOD" data_type: TYPE_STRING dims: [ 1 ] }
        output { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } max_batch_size: 2 """
    write_model(repository, "raising", MOODY, moods + FULL_BATCH)
    write_model(repository, "refusing", MOODY, moods + FULL_BATCH)
    write_model(repository, "told", BATCH_TENSORS, BATCH_TENSORS_CONFIG + ASKED_FOR)
    write_model(repository, "untold", BATCH_TENSORS, BATCH_TENSORS_CONFIG)
    write_model(
        repository,
        "ordered",
        BACKWARDS,
        fp32_inputs("IN0", dims="1")
        + f"""output {{ name: "OUT0" data_type: TYPE_FP32 dims: [ 1 ] }} backend: "python" max_batch_size: 2
        model_transaction_policy {{ decoupled: true }}
        dynamic_batching {{ max_queue_delay_microseconds: {HOUR_US} preserve_ordering: true }}""",
    )
    write_recording(repository, "step", "max_batch_size: 1")
    write_model(repository, "limited_ensemble", config=LIMITED_ENSEMBLE)
    flags = ("--model-control-mode=explicit", "--load-model=*", f"--grpc-max-response-pool-size={UNREAD_RESPONSES}")
    with RunningServer(repository, flags=flags) as running:
        yield running


@pytest.fixture(scope="module")
def stub(server: RunningServer) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc_url) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


@pytest.fixture
def traffic_to(server: RunningServer, tmp_path: Path) -> Iterator[Any]:
    """Opens a `Traffic` to a model, which is closed after the test."""
    opened: list[Traffic] = []

    def open_to(model: str) -> Traffic:
        opened.append(Traffic(server, model, tmp_path))
        return opened[-1]

    yield open_to
    for traffic in opened:
        traffic.close()


# ---------------------------------------------------------------------------------------------------- request checks

NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input "
    "shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)
Input = tuple[str, str, list[int]]


def zeros(shape: list[int]) -> list[float]:
    count = 1
    for dim in shape:
        count *= dim
    return [0] * count


@pytest.mark.parametrize(
    ("model", "request_id", "inputs", "outputs", "text"),
    [
        pytest.param(
            "m",
            "q",
            [("IN0", "FP32", [5, 4])],
            [],
            "[request id: q] inference request batch-size must be <= 4 for 'm'",
            id="row 6",
        ),
        pytest.param(
            "m",
            "",
            [("IN0", "FP32", [5, 4])],
            [],
            "[request id: <id_unknown>] inference request batch-size must be <= 4 for 'm'",
            id="row 7",
        ),
        pytest.param(
            "m",
            "q",
            [("IN0", "FP32", [1, 3])],
            [],
            f"[request id: q] unexpected shape for input 'IN0' for model 'm'. Expected [-1,4], got [1,3]. {NOTE}",
            id="row 8",
        ),
        pytest.param(
            "unbatched",
            "q",
            [("IN0", "FP32", [2, 4])],
            [],
            "[request id: q] unexpected shape for input 'IN0' for model 'unbatched'. Expected [4], got [2,4]. ",
            id="row 9",
        ),
        pytest.param(
            "m",
            "q",
            [("IN0", "FP32", [])],
            [],
            "[request id: q] input 'IN0' has no shape but model requires batch dimension for 'm'",
            id="row 10",
        ),
        pytest.param(
            "two",
            "q",
            [("A", "FP32", [2, 4]), ("B", "FP32", [1, 4])],
            [],
            "[request id: q] input 'B' batch size does not match other inputs for 'two'",
            id="row 11",
        ),
        pytest.param(
            "m",
            "q",
            [("IN0", "INT32", [1, 4])],
            [],
            "[request id: q] inference input 'IN0' data-type is 'INT32', but model 'm' expects 'FP32'",
            id="row 12",
        ),
        pytest.param(
            "m",
            "q",
            [("IN0", "FP32", [0, 4])],
            [],
            "[request id: q] input byte size mismatch for input 'IN0' for model 'm'. Expected 16, got 0",
            id="row 13",
        ),
        pytest.param(
            "m",
            "q",
            [("IN0", "FP32", [1, 4])],
            ["ZZ"],
            "unexpected inference output 'ZZ' for model 'm'",
            id="row 14",
        ),
        pytest.param(
            "m",
            "q",
            [("IN0", "FP32", [1, 4]), ("IN0", "FP32", [1, 4])],
            [],
            "[request id: q] input 'IN0' already exists in request",
            id="row 15",
        ),
    ],
)
def test_what_breaks_a_rule_is_refused_over_both_protocols_and_counted_nowhere(
    server: RunningServer, stub: Any, model: str, request_id: str, inputs: list[Input], outputs: list[str], text: str
) -> None:
    """Row 18, too: neither statistics nor the failure metric change."""
    before = statistics(server, model), failures(server, model)
    reply = server.infer(
        model,
        [tensor(name, datatype, shape, zeros(shape)) for name, datatype, shape in inputs],
        outputs=[{"name": name} for name in outputs],
        **({"id": request_id} if request_id else {}),
    )
    assert (reply.status, reply.error) == (400, text)
    message = infer_message(
        model,
        *((name, datatype, shape, bytes(4 * len(zeros(shape)))) for name, datatype, shape in inputs),
        id=request_id,
    )
    for name in outputs:
        message.outputs.add(name=name)
    with pytest.raises(grpc.RpcError) as refused:
        stub.ModelInfer(message, timeout=30)
    assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, text)
    assert (statistics(server, model), failures(server, model)) == before


@pytest.mark.parametrize(
    ("name", "value"), [pytest.param("timeout", -1, id="row 16"), pytest.param("priority", "a", id="row 17")]
)
def test_a_number_of_the_wrong_kind_is_an_error_of_the_server(server: RunningServer, name: str, value: Any) -> None:
    """Row 18, too: it is counted nowhere."""
    before = statistics(server, "m"), failures(server, "m")
    reply = server.infer("m", [tensor("IN0", "FP32", [1, 4], [0] * 4)], parameters={name: value})
    text = f"Unable to parse '{name}': attempt to access JSON non-unsigned-integer as unsigned-integer"
    assert (reply.status, reply.error) == (500, text)
    assert (statistics(server, "m"), failures(server, "m")) == before


def failures(server: RunningServer, model: str) -> dict[str, float]:
    reasons = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
    counted = {reason: metric(server, "nv_inference_request_failure", model, reason=reason) for reason in reasons}
    return {reason: count for reason, count in counted.items() if count}


# ---------------------------------------------------------------------------------------------------- statistics


def counts(server: RunningServer, model: str) -> dict[str, int]:
    row = statistics(server, model)
    stats = row["inference_stats"]
    return {
        "success": stats["success"]["count"],
        "fail": stats["fail"]["count"],
        "inferences": row["inference_count"],
        "executions": row["execution_count"],
    }


def test_row_140_a_batch_counts_once_and_each_of_its_items(server: RunningServer, traffic_to: Any) -> None:
    traffic = traffic_to("sized")
    blocker = traffic.block()
    queued = [traffic.queue(f"r{size}", size=size) for size in (1, 2, 3)]
    before = counts(server, "sized")
    traffic.open_gates()
    assert executions([report_of(future.result(30)) for future in (blocker, *queued)])[1:] == [["r1", "r2", "r3"]]
    after = counts(server, "sized")
    # The blocker ends as well.
    assert {key: after[key] - before[key] for key in after} == {
        "success": 4,
        "fail": 0,
        "inferences": 7,
        "executions": 2,
    }
    sizes = {
        entry["batch_size"]: entry["compute_infer"]["count"] for entry in statistics(server, "sized")["batch_stats"]
    }
    assert sizes == {1: 1, 6: 1}


def batch_of(pool: ThreadPoolExecutor, server: RunningServer, model: str, *requests: dict[str, Any]) -> list[Reply]:
    """The answers to requests of one input each; the last of them completes the batch."""
    futures = []
    for at, only_input in enumerate(requests):
        wait_pending(server, model, at)
        futures.append(pool.submit(server.infer, model, [only_input]))
    return [future.result(30) for future in futures]


def of_mood(mood: str) -> dict[str, Any]:
    return tensor("MOOD", "BYTES", [1, 1], [mood])


def test_row_141_an_exception_fails_every_request_of_the_batch(server: RunningServer, pool: ThreadPoolExecutor) -> None:
    replies = batch_of(pool, server, "raising", of_mood("well"), of_mood("raise"))
    assert {reply.status for reply in replies} == {500}
    assert all("message: ValueError: boom" in reply.error for reply in replies)
    assert counts(server, "raising") == {"success": 0, "fail": 2, "inferences": 0, "executions": 1}
    assert failures(server, "raising") == {"BACKEND": 2}
    assert [entry["batch_size"] for entry in statistics(server, "raising")["batch_stats"]] == [2]


def test_row_142_an_error_for_one_request_counts_as_a_success_of_both(
    server: RunningServer, pool: ThreadPoolExecutor
) -> None:
    well, error = batch_of(pool, server, "refusing", of_mood("well"), of_mood("error"))
    assert (well.status, well.json["outputs"][0]["data"]) == (200, ["well"])
    assert (error.status, error.error) == (500, "not this one")
    assert counts(server, "refusing") == {"success": 2, "fail": 0, "inferences": 2, "executions": 1}
    assert failures(server, "refusing") == {}


def test_row_146_a_model_that_was_never_used_has_counted_nothing(server: RunningServer) -> None:
    row = statistics(server, "never")
    assert (row["last_inference"], row["inference_count"], row["execution_count"]) == (0, 0, 0)
    assert {(entry["count"], entry["ns"]) for entry in row["inference_stats"].values()} == {(0, 0)}
    assert (row["response_stats"], row["batch_stats"]) == ({}, [])


def test_row_147_a_reload_counts_from_the_start(server: RunningServer) -> None:
    assert server.infer("m", [tensor("IN0", "FP32", [1, 4], [0] * 4)]).status == 200
    assert counts(server, "m")["success"] > 0
    more = {"backend": "python", "max_batch_size": 3, "input": [], "output": []}
    for kind, name in (("input", "IN0"), ("output", "OUT0")):
        more[kind] = [{"name": name, "data_type": "TYPE_FP32", "dims": [4]}]
    loaded = server.post("/v2/repository/models/m/load", {"parameters": {"config": json.dumps(more)}})
    assert loaded.status == 200, loaded.body
    assert counts(server, "m") == {"success": 0, "fail": 0, "inferences": 0, "executions": 0}
    assert server.post("/v2/repository/models/m/load", b"{}").status == 200  # as the other tests want it


def test_row_154_an_unloaded_model_has_no_statistics(server: RunningServer) -> None:
    assert server.post("/v2/repository/models/unbatched/unload", b"{}").status == 200
    wait_until(lambda: server.get("/v2/models/unbatched/stats").status == 400)
    reply = server.get("/v2/models/unbatched/stats")
    assert reply.error == "requested model 'unbatched' is not available"
    names = [row["name"] for row in server.get("/v2/models/stats").json["model_stats"]]
    assert "m" in names
    assert "unbatched" not in names
    assert server.post("/v2/repository/models/unbatched/load", b"{}").status == 200


def test_row_60_a_client_that_goes_away_cancels_its_execution(server: RunningServer, traffic_to: Any) -> None:
    """lite: the model is told so, and what it returns is counted as what it is."""
    gate: Gate = traffic_to("held").gate()
    body = json.dumps({"inputs": [tensor("GATE", "BYTES", [1, 1], [gate.path])]}).encode()
    head = f"POST /v2/models/held/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    host, port = server.http_url.split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(head + body)
        gate.wait_held(server)
    wait_until(lambda: metric(server, "pytriton_lite_cancelled_requests", "held") == 1)
    gate.open()
    wait_until(lambda: counts(server, "held")["success"] == 1)
    assert failures(server, "held") == {}


# ---------------------------------------------------------------------------------------------------- order of answers


def test_streams_of_a_decoupled_model_keep_the_order_of_their_requests(stub: Any) -> None:
    """Section 3.6. The model sends the second request's responses first, and more than may wait for a client."""
    messages = [infer_message("ordered", ("IN0", "FP32", [1, 1], bytes(4)), id=name) for name in ("first", "second")]
    answers = list(stub.ModelStreamInfer(iter(messages), timeout=30))
    assert [answer.error_message for answer in answers if answer.error_message] == []
    assert [answer.infer_response.id for answer in answers] == ["first"] * 10 + ["second"] * 10
    values = [struct.unpack("<f", answer.infer_response.raw_output_contents[0])[0] for answer in answers]
    assert values == [*range(10), *range(10)]


# ---------------------------------------------------------------------------------------------------- sequences


def of_sequence(correlation_id: int | str, **flags: bool) -> dict[str, Any]:
    return {"parameters": {"sequence_id": correlation_id, **flags}}


def test_row_149_a_number_and_its_digits_are_two_sequences(server: RunningServer, traffic_to: Any) -> None:
    traffic = traffic_to("sequences")
    assert traffic.send("start", **of_sequence(1, sequence_start=True)).result(30).status == 200
    reply = traffic.send("digits", **of_sequence("1")).result(30)
    text = (
        "inference request for sequence 1 to model 'sequences' must specify the START flag on the first request of the "
        "sequence"
    )
    assert (reply.status, reply.error) == (400, text)
    assert traffic.send("end", **of_sequence(1, sequence_end=True)).result(30).status == 200


def test_row_150_what_waits_of_a_sequence_executes_before_the_one_that_cuts_it_off(traffic_to: Any) -> None:
    traffic = traffic_to("sequences")
    gate = traffic.gate()
    first = traffic.send("start", gate=gate, **of_sequence(7, sequence_start=True))
    gate.wait_held(traffic.server)
    queued = [
        traffic.queue("old", **of_sequence(7)),
        traffic.queue("new", **of_sequence(7, sequence_start=True)),
        traffic.queue("end", **of_sequence(7, sequence_end=True)),
    ]
    gate.open()
    begun = executions([report_of(future.result(30)) for future in (first, *queued)])
    assert begun == [["start"], ["old"], ["new"], ["end"]]


# ---------------------------------------------------------------------------------------------------- MAX_QUEUE_SIZE


def full(request_id: str) -> tuple[int, str]:
    return 503, f"[request id: {request_id}] Exceeds maximum queue size"


def outcome(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.error


def test_a_model_without_dynamic_batching_may_limit_its_queue(
    server: RunningServer, traffic_to: Any, stub: Any
) -> None:
    traffic = traffic_to("limited")
    blocker = traffic.block()
    first = traffic.queue("r0")
    call = stub.ModelInfer.future(
        infer_message("limited", ("GATE", "BYTES", [1, 1], struct.pack("<I", 0)), id="r1"), timeout=30
    )
    wait_pending(server, "limited", 2)
    assert outcome(traffic.send("r2").result(30)) == full("r2")
    call.cancel()
    wait_until(lambda: metric(server, "pytriton_lite_cancelled_requests", "limited") == 1)
    third = traffic.send("r3")  # what was cancelled has made room
    wait_until(lambda: failures(server, "limited") == {"CANCELED": 1})
    wait_pending(server, "limited", 2)
    assert outcome(traffic.send("r4").result(30)) == full("r4")
    assert metric(server, "pytriton_lite_rejected_requests", "limited", reason="QUEUE_FULL") == 2
    traffic.open_gates()
    assert executions([report_of(future.result(30)) for future in (blocker, first, third)]) == [
        ["blocker"],
        ["r0"],
        ["r3"],
    ]
    assert traffic.send("r5").result(30).status == 200


def test_a_limited_sequence_model_lets_those_go_on_that_have_begun(traffic_to: Any) -> None:
    traffic = traffic_to("limited_sequences")
    gate = traffic.gate()
    started = traffic.send("start", gate=gate, **of_sequence(1, sequence_start=True))
    gate.wait_held(traffic.server)
    other = traffic.queue("other", **of_sequence(2, sequence_start=True, sequence_end=True))
    assert outcome(traffic.send("third", **of_sequence(3, sequence_start=True)).result(30)) == full("third")
    goes_on = traffic.queue("goes on", **of_sequence(1, sequence_end=True))
    assert outcome(traffic.send("fourth", **of_sequence(4, sequence_start=True)).result(30)) == full("fourth")
    gate.open()
    begun = executions([report_of(future.result(30)) for future in (started, goes_on, other)])
    assert begun == [["start"], ["goes on"], ["other"]]


def test_an_ensemble_may_limit_the_requests_that_are_under_way(traffic_to: Any) -> None:
    traffic = traffic_to("limited_ensemble")
    held = traffic.block()
    waits = traffic.send("waits")
    wait_pending(traffic.server, "step", 1)
    assert outcome(traffic.send("third").result(30)) == full("third")
    traffic.open_gates()
    assert {future.result(30).status for future in (held, waits)} == {200}
    assert traffic.send("later").result(30).status == 200


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (
            'dynamic_batching { } max_batch_size: 2 parameters { key: "MAX_QUEUE_SIZE" value { string_value: "3" } }',
            "MAX_QUEUE_SIZE of model 'wrong' is for models without dynamic_batching: use default_queue_policy.max_queue_size, "
            "or that of a priority level",
        ),
        (
            'parameters { key: "BATCH_TENSORS" value { string_value: "yes" } }'
            'batch_input { target_name: "IN0" data_type: TYPE_INT32 source_input: "IN0" }',
            "batch input 'IN0' of model 'wrong' has the name of an input",
        ),
    ],
)
def test_parameters_that_cannot_be_are_the_reason_of_a_failed_load(
    server: RunningServer, repository: Path, more: str, text: str
) -> None:
    rest = 'output { name: "OUT0" data_type: TYPE_FP32 dims: [ 4 ] } backend: "python" '
    write_model(repository, "wrong", IDENTITY, fp32_inputs("IN0") + rest + more)
    assert text in server.post("/v2/repository/models/wrong/load", b"{}").error


# ---------------------------------------------------------------------------------------------------- BATCH_ANY_SHAPES


def shaped(*sizes: int) -> list[dict[str, Any]]:
    return [tensor(name, "FP32", [1, size], [0.0] * size) for name, size in zip(("X", "MAYBE"), sizes)]


def test_requests_of_any_shapes_share_a_batch_where_the_model_asks_for_it(traffic_to: Any) -> None:
    traffic = traffic_to("any_shapes")
    waiting = [traffic.queue(f"r{size}", inputs=shaped(size)) for size in (1, 2)]
    report = report_of(traffic.send("r3", inputs=shaped(3)).result(30))
    assert (report["ids"], report["shapes"]) == (["r1", "r2", "r3"], [[[1, 1]], [[1, 2]], [[1, 3]]])
    assert {future.result(30).status for future in waiting} == {200}


def test_other_optional_inputs_keep_requests_apart_even_so(traffic_to: Any) -> None:
    traffic = traffic_to("any_shapes")
    without = traffic.queue("without", inputs=shaped(1))
    having = traffic.send("with", inputs=shaped(2, 5))
    assert report_of(without.result(30))["ids"] == ["without"], "the next one sent it off"
    wait_pending(traffic.server, traffic.model, 1)
    traffic.queue("another", inputs=shaped(7, 8))
    assert report_of(traffic.send("last", inputs=shaped(1, 1)).result(30))["ids"] == ["with", "another", "last"]
    assert having.result(30).status == 200


# ---------------------------------------------------------------------------------------------------- BATCH_TENSORS


def x(*rows: list[float]) -> dict[str, Any]:
    return tensor("X", "FP32", [len(rows), len(rows[0])], [value for row in rows for value in row])


def outputs_of(reply: Reply) -> dict[str, dict[str, Any]]:
    assert reply.status == 200, reply.body
    return {output["name"]: output for output in reply.json["outputs"]}


def test_a_model_that_asks_for_batch_tensors_is_told_about_the_whole_batch(
    server: RunningServer, pool: ThreadPoolExecutor
) -> None:
    """The counterpart of model_config.md, section 4.5; the shares of one kind after another are Triton's tensor."""
    replies = batch_of(pool, server, "told", x([1, 2, 3], [4, 5, 6]), x([7]), x([8, 9]))
    found = [json.loads(outputs_of(reply)["SEEN"]["data"][0]) for reply in replies]
    assert [seen["COUNT"] for seen in found] == [["float32", [1], [count]] for count in (6.0, 1.0, 2.0)]
    assert [seen["ENDS"] for seen in found] == [["int32", [1], [end]] for end in (6, 7, 9)]
    assert [seen["STOPS"] for seen in found] == [seen["ENDS"] for seen in found]
    assert [seen["OFFSETS"][1:] for seen in found] == [[[2], [0, 6]], [[1], [7]], [[1], [9]]]
    assert [seen["MOST"][1] for seen in found] == [[6], [0], [0]]
    assert [seen["SHAPES"][1:] for seen in found] == [[[2, 1], [[3], [3]]], [[1, 1], [[1]]], [[1, 1], [[2]]]]
    assert [seen["FLAT"][1:] for seen in found] == [[[2], [3, 3]], [[1], [1]], [[1], [2]]]
    outs = [outputs_of(reply)["OUT"] for reply in replies]
    assert [out["shape"] for out in outs] == [[2, 3], [1, 1], [1, 2]]
    assert outs[0]["data"] == [1, 2, 3, 4, 5, 6]


def test_a_batch_output_of_another_size_than_its_source_is_an_error_of_that_request(
    server: RunningServer, pool: ThreadPoolExecutor
) -> None:
    wrong, right = batch_of(pool, server, "told", x([-1, 2]), x([1], [2], [3]))
    text = "batch output 'OUT' of model 'told': expected the elements of [1,2], as input 'X' has them, got shape [1]"
    assert (wrong.status, wrong.error) == (500, text)
    assert outputs_of(right)["OUT"]["shape"] == [3, 1]


def test_a_model_that_does_not_ask_gets_no_batch_tensors(server: RunningServer) -> None:
    """As with Triton: what is declared has no effect, which the log says."""
    found = outputs_of(server.infer("untold", [x([1, 2], [3, 4], [5, 6], [7, 8])]))
    assert json.loads(found["SEEN"]["data"][0]) == {}
    assert found["OUT"]["shape"] == [8]
    for name in ("batch_input", "batch_output"):
        server.wait_for_log(f"model 'untold': field '{name}' has no effect for Python models")
    assert "model 'told': field" not in server.log


def test_large_batch_tensors_arrive_whole(server: RunningServer) -> None:
    """Larger than what travels in a message."""
    reply = server.infer("told", [x(*[[0.5] * 5000] * 4)])
    seen = json.loads(outputs_of(reply)["SEEN"]["data"][0])
    assert seen["MOST"][1] == [20000]
    assert outputs_of(reply)["OUT"]["shape"] == [4, 5000]
