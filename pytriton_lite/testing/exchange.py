"""What a test sends to a model, and what comes back."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import ParameterValue
from pytriton_lite.worker.api_errors import TritonError
from pytriton_lite.worker.tensor import Tensor

Array: TypeAlias = "np.ndarray[Any, Any]"

_END_TIMEOUT_S = 10.0
"""How long `Outcome.wait` waits for a response of another thread: a test that has to wait longer says so."""


@dataclass(eq=False)
class Request:
    """A client's request. ``inputs`` are arrays by name, or tensors where numpy has no such type; numbers, lists and texts
    become arrays of the type that the model wants, as for `pytriton_lite.Server`.

    ``requested_outputs`` empty is all of them. ``cancelled_after`` is how many times ``is_cancelled`` still says False;
    without it the request is cancelled by `cancel` alone.
    """

    inputs: Mapping[str, object]
    request_id: str = ""
    correlation_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    timeout_us: int = 0
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    requested_outputs: Sequence[str] = ()
    cancelled_after: int | None = None

    def __post_init__(self) -> None:
        self._is_cancelled = False

    def cancel(self) -> None:
        """Say that nobody waits for the answer any more. Any thread, and also from a stand-in, which runs inside ``execute``.

        A server drops a request that is cancelled before ``execute`` began with it; here the model gets it, cancelled.
        """
        self._is_cancelled = True

    def looks_cancelled(self) -> bool:
        """What the model is told that asks now."""
        if self.cancelled_after is not None:
            self._is_cancelled |= self.cancelled_after <= 0
            self.cancelled_after -= 1
        return self._is_cancelled


@dataclass(frozen=True)
class Response:
    """One response, as a client would see it: ``tensors`` in the model's order, without those that nobody asked for.

    With an ``error`` there are none.
    """

    tensors: tuple[Tensor, ...] = ()
    error: TritonError | None = None
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)

    @property
    def outputs(self) -> dict[str, Array]:
        """The arrays by name. Raises InferenceError when the response is an error."""
        if self.error is not None:
            raise InferenceError(ErrorCode(int(self.error.code())), self.error.message())
        return {tensor.name(): tensor.as_numpy() for tensor in self.tensors}

    def __getitem__(self, name: str) -> Array:
        outputs = self.outputs
        if name not in outputs:
            raise KeyError(f"the response has no output '{name}'; it has {list(outputs)}")
        return outputs[name]


class Outcome:
    """What became of one request; it may grow while threads and coroutines of the model go on.

    ``received`` are the responses so far. ``rounds`` counts the calls of ``execute`` that had the request: more than one
    when the model released it with RESCHEDULE.
    """

    def __init__(self, request: Request, changed: threading.Condition) -> None:
        self.request = request
        self.received: list[Response] = []
        self.is_final = False
        self.rounds = 0
        self.failure: BaseException | None = None
        """What the coroutine raised that was to answer a request of a decoupled model."""
        self._changed = changed

    def wait(self, timeout_s: float = _END_TIMEOUT_S) -> list[Response]:
        """Wait for the last response; all of them. Raises ``failure``, or TimeoutError when no end comes."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.is_final, timeout_s):
                raise TimeoutError(
                    f"the request did not end within {timeout_s:g} s; responses so far: {len(self.received)}. "
                    "Does the model send TRITONSERVER_RESPONSE_COMPLETE_FINAL?"
                )
        if self.failure is not None:
            raise self.failure
        return self.received

    @property
    def responses(self) -> list[Response]:
        """`wait`, for ten seconds."""
        return self.wait()

    @property
    def response(self) -> Response:
        """The only response. Raises ValueError if there is none or are several."""
        responses = self.wait()
        if len(responses) != 1:
            raise ValueError(f"expected one response, the model sent {len(responses)}")
        return responses[0]
