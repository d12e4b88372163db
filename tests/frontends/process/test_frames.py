"""What goes between the engine and a front end comes back as it was."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError, ProtocolError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.frontends.process import frames
from pytriton_lite.frontends.process.frames import Checked, ExtrasTable, Reply
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import FrameReader, frame
from pytriton_lite.ipc.messages import SpecTable

CHECKED = Checked(model=3, stamp=1 << 40, batch_size=5, has_shape_key=True, is_decoupled=True)
TEXT = st.text(st.characters(blacklist_categories=()), max_size=20)
TENSORS = st.lists(
    st.tuples(st.text(min_size=1, max_size=5), st.lists(st.integers(0, 5), max_size=3)).map(
        lambda drawn: Tensor(drawn[0], dtypes.UINT8, tuple(drawn[1]), bytes(_count(drawn[1])))
    ),
    max_size=3,
)
PARAMETERS = st.dictionaries(
    st.text(max_size=5),
    st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)),
    max_size=3,
)


def _count(shape: list[int]) -> int:
    count = 1
    for dim in shape:
        count *= dim
    return count


def body_of(data: bytes, kind: int) -> memoryview:
    ((found, body),) = FrameReader().feed(data)
    assert found == kind
    return body


def put_tensors(parts: list[bytes], tensors: list[Tensor], specs: SpecTable) -> None:
    for tensor in tensors:
        messages.put_inline(parts, specs.encode(tensor.name, tensor.datatype, tensor.shape), tensor.data)


def same(refs: list[messages.TensorRef], tensors: list[Tensor]) -> bool:
    return [(ref.name, ref.datatype, ref.shape, bytes(ref.inline or b"")) for ref in refs] == [
        (tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data or b"")) for tensor in tensors
    ]


@given(
    inputs=TENSORS,
    request_id=TEXT,
    version=st.one_of(st.none(), st.integers(0, (1 << 63) - 1)),
    outputs=st.lists(st.text(max_size=5), max_size=3),
    parameters=PARAMETERS,
    correlation=st.one_of(st.integers(0, (1 << 64) - 1), st.text(max_size=9)),
    flags=st.integers(0, 3),
    priority=st.integers(0, (1 << 64) - 1),
    timeout=st.integers(0, (1 << 64) - 1),
    timeline=st.integers(0, (1 << 53)),
    windows=st.lists(
        st.tuples(st.text(max_size=3), st.integers(1, 9), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
    ),
    classes=st.one_of(st.none(), st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2)),
)
def test_a_request_comes_as_it_was_sent(
    inputs: list[Tensor],
    request_id: str,
    version: int | None,
    outputs: list[str],
    parameters: dict[str, Any],
    correlation: int | str,
    flags: int,
    priority: int,
    timeout: int,
    timeline: int,
    windows: list[tuple[str, int, int, int]],
    classes: dict[str, int] | None,
) -> None:
    request = InferenceRequest(
        "m",
        version,
        request_id=request_id.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape"),
        inputs=inputs,
        requested_outputs=outputs,
        parameters=parameters,
        correlation_id=correlation,
        sequence_flags=flags,
        priority=priority,
        timeout_us=timeout,
        classes=classes,
    )
    table, specs = ExtrasTable(), SpecTable()
    for _ in range(2):  # what was remembered of the first is right for the second
        parts: list[bytes] = []
        frames.put_call(parts, 7, CHECKED, request, table.encode(request, timeline, windows))
        put_tensors(parts, inputs, specs)
        theirs = SpecTable()
        body = bytes(body_of(frame(frames.CALL, parts), frames.CALL))
        call = frames.read_call(body)
        assert (call.model, call.stamp, call.batch_size) == (CHECKED.model, CHECKED.stamp, CHECKED.batch_size)
        assert (call.has_shape_key, call.is_decoupled) == (CHECKED.has_shape_key, CHECKED.is_decoupled)
        assert (call.number, call.request_id) == (7, request.request_id)
        assert call.version == (-1 if version is None else version)
        assert same(frames.read_inputs(body, call, theirs), inputs)
        end, nbytes, _ = theirs.measure(body, call.at, call.tensors)
        packed = theirs.unpack(body[call.at : end], call.tensors)
        assert [(t.name, t.datatype, t.shape, bytes(t.data or b"")) for t in packed] == [
            (t.name, t.datatype, t.shape, bytes(t.data or b"")) for t in inputs
        ]
        assert (end, nbytes) == (len(body), sum(tensor.nbytes for tensor in inputs))
        extras = table.decode(call.extras) if call.extras else frames.Extras({})
        assert (extras.requested_outputs, extras.parameters, extras.correlation_id or 0) == (
            outputs,
            parameters,
            correlation or 0,
        )
        assert (extras.sequence_flags, extras.priority, extras.timeout_us) == (flags, priority, timeout)
        assert (extras.timeline, extras.windows, extras.classes) == (timeline, windows, classes)


def test_a_plain_request_carries_nothing_more_than_its_tensors() -> None:
    request = InferenceRequest("m", None, inputs=[])
    assert ExtrasTable().encode(request, 0, []) == b""
    parts: list[bytes] = []
    frames.put_call(parts, 1, CHECKED, request, b"")
    call = frames.read_call(bytes(body_of(frame(frames.CALL, parts), frames.CALL)))
    assert (call.number, call.version, call.request_id, call.extras, call.tensors) == (1, -1, "", b"", 0)


def test_tensors_that_are_elsewhere_are_no_tensors_to_hand_on() -> None:
    parts: list[bytes] = []
    frames.put_call(
        parts, 1, CHECKED, InferenceRequest("m", None, inputs=[Tensor("a", dtypes.UINT8, (3,), b"abc")]), b""
    )
    specs = SpecTable()
    spec = specs.encode("a", dtypes.UINT8, (3,))
    messages.put_reference(parts, spec, place=messages.Place.SLOT, segment=1, slot=2, offset=64, nbytes=3)
    body = bytes(body_of(frame(frames.CALL, parts), frames.CALL))
    call = frames.read_call(body)
    assert specs.measure(body, call.at, call.tensors) == (len(body), -1, None)
    (ref,) = frames.read_inputs(body, call, specs)
    assert (ref.segment, ref.slot, ref.offset, ref.nbytes) == (1, 2, 64, 3)


@pytest.mark.parametrize("damage", [lambda body: body[:-1], lambda body: body[:56] + b"\xff" * 40 + body[96:]])
def test_what_is_no_tensor_is_found_when_it_comes(damage: Callable[[bytes], bytes]) -> None:
    parts: list[bytes] = []
    frames.put_call(
        parts, 1, CHECKED, InferenceRequest("m", None, inputs=[Tensor("a", dtypes.UINT8, (3,), b"abc")]), b""
    )
    put_tensors(parts, [Tensor("a", dtypes.UINT8, (3,), b"abc")], SpecTable())
    body = damage(b"".join(parts))
    with pytest.raises((ProtocolError, struct.error, ValueError, KeyError, IndexError, UnicodeError)):
        call = frames.read_call(body)
        SpecTable().measure(body, call.at, call.tensors)


def read_reply(parts: list[bytes]) -> Reply:
    return frames.read_reply(body_of(frame(frames.REPLY, parts), frames.REPLY), SpecTable())


@given(outputs=TENSORS, parameters=PARAMETERS, is_final=st.booleans(), version=st.integers(1, 1 << 40))
def test_a_response_comes_as_it_was_sent(
    outputs: list[Tensor], parameters: dict[str, Any], is_final: bool, version: int
) -> None:
    parts: list[bytes] = []
    response = InferenceResponse("m", version, "id", outputs, parameters)
    frames.put_response(parts, 9, response, is_final=is_final)
    put_tensors(parts, outputs, SpecTable())
    reply = read_reply(parts)
    assert (reply.number, reply.version, reply.parameters, reply.is_final) == (9, version, parameters, is_final)
    assert not reply.outputs
    packed = [] if reply.packed is None else reply.packed.unpack()
    assert [(t.name, t.datatype, t.shape, bytes(t.data or b"")) for t in packed] == [
        (t.name, t.datatype, t.shape, bytes(t.data or b"")) for t in outputs
    ]
    assert reply.error is None
    assert not reply.is_empty


@given(text=TEXT, code=st.sampled_from(list(ErrorCode)), retry=st.one_of(st.none(), st.floats(0, 100)))
def test_an_error_comes_as_it_was_sent(text: str, code: ErrorCode, retry: float | None) -> None:
    parts: list[bytes] = []
    frames.put_failure(parts, 9, InferenceError(code, text, retry_after_s=retry), is_final=True)
    reply = read_reply(parts)
    assert reply.error is not None
    assert (reply.error.code, reply.error.message, reply.error.retry_after_s) == (code, text, retry)


@pytest.mark.parametrize("is_final", [True, False])
def test_an_end_without_a_response_is_no_response(is_final: bool) -> None:
    parts: list[bytes] = []
    frames.put_failure(parts, 9, None, is_final=is_final)
    reply = read_reply(parts)
    assert (reply.is_empty, reply.is_final, reply.error) == (True, is_final, None)


def test_what_a_front_end_says_is_no_code() -> None:
    """JSON with bytes behind it: a front end speaks with the world."""
    number, what, data = frames.read_said(body_of(frames.said_frame(frames.ASK, 5, ["a", 1], b"\x80\x04"), frames.ASK))
    assert (number, what, bytes(data)) == (5, ["a", 1], b"\x80\x04")
