"""The tensor noun and its two helpers."""

from __future__ import annotations

import pytest

from pytriton_lite.core import dtypes
from pytriton_lite.core.tensor import Tensor, element_count, format_shape


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
