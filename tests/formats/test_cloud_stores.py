"""``as://`` and ``gs://``: the packages that read them, against servers here that answer as the stores do. See `make docs`."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.remote.repositories import RemoteRepositories
from pytriton_lite.remote.url import parse_remote_url
from tests.answering_server import Answer, answering_server

Objects = dict[str, bytes]
KEY = "c2VjcmV0"
MIB = 1 << 20


@contextmanager
def serving(answer: Callable[[str, dict[str, str], str], Answer]) -> Iterator[str]:
    """The address of a server that says what *answer* makes of a path, a query, and a range."""

    def of_request(target: str, headers: Mapping[str, str]) -> Answer:
        split = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(split.query).items()}
        return answer(unquote(split.path), query, headers.get("x-ms-range") or headers.get("Range") or "")

    with answering_server(of_request) as address:
        yield address


def part(content: bytes, wanted: str) -> Answer:
    """The answer to a GET of *content*, or of the bytes of it that are *wanted*."""
    if not wanted or not content:
        return (416, {}, b"") if wanted else (200, {}, content)
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    found = content[int(first) : int(last) + 1 if last else None]
    return 206, {"Content-Range": f"bytes {first}-{int(first) + len(found) - 1}/{len(content)}"}, found


def listed(objects: Objects, prefix: str, delimiter: str) -> tuple[list[str], list[str]]:
    """The names that begin with *prefix*, and what the others have up to the *delimiter* behind it."""
    names = sorted(name for name in objects if name.startswith(prefix))
    deeper = [name for name in names if delimiter and delimiter in name[len(prefix) :]]
    folders = {prefix + name[len(prefix) :].partition(delimiter)[0] + delimiter for name in deeper}
    return [name for name in names if name not in deeper], sorted(folders)


def open_remote(url: str, folder: Path) -> RemoteRepositories:
    return RemoteRepositories(
        [parse_remote_url(url)], cache_directory=folder, environ=os.environ, clock=itertools.count().__next__
    )


def tree(remote: RemoteRepositories, url: str) -> list[str]:
    root = remote.path_of(parse_remote_url(url))
    return sorted(f"{path.relative_to(root)}{'/' if path.is_dir() else ''}" for path in root.rglob("*"))


# Azure --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def azure(monkeypatch: pytest.MonkeyPatch) -> Iterator[Objects]:
    """What the container ``box`` of the account ``acme`` has."""
    pytest.importorskip("adlfs")
    objects: Objects = {}

    def properties(name: str) -> dict[str, str]:
        return {
            "ETag": f'"{hash(objects[name])}"',
            "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
            "Content-Length": str(len(objects[name])),
            "x-ms-blob-type": "BlockBlob",
        }

    def answer(path: str, query: dict[str, str], wanted: str) -> Answer:
        container, _, name = path.removeprefix("/acme/").partition("/")
        if container != "box":
            return 404, {"x-ms-error-code": "ContainerNotFound"}, b""
        if query.get("comp") == "list":
            names, folders = listed(objects, query.get("prefix", ""), query.get("delimiter", ""))
            blobs = "".join(
                f"<Blob><Name>{each}</Name><Properties><Last-Modified>{properties(each)['Last-Modified']}</Last-Modified>"
                f"<Etag>{hash(objects[each])}</Etag><Content-Length>{len(objects[each])}</Content-Length>"
                "<BlobType>BlockBlob</BlobType></Properties><Metadata /></Blob>"
                for each in names
            )
            prefixes = "".join(f"<BlobPrefix><Name>{each}</Name></BlobPrefix>" for each in folders)
            text = f"<EnumerationResults ContainerName='box'><Blobs>{blobs}{prefixes}</Blobs></EnumerationResults>"
            return 200, {"Content-Type": "application/xml"}, text.encode()
        if query.get("restype") == "container":
            return 200, {"ETag": '"0"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}, b""
        if name not in objects:
            return 404, {"x-ms-error-code": "BlobNotFound"}, b""
        status, headers, body = part(objects[name], wanted)
        return (
            status,
            {**properties(name), **headers, "Content-Length": str(len(body) if wanted else len(objects[name]))},
            body,
        )

    with serving(answer) as address:
        monkeypatch.setenv(
            "AZURE_STORAGE_CONNECTION_STRING", f"AccountName=acme;AccountKey={KEY};BlobEndpoint={address}/acme;"
        )
        yield objects


def test_a_folder_that_is_an_empty_object_is_a_folder_on_azure(azure: Objects, tmp_path: Path) -> None:
    azure.update({"repo/pipeline/config.pbtxt": b"ensemble", "repo/pipeline/1/": b""})
    azure.update({"repo/m/1/model.py": b"code", "repo/m/1/empty.txt": b"", "repo/readme.txt": b"beside"})
    url = "as://acme/box/repo"
    remote = open_remote(url, tmp_path)
    try:
        found = remote.refresh()
        assert (found.repositories, found.models) == ([], {})
        assert tree(remote, url) == [
            "m/",
            "m/1/",
            "m/1/empty.txt",
            "m/1/model.py",
            "pipeline/",
            "pipeline/1/",
            "pipeline/config.pbtxt",
        ]
        azure["repo/m/1/model.py"] = b"other code"
        remote.refresh_model("m")
        assert (remote.path_of(parse_remote_url(url)) / "m/1/model.py").read_text() == "other code"
    finally:
        remote.close()


def test_the_name_of_an_object_beside_the_models_is_no_model_on_azure(azure: Objects, tmp_path: Path) -> None:
    azure.update({"repo/m/1/model.py": b"code", "repo/readme.txt": b"beside"})
    remote = open_remote("as://acme/box/repo", tmp_path)
    try:
        remote.refresh_model("readme.txt")
        assert tree(remote, "as://acme/box/repo") == []
    finally:
        remote.close()


def test_a_container_that_is_not_there_is_no_empty_repository(azure: Objects, tmp_path: Path) -> None:
    remote = open_remote("as://acme/bocks", tmp_path)
    try:
        (text,) = remote.refresh().repositories
        assert "model repository 'as://acme/bocks': " in text
        azure.clear()
        empty = open_remote("as://acme/box", tmp_path)
        assert empty.refresh().repositories == []
        empty.close()
    finally:
        remote.close()


# Google -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[Objects]:
    """What the public bucket ``box`` has; nobody has credentials."""
    pytest.importorskip("gcsfs")
    objects: Objects = {}

    def described(name: str) -> dict[str, str]:
        generation = str(abs(hash(objects[name])))
        return {"name": name, "bucket": "box", "size": str(len(objects[name])), "generation": generation}

    def answer(path: str, query: dict[str, str], wanted: str) -> Answer:
        _, _, place = path.partition("/storage/v1/b/box/o")
        name = place.removeprefix("/")
        if not name:
            names, folders = listed(objects, query.get("prefix", ""), query.get("delimiter", ""))
            body = json.dumps({"items": [described(each) for each in names], "prefixes": folders})
        elif name not in objects:
            return 404, {}, json.dumps({"error": {"code": 404, "message": f"No such object: {name}"}}).encode()
        elif query.get("alt") == "media":
            return part(objects[name], wanted)
        else:
            body = json.dumps(described(name))
        return 200, {"Content-Type": "application/json"}, body.encode()

    with serving(answer) as address:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        yield objects


READ = """
import itertools, logging, os, pathlib, resource, sys
from pytriton_lite.remote.repositories import RemoteRepositories
from pytriton_lite.remote.url import parse_remote_url

logging.basicConfig(level=logging.WARNING)
url = parse_remote_url("gs://box/repo")
remote = RemoteRepositories(
    [url], cache_directory=pathlib.Path(sys.argv[1]), environ=os.environ, clock=itertools.count().__next__
)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = remote.refresh()
print(found.repositories, found.models, remote.refresh().models)
print(sorted(str(path.relative_to(remote.path_of(url))) for path in remote.path_of(url).rglob("*")))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
remote.close()
"""


def read_in_a_process(folder: Path) -> tuple[list[str], str]:
    """The lines that `READ` prints, and its log. The address of a stand-in is read as gcsfs is imported."""
    done = subprocess.run([sys.executable, "-c", READ, str(folder)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_a_public_bucket_of_google_is_read_without_a_warning_for_each_file(google: Objects, tmp_path: Path) -> None:
    google.update({"repo/pipeline/config.pbtxt": b"ensemble", "repo/pipeline/1/": b"", "repo/m/1/model.py": b"code"})
    lines, log = read_in_a_process(tmp_path)
    assert lines[0] == "[] {} {}"
    assert lines[1] == str(["m", "m/1", "m/1/model.py", "pipeline", "pipeline/1", "pipeline/config.pbtxt"])
    assert "bucket type" not in log
    assert log.count("WARNING") <= 3, "what is said once, where credentials are looked for"


def test_large_objects_of_google_are_streams_and_not_parts_in_memory(google: Objects, tmp_path: Path) -> None:
    google.update({f"repo/m/1/{number}.bin": bytes(150 * MIB) for number in range(2)})
    lines, _ = read_in_a_process(tmp_path)
    assert lines[0] == "[] {} {}"
    assert int(lines[2]) < 100, "MiB for 300 MiB"


def test_a_file_of_google_without_credentials_is_told_and_not_passed_over(
    google: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key.json").write_text("{}")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    with pytest.raises(
        InferenceError, match="GOOGLE_APPLICATION_CREDENTIALS: the file has no credentials that can be used"
    ):
        open_remote("gs://box/repo", tmp_path / "cache")
