"""Which URLs are repositories, as Triton spells them, and that secrets are no part of a text."""

from __future__ import annotations

import pytest

from pytriton_lite.remote.url import RemoteUrl, parse_remote_url


@pytest.mark.parametrize(
    ("text", "shown", "endpoint", "path"),
    [
        ("s3://bucket", "s3://bucket", "", "bucket"),
        ("s3://bucket//a///b/", "s3://bucket/a/b", "", "bucket/a/b"),
        ("s3://host:9000/bucket/a", "s3://host:9000/bucket/a", "http://host:9000", "bucket/a"),
        ("s3://http://host:9000/bucket", "s3://http://host:9000/bucket", "http://host:9000", "bucket"),
        (
            "s3://https://h.example:443/bucket/a",
            "s3://https://h.example:443/bucket/a",
            "https://h.example:443",
            "bucket/a",
        ),
        ("s3://https://h.example/bucket", "s3://https://h.example/bucket", "https://h.example", "bucket"),
        ("s3://[::1]:9000/bucket", "s3://[::1]:9000/bucket", "http://[::1]:9000", "bucket"),
        ("gs://bucket/models", "gs://bucket/models", "", "bucket/models"),
        ("as://account/container/a", "as://account/container/a", "account", "container/a"),
        ("az://account/container", "as://account/container", "account", "container"),
        ("as://account.blob.core.windows.net/container", "as://account/container", "account", "container"),
        ("https://h.example/models/", "https://h.example/models", "", "https://h.example/models"),
        ("http://127.0.0.1:8080/models", "http://127.0.0.1:8080/models", "", "http://127.0.0.1:8080/models"),
        ("http://[::1]:8080/models", "http://[::1]:8080/models", "", "http://[::1]:8080/models"),
    ],
)
def test_a_url_says_where_and_what(text: str, shown: str, endpoint: str, path: str) -> None:
    url = parse_remote_url(text)
    assert (str(url), url.endpoint, url.path) == (shown, endpoint, path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s3://", "the name of a bucket or container is missing. Got s3://"),
        ("s3://host:9000/", "the name of a bucket or container is missing"),
        ("s3://host:9000", "the name of a bucket or container is missing"),
        ("s3://https://host", "the name of a bucket or container is missing"),
        ("s3://https://host:9000", "the name of a bucket or container is missing"),
        ("gs:///", "the name of a bucket or container is missing"),
        ("s3://bucket/../other", "expected a path without '.' and '..'"),
        ("as:///container", "the name of a storage account is missing"),
        ("as://account", "the name of a bucket or container is missing"),
        ("as://account/container?sv=SECRET", "credentials come from the environment. Got as://account/container?***"),
        ("s3://KEY:SECRET@bucket/a", "credentials come from the environment. Got s3://***@bucket/a"),
        (
            "hdfs://host/a",
            "expected a directory, or a URL that begins with s3://, gs://, as://, az://, https://, hf://",
        ),
        (
            "http://h.example/models",
            "models are code, and http:// lets anybody on the way change it; expected https://",
        ),
        ("http://127.evil.example/models", "models are code"),
        ("http://localhost.evil.example/models", "models are code"),
        ("https:///models", "expected https://host/path"),
        ("https://u:SECRET@h.example/models#a", "expected https://host/path. Got https://***@h.example/models#a"),
        ("https://h.example/models?sig=SECRET", "expected no query, unless behind the name of an archive"),
        ("https://[::1/models", "Invalid IPv6 URL"),
    ],
)
def test_what_is_no_repository_is_refused_without_its_secrets(text: str, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_remote_url(text)
    assert message in str(raised.value)
    assert "SECRET" not in str(raised.value)


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tar.gz", ".tgz"])
def test_an_archive_is_told_by_its_name_and_may_have_a_signature(suffix: str) -> None:
    url = parse_remote_url(f"https://user:p%40ss@h.example/models{suffix}?sig=SECRET")
    assert url.is_archive
    assert (url.user, url.password, url.query) == ("user", "p@ss", "sig=SECRET")
    assert str(url) == f"https://h.example/models{suffix}"
    assert "SECRET" not in repr(url) and "p@ss" not in repr(url)
    assert not parse_remote_url(f"s3://bucket/models{suffix}").is_archive


def folder(text: str) -> str:
    return parse_remote_url(text).folder_name


def test_the_directory_of_a_repository_is_its_own_and_has_no_secrets() -> None:
    assert folder("s3://bucket/a") == folder("s3://bucket//a/")
    others = ["s3://bucket/a-b", "s3://bucket/a/b", "gs://bucket/a-b", "s3://h:1/bucket/a-b", "https://bucket/a-b"]
    assert len({folder(text) for text in others}) == len(others)
    assert folder("https://u:one@h.example/m.zip?sig=two") == folder("https://u:three@h.example/m.zip?sig=four")
    name = folder("https://u:one@h.example/" + "x/" * 500 + "m.zip?sig=two")
    assert len(name) < 80 and "/" not in name


def test_urls_are_equal_when_they_name_the_same() -> None:
    assert {parse_remote_url("s3://b/a"), parse_remote_url("s3://b/a/")} == {RemoteUrl("s3", "s3://b/a", "b/a")}
