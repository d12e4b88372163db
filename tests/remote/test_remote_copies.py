"""Copies of remote repositories: an S3 by moto, a web server, archives; against directories as they should then look."""

from __future__ import annotations

import io
import itertools
import os
import resource
import socket
import ssl
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
import s3fs

from pytriton_lite.config.errors import PollError
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.plugins.fsspec import filesystem as remote_source
from pytriton_lite.remote import copies as remote_copy
from pytriton_lite.remote.repositories import RemoteRepositories
from pytriton_lite.remote.source import RemoteFile
from pytriton_lite.remote.url import parse_remote_url
from pytriton_lite.repository.changes import ChangeTimes, change_times
from pytriton_lite.repository.index import ModelDirectory, read_model_directory
from pytriton_lite.repository.reader import ModelReader, RepositoryOptions
from pytriton_lite.repository.refreshed import Refreshed
from tests.answering_server import answering_server
from tests.certificates import Certificates
from tests.remote_servers import ACCESS, S3, WebServer, running_s3, running_web_server

Open = Callable[..., RemoteRepositories]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with running_s3() as server:
        yield server


@pytest.fixture
def prefix(request: pytest.FixtureRequest, s3: S3) -> str:
    """A place in the bucket that no other test has."""
    s3.requests.clear()
    return str(request.node.name).replace("[", "-").replace("]", "")


@pytest.fixture
def open_remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Makes the repositories of a server, closed at the end."""
    for name, value in ACCESS.items():
        monkeypatch.setenv(name, value)
    opened: list[RemoteRepositories] = []

    def make(*urls: str, cache: Path = tmp_path / "cache") -> RemoteRepositories:
        remote = RemoteRepositories(
            [parse_remote_url(url) for url in urls],
            cache_directory=cache,
            environ=os.environ,
            clock=itertools.count().__next__,
        )
        opened.append(remote)
        return remote

    yield make
    for remote in opened:
        remote.close()


def root(remote: RemoteRepositories, url: str) -> Path:
    return remote.path_of(parse_remote_url(url))


def tree(folder: Path) -> dict[str, str | None]:
    """Contents by path; None for a directory."""
    return {
        str(path.relative_to(folder)): None if path.is_dir() else path.read_text() for path in sorted(folder.rglob("*"))
    }


def times(path: Path, name: str) -> ChangeTimes:
    return change_times(read_model_directory(path / name), config_name="")


def fetched(s3: S3, prefix: str) -> list[str]:
    """The objects whose contents were read since."""
    start = f"/models/{prefix}/"
    found = [path.partition("?")[0].removeprefix(start) for method, path in s3.requests if method == "GET"]
    s3.requests.clear()
    return sorted(path for path in found if not path.startswith("/models"))


def put_two_models(s3: S3, prefix: str) -> str:
    s3.put(f"{prefix}/a/config.pbtxt", "config a")
    s3.put(f"{prefix}/a/1/model.py", "code a")
    s3.put(f"{prefix}/b/1/model.py", "code b")
    s3.put(f"{prefix}/b/1/weights/w.bin", "weights b")
    s3.put(f"{prefix}/readme.txt", "beside the models")
    s3.put(f"{prefix}/.git/config", "hidden")
    return s3.url(prefix)


# S3 -----------------------------------------------------------------------------------------------------------------


def test_a_bucket_is_copied_once_and_then_followed(s3: S3, prefix: str, open_remote: Open) -> None:
    url = put_two_models(s3, prefix)
    s3.put(f"{prefix}/ensemble/1/", "")  # how a directory without files is made in a bucket
    remote = open_remote(url)
    path = root(remote, url)
    assert remote.refresh().models == {}
    assert tree(path) == {
        "a": None, "a/config.pbtxt": "config a", "a/1": None, "a/1/model.py": "code a",
        "b": None, "b/1": None, "b/1/model.py": "code b", "b/1/weights": None, "b/1/weights/w.bin": "weights b",
        "ensemble": None, "ensemble/1": None,
    }  # fmt: skip
    assert fetched(s3, prefix) == ["a/1/model.py", "a/config.pbtxt", "b/1/model.py", "b/1/weights/w.bin"]
    before = times(path, "a"), times(path, "b")
    remote.refresh()
    assert (times(path, "a"), times(path, "b")) == before
    assert fetched(s3, prefix) == []

    s3.put(f"{prefix}/a/1/model.py", "changed a")
    s3.put(f"{prefix}/a/2/model.py", "version 2")
    s3.delete(f"{prefix}/b/1/weights/w.bin")
    remote.refresh()
    assert fetched(s3, prefix) == ["a/1/model.py", "a/2/model.py"]
    assert tree(path)["a/1/model.py"] == "changed a"
    assert "b/1/weights" not in tree(path)
    assert times(path, "a").version_ns[1] > before[0].version_ns[1]
    assert times(path, "b").model_ns > before[1].model_ns, "what is deleted shows in the directory"

    s3.delete_below(f"{prefix}/b/")
    remote.refresh()
    assert "b" not in tree(path)


def test_only_the_changed_version_has_new_times(s3: S3, prefix: str, open_remote: Open) -> None:
    url = put_two_models(s3, prefix)
    s3.put(f"{prefix}/a/2/model.py", "code 2")
    remote = open_remote(url)
    remote.refresh()
    before = times(root(remote, url), "a")
    s3.put(f"{prefix}/a/2/model.py", "new code 2")
    remote.refresh()
    after = times(root(remote, url), "a")
    assert after.version_ns[1] == before.version_ns[1]
    assert after.version_ns[2] > before.version_ns[2]
    assert after.model_ns > before.model_ns


def test_writing_the_same_content_again_changes_nothing(s3: S3, prefix: str, open_remote: Open) -> None:
    url = put_two_models(s3, prefix)
    remote = open_remote(url)
    remote.refresh()
    before = times(root(remote, url), "a")
    fetched(s3, prefix)
    s3.put(f"{prefix}/a/1/model.py", "code a")
    remote.refresh()
    assert times(root(remote, url), "a") == before
    assert fetched(s3, prefix) == []


def test_going_back_to_an_earlier_content_is_a_change_too(s3: S3, prefix: str, open_remote: Open) -> None:
    """It is in the cache with the time of its first arrival, which is older than what it replaces."""
    url = put_two_models(s3, prefix)
    one, other = open_remote(url), open_remote(url)
    one.refresh()
    other.refresh()
    for text in ("second", "code a"):
        s3.put(f"{prefix}/a/1/model.py", text)
        before = times(root(one, url), "a")
        one.refresh()
        assert times(root(one, url), "a").version_ns[1] > before.version_ns[1]
        assert tree(root(one, url))["a/1/model.py"] == text


def test_changes_have_new_times_also_when_the_clock_was_put_back(s3: S3, prefix: str, open_remote: Open) -> None:
    """The copy was made while it was ahead: its folders have times that are still to come."""
    for path in ("m/1/model.py", "m/1/w.txt", "m/2/model.py", "m/config.pbtxt"):
        s3.put(f"{prefix}/{path}", "before")
    remote = open_remote(s3.url(prefix))
    path = root(remote, s3.url(prefix))
    remote.refresh()
    later = time.time_ns() + 3600 * 10**9
    for folder in (path / "m", path / "m/1", path / "m/2"):
        os.utime(folder, ns=(later, later))
    first = times(path, "m")
    s3.put(f"{prefix}/m/1/model.py", "after")
    remote.refresh()
    changed = times(path, "m")
    assert changed.model_ns > first.model_ns
    assert changed.version_ns[1] > first.version_ns[1] and changed.version_ns[2] == first.version_ns[2]
    s3.delete(f"{prefix}/m/1/w.txt")
    remote.refresh()
    deleted = times(path, "m")
    assert deleted.model_ns > changed.model_ns and deleted.version_ns[1] > changed.version_ns[1]
    s3.delete(f"{prefix}/m/2/model.py")
    remote.refresh()
    assert times(path, "m").model_ns > deleted.model_ns


def test_a_second_server_and_the_next_one_find_the_files_in_the_cache(
    s3: S3, prefix: str, open_remote: Open, tmp_path: Path
) -> None:
    url = put_two_models(s3, prefix)
    first, second = open_remote(url), open_remote(url)
    first.refresh()
    assert len(fetched(s3, prefix)) == 4
    second.refresh()
    first.close()
    assert tree(root(second, url))["a/1/model.py"] == "code a", "each has a directory of its own"
    second.close()
    third = open_remote(url)
    third.refresh()
    assert fetched(s3, prefix) == []
    assert tree(root(third, url))["a/1/model.py"] == "code a"
    views = list(tmp_path.glob("cache/*/views/*"))
    assert len(views) == 1, "the directories of servers that have ended are gone"


def test_two_servers_that_start_together_fetch_each_file_once(s3: S3, prefix: str, open_remote: Open) -> None:
    url = put_two_models(s3, prefix)
    servers = [open_remote(url) for _ in range(3)]
    threads = [threading.Thread(target=server.refresh) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fetched(s3, prefix)) == 4
    assert [len(tree(root(server, url))) for server in servers] == [9] * 3


def test_a_file_in_the_cache_that_was_written_to_is_fetched_again(s3: S3, prefix: str, open_remote: Open) -> None:
    url = put_two_models(s3, prefix)
    first = open_remote(url)
    first.refresh()
    model = root(first, url) / "a/1/model.py"
    assert model.stat().st_mode & 0o222 == 0, "what a model writes in place would be in the cache"
    model.chmod(0o644)
    model.write_text("EVIL a")
    os.utime(model, ns=(1, 1))
    first.close()
    fetched(s3, prefix)
    second = open_remote(url)
    second.refresh()
    assert tree(root(second, url))["a/1/model.py"] == "code a"
    assert fetched(s3, prefix) == ["a/1/model.py"]


def test_contents_that_nobody_has_any_more_leave_the_cache(
    s3: S3, prefix: str, open_remote: Open, tmp_path: Path
) -> None:
    url = put_two_models(s3, prefix)
    remote = open_remote(url)
    remote.refresh()
    contents = next(tmp_path.glob("cache/*/contents"))
    assert len(list(contents.iterdir())) == 4
    s3.put(f"{prefix}/a/1/model.py", "changed")
    remote.refresh()
    remote.refresh()
    assert len(list(contents.iterdir())) == 4


def test_one_model_is_copied_alone_and_the_others_are_shown(s3: S3, prefix: str, open_remote: Open) -> None:
    url = put_two_models(s3, prefix)
    remote = open_remote(url)
    path = root(remote, url)
    assert remote.show() == []
    assert tree(path) == {"a": None, "b": None}
    remote.refresh_model("a")
    assert fetched(s3, prefix) == ["a/1/model.py", "a/config.pbtxt"]
    assert set(tree(path)) == {"a", "a/1", "a/1/model.py", "a/config.pbtxt", "b"}
    s3.delete_below(f"{prefix}/a/")
    s3.put(f"{prefix}/c/1/model.py", "code c")
    assert remote.show() == []
    assert tree(path) == {"b": None, "c": None}
    s3.delete_below(f"{prefix}/b/")
    remote.refresh_model("b")
    remote.refresh_model("never there")
    assert tree(path) == {"c": None}


@pytest.mark.parametrize("name", ["{outside}", "..", "../..", "../../../../../outside", "a/1", "", "."])
def test_a_name_that_a_client_made_up_removes_nothing(
    s3: S3, prefix: str, open_remote: Open, tmp_path: Path, name: str
) -> None:
    (tmp_path / "outside/folder").mkdir(parents=True)
    url = put_two_models(s3, "made-up")
    remote = open_remote(url)
    remote.refresh()
    before = tree(tmp_path)
    remote.refresh_model(name.format(outside=tmp_path / "outside"))
    assert tree(tmp_path) == before


def test_contents_that_a_model_does_not_have_any_more_leave_the_cache_when_it_is_copied_alone(
    s3: S3, prefix: str, open_remote: Open, tmp_path: Path
) -> None:
    url = put_two_models(s3, prefix)
    remote = open_remote(url)
    contents = None
    for text in ("one", "two", "three"):
        s3.put(f"{prefix}/a/1/model.py", text)
        remote.refresh_model("a")
        contents = next(tmp_path.glob("cache/*/contents"))
        assert sorted(path.read_text() for path in contents.iterdir()) == ["config a", text]
    remote.close()
    other = open_remote(url)
    other.refresh_model("b")
    assert contents is not None and len(list(contents.iterdir())) == 4, "others' files are there for the next start"
    s3.delete_below(f"{prefix}/b/")
    other.refresh_model("b")
    assert sorted(path.read_text() for path in contents.iterdir()) == ["config a", "three"]


def test_names_are_shown_while_files_are_fetched(
    s3: S3, prefix: str, open_remote: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = put_two_models(s3, prefix)
    remote = open_remote(url)
    fetch = remote_source.FilesystemSource.fetch
    begun, shown = threading.Event(), threading.Event()

    def slow(self: Any, file: RemoteFile, destination: Path, is_closing: Callable[[], bool]) -> None:
        begun.set()
        assert shown.wait(timeout=20)
        fetch(self, file, destination, is_closing)

    monkeypatch.setattr(remote_source.FilesystemSource, "fetch", slow)
    with ThreadPoolExecutor() as executor:
        copying = executor.submit(remote.refresh_model, "a")
        try:
            assert begun.wait(timeout=20)
            assert executor.submit(remote.show).result(timeout=20) == []
            assert tree(root(remote, url)) == {"a": None, "b": None}
        finally:
            shown.set()
        copying.result(timeout=20)
    assert tree(root(remote, url))["a/1/model.py"] == "code a"
    reader = ModelReader(RepositoryOptions((root(remote, url),), remote=remote))
    changed = reader.changed(reader.scan().models.values(), {})
    assert [directory.name for directory in changed] == ["a"], "the other one has a name, but no files yet"


def test_a_name_that_is_too_long_for_a_directory_keeps_no_other_from_being_seen(
    s3: S3, prefix: str, open_remote: Open, caplog: pytest.LogCaptureFixture
) -> None:
    url = put_two_models(s3, "long-name")
    s3.put(f"long-name/{'n' * 300}/1/model.py", "")
    remote = open_remote(url)
    assert remote.show() == [] and set(os.listdir(root(remote, url))) == {"a", "b"}
    assert f"nnn' of {url}: File name too long" in caplog.text
    [text] = remote.refresh().models.values()
    assert text.endswith(": File name too long")


def test_an_object_is_no_repository(s3: S3, prefix: str, open_remote: Open) -> None:
    s3.put(prefix, "perhaps an archive")
    url = s3.url(prefix)
    remote = open_remote(url)
    text = f"failed to poll model repository '{url}': there is nothing of that name"
    assert (remote.refresh().repositories, remote.show()) == ([text], [text])
    s3.put(f"{prefix}/a/1/model.py", "code a")
    s3.put(f"{prefix}/a", "an object of the model's name")
    assert (remote.refresh(), remote.show()) == (Refreshed(), [])
    assert set(tree(root(remote, url))) == {"a", "a/1", "a/1/model.py"}


def test_a_repository_that_is_given_twice_is_copied_once(
    s3: S3, prefix: str, open_remote: Open, tmp_path: Path
) -> None:
    url = put_two_models(s3, prefix)
    remote = open_remote(url, f"{url}/")
    remote.refresh()
    assert len(list(tmp_path.glob("cache/*/views/*"))) == 1
    remote.close()
    assert list(tmp_path.glob("cache/*/views/*")) == []


def test_a_large_object_is_one_stream_and_not_parts_in_memory(
    s3: S3, prefix: str, open_remote: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of 50 MB each, ten at a time, of eight files: 4 GB."""
    monkeypatch.setattr(s3fs.S3FileSystem, "default_block_size", 1000)
    s3.put(f"{prefix}/a/1/weights.bin", "w" * 5000)
    url = s3.url(prefix)
    remote = open_remote(url)
    remote.refresh()
    assert fetched(s3, prefix) == ["a/1/weights.bin"]
    assert tree(root(remote, url))["a/1/weights.bin"] == "w" * 5000


def pinned(remote: RemoteRepositories, url: str, name: str) -> tuple[ModelDirectory, Any]:
    pin = remote.pin(read_model_directory(root(remote, url) / name))
    assert pin is not None
    return pin.directory, pin


def test_what_is_pinned_stays_as_it_is_until_it_is_given_back(
    s3: S3, prefix: str, open_remote: Open, tmp_path: Path
) -> None:
    url = put_two_models(s3, prefix)
    remote = open_remote(url)
    remote.refresh()
    directory, pin = pinned(remote, url, "a")
    again, other_pin = pinned(remote, url, "a")
    assert (directory.name, directory.versions, directory.repository) == ("a", (1,), root(remote, url))
    assert directory == again, "the same files, once"
    assert change_times(directory, config_name="") == times(root(remote, url), "a")
    s3.put(f"{prefix}/a/1/model.py", "changed a")
    remote.refresh()
    newer, newer_pin = pinned(remote, url, "a")
    assert (directory.path / "1/model.py").read_text() == "code a"
    assert (newer.path / "1/model.py").read_text() == "changed a"
    s3.delete_below(f"{prefix}/a/")
    remote.refresh()
    s3.put(f"{prefix}/a/1/model.py", "back again")
    remote.refresh()
    newest, newest_pin = pinned(remote, url, "a")
    assert len({directory.path, newer.path, newest.path}) == 3
    pin.remove()
    assert directory.path.is_dir(), "somebody else needs it"
    for given_back in (other_pin, newer_pin, newest_pin):
        given_back.remove()
    assert list(directory.path.parent.parent.iterdir()) == [], "a folder for each look would fill the disk in the end"
    elsewhere = ModelDirectory("a", tmp_path / "a", tmp_path, (1,))
    assert remote.pin(elsewhere) is None


@pytest.mark.parametrize("key", ["../evil", "1/../../evil", "1//evil", "1/./evil", "/evil"])
def test_a_name_that_leads_out_of_its_model_keeps_that_model_out(
    s3: S3, prefix: str, open_remote: Open, key: str
) -> None:
    prefix = "traversal"
    s3.put(f"{prefix}/good/1/model.py", "good")
    s3.put(f"{prefix}/bad/{key}", "evil")
    url = s3.url(prefix)
    remote = open_remote(url)
    result = remote.refresh()
    assert list(result.models) == ["bad"]
    assert (
        f"cannot copy model 'bad' of {url}: the name 'bad/{key}' leads out of the model's directory"
        == result.models["bad"]
    )
    assert set(tree(root(remote, url))) == {"good", "good/1", "good/1/model.py"}
    with pytest.raises(PollError, match="leads out of the model's directory"):
        remote.refresh_model("bad")
    s3.delete(f"{prefix}/bad/{key}")


def test_names_beside_the_models_that_lead_elsewhere_are_passed_over(s3: S3, prefix: str, open_remote: Open) -> None:
    url = put_two_models(s3, prefix)
    for key in ("../evil", "/evil", "./evil", "../../a/1/model.py"):
        s3.put(f"{prefix}/{key}", "evil")
    remote = open_remote(url)
    result = remote.refresh()
    assert (result.models, result.repositories, remote.show()) == ({}, [], [])
    assert set(os.listdir(root(remote, url))) == {"a", "b"}


def test_a_file_that_cannot_be_fetched_leaves_its_model_as_it_was(
    s3: S3, prefix: str, open_remote: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = put_two_models(s3, prefix)
    remote = open_remote(url)
    remote.refresh()
    before = tree(root(remote, url)), times(root(remote, url), "a")
    for path in ("a/1/model.py", "a/config.pbtxt", "new/1/model.py"):
        s3.put(f"{prefix}/{path}", "other")
    fetch = remote_source.FilesystemSource.fetch

    def failing(self: Any, file: RemoteFile, destination: Path, is_closing: Callable[[], bool]) -> None:
        fetch(self, file, destination, is_closing)
        if file.address.endswith(".py"):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(remote_source.FilesystemSource, "fetch", failing)
    assert remote.refresh().models == {
        name: f"cannot copy model '{name}' of {url}: No space left on device" for name in ("a", "new")
    }
    assert (tree(root(remote, url)), times(root(remote, url), "a")) == before
    assert list(root(remote, url).parent.joinpath("staging").iterdir()) == []
    monkeypatch.undo()


def test_a_copy_that_cannot_be_changed_for_want_of_space_is_as_it_was(
    s3: S3, prefix: str, open_remote: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = put_two_models(s3, prefix)
    remote = open_remote(url)
    remote.refresh()
    before = tree(root(remote, url)), times(root(remote, url), "b")
    for path in ("b/1/model.py", "b/1/weights/w.bin", "new/1/a", "new/1/b"):
        s3.put(f"{prefix}/{path}", "other")
    links: list[Path] = []

    def link_once(source: Path, target: Path) -> None:
        links.append(target)
        if len(links) % 2 == 0:
            raise OSError(28, "No space left on device")
        os.link(source, target)

    monkeypatch.setattr(remote_copy, "link", link_once)
    assert remote.refresh().models == {
        name: f"cannot copy model '{name}' of {url}: No space left on device" for name in ("b", "new")
    }
    assert (tree(root(remote, url)), times(root(remote, url), "b")) == before
    assert list(root(remote, url).parent.joinpath("staging").iterdir()) == []
    monkeypatch.undo()


@pytest.mark.parametrize("failing", ["_make_directories", "_remove_files"])
def test_a_copy_that_fails_half_way_is_completed_by_the_next_look(
    s3: S3, prefix: str, open_remote: Open, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    prefix = f"half-way{failing}"
    url = put_two_models(s3, prefix)
    remote = open_remote(url)
    remote.refresh()
    s3.delete_below(f"{prefix}/b/1/")
    s3.put(f"{prefix}/b/1/weights", "a file now")
    s3.put(f"{prefix}/b/2/model.py", "version 2")
    function = getattr(remote_copy, failing)

    def once(model: Path, what: Any) -> None:
        function(model, what)
        if "2" in os.listdir(model):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(remote_copy, failing, once)
    assert remote.refresh().models == {"b": f"cannot copy model 'b' of {url}: No space left on device"}
    assert list(root(remote, url).parent.joinpath("staging").iterdir()) == []
    monkeypatch.undo()
    assert remote.refresh() == Refreshed()
    assert tree(root(remote, url) / "b") == {
        "1": None, "1/weights": "a file now", "2": None, "2/model.py": "version 2"
    }  # fmt: skip


def test_files_that_cannot_be_kept_say_why(
    s3: S3, prefix: str, open_remote: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = put_two_models(s3, prefix)
    remote = open_remote(url)
    remote.refresh()

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(remote_copy, "link", full)
    with pytest.raises(PollError, match=r"^cannot keep the files of 'a': \[Errno 28\] No space left on device$"):
        pinned(remote, url, "a")
    monkeypatch.undo()
    assert list(root(remote, url).parent.joinpath("pinned").iterdir()) == []
    pinned(remote, url, "a")[1].remove()


def test_a_file_that_changes_while_it_is_fetched_is_not_taken(
    s3: S3, prefix: str, open_remote: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = put_two_models(s3, prefix)
    remote = open_remote(url)
    fetch = remote_source.FilesystemSource.fetch

    def changing(self: Any, file: RemoteFile, destination: Path, is_closing: Callable[[], bool]) -> None:
        if "/b/1/model.py" in file.address:
            s3.put(f"{prefix}/b/1/model.py", "meanwhile")
        fetch(self, file, destination, is_closing)

    monkeypatch.setattr(remote_source.FilesystemSource, "fetch", changing)
    failed = remote.refresh().models
    assert list(failed) == ["b"] and failed["b"].endswith("/b/1/model.py changed while it was copied")


def test_a_bucket_that_cannot_be_read_is_told_and_the_copy_stays(s3: S3, prefix: str, open_remote: Open) -> None:
    good, missing = put_two_models(s3, prefix), f"s3://{s3.endpoint}/no-bucket/models"
    remote = open_remote(missing, good)
    [text] = remote.refresh().repositories
    assert text == f"failed to poll model repository '{missing}': The specified bucket does not exist"
    assert remote.show() == [text]
    assert len(tree(root(remote, good))) == 9, "the other one is copied"
    with pytest.raises(PollError, match="failed to poll model repository"):
        remote.refresh_model("a")
    s3.delete_below(f"{prefix}/")
    [*_, text] = remote.refresh().repositories
    assert text == f"failed to poll model repository '{good}': there is nothing of that name"
    assert len(tree(root(remote, good))) == 9, "as a directory that has vanished, it says nothing of its models"


def test_stopping_gives_up_what_is_under_way(
    s3: S3, prefix: str, open_remote: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = put_two_models(s3, prefix)
    remote = open_remote(url)
    fetch = remote_source.FilesystemSource.fetch

    def stopping(self: Any, file: RemoteFile, destination: Path, is_closing: Callable[[], bool]) -> None:
        remote.stop()
        fetch(self, file, destination, is_closing)

    monkeypatch.setattr(remote_source.FilesystemSource, "fetch", stopping)
    assert remote.refresh().repositories == [f"failed to poll model repository '{url}': the server is stopping"]
    assert tree(root(remote, url)) == {}


@pytest.fixture
def silent_host() -> Iterator[socket.socket]:
    """Takes connections, and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)
        yield listening


@pytest.mark.parametrize("url", ["s3://{host}/models/x", "http://{host}/models", "http://{host}/models.zip"])
def test_stopping_does_not_wait_for_a_host_that_says_nothing(
    silent_host: socket.socket, open_remote: Open, url: str
) -> None:
    remote = open_remote(url.format(host=f"127.0.0.1:{silent_host.getsockname()[1]}"))
    with ThreadPoolExecutor() as executor:
        refreshing = executor.submit(remote.refresh)
        connection, _ = silent_host.accept()
        with connection:
            remote.stop()
            [text] = refreshing.result(timeout=20).repositories  # it would be asked again for minutes
    assert text.endswith("the server is stopping")
    [text] = remote.refresh().repositories
    assert text.endswith("the server is stopping")


def test_who_waits_for_another_server_says_so_and_can_be_stopped(
    s3: S3, prefix: str, open_remote: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    url = put_two_models(s3, prefix)
    holder, waiter = open_remote(url), open_remote(url)
    with holder._repositories[parse_remote_url(url)]._locked():
        waiter.stop()
        [text] = waiter.refresh().repositories
    assert text.endswith("the server is stopping")
    assert "waiting for another server that copies to " in caplog.text


def test_an_s3_that_does_not_answer_is_told_without_the_key(open_remote: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    [text] = open_remote("s3://127.0.0.1:9/bucket/models").refresh().repositories
    assert "failed to poll model repository 's3://127.0.0.1:9/bucket/models': " in text
    assert ACCESS["AWS_SECRET_ACCESS_KEY"] not in text
    [text] = open_remote("https://127.0.0.1:9/models").refresh().repositories
    assert "Cannot connect to host 127.0.0.1:9 [" in text


def test_a_cache_that_cannot_be_written_is_told(open_remote: Open, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InferenceError, match=r"^cannot use the cache of remote repositories .*/file: Not a directory$"):
        open_remote("s3://127.0.0.1:9/bucket", cache=tmp_path / "file")


# Web servers --------------------------------------------------------------------------------------------------------


@pytest.fixture
def web(tmp_path: Path) -> Iterator[WebServer]:
    (tmp_path / "www").mkdir()
    with running_web_server(tmp_path / "www") as server:
        yield server


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_directory_listing_is_a_repository(web: WebServer, tmp_path: Path, open_remote: Open) -> None:
    www = tmp_path / "www/models"
    write(
        www,
        {"a/1/model.py": "code a", "a/config.pbtxt": "c", "odd & name/1/100%?#.txt": "t", ".git/x": "", "r.txt": ""},
    )
    (www / "ensemble/1").mkdir(parents=True)
    url = f"{web.url}/models/"
    remote = open_remote(url)
    path = root(remote, url)
    assert remote.show() == [] and set(os.listdir(path)) == {"a", "odd & name", "ensemble"}
    result = remote.refresh()
    assert (result.repositories, result.models) == ([], {})
    assert tree(path) == {
        "a": None, "a/1": None, "a/1/model.py": "code a", "a/config.pbtxt": "c",
        "odd & name": None, "odd & name/1": None, "odd & name/1/100%?#.txt": "t",
        "ensemble": None, "ensemble/1": None,
    }  # fmt: skip
    before = times(path, "a")
    web.requests.clear()
    remote.refresh()
    assert times(path, "a") == before
    assert {method for method, path, _ in web.requests if path.endswith((".py", ".txt", "pbtxt"))} == {"HEAD"}
    write(www, {"a/1/model.py": "changed a"})
    remote.refresh_model("a")
    assert (path / "a/1/model.py").read_text() == "changed a"
    assert times(path, "a").version_ns[1] > before.version_ns[1]
    remote.refresh_model("not there")


def test_a_page_without_links_and_a_page_that_is_not_there_are_told(
    web: WebServer, tmp_path: Path, open_remote: Open
) -> None:
    write(tmp_path / "www", {"page/index.html": "<html>Welcome</html>"})
    page, missing = f"{web.url}/page", f"{web.url}/missing"
    assert open_remote(page, missing).refresh().repositories == [
        f"failed to poll model repository '{page}': the page has no links; expected a list of directories, or the URL of "
        "an archive",
        f"failed to poll model repository '{missing}': {missing}/ is not there",
    ]


def test_stopping_leaves_alone_what_others_of_the_process_read_with_fsspec(
    web: WebServer, tmp_path: Path, open_remote: Open
) -> None:
    """A program that embeds a server, or has two of them."""
    write(tmp_path / "www", {"a/1/model.py": "code a"})
    halfway, goes_on = threading.Event(), threading.Event()

    def answer(target: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        halfway.set()
        goes_on.wait()
        return 200, {}, b"content"

    remote = open_remote(web.url)
    remote.refresh()
    with answering_server(answer) as url, ThreadPoolExecutor(1) as others:
        reading = others.submit(fsspec.filesystem("http").cat_file, f"{url}/file")
        halfway.wait()
        remote.close()
        goes_on.set()
        assert reading.result() == b"content"


def test_a_file_that_a_web_server_refuses_keeps_its_own_model_out(
    web: WebServer, tmp_path: Path, open_remote: Open
) -> None:
    write(tmp_path / "www", {"a/1/model.py": "code a", "b/1/model.py": "code b", "c/1/model.py": "code c"})
    web.refused.add("/b/1/model.py")
    remote = open_remote(web.url)
    result = remote.refresh()
    assert result.repositories == [] and list(result.models) == ["b"]
    assert result.models["b"].startswith(f"cannot copy model 'b' of {web.url}: 403, message='Forbidden'")
    assert {name for name in tree(root(remote, web.url)) if name.endswith(".py")} == {"a/1/model.py", "c/1/model.py"}


def test_a_folder_that_a_web_server_refuses_keeps_its_own_model_out(
    web: WebServer, tmp_path: Path, open_remote: Open
) -> None:
    write(tmp_path / "www", {"a/1/model.py": "code a", "b/1/model.py": "code b", "c/1/model.py": "code c"})
    web.refused.add("/b/1/")
    remote = open_remote(web.url)
    result = remote.refresh()
    assert result.repositories == [] and list(result.models) == ["b"]
    assert result.models["b"].startswith(f"cannot copy model 'b' of {web.url}: 403, message='Forbidden'")
    assert {name for name in tree(root(remote, web.url)) if name.endswith(".py")} == {"a/1/model.py", "c/1/model.py"}


def test_the_root_of_a_volume_on_a_web_server_is_a_repository(
    web: WebServer, tmp_path: Path, open_remote: Open
) -> None:
    write(tmp_path / "www", {"a/1/model.py": "code a", "lost+found/#1": "", "__pycache__/x.pyc": ""})
    web.refused.update(("/lost%2Bfound/", "/__pycache__/x.pyc"))
    remote = open_remote(web.url)
    assert remote.refresh() == Refreshed()
    assert os.listdir(root(remote, web.url)) == ["a"]


def test_a_file_from_a_web_server_that_breaks_off_is_fetched_once_more(
    web: WebServer, tmp_path: Path, open_remote: Open
) -> None:
    write(tmp_path / "www/models", {"a/1/model.py": "code a", "b/1/model.py": "code b"})
    write_zip(tmp_path / "www/m.zip", {"c/1/model.py": "code c"})
    web.breaking.update({"/models/a/1/model.py": 1, "/models/b/1/model.py": 2, "/m.zip": 1})
    folder, archive = f"{web.url}/models", f"{web.url}/m.zip"
    remote = open_remote(folder, archive)
    result = remote.refresh()
    assert result.repositories == [] and list(result.models) == ["b"]
    assert (root(remote, folder) / "a/1/model.py").read_text() == "code a"
    assert (root(remote, archive) / "c/1/model.py").read_text() == "code c"


def test_names_in_a_listing_may_begin_with_a_dot_and_a_slash(web: WebServer, tmp_path: Path, open_remote: Open) -> None:
    """As Caddy writes them."""
    page = '<a href="..">up</a> <a href="./">here</a> <a href="./a/">a</a> <a href="./?sort=size">size</a>'
    write(tmp_path / "www", {"index.html": page, "a/index.html": '<a href="./1/">1</a>', "a/1/model.py": "code a"})
    remote = open_remote(web.url)
    assert remote.refresh() == Refreshed()
    assert tree(root(remote, web.url)) == {"a": None, "a/1": None, "a/1/model.py": "code a"}


def test_links_that_lead_elsewhere_make_no_directories(web: WebServer, tmp_path: Path, open_remote: Open) -> None:
    outside = tmp_path / "outside"
    links = ("a/", "a%2F..%2F..%2F..%2Foutside/", f"{str(outside).replace('/', '%2F')}/", "..%2F..%2Foutside/", "%2F/")
    page = "".join(f'<a href="{link}">x</a>' for link in links)
    write(tmp_path / "www", {"index.html": page, "a/1/model.py": "code a"})
    remote = open_remote(web.url)
    assert remote.show() == [] and remote.show() == []
    assert remote.refresh() == Refreshed()
    assert set(tree(root(remote, web.url))) == {"a", "a/1", "a/1/model.py"}
    assert not list(tmp_path.rglob("outside"))


def test_tls_needs_a_certificate_that_is_trusted(
    tmp_path: Path, open_remote: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = Certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server, certificates.server_key)
    write(tmp_path / "www/models", {"a/1/model.py": "code a"})
    with running_web_server(tmp_path / "www", context) as web:
        url = f"{web.url}/models"
        [text] = open_remote(url).refresh().repositories
        assert "certificate verify failed" in text
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates.root))
        remote = open_remote(url.replace("https://", "https://user:pass-word@"))
        assert remote.refresh().repositories == []
        assert tree(root(remote, url.replace("https://", "https://user:pass-word@")))["a/1/model.py"] == "code a"
        assert {authorization for _, _, authorization in web.requests} - {""} == {"Basic dXNlcjpwYXNzLXdvcmQ="}
        web.redirects["/models/"] = "http://127.0.0.1:9/models/"
        [text] = remote.refresh().repositories
        assert "it redirects to http://, where anybody on the way could change it" in text
        assert "pass-word" not in text


# Archives -----------------------------------------------------------------------------------------------------------


def write_zip(path: Path, files: dict[str, str]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


def write_tar(path: Path, files: dict[str, str]) -> None:
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"./{name}")
            entry.size = len(text)
            entry.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            archive.addfile(entry, io.BytesIO(text.encode()))


FILES = {"a/1/model.py": "code a", "a/config.pbtxt": "c", "b/1/model.py": "code b", "e/1/": "", "readme.txt": "r"}


@pytest.mark.parametrize("name", ["m.zip", "m.tar", "m.tar.gz", "m.tgz"])
def test_an_archive_is_a_repository(web: WebServer, tmp_path: Path, open_remote: Open, name: str) -> None:
    archive = tmp_path / "www" / name
    pack = write_zip if name.endswith("zip") else write_tar
    pack(archive, FILES)
    url = f"{web.url}/{name}?signature=SECRET"
    remote = open_remote(url)
    path = root(remote, url)
    assert remote.show() == [] and set(os.listdir(path)) == {"a", "b", "e"}
    remote.refresh()
    assert tree(path) == {
        "a": None, "a/1": None, "a/1/model.py": "code a", "a/config.pbtxt": "c",
        "b": None, "b/1": None, "b/1/model.py": "code b", "e": None, "e/1": None,
    }  # fmt: skip
    before = times(path, "a"), times(path, "b")
    remote.refresh()
    assert [method for method, _, _ in web.requests].count("GET") == 1
    pack(archive, {**FILES, "b/1/model.py": "another b"})
    os.utime(archive, (1, 1))
    remote.refresh_model("b")
    assert (path / "b/1/model.py").read_text() == "another b"
    assert times(path, "a") == before[0] and times(path, "b").version_ns[1] > before[1].version_ns[1]
    archive.unlink()
    [text] = remote.refresh().repositories
    assert "SECRET" not in text and len(tree(path)) == 9


def test_an_archive_of_a_mac_and_one_of_windows_are_repositories(
    web: WebServer, tmp_path: Path, open_remote: Open
) -> None:
    write_zip(tmp_path / "www/mac.zip", {"a/1/model.py": "code a", "__MACOSX/a/1/._model.py": "x", "__MACOSX/._a": "x"})
    with zipfile.ZipFile(tmp_path / "www/windows.zip", "w") as archive:
        for name in ("b\\1\\model.py", "b\\config.pbtxt", "e\\1\\"):
            info = zipfile.ZipInfo(name)
            info.create_system = 0
            archive.writestr(info, "")
    mac, windows = f"{web.url}/mac.zip", f"{web.url}/windows.zip"
    remote = open_remote(mac, windows)
    assert remote.show() == [] and remote.refresh() == Refreshed()
    assert list(tree(root(remote, mac))) == ["a", "a/1", "a/1/model.py"]
    assert list(tree(root(remote, windows))) == ["b", "b/1", "b/1/model.py", "b/config.pbtxt", "e", "e/1"]


def test_what_is_no_file_or_leads_elsewhere_in_an_archive_is_refused(
    web: WebServer, tmp_path: Path, open_remote: Open
) -> None:
    www = tmp_path / "www"
    write_zip(www / "traversal.zip", {"a/1/model.py": "", "a/../../evil": "", "../evil": "", "/evil": ""})
    with tarfile.open(www / "link.tar", "w") as archive:
        entry = tarfile.TarInfo("a/link")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(entry)
    with zipfile.ZipFile(www / "link.zip", "w") as packed:
        info = zipfile.ZipInfo("a/link")
        info.external_attr = 0o120777 << 16
        packed.writestr(info, "/etc/passwd")
    (www / "broken.zip").write_text("no archive")
    names = ("traversal.zip", "link.tar", "link.zip", "broken.zip")
    urls = [f"{web.url}/{name}" for name in names]
    result = open_remote(*urls).refresh()
    assert result.models == {
        "a": f"cannot copy model 'a' of {urls[0]}: the name 'a/../../evil' leads out of the model's directory"
    }
    assert [text.partition("': ")[2] for text in result.repositories] == [
        "'a/link' in the archive is neither a file nor a directory",
        "'a/link' in the archive is a link",
        "File is not a zip file",
    ]


def test_an_archive_that_cannot_be_unpacked_is_fetched_once(web: WebServer, tmp_path: Path, open_remote: Open) -> None:
    www = tmp_path / "www"
    write_zip(www / "m.zip", {"a/1/model.py": "code a"})
    write_zip(www / "whole.zip", {"a/1/model.py": "changed a"})
    remote = open_remote(f"{web.url}/m.zip")
    remote.refresh()
    (www / "m.zip").write_bytes((www / "whole.zip").read_bytes()[:-8])
    web.requests.clear()
    told = [*remote.refresh().repositories, *remote.show(), *remote.refresh().repositories]
    assert told == [f"failed to poll model repository '{web.url}/m.zip': File is not a zip file"] * 3
    assert [method for method, path, _ in web.requests if method == "GET"] == ["GET"]
    path = root(remote, f"{web.url}/m.zip")
    assert (path / "a/1/model.py").read_text() == "code a"
    (www / "whole.zip").rename(www / "m.zip")
    assert remote.refresh() == Refreshed()
    assert (path / "a/1/model.py").read_text() == "changed a"


def test_of_an_archive_that_does_not_fit_on_the_disk_nothing_stays(
    web: WebServer, tmp_path: Path, open_remote: Open
) -> None:
    """The process may write files up to a size alone, in place of a disk that is full."""
    write_tar(tmp_path / "www/m.tar", {"a/1/model.py": "code a", "a/1/weights.bin": "w" * 100_000})
    write_zip(tmp_path / "www/m.zip", {"b/1/model.py": "code b", "b/1/weights.bin": "w" * 100_000})
    urls = [f"{web.url}/m.tar", f"{web.url}/m.zip"]
    remote = open_remote(*urls)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        result = remote.refresh()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [text.partition("': ")[2] for text in result.repositories] == ["[Errno 27] File too large"] * 2
    for url in urls:
        assert list((root(remote, url).parent / "staging").iterdir()) == []
    assert remote.refresh() == Refreshed()
    assert [os.listdir(root(remote, url)) for url in urls] == [["a"], ["b"]]


def test_a_name_in_an_archive_need_not_be_utf_8(web: WebServer, tmp_path: Path, open_remote: Open) -> None:
    write_tar(tmp_path / "www/m.tar", {os.fsdecode(b"a/1/caf\xe9.txt"): "code a"})
    remote = open_remote(f"{web.url}/m.tar")
    assert remote.refresh() == Refreshed()
    assert os.listdir(os.fsencode(root(remote, f"{web.url}/m.tar") / "a/1")) == [b"caf\xe9.txt"]


@pytest.mark.parametrize("names", [("a/1", "a/1/model.py"), ("a/1/model.py", "a/1"), ("a/1/", "a/1")])
def test_a_name_that_is_file_and_directory_keeps_the_model_out(
    web: WebServer, tmp_path: Path, open_remote: Open, names: tuple[str, str]
) -> None:
    write_tar(tmp_path / "www/m.tar", {**dict.fromkeys(names, ""), "b/1/model.py": "code b"})
    remote = open_remote(f"{web.url}/m.tar")
    result = remote.refresh()
    assert list(result.models) == ["a"] and result.models["a"].endswith("is a file and a directory")
    assert set(tree(root(remote, f"{web.url}/m.tar"))) == {"b", "b/1", "b/1/model.py"}
