"""``is_ready`` of a model over real sockets (model API, 3.5, and row 137 of its checklist)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from tests.contract.wire_models import wait_until
from tests.harness import Reply, RunningServer, tensor, write_model

MODEL = """
import asyncio
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
{is_ready}

    def execute(self, requests):
        for request in requests:
            if request.parameters() == '{{"wait":true}}':
                while not request.is_cancelled():
                    threading.Event().wait(0.01)
        one = pb_utils.Tensor("OUT", np.array([1], dtype=np.int32))
        return [pb_utils.InferenceResponse([one]) for _ in requests]
"""

CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU, count: 2 } ]
"""

READY = {
    "says_yes": "    def is_ready(self): return True",
    "says_yes_later": "    async def is_ready(self):\n        await asyncio.sleep(0)\n        return True",
    "says_nothing": "    pass",
    "says_numpys_yes": "    def is_ready(self): return np.bool_(True)",
    "says_yes_of_its_class": "    @classmethod\n    def is_ready(cls): return True",
    "says_yes_of_nobody": "    @staticmethod\n    def is_ready(): return True",
}
OTHERS = {
    "has_a_flag": "    def initialize(self, args): self.is_ready = False",
    "has_an_event": "    def initialize(self, args): self.is_ready = threading.Event()",
    "has_a_flag_of_its_class": "    is_ready = False",
    "has_a_property": "    @property\n    def is_ready(self): raise RuntimeError('not yet')",
    "asks_what": "    def is_ready(self, what): return False",
}
"""Something else of that name."""
DELEGATES = """    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_: 'delegated'"""
NOT_READY = {
    "says_no": "    def is_ready(self): return False",
    "says_no_later": "    async def is_ready(self): return False",
    "raises": "    def is_ready(self): raise ValueError('not today')",
    "says_one": "    def is_ready(self): return 1",
    "never_says": "    def is_ready(self): threading.Event().wait()",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("models")
    for name, is_ready in {**READY, **OTHERS, "delegates": DELEGATES, **NOT_READY}.items():
        write_model(repository, name, MODEL.format(is_ready=is_ready), CONFIG)
    with RunningServer(repository) as running:
        yield running


def ready(server: RunningServer, model: str) -> tuple[int, bool]:
    """(HTTP status, what gRPC says) of the model's readiness. Both wait for a model that does not say."""
    with triton_grpc.InferenceServerClient(server.grpc_url) as client, ThreadPoolExecutor(1) as thread:
        by_http = thread.submit(server.get, f"/v2/models/{model}/ready")
        is_ready = client.is_model_ready(model)
        return by_http.result().status, is_ready


def infer(server: RunningServer, model: str, **fields: object) -> Reply:
    return server.infer(model, [tensor("IN", "INT32", [1], [0])], **fields)


@pytest.mark.parametrize("model", READY)
def test_model_that_agrees_or_has_no_opinion_is_ready(server: RunningServer, model: str) -> None:
    """model_api.md row 137."""
    # On a busy machine a model may not have said so within the seconds that a question waits.
    wait_until(lambda: ready(server, model) == (200, True))


@pytest.mark.parametrize("model", NOT_READY)
def test_model_that_does_not_say_yes_in_time_is_not_ready_and_serves(server: RunningServer, model: str) -> None:
    """model_api.md row 137: inference is unaffected."""
    assert ready(server, model) == (400, False)
    assert infer(server, model).status == 200
    assert server.get("/v2/health/ready").status == 200, "the server's readiness does not ask models"


@pytest.mark.parametrize("model", [*OTHERS, "delegates"])
def test_something_else_of_the_name_does_not_make_a_model_unready(server: RunningServer, model: str) -> None:
    """A model for a Triton that does not ask may call anything so."""
    wait_until(lambda: ready(server, model) == (200, True))
    assert infer(server, model).status == 200
    if model in OTHERS:
        server.wait_for_log(rf"is_ready of the model is no method .* \[{model}:1 {model}_0_0")


def test_faults_of_is_ready_are_in_the_log(server: RunningServer) -> None:
    ready(server, "raises")
    ready(server, "says_one")
    server.wait_for_log(r"is_ready of the model failed: ValueError: not today")
    server.wait_for_log(r"is_ready\(\) must return a boolean value, got <class 'int'>")


def test_model_answers_for_its_readiness_while_it_executes(server: RunningServer) -> None:
    """Model API, 3.5: beside ``execute``, in another thread."""
    with triton_grpc.InferenceServerClient(server.grpc_url) as client:
        inputs = triton_grpc.InferInput("IN", [1], "INT32")
        inputs.set_data_from_numpy(np.zeros(1, np.int32))
        done = threading.Event()
        calls = [
            client.async_infer("says_yes", [inputs], lambda result, error: done.set(), parameters={"wait": True})
            for _ in range(2)
        ]
        assert ready(server, "says_yes") == (200, True)
        assert not done.is_set(), "both instances were executing"
        for call in calls:
            call.cancel()
