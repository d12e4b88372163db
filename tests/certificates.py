"""Certificates that are made for a test, in PEM files."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme

from pytriton_lite.frontends.tls import TlsOptions


class Certificates:
    """An authority, a server on the loopback and a client that it has signed, and a stranger that it has not."""

    def __init__(self, folder: Path) -> None:
        authority, stranger = trustme.CA(), trustme.CA()
        self.root = folder / "root.pem"
        authority.cert_pem.write_to_path(self.root)
        self.server, self.server_key = self._issue(folder, "server", authority)
        self.client, self.client_key = self._issue(folder, "client", authority)
        self.stranger, self.stranger_key = self._issue(folder, "stranger", stranger)

    @staticmethod
    def _issue(folder: Path, name: str, authority: trustme.CA) -> tuple[Path, Path]:
        issued = authority.issue_cert("localhost", "127.0.0.1", "::1")
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        issued.cert_chain_pems[0].write_to_path(certificate)
        issued.private_key_pem.write_to_path(key)
        return certificate, key

    def options(self, *, mutual: bool = False) -> TlsOptions:
        return TlsOptions(self.server, self.server_key, self.root if mutual else None)

    def flags(self, front_end: str) -> tuple[str, ...]:
        """The files for ``http`` or ``grpc``; nothing that turns TLS on."""
        return (
            f"--{front_end}-server-cert={self.server}",
            f"--{front_end}-server-key={self.server_key}",
            f"--{front_end}-root-cert={self.root}",
        )

    def client_context(self, *, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
        """What a client needs that trusts the authority, and says who it is where *certificate* is given."""
        context = ssl.create_default_context(cafile=self.root)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
        return context
