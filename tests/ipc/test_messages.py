"""The messages: whatever one side writes, the other reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, ProtocolError
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import FrameReader
from pytriton_lite.ipc.messages import (
    INLINE_BYTES,
    Answer,
    BatchResult,
    Kind,
    Place,
    RequestMessage,
    SegmentKind,
    SpecTable,
    TensorRef,
)

U16 = st.integers(0, (1 << 16) - 1)
U32 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)
DIMS = st.integers(0, (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ANY_TEXT = st.text(st.characters())
"""Lone surrogates, too: Python's text may have them, and a model may ask for an output of such a name."""
ANY_BYTES_AS_TEXT = st.binary(max_size=20).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
"""What a front end makes of ids and parameters that are no UTF-8."""

SPECS = st.tuples(TEXT, st.sampled_from(dtypes.ALL), st.lists(DIMS, max_size=5).map(tuple))


@dataclass(frozen=True)
class TensorPlan:
    spec: messages.Spec
    place: Place
    data: bytes = b""
    segment: int = 0
    slot: int = 0
    offset: int = 0
    nbytes: int = 0

    def put(self, parts: list[bytes], specs: SpecTable) -> None:
        spec = specs.encode(*self.spec)
        if self.place is Place.INLINE:
            messages.put_inline(parts, spec, self.data)
        else:
            messages.put_reference(
                parts,
                spec,
                place=self.place,
                segment=self.segment,
                slot=self.slot,
                offset=self.offset,
                nbytes=self.nbytes,
            )


INLINE = st.builds(TensorPlan, SPECS, st.just(Place.INLINE), st.binary(max_size=50))
REFERENCES = st.builds(
    TensorPlan,
    SPECS,
    st.sampled_from([Place.SLOT, Place.INPUT]),
    segment=U32,
    slot=U64,
    offset=U64,
    nbytes=U64,
)
TENSORS = st.lists(INLINE | REFERENCES, max_size=4)


def plan_of(ref: TensorRef) -> TensorPlan:
    spec = (ref.name, ref.datatype, ref.shape)
    if ref.place == Place.INLINE:
        assert ref.inline is not None
        assert len(ref.inline) == ref.nbytes
        return TensorPlan(spec, Place.INLINE, bytes(ref.inline))
    assert ref.inline is None
    return TensorPlan(spec, Place(ref.place), b"", ref.segment, ref.slot, ref.offset, ref.nbytes)


REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "request_id": ANY_BYTES_AS_TEXT,
        "correlation_id": U64 | TEXT.filter(bool),
        "timeout_us": U64,
        "sequence_flags": U32,
        "parameters_json": ANY_BYTES_AS_TEXT,
        "outputs_mask": st.integers(0, 1 << 200),
        "windows": st.lists(st.tuples(st.integers(0, 0xFFFF), U32, U64, U64), max_size=2),
        "trace_context": st.text("0123456789abcdef-", max_size=60),
    },
)
NOTHING_SAID: dict[str, Any] = {
    "request_id": "",
    "correlation_id": 0,
    "timeout_us": 0,
    "sequence_flags": 0,
    "parameters_json": "",
    "outputs_mask": 0,
    "windows": [],
    "trace_context": "",
}

BATCHES = st.lists(st.tuples(U64, st.lists(st.tuples(REQUESTS, TENSORS), max_size=3)), max_size=3)


def body_of(data: bytes, kind: Kind) -> memoryview:
    reader = FrameReader()
    ((found, body),) = reader.feed(data)
    assert found == kind
    assert reader.is_between_frames
    return body


def said(message: RequestMessage) -> dict[str, Any]:
    return {name: getattr(message, name) for name in NOTHING_SAID}


@pytest.mark.parametrize("inputs", [0, 1, 64, 65, 300])
def test_the_head_of_a_request_that_says_nothing_is_like_any_other(inputs: int) -> None:
    ready: list[bytes] = []
    messages.put_plain_request(ready, inputs)
    made: list[bytes] = []
    messages.put_request(made, **NOTHING_SAID, input_count=inputs)
    assert b"".join(ready) == b"".join(made)


@settings(max_examples=200)
@given(BATCHES)
def test_execute_arrives_as_it_was_sent(
    batches: list[tuple[int, list[tuple[dict[str, Any], list[TensorPlan]]]]],
) -> None:
    specs = SpecTable()
    parts: list[bytes] = []
    for number, requests in batches:
        messages.put_batch(parts, number, len(requests))
        for fields, tensors in requests:
            messages.put_request(parts, **{**NOTHING_SAID, **fields}, input_count=len(tensors))
            for tensor in tensors:
                tensor.put(parts, specs)
    body = body_of(messages.execute_frame(len(batches), parts), Kind.EXECUTE)
    assert [
        (number, [(said(request), [plan_of(ref) for ref in request.inputs]) for request in requests])
        for number, requests in messages.read_execute(body, SpecTable())
    ] == [
        (number, [({**NOTHING_SAID, **fields}, tensors) for fields, tensors in requests])
        for number, requests in batches
    ]


TIMES = st.tuples(U64, U64, U64, U64)
ANSWERS = st.tuples(TENSORS, ANY_BYTES_AS_TEXT) | st.tuples(st.sampled_from(ErrorCode), TEXT)
RESULTS = st.lists(st.tuples(U64, TIMES, st.lists(ANSWERS, max_size=3), TEXT), max_size=3)


def shown(answer: Answer) -> tuple[object, str]:
    if answer.error is not None:
        assert answer.outputs == []
        return answer.error
    return [plan_of(ref) for ref in answer.outputs], answer.parameters_json


def heads(result: BatchResult) -> tuple[object, ...]:
    return (result.taken_ns, result.inputs_ns, result.executed_ns, result.placed_ns)


@settings(max_examples=200)
@given(RESULTS)
def test_result_arrives_as_it_was_sent(results: list[tuple[int, tuple[int, ...], list[tuple[Any, str]], str]]) -> None:
    specs = SpecTable()
    parts: list[bytes] = []
    for number, (taken, inputs, executed, placed), answers, failure in results:
        messages.put_result(
            parts,
            number,
            taken_ns=taken,
            inputs_ns=inputs,
            executed_ns=executed,
            placed_ns=placed,
            answers=len(answers),
            failure=failure,
        )
        for first, text in answers:
            if isinstance(first, ErrorCode):
                messages.put_error(parts, first, text)
            else:
                messages.put_answer(parts, outputs=len(first), parameters_json=text)
                for tensor in first:
                    tensor.put(parts, specs)
    body = body_of(messages.result_frame(len(results), parts), Kind.RESULT)
    assert [
        (result.number, heads(result), [shown(answer) for answer in result.answers], result.failure)
        for result in messages.read_result(body, SpecTable())
    ] == results


@given(st.lists(U64, max_size=20))
def test_releases_arrive(slots: list[int]) -> None:
    assert messages.read_release(body_of(messages.release_frame(slots), Kind.RELEASE)) == tuple(slots)


@given(U32, U64, st.booleans())
def test_segments_come_and_go(segment_id: int, nbytes: int, is_region: bool) -> None:
    announced = messages.segment_frame(segment_id, nbytes, is_region=is_region)
    kind = SegmentKind.REGION if is_region else SegmentKind.HOST
    assert messages.read_segment(body_of(announced, Kind.SEGMENT)) == (segment_id, nbytes, kind, b"", b"")
    assert messages.read_drop(body_of(messages.drop_frame(segment_id), Kind.DROP)) == segment_id


@given(U32, U64, st.binary(min_size=16, max_size=16), st.binary(min_size=64, max_size=64) | st.just(b""))
def test_segments_of_devices_say_whose_and_how(segment_id: int, nbytes: int, uuid: bytes, handle: bytes) -> None:
    announced = messages.device_segment_frame(segment_id, nbytes, uuid, handle)
    kind = SegmentKind.DEVICE_REGION if handle else SegmentKind.DEVICE
    assert messages.read_segment(body_of(announced, Kind.SEGMENT)) == (segment_id, nbytes, kind, uuid, handle)


def test_a_segment_of_a_kind_that_there_is_not_is_refused() -> None:
    body = bytearray(body_of(messages.segment_frame(1, 4096), Kind.SEGMENT))
    body[4] = 9
    with pytest.raises(ProtocolError, match="kind 9"):
        messages.read_segment(memoryview(body))


@given(st.binary(min_size=16, max_size=16) | st.just(b""))
def test_the_uuid_of_a_device_fits_into_a_window(uuid: bytes) -> None:
    found = messages.uuid_of_numbers(*messages.uuid_numbers(uuid))
    assert found == (uuid if any(uuid) else b"")


@given(st.booleans(), st.binary(min_size=16, max_size=16) | st.just(b""), st.lists(ANY_TEXT))
def test_a_call_says_which_outputs_and_where_they_are_to_be(
    prefers_host: bool, device: bytes, names: list[str]
) -> None:
    parts: list[bytes] = []
    messages.put_call(
        parts,
        1,
        model_name="m",
        version=-1,
        waiting_batch=0,
        is_decoupled=False,
        is_in_execute=True,
        requested_outputs=names,
        prefers_host=prefers_host,
        preferred_device=device,
    )
    messages.put_plain_request(parts, 0)
    call = messages.read_call(body_of(messages.call_frame(parts), Kind.CALL), SpecTable())
    assert (call.prefers_host, call.preferred_device) == (prefers_host, device if any(device) else b"")
    assert (call.is_in_execute, call.requested_outputs) == (True, names)


@settings(max_examples=200)
@given(st.lists(st.tuples(REQUESTS, TENSORS), max_size=4))
def test_calls_arrive_as_they_were_sent(calls: list[tuple[dict[str, Any], list[TensorPlan]]]) -> None:
    """Inputs that are all in the message stay packed, also where those of the call before were the same."""
    specs = SpecTable()
    for fields, tensors in [call for call in calls for _ in range(3)]:
        parts: list[bytes] = []
        messages.put_call(
            parts,
            1,
            model_name="m",
            version=-1,
            waiting_batch=0,
            is_decoupled=False,
            is_in_execute=True,
            requested_outputs=[],
        )
        messages.put_request(parts, **{**NOTHING_SAID, **fields}, input_count=len(tensors))
        for tensor in tensors:
            tensor.put(parts, SpecTable())
        call = messages.read_call(body_of(messages.call_frame(parts), Kind.CALL), specs)
        assert said(call.request) == {**NOTHING_SAID, **fields}
        if call.packed is None:
            assert any(tensor.place is not Place.INLINE for tensor in tensors)
            assert [plan_of(ref) for ref in call.request.inputs] == tensors
        else:
            assert call.request.inputs == []
            assert (call.packed.count, call.packed.nbytes) == (len(tensors), sum(len(plan.data) for plan in tensors))
            found = [(t.name, t.datatype, t.shape, t.data) for t in call.packed.unpack()]
            assert found == [(*tensor.spec, tensor.data) for tensor in tensors]


@given(st.sampled_from(ErrorCode), TEXT)
def test_a_failed_start_tells_code_and_text(code: ErrorCode, text: str) -> None:
    assert messages.read_failed(body_of(messages.failed_frame(code, text), Kind.FAILED)) == (code, text)


@given(st.integers(0, 3), TEXT, U32, TEXT, TEXT)
def test_log_lines_arrive(level: int, filename: str, line: int, text: str, request_id: str) -> None:
    data = messages.log_frame(level, filename, line, text, request_id)
    assert messages.read_log(body_of(data, Kind.LOG)) == (level, filename, line, text, request_id)


@pytest.mark.parametrize(
    "data",
    [
        messages.failed_frame(ErrorCode.INTERNAL, "a \udc80 b"),
        messages.log_frame(0, "file", 1, "a \udc80 b"),
    ],
    ids=["FAILED", "LOG"],
)
def test_texts_of_a_model_that_are_no_unicode_still_arrive(data: bytes) -> None:
    ((_, body),) = FrameReader().feed(data)
    assert bytes(body).endswith(b"a ? b")


def test_the_handshake_tells_the_pid_and_refuses_another_version() -> None:
    assert messages.read_hello(body_of(messages.hello_frame(4711), Kind.HELLO)) == 4711
    newer = messages._HELLO.pack(messages.VERSION + 1, 4711)
    with pytest.raises(ProtocolError, match=f"version {messages.VERSION + 1} of the messages, the engine"):
        messages.read_hello(memoryview(newer))


def test_a_tensor_may_come_from_any_buffer() -> None:
    for data in (b"abcd", bytearray(b"abcd"), memoryview(b"abcd")):
        parts: list[bytes] = []
        messages.put_inline(parts, SpecTable().encode("X", dtypes.UINT8, (4,)), data)
        assert b"".join(parts).endswith(b"abcd")


@pytest.mark.interpreted("tuples are compared by identity")
def test_specs_are_remembered_and_the_table_does_not_grow_without_end() -> None:
    table = SpecTable()
    encoded = table.encode("X", dtypes.FP32, (0,))
    decoded = table.decode(encoded)
    assert table.encode("X", dtypes.FP32, (0,)) is encoded
    assert table.decode(encoded) is decoded
    for size in range(1, messages._LARGEST_TABLE + 1):
        table.decode(table.encode("X", dtypes.FP32, (size,)))
    assert max(len(table._encoded), len(table._decoded)) <= messages._LARGEST_TABLE
    assert table.encode("X", dtypes.FP32, (0,)) == encoded
    assert table.decode(encoded) == decoded


# ---------------------------------------------------------------------------------------------- forms


def packed_bytes(*tensors: tuple[str, tuple[int, ...], bytes]) -> bytes:
    parts: list[bytes] = []
    specs = SpecTable()
    for name, shape, data in tensors:
        messages.put_inline(parts, specs.encode(name, dtypes.UINT8, shape), data)
    return b"".join(parts)


def test_tensors_that_come_a_second_time_have_a_form_from_then_on() -> None:
    specs = SpecTable()
    forms = []
    for data in (b"abc", b"def", b"ghi", b"jkl"):
        body = b"head" + packed_bytes(("A", (3,), data), ("B", (1,), data[:1])) + b"tail"
        end, nbytes, form = specs.measure(body, 4, 2)
        assert (end, nbytes) == (len(body) - 4, 4)
        forms.append(form)
        if form is not None:
            assert form.pieces(body[4:end]) == [data, data[:1]]
            assert form.tensors == [("A", dtypes.UINT8, (3,)), ("B", dtypes.UINT8, (1,))]
    assert forms[:2] == [None, None]
    assert forms[2] is not None and forms[2] is forms[3]


@pytest.mark.parametrize(
    "other",
    [
        [("A", (3,), b"abc")],
        [("A", (3,), b"abc"), ("B", (2,), b"ab")],
        [("A", (3,), b"abc"), ("C", (1,), b"a")],
        [("A", (3,), b"abc"), ("B", (1,), b"a"), ("D", (0,), b"")],
    ],
)
def test_other_tensors_have_no_form_of_those_before(other: list[tuple[str, tuple[int, ...], bytes]]) -> None:
    specs = SpecTable()
    usual = packed_bytes(("A", (3,), b"abc"), ("B", (1,), b"a"))
    for _ in range(3):
        _, _, form = specs.measure(usual, 0, 2)
    assert form is not None
    body = packed_bytes(*other)
    end, nbytes, found = specs.measure(body, 0, len(other))
    assert (end, nbytes, found) == (len(body), sum(len(data) for _, _, data in other), None)
    assert [(t.name, t.shape, t.data) for t in specs.unpack(body, len(other))] == other


def test_tensors_of_a_known_form_that_are_cut_off_are_refused() -> None:
    specs = SpecTable()
    usual = packed_bytes(("A", (3,), b"abc"))
    for _ in range(3):
        specs.measure(usual, 0, 1)
    with pytest.raises(ProtocolError):
        specs.measure(usual[:-1], 0, 1)


@given(st.lists(st.tuples(SPECS, st.binary(max_size=50)), max_size=5))
def test_what_a_form_packs_is_what_is_put_tensor_by_tensor(plans: list[tuple[messages.Spec, bytes]]) -> None:
    form = messages.form_of([Tensor(*spec, data) for spec, data in plans])
    assert form is not None
    parts: list[bytes] = []
    for spec, data in plans:
        messages.put_inline(parts, SpecTable().encode(*spec), data)
    packed = form.pack([data for _, data in plans])
    assert packed.data == b"".join(parts)
    assert (len(packed.data), packed.nbytes) == (form.length, form.nbytes)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("A", (1 << 63,)), ("A", (0, (1 << 64) - 1)), ("A", (1,) * 256), ("A" * 65_536, (1,)), ("ä" * 40_000, (1,))],
    ids=["a large dim", "the largest dim", "many dims", "a long name", "a name that is long as UTF-8"],
)
def test_what_no_message_can_say_has_no_form(name: str, shape: tuple[int, ...]) -> None:
    assert messages.form_of([Tensor(name, dtypes.UINT8, shape, b"")]) is None


def test_what_is_too_large_for_a_message_has_no_form() -> None:
    small, large = (Tensor("A", dtypes.UINT8, (n,), bytes(n)) for n in (INLINE_BYTES, INLINE_BYTES + 1))
    assert messages.form_of([small]) is not None
    assert messages.form_of([small, large]) is None
    assert messages.form_of([Tensor("A", dtypes.UINT8, (1,), None, 1, home=(object(), 0))]) is None
