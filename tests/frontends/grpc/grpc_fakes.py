"""An engine in memory, and a loop in a thread to serve it from: sockets, transport and client in these tests are real."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse, ResponseReceiver
from pytriton_lite.core.states import VersionState
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine import views
from pytriton_lite.engine.counting.receive_budget import ReceiveBudget
from pytriton_lite.engine.counting.request_counts import RequestCounts
from pytriton_lite.engine.counting.statistics import FailureReason, ModelStatistics
from pytriton_lite.engine.tracing.observation import Observation
from pytriton_lite.engine.workers.intake import Intake
from pytriton_lite.engine.workers.regions import Regions
from pytriton_lite.proto import model_config_pb
from pytriton_lite.scheduling.ticket import Ticket
from tests.frontends.answered import Owner, answered_by

T = TypeVar("T")


class LoopThread:
    """An event loop that runs in a thread until it is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.loop = loop or asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(30)
        self.loop.close()


@dataclass
class FakeConfig:
    message: model_config_pb.ModelConfig
    decoupled: bool = False


@dataclass
class FakeServed:
    name: str
    version: int
    config: FakeConfig


def fake_statistics() -> list[ModelStatistics]:
    busy = ModelStatistics("echo", 3, {})
    busy.add_success(batch_size=2, total_ns=9_000, queue_ns=1_000, input_ns=2_000, infer_ns=3_000, output_ns=500)
    busy.add_execution(batch_size=2, input_ns=2_000, infer_ns=3_000, output_ns=500, now_ms=1_795_224_537_508)
    busy.add_execution(batch_size=1, input_ns=2, infer_ns=3, output_ns=5, now_ms=1_795_224_537_509)
    busy.add_failure(FailureReason.BACKEND, 700)
    return [busy, ModelStatistics("idle", 1, {})]


_CANCELLATIONS = itertools.count()


class FakeStream(Owner):
    """What the engine and a model do for one request of a stream. The test calls `deliver`, in the loop."""

    def __init__(self, request: InferenceRequest, receiver: ResponseReceiver) -> None:
        self.request = request
        self.ticket = Ticket(request, receiver, batch_size=1, shape_key=None, accepted_ns=0)
        self.ticket.owner = self
        self.consumed_count = 0
        self.was_cancelled = threading.Event()
        self.cancellation = -1
        """The number of its cancellation among all."""

    def deliver(self, response: InferenceResponse | InferenceError | None, *, is_final: bool) -> None:
        self.ticket.deliver(response, is_final=is_final)

    def cancelled(self, ticket: Ticket) -> None:
        self.cancellation = next(_CANCELLATIONS)
        self.was_cancelled.set()

    def consumed(self, ticket: Ticket, count: int) -> None:
        self.consumed_count += count


class FakeFlood(FakeStream):
    """A model that sends as fast as its window lets it, and then waits, as ``send`` does."""

    WINDOW = 64

    def __init__(self, request: InferenceRequest, receiver: ResponseReceiver) -> None:
        super().__init__(request, receiver)
        self.left = int(request.parameters["count"])
        self.sent = 0
        size = int(request.parameters["bytes_each"])
        self._tensor = Tensor("X", dtypes.UINT8, (size,), b"x" * size)

    def consumed(self, ticket: Ticket, count: int) -> None:
        super().consumed(ticket, count)
        if not ticket.is_cancelled:
            self.flow()

    def flow(self) -> None:
        while self.left and self.sent - self.consumed_count < self.WINDOW:
            self.left -= 1
            self.sent += 1
            response = InferenceResponse("flood", 3, self.request.request_id, [self._tensor], {"n": self.sent})
            self.deliver(response, is_final=not self.left)


@dataclass
class FakeServer:
    """An engine with five models.

    ``echo`` answers with its inputs; ``waiting`` answers when the test ends its future, ``held`` and ``decoupled`` when it
    calls `FakeStream.deliver`. The last is decoupled, and so is ``flood``, which sends ``count`` responses of
    ``bytes_each`` bytes.
    """

    ready: bool = True
    exiting: bool = False
    explicit: bool = False
    """Whether models are loaded and unloaded on request."""
    changes: list[tuple[object, ...]] = field(default_factory=list)
    """The loads and unloads that were asked for."""
    regions: Regions = field(default_factory=lambda: Regions(is_allowed=True))
    observation: Observation = field(default_factory=Observation)
    server_name: str = "triton"
    error: Exception | None = None
    """Raised by `find` when set."""
    request_counts: RequestCounts = field(default_factory=RequestCounts)
    receive_budget: ReceiveBudget = field(default_factory=lambda: ReceiveBudget(1 << 30))
    intake: Intake = field(default_factory=lambda: Intake(prefix="grpc_fakes_"))
    parameters: dict[str, bool | int | float | str] = field(default_factory=dict)
    """Of every response."""
    seen: list[InferenceRequest] = field(default_factory=list)
    waiting: list[asyncio.Future[InferenceResponse]] = field(default_factory=list)
    entered: threading.Event = field(default_factory=threading.Event)
    """Set when ``waiting`` has got a request."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set when the future of a request of ``waiting`` was cancelled."""
    streams: list[FakeStream] = field(default_factory=list)
    """The requests of all models but ``waiting``, in order."""
    streamed: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Released for each of them."""

    def metadata(self) -> views.ServerMetadata:
        return views.ServerMetadata(self.server_name, "9.8.7", ("binary_tensor_data", "statistics"))

    def is_live(self) -> bool:
        return True

    def is_ready(self) -> bool:
        return self.ready

    def is_exiting(self) -> bool:
        return self.exiting

    async def is_model_ready(self, name: str, version: int | None) -> bool:
        return name == "echo" and version in (None, 3)

    def model_metadata(self, name: str, version: int | None) -> views.ModelMetadata:
        self.find(name, version)
        tensor = views.TensorMetadata("X", dtypes.BYTES, (-1, 4))
        return views.ModelMetadata(name, (1, 3), "python", (tensor,), (tensor, tensor))

    def model_config(self, name: str, version: int | None) -> FakeConfig:
        return self.find(name, version).config

    def statistics(self, name: str = "", version: int | None = None) -> list[ModelStatistics]:
        found = [row for row in fake_statistics() if name in ("", row.name)]
        if not found:
            raise InferenceError(ErrorCode.INVALID_ARG, f"requested model '{name}' is not available")
        return found

    async def repository_index(self, *, ready: bool = False) -> list[views.IndexEntry]:
        rows = [
            views.IndexEntry("echo", 3, VersionState.READY),
            views.IndexEntry("broken", 1, VersionState.UNAVAILABLE, "it does not import"),
            views.IndexEntry("never loaded"),
        ]
        return [row for row in rows if row.state is VersionState.READY] if ready else rows

    async def load_model(self, name: str, config_override: str | None, files: dict[str, bytes]) -> None:
        self._change("load", name, config_override, files)

    async def unload_model(self, name: str, unload_dependents: bool) -> None:
        self._change("unload", name, unload_dependents)

    def _change(self, *what: object) -> None:
        if self.exiting:
            raise InferenceError(ErrorCode.UNAVAILABLE, "Server not ready")
        if not self.explicit:
            text = "explicit model load / unload is not allowed if polling is enabled"
            raise InferenceError(ErrorCode.UNAVAILABLE, text)
        self.changes.append(what)

    def find(self, name: str, version: int | None) -> FakeServed:
        if self.error is not None:
            raise self.error
        if name not in ("echo", "waiting", "held", "decoupled", "flood"):
            raise InferenceError(ErrorCode.NOT_FOUND, f"Request for unknown model: '{name}' is not found")
        message = model_config_pb.ModelConfig(name=name, backend="python", max_batch_size=8)
        message.input.add(name="X", data_type=model_config_pb.TYPE_STRING, dims=[4])
        return FakeServed(name, 3, FakeConfig(message, decoupled=name in ("decoupled", "flood")))

    def check(self, served: FakeServed, request: InferenceRequest) -> None:
        """Every request is right."""

    def infer(self, served: FakeServed, request: InferenceRequest, receiver: ResponseReceiver) -> Ticket:
        if "refuse" in request.parameters:
            raise InferenceError(ErrorCode.UNAVAILABLE, "Exceeds maximum queue size")
        self.seen.append(request)
        loop = asyncio.get_running_loop()
        if served.name == "waiting":
            future: asyncio.Future[InferenceResponse] = loop.create_future()
            future.add_done_callback(lambda ended: self.cancelled.set() if ended.cancelled() else None)
            self.waiting.append(future)
            self.entered.set()
            return answered_by(future, request, receiver)
        if served.name == "flood":
            flood = FakeFlood(request, receiver)
            loop.call_soon(flood.flow)
            stream: FakeStream = flood
        else:
            stream = FakeStream(request, receiver)
        if served.name == "echo":
            loop.call_soon(lambda: stream.deliver(self.echo(served, request), is_final=True))
        self.streams.append(stream)
        self.streamed.release()
        return stream.ticket

    def echo(self, served: FakeServed, request: InferenceRequest) -> InferenceResponse:
        """Views, as the engine's outputs are views of a worker's memory."""
        outputs = [
            Tensor(tensor.name, tensor.datatype, tensor.shape, memoryview(tensor.data or b""))
            for tensor in request.inputs
        ]
        return InferenceResponse(served.name, served.version, request.request_id, outputs, self.parameters)
