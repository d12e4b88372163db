"""From which variables and files credentials come, and what a filesystem is then made with: as Triton documents them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytriton_lite.plugins.fsspec import filesystem as remote_source
from pytriton_lite.plugins.fsspec.access import Access, find_access
from pytriton_lite.plugins.fsspec.filesystem import open_filesystem
from pytriton_lite.remote.source import SourceError
from pytriton_lite.remote.url import parse_remote_url

CredentialFile = Callable[[object], dict[str, str]]


@pytest.fixture
def credential_file(tmp_path: Path) -> CredentialFile:
    """Writes the document, and returns the environment that names it."""

    def write(document: object) -> dict[str, str]:
        path = tmp_path / "credentials.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return {"TRITON_CLOUD_CREDENTIAL_PATH": str(path), "AZURE_STORAGE_KEY": "not this one"}

    return write


def access(text: str, environ: dict[str, str]) -> Access:
    return find_access(parse_remote_url(text), environ)


def options(text: str, environ: dict[str, str]) -> dict[str, Any]:
    return dict(access(text, environ).options)


def test_s3_without_a_file_is_left_to_the_ways_of_aws() -> None:
    found = access("s3://bucket/a", {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"})
    assert set(found.options) == {"config_kwargs", "default_block_size"}
    assert found.protocol == "s3" and found.may_be_public


def test_an_s3_of_ones_own_is_asked_at_its_address_by_path() -> None:
    found = options("s3://https://minio.example:9000/bucket", {})
    assert found["endpoint_url"] == "https://minio.example:9000"
    assert found["config_kwargs"]["s3"] == {"addressing_style": "path"}


def test_a_silent_s3_is_not_asked_again_and_again_unless_somebody_says_so() -> None:
    assert options("s3://bucket/a", {})["config_kwargs"]["retries"] == {"total_max_attempts": 2}
    assert "retries" not in options("s3://bucket/a", {"AWS_MAX_ATTEMPTS": "7"})["config_kwargs"]


S3_FILE = {
    "s3": {
        "": {"secret_key": "s0", "key_id": "k0", "region": "r0", "session_token": "", "profile": ""},
        "s3://bucket-2": {"secret_key": "s2", "key_id": "k2", "region": "", "session_token": "t2", "profile": "p2"},
        "s3://bucket-2/a": {"profile": "pa", "region": "ra"},
    }
}


def test_the_longest_name_of_the_file_that_begins_the_url_is_used(credential_file: CredentialFile) -> None:
    environ = credential_file(S3_FILE)
    one = access("s3://other/a", environ)
    assert {key: one.options[key] for key in ("key", "secret", "token")} == {"key": "k0", "secret": "s0", "token": None}
    assert one.options["client_kwargs"] == {"region_name": "r0"}
    assert one.secrets == ("s0",)
    two = access("s3://bucket-2/b", environ)
    assert {key: two.options[key] for key in ("key", "secret", "token")} == {"key": "k2", "secret": "s2", "token": "t2"}
    assert "client_kwargs" not in two.options and "profile" not in two.options, "keys rank before a profile"
    assert two.secrets == ("s2", "t2")
    three = access("s3://bucket-2/a/b", environ)
    assert three.options["profile"] == "pa" and "key" not in three.options


def test_secrets_are_not_shown(credential_file: CredentialFile) -> None:
    assert "s2" not in repr(access("s3://bucket-2/b", credential_file(S3_FILE)))


def test_google_is_left_to_its_own_ways_or_gets_the_file_of_the_file(
    credential_file: CredentialFile, tmp_path: Path
) -> None:
    key = tmp_path / "key.json"
    key.touch()
    assert access("gs://bucket/a", {}) == Access("gs", {}, may_be_public=True)
    assert access("gs://bucket/a", {"GOOGLE_APPLICATION_CREDENTIALS": str(key)}) == Access("gs", {})
    with pytest.raises(ValueError, match=r"^GOOGLE_APPLICATION_CREDENTIALS: /no/such.json does not exist$"):
        access("gs://bucket/a", {"GOOGLE_APPLICATION_CREDENTIALS": "/no/such.json"})
    environ = credential_file({"gs": {"": str(key), "gs://open": ""}})
    assert options("gs://bucket/a", environ) == {"token": str(key)}
    assert options("gs://open/a", environ) == {}


AZURE = {"account_name": "account", "connection_timeout": 10, "read_timeout": 30}


def test_azure_has_a_key_or_asks_for_a_token_or_is_public() -> None:
    url = "as://account/container/a"
    key = access(url, {"AZURE_STORAGE_KEY": "secret"})
    assert (key.protocol, dict(key.options)) == ("az", {**AZURE, "account_key": "secret"})
    assert key.secrets == ("secret",)
    other = {"AZURE_STORAGE_KEY": "secret", "AZURE_STORAGE_ACCOUNT": "other"}
    assert options(url, other)["account_name"] == "other"
    assert options(url, {}) == {**AZURE, "anon": True}
    managed = {"AZURE_STORAGE_AUTH_TYPE": "managed_identity", "AZURE_STORAGE_CLIENT_ID": "me", "AZURE_STORAGE_KEY": "k"}
    assert access(url, managed) == Access("az", AZURE, azure_identity="managed_identity", azure_client_id="me")
    assert access(url, {"AZURE_STORAGE_AUTH_TYPE": "default"}) == Access("az", AZURE, azure_identity="default")


def test_azure_of_the_file_is_found_under_its_name_whatever_the_alias(credential_file: CredentialFile) -> None:
    environ = credential_file({"as": {"as://account/container": {"account_str": "", "account_key": "secret"}}})
    assert options("az://account/container/a", environ) == {**AZURE, "account_key": "secret"}


@pytest.mark.parametrize(
    ("url", "document", "message"),
    [
        ("s3://b", "{SECRET", "is no JSON"),
        ("s3://b", ["SECRET"], "expected an object of objects"),
        ("s3://b", {"s3": "SECRET"}, "expected an object of objects"),
        ("s3://b", {"s3": {"s3://c": {}}}, "Cannot match credential for path s3://b"),
        ("gs://b", {"s3": {"": {}}}, "Cannot match credential for path gs://b"),
        ("s3://b", {"s3": {"": "SECRET"}}, "expected an object of strings for s3://b"),
        ("s3://b", {"s3": {"": {"secret_key": ["SECRET"]}}}, "expected an object of strings for s3://b"),
        (
            "s3://b",
            {"s3": {"": {"key_id": "SECRET", "secret": "SECRET"}}},
            "session_token, profile for s3://b. Got secret",
        ),
        ("s3://b", {"s3": {"": {"key_id": "SECRET"}}}, "key_id and secret_key for s3://b, secret_key is missing"),
        ("s3://b", {"s3": {"": {"secret_key": "SECRET"}}}, "key_id and secret_key for s3://b, key_id is missing"),
        ("as://a/b", {"as": {"": {"key": "SECRET"}}}, "auth_type, client_id for as://a/b. Got key"),
        ("gs://b", {"gs": {"": {"a": "SECRET"}}}, "expected the path of a file for gs://b"),
        ("gs://b", {"gs": {"": "SECRET"}}, "the file of credentials for gs://b does not exist"),
        ("as://a/b", {"as": {"": {"auth_type": "token"}}}, "expected key, managed_identity or default for as://a/b"),
    ],
)
def test_a_file_that_is_no_use_is_told_without_what_is_in_it(
    credential_file: CredentialFile, url: str, document: object, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        access(url, credential_file(document))
    assert "SECRET" not in str(raised.value)


def test_a_file_that_is_not_there_is_told() -> None:
    with pytest.raises(
        ValueError, match=r"^TRITON_CLOUD_CREDENTIAL_PATH: cannot read /no/such: No such file or directory$"
    ):
        access("s3://b", {"TRITON_CLOUD_CREDENTIAL_PATH": "/no/such"})


@pytest.mark.parametrize(
    ("text", "module", "extra"),
    [
        ("s3://b", "s3fs", "s3"),
        ("gs://b", "gcsfs", "gs"),
        ("as://a/b", "adlfs", "azure"),
        ("https://h/m", "aiohttp", "https"),
    ],
)
def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, text: str, module: str, extra: str) -> None:
    def no_module(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(remote_source.importlib, "import_module", no_module)
    url = parse_remote_url(text)
    with pytest.raises(SourceError, match=rf"^needs the extra '{extra}', .* pip install 'pytriton-lite\[{extra}\]'$"):
        open_filesystem(url, find_access(url, {}))


def test_a_bucket_is_asked_unsigned_where_nobody_has_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    url = parse_remote_url("s3://bucket")
    assert open_filesystem(url, find_access(url, {})).anon is True
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert open_filesystem(url, find_access(url, {})).anon is False


def test_nothing_of_one_reading_is_left_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec would give the same object again, with the session and the credentials that it began with, and old listings."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    url = parse_remote_url("s3://bucket")
    first, second = (open_filesystem(url, find_access(url, {})) for _ in range(2))
    assert first is not second
    assert not first.dircache.use_listings_cache
