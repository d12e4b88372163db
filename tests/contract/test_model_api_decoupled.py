"""Decoupled models over streams: model_api.md rows 79 to 93 and section 4.3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from tests.contract.scripted_model import (
    BATCHING,
    DECOUPLED,
    IS_DECOUPLED,
    Gate,
    Message,
    Stream,
    execute_failed,
    run,
    stream_of,
    write_script_model,
)
from tests.harness import RunningServer, write_model

MODEL = "script"
INSTANCE = "script_0_0"
WINDOW = 4


# Each request gets many responses, the null requests of idle rows as well.
ROWS = """
    import json

    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                for number in range(20):
                    out = pb_utils.Tensor("OUT", np.array([[json.dumps(number)]], dtype=object))
                    sender.send(pb_utils.InferenceResponse([out]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
ROWS_CONFIG = """
    backend: "python"
    max_batch_size: 2
    input { name: "IN" data_type: TYPE_STRING dims: [ 1 ] }
    output { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }
    sequence_batching { max_sequence_idle_microseconds: 3600000000 direct { } }
    model_transaction_policy { decoupled: true }
"""


@pytest.fixture(scope="module", params=["http2", "grpcio"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository: Path = tmp_path_factory.mktemp("repository")
    write_script_model(repository, MODEL, DECOUPLED)
    write_script_model(repository, "another", DECOUPLED)
    write_script_model(repository, "batching", BATCHING + IS_DECOUPLED)
    write_model(repository, "rows", ROWS, ROWS_CONFIG)
    with RunningServer(
        repository, flags=(f"--grpc-transport={request.param}", f"--grpc-max-response-pool-size={WINDOW}")
    ) as running:
        yield running


def told(messages: list[Message]) -> list[tuple[object, bool | None]]:
    """(value, is final) of each; none may be an error."""
    assert [message.error for message in messages if message.error] == []
    return [(message.value, message.is_final) for message in messages]


def responses(server: RunningServer, code: str, *, wants_empty_final: bool = False) -> list[tuple[object, bool | None]]:
    return told(stream_of(server, MODEL, code, wants_empty_final=wants_empty_final))


# ---------------------------------------------------------------------------------------------- who may ask


def test_http_does_not_carry_decoupled_models(server: RunningServer) -> None:
    """model_api.md row 79."""
    reply = run(server, "raise ValueError('never run')", model=MODEL)
    assert (reply.status, reply.error) == (
        501,
        "HTTP end point doesn't support models with decoupled transaction policy",
    )


def test_a_unary_call_does_not_carry_decoupled_models(server: RunningServer) -> None:
    """model_api.md row 79."""
    given = triton_grpc.InferInput("IN", [1], "BYTES")
    given.set_data_from_numpy(np.array(["raise ValueError('never run')"], dtype=object))
    with (
        triton_grpc.InferenceServerClient(server.grpc_url) as client,
        pytest.raises(InferenceServerException) as caught,
    ):
        client.infer(MODEL, [given])
    assert caught.value.status() == str(grpc.StatusCode.UNIMPLEMENTED)
    assert caught.value.message() == "ModelInfer RPC doesn't support models with decoupled transaction policy"


def test_tritonclient_hears_every_response(server: RunningServer) -> None:
    """model_api.md row 80, through the client's own stream."""
    heard: list[int] = []
    errors: list[InferenceServerException] = []

    def on_result(result: triton_grpc.InferResult | None, error: InferenceServerException | None) -> None:
        if error is not None:
            errors.append(error)
        else:
            assert result is not None
            heard.append(int(result.as_numpy("OUT")[0]))

    given = triton_grpc.InferInput("IN", [1], "BYTES")
    code = (
        "sender = request.get_response_sender()\nfor n in range(20): sender.send(response(n))\nsender.send(flags=FINAL)"
    )
    given.set_data_from_numpy(np.array([code], dtype=object))
    with triton_grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(on_result)
        client.async_stream_infer(MODEL, [given])
        client.stop_stream()
    assert errors == []
    assert heard == list(range(20))


# ---------------------------------------------------------------------------------------------- how many

TWO = """
sender = request.get_response_sender()
sender.send(response(1))
sender.send(response(2))
sender.send(flags=FINAL)
"""


def test_responses_come_as_they_are_sent(server: RunningServer) -> None:
    """model_api.md row 80: the flag alone is not seen."""
    assert responses(server, TWO) == [(1, False), (2, False)]


def test_the_end_alone_is_seen_by_who_asks_for_it(server: RunningServer) -> None:
    """model_api.md row 80."""
    messages = stream_of(server, MODEL, TWO, wants_empty_final=True, request_id="x")
    assert told(messages) == [(1, False), (2, False), (None, True)]
    assert [(message.id, message.outputs) for message in messages] == [("x", ("OUT",)), ("x", ("OUT",)), ("x", ())]


@pytest.mark.parametrize("wants_empty_final", [False, True])
def test_the_last_response_may_carry_the_end(server: RunningServer, wants_empty_final: bool) -> None:
    """model_api.md row 81."""
    code = "request.get_response_sender().send(response(1), FINAL)"
    assert responses(server, code, wants_empty_final=wants_empty_final) == [(1, True)]


def test_a_request_may_have_no_response(server: RunningServer) -> None:
    """model_api.md row 82."""
    code = "request.get_response_sender().send(flags=FINAL)"
    assert responses(server, code) == []
    assert responses(server, code, wants_empty_final=True) == [(None, True)]


def test_a_hundred_responses_keep_their_order(server: RunningServer) -> None:
    """Model API, 4.3; more than the window, so that `send` waits."""
    code = """
    sender = request.get_response_sender()
    for n in range(100):
        sender.send(response(n), FINAL if n == 99 else 0)
    """
    assert responses(server, code) == [(n, n == 99) for n in range(100)]


def test_large_responses_go_through_shared_memory(server: RunningServer) -> None:
    code = """
    sender = request.get_response_sender()
    for n in range(20):
        sender.send(response(n, Y=np.full(50_000, n)))
    sender.send(flags=FINAL)
    """
    assert [message.outputs for message in stream_of(server, MODEL, code)] == [("OUT", "Y")] * 20


def test_only_what_the_client_asked_for_is_sent(server: RunningServer) -> None:
    """model_api.md row 91."""
    code = "request.get_response_sender().send(response('r', Y=[1]), FINAL)"
    (message,) = stream_of(server, MODEL, code, outputs=("Y",))
    assert message.outputs == ("Y",)


# ---------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("returned", ["[]", "[None]", "[response(1)]", "5"])
def test_execute_must_return_none(server: RunningServer, returned: str) -> None:
    """model_api.md row 83."""
    (message,) = stream_of(server, MODEL, f"return {returned}")
    assert message.error == execute_failed(
        f"Python model '{INSTANCE}' is using the decoupled mode and the execute function must return None.", INSTANCE
    )
    assert message.is_final


def test_an_exception_comes_behind_the_responses(server: RunningServer) -> None:
    """model_api.md row 84."""
    first, second = stream_of(
        server, MODEL, "request.get_response_sender().send(response(1))\nraise ValueError('boom')"
    )
    assert (first.value, first.error, first.is_final) == (1, "", False)
    assert second.error.startswith(execute_failed("ValueError: boom\n", INSTANCE))
    assert second.is_final


def test_an_exception_after_the_end_is_not_heard(server: RunningServer) -> None:
    """model_api.md row 84."""
    code = "request.get_response_sender().send(response(1), FINAL)\nraise ValueError('boom')"
    assert responses(server, code) == [(1, True)]


def test_after_an_exception_the_sender_is_closed(server: RunningServer) -> None:
    """Model API, 4.3."""
    with Gate() as gate, Gate() as tells:
        code = f"""
        def later(sender):
            gate({gate.port})
            tell({tells.port}, [refusal(sender.send, response(1)), refusal(sender.send, flags=FINAL)])
        thread(later, request.get_response_sender())
        raise ValueError("boom")
        """
        (message,) = stream_of(server, MODEL, code)
        assert message.is_final
        gate.wait()
        gate.open()
        assert tells.told() == ["TritonModelException: Unable to send response. Response sender has been closed."] * 2


def test_an_error_response_does_not_end_the_request(server: RunningServer) -> None:
    """model_api.md row 85."""
    code = """
    sender = request.get_response_sender()
    sender.send(error("not this time"))
    sender.send(response(1))
    sender.send(flags=FINAL)
    """
    first, *others = stream_of(server, MODEL, code, wants_empty_final=True)
    assert (first.error, first.is_final) == ("not this time", False)
    assert told(others) == [(1, False), (None, True)]


def test_an_error_may_be_the_last_response(server: RunningServer) -> None:
    (message,) = stream_of(server, MODEL, "request.get_response_sender().send(error('no'), FINAL)")
    assert (message.error, message.is_final) == ("no", True)


def test_a_second_end_is_refused(server: RunningServer) -> None:
    """model_api.md row 86."""
    with Gate() as tells:
        code = f"""
        sender = request.get_response_sender()
        sender.send(response(1), FINAL)
        tell({tells.port}, [refusal(sender.send, flags=FINAL), refusal(sender.send, response(2))])
        """
        with Stream(server) as stream:
            stream.send(MODEL, code, wants_empty_final=True)
            assert (
                tells.told() == ["TritonModelException: Unable to send response. Response sender has been closed."] * 2
            )
            assert told(list(stream.rest())) == [(1, True)]


# ---------------------------------------------------------------------------------------------- from elsewhere


def test_requests_answer_in_any_order(server: RunningServer) -> None:
    """model_api.md row 87: the first from a thread, when the second is done."""
    with Gate() as gate, Stream(server) as stream:
        code = f"""
        def later(sender):
            gate({gate.port})
            sender.send(response("first"), FINAL)
        thread(later, request.get_response_sender())
        """
        stream.send(MODEL, code, request_id="0")
        stream.send(MODEL, "request.get_response_sender().send(response('second'), FINAL)", request_id="1")
        message = stream.receive()
        assert (message.id, message.value) == ("1", "second")
        gate.wait()
        gate.open()
        message = stream.receive()
        assert (message.id, message.value) == ("0", "first")
        assert list(stream.rest()) == []


def test_sender_and_inputs_may_be_used_after_execute_has_returned(server: RunningServer) -> None:
    """model_api.md row 92: the sender is fetched and the input read then."""
    with Gate() as gate, Stream(server) as stream:
        code = f"""
        def later(request):
            gate({gate.port})
            text = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0].decode()
            request.get_response_sender().send(response(text[-5:]), FINAL)
        thread(later, request)  # abcd
        """
        stream.send(MODEL, code)
        gate.wait()
        stream.send("another", "request.get_response_sender().send(response('meanwhile'), FINAL)")
        assert stream.receive().value == "meanwhile"
        gate.open()
        assert stream.receive().value == "abcd\n"


def test_many_threads_may_send_through_one_sender(server: RunningServer) -> None:
    """Model API, 2.5."""
    code = """
    def some(first):
        for n in range(first, first + 25):
            sender.send(response(n))
    def all():
        for started in [thread(some, first) for first in (0, 25, 50, 75)]:
            started.join()
        sender.send(flags=FINAL)
    sender = request.get_response_sender()
    thread(all)
    """
    values = [value for value, _ in responses(server, code)]
    assert sorted(values, key=str) == sorted(range(100), key=str)


def test_an_answer_after_the_end_of_the_stream_is_nobodys(server: RunningServer) -> None:
    """Model API, 4.3: sending succeeds, and the result is discarded."""
    with Gate() as gate, Gate() as tells:
        code = f"""
        def later(sender):
            gate({gate.port})
            gone = until(sender.is_cancelled)
            refusals = [refusal(sender.send, response(n)) for n in range(20)] + [refusal(sender.send, flags=FINAL)]
            tell({tells.port}, [gone, *refusals])
        thread(later, request.get_response_sender())
        """
        with Stream(server) as stream:
            stream.send(MODEL, code)
            gate.wait()
        gate.open()
        assert tells.told() == [True] + [None] * 21
    assert responses(server, "request.get_response_sender().send(response('next'), FINAL)") == [("next", True)]


def test_a_batch_is_answered_request_by_request(server: RunningServer) -> None:
    """model_api.md row 93: one execute, three answers."""
    code = """
    for request in reversed(requests):
        request.get_response_sender().send(response([request.request_id(), len(requests)]), FINAL)
    """
    with Stream(server) as stream:
        for request_id in ("a", "b", "c"):
            stream.send("batching", code, request_id=request_id, batches=True)
        assert sorted(message.value for message in stream.rest()) == [["a", 3], ["b", 3], ["c", 3]]


def test_an_exception_reaches_every_request_of_the_batch_that_has_not_ended(server: RunningServer) -> None:
    """model_api.md row 84 and section 4.3."""
    code = """
    for request in requests:
        if request.request_id() == "a":
            request.get_response_sender().send(response("done"), FINAL)
        elif request.request_id() == "b":
            request.get_response_sender().send(response("one of many"))
    raise ValueError("boom")
    """
    by_id: dict[str, list[Message]] = {"a": [], "b": [], "c": []}
    with Stream(server) as stream:
        for request_id in by_id:
            stream.send("batching", code, request_id=request_id, batches=True)
        for message in stream.rest():
            by_id[message.id].append(message)
    assert [(message.value, message.is_final) for message in by_id["a"]] == [("done", True)]
    assert [(message.value, message.is_final) for message in by_id["b"]] == [("one of many", False), (None, True)]
    for last in (by_id["b"][-1], *by_id["c"]):
        assert last.error.startswith(execute_failed("ValueError: boom\n", "batching_0_0"))
    assert len(by_id["c"]) == 1


# ---------------------------------------------------------------------------------------------- no end

UNANSWERED = "execute returned None for the request, and no response was sent through its sender."


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("return", id="never fetched"),
        pytest.param("request.get_response_sender()", id="fetched"),
        pytest.param("cycle = [request]\ncycle.append(cycle)", id="in a reference cycle"),
        pytest.param(
            "cycle = [request.get_response_sender()]\ncycle.append(cycle)", id="its sender in a reference cycle"
        ),
        pytest.param("thread(lambda sender: None, request.get_response_sender()).join()", id="in a thread"),
    ],
)
def test_a_request_that_nobody_can_answer_any_more_is_told_so(server: RunningServer, code: str) -> None:
    """model_api.md row 90."""
    (message,) = stream_of(server, MODEL, code)
    assert (message.error, message.is_final) == (execute_failed(UNANSWERED, INSTANCE), True)


def test_a_sender_that_is_dropped_ends_its_request(server: RunningServer) -> None:
    """model_api.md row 90."""
    code = "request.get_response_sender().send(response(1))"
    assert responses(server, code, wants_empty_final=True) == [(1, False), (None, True)]
    server.wait_for_log(r"W\d{4} .*dropped without TRITONSERVER_RESPONSE_COMPLETE_FINAL")


# ---------------------------------------------------------------------------------------------- back-pressure


STANDS_STILL = """
# a thread of the model, which notes what it sends, stands still when it sends no more for a while
for _ in range(200):
    before = len(model.notes)
    time.sleep(0.02)
    if len(model.notes) == before and before > 1:
        break
request.get_response_sender().send(response(len(model.notes)), FINAL)
"""


def test_send_waits_when_too_many_responses_are_unread(server: RunningServer) -> None:
    """Section 4.3 and issue 3, item 2: the model is not far ahead of a client that does not read; others are served."""
    with Gate() as gate, Gate() as tells, Stream(server) as stream:
        code = f"""
        def send():
            for n in range(100):
                model.notes.append(n)
                sender.send(response(n, Y=np.zeros(1 << 18)))
            sender.send(flags=FINAL)
            tell({tells.port}, "all sent")
        model.notes = []
        sender = request.get_response_sender()
        thread(send)
        gate({gate.port})
        """
        stream.send(MODEL, code, outputs=("OUT", "Y"))
        gate.wait()
        gate.open()
        ((noted, _),) = responses(server, STANDS_STILL)
        assert isinstance(noted, int)
        assert noted < 40, "the window, and the 1 MB each that fit into sockets and the client's own buffers"
        assert [message.value for message in stream.rest()] == list(range(100))
        assert tells.told() == "all sent"


def test_a_cancelled_stream_lets_a_waiting_send_go(server: RunningServer) -> None:
    """Issue 3, item 2: nobody reads, so nothing waits."""
    with Gate() as tells:
        code = f"""
        def send():
            for n in range(200):
                sender.send(response(n, Y=np.zeros(1 << 18)))
            sender.send(flags=FINAL)
            tell({tells.port}, sender.is_cancelled())
        sender = request.get_response_sender()
        thread(send)
        """
        with Stream(server) as stream:
            stream.send(MODEL, code)
            assert stream.receive().value == 0
        assert tells.told() is True
    assert responses(server, "request.get_response_sender().send(response('next'), FINAL)") == [("next", True)]


def test_responses_to_a_null_request_keep_no_send_waiting(server: RunningServer) -> None:
    everything = [*range(20)]
    for sequence, starts in ((1, True), (2, True), (1, False)):  # the second stands behind an idle row
        messages = stream_of(server, "rows", "", batches=True, sequence_id=sequence, sequence_start=starts)
        assert [message.value for message in messages] == everything


def test_the_end_from_another_thread_lets_a_waiting_send_go(server: RunningServer) -> None:
    """Section 2.5: it may not be sent any more, and hears so without the client having read."""
    with Gate() as gate, Gate() as tells, Stream(server) as stream:
        code = f"""
        def send():
            refused = None
            while refused is None:
                model.notes.append(1)
                refused = refusal(sender.send, response("large", Y=np.zeros(1 << 18)))
            tell({tells.port}, refused)
        def end():
            gate({gate.port})
            sender.send(flags=FINAL)
        model.notes = []
        sender = request.get_response_sender()
        thread(send)
        thread(end)
        """
        stream.send(MODEL, code, wants_empty_final=True)
        gate.wait()
        responses(server, STANDS_STILL)
        gate.open()
        assert tells.told() == "TritonModelException: Unable to send response. Response sender has been closed."
        *large, last = stream.rest()
        assert {message.value for message in large} == {"large"}
        assert last.is_final
