"""A short run of the fuzzer, which `make fuzz` runs for longer, and its own rules: they must see what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fuzz.fuzz_campaign import run_campaign
from tests.fuzz.fuzz_models import CONTROL, valid_http_requests
from tests.fuzz.fuzz_rules import Vitals, check_error, check_grpc, check_http, check_log
from tests.fuzz.fuzz_wire import Case, Ending, Finding, GrpcAnswer, HttpAnswer

SEED = 20


def test_a_short_run_finds_nothing(tmp_path: Path) -> None:
    lines: list[str] = []
    (tmp_path / "server").mkdir()
    found = run_campaign(
        tmp_path / "server", requests=3000, seed=SEED, jobs=2, corpus=tmp_path / "findings", say=lines.append
    )
    assert found == 0, "\n".join(lines)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (500, "internal error of the server; its log has the details"),
        (500, "Traceback"),
        (500, "failed to parse"),
        (503, "Stub process 'add_sub_0_0' is not healthy."),
        (400, ""),
    ],
)
def test_an_error_that_tells_of_a_fault_is_seen(status: int, text: str) -> None:
    with pytest.raises(Finding):
        check_error(status, text)


@pytest.mark.parametrize(
    "text",
    [
        "failed to parse the request JSON buffer: The document is empty. at 0",
        "Unable to parse 'shape': attempt to access JSON non-array as array",
        "failed to load 'nope', failed to poll from model repository",
    ],
)
def test_a_500_of_the_specification_is_none(text: str) -> None:
    check_error(500, text)


def answer(status: int, body: bytes, **headers: str) -> HttpAnswer:
    return HttpAnswer(status, {name.replace("_", "-"): value for name, value in headers.items()}, body)


@pytest.mark.parametrize(
    "bad",
    [
        answer(502, b'{"error":"x"}'),
        answer(404, b"Not Found"),
        answer(400, b'{"error":1}'),
        answer(400, b'{"detail":"x"}'),
        answer(200, b"{", content_type="application/json"),
        answer(200, b'{"outputs":[]}xx', inference_header_content_length="14"),
        answer(200, b"data: {}\n\n", content_type="text/event-stream; charset=utf-8"),
    ],
    ids=lambda bad: f"{bad.status} {bad.body[:12]!r}",
)
def test_an_answer_that_no_client_understands_is_seen(bad: HttpAnswer) -> None:
    with pytest.raises(Finding):
        check_http(bad, "POST")


@pytest.mark.parametrize("bad", [GrpcAnswer(13, "KeyError: 'x'"), GrpcAnswer(None, "bug", error_code=2)])
def test_a_call_that_tells_of_a_fault_is_seen(bad: GrpcAnswer) -> None:
    with pytest.raises(Finding):
        check_grpc(bad)


def test_what_the_log_should_not_have_is_seen() -> None:
    check_log('E1121 19:28:31.906608 1 infer.py:93] "Poll failed for model directory"')
    with pytest.raises(Finding, match="was never awaited"):
        check_log("RuntimeWarning: coroutine 'x' was never awaited")


def test_growth_and_dead_workers_are_seen() -> None:
    before = Vitals(descriptors=10, threads=2, tasks=1, resident_mib=60, workers=(7,))
    Vitals(descriptors=11, threads=4, tasks=1, resident_mib=70, workers=(7,)).check_growth(before)
    for worse in (
        Vitals(descriptors=400, threads=2, tasks=1, resident_mib=60, workers=(7,)),
        Vitals(descriptors=10, threads=2, tasks=100, resident_mib=60, workers=(7,)),
        Vitals(descriptors=10, threads=2, tasks=1, resident_mib=600, workers=(7,)),
        Vitals(descriptors=10, threads=2, tasks=1, resident_mib=60, workers=(8,)),
    ):
        with pytest.raises(Finding):
            worse.check_growth(before)


def test_a_case_comes_back_from_its_file_as_it_was() -> None:
    case = Case("timing", "http", tuple(valid_http_requests()), Ending.ANSWERED, ("POST",), pauses=True, model="m")
    assert Case.from_json(json.loads(json.dumps(case.as_json()))) == case
    assert CONTROL in case.pieces
