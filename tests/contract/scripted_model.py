"""A model whose ``execute`` runs the code that the request brings, so that a test shows what its model does.

It has the tensors of the model ``M`` of the model API's checklist: input ``IN`` (the code) and optional ``X``; outputs
``OUT``, ``Y`` and ``Y2``. The code sees ``requests``, ``request`` (the first), ``model``, ``pb_utils``, ``np``, ``json`` and
``Response``, and sets ``returned``; ``answer(value)`` sets it to one response whose OUT is the JSON of *value*.

`write_script_model` writes one whose code is the body of a function: it returns what ``execute`` returns, and nothing
refers to the requests but the code itself, so a test sees what happens when the model lets go of one. It is decoupled,
batching or iterative as its configuration says. Such code sees what `SCRIPT_CODE` defines, among it ``response(value)``,
``gate(port)`` and ``tell(port, value)``, whose other end is a `Gate` of the test.
"""

from __future__ import annotations

import json
import queue
import select
import socket
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.harness import Reply, RunningServer, tensor, write_model

CONFIG = """
backend: "python"
input [
  { name: "IN" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "X" data_type: TYPE_FP32 dims: [ -1 ] optional: true }
]
output [
  { name: "OUT" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "Y2" data_type: TYPE_FP32 dims: [ 2 ] }
]
instance_group [ { kind: KIND_CPU } ]
"""

CODE = """
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.args = args

    def execute(self, requests):
        code = pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy()[0].decode()
        scope = {
            "requests": requests,
            "request": requests[0],
            "model": self,
            "pb_utils": pb_utils,
            "np": np,
            "json": json,
            "Response": pb_utils.InferenceResponse,
        }

        def answer(value):
            text = np.array([json.dumps(value)], dtype=object)
            scope["returned"] = [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)])]

        scope["answer"] = answer
        exec(compile(code, "script", "exec"), scope)
        return scope["returned"]
"""

INSTANCE = "scripted_0_0"


def write_scripted_model(repository: Path, name: str = "scripted", *, config: str = CONFIG) -> Path:
    return write_model(repository, name, CODE, config)


def run(server: RunningServer, code: str, *inputs: dict[str, Any], model: str = "scripted", **fields: Any) -> Reply:
    """The reply to a request that brings *code*, indented with its test or not."""
    return server.infer(model, [tensor("IN", "BYTES", [1], [textwrap.dedent(code)]), *inputs], **fields)


def answer(server: RunningServer, code: str, *inputs: dict[str, Any], model: str = "scripted", **fields: Any) -> Any:
    """The value that *code* gave to ``answer``."""
    reply = run(server, code, *inputs, model=model, **fields)
    assert reply.status == 200, reply.body
    return json.loads(outputs_of(reply)["OUT"]["data"][0])


def outputs_of(reply: Reply) -> dict[str, dict[str, Any]]:
    """The output tensors by name."""
    return {output["name"]: output for output in reply.json["outputs"]}


def execute_failed(text: str, instance: str = INSTANCE) -> str:
    """EXEC(text) of the model API's shorthand."""
    return f"Failed to process the request(s) for model '{instance}', message: {text}"


# ---------------------------------------------------------------------------------------------- code as a function

WAIT_S = 30
"""Nothing here takes as long; a test fails then, instead of hanging."""

DEADLINES_S = (1, 5, 25)
"""For a call whose deadline is to pass while its script runs: the first that does not pass on the way to the model."""

SCRIPT_CODE = """
import asyncio
import gc
import json
import os
import socket
import textwrap
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
RESCHEDULE = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
Response = pb_utils.InferenceResponse


def response(value, **others):
    # OUT is the JSON of value; others are numeric outputs
    outputs = [pb_utils.Tensor("OUT", np.array([json.dumps(value)], dtype=object))]
    outputs += [pb_utils.Tensor(name, np.array(array, np.float32)) for name, array in others.items()]
    return Response(outputs)


def error(text, code=pb_utils.TritonError.INTERNAL):
    return Response([], pb_utils.TritonError(text, code))


def thread(function, *arguments):
    started = threading.Thread(target=function, args=arguments, daemon=True)
    started.start()
    return started


def gate(port):
    # the test knows that the code has come here, and lets it go on
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.recv(1)


def tell(port, value):
    # something for the test that no client is to hear
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall(json.dumps(value).encode())


def until(condition):
    # Triton's API has nothing to wait for a cancellation with: a model asks, again and again
    end = time.monotonic() + 20
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def refusal(function, *arguments, **named):
    # what a call is refused with
    try:
        function(*arguments, **named)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


class TritonPythonModel:
    def initialize(self, args):
        self.instance = args["model_instance_name"]
        self.notes = []

    def execute(self, requests):
        code = pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy().reshape(-1)[0].decode()
        source = "def script(requests, request, model):\\n" + textwrap.indent(code, "    ")
        scope = dict(globals())
        exec(compile(source, "script", "exec"), scope)
        return scope["script"](requests, requests[0], self)
"""

IS_DECOUPLED = "model_transaction_policy { decoupled: true }\n"
DECOUPLED = CONFIG + IS_DECOUPLED

BATCHING = (
    CONFIG
    + """
max_batch_size: 8
dynamic_batching { preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 30000000 }
"""
)
"""Three requests go at once, together; fewer would wait."""

ITERATIVE = CONFIG + "sequence_batching { iterative_sequence: true max_sequence_idle_microseconds: 3600000000 }\n"


def write_script_model(
    repository: Path, name: str, config: str = CONFIG, *, instances: int = 1, **parameters: str
) -> Path:
    """A model whose requests bring the body of a function; *parameters* are the model's."""
    text = config.replace("kind: KIND_CPU", f"count: {instances} kind: KIND_CPU")
    for key, value in parameters.items():
        text += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
    return write_model(repository, name, SCRIPT_CODE, text)


class Gate:
    """The test's end of ``gate(port)`` and ``tell(port, value)`` in a script. One use each."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(WAIT_S)
        self._connection: socket.socket | None = None

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()
        self._listener.close()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def wait(self) -> None:
        """Return when the script has come to its gate."""
        self._connection, _ = self._listener.accept()

    def comes(self, unless: grpc.Future) -> bool:
        """Whether the script comes to its gate before the call *unless* has ended, whose deadline may pass on the way."""
        while not select.select([self._listener], [], [], 0.01)[0]:
            if unless.done():
                return False
        self.wait()
        return True

    def open(self) -> None:
        """Let the script go on."""
        if self._connection is not None:
            self._connection.close()

    def told(self) -> Any:
        """What the script tells."""
        connection, _ = self._listener.accept()
        with connection:
            connection.settimeout(WAIT_S)
            return json.loads(b"".join(iter(lambda: connection.recv(4096), b"")))


@dataclass(frozen=True)
class Message:
    """One message of a stream. ``value`` is that of ``response``, ``is_final`` what ``triton_final_response`` says."""

    id: str
    value: Any
    outputs: tuple[str, ...]
    is_final: bool | None
    error: str


def request_message(
    model: str,
    code: str,
    *,
    request_id: str = "",
    outputs: tuple[str, ...] = (),
    wants_empty_final: bool = False,
    batches: bool = False,
    **parameters: int | bool | str,
) -> service_pb2.ModelInferRequest:
    """A request that brings *code*, indented with its test or not; *batches* for a model that does."""
    message = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    given = message.inputs.add(name="IN", datatype="BYTES", shape=[1, 1] if batches else [1])
    given.contents.bytes_contents.append(textwrap.dedent(code).encode())
    for name in outputs:
        message.outputs.add(name=name)
    if wants_empty_final:
        message.parameters["triton_enable_empty_final_response"].bool_param = True
    for key, value in parameters.items():
        if isinstance(value, bool):
            message.parameters[key].bool_param = value
        elif isinstance(value, int):
            message.parameters[key].int64_param = value
        else:
            message.parameters[key].string_param = value
    return message


class Stream:
    """A ModelStreamInfer call, read by whoever asks for the next message. Leaving cancels what is still open."""

    def __init__(self, server: RunningServer, *, timeout_s: float = WAIT_S, **metadata: str) -> None:
        self._channel = grpc.insecure_channel(server.grpc_url)
        self._requests: queue.SimpleQueue[service_pb2.ModelInferRequest | None] = queue.SimpleQueue()
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self.call = stub.ModelStreamInfer(
            iter(self._requests.get, None), timeout=timeout_s, metadata=tuple(metadata.items())
        )

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.call.cancel()
        self._requests.put(None)
        self._channel.close()

    def send(self, model: str, code: str, **fields: Any) -> None:
        self._requests.put(request_message(model, code, **fields))

    def receive(self) -> Message:
        """The next message. Raises grpc.RpcError, also when nothing comes for `WAIT_S`."""
        return _read(next(self.call))

    def rest(self) -> Iterator[Message]:
        """All further messages; no more requests will be sent."""
        self._requests.put(None)
        return map(_read, self.call)

    def cancel(self) -> None:
        self.call.cancel()


def _read(message: Any) -> Message:
    response = message.infer_response
    value = None
    for output, raw in zip(response.outputs, response.raw_output_contents):
        if output.name == "OUT":
            value = json.loads(raw[4:])
    final = response.parameters.get("triton_final_response")
    return Message(
        id=response.id,
        value=value,
        outputs=tuple(output.name for output in response.outputs),
        is_final=None if final is None else final.bool_param,
        error=message.error_message,
    )


def stream_of(server: RunningServer, model: str, code: str, **fields: Any) -> list[Message]:
    """Every message that one request gets on a stream of its own."""
    with Stream(server) as stream:
        stream.send(model, code, **fields)
        return list(stream.rest())


def run_batch(server: RunningServer, model: str, code: str, ids: tuple[str, ...] = ("a", "b", "c")) -> dict[str, Reply]:
    """The replies, by id, to requests that are executed in one batch; each brings the same *code*."""
    given = tensor("IN", "BYTES", [1, 1], [textwrap.dedent(code)])
    with ThreadPoolExecutor(len(ids)) as threads:
        replies = threads.map(lambda request_id: server.infer(model, [given], id=request_id), ids)
        return dict(zip(ids, replies))


def value_of(reply: Reply) -> Any:
    """What the script gave to ``response``."""
    assert reply.status == 200, reply.body
    return json.loads(outputs_of(reply)["OUT"]["data"][0])
