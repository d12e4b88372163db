"""TLS, restricted APIs, forwarded headers, Unix sockets and shared ports of a running server, asked by the stock clients."""

from __future__ import annotations

import http.client
import json
import queue
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.certificates import Certificates
from tests.contract.wire_models import write_wire_models
from tests.harness import PROJECT, TESTED_FRONT_ENDS, RunningServer, write_model

transports = pytest.mark.parametrize("transport", ["http2", "grpcio"])

ADMIN = {"X-Admin": "sesame"}
GRPC_ADMIN = {"triton-grpc-protocol-x-admin": "sesame"}
HTTP_REFUSAL = "This API is restricted, expecting header 'X-Admin'"
GRPC_REFUSAL = "This protocol is restricted, expecting header 'triton-grpc-protocol-x-admin'"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    everything = tmp_path_factory.mktemp("all") / "models"
    write_wire_models(everything)
    repository = tmp_path_factory.mktemp("security")
    (everything / "params").rename(repository / "params")
    return repository


@pytest.fixture(scope="module", params=["http2", "grpcio"])
def server(request: pytest.FixtureRequest, repository: Path, certificates: Certificates) -> Iterator[RunningServer]:
    """TLS everywhere, with restrictions and forwarded headers, over either transport of gRPC."""
    flags = (
        *certificates.flags("http"),
        *certificates.flags("grpc"),
        "--http-use-ssl=true",
        "--metrics-use-ssl=true",
        "--grpc-use-ssl=true",
        "--http-restricted-api=model-repository,logging:X-Admin=sesame",
        "--grpc-restricted-protocol=model-repository,logging:x-admin=sesame",
        "--http-header-forward-pattern=^x-.*",
        "--grpc-header-forward-pattern=^x-.*",
        "--grpc-infer-response-compression-level=high",
        f"--grpc-transport={request.param}",
    )
    with RunningServer(repository, flags=flags) as running:
        yield running


@pytest.fixture
def http_client(server: RunningServer, certificates: Certificates) -> Iterator[Any]:
    options = {"ca_certs": str(certificates.root)}
    client = tritonclient.http.InferenceServerClient(f"localhost:{server.http_port}", ssl=True, ssl_options=options)
    yield client
    client.close()


@pytest.fixture
def grpc_client(server: RunningServer, certificates: Certificates) -> Iterator[Any]:
    with tritonclient.grpc.InferenceServerClient(
        server.grpc_url, ssl=True, root_certificates=str(certificates.root)
    ) as client:
        yield client


def parameters_of(client: Any, module: Any, **more: Any) -> Any:
    """What the model has seen of the parameters."""
    tensor = module.InferInput("INPUT0", [1], "INT32").set_data_from_numpy(np.zeros(1, np.int32))
    return json.loads(client.infer("params", [tensor], **more).as_numpy("OUTPUT0")[0])


def asked(context: ssl.SSLContext, url: str) -> bytes:
    with urllib.request.urlopen(url, context=context, timeout=30) as reply:
        body: bytes = reply.read()
        return body


# ---------------------------------------------------------------------------------------------------- TLS


def test_http_and_metrics_over_tls(server: RunningServer, http_client: Any, certificates: Certificates) -> None:
    assert http_client.is_server_live()
    assert parameters_of(http_client, tritonclient.http) == {}
    context = certificates.client_context()
    metrics = server.metrics_url.replace("http://", "https://")
    assert b"nv_inference_request_success" in asked(context, metrics)


def test_plain_clients_get_nothing_of_http_over_tls(server: RunningServer) -> None:
    for url in (f"http://127.0.0.1:{server.http_port}/v2", server.metrics_url):
        with pytest.raises((urllib.error.URLError, http.client.HTTPException, ConnectionError)):
            urllib.request.urlopen(url, timeout=30)


def test_grpc_over_tls_and_plain_clients_get_nothing(server: RunningServer, grpc_client: Any) -> None:
    """grpc.md row 54."""
    assert grpc_client.is_server_live()
    with (
        tritonclient.grpc.InferenceServerClient(server.grpc_url) as plain,
        pytest.raises(InferenceServerException) as caught,
    ):
        plain.is_server_live()
    assert caught.value.status() == "StatusCode.UNAVAILABLE"


@transports
def test_mutual_tls_turns_strangers_away(repository: Path, certificates: Certificates, transport: str) -> None:
    """grpc.md row 55, and the same of HTTP. The presence of the flag turns TLS on."""
    flags = (
        *certificates.flags("http"),
        *certificates.flags("grpc"),
        "--http-use-ssl-mutual=true",
        "--grpc-use-ssl-mutual=true",
        f"--grpc-transport={transport}",
    )
    root = str(certificates.root)
    with RunningServer(repository, flags=flags) as server:
        with tritonclient.grpc.InferenceServerClient(
            server.grpc_url,
            ssl=True,
            root_certificates=root,
            certificate_chain=str(certificates.client),
            private_key=str(certificates.client_key),
        ) as client:
            assert client.is_server_live()
        with (
            tritonclient.grpc.InferenceServerClient(server.grpc_url, ssl=True, root_certificates=root) as client,
            pytest.raises(InferenceServerException) as caught,
        ):
            client.is_server_live()
        assert caught.value.status() == "StatusCode.UNAVAILABLE"

        url = f"https://localhost:{server.http_port}/v2"
        right = certificates.client_context(certificate=certificates.client, key=certificates.client_key)
        assert b"triton" in asked(right, url)
        for wrong in (
            certificates.client_context(),
            certificates.client_context(certificate=certificates.stranger, key=certificates.stranger_key),
        ):
            with pytest.raises((urllib.error.URLError, http.client.HTTPException, ConnectionError, ssl.SSLError)):
                asked(wrong, url)
        assert b"nv_inference" in urllib.request.urlopen(server.metrics_url, timeout=30).read()  # which is plain


@pytest.mark.parametrize("front_end", ["http", "grpc"])
def test_a_file_of_tls_that_is_wrong_ends_the_start_before_models_are_loaded(
    tmp_path: Path, certificates: Certificates, front_end: str
) -> None:
    write_model(tmp_path, "m", code="raise RuntimeError('was loaded')")
    missing = tmp_path / "missing.pem"
    flags = [
        f"--{front_end}-use-ssl=true",
        f"--{front_end}-server-cert={missing}",
        f"--{front_end}-server-key={certificates.server_key}",
    ]
    ended = subprocess.run(
        [sys.executable, "-m", "pytriton_lite", "serve", str(tmp_path), *flags],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert f"error: creating server: TLS: certificate {missing} cannot be read: No such file" in ended.stderr
    assert "was loaded" not in ended.stderr


# ---------------------------------------------------------------------------------------------------- restricted APIs


def test_restricted_http_apis_need_their_header(http_client: Any) -> None:
    """http.md row 115: 403 without the header and with another value, and over a method that is not allowed."""
    for headers in (None, {"X-Admin": "Sesame"}):
        with pytest.raises(InferenceServerException) as caught:
            http_client.get_model_repository_index(headers=headers)
        assert (caught.value.status(), caught.value.message()) == ("403", HTTP_REFUSAL)
    assert [row["name"] for row in http_client.get_model_repository_index(headers=ADMIN)] == ["params"]
    assert http_client.is_server_live()


def test_restricted_http_apis_refuse_other_methods_too(server: RunningServer, certificates: Certificates) -> None:
    """http.md row 115, its last part."""
    connection = http.client.HTTPSConnection("localhost", server.http_port, context=certificates.client_context())
    for method, headers, status in (("DELETE", {}, 403), ("DELETE", ADMIN, 405), ("GET", {}, 403)):
        connection.request(method, "/v2/repository/index", headers=headers)
        reply = connection.getresponse()
        reply.read()
        assert reply.status == status
    connection.close()


def test_restricted_grpc_protocols_need_their_key(grpc_client: Any) -> None:
    """grpc.md row 56."""
    for headers in (None, {"triton-grpc-protocol-x-admin": "Sesame"}, {"x-admin": "sesame"}):
        with pytest.raises(InferenceServerException) as caught:
            grpc_client.get_model_repository_index(headers=headers)
        assert (caught.value.status(), caught.value.message()) == ("StatusCode.UNAVAILABLE", GRPC_REFUSAL)
    assert [row.name for row in grpc_client.get_model_repository_index(headers=GRPC_ADMIN).models] == ["params"]
    assert grpc_client.is_server_live()


@transports
def test_a_restricted_stream_ends(repository: Path, transport: str) -> None:
    """grpc.md row 57, and that inference is restricted over HTTP as well, whose ordinary requests take a way of their own."""
    flags = (
        "--grpc-restricted-protocol=inference:x-admin=sesame",
        "--http-restricted-api=inference:X-Admin=sesame",
        f"--grpc-transport={transport}",
    )
    with RunningServer(repository, flags=flags) as server:
        request = tritonclient.grpc.service_pb2.ModelInferRequest(model_name="params")
        request.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
        request.raw_input_contents.append(bytes(4))
        with grpc.insecure_channel(server.grpc_url) as channel:
            stub = tritonclient.grpc.service_pb2_grpc.GRPCInferenceServiceStub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                list(stub.ModelStreamInfer(iter([request]), timeout=30))
            assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, GRPC_REFUSAL)
            (answer,) = stub.ModelStreamInfer(iter([request]), metadata=tuple(GRPC_ADMIN.items()), timeout=30)
            assert answer.error_message == ""
        client = tritonclient.http.InferenceServerClient(server.http_url)
        for _ in range(2):
            with pytest.raises(InferenceServerException, match="expecting header 'X-Admin'"):
                parameters_of(client, tritonclient.http)
            assert parameters_of(client, tritonclient.http, headers=ADMIN) == {}
        client.close()


# ---------------------------------------------------------------------------------------------------- forwarded headers


def test_http_headers_reach_the_model_as_they_were_written(server: RunningServer, certificates: Certificates) -> None:
    """http.md row 116. The stock client writes names its own way, so that this is asked by hand."""
    body = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "INT32", "data": [0]}]})
    connection = http.client.HTTPSConnection("localhost", server.http_port, context=certificates.client_context())
    connection.request("POST", "/v2/models/params/infer", body, {"X-Foo": "bar", "y-other": "1"})
    reply = connection.getresponse()
    (output,) = json.loads(reply.read())["outputs"]
    connection.close()
    assert json.loads(output["data"][0]) == {"X-Foo": "bar"}


def test_grpc_metadata_reach_the_model(grpc_client: Any) -> None:
    """grpc.md row 58, unary."""
    assert parameters_of(grpc_client, tritonclient.grpc, headers={"x-foo": "bar", "y": "1"}) == {"x-foo": "bar"}


def test_grpc_metadata_of_a_stream_reach_the_model_with_every_request(grpc_client: Any) -> None:
    """grpc.md row 58, in a stream."""
    answers: queue.Queue[Any] = queue.Queue()
    grpc_client.start_stream(lambda result, error: answers.put(error or result), headers={"x-foo": "bar"})
    tensor = tritonclient.grpc.InferInput("INPUT0", [1], "INT32").set_data_from_numpy(np.zeros(1, np.int32))
    for _ in range(2):
        grpc_client.async_stream_infer("params", [tensor])
    for _ in range(2):
        assert json.loads(answers.get(timeout=30).as_numpy("OUTPUT0")[0]) == {"x-foo": "bar"}
    grpc_client.stop_stream()


def test_compressed_answers_are_decoded_by_the_client(grpc_client: Any) -> None:
    """grpc.md row 53: the fixture's server compresses as hard as it can; test_grpc_server measures that it does."""
    long = {"x-long": "a" * 4000}
    assert parameters_of(grpc_client, tritonclient.grpc, headers=long) == long


# ---------------------------------------------------------------------------------------------------- addresses


@transports
def test_unix_sockets_serve_everything_and_are_gone_at_the_end(
    repository: Path, short_path: Path, transport: str
) -> None:
    paths = {name: short_path / f"{name}.sock" for name in ("http", "grpc", "metrics")}
    with socket.socket(socket.AF_UNIX) as killed:  # a server that left its file behind
        killed.bind(str(paths["http"]))
    flags = (*(f"--{name}-address=unix:{path}" for name, path in paths.items()), f"--grpc-transport={transport}")
    has_front_ends = TESTED_FRONT_ENDS and transport != "grpcio"
    listeners = f", {TESTED_FRONT_ENDS} front ends" if has_front_ends else ""
    with RunningServer(repository, flags=flags) as server:
        for service, name, behind in (
            ("HTTPService", "http", listeners),
            ("GRPCInferenceService", "grpc", listeners),
            ("Metrics Service", "metrics", ""),
        ):
            server.wait_for_log(f'Started {service} at unix:{paths[name]}{behind}"')
        assert b" 200 OK" in over_unix(paths["http"], "/v2/health/ready")
        assert b"nv_inference_request_success" in over_unix(paths["metrics"], "/metrics")
        with tritonclient.grpc.InferenceServerClient(f"unix:{paths['grpc']}") as client:
            assert parameters_of(client, tritonclient.grpc) == {}
        assert server.stop() == 0
    assert list(short_path.iterdir()) == []


def over_unix(path: Path, target: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(30)
        sock.connect(str(path))
        sock.sendall(f"GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
        data = b""
        while piece := sock.recv(1 << 16):
            data += piece
        return data


@transports
def test_two_servers_share_their_ports_when_both_say_so(repository: Path, transport: str) -> None:
    """And the second goes on when the first has ended."""
    sharing = ("--reuse-http-port=true", "--reuse-grpc-port=true", f"--grpc-transport={transport}")
    with RunningServer(repository, flags=sharing) as first:
        grpc_port = first.grpc_url.rpartition(":")[2]
        same = (f"--http-port={first.http_port}", f"--grpc-port={grpc_port}")
        with RunningServer(repository, flags=(*sharing, *same)) as second:
            assert (second.http_url, second.grpc_url) == (first.http_url, first.grpc_url)
            first.process.send_signal(signal.SIGTERM)
            assert first.wait() == 0
            assert second.get("/v2/health/ready").status == 200
            with tritonclient.grpc.InferenceServerClient(second.grpc_url) as client:
                assert client.is_server_live()


def test_a_port_is_not_shared_by_default(repository: Path) -> None:
    with RunningServer(repository) as server:
        for flag, port in (("http", str(server.http_port)), ("grpc", server.grpc_url.rpartition(":")[2])):
            ended = subprocess.run(
                [
                    *(sys.executable, "-m", "pytriton_lite", "serve", "--model-control-mode=explicit", str(repository)),
                    *("--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--allow-metrics=false"),
                    *("--http-port=0", "--grpc-port=0", f"--{flag}-port={port}"),
                    f"--reuse-{flag}-port=true",  # both have to
                ],
                cwd=PROJECT,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert ended.returncode == 1
            assert f"Socket '127.0.0.1:{port}' already in use " in ended.stderr
