"""What stands for a cluster: a kubelet, a storage initializer, a queue proxy and a kube-proxy, over real servers.

A `Pod` is a container of a manifest: its arguments, probes and grace period are those of the rendered YAML, with ports of this
machine and the folder that the storage initializer has filled. A kubelet does with it what Kubernetes documents: no other probe
before the startup probe has succeeded, liveness that starts the container anew, readiness that takes it from the endpoints,
SIGTERM and, after the grace period, SIGKILL. Periods of probes are divided by *haste*, so that tests need not wait.
"""

from __future__ import annotations

import http.client
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.deploy.manifests import Document, containers
from tests.harness import PROJECT, free_ports

_LOOK_S = 0.01


def initialize_storage(source: Path, target: Path) -> None:
    """What KServe's storage initializer does before the container starts: copy the models to where it looks for them."""
    shutil.copytree(source, target, dirs_exist_ok=True)


@dataclass
class Ports:
    http: int
    grpc: int
    metrics: int


@dataclass
class Seen:
    """What a kubelet saw of one pod."""

    startup_failures: int = 0
    restarts: int = 0
    exit_codes: list[int] = field(default_factory=list)
    killed: bool = False
    became_ready: int = 0


class Pod:
    """One pod of a workload: a process, and the thread of the kubelet that looks after it."""

    def __init__(
        self, workload: Document, models: Path | str, *, haste: float, environ: Mapping[str, str] | None = None
    ) -> None:
        spec = workload["spec"].get("template", workload)["spec"]
        (self._container,) = containers(spec)
        self._grace_s: float = spec.get("terminationGracePeriodSeconds", 30)
        self._haste = haste
        self._environ = {**os.environ, **(environ or {})}
        self.ports = Ports(*free_ports(3))
        self._arguments = self._localized(models)
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self.is_ready = False
        self.seen = Seen()
        self.log = b""
        self._thread = threading.Thread(target=self._look_after, daemon=True)

    def _localized(self, models: Path | str) -> list[str]:
        """The container's arguments, with ports of this machine, and *models* where it has them in the container."""
        first, *flags = (str(argument) for argument in self._container["args"])
        assert first.startswith("/")
        kept = [flag for flag in flags if not re.match(r"--(http|grpc|metrics)-(port|address)=", flag)]
        return [
            str(models),
            *kept,
            "--http-address=127.0.0.1",
            "--grpc-address=127.0.0.1",
            f"--http-port={self.ports.http}",
            f"--grpc-port={self.ports.grpc}",
            f"--metrics-port={self.ports.metrics}",
        ]

    def start(self) -> Pod:
        self._thread.start()
        return self

    def wait_ready(self, timeout_s: float = 60) -> Pod:
        deadline = time.monotonic() + timeout_s
        while not self.is_ready:
            assert time.monotonic() < deadline, f"the pod did not get ready:\n{self.log.decode(errors='replace')}"
            time.sleep(_LOOK_S)
        return self

    def terminate(self) -> None:
        """Begin to end it, as the deletion of a pod does; `join` waits."""
        self._stopping.set()

    def join(self, timeout_s: float = 90) -> Seen:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "the kubelet hangs"
        return self.seen

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    # ------------------------------------------------------------------------------------------ the kubelet's loop

    def _look_after(self) -> None:
        while True:
            process = self._process = self._run()
            reader = threading.Thread(target=self._read, args=(process,), daemon=True)
            reader.start()
            wants_restart = self._probe_until_it_ends(process)
            self.is_ready = False
            if self._stopping.is_set() or wants_restart:
                self._end(process)
            else:
                self.seen.exit_codes.append(process.wait())
            reader.join()
            if self._stopping.is_set():
                return
            self.seen.restarts += 1

    def _run(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "pytriton_lite", "serve", *self._arguments]
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=PROJECT,
            env=self._environ,
            start_new_session=True,
        )

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                self.log += line

    def _probe_until_it_ends(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether the container is to be started anew because of a probe; it has ended, or the pod is to end, otherwise."""
        startup, readiness, liveness = (_Probe(self._container.get(f"{name}Probe"), self.ports, self._haste)
                                        for name in ("startup", "readiness", "liveness"))  # fmt: skip
        if "startupProbe" not in self._container:
            startup.never_fails()
        if "livenessProbe" not in self._container:
            liveness.never_fails()
        while not startup.succeeds():
            if self._is_over(process, startup.period_s):
                return False
            self.seen.startup_failures += 1
            if startup.has_failed:
                return True
        while True:
            was_ready, self.is_ready = (
                self.is_ready,
                readiness.succeeds() or (not readiness.has_failed and self.is_ready),
            )
            self.seen.became_ready += self.is_ready and not was_ready
            if not liveness.succeeds() and liveness.has_failed:
                return True
            if self._is_over(process, readiness.period_s):
                return False

    def _is_over(self, process: subprocess.Popen[bytes], pause_s: float) -> bool:
        until = time.monotonic() + pause_s
        while time.monotonic() < until:
            if self._stopping.wait(_LOOK_S) or process.poll() is not None:
                return True
        return False

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGTERM)
        try:
            self.seen.exit_codes.append(process.wait(self._grace_s))
        except subprocess.TimeoutExpired:
            self.seen.killed = True
            os.killpg(process.pid, signal.SIGKILL)
            self.seen.exit_codes.append(process.wait())


class _Probe:
    """One probe of a container, or, where it has none, what KServe asks instead: whether its port of HTTP is open."""

    def __init__(self, spec: Document | None, ports: Ports, haste: float) -> None:
        self._path = spec["httpGet"]["path"] if spec else None
        self._port = ports.http
        self.period_s = (spec or {}).get("periodSeconds", 10) / haste
        self._timeout_s = (spec or {}).get("timeoutSeconds", 1)
        self._threshold: int = (spec or {}).get("failureThreshold", 3)
        self._failures = 0

    def never_fails(self) -> None:
        """A container without this probe is not started anew because of it, however slow its machine is."""
        self._threshold = sys.maxsize

    @property
    def has_failed(self) -> bool:
        """Whether as many tries in a row failed as the manifest allows."""
        return self._failures >= self._threshold

    def succeeds(self) -> bool:
        is_well = self._ask()
        self._failures = 0 if is_well else self._failures + 1
        return is_well

    def _ask(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=self._timeout_s)
        try:
            if self._path is None:
                connection.connect()
                return True
            connection.request("GET", self._path)
            return 200 <= connection.getresponse().status < 400
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


class Cluster:
    """Pods of one workload, and their endpoints as a kube-proxy has them: a look behind what the kubelets say."""

    def __init__(self, workload: Document, models: Path | str, *, haste: float = 20, lag_s: float = 0.3) -> None:
        self._workload = workload
        self._models = models
        self._haste = haste
        self._lag_s = lag_s
        self.pods: list[Pod] = []
        self._ends = threading.Event()
        self._endpoints: tuple[Ports, ...] = ()
        self._turn = itertools.count()
        self._proxy = threading.Thread(target=self._follow, daemon=True)

    def start(self, count: int) -> Cluster:
        self.pods = [self._pod().start() for _ in range(count)]
        for pod in self.pods:
            pod.wait_ready()
        self._endpoints = tuple(pod.ports for pod in self.pods)
        self._proxy.start()
        return self

    def _pod(self) -> Pod:
        return Pod(self._workload, self._models, haste=self._haste)

    def _follow(self) -> None:
        """Endpoints become known everywhere some time after they have changed."""
        known: list[tuple[float, tuple[Ports, ...]]] = []
        while not self._ends.wait(_LOOK_S):
            now = time.monotonic()
            known.append((now, tuple(pod.ports for pod in self.pods if pod.is_ready)))
            while known and known[0][0] <= now - self._lag_s:
                self._endpoints = known.pop(0)[1]

    def endpoint(self) -> Ports:
        """Where a new connection goes."""
        endpoints = self._endpoints
        return endpoints[next(self._turn) % len(endpoints)]

    def roll(self) -> list[Seen]:
        """A rolling update of a Deployment with maxSurge 1 and maxUnavailable 0; what was seen of the old pods."""
        ended = []
        for old in list(self.pods):
            new = self._pod().start()
            self.pods.append(new)
            new.wait_ready()
            old.terminate()
            ended.append(old.join())
            self.pods.remove(old)
        return ended

    def stop(self) -> list[Seen]:
        for pod in self.pods:
            pod.terminate()
        seen = [pod.join() for pod in self.pods]
        self._ends.set()
        return seen


class QueueProxy:
    """Knative's sidecar: at most *concurrency* requests at a time go on to the container, the others wait in front of it.

    Ask it as a function from a thread of one's own; it forwards by `forward`.
    """

    def __init__(self, forward: Callable[[str, bytes], tuple[int, bytes]], concurrency: int) -> None:
        self._forward = forward
        self._places = threading.Semaphore(concurrency)

    def __call__(self, path: str, body: bytes) -> tuple[int, bytes]:
        with self._places:
            return self._forward(path, body)


def post(port: int, path: str, body: bytes = b"", timeout_s: float = 60) -> tuple[int, bytes]:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("POST", path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@contextmanager
def clients(count: int, work: Callable[[], Any]) -> Iterator[list[str]]:
    """*count* threads that do *work* again and again; the list has what failed, and after the block how often it went well."""
    over = threading.Event()
    failures: list[str] = []
    done = [0] * count

    def go(at: int) -> None:
        while not over.is_set():
            try:
                work()
                done[at] += 1
            except Exception as error:
                failures.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=go, args=(at,), daemon=True) for at in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield failures
    finally:
        over.set()
        for thread in threads:
            thread.join(90)
        assert not any(thread.is_alive() for thread in threads), "a client waits for ever"
        assert sum(done) > 0
