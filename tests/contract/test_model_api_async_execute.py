"""``async def execute``: model_api.md rows 67, 88 and 89, section 4.4, and our parameters EXECUTE_CONCURRENCY and
CANCEL_COROUTINES."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from tests.contract.scripted_model import (
    CONFIG,
    DECOUPLED,
    SCRIPT_CODE,
    WAIT_S,
    Gate,
    Stream,
    execute_failed,
    request_message,
    run,
    stream_of,
    value_of,
    write_script_model,
)
from tests.harness import Reply, RunningServer, write_model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository: Path = tmp_path_factory.mktemp("repository")
    write_script_model(repository, "script")
    write_script_model(repository, "decoupled", DECOUPLED)
    write_script_model(repository, "overlapping", EXECUTE_CONCURRENCY="3")
    write_script_model(repository, "cancelling", EXECUTE_CONCURRENCY="2", CANCEL_COROUTINES="yes")
    write_script_model(repository, "cancelling_stream", DECOUPLED, CANCEL_COROUTINES="yes")
    rows = CONFIG + "max_batch_size: 2 sequence_batching { max_sequence_idle_microseconds: 3600000000 }\n"
    folder = write_script_model(repository, "cancelling_rows", rows, CANCEL_COROUTINES="yes")
    # Its script is that of the last row, since the first may be empty.
    write_model(
        repository, folder.name, SCRIPT_CODE.replace('by_name(requests[0], "IN")', 'by_name(requests[-1], "IN")')
    )
    with RunningServer(repository) as running:
        yield running


def script(server: RunningServer, code: str, model: str = "script") -> Reply:
    return run(server, code, model=model)


# ---------------------------------------------------------------------------------------------- default mode


def test_what_the_coroutine_returns_is_the_answer(server: RunningServer) -> None:
    """model_api.md row 67."""
    code = """
    async def answer():
        await asyncio.sleep(0)
        return [response("awaited")]
    return answer()
    """
    assert value_of(script(server, code)) == "awaited"


def test_an_exception_in_the_coroutine_is_told_with_its_frames(server: RunningServer) -> None:
    """model_api.md row 67: the coroutine's own, and no others."""
    code = """
    async def answer():
        await asyncio.sleep(0)
        raise ValueError("ax")
    return answer()
    """
    reply = script(server, code)
    assert reply.status == 500
    assert reply.error == execute_failed("ValueError: ax\n\nAt:\n  script(5): answer\n", "script_0_0")


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ("5", "Expected a list in the execute return, found type '<class 'int'>'."),
        ("[5]", "Expected an 'InferenceResponse' object in the execute function return list"),
        ("[]", "Number of InferenceResponse objects do not match the number of InferenceRequest objects."),
    ],
)
def test_what_the_coroutine_may_not_return_is_told(server: RunningServer, returned: str, text: str) -> None:
    """Model API, 4.4: as 4.1."""
    reply = script(server, f"async def answer():\n    return {returned}\nreturn answer()")
    assert reply.status == 500
    assert reply.error.startswith(execute_failed(text, "script_0_0"))


def test_a_list_whose_class_raises_is_taken_for_what_it_holds(server: RunningServer) -> None:
    """As where ``execute`` is no coroutine: Triton looks at the list itself."""
    code = """
    class Proxy(list):
        def __len__(self):
            raise ValueError("length")

    async def answer():
        return Proxy([response("held")])
    return answer()
    """
    assert value_of(script(server, code)) == "held"


FAILS_BEHIND_IT = """
async def answer():
    from pytriton_lite.worker import executions

    def fail(*arguments, **named):
        raise MemoryError("none left")
    executions.check_responses = executions.check_nothing = fail
return answer()
"""


@pytest.mark.interpreted("a function of a compiled module is replaced")
@pytest.mark.parametrize("model", ["script", "decoupled"])
def test_an_error_of_the_worker_behind_a_coroutine_ends_the_worker_and_nobody_waits(
    server: RunningServer, model: str
) -> None:
    """The loop of coroutines would go on, and the instance wait for the end of this one before it takes another."""
    if model == "script":
        error = script(server, FAILS_BEHIND_IT).error
    else:
        (message,) = stream_of(server, model, FAILS_BEHIND_IT)
        error = message.error
    assert f"Stub process '{model}_0_0' is not healthy." in error
    server.wait_for_log("MemoryError: none left")
    served = "async def answer():\n    return {}\n{}return answer()"
    if model == "script":
        assert value_of(script(server, served.format("[response(1)]", ""))) == 1
    else:
        code = served.format("None", "request.get_response_sender().send(response(1), FINAL)\n")
        assert [message.error for message in stream_of(server, model, code)] == [""]


def test_a_coroutine_may_answer_through_the_sender(server: RunningServer) -> None:
    """Model API, 4.2 and 4.4."""
    code = """
    async def answer(sender):
        await asyncio.sleep(0)
        sender.send(response("sent"), FINAL)
    return answer(request.get_response_sender())
    """
    assert value_of(script(server, code)) == "sent"


def test_a_coroutine_that_nobody_can_answer_after_is_told_so(server: RunningServer) -> None:
    """model_api.md row 51."""
    reply = script(server, "async def answer():\n    return None\nreturn answer()")
    assert reply.status == 500
    assert "execute returned None for the request" in reply.error
    server.wait_for_log(r"(?m)^E.*execute returned None for the request")


def test_all_coroutines_run_in_one_loop_in_a_thread_of_its_own(server: RunningServer) -> None:
    """Model API, 4.4."""
    code = """
    async def answer():
        loop = asyncio.get_running_loop()
        return [response([id(loop), threading.current_thread().name, threading.current_thread().daemon])]
    return answer()
    """
    first, second = value_of(script(server, code)), value_of(script(server, code))
    assert first == second
    assert first[1:] == ["Thread-1 (run_forever)", True]
    current = "import warnings\nwarnings.simplefilter('ignore')\nreturn [response(id(asyncio.get_event_loop()))]"
    assert value_of(script(server, current)) == first[0]


def test_a_task_lives_on_after_execute(server: RunningServer) -> None:
    """Model API, 4.4."""
    with Gate() as gate, Gate() as tells:
        code = f"""
        async def later():
            await asyncio.to_thread(gate, {gate.port})
            tell({tells.port}, "alive")
        async def answer():
            model.notes = [asyncio.create_task(later())]
            return [response("returned")]
        return answer()
        """
        assert value_of(script(server, code)) == "returned"
        gate.wait()
        gate.open()
        assert tells.told() == "alive"


def test_one_coroutine_runs_at_a_time_unless_the_model_says_otherwise(server: RunningServer) -> None:
    """Model API, 4.4: to completion before the next batch; EXECUTE_CONCURRENCY is 1."""
    with Gate() as gate, ThreadPoolExecutor(2) as threads:
        code = f"""
        async def answer():
            model.notes = ["begun"]
            await asyncio.to_thread(gate, {gate.port})
            model.notes.append("ended")
            return [response("first")]
        return answer()
        """
        first = threads.submit(script, server, code)
        gate.wait()
        second = threads.submit(script, server, "return [response(model.notes)]")
        assert value_of(script(server, "return [response('of another model')]", "overlapping"))
        assert not second.done()
        gate.open()
        assert value_of(second.result()) == ["begun", "ended"]
        assert value_of(first.result()) == "first"


def test_coroutines_overlap_as_far_as_the_model_allows(server: RunningServer) -> None:
    """EXECUTE_CONCURRENCY 3: three are under way at a time, the fourth waits; each may end first."""
    with Gate() as one, Gate() as two, Gate() as three, Gate() as four, ThreadPoolExecutor(4) as threads:

        def code(gate: Gate, name: str) -> str:
            return f"""
            async def answer():
                await asyncio.to_thread(gate, {gate.port})
                return [response("{name}")]
            return answer()
            """

        gates = (one, two, three, four)
        replies = []
        for gate, name in zip(gates, ("one", "two", "three", "four")):
            replies.append(threads.submit(script, server, code(gate, name), "overlapping"))
            if gate is not four:
                gate.wait()
        assert not any(reply.done() for reply in replies)
        two.open()
        assert value_of(replies[1].result()) == "two"
        four.wait()  # its turn has come
        three.open()
        four.open()
        one.open()
        assert [value_of(reply.result()) for reply in replies] == ["one", "two", "three", "four"]


def test_an_execute_that_is_not_async_waits_for_nobody(server: RunningServer) -> None:
    """EXECUTE_CONCURRENCY: a plain answer goes out while coroutines await."""
    with Gate() as gate, ThreadPoolExecutor(1) as threads:
        code = f"""
        async def answer():
            await asyncio.to_thread(gate, {gate.port})
            return [response("slow")]
        return answer()
        """
        slow = threads.submit(script, server, code, "overlapping")
        gate.wait()
        assert value_of(script(server, "return [response('quick')]", "overlapping")) == "quick"
        assert not slow.done()
        gate.open()
        assert value_of(slow.result()) == "slow"


def test_one_of_overlapping_coroutines_may_fail(server: RunningServer) -> None:
    with Gate() as gate, ThreadPoolExecutor(1) as threads:
        code = f"""
        async def answer():
            await asyncio.to_thread(gate, {gate.port})
            return [response("fine", Y=np.arange(5000))]
        return answer()
        """
        fine = threads.submit(script, server, code, "overlapping")
        gate.wait()
        failed = script(server, "async def answer():\n    raise ValueError('ax')\nreturn answer()", "overlapping")
        assert failed.error.startswith(execute_failed("ValueError: ax\n", "overlapping_0_0"))
        gate.open()
        assert value_of(fine.result()) == "fine"


def test_many_overlapping_coroutines_each_get_their_own_answer(server: RunningServer) -> None:
    def ask(n: int) -> object:
        code = f"""
        async def answer():
            await asyncio.sleep(0.001 * ({n} % 3))
            return [response({n}, Y=np.full(3000, {n}))]
        return answer()
        """
        return value_of(script(server, code, "overlapping"))

    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(ask, range(200))) == list(range(200))


def test_a_parameter_that_means_nothing_fails_the_load(tmp_path: Path) -> None:
    wrong = {
        "zero": ("EXECUTE_CONCURRENCY", "0", "expected a number from 1 on, got '0'"),
        "many": ("EXECUTE_CONCURRENCY", "many", "expected a number from 1 on, got 'many'"),
        "perhaps": ("CANCEL_COROUTINES", "perhaps", "expected 'yes' or 'no', got 'perhaps'"),
    }
    for name, (key, value, _) in wrong.items():
        write_script_model(tmp_path, name, **{key: value})
    with RunningServer(tmp_path, flags=("--exit-on-error=false",)) as server:
        rows = {row["name"]: row for row in server.post("/v2/repository/index").json}
    for name, (key, _, text) in wrong.items():
        assert rows[name]["state"] == "UNAVAILABLE"
        assert f"Incorrect value for {key}: {text}" in rows[name]["reason"]


# ---------------------------------------------------------------------------------------------- decoupled


def test_coroutines_of_decoupled_models_run_side_by_side(server: RunningServer) -> None:
    """model_api.md row 88: each waits for the other two, which would never come if they had to wait for each other."""
    code = """
    async def answer(sender):
        model.notes.append(asyncio.get_running_loop().create_future())
        if len(model.notes) == 3:
            for note in model.notes:
                note.set_result(None)
        await asyncio.gather(*model.notes)
        sender.send(response("together"), FINAL)
    return answer(request.get_response_sender())
    """
    with Stream(server) as stream:
        for _ in range(3):
            stream.send("decoupled", code)
        assert [message.value for message in stream.rest()] == ["together"] * 3


@pytest.mark.parametrize("sent", [0, 1])
def test_an_exception_in_a_decoupled_coroutine_ends_its_requests(server: RunningServer, sent: int) -> None:
    """model_api.md row 89."""
    code = f"""
    async def answer(sender):
        for n in range({sent}):
            sender.send(response(n))
        await asyncio.sleep(0)
        raise ValueError("ax")
    return answer(request.get_response_sender())
    """
    *responses, last = stream_of(server, "decoupled", code)
    assert [(message.value, message.is_final) for message in responses] == [(n, False) for n in range(sent)]
    assert last.error == execute_failed("ValueError: ax\n\nAt:\n  script(7): answer\n", "decoupled_0_0")
    assert last.is_final
    server.wait_for_log(
        r"E\d{4} .*model.py:0\] \"Failed to process the request\(s\) for model 'decoupled_0_0', message: ValueError: ax"
    )


def test_an_exception_after_the_end_is_not_heard(server: RunningServer) -> None:
    """Model API, 4.4, Lite: requests that are final stay as they are."""
    code = """
    async def answer(sender):
        sender.send(response(1), FINAL)
        raise ValueError("too late")
    return answer(request.get_response_sender())
    """
    (message,) = stream_of(server, "decoupled", code)
    assert (message.value, message.is_final, message.error) == (1, True, "")


def test_a_decoupled_coroutine_must_return_none(server: RunningServer) -> None:
    """Model API, 4.4, Lite."""
    (message,) = stream_of(server, "decoupled", "async def answer():\n    return [response(1)]\nreturn answer()")
    assert message.error == execute_failed(
        "Python model 'decoupled_0_0' is using the decoupled mode and the execute function must return None.",
        "decoupled_0_0",
    )
    assert message.is_final


def test_a_decoupled_coroutine_that_ends_without_the_end_ends_its_request(server: RunningServer) -> None:
    """model_api.md row 90."""
    code = """
    async def answer(request):
        request.get_response_sender().send(response(1))
    return answer(request)
    """
    messages = stream_of(server, "decoupled", code, wants_empty_final=True)
    assert [(message.value, message.is_final, message.error) for message in messages] == [
        (1, False, ""),
        (None, True, ""),
    ]


def test_a_client_that_does_not_read_does_not_keep_coroutines_from_answering_others(server: RunningServer) -> None:
    """What sockets and the client's own buffers hold, some 26 MB, and 64 responses more are half of what is sent."""
    code = """
    async def answer():
        sender = request.get_response_sender()
        for number in range(230):
            sender.send(response(number, Y=np.zeros(1 << 16, np.float32)))
            await asyncio.sleep(0)
        sender.send(flags=FINAL)
    return answer()
    """
    other = """
    async def answer():
        request.get_response_sender().send(response("served"), FINAL)
    return answer()
    """
    with Stream(server) as unread:
        unread.send("decoupled", code, outputs=("OUT", "Y"))
        assert unread.receive().value == 0
        for _ in range(20):
            assert [message.value for message in stream_of(server, "decoupled", other)] == ["served"]
        assert [message.value for message in unread.rest()] == list(range(1, 230))


# ---------------------------------------------------------------------------------------------- cancelled


CANCELLED = """
async def answer(request):
    try:
        await asyncio.to_thread(gate, {gate})
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        tell({tells}, ["cancelled", request.is_cancelled()])
        raise
return answer(request)
"""


def test_a_coroutine_whose_client_is_gone_is_cancelled(server: RunningServer) -> None:
    """CANCEL_COROUTINES, in default mode; the instance goes on."""
    with Gate() as gate, Gate() as tells, grpc.insecure_channel(server.grpc_url) as channel:
        code = CANCELLED.format(gate=gate.port, tells=tells.port)
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer.future(
            request_message("cancelling", code), timeout=WAIT_S
        )
        gate.wait()
        gate.open()
        call.cancel()
        assert tells.told() == ["cancelled", True]
    assert value_of(script(server, "return [response('next')]", "cancelling")) == "next"
    counted = r'nv_inference_request_failure\{model="cancelling",reason="(\w+)",version="1"\} 1$'
    page = urllib.request.urlopen(server.metrics_url).read().decode()
    assert re.findall(counted, page, re.MULTILINE) == ["CANCELED"]
    assert "execute function was cancelled" not in server.log


def test_a_coroutine_is_cancelled_that_has_null_requests_beside_those_whose_clients_are_gone(
    server: RunningServer,
) -> None:
    """CANCEL_COROUTINES: nobody waits for a row that is there to keep the others in their places."""
    model = "cancelling_rows"
    with Gate() as gate, Gate() as tells, grpc.insecure_channel(server.grpc_url) as channel:
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        begun = "return [response(len(requests)) for _ in requests]"
        for sequence in (1, 2):
            infer(
                request_message(model, begun, batches=True, sequence_id=sequence, sequence_start=True), timeout=WAIT_S
            )
        code = CANCELLED.format(gate=gate.port, tells=tells.port)
        call = infer.future(request_message(model, code, batches=True, sequence_id=2), timeout=WAIT_S)
        gate.wait()
        gate.open()
        call.cancel()
        assert tells.told() == ["cancelled", True]
        ended = request_message(model, begun, batches=True, sequence_id=2, sequence_end=True)
        assert infer(ended, timeout=WAIT_S).raw_output_contents[0][4:] == b"2"


def test_a_decoupled_coroutine_whose_client_is_gone_is_cancelled(server: RunningServer) -> None:
    """CANCEL_COROUTINES."""
    with Gate() as gate, Gate() as tells:
        with Stream(server) as stream:
            stream.send("cancelling_stream", CANCELLED.format(gate=gate.port, tells=tells.port))
            gate.wait()
            gate.open()
        assert tells.told() == ["cancelled", True]
    (message,) = stream_of(server, "cancelling_stream", "request.get_response_sender().send(response('next'), FINAL)")
    assert message.value == "next"


def test_a_coroutine_is_left_alone_unless_the_model_asks_for_it(server: RunningServer) -> None:
    """Issue 3, item 4: by parameter only."""
    with Gate() as gate, Gate() as tells:
        code = f"""
        async def answer(sender):
            try:
                await asyncio.to_thread(gate, {gate.port})
                while not sender.is_cancelled():
                    await asyncio.sleep(0.001)
                tell({tells.port}, "ran on")
                sender.send(flags=FINAL)
            except asyncio.CancelledError:
                tell({tells.port}, "cancelled")
        return answer(request.get_response_sender())
        """
        with Stream(server) as stream:
            stream.send("decoupled", code)
            gate.wait()
        gate.open()
        assert tells.told() == "ran on"
