"""A state of 64 MiB: it flows from request to request, and its memory goes with its sequence."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.contract.wire_models import wait_until
from tests.harness import RunningServer, tensor, write_model
from tests.prometheus_text import read_page

ELEMENTS = 16 << 20
NBYTES = 4 * ELEMENTS

MODEL = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                state = pb_utils.get_input_tensor_by_name(request, "SI").as_numpy()
                ends = np.array([[state.flat[0], state.flat[-1]]], np.float32)
                responses.append(pb_utils.InferenceResponse([
                    pb_utils.Tensor("OUT", ends), pb_utils.Tensor("SO", state + np.float32(1))
                ]))
                del state
            return responses
"""

CONFIG = f"""
    backend: "python"
    max_batch_size: 2
    input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }} ]
    output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] }} ]
    sequence_batching {{
      max_sequence_idle_microseconds: IDLE
      state [ {{ input_name: "SI" output_name: "SO" data_type: TYPE_FP32 dims: [ {ELEMENTS} ] }} ]
    }}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("large_state")
    for name, idle_us in (("ended", 60_000_000), ("idle", 500_000), ("died", 60_000_000)):
        write_model(repository, name, MODEL, CONFIG.replace("IDLE", str(idle_us)))
    with RunningServer(repository) as running:
        yield running


def send(server: RunningServer, model: str, sequence: int = 1, **flags: bool) -> list[float]:
    parameters = {"sequence_id": sequence, **flags}
    reply = server.infer(model, [tensor("IN", "FP32", [1, 1], [0.0])], parameters=parameters)
    assert reply.status == 200, reply.body
    data: list[float] = reply.json["outputs"][0]["data"]
    return data


def memory(server: RunningServer, model: str) -> float:
    """Bytes that both sides hold."""
    family = read_page(server.get(server.metrics_url).body.decode())["pytriton_lite_shared_memory_bytes"]
    return sum(value for (_, labels), value in family.samples.items() if ("model", model) in labels)


def test_it_is_kept_and_its_memory_goes_with_the_sequence(server: RunningServer) -> None:
    assert [send(server, "ended", sequence_start=not number) for number in range(3)] == [
        [n, n] for n in (0.0, 1.0, 2.0)
    ]
    wait_until(lambda: memory(server, "ended") == NBYTES)
    assert send(server, "ended", sequence_end=True) == [3.0, 3.0]
    wait_until(lambda: memory(server, "ended") == 0)


def test_two_sequences_in_a_batch_do_not_mix(server: RunningServer) -> None:
    assert send(server, "ended", 1, sequence_start=True) == [0.0, 0.0]
    assert send(server, "ended", 2, sequence_start=True) == [0.0, 0.0]
    assert send(server, "ended", 2) == [1.0, 1.0]  # beside a null request
    assert send(server, "ended", 1, sequence_end=True) == [1.0, 1.0]
    assert send(server, "ended", 2, sequence_end=True) == [2.0, 2.0]
    wait_until(lambda: memory(server, "ended") == 0)


def test_the_memory_of_a_sequence_that_idled_out_is_given_back(server: RunningServer) -> None:
    send(server, "idle", sequence_start=True)
    wait_until(lambda: memory(server, "idle") == 0)


def test_the_memory_goes_with_the_worker(server: RunningServer) -> None:
    send(server, "died", sequence_start=True)
    wait_until(lambda: memory(server, "died") == NBYTES)
    (pid,) = server.worker_pids("died_0")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: memory(server, "died") == 0)
    wait_until(lambda: server.get("/v2/models/died/ready").status == 200)
    assert send(server, "died", sequence_start=True) == [0.0, 0.0]
