"""What ``execute`` may return and what a client gets for it: model_api.md rows 45 to 65, 68, 103 and 104."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from tests.contract.scripted_model import (
    CONFIG,
    answer,
    execute_failed,
    outputs_of,
    run,
    value_of,
    write_script_model,
    write_scripted_model,
)
from tests.harness import Reply, RunningServer, tensor, write_model

RESHAPED = CONFIG.replace(
    '"Y" data_type: TYPE_FP32 dims: [ -1 ]', '"Y" data_type: TYPE_FP32 dims: [ 4 ] reshape: { shape: [ 2, 2 ] }'
)

BATCHING = """
backend: "python"
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
dynamic_batching { preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 30000000 }
"""
"""Three requests go at once, together; fewer would wait."""

BATCHING_CODE = """
import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils

CODES = {"invalid": pb_utils.TritonError.INVALID_ARG}


class TritonPythonModel:
    def execute(self, requests):
        words = [request.inputs()[0].as_numpy()[0, 0].decode() for request in requests]
        if "raise" in words:
            raise ValueError("boom")
        if "die" in words:
            os._exit(1)
        responses = []
        for request, word in zip(requests, words):
            told = json.dumps([word, len(requests), request.inputs()[0].shape()])
            output = pb_utils.Tensor("OUT", np.array([[told]], dtype=object))
            error = pb_utils.TritonError(word, CODES[word]) if word in CODES else None
            responses.append(pb_utils.InferenceResponse([output], error))
        if "short" in words:
            responses.pop()
        if "five" in words:
            responses[1] = 5
        if "shared" in words:
            responses = [responses[0]] * len(responses)
        return responses
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("repository")


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RunningServer]:
    write_scripted_model(repository)
    write_scripted_model(repository, "reshaped", config=RESHAPED)
    write_scripted_model(repository, "counted")
    write_script_model(repository, "script")
    write_model(repository, "batching", BATCHING_CODE, BATCHING)
    write_model(repository, "no_execute", "class TritonPythonModel: pass", CONFIG)
    write_model(
        repository,
        "raising",
        """
        def helper():
            raise ValueError("boom")


        class TritonPythonModel:
            def execute(self, requests):
                if requests[0].request_id() == "fine":
                    return [__import__("triton_python_backend_utils").InferenceResponse([])]
                helper()
        """,
        CONFIG,
    )
    with RunningServer(repository) as running:
        yield running


@pytest.mark.parametrize(
    "code",
    [
        "requests.clear()\nreturn [response(7)]",
        "sender = requests.pop().get_response_sender()\nsender.send(response(7), flags=FINAL)",
    ],
    ids=["and returns the responses", "and answers by its sender"],
)
def test_a_model_may_consume_the_list_of_its_requests(server: RunningServer, code: str) -> None:
    assert value_of(run(server, code, model="script")) == 7


def test_a_coroutine_may_be_one_that_was_compiled(server: RunningServer) -> None:
    code = """
        import collections.abc

        async def answer():
            return [response(7)]

        inner = answer()

        class Compiled(collections.abc.Coroutine):
            send, throw, close, __await__ = (
                staticmethod(method) for method in (inner.send, inner.throw, inner.close, inner.__await__)
            )

        return Compiled()
    """
    assert value_of(run(server, code, model="script")) == 7


@pytest.mark.parametrize(("child", "status"), [("raise SystemExit(3)", 1), ("return []", 0)])
def test_a_child_that_a_model_has_forked_is_no_second_worker(server: RunningServer, child: str, status: int) -> None:
    code = f"""
        pid = os.fork()
        if pid == 0:
            {child}
        return [response([os.getpid(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])])]
    """
    worker, found = value_of(run(server, code, model="script"))
    assert found == status
    assert value_of(run(server, "return [response(os.getpid())]", model="script")) == worker


@pytest.mark.parametrize(
    ("child", "status"),
    [("raise SystemExit(3)", 1), ("raise asyncio.CancelledError", 1), ("return [response('child')]", 0)],
)
def test_a_child_that_a_coroutine_has_forked_answers_nothing(server: RunningServer, child: str, status: int) -> None:
    """It waits for the child in the loop's own thread, so that nobody but the child itself could answer before."""
    code = f"""
        async def answer():
            pid = os.fork()
            if pid == 0:
                {child}
            return [response([os.getpid(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])])]
        return answer()
    """
    worker, found = value_of(run(server, code, model="script"))
    assert found == status
    assert value_of(run(server, "return [response(os.getpid())]", model="script")) == worker


# ---------------------------------------------------------------------------------------------- exceptions


def test_an_exception_reaches_the_client_with_its_frames(server: RunningServer, repository: Path) -> None:
    """model_api.md row 45: the next request is fine."""
    path = repository / "raising" / "1" / "model.py"
    reply = server.infer("raising", [tensor("IN", "BYTES", [1], [""])])
    assert reply.status == 500
    assert reply.error == execute_failed(
        f"ValueError: boom\n\nAt:\n  {path}(3): helper\n  {path}(10): execute\n", "raising_0_0"
    )
    assert server.infer("raising", [tensor("IN", "BYTES", [1], [""])], id="fine").status == 200


def test_an_exception_is_in_the_log_with_model_version_and_instance(server: RunningServer) -> None:
    """Model API, 4.1: logged at ERROR. Frames are lines of their own, which is ours."""
    run(server, "raise ValueError('for the log')")
    server.wait_for_log(
        r"E\d{4} .*\] \"Failed to process the request\(s\) for model 'scripted_0_0', message: "
        r"ValueError: for the log\" \[scripted:1 scripted_0_0\]\n  At:\n    script\(1\): <module>\n"
    )


@pytest.mark.parametrize(
    ("code", "head"),
    [
        ("raise pb_utils.TritonModelException('tme')", "TritonModelException: tme"),
        ("raise KeyError('k')", "KeyError: 'k'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt: <EMPTY MESSAGE>"),
        ("raise pb_utils.TritonError('not an exception')", "TypeError: exceptions must derive from BaseException"),
        ("raise ValueError('\\udcff')", "ValueError: ?"),
    ],
)
def test_any_exception_is_told_in_the_same_frame(server: RunningServer, code: str, head: str) -> None:
    """model_api.md row 46."""
    reply = run(server, code)
    assert reply.status == 500
    assert reply.error.startswith(execute_failed(f"{head}\n\nAt:\n  script(1): <module>\n"))


def test_an_exception_that_cannot_be_printed_ends_the_request_like_any_other(server: RunningServer) -> None:
    reply = run(
        server,
        """
        class Unprintable(Exception):
            def __str__(self):
                raise RuntimeError("no text")
        raise Unprintable
        """,
    )
    assert reply.status == 500
    assert reply.error.startswith(execute_failed("Unprintable: <MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"))


def test_a_model_without_execute_loads_and_answers_with_an_error(server: RunningServer, repository: Path) -> None:
    """model_api.md row 47."""
    reply = server.infer("no_execute", [tensor("IN", "BYTES", [1], [""])])
    assert reply.status == 500
    path = repository / "no_execute" / "1" / "model.py"
    assert reply.error == execute_failed(f"Python model {path} does not implement `execute` method.", "no_execute_0_0")


# ---------------------------------------------------------------------------------------------- what is returned


@pytest.mark.parametrize(
    ("code", "text"),
    [
        pytest.param(
            "returned = []",
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0\n",
            id="row 48",
        ),
        pytest.param(
            "returned = (Response([]),)",
            "Expected a list in the execute return, found type '<class 'tuple'>'.",
            id="row 49, tuple",
        ),
        pytest.param("returned = 5", "Expected a list in the execute return, found type '<class 'int'>'.", id="row 49"),
        pytest.param(
            "returned = Response([])",
            "Expected a list in the execute return, found type '<class 'c_python_backend_utils.InferenceResponse'>'.",
            id="a bare response",
        ),
        pytest.param(
            "returned = [5]",
            "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'.",
            id="row 50",
        ),
        pytest.param(
            "async def later(): return 5\nreturned = later()",
            "Expected a list in the execute return, found type '<class 'int'>'.",
            id="coroutine",
        ),
    ],
)
def test_what_is_no_list_of_responses_is_told(server: RunningServer, code: str, text: str) -> None:
    """model_api.md rows 48 to 50."""
    reply = run(server, code)
    assert reply.status == 500
    assert reply.error == execute_failed(text)


@pytest.mark.parametrize("code", ["returned = None", "returned = [None]"])
def test_none_without_an_answer_is_an_error_not_a_hang(server: RunningServer, code: str) -> None:
    """model_api.md row 51."""
    reply = run(server, code)
    assert reply.status == 500
    assert reply.error.startswith(execute_failed(""))
    assert "no response was" in reply.error


CODES = [
    ("UNKNOWN", 400, grpc.StatusCode.UNKNOWN),
    ("INTERNAL", 500, grpc.StatusCode.INTERNAL),
    ("NOT_FOUND", 404, grpc.StatusCode.NOT_FOUND),
    ("INVALID_ARG", 400, grpc.StatusCode.INVALID_ARGUMENT),
    ("UNAVAILABLE", 503, grpc.StatusCode.UNAVAILABLE),
    ("UNSUPPORTED", 501, grpc.StatusCode.UNIMPLEMENTED),
    ("ALREADY_EXISTS", 400, grpc.StatusCode.ALREADY_EXISTS),
    ("CANCELLED", 400, grpc.StatusCode.CANCELLED),
]


def test_an_error_without_a_code_is_internal(server: RunningServer) -> None:
    """model_api.md row 52."""
    reply = run(server, "returned = [Response([], pb_utils.TritonError('msg'))]")
    assert (reply.status, reply.json) == (500, {"error": "msg"})


@pytest.mark.parametrize(("code", "status"), [(code, status) for code, status, _ in CODES])
def test_each_error_code_has_its_http_status(server: RunningServer, code: str, status: int) -> None:
    """model_api.md row 52."""
    reply = run(server, f"returned = [Response([], pb_utils.TritonError('msg', pb_utils.TritonError.{code}))]")
    assert (reply.status, reply.json) == (status, {"error": "msg"})


@pytest.mark.parametrize(("code", "status"), [(code, status) for code, _, status in CODES])
def test_each_error_code_has_its_grpc_status(server: RunningServer, code: str, status: grpc.StatusCode) -> None:
    """model_api.md row 52."""
    source = f"returned = [Response([], pb_utils.TritonError('msg', pb_utils.TritonError.{code}))]"
    given = triton_grpc.InferInput("IN", [1], "BYTES")
    given.set_data_from_numpy(np.array([source], dtype=object))
    with (
        triton_grpc.InferenceServerClient(server.grpc_url) as client,
        pytest.raises(InferenceServerException) as caught,
    ):
        client.infer("scripted", [given])
    assert (caught.value.status(), caught.value.message()) == (str(status), "msg")


def test_an_error_goes_out_without_the_outputs(server: RunningServer) -> None:
    """model_api.md row 53."""
    reply = run(
        server, "returned = [Response([pb_utils.Tensor('Y', np.zeros(1, np.float32))], pb_utils.TritonError('msg'))]"
    )
    assert (reply.status, reply.json) == (500, {"error": "msg"})


def test_a_response_without_outputs_is_an_answer(server: RunningServer) -> None:
    """model_api.md row 54."""
    reply = run(server, "returned = [Response([])]")
    assert reply.status == 200
    assert reply.json["outputs"] == []


def test_only_what_was_returned_is_in_the_answer(server: RunningServer) -> None:
    """model_api.md row 55."""
    reply = run(server, "returned = [Response([pb_utils.Tensor('Y', np.ones(2, np.float32))])]")
    assert reply.json["outputs"] == [{"name": "Y", "datatype": "FP32", "shape": [2], "data": [1.0, 1.0]}]


TELL_REQUESTED = """
names = sorted(request.requested_output_names())
returned = [Response([
    pb_utils.Tensor("Y", np.zeros(1, np.float32)),
    pb_utils.Tensor("OUT", np.array([json.dumps(names)], dtype=object)),
])]
"""


def test_only_what_the_client_asked_for_is_in_the_answer(server: RunningServer) -> None:
    """model_api.md row 56."""
    reply = run(server, TELL_REQUESTED, outputs=[{"name": "OUT"}])
    assert list(outputs_of(reply)) == ["OUT"]
    assert json.loads(outputs_of(reply)["OUT"]["data"][0]) == ["OUT"]


@pytest.mark.parametrize("fields", [{}, {"outputs": [{"name": name} for name in ("Y2", "OUT", "Y")]}])
@pytest.mark.parametrize("request_id", [{}, {"id": "7"}])
def test_a_client_that_asks_for_nothing_asks_for_all(
    fields: dict[str, Any], request_id: dict[str, Any], server: RunningServer
) -> None:
    """Model API, 2.3; the order is the response's (4.1)."""
    reply = run(server, TELL_REQUESTED, **fields, **request_id)
    assert list(outputs_of(reply)) == ["Y", "OUT"]
    assert json.loads(outputs_of(reply)["OUT"]["data"][0]) == ["OUT", "Y", "Y2"]


def test_an_undeclared_output_is_dropped(server: RunningServer) -> None:
    """model_api.md row 57."""
    reply = run(
        server,
        """
        returned = [Response([
            pb_utils.Tensor("SECRET", np.zeros(1)),
            pb_utils.Tensor("OUT", np.array(["x"], dtype=object)),
        ])]
        """,
    )
    assert list(outputs_of(reply)) == ["OUT"]


def test_an_unknown_output_is_refused_before_the_model_is_asked(server: RunningServer) -> None:
    """model_api.md row 58."""
    reply = run(server, "returned = [Response([])]", outputs=[{"name": "NOPE"}])
    assert reply.status == 400
    assert reply.error.endswith("unexpected inference output 'NOPE' for model 'scripted'")


def test_the_same_name_twice_goes_out_twice(server: RunningServer) -> None:
    """Model API, 4.1."""
    reply = run(server, "returned = [Response([pb_utils.Tensor('Y', np.full(1, n, np.float32)) for n in (1, 2)])]")
    assert [output["data"] for output in reply.json["outputs"]] == [[1.0], [2.0]]


@pytest.mark.parametrize(
    ("array", "name", "datatype", "shape", "data"),
    [
        pytest.param("np.array([0.5])", "Y", "FP64", [1], [0.5], id="row 59, another type"),
        pytest.param("np.array([1])", "Y", "INT64", [1], [1], id="numpy's default integer"),
        pytest.param("np.zeros(3, np.float32)", "Y2", "FP32", [3], [0.0] * 3, id="row 60, another size"),
        pytest.param("np.zeros((1, 2), np.float32)", "Y2", "FP32", [1, 2], [0.0] * 2, id="row 60, another rank"),
        pytest.param("np.zeros(0, np.float32)", "Y", "FP32", [0], [], id="row 62, nothing"),
        pytest.param("np.array([], dtype=object)", "OUT", "BYTES", [0], [], id="row 62, no strings"),
        pytest.param("np.zeros((2, 0), np.float32)", "Y", "FP32", [2, 0], [], id="row 62, twice nothing"),
        pytest.param("np.array(1.5)", "Y", "FP64", [], [1.5], id="row 63, a scalar"),
        pytest.param("np.array(['a', b'b'], dtype=object)", "OUT", "BYTES", [2], ["a", "b"], id="strings"),
        pytest.param("np.array([b'a', b'bc'])", "OUT", "BYTES", [2], ["a", "bc"], id="fixed-width strings"),
    ],
)
def test_outputs_go_out_as_the_model_made_them(
    server: RunningServer, array: str, name: str, datatype: str, shape: list[int], data: list[Any]
) -> None:
    """model_api.md rows 59, 60, 62, 63: neither type nor shape is checked against the configuration."""
    reply = run(server, f"returned = [Response([pb_utils.Tensor({name!r}, {array})])]")
    assert reply.json["outputs"] == [{"name": name, "datatype": datatype, "shape": shape, "data": data}]


def test_an_output_with_reshape_goes_out_in_the_clients_form(server: RunningServer) -> None:
    reply = run(server, "returned = [Response([pb_utils.Tensor('Y', np.zeros((2, 2), np.float32))])]", model="reshaped")
    assert outputs_of(reply)["Y"]["shape"] == [4]


def test_an_output_with_reshape_must_have_its_size(server: RunningServer) -> None:
    """model_api.md row 61."""
    reply = run(server, "returned = [Response([pb_utils.Tensor('Y', np.zeros(3, np.float32))])]", model="reshaped")
    assert reply.status == 500
    assert reply.error == "output tensor shape does not match size of output for 'Y'"


def test_response_parameters_are_in_the_answer(server: RunningServer) -> None:
    """model_api.md row 138."""
    reply = run(server, "returned = [Response([], parameters={'bool': True, 'str': 'x', 'int': 5})]")
    assert reply.json["parameters"] == {"bool": True, "str": "x", "int": 5}


def test_response_parameters_reach_a_grpc_client(server: RunningServer) -> None:
    """model_api.md row 138."""
    given = triton_grpc.InferInput("IN", [1], "BYTES")
    source = "returned = [Response([], parameters={'bool': True, 'str': 'x', 'int': 5})]"
    given.set_data_from_numpy(np.array([source], dtype=object))
    with triton_grpc.InferenceServerClient(server.grpc_url) as client:
        parameters = client.infer("scripted", [given]).get_response().parameters
    assert parameters["bool"].bool_param is True
    assert parameters["str"].string_param == "x"
    assert parameters["int"].int64_param == 5


def test_a_response_parameter_of_another_type_is_an_exception_in_the_model(server: RunningServer) -> None:
    """model_api.md row 138."""
    reply = run(server, "returned = [Response([], parameters={'f': 0.5})]")
    assert reply.status == 500
    assert reply.error.startswith(
        execute_failed(
            "TritonModelException: Expect parameters values to have type bool/int/str, found type <class 'float'>\n"
        )
    )


# ---------------------------------------------------------------------------------------------- a batch


def batch_of(server: RunningServer, *words: str) -> list[Reply]:
    """The replies to requests that are executed in one batch; each brings one of *words*."""
    assert len(words) == 3, "the batcher waits for three"
    with ThreadPoolExecutor(len(words)) as threads:
        return list(threads.map(lambda word: server.infer("batching", [tensor("IN", "BYTES", [1, 1], [word])]), words))


def test_an_error_for_one_request_leaves_its_batch_mates_alone(server: RunningServer) -> None:
    """model_api.md row 64: three requests, each of its own batch size."""
    replies = batch_of(server, "invalid", "a", "b")
    assert [reply.status for reply in replies] == [400, 200, 200]
    assert replies[0].error == "invalid"
    assert json.loads(outputs_of(replies[1])["OUT"]["data"][0]) == ["a", 3, [1, 1]]
    assert json.loads(outputs_of(replies[2])["OUT"]["data"][0]) == ["b", 3, [1, 1]]


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("short", "InferenceRequest(s) size is:3, and InferenceResponse(s) size is:2\n"),
        ("five", "found type '<class 'int'>'."),
        ("raise", "ValueError: boom\n"),
    ],
)
def test_a_broken_list_fails_the_whole_batch(server: RunningServer, word: str, text: str) -> None:
    """model_api.md row 65."""
    replies = batch_of(server, "a", word, "b")
    assert [reply.status for reply in replies] == [500, 500, 500]
    assert len({reply.body for reply in replies}) == 1
    assert replies[0].error.startswith(execute_failed("", "batching_0_0"))
    assert text in replies[0].error


def test_one_response_may_answer_a_whole_batch(server: RunningServer) -> None:
    """Model API, 4.1, Lite."""
    replies = batch_of(server, "shared", "shared", "shared")
    assert [reply.status for reply in replies] == [200, 200, 200]
    assert len({outputs_of(reply)["OUT"]["data"][0] for reply in replies}) == 1


# ---------------------------------------------------------------------------------------------- what is counted


def failures(server: RunningServer, model: str) -> float:
    """``nv_inference_request_failure`` with the reason BACKEND."""
    text = server.get(server.metrics_url).body.decode()
    (line,) = [
        line
        for line in text.splitlines()
        if line.startswith("nv_inference_request_failure{") and f'"{model}"' in line and '"BACKEND"' in line
    ]
    return float(line.rpartition(" ")[2])


def test_an_error_response_is_a_success_and_an_exception_a_failure(server: RunningServer) -> None:
    """model_api.md row 68."""
    run(server, "returned = [Response([], pb_utils.TritonError('msg'))]", model="counted")
    run(server, "raise ValueError('boom')", model="counted")
    (row,) = server.get("/v2/models/counted/stats").json["model_stats"]
    assert row["inference_stats"]["success"]["count"] == 1
    assert row["inference_stats"]["fail"]["count"] == 1
    assert (row["inference_count"], row["execution_count"]) == (1, 2)
    assert failures(server, "counted") == 1


# ---------------------------------------------------------------------------------------------- death


@pytest.mark.parametrize("death", ["os._exit(1)", "os.kill(os.getpid(), 9)", "os.abort()"])
def test_a_worker_that_dies_fails_its_request_and_the_next_is_served_by_a_new_one(
    server: RunningServer, death: str
) -> None:
    """model_api.md rows 103 and 104; the status is ours (3.6)."""
    before = answer(server, "import os\nanswer(os.getpid())")
    reply = run(server, f"import os\n{death}")
    assert reply.status == 503
    assert reply.error.startswith("Stub process 'scripted_0_0' is not healthy.")
    after = answer(server, "import os\nanswer(os.getpid())")
    assert after != before


def test_all_requests_of_a_batch_are_told_of_its_death(server: RunningServer) -> None:
    """model_api.md row 103; the next batch finds a new worker."""
    replies = batch_of(server, "a", "die", "b")
    assert [reply.status for reply in replies] == [503, 503, 503]
    assert all(reply.error.startswith("Stub process 'batching_0_0' is not healthy.") for reply in replies)
    assert [reply.status for reply in batch_of(server, "a", "b", "c")] == [200, 200, 200]
