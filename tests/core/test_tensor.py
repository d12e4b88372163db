"""The tensor noun and its two helpers."""

from __future__ import annotations

import pickle

import pytest

from pytriton_lite.core import dtypes
from pytriton_lite.core.tensor import PackedForm, Tensor, element_count, format_shape


@pytest.mark.parametrize(
    ("shape", "count"), [((), 1), ((4,), 4), ((2, 3), 6), ((5, 0, 7), 0), ((1 << 62, 1 << 62), 1 << 124)]
)
def test_elements_are_counted_without_overflow(shape: tuple[int, ...], count: int) -> None:
    assert element_count(shape) == count


@pytest.mark.parametrize(("shape", "text"), [((), "[]"), ((4,), "[4]"), ([-1, 4], "[-1,4]")])
def test_shapes_are_printed_without_blanks(shape: tuple[int, ...] | list[int], text: str) -> None:
    """http.md 7.7."""
    assert format_shape(shape) == text


def test_a_tensor_knows_its_size_before_its_bytes_are_there() -> None:
    assert Tensor("X", dtypes.FP32, (4,), b"0123456789abcdef").nbytes == 16
    announced = Tensor("X", dtypes.FP32, (4,), None, 16)
    assert (announced.nbytes, announced.data) == (16, None)


def test_an_empty_tensor_has_nothing_to_wait_for() -> None:
    """A request whose only binary tensors are empty ends with its header."""
    assert Tensor("X", dtypes.FP32, (0,), None, 0).data == b""


FORM = PackedForm([("A", dtypes.UINT8, (3,)), ("B", dtypes.UINT8, (0,))], [b"<a>", b"<b>"], [3, 0])


def test_packed_tensors_are_heads_and_bytes_in_turn() -> None:
    packed = FORM.pack([memoryview(b"xyz"), b""])
    assert (packed.data, packed.count, packed.nbytes, packed.form) == (b"<a>xyz<b>", 2, 3, FORM)
    assert FORM.pieces(packed.data) == [b"xyz", b""]
    assert [(t.name, t.datatype, t.shape, t.data) for t in packed.unpack()] == [
        ("A", dtypes.UINT8, (3,), b"xyz"),
        ("B", dtypes.UINT8, (0,), b""),
    ]


@pytest.mark.parametrize(
    ("data", "at", "begins"),
    [
        (b"<a>xyz<b>", 0, True),
        (b"..<a>xyz<b>..", 2, True),
        (b"<a>xyz<b", 0, False),
        (b"<a>xyz<c>", 0, False),
        (b"<a>xy<b>..", 0, False),
        (b"", 0, False),
    ],
)
def test_a_form_is_recognised_by_its_heads(data: bytes, at: int, begins: bool) -> None:
    assert FORM.begins(data, at) is begins


def test_a_form_is_not_recognised_where_the_last_bytes_are_missing() -> None:
    form = PackedForm([("A", dtypes.UINT8, (3,))], [b"<a>"], [3])
    assert [form.begins(b"<a>xyz"[:length], 0) for length in (6, 5)] == [True, False]


def test_another_process_gets_a_copy() -> None:
    """As the senders of ``bench`` do, to which compiled classes that did not say how could not be sent."""
    data = bytearray(b"\1\2")
    found = pickle.loads(pickle.dumps(Tensor("IN", dtypes.UINT8, (2,), memoryview(data))))
    assert (found.name, found.datatype, found.shape, found.data, found.nbytes) == ("IN", dtypes.UINT8, (2,), b"\1\2", 2)
