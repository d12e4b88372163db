"""OpenTelemetry mode against a collector: spans, their parents, and what the model sees (cli.md section 7, http.md 16).

The names InferRequest, MODEL and compute, the events and the ``triton.`` attributes that Triton has were asked of 2.51.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from textwrap import indent

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from tests.contract.otlp_receiver import OtlpReceiver, Span
from tests.contract.scripted_model import (
    BATCHING,
    DECOUPLED,
    Stream,
    answer,
    outputs_of,
    request_message,
    run,
    run_batch,
    value_of,
    write_script_model,
    write_scripted_model,
)
from tests.harness import Reply, RunningServer, tensor

SPAN_ID = "b7ad6b7169203331"
INTERNAL, SERVER = 1, 2
OF_ONE_REQUEST = 7
OF_ONE_CALL = 6

CALL = """
called = pb_utils.InferenceRequest(
    model_name="other", requested_output_names=["OUT"], inputs=[pb_utils.Tensor("IN", np.array(["answer(1)"], object))],
    request_id="child"{trace},
).exec()
answer(called.has_error())
"""

LOOK = """
from opentelemetry import trace
found = trace.get_current_span().get_span_context()
seen = [f"{found.trace_id:032x}", f"{found.span_id:016x}", found.is_remote, found.trace_state.to_header()]
"""


@pytest.fixture(scope="module")
def collector() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module", params=["http2", "grpcio"])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, collector: OtlpReceiver
) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("spans")
    write_scripted_model(repository)
    write_scripted_model(repository, "other")
    write_script_model(repository, "batching", BATCHING)
    write_script_model(repository, "decoupled", DECOUPLED)
    with RunningServer(repository, flags=(*flags(collector), f"--grpc-transport={request.param}")) as server:
        yield server


def flags(collector: OtlpReceiver, *more: str) -> tuple[str, ...]:
    settings = (
        "level=TIMESTAMPS",
        "rate=0",
        "mode=opentelemetry",
        f"opentelemetry,url={collector.url}",
        "opentelemetry,resource=service.name=the-service",
        "opentelemetry,bsp_schedule_delay=20",
        *more,
    )
    return tuple(f"--trace-config={setting}" for setting in settings)


_traces = iter(range(1, 1 << 16))


@pytest.fixture
def trace() -> str:
    """The id of a trace of the test's own."""
    return f"{next(_traces):032x}"


def traced(
    server: RunningServer, trace: str, code: str, request_id: str = "", *, model: str = "scripted", **headers: str
) -> Reply:
    body = {"id": request_id, "inputs": [tensor("IN", "BYTES", [1], [code])]}
    return server.post(f"/v2/models/{model}/infer", body, {"traceparent": f"00-{trace}-{SPAN_ID}-01", **headers})


def by_name(spans: list[Span]) -> dict[str, Span]:
    found = {span.name: span for span in spans}
    assert len(found) == len(spans)
    return found


def of_model(spans: list[Span], name: str) -> Span:
    (found,) = (span for span in spans if span.name == name)
    return found


def test_a_request_is_a_span_with_children_of_its_client(
    running: RunningServer, collector: OtlpReceiver, trace: str
) -> None:
    assert traced(running, trace, "answer(1)", "r1", tracestate="a=1,b=2").status == 200
    spans = by_name(collector.wait_trace(trace, OF_ONE_REQUEST))
    request, model, compute = spans["InferRequest"], spans["scripted"], spans["compute"]
    assert request.parent == SPAN_ID
    assert (model.parent, spans["queue"].parent, compute.parent) == (request.id, model.id, model.id)
    parts = [spans[f"compute_{part}"] for part in ("input", "infer", "output")]
    assert {part.parent for part in parts} == {compute.id}
    assert [span.kind for span in (request, model, compute)] == [SERVER, INTERNAL, INTERNAL]
    assert {span.state for span in spans.values()} == {"a=1,b=2"}
    assert not any(span.is_error for span in spans.values())
    assert request.resource["service.name"] == "the-service"
    assert request.events == (
        "HTTP_RECV_START",
        "HTTP_RECV_END",
        "INFER_RESPONSE_COMPLETE",
        "HTTP_SEND_START",
        "HTTP_SEND_END",
    )
    assert model.events == ("REQUEST_START", "QUEUE_START", "REQUEST_END")
    assert compute.events == ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")
    attributes = model.attributes
    assert (attributes["triton.model_name"], attributes["triton.model_version"]) == ("scripted", 1)
    assert attributes["triton.request_id"] == "r1"
    assert request.attributes["http.response.status_code"] == 200
    assert compute.attributes["triton.instance"] == "scripted_0_0"


def test_spans_lie_within_their_parents(running: RunningServer, collector: OtlpReceiver, trace: str) -> None:
    traced(running, trace, "answer(1)")
    spans = by_name(collector.wait_trace(trace, OF_ONE_REQUEST))
    order = ["InferRequest", "scripted", "compute", "compute_infer"]
    for outer, inner in pairwise(order):
        assert spans[outer].start_ns <= spans[inner].start_ns <= spans[inner].end_ns <= spans[outer].end_ns
    assert spans["queue"].end_ns == spans["compute"].start_ns
    assert spans["compute_input"].end_ns == spans["compute_infer"].start_ns
    assert spans["compute_infer"].end_ns == spans["compute_output"].start_ns


def test_grpc_metadata_carry_the_context(running: RunningServer, collector: OtlpReceiver, trace: str) -> None:
    metadata = (("traceparent", f"00-{trace}-{SPAN_ID}-01"), ("tracestate", "a=1"))
    with grpc.insecure_channel(running.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        stub.ModelInfer(request_message("scripted", "answer(1)"), metadata=metadata)
    spans = by_name(collector.wait_trace(trace, OF_ONE_REQUEST))
    request = spans["InferRequest"]
    assert (request.parent, request.state, request.attributes["rpc.grpc.status_code"]) == (SPAN_ID, "a=1", 0)
    assert request.events[0] == "GRPC_WAITREAD_START" and request.events[-1] == "GRPC_SEND_END"


def test_every_request_of_a_stream_is_one_of_the_calls_trace(
    running: RunningServer, collector: OtlpReceiver, trace: str
) -> None:
    code = """
        sender = request.get_response_sender()
        for value in (1, 2, 3):
            sender.send(response(value))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    with Stream(running, traceparent=f"00-{trace}-{SPAN_ID}-01") as stream:
        stream.send("decoupled", code, request_id="a")
        stream.send("decoupled", code, request_id="b")
        assert sum(1 for _ in stream.rest()) == 6
    spans = collector.wait_trace(trace, 2 * OF_ONE_REQUEST)
    requests = [span for span in spans if span.name == "InferRequest"]
    assert {span.parent for span in requests} == {SPAN_ID}
    assert [span.attributes["triton.responses"] for span in requests] == [3, 3]
    ids = {span.attributes["triton.request_id"] for span in spans if span.name == "decoupled"}
    assert ids == {"a", "b"}


def test_an_error_of_the_model_is_the_status_of_its_spans(
    running: RunningServer, collector: OtlpReceiver, trace: str
) -> None:
    reply = traced(running, trace, "raise ValueError('boom')")
    spans = by_name(collector.wait_trace(trace, OF_ONE_REQUEST))
    for name in ("InferRequest", "scripted"):
        assert spans[name].is_error
        assert spans[name].error == reply.error
    assert spans["InferRequest"].attributes["http.response.status_code"] == 500


def test_a_request_that_is_refused_has_one_span(running: RunningServer, collector: OtlpReceiver, trace: str) -> None:
    body = {"inputs": [tensor("NONE", "BYTES", [1], ["x"])]}
    reply = running.post("/v2/models/scripted/infer", body, {"traceparent": f"00-{trace}-{SPAN_ID}-01"})
    (span,) = collector.wait_trace(trace, 1)
    assert (span.name, span.is_error, span.error) == ("InferRequest", True, reply.error)


@pytest.mark.parametrize("parent", ["", "nonsense", f"00-{'0' * 32}-{SPAN_ID}-01"])
def test_without_a_valid_context_the_rate_decides(
    running: RunningServer, collector: OtlpReceiver, trace: str, parent: str
) -> None:
    body = {"id": f"unsampled-{parent}", "inputs": [tensor("IN", "BYTES", [1], ["answer(1)"])]}
    running.post("/v2/models/scripted/infer", body, {"traceparent": parent})
    traced(running, trace, "answer(1)")
    collector.wait_trace(trace, OF_ONE_REQUEST)
    assert not any(span.attributes.get("triton.request_id") == body["id"] for span in collector.spans)


def test_a_rate_of_one_traces_requests_without_a_context(
    running: RunningServer, collector: OtlpReceiver, trace: str
) -> None:
    request_id = f"sampled-{trace}"  # of this test only: both servers send to one collector
    path = "/v2/models/other/trace/setting"
    assert running.post(path, {"trace_rate": "1"}).json["trace_rate"] == "1"
    try:
        run(running, "answer(1)", model="other", id=request_id)
        spans = by_name(collector.wait_request(request_id, OF_ONE_REQUEST))
        assert spans["InferRequest"].parent == ""
    finally:
        assert running.post(path, {"trace_rate": None}).json["trace_rate"] == "0"


def test_level_off_passes_a_context_over(running: RunningServer, collector: OtlpReceiver, trace: str) -> None:
    running.post("/v2/models/other/trace/setting", {"trace_level": ["OFF"]})
    try:
        traced(running, trace, "answer(1)", model="other")
        following = f"{int(trace, 16) | 1 << 64:032x}"
        traced(running, following, "answer(1)")
        collector.wait_trace(following, OF_ONE_REQUEST)
        assert not any(span.trace == trace for span in collector.spans)
    finally:
        running.post("/v2/models/other/trace/setting", {"trace_level": None})


class TestTheModel:
    def test_it_reads_the_context_of_its_request(
        self, running: RunningServer, collector: OtlpReceiver, trace: str
    ) -> None:
        reply = traced(running, trace, "answer(request.trace().get_context())", tracestate="a=1")
        context = json.loads(json.loads(outputs_of(reply)["OUT"]["data"][0]))
        compute = by_name(collector.wait_trace(trace, OF_ONE_REQUEST))["compute"]
        assert context == {"traceparent": f"00-{trace}-{compute.id}-01", "tracestate": "a=1"}

    def test_it_has_none_for_a_request_that_is_not_traced(self, running: RunningServer) -> None:
        assert answer(running, "answer(request.trace().get_context())") is None
        assert answer(running, LOOK + "answer(seen)") == ["0" * 32, "0" * 16, False, ""]

    def test_the_current_span_of_the_api_is_its_computes(
        self, running: RunningServer, collector: OtlpReceiver, trace: str
    ) -> None:
        reply = traced(running, trace, LOOK + "answer(seen)", tracestate="a=1")
        compute = by_name(collector.wait_trace(trace, OF_ONE_REQUEST))["compute"]
        assert json.loads(outputs_of(reply)["OUT"]["data"][0]) == [trace, compute.id, True, "a=1"]
        assert answer(running, LOOK + "answer(seen)") == ["0" * 32, "0" * 16, False, ""]

    def test_so_it_is_in_the_coroutine_that_execute_returns(
        self, running: RunningServer, collector: OtlpReceiver, trace: str
    ) -> None:
        code = f"""
import asyncio
async def work():
    await asyncio.sleep(0)
{indent(LOOK, "    ")}
    return [Response([pb_utils.Tensor("OUT", np.array([json.dumps(seen)], object))])]
returned = work()
"""
        reply = traced(running, trace, code.replace("Response(", "pb_utils.InferenceResponse("))
        compute = by_name(collector.wait_trace(trace, OF_ONE_REQUEST))["compute"]
        assert json.loads(outputs_of(reply)["OUT"]["data"][0])[:2] == [trace, compute.id]

    def test_of_a_batch_it_is_that_of_the_first_request_that_is_traced(self, running: RunningServer) -> None:
        running.post("/v2/models/batching/trace/setting", {"trace_rate": "1"})
        try:
            code = """
                from opentelemetry import trace
                found = trace.get_current_span().get_span_context()
                contexts = [json.loads(each.trace().get_context())["traceparent"] for each in requests]
                seen = [f"00-{found.trace_id:032x}-{found.span_id:016x}-01", contexts]
                return [response(seen) for _ in requests]
            """
            (current, contexts), *_ = map(value_of, run_batch(running, "batching", code).values())
            assert len(set(contexts)) == 3
            assert current == contexts[0]
        finally:
            running.post("/v2/models/batching/trace/setting", {"trace_rate": None})

    @pytest.mark.parametrize("said", [", trace=request.trace()", ""], ids=["with trace()", "by the current span"])
    def test_calls_hang_under_the_callers_compute(
        self, running: RunningServer, collector: OtlpReceiver, trace: str, said: str
    ) -> None:
        assert traced(running, trace, CALL.format(trace=said)).status == 200
        spans = collector.wait_trace(trace, OF_ONE_REQUEST + OF_ONE_CALL)
        called, caller = of_model(spans, "other"), of_model(spans, "scripted")
        (compute,) = (span for span in spans if span.name == "compute" and span.parent == caller.id)
        assert called.parent == compute.id
        assert called.attributes["triton.request_id"] == "child"
        assert sum(span.name == "InferRequest" for span in spans) == 1

    def test_calls_follow_a_span_that_the_model_has_begun(
        self, running: RunningServer, collector: OtlpReceiver, trace: str
    ) -> None:
        own = f"{0xABC:016x}"
        code = f"""
from opentelemetry import trace
span = trace.NonRecordingSpan(
    trace.SpanContext(int("{trace}", 16), int("{own}", 16), is_remote=False, trace_flags=trace.TraceFlags(1))
)
with trace.use_span(span):
{indent(CALL.format(trace=""), "    ")}
"""
        assert traced(running, trace, code).status == 200
        assert of_model(collector.wait_trace(trace, OF_ONE_REQUEST + OF_ONE_CALL), "other").parent == own


def test_settings_show_the_modes_own(running: RunningServer, collector: OtlpReceiver) -> None:
    assert running.get("/v2/trace/setting").json == {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": "0",
        "trace_count": "-1",
        "trace_mode": "opentelemetry",
        "url": collector.url,
        "resource": "service.name=the-service",
        "bsp_max_export_batch_size": "512",
        "bsp_schedule_delay": "20",
        "bsp_max_queue_size": "2048",
    }


def test_what_waits_is_exported_at_the_end(tmp_path: Path, collector: OtlpReceiver, trace: str) -> None:
    write_scripted_model(tmp_path)
    with RunningServer(tmp_path, flags=flags(collector, "opentelemetry,bsp_schedule_delay=3600000")) as server:
        traced(server, trace, "answer(1)")
    assert len(collector.wait_trace(trace, OF_ONE_REQUEST)) == OF_ONE_REQUEST


def test_without_the_packages_the_server_says_which_extra_it_wants(tmp_path: Path, collector: OtlpReceiver) -> None:
    write_scripted_model(tmp_path / "models")
    package = tmp_path / "blocked" / "opentelemetry" / "sdk"  # of the others FastAPI may bring the API
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('no SDK here')\n")
    with (
        pytest.raises(AssertionError) as raised,
        RunningServer(tmp_path / "models", flags=flags(collector), environ={"PYTHONPATH": str(tmp_path / "blocked")}),
    ):
        pass
    assert "pip install 'pytriton-lite[otel]'" in str(raised.value)


def test_a_model_without_the_api_in_its_python_serves_all_the_same(
    tmp_path: Path, collector: OtlpReceiver, trace: str
) -> None:
    code = """
import sys
sys.modules["opentelemetry"] = None
answer(request.trace().get_context())
"""
    write_scripted_model(tmp_path)
    with RunningServer(tmp_path, flags=flags(collector)) as server:
        assert answer(server, code) is None
        reply = traced(server, trace, "answer(request.trace().get_context())")
        assert trace in outputs_of(reply)["OUT"]["data"][0]
        collector.wait_trace(trace, OF_ONE_REQUEST)


def test_a_model_whose_api_cannot_be_imported_serves_all_the_same(tmp_path: Path, collector: OtlpReceiver) -> None:
    """Whatever it raises: some releases have StopIteration where the metadata of their package are missing."""
    folder = write_scripted_model(tmp_path / "models")
    model = folder / "1" / "model.py"
    (folder / "1" / "opentelemetry").mkdir()
    (folder / "1" / "opentelemetry" / "__init__.py").write_text("next(iter(()))\n")
    before = 'import os, sys\nsys.modules.pop("opentelemetry", None)\nsys.path.insert(0, os.path.dirname(__file__))\n'
    model.write_text(before + model.read_text())
    with RunningServer(tmp_path / "models", flags=flags(collector)) as server:
        for trace in ("1" * 32, "2" * 32):
            reply = traced(server, trace, "answer(json.loads(request.trace().get_context())['traceparent'][3:35])")
            assert (reply.status, json.loads(outputs_of(reply)["OUT"]["data"][0])) == (200, trace)
        server.wait_for_log("OpenTelemetry's API cannot be imported, .*StopIteration")


def test_a_collector_that_is_not_there_costs_spans_and_nothing_else(tmp_path: Path, collector: OtlpReceiver) -> None:
    write_scripted_model(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:  # and does not answer, so the port is nobody else's
        url = f"opentelemetry,url=127.0.0.1:{taken.getsockname()[1]}/v1/traces"
        with RunningServer(tmp_path, flags=flags(collector, "rate=1", url)) as server:
            assert answer(server, "answer(5)") == 5
            assert server.stop() == 0
    assert re.search(
        r"^E.* writer.py.*the last traces are lost: they could not be written within 5 s", server.log, re.M
    )
