"""The classification extension (HTTP spec, section 10)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.classification import MAX_ELEMENTS, MAX_TEXTS, classify
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.tensor import Tensor

NAN, INF = float("nan"), float("inf")


def of(values: Any, datatype: DataType = dtypes.FP32, shape: tuple[int, ...] | None = None) -> Tensor:
    array = np.array(values, dtype=datatype.numpy)
    return Tensor("OUT", datatype, array.shape if shape is None else shape, array.tobytes())


def texts(values: Any, k: int, datatype: DataType = dtypes.FP32, *, labels: tuple[str, ...] = ()) -> list[str]:
    """What comes out for a single item."""
    found = classify(of(values, datatype), k, has_batch_dimension=False, labels=labels)
    assert (found.name, found.datatype) == ("OUT", dtypes.BYTES)
    result = [text.decode() for text in bytes_tensor.decode_list(found.content())]
    assert found.shape == (len(result),)
    return result


def test_the_greatest_come_first_with_index_and_label() -> None:
    """The values of http.md row 76."""
    assert texts([0.1, 0.5, 0.3, 9], 3, labels=("cat", "dog", "bird")) == [
        "9.000000:3",
        "0.500000:1:dog",
        "0.300000:2:bird",
    ]


def test_each_item_of_a_batch_has_its_own() -> None:
    found = classify(of([[1, 2, 3], [3, 2, 1]]), 2, has_batch_dimension=True)
    assert found.shape == (2, 2)
    assert bytes_tensor.decode_list(found.content()) == [b"3.000000:2", b"2.000000:1", b"3.000000:0", b"2.000000:1"]


def test_indices_count_over_all_dimensions_but_the_batch() -> None:
    found = classify(of([[[1, 2], [4, 3]]]), 2, has_batch_dimension=True)
    assert (found.shape, bytes_tensor.decode_list(found.content())) == ((1, 2), [b"4.000000:2", b"3.000000:3"])
    assert texts([[1, 2], [4, 3]], 9) == ["4.000000:2", "3.000000:3", "2.000000:1", "1.000000:0"]


def test_a_scalar_is_one_element() -> None:
    assert texts(7, 3, dtypes.INT8) == ["7:0"]


@pytest.mark.parametrize(
    ("datatype", "values", "expected"),
    [
        (dtypes.INT8, [-128, 127, 0], ["127:1", "0:2", "-128:0"]),
        (dtypes.UINT8, [255, 65, 0], ["255:0", "65:1", "0:2"]),
        (dtypes.INT16, [-(2**15), 2**15 - 1], ["32767:1", "-32768:0"]),
        (dtypes.UINT16, [0, 2**16 - 1], ["65535:1", "0:0"]),
        (dtypes.INT32, [5, 5, -5], ["5:0", "5:1", "-5:2"]),
        (dtypes.UINT32, [2**32 - 1, 2**31, 0], ["4294967295:0", "2147483648:1", "0:2"]),
        (dtypes.INT64, [-(2**63), 2**63 - 1, 0], ["9223372036854775807:1", "0:2", "-9223372036854775808:0"]),
        (dtypes.UINT64, [0, 2**63, 2**64 - 1], ["18446744073709551615:2", "9223372036854775808:1", "0:0"]),
    ],
)
def test_integers_are_exact_up_to_their_ends(datatype: DataType, values: list[int], expected: list[str]) -> None:
    assert texts(values, 3, datatype) == expected


@pytest.mark.parametrize(
    ("datatype", "value", "text"),
    [
        (dtypes.FP32, 9, "9.000000"),
        (dtypes.FP32, 0.1234565, "0.123457"),
        (dtypes.FP64, 0.1234565, "0.123456"),
        (dtypes.FP32, 3.4e38, "339999995214436424907732413799364296704.000000"),
        (dtypes.FP64, 1e22, "10000000000000000000000.000000"),
        (dtypes.FP32, 1e-7, "0.000000"),
        (dtypes.FP32, -1e-8, "-0.000000"),
        (dtypes.FP32, INF, "inf"),
        (dtypes.FP32, -INF, "-inf"),
        (dtypes.FP32, NAN, "nan"),
    ],
)
def test_floats_have_six_decimals_and_no_exponent(datatype: DataType, value: float, text: str) -> None:
    assert texts([value], 1, datatype) == [f"{text}:0"]


@pytest.mark.parametrize("count", [30, 5000])
def test_equal_elements_come_in_the_order_of_their_indices(count: int) -> None:
    values = [i % 3 for i in range(count)]
    twos = [i for i in range(count) if i % 3 == 2]
    ones = [i for i in range(count) if i % 3 == 1]
    k = len(twos) + 5
    assert texts(values, k) == [f"2.000000:{i}" for i in twos] + [f"1.000000:{i}" for i in ones[:5]]
    assert texts(values, k, dtypes.UINT8) == [f"2:{i}" for i in twos] + [f"1:{i}" for i in ones[:5]]


def test_the_zeros_are_equal() -> None:
    assert texts([0.0, -0.0, 0.0, -0.0], 3) == ["0.000000:0", "-0.000000:1", "0.000000:2"]


@pytest.mark.parametrize("padding", [0, 5000])
def test_nan_comes_behind_every_number(padding: int) -> None:
    """Triton's order with NaN is that of an unfinished sort."""
    values = [NAN, 1, -INF, NAN, INF] + [-INF] * padding
    numbers = ["inf:4", "1.000000:1", "-inf:2"] + [f"-inf:{5 + i}" for i in range(padding)]
    assert texts(values, len(values)) == [*numbers, "nan:0", "nan:3"]
    assert texts(values, len(numbers) + 1) == [*numbers, "nan:0"]
    assert texts(values, 2) == numbers[:2]


@pytest.mark.parametrize("datatype", [dtypes.FP32, dtypes.FP64, dtypes.INT16, dtypes.UINT64])
@pytest.mark.parametrize("k", [1, 7, 1999, 2000, 5000])
def test_long_rows_agree_with_a_stable_sort(datatype: DataType, k: int) -> None:
    values = np.random.default_rng(0).integers(0, 500, (3, 2000)).astype(datatype.numpy)
    expected = [sorted(range(2000), key=lambda i, row=row: (-int(row[i]), i))[:k] for row in values]
    found = classify(of(values, datatype), k, has_batch_dimension=True)
    assert found.shape == (3, min(k, 2000))
    indices = [int(text.split(b":")[1]) for text in bytes_tensor.decode_list(found.content())]
    assert indices == [index for row in expected for index in row]


@pytest.mark.parametrize(
    ("shape", "has_batch_dimension", "expected"),
    [((0,), False, (0,)), ((1, 0), True, (1, 0)), ((2, 0, 3), True, (2, 0)), ((0, 3), True, (0, 2))],
)
def test_nothing_gives_nothing(shape: tuple[int, ...], has_batch_dimension: bool, expected: tuple[int, ...]) -> None:
    """2.51 dies of it."""
    found = classify(of([], shape=shape), 2, has_batch_dimension=has_batch_dimension)
    assert (found.shape, found.content()) == (expected, b"")


def test_no_items_of_many_elements_are_classified() -> None:
    assert classify(of([], shape=(0, 5000)), 2, has_batch_dimension=True).shape == (0, 2)


def test_an_empty_label_is_none_and_others_keep_their_bytes() -> None:
    labels = ("", " with blanks ", "ä", "\udcff")
    found = classify(of([4, 3, 2, 1]), 4, has_batch_dimension=False, labels=labels)
    assert bytes_tensor.decode_list(found.content()) == [
        b"4.000000:0",
        b"3.000000:1: with blanks ",
        "2.000000:2:ä".encode(),
        b"1.000000:3:\xff",
    ]


@pytest.mark.parametrize("datatype", [dtypes.BOOL, dtypes.FP16, dtypes.BF16, dtypes.BYTES])
def test_other_data_types_have_no_classes(datatype: DataType) -> None:
    """http.md row 78 is BOOL."""
    with pytest.raises(InferenceError) as caught:
        classify(Tensor("OUT", datatype, (2,), bytes(8)), 1, has_batch_dimension=False)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == f"class result not available for output due to unsupported type '{datatype}'"


def test_an_output_of_a_batching_model_without_a_batch_dimension_has_no_classes() -> None:
    scalar = Tensor("PROBABILITIES", dtypes.FP32, (), np.float32(1).tobytes())
    with pytest.raises(InferenceError, match="'PROBABILITIES': expected a batch dimension, got shape"):
        classify(scalar, 1, has_batch_dimension=True)


def test_an_item_has_at_most_a_million_elements() -> None:
    at_the_limit = classify(of(np.arange(MAX_ELEMENTS), dtypes.INT32), 1, has_batch_dimension=False)
    assert bytes_tensor.decode_list(at_the_limit.content()) == [b"999999:999999"]
    assert classify(of(np.zeros((3, MAX_ELEMENTS // 2)), dtypes.UINT8), 1, has_batch_dimension=True).shape == (3, 1)
    with pytest.raises(InferenceError, match="classification output tensor too large") as caught:
        classify(of(np.zeros(MAX_ELEMENTS + 1), dtypes.UINT8), 1, has_batch_dimension=False)
    assert caught.value.code is ErrorCode.INVALID_ARG


def test_more_classes_than_can_be_written_quickly_are_refused() -> None:
    outputs = of(np.zeros((2, MAX_TEXTS)), dtypes.UINT8)
    assert classify(outputs, MAX_TEXTS // 2, has_batch_dimension=True).shape == (2, MAX_TEXTS // 2)
    with pytest.raises(InferenceError, match="expected at most 100000 classes, got 2 times 50001"):
        classify(outputs, MAX_TEXTS // 2 + 1, has_batch_dimension=True)
