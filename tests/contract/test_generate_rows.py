"""generate and generate_stream of a real server: rows 107 to 114 and 118 of http.md, section 15, and clients that misbehave."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.contract.scripted_model import DECOUPLED, WAIT_S, Gate, write_script_model
from tests.contract.wire_models import FAIL, PARAMETERS, identity_config, statistics, tensors, wait_until
from tests.harness import Reply, RunningServer, write_model

GEN = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        # As many responses as the parameter n says; of those in the parameter "errors" each is one.
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                asked = json.loads(request.parameters() or "{}")
                text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().reshape(-1)[0]
                for number in range(asked.get("n", 1)):
                    if str(number) in asked.get("errors", ""):
                        error = pb_utils.TritonError(f"bad {number}", pb_utils.TritonError.NOT_FOUND)
                        sender.send(pb_utils.InferenceResponse(error=error))
                        continue
                    outputs = [
                        pb_utils.Tensor("vec", np.array([0.0, 1.5], np.float32)),
                        pb_utils.Tensor("text_output", np.array([text + str(number).encode()], np.object_)),
                    ]
                    sender.send(pb_utils.InferenceResponse(outputs))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
GEN_CONFIG = """
    backend: "python"
    model_transaction_policy { decoupled: true }
    input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
    input { name: "extra" data_type: TYPE_INT32 dims: [ -1 ] optional: true }
    output { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }
    output { name: "vec" data_type: TYPE_FP32 dims: [ 2 ] }
"""
NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number of "
    "responses"
)
HI0 = b'{"model_name":"gen","model_version":"1","text_output":"hi0","vec":[0.0,1.5]}'
WINDOW = 64


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Nothing that clients do to it is an error of its own."""
    repository: Path = tmp_path_factory.mktemp("repository")
    write_models(repository)
    with RunningServer(repository) as running:
        yield running
        assert not re.search(r"failed inside the server|cannot be written|never awaited|ASGI", running.log)


def write_models(repository: Path) -> None:
    write_model(repository, "gen", GEN, GEN_CONFIG)
    write_model(
        repository,
        "params",
        PARAMETERS,
        'backend: "python"\n'
        + tensors("input", ("INPUT0", "INT32", "1"))
        + tensors("output", ("OUTPUT0", "STRING", "1")),
    )
    write_model(repository, "fail", FAIL, identity_config("STRING", "1"))
    write_script_model(repository, "script", DECOUPLED)
    write_script_model(repository, "single")


def generate(server: RunningServer, body: Any, *, model: str = "gen", headers: dict[str, str] | None = None) -> Reply:
    return server.post(f"/v2/models/{model}/generate", body, headers)


def generate_stream(server: RunningServer, body: Any, *, model: str = "gen") -> Reply:
    return server.post(f"/v2/models/{model}/generate_stream", body)


def events(reply: Reply) -> list[Any]:
    """What each event of a whole stream says."""
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    *lines, rest = reply.body.decode().split("\n\n")
    assert rest == ""
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


# ------------------------------------------------------------------------------------------------------ the rows


def test_row_107_one_response_is_a_flat_object_with_sorted_keys(server: RunningServer) -> None:
    reply = generate(server, {"text_input": "hi", "n": 1})
    assert (reply.status, reply.body, reply.headers["content-type"]) == (200, HI0, "application/json")
    assert (reply.headers["transfer-encoding"], "content-length" in reply.headers) == ("chunked", False)


@pytest.mark.parametrize("count", [0, 2, 200])
def test_row_108_no_response_and_several_are_an_error_with_status_200(server: RunningServer, count: int) -> None:
    reply = generate(server, {"text_input": "hi", "n": count})
    assert (reply.status, reply.json) == (200, {"error": NOT_ONE})


def test_row_109_each_response_is_an_event(server: RunningServer) -> None:
    reply = generate_stream(server, {"text_input": "hi", "n": 3})
    assert (reply.status, [event["text_output"] for event in events(reply)]) == (200, ["hi0", "hi1", "hi2"])
    assert reply.body.startswith(b"data: " + HI0 + b"\n\n")
    assert events(generate_stream(server, {"text_input": "hi", "n": 0})) == []


def test_row_110_an_error_in_the_middle_is_an_event(server: RunningServer) -> None:
    reply = generate_stream(server, {"text_input": "hi", "n": 3, "errors": "1"})
    assert reply.status == 200
    assert [event.get("text_output") or event for event in events(reply)] == ["hi0", {"error": "bad 1"}, "hi2"]


def test_row_111_an_error_that_comes_first_decides_the_status_by_its_code(server: RunningServer) -> None:
    reply = generate_stream(server, {"text_input": "hi", "n": 2, "errors": "0"})
    assert reply.status == 404
    assert [event.get("text_output") or event for event in events(reply)] == [{"error": "bad 0"}, "hi1"]
    reply = generate(server, {"text_input": "hi", "errors": "0"})
    assert (reply.status, reply.json) == (404, {"error": "bad 0"})


@pytest.mark.parametrize(("what", "status"), [("raise", 500), ("NOT_FOUND", 404), ("UNAVAILABLE", 503)])
def test_row_111_holds_for_models_in_default_mode(server: RunningServer, what: str, status: int) -> None:
    stream = generate_stream(server, {"INPUT0": what}, model="fail")
    (event,) = events(stream)
    single = generate(server, {"INPUT0": what}, model="fail")
    assert (stream.status, single.status, single.json) == (status, status, event)
    assert ("boom" if what == "raise" else "as the model says") in event["error"]


@pytest.mark.parametrize("route", [generate, generate_stream])
def test_row_112_missing_inputs_are_refused_by_the_core(server: RunningServer, route: Any) -> None:
    reply = route(server, {"id": "q"})
    assert (reply.status, reply.headers["content-type"]) == (400, "application/json")
    assert int(reply.headers["content-length"]) == len(reply.body)
    assert reply.error == (
        "[request id: q] expected number of inputs between 1 and 2 but got 0 inputs for model 'gen'. Got input(s) [], but "
        "missing required input(s) ['text_input']. Please provide all required input(s)."
    )


def test_row_113_other_members_reach_the_model_as_parameters(server: RunningServer) -> None:
    reply = generate(
        server,
        {"INPUT0": 1, "temperature": 0.5, "id": "7", "parameters": {"top_k": 3, "nested": True}, "sequence_id": 9},
        model="params",
    )
    assert reply.status == 200
    seen = {"temperature": 0.5, "id": "7", "top_k": 3, "nested": True, "sequence_id": 9}
    assert json.loads(reply.json["OUTPUT0"]) == seen
    assert reply.json["id"] == "7"


def test_row_114_compressed_bodies_are_refused(server: RunningServer) -> None:
    reply = generate(server, b"\x1f\x8b", headers={"Content-Encoding": "gzip"})
    assert (reply.status, reply.error) == (400, "Unsupported content-encoding, only 'identity' is supported.")


def test_row_118_a_closed_connection_cancels_the_request_in_the_model(server: RunningServer) -> None:
    with Gate() as tells, EventClient(server) as client:
        client.ask(f"""
            sender = request.get_response_sender()
            sender.send(response("one"))
            tell({tells.port}, until(request.is_cancelled))
            sender.send(flags=FINAL)
        """)
        assert client.value() == "one"
        client.close()
        assert tells.told() is True


# ------------------------------------------------------------------------------------------------------ beside them


def test_a_model_in_default_mode_streams_its_only_response(server: RunningServer) -> None:
    (event,) = events(generate_stream(server, {"INPUT0": "fine"}, model="fail"))
    assert event == {"model_name": "fail", "model_version": "1", "OUTPUT0": "fine"}


def test_a_raising_decoupled_model_ends_the_stream_with_an_error(server: RunningServer) -> None:
    reply = generate_stream(
        server,
        {"IN": 'request.get_response_sender().send(response("one"))\nraise ValueError("boom")'},
        model="script",
    )
    first, second = events(reply)
    assert (reply.status, json.loads(first["OUT"])) == (200, "one")
    assert "ValueError: boom" in second["error"]


def test_tensors_get_the_shape_that_the_model_declares(server: RunningServer) -> None:
    reply = generate(server, {"text_input": ["a", "b"]})
    assert (reply.status, reply.error) == (
        400,
        "The schema can not convert input 'text_input' to tensor with proper shape",
    )
    code = 'return [response(list(pb_utils.get_input_tensor_by_name(request, "X").as_numpy().shape))]'
    reply = generate(server, {"IN": code, "X": [1, 2.5, 3]}, model="single")
    assert (reply.status, json.loads(reply.json["OUT"])) == (200, [3])


def test_requests_are_counted_as_those_of_infer(server: RunningServer) -> None:
    before = statistics(server, "fail")["inference_stats"]
    generate(server, {"INPUT0": "fine"}, model="fail")
    generate_stream(server, {"INPUT0": "raise"}, model="fail")
    after = statistics(server, "fail")["inference_stats"]
    assert after["success"]["count"] - before["success"]["count"] == 1
    assert after["fail"]["count"] - before["fail"]["count"] == 1


def test_both_routes_are_documented(server: RunningServer) -> None:
    paths = server.get("/openapi.json").json["paths"]
    for action in ("generate", "generate_stream"):
        for path in (f"/v2/models/{{model}}/{action}", f"/v2/models/{{model}}/versions/{{version}}/{action}"):
            body = paths[path]["post"]["requestBody"]["content"]["application/json"]
            assert body["example"]["text_input"]
            # What is documented is what is served.
            reply = server.post(path.format(model="gen", version=1), body["example"])
            (served_type,) = paths[path]["post"]["responses"]["200"]["content"]
            assert (reply.status, reply.headers["content-type"].partition(";")[0]) == (200, served_type)


# ------------------------------------------------------------------------------------------------------ adversity


class EventClient:
    """A raw connection that asks for a stream of the model ``script`` and reads as much of it as the test wants."""

    def __init__(self, server: RunningServer) -> None:
        host, _, port = server.http_url.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), WAIT_S)
        self._file = self.sock.makefile("rb")

    def __enter__(self) -> EventClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.sock.close()

    def ask(self, code: str) -> None:
        body = json.dumps({"IN": textwrap.dedent(code)}).encode()
        head = f"POST /v2/models/script/generate_stream HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
        self.sock.sendall(head.encode() + body)

    def value(self) -> Any:
        """Of the next response."""
        line = next(line for line in self._file if line.startswith(b"data: "))
        return json.loads(json.loads(line.removeprefix(b"data: "))["OUT"])

    def rest(self) -> list[Any]:
        """The values of the further responses, up to the end of the stream."""
        values = []
        for line in self._file:
            if line == b"0\r\n":
                return values
            if line.startswith(b"data: "):
                values.append(json.loads(json.loads(line.removeprefix(b"data: "))["OUT"]))
        raise AssertionError("the connection ended before the stream")


TOTAL = 1000
FLOOD = f"""
    sender = request.get_response_sender()
    model.sent = 0

    def flood():
        for number in range({TOTAL}):
            sender.send(response([number, "x" * {128 << 10}]))
            model.sent += 1
        sender.send(flags=FINAL)

    thread(flood)
"""
SENT = "request.get_response_sender().send(response(model.sent), flags=FINAL)"


def test_a_client_that_does_not_read_holds_back_the_model_and_gets_everything_in_the_end(server: RunningServer) -> None:
    """The model is ahead by the window and by what sockets buffer, a few megabytes."""

    def sent() -> int:
        return int(json.loads(generate(server, {"IN": SENT}, model="script").json["OUT"]))

    with EventClient(server) as client:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        client.ask(FLOOD)
        assert client.value()[0] == 0
        wait_until(lambda: sent() > WINDOW)
        wait_until(lambda: len({sent() for _ in range(20)}) == 1)  # it stands still, while others are served
        assert WINDOW < sent() < TOTAL // 2
        assert [number for number, _ in client.rest()] == list(range(1, TOTAL))
        assert sent() == TOTAL


def test_a_client_that_does_not_read_and_goes_away_lets_the_model_go_on(server: RunningServer) -> None:
    with Gate() as tells, EventClient(server) as client:
        client.ask(f"""
            sender = request.get_response_sender()

            def flood():
                for number in range({TOTAL}):
                    sender.send(response([number, "x" * {128 << 10}]))
                    if number == {WINDOW}:
                        tell({tells.port}, "going")
                    if request.is_cancelled():
                        break
                sender.send(flags=FINAL)
                tell({tells.port}, number < {TOTAL} - 1)

            thread(flood)
        """)
        assert tells.told() == "going"
        client.close()
        assert tells.told() is True


def test_the_server_ends_when_a_stream_under_way_has_ended(tmp_path: Path) -> None:
    """Row 119 for streams: nothing of it is lost."""
    write_models(tmp_path)
    with RunningServer(tmp_path) as server, Gate() as gate, EventClient(server) as client:
        client.ask(f"""
            sender = request.get_response_sender()
            sender.send(response("one"))
            gate({gate.port})
            sender.send(response("two"))
            sender.send(flags=FINAL)
        """)
        assert client.value() == "one"
        gate.wait()
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("Timeout|[Ss]topping|shutting down|signal")
        gate.open()
        assert client.rest() == ["two"]
        assert server.process.wait(30) == 0


def test_a_keep_alive_connection_serves_infer_and_generate_in_turn(server: RunningServer) -> None:
    host, _, port = server.http_url.rpartition(":")
    given = json.dumps(
        {"inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": ["fine"]}]},
    )
    with closing(http.client.HTTPConnection(host, int(port), timeout=WAIT_S)) as connection:
        for _ in range(2):
            for action, body in (
                ("generate", '{"INPUT0":"fine"}'),
                ("infer", given),
                ("generate_stream", '{"INPUT0":"fine"}'),
            ):
                connection.request("POST", f"/v2/models/fail/{action}", body)
                reply = connection.getresponse()
                assert (reply.status, b"fine" in reply.read()) == (200, True)
