"""BYTES tensors on the wire. The texts of `check` are in tests/engine/serving/test_admission.py, where a client meets them."""

from __future__ import annotations

import struct

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.tensor import Elements

ELEMENTS = st.lists(st.binary(max_size=40), max_size=12)


def refusal(data: bytes, count: int, elements: Elements | None = None) -> str | None:
    try:
        bytes_tensor.check(data, count=count, input_name="X", model_name="m", prefix="", elements=elements)
    except InferenceError as error:
        return error.message
    return None


def accepts(data: bytes, count: int) -> bool:
    return refusal(data, count) is None


@given(ELEMENTS)
def test_what_is_encoded_is_decoded(elements: list[bytes]) -> None:
    data = bytes_tensor.encode(elements)
    assert bytes_tensor.decode_list(data) == elements
    assert bytes_tensor.decode_list(memoryview(bytearray(data))) == elements
    assert accepts(data, len(elements))


@given(ELEMENTS)
def test_a_tensor_of_elements_tells_how_many_they_are(elements: list[bytes]) -> None:
    tensor = bytes_tensor.tensor_of("X", (3,), elements)
    data = tensor.content()
    assert (tensor.name, tensor.datatype, tensor.shape, data) == (
        "X",
        dtypes.BYTES,
        (3,),
        bytes_tensor.encode(elements),
    )
    assert tensor.elements == bytes_tensor.count_elements(data, len(elements) + 1)


@given(ELEMENTS, st.integers(0, 12))
def test_only_the_right_count_is_accepted(elements: list[bytes], count: int) -> None:
    assert accepts(bytes_tensor.encode(elements), count) == (count == len(elements))


@given(ELEMENTS.filter(bool), st.data())
def test_cut_data_are_neither_accepted_nor_decoded_to_the_same_count(
    elements: list[bytes], data: st.DataObject
) -> None:
    whole = bytes_tensor.encode(elements)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    assert not accepts(cut, len(elements))
    try:
        assert len(bytes_tensor.decode_list(cut)) < len(elements)
    except struct.error:
        pass


@given(st.binary(max_size=30), st.integers(0, 5))
def test_what_is_accepted_can_be_decoded(data: bytes, count: int) -> None:
    if accepts(data, count):
        assert len(bytes_tensor.decode_list(data)) == count
        assert bytes_tensor.decode_array(data, (count,)).shape == (count,)


@given(ELEMENTS, st.binary(max_size=8), st.integers(0, 15))
def test_who_has_counted_in_advance_hears_the_same(elements: list[bytes], rest: bytes, count: int) -> None:
    data = bytes_tensor.encode(elements) + rest
    assert refusal(data, count, bytes_tensor.count_elements(data, len(data))) == refusal(data, count)


def test_a_count_pauses_between_some_thousands_of_elements() -> None:
    data = bytes(4 * 20_000)
    pauses = list(bytes_tensor.counting(data))
    assert pauses[-1] == bytes_tensor.count_elements(data, 20_000) == Elements(20_000, len(data))
    assert len(pauses) == 5


@pytest.mark.parametrize(
    ("shape", "most"),
    [
        ((10,), 10),
        ((0, 10), 10),
        ((1000,), 25),
        ((1 << 63,) * 3, 25),
        ((), 1),
        ((0,), 1),
        ((-1, 10), 0),
        ((-1, -10), 0),
    ],
)
def test_elements_are_bounded_by_the_shape_and_by_the_bytes(shape: tuple[int, ...], most: int) -> None:
    assert bytes_tensor.most_elements(100, shape) == most


def test_the_layout_is_a_little_endian_length_and_the_bytes() -> None:
    assert bytes_tensor.encode([b"ab", b""]) == b"\x02\x00\x00\x00ab\x00\x00\x00\x00"


def test_arrays_are_encoded_in_c_order() -> None:
    array = np.array([[b"a", b"b"], [b"c", b"d"]], dtype=object)
    assert bytes_tensor.decode_list(bytes_tensor.encode_array(array.T)) == [b"a", b"c", b"b", b"d"]
    decoded = bytes_tensor.decode_array(bytes_tensor.encode_array(array), (2, 2))
    assert decoded.dtype == object
    assert (decoded == array).all()


def test_a_fixed_width_array_loses_its_padding_and_nothing_else() -> None:
    assert bytes_tensor.decode_list(bytes_tensor.encode_array(np.array([b"a", b"bcd"]))) == [b"a", b"bcd"]


def test_one_string_is_a_scalar() -> None:
    scalar = bytes_tensor.decode_array(bytes_tensor.encode([b"x"]), ())
    assert (scalar.shape, scalar[()]) == ((), b"x")


class Label(bytes):
    def __str__(self) -> str:
        return "never asked for"


@pytest.mark.parametrize(
    ("element", "raw"),
    [
        (b"bytes", b"bytes"),
        (np.bytes_(b"numpy"), b"numpy"),
        (Label(b"label"), b"label"),
        ("größer", "größer".encode()),
        (None, b"None"),
        (1.5, b"1.5"),
    ],
)
def test_an_element_is_bytes_or_its_text(element: object, raw: bytes) -> None:
    """model_api.md 5.2."""
    assert bytes_tensor.to_bytes(element) == raw
    assert type(bytes_tensor.to_bytes(element)) is bytes


@pytest.mark.parametrize("data", [b"\x01", b"\x04\x00\x00\x00abc", b"\x00\x00\x00\x00\x01"])
def test_broken_data_are_not_decoded(data: bytes) -> None:
    with pytest.raises(struct.error):
        bytes_tensor.decode_list(data)
