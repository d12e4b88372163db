"""How a request is answered when not by the list that ``execute`` returns (model API, 2.5, 4.2 and 4.3)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NoReturn, Protocol

from pytriton_lite.worker.api_errors import COMPILED, TritonModelException, refuse_arguments, refuse_copy
from pytriton_lite.worker.arguments import Unfit, integer
from pytriton_lite.worker.response import InferenceResponse, Windows

if TYPE_CHECKING:
    from pytriton_lite.worker.mailbox import Waiter

FLAG_FINAL = 1
"""TRITONSERVER_RESPONSE_COMPLETE_FINAL"""


class Carrier(Protocol):
    """What brings responses to the server: the worker."""

    def carry(self, answering: Answering, response: InferenceResponse | None, *, is_final: bool) -> None:
        """Send *response*, or an end alone. Any thread; waits for a client that is slow, but never for the model."""

    def orphaned(self, answering: Answering) -> None:
        """The last reference to an unfinished *answering* has gone. Runs in a destructor."""

    def looks_cancelled(self, answering: Answering) -> bool:
        """Whether it is cancelled by now; may look into the channel."""


class Answering:
    """The answer of one request on its way: what was sent, and whether it has ended.

    The request, its sender and the worker's table (weakly) refer to it. When the model drops its last reference before the
    end, nobody could send any more, so the end is sent for it.
    """

    __slots__ = (
        "__weakref__",
        "_carrier",
        "batch",
        "consumed",
        "consumed_bytes",
        "has_sender",
        "index",
        "is_cancelled",
        "is_closed",
        "is_decoupled",
        "request_id",
        "requested_outputs",
        "sent",
        "sent_bytes",
        "since_ns",
        "sizes",
        "waiters",
        "windows",
    )

    def __init__(
        self,
        carrier: Carrier,
        batch: int,
        index: int,
        *,
        is_decoupled: bool,
        requested_outputs: frozenset[str],
        windows: Windows | None = None,
        request_id: str = "",
        since_ns: int = 0,
    ) -> None:
        self._carrier = carrier
        self.batch = batch
        self.index = index
        self.is_decoupled = is_decoupled
        self.requested_outputs = requested_outputs
        self.windows = windows
        self.request_id = request_id
        self.since_ns = since_ns
        """When the response before was sent, or the execution began."""
        self.sent = 0
        self.consumed = 0
        """Responses that the client's side has taken; never more than ``sent``."""
        self.sent_bytes = 0
        self.consumed_bytes = 0
        self.sizes: deque[int] = deque()
        """Bytes of each response that was sent and not taken, in the order of sending."""
        self.has_sender = False
        """Whether the model has asked for its sender."""
        self.is_closed = False
        self.is_cancelled = False
        self.waiters: list[Waiter] = []
        """Threads in `send` that wait for ``consumed`` to grow."""

    def check(self, response: InferenceResponse | None) -> None:
        """Refuse what may not be sent now. Raises TritonModelException with Triton's texts, in Triton's order."""
        if not self.is_decoupled:
            if response is not None and self.sent:
                _refuse("Non-decoupled model cannot send more than one response.")
            if response is None and not self.sent:
                _refuse("Non-decoupled model cannot send complete final before sending a response.")
        if self.is_closed:
            _refuse("Response sender has been closed.")

    def note_sent(self, nbytes: int) -> None:
        """A response of *nbytes* is about to leave."""
        self.sizes.append(nbytes)
        self.sent_bytes += nbytes
        self.sent += 1

    def note_consumed(self, count: int) -> None:
        """The client's side has taken *count* in all. One thread at a time calls this, but not always that of `note_sent`."""
        for _ in range(count - self.consumed):
            if self.sizes:
                self.consumed_bytes += self.sizes.popleft()
        self.consumed = count

    def send(self, response: InferenceResponse | None, flags: int) -> None:
        self.check(response)
        self._carrier.carry(self, response, is_final=flags == FLAG_FINAL)

    def poll_cancelled(self) -> bool:
        return self.is_cancelled or self._carrier.looks_cancelled(self)

    def __del__(self) -> None:
        if not self.is_closed:
            self._carrier.orphaned(self)


def _refuse(why: str) -> NoReturn:
    raise TritonModelException(f"Unable to send response. {why}")


class InferenceResponseSender:
    """Sends the responses of one request, from any thread. Got from ``InferenceRequest.get_response_sender``."""

    __module__ = COMPILED
    __slots__ = ("__weakref__", "_answering")

    _answering: Answering | None

    def __init__(self, *_: object) -> None:
        raise TypeError(f"{COMPILED}.InferenceResponseSender: No constructor defined!")

    @classmethod
    def _of(cls, answering: Answering | None) -> InferenceResponseSender:
        """None for a request that the model built itself."""
        sender = cls.__new__(cls)
        sender._answering = answering
        if answering is not None:
            answering.has_sender = True
        return sender

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send *response*, or with flags TRITONSERVER_RESPONSE_COMPLETE_FINAL the end, or both.

        Returns when the server has it; waits while too many responses of this request lie unread at the client
        (``--grpc-max-response-pool-size``), or 64 MiB of them. Raises TritonModelException when it may not be sent.
        """
        try:
            if response is not None and not isinstance(response, InferenceResponse):
                raise Unfit
            flags = integer(flags, bits=32)
        except Unfit:
            refuse_arguments(
                "send",
                "(self: InferenceResponseSender, response: InferenceResponse = None, flags: int = 0) -> None",
                (response, flags),
            )
        if flags not in (0, FLAG_FINAL):
            _refuse("Unsupported flag provided.")
        if response is None and flags == 0:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if self._answering is None:
            _refuse("Response sender has no reference to the decoupled state of the model.")
        self._answering.send(response, flags)

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the responses any more: asked live, and never False again once it was True."""
        return self._answering is not None and self._answering.poll_cancelled()
