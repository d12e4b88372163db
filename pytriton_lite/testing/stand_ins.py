"""Stand-ins for the models that a model calls: what BLS, load_model and is_model_ready meet in a unit test."""

from __future__ import annotations

import base64
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np

from pytriton_lite.core.errors import BugError, ErrorCode, InferenceError
from pytriton_lite.worker.api_errors import TritonError, error_of
from pytriton_lite.worker.execute import keep_wanted
from pytriton_lite.worker.pending_call import PendingCall
from pytriton_lite.worker.request import InferenceRequest
from pytriton_lite.worker.response import InferenceResponse
from pytriton_lite.worker.tensor import Tensor

Reply: TypeAlias = "InferenceResponse | TritonError | Mapping[str, np.ndarray[Any, Any]]"
"""One response: as pb_utils has it, an error alone, or the outputs by name."""

Answer: TypeAlias = "Callable[[InferenceRequest], Reply | Iterable[Reply]] | Sequence[Reply]"


class NoStandIn(LookupError):
    """The model under test called a model for which the test has no stand-in, or no response left."""


@dataclass(frozen=True)
class LoadCall:
    """A load_model or unload_model of the model under test; ``files`` are contents by ``file:<path>``."""

    operation: str
    model_name: str
    config: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass
class _StandIn:
    answer: Answer
    decoupled: bool
    is_ready: bool
    used: int = 0


class StandIns:
    """The other models of a test, by name.

    ``calls`` are the requests that were made of them, in order; ``loads`` what was loaded and unloaded.
    """

    def __init__(self) -> None:
        self.calls: list[InferenceRequest] = []
        self.loads: list[LoadCall] = []
        self._models: dict[str, _StandIn] = {}
        self._lock = threading.Lock()

    def stand_in(self, name: str, answer: Answer, *, decoupled: bool = False, is_ready: bool = True) -> None:
        """Let *answer* stand in for model *name*.

        A function gets each request and returns its response; a list has the responses to one call after another. Of a
        *decoupled* model the function returns, or yields, all responses of the call, and the list has those of every call.
        The caller sees just these: give ``InferenceResponse()`` last for a model that sends its final flag alone. What the
        function raises passes through the call, into the model. One that is not *is_ready* has to be loaded first.
        """
        if not callable(answer) and not isinstance(answer, (list, tuple)):
            raise TypeError(
                f"stand-in for model '{name}': expected a function or a list of responses, got {type(answer).__name__}"
            )
        self._models[name] = _StandIn(answer, decoupled, is_ready)

    def calls_of(self, name: str) -> list[InferenceRequest]:
        """The requests that were made of model *name*."""
        return [request for request in self.calls if request._model_name == name]

    def call(self, request: InferenceRequest, *, decoupled: bool) -> PendingCall:
        """What a host answers a call with. Raises NoStandIn."""
        name = request._model_name
        stand_in = self._models.get(name)
        if stand_in is None:
            known = ", ".join(f"'{known}'" for known in self._models) or "none"
            raise NoStandIn(
                f"the model under test calls model '{name}', which has no stand-in; give it one with "
                f"stand_in('{name}', function or list of responses). Stand-ins there are: {known}"
            )
        with self._lock:
            self.calls.append(request)
        if not stand_in.is_ready:
            text = f"Failed for execute the inference request. Model '{name}' is not ready."
            return _refused(name, ErrorCode.UNAVAILABLE, text)
        if stand_in.decoupled and not decoupled:
            # Triton's words, with the quote that it leaves at the end (model API, 4.9).
            text = (
                f"Model {name} is using the decoupled. The current BLS request call doesn't support models using the "
                "decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls "
                "for decoupled models.'"
            )
            return _refused(name, ErrorCode.UNSUPPORTED, text)
        return StandInCall(self._replies(name, stand_in, request))

    def _replies(self, name: str, stand_in: _StandIn, request: InferenceRequest) -> Iterator[InferenceResponse]:
        given: object
        if callable(stand_in.answer):
            given = stand_in.answer(request)
        elif stand_in.decoupled:
            given = stand_in.answer
        else:
            given = self._next_in_list(name, stand_in)
        if not stand_in.decoupled:
            given = (given,)
        elif not isinstance(given, Iterable) or isinstance(given, Mapping):
            raise TypeError(
                f"stand-in for decoupled model '{name}': expected responses to iterate over, got {type(given).__name__}"
            )
        return (_response(name, reply, request._requested_outputs) for reply in given)

    def _next_in_list(self, name: str, stand_in: _StandIn) -> Reply:
        replies = cast("Sequence[Reply]", stand_in.answer)
        with self._lock:
            stand_in.used += 1
        if stand_in.used > len(replies):
            raise NoStandIn(f"the stand-in for model '{name}' has {len(replies)} responses and was called once more")
        return replies[stand_in.used - 1]

    # ------------------------------------------------------------------------------------------ the model loading API

    def ask(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Answer what load_model, unload_model and is_model_ready ask. Raises InferenceError."""
        name: str = arguments["model_name"]
        stand_in = self._models.get(name)
        if operation == "model.is_ready":
            return stand_in is not None and stand_in.is_ready
        if operation == "model.load":
            files = {path: base64.b64decode(content) for path, content in arguments["files"].items()}
            self.loads.append(LoadCall("load", name, arguments["config"], files))
            if stand_in is None:
                raise InferenceError(ErrorCode.INTERNAL, f"failed to load '{name}', the test has no stand-in for it")
            stand_in.is_ready = True
        elif operation == "model.unload":
            self.loads.append(LoadCall("unload", name))
            if stand_in is not None:
                stand_in.is_ready = False
        else:
            raise BugError(f"a model asks for '{operation}', which no stand-in answers")
        return None


class StandInCall(PendingCall):
    """A call that a stand-in answers: a response is made when somebody wants to see it."""

    __slots__ = ("_lock", "_replies")

    def __init__(self, replies: Iterator[InferenceResponse]) -> None:
        super().__init__()
        self._replies = replies
        self._lock = threading.RLock()

    def wait(self, count: int) -> None:
        with self._lock:
            while not self.has(count):
                response = next(self._replies, None)
                if response is None:
                    self.is_complete = True
                else:
                    self.responses.append(response)

    def abandon(self) -> None:
        """The rest is not made; the last response says that the call was cancelled, as that of a model which looks does."""
        with self._lock:
            if not self.is_complete:
                error = error_of(ErrorCode.CANCELLED, "the request was cancelled by its caller")
                self._replies = itertools.chain([InferenceResponse(error=error)])

    def notify(self, callback: Callable[[], None]) -> None:
        self.wait(1)
        callback()


def _refused(model: str, code: ErrorCode, text: str) -> PendingCall:
    message = f"Model {model} - Error when running inference: {text}"
    return StandInCall(iter([InferenceResponse(error=error_of(code, message))]))


def _response(model: str, reply: object, wanted: frozenset[str]) -> InferenceResponse:
    if isinstance(reply, TritonError):
        return InferenceResponse(error=reply)
    if isinstance(reply, Mapping):
        reply = InferenceResponse([Tensor(name, array) for name, array in reply.items()])
    if not isinstance(reply, InferenceResponse):
        raise TypeError(
            f"stand-in for model '{model}': expected an InferenceResponse, a TritonError or a dict of arrays, got "
            f"{type(reply).__name__}"
        )
    if not wanted:
        return reply
    chosen = InferenceResponse(reply._outputs, reply._error)
    chosen._parameters = reply._parameters
    keep_wanted(chosen, wanted)
    return chosen
