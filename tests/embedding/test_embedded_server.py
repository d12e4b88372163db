"""A server in the test's own process: what goes in, what comes out, who may ask, and what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import json
import logging
import math
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from pytriton_lite import Server, Tensor, access_log
from pytriton_lite.embedding import AsyncStream, ErrorCode, InferenceError, Response, StartError, Stream
from tests.embedding.conftest import COUNT_CONFIG
from tests.harness import LOADS_ON, PROJECT, child, descriptors, is_running, open_descriptors, until, write_model


def children() -> set[int]:
    """Processes that this one has started and that have not ended."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                found.add(int(path.parent.name))
    return found


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with Server(repository, http_port=0, grpc_port=0, metrics_port=0) as running:
        yield running


# What goes in, and comes out --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("NUMBERS", np.array([1.5, -2], np.float32), [1.5, -2]),
        ("NUMBERS", [1, 2, 3], [1, 2, 3]),
        ("NUMBERS", np.arange(10, dtype=np.float32)[::2], [0, 2, 4, 6, 8]),
        ("NUMBERS", np.array([1, 2], ">f4"), [1, 2]),
        ("NUMBERS", np.zeros(0, np.float32), []),
        ("TABLE", np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ("TABLE", np.array([[1, 2], [3, 4]]).T, [[1, 3], [2, 4]]),
        ("TEXTS", ["ä", b"\0b\0"], ["ä".encode(), b"\0b\0"]),
        ("TEXTS", np.array(["abc", "d"]), [b"abc", b"d"]),
        ("TEXTS", np.array([b"abc", b"d"], object), [b"abc", b"d"]),
        ("FLAGS", [True, False], [True, False]),
        ("FLAGS", [1, 0], [True, False]),
        ("TABLE", [[1.0, 2]], [[1, 2]]),
        ("TABLE", [[]], [[]]),
        ("WORDS", [2**64 - 1, 1], [2**64 - 1, 1]),
        ("HALVES", [65504, float("inf")], [65504, float("inf")]),
    ],
)
def test_arrays_lists_and_texts_go_in_and_arrays_come_out(
    server: Server, name: str, value: object, expected: list[Any]
) -> None:
    response = server.infer("echo", {name: value})
    assert list(response) == [f"{name}_OUT"]
    assert response[f"{name}_OUT"].tolist() == expected


def test_an_answer_says_whose_it_is_and_is_the_callers_own(server: Server) -> None:
    response = server.infer("echo", {"NUMBERS": [1]}, request_id="mine", outputs=["NUMBERS_OUT"])
    told = (response.model_name, response.version, response.request_id, response.parameters)
    assert told == ("echo", 1, "mine", {"id": "mine"})
    response["NUMBERS_OUT"][0] = 7  # nobody else's memory


async def streamed(server: Server, **said: Any) -> Response:
    (response,) = [response async for response in server.astream("said", {}, **said)]
    return response


def stream(server: Server, **said: Any) -> Response:
    (response,) = server.stream("said", {}, **said)
    return response


WAYS: dict[str, Callable[..., Response]] = {
    "infer": lambda server, **said: server.infer("said", {}, **said),
    "ainfer": lambda server, **said: asyncio.run(server.ainfer("said", {}, **said)),
    "stream": stream,
    "astream": lambda server, **said: asyncio.run(streamed(server, **said)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_model_sees_what_a_request_says(server: Server, way: str) -> None:
    silent = WAYS[way](server)
    assert (silent.version, sorted(silent)) == (1, ["A", "B"])
    nothing = {"id": "", "sequence": 0, "flags": 0, "timeout_us": 0, "parameters": {}, "outputs": ["A", "B"]}
    assert json.loads(silent["A"][0]) == nothing
    fields: dict[str, Any] = {"version": 1, "outputs": ["B"], "priority": 1, "parameters": {"n": 3}}
    begun = WAYS[way](server, request_id="r", correlation_id=7, sequence_start=True, timeout_us=10**9, **fields)
    told = {"id": "r", "sequence": 7, "flags": 1, "timeout_us": 10**9, "parameters": {"n": 3}, "outputs": ["B"]}
    assert {name: json.loads(begun[name][0]) for name in begun} == {"B": told}
    assert json.loads(WAYS[way](server, correlation_id="seven", sequence_end=True)["A"][0]) == {
        **nothing,
        "sequence": "seven",
        "flags": 2,
    }


def test_large_tensors_come_back_whole_and_hold_nothing_of_the_models(server: Server) -> None:
    table = np.arange(1 << 20).reshape(1024, 1024)
    kept = [server.infer("echo", {"TABLE": table})["TABLE_OUT"] for _ in range(20)]
    assert all(np.array_equal(array, table) for array in kept)

    def held() -> list[str]:
        lines = server.metrics_text().splitlines()
        rows = [line for line in lines if "_slots{" in line and 'model="echo"' in line]
        assert len(rows) == 2, lines
        return [line for line in rows if not line.endswith(" 0")]

    until(lambda: not held())


MASKED = np.ma.array([1, 2], np.float32, mask=[0, 1])  # type: ignore[no-untyped-call]


class Unwilling:
    """A tensor of which its library makes no array."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RuntimeError("a tensor that requires grad has no array")


@pytest.mark.parametrize(
    ("inputs", "code", "text"),
    [
        ({"NUMBERS": np.array([1.0])}, ErrorCode.INVALID_ARG, "FP64"),
        ({"NUMBERS": np.array([1j])}, ErrorCode.INVALID_ARG, "input 'NUMBERS': arrays of complex128 have no type"),
        ({"NUMBERS": ["one"]}, ErrorCode.INVALID_ARG, "input 'NUMBERS': no array of FP32 can be made of it"),
        ({"NUMBERS": [[1], [2, 3]]}, ErrorCode.INVALID_ARG, "input 'NUMBERS': no array of FP32 can be made of it"),
        ({"NUMBERS": [1, None]}, ErrorCode.INVALID_ARG, "'NUMBERS': no array of FP32 .* not 'NoneType'"),
        ({"NUMBERS": [1e39]}, ErrorCode.INVALID_ARG, r"no array of FP32 can be made of it: 1e\+39 is out of range"),
        ({"HALVES": [1, 70000]}, ErrorCode.INVALID_ARG, "no array of FP16 can be made of it: 70000 is out of range"),
        ({"TABLE": [[1.5, 2]]}, ErrorCode.INVALID_ARG, "'TABLE': no array of INT64 .*: 1.5 is no whole number"),
        ({"TABLE": [[float("nan")]]}, ErrorCode.INVALID_ARG, "no array of INT64 can be made of it"),
        ({"TABLE": [[2**63]]}, ErrorCode.INVALID_ARG, "no array of INT64 .*: 9223372036854775808 is out of range"),
        ({"TABLE": [["1"]]}, ErrorCode.INVALID_ARG, "no array of INT64 can be made of it: expected numbers, got <U1"),
        ({"WORDS": [2**64 - 1, -1]}, ErrorCode.INVALID_ARG, "no array of UINT64 can be made of it: -1 is out of range"),
        ({"FLAGS": ["false"]}, ErrorCode.INVALID_ARG, "no array of BOOL can be made of it: expected numbers"),
        ({"FLAGS": [0, 2]}, ErrorCode.INVALID_ARG, "no array of BOOL .*: expected True and False or 1 and 0, got 2"),
        ({"TEXTS": ["a", None]}, ErrorCode.INVALID_ARG, "no array of BYTES .*: expected str or bytes, got NoneType"),
        ({"TEXTS": ["a\ud800"]}, ErrorCode.INVALID_ARG, "input 'TEXTS': a text is no UTF-8"),
        ({"NUMBERS": MASKED}, ErrorCode.INVALID_ARG, "input 'NUMBERS': masked elements have no values"),
        ({"TEXTS": MASKED.astype(str)}, ErrorCode.INVALID_ARG, "input 'TEXTS': masked elements have no values"),
        ({"NUMBERS": Unwilling()}, ErrorCode.INVALID_ARG, "'NUMBERS': no array .*: a tensor that requires grad"),
        ({"OTHER": [1]}, ErrorCode.INVALID_ARG, "unexpected inference input 'OTHER'"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    server: Server, inputs: dict[str, Any], code: ErrorCode, text: str
) -> None:
    with pytest.raises(InferenceError, match=text) as failure:
        server.infer("echo", inputs)
    assert failure.value.code is code
    assert server.infer("echo", {"NUMBERS": [1]})["NUMBERS_OUT"].tolist() == [1]


class Elsewhere:
    """A tensor of another library's, which notes the thread that makes an array of it."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.seen.add(threading.get_ident())
        return np.arange(3.0)


@pytest.mark.parametrize("way", ["infer", "ainfer", "stream", "astream"])
def test_arrays_are_made_in_the_thread_that_asks(server: Server, way: str) -> None:
    async def streamed(inputs: Any) -> Response:
        (response,) = [response async for response in server.astream("echo", inputs)]
        return response

    ways: dict[str, Callable[[Any], Response]] = {
        "infer": lambda inputs: server.infer("echo", inputs),
        "ainfer": lambda inputs: asyncio.run(server.ainfer("echo", inputs)),
        "stream": lambda inputs: next(server.stream("echo", inputs)),
        "astream": lambda inputs: asyncio.run(streamed(inputs)),
    }
    tensor = Elsewhere()
    assert ways[way]({"NUMBERS": tensor})["NUMBERS_OUT"].tolist() == [0, 1, 2]
    assert tensor.seen == {threading.get_ident()}

    texts = [str(number) for number in range(5000)]
    assert [text.decode() for text in ways[way]({"TEXTS": texts})["TEXTS_OUT"]] == texts


def test_inputs_are_a_mapping(server: Server) -> None:
    with pytest.raises(TypeError, match="inputs of model 'echo' are a dict of arrays by name, not list"):
        server.infer("echo", [1])  # type: ignore[arg-type]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("said", "error", "text"),
    [
        ({"parameters": {"a": b"x"}}, TypeError, "parameter 'a': expected bool, int, float or str, got bytes"),
        ({"parameters": {"a": None}}, TypeError, "parameter 'a': expected bool, int, float or str, got NoneType"),
        ({"parameters": {"a": 2**63}}, ValueError, r"parameter 'a': expected -2\*\*63 to 2\*\*63 - 1"),
        ({"parameters": {"a": "\ud800"}}, ValueError, "parameter 'a': the text is no UTF-8"),
        ({"parameters": {1: 2}}, TypeError, "name of a parameter: expected str, got int"),
        ({"request_id": 5}, TypeError, "request_id: expected str, got int"),
        ({"request_id": "\ud800"}, ValueError, "request_id: the text is no UTF-8"),
        ({"correlation_id": -1}, ValueError, r"correlation_id: expected 0 to 2\*\*64 - 1, got -1"),
        ({"correlation_id": 1.5}, TypeError, "correlation_id: expected int, got float"),
        ({"correlation_id": "\ud800"}, ValueError, "correlation_id: the text is no UTF-8"),
        ({"timeout_us": -1}, ValueError, r"timeout_us: expected 0 to 2\*\*64 - 1, got -1"),
        ({"timeout_us": 2**64}, ValueError, r"timeout_us: expected 0 to 2\*\*64 - 1"),
        ({"timeout_us": 1.5}, TypeError, "timeout_us: expected int, got float"),
        ({"priority": -1}, ValueError, r"priority: expected 0 to 2\*\*64 - 1, got -1"),
        ({"version": "1"}, TypeError, "version: expected int, got str"),
    ],
)
def test_what_no_request_can_say_is_told_where_it_is_said(
    server: Server, way: str, said: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        WAYS[way](server, **said)


def test_numbers_of_numpy_are_said_as_pythons_own(server: Server) -> None:
    numbers: dict[str, Any] = {"timeout_us": np.int64(10**9), "correlation_id": np.uint64(2**64 - 1)}
    parameters: dict[str, Any] = {"a": np.int64(3), "b": np.float32(0.5), "c": np.bool_(True), "d": np.str_("text")}
    told = json.loads(server.infer("said", {}, version=np.int64(1), parameters=parameters, **numbers)["A"][0])  # type: ignore[arg-type]
    assert (told["timeout_us"], told["sequence"]) == (10**9, 2**64 - 1)
    assert told["parameters"] == {"a": 3, "b": 0.5, "c": True, "d": "text"}


@pytest.mark.parametrize("said", [{"parameters": {"a": {1}}}, {"timeout_us": -1}], ids=["parameters", "timeout_us"])
def test_what_cannot_be_said_does_not_disturb_requests_that_wait_for_the_same_worker(
    server: Server, said: dict[str, Any]
) -> None:
    async def ask_all() -> list[list[float] | str]:
        async def ask(number: int) -> list[float] | str:
            try:
                answer = await server.ainfer("echo", {"NUMBERS": [number]}, **(said if number % 3 == 0 else {}))
                return answer["NUMBERS_OUT"].tolist()  # type: ignore[no-any-return]
            except (TypeError, ValueError):
                return "refused"

        return await asyncio.gather(*map(ask, range(60)))

    assert asyncio.run(ask_all()) == ["refused" if number % 3 == 0 else [number] for number in range(60)]


def test_an_unknown_model_is_not_found(server: Server) -> None:
    with pytest.raises(InferenceError, match="unknown model: 'nobody'") as failure:
        server.infer("nobody", {})
    assert failure.value.code is ErrorCode.NOT_FOUND


# Waiting ------------------------------------------------------------------------------------------------------------------


def test_ctrl_c_interrupts_whoever_waits_and_the_server_serves_on(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it comes just when a lock has been taken: what one thread alone may leave behind locked stops nobody else."""
    gate = tmp_path / "gate"
    interrupted = threading.get_ident()

    def interrupt() -> None:
        until(gate.with_suffix(".begun").exists)
        signal.pthread_kill(interrupted, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        server.infer("echo", {"WAIT_FOR": [str(gate)]}, timeout_s=60)
    interrupting.join()
    gate.touch()

    enter = threading.Condition.__enter__

    def enter_and_be_interrupted(condition: threading.Condition) -> bool:
        entered = enter(condition)
        if threading.get_ident() == interrupted:
            raise KeyboardInterrupt
        return entered

    monkeypatch.setattr(threading.Condition, "__enter__", enter_and_be_interrupted)
    with contextlib.suppress(KeyboardInterrupt):
        server.infer("echo", {"NUMBERS": [1]})
    with contextlib.suppress(KeyboardInterrupt):
        server.metadata("echo")
    monkeypatch.undo()
    assert server.infer("echo", {"NUMBERS": [1]}, timeout_s=30)["NUMBERS_OUT"].tolist() == [1]


def test_whoever_waits_too_long_is_told_and_the_model_serves_on(server: Server, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with pytest.raises(TimeoutError, match=r"model 'echo' has not answered within 0\.01 s"):
        server.infer("echo", {"WAIT_FOR": [str(gate)]}, timeout_s=0.01)
    gate.touch()
    assert server.infer("echo", {"NUMBERS": [1]})["NUMBERS_OUT"].tolist() == [1]
    until(lambda: server.waiting("echo").unanswered == 0)


def test_a_deadline_may_have_passed_or_be_infinitely_far(server: Server, tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match="model 'echo' has not answered within -1 s"):
        server.infer("echo", {"WAIT_FOR": [str(tmp_path / "gate")]}, timeout_s=-1)
    (tmp_path / "gate").touch()
    assert server.infer("echo", {"NUMBERS": [1]}, timeout_s=math.inf)["NUMBERS_OUT"].tolist() == [1]


def test_a_cancelled_coroutine_cancels_its_request(server: Server, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def give_up() -> None:
        asking = asyncio.ensure_future(server.ainfer("echo", {"WAIT_FOR": [str(gate)]}))
        await asyncio.to_thread(until, gate.with_suffix(".begun").exists)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        other = await server.ainfer("echo", {"NUMBERS": [2]})
        assert other["NUMBERS_OUT"].tolist() == [2]

    asyncio.run(give_up())
    gate.touch()
    until(lambda: server.waiting("echo").unanswered == 0)


def test_many_coroutines_and_threads_ask_at_once(server: Server) -> None:
    async def ask(number: int) -> float:
        return float((await server.ainfer("echo", {"NUMBERS": [number]}))["NUMBERS_OUT"][0])

    async def ask_all() -> list[float]:
        return await asyncio.gather(*map(ask, range(100)))

    heard: dict[int, float] = {}

    def ask_in_thread(number: int) -> None:
        heard[number] = float(server.infer("echo", {"NUMBERS": [number]})["NUMBERS_OUT"][0])

    threads = [threading.Thread(target=ask_in_thread, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    assert asyncio.run(ask_all()) == list(range(100))
    for thread in threads:
        thread.join()
    assert heard == {number: number for number in range(20)}


def test_methods_that_wait_may_be_called_where_a_loop_runs(server: Server) -> None:
    async def as_in_a_notebook() -> list[float]:
        return server.infer("echo", {"NUMBERS": [3]})["NUMBERS_OUT"].tolist()  # type: ignore[no-any-return]

    assert asyncio.run(as_in_a_notebook()) == [3]


# Streams ------------------------------------------------------------------------------------------------------------------


def test_a_stream_gives_every_response_in_order(server: Server) -> None:
    assert [int(response["N"][0]) for response in server.stream("count", {"LIMIT": [300]})] == list(range(300))


def test_a_model_of_one_response_streams_it(server: Server) -> None:
    (response,) = server.stream("echo", {"NUMBERS": [1]})
    assert response["NUMBERS_OUT"].tolist() == [1]


def test_a_decoupled_model_is_not_asked_for_one_response(server: Server) -> None:
    with pytest.raises(InferenceError, match=r"model 'count' is decoupled: .* use stream"):
        server.infer("count", {"LIMIT": [1]})


def test_an_error_within_a_stream_is_raised_in_its_place(server: Server) -> None:
    stream = server.stream("count", {"LIMIT": [13]})
    seen: list[int | str] = []
    while True:
        try:
            seen.append(int(next(stream)["N"][0]))
        except InferenceError as error:
            seen.append(error.message)
        except StopIteration:
            break
    assert seen == [0, 1, 2, 3, 4, "five is skipped", *range(6, 13)]


def test_who_does_not_read_holds_the_model_back(server: Server, tmp_path: Path) -> None:
    log = tmp_path / "sent"
    ahead = []
    with server.stream("count", {"LIMIT": [1000], "LOG": [str(log)]}) as stream:
        for taken, _ in enumerate(stream, start=1):
            text = log.read_text() if log.exists() else ""
            ahead.append(int(text or 0) - taken)
    assert len(ahead) == 1000
    assert max(ahead) <= 64 + 16 + 1


@pytest.mark.parametrize("is_async", [False, True])
def test_closing_a_stream_cancels_the_request(server: Server, tmp_path: Path, is_async: bool) -> None:
    log = tmp_path / "sent"
    inputs = {"LIMIT": [1_000_000], "LOG": [str(log)]}

    async def take_three() -> list[int]:
        async with server.astream("count", inputs) as stream:
            return [int((await stream.__anext__())["N"][0]) for _ in range(3)]

    if is_async:
        assert asyncio.run(take_three()) == [0, 1, 2]
    else:
        with server.stream("count", inputs) as stream:
            assert [int(next(stream)["N"][0]) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(StopIteration):
            next(stream)
    until(log.with_suffix(".cancelled").exists)
    until(lambda: server.waiting("count").unanswered == 0)


def test_a_reader_may_take_what_closing_a_stream_has_seen(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    class Raced(queue.SimpleQueue[Any]):
        """Another thread takes an item just when somebody has seen that there is one."""

        def empty(self) -> bool:
            was_empty = super().empty()
            with contextlib.suppress(queue.Empty):
                self.get_nowait()
            return was_empty

    with monkeypatch.context() as patched:
        patched.setattr(queue, "SimpleQueue", Raced)
        stream = server.stream("count", {"LIMIT": [2]})
    until(lambda: server.waiting("count").unanswered == 0)
    stream.close()
    with pytest.raises(StopIteration):
        next(stream)


@pytest.mark.parametrize("is_async", [False, True])
def test_closed_streams_hold_nothing_of_the_models(tmp_path: Path, is_async: bool) -> None:
    code = """
        import numpy as np
        import triton_python_backend_utils as pb_utils
        class TritonPythonModel:
            def execute(self, requests):
                sender = requests[0].get_response_sender()
                while not requests[0].is_cancelled():
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.zeros(10_000, np.float32))]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        """
    config = """
        model_transaction_policy { decoupled: true }
        output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
    """
    write_model(tmp_path, "endless", code, config)
    with Server(tmp_path) as server:

        def held() -> list[str]:
            lines = server.metrics_text().splitlines()
            return [line for line in lines if "memory_slots{" in line and not line.endswith(" 0")]

        async def take_and_close() -> list[AsyncStream]:
            closed = []
            for _ in range(50):
                async with server.astream("endless", {}) as responses:
                    await responses.__anext__()
                closed.append(responses)
            assert await server.ais_ready()  # behind what the server's loop has to tell this one of the streams
            return closed

        closed: list[AsyncStream | Stream] = []
        if is_async:
            closed += asyncio.run(take_and_close())
        else:
            for _ in range(50):
                with server.stream("endless", {}) as responses:
                    next(responses)
                closed.append(responses)
        until(lambda: not held())


def test_a_stream_that_nobody_has_any_more_is_cancelled(server: Server, tmp_path: Path) -> None:
    log = tmp_path / "sent"
    stream = server.stream("count", {"LIMIT": [1_000_000], "LOG": [str(log)]})
    next(stream)
    del stream
    gc.collect()
    until(log.with_suffix(".cancelled").exists)


def test_a_stream_that_no_coroutine_has_any_more_is_cancelled(server: Server, tmp_path: Path) -> None:
    log = tmp_path / "sent"

    async def leave() -> None:
        async for _ in server.astream("count", {"LIMIT": [1_000_000], "LOG": [str(log)]}):
            break

    asyncio.run(leave())
    gc.collect()
    until(log.with_suffix(".cancelled").exists)
    until(lambda: server.waiting("count").unanswered == 0)


def test_coroutines_that_share_a_stream_all_hear_of_its_end(server: Server) -> None:
    async def ask() -> list[int]:
        stream = server.astream("count", {"LIMIT": [20]})

        async def take() -> list[int]:
            return [int(response["N"][0]) async for response in stream]

        return sorted(chain.from_iterable(await asyncio.gather(*(take() for _ in range(3)))))

    assert asyncio.run(ask()) == list(range(20))


def test_coroutines_iterate_over_streams(server: Server) -> None:
    async def count() -> list[int]:
        return [int(response["N"][0]) async for response in server.astream("count", {"LIMIT": [200]})]

    assert asyncio.run(count()) == list(range(200))


# Models and views ---------------------------------------------------------------------------------------------------------


def test_models_are_loaded_unloaded_and_looked_at(server: Server, repository: Path) -> None:
    assert server.models() == ["count", "echo", "said"]
    write_model(repository, "late", "class TritonPythonModel:\n    def execute(self, requests):\n        return []", "")
    assert not server.is_ready("late")
    server.load("late")
    assert server.is_ready("late") and server.models() == ["count", "echo", "late", "said"]
    server.unload("late")
    assert not server.is_ready("late")
    states = {row.name: row.state and row.state.value for row in server.index()}
    assert states["echo"] == "READY" and states["late"] != "READY"
    with pytest.raises(InferenceError, match=r"failed to poll from model repository: .* not found in any"):
        server.load("nobody")
    with pytest.raises(InferenceError, match=r"Invalid config override: .*max_batch"):
        asyncio.run(server.aload("late", config={"max_batch": 5}))
    assert [tensor.name for tensor in server.metadata("count").inputs] == ["LIMIT", "LOG"]
    assert server.config("count")["model_transaction_policy"] == {"decoupled": True}


def test_a_load_may_bring_the_model(server: Server) -> None:
    code = b"import triton_python_backend_utils as pb_utils\nimport numpy as np\nclass TritonPythonModel:\n" + (
        b"    def execute(self, requests):\n"
        b"        return [pb_utils.InferenceResponse([pb_utils.Tensor('Y', np.ones(1, np.float32))]) for _ in requests]\n"
    )
    config = {"name": "brought", "backend": "python", "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [1]}]}
    with pytest.raises(TypeError, match=r"files of model 'brought' are bytes by path, not str for '1/model.py'"):
        server.load("brought", config=config, files={"1/model.py": code.decode()})  # type: ignore[dict-item]
    server.load("brought", config=config, files={"1/model.py": code})
    assert server.infer("brought", {})["Y"].tolist() == [1]
    server.unload("brought")


def test_what_is_counted_can_be_read(server: Server) -> None:
    before = server.statistics("echo")[0]["inference_count"]
    server.infer("echo", {"NUMBERS": [1]})
    assert server.statistics("echo")[0]["inference_count"] == before + 1
    assert {row["name"] for row in server.statistics()} >= {"echo", "count"}
    assert 'nv_inference_request_success{model="echo",version="1"}' in server.metrics_text()
    with pytest.raises(InferenceError, match="requested model 'nobody' is not available"):
        server.statistics("nobody")


def test_clients_reach_the_ports_that_were_chosen(server: Server) -> None:
    def ask() -> None:
        for module, port in ((tritonclient.http, server.http_port), (tritonclient.grpc, server.grpc_port)):
            client = module.InferenceServerClient(f"127.0.0.1:{port}")
            tensor = module.InferInput("NUMBERS", [2], "FP32")
            tensor.set_data_from_numpy(np.array([1, 2], np.float32))
            assert client.infer("echo", [tensor]).as_numpy("NUMBERS_OUT").tolist() == [1, 2]
            client.close()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as page:
            assert b"nv_inference_count" in page.read()

    ask()  # gRPC keeps some descriptors for a process that has used it
    before = open_descriptors()
    ask()
    assert f"http_port={server.http_port}" in repr(server)
    until(lambda: open_descriptors() <= before)  # gRPC and the server close their ends later, and the next test counts


# Life ---------------------------------------------------------------------------------------------------------------------


def test_a_timeout_that_the_program_gives_all_its_sockets_is_not_the_servers(repository: Path) -> None:
    socket.setdefaulttimeout(0.5)
    try:
        with Server(repository, http_port=0, grpc_port=0, metrics_port=0) as server:
            assert len(list(server.stream("count", {"LIMIT": [200]}))) == 200
            numbers = np.arange(1000, dtype=np.float32)
            assert server.infer("echo", {"NUMBERS": numbers})["NUMBERS_OUT"].tolist() == numbers.tolist()
    finally:
        socket.setdefaulttimeout(None)


def test_nothing_is_left_behind_and_nothing_of_the_process_is_changed(repository: Path) -> None:
    with Server(repository):  # what is imported and made once
        pass
    before, threads, processes = descriptors(), set(threading.enumerate()), children()
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)]
    logger, interval = logging.getLogger("pytriton_lite"), sys.getswitchinterval()
    with Server(repository, http_port=0) as server:
        server.infer("echo", {"TABLE": np.ones((512, 512), np.int64)})
        pids = children() - processes
        assert pids
        assert [
            signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
        ] == handlers
        assert sys.getswitchinterval() == interval and logger.handlers == [] and logger.propagate
    assert not server.is_running and server.http_port is None and not server.is_ready()
    assert (set(threading.enumerate()), children()) == (threads, processes)
    assert descriptors() - before == set()  # some may be closed: gRPC clients of tests before do that when they like
    assert not any(map(is_running, pids))
    assert server.stop()
    with pytest.raises(RuntimeError, match="the server has been stopped"):
        server.infer("echo", {"NUMBERS": [1]})
    with pytest.raises(RuntimeError, match="a Server is started once"):
        server.start()


LEAVES = """
    import os, signal

    class TritonPythonModel:
        def execute(self, requests):
            os._exit(3 + len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
"""


def test_signals_that_the_program_blocks_are_not_blocked_in_workers(tmp_path: Path) -> None:
    write_model(tmp_path, "leaves", LEAVES, COUNT_CONFIG)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGUSR1})
    try:
        with Server(tmp_path) as server, pytest.raises(InferenceError, match="exited with code 3"):
            list(server.stream("leaves", {"LIMIT": [1]}))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def test_two_at_a_time_do_not_know_each_other(repository: Path, server: Server) -> None:
    with Server(repository, load_model="echo") as other:
        assert other.models() == ["echo"]
        server.infer("echo", {"NUMBERS": [1]})
        before = other.statistics("echo")[0]["inference_count"]
        other.infer("echo", {"NUMBERS": [1]})
        assert (before, other.statistics("echo")[0]["inference_count"]) == (0, 1)
    assert server.infer("echo", {"NUMBERS": [1]})["NUMBERS_OUT"].tolist() == [1]


def test_it_starts_and_stops_in_a_coroutine(repository: Path) -> None:
    async def live() -> list[float]:
        async with Server(repository, load_model=["echo"]) as server:
            assert await server.ais_ready() and await server.ais_ready("echo")
            await server.aload("count")
            assert [r["N"][0] async for r in server.astream("count", {"LIMIT": [2]})] == [0, 1]
            await server.aunload("count")
            return (await server.ainfer("echo", {"NUMBERS": [5]}))["NUMBERS_OUT"].tolist()  # type: ignore[no-any-return]

    assert asyncio.run(live()) == [5]


def test_a_coroutine_is_told_of_the_end_and_not_cancelled_by_it() -> None:
    async def ask() -> None:
        async with Server() as server:
            asking = asyncio.ensure_future(server._ado(asyncio.Event().wait))
            assert await server.ais_ready()  # behind the other in the server's loop
            await server.astop()
            with pytest.raises(RuntimeError, match="the server has been stopped"):
                await asking

    asyncio.run(ask())


def test_stopping_under_load_ends_every_request(repository: Path) -> None:
    ended: list[object] = []
    server = Server(repository).start()

    def ask_on() -> None:
        while True:
            try:
                ended.append(server.infer("echo", {"NUMBERS": [1]})["NUMBERS_OUT"].tolist() == [1])
            except (InferenceError, RuntimeError) as error:
                ended.append(error)
                return

    threads = [threading.Thread(target=ask_on) for _ in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: len(ended) > 50)
    assert server.stop()
    for thread in threads:
        thread.join()
    errors = [outcome for outcome in ended if isinstance(outcome, Exception)]
    assert len(errors) == 8 and all(outcome is True or outcome in errors for outcome in ended)
    for error in errors:
        assert isinstance(error, RuntimeError) or error.code is ErrorCode.UNAVAILABLE  # type: ignore[attr-defined]


def test_whoever_waits_is_told_of_the_end(repository: Path) -> None:
    with Server(repository, load_model="echo") as server:
        assert server.wait(timeout_s=0.01) is False
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        assert server.wait()
        stopping.join()
    with pytest.raises(RuntimeError, match="the server is not running"):
        Server(repository).wait()


def test_ctrl_c_ends_the_wait_and_so_the_program_as_it_should(tmp_path: Path) -> None:
    write_model(tmp_path, "fine", FINALIZED, 'output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]')
    code = (
        "import signal, sys, threading\nfrom pytriton_lite import Server\nfrom tests.harness import until\n"
        "main = threading.get_ident()\n"
        "def interrupt():\n"
        "    until(lambda: sys._current_frames()[main].f_code is Server.wait.__code__)\n"
        "    signal.pthread_kill(main, signal.SIGINT)\n"
        f"with Server({str(tmp_path)!r}) as server:\n"
        "    threading.Thread(target=interrupt).start()\n"
        "    print(server.wait())\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PROJECT, timeout=120)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("False\n", "", 0)
    assert (tmp_path / "fine" / "1" / "finalized").exists()


@contextlib.contextmanager
def signals_to(function: Callable[[], object], when: Callable[[], object]) -> Iterator[None]:
    """*function* is called in this thread by a handler, of a signal that comes *when* it says."""
    interrupted = threading.get_ident()

    def interrupt() -> None:
        until(when)
        signal.pthread_kill(interrupted, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: function())
    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    try:
        yield
    finally:
        interrupting.join()
        signal.signal(signal.SIGUSR1, before)


def test_ctrl_c_passes_through_a_wait_that_has_an_end(repository: Path) -> None:
    """Else a loop around it would go on."""
    main = threading.get_ident()

    def interrupt() -> None:
        raise KeyboardInterrupt

    with Server(repository, load_model="echo") as server:
        with (
            signals_to(interrupt, lambda: sys._current_frames()[main].f_code is Server.wait.__code__),
            pytest.raises(KeyboardInterrupt),
        ):
            while not server.wait(timeout_s=60):
                pass
        assert server.is_running


def test_a_signal_ends_the_wait_although_the_system_gives_it_to_another_thread(repository: Path) -> None:
    """So does one that comes when the wait has begun and its thread does not sleep yet: neither wakes it."""
    main = threading.get_ident()
    stat = Path(f"/proc/self/task/{threading.get_native_id()}/stat")

    def waits() -> bool:
        is_there = sys._current_frames()[main].f_code is Server.wait.__code__
        return is_there and stat.read_text().rpartition(")")[2].split()[0] == "S"

    def take_the_signal() -> None:
        until(waits)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    with Server(repository, load_model="echo") as server:
        before = signal.signal(signal.SIGUSR1, lambda *_: server.stop())
        taking = threading.Thread(target=take_the_signal)
        taking.start()
        assert server.wait()
        taking.join()
        signal.signal(signal.SIGUSR1, before)


def test_a_signals_handler_ends_the_start_that_it_interrupts(tmp_path: Path) -> None:
    begun = write_model(tmp_path, "late", LOADS_ON, "") / "1" / "begun"
    before, processes = set(threading.enumerate()), children()
    server = Server(tmp_path)
    told: list[bool] = []
    with (
        signals_to(lambda: told.append(server.stop(timeout_s=0.1)), begun.exists),
        pytest.raises(RuntimeError, match="the server was stopped while it started"),
    ):
        server.start()
    assert told == [False] and not server.is_running and server.wait()
    assert (set(threading.enumerate()), children()) == (before, processes)


def test_another_thread_ends_the_start_that_it_comes_into(tmp_path: Path) -> None:
    begun = write_model(tmp_path, "late", LOADS_ON, "") / "1" / "begun"
    server = Server(tmp_path)
    heard: list[BaseException] = []

    def start() -> None:
        try:
            server.start()
        except RuntimeError as error:
            heard.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    until(begun.exists)
    server.stop(timeout_s=0.1)
    assert not server.is_running and server.wait(timeout_s=0)
    starting.join()
    assert [str(error) for error in heard] == ["the server was stopped while it started"]


def test_cancelling_the_coroutine_ends_the_start(tmp_path: Path) -> None:
    begun = write_model(tmp_path, "late", LOADS_ON, "") / "1" / "begun"
    processes = children()
    server = Server(tmp_path)
    complaints: list[dict[str, Any]] = []

    async def give_up() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
        starting = asyncio.ensure_future(server.astart())
        await asyncio.to_thread(until, begun.exists)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not server.is_running and server.wait(timeout_s=0)
        assert children() == processes

    asyncio.run(give_up())
    gc.collect()
    assert complaints == []


def test_cancelling_the_coroutine_stops_a_server_that_has_just_started(repository: Path) -> None:
    server = Server(repository, load_model="echo")

    async def give_up() -> None:
        starting = asyncio.ensure_future(server.astart())
        asyncio.get_running_loop().call_soon(until, lambda: server.is_running)
        asyncio.get_running_loop().call_soon(starting.cancel)
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not server.is_running and server.wait(timeout_s=0)

    asyncio.run(give_up())


def test_a_signals_handler_returns_from_the_stop_that_it_interrupts(repository: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    server = Server(repository, load_model="echo").start()
    told: list[bool] = []

    def stop_again() -> None:
        told.append(server.stop())
        gate.touch()

    asking = threading.Thread(target=server.infer, args=("echo", {"WAIT_FOR": [str(gate)]}))
    asking.start()
    until(gate.with_suffix(".begun").exists)
    with signals_to(stop_again, lambda: not server.is_running):
        assert server.stop()
    asking.join()
    assert told == [False] and server.stop()


def test_a_signals_handler_stops_a_server_where_its_thread_begins_to_wait(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it comes just when a lock has been taken."""
    server = Server(repository, load_model="echo").start()
    interrupted, enter = threading.get_ident(), threading.Condition.__enter__

    def enter_and_stop(condition: threading.Condition) -> bool:
        entered = enter(condition)
        if threading.get_ident() == interrupted and server.is_running:
            server.stop()
        return entered

    monkeypatch.setattr(threading.Condition, "__enter__", enter_and_stop)
    server.wait(timeout_s=0.01)
    monkeypatch.undo()
    assert server.stop() and server.wait() and server.wait(timeout_s=-1)


def test_what_does_not_end_in_time_is_killed_and_its_caller_is_told(repository: Path, tmp_path: Path) -> None:
    gate = tmp_path / "never"
    server = Server(repository, load_model="echo").start()
    heard: list[BaseException] = []

    def ask() -> None:
        try:
            server.infer("echo", {"WAIT_FOR": [str(gate)]})
        except InferenceError as error:
            heard.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    until(gate.with_suffix(".begun").exists)
    assert server.stop(timeout_s=0.2) is False
    asking.join()
    assert len(heard) == 1
    assert children() == set() or not any("echo" in Path(f"/proc/{pid}/comm").read_text() for pid in children())


FINALIZED = """
    from pathlib import Path
    class TritonPythonModel:
        def execute(self, requests):
            return []
        def finalize(self):
            Path(__file__).with_name("finalized").touch()
    """


def test_a_model_that_does_not_load_ends_the_start_and_says_why(tmp_path: Path) -> None:
    write_model(tmp_path, "broken", "raise RuntimeError('no weights')", "")
    write_model(tmp_path, "fine", FINALIZED, "")
    before = set(threading.enumerate())
    with pytest.raises(StartError, match="failed to load all models") as failure:
        Server(tmp_path).start()
    assert "no weights" in "\n".join(failure.value.causes)
    assert "no weights" in str(failure.value), "a traceback shows no more than the text"
    assert set(threading.enumerate()) == before
    assert (tmp_path / "fine" / "1" / "finalized").exists()
    with Server(tmp_path, exit_on_error=False) as server:
        assert server.models() == ["fine"] and not server.is_ready()


def test_a_port_that_is_taken_ends_the_start(repository: Path, server: Server) -> None:
    with pytest.raises(StartError, match="already in use"):
        Server(repository, http_port=server.http_port).start()


def test_a_start_for_which_there_is_no_thread_is_a_start_error_and_leaves_nothing() -> None:
    def fail() -> set[tuple[str, str]]:
        server = Server()
        ordinary = threading.stack_size(1 << 50)
        try:
            with pytest.raises(StartError, match="can't start new thread"):
                server.start()
        finally:
            threading.stack_size(ordinary)
        assert server.stop()
        return descriptors()

    assert fail() == fail(), "but for what libuv makes once in a process"


def test_whatever_fails_in_the_start_is_a_start_error(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="No such file or directory"):
        Server(log_file=tmp_path / "nowhere" / "log").start()
    server = Server(repository)
    server.bind(lambda: np.zeros(1), name="echo", inputs=[], outputs=[Tensor((1,), float)])
    with pytest.raises(StartError, match="there is a model 'echo' in the model repository already"):
        server.start()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"http_prot": 0}, TypeError, "'http_prot' is no option of the server; the nearest is 'http_port'"),
        ({"watch": True}, TypeError, "watch is no option of an embedded server"),
        ({"http_port": 70000}, ValueError, "option 'http_port': .* out of bound"),
        ({"model_control_mode": "sometimes"}, ValueError, "expected one of none, poll, explicit"),
        ({"http_port": 8000, "grpc_port": 8000}, ValueError, "cannot listen to HTTP requests and GRPC requests"),
        ({"model_control_mode": "none", "load_model": "echo"}, ValueError, "'--load-model' requires"),
    ],
)
def test_a_wrong_option_is_told_before_anything_starts(
    repository: Path, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Server(repository, **options)


def test_a_repository_is_a_path() -> None:
    with pytest.raises(TypeError, match="a repository is a path, a URL, or a list of them, not int"):
        Server(5)  # type: ignore[arg-type]


def test_it_has_to_be_started() -> None:
    server = Server()
    assert server.stop() and not server.is_ready()
    with pytest.raises(RuntimeError, match="the server is not running"):
        server.infer("echo", {})


def test_a_forked_process_is_told_that_the_server_is_elsewhere(server: Server) -> None:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            server.infer("echo", {"NUMBERS": [1]})
        except RuntimeError as error:
            status = 0 if "another process" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forked_process_leaves_the_block_as_it_wants(repository: Path) -> None:
    with Server(repository, load_model="echo") as server:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                with contextlib.ExitStack() as stack:
                    stack.push(server)
                    sys.exit(7)
            except SystemExit as error:
                status = int(str(error.code))
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert server.infer("echo", {"NUMBERS": [1]})["NUMBERS_OUT"].tolist() == [1]


def test_its_own_log_is_written_while_it_runs(repository: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Server(repository, load_model="echo", log_file=log, log_verbose=1):
        pass
    assert "successfully loaded 'echo'" in log.read_text()
    logger = logging.getLogger("pytriton_lite")
    assert logger.handlers == [] and logger.propagate and logger.level == logging.NOTSET


def test_lines_go_to_the_programs_logging(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="pytriton_lite"), Server(repository, load_model="echo"):
        pass
    assert "successfully loaded 'echo'" in caplog.text


def test_requests_are_in_the_access_log_and_in_traces(repository: Path, tmp_path: Path) -> None:
    log = tmp_path / "access"
    with Server(repository, access_log_file=log) as server:
        server.infer("echo", {"NUMBERS": [1]}, request_id="seven")
        list(server.stream("count", {"LIMIT": [3]}))
        with pytest.raises(InferenceError):
            server.infer("echo", {"NUMBERS": np.array([1.0])})
    lines = log.read_text().splitlines()  # as their workers were done with them, which may be in another order
    (one,) = [line for line in lines if "request_id=seven" in line]
    (many,) = [line for line in lines if "method=stream" in line]
    (wrong,) = [line for line in lines if line not in (one, many)]
    assert "protocol=python method=infer" in one and "status=0" in one
    assert "responses=3" in many
    assert f"status={int(ErrorCode.INVALID_ARG)}" in wrong


def test_an_access_log_that_nobody_reads_is_written_to_no_other_file_after_the_end(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_log, "_CLOSE_S", 0.01)
    log = tmp_path / "access"
    os.mkfifo(log)
    with open(os.open(log, os.O_RDONLY | os.O_NONBLOCK)) as reader, contextlib.ExitStack() as own:
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
        with Server(repository, access_log_file=log, load_model="echo") as server:
            for _ in range(3 * access_log._SLICE):
                server.infer("echo", {"NUMBERS": [1]})
        files = [own.enter_context((tmp_path / f"{number}").open("w")) for number in range(40)]
        os.set_blocking(reader.fileno(), True)
        lines = reader.read().splitlines()
        assert [os.fstat(file.fileno()).st_size for file in files] == [0] * len(files)
    assert len(lines) == 3 * access_log._SLICE


def test_a_program_that_forgets_to_stop_ends_and_leaves_nothing(repository: Path) -> None:
    code = (
        "import sys\nfrom pytriton_lite import Server\n"
        f"server = Server({str(repository)!r}, http_port=0, load_model='count').start()\n"
        "print([int(answer['N'][0]) for answer in server.stream('count', {'LIMIT': [1]})])\n"
        "import subprocess\n"
        "print(subprocess.run(['pgrep', '-P', str(__import__('os').getpid())], capture_output=True, text=True).stdout)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PROJECT, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    answer, *pids = ended.stdout.split()
    assert answer == "[0]" and pids
    until(lambda: not any(is_running(int(pid)) for pid in pids))


def test_workers_of_a_program_that_is_killed_end_although_a_process_lives_that_it_has_forked(repository: Path) -> None:
    code = (
        "import os, signal, subprocess, sys\nfrom pytriton_lite import Server, Tensor\n"
        f"server = Server({str(repository)!r}, load_model='count')\n"
        "server.bind(lambda x: x, name='same', inputs=[Tensor((1,), int, 'x')], outputs=[Tensor((1,), int, 'y')])\n"
        "server.start()\n"
        "def children(pids): return subprocess.run(['pgrep', '-P', pids], capture_output=True, text=True).stdout.split()\n"
        "ours = children(str(os.getpid()))\n"
        "if (forked := os.fork()) == 0:\n    sys.stdin.read()\n    os._exit(0)\n"
        "print(forked, *ours, *children(','.join(ours)), flush=True)\n"
        "signal.pause()\n"
    )
    with child([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        forked, *pids = map(int, program.stdout.readline().split())
        assert len(pids) == 4, "two fork servers with a worker each"
        program.kill()
        program.wait()
        until(lambda: not any(is_running(pid) for pid in pids))
        assert is_running(forked)
        program.stdin.close()


def test_a_server_that_nobody_has_any_more_is_stopped_when_the_program_ends(tmp_path: Path) -> None:
    write_model(tmp_path, "fine", FINALIZED, "")
    code = (
        "import gc\nfrom pytriton_lite import Server\n"
        f"port = Server({str(tmp_path)!r}, http_port=0).start().http_port\n"
        "gc.collect()\n"
        "import urllib.request\n"
        "assert urllib.request.urlopen(f'http://127.0.0.1:{port}/v2/health/ready').status == 200\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PROJECT, timeout=120)
    assert (tmp_path / "fine" / "1" / "finalized").exists()


@pytest.mark.parametrize("closed", ["<&-", "<&- >&- 2>&-"])
def test_a_program_without_standard_streams_has_a_server(repository: Path, tmp_path: Path, closed: str) -> None:
    code = (
        "from pytriton_lite import Server\n"
        f"with Server({str(repository)!r}, http_port=0, load_model='count') as server:\n"
        "    answers = list(server.stream('count', {'LIMIT': [3]}))\n"
        f"open({str(tmp_path / 'answers')!r}, 'w').write(str(len(answers)))\n"
    )
    command = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", code]
    subprocess.run(command, check=True, cwd=PROJECT, timeout=120)
    assert (tmp_path / "answers").read_text() == "3"


HEARS_NOTHING = """
    import os, socket, stat, time
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for number in os.listdir("/proc/self/fd"):
                try:
                    if stat.S_ISSOCK(os.fstat(int(number)).st_mode):
                        socket.socket(fileno=os.dup(int(number))).shutdown(socket.SHUT_RD)
                except OSError:
                    pass  # the folder itself
            sender = requests[0].get_response_sender()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("N", np.array([1], np.int32))]))
            while not os.path.exists("WRITTEN"):
                time.sleep(0.005)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a model finds its sockets in /proc")
def test_a_program_with_the_default_for_sigpipe_outlives_its_workers(tmp_path: Path) -> None:
    write_model(tmp_path, "deaf", HEARS_NOTHING.replace("WRITTEN", str(tmp_path / "written")), COUNT_CONFIG)
    code = (
        "import pathlib, signal\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
        "from pytriton_lite import Server\n"
        f"with Server({str(tmp_path)!r}) as server:\n"
        "    with server.stream('deaf', {'LIMIT': [1]}) as answers:\n"
        "        next(answers)\n"
        "    server.is_ready()\n"  # behind what is said to the worker of the end
        f"    pathlib.Path({str(tmp_path / 'written')!r}).touch()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PROJECT, timeout=120)


def test_importing_the_package_imports_nothing_else() -> None:
    code = (
        "import sys; before = set(sys.modules); import pytriton_lite; new = set(sys.modules) - before\n"
        "assert new == {'pytriton_lite'}, new\n"
        "assert 'Server' in dir(pytriton_lite)\n"
        "from pytriton_lite import Server\n"
        "assert not {'rich', 'fastapi', 'grpc'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PROJECT)
