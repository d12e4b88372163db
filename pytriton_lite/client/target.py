"""Where a server is and how it is reached: what `-u`, `-i` and the options of TLS say."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from urllib.parse import SplitResult, quote, urlsplit

from pytriton_lite.client.errors import ClientError, Unreachable

CONNECT_TIMEOUT_S = 10.0


class Protocol(str, Enum):
    """What is spoken: a value of ``-i``."""

    HTTP = "http"
    GRPC = "grpc"


_OWN_HEADERS = frozenset(
    {
        "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect",
        "inference-header-content-length", "te", "transfer-encoding", "upgrade",
    }
)  # fmt: skip
"""Headers that the client writes itself, as they follow from what it sends and reads."""

DEFAULT_PORTS = {Protocol.HTTP: 8000, Protocol.GRPC: 8001}


@dataclass(frozen=True)
class Target:
    """A server, as `parse_target` makes it. It can be sent to another process."""

    protocol: Protocol
    host: str
    """A name, an address without brackets, or the path of a Unix socket."""
    port: int
    """0 for a Unix socket."""
    prefix: str = ""
    """What stands before ``/v2`` in a path, for a server behind a proxy; without a slash at its end."""
    uses_tls: bool = False
    ca_file: str | None = None
    verifies: bool = True
    certificate_file: str | None = None
    """What the client shows a server that asks who it is, with the key behind it unless there is a file for that."""
    key_file: str | None = None
    headers: tuple[tuple[str, str], ...] = field(default=())
    """Sent with every request. Names are in small letters."""
    virtual_host: str = ""
    """The host that requests name where it is not the one that is connected to, as an ingress wants it."""

    @property
    def authority(self) -> str:
        """Host and port as a request names them."""
        return self.virtual_host or self._address

    @property
    def _address(self) -> str:
        if not self.port:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The server as messages to people name it."""
        if not self.port:
            return f"unix:{self.host}"
        scheme = self.protocol.value + ("s" if self.uses_tls else "")
        return f"{scheme}://{self._address}{self.prefix}"


def parse_target(
    url: str | None,
    protocol: Protocol,
    *,
    ca_file: str | None = None,
    verifies: bool = True,
    certificate_file: str | None = None,
    key_file: str | None = None,
    headers: tuple[tuple[str, str], ...] = (),
) -> Target:
    """The target that *url* names.

    It is ``HOST[:PORT]``, ``http[s]://HOST[:PORT][/PREFIX]``, ``grpc[s]://HOST[:PORT]`` or ``unix:PATH``; None is this
    machine at the protocol's usual port. A header ``host`` is the target's `virtual_host`. Raises ClientError.
    """
    for name, value in headers if protocol is Protocol.HTTP else ():
        try:
            (name + value).encode("latin-1")
        except UnicodeEncodeError as error:
            letters = error.object[error.start : error.end]
            raise ClientError(f"-H {name}: a header of HTTP is Latin-1, which has no '{letters}'") from None
    virtual_host = dict(headers).get("host", "")
    headers = tuple((name, value) for name, value in headers if name != "host")
    if own := [name for name, _ in headers if name in _OWN_HEADERS]:
        raise ClientError(f"-H {own[0]}: this header follows from what is sent, and cannot be given")
    if key_file is not None and certificate_file is None:
        raise ClientError("--key is the key of a certificate: say --cert, too")
    files = {"--cacert": ca_file, "--cert": certificate_file, "--key": key_file}
    of_tls = [flag for flag, file in files.items() if file is not None] + ["--insecure"] * (not verifies)
    text = f"localhost:{DEFAULT_PORTS[protocol]}" if url is None else url
    if text.startswith("unix:"):
        if of_tls:
            raise ClientError(f"-u {text}: {of_tls[0]} is for TLS, which Unix sockets are asked without")
        path = text.removeprefix("unix:")
        path = "/" + path.lstrip("/") if path.startswith("//") else path
        return Target(protocol, path, 0, headers=headers, virtual_host=virtual_host)
    parts = _split(text, protocol)
    schemes = {protocol.value, protocol.value + "s"} | ({"http", "https"} if protocol is Protocol.GRPC else set())
    if parts.scheme not in schemes:
        raise ClientError(
            f"-u {text}: expected HOST:PORT or {protocol.value}://HOST:PORT with -i {protocol.value}, got '{parts.scheme}://'"
        )
    try:
        port = parts.port
    except ValueError:
        raise ClientError(f"-u {text}: the port is no number from 0 to 65535") from None
    if parts.username is not None:
        raise ClientError("-u: a name and a password are not taken from a URL; say -H 'Authorization: Basic …'")
    if parts.query or parts.fragment:
        raise ClientError(f"-u {text}: what stands behind the path has no meaning, expected HOST:PORT[/PREFIX]")
    if not parts.hostname:
        raise ClientError(f"-u {text}: expected HOST:PORT, as in localhost:{DEFAULT_PORTS[protocol]}")
    uses_tls = parts.scheme.endswith("s")
    if of_tls and not uses_tls:
        raise ClientError(f"-u {text}: {of_tls[0]} is for TLS, as in {protocol.value}s://{parts.netloc}")
    for flag, file in files.items():
        if file is not None and not Path(file).is_file():
            raise ClientError(f"{flag} {file}: no such file")
    prefix = parts.path.rstrip("/")
    if prefix and protocol is Protocol.GRPC:
        raise ClientError(f"-u {text}: gRPC has no paths, expected {protocol.value}://HOST:PORT")
    return Target(
        protocol,
        parts.hostname,
        port or (443 if uses_tls else DEFAULT_PORTS[protocol]),
        quote(prefix.removesuffix("/v2"), safe="/%!$&'()*+,;=:@", errors="surrogateescape"),
        uses_tls,
        ca_file,
        verifies,
        certificate_file,
        key_file,
        headers,
        virtual_host,
    )


def _split(text: str, protocol: Protocol) -> SplitResult:
    try:
        return urlsplit(text if "://" in text else f"{protocol.value}://{text}")
    except ValueError as error:
        raise ClientError(f"-u {text}: {error}") from None


def tls_context(target: Target) -> ssl.SSLContext | None:
    """What every connection to *target* shares; None without TLS. Raises ClientError."""
    if not target.uses_tls:
        return None
    try:
        context = ssl.create_default_context(cafile=target.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ClientError(f"--cacert {target.ca_file}: no certificates in it ({error})") from None
    if target.certificate_file is not None:
        try:
            # An encrypted key has a password, for which OpenSSL would ask at the terminal, for each of many processes.
            context.load_cert_chain(target.certificate_file, target.key_file, password="")
        except (OSError, ssl.SSLError) as error:
            key = f" with --key {target.key_file}" if target.key_file is not None else ""
            raise ClientError(f"--cert {target.certificate_file}{key}: no certificate and its key ({error})") from None
    if not target.verifies:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2" if target.protocol is Protocol.GRPC else "http/1.1"])
    return context


def connect(target: Target, context: ssl.SSLContext | None, timeout_s: float = CONNECT_TIMEOUT_S) -> socket.socket:
    """A connected socket, which blocks for at most *timeout_s*; the caller closes it. Raises Unreachable."""
    try:
        if not target.port:
            plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            plain.settimeout(timeout_s)
            try:
                plain.connect(target.host)
            except BaseException:
                plain.close()
                raise
            return plain
        plain = socket.create_connection((target.host, target.port), timeout=timeout_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is None:
            return plain
        try:
            return context.wrap_socket(plain, server_hostname=target.host)
        except BaseException:
            plain.close()
            raise
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = f"{error.verify_message.rstrip('.')}; --cacert says whom to trust, --insecure trusts anybody"
        elif error.reason == "WRONG_VERSION_NUMBER":
            reason += "; does it speak plain http:// or grpc://?"
        raise Unreachable(f"no TLS with {target.url}: {reason}") from None
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise Unreachable(f"no connection to {target.url}: {reason}") from None
    except UnicodeError:  # two dots in a row, for instance
        raise Unreachable(f"no connection to {target.url}: '{target.host}' is no name of a host") from None
