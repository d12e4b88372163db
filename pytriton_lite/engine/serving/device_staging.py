"""Requests whose tensors are, or are to be, in memory of a device, for models that want them on the host.

```
infer ─▶ inputs on a device? ── helper reads them ──▶ cache, queue, worker, … ─▶ outputs for a device?
                                                                                └─ helper writes them ─▶ receiver
```

What is between sees nothing of devices. Inputs are read before anything else happens, so what is executed is what they were
when the request came. A request that waits for them is not queued yet: it holds the version, counts as waiting, and may be
cancelled. Requests of its sequence that come behind it wait with it, wherever their inputs are: they keep their order.
Responses wait for their outputs in order; a response is passed on when its outputs are where they belong.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse, ResponseReceiver
from pytriton_lite.core.tensor import Tensor, Window, element_count
from pytriton_lite.engine.counting.statistics import ModelStatistics
from pytriton_lite.engine.serving.not_queued import NotQueued, WaitedFor
from pytriton_lite.engine.workers.device_helper import DeviceHelpers
from pytriton_lite.ipc.device_segment import DeviceSegment, is_on_device
from pytriton_lite.ipc.tensor_io import check_room
from pytriton_lite.scheduling.ticket import Outcome, Ticket

logger = logging.getLogger(__name__)


class StagedVersion(WaitedFor, Protocol):
    """What staging asks of the version whose requests it stages."""

    takes_device_inputs: bool
    """Whether inputs may stay where they are, all but texts."""


class DeviceStaging(NotQueued):
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
        super().__init__(version, clock)
        self._version = version
        self._helpers = helpers
        self._go_on = go_on

    # ------------------------------------------------------------------------------------------ inputs

    def begin(self, ticket: Ticket) -> None:
        """Have the inputs read that are on a device, then go on. Raises InferenceError where too much waits already."""
        request = ticket.request
        before = self._before(request)
        if not before and not any(map(self._must_be_read, request.inputs)):
            self._go_on(ticket)
            return
        self._wait_for(ticket, self._read(request, before), self._on_read)

    def has_before(self, request: InferenceRequest) -> bool:
        """Whether requests of its sequence are here, so that *request* is to `begin` here, wherever its inputs are."""
        return bool(self._under_way and self._before(request))

    def _before(self, request: InferenceRequest) -> list[asyncio.Task[Any]]:
        own = request.correlation_id
        return [task for ticket, task in self._under_way.items() if own and ticket.request.correlation_id == own]

    async def _read(self, request: InferenceRequest, before: list[asyncio.Task[Any]]) -> list[Tensor]:
        """The inputs, when they are on the host and what is under way *before* has ended."""
        inputs = [
            await self._on_host(tensor, request) if self._must_be_read(tensor) else tensor for tensor in request.inputs
        ]
        if before:
            await asyncio.wait(before)
        return inputs

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

    def _on_read(self, ticket: Ticket, inputs: list[Tensor]) -> None:
        if not self._has_failed(ticket):
            ticket.request.inputs = inputs
            self._go_on(ticket)

    # ------------------------------------------------------------------------------------------ outputs

    def receiver_of(self, request: InferenceRequest, receiver: ResponseReceiver) -> ResponseReceiver:
        """*receiver*, or what stands in front of it where outputs of *request* go to a device; it wants them plain then."""
        windows = request.output_windows or {}
        on_device = {name: window for name, window in windows.items() if isinstance(window.segment, DeviceSegment)}
        if not on_device:
            return receiver
        request.output_windows = {name: windows[name] for name in windows if name not in on_device} or None
        return StagedOutputs(receiver, on_device, self._helpers, self._version.statistics)


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
