"""The models that the checklists of the wire specs speak of (HTTP spec, section 20), and gates that hold requests."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from tests.harness import MODEL_REPOSITORY, Reply, RunningServer, tensor, write_model

IDENTITY = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor(t.name().replace("INPUT", "OUTPUT"), t.as_numpy()) for t in request.inputs()]
                )
                for request in requests
            ]
"""

MULTI = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.version = int(args["model_version"])

        def execute(self, requests):
            out = np.array([self.version], np.int32)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", out)]) for _ in requests]
"""

FAIL = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    CODES = "UNKNOWN INTERNAL NOT_FOUND INVALID_ARG UNAVAILABLE UNSUPPORTED ALREADY_EXISTS CANCELLED".split()

    class TritonPythonModel:
        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            what = request.inputs()[0].as_numpy().reshape(-1)[0].decode()
            if what == "raise":
                raise ValueError("boom")
            if what == "no code":
                return pb_utils.InferenceResponse(error=pb_utils.TritonError("no code given"))
            if what in CODES:
                error = pb_utils.TritonError("as the model says", getattr(pb_utils.TritonError, what))
                return pb_utils.InferenceResponse(error=error)
            out = np.array([what.encode()], np.object_)
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", out)])
"""

PARAMETERS = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        # What arrives as request parameters comes back as a tensor.
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUTPUT0", np.array([request.parameters().encode()], np.object_))]
                )
                for request in requests
            ]
"""

OTHER_OUTPUT = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            out = np.arange(4, dtype=np.float32).reshape(1, 4)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", out)]) for _ in requests]
"""

# Reports, for each request, the execution that it was part of. A request whose GATE names a FIFO holds its execution
# until the other end is closed: the test has opened the FIFO for reading and writing, so opening it here does not wait.
RECORDING = """
    import json
    import time
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.instance = args["model_instance_name"]
            self.executions = 0

        def execute(self, requests):
            self.executions += 1
            begin = time.monotonic_ns()
            names = [pb_utils.get_input_tensor_by_name(r, "GATE").as_numpy() for r in requests]
            for name in names:
                for path in filter(None, name.reshape(-1)):
                    with open(path.decode()) as gate:
                        print(f"holding {path.decode()}", flush=True)
                        gate.read()
            report = {
                "instance": self.instance,
                "begin": begin,
                "ids": [r.request_id() for r in requests],
                "sizes": [len(name) for name in names],
                "inputs": [sorted(t.name() for t in r.inputs()) for r in requests],
                "shapes": [[list(t.as_numpy().shape) for t in r.inputs() if t.name() == "X"] for r in requests],
            }
            text = json.dumps(report).encode()
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("REPORT", np.full(name.shape, text, np.object_))])
                for name in names
            ]
"""


def tensors(kind: str, *specs: tuple[str, str, str]) -> str:
    """``input`` or ``output`` sections from (name, type, dims)."""
    return "\n".join(
        f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] }}' for name, datatype, dims in specs
    )


def identity_config(datatype: str, dims: str, *, max_batch_size: int = 0, more: str = "") -> str:
    return "\n".join(
        [
            'backend: "python"',
            f"max_batch_size: {max_batch_size}",
            tensors("input", ("INPUT0", datatype, dims)),
            tensors("output", ("OUTPUT0", datatype, dims)),
            more,
        ]
    )


EVERY_DATATYPE = (
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
)


LONG_IDLE = "max_sequence_idle_microseconds: 3600000000"
"""No sequence is over because a busy machine has let the default pass, a second, between two of its requests."""


def write_wire_models(repository: Path) -> None:
    """All of them but those that hold requests. Two fail to load: ``loadfail`` and ``nofile``."""
    repository.mkdir(parents=True, exist_ok=True)
    (repository / "add_sub").symlink_to(MODEL_REPOSITORY / "add_sub")
    write_model(repository, "ident_b", IDENTITY, identity_config("FP32", "-1", max_batch_size=4))
    write_model(repository, "ident_fixed", IDENTITY, identity_config("FP32", "4", max_batch_size=4))
    write_model(repository, "ident_2d", IDENTITY, identity_config("FP32", "-1, -1"))
    write_model(repository, "ident_bytes", IDENTITY, identity_config("STRING", "-1"))
    write_model(repository, "one_bytes", IDENTITY, identity_config("STRING", "1", max_batch_size=4))
    write_model(
        repository, "ident_u8", IDENTITY, identity_config("UINT8", "-1", more='metric_tags { key: "team" value: "a" }')
    )
    write_model(repository, "ident_bool", IDENTITY, identity_config("BOOL", "-1", more='platform: "foo"'))
    write_model(repository, "ident_fp16", IDENTITY, identity_config("FP16", "-1"))
    two = [("INPUT0", "FP32", "-1"), ("INPUT1", "FP32", "-1")]
    write_model(
        repository,
        "two_inputs",
        IDENTITY,
        'backend: "python" max_batch_size: 4\n'
        + tensors("input", *two)
        + tensors("output", ("OUTPUT0", "FP32", "-1"), ("OUTPUT1", "FP32", "-1")),
    )
    every = [(f"INPUT_{datatype}", datatype, "-1") for datatype in (*EVERY_DATATYPE, "STRING")]
    write_model(
        repository,
        "every_datatype",
        IDENTITY,
        'backend: "python"\n'
        + tensors("input", *every)
        + tensors("output", *((name.replace("INPUT", "OUTPUT"), *rest) for name, *rest in every)),
    )
    versions = 'backend: "python" version_policy { specific { versions: [ 1, 3 ] } }\n'
    one_int = tensors("input", ("INPUT0", "INT32", "1")) + tensors("output", ("OUTPUT0", "INT32", "1"))
    for version in (1, 2, 3):
        write_model(repository, "multi", MULTI, versions + one_int, version=version)
    write_model(repository, "fail", FAIL, identity_config("STRING", "1"))
    write_model(
        repository,
        "params",
        PARAMETERS,
        'backend: "python"\n'
        + tensors("input", ("INPUT0", "INT32", "1"))
        + tensors("output", ("OUTPUT0", "STRING", "1")),
    )
    write_model(
        repository,
        "other_output",
        OTHER_OUTPUT,
        'backend: "python"\n'
        + tensors("input", ("INPUT0", "INT32", "1"))
        + tensors("output", ("OUTPUT0", "INT64", "7")),
    )
    write_model(
        repository,
        "optional",
        IDENTITY,
        """
        backend: "python"
        input { name: "INPUT_A" data_type: TYPE_FP32 dims: [ 1 ] }
        input { name: "INPUT_B" data_type: TYPE_FP32 dims: [ 1 ] optional: true }
        input { name: "INPUT_C" data_type: TYPE_FP32 dims: [ 1 ] optional: true }
        output { name: "OUTPUT_A" data_type: TYPE_FP32 dims: [ 1 ] }
        output { name: "OUTPUT_B" data_type: TYPE_FP32 dims: [ 1 ] }
        output { name: "OUTPUT_C" data_type: TYPE_FP32 dims: [ 1 ] }
        """,
    )
    write_model(
        repository,
        "decoupled",
        IDENTITY,
        identity_config("INT32", "1", more="model_transaction_policy { decoupled: true }"),
    )
    write_model(
        repository, "sequence", IDENTITY, identity_config("INT32", "1", more=f"sequence_batching {{ {LONG_IDLE} }}")
    )
    write_model(repository, "loadfail", "import no_such_module_anywhere", identity_config("INT32", "1"))
    write_model(repository, "nofile", "", identity_config("INT32", "1"))


RECORDING_CONFIG = """
    backend: "python"
    input { name: "GATE" data_type: TYPE_STRING dims: [ 1 ] }
    output { name: "REPORT" data_type: TYPE_STRING dims: [ 1 ] }
"""


def impatient(more: str = "") -> str:
    """The dynamic batching of a model whose requests wait for a millisecond at most, except those that are `PATIENT`.

    What keeps the instance busy has to be patient: on a busy machine a millisecond may pass before a free instance takes
    a request. *more* is added to the policy.
    """
    return f"""dynamic_batching {{ priority_levels: 2 default_priority_level: 2 priority_queue_policy {{ key: 1 value {{ }} }}
        default_queue_policy {{ default_timeout_microseconds: 1000 {more} }} }}"""


PATIENT = {"parameters": {"priority": 1}}
"""The fields of a request to an `impatient` model that waits as long as it takes."""


def write_recording(repository: Path, name: str, more: str) -> None:
    """A model that reports its executions; *more* is the rest of its configuration."""
    write_model(repository, name, RECORDING, RECORDING_CONFIG + more)


class Gate:
    """Holds the execution of a request that carries ``path``, from `wait_held` until `open`."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._descriptor: int | None = os.open(path, os.O_RDWR)

    def wait_held(self, server: RunningServer) -> None:
        server.wait_for_log(f"holding {re.escape(self.path)}")

    def is_held(self, server: RunningServer) -> bool:
        return re.search(rf"holding {re.escape(self.path)}\b", server.log) is not None

    def open(self) -> None:
        """Let the model go on; a second call does nothing."""
        if self._descriptor is not None:
            # A model that has said that it is held may not have opened the pipe yet. Nobody would ever write to it again,
            # so it finds an empty file.
            empty = Path(f"{self.path}.open")
            empty.touch()
            empty.replace(self.path)
            os.close(self._descriptor)
            self._descriptor = None


class Traffic:
    """Requests of one test to one model, each in a thread of its own, and the gates that hold some of them."""

    def __init__(self, server: RunningServer, model: str, folder: Path) -> None:
        self.server = server
        self.model = model
        self._is_batching = server.get(f"/v2/models/{model}/config").json["max_batch_size"] > 0
        self._folder = folder
        self._pool = ThreadPoolExecutor(32)
        self._gates: list[Gate] = []

    def __enter__(self) -> Traffic:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let everything go on, and wait for every answer."""
        self.open_gates()
        self._pool.shutdown()

    def gate(self) -> Gate:
        self._gates.append(Gate(self._folder / f"gate{len(self._gates)}"))
        return self._gates[-1]

    def open_gates(self) -> None:
        for gate in self._gates:
            gate.open()

    def block(self, request_id: str = "blocker", **fields: Any) -> Future[Reply]:
        """A request that is in ``execute`` when this returns, and stays there until `open_gates`."""
        gate = self.gate()
        held = self.send(request_id, gate=gate, **fields)
        gate.wait_held(self.server)
        return held

    def send(self, request_id: str, *, size: int = 1, gate: Gate | None = None, **fields: Any) -> Future[Reply]:
        """Send a request of *size* rows without waiting for anything."""
        paths = [gate.path if gate else ""] * size
        shape = [size, 1] if self._is_batching else [1]
        inputs = [tensor("GATE", "BYTES", shape, paths), *fields.pop("inputs", [])]
        return self._pool.submit(self.server.infer, self.model, inputs, id=request_id, **fields)

    def queue(self, request_id: str, **fields: Any) -> Future[Reply]:
        """Send a request, and return when it waits in the queue."""
        waiting = pending(self.server, self.model)
        future = self.send(request_id, **fields)
        wait_pending(self.server, self.model, waiting + 1, unless=future)
        return future

    def report(self, future: Future[Reply]) -> dict[str, Any]:
        return report_of(future.result(30))


def report_of(reply: Reply) -> dict[str, Any]:
    """What a recording model said about the execution that answered with *reply*."""
    assert reply.status == 200, reply.body
    report: dict[str, Any] = json.loads(reply.json["outputs"][0]["data"][0])
    return report


def executions(reports: list[dict[str, Any]]) -> list[list[str]]:
    """The ids of each execution, in the order in which they began."""
    begun = {(report["begin"], report["instance"]): report["ids"] for report in reports}
    return [ids for _, ids in sorted(begun.items())]


def metric(server: RunningServer, name: str, model: str, **labels: str) -> float:
    """The value of one series of a model on the metrics page; fails when there is not exactly one."""
    page = server.get(server.metrics_url).body.decode()
    wanted = [f'model="{model}"', *(f'{key}="{value}"' for key, value in labels.items())]
    found = [
        float(line.rpartition(" ")[2])
        for line in page.splitlines()
        if line.startswith(name + "{") and all(label in line for label in wanted)
    ]
    assert len(found) == 1, f"{len(found)} series of {name} with {wanted}:\n{page}"
    return found[0]


def pending(server: RunningServer, model: str) -> int:
    return int(metric(server, "nv_inference_pending_request_count", model))


def wait_pending(
    server: RunningServer, model: str, count: int, *, unless: Future[Any] | None = None, limit_s: float = 20
) -> None:
    """Return when *count* requests wait. Each look is a round trip to the server; fails after *limit_s*."""
    begin = time.monotonic()
    while (now := pending(server, model)) != count:
        if unless is not None and unless.done():
            raise AssertionError(f"the request did not wait: {unless.result().body!r}")
        assert time.monotonic() - begin < limit_s, f"{now} requests wait, not {count}"


def wait_until(is_so: Callable[[], bool], *, limit_s: float = 20) -> None:
    """Return when *is_so*, which asks the server, says so; fails after *limit_s*."""
    begin = time.monotonic()
    while not is_so():
        assert time.monotonic() - begin < limit_s, "it did not become so"


def statistics(server: RunningServer, model: str) -> dict[str, Any]:
    """The only row of a model's statistics."""
    (row,) = server.get(f"/v2/models/{model}/stats").json["model_stats"]
    return dict(row)


def grpc_channel(server: RunningServer) -> grpc.Channel:
    """A channel without limits of size; use it as a context manager."""
    unlimited = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    return grpc.insecure_channel(server.grpc_url, options=unlimited)


def infer_message(model: str, *inputs: tuple[str, str, list[int], bytes], **fields: Any) -> Any:
    """A ModelInferRequest with raw inputs, given as (name, datatype, shape, data)."""
    message = service_pb2.ModelInferRequest(model_name=model, **fields)
    for name, datatype, shape, data in inputs:
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_input_contents.append(data)
    return message
