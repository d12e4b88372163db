"""What models may give where a text, a number, a truth or a list is asked for: what Triton 2.51 takes, and no more."""

from __future__ import annotations

import enum
from collections import deque
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from pytriton_lite.worker.arguments import Unfit, integer, items, text, truth
from pytriton_lite.worker.pb_utils import (
    TRITONSERVER_MEMORY_CPU,
    InferenceRequest,
    InferenceResponse,
    MetricFamily,
    PreferredMemory,
    Tensor,
    TritonError,
)


class Flag(enum.IntEnum):
    A = 1


@pytest.mark.parametrize("value", ["é", "é".encode(), bytearray("é".encode()), np.bytes_("é".encode()), np.str_("é")])
def test_a_text_is_a_str_or_bytes(value: object) -> None:
    assert text(value) == "é"
    assert type(text(value)) is str


def test_bytes_must_be_utf8() -> None:
    with pytest.raises(UnicodeDecodeError):
        text(b"\xff")


@pytest.mark.parametrize("value", [None, 5, ["a"], np.array("a")], ids=repr)
def test_other_things_are_no_text(value: object) -> None:
    with pytest.raises(Unfit):
        text(value)


@pytest.mark.parametrize(
    "value", [5, np.int64(5), np.uint8(5), np.array(5), np.float32(5.7), Decimal("5.7"), Flag.A + 4], ids=repr
)
def test_an_integer_is_any_number_but_a_float(value: object) -> None:
    assert integer(value, bits=32) == 5
    assert type(integer(value, bits=32)) is int


@pytest.mark.parametrize("value", [True, Flag.A, np.True_], ids=repr)
def test_a_truth_is_an_integer(value: object) -> None:
    assert integer(value, bits=32) == 1


@pytest.mark.parametrize(
    "value", [None, 5.0, np.float64(5), "5", b"5", [5], np.array([5, 6]), np.float32("nan")], ids=repr
)
def test_other_things_are_no_integer(value: object) -> None:
    with pytest.raises(Unfit):
        integer(value, bits=32)


@pytest.mark.parametrize(
    ("value", "fields", "fits"),
    [
        (-1, {"bits": 32}, False),
        (0, {"bits": 32}, True),
        ((1 << 32) - 1, {"bits": 32}, True),
        (1 << 32, {"bits": 32}, False),
        (-(1 << 63), {"bits": 64, "is_signed": True}, True),
        (1 << 63, {"bits": 64, "is_signed": True}, False),
        (np.int64(-1), {"bits": 64}, False),
    ],
)
def test_an_integer_must_fit(value: Any, fields: dict[str, Any], fits: bool) -> None:
    if fits:
        assert integer(value, **fields) == value
    else:
        with pytest.raises(Unfit):
            integer(value, **fields)


@pytest.mark.parametrize(
    ("value", "meant"),
    [(True, True), (1, True), (2.5, True), (np.True_, True), (np.array([True]), True), (0, False), (np.False_, False)],
    ids=repr,
)
def test_numbers_are_true_or_false(value: object, meant: bool) -> None:
    assert truth(value) is meant


@pytest.mark.parametrize("value", [None, "yes", [], np.array([True, False])], ids=repr)
def test_other_things_are_neither_true_nor_false(value: object) -> None:
    with pytest.raises(Unfit):
        truth(value)


@pytest.mark.parametrize("value", [["a"], ("a",), np.array(["a"]), deque("a")], ids=repr)
def test_items_are_those_of_lists_and_their_like(value: object) -> None:
    assert list(items(value)) == ["a"]


@pytest.mark.parametrize(
    "value", [None, "a", b"a", bytearray(b"a"), {"a": 1}, {"a"}, iter("a"), np.array("a")], ids=type
)
def test_other_things_have_no_items(value: object) -> None:
    with pytest.raises(Unfit):
        items(value)


# ---------------------------------------------------------------------------------------------- where models give them


def test_a_call_may_be_built_of_what_arrays_hold() -> None:
    """As the BLS example of Triton's Python backend does: an element of a string tensor is bytes."""
    name = np.array([b"add_sub"], dtype=object)
    request = InferenceRequest(
        request_id=b"id",
        inputs=np.array([Tensor("IN", np.zeros(1)), None], dtype=object)[:1],
        requested_output_names=np.array([b"OUT"], dtype=object),
        model_name=name[0],
        model_version=np.int64(1),
        flags=np.uint32(3),
        timeout=np.int64(5),
        correlation_id=np.str_("seven"),
        preferred_memory=PreferredMemory(TRITONSERVER_MEMORY_CPU, np.int64(0)),
    )
    request.set_release_flags(np.int64(1))
    assert (request.request_id(), request.flags(), request.timeout()) == ("id", 3, 5)
    assert request.requested_output_names() == {"OUT"}
    assert [tensor.name() for tensor in request.inputs()] == ["IN"]
    assert type(request.correlation_id()) is str
    request.set_flags(np.int64(1))
    assert request.flags() == 1


def test_a_truth_for_a_correlation_id_is_a_number() -> None:
    request = InferenceRequest(correlation_id=True, inputs=[], requested_output_names=[], model_name="m")
    assert repr(request.correlation_id()) == "1"


def test_a_model_version_of_more_than_64_bits_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="incompatible constructor arguments"):
        InferenceRequest(inputs=[], requested_output_names=[], model_name="m", model_version=1 << 63)


def test_names_and_messages_may_be_bytes() -> None:
    assert TritonError(b"gone").message() == "gone"
    assert Tensor(bytearray(b"OUT"), np.zeros(1)).name() == "OUT"
    family = MetricFamily(b"bytes_total", b"Named by bytes", MetricFamily.COUNTER)
    assert family.Metric().value() == 0


def test_outputs_may_stand_in_an_array() -> None:
    outputs = np.array([Tensor("A", np.zeros(1)), Tensor("B", np.zeros(1))], dtype=object)
    assert [tensor.name() for tensor in InferenceResponse(outputs).output_tensors()] == ["A", "B"]
