"""What -u and -i may say."""

from __future__ import annotations

import pytest

from pytriton_lite.client.errors import ClientError
from pytriton_lite.client.target import Protocol, parse_target


@pytest.mark.parametrize(
    ("url", "protocol", "shown"),
    [
        (None, Protocol.HTTP, "http://localhost:8000"),
        (None, Protocol.GRPC, "grpc://localhost:8001"),
        ("host", Protocol.HTTP, "http://host:8000"),
        ("host:9000", Protocol.GRPC, "grpc://host:9000"),
        ("[::1]:9000", Protocol.HTTP, "http://[::1]:9000"),
        ("https://host/triton/v2/", Protocol.HTTP, "https://host:443/triton"),
        ("grpcs://host:1", Protocol.GRPC, "grpcs://host:1"),
        ("unix:/run/triton.sock", Protocol.HTTP, "unix:/run/triton.sock"),
        ("unix:///run/triton.sock", Protocol.HTTP, "unix:/run/triton.sock"),
    ],
)
def test_a_url_may_be_short(url: str | None, protocol: Protocol, shown: str) -> None:
    assert parse_target(url, protocol).url == shown


@pytest.mark.parametrize(
    ("url", "protocol", "says"),
    [
        ("host:port", Protocol.HTTP, "no number"),
        ("host:70000", Protocol.HTTP, "no number"),
        ("ftp://host", Protocol.HTTP, "expected HOST:PORT"),
        ("grpc://host", Protocol.HTTP, "expected HOST:PORT"),
        ("http://", Protocol.HTTP, "expected HOST:PORT"),
        ("grpc://host:1/prefix", Protocol.GRPC, "gRPC has no paths"),
        ("http://[::1", Protocol.HTTP, "-u"),
        ("https://me:secret@host", Protocol.HTTP, "-H 'Authorization"),
        ("https://host/triton?key=1", Protocol.HTTP, "behind the path"),
    ],
)
def test_what_is_no_url_is_refused(url: str, protocol: Protocol, says: str) -> None:
    with pytest.raises(ClientError, match=says):
        parse_target(url, protocol)


@pytest.mark.parametrize("url", ["10.0.0.7:8080", "unix:/run/triton.sock"])
def test_a_host_among_the_headers_is_the_one_that_requests_name(url: str) -> None:
    target = parse_target(url, Protocol.HTTP, headers=(("host", "model.example.org"), ("x", "y")))
    assert (target.authority, target.headers) == ("model.example.org", (("x", "y"),))
    assert url in target.url


def test_what_http_cannot_carry_is_refused_or_quoted() -> None:
    for name in ("x-who", "host"):
        with pytest.raises(ClientError, match=f"-H {name}: .* Latin-1, which has no 'Ł'"):
            parse_target(None, Protocol.HTTP, headers=((name, "café Łódź"),))
    assert parse_target(None, Protocol.HTTP, headers=(("x", "café"),)).headers == (("x", "café"),)
    target = parse_target("host/two words/%C5%81ódź/~a:b", Protocol.HTTP)
    assert target.prefix == "/two%20words/%C5%81%C3%B3d%C5%BA/~a:b"


def test_a_header_that_the_client_writes_is_refused() -> None:
    with pytest.raises(ClientError, match="-H content-type"):
        parse_target(None, Protocol.GRPC, headers=(("content-type", "application/json"),))


def test_options_of_tls_without_tls_are_refused() -> None:
    with pytest.raises(ClientError, match="https://host:1"):
        parse_target("host:1", Protocol.HTTP, verifies=False)
    with pytest.raises(ClientError, match="Unix sockets"):
        parse_target("unix:/run/triton.sock", Protocol.HTTP, verifies=False)


def test_files_of_tls_must_be_there_and_go_together() -> None:
    with pytest.raises(ClientError, match="--cert /nowhere: no such file"):
        parse_target("https://host", Protocol.HTTP, certificate_file="/nowhere")
    with pytest.raises(ClientError, match="say --cert"):
        parse_target("https://host", Protocol.HTTP, key_file="/nowhere.key")
    with pytest.raises(ClientError, match="--cert is for TLS, as in https://host:1"):
        parse_target("host:1", Protocol.HTTP, certificate_file="/nowhere.pem")
