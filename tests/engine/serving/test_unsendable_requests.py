"""A request that cannot be handed to a worker ends with an error, and neither its instance nor the next request suffers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.server import Server, ServerOptions
from pytriton_lite.engine.serving.resource_grants import ResourceGrants
from pytriton_lite.engine.workers.settings import WorkerSettings
from pytriton_lite.frontends.pending_answer import PendingAnswer
from tests.engine.version_kit import WAIT_S, World, wait_until
from tests.harness import write_model

ECHO = """
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(r, "X").as_numpy())])
                for r in requests
            ]
"""

TENSORS = """
    backend: "python"
    input { name: "X" data_type: TYPE_UINT8 dims: -1 }
    output { name: "Y" data_type: TYPE_UINT8 dims: -1 }
"""

BATCHED = "max_batch_size: 4 dynamic_batching { default_queue_policy { default_timeout_microseconds: 20000000 } }"
"""With a timeout nothing goes ahead: whoever is not idle gets nothing."""

NO_UNICODE = "\ud800"
"""An id that no front end lets through, and that no message can carry."""


def request(data: bytes, *, request_id: str = "") -> InferenceRequest:
    tensor = Tensor("X", dtypes.UINT8, (1, len(data)), data)
    return InferenceRequest("echo", None, request_id=request_id, inputs=[tensor])


Answers = list[InferenceResponse | BaseException]


async def infer_all(repository: Path, requests: list[InferenceRequest], *, at_once: bool = False) -> Answers:
    """The answers to *requests*, each sent after the last one's answer, or all in one turn of the loop."""
    workers = WorkerSettings(
        executable=sys.executable,
        shm_prefix="unsendable_test_",
        ring_bytes=1 << 20,
        hello_timeout_s=30,
        ready_timeout_s=30,
    )
    server = Server(ServerOptions(repositories=(repository,), workers=workers))
    try:
        assert await server.load_all(), server.load_table()
        server.start_serving()
        served = server.find("echo", None)
        answers: Answers = []
        for together in [requests] if at_once else [[asked] for asked in requests]:
            waiting = [PendingAnswer.to(server, served, asked) for asked in together]
            answers += await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 30)
        return answers
    finally:
        assert await server.stop(timeout_s=30)


@pytest.mark.parametrize("instances", [1, 2])
@pytest.mark.parametrize("nbytes", [4, 100_000], ids=["in the message", "in a slot"])
def test_the_instance_serves_on_after_a_request_that_cannot_be_encoded(
    tmp_path: Path, instances: int, nbytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    config = f"{TENSORS}\n{BATCHED}\ninstance_group {{ count: {instances} }}"
    write_model(tmp_path, "echo", ECHO, config)
    data = bytes(range(4)) * (nbytes // 4)
    bad = [request(data, request_id=NO_UNICODE) for _ in range(instances + 1)]
    *errors, answer = asyncio.run(infer_all(tmp_path, [*bad, request(data)]))
    for error in errors:
        check_refused(error)
    check_echoed(answer, data)
    assert "requests to instance 'echo_0_0' cannot be encoded" in caplog.text


def test_a_request_that_shares_its_message_with_one_that_cannot_be_encoded_is_served(tmp_path: Path) -> None:
    """Batches of one: the second goes ahead in the message of the first."""
    write_model(tmp_path, "echo", ECHO, f"{TENSORS} max_batch_size: 1 dynamic_batching {{ }}")
    requests = [request(b"bad", request_id=NO_UNICODE), request(b"after")]
    error, after = asyncio.run(infer_all(tmp_path, requests, at_once=True))
    check_refused(error)
    check_echoed(after, b"after")


def test_a_request_that_went_at_once_hears_that_it_could_not_be_sent_after_its_ticket_is_known(tmp_path: Path) -> None:
    async def run() -> None:
        async with World(tmp_path) as world:
            model = await world.load()
            receiver = Receiver()
            asked = InferenceRequest("m", None, request_id=NO_UNICODE, inputs=model.inputs("bad"))
            ticket = model.served.infer(asked, receiver)
            assert receiver.heard == []
            await wait_until(lambda: ticket.has_ended)
            (error,) = receiver.heard
            check_refused(error)

    asyncio.run(run())


def test_a_request_that_cannot_be_sent_while_answers_are_about_to_leave_ends(tmp_path: Path) -> None:
    async def run() -> None:
        async with World(tmp_path) as world:
            model = await world.load("instance_group { count: 2 }")
            receiver = Receiver()

            def infer_bad(*_: int) -> None:
                model.served.infer(
                    InferenceRequest("m", None, request_id=NO_UNICODE, inputs=model.inputs("bad")), receiver
                )

            first = Receiver()
            ticket = model.served.infer(InferenceRequest("m", None, inputs=model.inputs("first")), first)
            ticket.on_times = infer_bad  # told when its answer is there and has not left
            await wait_until(lambda: bool(first.heard and receiver.heard))
            assert isinstance(first.heard[0], InferenceResponse)
            (error,) = receiver.heard
            check_refused(error)
            assert model.served.unanswered.requests == 0

    asyncio.run(run())


@pytest.mark.parametrize("grants", [None, ResourceGrants], ids=["", "with a rate limiter"])
def test_an_unload_ends_whose_last_request_cannot_be_sent(
    tmp_path: Path, grants: Callable[[], ResourceGrants] | None
) -> None:
    async def run() -> None:
        async with World(tmp_path, grants=grants and grants()) as world:
            model = await world.load("max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 100000 }")
            receiver = Receiver()
            model.served.infer(InferenceRequest("m", None, request_id=NO_UNICODE, inputs=model.inputs("bad")), receiver)
            model.served.begin_unload()
            await asyncio.wait_for(model.served.unload(), WAIT_S)
            (error,) = receiver.heard
            check_refused(error)

    asyncio.run(run())


class Receiver:
    def __init__(self) -> None:
        self.heard: list[InferenceResponse | InferenceError | None] = []

    def on_response(self, response: InferenceResponse | InferenceError | None, *, is_final: bool) -> None:
        self.heard.append(response)


def check_refused(error: InferenceResponse | BaseException | None) -> None:
    assert isinstance(error, InferenceError)
    assert error.code is ErrorCode.INTERNAL
    assert error.message == (
        "internal error of the server: the request cannot be handed to the model; the log has the details"
    )


def check_echoed(answer: InferenceResponse | BaseException, data: bytes) -> None:
    assert isinstance(answer, InferenceResponse), answer
    assert answer.outputs[0].data is not None
    assert bytes(answer.outputs[0].data) == data
