"""W3C contexts, and what is drawn and remembered of a trace in OpenTelemetry mode."""

from __future__ import annotations

import json

import pytest
from opentelemetry.trace import TraceState

from pytriton_lite.plugins.opentelemetry.spans import SpanTraces, parse_context, read_context, read_text

MANY = [",".join(f"k{number}=v" for number in range(33))]
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize("parent", [f"00-{TRACE}-{SPAN}-01", f" 00-{TRACE}-{SPAN}-00\t", f"01-{TRACE}-{SPAN}-01-more"])
def test_a_valid_context_is_a_parent(parent: str) -> None:
    found = parse_context(parent, "a=1,b=2")
    assert found is not None
    assert (f"{found.trace_id:032x}", f"{found.span_id:016x}") == (TRACE, SPAN)
    assert found.state == "a=1,b=2"


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
    ],
)
def test_an_invalid_context_is_none(parent: str) -> None:
    assert parse_context(parent, "") is None


def state_of(text: str) -> str:
    found = parse_context(f"00-{TRACE}-{SPAN}-01", text)
    assert found is not None
    return found.state


def test_a_state_that_is_too_long_is_not_passed_on() -> None:
    long = ",".join(f"k{number}={'v' * 250}" for number in range(16))
    assert [len(state_of(long + "," * (n - len(long)))) for n in (4096, 4097)] == [4096, 0]


@pytest.mark.parametrize("state", ["a=1", "a=1, b_-*/0= x~", ",a=1,\t,", "0t@vendor=1", f"a={'v' * 256}"])
def test_what_opentelemetry_takes_for_a_state_is_one(state: str) -> None:
    assert state_of(state) == state
    assert TraceState.from_header([state])


@pytest.mark.parametrize("state", ["a", "=1", "A=1", "a=", "a=1,a=2", "a=\xe4", f"a={'v' * 257}", "b=1,@v=1", *MANY])
def test_a_state_that_opentelemetry_would_complain_about_is_not_passed_on(state: str) -> None:
    assert state_of(state) == ""


def test_headers_without_a_context_have_none() -> None:
    assert read_context({}.get) is None
    assert read_context({b"tracestate": b"a=1"}.get) is None
    assert read_context({b"traceparent": f"00-{TRACE}-{SPAN}-01".encode()}.get) is not None


@pytest.mark.parametrize(
    "text", ["", "7", "[]", "null", "{}", '{"traceparent": 5}', "{", pytest.param("[" * 30_000, id="deep")]
)
def test_what_a_model_gives_back_may_be_anything(text: str) -> None:
    assert read_text(text) is None


def test_a_trace_goes_on_where_its_parent_says() -> None:
    parent = parse_context(f"00-{TRACE}-{SPAN}-01", "a=1")
    trace = SpanTraces().begin(parent)
    assert trace.trace_id == int(TRACE, 16)
    assert len({trace.request_id, trace.model_id, trace.compute_id}) == 3
    context = json.loads(trace.context)
    assert context == {"traceparent": f"00-{TRACE}-{trace.compute_id:016x}-01", "tracestate": "a=1"}
    again = read_text(trace.context)
    assert again is not None and again.span_id == trace.compute_id


def test_a_trace_without_a_parent_draws_ids_of_its_own() -> None:
    traces = SpanTraces()
    first, second = traces.begin(None), traces.begin(None)
    assert first.trace_id != second.trace_id
    assert (first.number, second.number, first.parent_id) == (1, 2, None)
    assert "tracestate" not in json.loads(first.context)
