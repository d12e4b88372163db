"""Large tensors lie where they were received, and models find them there: what a model makes of one is its own affair."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.contract.scripted_model import Gate
from tests.harness import RunningServer, until, write_model

COUNT = 300_000
"""Elements of FP32: 1.2 MB, more than a front end gets in one read."""
HUGE = 6_000_000
"""24 MB, which have a segment of their own."""

SCRIBBLER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "X")
            array = tensor.as_numpy()
            array += 1
            answers.append(pb_utils.InferenceResponse([tensor, pb_utils.Tensor("SUM", array[-1:])]))
        return answers
"""
SCRIBBLES = """
input { name: "X" data_type: TYPE_FP32 dims: [-1] }
output [ { name: "X" data_type: TYPE_FP32 dims: [-1] }, { name: "SUM" data_type: TYPE_FP32 dims: [1] } ]
"""

KEEPER = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.kept = []

    def execute(self, requests):
        answers = []
        for request in requests:
            self.kept.append(pb_utils.get_input_tensor_by_name(request, "X").as_numpy())
            last = np.array([kept[-1] for kept in self.kept])
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", last)]))
        return answers
"""

LOOKER = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            found = [array.flags.writeable, array.flags.aligned, array[-1]]
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array(found, np.float32))]))
        return answers
"""

TRUSTING = """
import ctypes
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "X")
            last = tensor.as_numpy()[-1]
            array = np.from_dlpack(tensor)
            ctypes.memset(array.ctypes.data, 0, 4)  # as what other libraries make of a capsule may be written to
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([array[0], array[-1], last]))]))
        return answers
"""

MIXED = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            given = {tensor.name(): tensor for tensor in request.inputs()}
            texts = given["TEXTS"].as_numpy()
            turned = np.array([text[::-1] for text in texts], object)
            answers.append(pb_utils.InferenceResponse([
                pb_utils.Tensor("ODD", given["ODD"].as_numpy()[::-1]),
                pb_utils.Tensor("X", given["X"].as_numpy() * 2),
                pb_utils.Tensor("TEXTS", turned),
                given["SMALL"],
            ]))
        return answers
"""
MIXES = "".join(
    f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: [-1] }}\n'
    for name, datatype in (("ODD", "INT8"), ("X", "FP32"), ("TEXTS", "STRING"), ("SMALL", "INT32"))
    for kind in ("input", "output")
)

CALLER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "X")
            tensor.as_numpy()[:] = 0
            call = pb_utils.InferenceRequest(
                model_name="scribbler", requested_output_names=["X", "SUM"], inputs=[tensor]
            )
            answers.append(pb_utils.InferenceResponse(call.exec().output_tensors()))
        return answers
"""

DIES = """
import os
import socket
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        port = int(pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()[0])
        with socket.create_connection(("127.0.0.1", port)) as gate:
            gate.recv(1)  # returns when the test closes its end
        os.kill(os.getpid(), 9)
"""

REMEMBERS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            before = pb_utils.get_input_tensor_by_name(request, "BEFORE").as_numpy()
            found = pb_utils.Tensor("Y", np.array([before.size, before.sum(dtype=np.float64)], np.float32))
            answers.append(pb_utils.InferenceResponse([found, pb_utils.get_input_tensor_by_name(request, "X")]))
        return answers
"""
REMEMBERED = """
input { name: "X" data_type: TYPE_FP32 dims: [-1] }
output { name: "Y" data_type: TYPE_FP32 dims: [2] }
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  state { input_name: "BEFORE" output_name: "X" data_type: TYPE_FP32 dims: [-1] }
}
"""

XY = 'input { name: "X" data_type: TYPE_FP32 dims: [-1] } output { name: "Y" data_type: TYPE_FP32 dims: [-1] }'
VIEWS = 'parameters { key: "SHARED_MEMORY_VIEWS" value { string_value: "yes" } }'
ONE = "instance_group { kind: KIND_CPU count: 1 }"

ENSEMBLE = """
platform: "ensemble"
input { name: "X" data_type: TYPE_FP32 dims: [-1] }
output { name: "A" data_type: TYPE_FP32 dims: [-1] }
output { name: "B" data_type: TYPE_FP32 dims: [-1] }
output { name: "SUM" data_type: TYPE_FP32 dims: [1] }
ensemble_scheduling {
  step {
    model_name: "scribbler" model_version: -1
    input_map { key: "X" value: "X" }
    output_map [ { key: "X" value: "A" }, { key: "SUM" value: "SUM" } ]
  }
  step { model_name: "scribbler" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "X" value: "B" } }
}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = tmp_path_factory.mktemp("large") / "models"
    write_model(models, "scribbler", SCRIBBLER, SCRIBBLES + ONE)
    write_model(models, "keeper", KEEPER, XY + ONE)
    write_model(models, "looker", LOOKER, XY + ONE)
    write_model(models, "viewer", LOOKER, XY + ONE + VIEWS)
    write_model(models, "trusting", TRUSTING, XY + ONE)
    write_model(models, "trusting_views", TRUSTING, XY + ONE + VIEWS)
    write_model(models, "mixed", MIXED, MIXES + ONE)
    write_model(models, "mixed_views", MIXED, MIXES + ONE + VIEWS)
    write_model(models, "caller", CALLER, SCRIBBLES + ONE)
    write_model(models, "dies", DIES, XY + ONE)
    write_model(models, "remembers", REMEMBERS, REMEMBERED + ONE)
    write_model(models, "both", config=ENSEMBLE)
    (models / "both" / "1").mkdir(exist_ok=True)
    with RunningServer(models) as running:
        yield running


Infer = Callable[..., Any]


@pytest.fixture(params=["http", "grpc", "stream"])
def infer(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[Infer]:
    """``infer(model, sequence, X=array, ...)``; the result of the stock client, to which *sequence* has further arguments."""
    module = tritonclient.http if request.param == "http" else tritonclient.grpc
    url = server.http_url if request.param == "http" else server.grpc_url
    with module.InferenceServerClient(url) as client:
        heard: queue.SimpleQueue[tuple[Any, InferenceServerException | None]] = queue.SimpleQueue()
        if request.param == "stream":
            client.start_stream(lambda result, error: heard.put((result, error)))

        def send(model: str, sequence: dict[str, Any] | None = None, **arrays: Any) -> Any:
            kinds = {"float32": "FP32", "int8": "INT8", "int32": "INT32", "object": "BYTES"}
            given = [
                module.InferInput(name, list(array.shape), kinds[array.dtype.name]).set_data_from_numpy(array)
                for name, array in arrays.items()
            ]
            if request.param != "stream":
                return client.infer(model, given, **sequence or {})
            client.async_stream_infer(model, given, **sequence or {})
            result, error = heard.get()
            if error is not None:
                raise error
            return result

        yield send


@pytest.mark.parametrize("count", [COUNT, HUGE])
def test_what_a_model_writes_into_an_input_is_its_own_affair(infer: Infer, count: int) -> None:
    """Model API, 5.3."""
    given = np.arange(count, dtype=np.float32)
    for _ in range(2):
        answer = infer("scribbler", X=given)
        np.testing.assert_array_equal(answer.as_numpy("X"), given)
        assert answer.as_numpy("SUM")[0] == given[-1] + 1


def test_an_array_may_be_kept(infer: Infer) -> None:
    """Model API, 5.3: the place where it lay has others' requests meanwhile."""
    before = len(infer("keeper", X=np.zeros(COUNT, np.float32)).as_numpy("Y"))
    for number in range(1, 4):
        answer = infer("keeper", X=np.full(COUNT, number, np.float32)).as_numpy("Y")
    np.testing.assert_array_equal(answer[before - 1 :], [0, 1, 2, 3])


def test_an_array_is_the_model_s_own_unless_it_wants_views(infer: Infer) -> None:
    given = np.arange(COUNT, dtype=np.float32)
    np.testing.assert_array_equal(infer("looker", X=given).as_numpy("Y"), [True, True, COUNT - 1])
    np.testing.assert_array_equal(infer("viewer", X=given).as_numpy("Y"), [False, True, COUNT - 1])


@pytest.mark.parametrize("model", ["trusting", "trusting_views"])
def test_what_is_exported_by_dlpack_may_be_written_to(infer: Infer, model: str) -> None:
    for _ in range(2):
        answer = infer(model, X=np.full(COUNT, 7, np.float32)).as_numpy("Y")
        np.testing.assert_array_equal(answer, [0, 7, 7])


@pytest.mark.parametrize("model", ["mixed", "mixed_views"])
def test_tensors_begin_where_they_begin_in_the_message(infer: Infer, model: str) -> None:
    """Neither aligned nor large all of them."""
    rng = np.random.default_rng(5)
    odd = rng.integers(-100, 100, 70_001).astype(np.int8)
    numbers = rng.random(COUNT, np.float32)
    texts = np.array([bytes([65 + n % 26]) * (n % 90) + b"!" for n in range(3_000)], object)
    small = np.arange(3, dtype=np.int32)
    answer = infer(model, ODD=odd, X=numbers, TEXTS=texts, SMALL=small)
    np.testing.assert_array_equal(answer.as_numpy("ODD"), odd[::-1])
    np.testing.assert_array_equal(answer.as_numpy("X"), numbers * 2)
    assert answer.as_numpy("TEXTS").tolist() == [text[::-1] for text in texts]
    np.testing.assert_array_equal(answer.as_numpy("SMALL"), small)


def test_steps_of_an_ensemble_do_not_see_what_another_wrote(infer: Infer) -> None:
    given = np.arange(COUNT, dtype=np.float32)
    answer = infer("both", X=given)
    np.testing.assert_array_equal(answer.as_numpy("A"), given)
    np.testing.assert_array_equal(answer.as_numpy("B"), given)
    assert answer.as_numpy("SUM")[0] == COUNT


def test_a_model_that_is_called_gets_what_came(infer: Infer) -> None:
    """An input that is handed on is the data that came in, whatever the caller wrote into its array."""
    given = np.arange(COUNT, dtype=np.float32)
    answer = infer("caller", X=given)
    np.testing.assert_array_equal(answer.as_numpy("X"), given)
    assert answer.as_numpy("SUM")[0] == COUNT


def received(server: RunningServer) -> int:
    """Pieces of shared memory of more than 16 MiB that the server, or a front end of its, has mapped."""
    found = 0
    pid = server.process.pid
    for process in (pid, *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            begin, _, end = line.split(" ", 1)[0].partition("-")
            found += "memfd:" in line and int(end, 16) - int(begin, 16) > 16 << 20
    return found


def test_memory_is_given_back_when_the_worker_dies(server: RunningServer, infer: Infer) -> None:
    given = np.arange(HUGE, dtype=np.float32)
    infer("looker", X=given)
    with Gate() as gate, ThreadPoolExecutor(1) as pool:
        given[0] = gate.port
        opening = pool.submit(lambda: (gate.wait(), gate.open()))  # the client for HTTP stays in its thread
        with pytest.raises(InferenceServerException, match="is not healthy"):
            infer("dies", X=given)
        opening.result()
    until(lambda: received(server) == 0)


def test_an_input_that_becomes_a_state_does_not_keep_its_request(server: RunningServer, infer: Infer) -> None:
    until(lambda: received(server) == 0)
    large = np.arange(HUGE, dtype=np.float32)
    infer("remembers", {"sequence_id": 7, "sequence_start": True}, X=large)
    until(lambda: received(server) == 0)
    answer = infer("remembers", {"sequence_id": 7}, X=large[:COUNT]).as_numpy("Y")
    np.testing.assert_array_equal(answer, [HUGE, large.sum(dtype=np.float64).astype(np.float32)])
    answer = infer("remembers", {"sequence_id": 7, "sequence_end": True}, X=large[:1]).as_numpy("Y")
    np.testing.assert_array_equal(answer, [COUNT, large[:COUNT].sum(dtype=np.float64).astype(np.float32)])
