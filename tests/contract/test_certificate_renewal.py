"""Certificates that are renewed while the server runs: new connections get the new one, open ones go on."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.certificates import Certificates
from tests.contract.wire_models import wait_until
from tests.harness import RunningServer, one_process

Served = tuple[RunningServer, Path]


def put(folder: Path, certificates: Certificates) -> None:
    """What Kubernetes does with a secret: a new folder, and one step that makes a link lead there."""
    fresh = folder / f"version{len(list(folder.iterdir()))}"
    fresh.mkdir()
    (fresh / "tls.crt").write_bytes(certificates.server.read_bytes())
    (fresh / "tls.key").write_bytes(certificates.server_key.read_bytes())
    link = folder / "next"
    link.symlink_to(fresh.name)
    link.replace(folder / "current")


@pytest.fixture(params=["http2", "grpcio"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    folder = tmp_path / "secret"
    folder.mkdir()
    put(folder, certificates(tmp_path, "first"))
    files = [f"--{name}-server-{kind}={folder}/current/tls.{end}" for name in ("http", "grpc") for kind, end in
             (("cert", "crt"), ("key", "key"))]  # fmt: skip
    flags = (
        "--http-use-ssl=true",
        "--metrics-use-ssl=true",
        "--grpc-use-ssl=true",
        f"--grpc-transport={request.param}",
    )
    (tmp_path / "models").mkdir()
    with RunningServer(tmp_path / "models", flags=(*files, *flags)) as server:
        yield server, folder


def certificates(folder: Path, name: str) -> Certificates:
    own = folder / name
    own.mkdir()
    return Certificates(own)


def addresses(server: RunningServer) -> list[tuple[str, int]]:
    ports = (server.http_port, server.grpc_url.rpartition(":")[2], server.metrics_url.split(":")[2].partition("/")[0])
    return [("127.0.0.1", int(port)) for port in ports]


def certificate_at(address: tuple[str, int]) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    with socket.create_connection(address, 30) as plain, context.wrap_socket(plain) as encrypted:
        found = encrypted.getpeercert(binary_form=True)
    assert found is not None
    return found


def in_file(certificates: Certificates) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificates.server.read_text())


def test_new_connections_get_the_new_certificate_and_open_ones_go_on(served: Served, tmp_path: Path) -> None:
    server, folder = served
    before = certificate_at(addresses(server)[0])
    trusted = ssl.create_default_context(cafile=tmp_path / "first" / "root.pem")
    grpc_credentials = grpc.ssl_channel_credentials((tmp_path / "first" / "root.pem").read_bytes())
    with contextlib.ExitStack() as stack:
        old = http.client.HTTPSConnection("127.0.0.1", server.http_port, context=trusted, timeout=30)
        stack.callback(old.close)
        old.request("GET", "/v2/health/live")
        assert old.getresponse().read() == b""
        channel = stack.enter_context(grpc.secure_channel(server.grpc_url, grpc_credentials))
        live = service_pb2_grpc.GRPCInferenceServiceStub(channel).ServerLive
        assert live(service_pb2.ServerLiveRequest()).live

        second = certificates(tmp_path, "second")
        put(folder, second)
        for address in addresses(server):
            wait_until(lambda address=address: certificate_at(address) == in_file(second))
        assert in_file(second) != before
        old.request("GET", "/v2/health/live")
        assert old.getresponse().status == 200
        assert live(service_pb2.ServerLiveRequest()).live
    assert "was read anew" in server.log


@one_process("each says so")
def test_files_that_do_not_fit_leave_the_old_certificate_and_the_next_ones_are_taken(
    served: Served, tmp_path: Path
) -> None:
    server, folder = served
    before = certificate_at(addresses(server)[0])
    second = certificates(tmp_path, "second")
    key = folder / "current" / "tls.key"
    replace(key, second.server_key.read_bytes())
    for told, address in enumerate(addresses(server), 1):
        wait_until(lambda told=told, address=address: told_after(server, address) == told)
        assert certificate_at(address) == before
    assert [told_after(server, address) for address in addresses(server)] == [3] * 3, "each listener says so once"
    replace(folder / "current" / "tls.crt", second.server.read_bytes())
    for address in addresses(server):
        wait_until(lambda address=address: certificate_at(address) == in_file(second))


def told_after(server: RunningServer, address: tuple[str, int]) -> int:
    """How often the log has it that a key does not fit, after one more connection."""
    certificate_at(address)
    return server.log.count("is not that of certificate")


def replace(file: Path, content: bytes) -> None:
    fresh = file.with_name("fresh")
    fresh.write_bytes(content)
    os.replace(fresh, file)


def test_files_that_are_gone_leave_the_old_certificate(served: Served) -> None:
    server, folder = served
    before = certificate_at(addresses(server)[0])
    (folder / "current").unlink()
    for address in addresses(server):
        assert certificate_at(address) == before
    wait_until(lambda: certificate_at(addresses(server)[0]) == before and "cannot be read" in server.log)
