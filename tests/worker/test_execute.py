"""One call of ``execute`` and the checks on what it returns (model API, 4.1, 4.3 and 4.5)."""

from __future__ import annotations

import gc
import weakref
from types import CoroutineType
from typing import Any

import numpy as np
import pytest

from pytriton_lite.worker.execute import ExecuteFailed, check_nothing, check_responses, invoke
from pytriton_lite.worker.pb_utils import InferenceRequest, InferenceResponse
from pytriton_lite.worker.request import RELEASE_ALL, RELEASE_RESCHEDULE

PATH = "repo/m/1/model.py"
EMPTY = InferenceResponse([])


class Returning:
    """A model whose execute returns *value*."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def execute(self, requests: list[InferenceRequest]) -> Any:
        return self._value


def requests_of(count: int, *, release_flags: int = RELEASE_ALL) -> list[InferenceRequest]:
    """*count* requests that the model wants released with *release_flags*."""
    requests = [InferenceRequest(inputs=[], requested_output_names=[], model_name="m") for _ in range(count)]
    for request in requests:
        request.set_release_flags(release_flags)
    return requests


def failure_to_invoke(model: Any) -> str:
    with pytest.raises(ExecuteFailed) as caught:
        invoke(model, requests_of(1), path=PATH)
    return str(caught.value)


def failure_to_check(returned: object, requests: list[InferenceRequest]) -> str:
    with pytest.raises(ExecuteFailed) as caught:
        check_responses(returned, requests)
    return str(caught.value)


# ---------------------------------------------------------------------------------------------- the call


def test_whatever_execute_returns_comes_back() -> None:
    something = object()
    assert invoke(Returning(something), requests_of(1), path=PATH) is something


def test_execute_gets_the_requests() -> None:
    class Keeping:
        def execute(self, requests: list[InferenceRequest]) -> list[InferenceRequest]:
            return requests

    requests = requests_of(2)
    assert invoke(Keeping(), requests, path=PATH) is requests


def test_a_coroutine_comes_back_without_having_run() -> None:
    """Model API, 4.4: it runs in the model's loop."""

    class Async:
        async def execute(self, requests: list[InferenceRequest]) -> None:
            raise AssertionError("it ran")

    coroutine = invoke(Async(), requests_of(1), path=PATH)
    assert isinstance(coroutine, CoroutineType)
    coroutine.close()


def test_a_missing_execute_names_the_file() -> None:
    """model_api.md row 47."""
    assert failure_to_invoke(object()) == f"Python model {PATH} does not implement `execute` method."


def test_execute_is_looked_up_for_each_call() -> None:
    """Model API, 3.3."""
    model = Returning(None)
    model.execute = lambda requests: "another"  # type: ignore[method-assign]
    assert invoke(model, requests_of(1), path=PATH) == "another"


class Raising:
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def execute(self, requests: list[InferenceRequest]) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("error", "head"),
    [
        (ValueError("boom"), "ValueError: boom"),
        (KeyError("k"), "KeyError: 'k'"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt: <EMPTY MESSAGE>"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_whatever_execute_raises_is_its_failure(error: BaseException, head: str) -> None:
    """model_api.md rows 45 and 46."""
    line = Raising.execute.__code__.co_firstlineno + 1
    assert failure_to_invoke(Raising(error)) == f"{head}\n\nAt:\n  {__file__}({line}): execute\n"


def test_an_exception_that_cannot_be_printed_is_a_failure_like_any_other() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    assert failure_to_invoke(Raising(Unprintable())).startswith("Unprintable: <MESSAGE UNAVAILABLE")


def test_a_failed_call_keeps_no_input_alive() -> None:
    """Its memory must be given back with the answer; no garbage collection is waited for."""

    class Failing:
        def execute(self, requests: list[Any]) -> None:
            array = requests[0]
            try:
                array[99]
            except IndexError as error:
                raise ValueError("boom") from error

    gc.disable()
    try:
        array = np.zeros(4)
        kept = weakref.ref(array)
        requests = [array]
        del array
        with pytest.raises(ExecuteFailed):
            invoke(Failing(), requests, path=PATH)  # type: ignore[arg-type]
        requests.clear()
        assert kept() is None
    finally:
        gc.enable()


# ---------------------------------------------------------------------------------------------- what it returned


def test_the_responses_come_back_in_order() -> None:
    responses = [InferenceResponse([]), InferenceResponse([])]
    assert check_responses(responses, requests_of(2)) == responses


def test_the_same_response_may_answer_several_requests() -> None:
    """Model API, 4.1, Lite."""
    assert check_responses([EMPTY, EMPTY], requests_of(2)) == [EMPTY, EMPTY]


def test_a_list_may_be_one_of_the_models_own_kind() -> None:
    class Listed(list[Any]):
        pass

    assert check_responses(Listed([EMPTY]), requests_of(1)) == [EMPTY]


def test_none_stands_for_none_for_every_request() -> None:
    assert check_responses(None, requests_of(2)) == [None, None]


def test_none_at_a_place_stands_for_a_request_answered_by_its_sender() -> None:
    """Model API, 4.2."""
    assert check_responses([EMPTY, None], requests_of(2)) == [EMPTY, None]


@pytest.mark.parametrize(
    ("returned", "requests"), [([], 1), ([EMPTY], 2), ([EMPTY, EMPTY], 1)], ids=["none", "too few", "too many"]
)
def test_a_list_of_wrong_length_names_both_lengths(returned: list[Any], requests: int) -> None:
    """model_api.md row 48."""
    assert failure_to_check(returned, requests_of(requests)) == (
        "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
        f"InferenceRequest(s) size is:{requests}, and InferenceResponse(s) size is:{len(returned)}\n"
    )


@pytest.mark.parametrize(
    ("returned", "type_text"),
    [
        ((EMPTY,), "<class 'tuple'>"),
        (5, "<class 'int'>"),
        ({}, "<class 'dict'>"),
        (EMPTY, "<class 'c_python_backend_utils.InferenceResponse'>"),
        ((response for response in [EMPTY]), "<class 'generator'>"),
    ],
)
def test_what_is_no_list_is_named(returned: object, type_text: str) -> None:
    """model_api.md row 49; a generator is no list either (4.1, Lite)."""
    assert (
        failure_to_check(returned, requests_of(1))
        == f"Expected a list in the execute return, found type '{type_text}'."
    )


@pytest.mark.parametrize("returned", [[5], [EMPTY, 5], [None, 5]], ids=["alone", "after a response", "after none"])
def test_an_element_of_another_type_fails_the_whole_batch(returned: list[Any]) -> None:
    """model_api.md rows 50 and 65."""
    assert failure_to_check(returned, requests_of(len(returned))) == (
        "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'."
    )


class RaisingList(list[Any]):
    """A list whose own methods are of no use."""

    def __len__(self) -> int:
        raise ValueError("length")

    def __iter__(self) -> Any:
        raise ValueError("elements")


class RaisingElement:
    @property  # type: ignore[misc]  # what a proxy may do
    def __class__(self) -> Any:
        raise ValueError("class")


def test_a_list_is_taken_for_what_it_holds_whatever_its_class_does() -> None:
    assert check_responses(RaisingList([EMPTY, None]), requests_of(2)) == [EMPTY, None]
    assert failure_to_check(RaisingList([]), requests_of(1)).startswith("Number of InferenceResponse objects")


def test_an_element_that_raises_when_it_is_looked_at_fails_the_batch_and_no_more() -> None:
    assert failure_to_check([RaisingElement()], requests_of(1)).startswith("Expected an 'InferenceResponse' object")


def test_a_rescheduled_request_has_no_response() -> None:
    """model_api.md row 96: the text is Triton's, letter by letter."""
    requests = requests_of(1) + requests_of(1, release_flags=RELEASE_RESCHEDULE)
    assert failure_to_check([EMPTY, EMPTY], requests) == (
        "Expected a None object in the execute function return list for reschduled request, "
        "found type '<class 'c_python_backend_utils.InferenceResponse'>'."
    )
    assert check_responses([EMPTY, None], requests) == [EMPTY, None]


@pytest.mark.parametrize("flags", [0, RELEASE_ALL, RELEASE_RESCHEDULE | RELEASE_ALL])
def test_only_the_flag_reschedule_alone_reschedules(flags: int) -> None:
    """Model API, 4.5: compared for equality."""
    assert check_responses([EMPTY], requests_of(1, release_flags=flags)) == [EMPTY]


def test_in_decoupled_mode_nothing_may_be_returned() -> None:
    check_nothing(None, instance="m_0_0")


@pytest.mark.parametrize(
    "returned",
    [[], [None], [EMPTY], 5, False],
    ids=["an empty list", "nothing for the request", "a response", "a number", "a truth"],
)
def test_in_decoupled_mode_anything_returned_is_refused(returned: object) -> None:
    """model_api.md row 83."""
    with pytest.raises(ExecuteFailed) as caught:
        check_nothing(returned, instance="m_0_0")
    assert str(caught.value) == (
        "Python model 'm_0_0' is using the decoupled mode and the execute function must return None."
    )
