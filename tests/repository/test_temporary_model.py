"""Files of a load request as a model directory: repository.md, section 5.1, rows 43 to 46."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from pytriton_lite.config.errors import PollError
from pytriton_lite.repository.override import TemporaryModel


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary directories are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_files_are_there_until_the_model_is_removed(temporary: Path) -> None:
    model = TemporaryModel("m", {"1/model.py": b"one", "3/deep/er/data": b"\0\1", "/2/model.py": b"two"})
    assert (model.directory.name, model.directory.versions) == ("m", (1, 2, 3))
    assert model.directory.path.name == "m"
    assert (model.directory.path / "1" / "model.py").read_bytes() == b"one"
    assert (model.directory.path / "2" / "model.py").read_bytes() == b"two", "as Triton reads a leading slash"
    assert (model.directory.path / "3" / "deep" / "er" / "data").read_bytes() == b"\0\1"
    model.remove()
    assert list(temporary.iterdir()) == []


def test_a_path_may_turn_back_as_long_as_it_stays_inside(temporary: Path) -> None:
    model = TemporaryModel("m", {"1/../2/model.py": b""})
    assert model.directory.versions == (2,)
    model.remove()


@pytest.mark.parametrize("name", ["../x", "1/../../x", "..", "", ".", "1/..", "//../x", "../m"])
def test_a_path_that_leaves_the_directory_is_refused(temporary: Path, name: str) -> None:
    with pytest.raises(PollError, match=r"^Invalid file parameter 'file:.*' must stay within model directory\.$"):
        TemporaryModel("m", {"1/model.py": b"", name: b""})
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("files", [{"1": b"", "1/model.py": b""}, {"1/model.py": b"", "1": b""}, {"1/\0": b""}])
def test_what_cannot_be_written_is_refused(temporary: Path, files: dict[str, bytes]) -> None:
    with pytest.raises(PollError, match=r"^the files of the load request cannot be written: "):
        TemporaryModel("m", files)
    assert list(temporary.iterdir()) == []


def test_folders_that_could_not_be_removed_again_are_not_made(temporary: Path) -> None:
    TemporaryModel("m", {"1/" + "a/" * 199 + "x": b""}).remove()
    for depth in (200, 1500):
        with pytest.raises(PollError, match="it has more than 200 folders inside each other"):
            TemporaryModel("m", {"1/model.py": b"", "1/" + "a/" * depth + "x": b""})
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("name", [".", "a\0b", "x" * 300])
def test_a_name_that_no_directory_can_have_is_refused(temporary: Path, name: str) -> None:
    with pytest.raises(PollError, match=r"^the files of the load request cannot be written: "):
        TemporaryModel(name, {"1/model.py": b""})
    assert list(temporary.iterdir()) == []
