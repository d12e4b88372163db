"""A model that calls other models: model_api.md section 4.9, rows 41, 120 to 130 and 138.

Callers and callees are one model under many names: it runs the code that its request brings, so that a call carries what
its callee is to do.
"""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import textwrap
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2_grpc

from pytriton_lite.engine.serving.calls import MOST_OPEN
from tests.contract.wire_models import Gate, grpc_channel, infer_message, metric, statistics, wait_pending, wait_until
from tests.harness import Reply, RunningServer, tensor, write_model

MIB = 1 << 20
LARGE = 16 * MIB
"""Elements of FP32: 64 MiB, which has a segment of its own."""

SCRIPT = '''
import asyncio
import itertools
import json
import os
import textwrap
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
START = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
END = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
Response = pb_utils.InferenceResponse


def text(name, value):
    return pb_utils.Tensor(name, np.array([value], dtype=object))


def floats(*values):
    return pb_utils.Tensor("X", np.array(values, np.float32))


def to(model_name, script="", *inputs, outputs=(), **fields):
    """A request to run *script* in another model."""
    return pb_utils.InferenceRequest(
        model_name=model_name,
        inputs=[text("IN", textwrap.dedent(script)), *inputs],
        requested_output_names=list(outputs),
        **fields,
    )


def output(response, name):
    """An output tensor; fails with the error that came instead."""
    assert not response.has_error(), response.error().message()
    return pb_utils.get_output_tensor_by_name(response, name)


def told(response):
    """The value that the callee's script gave to `answer`, or the error that came instead, as [code, text]."""
    if response.has_error():
        return [response.error().code().name, response.error().message()]
    out = pb_utils.get_output_tensor_by_name(response, "OUT")
    return None if out is None else json.loads(out.as_numpy()[0])


def refusal(function, *arguments, **named):
    """The text of the TritonModelException that *function* raises."""
    try:
        function(*arguments, **named)
    except pb_utils.TritonModelException as error:
        return str(error)


def hold(path):
    """Wait in the gate at *path*."""
    print(f"holding {path}", flush=True)
    open(path).read()


class Base:
    def initialize(self, args):
        self.is_decoupled = pb_utils.using_decoupled_model_transaction_policy(json.loads(args["model_config"]))

    def scope(self, requests):
        request = requests[0]
        scope = {**globals(), "requests": requests, "request": request, "model": self, "returned": None}
        scope["X"] = pb_utils.get_input_tensor_by_name(request, "X")

        def answer(value, *tensors, **fields):
            response = Response([text("OUT", json.dumps(value)), *tensors], **fields)
            if self.is_decoupled:
                request.get_response_sender().send(response, FINAL)
            else:
                scope["returned"] = [response]

        scope["answer"] = answer
        return scope

    def code(self, requests):
        return pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy().reshape(-1)[0].decode()
'''

SYNC = (
    SCRIPT
    + """

class TritonPythonModel(Base):
    def execute(self, requests):
        scope = self.scope(requests)
        try:
            exec(self.code(requests), scope)
            return scope["returned"]
        finally:
            scope.clear()  # its functions refer to it, and it to them: tensors in it would wait for a collection
"""
)

ASYNC = (
    SCRIPT
    + """

class TritonPythonModel(Base):
    async def execute(self, requests):
        scope = self.scope(requests)
        exec("async def script():\\n" + textwrap.indent(self.code(requests), "    "), scope)
        try:
            await scope["script"]()
            return scope["returned"]
        finally:
            scope.clear()
"""
)

CONFIG = """
backend: "python"
input [
  { name: "IN" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "X" data_type: TYPE_FP32 dims: [ -1 ] optional: true },
  { name: "S" data_type: TYPE_STRING dims: [ -1 ] optional: true },
  { name: "B" data_type: TYPE_BF16 dims: [ -1 ] optional: true }
]
output [
  { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "X" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "S" data_type: TYPE_STRING dims: [ -1 ] },
  { name: "B" data_type: TYPE_BF16 dims: [ -1 ] }
]
"""

ONE_INSTANCE = "instance_group { kind: KIND_CPU }\n"
DECOUPLED = "model_transaction_policy { decoupled: true }\n"

# Answers with how many requests were executed together, and their ids.
BATCHED = """
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        told = json.dumps(sorted(request.request_id() for request in requests))
        output = np.array([[told]], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", output)]) for _ in requests]
"""

BATCHED_CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "IN" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 3600000000 }
"""

TOO_EARLY = """
import json

import numpy as np
import triton_python_backend_utils as pb_utils


def call():
    request = pb_utils.InferenceRequest(model_name="callee", inputs=[], requested_output_names=[])
    try:
        request.exec()
    except pb_utils.TritonModelException as error:
        return str(error)


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        print(f"auto_complete_config is told: {call()}", flush=True)
        return config

    def initialize(self, args):
        self.told = call()

    def execute(self, requests):
        output = pb_utils.Tensor("OUT", np.array([json.dumps(self.told)], dtype=object))
        return [pb_utils.InferenceResponse([output])]

    def finalize(self):
        print(f"finalize is told: {call()}", flush=True)
"""

ONLY_IN_EXECUTE = "BLS is only supported during the 'execute' function."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("bls")
    for name in ("caller", "callee", "third"):
        write_model(repository, name, SYNC, CONFIG + ONE_INSTANCE)
    write_model(repository, "twin", SYNC, CONFIG + "instance_group { kind: KIND_CPU count: 2 }")
    write_model(repository, "streams", SYNC, CONFIG + ONE_INSTANCE + DECOUPLED)
    write_model(repository, "coroutine", ASYNC, CONFIG + ONE_INSTANCE)
    write_model(repository, "coroutine_streams", ASYNC, CONFIG + ONE_INSTANCE + DECOUPLED)
    write_model(repository, "batched", BATCHED, BATCHED_CONFIG)
    patience = """
        dynamic_batching {
          default_queue_policy { allow_timeout_override: true default_timeout_microseconds: 3600000000 }
        }
    """
    write_model(repository, "impatient", SYNC, CONFIG + ONE_INSTANCE + patience)
    idle = "max_sequence_idle_microseconds: 3600000000"
    text_ids = """
        control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }
    """
    write_model(repository, "sequences", SYNC, CONFIG + ONE_INSTANCE + f"sequence_batching {{ {idle} }}")
    write_model(
        repository, "named_sequences", SYNC, CONFIG + ONE_INSTANCE + f"sequence_batching {{ {idle} {text_ids} }}"
    )
    write_model(
        repository,
        "twin_sequences",
        SYNC,
        CONFIG + f"instance_group {{ kind: KIND_CPU count: 2 }} sequence_batching {{ {idle} }}",
    )
    in_order = "dynamic_batching { preserve_ordering: true }"
    write_model(repository, "in_order", SYNC, CONFIG + "instance_group { kind: KIND_CPU count: 2 }" + in_order)
    overlapping = 'parameters { key: "EXECUTE_CONCURRENCY" value: { string_value: "4" } }'
    write_model(repository, "no_coroutine", SYNC, CONFIG + ONE_INSTANCE + overlapping)
    write_model(
        repository, "twin_no_coroutine", SYNC, CONFIG + "instance_group { kind: KIND_CPU count: 2 }" + overlapping
    )
    write_model(repository, "mortal", SYNC, CONFIG + ONE_INSTANCE)
    write_model(repository, "too_early", TOO_EARLY, CONFIG)
    write_model(repository, "broken", "raise RuntimeError('broken on purpose')", CONFIG)
    with RunningServer(repository, flags=("--exit-on-error=false",)) as running:
        yield running


def ask_for_reply(server: RunningServer, script: str, *inputs: dict[str, Any], model: str = "caller") -> Reply:
    return server.infer(model, [tensor("IN", "BYTES", [1], [textwrap.dedent(script)]), *inputs])


def ask(server: RunningServer, script: str, *inputs: dict[str, Any], model: str = "caller") -> Any:
    """The value that *script*, which runs in *model*, gives to ``answer``."""
    reply = ask_for_reply(server, script, *inputs, model=model)
    assert reply.status == 200, reply.body
    return json.loads(outputs_of(reply)["OUT"][0])


def outputs_of(reply: Reply) -> dict[str, list[Any]]:
    return {output["name"]: output["data"] for output in reply.json["outputs"]}


def ask_over_stream(server: RunningServer, script: str, *, model: str) -> list[Any]:
    """What a decoupled model sends: the JSON of each OUT, or the text of an error."""
    code = textwrap.dedent(script).encode()
    message = infer_message(model, ("IN", "BYTES", [1], struct.pack("<I", len(code)) + code))
    answers: list[Any] = []
    with grpc_channel(server) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for reply in stub.ModelStreamInfer(iter([message]), timeout=30):
            if reply.error_message:
                answers.append(reply.error_message)
            else:
                names = [output.name for output in reply.infer_response.outputs]
                raw = reply.infer_response.raw_output_contents[names.index("OUT")]
                answers.append(json.loads(raw[4:]))
    return answers


@contextmanager
def gates(folder: Path, count: int) -> Iterator[list[Gate]]:
    """Gates that are open in the end, whatever happens."""
    made = [Gate(folder / f"gate{at}") for at in range(count)]
    try:
        yield made
    finally:
        for gate in made:
            gate.open()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as executor:
        yield executor


def framed(model: str, text: str) -> str:
    """BLS(text) of the model API's shorthand."""
    return f"Model {model} - Error when running inference: {text}"


# ---------------------------------------------------------------------------------------------- one call


def test_outputs_of_the_callee_arrive(server: RunningServer) -> None:
    """model_api.md row 120."""
    told = ask(
        server,
        """
        response = to("callee", "answer('hello', X)", floats(1, 2, 3)).exec()
        x = output(response, "X")
        answer([told(response), x.as_numpy().tolist(), x.name(), x.shape(), x.is_cpu(), response.has_error()])
        """,
    )
    assert told == ["hello", [1, 2, 3], "X", [3], True, False]


def test_the_callee_may_be_named_as_a_string_tensor_has_it(server: RunningServer) -> None:
    """Triton's own BLS example gives the bytes of an input."""
    script = """
        answer(told(to(b"callee", "answer(request.requested_output_names() == {'OUT'})", outputs=[b"OUT"]).exec()))
    """
    assert ask(server, script) is True


def test_an_exception_of_the_callee_is_an_error_in_the_response(server: RunningServer) -> None:
    """model_api.md row 120: as the callee's own client would hear it, without a prefix."""
    code, text = ask(server, "answer(told(to('callee', 'raise ValueError(\"boom\")').exec()))")
    assert code == "INTERNAL"
    assert text.startswith(
        "Failed to process the request(s) for model 'callee_0_0', message: ValueError: boom\n\nAt:\n  "
    )


@pytest.mark.parametrize("code", ["UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "CANCELLED"])
def test_an_error_of_the_callee_keeps_its_text_and_code(server: RunningServer, code: str) -> None:
    """model_api.md row 128."""
    script = f'returned = [Response(error=pb_utils.TritonError("as the callee says", pb_utils.TritonError.{code}))]'
    assert ask(server, f"answer(told(to('callee', {script!r}).exec()))") == [code, "as the callee says"]


def test_an_error_returned_as_ones_own_reaches_the_client(server: RunningServer) -> None:
    script = 'returned = [Response(error=pb_utils.TritonError("gone", pb_utils.TritonError.NOT_FOUND))]'
    reply = ask_for_reply(server, f"returned = [to('callee', {script!r}).exec()]")
    assert (reply.status, reply.error) == (404, "gone")


@pytest.mark.parametrize(
    ("call", "code", "text"),
    [
        pytest.param(
            "to('nope')",
            "NOT_FOUND",
            framed("nope", "Request for unknown model: 'nope' is not found"),
            id="row 121, unknown model",
        ),
        pytest.param(
            "to('broken')",
            "NOT_FOUND",
            framed("broken", "Failed for execute the inference request. Model 'broken' is not ready."),
            id="row 121, a model that did not load",
        ),
        pytest.param(
            "to('callee', model_version=7)",
            "NOT_FOUND",
            framed("callee", "Failed for execute the inference request. Model 'callee' is not ready."),
            id="row 121, unknown version",
        ),
        pytest.param(
            "to('callee', outputs=['ZZ'])",
            "INVALID_ARG",
            framed("callee", "unexpected inference output 'ZZ' for model 'callee'"),
            id="unexpected output",
        ),
        pytest.param(
            "to('callee', '', pb_utils.Tensor('ZZ', np.zeros(1, np.float32)))",
            "INVALID_ARG",
            framed("callee", "unexpected inference input 'ZZ' for model 'callee'"),
            id="unexpected input",
        ),
        pytest.param(
            "to('callee', '', pb_utils.Tensor('X', np.zeros(1, np.int32)))",
            "INVALID_ARG",
            framed(
                "callee",
                "[request id: <id_unknown>] inference input 'X' data-type is 'INT32', but model 'callee' expects 'FP32'",
            ),
            id="data type",
        ),
        pytest.param(
            "pb_utils.InferenceRequest(request_id='r7', model_name='callee', inputs=[], requested_output_names=[])",
            "INVALID_ARG",
            framed(
                "callee",
                "[request id: r7] expected number of inputs between 1 and 4 but got 0 inputs for model 'callee'. Got input(s) "
                "[], but missing required input(s) ['IN']. Please provide all required input(s).",
            ),
            id="missing input",
        ),
        pytest.param(
            "to('callee', parameters={'n': 1 << 70})",
            "INVALID_ARG",
            framed("callee", "Unsupported value type on parameters"),
            id="an int beyond 64 bits",
        ),
        pytest.param(
            "to('streams')",
            "UNSUPPORTED",
            framed(
                "streams",
                "Model streams is using the decoupled. The current BLS request call doesn't support models using the "
                "decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for "
                "decoupled models.'",
            ),
            id="row 122, decoupled callee",
        ),
    ],
)
def test_what_is_wrong_with_a_call_is_an_error_in_its_response(
    server: RunningServer, call: str, code: str, text: str
) -> None:
    assert ask(server, f"answer(told({call}.exec()))") == [code, text]


def test_a_call_that_is_refused_gives_the_memory_of_its_inputs_back(server: RunningServer) -> None:
    before = slots_of(server, "caller_0_0")
    ask(
        server,
        """
        inputs = [pb_utils.Tensor(name, np.zeros(1 << 18, np.float32)) for name in ("X", "Y", "Z")]
        bad = [to("nope", "", *inputs), to("callee", "", *inputs), to("streams", "", *inputs)]
        bad.append(to("callee", "", *inputs, parameters={"n": 1 << 70}))
        answer([told(request.exec())[0] for request in bad])
        """,
    )
    wait_until(lambda: not hold_more_slots(server, before))


def test_the_callee_sees_what_the_caller_said(server: RunningServer) -> None:
    """model_api.md row 126."""
    script = """
        answer([
            request.request_id(), request.correlation_id(), request.flags(), request.timeout(),
            json.loads(request.parameters()), sorted(request.requested_output_names()),
        ])
    """
    told = ask(
        server,
        f"""
        script = {script!r}
        said = to("callee", script, outputs=["OUT", "X"], request_id="r1", correlation_id=2**64 - 1, flags=START | END,
                  timeout=5, parameters={{"b": True, "n": 2**63 - 1, "m": -2**63, "s": "x"}})
        named = to("callee", script, correlation_id="abc")
        flagged = to("callee", script)
        flagged.set_flags(END)
        answer([told(request.exec()) for request in (said, named, flagged)])
        """,
    )
    every = ["B", "OUT", "S", "X"]
    assert told == [
        ["r1", 2**64 - 1, 3, 5, {"b": True, "n": 2**63 - 1, "m": -(2**63), "s": "x"}, ["OUT", "X"]],
        ["", "abc", 0, 0, {}, every],
        ["", 0, 2, 0, {}, every],
    ]


def test_only_the_requested_outputs_arrive(server: RunningServer) -> None:
    told = ask(
        server,
        """
        script = "answer('unwanted', X)"
        response = to("callee", script, floats(1), outputs=["X"]).exec()
        answer([[t.name() for t in response.output_tensors()],
                [t.name() for t in to("callee", script, floats(1)).exec().output_tensors()]])
        """,
    )
    assert told == [["X"], ["OUT", "X"]]


def test_optional_inputs_may_be_left_out(server: RunningServer) -> None:
    script = "answer(sorted(t.name() for t in request.inputs()))"
    assert ask(server, f"answer([told(to('callee', {script!r}, *x).exec()) for x in ([], [floats(1)])])") == [
        ["IN"],
        ["IN", "X"],
    ]


def test_parameters_of_the_callees_response_arrive(server: RunningServer) -> None:
    """model_api.md row 138, for a caller."""
    told = ask(
        server,
        """
        script = "answer(0, parameters={'bool': True, 'str': 'x', 'int': 5})"
        with_them = to("callee", script).exec()
        streamed = list(to("streams", script).exec(decoupled=True))
        answer([json.loads(r.parameters()) for r in (with_them, to("callee", "answer(0)").exec(), *streamed)])
        """,
    )
    given = {"bool": True, "str": "x", "int": 5}
    assert told == [given, {}, given]


def test_a_request_may_be_executed_again(server: RunningServer) -> None:
    told = ask(server, "r = to('callee', 'answer(7)'); answer([told(r.exec()), told(r.exec()), told(r.exec())])")
    assert told == [7, 7, 7]


def test_a_request_that_was_received_may_be_executed(server: RunningServer, tmp_path: Path) -> None:
    """As on Triton: the model calls itself with it, and its other instance executes the same."""
    script = f"""
        import pathlib
        seen = pathlib.Path({str(tmp_path / "seen")!r})
        if seen.exists():
            answer(["inner", request.request_id(), json.loads(request.parameters()), X.as_numpy().tolist()])
        else:
            seen.touch()
            answer(["outer", told(request.exec())])
    """
    inputs = [tensor("IN", "BYTES", [1], [textwrap.dedent(script)]), tensor("X", "FP32", [2], [1, 2])]
    reply = server.infer("twin", inputs, id="r1", parameters={"p": "q"})
    assert json.loads(outputs_of(reply)["OUT"][0]) == ["outer", ["inner", "r1", {"p": "q"}, [1, 2]]]


@pytest.mark.parametrize("memory", ["TRITONSERVER_MEMORY_CPU", "TRITONSERVER_MEMORY_GPU"])
def test_preferred_memory_is_a_preference(server: RunningServer, memory: str) -> None:
    """model_api.md row 130 where there is no GPU: the outputs are in host memory."""
    told = ask(
        server,
        f"""
        preference = pb_utils.PreferredMemory(pb_utils.{memory}, 0)
        x = output(to("callee", "answer(0, X)", floats(1, 2), preferred_memory=preference).exec(), "X")
        answer([x.is_cpu(), x.as_numpy().tolist()])
        """,
    )
    assert told == [True, [1, 2]]


def test_a_trace_is_passed_on(server: RunningServer) -> None:
    assert ask(server, "answer(told(to('callee', 'answer(1)', trace=request.trace()).exec()))") == 1


def test_calls_are_counted_like_any_other_request(server: RunningServer) -> None:
    before = statistics(server, "third")
    ask(
        server,
        """
        failed = "returned = [Response(error=pb_utils.TritonError('e'))]"
        for script in ("answer(1)", "answer(2)", "raise ValueError()", failed):
            to("third", script).exec()
        answer(0)
        """,
    )
    after = statistics(server, "third")

    def grown(*path: str) -> int:
        old, new = before, after
        for key in path:
            old, new = old[key], new[key]
        return int(new) - int(old)  # type: ignore[call-overload]

    assert grown("execution_count") == 4
    assert grown("inference_count") == 3
    assert grown("inference_stats", "success", "count") == 3
    assert grown("inference_stats", "fail", "count") == 1


def test_calls_of_several_models_share_a_batch_with_a_client(server: RunningServer, pool: ThreadPoolExecutor) -> None:
    """A batch of the callee is complete with four requests, and would wait for an hour otherwise."""
    script = """
        inputs = [pb_utils.Tensor("IN", np.array([["x"]], dtype=object))]
        request = pb_utils.InferenceRequest(
            request_id={name!r}, model_name="batched", inputs=inputs, requested_output_names=[])
        answer(json.loads(request.exec().output_tensors()[0].as_numpy()[0, 0]))
    """
    callers = ["caller", "callee", "third"]
    futures = [pool.submit(ask, server, script.format(name=name), model=name) for name in callers]
    own = server.infer("batched", [tensor("IN", "BYTES", [1, 1], ["x"])], id="client")
    together = ["callee", "caller", "client", "third"]
    assert json.loads(outputs_of(own)["OUT"][0]) == together
    assert [future.result(30) for future in futures] == [together] * 3


def test_the_timeout_of_a_call_counts_where_the_callee_allows_it(
    server: RunningServer, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """model_api.md row 127."""
    with gates(tmp_path, 1) as (gate,):
        held = pool.submit(ask, server, f"hold({gate.path!r}); answer(1)", model="impatient")
        gate.wait_held(server)
        assert ask(server, "answer(told(to('impatient', 'answer(2)', timeout=1000).exec()))") == [
            "UNAVAILABLE",
            "Request timeout expired",
        ]
        patient = pool.submit(ask, server, "answer(told(to('impatient', 'answer(3)').exec()))")
        wait_pending(server, "impatient", 1, unless=patient)
        gate.open()
        assert (held.result(30), patient.result(30)) == (1, 3)


# ---------------------------------------------------------------------------------------------- where calls are allowed


def test_calls_are_refused_before_execute(server: RunningServer) -> None:
    """model_api.md row 41, and 3.1 for auto_complete_config."""
    reply = ask_for_reply(server, "", model="too_early")
    assert json.loads(outputs_of(reply)["OUT"][0]) == ONLY_IN_EXECUTE
    server.wait_for_log(rf"auto_complete_config is told: {re.escape(ONLY_IN_EXECUTE)}")


def test_calls_are_refused_in_finalize(tmp_path: Path) -> None:
    """model_api.md row 41."""
    write_model(tmp_path, "too_early", TOO_EARLY, CONFIG)
    with RunningServer(tmp_path) as server:
        assert ask_for_reply(server, "", model="too_early").status == 200
    assert f"finalize is told: {ONLY_IN_EXECUTE}" in server.log


def test_a_forked_child_is_refused_and_its_parent_goes_on(server: RunningServer) -> None:
    """Section 1.3."""
    told = ask(
        server,
        """
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            text = refusal(to("callee", "answer(1)").exec)
            os.write(writing, (text or "").encode())
            os._exit(0)
        os.waitpid(child, 0)
        answer([os.read(reading, 1000).decode(), told(to("callee", "answer(2)").exec())])
        """,
    )
    assert told == ["BLS is not available in a process that the model has forked", 2]


def test_async_calls_need_a_running_loop(server: RunningServer) -> None:
    """model_api.md row 124."""
    told = ask(
        server,
        """
        try:
            to("callee").async_exec()
        except RuntimeError as error:
            answer(str(error))
        """,
    )
    assert told == "no running event loop"


def test_threads_of_the_model_may_call_side_by_side(server: RunningServer) -> None:
    told = ask(
        server,
        """
        answers = {}
        def call(n):
            answers[n] = [told(to(name, f"answer({n})").exec()) for name in ("callee", "third") for _ in range(20)]
        threads = [threading.Thread(target=call, args=(n,)) for n in range(8)]
        for thread in threads: thread.start()
        own = [told(to("callee", "answer(-1)").exec()) for _ in range(20)]
        for thread in threads: thread.join()
        answer([own, sorted(answers.items())])
        """,
    )
    assert told == [[-1] * 20, [[n, [n] * 40] for n in range(8)]]


def test_a_thread_that_was_left_running_may_call(server: RunningServer, tmp_path: Path) -> None:
    with gates(tmp_path, 1) as (gate,):
        started = ask(
            server,
            f"""
            def later(hold=hold, to=to, told=told):
                hold({gate.path!r})
                print("the thread is told", told(to("callee", "answer('late')").exec()), flush=True)
            threading.Thread(target=later, daemon=True).start()
            answer("started")
            """,
        )
        assert started == "started"
        gate.wait_held(server)
    server.wait_for_log("the thread is told late")


# ---------------------------------------------------------------------------------------------- tensors


def held_slots(server: RunningServer, instance: str) -> int:
    model = instance.rpartition("_0_")[0]
    return int(metric(server, "pytriton_lite_shared_memory_slots", model, model_instance=instance))


def slots_of(server: RunningServer, *instances: str) -> dict[str, int]:
    return {instance: held_slots(server, instance) for instance in instances}


def hold_more_slots(server: RunningServer, before: dict[str, int]) -> bool:
    """Than *before*; less is what an earlier test had not given back yet."""
    return any(held_slots(server, instance) > held for instance, held in before.items())


def reserved(server: RunningServer, model: str, writer: str, instance: str = "") -> int:
    instance = instance or f"{model}_0_0"
    return int(metric(server, "pytriton_lite_shared_memory_bytes", model, model_instance=instance, writer=writer))


def assert_is_held_once(
    before: dict[tuple[str, str], int], held: dict[tuple[str, str], int], writer: tuple[str, str], size: int
) -> None:
    """By *writer* alone. An idle worker gives back meanwhile what it had reserved *before*."""
    assert size <= held[writer] <= before[writer] + size
    assert all(held[place] <= before[place] for place in before if place != writer)


def holds_more(server: RunningServer, before: dict[tuple[str, str], int]) -> bool:
    """Than *before*; less is what an earlier test had made it reserve, and what it has given back since."""
    return any(reserved(server, *place) > held for place, held in before.items())


def test_large_tensors_go_by_reference_there_and_back(
    server: RunningServer, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """64 MiB to the callee and back: only the caller, which made them, has written them anywhere."""
    places = [(name, writer) for name in ("caller", "callee") for writer in ("server", "worker")]
    before = {place: reserved(server, *place) for place in places}
    slots = slots_of(server, "caller_0_0", "callee_0_0")
    with gates(tmp_path, 1) as (gate,):
        asked = pool.submit(
            ask,
            server,
            f"""
            x = np.arange({LARGE}, dtype=np.float32)
            response = to("callee", "answer(float(X.as_numpy()[-1]), X)", pb_utils.Tensor("X", x)).exec()
            back = output(response, "X")
            hold({gate.path!r})
            answer([told(response), bool((back.as_numpy() == x).all())])
            """,
        )
        gate.wait_held(server)
        held = {place: reserved(server, *place) for place in places}
        gate.open()
        assert asked.result(60) == [LARGE - 1, True]
    assert_is_held_once(before, held, ("caller", "worker"), 64 * MIB)
    wait_until(lambda: not holds_more(server, before))
    wait_until(lambda: not hold_more_slots(server, slots))


def test_a_reply_is_passed_on_and_returned_by_reference(
    server: RunningServer, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """What the callee made goes on to a third model and out to the client, and lies in the callee's memory all the time."""
    places = [(name, writer) for name in ("caller", "callee", "third") for writer in ("server", "worker")]
    before = {place: reserved(server, *place) for place in places}
    with gates(tmp_path, 1) as (gate,):
        asked = pool.submit(
            ask_for_reply,
            server,
            f"""
            make = "answer(0, pb_utils.Tensor('X', np.full({8 * MIB}, 3, np.float32)))"
            x = output(to("callee", make).exec(), "X")
            again = output(to("third", "answer(0, X)", x).exec(), "X")
            hold({gate.path!r})
            count = told(to("third", "answer([X.shape()[0], float(X.as_numpy().sum())])", again).exec())
            del x
            returned = [Response([text("OUT", json.dumps(count)), again])]
            """,
        )
        gate.wait_held(server)
        held = {place: reserved(server, *place) for place in places}
        gate.open()
        reply = asked.result(60)
    assert_is_held_once(before, held, ("callee", "worker"), 32 * MIB)
    outputs = outputs_of(reply)
    assert json.loads(outputs["OUT"][0]) == [8 * MIB, 24 * MIB]
    assert (len(outputs["X"]), set(outputs["X"])) == (8 * MIB, {3.0})
    del reply
    wait_until(lambda: not holds_more(server, before))


@pytest.mark.parametrize("count", [1, 1024, 1025, 300_000])
def test_a_whole_response_may_be_returned_as_ones_own(server: RunningServer, count: int) -> None:
    reply = ask_for_reply(
        server,
        f"returned = [to('callee', 'answer(0, X)', pb_utils.Tensor('X', np.arange({count}, dtype='f4'))).exec()]",
    )
    assert reply.status == 200, reply.body
    assert outputs_of(reply)["X"] == list(range(count))


@pytest.mark.parametrize("count", [4, 300_000])
def test_an_input_of_ones_own_request_may_be_passed_on(server: RunningServer, count: int) -> None:
    told = ask(
        server,
        """
        script = "answer([X.shape(), float(X.as_numpy().sum())], X)"
        first = to("callee", script, X).exec()
        answer([told(first), told(to("callee", script, output(first, "X")).exec())])
        """,
        tensor("X", "FP32", [count], [2.0] * count),
    )
    assert told == [[[count], 2.0 * count]] * 2


@pytest.mark.parametrize("count", [4, 300_000])
def test_what_a_caller_writes_is_seen_by_nobody_else(server: RunningServer, count: int) -> None:
    """Arrays of a response are the caller's own: neither the callee, nor who gets the tensor next, sees the change."""
    keep = "model.kept = pb_utils.Tensor('X', np.ones({count}, np.float32)); answer(0, model.kept)"
    look = "answer([float(X.as_numpy().sum()), float(model.kept.as_numpy().sum())])"
    reply = ask_for_reply(
        server,
        f"""
        first = to("callee", {keep.format(count=count)!r}).exec()
        x = output(first, "X")
        array = x.as_numpy()
        array[:] = 99
        seen = told(to("callee", {look!r}, x).exec())
        del array
        returned = [Response([text("OUT", json.dumps(seen)), x])]
        """,
    )
    assert json.loads(outputs_of(reply)["OUT"][0]) == [count, count]
    assert set(outputs_of(reply)["X"]) == {1.0}


def test_what_a_callee_writes_into_its_input_is_not_seen_by_the_caller(server: RunningServer) -> None:
    told = ask(
        server,
        """
        x = np.zeros(300_000, np.float32)
        tensor = pb_utils.Tensor("X", x)
        script = "a = X.as_numpy(); a[:] = 7; answer(float(a.sum()), X)"
        response = to("callee", script, tensor).exec()
        answer([told(response), float(x.sum()), float(output(response, "X").as_numpy().sum())])
        """,
    )
    assert told == [7.0 * 300_000, 0.0, 0.0]


def test_tensors_of_a_response_may_be_kept(server: RunningServer) -> None:
    """Later calls, and the callee's later work, do not disturb what was kept; letting go gives the memory back."""
    before = slots_of(server, "caller_0_0", "callee_0_0")
    make = "answer(0, pb_utils.Tensor('X', np.full(100_000, {n}, np.float32)))"
    ask(
        server,
        f"""
        model.kept = [output(to("callee", {make!r}.format(n=n)).exec(), "X") for n in range(20)]
        model.arrays = [tensor.as_numpy() for tensor in model.kept[:10]]
        answer(0)
        """,
    )
    assert held_slots(server, "callee_0_0") >= 20
    for _ in range(20):
        ask(server, f"to('callee', {make.format(n=77)!r}).exec(); answer(0)")
    told = ask(
        server,
        """
        sums = [float(tensor.as_numpy().sum()) for tensor in model.kept]
        same = [model.kept[n].as_numpy() is model.arrays[n] for n in range(10)]
        del model.kept, model.arrays
        answer([sums, all(same)])
        """,
    )
    assert told == [[n * 100_000 for n in range(20)], True]
    wait_until(lambda: not hold_more_slots(server, before))


def test_strings_and_empty_tensors_go_through(server: RunningServer) -> None:
    script = "answer([t.shape() for t in request.inputs()], *request.inputs()[1:])"
    told = ask(
        server,
        f"""
        words = np.array([b"\\xff", "é".encode(), b"", b"x" * 10_000], dtype=object)
        for strings in (words, np.array([], dtype=object)):
            inputs = [pb_utils.Tensor("S", strings), pb_utils.Tensor("X", np.zeros(0, np.float32))]
            first = to("callee", {script!r}, *inputs).exec()
            second = to("callee", {script!r}, output(first, "S"), output(first, "X")).exec()
            assert told(second) == [[1], [len(strings)], [0]], told(second)
            got = output(second, "S").as_numpy()
            assert list(got) == list(strings) and got.dtype == object
            assert output(second, "X").as_numpy().shape == (0,)
        answer("as they were")
        """,
    )
    assert told == "as they were"


@pytest.mark.parametrize("count", [3, 100_000])
def test_bf16_goes_through_by_dlpack(server: RunningServer, count: int) -> None:
    """Such a tensor is made from what another framework has; here from the BF16 input of the client."""
    raw = np.arange(count, dtype=np.uint16).tobytes()
    code = textwrap.dedent(
        """
        b = pb_utils.get_input_tensor_by_name(request, "B")
        own = pb_utils.Tensor.from_dlpack("B", b)
        script = "b = request.inputs()[1]; answer([b.triton_dtype(), b.shape()], b)"
        first = to("callee", script, own).exec()
        second = to("callee", script, output(first, "B")).exec()
        answer(told(second), output(second, "B"))
        """
    ).encode()
    message = infer_message(
        "caller",
        ("IN", "BYTES", [1], struct.pack("<I", len(code)) + code),
        ("B", "BF16", [count], raw),
    )
    with grpc_channel(server) as channel:
        reply = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message, timeout=30)
    contents = {out.name: data for out, data in zip(reply.outputs, reply.raw_output_contents)}
    assert json.loads(contents["OUT"][4:]) == [14, [count]]
    assert contents["B"] == raw


def test_one_call_may_carry_a_tensor_twice_and_many_at_once(server: RunningServer) -> None:
    """The same large tensor in calls that run side by side: each callee has it while it needs it."""
    told = ask(
        server,
        """
        x = pb_utils.Tensor("X", np.ones(500_000, np.float32))
        script = "answer(float(X.as_numpy().sum()))"
        calls = [to(name, script, x).async_exec() for name in ("callee", "third") for _ in range(10)]
        del x
        answer([told(response) for response in await asyncio.gather(*calls)])
        """,
        model="coroutine",
    )
    assert told == [500_000.0] * 20


# ---------------------------------------------------------------------------------------------- decoupled callees


THREE = """
for n in range(3):
    request.get_response_sender().send(Response([text("OUT", str(n))]))
request.get_response_sender().send(flags=FINAL)
"""
TWO_AND_FINAL = """
request.get_response_sender().send(Response([text("OUT", "0")]))
request.get_response_sender().send(Response([text("OUT", "1")]), FINAL)
"""


def test_an_iterator_has_every_response_of_a_decoupled_callee(server: RunningServer) -> None:
    """model_api.md row 122: a final flag alone is a last response without outputs."""
    told = ask(
        server,
        f"""
        alone = to("streams", {THREE!r}).exec(decoupled=True)
        together = to("streams", {TWO_AND_FINAL!r}).exec(decoupled=True)
        answer([[told(r) for r in alone], [told(r) for r in together]])
        """,
    )
    assert told == [[0, 1, 2, None], [0, 1]]


def test_a_callee_in_default_mode_gives_an_iterator_of_one(server: RunningServer) -> None:
    told = ask(server, "answer([told(r) for r in to('callee', 'answer(5)').exec(decoupled=True)])")
    assert told == [5]


def test_an_iterator_ends_and_then_begins_again(server: RunningServer) -> None:
    """model_api.md row 123."""
    told = ask(
        server,
        f"""
        responses = to("streams", {THREE!r}).exec(decoupled=True)
        first = list(responses)
        try:
            next(responses)
        except StopIteration as end:
            text_of_end = str(end)
        second = list(responses)
        answer([[told(r) for r in first], text_of_end, [a is b for a, b in zip(first, second)]])
        """,
    )
    assert told == [[0, 1, 2, None], "Iteration is done for the responses.", [True] * 4]


def test_an_iterator_goes_on_after_a_break(server: RunningServer) -> None:
    told = ask(
        server,
        f"""
        responses = to("streams", {THREE!r}).exec(decoupled=True)
        for response in responses:
            first = told(response)
            break
        answer([first, [told(r) for r in responses], [told(r) for r in responses]])
        """,
    )
    assert told == [0, [1, 2, None], [0, 1, 2, None]]


def test_an_iterator_may_be_dropped_early(server: RunningServer) -> None:
    """The callee sends more than the window of unread responses all the same, and nothing is kept."""
    many = """
        for n in range(300):
            request.get_response_sender().send(Response([pb_utils.Tensor("X", np.full(5_000, n, np.float32))]))
        request.get_response_sender().send(flags=FINAL)
        print("all were sent", flush=True)
    """
    before = slots_of(server, "caller_0_0")
    assert ask(server, f"r = to('streams', {many!r}).exec(decoupled=True); next(r); del r; answer(0)") == 0
    server.wait_for_log("all were sent")
    assert ask(server, "answer(1)") == 1
    wait_until(lambda: not hold_more_slots(server, before))


def test_errors_of_a_decoupled_callee_are_elements(server: RunningServer) -> None:
    script = """
        sender = request.get_response_sender()
        sender.send(Response([text("OUT", "0")]))
        sender.send(Response(error=pb_utils.TritonError("not this one", pb_utils.TritonError.NOT_FOUND)))
        sender.send(Response([text("OUT", "2")]), FINAL)
    """
    raises = """
        request.get_response_sender().send(Response([text("OUT", "0")]))
        raise ValueError("boom")
    """
    told = ask(
        server,
        f"""
        answer([[told(r) for r in to("streams", script).exec(decoupled=True)] for script in ({script!r}, {raises!r})]
               + [[told(r) for r in to("nope").exec(decoupled=True)]])
        """,
    )
    assert told[0] == [0, ["NOT_FOUND", "not this one"], 2]
    assert told[1][0] == 0
    assert told[1][1][1].startswith(
        "Failed to process the request(s) for model 'streams_0_0', message: ValueError: boom"
    )
    assert told[2] == [["NOT_FOUND", framed("nope", "Request for unknown model: 'nope' is not found")]]


def test_a_call_returns_with_the_first_response(server: RunningServer, tmp_path: Path) -> None:
    with gates(tmp_path, 1) as (gate,):
        script = f"""
            request.get_response_sender().send(Response([text("OUT", "0")]))
            hold({gate.path!r})
            request.get_response_sender().send(Response([text("OUT", "1")]), FINAL)
        """
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(
                ask,
                server,
                f"""
                responses = to("streams", {script!r}).exec(decoupled=True)
                first = told(next(responses))
                print("has the first", flush=True)
                answer([first, *[told(r) for r in responses]])
                """,
            )
            server.wait_for_log("has the first")
            gate.wait_held(server)
            gate.open()
            assert asked.result(30) == [0, 1]


def test_cancelling_an_iterator_cancels_the_callees_request(server: RunningServer, tmp_path: Path) -> None:
    """model_api.md row 129."""
    script = """
        sender = request.get_response_sender()
        before = [request.is_cancelled(), sender.is_cancelled()]
        sender.send(Response([text("OUT", "0")]))
        while not request.is_cancelled():
            pass
        print("cancelled:", before, [request.is_cancelled(), sender.is_cancelled()], flush=True)
        sender.send(Response(error=pb_utils.TritonError("as you wish", pb_utils.TritonError.CANCELLED)), FINAL)
    """
    told = ask(
        server,
        f"""
        responses = to("streams", {script!r}).exec(decoupled=True)
        first = told(next(responses))
        responses.cancel()
        rest = [told(r) for r in responses]
        responses.cancel()
        answer([first, rest])
        """,
    )
    assert told == [0, [["CANCELLED", "as you wish"]]]
    server.wait_for_log(re.escape("cancelled: [False, False] [True, True]"))


def test_a_call_that_a_signal_handler_of_the_models_interrupts_is_cancelled(server: RunningServer) -> None:
    """As one is whose future is cancelled. The callee sends the signal, until its caller waits for it."""
    script = """
        sender = request.get_response_sender()
        while not request.is_cancelled():
            os.kill(CALLER, SIGNAL)
        print("the callee was cancelled", flush=True)
        sender.send(flags=FINAL)
    """
    told = ask(
        server,
        f"""
        import signal

        def interrupt(number, frame):
            while frame is not None and frame.f_code.co_name != "wait":
                frame = frame.f_back
            if frame is not None:
                signal.signal(number, signal.SIG_IGN)
                raise pb_utils.TritonModelException("it takes too long")

        signal.signal({signal.SIGUSR1:d}, interrupt)
        script = {script!r}.replace("CALLER, SIGNAL", f"{{os.getpid()}}, {signal.SIGUSR1:d}")
        answer(refusal(to("streams", script).exec, decoupled=True))
        """,
    )
    assert told == "it takes too long"
    server.wait_for_log("the callee was cancelled")


def test_a_caller_that_cancels_hears_what_the_callee_sends_all_the_same(server: RunningServer) -> None:
    script = """
        sender = request.get_response_sender()
        sender.send(Response([text("OUT", "0")]))
        while not request.is_cancelled():
            pass
        for value in range(1, 100):
            sender.send(Response([text("OUT", str(value))]))
        sender.send(flags=FINAL)
    """
    told = ask(
        server,
        f"""
        responses = to("streams", {script!r}).exec(decoupled=True)
        responses.cancel()
        answer([told(r) for r in responses])
        """,
    )
    assert told == [*range(100), None]


def test_a_cancelled_call_that_waits_for_its_caller_ends_with_an_error(server: RunningServer) -> None:
    """The only instance of 'caller' waits for the end of a call whose callee calls 'caller'."""
    script = """
        sender = request.get_response_sender()
        sender.send(Response([text("OUT", "0")]))
        while not request.is_cancelled():
            pass
        sender.send(Response([text("OUT", json.dumps(told(to("caller", "answer(0)").exec())))]), FINAL)
    """
    told = ask(
        server,
        f"""
        responses = to("streams", {script!r}).exec(decoupled=True)
        responses.cancel()
        answer([told(r) for r in responses])
        """,
    )
    assert "waits for itself" in str(told), told


def test_cancelling_after_the_end_does_nothing(server: RunningServer) -> None:
    told = ask(
        server,
        f"""
        responses = to("streams", {TWO_AND_FINAL!r}).exec(decoupled=True)
        values = [told(r) for r in responses]
        responses.cancel()
        answer([values, [told(r) for r in responses]])
        """,
    )
    assert told == [[0, 1], [0, 1]]


# ---------------------------------------------------------------------------------------------- coroutines


def test_calls_of_a_coroutine_run_side_by_side(server: RunningServer, tmp_path: Path) -> None:
    """model_api.md row 124: each of four calls is held until the other three have begun."""
    script = f"""
        import pathlib
        pathlib.Path({str(tmp_path)!r}, {{name!r}}).touch()
        while len(os.listdir({str(tmp_path)!r})) < 4: pass
        answer({{name!r}})
    """
    names = ["callee", "third", "twin", "impatient"]
    told = ask(
        server,
        f"""
        calls = [to(name, {script!r}.format(name=name)).async_exec() for name in {names!r}]
        answer([told(response) for response in await asyncio.gather(*calls)])
        """,
        model="coroutine",
    )
    assert told == names


def test_a_model_may_have_many_calls_open_and_no_more(server: RunningServer, tmp_path: Path) -> None:
    """One that starts calls without end hears of it, and does not fill the server; the others are answered."""
    gate = tmp_path / "open"
    os.mkfifo(gate)  # whoever reads it waits for somebody who writes, and takes no processor meanwhile from the calls
    told = ask(
        server,
        f"""
        held = asyncio.ensure_future(to("callee", "open({str(gate)!r}).close(); answer(0)").async_exec())
        calls = [held, *(asyncio.ensure_future(to("callee", "answer(0)").async_exec()) for _ in range(17_000))]
        for refused in itertools.islice(asyncio.as_completed(calls), len(calls) - {MOST_OPEN}):
            await refused  # all of them: a call that the server reads when some have been answered is not refused
        was_held = not held.done()
        open({str(gate)!r}, "w").close()
        responses = await asyncio.gather(*calls)
        refused = [response.error().message() for response in responses if response.has_error()]
        after = told(await to("callee", "answer(1)").async_exec())
        answer([was_held, len(responses), len(refused), sorted(set(refused)), after])
        """,
        model="coroutine",
    )
    text = (
        "Model callee - Error when running inference: instance 'coroutine_0_0' has 16384 calls that are not answered, which is "
        "the limit; await some before more are made"
    )
    assert told == [True, 17_001, 17_001 - MOST_OPEN, [text], 1]


def test_an_async_call_of_a_decoupled_callee_gives_an_iterator(server: RunningServer) -> None:
    told = ask(
        server,
        f"""
        responses = await to("streams", {THREE!r}).async_exec(decoupled=True)
        answer([told(r) for r in responses])
        """,
        model="coroutine",
    )
    assert told == [0, 1, 2, None]


def test_an_async_call_is_a_future_of_the_running_loop(server: RunningServer) -> None:
    told = ask(
        server,
        """
        call = to("nope").async_exec()
        answer([isinstance(call, asyncio.Future), call.get_loop() is asyncio.get_running_loop(), told(await call)[0]])
        """,
        model="coroutine",
    )
    assert told == [True, True, "NOT_FOUND"]


def test_a_blocking_call_in_a_coroutine_works(server: RunningServer) -> None:
    told = ask(
        server,
        """
        other = to("third", "answer('other')").async_exec()
        answer([told(to("callee", "answer('own')").exec()), told(await other)])
        """,
        model="coroutine",
    )
    assert told == ["own", "other"]


def test_a_call_that_asyncio_cancels_is_cancelled_at_the_callee(server: RunningServer, tmp_path: Path) -> None:
    with gates(tmp_path, 1) as (gate,):
        script = f"""
            open({str(tmp_path / "begun")!r}, "w").close()
            hold({gate.path!r})
            print("the call was cancelled:", request.is_cancelled(), flush=True)
            answer(0)
        """
        told = ask(
            server,
            f"""
            call = to("callee", {script!r}).async_exec()
            while not os.path.exists({str(tmp_path / "begun")!r}):
                await to("third", "answer(0)").async_exec()
            call.cancel()
            try:
                await call
            except asyncio.CancelledError:
                answer("cancelled")
            """,
            model="coroutine",
        )
        assert told == "cancelled"
        gate.wait_held(server)
        gate.open()
    server.wait_for_log("the call was cancelled: True")


def test_decoupled_models_call_sync_and_async(server: RunningServer) -> None:
    """model_api.md row 125."""
    sync = ask_over_stream(server, "answer(told(to('callee', 'answer(3)').exec()))", model="streams")
    assert sync == [3]
    script = f"""
        calls = [to("callee", f"answer({{n}})").async_exec() for n in range(4)]
        values = [told(response) for response in await asyncio.gather(*calls)]
        responses = await to("streams", {THREE!r}).async_exec(decoupled=True)
        answer([values, [told(r) for r in responses], told(to("third", "answer('sync')").exec())])
    """
    assert ask_over_stream(server, script, model="coroutine_streams") == [[[0, 1, 2, 3], [0, 1, 2, None], "sync"]]


def test_what_a_decoupled_callee_sends_is_passed_on_as_it_comes(server: RunningServer) -> None:
    """The iterator of one stream feeds another; large tensors are passed on and let go, one by one."""
    before = slots_of(server, "streams_0_0", "coroutine_streams_0_0")
    many = """
        for n in range(200):
            request.get_response_sender().send(
                Response([text("OUT", str(n)), pb_utils.Tensor("X", np.full(20_000, n, np.float32))]))
        request.get_response_sender().send(flags=FINAL)
    """
    script = f"""
        sender = request.get_response_sender()
        for response in await to("streams", {many!r}).async_exec(decoupled=True):
            if response.output_tensors():
                sender.send(response)
        sender.send(flags=FINAL)
    """
    assert ask_over_stream(server, script, model="coroutine_streams") == list(range(200))
    wait_until(lambda: not hold_more_slots(server, before))


# ---------------------------------------------------------------------------------------------- sequences


@pytest.mark.parametrize(("model", "sequence"), [("sequences", 42), ("named_sequences", "forty-two")])
def test_a_sequence_is_called_with_flags_and_its_id(server: RunningServer, model: str, sequence: int | str) -> None:
    script = "answer([request.correlation_id(), request.flags()])"
    told = ask(
        server,
        f"""
        answer([told(to({model!r}, {script!r}, correlation_id={sequence!r}, flags=flags).exec())
                for flags in (START, 0, END, START | END)])
        """,
    )
    assert told == [[sequence, flags] for flags in (1, 0, 2, 3)]


def test_the_rules_of_sequences_hold_for_calls(server: RunningServer) -> None:
    told = ask(
        server,
        "answer([told(to('sequences', correlation_id=99).exec()), told(to('sequences', flags=START).exec())])",
    )
    assert told == [
        [
            "INVALID_ARG",
            framed(
                "sequences",
                "inference request for sequence 99 to model 'sequences' must specify the START flag on the first request of "
                "the sequence",
            ),
        ],
        [
            "INVALID_ARG",
            framed(
                "sequences",
                "inference request to model 'sequences' must specify a non-zero or non-empty correlation ID",
            ),
        ],
    ]


# ---------------------------------------------------------------------------------------------- calls that wait for themselves


def waits_for_itself(*chain: str) -> list[str]:
    """What the last call of *chain*, instances up to the model that is called, is told."""
    callee = chain[-1]
    text = (
        f"the call waits for itself: {' -> '.join(chain)}. No instance of '{callee}' can become free before this call is "
        "answered"
    )
    return ["UNAVAILABLE", framed(callee, text)]


def test_a_model_that_calls_itself_without_a_free_instance_is_told(server: RunningServer) -> None:
    assert ask(server, "answer(told(to('caller', 'answer(1)').exec()))") == waits_for_itself("caller_0_0", "caller")


def test_a_coroutine_that_calls_itself_without_a_free_instance_is_told(server: RunningServer) -> None:
    told = ask(server, "answer(told(await to('coroutine', 'answer(1)').async_exec()))", model="coroutine")
    assert told == waits_for_itself("coroutine_0_0", "coroutine")


def test_a_model_that_calls_itself_with_a_free_instance_is_served(server: RunningServer) -> None:
    assert ask(server, "answer(told(to('twin', 'answer(2)').exec()))", model="twin") == 2


def test_execute_that_is_no_coroutine_has_one_place_whatever_its_concurrency(server: RunningServer) -> None:
    told = ask(server, "answer(told(to('no_coroutine', 'answer(1)').exec()))", model="no_coroutine")
    assert told == waits_for_itself("no_coroutine_0_0", "no_coroutine")
    calls_itself = "answer(told(to('twin_no_coroutine', 'answer(2)').exec()))"
    assert [ask(server, calls_itself, model="twin_no_coroutine") for _ in range(4)] == [2, 2, 2, 2]


def test_a_model_that_calls_itself_more_often_than_it_has_instances_is_told(server: RunningServer) -> None:
    inner = "answer(told(to('twin', 'answer(2)').exec()))"
    code, text = ask(server, f"answer(told(to('twin', {inner!r}).exec()))", model="twin")
    assert code == "UNAVAILABLE"
    assert re.search(r"the call waits for itself: (twin_0_0 -> twin_0_1|twin_0_1 -> twin_0_0) -> twin\.", text)


def test_a_circle_of_three_models_is_told_at_its_last_call(server: RunningServer) -> None:
    innermost = "answer(['third', told(to('caller', 'answer(1)').exec())])"
    middle = f"answer(['callee', told(to('third', {innermost!r}).exec())])"
    told = ask(server, f"answer(['caller', told(to('callee', {middle!r}).exec())])")
    chain = waits_for_itself("caller_0_0", "callee_0_0", "third_0_0", "caller")
    assert told == ["caller", ["callee", ["third", chain]]]


def test_two_requests_whose_calls_cross_both_end(
    server: RunningServer, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """A calls B while B calls A: the second of the two calls is refused, which lets the first one be served."""
    with gates(tmp_path, 2) as (first, second):
        a = pool.submit(ask, server, f"hold({first.path!r}); answer(told(to('callee', 'answer(1)').exec()))")
        b = pool.submit(
            ask, server, f"hold({second.path!r}); answer(told(to('caller', 'answer(2)').exec()))", model="callee"
        )
        first.wait_held(server)
        second.wait_held(server)
        first.open()
        wait_pending(server, "callee", 1, unless=a)
        second.open()
        told = a.result(30), b.result(30)
    assert told == (1, waits_for_itself("callee_0_0", "caller"))


def test_a_queued_call_is_no_circle(server: RunningServer, pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    """The callee is busy with a request that waits for nobody: the call waits, and is served."""
    with gates(tmp_path, 1) as (gate,):
        held = pool.submit(ask, server, f"hold({gate.path!r}); answer(1)", model="callee")
        gate.wait_held(server)
        asked = pool.submit(ask, server, "answer(told(to('callee', 'answer(2)').exec()))")
        wait_pending(server, "callee", 1, unless=asked)
        gate.open()
        assert (held.result(30), asked.result(30)) == (1, 2)


def test_a_sequence_that_waits_for_its_own_request_is_told(server: RunningServer) -> None:
    """The other instance is free, but a sequence stays where it began, and its requests take turns."""
    fields = "correlation_id=request.correlation_id()"
    reply = server.infer(
        "twin_sequences",
        [tensor("IN", "BYTES", [1], [f"answer(told(to('twin_sequences', 'answer(1)', {fields}).exec()))"])],
        parameters={"sequence_id": 5, "sequence_start": True},
    )
    code, text = json.loads(outputs_of(reply)["OUT"][0])
    assert code == "UNAVAILABLE"
    assert re.search(r"the call waits for itself: twin_sequences_0_\d -> twin_sequences\.", text)
    other = server.infer(
        "twin_sequences",
        [
            tensor(
                "IN",
                "BYTES",
                [1],
                ["answer(told(to('twin_sequences', 'answer(1)', correlation_id=6, flags=3).exec()))"],
            )
        ],
        parameters={"sequence_id": 7, "sequence_start": True},
    )
    assert outputs_of(other)["OUT"] == ["1"]


def test_a_call_does_not_wait_for_the_order_of_answers(server: RunningServer) -> None:
    """The answers of this model keep the order of their requests; the inner one is needed for the outer one."""
    assert ask(server, "answer(told(to('in_order', 'answer(4)').exec()))", model="in_order") == 4


# ---------------------------------------------------------------------------------------------- deaths


def test_a_callee_that_dies_is_an_error_and_the_next_call_is_served(server: RunningServer) -> None:
    """Section 3.6: BLS to a model that dies."""
    told = ask(server, "answer([told(to('mortal', s).exec()) for s in ('answer(1)', 'os._exit(7)', 'answer(2)')])")
    assert (told[0], told[2]) == (1, 2)
    assert told[1][0] == "UNAVAILABLE"
    assert told[1][1].startswith("Stub process 'mortal_0_0' is not healthy.")
    assert "exited with code 7" in told[1][1]


def test_a_callee_that_dies_between_responses_is_the_last_element(server: RunningServer) -> None:
    script = 'request.get_response_sender().send(Response([text("OUT", "0")])); os._exit(7)'
    told = ask(server, f"answer([told(r) for r in to('streams', {script!r}).exec(decoupled=True)])")
    assert told[0] == 0
    assert [element[0] for element in told[1:]] == ["UNAVAILABLE"]
    assert told[1][1].startswith("Stub process 'streams_0_0' is not healthy.")


def test_the_request_of_a_caller_that_dies_is_cancelled(
    server: RunningServer, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    with gates(tmp_path, 1) as (gate,):
        script = f"""
            hold({gate.path!r})
            end = time.monotonic() + 20
            while not request.is_cancelled() and time.monotonic() < end:
                time.sleep(0.001)
            print("the caller is gone:", request.is_cancelled(), float(X.as_numpy().sum()), flush=True)
            answer(0, X)
        """
        asked: Future[Reply] = pool.submit(
            ask_for_reply,
            server,
            f"""
            x = pb_utils.Tensor("X", np.ones(300_000, np.float32))
            threading.Thread(target=to("callee", {script!r}, x).exec, daemon=True).start()
            hold({gate.path!r})
            """,
            model="mortal",
        )
        server.wait_for_log(rf"holding {re.escape(gate.path)}.*\[mortal")
        server.wait_for_log(rf"holding {re.escape(gate.path)}.*\[callee")
        (pid,) = server.worker_pids("mortal")
        os.kill(pid, signal.SIGKILL)
        reply = asked.result(30)
        assert (reply.status, reply.error.partition(".")[0]) == (503, "Stub process 'mortal_0_0' is not healthy")
        gate.open()
    server.wait_for_log("the caller is gone: True 300000.0")
    assert ask(server, "answer(1)", model="mortal") == 1
    wait_until(lambda: held_slots(server, "mortal_0_0") == 0)
    wait_until(lambda: held_slots(server, "callee_0_0") == 0)
