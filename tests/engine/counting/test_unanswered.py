"""Counting what was accepted and not yet answered, and refusing what would be too much."""

from __future__ import annotations

import pytest

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import BugError, ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, Origin
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.counting.unanswered import Unanswered, UnansweredLimits, UnansweredTotal

SECOND_NS = 1_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now_ns = 1000 * SECOND_NS

    def __call__(self) -> int:
        return self.now_ns


def request(nbytes: int = 10, origin: Origin = Origin.CLIENT) -> InferenceRequest:
    return InferenceRequest("m", None, inputs=[Tensor("X", dtypes.UINT8, (nbytes,), bytes(nbytes))], origin=origin)


def of_server(requests: int | None = None, nbytes: int | None = None) -> UnansweredTotal:
    return UnansweredTotal(UnansweredLimits(requests, nbytes))


def refused(unanswered: Unanswered, nbytes: int = 10) -> InferenceError:
    before = unanswered.requests, unanswered.nbytes
    with pytest.raises(InferenceError) as caught:
        unanswered.take(request(nbytes))
    assert (unanswered.requests, unanswered.nbytes) == before
    return caught.value


def test_a_model_has_half_of_what_the_server_may() -> None:
    one, other = (Unanswered(name, total, clock=Clock()) for total in [of_server(4)] for name in ("one", "other"))
    for unanswered in (one, other):
        unanswered.take(request())
        unanswered.take(request())
        assert "limit 2" in refused(unanswered).message


@pytest.mark.parametrize(
    ("requests", "nbytes", "sent", "text"),
    [
        (3, 0, 1, "a request of 1 bytes to model 'm' is refused, for model 'm' has 3 requests, limit 3"),
        (0, 30, 10, "a request of 10 bytes to model 'm' is refused, for model 'm' has 30 bytes of inputs, limit 30"),
    ],
)
def test_limits_of_a_model(requests: int, nbytes: int, sent: int, text: str) -> None:
    unanswered = Unanswered("m", of_server(), requests=requests, nbytes=nbytes, clock=Clock())
    for _ in range(3):
        unanswered.take(request(sent))
    error = refused(unanswered, sent)
    assert (error.code, error.message) == (ErrorCode.UNAVAILABLE, f"too much waits: {text}")


@pytest.mark.parametrize(
    ("total", "text"),
    [
        (of_server(requests=2), "for the server has 2 requests, limit 2"),
        (of_server(nbytes=25), "for the server has 20 bytes of inputs, limit 25"),
    ],
)
def test_limits_of_the_server_hold_for_all_models_together(total: UnansweredTotal, text: str) -> None:
    one, other = (Unanswered(name, total, requests=0, nbytes=0, clock=Clock()) for name in ("one", "other"))
    one.take(request())
    other.take(request())
    assert text in refused(one).message
    other.give_back(request(), 10)
    one.take(request())


def test_what_ended_makes_room() -> None:
    unanswered = Unanswered("m", of_server(), requests=1, clock=Clock())
    first = request()
    nbytes = unanswered.take(first)
    refused(unanswered)
    unanswered.give_back(first, nbytes)
    unanswered.take(request())


@pytest.mark.parametrize("origin", [Origin.MODEL, Origin.ENSEMBLE])
def test_what_belongs_to_a_request_that_was_accepted_is_counted_and_not_refused(origin: Origin) -> None:
    unanswered = Unanswered("m", of_server(), requests=1, clock=Clock())
    for _ in range(3):
        unanswered.take(request(origin=origin))
    assert unanswered.requests == 3
    refused(unanswered)  # clients give way


def test_steps_of_ensembles_count_for_their_model_alone() -> None:
    total = of_server(requests=2)
    unanswered = Unanswered("m", total, requests=0, clock=Clock())
    step, call = request(origin=Origin.ENSEMBLE), request(origin=Origin.MODEL)
    given = [unanswered.take(step), unanswered.take(call)]
    assert (unanswered.requests, total.requests, total.nbytes) == (2, 1, 10)
    unanswered.give_back(step, given[0])
    unanswered.give_back(call, given[1])
    assert (unanswered.requests, total.requests, total.nbytes) == (0, 0, 0)


def test_inputs_in_shared_memory_of_a_client_count_nothing() -> None:
    unanswered = Unanswered("m", of_server(nbytes=10), nbytes=0, clock=Clock())
    elsewhere = InferenceRequest("m", None, inputs=[Tensor("X", dtypes.UINT8, (99,), None, 99, home=(None, 0))])
    assert unanswered.take(elsewhere) == 0


def test_parameters_and_the_id_count_with_the_inputs() -> None:
    total = of_server(nbytes=100_000)
    unanswered = Unanswered("m", total, nbytes=0, clock=Clock())
    asked = InferenceRequest(
        "m", None, request_id="i" * 1000, parameters={"text": "v" * 50_000, **{f"k{n}": n for n in range(100)}}
    )
    nbytes = unanswered.take(asked)
    assert 51_000 + 100 * 100 < nbytes < 51_000 + 102 * 200
    with pytest.raises(InferenceError, match="too much waits"):
        unanswered.take(asked)
    unanswered.give_back(asked, nbytes)
    assert (unanswered.nbytes, total.nbytes) == (0, 0)


@pytest.mark.parametrize("is_models", [True, False])
def test_a_request_that_never_could_be_taken_is_not_told_to_come_again(is_models: bool) -> None:
    total = of_server() if is_models else of_server(nbytes=100)
    unanswered = Unanswered("m", total, nbytes=100 if is_models else 0, clock=Clock())
    error = refused(unanswered, 101)
    assert error.retry_after_s is None
    who = "model 'm'" if is_models else "the server"
    assert error.message == f"a request of 101 bytes to model 'm' is refused: {who} takes 100 bytes of inputs at most"


def test_refusals_have_the_code_that_the_server_wants() -> None:
    total = UnansweredTotal(UnansweredLimits(requests=0), ErrorCode.RESOURCE_EXHAUSTED)
    assert refused(Unanswered("m", total, clock=Clock())).code is ErrorCode.RESOURCE_EXHAUSTED


def test_giving_back_too_often_is_a_bug() -> None:
    unanswered = Unanswered("m", of_server(), clock=Clock())
    with pytest.raises(BugError, match="more requests of model 'm' have ended than were accepted"):
        unanswered.give_back(request(), 10)


def full(clock: Clock, requests: int) -> Unanswered:
    unanswered = Unanswered("m", of_server(), requests=requests, clock=clock)
    for _ in range(requests):
        unanswered.take(request())
    return unanswered


def serve(unanswered: Unanswered, count: int) -> None:
    """That many are answered, and as many come."""
    for _ in range(count):
        unanswered.give_back(request(), 10)
        unanswered.take(request())


def test_time_to_wait_is_what_the_queue_takes_at_the_rate_of_now() -> None:
    clock = Clock()
    unanswered = full(clock, 100)
    assert refused(unanswered).retry_after_s == 1.0  # nothing is known yet
    serve(unanswered, 40)
    clock.now_ns += 2 * SECOND_NS
    assert refused(unanswered).retry_after_s == pytest.approx(5.0)  # 100 at 20 a second


@pytest.mark.parametrize(("served", "expected"), [(1, 30.0), (1000, 1.0)])
def test_time_to_wait_has_bounds(served: int, expected: float) -> None:
    clock = Clock()
    unanswered = full(clock, 100)
    refused(unanswered)
    serve(unanswered, served)
    clock.now_ns += SECOND_NS
    assert refused(unanswered).retry_after_s == expected


def test_what_was_seen_long_ago_says_nothing_of_the_rate() -> None:
    clock = Clock()
    unanswered = full(clock, 100)
    refused(unanswered)
    serve(unanswered, 10)
    clock.now_ns += 3600 * SECOND_NS
    assert refused(unanswered).retry_after_s == 1.0
