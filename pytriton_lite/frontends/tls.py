"""TLS of the listeners: one builder of contexts, which names the file that it cannot use.

TLS 1.2 is the least, and of its cipher suites those alone that are authenticated and keep past connections secret, which
is also what HTTP/2 asks for (RFC 9113, section 9.2.2).
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from pytriton_lite.frontends.addresses import ListenError

_TLS_1_2_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


@dataclass(frozen=True)
class TlsOptions:
    """PEM files. The certificate may have those of the authorities between it and the root behind it."""

    certificate: Path
    key: Path
    client_root: Path | None = None
    """The authorities one of which must have signed a client's certificate; None asks clients for none."""


@dataclass(frozen=True)
class TlsFiles:
    """What is in the files."""

    certificate: bytes
    key: bytes
    client_root: bytes | None


def read_files(tls: TlsOptions) -> TlsFiles:
    """The contents of the files of *tls*. Raises ListenError that names the one that cannot be read, or is something else."""
    return TlsFiles(
        _read(tls.certificate, "certificate", b"BEGIN CERTIFICATE"),
        _read(tls.key, "key", b"PRIVATE KEY"),
        None if tls.client_root is None else _read(tls.client_root, "root certificate", b"BEGIN CERTIFICATE"),
    )


def server_context(tls: TlsOptions, protocol: str) -> ssl.SSLContext:
    """What a listener needs to serve *protocol*, ``http/1.1`` or ``h2``. Raises ListenError as `read_files` does."""
    read_files(tls)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_TLS_1_2_CIPHERS)
    context.set_alpn_protocols([protocol])
    context.options |= ssl.OP_NO_RENEGOTIATION
    _load_certificate(context, tls)
    if tls.client_root is not None:
        try:
            context.load_verify_locations(tls.client_root)
        except ssl.SSLError as error:
            raise ListenError(f"TLS: root certificate {tls.client_root} cannot be used: {_reason(error)}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load_certificate(context: ssl.SSLContext, tls: TlsOptions) -> None:
    def refuse_password() -> str:
        raise ListenError(f"TLS: key {tls.key} is encrypted; the server cannot ask for its password")

    try:
        context.load_cert_chain(tls.certificate, tls.key, refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ListenError(f"TLS: key {tls.key} is not that of certificate {tls.certificate}") from error
        raise ListenError(
            f"TLS: certificate {tls.certificate} with key {tls.key} cannot be used: {_reason(error)}"
        ) from error


def _read(path: Path, what: str, mark: bytes) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ListenError(f"TLS: {what} {path} cannot be read: {error.strerror}") from error
    if mark not in data:
        raise ListenError(f"TLS: {what} {path} is no PEM file of that kind, expected '{mark.decode()}' in it")
    return data


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()
