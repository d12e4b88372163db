"""haproxy, nginx and Envoy with the files of deploy/balancers, before two real servers."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
from balancers import NAMES, PACKAGES, balancer, find_program
from measured_server import Ports

from tests.harness import RunningServer, tensor, write_model

# Answers which server it is, after as long as the gate of that server is closed.
WHO = """
    import os
    import time

    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                while os.path.exists(os.environ["GATE"]):
                    time.sleep(0.005)
                number = np.array([int(os.environ["POD"])], np.int32)
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", number)]))
            return responses
"""
CONFIG = """
    backend: "python"
    max_batch_size: 0
    input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
    parameters { key: "MAX_UNANSWERED_REQUESTS" value { string_value: "2" } }
"""
# The sum of what a sequence has sent, kept where nobody else can read it.
SUM = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.sums = {}

        def execute(self, requests):
            responses = []
            for request in requests:
                of = request.correlation_id()
                if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                    self.sums[of] = 0
                self.sums[of] += int(request.inputs()[0].as_numpy().ravel()[0])
                total = np.array([[self.sums[of]]], np.int32)
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", total)]))
            return responses
"""
# Candidates for all sequences, begun anew ones with them: what is none would wait for one to end.
SUM_CONFIG = """
    backend: "python"
    max_batch_size: 4
    sequence_batching { max_sequence_idle_microseconds: 60000000 oldest { max_candidate_sequences: 256 } }
    input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""


class Pod:
    def __init__(self, number: int, repository: Path, folder: Path, flags: tuple[str, ...] = ()) -> None:
        self.gate = folder / f"gate-{number}"
        environ = {"POD": str(number), "GATE": str(self.gate)}
        self.server = RunningServer(repository, flags=flags, environ=environ)

    @property
    def ports(self) -> Ports:
        return Ports(self.server.http_port, int(self.server.grpc_url.rpartition(":")[2]), 0)

    def pending(self) -> int:
        """Requests to the model that have no answer."""
        page = self.server.get(self.server.metrics_url).body.decode()
        (line,) = [line for line in page.splitlines() if line.startswith("pytriton_lite_unanswered_requests{")]
        return int(float(line.rpartition(" ")[2]))

    def wait_pending(self, count: int) -> None:
        while self.pending() < count:
            pass


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Pod]]:
    folder = tmp_path_factory.mktemp("pods")
    write_model(folder / "models", "who", WHO, CONFIG)
    made = [Pod(number, folder / "models", folder) for number in (1, 2)]
    with made[0].server, made[1].server:
        yield made


@pytest.fixture(scope="module", params=NAMES)
def through(
    request: pytest.FixtureRequest, pods: list[Pod], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ports]:
    name: str = request.param
    if find_program(name) is None:
        pytest.skip(f"{name} is not installed: {PACKAGES[name]}")
    with balancer(name, [pod.ports for pod in pods], tmp_path_factory.mktemp(name)) as ports:
        yield ports


@pytest.fixture
def name(through: Ports, request: pytest.FixtureRequest) -> str:
    return str(request.node.callspec.params["through"])


def ask_http(port: int, headers: dict[str, str] | None = None) -> tuple[int, int]:
    """The status of an answer, and the number of the server that gave it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        body = json.dumps({"inputs": [{"name": "IN", "shape": [1], "datatype": "INT32", "data": [0]}]})
        connection.request("POST", "/v2/models/who/infer", body, headers or {})
        answer = connection.getresponse()
        document = json.loads(answer.read())
        return answer.status, document["outputs"][0]["data"][0] if answer.status == 200 else 0
    finally:
        connection.close()


def grpc_input() -> tritonclient.grpc.InferInput:
    made = tritonclient.grpc.InferInput("IN", [1], "INT32")
    made.set_data_from_numpy(np.zeros(1, np.int32))
    return made


def test_requests_go_to_both_servers(through: Ports) -> None:
    assert {ask_http(through.http) for _ in range(20)} == {(200, 1), (200, 2)}
    # All of them on one connection, which a balancer of connections would give to one server.
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{through.grpc}") as client:
        assert {int(client.infer("who", [grpc_input()]).as_numpy("OUT")[0]) for _ in range(20)} == {1, 2}


def test_a_large_request_goes_through(through: Ports) -> None:
    """2 MiB, more than any of them keeps in memory by default."""
    document = {"inputs": [{"name": "IN", "shape": [1], "datatype": "INT32", "data": [0]}]}
    body = json.dumps(document).encode() + (2 << 20) * b" "
    connection = http.client.HTTPConnection("127.0.0.1", through.http, timeout=30)
    try:
        connection.request("POST", "/v2/models/who/infer", body)
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["model_name"]) == (200, "who")
    finally:
        connection.close()


def test_a_sequence_stays_with_its_server(through: Ports) -> None:
    names = [f"sequence-{number}" for number in range(16)]
    over_http = {name: {ask_http(through.http, {"x-sequence-id": name})[1] for _ in range(3)} for name in names}
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{through.grpc}") as client:
        over_grpc = {
            name: {
                int(client.infer("who", [grpc_input()], headers={"x-sequence-id": name}).as_numpy("OUT")[0])
                for _ in range(3)
            }
            for name in names
        }
    for answered in (over_http, over_grpc):
        assert all(len(servers) == 1 for servers in answered.values())
        assert len({next(iter(servers)) for servers in answered.values()}) == 2


def test_a_server_that_is_busy_gets_less(through: Ports, pods: list[Pod]) -> None:
    """Least requests: while one server holds a request, those that come go to the other."""
    slow, quick = pods
    slow.gate.touch()
    try:
        with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{through.grpc}") as client:
            ended = [threading.Event(), threading.Event()]
            for one in ended:
                client.async_infer("who", [grpc_input()], lambda result, error, one=one: one.set())
            slow.wait_pending(1)
            seen = Counter(int(client.infer("who", [grpc_input()]).as_numpy("OUT")[0]) for _ in range(20))
            assert seen[2] == 20
            assert quick.pending() == 0
            slow.gate.unlink()
            assert all(one.wait(30) for one in ended)
    finally:
        slow.gate.unlink(missing_ok=True)


def test_a_refusal_for_load_is_tried_elsewhere_by_envoy_alone(through: Ports, pods: list[Pod], name: str) -> None:
    """503 with Retry-After was begun by nobody. Only Envoy can tell it from one without."""
    full = pods[0]
    full.gate.touch()
    try:
        with ThreadPoolExecutor(2) as direct:
            held = [direct.submit(ask_http, full.ports.http) for _ in range(2)]
            full.wait_pending(2)
            refused = full.server.infer("who", [tensor("IN", "INT32", [1], [0])])
            assert (refused.status, "retry-after" in {header.lower() for header in refused.headers}) == (503, True)
            statuses = Counter(ask_http(through.http)[0] for _ in range(20))
            assert statuses[200] + statuses[503] == 20
            assert (statuses[503] == 0) == (name == "envoy")
            full.gate.unlink()
            assert [answer.result() for answer in held] == [(200, 1), (200, 1)]
    finally:
        full.gate.unlink(missing_ok=True)


def test_a_server_that_is_killed_is_left_out(tmp_path: Path, pods: list[Pod], name: str) -> None:
    """kill -9 under load: what was inside is lost and said to be; what comes next goes to the other."""
    doomed = Pod(3, Path(pods[0].server.arguments[1]), tmp_path)
    with doomed.server, balancer(name, [doomed.ports, pods[1].ports], tmp_path) as ports:
        doomed.gate.touch()
        answers: list[BaseException | None] = []
        arrived = threading.Event()

        def hear(result: object, error: BaseException | None) -> None:
            answers.append(error)
            arrived.set()

        with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{ports.grpc}") as client:
            waiting = [client.async_infer("who", [grpc_input()], hear) for _ in range(1)]
            while doomed.pending() < 1 and not arrived.is_set():
                pass
            if not arrived.is_set():  # it went to the doomed one
                doomed.server.process.kill()
                assert arrived.wait(30)
                assert "UNAVAILABLE" in str(answers[0]) or answers[0] is None or "CANCELLED" in str(answers[0])
            else:
                doomed.server.process.kill()
            del waiting
            seen = Counter[object]()
            while seen[2] < 10:
                try:
                    seen[int(client.infer("who", [grpc_input()], client_timeout=10).as_numpy("OUT")[0])] += 1
                except tritonclient.grpc.InferenceServerException as error:
                    seen[error.status()] += 1
            assert seen[3] == 0
        doomed.server.process.wait()


class Sequence:
    """A client of a sequence that can begin it anew: it keeps what it has sent, and sends all of it again elsewhere."""

    def __init__(self, port: int, name: str) -> None:
        self._port, self._name, self._number = port, name, 1
        self._sent: list[int] = []
        self.refusals: list[tuple[int, str]] = []

    def add(self, value: int) -> int:
        """The sum that the server has of the whole sequence, *value* with it."""
        self._sent.append(value)
        answer = self._ask(value, is_start=len(self._sent) == 1)
        while answer is None:
            assert len(self.refusals) < 100, self.refusals[-3:]
            answer = self._again()
        return answer

    def _again(self) -> int | None:
        self._number += 1  # what has come of the old one, if anything, is not mixed with the new one
        answer: int | None = None
        for at, value in enumerate(self._sent):
            answer = self._ask(value, is_start=at == 0)
            if answer is None:
                return None
        return answer

    def _ask(self, value: int, *, is_start: bool) -> int | None:
        name = f"{self._name}, {self._number}"
        parameters = {"sequence_id": name, "sequence_start": is_start, "sequence_end": False}
        tensor = {"name": "IN", "shape": [1, 1], "datatype": "INT32", "data": [value]}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            body = json.dumps({"inputs": [tensor], "parameters": parameters})
            connection.request("POST", "/v2/models/sum/infer", body, {"x-sequence-id": self._name})
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.refusals.append((0, type(error).__name__))
            return None
        finally:
            connection.close()
        if answer.status != 200:
            self.refusals.append((answer.status, text.decode()))
            return None
        total: int = json.loads(text)["outputs"][0]["data"][0]
        return total


@pytest.mark.parametrize("name", NAMES)
def test_a_sequence_whose_server_drains_is_begun_anew_by_its_client(name: str, tmp_path: Path) -> None:
    """State is not handed over: the next server refuses what has not begun there. A client that kept what it sent goes on."""
    if find_program(name) is None:
        pytest.skip(f"{name} is not installed: {PACKAGES[name]}")
    write_model(tmp_path / "models", "sum", SUM, SUM_CONFIG)
    leaves, stays = (Pod(number, tmp_path / "models", tmp_path, ("--drain-delay-secs=3",)) for number in (1, 2))
    with leaves.server, stays.server, balancer(name, [leaves.ports, stays.ports], tmp_path) as ports:
        sequences = [Sequence(ports.http, f"sequence-{number}") for number in range(12)]
        sums = [0] * len(sequences)

        def add(value: int) -> None:
            for at, sequence in enumerate(sequences):
                sums[at] += value
                assert sequence.add(value) == sums[at]

        add(1)
        add(2)
        assert not any(sequence.refusals for sequence in sequences)
        leaves.server.process.terminate()
        while leaves.server.process.poll() is None:
            add(3)
        add(4)
        moved = [sequence for sequence in sequences if sequence.refusals]
        assert 0 < len(moved) < len(sequences)
        for sequence in moved:
            told = [text for status, text in sequence.refusals if status == 400]
            assert told
            assert all("must specify the START flag" in text for text in told)
            # Of a connection that broke while the server left nothing is known; a balancer says 502 or 503 of it.
            assert {status for status, _ in sequence.refusals} <= {400, 0, 502, 503}


@pytest.mark.parametrize("name", NAMES)
def test_two_versions_of_a_model_behind_a_balancer(name: str, tmp_path: Path) -> None:
    """Who names no version gets either and is told which; who names one is told where it is not. No balancer tries again."""
    if find_program(name) is None:
        pytest.skip(f"{name} is not installed: {PACKAGES[name]}")
    pods = []
    for version in (1, 2):
        write_model(tmp_path / f"v{version}", "who", WHO, CONFIG, version=version)
        pods.append(Pod(version, tmp_path / f"v{version}", tmp_path))
    body = json.dumps({"inputs": [{"name": "IN", "shape": [1], "datatype": "INT32", "data": [0]}]}).encode()
    with pods[0].server, pods[1].server, balancer(name, [pod.ports for pod in pods], tmp_path) as ports:

        def ask(path: str) -> tuple[int, str]:
            connection = http.client.HTTPConnection("127.0.0.1", ports.http, timeout=30)
            try:
                connection.request("POST", path, body)
                answer = connection.getresponse()
                document = json.loads(answer.read())
                return answer.status, document["model_version"] if answer.status == 200 else document["error"]
            finally:
                connection.close()

        assert {ask("/v2/models/who/infer") for _ in range(20)} == {(200, "1"), (200, "2")}
        named = {ask("/v2/models/who/versions/2/infer") for _ in range(20)}
        refused = named - {(200, "2")}
        assert (200, "2") in named
        assert {status for status, _ in refused} <= {400, 404} and refused
        with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{ports.grpc}") as client:
            statuses = Counter[str]()
            for _ in range(20):
                try:
                    answer = client.infer("who", [grpc_input()], model_version="2").get_response()
                    statuses[answer.model_version] += 1
                except tritonclient.grpc.InferenceServerException as error:
                    statuses[str(error.status())] += 1
        assert statuses.pop("2") > 0
        assert set(statuses) <= {"StatusCode.NOT_FOUND", "StatusCode.INVALID_ARGUMENT"} and statuses
