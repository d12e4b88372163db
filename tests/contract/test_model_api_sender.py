"""The response sender of a model in default mode: model_api.md rows 66 and 69 to 78, sections 2.5 and 4.2."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contract.scripted_model import (
    BATCHING,
    CONFIG,
    Gate,
    execute_failed,
    outputs_of,
    run,
    run_batch,
    stream_of,
    value_of,
    write_script_model,
)
from tests.harness import Reply, RunningServer, tensor

MODEL = "script"
INSTANCE = "script_0_0"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository: Path = tmp_path_factory.mktemp("repository")
    write_script_model(repository, MODEL)
    write_script_model(repository, "batching", BATCHING)
    write_script_model(repository, "echo", CONFIG.replace('name: "X"', 'name: "Y"'))
    with RunningServer(repository) as running:
        yield running


def script(server: RunningServer, code: str) -> Reply:
    return run(server, code, model=MODEL)


def script_value(server: RunningServer, code: str) -> object:
    return value_of(script(server, code))


# ---------------------------------------------------------------------------------------------- one response


@pytest.mark.parametrize("returned", ["None", "[None]"])
def test_a_response_with_the_final_flag_is_the_answer(server: RunningServer, returned: str) -> None:
    """model_api.md row 69."""
    code = f"request.get_response_sender().send(response('r'), FINAL)\nreturn {returned}"
    assert script_value(server, code) == "r"


@pytest.mark.parametrize("final", ["flags=FINAL", "None, FINAL"])
def test_the_final_flag_may_follow_alone(server: RunningServer, final: str) -> None:
    """model_api.md row 70."""
    code = f"sender = request.get_response_sender()\nsender.send(response('r'))\nsender.send({final})"
    assert script_value(server, code) == "r"


def test_the_answer_waits_for_the_final_flag(server: RunningServer) -> None:
    """Model API, 4.2: the client has nothing before."""
    with Gate() as gate, ThreadPoolExecutor(1) as threads:
        code = f"""
        sender = request.get_response_sender()
        sender.send(response("r"))
        gate({gate.port})
        sender.send(flags=FINAL)
        """
        reply = threads.submit(script, server, code)
        gate.wait()
        assert server.get("/v2/health/live").status == 200
        assert not reply.done()
        gate.open()
        assert value_of(reply.result()) == "r"


def test_a_thread_may_answer_after_execute_has_returned(server: RunningServer) -> None:
    """model_api.md row 72: and the instance serves others meanwhile."""
    with Gate() as gate, ThreadPoolExecutor(1) as threads:
        code = f"""
        def later():
            gate({gate.port})
            sender.send(response(pb_utils.get_input_tensor_by_name(request, "IN").shape()), FINAL)
        sender = request.get_response_sender()
        thread(later)
        """
        reply = threads.submit(script, server, code)
        gate.wait()
        assert script_value(server, "return [response('meanwhile')]") == "meanwhile"
        assert not reply.done()
        gate.open()
        assert value_of(reply.result()) == [1]


def test_an_error_through_the_sender_has_its_status(server: RunningServer) -> None:
    """model_api.md row 77."""
    reply = script(
        server, "request.get_response_sender().send(error('no such thing', pb_utils.TritonError.NOT_FOUND), FINAL)"
    )
    assert (reply.status, reply.json) == (404, {"error": "no such thing"})


def test_only_what_the_client_asked_for_is_sent(server: RunningServer) -> None:
    """Model API, 2.4: the rest is taken out of the response itself."""
    code = """
    answer = response("r", Y=[1], Y2=[1, 2])
    request.get_response_sender().send(answer, FINAL)
    model.notes = [tensor.name() for tensor in answer.output_tensors()]
    """
    reply = run(server, code, model=MODEL, outputs=[{"name": "Y"}])
    assert list(outputs_of(reply)) == ["Y"]
    assert script_value(server, "return [response(model.notes)]") == ["Y"]


def test_a_large_response_goes_through_shared_memory(server: RunningServer) -> None:
    code = "request.get_response_sender().send(response('r', Y=np.arange(10_000)), FINAL)"
    reply = script(server, code)
    assert outputs_of(reply)["Y"]["data"] == list(range(10_000))


@pytest.mark.parametrize("size", [3, 100_000], ids=["small", "in shared memory"])
def test_an_input_may_be_read_and_sent_long_after_execute_has_returned(server: RunningServer, size: int) -> None:
    """Model API, 4.2 and 5.3: others come and go meanwhile; what the model wrote into its array is its own affair."""
    y = tensor("Y", "FP32", [size], list(range(size)))
    others = tensor("Y", "FP32", [size], [-1.0] * size)
    with Gate() as gate, ThreadPoolExecutor(1) as threads:
        code = f"""
        def later():
            gate({gate.port})
            given = pb_utils.get_input_tensor_by_name(request, "Y")
            total = given.as_numpy().sum(dtype=np.float64).item()
            given.as_numpy()[:] = 0
            sender.send(Response([*response(total).output_tensors(), given]), FINAL)
        sender = request.get_response_sender()
        thread(later)
        """
        reply = threads.submit(run, server, code, y, model="echo")
        gate.wait()
        for _ in range(3):
            assert run(server, "return [Response(request.inputs())]", others, model="echo").status == 200
        gate.open()
        assert value_of(reply.result()) == size * (size - 1) / 2
        assert outputs_of(reply.result())["Y"]["data"] == list(range(size))


@pytest.mark.parametrize("size", [3, 100_000], ids=["small", "in shared memory"])
def test_an_input_of_a_request_that_has_ended_may_be_sent_to_another(server: RunningServer, size: int) -> None:
    """Model API, 5.3: it may be kept."""
    y = tensor("Y", "FP32", [size], list(range(size)))
    run(server, "model.notes = [pb_utils.get_input_tensor_by_name(request, 'Y')]\nreturn [Response()]", y, model="echo")
    code = "request.get_response_sender().send(Response(model.notes), FINAL)\nmodel.notes = []"
    reply = run(server, code, model="echo")
    assert outputs_of(reply)["Y"]["data"] == list(range(size))


def test_a_forked_child_cannot_answer_and_ends_nothing(server: RunningServer) -> None:
    """Model API, 1.3, Lite: it has copies of request and sender, and drops them."""
    code = """
    sender = request.get_response_sender()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, refusal(sender.send, response("of the child"), FINAL).encode())
        del sender, request
        requests.clear()
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    return [response(os.read(read, 4096).decode())]
    """
    told = "InferenceResponseSender.send is not available in a process that the model has forked"
    assert script_value(server, code) == f"TritonModelException: {told}"


# ---------------------------------------------------------------------------------------------- too many


def test_the_final_flag_before_a_response_is_refused(server: RunningServer) -> None:
    """model_api.md row 71."""
    reply = script(server, "request.get_response_sender().send(flags=FINAL)")
    assert reply.status == 500
    assert reply.error.startswith(
        execute_failed(
            "TritonModelException: Unable to send response. "
            "Non-decoupled model cannot send complete final before sending a response.\n",
            INSTANCE,
        )
    )


TWICE = "Unable to send response. Non-decoupled model cannot send more than one response."


@pytest.mark.parametrize("fetched", ["before", "after"])
def test_of_a_returned_response_and_a_later_sent_one_the_returned_one_stands(
    server: RunningServer, fetched: str
) -> None:
    """model_api.md row 73; the sender may be fetched when everything is over."""
    with Gate() as gate, Gate() as told:
        code = f"""
        def later():
            gate({gate.port})
            found = sender or request.get_response_sender()
            tell({told.port}, [refusal(found.send, response("sent"), FINAL), refusal(found.send, None, FINAL)])
        sender = request.get_response_sender() if {fetched == "before"} else None
        thread(later)
        return [response("returned")]
        """
        assert script_value(server, code) == "returned"
        gate.wait()
        gate.open()
        assert told.told() == [
            f"TritonModelException: {TWICE}",
            "TritonModelException: Unable to send response. Response sender has been closed.",
        ]
    assert script_value(server, "return [response('next')]") == "next"
    assert "is not healthy" not in server.log


@pytest.mark.parametrize(
    "then",
    ["raise ValueError('boom')", "return [response('another')]", "return 5"],
    ids=["raise", "return", "nonsense"],
)
@pytest.mark.parametrize("flags", ["FINAL", "0"])
def test_what_the_sender_gave_stands_whatever_execute_does_then(server: RunningServer, flags: str, then: str) -> None:
    """model_api.md row 74; without FINAL it is the same (4.2, Lite)."""
    assert script_value(server, f"request.get_response_sender().send(response('sent'), {flags})\n{then}") == "sent"


def test_a_dropped_answer_is_in_the_log(server: RunningServer) -> None:
    """Model API, 4.2, Lite."""
    script(server, "request.get_response_sender().send(response('sent'))\nreturn [response('another')]")
    server.wait_for_log(r"W\d{4} .*a response was returned for a request that the response sender had answered")


def test_a_response_without_the_final_flag_is_the_answer_once_the_sender_is_gone(server: RunningServer) -> None:
    """model_api.md row 75."""
    assert script_value(server, "request.get_response_sender().send(response('r'))") == "r"
    server.wait_for_log(r"W\d{4} .*dropped without TRITONSERVER_RESPONSE_COMPLETE_FINAL")


SECOND = "sender = request.get_response_sender()\nsender.send(response(1))\nsender.send(response(2))"


def test_of_two_responses_the_first_is_the_answer(server: RunningServer) -> None:
    """model_api.md row 76: the second raises, and that stands for nothing."""
    assert script_value(server, SECOND) == 1


def test_of_two_responses_a_stream_gets_the_first(server: RunningServer) -> None:
    """model_api.md row 76."""
    (message,) = stream_of(server, MODEL, SECOND)
    assert (message.value, message.error) == (1, "")


def test_after_the_final_flag_a_second_response_is_refused_as_a_second_one(server: RunningServer) -> None:
    """Model API, 2.5: checked before "closed"."""
    code = """
    sender = request.get_response_sender()
    sender.send(response("r"), FINAL)
    model.notes = [refusal(sender.send, response("again")), refusal(sender.send, flags=FINAL)]
    """
    script(server, code)
    assert script_value(server, "return [response(model.notes)]") == [
        f"TritonModelException: {TWICE}",
        "TritonModelException: Unable to send response. Response sender has been closed.",
    ]


@pytest.mark.parametrize(
    ("call", "refused"),
    [
        ("sender.send", "Inference Response object must be provided when the response flags is set to zero."),
        ("sender.send, response('r'), 2", "Unable to send response. Unsupported flag provided."),
        ("sender.send, None, 2", "Unable to send response. Unsupported flag provided."),
    ],
)
def test_what_cannot_be_sent_is_refused(server: RunningServer, call: str, refused: str) -> None:
    """model_api.md row 78."""
    code = f"sender = request.get_response_sender()\nreturn [response(refusal({call}))]"
    assert script_value(server, code) == f"TritonModelException: {refused}"


def test_a_request_of_the_models_own_has_a_sender_that_sends_nothing(server: RunningServer) -> None:
    """Model API, 2.5."""
    code = """
    own = pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name="script")
    sender = own.get_response_sender()
    return [response([refusal(sender.send, flags=FINAL), sender.is_cancelled(), own.is_cancelled()])]
    """
    assert script_value(server, code) == [
        "TritonModelException: Unable to send response. "
        "Response sender has no reference to the decoupled state of the model.",
        False,
        False,
    ]


def test_a_request_has_one_sender(server: RunningServer) -> None:
    """Model API, 2.3."""
    code = "return [response(request.get_response_sender() is request.get_response_sender())]"
    assert script_value(server, code) is True


# ---------------------------------------------------------------------------------------------- nobody can answer


UNANSWERED = "execute returned None for the request, and no response was sent through its sender."


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("return None", id="never fetched"),
        pytest.param("request.get_response_sender()", id="fetched"),
        pytest.param("request.is_cancelled()", id="asked"),
        pytest.param("cycle = [request]\ncycle.append(cycle)", id="in a reference cycle"),
        pytest.param(
            "cycle = [request.get_response_sender()]\ncycle.append(cycle)", id="its sender in a reference cycle"
        ),
    ],
)
def test_a_request_that_nobody_can_answer_any_more_is_told_so(server: RunningServer, code: str) -> None:
    """model_api.md row 51, and section 4.1: once nothing refers to its sender any more."""
    reply = script(server, code)
    assert (reply.status, reply.error) == (500, execute_failed(UNANSWERED, INSTANCE))


def test_a_request_that_is_kept_waits_until_it_is_let_go(server: RunningServer) -> None:
    """Model API, 4.1, Lite."""
    with Gate() as gate, ThreadPoolExecutor(1) as threads:
        reply = threads.submit(script, server, f"model.notes = [request]\nthread(gate, {gate.port})")
        gate.wait()
        gate.open()
        assert script_value(server, "return [response(len(model.notes))]") == 1
        assert not reply.done()
        assert script_value(server, "model.notes.clear()\nreturn [response('let go')]") == "let go"
        assert reply.result().error == execute_failed(UNANSWERED, INSTANCE)


def test_a_kept_request_can_be_asked_after_its_end(server: RunningServer) -> None:
    """Model API, 4.7, Lite: Triton crashes."""
    script(server, "model.notes = [request]\nreturn [response('r')]")
    code = """
    kept = model.notes.pop()
    told = [kept.is_cancelled(), kept.get_response_sender().is_cancelled(), refusal(kept.get_response_sender().send, flags=1)]
    del kept
    return [response(told)]
    """
    refused = "TritonModelException: Unable to send response. Response sender has been closed."
    assert script_value(server, code) == [False, False, refused]
    assert script_value(server, "return [response('next')]") == "next"
    assert "is not healthy" not in server.log


# ---------------------------------------------------------------------------------------------- a batch


def test_some_of_a_batch_may_be_sent_and_others_returned(server: RunningServer) -> None:
    """model_api.md row 66."""
    code = """
    by_id = {request.request_id(): request for request in requests}
    by_id["b"].get_response_sender().send(response("sent"), FINAL)
    return [None if request.request_id() == "b" else response(len(requests)) for request in requests]
    """
    replies = run_batch(server, "batching", code)
    assert {key: value_of(reply) for key, reply in replies.items()} == {"a": 3, "b": "sent", "c": 3}


def test_an_answer_that_was_sent_stands_when_the_batch_fails(server: RunningServer) -> None:
    """Model API, 4.2, Lite: one with FINAL, one without, and one that has nothing."""
    code = """
    by_id = {request.request_id(): request for request in requests}
    by_id["a"].get_response_sender().send(response("sent"), FINAL)
    by_id["b"].get_response_sender().send(response("not final"))
    raise ValueError("boom")
    """
    replies = run_batch(server, "batching", code)
    assert value_of(replies["a"]) == "sent"
    assert value_of(replies["b"]) == "not final"
    assert replies["c"].status == 500
    assert replies["c"].error.startswith(execute_failed("ValueError: boom\n", "batching_0_0"))


def test_the_requests_of_a_batch_are_answered_one_by_one(server: RunningServer) -> None:
    """Model API, 4.2: from threads, after execute has returned, in another order than they came."""
    with Gate() as first, Gate() as second:
        code = f"""
        def later(waiting):
            for key, port in (("c", {first.port}), ("a", {second.port})):
                gate(port)
                waiting.pop(key).send(response(key), FINAL)
        senders = {{request.request_id(): request.get_response_sender() for request in requests}}
        senders["b"].send(response("b"), FINAL)
        thread(later, senders)
        """
        with ThreadPoolExecutor(1) as threads:
            replies = threads.submit(run_batch, server, "batching", code)
            first.wait()
            first.open()
            second.wait()
            assert not replies.done()
            second.open()
            assert {key: value_of(reply) for key, reply in replies.result().items()} == {"a": "a", "b": "b", "c": "c"}
