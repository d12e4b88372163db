"""Stand-ins for the models that a model calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytriton_lite.testing import LoadCall, ModelUnderTest, NoStandIn, Request, StandIns
from pytriton_lite.worker import pb_utils
from tests.harness import write_model

Load = Callable[..., ModelUnderTest]

CONFIG = 'input [{ name: "X" data_type: TYPE_FP32 dims: [-1] }] output [{ name: "Y" data_type: TYPE_FP32 dims: [-1] }]'


@pytest.fixture
def run(tmp_path: Path, triton_model: Load) -> Callable[..., list[float] | str]:
    """``run(body)`` runs ``execute`` with that body once; its ``result``, numbers, or the text of the error response."""

    def load(body: str, *, is_async: bool = False) -> Any:
        lines = "\n".join("        " + line for line in body.splitlines())
        code = (
            "import asyncio\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n"
            "def call(name='callee', **fields):\n"
            "    X = pb_utils.Tensor('X', np.array([3], np.float32))\n"
            "    return pb_utils.InferenceRequest(model_name=name, requested_output_names=fields.pop('outputs', ['Y']),"
            " inputs=[X], **fields)\n"
            "def first(response):\n"
            "    if response.has_error():\n        return response.error().message()\n"
            "    return response.output_tensors()[0].as_numpy().item()\n"
            "class TritonPythonModel:\n"
            f"    {'async ' if is_async else ''}def execute(self, requests):\n{lines}\n"
            "        self.result = result\n"
            "        return [pb_utils.InferenceResponse([]) for _ in requests]\n"
        )
        model = triton_model(write_model(tmp_path, "caller", code, CONFIG))
        model.infer({"X": np.zeros(1, np.float32)})
        return model.instance.result

    return load


def y(value: float) -> dict[str, np.ndarray]:
    return {"Y": np.array([value], np.float32)}


def test_a_function_answers_each_call_and_sees_the_request(run: Callable[..., Any], triton_stand_ins: StandIns) -> None:
    triton_stand_ins.stand_in("callee", lambda request: y(request.inputs()[0].as_numpy().item() * 2))
    assert run("result = first(call(request_id='a', parameters={'p': 1}).exec())") == 6.0
    (request,) = triton_stand_ins.calls_of("callee")
    assert request.request_id() == "a"
    assert request.parameters() == '{"p": 1}'


def test_a_list_answers_one_call_after_another_and_then_says_that_it_is_empty(
    run: Callable[..., Any], triton_stand_ins: StandIns
) -> None:
    triton_stand_ins.stand_in("callee", [y(1), pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([2.0]))])])
    body = (
        "result = [first(call().exec()) for _ in range(2)]\n"
        "try:\n    call().exec()\nexcept LookupError as error:\n    result.append(str(error))"
    )
    full = "the stand-in for model 'callee' has 2 responses and was called once more"
    assert run(body) == [1.0, 2.0, full]


def test_a_model_without_a_stand_in_is_named_with_what_to_do(
    run: Callable[..., Any], triton_stand_ins: StandIns
) -> None:
    triton_stand_ins.stand_in("other", [y(1)])
    with pytest.raises(NoStandIn, match=r"calls model 'callee', which has no stand-in.*there are: 'other'"):
        run("result = call().exec()")


def test_an_error_of_the_callee_is_a_response(run: Callable[..., Any], triton_stand_ins: StandIns) -> None:
    """model_api.md 4.9"""
    triton_stand_ins.stand_in("callee", [pb_utils.TritonError("no such word", pb_utils.TritonError.NOT_FOUND)])
    assert run("result = first(call().exec())") == "no such word"


def test_only_the_outputs_that_were_asked_for_come_back(run: Callable[..., Any], triton_stand_ins: StandIns) -> None:
    triton_stand_ins.stand_in("callee", lambda _: {**y(1), "Z": np.zeros(1)})
    assert run("result = [t.name() for t in call(outputs=['Y']).exec().output_tensors()]") == ["Y"]
    assert triton_stand_ins.calls_of("callee")[0].requested_output_names() == {"Y"}


def test_what_a_stand_in_raises_goes_through_the_model(run: Callable[..., Any], triton_stand_ins: StandIns) -> None:
    def refuse(request: pb_utils.InferenceRequest) -> dict[str, np.ndarray]:
        raise AssertionError("called with the wrong id")

    triton_stand_ins.stand_in("callee", refuse)
    with pytest.raises(AssertionError, match="wrong id"):
        run("result = call().exec()")


def test_decoupled_responses_are_made_one_by_one_and_replayed_by_a_second_loop(
    run: Callable[..., Any], triton_stand_ins: StandIns
) -> None:
    """model_api.md 4.9"""
    made: list[int] = []

    def stream(request: pb_utils.InferenceRequest) -> Iterator[dict[str, np.ndarray]]:
        for value in range(3):
            made.append(value)
            yield y(value)

    triton_stand_ins.stand_in("callee", stream, decoupled=True)
    body = (
        "responses = call().exec(decoupled=True)\n"
        "result = [[first(r) for r in responses], [first(r) for r in responses]]"
    )
    assert run(body) == [[0.0, 1.0, 2.0]] * 2
    assert made == [0, 1, 2]


def test_a_decoupled_call_that_is_cancelled_ends_with_an_error(
    run: Callable[..., Any], triton_stand_ins: StandIns
) -> None:
    triton_stand_ins.stand_in("callee", [y(1), y(2), y(3)], decoupled=True)
    body = (
        "responses = call().exec(decoupled=True)\nresult = [first(next(responses))]\nresponses.cancel()\n"
        "result += [first(r) for r in responses]"
    )
    assert run(body) == [1.0, "the request was cancelled by its caller"]


def test_a_decoupled_model_must_be_called_as_one(run: Callable[..., Any], triton_stand_ins: StandIns) -> None:
    """model_api.md 4.9"""
    triton_stand_ins.stand_in("callee", [y(1)], decoupled=True)
    assert "Please use 'decoupled=True' argument" in run("result = first(call().exec())")


def test_a_default_model_called_decoupled_is_an_iterator_of_one(
    run: Callable[..., Any], triton_stand_ins: StandIns
) -> None:
    """model_api.md 4.9"""
    triton_stand_ins.stand_in("callee", [y(4)])
    assert run("result = [first(r) for r in call().exec(decoupled=True)]") == [4.0]


def test_coroutines_call_side_by_side(run: Callable[..., Any], triton_stand_ins: StandIns) -> None:
    triton_stand_ins.stand_in("callee", [y(1), y(2)])
    triton_stand_ins.stand_in("streaming", [y(3), y(4)], decoupled=True)
    body = (
        "responses = await asyncio.gather(call().async_exec(), call().async_exec())\n"
        "stream = await call('streaming').async_exec(decoupled=True)\n"
        "result = [first(r) for r in [*responses, *stream]]"
    )
    assert run(body, is_async=True) == [1.0, 2.0, 3.0, 4.0]


def test_calls_outside_of_execute_are_refused(tmp_path: Path, triton_stand_ins: StandIns) -> None:
    """model_api.md 4.9"""
    code = """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                pb_utils.InferenceRequest(model_name="m", requested_output_names=[], inputs=[]).exec()
    """
    with pytest.raises(pb_utils.TritonModelException, match="only supported during the 'execute' function"):
        ModelUnderTest(write_model(tmp_path, "early", code, CONFIG), stand_ins=triton_stand_ins)


def test_models_are_loaded_unloaded_and_asked_for(run: Callable[..., Any], triton_stand_ins: StandIns) -> None:
    """model_api.md 4.8"""
    triton_stand_ins.stand_in("callee", lambda _: y(1), is_ready=False)
    body = (
        "result = [pb_utils.is_model_ready('callee'), first(call().exec())]\n"
        "pb_utils.load_model('callee', config='{}', files={'file:1/model.py': b'x'})\n"
        "result += [pb_utils.is_model_ready('callee'), first(call().exec())]\n"
        "pb_utils.unload_model('callee')\n"
        "result += [pb_utils.is_model_ready('callee'), pb_utils.is_model_ready('nobody')]"
    )
    not_ready = (
        "Model callee - Error when running inference: Failed for execute the inference request. "
        "Model 'callee' is not ready."
    )
    assert run(body) == [False, not_ready, True, 1.0, False, False]
    assert triton_stand_ins.loads == [
        LoadCall("load", "callee", "{}", {"file:1/model.py": b"x"}),
        LoadCall("unload", "callee"),
    ]


def test_loading_a_model_without_a_stand_in_fails_as_loading_does(run: Callable[..., Any]) -> None:
    with pytest.raises(pb_utils.TritonModelException, match=r"Failed to load model: .*the test has no stand-in for it"):
        run("result = pb_utils.load_model('nobody')")


@pytest.mark.parametrize(("answer", "decoupled"), [(lambda _: 5, False), (lambda _: {"Y": np.zeros(1)}, True)])
def test_a_stand_in_that_returns_what_is_no_response_is_told_so(
    run: Callable[..., Any], triton_stand_ins: StandIns, answer: Any, decoupled: bool
) -> None:
    triton_stand_ins.stand_in("callee", answer, decoupled=decoupled)
    with pytest.raises(TypeError, match=r"stand-in for .*'callee': expected"):
        run(f"result = call().exec(decoupled={decoupled})")


def test_something_that_is_no_answer_at_all_is_refused_at_once(triton_stand_ins: StandIns) -> None:
    with pytest.raises(TypeError, match="expected a function or a list of responses, got dict"):
        triton_stand_ins.stand_in("callee", {"Y": np.zeros(1)})  # type: ignore[arg-type]


def test_the_caller_can_be_cancelled_by_what_it_calls(
    tmp_path: Path, triton_model: Load, triton_stand_ins: StandIns
) -> None:
    code = """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                before = requests[0].is_cancelled()
                pb_utils.InferenceRequest(model_name="m", requested_output_names=[], inputs=[]).exec()
                self.seen = [before, requests[0].is_cancelled()]
                return [pb_utils.InferenceResponse([])]
    """
    request = Request({"X": np.zeros(1, np.float32)})

    def answer(_: pb_utils.InferenceRequest) -> dict[str, np.ndarray]:
        request.cancel()
        return {}

    triton_stand_ins.stand_in("m", answer)
    model = triton_model(write_model(tmp_path, "cancelled", code, CONFIG))
    model.execute([request])
    assert model.instance.seen == [False, True]
