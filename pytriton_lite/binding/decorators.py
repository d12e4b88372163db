"""From a list of requests to the arguments of a function, and back: put together, take apart, fill in (docs/bind.md).

Outermost stand those that are given requests (`fill_optionals`, `group_by_keys`, then `batch` or `sample`), below `batch` those
that are given arrays by name (`group_by_values`, `first_value`, `pad_batch`). Names and meaning are PyTriton's. Functions may
be methods, coroutines, generators or asynchronous generators.
"""

from __future__ import annotations

import functools
import inspect
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pytriton_lite.binding.request import Array
from pytriton_lite.binding.specification import CONTEXT, TAKES_REQUESTS, Specification, current
from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.tensor import has_dims

__all__ = [
    "ConstantPadder",
    "batch",
    "fill_optionals",
    "first_value",
    "group_by_keys",
    "group_by_values",
    "pad_batch",
    "sample",
    "triton_context",
]

Called = Callable[..., Any]
Outputs = dict[str, Array]

PLAIN = (dict, list, tuple, np.ndarray)
"""What functions return most often: outputs themselves, which nobody has to wait for and nothing has to be taken out of."""


def then(result: Any, change: Callable[[Any], Any]) -> Any:
    """*change* what a function returned, or each thing that it yields, when that is there."""
    if isinstance(result, PLAIN):
        return change(result)
    if inspect.isgenerator(result):
        return _each(result, change)
    if inspect.isasyncgen(result):
        return _each_later(result, change)
    if inspect.isawaitable(result):
        return _later(result, change)
    return change(result)


def _each(results: Any, change: Callable[[Any], Any]) -> Any:
    try:
        for result in results:
            yield change(result)
    finally:
        results.close()


async def _each_later(results: Any, change: Callable[[Any], Any]) -> Any:
    try:
        async for result in results:
            yield change(result)
    finally:
        await results.aclose()


async def _later(result: Any, change: Callable[[Any], Any]) -> Any:
    return change(await result)


def _decorator(
    of_requests: bool, run: Callable[[Called, tuple[Any, ...], dict[str, Any]], Any]
) -> Callable[[Called], Called]:
    """A decorator: *run* is called with what is decorated, and its arguments. ``self`` of a method is the first of them."""

    def decorate(called: Called) -> Called:
        if not callable(called):
            raise TypeError(f"a decorator of models is for functions, not {type(called).__name__}")

        @functools.wraps(called)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return run(called, args, kwargs)

        if of_requests:
            setattr(wrapper, TAKES_REQUESTS, True)
        return wrapper

    return decorate


def named(outputs: Any, specification: Specification | None = None) -> Outputs:
    """What a function returned, by name: a dict, or a list or tuple in the order of the outputs, or the only one itself.

    Raises ValueError where the number is another, TypeError for what is none of these.
    """
    if isinstance(outputs, dict):
        return outputs
    model = current() if specification is None else specification
    names = [str(tensor.name) for tensor in model.outputs]
    if isinstance(outputs, np.ndarray) and len(names) == 1:
        return {names[0]: outputs}
    if not isinstance(outputs, (list, tuple)):
        raise TypeError(
            f"model '{model.name}' returned {type(outputs).__name__}, expected a dict of arrays by name, or a list of "
            f"{len(names)} arrays"
        )
    if len(outputs) != len(names):
        raise ValueError(
            f"model '{model.name}' returned {len(outputs)} arrays for its {len(names)} outputs {', '.join(names)}"
        )
    return dict(zip(names, outputs))


def _rows(request: Any) -> int:
    """The batch size of a request."""
    for array in request.values():
        return len(array)
    return 1


def _run_sample(called: Called, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    *before, requests = args
    return then(called(*before, **kwargs, **dict(requests[0].items())), lambda outputs: [named(outputs)])


sample = _decorator(True, _run_sample)
"""Give a function the inputs of the first request, by name: for models without a batch dimension."""


def _run_batch(called: Called, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    *before, requests = args
    names = requests[0].keys()
    for request in requests:
        if request.keys() != names:
            raise ValueError(
                f"requests with different inputs cannot be one batch ({', '.join(names)} and {', '.join(request.keys())}): put "
                "@group_by_keys before @batch"
            )
    arrays = {name: np.concatenate([request[name] for request in requests]) for name in names}
    sizes = [_rows(request) for request in requests]
    return then(called(*before, **kwargs, **arrays), lambda outputs: _split(named(outputs), sizes))


batch = _decorator(True, _run_batch)
"""Give a function the inputs of all requests put together, by name, and take its outputs apart."""


def _split(outputs: Outputs, sizes: Sequence[int]) -> list[Outputs]:
    total = sum(sizes)
    for name, array in outputs.items():
        if not isinstance(array, np.ndarray):
            raise TypeError(f"output '{name}' is {type(array).__name__}, expected an array of numpy")
        if array.ndim == 0 or len(array) != total:
            raise ValueError(
                f"output '{name}' has shape {list(array.shape)}, expected {total} rows, as many as the inputs have"
            )
    parts = []
    begin = 0
    for size in sizes:  # np.split takes five times as long
        end = begin + size
        parts.append({name: array[begin:end] for name, array in outputs.items()})
        begin = end
    return parts


def _run_groups(called: Called, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    *before, requests = args
    groups: dict[tuple[str, ...], list[int]] = {}
    for at, request in enumerate(requests):
        groups.setdefault(tuple(sorted(request.keys())), []).append(at)
    if len(groups) == 1:
        return called(*before, requests, **kwargs)
    results = [called(*before, [requests[at] for at in places], **kwargs) for places in groups.values()]

    def together(found: list[list[Any]]) -> list[Any]:
        by_place = {at: one for places, ones in zip(groups.values(), found) for at, one in zip(places, ones)}
        return [by_place[at] for at in range(len(requests))]

    if any(map(inspect.isgenerator, results)):
        return _side_by_side(results, list(groups.values()), len(requests))
    if any(map(inspect.isasyncgen, results)):
        return _side_by_side_later(results, list(groups.values()), len(requests))
    if any(map(inspect.isawaitable, results)):
        return _all_later(results, together)
    return together(results)


async def _all_later(results: list[Any], together: Callable[[list[Any]], Any]) -> Any:
    return together([await result for result in results])


def _placed(found: Sequence[Any], places: list[int], count: int) -> list[Any]:
    """Results of some requests in their places, and nothing for the others."""
    row: list[Any] = [None] * count
    for at, one in zip(places, found):
        row[at] = one
    return row


def _side_by_side(results: list[Any], groups: list[list[int]], count: int) -> Any:
    """Groups of generators, one after the other: a response of one group is none of another's."""
    for generator, places in zip(results, groups):
        for found in generator:
            yield _placed(found, places, count)


async def _side_by_side_later(results: list[Any], groups: list[list[int]], count: int) -> Any:
    for generator, places in zip(results, groups):
        async for found in generator:
            yield _placed(found, places, count)


group_by_keys = _decorator(True, _run_groups)
"""Call a function once for all requests that have the same inputs: where some are optional."""


def fill_optionals(**defaults: Array) -> Callable[[Called], Called]:
    """Give requests that lack an input its default: an array without the batch dimension. Put it outermost.

    When the function is called, raises ValueError for a name that is no input's, or another type or shape than the input has.
    """

    def run(called: Called, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        *before, requests = args
        model = current()
        _check_defaults(defaults, model)
        given = {name: _as_clients_send(default) for name, default in defaults.items()}
        for request in requests:
            for name, default in given.items():
                if name not in request:
                    rows = (_rows(request),) if model.batching else ()
                    request[name] = np.broadcast_to(default, (*rows, *default.shape)).copy()
        return called(*before, requests, **kwargs)

    for name, default in defaults.items():
        if not isinstance(default, np.ndarray):
            raise TypeError(f"the default of '{name}' is {type(default).__name__}, expected an array of numpy")
    return _decorator(True, run)


def _as_clients_send(default: Array) -> Array:
    """*default* as what comes of a client is: texts are objects of bytes."""
    if default.dtype.kind not in "OSU":
        return default
    texts: Array = np.empty(default.shape, object)
    texts.reshape(-1)[:] = [each.encode() if isinstance(each, str) else each for each in default.flat]
    return texts


def _check_defaults(defaults: dict[str, Array], model: Specification) -> None:
    inputs = {tensor.name: tensor for tensor in model.inputs}
    for name, default in defaults.items():
        tensor = inputs.get(name)
        if tensor is None:
            raise ValueError(f"model '{model.name}' has no input '{name}', for which there is a default")
        expected = tensor.datatype.numpy
        is_text = tensor.datatype is dtypes.BYTES and default.dtype.kind in "OSU"
        if not is_text and expected is not None and default.dtype != expected:
            raise ValueError(f"the default of input '{name}' is {default.dtype}, and the input {tensor.datatype.name}")
        if not has_dims(default.shape, tensor.shape):
            raise ValueError(
                f"the default of input '{name}' has shape {list(default.shape)}, and the input {list(tensor.shape)}"
            )


def triton_context(called: Called) -> Called:
    """Give a function the argument ``triton_context``, whose ``model_config`` says what it serves. Put it innermost."""

    def run(inner: Called, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return inner(*args, **{**kwargs, CONTEXT: Context(current())})

    return _decorator(False, run)(called)


class Context:
    """What a function may know of the model that it is."""

    def __init__(self, model_config: Specification) -> None:
        self.model_config = model_config
        """Names, tensors and batching of the model."""


def _arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name != CONTEXT}


def _run_pad(called: Called, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    model = current()
    arrays = _arguments(kwargs)
    rows = len(next(iter(arrays.values())))
    sizes = sorted(
        {*(model.batcher.preferred_batch_size or () if model.batcher is not None else ()), model.max_batch_size}
    )
    at = bisect_left(sizes, rows)
    wanted = sizes[at] if at < len(sizes) else rows
    padded = {
        name: np.concatenate([array, np.repeat(array[-1:], wanted - rows, axis=0)]) for name, array in arrays.items()
    }

    def without_padding(outputs: Any) -> Outputs:
        # A function may know which rows are its own, and leave the others out itself.
        return {
            name: array[:rows] if np.ndim(array) and len(array) == wanted else array
            for name, array in named(outputs).items()
        }

    return then(called(*args, **{**kwargs, **padded}), without_padding)


pad_batch = _decorator(False, _run_pad)
"""Repeat the last row until the batch has a preferred size, or the largest, and leave out what comes of those rows."""


def first_value(*keys: str, squeeze_single_values: bool = True, strict: bool = True) -> Callable[[Called], Called]:
    """Give a function the first row of inputs *keys* in place of all, and of a row of one element that element.

    Below `batch`, or over a function that is given requests. *strict* raises ValueError where rows differ; put
    `group_by_values` before it.
    """
    if CONTEXT in keys:
        raise ValueError(f"'{CONTEXT}' is no input of which there is a first value")

    def replaced(inputs: Any) -> Any:
        for name in keys:
            if name not in inputs:
                continue
            values = inputs[name]
            if strict and len(values) > 1 and not _is_one(values):
                raise ValueError(
                    f"the rows of input '{name}' differ: put @group_by_values('{name}') before @first_value, or say "
                    "strict=False"
                )
            first = values[0]
            if squeeze_single_values and isinstance(first, np.ndarray) and first.size == 1:
                first = first.reshape(())[()]
            inputs[name] = first
        return inputs

    def run(called: Called, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not current().batching:
            raise RuntimeError("@first_value is for models with a batch dimension")
        if _arguments(kwargs):
            return called(*args, **replaced(dict(kwargs)))
        *before, requests = args
        return called(*before, [replaced(request) for request in requests], **kwargs)

    return _decorator(False, run)


def _is_one(values: Array) -> bool:
    """Whether all rows are the same; NaN is the same as NaN, as it is for `group_by_values`."""
    first = values[:1]
    return bool(np.all((values == first) | ((values != values) & (first != first))))


PadFunction = Callable[[list[Outputs]], list[Outputs]]


def group_by_values(*keys: str, pad_fn: PadFunction | None = None) -> Callable[[Called], Called]:
    """Call a function once for all rows in which inputs *keys* have the same values. Put it below `batch`.

    *pad_fn* gives the outputs of all groups one shape, where they have others (`ConstantPadder`).
    """
    if not keys:
        raise ValueError("@group_by_values wants the names of inputs")

    def run(called: Called, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arrays = _arguments(kwargs)
        for key in keys:
            if key not in arrays:
                raise ValueError(f"there is no input '{key}', by whose values rows are grouped")
        others = {name: value for name, value in kwargs.items() if name not in arrays}
        rows = len(arrays[keys[0]])
        groups: dict[tuple[bytes, ...], list[int]] = {}
        for at in range(rows):
            groups.setdefault(tuple(_comparable(arrays[key][at]) for key in keys), []).append(at)
        ordered = [groups[value] for value in sorted(groups)]
        results = [
            called(*args, **{name: array[places] for name, array in arrays.items()}, **others) for places in ordered
        ]
        if any(inspect.isgenerator(result) or inspect.isasyncgen(result) for result in results):
            raise TypeError(
                "@group_by_values puts the rows of groups together, which cannot be done with those of a generator"
            )

        def together(found: list[Any]) -> Outputs:
            outputs = [named(one) for one in found]
            return _merged(outputs if pad_fn is None else pad_fn(outputs), ordered, rows)

        if any(map(inspect.isawaitable, results)):
            return _all_later(results, together)
        return together(results)

    return _decorator(False, run)


def _comparable(value: Any) -> bytes:
    array = np.asarray(value)
    return bytes_tensor.encode_array(array.astype(object)) if array.dtype.kind in "OSU" else array.tobytes()


def _merged(outputs: list[Outputs], groups: list[list[int]], rows: int) -> Outputs:
    merged: Outputs = {}
    for name in outputs[0]:
        parts = [output[name] for output in outputs]
        try:
            together = np.concatenate(parts)
        except ValueError as error:
            raise ValueError(
                f"output '{name}' has another shape in each group ({error}): say pad_fn=ConstantPadder()"
            ) from None
        if len(together) != rows:
            raise ValueError(f"output '{name}' has {len(together)} rows, expected {rows}")
        ordered = np.empty_like(together)
        ordered[[at for places in groups for at in places]] = together
        merged[name] = ordered
    return merged


class ConstantPadder:
    """Gives arrays of the same name one shape, for `group_by_values`: what is missing at the end becomes *pad_value*."""

    def __init__(self, pad_value: Any = 0) -> None:
        """*pad_value* is for numbers; texts become empty."""
        self.pad_value = pad_value

    def __call__(self, batches_list: list[Outputs]) -> list[Outputs]:
        """*batches_list*, each array as large as the largest of its name in every dimension but the first."""
        largest: dict[str, Array] = {}
        for batches in batches_list:
            for name, array in batches.items():
                shape = np.array(array.shape[1:])
                largest[name] = shape if name not in largest else np.maximum(largest[name], shape)
        return [
            {name: self._padded(array, largest[name]) for name, array in batches.items()} for batches in batches_list
        ]

    def _padded(self, array: Array, shape: Array) -> Array:
        padded = np.empty((len(array), *map(int, shape)), array.dtype)
        padded[...] = b"" if array.dtype.kind in "OS" else "" if array.dtype.kind == "U" else self.pad_value
        padded[tuple(map(slice, array.shape))] = array
        return padded
