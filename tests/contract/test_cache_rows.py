"""The response cache end to end: its rows of scheduling.md, and what else a request may want of a cached answer."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.grpc import service_pb2_grpc

from tests.contract.wire_models import (
    Traffic,
    executions,
    grpc_channel,
    infer_message,
    metric,
    report_of,
    statistics,
    wait_until,
    write_recording,
)
from tests.harness import PROJECT, Reply, RunningServer, tensor, write_model

SIZE = 1 << 20
CACHED = "response_cache { enable: true }"

# N is how many requests this instance has seen. What an input of -1 gets is an error, of -2 an exception, of -3 a large answer.
COUNTING = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.count = 0

        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            self.count += 1
            given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            first = given.reshape(-1)[0] if given.size else 0
            if first == -1 and self.count % 2:
                return pb_utils.InferenceResponse(error=pb_utils.TritonError("not this time"))
            if first == -2:
                raise ValueError("boom")
            out = np.zeros(1 << 20, np.float32) if first == -3 else given
            outputs = [pb_utils.Tensor("OUT", out), pb_utils.Tensor("N", np.array([self.count], np.int32))]
            return pb_utils.InferenceResponse(outputs, parameters={"seen": self.count})
"""

TEXTS = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.count = 0

        def execute(self, requests):
            self.count += 1
            responses = []
            for request in requests:
                texts = request.inputs()[0].as_numpy()
                out = np.array([b"%d " % self.count + text for text in texts], np.object_)
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
            return responses
"""

# Asks the model that the parameter names, and says what it hears.
ASKS = """
    import json
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            asked = pb_utils.InferenceRequest(
                model_name=json.loads(request.parameters())["model"],
                requested_output_names=["OUT", "N"],
                inputs=request.inputs(),
            ).exec()
            if asked.has_error():
                return pb_utils.InferenceResponse(error=asked.error())
            return pb_utils.InferenceResponse(asked.output_tensors())
"""


def config(dims: str = "-1", more: str = CACHED) -> str:
    return f"""
        backend: "python"
        input {{ name: "IN" data_type: TYPE_FP32 dims: [ {dims} ] }}
        output {{ name: "OUT" data_type: TYPE_FP32 dims: [ {dims} ] label_filename: "labels.txt" }}
        output {{ name: "N" data_type: TYPE_INT32 dims: [ 1 ] }}
        {more}
    """


ENSEMBLE = f"""
    platform: "ensemble"
    input {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }}
    output {{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }}
    output {{ name: "N" data_type: TYPE_INT32 dims: [ 1 ] }}
    ensemble_scheduling {{
      step {{
        model_name: "step_one" model_version: -1
        input_map {{ key: "IN" value: "IN" }} output_map {{ key: "OUT" value: "between" }}
      }}
      step {{
        model_name: "step_two" model_version: -1
        input_map {{ key: "IN" value: "between" }}
        output_map {{ key: "OUT" value: "OUT" }} output_map {{ key: "N" value: "N" }}
      }}
    }}
    {CACHED}
"""
ORDERED = "dynamic_batching { preserve_ordering: true }"
COUNTING_MODELS = {
    "counting": config(),
    "matrix": config("-1, -1"),
    "errors": config(),
    "large": config(),
    "statistics": config(),
    "metrics": config(),
    "traced": config(),
    "reloaded": config(),
    "asked": config(),
    "shared": config(),
    "batching": config("2", CACHED + " max_batch_size: 4 dynamic_batching { }"),
    "uncached": config(more=""),
    "sequences": config(more="sequence_batching { max_sequence_idle_microseconds: 3600000000 }"),
    "step_one": config(more=""),
    "step_two": config(more=""),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("cache") / "models"
    for name, text in COUNTING_MODELS.items():
        folder = write_model(repository, name, COUNTING, text)
        (folder / "labels.txt").write_text("zero\none\ntwo\n")
    write_model(repository, "asks", ASKS, config(more=""))
    (repository / "asks" / "labels.txt").write_text("")
    write_model(repository, "ensemble", config=ENSEMBLE)
    write_model(repository, "of_sequences", config=ENSEMBLE.replace("step_two", "sequences"))
    write_model(repository, "around", config=ENSEMBLE.replace("step_two", "of_sequences"))
    write_recording(repository, "held", CACHED)
    write_recording(repository, "ordered", f"{CACHED} {ORDERED} instance_group {{ count: 2 }}")
    one = 'input { name: "IN" data_type: TYPE_STRING dims: [ -1 ] } output { name: "OUT" data_type: TYPE_STRING dims: [ -1 ] }'
    write_model(repository, "texts", TEXTS, f'backend: "python" {one} {CACHED}')
    return repository


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[RunningServer]:
    flags = (
        f"--cache-config=local,size={SIZE}",
        "--model-control-mode=explicit",
        "--load-model=*",
        "--allow-client-shm=true",
        "--metrics-config=summary_latencies=true",
        "--metrics-config=histogram_latencies=true",
        f"--trace-config=triton,file={models.parent / 'trace.json'}",
    )
    with RunningServer(models, flags=flags) as running:
        yield running


def ask(server: RunningServer, model: str, data: list[float], shape: list[int] | None = None, **fields: Any) -> Reply:
    return server.infer(model, [tensor("IN", "FP32", shape or [len(data)], data)], **fields)


def outputs(reply: Reply) -> dict[str, Any]:
    assert reply.status == 200, reply.body
    return {output["name"]: output["data"] for output in reply.json["outputs"]}


def count(reply: Reply) -> int:
    """Which of its executions the model answered with."""
    number: int = outputs(reply)["N"][0]
    return number


# ---------------------------------------------------------------------------------------------- what is a hit


def test_row_130_the_second_of_two_equal_requests_is_not_executed(server: RunningServer) -> None:
    before = statistics(server, "counting")["inference_stats"]
    first = ask(server, "counting", [1.0, 2.0], id="a")
    second = ask(server, "counting", [1.0, 2.0], id="b")
    assert (first.json["id"], second.json["id"]) == ("a", "b")
    assert outputs(first) == outputs(second)
    after = statistics(server, "counting")["inference_stats"]
    assert [after[of]["count"] - before[of]["count"] for of in ("cache_hit", "cache_miss")] == [1, 1]


def test_row_131_a_hit_counts_as_success_without_inference_and_execution(server: RunningServer) -> None:
    for request_id in ("a", "b"):
        ask(server, "statistics", [1.0], id=request_id)
    row = statistics(server, "statistics")
    counts = {name: duration["count"] for name, duration in row["inference_stats"].items()}
    compute = dict.fromkeys(("compute_input", "compute_infer", "compute_output"), 1)
    assert counts == {"success": 2, "fail": 0, "queue": 2, "cache_hit": 1, "cache_miss": 1, **compute}
    assert (row["inference_count"], row["execution_count"]) == (1, 1)
    last = row["last_inference"]
    ask(server, "statistics", [1.0])
    assert statistics(server, "statistics")["last_inference"] == last


def test_row_132_the_same_bytes_in_another_shape_are_another_request(server: RunningServer) -> None:
    shapes = ([1, 4], [2, 2], [1, 4], [2, 2])
    replies = [ask(server, "matrix", [1.0, 2.0, 3.0, 4.0], shape) for shape in shapes]
    assert [reply.json["outputs"][0]["shape"] for reply in replies] == list(shapes)
    assert [count(reply) for reply in replies] == [1, 2, 1, 2]


def test_row_133_other_outputs_are_another_request(server: RunningServer) -> None:
    wanted: list[list[str]] = [["OUT"], ["N"], ["OUT", "N"], []]
    for _ in range(2):
        replies = [ask(server, "counting", [133.0], outputs=[{"name": name} for name in names]) for names in wanted]
        assert [sorted(outputs(reply)) for reply in replies] == [["OUT"], ["N"], ["N", "OUT"], ["N", "OUT"]]
        # To name all of them is to name none.
        assert count(replies[2]) == count(replies[3])


def test_row_134_parameters_ids_and_priorities_do_not_matter(server: RunningServer) -> None:
    first = count(ask(server, "counting", [134.0], parameters={"k": 1}))
    for fields in ({"parameters": {"k": 2}}, {"parameters": {"priority": 1, "timeout": 7}}, {"id": "x"}):
        assert count(ask(server, "counting", [134.0], **fields)) == first


def test_row_135_errors_are_not_kept(server: RunningServer) -> None:
    first, second, third = (ask(server, "errors", [-1.0]) for _ in range(3))
    assert (first.status, first.error) == (500, "not this time")
    assert count(second) == count(third) == 2
    for _ in range(2):
        assert "ValueError: boom" in ask(server, "errors", [-2.0]).error
    found = statistics(server, "errors")
    assert found["execution_count"] == 4
    assert found["inference_stats"]["cache_hit"]["count"] == 1
    assert found["inference_stats"]["cache_miss"]["count"] == 4


def test_row_136_an_answer_larger_than_the_cache_is_answered_and_not_kept(server: RunningServer) -> None:
    entries = gauge(server, "nv_cache_num_entries")
    assert [count(ask(server, "large", [-3.0])) for _ in range(2)] == [1, 2]
    assert statistics(server, "large")["inference_stats"]["cache_miss"]["count"] == 2
    assert gauge(server, "nv_cache_num_entries") == entries


def test_row_137_equal_requests_at_the_same_time_are_both_executed(server: RunningServer, tmp_path: Path) -> None:
    with Traffic(server, "held", tmp_path) as traffic:
        gate = traffic.gate()
        first = traffic.send("a", gate=gate)
        gate.wait_held(server)
        second = traffic.queue("b", gate=gate)
        traffic.open_gates()
        assert sorted(executions([report_of(future.result(30)) for future in (first, second)])) == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"sequence_batching": {}}, "sequence batching scheduler"),
        ({"model_transaction_policy": {"decoupled": True}}, "'decoupled' transaction policy"),
    ],
    ids=["sequences", "decoupled"],
)
def test_row_138_sequences_and_decoupled_models_are_refused(
    server: RunningServer, more: dict[str, Any], text: str
) -> None:
    override = {"backend": "python", "response_cache": {"enable": True}, **more}
    reply = server.post("/v2/repository/models/uncached/load", {"parameters": {"config": json.dumps(override)}})
    assert (reply.status, reply.error) == (500, "failed to load 'uncached', failed to poll from model repository")
    server.wait_for_log(
        f"Response Cache does not currently support model uncached with {text}. Please disable the response cache."
    )


def test_row_139_no_step_of_an_ensemble_that_is_found_is_executed(server: RunningServer) -> None:
    first, second = (ask(server, "ensemble", [1.0, 2.0], id=request_id) for request_id in ("a", "b"))
    assert second.json["id"] == "b" and outputs(first) == outputs(second)
    for step in ("step_one", "step_two"):
        assert statistics(server, step)["execution_count"] == 1
    row = statistics(server, "ensemble")
    counts = {name: duration["count"] for name, duration in row["inference_stats"].items()}
    assert (counts["success"], counts["cache_hit"], counts["cache_miss"], row["inference_count"]) == (2, 1, 1, 1)
    # A step that is loaded anew makes a new ensemble, which finds nothing of before.
    assert server.post("/v2/repository/models/step_two/unload").status == 200
    assert server.post("/v2/repository/models/step_two/load").status == 200
    assert count(ask(server, "ensemble", [2.0])) == 1
    assert count(ask(server, "ensemble", [1.0, 2.0])) == 2


@pytest.mark.parametrize("ensemble", ["of_sequences", "around"])
def test_an_ensemble_whose_steps_keep_sequences_is_not_cached(server: RunningServer, ensemble: str) -> None:
    """What is answered depends on the requests before, and one that is not executed is missing in its sequence."""
    flags = [{"sequence_start": True}, {}, {"sequence_end": True}]
    replies = [ask(server, ensemble, [7.0], parameters={"sequence_id": 5, **given}) for given in flags]
    first = count(replies[0])
    assert [count(reply) for reply in replies] == [first, first + 1, first + 2]
    assert ask(server, ensemble, [7.0], parameters={"sequence_id": 5}).status == 400
    assert statistics(server, ensemble)["inference_stats"]["cache_miss"]["count"] == 0
    server.wait_for_log(
        f"ensemble '{ensemble}' version 1: response_cache has no effect, because a step is decoupled or keeps sequences"
    )


def test_a_model_that_is_not_cached_is_executed(server: RunningServer) -> None:
    first, second = (count(ask(server, "uncached", [5.0])) for _ in range(2))
    assert second == first + 1
    assert statistics(server, "uncached")["inference_stats"]["cache_miss"]["count"] == 0


def test_parameters_of_a_response_are_not_kept(server: RunningServer) -> None:
    """Section 8."""
    first, second = (ask(server, "counting", [8.0]) for _ in range(2))
    assert "parameters" in first.json and "parameters" not in second.json


def test_large_inputs_and_batches_are_found(server: RunningServer) -> None:
    data = [1.0] * 100_000
    first, second = (ask(server, "counting", data) for _ in range(2))
    assert outputs(first) == outputs(second)
    shape = [2, 2]
    assert count(ask(server, "batching", [1.0] * 4, shape)) == count(ask(server, "batching", [1.0] * 4, shape))


def test_texts_are_found(server: RunningServer) -> None:
    def say(*texts: str) -> list[str]:
        said: list[str] = outputs(server.infer("texts", [tensor("IN", "BYTES", [len(texts)], list(texts))]))["OUT"]
        return said

    assert say("a", "bc") == say("a", "bc") == ["1 a", "1 bc"]
    assert say("ab", "c") == ["2 ab", "2 c"]


def test_what_was_used_least_recently_goes_first(server: RunningServer) -> None:
    """Section 8: each of the others takes a third of the cache."""
    kept = count(ask(server, "counting", [1000.0]))
    evictions = gauge(server, "nv_cache_num_evictions")
    for number in range(4):
        ask(server, "counting", [2000.0 + number] * (SIZE // 12))
        assert count(ask(server, "counting", [1000.0])) == kept
    assert gauge(server, "nv_cache_num_evictions") > evictions
    assert 0.5 < gauge(server, "nv_cache_util") <= 1


# ---------------------------------------------------------------------------------------------- what becomes of a hit


@pytest.mark.parametrize("first", [1, 3])
def test_classes_are_made_of_what_was_kept(server: RunningServer, first: int) -> None:
    """Whether the first request wants some or the second."""
    data = [1.0, 3.0, 2.0, 40.0 + first]

    def classes(k: int) -> list[str]:
        wanted = [{"name": "OUT", "parameters": {"classification": k}}] if k else [{"name": "OUT"}]
        found: list[str] = outputs(ask(server, "counting", data, outputs=wanted))["OUT"]
        return found

    texts = [f"{data[3]:.6f}:3", "3.000000:1:one", "2.000000:2:two"]
    misses = statistics(server, "counting")["inference_stats"]["cache_miss"]["count"]
    assert [classes(k) for k in (first, 2, 0, 3)] == [texts[:first], texts[:2], data, texts]
    assert statistics(server, "counting")["inference_stats"]["cache_miss"]["count"] == misses + 1


class Segment:
    """POSIX shared memory of a client."""

    def __init__(self, nbytes: int) -> None:
        self.key = f"/test_{uuid.uuid4().hex}"
        self.path = Path("/dev/shm") / self.key[1:]
        self.path.write_bytes(bytes(nbytes))

    def floats(self, count: int, offset: int = 0) -> list[float]:
        found: list[float] = np.frombuffer(self.path.read_bytes(), np.float32, count, offset).tolist()
        return found


@pytest.fixture
def segment() -> Iterator[Callable[[int], Segment]]:
    made: list[Segment] = []

    def make(nbytes: int) -> Segment:
        made.append(Segment(nbytes))
        return made[-1]

    yield make
    for one in made:
        one.path.unlink(missing_ok=True)


@pytest.mark.parametrize("elements", [4, 4000, 100_000], ids=["small", "large", "hashed in a thread"])
def test_tensors_in_shared_memory_of_clients_are_found_and_put_there(
    server: RunningServer, segment: Callable[[int], Segment], elements: int
) -> None:
    nbytes = elements * 4
    memory = segment(2 * nbytes)
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.register_system_shared_memory("memory", memory.key, 2 * nbytes)
        try:
            given = tritonclient.grpc.InferInput("IN", [elements], "FP32")
            given.set_shared_memory("memory", nbytes)
            wanted = tritonclient.grpc.InferRequestedOutput("OUT")
            wanted.set_shared_memory("memory", nbytes, offset=nbytes)
            for value in (1.0, 2.0, 1.0, 2.0):
                data = np.full(elements, value, np.float32).tobytes()
                memory.path.write_bytes(data + bytes(nbytes))
                client.infer("shared", [given], outputs=[wanted])
                assert memory.floats(elements, nbytes) == [value] * elements
        finally:
            client.unregister_system_shared_memory("memory")
    # What came in a region, and what comes in a message.
    ask(server, "shared", [1.0] * elements, outputs=[{"name": "OUT"}])
    counts = statistics(server, "shared")["inference_stats"]
    assert counts["cache_hit"]["count"] % 3 == 0


def test_a_window_that_is_too_small_for_a_hit_is_refused(
    server: RunningServer, segment: Callable[[int], Segment]
) -> None:
    memory = segment(64)
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.register_system_shared_memory("small", memory.key, 64)
        try:
            given = tritonclient.grpc.InferInput("IN", [4], "FP32")
            given.set_data_from_numpy(np.array([7, 7, 7, 7], np.float32))
            wanted = tritonclient.grpc.InferRequestedOutput("OUT")
            wanted.set_shared_memory("small", 8)
            texts = []
            for _ in range(2):
                with pytest.raises(tritonclient.utils.InferenceServerException) as refused:
                    client.infer("counting", [given], outputs=[wanted])
                texts.append(refused.value.message())
            assert texts[0] == texts[1]
        finally:
            client.unregister_system_shared_memory("small")


def test_streams_and_calls_of_models_are_answered_from_the_cache(server: RunningServer) -> None:
    first = count(ask(server, "asked", [9.0]))
    assert count(ask(server, "asks", [9.0], parameters={"model": "asked"})) == first
    message = infer_message("asked", ("IN", "FP32", [1], np.array([9.0], np.float32).tobytes()), id="s")
    with grpc_channel(server) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        (answer,) = stub.ModelStreamInfer(iter([message]))
        unary = stub.ModelInfer(message)
    assert answer.error_message == "" and answer.infer_response.id == "s"
    for response in (answer.infer_response, unary):
        assert int.from_bytes(response.raw_output_contents[1], "little") == first
    assert statistics(server, "asked")["execution_count"] == 1


def test_a_call_with_large_inputs_is_answered_from_the_cache(server: RunningServer) -> None:
    data = [10.0] * 100_000
    asked = [count(ask(server, "asks", data, parameters={"model": "asked"})) for _ in range(2)]
    assert asked[0] == asked[1]


def test_a_call_that_misses_hears_the_error_of_the_model(server: RunningServer) -> None:
    for data in ([-2.0], [-2.0] * 100_000):
        assert "ValueError: boom" in ask(server, "asks", data, parameters={"model": "errors"}).error


def test_a_hit_waits_for_those_that_were_taken_before_where_order_is_kept(
    server: RunningServer, tmp_path: Path
) -> None:
    with Traffic(server, "ordered", tmp_path) as traffic:
        report_of(traffic.send("first").result(30))
        blocker = traffic.block()
        hits = statistics(server, "ordered")["inference_stats"]["cache_hit"]["count"]
        hit = traffic.send("hit")
        while statistics(server, "ordered")["inference_stats"]["cache_hit"]["count"] == hits:
            assert not hit.done()
        assert not hit.done()
        traffic.open_gates()
        assert report_of(hit.result(30))["ids"] == ["first"]
        assert report_of(blocker.result(30))["ids"] == ["blocker"]


# ---------------------------------------------------------------------------------------------- life and metrics


def test_a_reload_finds_nothing_of_before(server: RunningServer) -> None:
    """Section 8: also when nothing has changed."""
    assert [count(ask(server, "reloaded", [1.0])) for _ in range(2)] == [1, 1]
    entries = gauge(server, "nv_cache_num_entries")
    server.post("/v2/repository/models/reloaded/unload")
    wait_until(lambda: gauge(server, "nv_cache_num_entries") == entries - 1)
    assert server.post("/v2/repository/models/reloaded/load").status == 200
    ask(server, "reloaded", [2.0])
    assert count(ask(server, "reloaded", [1.0])) == 2


def gauge(server: RunningServer, name: str) -> float:
    page = server.get(server.metrics_url).body.decode()
    (line,) = [line for line in page.splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


def test_the_metrics_of_a_model_tell_its_hits_and_misses(server: RunningServer) -> None:
    """Sections 2 and 3 of the metrics spec."""
    for _ in range(3):
        ask(server, "metrics", [1.0])
    expected = {
        "nv_cache_num_hits_per_model": 2,
        "nv_cache_num_misses_per_model": 1,
        "nv_inference_request_success": 3,
        "nv_inference_count": 1,
        "nv_inference_exec_count": 1,
        "nv_inference_queue_summary_us_count": 3,
        "nv_inference_compute_infer_summary_us_count": 1,
        "nv_cache_hit_summary_per_model_count": 2,
        "nv_cache_miss_summary_per_model_count": 1,
        "nv_inference_first_response_histogram_ms_count": 3,
    }
    assert {name: metric(server, name, "metrics") for name in expected} == expected
    for name in ("nv_cache_hit_duration_per_model", "nv_cache_miss_duration_per_model"):
        assert metric(server, name, "metrics") > 0
    page = server.get(server.metrics_url).body.decode()
    assert "nv_inference_request_summary_us_count" in page
    assert 'nv_inference_request_summary_us_count{model="metrics"' not in page
    assert 'nv_cache_num_hits_per_model{model="uncached"' not in page
    assert 'nv_cache_hit_summary_per_model_count{model="uncached"' not in page


def test_the_gauges_of_the_cache_count_all_models(server: RunningServer) -> None:
    before = {name: gauge(server, f"nv_cache_num_{name}") for name in ("hits", "misses", "lookups", "entries")}
    for _ in range(3):
        ask(server, "counting", [77.0])
    after = {name: gauge(server, f"nv_cache_num_{name}") for name in before}
    changes = {name: after[name] - before[name] for name in before}
    assert (changes["hits"], changes["misses"], changes["lookups"]) == (2, 1, 3)
    assert gauge(server, "nv_cache_lookup_duration") > 0 and gauge(server, "nv_cache_insertion_duration") > 0


def test_a_trace_of_a_hit_has_no_stations_of_execution(server: RunningServer, models: Path) -> None:
    """As Triton 2.51 writes it."""
    ask(server, "traced", [1.0])
    settings = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "log_frequency": "1"}
    assert server.post("/v2/models/traced/trace/setting", settings).status == 200
    ask(server, "traced", [1.0], id="hit")
    assert server.post("/v2/models/traced/trace/setting", {"trace_level": ["OFF"]}).status == 200
    file = models.parent / "trace.json.0"
    wait_until(lambda: file.exists() and file.read_text().endswith("]"))  # it may be there before it is written
    stations = [stamp["name"] for entry in json.loads(file.read_text()) for stamp in entry.get("timestamps", ())]
    core = ["REQUEST_START", "QUEUE_START", "INFER_RESPONSE_COMPLETE", "REQUEST_END"]
    assert sorted(stations) == sorted(["HTTP_RECV_START", "HTTP_RECV_END", *core, "HTTP_SEND_START", "HTTP_SEND_END"])


# ---------------------------------------------------------------------------------------------- flags


def test_without_a_cache_the_model_says_so_once_and_executes(models: Path) -> None:
    flags = ("--model-control-mode=explicit", "--load-model=counting")
    with RunningServer(models, flags=flags) as running:
        first, second = (count(ask(running, "counting", [1.0])) for _ in range(2))
        assert second == first + 1
        text = r"model 'counting' version 1: response_cache has no effect, this server has no cache \(--cache-config\)"
        running.wait_for_log(text)
        assert "nv_cache" not in running.get(running.metrics_url).body.decode()


def test_a_cache_that_cannot_be_made_fails_the_start(models: Path) -> None:
    command = [sys.executable, "-m", "pytriton_lite", "serve", str(models), "--cache-config=local,size=many"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT)
    assert ended.returncode == 1
    assert "error: creating server: Invalid argument - Failed to initialize LocalCache: 'size' must be" in ended.stderr


def test_the_deprecated_flag_makes_a_cache_too(models: Path) -> None:
    flags = ("--model-control-mode=explicit", "--load-model=counting", "--response-cache-byte-size=1000000")
    with RunningServer(models, flags=flags) as running:
        assert [count(ask(running, "counting", [1.0])) for _ in range(2)] == [1, 1]
        running.wait_for_log("--response-cache-byte-size is deprecated; use --cache-config local,size=<integer>")
