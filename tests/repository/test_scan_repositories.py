"""What a scan makes of the directories on disk. ``row`` in an id is one of repository.md."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import pytest

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.repository.index import ModelDirectory, Notice, scan_repositories


def make(root: Path, *directories: str) -> None:
    for directory in directories:
        (root / directory).mkdir(parents=True)


def versions_of(root: Path, model: str = "m") -> tuple[int, ...]:
    return scan_repositories([root]).models[model].versions


def texts(notices: Iterable[Notice]) -> list[str]:
    return [notice.text for notice in notices]


def test_models_are_the_directories_in_the_order_of_their_names(tmp_path: Path) -> None:
    make(tmp_path, "b/1", "a/2", "a/10", "a/1")
    (tmp_path / "notes.txt").touch()
    scan = scan_repositories([tmp_path])
    assert list(scan.models.items()) == [
        ("a", ModelDirectory("a", tmp_path / "a", tmp_path, (1, 2, 10))),
        ("b", ModelDirectory("b", tmp_path / "b", tmp_path, (1,))),
    ]
    assert (scan.duplicates, scan.notices) == ((), ())


def test_model_without_a_version_is_a_model(tmp_path: Path) -> None:
    make(tmp_path, "m")
    assert versions_of(tmp_path) == ()


def test_linked_directories_count_and_dangling_links_do_not(tmp_path: Path) -> None:
    make(tmp_path, "store/real/1", "root/m")
    (tmp_path / "root" / "linked").symlink_to(tmp_path / "store" / "real")
    (tmp_path / "root" / "m" / "7").symlink_to(tmp_path / "store" / "real" / "1")
    (tmp_path / "root" / "gone").symlink_to(tmp_path / "nowhere")
    scan = scan_repositories([tmp_path / "root"])
    assert {name: model.versions for name, model in scan.models.items()} == {"linked": (1,), "m": (7,)}


def test_hidden_directories_are_no_models_and_the_log_says_so(tmp_path: Path) -> None:
    make(tmp_path, ".git/1", "m/1")
    scan = scan_repositories([tmp_path])
    assert list(scan.models) == ["m"]
    assert scan.notices == (Notice(logging.INFO, f"skipping hidden directory '.git' of model repository {tmp_path}"),)


def test_version_zero_is_legal_and_files_are_no_versions(tmp_path: Path) -> None:
    make(tmp_path, "m/0", "m/3")
    (tmp_path / "m" / "5").touch()
    assert versions_of(tmp_path) == (0, 3)


def test_folders_for_other_purposes_are_skipped_silently(tmp_path: Path) -> None:
    make(tmp_path, "m/1", "m/warmup", "m/initial_state", "m/configs")
    assert versions_of(tmp_path) == (1,)
    assert scan_repositories([tmp_path]).notices == ()


@pytest.mark.parametrize("name", ["01", "00", "0x"])
def test_leading_zeros_are_warned_about(tmp_path: Path, name: str) -> None:
    make(tmp_path, f"m/{name}", "m/1")
    scan = scan_repositories([tmp_path])
    assert scan.models["m"].versions == (1,)
    assert scan.notices == (
        Notice(
            logging.WARNING,
            f"ignore version directory '{name}' which contains leading zeros in its directory name (model 'm')",
        ),
    )


@pytest.mark.parametrize("name", ["8x", "-3", "one", "1.0", "٣", "9223372036854775808", "__pycache__"])
def test_names_that_are_no_numbers_are_warned_about(tmp_path: Path, name: str) -> None:
    make(tmp_path, f"m/{name}", "m/1")
    scan = scan_repositories([tmp_path])
    assert scan.models["m"].versions == (1,)
    assert texts(scan.notices) == [
        f"ignore version directory '{name}' which fails to convert to integral number (model 'm')"
    ]


def test_name_in_two_repositories_is_a_duplicate_and_no_model(tmp_path: Path) -> None:
    make(tmp_path, "one/a/1", "one/b/1", "two/b/1", "two/c/1")
    scan = scan_repositories([tmp_path / "one", tmp_path / "two"])
    assert {name: model.repository.name for name, model in scan.models.items()} == {"a": "one", "c": "two"}
    assert scan.duplicates == ("b",)


def test_same_repository_given_twice_counts_once(tmp_path: Path) -> None:
    make(tmp_path, "m/1")
    scan = scan_repositories([tmp_path, tmp_path])
    assert (list(scan.models), scan.duplicates) == (["m"], ())


def test_root_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InferenceError) as caught:
        scan_repositories([tmp_path / "nope"])
    assert caught.value.code is ErrorCode.INTERNAL
    assert caught.value.message == f"failed to stat file {tmp_path}/nope"


def test_root_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InferenceError) as caught:
        scan_repositories([tmp_path / "file"])
    assert caught.value.code is ErrorCode.INTERNAL
    assert caught.value.message == f"repository path is not a valid directory: {tmp_path}/file"
