"""What a request says beside its tensors goes to the worker in the message itself: too much is refused, however it came."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tests.harness import RunningServer, tensor, write_model

LONG = "\u00e9" * (1 << 18)
TEXT = (
    "id and parameters of a request to model 'echo' may have 262144 characters together, got 262145; the longest is "
    "{what}. Send large values as inputs"
)

ECHO = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
CALLER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        # Calls echo with a parameter of so many characters.
        def execute(self, requests):
            answers = []
            for request in requests:
                given = request.inputs()[0]
                call = pb_utils.InferenceRequest(
                    model_name="echo",
                    inputs=[given],
                    requested_output_names=["OUT"],
                    parameters={"p": "x" * int(given.as_numpy()[0])},
                )
                answer = call.exec()
                answers.append(pb_utils.InferenceResponse([], answer.error()) if answer.has_error() else answer)
            return answers
"""
CONFIG = """
    backend: "python"
    input { name: "IN" data_type: TYPE_INT32 dims: 1 }
    output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
"""

Ask = Callable[[RunningServer, str], str]
"""Sends a request with a text beside its tensors; the error, or nothing."""


@pytest.fixture(scope="module", params=[(), ("--frontends=2",)], ids=["one process", "front ends"])
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    repository: Path = tmp_path_factory.mktemp("repository")
    write_model(repository, "echo", ECHO, CONFIG)
    write_model(repository, "caller", CALLER, CONFIG)
    with RunningServer(repository, flags=request.param) as running:
        yield running


def by_infer(server: RunningServer, text: str) -> str:
    return posted(server, "infer", {"inputs": [tensor("IN", "INT32", [1], [1])], "parameters": {"p": text}})


def by_id(server: RunningServer, text: str) -> str:
    return posted(server, "infer", {"inputs": [tensor("IN", "INT32", [1], [1])], "id": f"{text}p"})


def by_generate(server: RunningServer, text: str) -> str:
    return posted(server, "generate", {"IN": 1, "p": text})


def by_generate_stream(server: RunningServer, text: str) -> str:
    return posted(server, "generate_stream", {"IN": 1, "p": text})


def posted(server: RunningServer, verb: str, body: dict[str, object]) -> str:
    reply = server.post(f"/v2/models/echo/{verb}", body)
    if reply.status == 200:
        return ""
    assert reply.status == 400
    return reply.error


def by_grpc(server: RunningServer, text: str) -> str:
    given = tritonclient.grpc.InferInput("IN", [1], "INT32")
    given.set_data_from_numpy(np.ones(1, np.int32))
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        try:
            client.infer("echo", [given], parameters={"p": text})
        except InferenceServerException as error:
            assert error.status() == "StatusCode.INVALID_ARGUMENT"
            return str(error.message())
    return ""


def by_call(server: RunningServer, text: str) -> str:
    reply = server.infer("caller", [tensor("IN", "INT32", [1], [len(text)])])
    return "" if reply.status == 200 else reply.error


@pytest.mark.parametrize(
    ("ask", "what"),
    [
        (by_infer, "parameter 'p'"),
        (by_id, "the id"),
        (by_generate, "parameter 'p'"),
        (by_generate_stream, "parameter 'p'"),
        (by_grpc, "parameter 'p'"),
        (by_call, "parameter 'p'"),
    ],
)
def test_too_much_beside_tensors_is_refused_and_its_worker_serves_on(
    server: RunningServer, ask: Ask, what: str
) -> None:
    workers = server.worker_pids()
    assert workers
    assert TEXT.format(what=what) in ask(server, LONG)
    assert ask(server, LONG[:-1]) == ""
    assert server.worker_pids() == workers
