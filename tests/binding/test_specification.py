"""What is said of a function, and what is refused before anything runs."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import numpy as np
import pytest

from pytriton_lite.binding.decorators import batch, triton_context
from pytriton_lite.binding.specification import (
    DynamicBatcher,
    QueuePolicy,
    Said,
    Specification,
    Tensor,
    TimeoutAction,
    model,
    specify,
)
from pytriton_lite.config.model_config import ModelConfig

X = Tensor((-1,), np.float32, "x")
Y = Tensor((-1,), np.float32, "y")


def said(**said: Any) -> Said:
    return Said(**{"inputs": [X], "outputs": [Y], **said})


def test_annotations_are_inputs_and_outputs() -> None:
    def add(
        a: Annotated[np.ndarray, Tensor((2,), np.float32)],
        b: Tensor((2,), "BF16") = None,  # type: ignore[valid-type]
    ) -> tuple[Annotated[np.ndarray, Tensor((2,), float, "SUM")], Annotated[np.ndarray, Tensor((1,), str)]]: ...

    made = specify(add, Said())
    assert made.name == "add" and not made.takes_requests and not made.decoupled
    assert made.inputs == (Tensor((2,), np.float32, "a"), Tensor((2,), "BF16", "b", optional=True))
    assert made.outputs == (Tensor((2,), float, "SUM"), Tensor((1,), str, "OUTPUT_2"))


def test_the_configuration_says_what_was_said() -> None:
    policy = QueuePolicy(TimeoutAction.DELAY, 5, True, 6)
    made = specify(
        lambda x: x,
        said(
            name="one",
            max_batch_size=4,
            batcher=DynamicBatcher(100, [2, 4], True, 2, 1, QueuePolicy(max_queue_size=3), {2: policy}),
            instances=3,
            response_cache=True,
            parameters={"EXECUTION_TIMEOUT_SECONDS": "5"},
        ),
    )
    config = ModelConfig.from_message(made.message())
    assert (config.name, config.max_batch_size, config.decoupled, config.uses_response_cache) == ("one", 4, False, True)
    assert config.execution_timeout_s == 5
    assert config.message.instance_group[0].count == 3
    batching = config.dynamic_batching
    assert batching is not None
    assert (batching.max_queue_delay_us, batching.preferred_batch_sizes, batching.preserve_ordering) == (
        100,
        (2, 4),
        True,
    )
    assert batching.default_queue_policy.max_queue_size == 3
    assert batching.priority_queue_policies[2].default_timeout_us == 5
    assert [(spec.name, spec.datatype.name, spec.dims) for spec in config.inputs] == [("x", "FP32", (-1,))]


def test_numbers_may_be_numpys() -> None:
    sizes: Any = [*np.array([2, 4])]
    more: dict[str, Any] = {"max_batch_size": np.int64(4), "instances": np.int32(2)}
    made = specify(lambda x: x, said(name="m", batcher=DynamicBatcher(np.int64(100), sizes), **more))  # type: ignore[arg-type]
    message = made.message()
    assert (message.max_batch_size, message.instance_group[0].count) == (4, 2)
    assert list(message.dynamic_batching.preferred_batch_size) == [2, 4]
    assert message.dynamic_batching.max_queue_delay_microseconds == 100


def test_batches_are_dynamic_unless_it_is_said_that_they_are_not() -> None:
    def config(**more: Any) -> ModelConfig:
        return ModelConfig.from_message(specify(lambda x: x, said(name="m", **more)).message())

    assert config(max_batch_size=4).dynamic_batching is not None
    assert config(max_batch_size=4, batcher=False).dynamic_batching is None
    assert config().dynamic_batching is None
    assert config(batcher=True).dynamic_batching is None


def test_the_context_is_no_input() -> None:
    @triton_context
    def within(x: Tensor((-1,), np.float32), triton_context: Any) -> Tensor((-1,), np.float32, "y"): ...  # type: ignore[valid-type]

    for function in (within, batch(within)):
        assert specify(function, Said()).inputs == (Tensor((-1,), np.float32, "x"),)


def test_who_binds_says_the_last_word() -> None:
    @model(name="one", inputs=[X], outputs=[Y], max_batch_size=2)
    def function(x: Any) -> Any:
        return x

    assert function(3) == 3
    made = specify(function, Said(name="two"))
    assert (made.name, made.max_batch_size) == ("two", 2)


def test_generators_are_decoupled_and_requests_are_told_by_their_name() -> None:
    def stream(x: Any) -> Any:
        yield x

    async def later(x: Any) -> Any:
        yield x

    def whole(requests: Any) -> Any: ...

    class Callable:
        def __call__(self, requests: Any) -> Any:
            yield requests

    assert specify(stream, said()).decoupled and specify(later, said()).decoupled
    assert specify(whole, said()).takes_requests and not specify(whole, said()).decoupled
    for one in (Callable, Callable()):
        made = specify(one, said())
        assert made.takes_requests and made.decoupled and made.name == "Callable"


def test_a_partial_is_what_it_was_made_of() -> None:
    @model(max_batch_size=2)
    def scaled(x: Tensor((1,), np.float32), *, by: float) -> Tensor((1,), np.float32, "y"):  # type: ignore[valid-type]
        return x * by

    @batch
    def stream(x: Any, by: float) -> Any:
        yield x * by

    class Weights:
        def __init__(self, by: float) -> None: ...

        def __call__(self, x: Any) -> Any: ...

    made = specify(partial(scaled, by=2), Said())
    assert (made.name, made.max_batch_size, made.decoupled) == ("scaled", 2, False)
    assert [tensor.name for tensor in (*made.inputs, *made.outputs)] == ["x", "y"]
    made = specify(partial(partial(stream, 5), by=2), said())
    assert made.takes_requests and made.decoupled and made.name == "stream"
    assert specify(partial(lambda weights, requests: requests, 5), said(name="m")).takes_requests
    assert specify(partial(Weights, by=2), said()).name == "Weights"
    with pytest.raises(ValueError, match="a lambda has no name for its model"):
        specify(partial(lambda x, by: x, by=2), said())
    with pytest.raises(TypeError, match="parameter 'by' of model 'm' is none of its inputs"):
        specify(partial(lambda x, by, more: x, more=2), said(name="m"))


def test_one_function_for_each_instance() -> None:
    made = specify([lambda x: x, lambda x: 2 * x], said(name="m"))
    assert made.instances == 2 and len(made.functions) == 2


class NoCall:
    pass


@pytest.mark.parametrize(
    ("function", "more", "error", "text"),
    [
        (5, {}, TypeError, "a model is a function, a class or a callable object, not int: 5"),
        ([], {}, ValueError, "no function was given"),
        (NoCall, {}, TypeError, "class NoCall has no __call__"),
        (
            lambda z: z,
            {"name": "m"},
            TypeError,
            "model 'm' has no parameter for input 'x': a function is given its inputs",
        ),
        (lambda x, z: z, {"name": "m"}, TypeError, "parameter 'z' of model 'm' is none of its inputs"),
        (lambda x: x, {"name": "a/b"}, ValueError, "'a/b' is no name of a model"),
        (lambda x: x, {"name": ""}, ValueError, "'' is no name of a model"),
        (lambda x: x, {"name": "a\nb"}, ValueError, r"'a\\nb' is no name of a model"),
        (lambda x: x, {}, ValueError, "a lambda has no name for its model: say name="),
        (
            lambda x: x,
            {"name": "m", "warm_up": True},
            TypeError,
            "warm_up of model 'm' is a list of samples, .* not True",
        ),
        (lambda x: x, {"name": "m", "warm_up": {"name": "w"}}, TypeError, "warm_up of model 'm' is a list of samples"),
        (lambda x: x, {"name": "m", "warm_up": ["w"]}, TypeError, "warm_up of model 'm' is a list of samples"),
        (lambda x: x, {"name": "m", "inputs": [X, X]}, ValueError, "model 'm' has several inputs called 'x'"),
        (lambda x: x, {"name": "m", "inputs": ["x"]}, TypeError, r"inputs of model 'm' are Tensor\(…\)s, not str: 'x'"),
        (lambda x: x, {"name": "m", "inputs": None}, TypeError, "annotate parameter 'x' with a Tensor"),
        (lambda x: x, {"name": "m", "outputs": None}, TypeError, "the outputs of model 'm' are not known"),
        (lambda x: x, {"name": "m", "max_batch_size": -1}, ValueError, "max_batch_size of model 'm' is 0 or more"),
        (lambda x: x, {"name": "m", "instances": 0}, ValueError, "model 'm' has 1 functions for 0 instances"),
        ([lambda x: x] * 2, {"name": "m", "instances": 3}, ValueError, "2 functions for 3 instances"),
        (
            lambda x: (yield x),
            {"name": "m", "decoupled": False},
            ValueError,
            "model 'm' is a generator, so it is decoupled",
        ),
        (
            lambda x: x,
            {"name": "m", "parameters": {"ENV:A": "1"}},
            ValueError,
            "a bound function runs in the Python of",
        ),
        (
            lambda x: x,
            {"name": "m", "inputs": [Tensor((1,), bool, "x", optional=True)]},
            TypeError,
            "input 'x' of model 'm' is optional, so its parameter needs a default",
        ),
    ],
)
def test_what_cannot_be_a_model_is_refused(
    function: Any, more: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        specify(function, said(**more))


@pytest.mark.parametrize(
    ("shape", "dtype", "text"),
    [
        (3, np.float32, "the shape of a tensor is a tuple of numbers"),
        (("a",), np.float32, "the shape of a tensor is a tuple of numbers"),
        ((1,), np.complex64, "is no type of a tensor"),
        ((1,), "FP99", "'FP99' is no type of a tensor"),
        ((1,), dict, "is no type of a tensor"),
    ],
)
def test_tensors_have_types_of_the_protocol(shape: Any, dtype: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        Tensor(shape, dtype)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (np.dtype("float16"), "FP16"), (np.int8, "INT8"), (bool, "BOOL"), (np.bool_, "BOOL"), (int, "INT64"),
        (float, "FP64"), (str, "BYTES"), (bytes, "BYTES"), (np.bytes_, "BYTES"), (np.object_, "BYTES"), (object, "BYTES"),
        (np.str_, "BYTES"), ("BF16", "BF16"), ("float32", "FP32"),
    ],
)  # fmt: skip
def test_types_of_numpy_and_python_are_those_of_the_protocol(dtype: Any, expected: str) -> None:
    assert Tensor((1,), dtype).datatype.name == expected


def test_a_specification_is_its_own_view_for_decorators() -> None:
    made = Specification((print,), "m", (X,), (Y,), max_batch_size=2)
    assert (made.model_name, made.model_version, made.batching) == ("m", 1, True)
