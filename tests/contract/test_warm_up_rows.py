"""Warm-up, end to end: what the model gets to see, what it counts, and what fails the load (model_config.md, 4.9).

Texts were asked of Triton 2.51, which dies where ``execute`` raises or its process ends.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.wire_models import wait_until
from tests.harness import Reply, RunningServer, tensor, write_model
from tests.prometheus_text import read_page

CODE = """
    import json
    import os

    import numpy as np
    import triton_python_backend_utils as pb_utils

    RESCHEDULE = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
    FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
    Response = pb_utils.InferenceResponse


    def error(text):
        return Response([], pb_utils.TritonError(text))


    class TritonPythonModel:
        def initialize(self, args):
            parameters = json.loads(args["model_config"])["parameters"]
            self.act = parameters["ACT"]["string_value"] if "ACT" in parameters else ""
            self.seen = []

        def execute(self, requests):
            self.seen.append([
                {
                    "id": request.request_id(),
                    "correlation_id": request.correlation_id(),
                    "flags": request.flags(),
                    "outputs": sorted(request.requested_output_names()),
                    "inputs": {
                        tensor.name(): [str(tensor.as_numpy().dtype), list(tensor.as_numpy().shape)]
                        for tensor in request.inputs()
                    },
                }
                for request in requests
            ])
            report = pb_utils.Tensor("OUT", np.array([json.dumps(self.seen)], dtype=object))
            scope = {**globals(), "self": self, "requests": requests, "returned": [Response([report]) for _ in requests]}
            exec(self.act, scope)
            return scope["returned"]

        def finalize(self):
            print("finalized", flush=True)
"""

TENSORS = """
    input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]
    output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
BATCHING = 'backend: "python" max_batch_size: 4' + TENSORS
SINGLE = 'backend: "python"' + TENSORS
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
IN = 'inputs { key: "IN" value { data_type: TYPE_FP32 dims: [ 4 ] %s } }'
ZEROS = IN % "zero_data: true"


def warm_up(*inputs: str, batch_size: int = 1, count: int = 0, name: str = "w") -> str:
    return f'model_warmup {{ name: "{name}" batch_size: {batch_size} count: {count} {" ".join(inputs)} }}\n'


def acting(code: str) -> str:
    """What ``execute`` of the model does beside recording; it may set ``returned``."""
    return f'parameters {{ key: "ACT" value {{ string_value: {json.dumps(code)} }} }}\n'


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("warm_up")


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RunningServer]:
    write_model(repository, "callee", CODE, SINGLE)
    with RunningServer(repository, flags=("--model-control-mode=explicit", "--load-model=callee")) as running:
        yield running


class Models:
    """Writes models into the repository of the running server, and loads them."""

    def __init__(self, server: RunningServer, repository: Path) -> None:
        self.server = server
        self.repository = repository

    def load(self, name: str, config: str, **files: bytes) -> Reply:
        """*files* lie in the model's ``warmup``."""
        folder = write_model(self.repository, name, CODE, config)
        for file, content in files.items():
            (folder / "warmup").mkdir(exist_ok=True)
            (folder / "warmup" / file).write_bytes(content)
        return self.server.post(f"/v2/repository/models/{name}/load")

    def loaded(self, name: str, config: str, **files: bytes) -> list[list[dict[str, Any]]]:
        """What the model saw when it was warmed up, by execution and request."""
        reply = self.load(name, config, **files)
        assert reply.status == 200, reply.body
        return self.seen(name)[:-1]

    def seen(self, name: str, *, shape: tuple[int, ...] = (4,), **fields: Any) -> list[list[dict[str, Any]]]:
        """What the model saw so far; the last execution is that of this question."""
        config = self.server.get(f"/v2/models/{name}/config").json
        shape = (1, *shape) if config["max_batch_size"] else shape
        reply = self.server.infer(name, [tensor("IN", "FP32", list(shape), [0.0] * 4)], **fields)
        assert reply.status == 200, reply.body
        seen: list[list[dict[str, Any]]] = json.loads(reply.json["outputs"][0]["data"][0])
        return seen

    def refused(self, name: str, config: str, **files: bytes) -> str:
        """Why the load failed: shape B without what is the same for all."""
        reply = self.load(name, config, **files)
        assert reply.status == 400, reply.body
        head, tail = f"load failed for model '{name}': version 1 is at UNAVAILABLE state: ", ";\n"
        assert reply.error.startswith(head)
        assert reply.error.endswith(tail)
        return reply.error.removeprefix(head).removesuffix(tail)

    def statistics(self, name: str) -> dict[str, Any]:
        (row,) = self.server.get(f"/v2/models/{name}/stats").json["model_stats"]
        return dict(row)


@pytest.fixture(scope="module")
def models(server: RunningServer, repository: Path) -> Models:
    return Models(server, repository)


# ---------------------------------------------------------------------------------------------- what is executed


def test_a_sample_is_executed_as_often_as_it_says_with_as_many_requests(models: Models) -> None:
    """model_config.md row 70 and scheduling.md row 144: it is counted, before any client has asked for anything."""
    assert models.load("counted", BATCHING + warm_up(ZEROS, batch_size=2, count=3)).status == 200
    row = models.statistics("counted")
    assert (row["inference_count"], row["execution_count"]) == (6, 3)
    assert row["last_inference"] > 0
    assert {name: row["inference_stats"][name]["count"] for name in ("success", "fail", "queue", "compute_infer")} == {
        "success": 6,
        "fail": 0,
        "queue": 6,
        "compute_infer": 6,
    }
    assert [(batch["batch_size"], batch["compute_infer"]["count"]) for batch in row["batch_stats"]] == [(2, 3)]
    page = read_page(models.server.get(models.server.metrics_url).body.decode())
    labels = (("model", "counted"), ("version", "1"))
    for family, value in (("count", 6), ("exec_count", 3), ("request_success", 6)):
        name = f"nv_inference_{family}"
        assert page[name].samples[name, labels] == value
    request = {
        "id": "",
        "correlation_id": 0,
        "flags": 0,
        "outputs": ["OUT"],
        "inputs": {"IN": ["float32", [1, 4]]},
    }
    assert models.seen("counted")[:-1] == [[request, request]] * 3


def test_a_sample_of_no_requests_is_skipped(models: Models) -> None:
    """model_config.md row 71."""
    assert models.loaded("skipped", BATCHING + warm_up(IN % "", batch_size=0, count=3)) == []


def test_without_a_count_a_sample_is_executed_once_and_samples_in_their_order(models: Models) -> None:
    seen = models.loaded("ordered", BATCHING + warm_up(ZEROS, batch_size=3) + warm_up(ZEROS))
    assert [len(requests) for requests in seen] == [3, 1]


def test_strings_of_zeros_are_empty(models: Models) -> None:
    """model_config.md row 73."""
    config = SINGLE.replace("TYPE_FP32", "TYPE_STRING").replace("[ 4 ]", "[ 2 ]", 1)
    say = "seen = requests[0].inputs()[0].as_numpy().tolist(); returned = [error(str(seen))]"
    given = 'inputs { key: "IN" value { data_type: TYPE_STRING dims: [ 2 ] zero_data: true } }'
    assert models.refused("strings", config + warm_up(given) + acting(say)) == (
        "Invalid argument: failed to run warmup sample 'w': [b'', b'']; "
    )


def test_a_file_is_read_from_the_beginning(models: Models) -> None:
    say = "returned = [error(str(requests[0].inputs()[0].as_numpy().view(np.uint8).tolist()))]"
    config = SINGLE + warm_up(IN % 'input_data_file: "long"') + acting(say)
    assert models.refused("file", config, long=bytes(range(20))) == (
        f"Invalid argument: failed to run warmup sample 'w': {list(range(16))}; "
    )


def test_random_data_are_others_in_each_run(models: Models) -> None:
    say = (
        "known = self.__dict__.setdefault('known', []); known.append(requests[0].inputs()[0].as_numpy().tobytes())\n"
        "if len(known) == 2: returned = [error(str(len(set(known))))]"
    )
    config = SINGLE + warm_up(IN % "random_data: true") + warm_up(IN % "random_data: false", name="v") + acting(say)
    assert models.refused("random", config) == "Invalid argument: failed to run warmup sample 'v': 2; "


def test_what_is_not_declared_is_seen_beside_the_inputs(models: Models) -> None:
    """Control tensors and states, with a leading 1 where the model batches."""
    config = BATCHING + "sequence_batching { }\n"
    start = 'inputs { key: "START" value { data_type: TYPE_INT32 dims: [ 1 ] random_data: true } }'
    state = 'inputs { key: "SI" value { data_type: TYPE_FP16 dims: [ 3, 5000 ] zero_data: true } }'
    reply = models.load("controls", config + warm_up(ZEROS, start, state))
    assert reply.status == 200, reply.body
    (request,) = models.seen("controls", parameters={"sequence_id": 1, "sequence_start": True})[0]
    assert request["inputs"] == {
        "IN": ["float32", [1, 4]],
        "START": ["int32", [1, 1]],
        "SI": ["float16", [1, 3, 5000]],
    }
    single = SINGLE + warm_up(ZEROS, start)
    assert models.loaded("one", single)[0][0]["inputs"]["START"] == ["int32", [1]]


def test_every_instance_but_a_passive_one_is_warmed(models: Models) -> None:
    groups = 'instance_group [ { kind: KIND_CPU count: 2 }, { name: "p" passive: true kind: KIND_CPU } ]\n'
    assert models.load("instances", SINGLE + groups + warm_up(ZEROS, count=2)).status == 200
    assert models.statistics("instances")["execution_count"] == 4


DECOUPLED_ACT = """
for request in requests:
    sender = request.get_response_sender()
    for _ in range(100):
        sender.send(returned[0])
    sender.send(flags=FINAL)
returned = None
"""


def test_a_decoupled_model_may_send_more_responses_than_anybody_reads_at_a_time(models: Models) -> None:
    config = BATCHING + DECOUPLED + warm_up(ZEROS, batch_size=2) + acting(DECOUPLED_ACT)
    assert models.load("decoupled", config).status == 200
    row = models.statistics("decoupled")
    assert (row["inference_count"], row["execution_count"]) == (2, 1)
    assert row["response_stats"]["99"]["success"]["count"] == 2


def test_every_error_that_a_decoupled_model_sends_is_told(models: Models) -> None:
    act = """
for number, request in enumerate(requests):
    sender = request.get_response_sender()
    for text in "ab":
        sender.send(error(text + str(number)))
    sender.send(flags=FINAL)
returned = None
"""
    assert models.refused("sends_errors", BATCHING + DECOUPLED + warm_up(ZEROS, batch_size=2) + acting(act)) == (
        "Invalid argument: failed to run warmup sample 'w': a0; b0; a1; b1; "
    )


def test_a_coroutine_of_execute_is_waited_for(models: Models) -> None:
    act = """
import asyncio
made = returned
async def later():
    await asyncio.sleep(0)
    return made if len(self.seen) < 3 else [error("third") for _ in made]
returned = later()
"""
    config = BATCHING + warm_up(ZEROS, batch_size=2, count=4) + acting(act)
    assert models.refused("coroutine", config) == ("Invalid argument: failed to run warmup sample 'w': third; third; ")


def test_a_step_of_an_iterative_model_is_enough(models: Models) -> None:
    act = "requests[0].set_release_flags(RESCHEDULE); returned = [None]"
    iterative = "sequence_batching { iterative_sequence: true max_sequence_idle_microseconds: 3600000000 }\n"
    assert models.load("iterative", SINGLE + iterative + warm_up(ZEROS, count=2) + acting(act)).status == 200
    assert models.statistics("iterative")["execution_count"] == 2
    assert models.refused("not_iterative", SINGLE + warm_up(ZEROS) + acting(act)) == (
        "Invalid argument: failed to run warmup sample 'w': Request is released with "
        "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle such a flag.; "
    )


def test_a_warm_up_may_call_another_model(models: Models) -> None:
    act = """
call = pb_utils.InferenceRequest(model_name="callee", requested_output_names=["OUT"], inputs=requests[0].inputs())
answer = call.exec()
returned = [Response([pb_utils.get_output_tensor_by_name(answer, "OUT")])]
"""
    before = models.statistics("callee")["inference_count"]
    assert models.load("caller", SINGLE + warm_up(ZEROS) + acting(act)).status == 200
    assert models.statistics("callee")["inference_count"] == before + 1


# ---------------------------------------------------------------------------------------------- what fails the load

NO_ID = "[request id: <id_unknown>] "


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        pytest.param(
            warm_up(IN % 'input_data_file: "short"'),
            f"{NO_ID}warmup setting expects 16 bytes, but the data provided from shortonly has 3 bytes",
            id="model_config.md row 74",
        ),
        pytest.param(
            warm_up(IN.replace("[ 4 ]", "[ -1 ]") % "zero_data: true"),
            "warmup setting expects all variable-size dimensions are specified for input 'IN'",
            id="a dim of -1",
        ),
        pytest.param(
            warm_up(IN % ""), f"{NO_ID}warmup setting expects input 'IN' to have input_data_type set", id="no data"
        ),
        pytest.param(
            warm_up("inputs { }"), f"{NO_ID}warmup setting expects input '' to have input_data_type set", id="no name"
        ),
        pytest.param(
            warm_up(),
            f"{NO_ID}expected 1 inputs but got 0 inputs for model 'refused'. Got input(s) [], but missing required "
            "input(s) ['IN']. Please provide all required input(s).",
            id="missing input",
        ),
        pytest.param(
            warm_up(ZEROS.replace("FP32", "INT32")),
            f"{NO_ID}inference input 'IN' data-type is 'INT32', but model 'refused' expects 'FP32'",
            id="another type",
        ),
        pytest.param(
            warm_up(ZEROS, name="good") + warm_up(ZEROS.replace("[ 4 ]", "[ 5 ]")),
            f"{NO_ID}unexpected shape for input 'IN' for model 'refused'. Expected [4], got [5]. ",
            id="another shape, in the second sample",
        ),
        pytest.param(
            warm_up(ZEROS, batch_size=2),
            "failed to run warmup sample 'w': batch size 2 for 'refused_0', max allowed is 0; batch size 2 for "
            "'refused_0', max allowed is 0; ",
            id="more requests than the model takes",
        ),
        pytest.param(
            warm_up(ZEROS, batch_size=1_000_000),
            "warmup sample 'w' for model 'refused' has 1000000 requests, expected at most 16384",
            id="a million requests",
        ),
    ],
)
def test_a_sample_that_is_no_request_for_the_model_fails_the_load(models: Models, samples: str, text: str) -> None:
    """model_config.md rows 74 and 75."""
    assert models.refused("refused", SINGLE + samples, short=b"123") == f"Invalid argument: {text}"


def test_a_file_that_is_not_there_fails_the_load(models: Models) -> None:
    path = models.repository / "no_file" / "warmup" / "nope"
    assert models.refused("no_file", SINGLE + warm_up(IN % 'input_data_file: "nope"')) == (
        f"Internal: failed to open text file for read {path}: No such file or directory"
    )


def test_an_error_response_fails_the_load_and_the_model_may_finalize(models: Models) -> None:
    """model_config.md row 72; the samples behind it are not executed."""
    act = "returned = [returned[0], *(error(f'bad {n}') for n, _ in enumerate(requests[1:], 1))]; print('acted', flush=True)"
    config = BATCHING + warm_up(ZEROS, batch_size=3, count=2, name="w x") + warm_up(ZEROS) + acting(act)
    assert models.refused("answers_errors", config) == (
        "Invalid argument: failed to run warmup sample 'w x': bad 1; bad 2; "
    )
    models.server.wait_for_log(r"finalized.*\[answers_errors:1")
    assert models.server.log.count("acted") == 1
    wait_until(lambda: models.server.worker_pids("answers_errors_0") == [])


def test_an_execute_that_raises_fails_the_load(models: Models) -> None:
    text = models.refused("raises", BATCHING + warm_up(ZEROS, batch_size=2) + acting("raise ValueError('boom')"))
    one = "Failed to process the request(s) for model 'raises_0', message: ValueError: boom\n\nAt:\n"
    assert text.startswith(f"Invalid argument: failed to run warmup sample 'w': {one}")
    assert text.count(one) == 2


def test_a_list_of_another_length_fails_the_load(models: Models) -> None:
    one = (
        "Failed to process the request(s) for model 'short_0', message: Number of InferenceResponse objects do not match "
        "the number of InferenceRequest objects. InferenceRequest(s) size is:2, and InferenceResponse(s) size is:1\n; "
    )
    config = BATCHING + warm_up(ZEROS, batch_size=2) + acting("returned = returned[:1]")
    assert models.refused("short", config) == f"Invalid argument: failed to run warmup sample 'w': {one * 2}"


def test_a_failed_warm_up_leaves_the_old_generation_serving(models: Models) -> None:
    assert models.load("reloaded", SINGLE).status == 200
    models.refused("reloaded", SINGLE + warm_up(ZEROS) + acting("returned = [error('no')]"))
    assert len(models.seen("reloaded")) == 1


# ---------------------------------------------------------------------------------------------- a worker that dies later


def test_a_worker_that_takes_the_place_of_a_dead_one_is_warmed_and_nobody_counts_it(models: Models) -> None:
    assert len(models.loaded("restarted", SINGLE + warm_up(ZEROS, count=2))) == 2
    (pid,) = models.server.worker_pids("restarted_0")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: pid not in models.server.worker_pids("restarted_0"))
    wait_until(lambda: models.server.get("/v2/models/restarted/ready").status == 200)
    assert len(models.seen("restarted")) == 3, "two of the warm-up, and this one"
    assert models.statistics("restarted")["execution_count"] == 4, "two of the load, and two questions"
