"""Requests that come again: model_api.md rows 94 to 98 and section 4.5."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contract.scripted_model import (
    DECOUPLED,
    IS_DECOUPLED,
    ITERATIVE,
    Gate,
    Stream,
    execute_failed,
    run,
    stream_of,
    value_of,
    write_script_model,
)
from tests.harness import Reply, RunningServer

MODEL = "iterative"
INSTANCE = "iterative_0_0"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository: Path = tmp_path_factory.mktemp("repository")
    write_script_model(repository, MODEL, ITERATIVE)
    write_script_model(repository, "generating", ITERATIVE + IS_DECOUPLED)
    write_script_model(
        repository,
        "batched",
        "max_batch_size: 8\n"
        + ITERATIVE.replace("sequence: true", "sequence: true oldest { max_candidate_sequences: 8 }"),
    )
    write_script_model(repository, "plain")
    write_script_model(repository, "plain_stream", DECOUPLED)
    with RunningServer(repository) as running:
        yield running


def script(server: RunningServer, code: str, model: str = MODEL, **fields: object) -> Reply:
    return run(server, code, model=model, **fields)


AGAIN = """
model.notes.append([request.flags(), request.request_id(), request.correlation_id(), request.parameters(), request.timeout()])
if len(model.notes) < 3:
    request.set_release_flags(RESCHEDULE)
    return {returned}
told, model.notes = model.notes, []
return [response(told)]
"""


@pytest.mark.parametrize("returned", ["[None]", "None"])
def test_a_rescheduled_request_comes_again_and_is_answered_once(server: RunningServer, returned: str) -> None:
    """model_api.md row 94: START the first time only; everything else stays."""
    rounds = value_of(
        script(
            server,
            AGAIN.format(returned=returned),
            id="x",
            parameters={"a": 1, "sequence_id": 7, "sequence_start": True, "timeout": 5},
        )
    )
    assert rounds == [[flags, "x", 7, '{"a":1}', 5] for flags in (1, 0, 0)]


def test_a_missing_correlation_id_is_made_up(server: RunningServer) -> None:
    """model_api.md row 94."""
    rounds = value_of(script(server, AGAIN.format(returned="[None]")))
    assert [flags for flags, *_ in rounds] == [1, 0, 0]
    ids = {correlation_id for _, _, correlation_id, _, _ in rounds}
    assert len(ids) == 1
    assert ids != {0}


def test_a_rescheduled_request_has_its_inputs(server: RunningServer) -> None:
    """Model API, 4.5: the same request; what the model wrote into an array is not in it."""
    code = """
    given = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
    model.notes.append(given.sum().item())
    given[:] = 0
    if len(model.notes) < 3:
        request.set_release_flags(RESCHEDULE)
        return None
    told, model.notes = model.notes, []
    return [response(told)]
    """
    x = {"name": "X", "datatype": "FP32", "shape": [5000], "data": [1.0] * 5000}
    assert value_of(run(server, code, x, model=MODEL)) == [5000.0] * 3


def test_a_rescheduled_request_may_be_answered_through_its_sender(server: RunningServer) -> None:
    """Model API, 4.2 and 4.5: each round has a sender of its own."""
    code = """
    model.notes.append(request.get_response_sender())
    if len(model.notes) < 3:
        request.set_release_flags(RESCHEDULE)
        return None
    first, _, last = model.notes
    model.notes = []
    last.send(response(refusal(first.send, response("old"), FINAL)), FINAL)
    """
    assert (
        value_of(script(server, code))
        == "TritonModelException: Unable to send response. Response sender has been closed."
    )


GENERATING = """
model.notes.append(1)
sender = request.get_response_sender()
if len(model.notes) < 3:
    sender.send(response(len(model.notes)))
    request.set_release_flags(RESCHEDULE)
else:
    model.notes = []
    sender.send(response(3), FINAL)
"""


def test_a_decoupled_model_sends_a_response_each_round(server: RunningServer) -> None:
    """model_api.md row 95; scheduling.md row 99."""
    messages = stream_of(server, "generating", GENERATING)
    assert [(message.value, message.is_final, message.error) for message in messages] == [
        (1, False, ""),
        (2, False, ""),
        (3, True, ""),
    ]


def test_two_generations_interleave(server: RunningServer) -> None:
    """Model API, 4.5: a later batch may hold both."""
    code = """
    for request in requests:
        count = sum(name == request.request_id() for name in model.notes)
        model.notes.append(request.request_id())
        request.get_response_sender().send(response(count), FINAL if count == 4 else 0)
        if count < 4:
            request.set_release_flags(RESCHEDULE)
    """
    with Stream(server) as stream:
        for request_id in ("a", "b"):
            stream.send("generating", code, request_id=request_id)
        by_id: dict[str, list[object]] = {"a": [], "b": []}
        for message in stream.rest():
            assert message.error == ""
            by_id[message.id].append(message.value)
    assert by_id == {"a": [0, 1, 2, 3, 4], "b": [0, 1, 2, 3, 4]}
    stream_of(server, "generating", "model.notes = []\nrequest.get_response_sender().send(flags=FINAL)")


def test_a_response_for_a_rescheduled_request_is_refused(server: RunningServer) -> None:
    """model_api.md row 96; scheduling.md row 100."""
    reply = script(server, "request.set_release_flags(RESCHEDULE)\nreturn [response(1)]")
    assert reply.status == 500
    assert reply.error == execute_failed(
        "Expected a None object in the execute function return list for reschduled request, "
        "found type '<class 'c_python_backend_utils.InferenceResponse'>'.",
        INSTANCE,
    )


def test_an_exception_counts_more_than_the_flag(server: RunningServer) -> None:
    """model_api.md row 97."""
    reply = script(server, "request.set_release_flags(RESCHEDULE)\nraise ValueError('boom')")
    assert reply.status == 500
    assert reply.error.startswith(execute_failed("ValueError: boom\n", INSTANCE))
    assert value_of(script(server, "return [response('next')]")) == "next"


NOT_ITERATIVE = (
    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle such a "
    "flag."
)


def test_a_model_that_is_not_iterative_cannot_reschedule(server: RunningServer) -> None:
    """model_api.md row 98; scheduling.md row 102."""
    reply = script(server, "request.set_release_flags(RESCHEDULE)\nreturn [None]", "plain")
    assert (reply.status, reply.error) == (400, NOT_ITERATIVE)
    assert value_of(script(server, "return [response('next')]", "plain")) == "next"


def test_a_decoupled_model_that_is_not_iterative_cannot_reschedule(server: RunningServer) -> None:
    """model_api.md row 98."""
    code = "request.get_response_sender().send(response(1))\nrequest.set_release_flags(RESCHEDULE)"
    first, last = stream_of(server, "plain_stream", code)
    assert (first.value, first.is_final) == (1, False)
    assert (last.error, last.is_final) == (NOT_ITERATIVE, True)


@pytest.mark.parametrize("flags", [0, 1, 3])
def test_other_release_flags_do_nothing(server: RunningServer, flags: int) -> None:
    """Model API, 4.5: compared for equality."""
    assert value_of(script(server, f"request.set_release_flags({flags})\nreturn [response('once')]")) == "once"


@pytest.mark.parametrize("flags", ["None", "-1", "'2'"])
def test_release_flags_are_unsigned_numbers(server: RunningServer, flags: str) -> None:
    """Model API, 2.3."""
    code = f"return [response(refusal(request.set_release_flags, {flags}))]"
    assert value_of(script(server, code)).startswith("TypeError: set_release_flags()")


def test_a_request_that_was_answered_is_not_rescheduled(server: RunningServer) -> None:
    """Model API, 4.5, Lite: Triton crashes."""
    code = """
    request.get_response_sender().send(response("sent"), FINAL)
    request.set_release_flags(RESCHEDULE)
    """
    assert value_of(script(server, code)) == "sent"
    server.wait_for_log(r"W\d{4} .*released with RESCHEDULE after its last response")


def test_a_decoupled_request_that_has_ended_is_not_rescheduled(server: RunningServer) -> None:
    """Model API, 4.5, Lite."""
    code = """
    request.get_response_sender().send(response("sent"), FINAL)
    request.set_release_flags(RESCHEDULE)
    """
    (message,) = stream_of(server, "generating", code)
    assert (message.value, message.is_final) == ("sent", True)


def test_a_generation_whose_client_is_gone_does_not_come_again(server: RunningServer) -> None:
    """Section 4.7: dropped between two rounds."""
    with Gate() as gate, Gate() as tells, ThreadPoolExecutor(1) as threads:
        code = f"""
        model.notes.append(1)
        sender = request.get_response_sender()
        if len(model.notes) == 1:
            sender.send(response("first"))
            gate({gate.port})
            gone = until(sender.is_cancelled)
            tell({tells.port}, gone)
            request.set_release_flags(RESCHEDULE)
        else:
            sender.send(flags=FINAL)
        """
        with Stream(server) as stream:
            stream.send("generating", code)
            assert stream.receive().value == "first"
            gate.wait()
        told = threads.submit(tells.told)
        gate.open()
        assert told.result() is True
    (message,) = stream_of(
        server,
        "generating",
        "told, model.notes = model.notes, []\nrequest.get_response_sender().send(response(told), FINAL)",
    )
    assert message.value == [1]


def test_a_batch_may_reschedule_some_and_answer_others(server: RunningServer) -> None:
    """model_api.md row 94, in a batch: each request runs as often as it says."""
    code = """
    responses = []
    for request in requests:
        rounds = int(json.loads(request.parameters())["rounds"])
        count = sum(name == request.request_id() for name in model.notes)
        model.notes.append(request.request_id())
        if count + 1 < rounds:
            request.set_release_flags(RESCHEDULE)
            responses.append(None)
        else:
            out = np.array([[json.dumps(count + 1)]], dtype=object)
            responses.append(Response([pb_utils.Tensor("OUT", out)]))
    return responses
    """
    given = {"name": "IN", "datatype": "BYTES", "shape": [1, 1], "data": [textwrap.dedent(code)]}

    def ask(rounds: int) -> object:
        reply = server.infer("batched", [given], id=f"r{rounds}", parameters={"rounds": rounds})
        assert reply.status == 200, reply.body
        return json.loads(reply.json["outputs"][0]["data"][0])

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(1, 9))) == list(range(1, 9))
