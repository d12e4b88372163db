"""Applications on a real Ray, a cluster of this machine alone: only `make test-ray`, which installs it, runs these tests."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Handles of applications that have ended go on to send measurements, and would begin another cluster for that.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
pytest.importorskip("ray.serve", reason="Ray, installed only by `make test-ray`")

import ray
import tritonclient.grpc
import tritonclient.http
from ray import serve

import pytriton_lite.ray
from tests.harness import write_model
from tests.ray_serve.test_replica import DOOMED, DOOMED_CONFIG

pytestmark = [
    pytest.mark.filterwarnings("default"),  # Ray's own
    pytest.mark.timeout(120),
]
SMALL = {"num_cpus": 0.1}


def until(condition: Callable[[], object]) -> Any:
    """What *condition* says when it holds, which it will: the test has a limit of its own."""
    while not (found := condition()):
        time.sleep(0.05)
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port: int = bound.getsockname()[1]
        return port


class Cluster:
    def __init__(self) -> None:
        self.http, self.grpc = free_port(), free_port()

    def http_client(self, route: str = "") -> Any:
        return tritonclient.http.InferenceServerClient(f"127.0.0.1:{self.http}{route}")

    def grpc_client(self) -> Any:
        return tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{self.grpc}")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        num_cpus=4,
        object_store_memory=100 << 20,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )
    found = Cluster()
    serve.start(
        proxy_location="HeadOnly",
        http_options={"host": "127.0.0.1", "port": found.http},
        grpc_options={"port": found.grpc, "grpc_servicer_functions": pytriton_lite.ray.GRPC_SERVICES},
    )
    try:
        yield found
    finally:
        serve.shutdown()
        ray.shutdown()


@contextlib.contextmanager
def application(app: Any, name: str) -> Iterator[Any]:
    """The handle of *app*, at ``/<name>``."""
    try:
        yield serve.run(app, name=name, route_prefix=f"/{name}")
    finally:
        serve.delete(name)


@pytest.fixture(scope="module")
def two(cluster: Cluster, repository: Path) -> Iterator[Any]:
    options = {"num_replicas": 2, "ray_actor_options": SMALL, "health_check_period_s": 1}
    with application(pytriton_lite.ray.app(str(repository), deployment=options), "two") as handle:
        yield handle


def row(module: Any, value: float) -> list[Any]:
    given = module.InferInput("X", [1, 1], "FP32")
    given.set_data_from_numpy(np.array([[value]], np.float32))
    return [given]


def test_v2_clients_reach_both_replicas_through_the_http_proxy(cluster: Cluster, two: Any) -> None:
    with cluster.http_client("/two") as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("double")
        pids = set()
        while len(pids) < 2:
            answer = client.infer("double", row(tritonclient.http, 3))
            assert answer.as_numpy("Y").tolist() == [[6]]
            pids.add(int(answer.as_numpy("PID")[0, 0]))
        with pytest.raises(tritonclient.http.InferenceServerException, match="unknown model: 'nobody'") as raised:
            client.infer("nobody", row(tritonclient.http, 1))
        assert raised.value.status() == "404"
        large = np.zeros((4, 100_000), np.float32)
        given = tritonclient.http.InferInput("X", list(large.shape), "FP32")
        given.set_data_from_numpy(large)
        assert client.infer("double", [given]).as_numpy("Y").shape == large.shape


def test_events_come_through_the_http_proxy(cluster: Cluster, two: Any) -> None:
    url = f"http://127.0.0.1:{cluster.http}/two/v2/models/count/generate_stream"
    with urllib.request.urlopen(urllib.request.Request(url, b'{"LIMIT": 200}')) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line.removeprefix(b"data: ")) for line in answer if line.startswith(b"data: ")]
    assert [event["N"] for event in events] == list(range(200))


def test_v2_clients_reach_it_through_the_grpc_proxy(cluster: Cluster, two: Any) -> None:
    metadata = {"application": "two"}
    with cluster.grpc_client() as client:
        assert client.is_server_ready(headers=metadata) and client.is_model_ready("double", headers=metadata)
        answer = client.infer("double", row(tritonclient.grpc, 4), headers=metadata)
        assert answer.as_numpy("Y").tolist() == [[8]]
        with pytest.raises(tritonclient.grpc.InferenceServerException, match="unknown model: 'nobody'") as raised:
            client.infer("nobody", row(tritonclient.grpc, 1), headers=metadata)
        assert raised.value.status() == "StatusCode.NOT_FOUND"

        come: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: come.put((result, error)), headers=metadata)
        for limit in (3, 100):
            given = tritonclient.grpc.InferInput("LIMIT", [1], "INT32")
            given.set_data_from_numpy(np.array([limit], np.int32))
            client.async_stream_infer("count", [given], request_id=str(limit))
        seen: dict[str, list[int]] = {"3": [], "100": []}
        while sum(map(len, seen.values())) < 103:
            result, error = come.get(timeout=60)
            assert error is None
            seen[result.get_response().id].append(int(result.as_numpy("N")[0]))
        client.stop_stream()
    assert seen == {"3": list(range(3)), "100": list(range(100))}


def test_handles_ask_with_arrays(two: Any) -> None:
    assert two.infer.remote("double", {"X": [[2], [3]]}).result()["Y"].tolist() == [[4], [6]]
    found = two.options(stream=True).stream.remote("count", {"LIMIT": [5]})
    assert [int(response["N"][0]) for response in found] == list(range(5))


def test_a_worker_that_dies_costs_its_request_and_a_replica_that_dies_is_replaced(cluster: Cluster, two: Any) -> None:
    with cluster.http_client("/two") as client:
        with pytest.raises(tritonclient.http.InferenceServerException, match="killed by signal 9") as raised:
            client.infer("double", row(tritonclient.http, 13))
        assert raised.value.status() == "503"
        assert client.infer("double", row(tritonclient.http, 1)).as_numpy("Y").tolist() == [[2]]

        replicas = replica_pids("two")
        assert len(replicas) == 2
        os.kill(replicas.pop(), signal.SIGKILL)
        until(lambda: len(replica_pids("two") - replicas) == 1)
        until(lambda: succeeds(lambda: client.infer("double", row(tritonclient.http, 1))))


def succeeds(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except Exception:
        return False
    return True


def replica_pids(application: str) -> set[int]:
    """Processes of the replicas of *application*."""
    mark = f"ServeReplica:{application}:".encode()
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes():
                found.add(int(path.parent.name))
    return found


def test_replicas_come_and_go_with_the_engines_queues(cluster: Cluster, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    code = f"""
        import time
        from pathlib import Path
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                while not Path({str(gate)!r}).exists():
                    time.sleep(0.01)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
    """
    write_model(tmp_path / "models", "slow", code, DOOMED_CONFIG)
    scaling = {
        "min_replicas": 1,
        "max_replicas": 3,
        "target_ongoing_requests": 4,
        "upscale_delay_s": 0.5,
        "downscale_delay_s": 0.5,
        "look_back_period_s": 2,
        "metrics_interval_s": 0.5,
    }
    app = pytriton_lite.ray.app(
        str(tmp_path / "models"), deployment={"autoscaling_config": scaling, "ray_actor_options": SMALL}
    )
    answers: list[float] = []

    def ask() -> None:
        answers.append(float(handle.infer.remote("slow", {"X": [7]}).result()["Y"][0]))

    with application(app, "scaled") as handle:
        assert len(replica_pids("scaled")) == 1
        asking = [threading.Thread(target=ask) for _ in range(12)]
        for thread in asking:
            thread.start()
        until(lambda: len(replica_pids("scaled")) == 3)
        gate.touch()
        for thread in asking:
            thread.join()
        assert answers == [7.0] * 12
        until(lambda: len(replica_pids("scaled")) == 1)


def test_a_replica_whose_workers_keep_dying_is_ill_and_clients_are_told(cluster: Cluster, tmp_path: Path) -> None:
    write_model(tmp_path, "doomed", DOOMED, DOOMED_CONFIG)
    options = {"health_check_period_s": 0.2, "ray_actor_options": SMALL}
    with application(pytriton_lite.ray.app(str(tmp_path), deployment=options), "ill") as handle:
        (before,) = replica_pids("ill")
        (tmp_path / "doomed" / "gone").touch()  # from now on no worker of it comes up
        url = f"127.0.0.1:{cluster.http}/ill"
        with tritonclient.http.InferenceServerClient(url, network_timeout=1.0) as client:
            given = tritonclient.http.InferInput("X", [1], "FP32")
            given.set_data_from_numpy(np.ones(1, np.float32))

            def ask() -> tuple[str, str]:
                try:
                    client.infer("doomed", [given])
                except tritonclient.http.InferenceServerException as error:
                    return str(error.status()), str(error)
                except TimeoutError:
                    return "waits", ""  # at Ray's proxy, for a replica
                raise AssertionError("it was answered")

            status, text = ask()
            assert status == "503" and "killed by signal 9" in text
            seen = {ask()[0]}
            until(lambda: seen.add(ask()[0]) or before not in replica_pids("ill"))  # Ray gives it up
        assert seen <= {"500", "503", "waits"} and "503" in seen

        def told() -> bool:
            deployment = serve.status().applications["ill"].deployments["Models"]
            return deployment.status == "UNHEALTHY" and "no weights" in deployment.message

        until(told)
        (tmp_path / "doomed" / "gone").unlink()
        write_model(
            tmp_path, "doomed", DOOMED.replace("os.kill(os.getpid(), signal.SIGKILL)", "return []"), DOOMED_CONFIG
        )
        until(lambda: succeeds(handle.check_health.remote().result))


def test_a_wrong_repository_fails_the_deployment_with_the_reason(cluster: Cluster) -> None:
    app = pytriton_lite.ray.app("/nowhere", deployment={"max_constructor_retry_count": 1})
    with pytest.raises(RuntimeError, match="Deploying application wrong failed"):
        serve.run(app, name="wrong", route_prefix="/wrong")
    assert "models of /nowhere do not load" in serve.status().applications["wrong"].deployments["Models"].message
    serve.delete("wrong")


LOOPBACK = ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1"]


def test_replicas_that_are_servers_are_asked_directly(cluster: Cluster, repository: Path) -> None:
    options = {"num_replicas": 2, "ray_actor_options": SMALL, "health_check_period_s": 0.5}
    app = pytriton_lite.ray.servers(str(repository), flags=LOOPBACK, deployment=options)

    def listed() -> list[dict[str, str]]:
        with urllib.request.urlopen(f"http://127.0.0.1:{cluster.http}/servers") as answer:
            found: list[dict[str, str]] = json.loads(answer.read())
            return found

    with application(app, "servers"):
        found = until(lambda: len(listed()) == 2 and listed())
        for addresses in found:
            with tritonclient.http.InferenceServerClient(addresses["http"]) as client:
                assert client.infer("double", row(tritonclient.http, 3)).as_numpy("Y").tolist() == [[6]]
            with tritonclient.grpc.InferenceServerClient(addresses["grpc"]) as client:
                assert client.infer("double", row(tritonclient.grpc, 3)).as_numpy("Y").tolist() == [[6]]
        server = pid_of_listener(found[0]["http"])
        os.kill(server, signal.SIGKILL)  # Ray replaces the replica, and the directory the address
        until(lambda: len(listed()) == 2 and found[0] not in listed())
        servers = {pid_of_listener(addresses["http"]) for addresses in listed()}
    until(lambda: not any(Path(f"/proc/{server}").exists() for server in servers))


def pid_of_listener(address: str) -> int:
    """The process that listens at *address*."""
    port = int(address.rpartition(":")[2])
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(f":{port:04X}") and fields[3] == "0A":
            inode = f"socket:[{fields[9]}]"
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(path) == inode:
                return int(path.parts[2])
    raise AssertionError(address)


def test_a_server_that_does_not_start_fails_the_deployment_with_its_last_lines(cluster: Cluster) -> None:
    app = pytriton_lite.ray.servers("/nowhere", flags=LOOPBACK, deployment={"max_constructor_retry_count": 1})
    with pytest.raises(RuntimeError, match="Deploying application wrong failed"):
        serve.run(app, name="wrong", route_prefix="/wrong")
    assert (
        "pytriton-lite serve ended with status 1" in serve.status().applications["wrong"].deployments["Servers"].message
    )
    serve.delete("wrong")


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: pytriton_lite.ray.app("models", http_port=8000), TypeError, "http_port is no option of a replica"),
        (
            lambda: pytriton_lite.ray.app("models", instances=0),
            ValueError,
            "instances is a number of at least 1, not 0",
        ),
        (lambda: pytriton_lite.ray.app("models", log_verboze=1), TypeError, "the nearest is 'log_verbose'"),
        (
            lambda: pytriton_lite.ray.servers("models", flags=["--http-port=8000"]),
            ValueError,
            "--http-port=8000 is not for",
        ),
        (lambda: pytriton_lite.ray.servers("models", flags="--id=x"), TypeError, "flags are a list of texts"),
    ],
)
def test_options_that_are_none_are_told_before_anything_is_deployed(
    make: Callable[[], object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        make()


def test_a_model_is_a_function_of_ray_data(cluster: Cluster, repository: Path) -> None:
    rows = ray.data.from_items([{"X": np.array([n], np.float32), "name": str(n)} for n in range(20, 70)])
    made = rows.map_batches(
        pytriton_lite.ray.Predictor,
        fn_constructor_args=(str(repository), "double"),
        batch_size=16,
        compute=ray.data.ActorPoolStrategy(size=1),
        num_cpus=0.5,
    ).take_all()
    assert {entry["name"]: float(entry["Y"][0]) for entry in made} == {str(n): 2.0 * n for n in range(20, 70)}
