"""Bounds on what waits: the requests that were accepted and are not yet answered, and the bytes of their inputs.

```
client ─▶ version: take ── queued, sent ahead, executed, in an ensemble's steps ── its end: give back
            │ over a limit, the version's or the server's
            ▼
          refused at once, with the overload error
```

* Only what a client sends is refused. A call of a model and a step of an ensemble belong to a request that was accepted: to
  refuse them would make that one fail, or wait for ever. They are counted where they wait, so that clients give way to them.
* The server counts clients' requests and models' calls; a step is counted by its version alone, for its ensemble's request is
  counted by the server already.
* A request whose client has gone counts until its worker has done with it, because its inputs are there until then. Inputs in
  a client's shared memory are not the server's, and count nothing.
* Parameters and texts that name the request count with the inputs: a client may send as much of them as of those.
* What a step of an ensemble has made counts with the steps that take it, for their models, and not while nobody has taken it:
  the engine would have to look at every tensor of every step. How many requests hold such tensors is bounded, by the
  ensemble's own limit and ``max_inflight_requests``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from pytriton_lite.core.errors import BugError, ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, Origin

BYTES_FOR_EACH = 16 << 10
"""How many requests may wait unless somebody says so: one for so many of the bytes that may. A small one with its connection,
its objects and its answer takes about that much."""

_BYTES_FOR_PARAMETER = 128
"""What a parameter takes: a place in a dictionary, and the objects of its key and its value."""

_SHORTEST_S, _LONGEST_S = 1.0, 30.0
"""Bounds of what a refused client is told to wait."""
_LOOK_EVERY_NS = 1_000_000_000
_FORGET_NS = 60 * _LOOK_EVERY_NS
"""What was seen longer ago says nothing: the overload begins now."""


@dataclass(frozen=True)
class UnansweredLimits:
    """None is no limit."""

    requests: int | None = None
    nbytes: int | None = None

    def halved(self) -> UnansweredLimits:
        return UnansweredLimits(_half(self.requests), _half(self.nbytes))


def _half(limit: int | None) -> int | None:
    return None if limit is None else max(1, limit // 2)


def _described_bytes(request: InferenceRequest) -> int:
    """About what *request* has beside its tensors."""
    return request.text_length + _BYTES_FOR_PARAMETER * len(request.parameters)


class UnansweredTotal:
    """The sum over all models of a server."""

    __slots__ = ("code", "limits", "max_bytes", "max_requests", "nbytes", "requests")

    def __init__(self, limits: UnansweredLimits, code: ErrorCode = ErrorCode.UNAVAILABLE) -> None:
        """*code* is that of a refusal."""
        self.limits = limits
        self.code = code
        self.max_requests = sys.maxsize if limits.requests is None else limits.requests
        self.max_bytes = sys.maxsize if limits.nbytes is None else limits.nbytes
        self.requests = 0
        self.nbytes = 0


class Unanswered:
    """The unanswered requests of one model version. Plain integers: this is the way of every request."""

    __slots__ = (
        "_clock",
        "_ended",
        "_looked_ns",
        "_max_bytes",
        "_max_requests",
        "_model",
        "_seen",
        "_total",
        "limits",
        "nbytes",
        "requests",
    )

    def __init__(
        self,
        model: str,
        total: UnansweredTotal,
        *,
        requests: int | None = None,
        nbytes: int | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """*requests* and *nbytes* are what the model's configuration says, 0 for no limit of its own.

        Where it says nothing, None, it may have half of what the server may: what one model cannot serve leaves room.
        """
        halves = total.limits.halved()
        self.limits = UnansweredLimits(
            halves.requests if requests is None else requests or None,
            halves.nbytes if nbytes is None else nbytes or None,
        )
        self.requests = 0
        self.nbytes = 0
        self._model = model
        self._total = total
        self._max_requests = sys.maxsize if self.limits.requests is None else self.limits.requests
        self._max_bytes = sys.maxsize if self.limits.nbytes is None else self.limits.nbytes
        self._clock = clock
        self._ended = 0
        self._seen = 0
        """`_ended` when a refusal looked last."""
        self._looked_ns = 0

    def take(self, request: InferenceRequest) -> int:
        """Count *request*; what `give_back` must be told when it has ended.

        Raises the overload error for a client's request that would go over a limit.
        """
        packed = request.packed
        nbytes = 0
        if packed is not None:
            nbytes = packed.nbytes
        else:
            for tensor in request.inputs:
                if tensor.data is not None:
                    nbytes += tensor.nbytes
        if request.parameters or request.request_id:
            nbytes += _described_bytes(request)
        origin = request.origin
        total = self._total
        requests, mine = self.requests + 1, self.nbytes + nbytes
        if origin is not Origin.ENSEMBLE:
            all_requests, all_bytes = total.requests + 1, total.nbytes + nbytes
            if origin is Origin.CLIENT and (
                requests > self._max_requests
                or mine > self._max_bytes
                or all_requests > total.max_requests
                or all_bytes > total.max_bytes
            ):
                raise self._refusal(nbytes)
            total.requests, total.nbytes = all_requests, all_bytes
        self.requests, self.nbytes = requests, mine
        return nbytes

    def give_back(self, request: InferenceRequest, nbytes: int) -> None:
        """*request*, for which `take` gave *nbytes*, has ended. Once for each."""
        if not self.requests:
            raise BugError(f"more requests of model '{self._model}' have ended than were accepted")
        self.requests -= 1
        self.nbytes -= nbytes
        self._ended += 1
        if request.origin is not Origin.ENSEMBLE:
            total = self._total
            total.requests -= 1
            total.nbytes -= nbytes

    # ------------------------------------------------------------------------------------------ refusing

    def _refusal(self, nbytes: int) -> InferenceError:
        mine, total = self.limits, self._total
        if self.requests >= self._max_requests:
            who, what = f"model '{self._model}'", f"{self.requests} requests, limit {mine.requests}"
        elif total.requests >= total.max_requests:
            who, what = "the server", f"{total.requests} requests, limit {total.limits.requests}"
        elif self.nbytes + nbytes > self._max_bytes:
            who, what = f"model '{self._model}'", f"{self.nbytes} bytes of inputs, limit {mine.nbytes}"
            if nbytes > self._max_bytes:
                return self._too_large(nbytes, who, self._max_bytes)
        else:
            who, what = "the server", f"{total.nbytes} bytes of inputs, limit {total.limits.nbytes}"
            if nbytes > total.max_bytes:
                return self._too_large(nbytes, who, total.max_bytes)
        text = f"too much waits: a request of {nbytes} bytes to model '{self._model}' is refused, for {who} has {what}"
        return InferenceError(total.code, text, retry_after_s=self._retry_after_s())

    def _too_large(self, nbytes: int, who: str, limit: int) -> InferenceError:
        """No time would help."""
        text = f"a request of {nbytes} bytes to model '{self._model}' is refused: {who} takes {limit} bytes of inputs at most"
        return InferenceError(self._total.code, text)

    def _retry_after_s(self) -> float:
        """About the time in which what waits here will have been answered, at the rate since a refusal looked last."""
        now_ns = self._clock()
        passed_ns = now_ns - self._looked_ns
        ended = self._ended - self._seen
        if passed_ns >= _LOOK_EVERY_NS:
            self._looked_ns, self._seen = now_ns, self._ended
        if not ended or passed_ns > _FORGET_NS:
            return _SHORTEST_S
        return min(_LONGEST_S, max(_SHORTEST_S, self.requests * passed_ns / ended / 1e9))
