"""When a model counts as changed: repository.md, section 3.1."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from pytriton_lite.repository.changes import ChangeTimes, change_times
from pytriton_lite.repository.index import read_model_directory
from pytriton_lite.repository.walk import newest_link_ns
from tests.harness import PROJECT

OLD_NS = 1_000_000_000
NEW_NS = 5_000_000_000


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of versions 1 and 2, all of whose files are equally old."""
    folder = tmp_path / "m"
    for path in ("1/model.py", "1/data/weights", "2/model.py", "config.pbtxt", "configs/a.pbtxt", "labels.txt"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("")
    for path in (*folder.rglob("*"), folder):
        os.utime(path, ns=(OLD_NS, OLD_NS))
    return folder


def times(model: Path, config_name: str = "") -> ChangeTimes:
    return change_times(read_model_directory(model), config_name=config_name)


def touch(path: Path) -> None:
    """Change the time of *path*, created or not, and of nothing else."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        for parent in path.relative_to(path.parents[2]).parents:
            os.utime(path.parents[2] / parent, ns=(OLD_NS, OLD_NS))
    os.utime(path, ns=(NEW_NS, NEW_NS))


def test_what_nobody_touched_is_as_old_as_it_was(model: Path) -> None:
    assert times(model) == ChangeTimes(OLD_NS, {1: OLD_NS, 2: OLD_NS}, OLD_NS)


@pytest.mark.parametrize(
    ("path", "version_1", "version_2"),
    [
        pytest.param("1/model.py", NEW_NS, OLD_NS, id="a file of a version"),
        pytest.param("1/data/weights", NEW_NS, OLD_NS, id="deep in a version"),
        pytest.param("1", NEW_NS, OLD_NS, id="a deletion in a version"),
        pytest.param("config.pbtxt", OLD_NS, OLD_NS, id="the configuration, which is compared by its content"),
        pytest.param("labels.txt", NEW_NS, NEW_NS, id="a file that all versions may read"),
        pytest.param("configs/a.pbtxt", NEW_NS, NEW_NS, id="configurations that are not in use"),
        pytest.param(".", OLD_NS, OLD_NS, id="a version that was added or removed"),
    ],
)
def test_a_change_is_one_to_the_model_and_to_the_versions_that_may_read_it(
    model: Path, path: str, version_1: int, version_2: int
) -> None:
    touch(model / path)
    assert times(model) == ChangeTimes(
        NEW_NS, {1: version_1, 2: version_2}, OLD_NS if path == "config.pbtxt" else NEW_NS
    )


def test_a_version_that_is_copied_as_the_page_says_is_no_change_to_the_one_that_serves(tmp_path: Path) -> None:
    page = (PROJECT / "docs" / "repositories.md").read_text()
    (commands,) = re.findall(r"^cp -r .*", page, re.MULTILINE)
    copy, move = commands.split(" && ")
    model = tmp_path / "models" / "add_sub"
    touch(model / "1" / "model.py")
    touch(tmp_path / "build" / "2" / "model.py")
    before = times(model)
    subprocess.run(copy, shell=True, cwd=tmp_path, check=True)
    assert times(model) == before
    subprocess.run(move, shell=True, cwd=tmp_path, check=True)
    after = times(model)
    assert sorted(after.version_ns) == [1, 2] and after.version_ns[1] == before.version_ns[1]


def test_with_a_configuration_by_name_the_folder_of_them_is_the_configuration(model: Path) -> None:
    touch(model / "configs" / "a.pbtxt")
    assert times(model, "a").version_ns == {1: OLD_NS, 2: OLD_NS}
    assert times(model, "there_is_none").version_ns == {1: NEW_NS, 2: NEW_NS}
    touch(model / "config.pbtxt")
    assert times(model, "a").version_ns == {1: NEW_NS, 2: NEW_NS}


@pytest.mark.parametrize("path", ["1/__pycache__/model.cpython-311.pyc", "1/helper.pyc", "__pycache__/x.pyc"])
def test_bytecode_is_no_change(model: Path, path: str) -> None:
    """The ``__pycache__`` trap: Triton loads every Python model twice for it."""
    touch(model / path)
    assert times(model).version_ns == {1: OLD_NS, 2: OLD_NS}
    assert times(model).model_ns == OLD_NS


def link(path: Path, target: Path, link_ns: int) -> None:
    """*path* leads to *target* from *link_ns* on, and the directory that it is in does not show it."""
    at = path.parent.stat().st_mtime_ns
    path.symlink_to(target)
    os.utime(path, ns=(link_ns, link_ns), follow_symlinks=False)
    os.utime(path.parent, ns=(at, at))


@pytest.mark.parametrize("deep", ["1/linked", "1/data/linked"])
def test_a_change_behind_a_link_is_one(model: Path, tmp_path: Path, deep: str) -> None:
    """As in Triton (asked of 2.51)."""
    elsewhere = tmp_path / "elsewhere" / "inner"
    elsewhere.mkdir(parents=True)
    (elsewhere / "weights").touch()
    for path in (elsewhere.parent, elsewhere, elsewhere / "weights"):
        os.utime(path, ns=(OLD_NS, OLD_NS))
    link(model / deep, elsewhere.parent, OLD_NS)
    assert times(model) == ChangeTimes(OLD_NS, {1: OLD_NS, 2: OLD_NS}, OLD_NS)
    os.utime(elsewhere / "weights", ns=(NEW_NS, NEW_NS))
    assert times(model) == ChangeTimes(NEW_NS, {1: NEW_NS, 2: OLD_NS}, NEW_NS)


def test_a_version_that_leads_to_older_files_than_before_has_changed(model: Path) -> None:
    link(model / "3", model / "1", NEW_NS)
    assert times(model) == ChangeTimes(NEW_NS, {1: OLD_NS, 2: OLD_NS, 3: NEW_NS}, NEW_NS)


@pytest.mark.parametrize(
    ("links", "newest"),
    [
        pytest.param({"repository": "."}, "repository", id="the repository"),
        pytest.param({"repository/m": "../m"}, "repository/m", id="the model"),
        pytest.param({"current": ".", "repository": "current/"}, "current", id="what the repository's leads through"),
        pytest.param({"current": ".", "repository/m": "../current/m"}, "current", id="what the model's leads through"),
    ],
)
def test_all_versions_have_changed_where_the_way_to_them_leads_elsewhere(
    model: Path, tmp_path: Path, links: dict[str, str], newest: str
) -> None:
    for path, target in links.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        link(tmp_path / path, Path(target), NEW_NS if path == newest else OLD_NS)
    assert times(tmp_path / "repository/m") == ChangeTimes(NEW_NS, {1: NEW_NS, 2: NEW_NS}, NEW_NS)


def test_all_versions_have_changed_where_the_repository_lies_elsewhere_than_before(model: Path, tmp_path: Path) -> None:
    """Releases are such folders, and a link says which one counts."""
    link(tmp_path / "current", tmp_path.parent, NEW_NS)
    repository = tmp_path / "current" / tmp_path.name
    assert times(repository / "m") == ChangeTimes(NEW_NS, {1: NEW_NS, 2: NEW_NS}, NEW_NS)


def test_a_version_has_changed_where_what_its_link_leads_through_leads_elsewhere(model: Path, tmp_path: Path) -> None:
    link(tmp_path / "current", tmp_path, NEW_NS)
    link(model / "3", Path("../current/m/1"), OLD_NS)
    assert times(model) == ChangeTimes(NEW_NS, {1: OLD_NS, 2: OLD_NS, 3: NEW_NS}, NEW_NS)


def test_a_way_of_links_that_leads_round_comes_to_an_end(tmp_path: Path) -> None:
    link(tmp_path / "a", Path("b"), OLD_NS)
    link(tmp_path / "b", Path("a"), OLD_NS)
    with pytest.raises(OSError, match="symbolic links"):
        newest_link_ns(tmp_path / "a" / "m")


def test_links_that_lead_round_come_to_an_end(model: Path) -> None:
    link(model / "1" / "up", model.parent, OLD_NS)
    link(model / "1" / "self", Path("self"), OLD_NS)
    os.utime(model.parent, ns=(OLD_NS, OLD_NS))
    assert times(model) == ChangeTimes(OLD_NS, {1: OLD_NS, 2: OLD_NS}, OLD_NS)


@pytest.mark.parametrize(
    ("entries", "kept"),
    [
        pytest.param([], {1: 5, 2: 6}, id="nothing"),
        pytest.param(["1"], {2: 6}, id="a version"),
        pytest.param(["config.pbtxt", "configs"], {1: 5, 2: 6}, id="configurations, which are compared"),
        pytest.param(["labels.txt"], {}, id="what all versions may read"),
    ],
)
def test_what_is_known_to_have_changed_is_not_remembered(entries: list[str], kept: dict[int, int]) -> None:
    assert ChangeTimes(7, {1: 5, 2: 6}).without(entries) == ChangeTimes(0 if entries else 7, kept)


def test_a_link_that_leads_nowhere_is_passed_over(model: Path) -> None:
    (model / "1" / "link").symlink_to(model / "nowhere")
    os.utime(model / "1", ns=(OLD_NS, OLD_NS))
    assert times(model).version_ns[1] == OLD_NS
