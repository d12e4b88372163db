"""Ensembles end to end: rows of scheduling.md, section 12. Step models run scripts that requests bring (`ensemble_models`)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException, shared_memory

from tests.contract.ensemble_models import DECOUPLED, write_ensemble, write_step_model
from tests.contract.scripted_model import Gate
from tests.contract.wire_models import grpc_channel, metric, statistics, wait_until
from tests.harness import Reply, RunningServer, tensor

LARGE = 1 << 18
"""Elements of FP32: 1 MiB, more than travels in a message."""


def write_models(repository: Path) -> None:
    for name in ("a", "b"):
        write_step_model(repository, name)
    write_step_model(repository, "batches", "max_batch_size: 4")
    write_step_model(repository, "two", inputs="IN0:FP32:4 IN1:FP32:4")
    write_step_model(repository, "optional", inputs="IN0:FP32:4 IN1?:FP32:4")
    write_step_model(repository, "whole", inputs="IN0:FP32:-1,4", outputs="OUT0:FP32:-1,4")
    write_step_model(repository, "decoupled", DECOUPLED)
    write_step_model(repository, "decoupled_too", DECOUPLED)
    write_step_model(repository, "narrow", "dynamic_batching { default_queue_policy { max_queue_size: 1 } }")
    write_step_model(repository, "i32", inputs="IN0:INT32:4", outputs="OUT0:INT32:4")
    write_step_model(repository, "three", inputs="IN0:FP32:3", outputs="OUT0:FP32:3")
    for name in ("large_a", "large_b"):
        write_step_model(repository, name, inputs="IN0:FP32:-1", outputs="OUT0:FP32:-1")
    write_step_model(repository, "caller", outputs="OUT0:FP32:4")
    write_step_model(repository, "many", "instance_group { count: 2 kind: KIND_CPU }", outputs="OUT0:FP32:4")
    labelled = write_step_model(repository, "labelled", outputs="OUT0:FP32:4")
    config = labelled / "config.pbtxt"
    config.write_text(config.read_text().replace('"OUT0"', '"OUT0" label_filename: "labels.txt"'))
    (labelled / "labels.txt").write_text("p\nq\nr\ns\n")


def write_ensembles(repository: Path) -> None:
    def ensemble(name: str, *steps: tuple[str, str, str], **fields: str) -> None:
        write_ensemble(repository, name, *steps, **fields)  # type: ignore[arg-type]

    for name, model, more in (("reshaped", "a", ""), ("reshaped_batch", "batches", "max_batch_size: 4")):
        ensemble(name, (model, "IN0=X", "OUT0=Y"), inputs="", outputs="", more=RESHAPED + more)
    ensemble("one_step", ("a", "IN0=X", "OUT0=Y"))
    ensemble("chain", ("a", "IN0=X", "OUT0=T"), ("b", "IN0=T", "OUT0=Y"))
    ensemble("exports", ("a", "IN0=X", "OUT0=T"), ("b", "IN0=T", "OUT0=Y"), outputs="Y:FP32:4 T:FP32:4")
    ensemble("into_optional", ("a", "IN0=X", "OUT0=T OUT1=U"), ("optional", "IN0=T IN1=U", "OUT0=Y"))
    ensemble("into_required", ("a", "IN0=X", "OUT0=T OUT1=U"), ("two", "IN0=T IN1=U", "OUT0=Y"))
    ensemble("leaves_out", ("optional", "IN0=X IN1=W", "OUT0=Y"), inputs="X:FP32:4 W?:FP32:4")
    ensemble("batch_single", ("batches", "IN0=X", "OUT0=T"), ("a", "IN0=T", "OUT0=Y"), more="max_batch_size: 4")
    ensemble("batch_whole", ("whole", "IN0=X", "OUT0=Y"), more="max_batch_size: 4")
    ensemble("single_batch", ("batches", "IN0=X", "OUT0=Y"))
    ensemble("streams", ("decoupled", "IN0=X", "OUT0=T"), ("a", "IN0=T", "OUT0=Y"))
    ensemble("streams_once", ("decoupled", "IN0=X", "OUT0=Y"))
    ensemble("streams_again", ("decoupled", "IN0=X", "OUT0=T"), ("decoupled", "IN0=T", "OUT0=Y"))
    ensemble("streams_inside", ("decoupled", "IN0=X", "OUT0=T"), ("streams_once", "X=T", "Y=Y"))
    ensemble("streams_on", ("decoupled", "IN0=X", "OUT0=T"), ("decoupled_too", "IN0=T", "OUT0=Y"))
    ensemble("streams_back", ("decoupled_too", "IN0=X", "OUT0=T"), ("decoupled", "IN0=T", "OUT0=Y"))
    ensemble("streams_to_caller", ("decoupled", "IN0=X", "OUT0=T"), ("caller", "IN0=T", "OUT0=Y"))
    ensemble(
        "streams_pairs", ("decoupled", "IN0=X", "OUT0=T"), ("a", "IN0=X", "OUT0=U"), ("two", "IN0=T IN1=U", "OUT0=Y")
    )
    ensemble("labels_of", ("labelled", "IN0=X", "OUT0=Y"))
    ensemble("nested", ("exports", "X=X", "Y=T"), ("labels_of", "X=T", "Y=Y"))
    ensemble("queued", ("narrow", "IN0=X", "OUT0=Y"))
    ensemble("parallel", ("a", "IN0=X", "OUT0=T"), ("b", "IN0=X", "OUT0=U"), ("two", "IN0=T IN1=U", "OUT0=Y"))
    ensemble(
        "limited",
        ("decoupled", "IN0=X", "OUT0=T"),
        ("narrow", "IN0=T", "OUT0=Y"),
        scheduling="max_inflight_requests: 1",
    )
    ensemble(
        "large",
        ("large_a", "IN0=X", "OUT0=T"),
        ("large_b", "IN0=T", "OUT0=Y"),
        inputs="X:FP32:-1",
        outputs="Y:FP32:-1",
    )
    ensemble("only_caller", ("caller", "IN0=X", "OUT0=Y"))
    ensemble("one_caller", ("caller", "IN0=X", "OUT0=Y"), scheduling="max_inflight_requests: 1")
    ensemble("many_callers", ("many", "IN0=X", "OUT0=Y"))
    ensemble("calls_itself", ("a", "IN0=X", "OUT0=T"), ("caller", "IN0=T", "OUT0=Y"))


BAD: dict[str, tuple[list[tuple[str, str, str]], dict[str, str], str]] = {
    "row 115 larger batches": (
        [("batches", "IN0=X", "OUT0=Y")],
        {"more": "max_batch_size: 8"},
        "ensemble {e} allows maximum batch size 8, but it contains model batches which only allows maximum batch size to be 4",
    ),
    "row 116 two data types": (
        [("a", "IN0=X", "OUT0=T"), ("i32", "IN0=T", "OUT0=Y")],
        {"outputs": "Y:INT32:4"},
        "in ensemble {e}, ensemble tensor T: inconsistent data type: TYPE_FP32 is inferred from model a while TYPE_INT32 is "
        "inferred from model i32",
    ),
    "row 117 a required input": (
        [("two", "IN0=X", "OUT0=Y")],
        {},
        "in ensemble {e}, input IN1 in model two is not mapped to any ensemble tensors",
    ),
    "row 120 two decoupled models": (
        [("decoupled", "IN0=X", "OUT0=T"), ("decoupled_too", "IN0=X", "OUT0=U"), ("two", "IN0=T IN1=U", "OUT0=Y")],
        {},
        "in ensemble {e}, step of model '{e}' receives inputs originated from different decoupled models",
    ),
    "row 151 an unknown input": (
        [("a", "IN0=X ZZ=X", "OUT0=Y")],
        {},
        "in ensemble {e}, ensemble tensor X is mapping to non-existing input ZZ in model a",
    ),
    "row 151 an unknown output": (
        [("a", "IN0=X", "OUT0=Y NOPE=Z")],
        {"outputs": "Y:FP32:4 Z:FP32:4"},
        "in ensemble {e}, ensemble tensor Z is mapped from non-existing output NOPE in model a",
    ),
    "row 152 two shapes": (
        [("batches", "IN0=X", "OUT0=T"), ("three", "IN0=T", "OUT0=Y")],
        {"more": "max_batch_size: 4", "outputs": "Y:FP32:3"},
        "in ensemble {e}, ensemble tensor T: inconsistent shape: [-1,4] is inferred from model batches while [3] is inferred "
        "from model three",
    ),
    "row 153 the type of the ensemble's output": (
        [("a", "IN0=X", "OUT0=Y")],
        {"outputs": "Y:INT32:4"},
        "in ensemble {e}, ensemble tensor Y: inconsistent data type: TYPE_INT32 is inferred from model {e} while TYPE_FP32 is "
        "inferred from model a",
    ),
}


RESHAPED = """
    input { name: "X" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: [ 4 ] } }
    output { name: "Y" data_type: TYPE_FP32 dims: [ 2, 1, 2 ] reshape { shape: [ 4 ] } }
"""
"""Clients see other dimensions than the model."""


def bad_name(at: int) -> str:
    return f"bad{at}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("ensembles")
    write_models(repository)
    write_ensembles(repository)
    good = sorted(path.name for path in repository.iterdir())
    for at, (steps, fields, _) in enumerate(BAD.values()):
        write_ensemble(repository, bad_name(at), *steps, **fields)  # type: ignore[arg-type]
    flags = ["--allow-client-shm=true", "--model-control-mode=explicit", *(f"--load-model={name}" for name in good)]
    with RunningServer(repository, flags=tuple(flags)) as running:
        yield running


def x(*shape: int, value: float = 0) -> dict[str, Any]:
    shape = shape or (4,)
    return tensor("X", "FP32", list(shape), [value] * int(np.prod(shape)))


def ask(
    server: RunningServer, ensemble: str, given: dict[str, Any] | None = None, *outputs: str, **fields: Any
) -> Reply:
    """*fields* that are scripts go by the names of the models."""
    scripts = {name: fields.pop(name) for name in list(fields) if isinstance(fields[name], str) and name != "id"}
    parameters = {**fields.pop("parameters", {}), **scripts}
    if outputs:
        fields["outputs"] = [{"name": name} for name in outputs]
    if parameters:
        fields["parameters"] = parameters
    return server.infer(ensemble, [given or x()], **fields)


def values(reply: Reply) -> dict[str, float]:
    """The first element of each output."""
    assert reply.status == 200, reply.body
    return {output["name"]: output["data"][0] for output in reply.json["outputs"]}


def error(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.error


def counts(server: RunningServer, *models: str) -> list[int]:
    return [statistics(server, model)["inference_stats"]["success"]["count"] for model in models]


# ---------------------------------------------------------------------------------------------- what runs


def test_row_104_a_chain_of_two_is_computed_and_counted(server: RunningServer) -> None:
    before = counts(server, "chain", "a", "b")
    assert values(ask(server, "chain")) == {"Y": 2}
    assert counts(server, "chain", "a", "b") == [count + 1 for count in before]


def test_row_105_a_step_of_which_nothing_is_wanted_does_not_run(server: RunningServer) -> None:
    before = counts(server, "b")
    assert values(ask(server, "exports", None, "T")) == {"T": 1}
    assert counts(server, "b") == before


def test_every_output_has_the_place_that_the_configuration_gives_it(server: RunningServer) -> None:
    assert list(values(ask(server, "exports"))) == ["Y", "T"]


def test_row_106_what_a_request_says_is_seen_by_every_step(server: RunningServer) -> None:
    with Gate() as first, Gate() as second, ThreadPoolExecutor(1) as pool:
        scripts = {
            name: f"tell({at.port}, seen(request))\nreturn plus(request, 1)" for name, at in zip("ab", (first, second))
        }
        parameters = {"sequence_id": 5, "sequence_start": True, "priority": 2, "timeout": 7, "custom": "c", **scripts}
        sent = pool.submit(ask, server, "chain", id="it", parameters=parameters)
        told = [first.told(), second.told()]
        assert sent.result().status == 200
    for one in told:
        assert one == {
            "id": "it",
            "sequence": 5,
            "flags": 1,
            "timeout": 7,
            "parameters": {"custom": "c", **scripts},
            "outputs": ["OUT0"],  # and not OUT1, which is not mapped
            "inputs": {"IN0": [4]},
        }


def test_row_107_a_response_says_of_what_sequence_it_is(server: RunningServer) -> None:
    assert ask(server, "chain").json["parameters"] == {"sequence_id": 0, "sequence_start": False, "sequence_end": False}


@pytest.mark.parametrize("sequence_id", [5, "five"])
def test_a_response_names_the_sequence_of_its_request(server: RunningServer, sequence_id: int | str) -> None:
    reply = ask(server, "chain", parameters={"sequence_id": sequence_id, "sequence_end": True})
    assert reply.json["parameters"] == {"sequence_id": sequence_id, "sequence_start": False, "sequence_end": True}


SAYS = "return Response(plus(request, 1).output_tensors(), parameters={})"


def test_a_step_can_say_something_else_of_the_sequence_to_those_after_it(server: RunningServer) -> None:
    with Gate() as gate, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(
            ask,
            server,
            "chain",
            parameters={"sequence_id": 5, "sequence_start": True},
            a=SAYS.format({"sequence_id": "six", "sequence_end": True, "other": 1}),
            b=f"tell({gate.port}, seen(request))\nreturn plus(request, 1)",
        )
        told = gate.told()
        reply = sent.result()
    assert (told["sequence"], told["flags"]) == ("six", 2)
    assert reply.json["parameters"] == {"sequence_id": "six", "sequence_start": False, "sequence_end": True}


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (
            {"sequence_id": True},
            "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING",
        ),
        ({"sequence_start": 1}, "expect parameter 'sequence_start' to be TRITONSERVER_PARAMETER_BOOL"),
        ({"sequence_end": "yes"}, "expect parameter 'sequence_end' to be TRITONSERVER_PARAMETER_BOOL"),
    ],
)
def test_what_a_step_says_of_the_sequence_must_have_the_right_kind(
    server: RunningServer, parameters: dict[str, Any], text: str
) -> None:
    assert error(ask(server, "chain", a=SAYS.format(parameters))) == (400, f"in ensemble 'chain', {text}")


def test_steps_that_need_nothing_of_each_other_run_side_by_side(server: RunningServer) -> None:
    with Gate() as first, Gate() as second, ThreadPoolExecutor(1) as pool:
        scripts = {name: f"gate({at.port})\nreturn plus(request, 1)" for name, at in zip("ab", (first, second))}
        sent = pool.submit(ask, server, "parallel", **scripts)
        second.wait()
        first.wait()  # both are there at the same time
        first.open()
        second.open()
        assert values(sent.result()) == {"Y": 2}


def test_an_ensemble_within_an_ensemble(server: RunningServer) -> None:
    assert values(ask(server, "nested")) == {"Y": 3}
    failed = ask(server, "nested", id="n", b="return error('no', pb_utils.TritonError.NOT_FOUND)")
    assert error(failed) == (404, "in ensemble 'nested', in ensemble 'exports', no")


def test_labels_are_those_of_the_composing_model(server: RunningServer) -> None:
    for ensemble in ("labels_of", "nested"):
        given = tensor("X", "FP32", [4], [0, 1, 2, 3])
        outputs = [{"name": "Y", "parameters": {"classification": 1}}]
        reply = server.infer(ensemble, [given], outputs=outputs)
        assert reply.json["outputs"][0]["data"][0].endswith(":3:s")


# ---------------------------------------------------------------------------------------------- errors


def test_row_108_an_error_that_a_step_returns_keeps_its_code(server: RunningServer) -> None:
    reply = ask(server, "chain", a="return error('a bad thing', pb_utils.TritonError.INVALID_ARG)")
    assert error(reply) == (400, "in ensemble 'chain', a bad thing")


def test_row_109_an_exception_in_a_step_is_told_with_the_ensembles_name(server: RunningServer) -> None:
    status, text = error(ask(server, "chain", b="raise ValueError('boom')"))
    assert status == 500
    assert text.startswith(
        "in ensemble 'chain', Failed to process the request(s) for model 'b_0', message: ValueError: boom"
    )


ONLY_ONE = "return Response([output for output in plus(request, 1).output_tensors() if output.name() == '{}'])"


def test_row_110_an_output_that_a_step_leaves_out_is_absent(server: RunningServer) -> None:
    assert values(ask(server, "exports", b="return Response([])")) == {"T": 1}
    assert values(ask(server, "one_step", a="return Response([])")) == {}


def test_row_111_an_optional_input_that_a_step_leaves_out_is_absent(server: RunningServer) -> None:
    assert values(ask(server, "into_optional", a=ONLY_ONE.format("OUT0"))) == {"Y": 2}


def test_an_optional_input_of_the_ensemble_may_be_left_out(server: RunningServer) -> None:
    assert values(ask(server, "leaves_out")) == {"Y": 1}


def test_a_required_input_that_a_step_leaves_out_fails_the_step_that_needs_it(server: RunningServer) -> None:
    reply = ask(server, "into_required", id="z", a=ONLY_ONE.format("OUT0"))
    assert error(reply) == (
        400,
        "in ensemble 'into_required', [request id: z] expected 2 inputs but got 1 inputs for model 'two'. Got input(s) "
        "['IN0'], but missing required input(s) ['IN1']. Please provide all required input(s).",
    )


def test_the_first_error_is_told_when_the_steps_that_run_have_ended(server: RunningServer) -> None:
    with Gate() as gate, ThreadPoolExecutor(1) as pool:
        before = counts(server, "b", "two")
        (first_before,) = counts(server, "a")
        sent = pool.submit(
            ask,
            server,
            "parallel",
            a="return error('first')",
            b=f"gate({gate.port})\nreturn error('second')",
        )
        gate.wait()
        wait_until(lambda: counts(server, "a") == [first_before + 1])
        assert not sent.done()
        gate.open()
        assert error(sent.result()) == (500, "in ensemble 'parallel', first")
    assert counts(server, "b", "two") == [before[0] + 1, before[1]]


def test_row_121_a_failure_is_counted_once(server: RunningServer) -> None:
    """metrics.md counts two for it in 2.51."""
    name = "nv_inference_request_failure"
    before = metric(server, name, "chain", reason="OTHER")
    assert ask(server, "chain", b="raise ValueError").status == 500
    assert metric(server, name, "chain", reason="OTHER") == before + 1
    assert metric(server, name, "chain", reason="BACKEND") == 0


def test_row_123_a_step_whose_queue_is_full(server: RunningServer) -> None:
    with Gate() as gate, ThreadPoolExecutor(2) as pool:
        held = pool.submit(ask, server, "queued", narrow=f"gate({gate.port})\nreturn plus(request, 1)")
        gate.wait()
        waits = pool.submit(ask, server, "queued")
        wait_until(lambda: metric(server, "nv_inference_pending_request_count", "narrow") == 1)
        assert error(ask(server, "queued", id="e")) == (
            503,
            "in ensemble 'queued', [request id: e] Exceeds maximum queue size",
        )
        gate.open()
        assert (held.result().status, waits.result().status) == (200, 200)


def test_the_times_of_an_ensemble_are_the_sums_of_its_steps(server: RunningServer) -> None:
    def times(model: str) -> list[int]:
        stats = statistics(server, model)["inference_stats"]
        return [stats[name]["ns"] for name in ("compute_input", "compute_infer", "compute_output")]

    def grown(before: dict[str, list[int]], model: str) -> list[int]:
        return [after - earlier for after, earlier in zip(times(model), before[model])]

    before = {model: times(model) for model in ("chain", "a", "b")}
    executions = statistics(server, "chain")["execution_count"]
    assert ask(server, "chain").status == 200
    sums = [sum(pair) for pair in zip(grown(before, "a"), grown(before, "b"))]
    assert grown(before, "chain") == sums
    row = statistics(server, "chain")
    assert row["execution_count"] == executions + 1
    assert row["inference_stats"]["queue"]["ns"] == 0


# ---------------------------------------------------------------------------------------------- batches


def test_row_112_a_batch_of_one_loses_its_dimension_for_a_model_that_does_not_batch(server: RunningServer) -> None:
    reply = ask(server, "batch_single", x(1, 4))
    assert (values(reply), reply.json["outputs"][0]["shape"]) == ({"Y": 2}, [1, 4])


def test_row_113_a_batch_of_two_does_not_fit_a_model_that_does_not_batch(server: RunningServer) -> None:
    assert error(ask(server, "batch_single", x(2, 4), id="q")) == (
        400,
        "in ensemble 'batch_single', [request id: q] unexpected shape for input 'IN0' for model 'a'. Expected [4], got [2,4]. ",
    )


def test_row_114_a_model_that_does_not_batch_may_take_the_whole_batch(server: RunningServer) -> None:
    reply = ask(server, "batch_whole", x(2, 4))
    assert (values(reply), reply.json["outputs"][0]["shape"]) == ({"Y": 1}, [2, 4])


def test_a_batch_of_one_is_made_for_a_model_that_batches(server: RunningServer) -> None:
    reply = ask(server, "single_batch")
    assert (values(reply), reply.json["outputs"][0]["shape"]) == ({"Y": 1}, [4])


@pytest.mark.parametrize(("ensemble", "model", "batch"), [("reshaped", "a", []), ("reshaped_batch", "batches", [2])])
def test_clients_see_other_dimensions_than_the_steps(
    server: RunningServer, ensemble: str, model: str, batch: list[int]
) -> None:
    """As a Triton 2.51 does."""
    look = "return Response([pb_utils.Tensor('OUT0', request.inputs()[0].as_numpy() * 2)])"
    shapes = "assert seen(request)['inputs'] == {'IN0': %r}" % [*batch, 4]
    numbers = list(range(4 * max(batch or [1])))
    reply = ask(server, ensemble, tensor("X", "FP32", [*batch, 2, 2], numbers), **{model: f"{shapes}\n{look}"})
    assert reply.status == 200, reply.body
    (output,) = reply.json["outputs"]
    assert (output["shape"], output["data"]) == ([*batch, 2, 1, 2], [2 * number for number in numbers])


@pytest.mark.parametrize(
    ("ensemble", "given", "expected"), [("reshaped", [4], "[2,2]"), ("reshaped_batch", [1, 4], "[-1,2,2]")]
)
def test_clients_have_to_send_the_dimensions_of_the_ensemble(
    server: RunningServer, ensemble: str, given: list[int], expected: str
) -> None:
    status, text = error(ask(server, ensemble, x(*given)))
    shape = ",".join(map(str, given))
    assert status == 400
    assert f"unexpected shape for input 'X' for model '{ensemble}'. Expected {expected}, got [{shape}]. " in text


# ---------------------------------------------------------------------------------------------- loading


@pytest.mark.parametrize("at", range(len(BAD)), ids=list(BAD))
def test_an_ensemble_that_does_not_fit_its_models_is_not_loaded(server: RunningServer, at: int) -> None:
    """Rows 115 to 117, 120 and 151 to 153: the index shows its name alone."""
    name = bad_name(at)
    text = list(BAD.values())[at][2].format(e=name)
    reply = server.post(f"/v2/repository/models/{name}/load")
    assert error(reply) == (400, f"load failed for model '{name}': {text}\n")
    index = server.post("/v2/repository/index").json
    assert [row for row in index if row["name"] == name] == [{"name": name}]


# ---------------------------------------------------------------------------------------------- decoupled


class Streamed:
    """The messages of one request on a stream of its own."""

    def __init__(self, server: RunningServer, ensemble: str, **scripts: str) -> None:
        self._channel = grpc_channel(server)
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        message = service_pb2.ModelInferRequest(model_name=ensemble, id="s")
        message.inputs.add(name="X", datatype="FP32", shape=[4])
        message.raw_input_contents.append(np.zeros(4, np.float32).tobytes())
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        for name, script in scripts.items():
            message.parameters[name].string_param = script
        self.call = stub.ModelStreamInfer(iter([message]), timeout=30)

    def __enter__(self) -> Streamed:
        return self

    def __exit__(self, *_: object) -> None:
        self.call.cancel()
        self._channel.close()

    def next(self) -> tuple[float | str | None, bool]:
        """(the first element, an error, or None for no output; whether it is the last)."""
        message = next(self.call)
        if message.error_message:
            return message.error_message, True
        response = message.infer_response
        is_final = response.parameters["triton_final_response"].bool_param
        return np.frombuffer(response.raw_output_contents[0], np.float32)[0] if response.outputs else None, is_final

    def all(self) -> list[tuple[float | str | None, bool]]:
        found = [self.next()]
        while not found[-1][1]:
            found.append(self.next())
        return found


def streamed(server: RunningServer, ensemble: str, **scripts: str) -> list[tuple[float | str | None, bool]]:
    with Streamed(server, ensemble, **scripts) as stream:
        return stream.all()


SENDS = "sender = request.get_response_sender()\n"


def test_row_118_every_response_of_a_decoupled_step_flows_through_the_rest(server: RunningServer) -> None:
    messages = streamed(server, "streams")
    assert sorted(value for value, _ in messages if value is not None) == [2, 12, 22]
    assert [is_final for _, is_final in messages][-1] is True
    config = server.get("/v2/models/streams/config").json
    assert config["model_transaction_policy"] == {"decoupled": True}


def test_row_119_a_decoupled_step_that_sends_nothing(server: RunningServer) -> None:
    before = counts(server, "a", "streams")
    assert streamed(server, "streams", decoupled=SENDS + "sender.send(flags=FINAL)") == [(None, True)]
    assert counts(server, "a", "streams") == [before[0], before[1] + 1]


def test_a_last_response_that_is_known_to_be_the_last_says_so(server: RunningServer) -> None:
    script = SENDS + "sender.send(plus(request, 1), flags=FINAL)"
    assert streamed(server, "streams", decoupled=script) == [(2, True)]


def test_decoupled_steps_behind_each_other_multiply(server: RunningServer) -> None:
    found = [value for value, _ in streamed(server, "streams_on") if value is not None]
    assert sorted(found) == [2, 12, 12, 22, 22, 22, 32, 32, 42]


def test_what_is_not_decoupled_is_used_in_every_iteration(server: RunningServer) -> None:
    found = [value for value, _ in streamed(server, "streams_pairs") if value is not None]
    assert sorted(found) == [2, 12, 22]


def test_an_error_in_an_iteration_ends_the_stream(server: RunningServer) -> None:
    """The decoupled step is told that nobody wants more of its responses."""
    with Gate() as gate, ThreadPoolExecutor(1) as pool:
        script = (
            SENDS
            + f"""sender.send(plus(request, 1))
tell({gate.port}, until(sender.is_cancelled))
sender.send(plus(request, 2), flags=FINAL)"""
        )
        sent = pool.submit(streamed, server, "streams", decoupled=script, a="return error('no')")
        assert gate.told() is True
        assert sent.result() == [("in ensemble 'streams', no", True)]


def test_a_decoupled_step_waits_while_the_steps_behind_it_are_slow(server: RunningServer) -> None:
    """As many of its responses are under way as a model of its own may have unread, 64: one is executed, the others wait."""
    send_many = SENDS + "for _ in range(200):\n    sender.send(plus(request, 1))\nsender.send(flags=FINAL)"
    with Gate() as gate, ThreadPoolExecutor(1) as pool:
        hold_the_first = f"""if not hasattr(model, "held"):
    model.held = True
    gate({gate.port})
return plus(request, 1)"""
        sent = pool.submit(streamed, server, "streams", decoupled=send_many, a=hold_the_first)
        gate.wait()
        wait_until(lambda: metric(server, "nv_inference_pending_request_count", "a") == 63)
        gate.open()
        assert len([value for value, _ in sent.result() if value is not None]) == 200


@pytest.mark.parametrize("ensemble", ["streams_again", "streams_inside"])
def test_a_decoupled_model_that_is_behind_itself_does_not_wait_for_itself(server: RunningServer, ensemble: str) -> None:
    """Its only instance is free for what it has sent when it has sent everything."""
    script = (
        SENDS + "for _ in range(1 if request.inputs()[0].as_numpy()[0] else 100):\n    sender.send(plus(request, 1))\n"
    )
    for _ in range(2):  # the second one finds what was learnt from the first
        found = streamed(server, ensemble, decoupled=script + "sender.send(flags=FINAL)")
        assert [value for value, _ in found if value is not None] == [2] * 100


HUNDRED = SENDS + "for _ in range(100):\n    sender.send(plus(request, 1))\nsender.send(flags=FINAL)"


def test_a_decoupled_step_does_not_wait_for_a_model_that_calls_it(server: RunningServer) -> None:
    """What waits for it is no step, but a call of one."""
    calls = """given = pb_utils.Tensor("IN0", request.inputs()[0].as_numpy())
call = pb_utils.InferenceRequest(model_name="decoupled", inputs=[given], requested_output_names=["OUT0"])
return Response([tensor for response in call.exec(decoupled=True) for tensor in response.output_tensors()][:1])"""
    found = streamed(server, "streams_to_caller", decoupled=HUNDRED, caller=calls)
    assert [value for value, _ in found if value is not None] == [2] * 100


def test_decoupled_steps_of_two_ensembles_do_not_wait_for_each_other(server: RunningServer) -> None:
    """Each model sends for one request what goes on to the other one, and has one instance."""
    once = SENDS + "sender.send(plus(request, 1), flags=FINAL)"
    with Gate() as there, Gate() as back, ThreadPoolExecutor(2) as pool:
        begun = f"gate({there.port})\n" + HUNDRED, f"gate({back.port})\n" + HUNDRED
        sent = [
            pool.submit(streamed, server, "streams_on", decoupled=begun[0], decoupled_too=once),
            pool.submit(streamed, server, "streams_back", decoupled_too=begun[1], decoupled=once),
        ]
        there.wait()
        back.wait()
        there.open()
        back.open()
        for stream in sent:
            assert [value for value, _ in stream.result() if value is not None] == [2] * 100


def test_an_ensemble_that_is_decoupled_needs_a_stream(server: RunningServer) -> None:
    reply = ask(server, "streams")
    assert error(reply) == (501, "HTTP end point doesn't support models with decoupled transaction policy")
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        given = tritonclient.grpc.InferInput("X", [4], "FP32").set_data_from_numpy(np.zeros(4, np.float32))
        with pytest.raises(InferenceServerException, match="doesn't support models with decoupled") as refused:
            client.infer("streams", [given])
    assert refused.value.status() == "StatusCode.UNIMPLEMENTED"


def test_an_ensemble_that_is_not_decoupled_may_be_streamed(server: RunningServer) -> None:
    assert streamed(server, "chain") == [(2, True)]


def test_an_ensemble_may_be_asked_by_generate(server: RunningServer) -> None:
    reply = server.post("/v2/models/streams/generate_stream", {"X": [0, 0, 0, 0]})
    events = [json.loads(line.removeprefix("data: ")) for line in reply.body.decode().splitlines() if line]
    assert sorted(event["Y"][0] for event in events) == [2, 12, 22]
    assert server.post("/v2/models/chain/generate", {"X": [0, 0, 0, 0]}).json["Y"] == [2] * 4


def test_only_so_many_requests_of_a_step_are_in_flight_as_the_limit_allows(server: RunningServer) -> None:
    """The queue of the step has room for one; without the limit the third response would find it full."""
    assert sorted(value for value, _ in streamed(server, "limited") if value is not None) == [2, 12, 22]


# ---------------------------------------------------------------------------------------------- giving up


def test_row_122_a_cancelled_ensemble_begins_with_no_other_step(server: RunningServer) -> None:
    before = counts(server, "a", "b")
    failures = metric(server, "nv_inference_request_failure", "chain", reason="CANCELED")
    cancelled = metric(server, "pytriton_lite_cancelled_requests", "a")
    with Gate() as gate, tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        given = tritonclient.grpc.InferInput("X", [4], "FP32").set_data_from_numpy(np.zeros(4, np.float32))
        heard: list[InferenceServerException | None] = []
        script = f"gate({gate.port})\nreturn plus(request, 1)"
        call = client.async_infer("chain", [given], lambda result, error: heard.append(error), parameters={"a": script})
        gate.wait()
        call.cancel()
        wait_until(lambda: metric(server, "pytriton_lite_cancelled_requests", "a") > cancelled)
        gate.open()
        wait_until(lambda: metric(server, "nv_inference_request_failure", "chain", reason="CANCELED") == failures + 1)
        wait_until(lambda: bool(heard))
    assert counts(server, "a", "b") == [before[0] + 1, before[1]]
    assert heard[0] is not None and heard[0].status() == "StatusCode.CANCELLED"


def test_a_composing_model_that_is_unloaded_meanwhile_serves_the_request_to_its_end(server: RunningServer) -> None:
    """repository.md row 61."""
    with Gate() as gate, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(ask, server, "chain", a=f"gate({gate.port})\nreturn plus(request, 1)")
        gate.wait()
        assert server.post("/v2/repository/models/b/unload").status == 200
        wait_until(lambda: server.get("/v2/models/chain/ready").status == 400)
        assert ask(server, "chain").status == 404
        gate.open()
        assert values(sent.result()) == {"Y": 2}
    assert server.post("/v2/repository/models/b/load").status == 200
    assert values(ask(server, "chain")) == {"Y": 2}


# ---------------------------------------------------------------------------------------------- memory


def reserved(server: RunningServer, model: str, writer: str) -> float:
    return metric(server, "pytriton_lite_shared_memory_bytes", model, writer=writer)


def test_large_tensors_pass_to_workers_and_between_them_by_reference(server: RunningServer) -> None:
    """Nor does the server write what came as JSON once more, for the first one: that would be in its *server* bytes."""
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        given = tritonclient.http.InferInput("X", [LARGE], "FP32").set_data_from_numpy(
            np.arange(LARGE, dtype=np.float32), binary_data=False
        )
        answer = client.infer("large", [given]).as_numpy("Y")
        np.testing.assert_array_equal(answer, np.arange(LARGE, dtype=np.float32) + 2)
        assert [reserved(server, model, "server") for model in ("large_a", "large_b")] == [0, 0]


def test_inputs_and_outputs_may_lie_in_shared_memory_of_the_client(server: RunningServer) -> None:
    nbytes = LARGE * 4
    sent = np.arange(LARGE, dtype=np.float32)
    given_key, taken_key = (f"/{word}_{uuid.uuid4().hex}" for word in ("given", "taken"))
    given = shared_memory.create_shared_memory_region("given", given_key, nbytes)
    taken = shared_memory.create_shared_memory_region("taken", taken_key, nbytes)
    try:
        shared_memory.set_shared_memory_region(given, [sent])
        with tritonclient.http.InferenceServerClient(server.http_url) as client:
            client.register_system_shared_memory("given", given_key, nbytes)
            client.register_system_shared_memory("taken", taken_key, nbytes)
            asked = tritonclient.http.InferInput("X", [LARGE], "FP32")
            asked.set_shared_memory("given", nbytes)
            wanted = tritonclient.http.InferRequestedOutput("Y")
            wanted.set_shared_memory("taken", nbytes)
            result = client.infer("large", [asked], outputs=[wanted])
            output = result.get_output("Y")
            client.unregister_system_shared_memory()
        assert output == {"name": "Y", "datatype": "FP32", "shape": [LARGE]}
        answer = shared_memory.get_contents_as_numpy(taken, np.float32, [LARGE])
        np.testing.assert_array_equal(answer, sent + 2)
    finally:
        shared_memory.destroy_shared_memory_region(given)
        shared_memory.destroy_shared_memory_region(taken)


# ---------------------------------------------------------------------------------------------- BLS


CALL = """
tensor = pb_utils.get_input_tensor_by_name(request, "IN0")
given = [pb_utils.Tensor("X", tensor.as_numpy())]
reply = pb_utils.InferenceRequest(model_name="{}", requested_output_names=["Y"], inputs=given).exec()
if reply.has_error():
    return Response([], reply.error())
return Response([pb_utils.Tensor("OUT0", reply.output_tensors()[0].as_numpy())])
"""


def test_a_model_can_call_an_ensemble(server: RunningServer) -> None:
    reply = server.infer("caller", [tensor("IN0", "FP32", [4], [0] * 4)], parameters={"caller": CALL.format("chain")})
    assert values(reply) == {"OUT0": 2}


CALL_STREAM = """
given = [pb_utils.Tensor("X", pb_utils.get_input_tensor_by_name(request, "IN0").as_numpy())]
call = pb_utils.InferenceRequest(model_name="streams", requested_output_names=["Y"], inputs=given)
found = [reply.output_tensors()[0].as_numpy() for reply in call.exec(decoupled=True) if reply.output_tensors()]
return Response([pb_utils.Tensor("OUT0", np.array(sorted(array[0] for array in found) + [len(found)], np.float32))])
"""


def test_a_model_can_call_a_decoupled_ensemble(server: RunningServer) -> None:
    reply = server.infer("caller", [tensor("IN0", "FP32", [4], [0] * 4)], parameters={"caller": CALL_STREAM})
    assert reply.json["outputs"][0]["data"] == [2, 12, 22, 3]


NO_INSTANCE = "No instance of 'caller' can become free before this call is answered"


@pytest.mark.parametrize(
    ("ensemble", "text"),
    [
        pytest.param(
            "only_caller",
            f"the call waits for itself: caller_0 -> only_caller -> caller. {NO_INSTANCE}",
            id="at its first step",
        ),
        pytest.param(
            "calls_itself",
            f"the call waits for itself: caller_0 -> calls_itself -> caller. {NO_INSTANCE}",
            id="at a later step",
        ),
    ],
)
def test_a_model_that_calls_an_ensemble_with_itself_inside_is_told(
    server: RunningServer, ensemble: str, text: str
) -> None:
    """On Triton the call waits for ever."""
    given = tensor("IN0", "FP32", [4], [0] * 4)
    reply = server.infer("caller", [given], parameters={"caller": CALL.format(ensemble)})
    assert error(reply) == (503, f"in ensemble '{ensemble}', {text}")


def test_a_call_that_waits_for_room_which_its_own_caller_takes_is_told(server: RunningServer) -> None:
    reply = ask(server, "one_caller", caller=CALL.format("one_caller"))
    frame = "in ensemble 'one_caller', "
    assert error(reply) == (
        503,
        f"{frame}{frame}the call waits for itself: caller_0 -> one_caller -> caller. None of the 1 requests of "
        "this step that max_inflight_requests allows can end before this call is answered",
    )


def test_a_call_of_an_ensemble_with_another_instance_of_the_caller_inside_is_served(server: RunningServer) -> None:
    given = tensor("IN0", "FP32", [4], [0] * 4)
    reply = server.infer("many", [given], parameters={"many": CALL.format("many_callers")})
    assert values(reply) == {"OUT0": 1}


# ---------------------------------------------------------------------------------------------- gRPC


def unary(server: RunningServer, ensemble: str, *, sequence_id: int = 0, **scripts: str) -> Any:
    message = service_pb2.ModelInferRequest(model_name=ensemble)
    message.inputs.add(name="X", datatype="FP32", shape=[4])
    message.raw_input_contents.append(np.zeros(4, np.float32).tobytes())
    for name, script in scripts.items():
        message.parameters[name].string_param = script
    if sequence_id:
        message.parameters["sequence_id"].int64_param = sequence_id
    with grpc_channel(server) as channel:
        return service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message, timeout=30)


def test_an_ensemble_over_grpc(server: RunningServer) -> None:
    """grpc.md row 49."""
    response = unary(server, "chain")
    assert np.frombuffer(response.raw_output_contents[0], np.float32).tolist() == [2] * 4
    found = {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in response.parameters.items()}
    assert found == {"sequence_id": 0, "sequence_start": False, "sequence_end": False}


def test_the_largest_sequence_id_is_shown_as_its_bits_are_in_a_number_with_a_sign(server: RunningServer) -> None:
    reply = ask(server, "chain", parameters={"sequence_id": (1 << 64) - 1})
    assert reply.json["parameters"]["sequence_id"] == -1
    assert unary(server, "chain", sequence_id=-1).parameters["sequence_id"].int64_param == -1


def test_the_error_of_a_step_over_grpc(server: RunningServer) -> None:
    """grpc.md row 50."""
    with pytest.raises(grpc.RpcError) as failed:
        unary(server, "chain", b="return error('MESSAGE', pb_utils.TritonError.UNAVAILABLE)")
    assert (failed.value.code(), failed.value.details()) == (
        grpc.StatusCode.UNAVAILABLE,
        "in ensemble 'chain', MESSAGE",
    )
