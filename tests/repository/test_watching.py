"""Which changes of files --watch sees, and when."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytriton_lite.repository.watching import Change, Changes, Snapshot, describe_change, is_passed_over, take_snapshot


@pytest.mark.parametrize(
    "name",
    [
        "__pycache__", "model.cpython-311.pyc", ".model.py.swp", ".model.py.swo", ".config.pbtxt.swpx", "4913",
        "model.py~", ".#model.py", "#model.py#", "model.py___jb_tmp___", "model.py___jb_old___", ".goutputstream-X1Y2Z3",
        ".DS_Store", ".model.py.kate-swp", ".git", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints",
    ],
)  # fmt: skip
def test_what_editors_and_python_leave_behind_is_passed_over(name: str) -> None:
    assert is_passed_over(name)


@pytest.mark.parametrize(
    "name", ["model.py", "1", "4914", "swp", "a.swp", "config.pbtxt", "weights.bin", "#notes", ".env", ".gitignore"]
)
def test_what_belongs_to_a_model_is_not(name: str) -> None:
    assert not is_passed_over(name)


def test_a_snapshot_has_files_with_time_and_size_and_directories_without(tmp_path: Path) -> None:
    (tmp_path / "1/__pycache__").mkdir(parents=True)
    (tmp_path / "1/__pycache__/model.pyc").touch()
    (tmp_path / "1/.model.py.swp").touch()
    (tmp_path / "1/model.py").write_text("code")
    os.utime(tmp_path / "1/model.py", ns=(5, 7))
    (tmp_path / "config.pbtxt").symlink_to(tmp_path / "dangling")
    assert take_snapshot(tmp_path) == {"1/": (0, 0), "1/model.py": (7, 4)}
    assert take_snapshot(tmp_path / "none") == {}


OLD: Snapshot = {"1/": (0, 0), "1/model.py": (1, 4)}
NEW: Snapshot = {"1/": (0, 0), "1/model.py": (2, 4)}
NEWER: Snapshot = {"1/": (0, 0), "1/model.py": (3, 4)}


def test_a_change_is_told_once_when_two_looks_agree() -> None:
    changes = Changes({"m": OLD, "other": OLD})
    assert changes.compare({"m": NEW, "other": OLD}) == {}
    assert changes.compare({"m": NEWER, "other": OLD}) == {}, "still being written"
    assert changes.compare({"m": NEWER, "other": OLD}) == {"m": Change("1/model.py changed")}
    assert changes.compare({"m": NEWER, "other": OLD}) == {}
    assert changes.compare({"m": OLD, "other": OLD}) == {}
    (back,) = changes.compare({"m": OLD, "other": OLD}).values()
    assert back.what == "1/model.py changed", "going back is a change"


BEFORE: Snapshot = {"1/": (0, 0), "1/model.py": (10, 4), "labels.txt": (11, 1)}


@pytest.mark.parametrize(
    ("now", "hidden"),
    [
        pytest.param({**BEFORE, "1/model.py": (12, 4)}, set(), id="a newer file"),
        pytest.param({**BEFORE, "1/model.py": (9, 4)}, {"1"}, id="an older file"),
        pytest.param({**BEFORE, "1/model.py": (10, 5)}, {"1"}, id="another size"),
        pytest.param({**BEFORE, "1/weights": (7, 5)}, {"1"}, id="a file that is older than the newest"),
        pytest.param({**BEFORE, "1/new/": (0, 0), "1/new/file": (13, 1)}, set(), id="a new directory"),
        pytest.param({"1/": (0, 0), "1/model.py": (10, 4)}, {"labels.txt"}, id="a file that is gone"),
        pytest.param({**BEFORE, "1/": (12, 0)}, set(), id="a link in place of a directory"),
        pytest.param({**BEFORE, "2/": (0, 0), "2/model.py": (1, 4)}, set(), id="a version that was not there"),
    ],
)
def test_what_times_need_not_show_is_told(now: Snapshot, hidden: set[str]) -> None:
    changes = Changes({"m": BEFORE})
    changes.compare({"m": now})
    assert changes.compare({"m": now})["m"].hidden == hidden


def test_what_was_put_back_before_anybody_could_tell_is_no_change() -> None:
    changes = Changes({"m": OLD})
    assert [changes.compare({"m": snapshot}) for snapshot in (NEW, OLD, OLD)] == [{}, {}, {}]


def restless(number: int, **files: int) -> Snapshot:
    """Version 1 with *files* of that time, and one more, which is another one for each *number*."""
    return {"1/": (0, 0), "1/x.log": (100 + number, 1), **{f"1/{name}.py": (time, 1) for name, time in files.items()}}


def test_what_rests_is_told_although_another_file_has_not_rested_for_long() -> None:
    changes = Changes({"m": restless(0, model=1, gone=1)})
    looks = [changes.compare({"m": restless(number, model=2, new=1)}) for number in range(1, 9)]
    assert looks[:6] == [{}] * 6 and looks[7] == {}
    (told,) = looks[6].values()
    assert (told.what, told.restless) == ("1/model.py changed, 1/new.py added, 1/gone.py removed", ("1/x.log",))
    assert changes.compare({"m": restless(9, model=3, new=1)}) == {}, "of two looks the first"
    assert changes.compare({"m": restless(10, model=3, new=1)})["m"].what == "1/model.py changed"
    assert changes.compare({"m": restless(10, model=3, new=1)})["m"].what == "1/x.log changed"


def test_a_version_is_not_told_before_all_of_it_is_there() -> None:
    changes = Changes({"m": OLD})
    for number in range(20):
        assert changes.compare({"m": {**NEW, "2/": (0, 0), "2/weights": (number, number)}}) == {}
    assert changes.compare({"m": {**NEW, "2/": (0, 0), "2/weights": (19, 19)}})["m"].what == (
        "1/model.py changed, 2/ added"
    )


def test_a_model_that_comes_is_not_told_before_all_of_it_is_there() -> None:
    changes: Changes[str] = Changes({})
    for number in range(20):
        assert changes.compare({"m": restless(number)}) == {}
    assert changes.compare({"m": restless(19)}) == {"m": Change("added")}


def test_models_come_and_go() -> None:
    changes = Changes({"m": OLD})
    assert changes.compare({"n": OLD}) == {}
    assert changes.compare({"n": OLD}) == {"m": Change("removed", is_gone=True), "n": Change("added")}
    assert changes.compare({"n": OLD}) == {}
    assert changes.compare({"m": NEW, "n": OLD}) == {}
    assert changes.compare({"m": NEW, "n": OLD}) == {"m": Change("added")}


def test_a_line_names_the_first_few_files_that_changed_came_and_went() -> None:
    assert describe_change(OLD, NEW) == "1/model.py changed"
    added = {**OLD, "2/": (0, 0), "2/model.py": (1, 1), "2x.txt": (1, 1)}
    assert describe_change(OLD, added) == "2/ added, 2x.txt added"
    assert describe_change(added, OLD) == "2/ removed, 2x.txt removed"
    many = {**NEW, "a": (1, 1), "b": (1, 1), "c": (1, 1), "d": (1, 1)}
    assert describe_change(OLD, many) == "1/model.py changed, a added, b added, 2 more"
