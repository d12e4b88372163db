"""Make ensembles from a seed, send them the same requests on a real Triton and here, and print where the answers differ.

    python -m tests.differential.ensembles --peer-command 'tritonserver --model-repository={models} --http-port={http_port} \\
        --grpc-port={grpc_port} --metrics-port={metrics_port} --exit-on-error=false' --ensembles 60 --requests 20 --seed 1

The models of the steps add to numbers, take one or two inputs, leave out outputs, fail, repeat, batch or do not; the ensembles
are random graphs of them and of each other, and not all of them fit. Compared are, for each ensemble, whether it loads and
why not; for each request the status, the error or the outputs, shapes, bytes and parameters of every response; and behind the
requests of an ensemble how often each model was executed, and for what batches. Where a request fails, how much ran besides
is a matter of time, and is not compared.

Differences that are meant are in `tests/differential/expected.py`. Any other is printed with the request and the configuration,
and the exit code is 1. Where a model of Triton's hangs it is started again.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
from google.protobuf import json_format
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.differential.asked_peers import Peer, Sent, Server, Tally, ask
from tests.differential.expected import ENSEMBLES
from tests.harness import RunningServer, write_model

_TYPES = {"FP32": "f", "INT32": "i"}
_DIMS: tuple[tuple[int, ...], ...] = ((4,), (4,), (4,), (-1,), (-1, 4))
_BATCHES = (0, 0, 4, 8)
_TIMEOUT_S = 5

STEP_CODE = """
    import json

    import numpy as np
    import triton_python_backend_utils as pb_utils

    CODES = {13: "INVALID_ARG", 14: "NOT_FOUND", 15: "UNAVAILABLE", 16: "UNSUPPORTED"}


    class TritonPythonModel:
        def initialize(self, args):
            config = json.loads(args["model_config"])
            self.outputs = [output["name"] for output in config["output"]]
            self.kind = args["model_name"].split("_")[0]
            self.is_decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)

        def answer(self, request):
            inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            first = inputs["IN0"]
            value = int(first.flat[0]) if first.size else 0
            if value in CODES:
                code = getattr(pb_utils.TritonError, CODES[value])
                return pb_utils.InferenceResponse(error=pb_utils.TritonError("told to fail", code))
            if "IN1" in inputs and inputs["IN1"].shape == first.shape:
                first = first + inputs["IN1"]
            left_out = "OUT1" if self.kind == "drop" and value % 2 else None
            outputs = [
                pb_utils.Tensor(name, (first + 1 + at).astype(first.dtype))
                for at, name in enumerate(self.outputs)
                if name != left_out and name in request.requested_output_names()
            ]
            return pb_utils.InferenceResponse(outputs)

        def execute(self, requests):
            if not self.is_decoupled:
                return [self.answer(request) for request in requests]
            for request in requests:
                sender = request.get_response_sender()
                first = pb_utils.get_input_tensor_by_name(request, "IN0").as_numpy()
                for _ in range(int(first.flat[0]) % 4 if first.size else 0):
                    sender.send(self.answer(request))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return None
"""


@dataclass(frozen=True)
class Spec:
    """A tensor of a model."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    is_optional: bool = False

    def text(self) -> str:
        optional = " optional: true" if self.is_optional else ""
        return f'{{ name: "{self.name}" data_type: TYPE_{self.datatype} dims: {list(self.dims)}{optional} }}'


@dataclass(frozen=True)
class Model:
    """One that can be a step."""

    name: str
    batch: int
    inputs: Sequence[Spec]
    outputs: Sequence[Spec]
    is_decoupled: bool = False
    steps: str = ""
    """Of an ensemble, as in its configuration."""

    def config(self) -> str:
        lines = ['platform: "ensemble"' if self.steps else 'backend: "python"', f"max_batch_size: {self.batch}"]
        lines += [f"input {spec.text()}" for spec in self.inputs] + [f"output {spec.text()}" for spec in self.outputs]
        if self.is_decoupled and not self.steps:
            lines.append("model_transaction_policy { decoupled: true }")
        return "\n".join([*lines, self.steps])


# ---------------------------------------------------------------------------------------------- models


def step_models() -> list[Model]:
    """Of every kind one with each of a few shapes."""
    made: list[Model] = []
    for kind, inputs, outputs in (
        ("add", 1, 2),
        ("two", 2, 1),
        ("opt", 2, 1),
        ("drop", 1, 2),
        ("dec", 1, 1),
    ):
        for datatype, batch, dims in (("FP32", 0, (4,)), ("FP32", 8, (4,)), ("FP32", 0, (-1, 4)), ("INT32", 4, (-1,))):
            if kind in ("drop", "dec") and datatype == "INT32":
                continue
            shape = "x".join("n" if dim < 0 else str(dim) for dim in dims)
            made.append(
                Model(
                    f"{kind}_{datatype.lower()}_{shape}_b{batch}",
                    batch,
                    [Spec(f"IN{at}", datatype, dims, kind == "opt" and at == 1) for at in range(inputs)],
                    [Spec(f"OUT{at}", datatype, dims) for at in range(outputs)],
                    kind == "dec",
                )
            )
    return made


@dataclass
class _Graph:
    """An ensemble that is being made: its tensors so far, and those that nobody takes yet."""

    tensors: dict[str, Spec] = field(default_factory=dict)
    inputs: list[Spec] = field(default_factory=list)
    unused: dict[str, None] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    is_decoupled: bool = False

    def source(self, wanted: Spec, batch: int, rng: random.Random) -> str:
        """A tensor for an input of a step: one that there is, mostly, or an input of the ensemble."""
        fitting = [name for name, spec in self.tensors.items() if spec.datatype == wanted.datatype]
        if fitting and rng.random() < 0.75:
            name = rng.choice(fitting[-4:])
        else:
            name = f"X{len(self.inputs)}"
            given = Spec(name, wanted.datatype, wanted.dims, wanted.is_optional and rng.random() < 0.7)
            self.inputs.append(given)
            self.tensors[name] = given
        self.unused.pop(name, None)
        return name

    def add(self, model: Model, rng: random.Random) -> None:
        taken = [
            f'input_map {{ key: "{spec.name}" value: "{self.source(spec, model.batch, rng)}" }}'
            for spec in model.inputs
            if not (spec.is_optional and rng.random() < 0.3)
        ]
        given = []
        for spec in model.outputs:
            if given and rng.random() < 0.3:
                continue
            name = f"T{len(self.tensors)}"
            self.tensors[name] = Spec(name, spec.datatype, spec.dims)
            self.unused[name] = None
            given.append(f'output_map {{ key: "{spec.name}" value: "{name}" }}')
        self.steps.append(f'step {{ model_name: "{model.name}" model_version: -1 {" ".join([*taken, *given])} }}')
        self.is_decoupled |= model.is_decoupled


def make_ensemble(name: str, models: Sequence[Model], rng: random.Random) -> Model:
    graph = _Graph()
    for _ in range(rng.choice([1, 2, 2, 3, 3, 4, 5, 7])):
        graph.add(rng.choice(models), rng)
    inner = [tensor for tensor in graph.tensors if tensor not in graph.unused and not tensor.startswith("X")]
    exported = rng.sample(inner, rng.randrange(2)) if inner else []
    outputs = [graph.tensors[tensor] for tensor in (*graph.unused, *exported)]
    rng.shuffle(graph.steps)
    steps = "ensemble_scheduling {\n  " + "\n  ".join(graph.steps) + "\n}"
    return Model(name, rng.choice(_BATCHES), graph.inputs, outputs, graph.is_decoupled, steps)


def make_ensembles(count: int, models: Sequence[Model], rng: random.Random) -> list[Model]:
    """Each of steps of one batching kind, mostly, so that most of them load; later ones have earlier ones in them."""
    made: list[Model] = []
    for number in range(count):
        known = [*models, *made[-8:]]
        datatype = rng.choice(["FP32", "FP32", "INT32"])
        fitting = [model for model in known if model.inputs[0].datatype == datatype]
        if rng.random() < 0.5:
            fitting = [model for model in fitting if not model.is_decoupled] or fitting
        shapes = sorted({model.inputs[0].dims for model in fitting})
        if rng.random() < 0.7:
            dims = rng.choice(shapes)
            fitting = [model for model in fitting if model.inputs[0].dims == dims]
        if rng.random() < 0.7:
            unbatched = [model for model in fitting if not model.batch]
            fitting = rng.choice([unbatched or fitting, fitting])
        made.append(make_ensemble(f"ens{number}", fitting, rng))
    return made


def write_models(folder: Path, models: Sequence[Model]) -> None:
    for model in models:
        write_model(folder, model.name, "" if model.steps else STEP_CODE, model.config())


# ---------------------------------------------------------------------------------------------- requests


def make_request(model: Model, rng: random.Random) -> Any:
    """Valid, mostly."""
    message = service_pb2.ModelInferRequest(model_name=model.name, id=rng.choice(["", "q"]))
    batch = [rng.choice([1, 1, 1, 2, 4])] if model.batch else []
    for spec in model.inputs:
        if spec.is_optional and rng.random() < 0.4:
            continue
        shape = batch + [rng.choice([1, 1, 2, 4]) if dim < 0 else dim for dim in spec.dims]
        if rng.random() < 0.03:
            shape = rng.choice([[1, *shape], shape[1:], [*shape[:-1], 3]])
        message.inputs.add(name=spec.name, datatype=spec.datatype, shape=shape)
        count = 1
        for dim in shape:
            count *= dim
        first = rng.choice([0, 1, 2, 3, 5, 6, 7, 9, 11, 12, 13, 14, 15])
        message.raw_input_contents.append(struct.pack(f"<{count}{_TYPES[spec.datatype]}", *range(first, first + count)))
    if model.outputs and rng.random() < 0.5:
        for spec in rng.sample(list(model.outputs), rng.randrange(1, len(model.outputs) + 1)):
            message.outputs.add(name=spec.name)
    if rng.random() < 0.2:
        message.parameters["sequence_id"].int64_param = rng.choice([1, 7])
        message.parameters["sequence_start"].bool_param = rng.random() < 0.5
    return message


def ask_for(stub: Any, message: Any, *, is_stream: bool) -> str:
    """What is answered: the status, and the responses in no order."""
    try:
        if not is_stream:
            return "OK " + _response_text(stub.ModelInfer(message, timeout=_TIMEOUT_S, wait_for_ready=True))
        answers = list(stub.ModelStreamInfer(iter([message]), timeout=_TIMEOUT_S, wait_for_ready=True))
        return "OK " + " | ".join(sorted(map(_stream_text, answers)))
    except grpc.RpcError as error:
        text = _cleaned(error.details() or "")
        return text if text == _STEP_FAILED else f"{error.code().name} {text}"


_STEP_FAILED = "a step failed"
_NO_ANSWER = re.compile("a step failed|unexpected deadlock|^OK $")

# Which of several steps that fail is the first is a matter of time, and which of several inputs is named of Triton's maps.
_FAILED = re.compile(r"in ensemble .* (told to fail|unexpected shape for input .*|but got \d+ inputs for .*)")
_OF_SEVERAL = re.compile(
    r"input '[^']*' batch size does not match other inputs|unexpected shape for input '[^']*' for model .*"
)


def _cleaned(text: str) -> str:
    return _OF_SEVERAL.sub("an input does not fit", _FAILED.sub(_STEP_FAILED, text))


def _stream_text(answer: Any) -> str:
    return _cleaned(answer.error_message) or _response_text(answer.infer_response)


def _response_text(response: Any) -> str:
    contents = dict(zip((output.name for output in response.outputs), response.raw_output_contents))
    outputs = [
        f"{output.name}:{output.datatype}{list(output.shape)}={contents[output.name].hex()}"
        for output in sorted(response.outputs, key=lambda output: str(output.name))
    ]
    parameters = {key: json_format.MessageToDict(value) for key, value in sorted(response.parameters.items())}
    parameters.pop(
        "triton_final_response", None
    )  # it comes by itself, or with the last one where that is known to be it
    return f"{response.model_name} {response.id} {outputs} {json.dumps(parameters)}"


# ---------------------------------------------------------------------------------------------- what is compared


def index_of(server: Server) -> dict[str, str]:
    """State and reason of every model."""
    answer = ask(server.http, Sent("index", "POST", "/v2/repository/index"))
    return {row["name"]: f"{row.get('state', '')} {row.get('reason', '')}" for row in json.loads(answer.content)}


def counts_of(stub: Any) -> dict[str, dict[str, Any]]:
    """How often each model was executed, and for what batches."""
    answer = stub.ModelStatistics(service_pb2.ModelStatisticsRequest(), timeout=60, wait_for_ready=True)
    return {
        row.name: {
            "inferences": row.inference_count,
            "executions": row.execution_count,
            "success": row.inference_stats.success.count,
            "batches": {batch.batch_size: batch.compute_infer.count for batch in row.batch_stats},
        }
        for row in answer.model_stats
    }


def settled_counts(stub: Any) -> dict[str, dict[str, Any]]:
    """When what a request had begun has ended and is counted, as far as can be seen: Triton counts behind the answer."""
    before: dict[str, dict[str, Any]] = {}
    while (counts := counts_of(stub)) != before:
        before = counts
        time.sleep(0.1)  # a command, not a test
    return counts


def told(counts: Mapping[str, dict[str, Any]], before: Mapping[str, dict[str, Any]]) -> str:
    """What has become more."""
    more = {}
    for name, row in sorted(counts.items()):
        if row != before.get(name):
            was = before[name]
            more[name] = [row[key] - was[key] for key in ("inferences", "executions", "success")]
            grown = {size: n - was["batches"].get(size, 0) for size, n in sorted(row["batches"].items())}
            more[name].append({size: n for size, n in grown.items() if n})
    return json.dumps(more)


def compare(peer: Peer, ours: Server, ensembles: Sequence[Model], requests: int, rng: random.Random) -> Tally:
    """Ask both everything."""
    tally = Tally(peer=peer, deviations=ENSEMBLES)
    servers = (peer.server, ours)
    indexes = [index_of(server) for server in servers]
    for model in ensembles:
        tally.note(f"load {model.name}\n{model.config()}", *(index.get(model.name, "none") for index in indexes))
    served = [model for model in ensembles if all(index.get(model.name, "").startswith("READY") for index in indexes)]
    print(f"{len(served)} of {len(ensembles)} ensembles serve on both")
    with grpc.insecure_channel(servers[0].grpc) as theirs, grpc.insecure_channel(servers[1].grpc) as of_us:
        stubs = [service_pb2_grpc.GRPCInferenceServiceStub(channel) for channel in (theirs, of_us)]
        before, was_answered = [settled_counts(stub) for stub in stubs], True
        for model in served:
            for message, is_stream in _requests(model, requests, rng):
                asked = f"{model.config()}\n{message}stream: {is_stream}"
                answers = [ask_for(stub, message, is_stream=is_stream) for stub in stubs]
                if answers[0].startswith("DEADLINE_EXCEEDED") and answers[0] != answers[1]:
                    tally.ended_by.append(asked)
                    peer.restart()
                else:
                    tally.note(asked, *answers)
                after = [settled_counts(stub) for stub in stubs]
                is_answered = all(text.startswith("OK ") and not _NO_ANSWER.search(text) for text in answers)
                if is_answered and was_answered:
                    tally.note(f"counts of {asked}", *map(told, after, before))
                # What a failed request had begun may be counted late.
                before, was_answered = after, is_answered
    return tally


def _requests(model: Model, count: int, rng: random.Random) -> Iterator[tuple[Any, bool]]:
    for _ in range(count):
        yield make_request(model, rng), model.is_decoupled or rng.random() < 0.3


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the answers of ensembles on two servers.")
    parser.add_argument(
        "--peer-command", required=True, help="starts a Triton; {models}, {http_port} and so on are filled in"
    )
    parser.add_argument("--peer-port", type=int, default=18510, help="its first; two more follow (default 18510)")
    parser.add_argument("--ensembles", type=int, default=60, help="how many are made (default 60)")
    parser.add_argument("--requests", type=int, default=20, help="how many each is sent (default 20)")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the servers end with us
    rng = random.Random(given.seed)
    models = step_models()
    ensembles = make_ensembles(given.ensembles, models, rng)
    with TemporaryDirectory(prefix="differential-") as name:
        folder = Path(name) / "models"
        write_models(folder, [*models, *ensembles])
        flags = ("--exit-on-error=false",)
        with Peer(given.peer_command, folder, given.peer_port) as peer, RunningServer(folder, flags=flags) as ours:
            tally = compare(peer, Server(ours.http_url, ours.grpc_url), ensembles, given.requests, rng)
    tally.show(print)
    return 1 if tally.unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
