"""Triton's trace mode: the files that a server writes (cli.md section 7). What is in them was asked of Triton 2.51."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import service_pb2_grpc

from tests.contract.scripted_model import ITERATIVE, run, write_scripted_model
from tests.contract.wire_models import grpc_channel, infer_message, wait_until
from tests.harness import RunningServer

CALL = """
def call(**more):
    given = [pb_utils.Tensor("IN", np.array(["answer(1)"], object))]
    pb_utils.InferenceRequest(model_name="other", requested_output_names=["OUT"], inputs=given, **more).exec()

call(request_id="child", trace=request.trace())
call(request_id="not traced")
answer(request.trace().get_context())
"""
TIMESTAMPS = ("level=TIMESTAMPS", "rate=1")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_scripted_model(tmp_path / "models")
    write_scripted_model(tmp_path / "models", "other")
    return tmp_path / "models"


def traced(repository: Path, *settings: str) -> RunningServer:
    file = f"triton,file={repository.parent / 'trace.json'}"
    return RunningServer(repository, flags=tuple(f"--trace-config={setting}" for setting in (file, *settings)))


def read(repository: Path, suffix: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((repository.parent / f"trace.json{suffix}").read_bytes())
    return found


def request_ids(repository: Path, suffix: str = "") -> list[str]:
    return [entry["request_id"] for entry in read(repository, suffix) if "request_id" in entry]


def stations(entries: list[dict[str, Any]], number: int) -> list[str]:
    return [stamp["name"] for entry in entries if entry["id"] == number for stamp in entry.get("timestamps", ())]


def test_a_file_has_requests_of_both_protocols_and_calls_with_their_parent(repository: Path) -> None:
    with traced(repository, *TIMESTAMPS) as server:
        context = run(server, CALL, id="caller").json["outputs"][0]["data"][0]
        with grpc_channel(server) as channel:
            given = ("IN", "BYTES", [1], b"\x09\0\0\0answer(1)")
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(infer_message("scripted", given, id="g"))
    assert json.loads(context) is None
    entries = read(repository)
    assert [entry for entry in entries if "model_name" in entry] == [
        {"id": 2, "model_name": "other", "model_version": 1, "request_id": "child", "parent_id": 1},
        {"id": 1, "model_name": "scripted", "model_version": 1, "request_id": "caller"},
        {"id": 3, "model_name": "scripted", "model_version": 1, "request_id": "g"},
    ]
    core = ["REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
    assert stations(entries, 2) == [*core, "REQUEST_END"]
    for number, first, last in ((1, "HTTP_RECV", "HTTP_SEND"), (3, "GRPC_WAITREAD", "GRPC_SEND")):
        ends = ["INFER_RESPONSE_COMPLETE", "REQUEST_END", f"{last}_START", f"{last}_END"]
        assert stations(entries, number) == [f"{first}_START", f"{first}_END", *core, *ends]
    times = [stamp["ns"] for entry in entries if entry["id"] == 1 for stamp in entry.get("timestamps", ())]
    assert times == sorted(times)


def test_each_execution_of_a_request_that_its_model_wants_again_is_there(repository: Path) -> None:
    code = """
        model.executions = getattr(model, "executions", 0) + 1
        if model.executions < 3:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            returned = [None]
        else:
            answer(1)
    """
    write_scripted_model(repository, "iterative", config=ITERATIVE)
    with traced(repository, *TIMESTAMPS) as server:
        assert run(server, code, model="iterative").status == 200
    entries = read(repository)
    execution = ["QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
    assert stations(entries, 1)[2:-4] == ["REQUEST_START", *execution * 3]


def test_tensors_are_shown_with_their_elements(repository: Path) -> None:
    with traced(repository, "level=TENSORS", "rate=1") as server:
        run(server, "answer(5)")
    assert read(repository) == [
        {
            "id": 1,
            "activity": f"TENSOR_{which}",
            "tensor": {"name": name, "data": f'"{text}"', "shape": "1", "dtype": "BYTES"},
        }
        for which, name, text in (("QUEUE_INPUT", "IN", "answer(5)"), ("BACKEND_OUTPUT", "OUT", "5"))
    ]


def test_a_log_frequency_cuts_files_while_the_server_runs(repository: Path) -> None:
    with traced(repository, *TIMESTAMPS, "triton,log-frequency=2") as server:
        for number in range(5):
            run(server, "answer(1)", id=str(number))
        wait_until(lambda: readable(repository, ".2") == ["4"])
    assert [request_ids(repository, f".{number}") for number in range(3)] == [["0", "1"], ["2", "3"], ["4"]]


def test_rate_count_and_level_are_changed_while_the_server_runs(repository: Path) -> None:
    with traced(repository, "level=TIMESTAMPS", "rate=2", "count=2") as server:
        for number in range(1, 8):
            run(server, "answer(1)", id=f"second {number}")
        assert server.get("/v2/trace/setting").json["trace_count"] == "0"
        server.post("/v2/trace/setting", {"trace_count": "-1", "trace_rate": "1", "trace_level": ["OFF"]})
        run(server, "answer(1)", id="off")
        server.post("/v2/models/other/trace/setting", {"trace_level": ["TIMESTAMPS"]})
        run(server, "answer(1)", id="off, too")
        run(server, "answer(1)", model="other", id="on")
    assert request_ids(repository) == ["second 2", "second 4", "on"]


def test_a_file_is_complete_before_the_end(repository: Path) -> None:
    with traced(repository, *TIMESTAMPS) as server:
        run(server, "answer(1)", id="a")
        wait_until(lambda: readable(repository) == ["a"])
        run(server, "answer(1)", id="b")
        wait_until(lambda: readable(repository) == ["a", "b"])


def readable(repository: Path, suffix: str = "") -> list[str]:
    """The ids in the file; none before the first, or while a trace is just being written."""
    try:
        return request_ids(repository, suffix)
    except (FileNotFoundError, ValueError):
        return []


def test_a_traceparent_has_no_effect(repository: Path) -> None:
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    with traced(repository, "level=TIMESTAMPS", "rate=1000") as server:
        body = {"inputs": [{"name": "IN", "datatype": "BYTES", "shape": [1], "data": ["answer(1)"]}]}
        assert server.post("/v2/models/scripted/infer", body, headers).status == 200
    assert not (repository.parent / "trace.json").exists()


def test_the_deprecated_flags_do_the_same(repository: Path) -> None:
    file = repository.parent / "trace.json"
    flags = (f"--trace-file={file}", "--trace-level=TIMESTAMPS", "--trace-rate=7", "--trace-config=rate=1")
    with RunningServer(repository, flags=flags) as server:
        assert server.get("/v2/trace/setting").json["trace_rate"] == "1"
        run(server, "answer(1)", id="r")
    assert request_ids(repository) == ["r"]
    assert "--trace-level is deprecated; use --trace-config level=<string>" in server.log


def test_a_level_without_a_file_is_said_to_trace_nothing(repository: Path) -> None:
    with RunningServer(repository, flags=("--trace-config=level=TIMESTAMPS", "--trace-config=rate=1")) as server:
        run(server, "answer(1)")
        assert server.get("/v2/trace/setting").json["trace_level"] == ["TIMESTAMPS"]
    assert "no request is traced: trace file name is not given" in server.log


def test_a_file_in_no_directory_is_told_at_once(repository: Path) -> None:
    flags = ("--trace-config=level=TIMESTAMPS", f"--trace-config=triton,file={repository / 'none' / 'trace.json'}")
    with pytest.raises(AssertionError, match="there is no such directory"), RunningServer(repository, flags=flags):
        pass
