"""One call of the user's ``execute``, with Triton's checks on what comes back (model API, 4.1, 4.3 and 4.5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytriton_lite.worker.request import RELEASE_RESCHEDULE, InferenceRequest
from pytriton_lite.worker.response import InferenceResponse
from pytriton_lite.worker.tensor import Tensor
from pytriton_lite.worker.tracebacks import describe

NOT_ANSWERED = "execute returned None for the request, and no response was sent through its sender."
"""What a request is told that nobody can answer any more (4.1)."""

END_IS_IMPLIED = "a response sender was dropped without TRITONSERVER_RESPONSE_COMPLETE_FINAL; the end is sent for it"
ANSWERED_TWICE = "a response was returned for a request that the response sender had answered; it is dropped"
RESCHEDULED_TOO_LATE = "a request was released with RESCHEDULE after its last response; it ends here"
"""Three things that are let pass, with a line in the log."""


def framed(failure: str, *, instance: str) -> str:
    """*failure* as the clients of the batch are told it: Triton's ``EXEC(…)``."""
    return f"Failed to process the request(s) for model '{instance}', message: {failure}"


class ExecuteFailed(Exception):
    """``execute`` failed for the whole batch; the text is what Triton's ``EXEC(…)`` frames."""


def invoke(model: Any, requests: list[InferenceRequest], *, path: str) -> object:
    """Whatever ``execute`` returns, a coroutine perhaps.

    Raises ExecuteFailed with the text for what it raises; SystemExit and KeyboardInterrupt are among that.
    """
    execute = getattr(model, "execute", None) or execute_of(model, path=path)
    try:
        return execute(requests)
    except BaseException as error:
        raise failure_of(error) from None


def execute_of(model: Any, *, path: str) -> Callable[[list[InferenceRequest]], object]:
    """The method, looked up for every call (3.3). Raises ExecuteFailed for a model that has none."""
    execute: Callable[[list[InferenceRequest]], object] | None = getattr(model, "execute", None)
    if execute is None:
        raise ExecuteFailed(f"Python model {path} does not implement `execute` method.")
    return execute


def failure_of(error: BaseException) -> ExecuteFailed:
    """What an exception of the model's means for its batch. The exception gives up its traceback."""
    text = describe(error)
    # The traceback holds the frames, and they hold the inputs: their memory would not be given back.
    error.__traceback__ = None
    return ExecuteFailed(text)


def check_responses(returned: object, requests: list[InferenceRequest]) -> list[InferenceResponse | None]:
    """What a model in default mode may return: one response or None for each request, or None for all.

    Raises ExecuteFailed with Triton's texts.
    """
    if returned is None:
        return [None] * len(requests)
    if not isinstance(returned, list):
        raise ExecuteFailed(f"Expected a list in the execute return, found type '{type(returned)}'.")
    if type(returned) is not list:
        returned = list.copy(returned)  # what it holds as a list, whatever its own class says that it is
    if len(returned) != len(requests):
        raise ExecuteFailed(
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(returned)}\n"
        )
    for request, response in zip(requests, returned):
        if response is None:
            continue
        if request._release_flags == RELEASE_RESCHEDULE:
            raise ExecuteFailed(
                "Expected a None object in the execute function return list for reschduled request, "
                f"found type '{type(response)}'."
            )
        if not issubclass(type(response), InferenceResponse):  # which asks nothing of an object that may raise anything
            raise ExecuteFailed(
                "Expected an 'InferenceResponse' object in the execute function return list, "
                f"found type '{type(response)}'."
            )
    return returned


def check_nothing(returned: object, *, instance: str) -> None:
    """A model in decoupled mode answers through senders alone. Raises ExecuteFailed with Triton's text."""
    if returned is not None:
        raise ExecuteFailed(
            f"Python model '{instance}' is using the decoupled mode and the execute function must return None."
        )


def keep_wanted(response: InferenceResponse, wanted: frozenset[str]) -> list[Tensor]:
    """The outputs that are sent; those that nobody asked for are taken out of the object itself (2.4)."""
    for tensor in response._outputs:
        if tensor._name not in wanted:
            response._outputs = [tensor for tensor in response._outputs if tensor._name in wanted]
            break
    return response._outputs
