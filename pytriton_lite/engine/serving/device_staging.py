"""Requests whose tensors are, or are to be, in memory of a device, for models that want them on the host.

```
infer ─▶ inputs on a device? ── helper reads them ──▶ cache, queue, worker, … ─▶ outputs for a device?
                                                                                └─ helper writes them ─▶ receiver
```

What is between sees nothing of devices. Inputs are read before anything else happens, so what is executed is what they were
when the request came. A request that waits for them is not queued yet: it holds the version, counts as waiting, and may be
cancelled. Responses wait for their outputs in order; a response is passed on when its outputs are where they belong.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse, ResponseReceiver
from pytriton_lite.core.tensor import Tensor, Window, element_count
from pytriton_lite.engine.counting.statistics import FailureReason, ModelStatistics
from pytriton_lite.engine.counting.unanswered import Unanswered
from pytriton_lite.engine.workers.device_helper import DeviceHelpers
from pytriton_lite.ipc.device_segment import DeviceSegment, is_on_device
from pytriton_lite.ipc.tensor_io import check_room
from pytriton_lite.scheduling.ticket import Executor, Outcome, Ticket, Ways

logger = logging.getLogger(__name__)


class StagedVersion(Protocol):
    """What staging asks of the version whose requests it stages."""

    name: str
    takes_device_inputs: bool
    """Whether inputs may stay where they are, all but texts."""
    statistics: ModelStatistics
    unanswered: Unanswered

    def count_refusal(self, error: BaseException) -> None:
        """A request was not taken."""

    def hold(self) -> None:
        """Stay able to serve until `release`."""

    def release(self) -> None:
        """Undo one `hold`."""


class DeviceStaging:
    """Stands in front of everything else of one version, and owns requests while their inputs are read."""

    def __init__(
        self,
        version: StagedVersion,
        helpers: DeviceHelpers,
        *,
        go_on: Callable[[Ticket], None],
        clock: Callable[[], int],
    ) -> None:
        """*go_on* begins with a request whose inputs are on the host; it raises InferenceError where that is refused."""
        self._version = version
        self._helpers = helpers
        self._go_on = go_on
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._reading: dict[Ticket, asyncio.Task[list[Tensor]]] = {}

    # ------------------------------------------------------------------------------------------ inputs

    def begin(self, ticket: Ticket) -> None:
        """Have the inputs read that are on a device, then go on. Raises InferenceError where too much waits already."""
        request = ticket.request
        if not any(map(self._must_be_read, request.inputs)):
            self._go_on(ticket)
            return
        nbytes = self._version.unanswered.take(request)
        self._version.hold()
        ticket.owner = self
        reading = self._reading[ticket] = self._loop.create_task(self._read(request))
        reading.add_done_callback(partial(self._on_read, ticket, request, nbytes))

    async def _read(self, request: InferenceRequest) -> list[Tensor]:
        return [
            await self._on_host(tensor, request) if self._must_be_read(tensor) else tensor for tensor in request.inputs
        ]

    def _must_be_read(self, tensor: Tensor) -> bool:
        is_for_host = tensor.datatype is dtypes.BYTES or not self._version.takes_device_inputs
        return is_for_host and is_on_device(tensor)

    async def _on_host(self, tensor: Tensor, request: InferenceRequest) -> Tensor:
        assert tensor.home is not None
        home, offset = tensor.home
        segment = await self._helpers.read(home, offset, tensor.nbytes)
        self._version.statistics.host_bytes += tensor.nbytes
        data = segment.view[: tensor.nbytes]
        if tensor.datatype is dtypes.BYTES:
            bytes_tensor.check(
                data,
                count=element_count(tensor.shape),
                input_name=tensor.name,
                model_name=self._version.name,
                prefix=request.error_prefix,
            )
        return Tensor(tensor.name, tensor.datatype, tensor.shape, data, home=(segment, 0))

    def _on_read(
        self, ticket: Ticket, request: InferenceRequest, nbytes: int, reading: asyncio.Task[list[Tensor]]
    ) -> None:
        self._version.unanswered.give_back(request, nbytes)
        self._version.release()
        is_wanted = self._reading.pop(ticket, None) is not None
        failure = None if reading.cancelled() else reading.exception()
        if not is_wanted:
            return
        try:
            if failure is not None:
                raise failure
            request.inputs = reading.result()
            self._go_on(ticket)
        except InferenceError as error:
            self._version.count_refusal(error)
            self._fail(ticket, error)
        except Exception as error:
            self._version.count_refusal(error)
            logger.exception("a request to model '%s' failed inside the server", self._version.name)
            self._fail(ticket, InferenceError(ErrorCode.INTERNAL, "internal error of the server"))
        else:
            if ticket.on_queued is not None:
                ticket.on_queued()

    def _fail(self, ticket: Ticket, error: InferenceError) -> None:
        timeline = ticket.request.timeline
        if timeline is not None:
            timeline.answered(enqueued_ns=ticket.accepted_ns, error=error.message)
        ticket.deliver(error, is_final=True)

    # ------------------------------------------------------------------------------------------ outputs

    def receiver_of(self, request: InferenceRequest, receiver: ResponseReceiver) -> ResponseReceiver:
        """*receiver*, or what stands in front of it where outputs of *request* go to a device; it wants them plain then."""
        windows = request.output_windows or {}
        on_device = {name: window for name, window in windows.items() if isinstance(window.segment, DeviceSegment)}
        if not on_device:
            return receiver
        request.output_windows = {name: windows[name] for name in windows if name not in on_device} or None
        return StagedOutputs(receiver, on_device, self._helpers, self._version.statistics)

    # ------------------------------------------------------------------------------------------ what tickets say

    def cancelled(self, ticket: Ticket) -> None:
        """Read no further for *ticket*."""
        reading = self._reading.pop(ticket, None)
        if reading is not None:
            reading.cancel()
            statistics = self._version.statistics
            statistics.cancellations += 1
            statistics.add_failure(FailureReason.CANCELED, self._clock() - ticket.accepted_ns)
            # Not now: whoever withdraws requests hears of their ends later, wherever they are.
            self._loop.call_soon(partial(ticket.deliver, InferenceError(ErrorCode.CANCELLED, ""), is_final=True))

    def consumed(self, ticket: Ticket, count: int) -> None:
        """Do nothing: there is no response yet."""

    def may_be_stuck(self, ticket: Ticket) -> bool:
        """Always False: no copy waits for an instance."""
        return False

    def ways_on(self, ticket: Ticket) -> Ways:
        return [[]]

    def servers_of(self, ticket: Ticket) -> Sequence[Executor]:
        return ()


class _Due:
    """A response that is to be passed on when it is its turn."""

    __slots__ = ("is_final", "response")

    def __init__(self, response: Outcome | None, is_final: bool) -> None:
        self.response = response
        self.is_final = is_final


class StagedOutputs:
    """Receives the responses to one request, and passes each on when its outputs are in the memory that they are for."""

    def __init__(
        self,
        receiver: ResponseReceiver,
        windows: dict[str, Window],
        helpers: DeviceHelpers,
        statistics: ModelStatistics,
    ) -> None:
        self._receiver = receiver
        self._windows = windows
        self._helpers = helpers
        self._statistics = statistics
        self._due: deque[_Due] = deque()
        self._writing: asyncio.Task[None] | None = None
        self.ticket: Ticket | None = None
        """Whoever made it says here whose responses these are."""

    def on_response(self, response: Outcome | None, *, is_final: bool) -> None:
        """See `ResponseReceiver`."""
        has_outputs = isinstance(response, InferenceResponse) and self._wanted(response)
        if not has_outputs and self._writing is None:
            self._receiver.on_response(response, is_final=is_final)
            return
        self._due.append(_Due(response, is_final))
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_all())
            self._writing.add_done_callback(self._on_written)

    def _wanted(self, response: InferenceResponse) -> bool:
        return any(tensor.name in self._windows for tensor in response.outputs)

    async def _write_all(self) -> None:
        while self._due:
            due = self._due.popleft()
            response = due.response
            if isinstance(response, InferenceResponse):
                try:
                    response.outputs = [await self._written(tensor) for tensor in response.outputs]
                except InferenceError as error:
                    response = error
            # Nobody hears anything after he has cancelled, and whoever waited for these bytes may have.
            if self.ticket is None or not self.ticket.is_cancelled:
                self._receiver.on_response(response, is_final=due.is_final)

    async def _written(self, tensor: Tensor) -> Tensor:
        window = self._windows.get(tensor.name)
        if window is None:
            return tensor
        check_room(tensor.name, tensor.nbytes, window.nbytes)
        if tensor.nbytes:
            await self._helpers.write(window.segment, window.offset, tensor)
            self._statistics.host_bytes += tensor.nbytes
        return Tensor(tensor.name, tensor.datatype, tensor.shape, b"")

    def _on_written(self, writing: asyncio.Task[None]) -> None:
        self._writing = None
        if not writing.cancelled() and writing.exception() is not None:
            logger.error("a response could not be passed on", exc_info=writing.exception())
