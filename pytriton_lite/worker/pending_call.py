"""A call of another model that has not been answered, whoever carries it (model API, 4.9)."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from typing import NoReturn

from pytriton_lite.worker.api_errors import COMPILED, refuse_copy
from pytriton_lite.worker.response import InferenceResponse

CALL_LOST = "the call was not answered: the instance that made it has ended"


class PendingCall(abc.ABC):
    """A call that a host has made for a model: responses as they arrive, any thread.

    A host's own class derives from it and says how to wait, and what happens to a call that nobody wants any more.
    """

    __slots__ = ("is_complete", "is_discarded", "is_lost", "responses")

    def __init__(self) -> None:
        self.responses: list[InferenceResponse] = []
        self.is_complete = False
        self.is_discarded = False
        """Whether nobody can read the responses any more; they need not be kept then."""
        self.is_lost = False
        """Whether nothing more will come, of a call that is not complete: the instance that made it has ended."""

    @abc.abstractmethod
    def wait(self, count: int) -> None:
        """Return when *count* responses are there, or no more will come. Raises TritonModelException for a lost call."""

    @abc.abstractmethod
    def abandon(self) -> None:
        """Cancel the callee's request. Harmless after its end."""

    @abc.abstractmethod
    def notify(self, callback: Callable[[], None]) -> None:
        """Call *callback* once, when the first response is there or the call has ended; at once if that is so now."""

    def has(self, count: int) -> bool:
        return self.is_complete or self.is_lost or len(self.responses) >= count

    def only_response(self) -> InferenceResponse:
        return self.responses[0] if self.responses else InferenceResponse()


class ResponseIterator:
    """The responses of a decoupled call. A new ``for`` after the end begins with the first response again (4.9)."""

    __module__ = COMPILED
    __slots__ = ("__weakref__", "_at", "_call", "_has_ended")

    def __init__(self, call: PendingCall) -> None:
        if not isinstance(call, PendingCall):
            raise TypeError(f"{COMPILED}.ResponseIterator: No constructor defined!")
        self._call = call
        self._at = 0
        self._has_ended = False

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    def __iter__(self) -> Iterator[InferenceResponse]:
        if self._has_ended:
            self._at = 0
            self._has_ended = False
        return self

    def __next__(self) -> InferenceResponse:
        call = self._call
        call.wait(self._at + 1)
        if self._at < len(call.responses):
            self._at += 1
            return call.responses[self._at - 1]
        self._has_ended = True
        raise StopIteration("Iteration is done for the responses.")

    def cancel(self) -> None:
        """Tell the callee that nobody waits for the rest. Harmless after the end."""
        self._call.abandon()

    def __del__(self) -> None:
        call = getattr(self, "_call", None)
        if call is not None:
            call.is_discarded = True
            call.responses = []
