"""Batch inputs (docs/dynamic-batching.md): the shares of a batch's requests, and the tensor that they are shares of."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from property_settings import examples

from pytriton_lite.config.batch_io import BatchInput, BatchInputKind
from pytriton_lite.core import dtypes
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.scheduling.batch_tensors import BatchInputs
from pytriton_lite.scheduling.ticket import Ticket

Shape = tuple[int, ...]


def request_of(shape: Shape | None) -> InferenceRequest:
    inputs = [] if shape is None else [Tensor("X", dtypes.FP32, shape, bytes(4 * int(np.prod(shape))))]
    return InferenceRequest("m", None, inputs=[Tensor("OTHER", dtypes.FP32, (1, 9), bytes(36)), *inputs])


def ticket_of(shape: Shape | None) -> Ticket:
    return Ticket(request_of(shape), None, batch_size=1, shape_key=None, accepted_ns=0)


def shape_of(tensor: Tensor) -> Shape:
    return tensor.shape


def batch_input(kind: BatchInputKind, *targets: str, datatype: dtypes.DataType = dtypes.INT32) -> BatchInput:
    return BatchInput(kind, targets or ("T",), datatype, "X")


def array(tensor: Tensor) -> np.ndarray:
    assert tensor.data is not None
    return np.frombuffer(tensor.data, tensor.datatype.numpy).reshape(tensor.shape)


def shares(kind: BatchInputKind, *shapes: Shape | None, max_batch_size: int = 8) -> list[np.ndarray]:
    inputs = BatchInputs([batch_input(kind)], max_batch_size=max_batch_size)
    return [array(tensor) for (tensor,) in inputs.of([request_of(shape) for shape in shapes], shape_of)]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (BatchInputKind.ELEMENT_COUNT, [[6], [4], [0]]),
        (BatchInputKind.ACCUMULATED_ELEMENT_COUNT, [[6], [10], [10]]),
        (BatchInputKind.ACCUMULATED_ELEMENT_COUNT_WITH_ZERO, [[0, 6], [10], [10]]),
        (BatchInputKind.MAX_ELEMENT_COUNT_AS_SHAPE, [[0] * 6, [], []]),
        (BatchInputKind.ITEM_SHAPE, [[[3, 1], [3, 1]], [[2, 2]], [[0, 5]]]),
        (BatchInputKind.ITEM_SHAPE_FLATTEN, [[3, 1, 3, 1], [2, 2], [0, 5]]),
    ],
)
def test_each_kind_gives_each_request_its_share(kind: BatchInputKind, expected: list[list[object]]) -> None:
    assert [share.tolist() for share in shares(kind, (2, 3, 1), (1, 2, 2), (1, 0, 5))] == expected


def whole(kind: BatchInputKind, shapes: list[Shape]) -> np.ndarray:
    """The tensor of the whole batch, as Triton's utilities fill it."""
    counts = [int(np.prod(shape)) for shape in shapes]
    items = [list(shape[1:]) for shape in shapes for _ in range(shape[0])]
    return {
        BatchInputKind.ELEMENT_COUNT: np.array(counts),
        BatchInputKind.ACCUMULATED_ELEMENT_COUNT: np.cumsum(counts),
        BatchInputKind.ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: np.cumsum([0, *counts]),
        BatchInputKind.MAX_ELEMENT_COUNT_AS_SHAPE: np.zeros(max(counts)),
        BatchInputKind.ITEM_SHAPE: np.array(items),
        BatchInputKind.ITEM_SHAPE_FLATTEN: np.array(items).reshape(-1),
    }[kind]


@st.composite
def batches(draw: st.DrawFn) -> list[Shape]:
    rank = draw(st.integers(1, 3))
    shape = st.tuples(st.integers(1, 4), *[st.integers(0, 5)] * rank)
    return draw(st.lists(shape, min_size=1, max_size=6))


@examples(100)
@given(kind=st.sampled_from(BatchInputKind), shapes=batches(), datatype=st.sampled_from([dtypes.INT32, dtypes.FP32]))
def test_the_shares_one_after_the_other_are_the_tensor_of_the_batch(
    kind: BatchInputKind, shapes: list[Shape], datatype: dtypes.DataType
) -> None:
    inputs = BatchInputs([batch_input(kind, datatype=datatype)], max_batch_size=8)
    given = [array(tensor) for (tensor,) in inputs.of([request_of(shape) for shape in shapes], shape_of)]
    assert {share.dtype for share in given} == {np.dtype(datatype.numpy)}
    np.testing.assert_array_equal(np.concatenate(given), whole(kind, shapes))


def test_every_target_gets_the_tensor_in_the_order_of_the_configuration() -> None:
    inputs = BatchInputs(
        [batch_input(BatchInputKind.ELEMENT_COUNT, "A", "B"), batch_input(BatchInputKind.ITEM_SHAPE, "C")],
        max_batch_size=8,
    )
    (tensors,) = inputs.of([request_of((1, 3))], shape_of)
    assert [tensor.name for tensor in tensors] == ["A", "B", "C"]


def test_an_optional_source_that_is_absent_has_no_elements_and_no_items() -> None:
    assert [share.tolist() for share in shares(BatchInputKind.ELEMENT_COUNT, None, (1, 3))] == [[0], [3]]
    (absent, given) = shares(BatchInputKind.ITEM_SHAPE, None, (1, 3, 4))
    assert (absent.shape, given.tolist()) == ((0, 2), [[3, 4]])


def test_without_a_batch_dimension_the_request_is_one_item() -> None:
    (share,) = shares(BatchInputKind.ITEM_SHAPE, (3, 4), max_batch_size=0)
    assert share.tolist() == [[3, 4]]


def test_the_shape_is_the_one_that_the_model_sees() -> None:
    inputs = BatchInputs([batch_input(BatchInputKind.ITEM_SHAPE)], max_batch_size=8)
    ((tensor,),) = inputs.of([request_of((1, 6))], lambda tensor: (1, 2, 3))
    assert array(tensor).tolist() == [[2, 3]]


def test_a_dimension_that_no_int32_holds_harms_nobody() -> None:
    """It is that of an empty tensor. C keeps the low bits."""
    (share,) = shares(BatchInputKind.ITEM_SHAPE, (1, 0, 2**40 + 7))
    assert share.tolist() == [[0, 7]]


def test_a_request_that_comes_into_another_batch_is_told_about_that_one() -> None:
    inputs = BatchInputs([batch_input(BatchInputKind.ACCUMULATED_ELEMENT_COUNT)], max_batch_size=8)
    first, second = ticket_of((1, 3)), ticket_of((1, 4))
    control = Tensor("START", dtypes.INT32, (1, 1), bytes(4))
    shared = second.controls = [control]
    inputs.give([first, second], shape_of)
    inputs.give([second], shape_of)
    assert [tensor.name for tensor in second.controls] == ["START", "T"]
    assert array(second.controls[1]).tolist() == [4]
    assert shared == [control], "lists of controls are shared between tickets"
