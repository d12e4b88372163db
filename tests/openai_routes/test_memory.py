"""Requests to OpenAI's routes for which the server has no memory: each is answered, and the server stays."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness import RunningServer, write_model

SHOUTER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        '''Writes as many MiB as the prompt says.'''
        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            count = int(pb_utils.get_input_tensor_by_name(request, "prompt").as_numpy()[0].split()[0])
            text = np.array([b"x" * (count << 20)], np.object_)
            return pb_utils.InferenceResponse([pb_utils.Tensor("text", text)])
"""
SHOUTER_CONFIG = """
    backend: "python"
    input [ { name: "prompt" data_type: TYPE_STRING dims: [ 1 ] } ]
    output [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
    parameters { key: "OPENAI" value { string_value: "completion" } }
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    write_model(tmp_path, "shouter", SHOUTER, SHOUTER_CONFIG)
    with RunningServer(tmp_path) as running:
        yield running


@contextmanager
def memory_for(server: RunningServer, mebibytes: int) -> Iterator[None]:
    """The server gets no more memory than *mebibytes* meanwhile."""
    pid = server.process.pid
    used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.prlimit(pid, resource.RLIMIT_AS, (used + (mebibytes << 20), resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, before)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mebibytes", [100, 240], ids=["to read the response", "to write the answer"])
def test_without_memory_for_an_answer_the_client_is_told_and_the_server_stays(
    server: RunningServer, mebibytes: int, stream: bool
) -> None:
    members = {"model": "shouter", "stream": stream}
    assert server.post("/v1/completions", {**members, "prompt": "1"}).status == 200
    with memory_for(server, mebibytes):
        reply = server.post("/v1/completions", {**members, "prompt": "64"})
    assert b"no memory" in reply.body and b"service_unavailable" in reply.body
    assert server.post("/v1/completions", {**members, "prompt": "1"}).status == 200


def test_without_memory_for_a_body_it_is_no_mistake_of_the_client(server: RunningServer) -> None:
    body = {"model": "shouter", "prompt": "1" + 30 * (1 << 20) * " "}
    assert server.post("/v1/completions", {**body, "prompt": "1"}).status == 200
    with memory_for(server, 200):
        reply = server.post("/v1/completions", body)
    assert (reply.status, reply.json["error"]["code"]) == (503, "service_unavailable"), reply.body
    assert server.post("/v1/completions", body).status == 200
