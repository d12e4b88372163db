"""A bound function as the model that a worker runs: `TritonPythonModel`, but for where it comes from.

The worker is the ordinary one. What it hands to ``execute`` are requests of ``pb_utils``; the function is given `Request`s, or
arrays by name, and what it returns is checked, made into responses, and sent.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pytriton_lite.binding import decorators
from pytriton_lite.binding.decorators import Outputs, named
from pytriton_lite.binding.request import Array, Request
from pytriton_lite.binding.specification import CURRENT, Specification, is_class
from pytriton_lite.core import arrays, dtypes
from pytriton_lite.core.tensor import has_dims
from pytriton_lite.worker import pb_utils
from pytriton_lite.worker.request import InferenceRequest
from pytriton_lite.worker.response import InferenceResponse
from pytriton_lite.worker.tracebacks import describe

_NUMBER = re.compile(r"_(\d+)$")
_UNRECOVERABLE = 70
"""The exit status of a worker whose function has said that it cannot go on."""


class Unrecoverable(Exception):
    """What a function raises that cannot go on: its worker ends, and another one is started."""


class BoundModel:
    """The model of one worker."""

    def __init__(self, specification: Specification, *, is_in_process: bool = False) -> None:
        self._specification = specification
        self._is_in_process = is_in_process
        self._function: Any = None
        self._call: Callable[[list[Request]], Any] | None = None
        self._outputs = {str(tensor.name): tensor for tensor in specification.outputs}
        self._compares_rows = specification.compares_rows and specification.batching
        self._forms: dict[str, tuple[Any, tuple[int, ...]]] = {}
        """Data type and dimensions of a row that each output had last, and that are as declared."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Make the function ready: a class becomes an object, here and now."""
        functions = self._specification.functions
        found = _NUMBER.search(args["model_instance_name"])
        function = functions[int(found[1]) % len(functions) if found is not None else 0]
        CURRENT.set(self._specification)
        self._function = function() if is_class(function) else function
        self._call = (
            self._function if self._specification.takes_requests else _by_name(self._function, self._specification)
        )

    def finalize(self) -> None:
        """Let an object that was made here finish."""
        finalize = getattr(self._function, "finalize", None)
        if callable(finalize) and any(map(is_class, self._specification.functions)):
            finalize()

    # ------------------------------------------------------------------------------------------ execute

    def execute(self, requests: list[InferenceRequest]) -> Any:
        """Answer *requests*: responses, a coroutine that will return them, or nothing where they are sent."""
        assert self._call is not None, "initialize came first"
        CURRENT.set(self._specification)
        given = [_request_of(request) for request in requests]
        if self._specification.decoupled:
            return self._stream(requests, given)
        try:
            result = self._call(given)
        except Exception as error:
            self._end_if_hopeless(error)
            raise
        if isinstance(result, list):  # as most often
            return self._responses(given, result)
        if inspect.isawaitable(result):
            return self._answer_later(given, result)
        if inspect.isgenerator(result) or inspect.isasyncgen(result):
            raise TypeError(f"model '{self._specification.name}' is a generator, and is not bound as decoupled")
        return self._responses(given, result)

    async def _answer_later(self, given: list[Request], result: Any) -> Any:
        CURRENT.set(self._specification)
        try:
            return self._responses(given, await result)
        except Exception as error:
            self._end_if_hopeless(error)
            raise

    def _responses(self, given: list[Request], result: Any) -> list[InferenceResponse]:
        return [self._response(request, outputs) for request, outputs in zip(given, self._each(given, result))]

    def _each(self, given: list[Request], result: Any) -> Sequence[Any]:
        if not isinstance(result, (list, tuple)):
            raise TypeError(
                f"model '{self._specification.name}' returned {type(result).__name__}, expected a list with a dict of arrays "
                f"for each of {len(given)} requests"
            )
        if len(result) != len(given):
            raise ValueError(
                f"model '{self._specification.name}' returned {len(result)} responses for {len(given)} requests"
            )
        return result

    def _end_if_hopeless(self, error: BaseException) -> None:
        if not isinstance(error, Unrecoverable):
            return
        if not self._is_in_process:
            print(f"unrecoverable: {error}", file=sys.stderr, flush=True)
            os._exit(_UNRECOVERABLE)
        if self._specification.on_unrecoverable is not None:
            self._specification.on_unrecoverable()

    # ------------------------------------------------------------------------------------------ streams

    def _stream(self, requests: list[InferenceRequest], given: list[Request]) -> Any:
        senders = _Senders(requests)
        try:
            assert self._call is not None
            results = self._call(given)
            if inspect.isasyncgen(results) or inspect.isawaitable(results):
                return self._stream_later(senders, given, results)
            if not inspect.isgenerator(results):
                results = _only(results)
            try:
                for result in results:
                    senders.send(self._parts(given, result))
                    if not senders.is_wanted():
                        break
            finally:
                results.close()
        except Exception as error:
            self._end_if_hopeless(error)
            senders.fail(describe(error))
        else:
            senders.end()
        return None

    async def _stream_later(self, senders: _Senders, given: list[Request], results: Any) -> None:
        CURRENT.set(self._specification)
        try:
            if inspect.isawaitable(results):
                senders.send(self._parts(given, await results))
            else:
                try:
                    async for result in results:
                        senders.send(self._parts(given, result))
                        if not senders.is_wanted():
                            break
                finally:
                    await results.aclose()
        except Exception as error:
            self._end_if_hopeless(error)
            senders.fail(describe(error))
        else:
            senders.end()

    def _parts(self, given: list[Request], result: Any) -> list[InferenceResponse | None]:
        return [
            None if outputs is None else self._response(request, outputs)
            for request, outputs in zip(given, self._each(given, result))
        ]

    # ------------------------------------------------------------------------------------------ checks

    def _response(self, request: Request, outputs: Any) -> InferenceResponse:
        if not isinstance(outputs, decorators.PLAIN):
            outputs = getattr(outputs, "data", outputs)  # a `Response` of PyTriton's has them there
        return InferenceResponse([self._tensor(name, array, request) for name, array in self._all(outputs).items()])

    def _tensor(self, name: str, array: Any, request: Request) -> pb_utils.Tensor:
        array = self._checked(name, array, request)
        if array.dtype == np.float32 and self._outputs[name].datatype is dtypes.BF16:
            made = arrays.tensor_of(name, array, dtypes.BF16)
            return pb_utils.Tensor._of_request(name, made.datatype, made.shape, None, made.content)
        return pb_utils.Tensor(name, array)

    def _all(self, data: Any) -> Outputs:
        name = self._specification.name
        outputs = named(data, self._specification)
        if not outputs.keys() <= self._outputs.keys():  # nobody could ask for it, so it would be lost without a word
            unknown = [each for each in outputs if each not in self._outputs]
            raise ValueError(
                f"model '{name}' returned {', '.join(map(repr, unknown))}, and its outputs are {', '.join(self._outputs)}"
            )
        return outputs

    def _checked(self, name: str, array: Any, request: Request) -> Any:
        """*array* as it is sent. Raises TypeError or ValueError for what the output may not be."""
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{self._where(name)} is {type(array).__name__}, expected an array of numpy")
        if array.dtype.kind == "U":
            array = array.astype(object)
        elif self._outputs[name].datatype is dtypes.BF16 and arrays.is_bfloat16(array):
            array = array.astype(np.float32)
        if self._specification.strict:
            self._check_form(name, array)
            if self._compares_rows and len(request) and len(array) != (rows := len(next(iter(request.values())))):
                raise ValueError(f"{self._where(name)} has {len(array)} rows, and its request {rows}")
        return array

    def _where(self, name: str) -> str:
        return f"output '{name}' of model '{self._specification.name}'"

    def _check_form(self, name: str, array: Array) -> None:
        """Raises ValueError where data type and shape of a row are not those declared."""
        model = self._specification
        dims: tuple[int, ...] = array.shape[1:] if model.batching else array.shape
        form = (array.dtype, dims)
        if self._forms.get(name) == form:  # that of the last answer, as most often
            return
        tensor = self._outputs[name]
        wanted = tensor.datatype
        found = dtypes.from_numpy(array.dtype)
        if found is not wanted and not (wanted is dtypes.BF16 and found is dtypes.FP32):  # numpy has no BF16
            told = found.name if found is not None else str(array.dtype)
            raise ValueError(f"{self._where(name)} is {told}, and is declared as {wanted.name}")
        if not has_dims(dims, tensor.shape):
            of_row = " for each row" if model.batching else ""
            raise ValueError(
                f"{self._where(name)} has shape {list(dims)}{of_row}, and is declared as {list(tensor.shape)}"
            )
        self._forms[name] = form


def _by_name(function: Callable[..., Any], specification: Specification) -> Callable[[list[Request]], Any]:
    """*function*, which is given arrays by name, as one that is given requests."""
    if specification.batching:
        inner = decorators.batch(function)
        return decorators.group_by_keys(inner) if any(tensor.optional for tensor in specification.inputs) else inner
    return decorators.sample(function)


def _only(result: Any) -> Any:
    """A generator of one thing."""
    yield result


def _request_of(request: InferenceRequest) -> Request:
    parameters = request._parameters
    return Request(
        {tensor._name: _array_of(tensor) for tensor in request._inputs},
        json.loads(parameters) if parameters and parameters != "{}" else {},
        None,
        list(_in_order(request._requested_outputs)),
        request._request_id,
    )


def _array_of(tensor: pb_utils.Tensor) -> Array:
    """Its elements; FP32 for BF16, which numpy has not."""
    if tensor._datatype is dtypes.BF16:
        return arrays.decoded(tensor._buffer(), dtypes.BF16, tuple(tensor._shape))
    return tensor.as_numpy()


@functools.lru_cache(maxsize=1024)
def _in_order(names: frozenset[str]) -> tuple[str, ...]:
    """*names*, which are the same for almost all requests, in the order of the alphabet."""
    return tuple(sorted(names))


class _Senders:
    """The senders of the requests of one batch."""

    def __init__(self, requests: Sequence[InferenceRequest]) -> None:
        self._open = [(request, request.get_response_sender()) for request in requests]

    def send(self, responses: Sequence[InferenceResponse | None]) -> None:
        """A response for each request, None for those that get none now."""
        for (request, sender), response in zip(self._open, responses):
            if response is not None and not request.is_cancelled():
                sender.send(response)

    def is_wanted(self) -> bool:
        """Whether anybody waits for more."""
        return not all(request.is_cancelled() for request, _ in self._open)

    def end(self) -> None:
        """There is no more."""
        for _, sender in self._open:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def fail(self, text: str) -> None:
        """End every request with an error."""
        for _, sender in self._open:
            sender.send(
                InferenceResponse(error=pb_utils.TritonError(text)), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            )
