"""Real servers under a stand-in for a kubelet: probes, rolling updates, grace periods, KServe's models that come and go."""

from __future__ import annotations

import json
import os
import signal
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc

from tests.deploy.kubelet import Cluster, Pod, QueueProxy, clients, initialize_storage, post
from tests.deploy.manifests import DEPLOY, Document, documents, of_kind, render
from tests.harness import free_ports, write_model
from tests.remote_servers import ACCESS, running_s3

CONFIG = """
    backend: "python"
    max_batch_size: 0
    input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""
# Loads when a file is there, counts how many executions are under way in all instances, and takes its time.
SLOW = """
    import os
    import time

    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            while not os.path.exists("GATE"):
                time.sleep(0.01)

        def execute(self, requests):
            time.sleep(0.02)
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy() + 1)])
                for request in requests
            ]
"""
INFER = json.dumps({"inputs": [{"name": "IN", "shape": [1], "datatype": "INT32", "data": [1]}]}).encode()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


@pytest.fixture
def models(tmp_path: Path, gate: Path) -> Path:
    """A repository as the storage initializer has left it."""
    write_model(tmp_path / "bucket", "m", SLOW.replace("GATE", str(gate)), CONFIG + "instance_group [ { count: 2 } ]")
    initialize_storage(tmp_path / "bucket", tmp_path / "mnt")
    return tmp_path / "mnt"


@pytest.fixture
def deployment() -> Document:
    """That of the chart, with less patience."""
    return of_kind(render({"server": {"drainDelaySeconds": 2, "exitTimeoutSeconds": 20}}), "Deployment")


def kserve_runtime(name: str) -> Document:
    """A runtime of KServe's as a pod: it has no probes, and the grace period is the InferenceService's."""
    (runtime,) = documents((DEPLOY / "kserve" / name).read_text())
    return {"spec": {"containers": runtime["spec"]["containers"], "terminationGracePeriodSeconds": 65}}


@pytest.fixture
def pods() -> Iterator[list[Pod]]:
    started: list[Pod] = []
    yield started
    for pod in started:
        pod.terminate()
        pod.join()


def ask(port: int) -> None:
    status, body = post(port, "/v2/models/m/infer", INFER)
    assert status == 200, body
    assert json.loads(body)["outputs"][0]["data"] == [2]


def test_a_large_model_loads_as_long_as_it_takes(
    deployment: Document, models: Path, gate: Path, pods: list[Pod]
) -> None:
    pod = Pod(deployment, models, haste=50).start()
    pods.append(pod)
    while pod.seen.startup_failures < 10:
        time.sleep(0.01)
    assert (pod.is_ready, pod.seen.restarts) == (False, 0)
    gate.touch()
    pod.wait_ready()
    ask(pod.ports.http)
    assert pod.seen.restarts == 0


def test_a_server_that_says_nothing_is_started_anew(
    deployment: Document, models: Path, gate: Path, pods: list[Pod]
) -> None:
    gate.touch()
    spec = deployment["spec"]["template"]["spec"]
    spec["terminationGracePeriodSeconds"] = 1
    for probe in ("livenessProbe", "readinessProbe"):
        spec["containers"][0][probe].update(timeoutSeconds=3, failureThreshold=1)  # a busy machine answers by then
    pod = Pod(deployment, models, haste=50).start()
    pods.append(pod)
    pod.wait_ready()
    os.kill(pod.pid, signal.SIGSTOP)
    while pod.seen.restarts == 0:
        time.sleep(0.01)
    pod.wait_ready()
    ask(pod.ports.http)
    # A process that is stopped hears no SIGTERM.
    assert pod.seen.exit_codes == [-signal.SIGKILL]


def test_a_rolling_update_loses_nothing(deployment: Document, models: Path, gate: Path) -> None:
    """HTTP on new connections, and gRPC channels that know every pod: what a cluster's clients are."""
    gate.touch()
    cluster = Cluster(deployment, models).start(2)

    def over_http() -> None:
        ask(cluster.endpoint().http)

    def over_grpc() -> None:
        """A channel of some requests: a service resolved once, to the pods that there are."""
        with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{cluster.endpoint().grpc}") as client:
            tensor = tritonclient.grpc.InferInput("IN", [1], "INT32")
            tensor.set_data_from_numpy(np.ones(1, np.int32))
            for _ in range(5):
                assert client.infer("m", [tensor], client_timeout=60).as_numpy("OUT")[0] == 2

    try:
        with clients(3, over_http) as http_failures, clients(2, over_grpc) as grpc_failures:
            ended = cluster.roll()
        assert http_failures == []
        assert grpc_failures == []
        assert [seen.exit_codes for seen in ended] == [[0], [0]]
        assert not any(seen.killed for seen in ended)
    finally:
        left = cluster.stop()
    assert [seen.exit_codes for seen in left] == [[0], [0]]


def test_sigterm_under_load_ends_within_the_grace_period(deployment: Document, models: Path, gate: Path) -> None:
    """What was begun is answered, and what is not is refused before it was begun."""
    gate.touch()
    pod = Pod(deployment, models, haste=20).start().wait_ready()
    # A broken pipe: the server had closed the connection before all of the request had come, so nothing was begun with it.
    refused = (ConnectionRefusedError, ConnectionResetError, BrokenPipeError)
    begun: list[str] = []

    def work() -> None:
        try:
            ask(pod.ports.http)
        except refused as error:
            if pod.is_ready:
                raise
            begun.append(type(error).__name__)
            time.sleep(0.01)

    with clients(8, work) as failures:
        pod.terminate()
        seen = pod.join()
    assert (seen.exit_codes, seen.killed) == ([0], False)
    assert failures == []


def test_a_grace_period_that_is_too_short_kills(deployment: Document, models: Path, gate: Path) -> None:
    """So that the tests above cannot pass without a kubelet's kill."""
    gate.touch()
    deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 0.2
    pod = Pod(deployment, models, haste=20).start().wait_ready()
    pod.terminate()
    seen = pod.join()
    assert (seen.killed, seen.exit_codes) == (True, [-signal.SIGKILL])


def test_no_more_requests_than_the_queue_proxy_lets_in(models: Path, gate: Path, pods: list[Pod]) -> None:
    gate.touch()
    pod = Pod(kserve_runtime("clusterservingruntime.yaml"), models, haste=20).start()
    pods.append(pod)
    pod.wait_ready()
    most, now, lock = 0, 0, threading.Lock()

    def forward(path: str, body: bytes) -> tuple[int, bytes]:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        try:
            return post(pod.ports.http, path, body)
        finally:
            with lock:
                now -= 1

    proxy = QueueProxy(forward, 2)
    with ThreadPoolExecutor(16) as executor:
        answers = list(executor.map(lambda _: proxy("/v2/models/m/infer", INFER), range(64)))
    assert {status for status, _ in answers} == {200}
    assert most == 2


def test_models_come_and_go_in_a_storm(tmp_path: Path, pods: list[Pod]) -> None:
    """KServe's agent: it fetches models, and asks the server to load and unload them, many at a time."""
    code = SLOW.replace('while not os.path.exists("GATE"):', "if False:")
    mount = tmp_path / "mnt"
    mount.mkdir()
    for number in range(8):
        write_model(tmp_path / "bucket", f"m{number}", code, CONFIG)
    pod = Pod(kserve_runtime("clusterservingruntime-multimodel.yaml"), mount, haste=20).start()
    pods.append(pod)
    pod.wait_ready()

    def agent(number: int) -> list[int]:
        name = f"m{number % 8}"
        initialize_storage(tmp_path / "bucket" / name, mount / name)
        port = pod.ports.http
        return [
            post(port, f"/v2/repository/models/{name}/load")[0],
            post(port, f"/v2/models/{name}/infer", INFER)[0],
            post(port, f"/v2/repository/models/{name}/unload")[0],
        ]

    with ThreadPoolExecutor(8) as executor:
        storm = list(executor.map(agent, range(32)))
    assert {load for load, _, _ in storm} == {200}
    assert {unload for _, _, unload in storm} == {200}
    # Another agent may have unloaded it in between: then it is not there, and the client is told so.
    assert {infer for _, infer, _ in storm} <= {200, 400, 404, 503}
    assert pod.is_ready
    assert post(pod.ports.http, "/v2/repository/models/m0/load")[0] == 200
    assert post(pod.ports.http, "/v2/models/m0/infer", INFER)[0] == 200


def test_a_pod_that_dies_in_the_middle_of_streams_says_so_at_once(
    deployment: Document, models: Path, gate: Path, pods: list[Pod]
) -> None:
    """kill -9 of the server: its kernel closes the connections, and the kubelet starts it anew."""
    gate.touch()
    pod = Pod(deployment, models, haste=20).start().wait_ready()
    pods.append(pod)
    errors: list[object] = []
    answered = threading.Event()
    ended = threading.Event()

    def hear(result: object, error: object) -> None:
        if error is None:
            answered.set()
        else:
            errors.append(error)
            ended.set()

    tensor = tritonclient.grpc.InferInput("IN", [1], "INT32")
    tensor.set_data_from_numpy(np.ones(1, np.int32))
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{pod.ports.grpc}") as client:
        client.start_stream(hear)
        for _ in range(100):
            client.async_stream_infer("m", [tensor])
        assert answered.wait(30)
        os.kill(pod.pid, signal.SIGKILL)
        assert ended.wait(30)
    assert "UNAVAILABLE" in str(errors[0])
    while pod.seen.restarts == 0:
        time.sleep(0.01)
    pod.wait_ready()
    ask(pod.ports.http)
    assert pod.seen.exit_codes[0] == -signal.SIGKILL


class Relay(socketserver.ThreadingTCPServer):
    """A port behind which there is another one, once this is made."""

    daemon_threads = True

    def __init__(self, port: int, target: tuple[str, int]) -> None:
        def forward(request: socket.socket, address: object, server: object) -> None:
            with socket.create_connection(target) as behind:
                back = threading.Thread(target=_copy, args=(behind, request), daemon=True)
                back.start()
                _copy(request, behind)
                back.join()

        super().__init__(("127.0.0.1", port), forward)  # type: ignore[arg-type]  # a function that handles


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the other end has gone


def test_storage_that_is_away_at_the_start_and_comes_back(
    tmp_path: Path, deployment: Document, gate: Path, pods: list[Pod]
) -> None:
    """The container ends, is started again, and again, and serves when the storage is there."""
    gate.touch()
    write_model(tmp_path / "bucket", "m", SLOW.replace("GATE", str(gate)), CONFIG)
    (port,) = free_ports(1)
    pod = Pod(deployment, f"s3://http://127.0.0.1:{port}/models/bucket", haste=20, environ=ACCESS).start()
    pods.append(pod)
    while pod.seen.restarts < 2:
        time.sleep(0.01)
    assert set(pod.seen.exit_codes) == {1}
    assert not pod.is_ready
    with running_s3() as s3:
        s3.put_folder("bucket", tmp_path / "bucket")
        host, _, s3_port = s3.endpoint.rpartition(":")
        with Relay(port, (host, int(s3_port))) as relay:
            threading.Thread(target=relay.serve_forever, daemon=True).start()
            pod.wait_ready(120)
            ask(pod.ports.http)
            relay.shutdown()


def test_two_versions_of_a_model_behind_one_balancer(tmp_path: Path, deployment: Document, gate: Path) -> None:
    """In a rolling update of models: without a version clients get either, with one they are told where it is not there."""
    gate.touch()
    adds = "        def execute(self, requests):"
    code = SLOW.replace("GATE", str(gate))
    assert adds in code
    folders = []
    for version in (1, 2):
        folder = tmp_path / f"v{version}"
        write_model(folder, "m", code.replace("as_numpy() + 1", f"as_numpy() + {version}"), CONFIG, version=version)
        folders.append(folder)
    both = [Pod(deployment, folder, haste=20).start() for folder in folders]
    try:
        seen = set()
        for pod in both:
            status, body = post(pod.wait_ready().ports.http, "/v2/models/m/infer", INFER)
            document = json.loads(body)
            seen.add((status, document["model_version"], document["outputs"][0]["data"][0]))
        assert seen == {(200, "1", 2), (200, "2", 3)}
        statuses = [post(pod.ports.http, "/v2/models/m/versions/2/infer", INFER)[0] for pod in both]
        assert statuses[1] == 200
        assert statuses[0] in (400, 404)
        with grpc.insecure_channel(f"127.0.0.1:{both[0].ports.grpc}") as channel:
            stub = tritonclient.grpc.service_pb2_grpc.GRPCInferenceServiceStub(channel)
            request = tritonclient.grpc.service_pb2.ModelInferRequest(model_name="m", model_version="2")
            with pytest.raises(grpc.RpcError) as error:
                stub.ModelInfer(request, timeout=30)
            assert error.value.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT)
    finally:
        for pod in both:
            pod.terminate()
        for pod in both:
            pod.join()
