"""A model folder run in the process of a test: what a server does with it, without one."""

from __future__ import annotations

import gc
import os
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytriton_lite.core.custom_metrics import Histogram
from pytriton_lite.testing import ExecuteFailed, InferenceError, ModelUnderTest, PollError, Request
from pytriton_lite.worker.process import Phase, host
from tests.harness import MODEL_REPOSITORY, write_model

Load = Callable[..., ModelUnderTest]

ECHO = 'input [{ name: "X" data_type: TYPE_FP32 dims: [-1] }] output [{ name: "Y" data_type: TYPE_FP32 dims: [-1] }]'
DECOUPLED = ECHO + " model_transaction_policy { decoupled: true }"
ITERATIVE = ECHO + " sequence_batching { iterative_sequence: true }"
BATCHED = ECHO + " max_batch_size: 8"


@pytest.fixture
def run(tmp_path: Path, triton_model: Load) -> Callable[..., ModelUnderTest]:
    """``run(body)`` loads a model whose ``execute`` has that body; ``extra`` are other methods."""

    def load(body: str, config: str = ECHO, *, extra: str = "", is_async: bool = False) -> ModelUnderTest:
        lines = "\n".join("        " + line for line in body.splitlines())
        code = (
            "import asyncio, gc, json, threading\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n"
            "def answer(value):\n"
            "    return pb_utils.InferenceResponse([pb_utils.Tensor('Y', np.array(value, np.float32))])\n"
            "def x(request):\n"
            "    return pb_utils.get_input_tensor_by_name(request, 'X').as_numpy()\n"
            "FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL\n"
            "RESCHEDULE = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE\n"
            f"class TritonPythonModel:\n{extra}\n"
            f"    {'async ' if is_async else ''}def execute(self, requests):\n{lines}\n"
        )
        return triton_model(write_model(tmp_path, "model", code, config))

    return load


def floats(*values: float) -> dict[str, np.ndarray]:
    return {"X": np.array(values, np.float32)}


# ---------------------------------------------------------------------------------------------- life


def test_a_model_of_the_repository_is_initialized_with_seven_arguments_and_answers(triton_model: Load) -> None:
    model = triton_model(MODEL_REPOSITORY / "add_sub")
    ones = np.ones(4, np.float32)
    response = model.infer({"INPUT0": ones, "INPUT1": ones})
    assert response["OUTPUT0"].tolist() == [2.0] * 4
    assert response["OUTPUT1"].tolist() == [0.0] * 4
    assert sorted(model.args) == [
        "model_config",
        "model_instance_device_id",
        "model_instance_kind",
        "model_instance_name",
        "model_name",
        "model_repository",
        "model_version",
    ]
    assert model.args["model_repository"] == str(MODEL_REPOSITORY / "add_sub")
    assert model.args["model_version"] == "1"


AUTO_COMPLETED = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        seen = None

        @staticmethod
        def auto_complete_config(config):
            TritonPythonModel.seen = "in auto_complete_config"
            config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [2]})
            config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [2]})
            config.set_max_batch_size(4)
            config.set_dynamic_batching()
            return config

        def execute(self, requests):
            inputs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)]) for array in inputs]
"""


def test_auto_complete_config_completes_what_the_file_leaves_out(tmp_path: Path, triton_model: Load) -> None:
    """model_api.md 3.1"""
    model = triton_model(write_model(tmp_path, "completed", AUTO_COMPLETED))
    assert model.config["max_batch_size"] == 4
    assert model.config["input"][0]["dims"] == [2]
    assert "dynamic_batching" in model.config
    assert model.infer({"X": np.zeros((3, 2), np.float32)})["Y"].shape == (3, 2)


def test_what_auto_complete_config_leaves_behind_is_not_seen_by_the_instance(
    tmp_path: Path, triton_model: Load
) -> None:
    """model_api.md 3.1: it runs in an interpreter of its own on a server."""
    assert triton_model(write_model(tmp_path, "completed", AUTO_COMPLETED)).instance.seen is None


def test_without_auto_complete_there_has_to_be_a_configuration(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "completed", AUTO_COMPLETED)
    with pytest.raises(PollError, match=r"failed to open text file for read .*config\.pbtxt"):
        ModelUnderTest(folder, auto_complete=False)
    assert host().phase is Phase.OUTSIDE


def test_what_initialize_raises_is_raised_and_the_process_is_as_it_was(tmp_path: Path) -> None:
    code = "class TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('no weights')\n"
    path, modules = list(sys.path), set(sys.modules)
    with pytest.raises(ValueError, match="no weights"):
        ModelUnderTest(write_model(tmp_path, "broken", code, ECHO))
    assert sys.path == path
    assert set(sys.modules) - modules == set()
    assert host().phase is Phase.OUTSIDE


def test_finalize_is_called_once_and_helpers_beside_the_model_are_forgotten(tmp_path: Path) -> None:
    code = """
        import helper
        from . import sibling

        class TritonPythonModel:
            def execute(self, requests):
                return None

            def finalize(self):
                helper.finalized.append(sibling.NAME)
    """
    folder = write_model(tmp_path, "tidy", code, ECHO)
    (folder / "1" / "helper.py").write_text("finalized = []")
    (folder / "1" / "sibling.py").write_text("NAME = 'tidy'")
    with ModelUnderTest(folder) as model:
        finalized = sys.modules["helper"].finalized
    model.close()
    assert finalized == ["tidy"]
    assert "helper" not in sys.modules
    assert "1.sibling" not in sys.modules


ASKS_FOR_VARIABLES = """
    import os

    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            os.environ["PLTEST_SET"] += " and more"
            return config

        def initialize(self, args):
            self.seen = [os.environ["PLTEST_SET"], os.environ["PLTEST_NEW"]]

        def execute(self, requests): ...
"""


def test_variables_of_the_parameters_are_those_of_the_process_while_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLTEST_SET", "before")
    parameters = [
        f'parameters {{ key: "ENV:{name}" value: {{ string_value: "{value}" }} }}'
        for name, value in (("PLTEST_SET", "parameter"), ("PLTEST_NEW", "new"))
    ]
    with ModelUnderTest(write_model(tmp_path, "m", ASKS_FOR_VARIABLES, " ".join([ECHO, *parameters]))) as model:
        assert model.instance.seen == ["parameter", "new"]
    assert (os.environ["PLTEST_SET"], os.environ.get("PLTEST_NEW")) == ("before", None)


def test_a_parameter_that_is_no_variable_is_refused_as_on_the_server(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "m", ASKS_FOR_VARIABLES, ECHO + ' parameters { key: "ENV:1" value {} }')
    with pytest.raises(InferenceError, match="parameter 'ENV:1' of model 'm': '1' is no name of a variable"):
        ModelUnderTest(folder)
    assert host().phase is Phase.OUTSIDE


STRANGE_MODULE = """
    import sys
    import types

    class Classes(types.ModuleType):  # as torch.classes
        __file__ = "_classes.py"

        def __getattr__(self, name):
            return types.ModuleType(name)

    class Missing:
        def __getattr__(self, name):
            raise KeyError(name)

    sys.modules["strange_classes"] = Classes("strange_classes")
    sys.modules["strange_missing"] = Missing()

    class TritonPythonModel:
        def execute(self, requests): ...
"""


def test_modules_that_say_nothing_sensible_about_themselves_are_left_alone(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "m", STRANGE_MODULE, ECHO)
    for _ in range(2):
        with ModelUnderTest(folder):
            pass
        for name in ("strange_classes", "strange_missing"):
            assert sys.modules.pop(name) is not None, "it is not from the model's folder"


def test_the_next_model_loads_where_the_last_one_could_not_be_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    code = "import sys\nsys.path = tuple(sys.path)\nclass TritonPythonModel:\n    def execute(self, requests): ...\n"
    model = ModelUnderTest(write_model(tmp_path, "m", code, ECHO))
    with pytest.raises(TypeError, match="does not support item assignment"):
        model.close()
    assert host().phase is Phase.OUTSIDE


def test_a_second_model_is_refused_while_one_is_loaded(triton_model: Load) -> None:
    triton_model(MODEL_REPOSITORY / "add_sub")
    with pytest.raises(RuntimeError, match="another model is loaded"):
        ModelUnderTest(MODEL_REPOSITORY / "add_sub")


def test_an_ensemble_is_told_to_be_one_and_where_it_can_be_tested(tmp_path: Path) -> None:
    step = 'step { model_name: "m" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } }'
    config = f'platform: "ensemble" {ECHO} ensemble_scheduling {{ {step} }}'
    with pytest.raises(ValueError, match=r"'both' is an ensemble.*with the fixture triton_server"):
        ModelUnderTest(write_model(tmp_path, "both", config=config))
    assert host().phase is Phase.OUTSIDE


def test_a_folder_without_a_version_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no version directory"):
        ModelUnderTest(tmp_path)


# ---------------------------------------------------------------------------------------------- requests in


def test_a_request_that_the_server_would_refuse_is_refused_in_its_words(triton_model: Load) -> None:
    model = triton_model(MODEL_REPOSITORY / "add_sub")
    wrong = np.zeros(4, np.int32)
    with pytest.raises(InferenceError, match="data-type is 'INT32', but model 'add_sub' expects 'FP32'"):
        model.infer({"INPUT0": wrong, "INPUT1": wrong})


@pytest.mark.parametrize("value", [[1, 2.5], (1, 2.5), [np.float64(1), 2.5]])
def test_a_list_becomes_what_the_model_wants(run: Load, value: Any) -> None:
    model = run("return [answer(x(request)) for request in requests]")
    assert model.infer({"X": value})["Y"].tolist() == [1, 2.5]
    with pytest.raises(
        InferenceError, match="input 'X': no array of FP32 can be made of it: expected numbers, got <U3"
    ):
        model.infer({"X": ["one"]})


def test_texts_of_numpy_are_those_of_the_protocol(run: Load) -> None:
    body = "return [answer([len(text) for text in x(request)]) for request in requests]"
    model = run(body, ECHO.replace("FP32", "STRING", 1))
    assert model.infer({"X": np.array(["ab", "ä"])})["Y"].tolist() == [2, 2]
    assert model.infer({"X": ["abc", b"\0"]})["Y"].tolist() == [3, 1]


def test_everything_about_a_request_reaches_the_model(run: Load) -> None:
    model = run(
        "r = requests[0]\n"
        "self.seen = [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), r.parameters(),"
        " sorted(r.requested_output_names())]\n"
        "return [answer([0])]"
    )
    model.infer(
        floats(1),
        request_id="id",
        correlation_id=7,
        sequence_start=True,
        sequence_end=True,
        timeout_us=9,
        parameters={"a": 1, "b": "c"},
        requested_outputs=["Y"],
    )
    assert model.instance.seen == ["id", 7, 3, 9, '{"a":1,"b":"c"}', ["Y"]]


def test_control_tensors_of_a_sequence_model_come_with_the_request(run: Load) -> None:
    control = 'control_input [{ name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }]'
    model = run(
        "return [answer([pb_utils.get_input_tensor_by_name(requests[0], 'START').as_numpy().item()])]",
        ECHO + f" sequence_batching {{ {control} }}",
    )
    assert model.infer(floats(1), correlation_id=5, sequence_start=True)["Y"].tolist() == [1.0]
    assert model.infer(floats(1), correlation_id=5)["Y"].tolist() == [0.0]


STATE = ECHO + (' sequence_batching { state { input_name: "SI" output_name: "SO" data_type: TYPE_FP32 dims: [1] } }')
SUM_UP = """
responses = []
for request in requests:
    total = pb_utils.get_input_tensor_by_name(request, "SI").as_numpy() + x(request)
    state = pb_utils.Tensor("SO", total if total[0] < 100 else np.array([1, 2], np.float32))
    responses.append(pb_utils.InferenceResponse([*answer(total).output_tensors(), state]))
return responses
"""


def test_the_states_of_sequences_are_kept_from_call_to_call(run: Load) -> None:
    model = run(SUM_UP, STATE)
    begins, ends = {"sequence_start": True}, {"sequence_end": True}
    sent = [(1, 1, begins), (2, 10, begins), (3, 1, {}), (4, 1, begins), (5, 10, {}), (6, 10, ends), (7, 10, begins)]
    seen = []
    for value, sequence, flags in sent:
        response = model.infer(floats(value), correlation_id=sequence, **flags)
        assert list(response.outputs) == ["Y"]
        seen.append(response["Y"].tolist())
    assert seen == [[1], [2], [4], [4], [7], [13], [7]]


NO_ID = "inference request to model 'model' must specify a non-zero or non-empty correlation ID"
NOT_OPEN = (
    "inference request for sequence 5 to model 'model' must specify the START flag on the first request of the sequence"
)


@pytest.mark.parametrize(
    ("config", "fields", "text"),
    [
        (ECHO + " sequence_batching {}", {}, NO_ID),
        (ECHO + " sequence_batching {}", {"sequence_start": True}, NO_ID),
        (ECHO + " sequence_batching {}", {"correlation_id": 5}, NOT_OPEN),
        (ECHO + " sequence_batching {}", {"correlation_id": 5, "sequence_end": True}, NOT_OPEN),
        (ITERATIVE, {"correlation_id": 5}, NOT_OPEN),
    ],
)
def test_a_request_of_no_open_sequence_is_refused_in_the_servers_words(
    run: Load, config: str, fields: dict[str, Any], text: str
) -> None:
    model = run("return [answer([1])]", config)
    with pytest.raises(InferenceError) as caught:
        model.infer(floats(1), **fields)
    assert caught.value.message == text


def test_a_sequence_is_open_from_its_start_to_its_end(run: Load) -> None:
    model = run("return [answer([1])]", ECHO + " sequence_batching {}")
    for fields in ({"sequence_start": True}, {}, {"sequence_end": True}):
        assert model.infer(floats(1), correlation_id=5, **fields).error is None
    with pytest.raises(InferenceError, match="must specify the START flag"):
        model.infer(floats(1), correlation_id=5)


def test_requests_of_sequences_have_one_row(run: Load) -> None:
    model = run("return [answer([[1]])]", BATCHED + " sequence_batching {}")
    with pytest.raises(InferenceError, match="must specify batch-size 1 due to requirements of sequence batcher"):
        model.infer({"X": np.ones((2, 1), np.float32)}, correlation_id=5, sequence_start=True)


def test_a_state_of_another_shape_is_an_error_and_is_not_kept(run: Load) -> None:
    model = run(SUM_UP, STATE)
    model.infer(floats(1), correlation_id=1, sequence_start=True)
    response = model.infer(floats(100), correlation_id=1)
    assert response.error is not None
    assert response.error.message() == (
        "unexpected shape for output state 'SO' for model 'model'. Expected [1], got [2]"
    )
    assert model.infer(floats(1), correlation_id=1)["Y"].tolist() == [2]


def test_reshaped_inputs_and_outputs_have_the_models_shape_inside_and_the_clients_outside(
    tmp_path: Path, triton_model: Load
) -> None:
    code = """
        class TritonPythonModel:
            def execute(self, requests):
                import triton_python_backend_utils as pb_utils

                array = requests[0].inputs()[0].as_numpy()
                assert array.shape == (2, 2)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)])]
    """
    tensor = "data_type: TYPE_FP32 dims: [4] reshape { shape: [2, 2] }"
    config = f'input [{{ name: "X" {tensor} }}] output [{{ name: "Y" {tensor} }}]'
    model = triton_model(write_model(tmp_path, "reshaped", code, config))
    assert model.infer(floats(1, 2, 3, 4))["Y"].tolist() == [1.0, 2.0, 3.0, 4.0]


RESHAPED = 'name: "Y" data_type: TYPE_FP32 dims: [4] reshape { shape: [2, 2] }'


def test_the_batch_dimension_is_not_reshaped(tmp_path: Path, triton_model: Load) -> None:
    code = """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                arrays = [request.inputs()[0].as_numpy().reshape(-1, 2, 2) for request in requests]
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array)]) for array in arrays]
    """
    config = f'max_batch_size: 8 input [{{ name: "X" data_type: TYPE_FP32 dims: [4] }}] output [{{ {RESHAPED} }}]'
    model = triton_model(write_model(tmp_path, "rows", code, config))
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert model.infer({"X": rows})["Y"].tolist() == rows.tolist()


def test_an_output_that_does_not_fit_its_reshape_is_told_where_it_is_sent(tmp_path: Path, triton_model: Load) -> None:
    code = """
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                sender = requests[0].get_response_sender()
                try:
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.zeros((3, 1), np.float32))]))
                except pb_utils.TritonModelException as error:
                    self.told = str(error)
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    config = f"output [{{ {RESHAPED} }}] model_transaction_policy {{ decoupled: true }}"
    model = triton_model(write_model(tmp_path, "misfit", code, config))
    (outcome,) = model.execute([Request({})])
    assert outcome.responses == []
    assert model.instance.told == "output tensor shape does not match size of output for 'Y'"


def test_batch_inputs_come_with_the_requests_and_batch_outputs_have_their_inputs_shapes(run: Load) -> None:
    batch_tensors = (
        BATCHED
        + """
        batch_input {
            kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "END" data_type: TYPE_INT32 source_input: "X" }
        batch_output { target_name: "Y" source_input: "X" }
        parameters { key: "BATCH_TENSORS" value { string_value: "yes" } }"""
    )
    body = "ends = [pb_utils.get_input_tensor_by_name(r, 'END').as_numpy()[0] for r in requests]\n"
    body += "return [answer([end] * x(r).size) for end, r in zip(ends, requests)]"
    inputs = [{"X": np.zeros(shape, np.float32)} for shape in ((2, 3), (1, 4))]
    first, second = (one.response["Y"] for one in run(body, batch_tensors).execute([Request(each) for each in inputs]))
    assert (first.tolist(), second.tolist()) == ([[6.0] * 3] * 2, [[10.0] * 4])


def test_nothing_is_kept_of_requests_that_the_model_has_let_go(run: Load) -> None:
    model = run("return [answer(x(r)[:1]) for r in requests]")
    large = {"X": np.ones(250_000, np.float32)}
    model.infer(large)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        outcomes = [weakref.ref(model.execute([Request(large)])[0]) for _ in range(20)]
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < large["X"].nbytes
    assert [outcome() for outcome in outcomes] == [None] * 20


def test_a_request_that_the_model_keeps_is_whole_after_others(run: Load) -> None:
    model = run(
        "self.kept += requests\nreturn [answer(x(r)) for r in requests]",
        extra="    kept = []\n",
    )
    first = Request(floats(1))
    model.execute([first])
    model.infer(floats(2))
    one, _ = model.instance.kept
    assert one.inputs()[0].as_numpy().tolist() == [1.0]
    assert not one.is_cancelled()
    first.cancel()
    assert one.is_cancelled()


def test_writing_into_an_input_does_not_change_what_it_answers_when_it_is_returned(run: Load) -> None:
    model = run(
        "x(requests[0])[:] = 9\n"
        "X = requests[0].inputs()[0]\n"
        "X._name = 'Y'\n"  # the model gives back the very tensor
        "return [pb_utils.InferenceResponse([X])]"
    )
    assert model.infer(floats(1, 2))["Y"].tolist() == [1.0, 2.0]


# ---------------------------------------------------------------------------------------------- responses out


def test_a_batch_is_one_call_of_execute_with_an_outcome_for_each_request(run: Load) -> None:
    model = run("return [answer(x(request) * len(requests)) for request in requests]", BATCHED)
    outcomes = model.execute([Request({"X": np.full((1, 1), value, np.float32)}) for value in (1, 2)])
    assert [outcome.response["Y"].tolist() for outcome in outcomes] == [[[2.0]], [[4.0]]]


def test_outputs_that_nobody_asked_for_are_not_in_the_response(run: Load) -> None:
    """model_api.md 4.1"""
    model = run(
        "return [pb_utils.InferenceResponse([pb_utils.Tensor(n, np.zeros(1, np.float32)) for n in ('Y', 'Z')],"
        " parameters={'p': 1})]"
    )
    response = model.infer(floats(1))
    assert list(response.outputs) == ["Y"]
    assert response.parameters == {"p": 1}
    with pytest.raises(KeyError, match=r"no output 'Z'; it has \['Y'\]"):
        response["Z"]


def test_an_error_response_has_code_and_message_and_raises_when_its_outputs_are_read(run: Load) -> None:
    model = run(
        "return [pb_utils.InferenceResponse(error=pb_utils.TritonError('too hot', pb_utils.TritonError.UNAVAILABLE))]"
    )
    response = model.infer(floats(1))
    assert response.error is not None
    assert response.error.code().name == "UNAVAILABLE"
    with pytest.raises(InferenceError, match="too hot"):
        response["Y"]


def test_what_execute_raises_is_raised_with_the_line_of_the_model(run: Load) -> None:
    model = run("raise ValueError('boom')")
    with pytest.raises(ValueError, match="boom") as raised:
        model.infer(floats(1))
    assert raised.traceback[-1].path.name == "model.py"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("return ()", "Expected a list in the execute return, found type '<class 'tuple'>'."),
        ("return []", "Number of InferenceResponse objects do not match the number of InferenceRequest objects."),
        ("return [1]", "Expected an 'InferenceResponse' object in the execute function return list"),
    ],
)
def test_what_execute_may_not_return_fails_in_tritons_words(run: Load, body: str, text: str) -> None:
    """model_api.md 4.1"""
    with pytest.raises(ExecuteFailed) as failed:
        run(body).infer(floats(1))
    assert text in str(failed.value)


def test_a_request_that_nobody_answers_gets_an_error(run: Load) -> None:
    """model_api.md 4.1"""
    response = run("return None").infer(floats(1))
    assert response.error is not None
    assert response.error.message() == (
        "Failed to process the request(s) for model 'model_0', message: execute returned None for the request, and no "
        "response was sent through its sender."
    )


def test_a_sender_answers_in_default_mode_from_a_thread_after_execute_returned(run: Load) -> None:
    """model_api.md 4.2"""
    model = run(
        "sender = requests[0].get_response_sender()\n"
        "threading.Thread(target=lambda: (self.may_send.wait(), sender.send(answer([5]), FINAL))).start()\n"
        "return None",
        extra="    may_send = threading.Event()\n",
    )
    (outcome,) = model.execute([Request(floats(1))])
    assert outcome.received == []
    model.instance.may_send.set()
    assert outcome.response["Y"].tolist() == [5.0]


def test_a_second_response_in_default_mode_is_refused_as_by_triton(run: Load) -> None:
    """model_api.md 2.5"""
    model = run("sender = requests[0].get_response_sender()\nsender.send(answer([1]))\nsender.send(answer([2]))")
    with pytest.raises(Exception, match=r"Non-decoupled model cannot send more than one response\."):
        model.infer(floats(1))


def test_a_decoupled_model_sends_many_responses_and_what_it_writes_afterwards_is_not_seen(run: Load) -> None:
    """model_api.md 4.3"""
    model = run(
        "sender = requests[0].get_response_sender()\n"
        "array = np.zeros(1, np.float32)\n"
        "for at in range(3):\n"
        "    array[:] = at\n"
        "    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor('Y', array)]))\n"
        "sender.send(flags=FINAL)",
        DECOUPLED,
    )
    (outcome,) = model.execute([Request(floats(1))])
    assert [response["Y"].item() for response in outcome.responses] == [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match="expected one response, the model sent 3"):
        outcome.response


def test_a_decoupled_model_must_return_none(run: Load) -> None:
    """model_api.md 4.3"""
    with pytest.raises(ExecuteFailed, match="is using the decoupled mode and the execute function must return None"):
        run("return []", DECOUPLED).infer(floats(1))


def test_a_dropped_sender_ends_the_request_with_a_warning(run: Load) -> None:
    """model_api.md 4.3"""
    model = run("requests[0].get_response_sender().send(answer([1]))", DECOUPLED)
    assert model.infer(floats(1))["Y"].tolist() == [1.0]
    assert [line.level for line in model.log] == ["WARNING"]
    assert "the end is sent for it" in model.log[0].text


def test_an_end_that_does_not_come_is_a_timeout_that_names_the_flag(run: Load) -> None:
    model = run("self.kept = requests", DECOUPLED)
    (outcome,) = model.execute([Request(floats(1))])
    with pytest.raises(TimeoutError, match="TRITONSERVER_RESPONSE_COMPLETE_FINAL"):
        outcome.wait(timeout_s=0)


def test_a_coroutine_in_default_mode_is_awaited_and_its_exception_raised(run: Load) -> None:
    """model_api.md 4.4"""
    model = run(
        "await asyncio.sleep(0)\nreturn [answer(1 / x(requests[0]).astype(int).item() * np.ones(1))]", is_async=True
    )
    assert model.infer(floats(1))["Y"].tolist() == [1.0]
    with pytest.raises(ZeroDivisionError):
        model.infer(floats(0))


def test_a_coroutine_in_decoupled_mode_goes_on_after_execute_returned(run: Load) -> None:
    """model_api.md 4.4"""
    model = run(
        "sender = requests[0].get_response_sender()\n"
        "await asyncio.get_running_loop().run_in_executor(None, self.go_on.wait)\n"
        "sender.send(answer([3]), FINAL)",
        DECOUPLED,
        extra="    go_on = threading.Event()\n",
        is_async=True,
    )
    (outcome,) = model.execute([Request(floats(1))])
    assert not outcome.is_final
    model.instance.go_on.set()
    assert outcome.response["Y"].tolist() == [3.0]


def test_what_a_decoupled_coroutine_raises_is_raised_to_who_waits(run: Load) -> None:
    model = run(
        "requests[0].get_response_sender().send(answer([1]))\nraise ValueError('lost')", DECOUPLED, is_async=True
    )
    (outcome,) = model.execute([Request(floats(1))])
    with pytest.raises(ValueError, match="lost"):
        outcome.wait()
    assert len(outcome.received) == 1


def test_a_rescheduled_request_comes_again_without_the_start_flag(run: Load) -> None:
    """model_api.md 4.5"""
    model = run(
        "self.flags.append(requests[0].flags())\n"
        "if len(self.flags) < 3:\n"
        "    requests[0].set_release_flags(RESCHEDULE)\n"
        "    return None\n"
        "return [answer([len(self.flags)])]",
        ITERATIVE,
        extra="    flags = []\n",
    )
    (outcome,) = model.execute([Request(floats(1))])
    assert outcome.response["Y"].tolist() == [3.0]
    assert outcome.rounds == 3
    assert model.instance.flags == [1, 0, 0]


def test_a_model_that_is_not_iterative_may_not_reschedule(run: Load) -> None:
    """model_api.md 4.5"""
    response = run("requests[0].set_release_flags(RESCHEDULE)").infer(floats(1))
    assert response.error is not None
    assert "not configured to handle such a flag" in response.error.message()


# ---------------------------------------------------------------------------------------------- cancellation, log, metrics


def test_a_request_is_cancelled_after_so_many_questions_and_stays_so(run: Load) -> None:
    """model_api.md 4.7"""
    model = run("r = requests[0]\nself.seen = [r.is_cancelled() for _ in range(4)]\nreturn [answer([0])]")
    model.infer(floats(1), cancelled_after=2)
    assert model.instance.seen == [False, False, True, True]
    model.infer(floats(1))
    assert model.instance.seen == [False] * 4


def test_a_request_can_be_cancelled_while_the_model_works_on_it(run: Load) -> None:
    model = run(
        "sender = requests[0].get_response_sender()\n"
        "def work():\n"
        "    self.cancelled.wait()\n"
        "    sender.send(answer([sender.is_cancelled()]), FINAL)\n"
        "threading.Thread(target=work).start()",
        DECOUPLED,
        extra="    cancelled = threading.Event()\n",
    )
    request = Request(floats(1))
    (outcome,) = model.execute([request])
    request.cancel()
    model.instance.cancelled.set()
    assert outcome.response["Y"].tolist() == [1.0]


def test_lines_of_the_logger_are_kept_with_file_and_level(run: Load, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="pytriton_lite.model")
    model = run("pb_utils.Logger.log_warn('hot')\npb_utils.Logger.log_verbose('detail')\nreturn [answer([0])]")
    model.infer(floats(1))
    assert [(line.level, line.text, line.filename) for line in model.log] == [
        ("WARNING", "hot", "model.py"),
        ("VERBOSE", "detail", "model.py"),
    ]
    assert [record.getMessage() for record in caplog.records] == ["hot", "detail"]


def test_custom_metrics_can_be_read(run: Load) -> None:
    """model_api.md 2.9"""
    model = run(
        "self.counter.increment(2)\nself.histogram.observe(0.3)\nreturn [answer([self.counter.value()])]",
        extra=(
            "    def initialize(self, args):\n"
            "        self.family = pb_utils.MetricFamily('served_total', 'Served', pb_utils.MetricFamily.COUNTER)\n"
            "        self.counter = self.family.Metric({'kind': 'a'})\n"
            "        self.times = pb_utils.MetricFamily('times', 'Times', pb_utils.MetricFamily.HISTOGRAM)\n"
            "        self.histogram = self.times.Metric(buckets=[0.1, 1.0])\n"
        ),
    )
    assert model.infer(floats(1))["Y"].tolist() == [2.0]
    assert model.metric("served_total", {"kind": "a"}) == 2.0
    histogram = model.metric("times")
    assert isinstance(histogram, Histogram)
    assert histogram.cumulative() == [0, 1, 1]
    with pytest.raises(KeyError, match=r"no metric 'served_total' with labels \{\}"):
        model.metric("served_total")


def test_the_directory_of_the_version_is_told(run: Load, tmp_path: Path) -> None:
    model = run("self.seen = pb_utils.get_model_dir()\nreturn [answer([0])]")
    model.infer(floats(1))
    assert model.instance.seen == str(tmp_path / "model" / "1")


def test_a_python_based_backend_serves_a_model_without_code(tmp_path: Path, triton_model: Load) -> None:
    """model_api.md 1.6"""
    backend = tmp_path / "backends" / "doubler"
    backend.mkdir(parents=True)
    (backend / "model.py").write_text(
        "import triton_python_backend_utils as pb_utils\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        return [pb_utils.InferenceResponse([pb_utils.Tensor('Y', 2 * r.inputs()[0].as_numpy())]) for r in requests]\n"
    )
    folder = write_model(tmp_path / "models", "data", config=ECHO + ' backend: "doubler"')
    model = triton_model(folder, backend_directory=tmp_path / "backends")
    assert model.infer(floats(1, 2))["Y"].tolist() == [2.0, 4.0]
    assert threading.current_thread() is threading.main_thread()
