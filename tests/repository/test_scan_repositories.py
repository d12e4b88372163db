"""What a scan makes of the directories on disk. ``row`` in an id is one of repository.md."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.repository.index import (
    ModelDirectory,
    ModelId,
    Notice,
    Scan,
    check_repositories,
    find_model,
    list_models,
    read_again,
    scan_repositories,
)


def make(root: Path, *directories: str) -> None:
    for directory in directories:
        (root / directory).mkdir(parents=True)


def model_of(scan: Scan, name: str = "m") -> ModelDirectory:
    return scan.models[ModelId("", name)]


def names(scan: Scan) -> list[str]:
    return [model.name for model in scan.models]


def versions_of(root: Path, model: str = "m") -> tuple[int, ...]:
    return model_of(scan_repositories([root]), model).versions


def texts(notices: Iterable[Notice]) -> list[str]:
    return [notice.text for notice in notices]


def test_models_are_the_directories_in_the_order_of_their_names(tmp_path: Path) -> None:
    make(tmp_path, "b/1", "a/2", "a/10", "a/1")
    (tmp_path / "notes.txt").touch()
    scan = scan_repositories([tmp_path])
    assert list(scan.models.items()) == [
        (ModelId("", "a"), ModelDirectory("a", tmp_path / "a", tmp_path, (1, 2, 10))),
        (ModelId("", "b"), ModelDirectory("b", tmp_path / "b", tmp_path, (1,))),
    ]
    assert (scan.duplicates, scan.notices, scan.unreadable) == ((), (), {})


def test_model_without_a_version_is_a_model(tmp_path: Path) -> None:
    make(tmp_path, "m")
    assert versions_of(tmp_path) == ()


def test_linked_directories_count_and_dangling_links_do_not(tmp_path: Path) -> None:
    make(tmp_path, "store/real/1", "root/m")
    (tmp_path / "root" / "linked").symlink_to(tmp_path / "store" / "real")
    (tmp_path / "root" / "m" / "7").symlink_to(tmp_path / "store" / "real" / "1")
    (tmp_path / "root" / "gone").symlink_to(tmp_path / "nowhere")
    scan = scan_repositories([tmp_path / "root"])
    assert {model.name: model.versions for model in scan.models.values()} == {"linked": (1,), "m": (7,)}


def test_a_link_that_leads_to_itself_is_passed_over_like_one_that_leads_nowhere(tmp_path: Path) -> None:
    make(tmp_path, "m/1")
    for place in (tmp_path, tmp_path / "m"):
        (place / "2").symlink_to("2")
    scan = scan_repositories([tmp_path])
    assert {model.name: model.versions for model in scan.models.values()} == {"m": (1,)}
    assert (scan.notices, scan.unreadable) == ((), {})


def test_a_listing_has_the_models_of_a_scan(tmp_path: Path) -> None:
    make(tmp_path, "one/a/1", "one/b/x", "two/b", "two/c", "two/.git")
    roots = [tmp_path / "one", tmp_path / "two", tmp_path / "away"]
    listing, scan = list_models(roots), scan_repositories(roots)
    assert listing.models == {key: model.repository for key, model in scan.models.items()}
    assert [model.name for model in listing.models] == ["a", "c"]
    assert (listing.duplicates, listing.notices, listing.unreadable) == (scan.duplicates, scan.notices, scan.unreadable)


def test_hidden_directories_are_no_models_and_the_log_says_so(tmp_path: Path) -> None:
    make(tmp_path, ".git/1", "m/1")
    scan = scan_repositories([tmp_path])
    assert names(scan) == ["m"]
    assert scan.notices == (Notice(logging.INFO, f"skipping hidden directory '.git' of model repository {tmp_path}"),)


@pytest.mark.parametrize("name", ["lost+found", "__pycache__", "__MACOSX"])
def test_what_appears_by_itself_beside_models_is_none(tmp_path: Path, name: str) -> None:
    make(tmp_path, name, "m/1")
    scan = scan_repositories([tmp_path])
    assert (names(scan), find_model([tmp_path], name)) == (["m"], [])
    assert texts(scan.notices) == [f"skipping directory '{name}' of model repository {tmp_path}"]


def test_directories_whose_names_are_not_utf8_are_no_models_and_no_versions(tmp_path: Path) -> None:
    strange = os.fsdecode(b"m\xff")
    make(tmp_path, f"{strange}/1", f"m/{strange}")
    scan = scan_repositories([tmp_path])
    assert (names(scan), find_model([tmp_path], strange)) == (["m"], [])
    text = f"skipping directory 'm\\udcff' of model repository {tmp_path}: its name is not UTF-8"
    assert scan.notices == (Notice(logging.ERROR, text),)
    assert texts(model_of(scan).notices) == [
        "ignore version directory 'm\\udcff' which fails to convert to integral number (model 'm')"
    ]


def test_version_zero_is_legal_and_files_are_no_versions(tmp_path: Path) -> None:
    make(tmp_path, "m/0", "m/3")
    (tmp_path / "m" / "5").touch()
    assert versions_of(tmp_path) == (0, 3)


def test_folders_for_other_purposes_are_skipped_silently(tmp_path: Path) -> None:
    make(tmp_path, "m/1", "m/warmup", "m/initial_state", "m/configs", "m/__pycache__", "m/.pytest_cache")
    assert versions_of(tmp_path) == (1,)
    assert model_of(scan_repositories([tmp_path])).notices == ()


@pytest.mark.parametrize("name", ["01", "00", "0x"])
def test_leading_zeros_are_warned_about(tmp_path: Path, name: str) -> None:
    make(tmp_path, f"m/{name}", "m/1")
    found = model_of(scan_repositories([tmp_path]))
    assert found.versions == (1,)
    assert found.notices == (
        Notice(
            logging.WARNING,
            f"ignore version directory '{name}' which contains leading zeros in its directory name (model 'm')",
        ),
    )


@pytest.mark.parametrize("name", ["8x", "-3", "one", "1.0", "٣", "9223372036854775808", "__cache__"])
def test_names_that_are_no_numbers_are_warned_about(tmp_path: Path, name: str) -> None:
    make(tmp_path, f"m/{name}", "m/1")
    found = model_of(scan_repositories([tmp_path]))
    assert found.versions == (1,)
    assert texts(found.notices) == [
        f"ignore version directory '{name}' which fails to convert to integral number (model 'm')"
    ]


def test_name_in_two_repositories_is_a_duplicate_and_no_model(tmp_path: Path) -> None:
    make(tmp_path, "one/a/1", "one/b/1", "two/b/1", "two/c/1")
    scan = scan_repositories([tmp_path / "one", tmp_path / "two"])
    assert {model.name: model.repository.name for model in scan.models.values()} == {"a": "one", "c": "two"}
    assert scan.duplicates == ("b",)


def test_same_repository_given_twice_counts_once(tmp_path: Path) -> None:
    make(tmp_path, "m/1")
    scan = scan_repositories([tmp_path, tmp_path])
    assert (names(scan), scan.duplicates) == (["m"], ())


def test_with_namespaces_equal_names_are_models_of_their_own(tmp_path: Path) -> None:
    """Row 63 of repository.md; they are ordered by repository first."""
    make(tmp_path, "two/a/1", "one/b/1", "two/b/2")
    roots = [tmp_path / "two", tmp_path / "one"]
    namespaces = {root: f"of {root}" for root in roots}
    scan = scan_repositories(roots, namespaces=namespaces)
    assert [(str(model), found.versions) for model, found in scan.models.items()] == [
        (f"of {tmp_path}/one::b", (1,)),
        (f"of {tmp_path}/two::a", (1,)),
        (f"of {tmp_path}/two::b", (2,)),
    ]
    assert scan.duplicates == ()
    found = find_model(roots, "b", namespaces=namespaces)
    assert [model.namespace for model in found] == [namespaces[root] for root in roots]


def test_a_name_that_leads_elsewhere_is_no_model(tmp_path: Path) -> None:
    make(tmp_path, "root/m/1", "other/m/1", "root/.git/1")
    for name in ("", ".git", "..", "../other/m", "m/1", "m\0", "nope"):
        assert find_model([tmp_path / "root"], name) == []
    assert [found.path for found in find_model([tmp_path / "root"], "m")] == [tmp_path / "root" / "m"]


def test_what_was_found_once_can_be_read_again_until_it_is_gone(tmp_path: Path) -> None:
    make(tmp_path, "m/1")
    (found,) = scan_repositories([tmp_path]).models.values()
    make(tmp_path, "m/2", "m/two")
    again = read_again(found)
    assert again is not None
    assert (again.versions, len(again.notices)) == ((1, 2), 1)
    for name in ("1", "2", "two"):
        (tmp_path / "m" / name).rmdir()
    (tmp_path / "m").rmdir()
    assert read_again(found) is None


def test_a_root_that_cannot_be_read_is_named_beside_what_the_others_have(tmp_path: Path) -> None:
    make(tmp_path, "there/m/1")
    (tmp_path / "file").touch()
    scan = scan_repositories([tmp_path / "gone", tmp_path / "file", tmp_path / "there"])
    assert names(scan) == ["m"]
    assert scan.unreadable == {
        tmp_path / "gone": f"failed to open directory {tmp_path}/gone",
        tmp_path / "file": f"failed to open directory {tmp_path}/file: Not a directory",
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("nope", "failed to stat file {}", id="row 10"),
        ("file", "repository path is not a valid directory: {}"),
        ("n" * 300, "failed to stat file {}: File name too long"),
    ],
)
def test_a_start_needs_every_root(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "file").touch()
    check_repositories([tmp_path])
    with pytest.raises(InferenceError) as caught:
        check_repositories([tmp_path, tmp_path / name])
    assert (caught.value.code, caught.value.message) == (ErrorCode.INTERNAL, text.format(tmp_path / name))
