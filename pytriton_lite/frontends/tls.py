"""TLS of the listeners: one builder of contexts, which names the file that it cannot use, and what renews them.

TLS 1.2 is the least, and of its cipher suites those alone that are authenticated and keep past connections secret, which
is also what HTTP/2 asks for (RFC 9113, section 9.2.2).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

from pytriton_lite.config.regular_file import read_regular_file
from pytriton_lite.daemon_threads import in_daemon_thread
from pytriton_lite.frontends.addresses import ListenError

logger = logging.getLogger(__name__)

_TLS_1_2_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"

LOOK_EVERY_S = 1.0
"""A file is looked at when a connection comes, and not again for so long."""
_LOOK_WAIT_S = 2.0
"""A connection waits no longer for a disk that does not answer, and gets what there was before."""


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
        except OSError as error:  # SSLError is one, and the file may have gone since it was read
            raise ListenError(f"TLS: root certificate {tls.client_root} cannot be used: {_reason(error)}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class Renewal:
    """Whether the files of *tls* are to be read anew. A link that was swapped leads to another inode."""

    def __init__(self, tls: TlsOptions) -> None:
        self._tls = tls
        self._files = [file for file in (tls.certificate, tls.key, tls.client_root) if file is not None]
        self._seen = self._look()
        self._refusal = ""
        """Why they could not be used when they were read last; empty where they could."""

    def _look(self) -> list[tuple[int, int, int, int] | None]:
        return [_identity_of(file) for file in self._files]

    def is_due(self) -> bool:
        """Whether they are others than when this was asked last, or could not be used then.

        What has them readable at last need not change them: another owner or mode, a descriptor that is free again.
        """
        before = self._seen
        self._seen = self._look()  # before they are read: what changes from here on is seen the next time
        return self._seen != before or bool(self._refusal)

    def tell_renewed(self) -> None:
        """They were read, and new connections get what is in them."""
        self._refusal = ""
        logger.info("TLS: certificate %s was read anew, for new connections", self._tls.certificate)

    def tell_kept(self, error: ListenError) -> None:
        """They cannot be used because of *error*, which the log says once."""
        refusal, self._refusal = self._refusal, str(error)
        if self._refusal != refusal:
            logger.error("%s; new connections get the certificate that was there before", error)


def _identity_of(file: Path) -> tuple[int, int, int, int] | None:
    try:
        status = file.stat()
    except OSError:  # which `read_files` tells
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


class RenewedContext:
    """The context of a listener, made anew when its files have changed; connections that are open keep theirs.

    The files are looked at when a connection comes, in a thread, at most once a second. Where they cannot be used, or do
    not fit together, the log says so once, and the context stays what it was until they can.
    """

    def __init__(self, tls: TlsOptions, protocol: str) -> None:
        """Raises ListenError for a file that cannot be used."""
        self._tls = tls
        self._protocol = protocol
        self._renewal = Renewal(tls)
        self._context = server_context(tls, protocol)
        self._looked_at: float | None = None
        self._look: asyncio.Task[None] | None = None

    async def current(self) -> ssl.SSLContext:
        """The context for a connection that has just come."""
        loop = asyncio.get_running_loop()
        if self._look is None and (self._looked_at is None or loop.time() - self._looked_at >= LOOK_EVERY_S):
            self._look = loop.create_task(self._renew())
        if self._look is not None:
            await asyncio.wait({self._look}, timeout=_LOOK_WAIT_S)
        return self._context

    async def _renew(self) -> None:
        try:
            self._context = await in_daemon_thread(self._read)
        finally:
            self._looked_at = asyncio.get_running_loop().time()
            self._look = None

    def _read(self) -> ssl.SSLContext:
        if not self._renewal.is_due():
            return self._context
        try:
            context = server_context(self._tls, self._protocol)
        except ListenError as error:
            self._renewal.tell_kept(error)
            return self._context
        self._renewal.tell_renewed()
        return context


def _load_certificate(context: ssl.SSLContext, tls: TlsOptions) -> None:
    def refuse_password() -> str:
        raise ListenError(f"TLS: key {tls.key} is encrypted; the server cannot ask for its password")

    try:
        context.load_cert_chain(tls.certificate, tls.key, refuse_password)
    except OSError as error:  # as above
        if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            raise ListenError(f"TLS: key {tls.key} is not that of certificate {tls.certificate}") from error
        raise ListenError(
            f"TLS: certificate {tls.certificate} with key {tls.key} cannot be used: {_reason(error)}"
        ) from error


def _read(path: Path, what: str, mark: bytes) -> bytes:
    try:
        data = read_regular_file(path)
    except OSError as error:
        raise ListenError(f"TLS: {what} {path} cannot be read: {error.strerror}") from error
    if mark not in data:
        raise ListenError(f"TLS: {what} {path} is no PEM file of that kind, expected '{mark.decode()}' in it")
    return data


def _reason(error: OSError) -> str:
    reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return (reason or str(error)).replace("_", " ").lower()
