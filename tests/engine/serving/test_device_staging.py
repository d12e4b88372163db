"""Requests whose tensors are read from a device and written to one: what may happen meanwhile, where the test is the helper."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.states import VersionState
from pytriton_lite.core.tensor import Tensor, Window
from pytriton_lite.engine.counting.statistics import FailureReason, ModelStatistics, Refusal
from pytriton_lite.engine.counting.unanswered import Unanswered, UnansweredLimits, UnansweredTotal
from pytriton_lite.engine.serving.device_staging import DeviceStaging, StagedOutputs
from pytriton_lite.engine.workers.device_helper import DeviceHelpers
from pytriton_lite.ipc.device_segment import DeviceSegment
from pytriton_lite.ipc.segment import Segment
from pytriton_lite.scheduling.ticket import Ticket

pytestmark = pytest.mark.interpreted("the helpers are replaced")
Heard = list[tuple[InferenceResponse | InferenceError | None, bool]]


class Helpers:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int, asyncio.Future[None]]] = []
        self.written: list[bytes] = []

    async def read(self, home: DeviceSegment, offset: int, nbytes: int) -> Segment:
        await self._wait("read", offset, nbytes)
        segment = Segment.create(nbytes)
        segment.view[:nbytes] = bytes([offset]) * nbytes
        return segment

    async def write(self, segment: DeviceSegment, offset: int, tensor: Tensor) -> None:
        await self._wait("write", offset, tensor.nbytes)
        self.written.append(bytes(tensor.content()))

    async def _wait(self, what: str, offset: int, nbytes: int) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked.append((what, offset, nbytes, answer))
        await answer

    async def answer(self, error: InferenceError | None = None) -> None:
        """Answer the latest question, which is there after a turn of the loop or two."""
        await turns()
        future = self.asked[-1][3]
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        await turns()


class Version:
    """As much of a version as staging asks."""

    name = "m"

    def __init__(self, *, takes_device_inputs: bool = False) -> None:
        self.takes_device_inputs = takes_device_inputs
        self.statistics = ModelStatistics("m", 1, {})
        self.unanswered = Unanswered("m", UnansweredTotal(UnansweredLimits()))
        self.holders = 0
        self.state = VersionState.READY
        self.refused: list[BaseException] = []
        self.begun: list[Ticket] = []
        self.refusal: InferenceError | None = None
        self.helpers = Helpers()
        self.staging = DeviceStaging(self, cast(DeviceHelpers, self.helpers), go_on=self.go_on, clock=lambda: 1000)

    def go_on(self, ticket: Ticket) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.begun.append(ticket)

    def hold(self) -> None:
        self.holders += 1

    def release(self) -> None:
        self.holders -= 1

    def count_refusal(self, error: BaseException) -> None:
        self.refused.append(error)

    def not_ready_error(self) -> InferenceError:
        return InferenceError(ErrorCode.UNAVAILABLE, "not ready")


class Receiver:
    def __init__(self) -> None:
        self.heard: Heard = []

    def on_response(self, response: InferenceResponse | InferenceError | None, *, is_final: bool) -> None:
        self.heard.append((response, is_final))


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def in_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def whole() -> None:
            await test()

        asyncio.run(whole())

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


def on_device(name: str = "IN", *, offset: int = 7, nbytes: int = 16, datatype: Any = dtypes.FP32) -> Tensor:
    return Tensor(name, datatype, (4,), None, nbytes, home=(DeviceSegment(bytes(16), 64, handle=bytes(64)), offset))


def ticket_of(*inputs: Tensor, receiver: Receiver | StagedOutputs | None = None) -> Ticket:
    request = InferenceRequest("m", None, inputs=list(inputs))
    request.on_device = True
    return Ticket(request, receiver, batch_size=1, shape_key=None, accepted_ns=0)


@in_loop
async def test_a_request_begins_when_all_of_its_inputs_are_on_the_host() -> None:
    version = Version()
    host = Tensor("B", dtypes.FP32, (1,), b"host")
    ticket = ticket_of(on_device("A"), host, on_device("C", offset=9))
    version.staging.begin(ticket)
    await version.helpers.answer()
    assert (version.begun, version.holders, version.unanswered.requests) == ([], 1, 1)
    await version.helpers.answer()
    assert version.begun == [ticket]
    assert (version.holders, version.unanswered.requests) == (0, 0)
    first, second, third = ticket.request.inputs
    assert (bytes(first.content()), second, bytes(third.content())) == (b"\7" * 16, host, b"\11" * 16)
    assert isinstance(first.home[0], Segment) if first.home is not None else False
    assert version.statistics.host_bytes == 32


@in_loop
async def test_requests_of_a_sequence_go_on_in_the_order_in_which_they_came() -> None:
    """Also behind one that has been cancelled, and one that fails."""
    version = Version()
    tickets = [ticket_of(on_device("A"), on_device("B")), *(ticket_of(on_device()) for _ in range(3))]
    host, other = ticket_of(Tensor("IN", dtypes.FP32, (1,), b"host")), ticket_of(on_device())
    for ticket in (*tickets, host):
        ticket.request.correlation_id = 5
    other.request.correlation_id = "5"
    assert not version.staging.has_before(host.request)
    for ticket in (*tickets, host, other):
        version.staging.begin(ticket)
    assert version.staging.has_before(host.request)
    await version.helpers.answer()
    assert version.begun == [other]
    asked = version.helpers.asked
    _, third, fourth = (answer for *_, answer in asked[1:4])
    tickets[1].cancel()
    third.set_exception(InferenceError(ErrorCode.INTERNAL, "gone"))
    fourth.set_result(None)
    await turns()
    assert version.begun == [other]
    asked[0][3].set_result(None)
    await version.helpers.answer()
    await turns()
    assert version.begun == [other, tickets[0], tickets[3], host]
    assert (version.holders, version.staging.has_before(host.request)) == (0, False)


@in_loop
async def test_where_inputs_may_stay_only_texts_are_read() -> None:
    version = Version(takes_device_inputs=True)
    staying = on_device("A")
    version.staging.begin(ticket := ticket_of(staying))
    assert version.begun == [ticket]
    version.staging.begin(mixed := ticket_of(staying, on_device("B", datatype=dtypes.BYTES)))
    await version.helpers.answer(InferenceError(ErrorCode.INTERNAL, "gone"))
    assert len(version.helpers.asked) == 1
    assert mixed.has_ended


@in_loop
async def test_a_request_whose_input_cannot_be_read_is_told_why() -> None:
    version, receiver = Version(), Receiver()
    version.staging.begin(ticket_of(on_device(), receiver=receiver))
    error = InferenceError(ErrorCode.INTERNAL, "the helper died")
    await version.helpers.answer(error)
    assert receiver.heard == [(error, True)]
    assert (version.begun, version.refused, version.holders, version.unanswered.requests) == ([], [error], 0, 0)


@in_loop
async def test_a_request_that_is_refused_after_its_inputs_were_read_is_told_why() -> None:
    version, receiver = Version(), Receiver()
    version.refusal = InferenceError(ErrorCode.UNAVAILABLE, "the queue is full")
    version.staging.begin(ticket_of(on_device(), receiver=receiver))
    await version.helpers.answer()
    assert receiver.heard == [(version.refusal, True)]
    assert version.refused == [version.refusal]


@in_loop
async def test_a_request_whose_workers_died_while_its_inputs_were_read_is_refused() -> None:
    version, receiver = Version(), Receiver()
    version.staging.begin(ticket_of(on_device(), receiver=receiver))
    version.state = VersionState.UNAVAILABLE
    await version.helpers.answer()
    (heard,) = receiver.heard
    assert (str(heard[0]), heard[1]) == ("not ready", True)
    assert (version.begun, version.holders, version.unanswered.requests) == ([], 0, 0)
    assert version.statistics.refusals[Refusal.UNAVAILABLE] == 1


@in_loop
async def test_a_request_that_is_cancelled_while_its_inputs_are_read_is_not_begun() -> None:
    version, receiver = Version(), Receiver()
    version.staging.begin(ticket := ticket_of(on_device(), receiver=receiver))
    await turns()
    ticket.cancel()
    await turns()
    assert ticket.has_ended
    assert (receiver.heard, version.begun, version.holders, version.unanswered.requests) == ([], [], 0, 0)
    assert version.statistics.cancellations == 1
    assert version.statistics.failures[FailureReason.CANCELED] == 1


# ---------------------------------------------------------------------------------------------- outputs


def staged(version: Version, receiver: Receiver) -> tuple[Ticket, StagedOutputs, InferenceRequest]:
    """A request whose OUT goes to 16 bytes of a device, and KEPT to the client's memory on the host."""
    segment = DeviceSegment(bytes(16), 64, handle=bytes(64))
    host_window = Window("a segment of the host", 0, 4)
    request = InferenceRequest("m", None, output_windows={"OUT": Window(segment, 8, 16), "KEPT": host_window})
    outputs = version.staging.receiver_of(request, receiver)
    assert isinstance(outputs, StagedOutputs)
    assert request.output_windows == {"KEPT": host_window}
    ticket = Ticket(request, outputs, batch_size=1, shape_key=None, accepted_ns=0)
    outputs.ticket = ticket
    return ticket, outputs, request


def response(data: bytes, name: str = "OUT") -> InferenceResponse:
    return InferenceResponse("m", 1, "", [Tensor(name, dtypes.FP32, (len(data) // 4,), data)], {})


@in_loop
async def test_responses_are_passed_on_in_order_when_their_outputs_are_written() -> None:
    version, receiver = Version(), Receiver()
    ticket, _, _ = staged(version, receiver)
    first, second = response(b"one_"), response(b"two_")
    ticket.deliver(first, is_final=False)
    ticket.deliver(response(b"else", "OTHER"), is_final=False)
    ticket.deliver(second, is_final=False)
    ticket.deliver(None, is_final=True)
    await turns()
    assert receiver.heard == []
    await version.helpers.answer()
    assert [heard[1] for heard in receiver.heard] == [False, False]
    await version.helpers.answer()
    assert [heard[1] for heard in receiver.heard] == [False, False, False, True]
    assert version.helpers.written == [b"one_", b"two_"]
    (tensor,) = first.outputs
    assert (tensor.name, tensor.shape, tensor.nbytes) == ("OUT", (1,), 0)
    assert version.statistics.host_bytes == 8


@in_loop
async def test_an_output_that_does_not_fit_or_cannot_be_written_is_an_error_in_place_of_the_response() -> None:
    version, receiver = Version(), Receiver()
    staged(version, receiver)[0].deliver(response(bytes(20)), is_final=True)
    await turns()
    ((error, is_final),) = receiver.heard
    assert isinstance(error, InferenceError)
    assert (is_final, version.helpers.asked) == (True, [])
    assert "output 'OUT' (16 bytes) should be at least 20 bytes" in error.message
    receiver = Receiver()
    staged(version, receiver)[0].deliver(response(bytes(16)), is_final=True)
    failure = InferenceError(ErrorCode.INTERNAL, "the helper died")
    await version.helpers.answer(failure)
    assert receiver.heard == [(failure, True)]


@in_loop
async def test_a_client_that_cancels_hears_nothing_more_though_its_outputs_are_being_written() -> None:
    version, receiver = Version(), Receiver()
    ticket, _, _ = staged(version, receiver)
    ticket.deliver(response(bytes(16)), is_final=True)
    assert ticket.has_ended
    await turns()
    ticket.cancel()
    await version.helpers.answer()
    assert receiver.heard == []


@in_loop
async def test_a_request_without_windows_on_a_device_keeps_its_receiver() -> None:
    version, receiver = Version(), Receiver()
    request = InferenceRequest("m", None, output_windows={"OUT": Window("a segment of the host", 0, 4)})
    assert version.staging.receiver_of(request, receiver) is receiver
    assert request.output_windows is not None
