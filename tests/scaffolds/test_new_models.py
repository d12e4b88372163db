"""``pytriton-lite new``: what it writes checks, passes its own tests and is what our formatter makes of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytriton_lite import cli
from pytriton_lite.scaffolds import Kind, ScaffoldError, create


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], cwd=cwd, capture_output=True, text=True, timeout=200)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a model of each kind, named after it."""
    models = tmp_path_factory.mktemp("scaffolds") / "models"
    for kind in Kind:
        create(models / f"my-{kind.value}", kind)
    return models


def test_each_kind_is_three_files_and_a_model_that_is_called_is_three_more(repository: Path) -> None:
    found = {str(path.relative_to(repository)) for path in repository.rglob("*") if path.is_file()}
    names = [*(kind.value for kind in Kind), "calls_called"]
    assert found == {
        file
        for name in names
        for file in (f"my-{name}/config.pbtxt", f"my-{name}/1/model.py", f"my-{name}/test_my_{name}.py")
    }


def test_a_repository_of_all_kinds_has_no_finding(repository: Path) -> None:
    done = run("pytriton_lite", "check", "--warnings-as-errors", str(repository), cwd=repository)
    assert (done.returncode, done.stdout) == (0, "6 models, 0 errors, 0 warnings\n")


def test_their_own_tests_pass_on_real_servers_too(repository: Path) -> None:
    plugin = ("-p", "pytriton_lite.pytest_plugin", "-p", "no:cacheprovider")
    done = run("pytest", "-q", "-W", "error", *plugin, ".", cwd=repository)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "19 passed" in done.stdout


def test_the_formatter_and_the_linter_have_nothing_to_add(repository: Path) -> None:
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or "ruff"
    for command in (["format", "--check"], ["check", "--select=E,F,W,I,B,UP,SIM"]):
        done = subprocess.run(
            [ruff, *command, "--isolated", "--no-cache", "--line-length=120", str(repository)],
            cwd=repository,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("7", "a directory named by a number is a version"),
        ("-model", "expected letters, digits"),
        (".hidden", "expected letters, digits"),
        ("a model", "expected letters, digits"),
    ],
)
def test_a_name_that_would_not_serve_is_refused(tmp_path: Path, name: str, expected: str) -> None:
    with pytest.raises(ScaffoldError, match=expected):
        create(tmp_path / name, Kind.PLAIN)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_overwritten_nor_is_half_a_pair_written(tmp_path: Path) -> None:
    (tmp_path / "mine_called").mkdir()
    (tmp_path / "mine_called" / "config.pbtxt").write_text("mine")
    with pytest.raises(ScaffoldError, match=r"mine_called' exists and is not empty; nothing was written"):
        create(tmp_path / "mine", Kind.CALLS)
    assert not (tmp_path / "mine").exists()
    assert (tmp_path / "mine_called" / "config.pbtxt").read_text() == "mine"


def test_files_of_tests_have_names_that_pytest_can_collect_together(tmp_path: Path) -> None:
    tests = [create(tmp_path / name, Kind.PLAIN)[-1].name for name in ("a.b", "a_b", "a-b")]
    assert tests == ["test_a_b.py", "test_a_b_2.py", "test_a_b_3.py"]
    done = run("pytest", "--collect-only", "--quiet", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_file_in_the_way_is_told_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ScaffoldError, match=r"cannot (read|write) '.*file/models/x"):
        create(tmp_path / "file" / "models" / "x", Kind.PLAIN)


def test_the_command_prints_its_files_and_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["new", str(tmp_path / "models" / "shout"), "--kind=decoupled"]) == 0
    folder = tmp_path / "models" / "shout"
    assert capsys.readouterr().out.splitlines() == [
        f"{folder}/config.pbtxt",
        f"{folder}/1/model.py",
        f"{folder}/test_shout.py",
        "",
        f"Test it:   pytest {folder}/test_shout.py",
        f"Serve it:  pytriton-lite serve {folder.parent} --watch",
    ]


def test_the_command_says_what_was_wrong_and_ends_with_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, expected in (
        ([], "new needs the folder of one model"),
        (["x", "--kind=fast"], "expected one of plain, batching"),
        ([str(tmp_path)], "exists and is not empty"),
        (["x", "--knd=plain"], "--knd=plain"),
    ):
        (tmp_path / "there").touch()
        assert cli.main(["new", *arguments]) == 1
        streams = capsys.readouterr()
        assert expected in streams.err
        assert streams.out == ""


def test_help_names_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["new", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {kind.value} " in shown for kind in Kind)
