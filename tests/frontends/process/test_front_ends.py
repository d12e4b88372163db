"""Front ends in processes of their own: a real server with two, clients over real sockets, and what may happen to one."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from pytriton_lite.core.errors import ErrorCode
from pytriton_lite.core.log_settings import LogSettings
from pytriton_lite.engine.server import Server, ServerOptions
from pytriton_lite.engine.workers.settings import WorkerSettings
from pytriton_lite.frontends.accepting import Places
from pytriton_lite.frontends.process import frames, supervisor
from pytriton_lite.frontends.process.board import Board
from pytriton_lite.frontends.process.control import Answers
from pytriton_lite.frontends.process.news import FrontEndStart
from pytriton_lite.frontends.process.supervisor import FrontEndError, FrontEnds, Shared, command_of
from pytriton_lite.settings import Settings
from tests.harness import (
    RunningServer,
    child,
    is_running,
    process_name_and_parent,
    stat_fields,
    tensor,
    until,
    write_model,
)
from tests.prometheus_text import read_page

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="front ends need memory files and process descriptors")

FRONT_ENDS = 2

WORKERS = WorkerSettings(
    executable=sys.executable, shm_prefix="front_ends_test_", ring_bytes=1 << 20, hello_timeout_s=30, ready_timeout_s=60
)

BATCH_SIZES = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            size = np.full((1, 1), len(requests), np.int32)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", size)]) for _ in requests]
"""
BATCH_SIZES_CONFIG = """
    backend: "python"
    max_batch_size: 8
    input { name: "IN" data_type: TYPE_INT32 dims: 1 }
    output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
    dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 60000000 }
"""

ECHO = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            found = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for array in found]
"""
ECHO_CONFIG = """
    backend: "python"
    input { name: "IN" data_type: TYPE_INT32 dims: -1 }
    output { name: "OUT" data_type: TYPE_INT32 dims: -1 }
    instance_group { count: 2 kind: KIND_CPU }
"""

SENT_TENSORS = {
    "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [-1]}],
    "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [-1]}],
}

SLOW = """
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            time.sleep(0.2)
            found = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for array in found]
"""

LARGE = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            found = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(array[0], np.int32))]) for array in found]
"""


def front_end_pids(server: RunningServer) -> list[int]:
    """Those that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            name, parent = process_name_and_parent(int(entry.name))
        except (OSError, ValueError):
            continue
        if parent == server.process.pid and name.startswith("front end") and is_running(int(entry.name)):
            found.append(int(entry.name))
    return sorted(found)


def wait_replaced(server: RunningServer, victim: int) -> None:
    """Another one is in the place of *victim*, so the server has noticed that it has gone, and gives it no connection."""

    def is_replaced() -> bool:
        pids = front_end_pids(server)
        return victim not in pids and len(pids) == FRONT_ENDS

    wait_for(is_replaced, "another one is started in its place")


def connections_of(pid: int) -> int:
    """TCP connections that a process has."""
    return len(ports_of_clients(pid))


def ports_of_clients(pid: int) -> list[int]:
    """Ports that the other ends of a process's TCP connections have; 0 for a listener."""
    ours = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            ours.add(os.readlink(entry))
        except OSError:
            continue
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(fields[2].partition(":")[2], 16) for fields in lines if f"socket:[{fields[9]}]" in ours]


def is_all_read(client: socket.socket) -> bool:
    """Whether the server has read what *client*, a connection to 127.0.0.1, has sent."""
    # Both ends are compared: a connection to another server, in TIME_WAIT, may have had the same port here.
    ends = [f":{end[1]:04X}" for end in (client.getpeername(), client.getsockname())]
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [line[4][9:] for line in lines if [end[8:] for end in line[1:3]] == ends] == ["00000000"]


class Client:
    """A connection that is kept, and so one to the same front end throughout."""

    def __init__(self, server: RunningServer) -> None:
        host, port = server.http_url.split(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=30)
        self._connection.connect()

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        self._connection.request("POST", path, json.dumps(body))
        answer = self._connection.getresponse()
        data = answer.read()
        return answer.status, json.loads(data) if data else None

    def infer(self, model: str, value: int) -> tuple[int, Any]:
        return self.post(f"/v2/models/{model}/infer", {"inputs": [tensor("IN", "INT32", [1], [value])]})

    def close(self) -> None:
        self._connection.close()


@contextmanager
def clients(server: RunningServer, count: int) -> Iterator[list[Client]]:
    """Connections one after the other, so that they are shared out evenly."""
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            client = Client(server)
            stack.callback(client.close)
            client.infer("echo", 0)
            found.append(client)
        yield found


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "sizes", BATCH_SIZES, BATCH_SIZES_CONFIG)
    write_model(folder, "echo", ECHO, ECHO_CONFIG)
    write_model(folder, "slow", SLOW, ECHO_CONFIG)
    return folder


@contextmanager
def serving(repository: Path, *flags: str) -> Iterator[RunningServer]:
    with RunningServer(repository, flags=(f"--frontends={FRONT_ENDS}", *flags)) as server:
        yield server


@pytest.fixture
def server(repository: Path) -> Iterator[RunningServer]:
    with serving(repository) as running:
        yield running


def metric(server: RunningServer, family: str, **labels: str) -> float:
    """The sum of the samples that have *labels*."""
    page = read_page(server.get(server.metrics_url).body.decode())
    if family not in page:  # nothing was counted yet
        return 0
    return sum(value for (_, found), value in page[family].samples.items() if labels.items() <= dict(found).items())


def answered(server: RunningServer) -> float:
    return metric(server, "pytriton_lite_requests", protocol="http", code="200")


def test_connections_are_shared_out_evenly_and_their_requests_counted_together(server: RunningServer) -> None:
    pids = front_end_pids(server)
    assert len(pids) == FRONT_ENDS
    before = answered(server)
    with clients(server, 10):
        assert [connections_of(pid) for pid in pids] == [5, 5]
    assert answered(server) == before + 10
    wait_for(lambda: sum(map(connections_of, pids)) == 0, "connections that were closed are gone")


def test_a_probe_of_http_1_0_that_half_closes_is_answered(server: RunningServer) -> None:
    """As ``nc -N`` sends it. The engine's answer comes later than the end of the client's side."""
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=60) as sock:
        sock.sendall(b"GET /v2/health/ready HTTP/1.0\r\n\r\n")
        sock.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: sock.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


def test_requests_of_several_front_ends_form_one_batch(server: RunningServer) -> None:
    answers: list[Any] = []

    def ask(client: Client) -> None:
        answers.append(client.post("/v2/models/sizes/infer", {"inputs": [tensor("IN", "INT32", [1, 1], [1])]}))

    with clients(server, 4) as found:
        threads = [threading.Thread(target=ask, args=(client,)) for client in found]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [(status, answer["outputs"][0]["data"]) for status, answer in answers] == [(200, [4])] * 4


def test_what_is_loaded_through_one_connection_is_found_through_another_at_once(tmp_path: Path) -> None:
    constant = """
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                value = np.array([{value}], np.int32)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]) for _ in requests]
    """
    write_model(tmp_path, "echo", ECHO, ECHO_CONFIG)
    write_model(tmp_path, "constant", constant.format(value=0), ECHO_CONFIG)
    flags = ("--model-control-mode=explicit", "--load-model=echo")
    with serving(tmp_path, *flags) as server, clients(server, 4) as found:
        for round_ in range(1, 9):
            loader, user = found[round_ % 4], found[(round_ + 1) % 4]
            write_model(tmp_path, "constant", constant.format(value=round_), ECHO_CONFIG)
            assert loader.post("/v2/repository/models/constant/load", {}) == (200, None)
            status, answer = user.infer("constant", 0)
            assert (status, answer.get("outputs", answer)[0]["data"]) == (200, [round_])
            if round_ % 4 == 0:
                assert loader.post("/v2/repository/models/constant/unload", {}) == (200, None)
                status, answer = user.infer("constant", 0)
                assert (status, answer["error"]) == (
                    404,
                    "Request for unknown model: 'constant' has no available versions",
                )


MANY_WHERE_DECOUPLED = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.is_decoupled = pb_utils.using_decoupled_model_transaction_policy(json.loads(args["model_config"]))

        def execute(self, requests):
            response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1], np.int32))])
            if not self.is_decoupled:
                return [response for _ in requests]
            for request in requests:
                for _ in range(3):
                    request.get_response_sender().send(response)
                request.get_response_sender().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.mark.parametrize("front_ends", [0, 2])
@pytest.mark.parametrize("is_decoupled", [True, False], ids=["becomes decoupled", "is decoupled no more"])
def test_a_request_whose_model_changes_how_it_answers_while_its_body_comes_is_refused(
    tmp_path: Path, is_decoupled: bool, front_ends: int
) -> None:
    write_model(tmp_path, "m", MANY_WHERE_DECOUPLED, ECHO_CONFIG)
    config = {"backend": "python", **SENT_TENSORS}
    decoupled = {**config, "model_transaction_policy": {"decoupled": True}}
    first, then = (config, decoupled) if is_decoupled else (decoupled, config)
    action = "infer" if is_decoupled else "generate_stream"
    content = {"inputs": [tensor("IN", "INT32", [1], [1])]} if is_decoupled else {"IN": [1]}
    body = json.dumps(content).encode()
    head = (
        f"POST /v2/models/m/{action} HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    flags = ("--model-control-mode=explicit", "--load-model=m", f"--frontends={front_ends}")
    with RunningServer(tmp_path, flags=flags) as server, httpclient.InferenceServerClient(server.http_url) as loader:
        loader.load_model("m", config=json.dumps(first))
        host, port = server.http_url.split(":")
        with socket.create_connection((host, int(port)), 30) as connection:
            connection.sendall(head.encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 100 ")  # its model is found
            loader.load_model("m", config=json.dumps(then))
            connection.sendall(body)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            assert (answer.status, json.loads(answer.read())["error"]) == (
                503,
                "model 'm' was loaded with another transaction policy while the request was on its way; please try again",
            )


@pytest.mark.parametrize("front_ends", [0, 2])
def test_processes_that_look_for_work_answer_and_sleep_when_there_is_none(repository: Path, front_ends: int) -> None:
    flags = (f"--frontends={front_ends}", "--busy-poll-us=5000")
    with RunningServer(repository, flags=flags) as server:
        with clients(server, 2) as found:
            for value, client in enumerate(found * 5):
                status, answer = client.infer("echo", value)
                assert (status, answer["outputs"][0]["data"]) == (200, [value])
        processes = [server.process.pid, *server.worker_pids(), *front_end_pids(server)]

        def rests() -> bool:
            before = [cpu_ticks(pid) for pid in processes]
            time.sleep(0.3)
            return all(cpu_ticks(pid) - ticks <= 3 for pid, ticks in zip(processes, before))

        wait_for(rests, "all of them sleep")


def cpu_ticks(pid: int) -> int:
    """Hundredths of a second that a process has computed."""
    fields = stat_fields(pid)
    return int(fields[11]) + int(fields[12])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_model_whose_files_come_with_the_request_may_be_large(tmp_path: Path, protocol: str) -> None:
    write_model(tmp_path, "echo", ECHO, ECHO_CONFIG)
    code = textwrap.dedent(ECHO).encode() + b"# " + b"x" * 6_000_000 + b"\n"
    config = json.dumps({"backend": "python", "max_batch_size": 0, **SENT_TENSORS})
    with serving(tmp_path, "--model-control-mode=explicit", "--load-model=echo") as server:
        url = server.http_url if protocol == "http" else server.grpc_url
        client = httpclient.InferenceServerClient(url) if protocol == "http" else grpcclient.InferenceServerClient(url)
        with client:
            client.load_model("sent", config=config, files={"file:1/model.py": code})
        with clients(server, 2) as found:
            for value, one in enumerate(found):
                status, answer = one.infer("sent", value)
                assert (status, answer.get("outputs", answer)[0]["data"]) == (200, [value])


def test_a_front_end_that_is_killed_loses_its_own_connections_and_nothing_else(server: RunningServer) -> None:
    victim, other = front_end_pids(server)
    workers = server.worker_pids()
    with clients(server, 4) as found:
        before = answered(server)
        os.kill(victim, signal.SIGKILL)
        statuses = []
        for client in found:
            try:
                statuses.append(client.infer("echo", 7)[0])
            except (ConnectionError, http.client.HTTPException):
                statuses.append(0)
        assert sorted(statuses) == [0, 0, 200, 200]
        wait_replaced(server, victim)
        assert other in front_end_pids(server)
        with clients(server, 4):
            assert connections_of(other) >= 2
        assert answered(server) == before + 6
    assert server.worker_pids() == workers
    server.wait_for_log("it was killed by signal 9. Its connections are lost; another one is started")


def test_what_a_killed_front_end_had_asked_for_is_cancelled_and_its_memory_comes_back(server: RunningServer) -> None:
    large = list(range(50_000))
    body = {"inputs": [tensor("IN", "INT32", [len(large)], large)]}

    def ask(client: Client) -> None:
        try:
            client.post("/v2/models/slow/infer", body)
        except (ConnectionError, http.client.HTTPException):
            return

    for _ in range(3):
        with clients(server, 8) as found:
            threads = [threading.Thread(target=ask, args=(client,)) for client in found]
            for thread in threads:
                thread.start()
            wait_for(lambda: pending(server, "slow") > 0, "requests wait")
            victim = front_end_pids(server)[0]
            os.kill(victim, signal.SIGKILL)
            for thread in threads:
                thread.join()
        wait_replaced(server, victim)
    wait_for(lambda: pending(server, "slow") == 0, "nothing of them waits any more")
    wait_for(lambda: slots(server) == 0, "every slot of shared memory is given back")
    assert server.infer("slow", [tensor("IN", "INT32", [3], [1, 2, 3])]).json["outputs"][0]["data"] == [1, 2, 3]


def test_unfinished_requests_of_a_killed_front_end_count_no_more(repository: Path) -> None:
    """Their sum over all front ends is bounded, and one of the lost would be missing for ever."""
    values = list(range(200_000))
    body = json.dumps({"inputs": [tensor("IN", "INT32", [len(values)], values)]}).encode()
    with serving(repository, f"--max-receiving-bytes={len(body) * 3 // 2}") as server:

        def status() -> int:
            return server.request("POST", "/v2/models/echo/infer", body).status

        assert status() == 200
        for _ in range(FRONT_ENDS):
            with socket.create_connection(("127.0.0.1", server.http_port)) as half:
                half.sendall(
                    b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body)
                )
                half.sendall(body[: len(body) * 3 // 4])
                # Whichever comes later is refused: this must be the whole.
                wait_for(lambda: is_all_read(half), "the half is read")
                wait_for(lambda: status() == 503, "the half takes the place of the whole")
                (victim,) = (pid for pid in front_end_pids(server) if half.getsockname()[1] in ports_of_clients(pid))
                os.kill(victim, signal.SIGKILL)
                wait_replaced(server, victim)
            assert status() == 200


def pending(server: RunningServer, model: str) -> float:
    return metric(server, "nv_inference_pending_request_count", model=model)


def slots(server: RunningServer) -> float:
    return metric(server, "pytriton_lite_shared_memory_slots")


def test_a_front_end_that_hangs_is_replaced(server: RunningServer) -> None:
    victim = front_end_pids(server)[0]
    os.kill(victim, signal.SIGSTOP)
    wait_replaced(server, victim)
    server.wait_for_log("it gave no sign of life for 5 s")


def test_whoever_changes_what_is_served_waits_for_no_front_end_that_does_not_listen(repository: Path) -> None:
    with serving(repository, "--model-control-mode=explicit", "--load-model=echo") as server:
        victim = front_end_pids(server)[0]
        with clients(server, 2) as found:
            os.kill(victim, signal.SIGSTOP)
            statuses: list[int] = []

            def load(client: Client) -> None:
                try:
                    statuses.append(client.post("/v2/repository/models/slow/load", {})[0])
                except (ConnectionError, http.client.HTTPException):
                    return  # its front end is the one that has stopped

            threads = [threading.Thread(target=load, args=(client,)) for client in found]
            for thread in threads:
                thread.start()
            wait_for(lambda: 200 in statuses, "the load is answered")
            for thread in threads:
                thread.join()
        wait_for(lambda: not is_running(victim), "it is killed")
        server.wait_for_log("it did not hear what it was told for 1 s")


def test_a_front_end_without_descriptors_drops_the_connections_that_come_and_keeps_the_others(
    repository: Path,
) -> None:
    with RunningServer(repository, flags=("--frontends=1",)) as server, clients(server, 1) as (kept,):
        (pid,) = front_end_pids(server)
        used = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
        limit = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 3, limit[1]))
        host, port = server.http_url.split(":")
        with ExitStack() as stack:
            more = [stack.enter_context(socket.create_connection((host, int(port)), 30)) for _ in range(20)]
            closed = [client for client in more if client.fileno() >= 0 and select.select([client], [], [], 1)[0]]
            assert closed
            assert all(client.recv(1) == b"" for client in closed)
            assert kept.infer("echo", 7)[0] == 200
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)
        with clients(server, 3) as found:
            assert [client.infer("echo", 1)[0] for client in found] == [200] * 3
        server.wait_for_log("connections were closed at once: Too many open files")
        assert kept.infer("echo", 8)[0] == 200
        assert front_end_pids(server) == [pid]


def test_a_front_end_that_cannot_go_on_says_why(repository: Path, tmp_path: Path) -> None:
    write_model(tmp_path, "large", LARGE, ECHO_CONFIG)
    flags = ("--frontends=1", f"--model-repository={tmp_path}")
    with RunningServer(repository, flags=flags) as server, clients(server, 1) as (client,):
        (pid,) = front_end_pids(server)
        used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
        free = next(number for number in itertools.count() if number not in used)
        limit = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, limit[1]))
        with pytest.raises(OSError):  # the answer is in memory that it would have to map
            client.infer("large", 100_000)
        server.wait_for_log(rf"front end 0 \(pid {pid}\) has ended: Too many open files\. Its connections are lost")


def test_connections_that_no_front_end_has_room_for_leave_the_server_its_descriptors(repository: Path) -> None:
    """A large request brings the engine a descriptor, and a front end could not be started without some."""
    with RunningServer(repository, flags=("--frontends=1",)) as server, clients(server, 1) as (kept,):
        pids = front_end_pids(server)
        most = len(os.listdir(f"/proc/{server.process.pid}/fd")) + 100
        _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (most, hard))
        host, port = server.http_url.split(":")
        with ExitStack() as stack:
            for _ in range(2 * most):
                client = stack.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex((host, int(port)))
            server.wait_for_log("connections have to wait: no process has room for more of them")
            values = [*range(100_000)]
            request = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [len(values)], "data": values}]}
            assert kept.post("/v2/models/echo/infer", request)[0] == 200
            assert len(os.listdir(f"/proc/{server.process.pid}/fd")) < most
        with clients(server, 1) as (another,):
            assert another.infer("echo", 1)[0] == 200
        assert front_end_pids(server) == pids


def test_a_region_for_which_a_front_end_has_no_descriptor_is_not_known_to_it(repository: Path) -> None:
    from tritonclient.utils import shared_memory

    key = f"/front_end_few_{os.getpid()}"
    region = shared_memory.create_shared_memory_region("few", key, 4)
    flags = ("--frontends=1", "--allow-client-shm=true")
    try:
        with RunningServer(repository, flags=flags) as server, clients(server, 1) as (client,):
            (pid,) = front_end_pids(server)
            used = sorted(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
            free = next(number for number in itertools.count() if number not in used)
            limit = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, limit[1]))
            register = {"key": key, "offset": 0, "byte_size": 4}
            assert client.post("/v2/systemsharedmemory/region/few/register", register) == (200, None)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)
            place = {"shared_memory_region": "few", "shared_memory_byte_size": 4}
            request = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "parameters": place}]}
            status, answer = client.post("/v2/models/echo/infer", request)
            assert (status, answer["error"]) == (404, "Unable to find shared memory region: 'few'")
            server.wait_for_log("the shared memory region 'few' cannot be used through this front end: Too many open")
            assert client.post("/v2/systemsharedmemory/region/few/unregister", {}) == (200, None)
            assert client.post("/v2/systemsharedmemory/region/few/register", register) == (200, None)
            assert client.post("/v2/models/echo/infer", request)[0] == 200
            assert front_end_pids(server) == [pid]
    finally:
        shared_memory.destroy_shared_memory_region(region)


def test_front_ends_end_with_a_server_that_is_killed(server: RunningServer) -> None:
    pids = front_end_pids(server)
    server.kill()
    wait_for(lambda: not any(map(is_running, pids)), "they end, too")


def test_a_region_that_was_registered_through_one_connection_is_used_through_another(repository: Path) -> None:
    from tritonclient.utils import shared_memory

    with serving(repository, "--allow-client-shm=true") as server, clients(server, 4) as found:
        values = np.arange(10_000, dtype=np.int32)
        key = f"/front_end_values_{os.getpid()}"
        region = shared_memory.create_shared_memory_region("values", key, values.nbytes)
        try:
            shared_memory.set_shared_memory_region(region, [values])
            register = {"key": key, "offset": 0, "byte_size": values.nbytes}
            place = {"shared_memory_region": "values", "shared_memory_byte_size": values.nbytes}
            request = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [10_000], "parameters": place}]}
            for user, other in itertools.pairwise(found):
                assert user.post("/v2/systemsharedmemory/region/values/register", register) == (200, None)
                status, answer = other.post("/v2/models/echo/infer", request)
                assert (status, answer["outputs"][0]["data"]) == (200, values.tolist())
                assert other.post("/v2/systemsharedmemory/region/values/unregister", {}) == (200, None)
                status, answer = user.post("/v2/models/echo/infer", request)
                assert (status, answer["error"]) == (404, "Unable to find shared memory region: 'values'")
        finally:
            shared_memory.destroy_shared_memory_region(region)


HANDS_BACK = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.get_input_tensor_by_name(r, "SAME")]) for r in requests]
"""
HANDS_BACK_CONFIG = ECHO_CONFIG.replace("IN", "SAME", 1).replace("OUT", "SAME")


def test_a_front_end_maps_no_region_of_a_client_that_an_output_lies_in(tmp_path: Path) -> None:
    """Whoever maps one is killed when its client makes it shorter."""
    from tritonclient.utils import shared_memory

    write_model(tmp_path, "echo", ECHO, ECHO_CONFIG)
    write_model(tmp_path, "hands_back", HANDS_BACK, HANDS_BACK_CONFIG)
    with serving(tmp_path, "--allow-client-shm=true") as server, clients(server, 1) as (client,):
        values = np.arange(10_000, dtype=np.int32)
        key = f"/front_end_same_{os.getpid()}"
        region = shared_memory.create_shared_memory_region("same", key, values.nbytes)
        try:
            shared_memory.set_shared_memory_region(region, [values])
            register = {"key": key, "offset": 0, "byte_size": values.nbytes}
            assert client.post("/v2/systemsharedmemory/region/same/register", register) == (200, None)
            place = {"shared_memory_region": "same", "shared_memory_byte_size": values.nbytes}
            request = {"inputs": [{"name": "SAME", "datatype": "INT32", "shape": [10_000], "parameters": place}]}
            status, answer = client.post("/v2/models/hands_back/infer", request)
            assert (status, answer["outputs"][0]["data"]) == (200, values.tolist())
            for pid in front_end_pids(server):
                assert key not in Path(f"/proc/{pid}/maps").read_text()
        finally:
            shared_memory.destroy_shared_memory_region(region)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--frontends=many"], "Invalid option value. Got many, or auto"),
        (["--frontends=-1"], "Provided option value is out of bound. Got -1, expected 0 to 64, or auto"),
        (["--frontends=65"], "Provided option value is out of bound. Got 65, expected 0 to 64, or auto"),
        (["--frontends=2", "--grpc-transport=grpcio"], "--frontends serves gRPC by --grpc-transport=http2"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused(flags: list[str], text: str, repository: Path) -> None:
    command = [sys.executable, "-m", "pytriton_lite", "serve", str(repository), *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0
    assert text in ended.stderr


def test_a_front_end_that_cannot_start_ends_the_server_with_the_reason(tmp_path: Path) -> None:
    async def scenario() -> str:
        server = Server(ServerOptions((tmp_path,), WORKERS))
        front_ends = FrontEnds(shared(server, ["false"]))
        try:
            front_ends.start()
            with pytest.raises(FrontEndError) as refused:
                await front_ends.wait_ready()
            return str(refused.value)
        finally:
            await front_ends.close()

    assert asyncio.run(scenario()) == "front end 0 cannot be started: it exited with code 1"


def test_a_front_end_of_which_there_is_no_program_is_no_mystery(tmp_path: Path) -> None:
    async def scenario() -> None:
        front_ends = FrontEnds(shared(Server(ServerOptions((tmp_path,), WORKERS)), ["no-such-program"]))
        try:
            front_ends.start()
        finally:
            await front_ends.close()

    with pytest.raises(FrontEndError, match="front end 0 cannot be started: No such file or directory"):
        asyncio.run(scenario())


def started(tmp_path: Path, scenario: Callable[[FrontEnds], Coroutine[Any, Any, None]]) -> None:
    """Run *scenario* with a real front end that has begun to start."""

    async def run() -> None:
        front_ends = FrontEnds(
            shared(Server(ServerOptions((tmp_path,), WORKERS)), command_of("pytriton_lite.front_end"))
        )
        try:
            front_ends.start()
            await scenario(front_ends)
        finally:
            await front_ends.close()

    asyncio.run(run())


def test_one_that_ends_before_all_are_waited_for_is_replaced(tmp_path: Path) -> None:
    """Front ends begin first, and models load for minutes."""

    async def scenario(front_ends: FrontEnds) -> None:
        (first,) = front_ends._processes.values()
        await first.ready
        first.kill()
        await first.drained  # it has ended
        while front_ends._processes[0] is first:  # noqa: ASYNC110 - the next turn of the loop starts another
            await asyncio.sleep(0)
        await front_ends.wait_ready()
        assert (front_ends.ready, front_ends.restarts) == (1, 1)
        assert front_ends._processes[0].pid != first.pid

    started(tmp_path, scenario)


def is_dead(pid: int) -> bool:
    """Whether all of its threads have ended, so that what they had open is closed, though nobody has heard of it yet."""
    return len(os.listdir(f"/proc/{pid}/task")) == 1 and stat_fields(pid)[0] == "Z"


def test_connections_that_are_handed_to_one_that_has_just_died_go_to_another(tmp_path: Path) -> None:
    async def scenario(front_ends: FrontEnds) -> None:
        front_ends.taker(frames.HTTP, Places(9))
        await front_ends.wait_ready()
        (first,) = front_ends._processes.values()
        os.kill(first.pid, signal.SIGKILL)
        until(lambda: is_dead(first.pid))
        pairs = [socket.socketpair() for _ in range(3)]
        for ours, _ in pairs[:2]:
            front_ends.hand_over(frames.HTTP, ours)
        assert first.connections == 2
        first._link.flush()
        while first._link.is_open:  # noqa: ASYNC110 - until the next turn of the loop sees that the other end is closed
            await asyncio.sleep(0)
        front_ends.hand_over(frames.HTTP, pairs[2][0])  # the end of the process may be reported later
        await first.drained
        assert (first.connections, len(front_ends._waiting)) == (0, 3)
        for _, theirs in pairs:
            theirs.setblocking(False)
            with pytest.raises(BlockingIOError):  # it is not closed
                theirs.recv(1)
            theirs.close()

    started(tmp_path, scenario)


def test_a_server_that_stood_still_does_not_take_its_front_ends_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(front_ends: FrontEnds) -> None:
        await front_ends.wait_ready()
        (process,) = front_ends._processes.values()
        assert front_ends._looking is not None
        front_ends._looking.cancel()  # the test looks itself
        os.kill(process.pid, signal.SIGSTOP)
        monkeypatch.setattr(supervisor, "_SILENT_NS", 0)  # whatever it has given is too long ago
        front_ends._looked_ns = 0
        front_ends._look()
        front_ends._looking.cancel()
        assert process._failure == ""
        front_ends._look()
        assert process._failure.startswith("it gave no sign of life")

    started(tmp_path, scenario)


def shared(server: Server, command: list[str]) -> Shared:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    start = FrontEndStart(
        settings=Settings(model_repository=()),
        log_settings=LogSettings(),
        addresses={},
        shm_prefix="front_ends_test_",
        max_receiving_bytes=None,
        max_unread_bytes=None,
        overload_code=ErrorCode.UNAVAILABLE,
        tells_refused=False,
    )
    answers = Answers(app=app, methods={}, questions={}, settle=lambda: None)
    return Shared(server, Board.create(1, prefix="front_ends_test_"), start, command, answers, None)


@contextmanager
def server_whose_front_ends_do_not_get_ready(folder: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """Each of which leaves a file in *folder* when it begins."""
    code = "class TritonPythonModel:\n    def execute(self, requests): ...\n"
    write_model(folder / "models", "m", code, 'backend: "python"')
    (folder / "sitecustomize.py").write_text(
        "import os, pathlib, signal, sys\n"
        "if any('pytriton_lite.front_end' in word for word in sys.orig_argv):\n"
        "    pathlib.Path(__file__).with_name(f'{os.getpid()}.front_end').touch()\n"
        "    signal.pause()\n"
    )
    command = [sys.executable, "-m", "pytriton_lite", "serve", f"--model-repository={folder / 'models'}"]
    command += ["--frontends=2", "--http-port=0", "--grpc-port=0", "--metrics-port=0", *flags]
    paths = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    with child(command, env={**os.environ, "PYTHONPATH": paths}, stderr=subprocess.PIPE, text=True) as server:
        yield server


def test_a_signal_ends_a_server_whose_front_ends_do_not_get_ready(tmp_path: Path) -> None:
    with server_whose_front_ends_do_not_get_ready(tmp_path) as server:
        assert server.stderr is not None
        for line in server.stderr:
            if line.startswith("| m "):  # everything is loaded
                break
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=20)
        assert server.returncode == 0


def test_a_signal_ends_a_server_that_waits_for_its_front_ends_before_it_loads(tmp_path: Path) -> None:
    with server_whose_front_ends_do_not_get_ready(tmp_path, "--accept-before-load=true") as server:
        until(lambda: len(list(tmp_path.glob("*.front_end"))) == 2)
        server.send_signal(signal.SIGTERM)
        assert "| m " not in server.communicate(timeout=20)[1]
        assert server.returncode == 0
