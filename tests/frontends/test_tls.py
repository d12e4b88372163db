"""Contexts of TLS: what they insist on, and that whatever cannot be used is named."""

from __future__ import annotations

import asyncio
import logging
import re
import resource
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from pytriton_lite.frontends import tls as module
from pytriton_lite.frontends.addresses import ListenError
from pytriton_lite.frontends.tls import RenewedContext, TlsOptions, read_files, server_context
from tests.certificates import Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def test_tls_1_2_is_the_least_and_its_suites_keep_past_connections_secret(certificates: Certificates) -> None:
    context = server_context(certificates.options(), "h2")
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.verify_mode is ssl.CERT_NONE
    of_tls_1_2 = [cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] == "TLSv1.2"]
    assert of_tls_1_2
    assert [name for name in of_tls_1_2 if re.fullmatch(r"ECDHE-.*(GCM|CHACHA20).*", name) is None] == []


def test_clients_are_asked_for_a_certificate_where_an_authority_is_named(certificates: Certificates) -> None:
    context = server_context(certificates.options(mutual=True), "http/1.1")
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert len(context.get_ca_certs()) == 1


@pytest.mark.parametrize("place", ["certificate", "key", "client_root"])
def test_a_file_that_cannot_be_read_is_named(certificates: Certificates, place: str, tmp_path: Path) -> None:
    files = {"certificate": certificates.server, "key": certificates.server_key, "client_root": certificates.root}
    what = {"client_root": "root certificate"}.get(place, place)
    missing = tmp_path / "missing.pem"
    with pytest.raises(ListenError) as caught:
        server_context(TlsOptions(**files | {place: missing}), "h2")
    assert str(caught.value) == f"TLS: {what} {missing} cannot be read: No such file or directory"


@pytest.mark.parametrize("place", ["certificate", "key", "client_root"])
def test_a_file_that_goes_when_it_has_been_looked_at_is_told(
    certificates: Certificates, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"certificate": certificates.server, "key": certificates.server_key, "client_root": certificates.root}
    goes = tmp_path / "goes.pem"
    goes.write_bytes(files[place].read_bytes())

    def read_and_remove(tls: TlsOptions) -> None:
        read_files(tls)
        goes.unlink()

    monkeypatch.setattr(module, "read_files", read_and_remove)
    with pytest.raises(ListenError, match=rf"{re.escape(str(goes))}.* cannot be used: no such file or directory$"):
        server_context(TlsOptions(**files | {place: goes}), "h2")


@pytest.mark.parametrize("place", ["certificate", "key", "client_root"])
def test_a_file_that_is_something_else_is_named(certificates: Certificates, place: str, tmp_path: Path) -> None:
    files = {"certificate": certificates.server, "key": certificates.server_key, "client_root": certificates.root}
    what = {"client_root": "root certificate"}.get(place, place)
    other = tmp_path / "other.pem"
    other.write_text("not what you think")
    with pytest.raises(
        ListenError, match=rf"^TLS: {what} {re.escape(str(other))} is no PEM file of that kind, expected"
    ):
        server_context(TlsOptions(**files | {place: other}), "h2")


@pytest.mark.parametrize("place", ["certificate", "key", "client_root"])
def test_a_file_that_is_damaged_is_named(certificates: Certificates, place: str, tmp_path: Path) -> None:
    files = {"certificate": certificates.server, "key": certificates.server_key, "client_root": certificates.root}
    damaged = tmp_path / "damaged.pem"
    lines = files[place].read_text().splitlines()
    damaged.write_text("\n".join([lines[0], "AAAA", lines[-1]]))
    with pytest.raises(ListenError, match=rf"^TLS: .*{re.escape(str(damaged))}.* cannot be used: "):
        server_context(TlsOptions(**files | {place: damaged}), "h2")


def test_a_key_of_another_certificate_is_told(certificates: Certificates) -> None:
    with pytest.raises(ListenError) as caught:
        server_context(TlsOptions(certificates.server, certificates.client_key), "h2")
    assert str(caught.value) == f"TLS: key {certificates.client_key} is not that of certificate {certificates.server}"


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(
    certificates: Certificates, tmp_path: Path
) -> None:
    key = load_pem_private_key(certificates.server_key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    encryption = BestAvailableEncryption(b"password")
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    with pytest.raises(ListenError) as caught:
        server_context(TlsOptions(certificates.server, locked), "h2")
    assert str(caught.value) == f"TLS: key {locked} is encrypted; the server cannot ask for its password"


def test_files_are_read_as_they_are(certificates: Certificates) -> None:
    files = read_files(certificates.options(mutual=True))
    assert files.certificate == certificates.server.read_bytes()
    assert files.key == certificates.server_key.read_bytes()
    assert files.client_root == certificates.root.read_bytes()
    assert read_files(certificates.options()).client_root is None


def test_what_could_not_be_read_when_it_was_new_is_taken_when_it_can_be(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.0)
    certificate, key = tmp_path / "tls.pem", tmp_path / "tls.key"
    certificate.write_bytes(certificates.server.read_bytes())
    key.write_bytes(certificates.server_key.read_bytes())
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def scenario() -> None:
        renewed = RenewedContext(TlsOptions(certificate, key), "h2")
        before = await renewed.current()
        certificate.write_bytes(certificates.client.read_bytes())
        key.write_bytes(certificates.client_key.read_bytes())
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))  # nobody may open anything
        try:
            assert [await renewed.current(), await renewed.current()] == [before, before]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        after = await renewed.current()
        assert after is not before
        assert await renewed.current() is after

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    assert [message.partition(": Too many")[0] for message in caplog.messages] == [
        f"TLS: certificate {certificate} cannot be read",
        f"TLS: certificate {certificate} was read anew, for new connections",
    ]
