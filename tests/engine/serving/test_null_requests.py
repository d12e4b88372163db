"""Null requests of the direct strategy on their way to a worker."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import numpy as np
import pytest

from pytriton_lite.core import dtypes
from pytriton_lite.core.request import SEQUENCE_START, InferenceRequest
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.server import Server, ServerOptions
from pytriton_lite.engine.serving.blank_inputs import share_blanks
from pytriton_lite.engine.workers.memory import room_for
from pytriton_lite.engine.workers.settings import WorkerSettings
from pytriton_lite.frontends.pending_answer import PendingAnswer
from pytriton_lite.scheduling.null_request import blank, null_ticket
from pytriton_lite.scheduling.ticket import Ticket
from tests.harness import write_model

# The last row is told how long the inputs of all are, and how many of their bytes are not zero.
MODEL = """
    import numpy as np
    import triton_python_backend_utils as pb_utils


    class TritonPythonModel:
        def execute(self, requests):
            rows = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
            seen = np.array([[row.size, np.count_nonzero(row)] for row in rows], np.int64).reshape(1, -1)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", seen)]) for _ in requests]
"""
CONFIG = """
    backend: "python"
    max_batch_size: 4
    input { name: "X" data_type: TYPE_UINT8 dims: -1 }
    output { name: "Y" data_type: TYPE_INT64 dims: -1 }
    sequence_batching { max_sequence_idle_microseconds: 3600000000 direct { } }
"""
LARGE = 2 << 20


def ticket(nbytes: int) -> Ticket:
    request = InferenceRequest("m", None, inputs=[Tensor("X", dtypes.UINT8, (1, nbytes), bytes(nbytes))])
    return Ticket(request, None, batch_size=1, shape_key=None, accepted_ns=0)


@pytest.mark.parametrize("nbytes", [LARGE, 1])
def test_a_large_input_is_there_once_for_all_rows_that_say_nothing(nbytes: int) -> None:
    real = ticket(nbytes)
    blanks = [blank(tensor) for tensor in real.request.inputs]
    states = [blank(Tensor("S", dtypes.UINT8, (nbytes,), bytes(nbytes)))]
    nulls = [null_ticket(real, blanks, states, now_ns=0) for _ in range(3)]
    share_blanks([real, *nulls])
    assert real.request.inputs[0].home is None
    for null in nulls:
        tensors = [*null.request.inputs, *null.controls]
        assert [bytes(tensor.content()) for tensor in tensors] == [bytes(nbytes)] * 2
        assert [tensor.home is not None for tensor in tensors] == [nbytes == LARGE] * 2
        assert not any(map(room_for, tensors))
    assert len({id(null.request.inputs[0]) for null in nulls}) == 1


def test_a_model_sees_zeros_in_the_rows_beside_a_large_input(tmp_path: Path) -> None:
    write_model(tmp_path, "m", MODEL, CONFIG)
    workers = WorkerSettings(
        executable=sys.executable,
        shm_prefix="nulls_test_",
        ring_bytes=1 << 20,
        hello_timeout_s=30,
        ready_timeout_s=30,
    )

    async def scenario() -> None:
        server = Server(ServerOptions((tmp_path,), workers))
        try:
            assert await server.load_all(), server.load_table()
            server.start_serving()
            served = server.find("m", None)

            async def seen(sequence: int, nbytes: int, *, flags: int = 0) -> list[int]:
                given = Tensor("X", dtypes.UINT8, (1, nbytes), b"x" * nbytes)
                asked = InferenceRequest("m", None, inputs=[given], correlation_id=sequence, sequence_flags=flags)
                answer = await asyncio.wait_for(PendingAnswer.to(server, served, asked), 30)
                return np.frombuffer(answer.outputs[0].content(), np.int64).tolist()

            for sequence in (1, 2, 3, 4):
                await seen(sequence, 1, flags=SEQUENCE_START)
            assert await seen(4, LARGE) == [*[LARGE, 0] * 3, LARGE, LARGE]
        finally:
            await server.stop(10)

    asyncio.run(scenario())
