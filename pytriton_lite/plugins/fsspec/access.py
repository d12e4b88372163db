"""The credentials with which a remote repository is read: those that Triton reads, from the same places.

Nothing here is logged or shown, and errors name files and variables, never what is in them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytriton_lite.remote.url import RemoteUrl

CREDENTIAL_FILE = "TRITON_CLOUD_CREDENTIAL_PATH"
GOOGLE_FILE = "GOOGLE_APPLICATION_CREDENTIALS"

_CONNECT_S = 10
_READ_S = 30
"""How long a connection may say nothing."""

_ATTEMPTS = 2
"""Attempts of botocore, for each of the five of s3fs. With its own five, a silent host is given up after 13 minutes."""

_AZURE_AUTH = ("", "key", "managed_identity", "default")

_S3_FIELDS = ("key_id", "secret_key", "region", "session_token", "profile")
_AZURE_FIELDS = ("account_str", "account_key", "auth_type", "client_id")


@dataclass(frozen=True)
class Access:
    """What a filesystem of fsspec is made with.

    ``options`` go to its constructor. ``azure_identity`` is how Azure is to be asked for a token, where no key is given.
    ``may_be_public``: where nobody has any credentials, S3 and Google are asked without.
    """

    protocol: str
    options: Mapping[str, Any] = field(repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    azure_identity: str = ""
    azure_client_id: str = ""
    may_be_public: bool = False


def find_access(url: RemoteUrl, environ: Mapping[str, str]) -> Access:
    """Raises ValueError when the file of credentials cannot be used."""
    if url.scheme == "https":
        return Access("https", {})
    entry = _from_file(url, environ[CREDENTIAL_FILE]) if environ.get(CREDENTIAL_FILE) else None
    if url.scheme == "s3":
        return _s3(url, {} if entry is None else _texts(entry, url, _S3_FIELDS), environ)
    if url.scheme == "gs":
        return _gs(entry, url, environ.get(GOOGLE_FILE, ""))
    return _azure(url, _azure_environment(environ) if entry is None else _texts(entry, url, _AZURE_FIELDS))


def _from_file(url: RemoteUrl, path: str) -> object:
    """The entry of the longest name that the URL begins with."""
    try:
        document = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise ValueError(f"{CREDENTIAL_FILE}: cannot read {path}: {error.strerror}") from None
    except ValueError:  # its text quotes what it could not read
        raise ValueError(f"{CREDENTIAL_FILE}: {path} is no JSON") from None
    entries = document.get(url.scheme, {}) if isinstance(document, dict) else None
    if not isinstance(entries, dict):
        raise ValueError(f"{CREDENTIAL_FILE}: expected an object of objects in {path}")
    names = [name for name in entries if str(url).startswith(name)]
    if not names:
        raise ValueError(f"{CREDENTIAL_FILE}: Cannot match credential for path {url} in {path}")
    return entries[max(names, key=len)]


def _texts(entry: object, url: RemoteUrl, fields: Collection[str]) -> dict[str, str]:
    """A name that nobody reads would leave the machine's own credentials in use, or none."""
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise ValueError(f"{CREDENTIAL_FILE}: expected an object of strings for {url}")
    unknown = sorted(entry.keys() - fields)
    if unknown:
        raise ValueError(f"{CREDENTIAL_FILE}: expected {', '.join(fields)} for {url}. Got {unknown[0]}")
    return entry


def _s3(url: RemoteUrl, entry: Mapping[str, str], environ: Mapping[str, str]) -> Access:
    """What *entry* does not say, botocore looks up: variables first, then the files of the AWS command line."""
    options: dict[str, Any] = {
        "config_kwargs": {
            "connect_timeout": _CONNECT_S,
            "read_timeout": _READ_S,
            # Hosts of one's own have no name for each bucket.
            "s3": {"addressing_style": "path" if url.endpoint else "auto"},
        },
        # Larger files would be read in parts of this size, ten at a time and each as a whole into memory: 500 MB for every
        # file, of which there are several; and a part that breaks off is not tried again, as one stream is.
        "default_block_size": 1 << 60,
    }
    if not environ.get("AWS_MAX_ATTEMPTS"):
        options["config_kwargs"]["retries"] = {"total_max_attempts": _ATTEMPTS}
    if url.endpoint:
        options["endpoint_url"] = url.endpoint
    if entry.get("region"):
        options["client_kwargs"] = {"region_name": entry["region"]}
    key, secret = entry.get("key_id", ""), entry.get("secret_key", "")
    if key and secret:
        token = entry.get("session_token", "")
        options.update(key=key, secret=secret, token=token or None)
        return Access("s3", options, secrets=tuple(filter(None, (secret, token))))
    if key or secret:
        missing = "secret_key" if key else "key_id"
        raise ValueError(f"{CREDENTIAL_FILE}: expected key_id and secret_key for {url}, {missing} is missing")
    if entry.get("profile"):
        options["profile"] = entry["profile"]
    return Access("s3", options, may_be_public=True)


def _gs(entry: object, url: RemoteUrl, default: str) -> Access:
    """Access to Google. Without an entry gcsfs tries the file *default*, the machine's own account, nobody."""
    if entry is None:
        if default and not Path(default).is_file():
            raise ValueError(f"{GOOGLE_FILE}: {default} does not exist")
        return Access("gs", {}, may_be_public=not default)
    if not isinstance(entry, str):
        raise ValueError(f"{CREDENTIAL_FILE}: expected the path of a file for {url}")
    if entry and not Path(entry).is_file():
        # gcsfs would take the text for a token, and quote it.
        raise ValueError(f"{CREDENTIAL_FILE}: the file of credentials for {url} does not exist")
    return Access("gs", {"token": entry} if entry else {}, may_be_public=True)


def _azure_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        "account_str": environ.get("AZURE_STORAGE_ACCOUNT", ""),
        "account_key": environ.get("AZURE_STORAGE_KEY", ""),
        "auth_type": environ.get("AZURE_STORAGE_AUTH_TYPE", ""),
        "client_id": environ.get("AZURE_STORAGE_CLIENT_ID", ""),
    }


def _azure(url: RemoteUrl, entry: Mapping[str, str]) -> Access:
    """Access to Azure. As in Triton the account that the credentials name ranks before the URL's."""
    account, key = entry.get("account_str") or url.endpoint, entry.get("account_key", "")
    auth = entry.get("auth_type", "")
    if auth not in _AZURE_AUTH:
        raise ValueError(f"AZURE_STORAGE_AUTH_TYPE: expected key, managed_identity or default for {url}. Got {auth}")
    options: dict[str, Any] = {"account_name": account, "connection_timeout": _CONNECT_S, "read_timeout": _READ_S}
    if auth in ("managed_identity", "default"):
        return Access("az", options, azure_identity=auth, azure_client_id=entry.get("client_id", ""))
    if key:
        return Access("az", {**options, "account_key": key}, secrets=(key,))
    return Access("az", {**options, "anon": True})
