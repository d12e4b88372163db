"""What an instance hands on of a worker's own asking: calls of other models (BLS), and what ``pb_utils`` wants of the server.

`serving.calls` answers; an instance knows no more of that than is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.request import InferenceResponse
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.ipc.messages import TensorRef
from pytriton_lite.scheduling.ticket import Executor, Ticket

CallOutcome = InferenceResponse | InferenceError | None
"""What a `core.request.ResponseReceiver` hears."""


class Asking(Protocol):
    """Calls and questions of one worker process that have not been answered."""

    def on_frame(self, kind: int, body: memoryview) -> None:
        """A frame of CALL, TAKEN, ABANDON, ASK or TELL has come. Raises ProtocolError for any other."""

    def close(self) -> None:
        """The worker has ended: cancel what it waited for."""

    def blocking(self, batch: int) -> Sequence[Ticket]:
        """The requests without whose answer ``execute`` of *batch* cannot end."""

    def is_waited_for(self, batch: int) -> bool:
        """Whether the callee of a call is to say something next on which *batch* may wait; of any call for 0."""


class WorkerLink(Protocol):
    """The process that asks. Identifies it, too."""

    def send(self, message: bytes) -> None:
        """Send a whole frame."""

    def send_descriptor(self, fd: int) -> None:
        """Send *fd*, in order, without waiting."""


class AskingWire(Protocol):
    """What references in a worker's messages mean."""

    def resolve(self, ref: TensorRef, shape: tuple[int, ...]) -> Tensor:
        """A tensor of the worker's. Raises InferenceError for one that is not there any more."""

    def refuse(self, refs: Iterable[TensorRef]) -> None:
        """Give back the memory of tensors that came with a message which was refused."""


class AskingInstance(Executor, Protocol):
    """The instance whose process asks."""

    @property
    def owner(self) -> object:
        """The version that it belongs to."""

    @property
    def is_new(self) -> bool:
        """Whether it was never READY: a load waits for its first worker."""

    @property
    def wire(self) -> AskingWire:
        """The forms of its messages."""

    def on_call(self, *, is_in_execute: bool) -> None:
        """The model calls another one."""

    def reply(self, worker: WorkerLink, call: int, outcome: CallOutcome, *, is_final: bool) -> None:
        """Hand a response to a call of *worker*, which lives."""


BeginAsking = Callable[[AskingInstance, WorkerLink], Asking]
"""Called once for a process, with the first thing that it asks."""
