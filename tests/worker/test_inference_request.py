"""Requests that a model builds or gets, responses, and senders, without a server (model API, 2.3, 2.4 and 2.5)."""

from __future__ import annotations

import copy
import gc
import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pytriton_lite.worker.pb_utils import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_RESPONSE_COMPLETE_FINAL,
    InferenceRequest,
    InferenceResponse,
    InferenceResponseSender,
    InferenceTrace,
    PreferredMemory,
    Tensor,
    TritonError,
    TritonModelException,
)
from pytriton_lite.worker.response_sender import Answering

FINAL = TRITONSERVER_RESPONSE_COMPLETE_FINAL
IN = Tensor("IN", np.zeros(1, dtype=np.float32))


def build(**fields: Any) -> InferenceRequest:
    return InferenceRequest(**{"inputs": [IN], "requested_output_names": ["OUT"], "model_name": "m", **fields})


# ---------------------------------------------------------------------------------------------- built by a model


def test_a_request_says_what_it_was_built_with() -> None:
    """Model API, 2.3."""
    request = build(
        request_id="id",
        correlation_id=7,
        model_version=2,
        flags=3,
        timeout=5,
        preferred_memory=PreferredMemory(TRITONSERVER_MEMORY_CPU),
        trace=InferenceTrace(),
        parameters={"a": 1, "b": True, "c": "s"},
    )
    assert request.inputs() == [IN]
    assert request.requested_output_names() == {"OUT"}
    assert (request.request_id(), request.correlation_id(), request.flags(), request.timeout()) == ("id", 7, 3, 5)
    assert request.parameters() == '{"a": 1, "b": true, "c": "s"}'


def test_what_is_left_out_has_its_default() -> None:
    """Model API, 2.3."""
    request = build()
    assert (request.request_id(), request.correlation_id(), request.flags(), request.timeout()) == ("", 0, 0, 0)
    assert request.parameters() == "{}"


def test_the_arguments_have_tritons_order() -> None:
    """Model API, 2.3."""
    request = InferenceRequest("id", 7, [IN], ["OUT"], "m", 1, 2, 3)
    assert (request.request_id(), request.correlation_id(), request.flags(), request.timeout()) == ("id", 7, 2, 3)


@pytest.mark.parametrize("lists", [([], []), ((), ()), ([IN], []), ([], ["OUT"])], ids=["lists", "tuples", "in", "out"])
def test_inputs_and_outputs_may_be_empty(lists: tuple[Any, Any]) -> None:
    request = build(inputs=lists[0], requested_output_names=lists[1])
    assert request.inputs() == list(lists[0])
    assert request.requested_output_names() == set(lists[1])


@pytest.mark.parametrize(
    "fields",
    [
        {"inputs": None},
        pytest.param({"inputs": IN}, id="a tensor for inputs"),  # without an id it would be its address
        {"inputs": [5]},
        {"requested_output_names": None},
        {"requested_output_names": [5]},
        {"model_name": None},
        {"model_version": "1"},
        {"request_id": None},
        {"correlation_id": None},
        {"flags": None},
        {"flags": -1},
        {"flags": 1 << 32},
        {"timeout": None},
        {"timeout": -1},
        {"timeout": 1.5},
        {"preferred_memory": TRITONSERVER_MEMORY_CPU},
        {"trace": "trace"},
    ],
    ids=str,
)
def test_arguments_of_a_wrong_type_are_a_type_error(fields: dict[str, Any]) -> None:
    """Model API, 2.3."""
    with pytest.raises(TypeError, match=r"^__init__\(\): incompatible constructor arguments\."):
        build(**fields)


@pytest.mark.parametrize("missing", ["inputs", "requested_output_names", "model_name"])
def test_three_arguments_are_required(missing: str) -> None:
    """Model API, 2.3."""
    fields: dict[str, Any] = {"inputs": [], "requested_output_names": [], "model_name": "m"}
    del fields[missing]
    with pytest.raises(TypeError, match=r"^__init__\(\)"):
        InferenceRequest(**fields)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"inputs": [None]}, "Input tensor for request with id 'x' and model name 'm' should not be empty."),
        (
            {"requested_output_names": [""]},
            "Requested output name for request with id 'x' and model name 'm' should not be empty.",
        ),
        ({"correlation_id": 1.5}, "Correlation ID must be integer or string"),
        ({"parameters": {1: 1}}, "Expect parameters keys to have type str, found type <class 'int'>"),
        ({"parameters": {"f": 0.5}}, "Expect parameters values to have type bool/int/str, found type <class 'float'>"),
        (
            {"parameters": {"f": None}},
            "Expect parameters values to have type bool/int/str, found type <class 'NoneType'>",
        ),
        ({"parameters": {"f": [1]}}, "Expect parameters values to have type bool/int/str, found type <class 'list'>"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_what_triton_refuses_is_refused_with_its_text(fields: dict[str, Any], text: str) -> None:
    """Model API, 2.3."""
    with pytest.raises(TritonModelException) as caught:
        build(request_id="x", **fields)
    assert str(caught.value) == text


def test_parameters_that_are_no_dict_are_refused() -> None:
    """Model API, 2.3."""
    with pytest.raises(TritonModelException, match=", got <class 'list'>"):
        build(parameters=["a"])


@pytest.mark.parametrize("correlation_id", [-1, 1 << 64])
def test_a_correlation_id_outside_64_bits_is_a_runtime_error(correlation_id: int) -> None:
    """Model API, 2.3."""
    with pytest.raises(RuntimeError, match=str(correlation_id)):
        build(correlation_id=correlation_id)


@pytest.mark.parametrize("correlation_id", [0, (1 << 64) - 1, "", "abc"])
def test_a_correlation_id_is_a_number_or_a_text(correlation_id: int | str) -> None:
    """Model API, 2.3."""
    assert build(correlation_id=correlation_id).correlation_id() == correlation_id


def test_the_lists_of_a_request_are_new_each_time() -> None:
    request = build()
    request.inputs().clear()
    request.requested_output_names().clear()
    assert request.inputs() == [IN]
    assert request.requested_output_names() == {"OUT"}


def test_a_trace_of_an_untraced_request_has_no_context() -> None:
    """Model API, 2.3."""
    assert build().trace().get_context() is None


def test_nobody_cancels_a_request_of_the_models_own() -> None:
    """Model API, 4.7."""
    request = build()
    assert request.is_cancelled() is False
    assert request.get_response_sender().is_cancelled() is False


@pytest.mark.parametrize("method", ["exec", "async_exec"])
@pytest.mark.parametrize("decoupled", [None, [], "yes"])
def test_decoupled_is_true_or_false(method: str, decoupled: Any) -> None:
    """Model API, 2.3."""
    with pytest.raises(TypeError, match=rf"^{method}\(\): incompatible function arguments\."):
        getattr(build(), method)(decoupled=decoupled)


@pytest.mark.parametrize("flags", [None, -1, "2", 1.5])
@pytest.mark.parametrize("method", ["set_flags", "set_release_flags"])
def test_flags_are_unsigned_numbers(method: str, flags: Any) -> None:
    """Model API, 2.3."""
    with pytest.raises(TypeError, match=rf"^{method}\(\): incompatible function arguments\."):
        getattr(build(), method)(flags)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda function: function.__name__)
@pytest.mark.parametrize(
    "thing",
    [build(), InferenceResponse(), TritonError("e"), build().get_response_sender()],
    ids=lambda thing: type(thing).__name__,
)
def test_objects_can_be_neither_pickled_nor_copied(thing: object, copied: Callable[[object], object]) -> None:
    """Model API, section 2: two copies of a request would each end it."""
    with pytest.raises(TypeError, match=f"^cannot pickle 'c_python_backend_utils.{type(thing).__name__}' object$"):
        copied(thing)


# ---------------------------------------------------------------------------------------------- answered by a model


class CarrierSpy:
    """Stands where the worker does: keeps what is sent, and closes as the worker does."""

    def __init__(self) -> None:
        self.carried: list[tuple[InferenceResponse | None, bool]] = []
        self.orphans: list[int] = []
        self.is_cancelled = False
        self.questions = 0

    def carry(self, answering: Answering, response: InferenceResponse | None, *, is_final: bool) -> None:
        self.carried.append((response, is_final))
        answering.sent += response is not None
        answering.is_closed = is_final

    def orphaned(self, answering: Answering) -> None:
        self.orphans.append(answering.index)

    def looks_cancelled(self, answering: Answering) -> bool:
        self.questions += 1
        answering.is_cancelled = self.is_cancelled
        return answering.is_cancelled


@pytest.fixture
def carrier() -> CarrierSpy:
    return CarrierSpy()


def received(carrier: CarrierSpy, *, is_decoupled: bool) -> InferenceRequest:
    """A request as the worker makes it."""
    outputs = frozenset({"OUT"})
    return InferenceRequest._received(
        model_name="m",
        model_version=1,
        request_id="",
        correlation_id=0,
        flags=0,
        timeout_us=0,
        parameters="",
        requested_outputs=outputs,
        inputs=[],
        answering_of=lambda: Answering(carrier, 1, 0, is_decoupled=is_decoupled, requested_outputs=outputs),
    )


def sender_of(carrier: CarrierSpy, *, is_decoupled: bool) -> InferenceResponseSender:
    return received(carrier, is_decoupled=is_decoupled).get_response_sender()


def refusal(send: Callable[..., None], *arguments: Any) -> str:
    with pytest.raises(TritonModelException) as caught:
        send(*arguments)
    return str(caught.value)


UNSUPPORTED_FLAG = "Unable to send response. Unsupported flag provided."
NO_RESPONSE = "Inference Response object must be provided when the response flags is set to zero."
NO_STATE = "Unable to send response. Response sender has no reference to the decoupled state of the model."
SECOND = "Unable to send response. Non-decoupled model cannot send more than one response."
FINAL_FIRST = "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
CLOSED = "Unable to send response. Response sender has been closed."
RESPONSE = InferenceResponse()


def test_a_decoupled_sender_sends_as_often_as_it_likes(carrier: CarrierSpy) -> None:
    """Model API, 2.5."""
    sender = sender_of(carrier, is_decoupled=True)
    sender.send(RESPONSE)
    sender.send(response=RESPONSE, flags=0)
    sender.send(flags=FINAL)
    assert carrier.carried == [(RESPONSE, False), (RESPONSE, False), (None, True)]


def test_a_sender_in_default_mode_sends_one_response_and_its_end(carrier: CarrierSpy) -> None:
    """Model API, 2.5."""
    sender = sender_of(carrier, is_decoupled=False)
    assert refusal(sender.send, None, FINAL) == FINAL_FIRST
    sender.send(RESPONSE)
    assert refusal(sender.send, RESPONSE) == SECOND
    sender.send(None, FINAL)
    assert carrier.carried == [(RESPONSE, False), (None, True)]


@pytest.mark.parametrize("is_decoupled", [False, True])
def test_after_the_end_nothing_can_be_sent(carrier: CarrierSpy, is_decoupled: bool) -> None:
    """Model API, 2.5: in default mode the second response is found first."""
    sender = sender_of(carrier, is_decoupled=is_decoupled)
    sender.send(RESPONSE, FINAL)
    assert refusal(sender.send, RESPONSE) == (CLOSED if is_decoupled else SECOND)
    assert refusal(sender.send, None, FINAL) == CLOSED
    assert carrier.carried == [(RESPONSE, True)]


def test_the_checks_run_in_tritons_order(carrier: CarrierSpy) -> None:
    """Model API, 2.5: flags, missing response, state, the rules of the default mode, closed."""
    own = build().get_response_sender()
    assert refusal(own.send, None, 2) == UNSUPPORTED_FLAG
    assert refusal(own.send, None, 0) == NO_RESPONSE
    assert refusal(own.send, RESPONSE, 0) == NO_STATE
    ended = sender_of(carrier, is_decoupled=False)
    ended.send(RESPONSE, FINAL)
    assert refusal(ended.send, RESPONSE, 2) == UNSUPPORTED_FLAG
    assert refusal(ended.send) == NO_RESPONSE


@pytest.mark.parametrize("arguments", [("r",), (5, 1), (None, -1), (None, "1"), (None, None)], ids=repr)
def test_arguments_of_send_of_a_wrong_type_are_a_type_error(carrier: CarrierSpy, arguments: tuple[Any, ...]) -> None:
    """Model API, 2.5."""
    with pytest.raises(TypeError, match=r"^send\(\): incompatible function arguments\."):
        sender_of(carrier, is_decoupled=True).send(*arguments)


def test_a_request_has_one_sender(carrier: CarrierSpy) -> None:
    """Model API, 2.3."""
    request = received(carrier, is_decoupled=True)
    assert request.get_response_sender() is request.get_response_sender()


def test_cancellation_is_asked_live_and_never_taken_back(carrier: CarrierSpy) -> None:
    """Model API, 4.7."""
    request = received(carrier, is_decoupled=True)
    sender = request.get_response_sender()
    assert [request.is_cancelled(), sender.is_cancelled()] == [False, False]
    carrier.is_cancelled = True
    assert [request.is_cancelled(), sender.is_cancelled()] == [True, True]
    carrier.is_cancelled = False
    assert [request.is_cancelled(), sender.is_cancelled()] == [True, True]


def test_the_last_reference_to_go_tells_that_nobody_can_answer(carrier: CarrierSpy) -> None:
    """Model API, 4.1 and 4.3, Lite."""
    request = received(carrier, is_decoupled=True)
    sender = request.get_response_sender()
    del request
    assert carrier.orphans == []
    del sender
    assert carrier.orphans == [0]


def test_a_request_alone_keeps_its_answer_open(carrier: CarrierSpy) -> None:
    request = received(carrier, is_decoupled=True)
    request.get_response_sender().send(RESPONSE)
    assert carrier.orphans == []
    del request
    assert carrier.orphans == [0]


def test_requests_in_a_cycle_are_found_by_the_collector(carrier: CarrierSpy) -> None:
    cycle: list[object] = [received(carrier, is_decoupled=True).get_response_sender()]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert carrier.orphans == [0]


def test_a_request_that_has_ended_tells_nothing_when_it_goes(carrier: CarrierSpy) -> None:
    request = received(carrier, is_decoupled=True)
    request.get_response_sender().send(RESPONSE, FINAL)
    del request
    gc.collect()
    assert carrier.orphans == []


def test_a_request_whose_sender_nobody_asked_for_tells_nothing(carrier: CarrierSpy) -> None:
    """What is answered by the list that execute returns pays for nothing else."""
    request = received(carrier, is_decoupled=False)
    del request
    gc.collect()
    assert carrier.orphans == []


# ---------------------------------------------------------------------------------------------- responses


def test_the_parameters_of_a_response_are_json_text() -> None:
    """Model API, 2.4."""
    assert json.loads(InferenceResponse([], parameters={"a": 1}).parameters()) == {"a": 1}
