"""One call of the user's ``execute`` in default mode, with Triton's checks on what comes back (model API, 4.1)."""

from __future__ import annotations

from types import CoroutineType
from typing import Any

from pytriton_lite.worker.pb_utils import InferenceRequest, InferenceResponse
from pytriton_lite.worker.tracebacks import describe


class ExecuteFailed(Exception):
    """``execute`` failed for the whole batch; the text is what Triton's ``EXEC(…)`` frames."""


def call_execute(model: Any, requests: list[InferenceRequest], *, path: str) -> list[InferenceResponse | None]:
    """The responses, one for each request in order, None where the model returned None.

    Raises ExecuteFailed with the text for every way in which the model can break the rules; SystemExit and
    KeyboardInterrupt raised by the model are among them.
    """
    execute = getattr(model, "execute", None)
    if execute is None:
        raise ExecuteFailed(f"Python model {path} does not implement `execute` method.")
    try:
        returned = execute(requests)
    except BaseException as error:
        text = describe(error)
        # The traceback holds the frames, and they hold the inputs: their memory would not be given back.
        error.__traceback__ = None
        raise ExecuteFailed(text) from None
    if returned is None:
        return [None] * len(requests)
    if type(returned) is not list:
        if isinstance(returned, CoroutineType):
            returned.close()  # nobody runs it, and Python would warn of that
            raise ExecuteFailed("`async def execute` is not yet supported by pytriton-lite.")
        raise ExecuteFailed(f"Expected a list in the execute return, found type '{type(returned)}'.")
    if len(returned) != len(requests):
        raise ExecuteFailed(
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(returned)}\n"
        )
    for response in returned:
        if response is not None and not isinstance(response, InferenceResponse):
            raise ExecuteFailed(
                "Expected an 'InferenceResponse' object in the execute function return list, "
                f"found type '{type(response)}'."
            )
    return returned
