"""The honest client's process: `python -m tools.siege.honest_client` asks for health and inference, and times the answers.

It reads `Addresses` from its standard input, says that it is ready, and measures from a line `begin` until a line `end`, which
it answers with a `Report`. Each kind of request has a thread of its own with one request in flight.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc

from pytriton_lite.proto import grpc_service_pb
from tools.siege.models import HONEST

INTERVAL_S = 0.02
TIMEOUT_S = 15.0
KINDS = ("HTTP health", "gRPC health", "HTTP inference", "gRPC inference")
PAUSE = "the client itself"
"""How late the client woke up from its pauses: what the machine adds to every figure."""


class HonestError(Exception):
    """A wrong answer."""


@dataclass(frozen=True)
class Addresses:
    http_port: int
    grpc_port: int
    root: str | None
    """The authority's certificate; None is plain text."""


@dataclass
class Latencies:
    """Seconds, and what failed."""

    samples: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, seconds: float) -> None:
        """One answer, and those requests that would have been sent meanwhile at the usual pace, and waited, too."""
        self.samples.append(seconds)
        while (seconds := seconds - INTERVAL_S) >= INTERVAL_S:
            self.samples.append(seconds)

    def quantile(self, share: float) -> float | None:
        if not self.samples:
            return None
        ordered = sorted(self.samples)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass
class Report:
    """By kind of request."""

    latencies: dict[str, Latencies]

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Report:
        return cls({kind: Latencies(**values) for kind, values in json.loads(text)["latencies"].items()})


class Values:
    """Inputs that no request had before, and the outputs that they must bring."""

    def __init__(self) -> None:
        self._count = 0

    def next(self) -> tuple[bytes, bytes, bytes]:
        """Two inputs and their sum."""
        self._count = (self._count + 1) % (1 << 20)
        left = [float(self._count + at) for at in range(4)]
        right = [float(at) for at in range(4)]
        return struct.pack("<4f", *left), struct.pack("<4f", *right), struct.pack("<4f", *map(sum, zip(left, right)))


class HttpHealth:
    """A connection for each question, as probes of orchestrators open it."""

    def __init__(self, addresses: Addresses, tls: ssl.SSLContext | None) -> None:
        self._addresses = addresses
        self._tls = tls

    def ask(self) -> None:
        connection = connect_http(self._addresses, self._tls)
        try:
            connection.request("GET", "/v2/health/ready")
            response = connection.getresponse()
            response.read()
            if response.status != 200:
                raise HonestError(f"health is {response.status}")
        finally:
            connection.close()


class HttpInference:
    """One connection for all requests, as long as it lasts."""

    def __init__(self, addresses: Addresses, tls: ssl.SSLContext | None) -> None:
        self._connection = connect_http(addresses, tls)
        self._values = Values()

    def ask(self) -> None:
        left, right, total = self._values.next()
        inputs = [
            {"name": name, "datatype": "FP32", "shape": [4], "parameters": {"binary_data_size": 16}}
            for name in ("INPUT0", "INPUT1")
        ]
        document = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
        fields = {"Inference-Header-Content-Length": str(len(document))}
        try:
            self._connection.request("POST", f"/v2/models/{HONEST.decode()}/infer", document + left + right, fields)
            response = self._connection.getresponse()
            answer = response.read()
        except BaseException:
            self._connection.close()  # the next request opens another one
            raise
        if response.status != 200:
            raise HonestError(f"{response.status} {answer[:200].decode(errors='replace')}")
        if answer[int(response.headers["Inference-Header-Content-Length"]) :][:16] != total:
            raise HonestError("a wrong sum")


class GrpcClient:
    """One channel for all calls."""

    def __init__(self, addresses: Addresses) -> None:
        target = f"localhost:{addresses.grpc_port}"
        if addresses.root is None:
            self._channel = grpc.insecure_channel(target)
        else:
            with open(addresses.root, "rb") as root:
                self._channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(root.read()))

    def call(self, method: str, message: bytes) -> bytes:
        answer: bytes = self._channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(
            message, timeout=TIMEOUT_S
        )
        return answer


class GrpcHealth:
    def __init__(self, addresses: Addresses) -> None:
        self._client = GrpcClient(addresses)

    def ask(self) -> None:
        if not grpc_service_pb.ServerReadyResponse.FromString(self._client.call("ServerReady", b"")).ready:
            raise HonestError("not ready")


class GrpcInference:
    def __init__(self, addresses: Addresses) -> None:
        self._client = GrpcClient(addresses)
        self._values = Values()

    def ask(self) -> None:
        left, right, total = self._values.next()
        request = grpc_service_pb.ModelInferRequest(model_name=HONEST.decode(), raw_input_contents=[left, right])
        for name in ("INPUT0", "INPUT1"):
            request.inputs.add(name=name, datatype="FP32", shape=[4])
        answer = self._client.call("ModelInfer", request.SerializeToString())
        if grpc_service_pb.ModelInferResponse.FromString(answer).raw_output_contents[0] != total:
            raise HonestError("a wrong sum")


def connect_http(addresses: Addresses, tls: ssl.SSLContext | None) -> http.client.HTTPConnection:
    if tls is None:
        return http.client.HTTPConnection("127.0.0.1", addresses.http_port, timeout=TIMEOUT_S)
    return http.client.HTTPSConnection("localhost", addresses.http_port, timeout=TIMEOUT_S, context=tls)


class Measurement:
    """Threads that ask until they are told to end."""

    def __init__(self, askers: dict[str, Callable[[], None]]) -> None:
        self._over = threading.Event()
        self._latencies = {kind: Latencies() for kind in (*askers, PAUSE)}
        self._threads = [
            threading.Thread(target=self._ask, args=(ask, self._latencies[kind])) for kind, ask in askers.items()
        ]
        for thread in self._threads:
            thread.start()

    def _ask(self, ask: Callable[[], None], latencies: Latencies) -> None:
        late = self._latencies[PAUSE].samples
        while not self._over.is_set():
            begin = time.monotonic()
            try:
                ask()
            except (HonestError, OSError, http.client.HTTPException, grpc.RpcError) as error:
                latencies.failures.append(_text_of(error))
            latencies.add(time.monotonic() - begin)
            wakes_at = time.monotonic() + INTERVAL_S
            self._over.wait(INTERVAL_S)
            late.append(max(0.0, time.monotonic() - wakes_at))

    def end(self) -> Report:
        """Wait for the answers that are due."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        return Report(self._latencies)


def _text_of(error: Exception) -> str:
    if isinstance(error, grpc.RpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}" if isinstance(error, (OSError, http.client.HTTPException)) else str(error)


def main() -> int:
    addresses = Addresses(**json.loads(sys.stdin.readline()))
    tls = None if addresses.root is None else ssl.create_default_context(cafile=addresses.root)
    askers = {
        "HTTP health": HttpHealth(addresses, tls).ask,
        "gRPC health": GrpcHealth(addresses).ask,
        "HTTP inference": HttpInference(addresses, tls).ask,
        "gRPC inference": GrpcInference(addresses).ask,
    }
    for ask in askers.values():
        ask()
    print("ready", flush=True)
    measurement = None
    for line in sys.stdin:
        if line.strip() == "begin":
            measurement = Measurement(askers)
        elif line.strip() == "end" and measurement is not None:
            print(measurement.end().as_json(), flush=True)
    return 0


if __name__ == "__main__":
    socket.setdefaulttimeout(TIMEOUT_S)
    sys.exit(main())
