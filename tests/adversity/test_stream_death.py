"""Streams that lose one of their ends: workers that are killed, clients that are killed, and clients that do not read."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.contract.scripted_model import (
    DECOUPLED,
    WAIT_S,
    Gate,
    Message,
    Stream,
    run,
    stream_of,
    value_of,
    write_script_model,
)
from tests.contract.wire_models import wait_until
from tests.harness import PROJECT, RunningServer, child

STREAMS = 8
NOT_HEALTHY = r"Stub process '{}_0_0' is not healthy\."


@pytest.fixture(scope="module", params=["http2", "grpcio"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository: Path = tmp_path_factory.mktemp("repository")
    write_script_model(repository, "streamed", DECOUPLED)
    write_script_model(repository, "deferred")
    write_script_model(repository, "bystander", DECOUPLED)
    with RunningServer(repository, flags=(f"--grpc-transport={request.param}",)) as running:
        yield running


def kill_worker(server: RunningServer, model: str) -> None:
    (pid,) = server.worker_pids(f"{model}_0_0")
    os.kill(pid, signal.SIGKILL)


def one_response(server: RunningServer, model: str, code: str = "'served'") -> object:
    """What *code* is worth inside the model."""
    (message,) = stream_of(server, model, f"request.get_response_sender().send(response({code}), FINAL)")
    assert message.error == ""
    return message.value


# ---------------------------------------------------------------------------------------------- the worker dies


def test_every_open_stream_hears_of_a_killed_worker(server: RunningServer) -> None:
    """model_api.md row 105: those in the middle of their responses, and those that have none; nobody else notices."""
    code = """
    model.notes.append(request.get_response_sender())
    for n in range(int(request.request_id())):
        model.notes[-1].send(response(n, Y=np.zeros(5000)))
    """
    with ExitStack() as stack:
        bystander = stack.enter_context(Stream(server))
        gate = stack.enter_context(Gate())
        bystander.send(
            "bystander", f"gate({gate.port})\nrequest.get_response_sender().send(response('unharmed'), FINAL)"
        )
        gate.wait()
        streams = [stack.enter_context(Stream(server)) for _ in range(STREAMS)]
        for count, stream in enumerate(streams):
            stream.send("streamed", code, request_id=str(count))
            for n in range(count):
                assert stream.receive().value == n
        # The request of the first stream, which sends no response, may come last of all.
        wait_until(lambda: one_response(server, "streamed", "len(model.notes)") == STREAMS)
        kill_worker(server, "streamed")
        for count, stream in enumerate(streams):
            (last,) = stream.rest()
            assert (last.id, last.is_final) == (str(count), True)
            assert re.match(NOT_HEALTHY.format("streamed"), last.error)
        gate.open()
        assert bystander.receive().value == "unharmed"
    assert one_response(server, "streamed") == "served"


def test_a_stream_goes_on_after_the_death_of_a_worker(server: RunningServer) -> None:
    """The same call, the next request: only the one that was inside has failed."""
    with Stream(server) as stream, Gate() as gate:
        stream.send("streamed", f"gate({gate.port})")
        gate.wait()
        kill_worker(server, "streamed")
        assert re.match(NOT_HEALTHY.format("streamed"), stream.receive().error)
        stream.send("streamed", "request.get_response_sender().send(response('again'), FINAL)")
        assert stream.receive().value == "again"
        assert list(stream.rest()) == []


def test_requests_that_wait_for_their_sender_hear_of_a_killed_worker(server: RunningServer) -> None:
    """Default mode: execute has returned long ago. A response that was sent without its end is delivered."""
    keep = "model.notes.append(request.get_response_sender())\n"
    with ThreadPoolExecutor(3) as threads, Gate() as first, Gate() as second, Gate() as third:

        def ask(code: str, gate: Gate) -> object:
            """In flight, and its execute has returned, when the thread that it leaves behind has come to its gate."""
            reply = threads.submit(run, server, f"{keep}{code}\nthread(gate, {gate.port})", model="deferred")
            gate.wait()
            return reply

        nothing, sent, large = (
            ask("", first),
            ask("model.notes[-1].send(response('sent'))", second),
            ask("model.notes[-1].send(response('large', Y=np.arange(10_000)))", third),
        )
        assert value_of(run(server, "return [response(len(model.notes))]", model="deferred")) == 3
        kill_worker(server, "deferred")
        reply = nothing.result()
        assert reply.status == 503
        assert re.match(NOT_HEALTHY.format("deferred"), reply.error)
        assert value_of(sent.result()) == "sent"
        assert value_of(large.result()) == "large"
    assert value_of(run(server, "return [response(len(model.notes))]", model="deferred")) == 0


def test_streams_end_while_their_worker_is_killed_again_and_again(server: RunningServer) -> None:
    """However far each had come: its responses are the first ones, in order, and then it ends, well or badly."""
    code = """
    def send(sender):
        for n in range(30):
            sender.send(response(n))
        sender.send(response(30), FINAL)
    thread(send, request.get_response_sender())
    """

    def ask(_: int) -> list[Message]:
        return stream_of(server, "streamed", code)

    with ThreadPoolExecutor(STREAMS) as threads:
        answers = threads.map(ask, range(15 * STREAMS))
        for _ in range(5):
            one_response(server, "streamed")
            kill_worker(server, "streamed")
            (message,) = stream_of(server, "streamed", "request.get_response_sender().send(response('back'), FINAL)")
            while message.error:  # it came to the worker that was being killed
                assert re.match(NOT_HEALTHY.format("streamed"), message.error)
                (message,) = stream_of(
                    server, "streamed", "request.get_response_sender().send(response('back'), FINAL)"
                )
        for messages in answers:
            *responses, last = messages
            assert [(message.value, message.is_final) for message in responses] == [
                (n, False) for n in range(len(responses))
            ]
            assert last.is_final
            assert last.value == 30 or re.match(NOT_HEALTHY.format("streamed"), last.error)


# ---------------------------------------------------------------------------------------------- the client dies

CLIENT = """
import sys
from tritonclient.grpc import InferInput, InferenceServerClient
import numpy as np

def on_result(result, error):
    print("a response", flush=True)

client = InferenceServerClient(sys.argv[1])
client.start_stream(on_result)
given = InferInput("IN", [1], "BYTES")
given.set_data_from_numpy(np.array([sys.argv[2]], dtype=object))
client.async_stream_infer("streamed", [given])
"""


@pytest.mark.parametrize("sends_on", [False, True], ids=["quiet", "in the middle of responses"])
def test_a_client_that_is_killed_cancels_its_requests(server: RunningServer, sends_on: bool) -> None:
    with Gate() as tells:
        code = f"""
        def send():
            sender.send(response(0))
            while {sends_on} and not sender.is_cancelled():
                sender.send(response(1, Y=np.zeros(5000)))
            gone = until(sender.is_cancelled)
            tell({tells.port}, [gone, refusal(sender.send, response(2)), refusal(sender.send, flags=FINAL)])
        sender = request.get_response_sender()
        thread(send)
        """
        command = [sys.executable, "-c", CLIENT, server.grpc_url, textwrap.dedent(code)]
        with child(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=PROJECT) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == b"a response\n"
            client.kill()
            client.stdout.read()
        assert tells.told() == [True, None, None]
    assert one_response(server, "streamed") == "served"


# ---------------------------------------------------------------------------------------------- the client does not read

RESPONSES, RESPONSE_MB = 600, 1
READERS = 3


def resident_mb(server: RunningServer) -> float:
    """Of the server and its workers, shared memory included."""
    total_kb = 0
    for pid in (server.process.pid, *server.worker_pids()):
        status = Path(f"/proc/{pid}/status").read_text()
        total_kb += int(re.search(r"VmRSS:\s+(\d+)", status).group(1))  # type: ignore[union-attr]
    return total_kb / 1024


def test_a_client_that_does_not_read_costs_bounded_memory_and_no_one_elses_time(server: RunningServer) -> None:
    """Issue 3, item 2: 64 unsent responses per request; the same model serves others, and the client gets all in the end."""
    code = f"""
    def send(sender):
        for n in range({RESPONSES}):
            counts[at] = n + 1
            sender.send(response(n, Y=np.zeros({RESPONSE_MB} << 18)))
        sender.send(flags=FINAL)
    counts, at = model.notes, len(model.notes)
    counts.append(0)
    thread(send, request.get_response_sender())
    """
    one_response(server, "streamed", "model.notes.clear()")
    before_mb = resident_mb(server)
    with ExitStack() as stack:
        # A model whose client's deadline has passed goes on sending, to nobody.
        streams = [stack.enter_context(Stream(server, timeout_s=10 * WAIT_S)) for _ in range(READERS)]
        for stream in streams:
            stream.send("streamed", code)
        counts: object = None
        for _ in range(100):
            for _ in range(10):
                assert one_response(server, "bystander") == "served"
            last, counts = counts, one_response(server, "streamed", "model.notes")
            if counts == last and isinstance(counts, list) and all(counts):
                break
        assert isinstance(counts, list)
        assert all(stream.call.is_active() for stream in streams)
        assert max(counts) < 200, "the models went on sending"
        # Of each response one copy in the worker's arena, or one in the server's buffers and the sockets'.
        assert resident_mb(server) - before_mb < READERS * 3 * 64 * RESPONSE_MB
        patient, *others = streams
        for stream in others:
            stream.cancel()
        values = [message.value for message in patient.rest()]
        assert values == list(range(RESPONSES))
    assert one_response(server, "streamed") == "served"
