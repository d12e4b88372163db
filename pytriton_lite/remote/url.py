"""Where a repository is that is not a directory: ``s3://``, ``gs://``, ``as://`` as Triton spells them, and ``https://``.

A URL may hold secrets: a password in front of the host, a signature behind the ``?``. Neither is part of its text.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from pytriton_lite import doors

SCHEMES = ("s3://", "gs://", "as://", "az://", "https://")
"""What is read here. Others are those of `doors.REPOSITORY_SOURCES`, ``hf://`` among them."""

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_S3_ENDPOINT = re.compile(
    r"(?:(?P<protocol>https?)://(?P<host>[0-9A-Za-z.-]+|\[[0-9A-Fa-f:.]+\])(?P<port>:[0-9]+)?"
    r"|(?P<plain>[0-9A-Za-z.-]+:[0-9]+|\[[0-9A-Fa-f:.]+\]:[0-9]+))/(?P<rest>.*)"
)
_ENDPOINT_ALONE = re.compile(r"https?://[^/]+|[^/]+:[0-9]+")
_NO_BUCKET = "the name of a bucket or container is missing"
_AZURE_HOST = ".blob.core.windows.net"
_USER = re.compile(r"//[^/@\s]*@")
_QUERY = re.compile(r"\?\S*")
_LOOPBACK = re.compile(r"localhost|127(?:\.[0-9]{1,3}){3}|::1")


@dataclass(frozen=True)
class RemoteUrl:
    """One remote repository. ``str`` of it is what was typed, without secrets and superfluous slashes.

    ``endpoint`` is the address of a private S3, the account of Azure, and empty elsewhere. ``path`` is bucket or container
    and what is below; of https it is the whole URL.
    """

    scheme: str
    text: str
    path: str
    endpoint: str = ""
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    query: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.text

    @property
    def is_archive(self) -> bool:
        return self.scheme == "https" and self.path.endswith(ARCHIVE_SUFFIXES)

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(secret for secret in (self.password, self.query) if secret)

    @property
    def folder_name(self) -> str:
        """A name for a directory, of this repository alone. Secrets have no part in it: they change, the files stay."""
        readable = re.sub(r"[^0-9A-Za-z.-]+", "-", self.text.partition("://")[2]).strip("-.")[-40:]
        digest = hashlib.sha256(self.text.encode(errors="surrogatepass")).hexdigest()
        return f"{self.scheme}-{readable}-{digest[:12]}"


def is_remote(text: str) -> bool:
    """Whether *text* has the form of a URL, known or not."""
    return _SCHEME.match(text) is not None


def redact(text: str) -> str:
    """*text* without what could be a secret in a URL."""
    return _QUERY.sub("?***", _USER.sub("//***@", text))


def parse_remote_url(text: str) -> RemoteUrl:
    """Raises ValueError, without secrets."""
    found = _SCHEME.match(text)
    scheme = found.group(1) if found is not None else ""
    rest = text[len(scheme) + 3 :]
    try:
        if scheme == "s3":
            return _s3(rest)
        if scheme == "gs":
            return _bucket("gs", "", rest)
        if scheme in ("as", "az"):
            account, _, below = rest.partition("/")
            return _bucket("as", account.removesuffix(_AZURE_HOST), below)
        if scheme in ("http", "https"):
            return _http(text)
        installed = doors.names(doors.REPOSITORY_SOURCES)
        if scheme in installed:
            return RemoteUrl(scheme, f"{scheme}://{_clean(rest)}", _clean(rest))
        known = dict.fromkeys((*SCHEMES, *(f"{name}://" for name in installed)))
        raise ValueError(f"expected a directory, or a URL that begins with {', '.join(known)}")
    except ValueError as error:
        raise ValueError(f"{error}. Got {redact(text)}") from None


def _s3(rest: str) -> RemoteUrl:
    """Triton's three forms: the bucket alone, ``host:port`` in front of it, or ``http(s)://host:port``."""
    found = _S3_ENDPOINT.fullmatch(rest)
    if found is None and _ENDPOINT_ALONE.fullmatch(rest) is not None:
        raise ValueError(_NO_BUCKET)
    if found is None:
        return _bucket("s3", "", rest)
    # Where no protocol is given Triton speaks plain HTTP to an S3 of one's own.
    plain = found["plain"]
    endpoint = f"http://{plain}" if plain else f"{found['protocol']}://{found['host']}{found['port'] or ''}"
    path = _clean(found["rest"])
    return RemoteUrl("s3", f"s3://{plain or endpoint}/{path}", path, endpoint)


def _bucket(scheme: str, account: str, rest: str) -> RemoteUrl:
    path = _clean(rest)
    if scheme != "as":
        return RemoteUrl(scheme, f"{scheme}://{path}", path)
    if re.fullmatch(r"[0-9A-Za-z-]+", account) is None:
        raise ValueError("the name of a storage account is missing, as in as://account/container/path")
    return RemoteUrl(scheme, f"as://{account}/{path}", path, account)


def _clean(rest: str) -> str:
    if "?" in rest or "#" in rest or "@" in rest.partition("/")[0]:
        raise ValueError("expected neither user nor query: credentials come from the environment")
    parts = [part for part in rest.split("/") if part]
    if not parts:
        raise ValueError(_NO_BUCKET)
    if ".." in parts or "." in parts:
        raise ValueError("expected a path without '.' and '..'")
    return "/".join(parts)


def _http(text: str) -> RemoteUrl:
    split = urlsplit(text)  # raises ValueError for what is no host
    host = split.hostname or ""
    if not host or split.fragment:
        raise ValueError("expected https://host/path")
    if split.scheme == "http" and _LOOPBACK.fullmatch(host) is None:
        raise ValueError("models are code, and http:// lets anybody on the way change it; expected https://")
    place = split.netloc.rpartition("@")[2]
    path = f"{split.scheme}://{place}{split.path.rstrip('/')}"
    url = RemoteUrl(
        "https",
        path,
        path,
        user=unquote(split.username or ""),
        password=unquote(split.password or ""),
        query=split.query,
    )
    if url.query and not url.is_archive:
        raise ValueError(f"expected no query, unless behind the name of an archive ({', '.join(ARCHIVE_SUFFIXES)})")
    return url
