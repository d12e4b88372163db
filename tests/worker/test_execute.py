"""One call of ``execute`` and the checks on what it returns (model API, 4.1)."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from pytriton_lite.worker.execute import ExecuteFailed, call_execute
from pytriton_lite.worker.pb_utils import InferenceRequest, InferenceResponse

PATH = "repo/m/1/model.py"
EMPTY = InferenceResponse([])


class Returning:
    """A model whose execute returns *value*."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def execute(self, requests: list[InferenceRequest]) -> Any:
        return self._value


def failure_of(model: Any, *, requests: int = 1) -> str:
    with pytest.raises(ExecuteFailed) as caught:
        call_execute(model, [object()] * requests, path=PATH)  # type: ignore[list-item]
    return str(caught.value)


def test_the_responses_come_back_in_order() -> None:
    first, second = InferenceResponse([]), InferenceResponse([])
    assert call_execute(Returning([first, second]), [None] * 2, path=PATH) == [first, second]  # type: ignore[list-item]


def test_the_same_response_may_answer_several_requests() -> None:
    """Model API, 4.1, Lite."""
    assert call_execute(Returning([EMPTY, EMPTY]), [None] * 2, path=PATH) == [EMPTY, EMPTY]  # type: ignore[list-item]


def test_none_stands_for_none_for_every_request() -> None:
    assert call_execute(Returning(None), [None] * 2, path=PATH) == [None, None]  # type: ignore[list-item]


def test_a_missing_execute_names_the_file() -> None:
    """model_api.md row 47."""
    assert failure_of(object()) == f"Python model {PATH} does not implement `execute` method."


def test_execute_is_looked_up_for_each_call() -> None:
    """Model API, 3.3."""
    model = Returning(None)
    model.execute = lambda requests: [EMPTY]  # type: ignore[method-assign]
    assert call_execute(model, [None], path=PATH) == [EMPTY]  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("returned", "requests"), [([], 1), ([EMPTY], 2), ([EMPTY, EMPTY], 1)], ids=["none", "too few", "too many"]
)
def test_a_list_of_wrong_length_names_both_lengths(returned: list[Any], requests: int) -> None:
    """model_api.md row 48."""
    assert failure_of(Returning(returned), requests=requests) == (
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
    assert failure_of(Returning(returned)) == f"Expected a list in the execute return, found type '{type_text}'."


@pytest.mark.parametrize("returned", [[5], [EMPTY, 5], [None, 5]], ids=["alone", "after a response", "after none"])
def test_an_element_of_another_type_fails_the_whole_batch(returned: list[Any]) -> None:
    """model_api.md rows 50 and 65."""
    assert failure_of(Returning(returned), requests=len(returned)) == (
        "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'."
    )


def test_an_async_execute_says_that_it_is_not_yet_supported() -> None:
    """Its coroutine is closed: a "never awaited" warning would fail this test."""

    class Async:
        async def execute(self, requests: list[InferenceRequest]) -> list[InferenceResponse]:
            return [EMPTY]

    text = failure_of(Async())
    gc.collect()
    assert text == "`async def execute` is not yet supported by pytriton-lite."


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
    assert failure_of(Raising(error)) == f"{head}\n\nAt:\n  {__file__}({line}): execute\n"


def test_an_exception_that_cannot_be_printed_is_a_failure_like_any_other() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    assert failure_of(Raising(Unprintable())).startswith("Unprintable: <MESSAGE UNAVAILABLE")


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
            call_execute(Failing(), requests, path=PATH)  # type: ignore[arg-type]
        requests.clear()
        assert kept() is None
    finally:
        gc.enable()
