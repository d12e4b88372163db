"""Decorators without a server: what a function is given, and what becomes of what it returns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pytriton_lite.binding.decorators import (
    ConstantPadder,
    batch,
    fill_optionals,
    first_value,
    group_by_keys,
    group_by_values,
    named,
    pad_batch,
    sample,
    triton_context,
)
from pytriton_lite.binding.request import Request
from pytriton_lite.binding.specification import CURRENT, DynamicBatcher, Specification, Tensor


def specification(**changes: Any) -> Specification:
    inputs = (Tensor((1,), np.float32, "a"), Tensor((1,), np.float32, "b", optional=True), Tensor((1,), bytes, "text"))
    outputs = (Tensor((-1,), np.float32, "sum"),)
    options = {"max_batch_size": 8, "batcher": DynamicBatcher(preferred_batch_size=[4])}
    return Specification((print,), "tried", inputs, outputs, **{**options, **changes})  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def model() -> Iterator[Specification]:
    made = specification()
    token = CURRENT.set(made)
    yield made
    CURRENT.reset(token)


def request(**arrays: Any) -> Request:
    return Request({name: np.array(rows) for name, rows in arrays.items()})


def plain(responses: list[Any]) -> list[Any]:
    return [
        None if response is None else {name: array.tolist() for name, array in response.items()}
        for response in responses
    ]


def test_batch_puts_rows_together_and_takes_outputs_apart() -> None:
    @batch
    def add(a: Any, b: Any) -> Any:
        assert len(a) == 3
        return {"sum": a + b}

    found = add([request(a=[[1], [2]], b=[[10], [20]]), request(a=[[3]], b=[[30]])])
    assert plain(found) == [{"sum": [[11], [22]]}, {"sum": [[33]]}]


def test_batch_takes_lists_in_the_order_of_outputs_and_the_only_array() -> None:
    for outputs in (lambda a: [a], lambda a: (a,), lambda a: a):
        assert plain(batch(outputs)([request(a=[[1]])])) == [{"sum": [[1]]}]


def test_batch_decorates_methods_generators_and_coroutines() -> None:
    class Model:
        @batch
        def __call__(self, a: Any) -> Any:
            return [a]

        @batch
        def count(self, a: Any) -> Any:
            yield [a]
            yield [a + 1]

        @batch
        async def later(self, a: Any) -> Any:
            await asyncio.sleep(0)
            return [a]

        @batch
        async def stream(self, a: Any) -> Any:
            yield [a]
            yield [a + 1]

    requests = [request(a=[[1]]), request(a=[[2]])]
    both = [{"sum": [[1]]}, {"sum": [[2]]}]
    more = [{"sum": [[2]]}, {"sum": [[3]]}]
    assert plain(Model()(requests)) == both
    assert [plain(found) for found in Model().count(requests)] == [both, more]
    assert plain(asyncio.run(Model().later(requests))) == both

    async def read() -> list[Any]:
        return [plain(found) async for found in Model().stream(requests)]

    assert asyncio.run(read()) == [both, more]


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (lambda a: {"sum": a[:1]}, ValueError, r"output 'sum' has shape \[1, 1\], expected 2 rows"),
        (lambda a: [a, a], ValueError, "returned 2 arrays for its 1 outputs sum"),
        (lambda a: "text", TypeError, "returned str, expected a dict of arrays by name"),
        (lambda a: {"sum": [1, 2]}, TypeError, "output 'sum' is list, expected an array"),
    ],
)
def test_batch_says_what_is_wrong_with_outputs(function: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        batch(function)([request(a=[[1], [2]])])


def test_batch_refuses_other_inputs_and_group_by_keys_sorts_them() -> None:
    requests = [request(a=[[1]]), request(a=[[2]], b=[[3]]), request(a=[[4]])]
    calls = []

    def add(a: Any, b: Any = None) -> Any:
        calls.append(len(a))
        return {"sum": a if b is None else a + b}

    with pytest.raises(ValueError, match="put @group_by_keys before @batch"):
        batch(add)(requests)
    assert plain(group_by_keys(batch(add))(requests)) == [{"sum": [[1]]}, {"sum": [[5]]}, {"sum": [[4]]}]
    assert sorted(calls) == [1, 2]


def test_groups_of_generators_come_one_after_the_other() -> None:
    @group_by_keys
    @batch
    def count(a: Any, b: Any = None) -> Any:
        yield {"sum": a}

    found = [plain(row) for row in count([request(a=[[1]]), request(a=[[2]], b=[[3]])])]
    assert found == [[{"sum": [[1]]}, None], [None, {"sum": [[2]]}]]


def test_sample_gives_the_inputs_of_one_request() -> None:
    @sample
    def double(a: Any) -> Any:
        return [2 * a]

    assert plain(double([request(a=[3])])) == [{"sum": [6]}]


def test_fill_optionals_gives_rows_their_default() -> None:
    @fill_optionals(b=np.array([7], np.float32))
    @batch
    def add(a: Any, b: Any) -> Any:
        return {"sum": a + b}

    found = add([request(a=[[1.0], [2.0]]), request(a=[[1.0]], b=[[1.0]])])
    assert plain(found) == [{"sum": [[8], [9]]}, {"sum": [[2]]}]


@pytest.mark.parametrize("default", [["ä"], ["ä".encode()], np.array(["ä"], object), np.array(["ä".encode()], object)])
def test_defaults_that_are_texts_are_bytes_as_those_of_clients(default: Any) -> None:
    @fill_optionals(text=np.array(default))
    @batch
    def decoded(a: Any, text: Any) -> Any:
        assert text.dtype == object
        return {"sum": np.array([[each.decode()] for each in text[:, 0]])}

    sent = Request({"a": np.array([[1]]), "text": np.array([[b"x"]], object)})
    assert plain(decoded([request(a=[[1], [2]]), sent])) == [{"sum": [["ä"], ["ä"]]}, {"sum": [["x"]]}]
    assert plain(decoded([request(a=[[1]])])) == [{"sum": [["ä"]]}]


@pytest.mark.parametrize(
    ("defaults", "text"),
    [
        ({"c": np.zeros(1, np.float32)}, "model 'tried' has no input 'c'"),
        ({"b": np.zeros(1)}, "the default of input 'b' is float64, and the input FP32"),
        ({"b": np.array(["0.5"])}, "the default of input 'b' is <U3, and the input FP32"),
        ({"b": np.zeros((1, 1), np.float32)}, r"has shape \[1, 1\], and the input \[1\]"),
    ],
)
def test_defaults_have_to_fit_their_inputs(defaults: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        fill_optionals(**defaults)(batch(lambda **_: None))([request(a=[[1]])])


def test_defaults_are_arrays() -> None:
    with pytest.raises(TypeError, match="the default of 'b' is float, expected an array"):
        fill_optionals(b=0.5)  # type: ignore[arg-type]


def test_first_value_gives_one_for_all_rows() -> None:
    @batch
    @first_value("b")
    def scale(a: Any, b: Any) -> Any:
        assert np.isscalar(b)
        return [a * b]

    assert plain(scale([request(a=[[1], [2]], b=[[3], [3]])])) == [{"sum": [[3], [6]]}]
    with pytest.raises(ValueError, match="the rows of input 'b' differ"):
        scale([request(a=[[1], [2]], b=[[3], [4]])])


def test_first_value_over_requests_and_without_squeezing() -> None:
    @first_value("b", squeeze_single_values=False, strict=False)
    def scale(requests: list[Request]) -> Any:
        return [{"sum": one["a"] * one["b"]} for one in requests]

    assert plain(scale([request(a=[[1], [2]], b=[[3], [4]])])) == [{"sum": [[3], [6]]}]


def test_group_by_values_calls_once_for_each_value_and_keeps_the_order() -> None:
    groups = []

    @batch
    @group_by_values("text", "b")
    @first_value("text", "b")
    def scale(a: Any, b: Any, text: Any) -> Any:
        groups.append((len(a), float(b), bytes(text)))
        return {"sum": a * b}

    found = scale(
        [request(a=[[1], [2]], b=[[3], [4]], text=[[b"x"], [b"x"]]), request(a=[[5]], b=[[3]], text=[[b"x"]])]
    )
    assert plain(found) == [{"sum": [[3], [8]]}, {"sum": [[15]]}]
    assert sorted(groups) == [(1, 4.0, b"x"), (2, 3.0, b"x")]


def test_nan_is_one_value() -> None:
    @batch
    @group_by_values("b")
    @first_value("b")
    def tell(a: Any, b: Any) -> Any:
        return {"sum": np.full((len(a), 1), b)}

    nan = float("nan")
    found = tell([request(a=[[1], [2], [3]], b=[[nan], [2.0], [nan]])])
    np.testing.assert_array_equal(found[0]["sum"], [[nan], [2], [nan]])
    with pytest.raises(ValueError, match="the rows of input 'b' differ"):
        batch(first_value("b")(lambda a, b: [b]))([request(a=[[1], [2]], b=[[nan], [2.0]])])


def test_groups_of_other_shapes_are_padded() -> None:
    def widen(a: Any, b: Any) -> Any:
        return {"sum": np.ones((len(a), int(b[0, 0])), np.float32)}

    requests = [request(a=[[0], [0]], b=[[1], [3]])]
    with pytest.raises(ValueError, match=r"another shape in each group .* pad_fn=ConstantPadder"):
        batch(group_by_values("b")(widen))(requests)
    padded = batch(group_by_values("b", pad_fn=ConstantPadder(-1))(widen))(requests)
    assert plain(padded) == [{"sum": [[1, -1, -1], [1, 1, 1]]}]


@pytest.mark.parametrize(("rows", "wanted"), [(1, 4), (4, 4), (5, 8)])
def test_pad_batch_repeats_the_last_row(rows: int, wanted: int) -> None:
    seen = []

    @batch
    @pad_batch
    def add(a: Any) -> Any:
        seen.append(a[:, 0].tolist())
        return [a[:rows]]

    add([request(a=[[number] for number in range(rows)])])
    assert seen == [[*range(rows), *[rows - 1] * (wanted - rows)]]


@pytest.mark.parametrize("rows", [1, 4, 5])
def test_what_comes_of_the_rows_that_pad_batch_adds_is_left_out(rows: int) -> None:
    @batch
    @pad_batch
    def whole(a: Any) -> Any:
        return [a]

    @batch
    @pad_batch
    def stream(a: Any) -> Any:
        yield {"sum": a}

    given = [request(a=[[number]]) for number in range(rows)]
    expected = [{"sum": [[number]]} for number in range(rows)]
    assert plain(whole(given)) == expected
    assert [plain(responses) for responses in stream(given)] == [expected]

    with pytest.raises(ValueError, match=f"expected {rows} rows"):
        batch(pad_batch(lambda a: [np.zeros((9, 1))]))(given)


def test_triton_context_knows_the_model() -> None:
    @batch
    @triton_context
    def tell(a: Any, triton_context: Any) -> Any:
        return [a * triton_context.model_config.max_batch_size]

    assert plain(tell([request(a=[[1]])])) == [{"sum": [[8]]}]


def test_what_needs_the_model_says_so_without_a_server() -> None:
    token = CURRENT.set(None)
    try:
        with pytest.raises(RuntimeError, match="was called without a server"):
            named([np.zeros(1)])
        assert plain(batch(lambda a: {"x": a})([request(a=[[1]])])) == [{"x": [[1]]}]
    finally:
        CURRENT.reset(token)


def test_decorators_are_for_functions() -> None:
    with pytest.raises(TypeError, match="a decorator of models is for functions, not int"):
        batch(5)  # type: ignore[arg-type]
