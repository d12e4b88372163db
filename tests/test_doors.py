"""Packages that want the same name behind a door, and one that cannot be imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytriton_lite import doors
from pytriton_lite.core.errors import ErrorCode, InferenceError


@pytest.fixture
def strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path, with two packages: names of the server's own, and one that both have."""
    for package in ("first", "second"):
        about = tmp_path / f"{package}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(
            f"[{doors.REPOSITORY_SOURCES}]\nhf = {package}:source\nboth = {package}:source\n"
            f"[{doors.BACKENDS}]\nonnxruntime = {package}\n{package} = {package}\n"
        )
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("def source(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_what_comes_with_the_server_keeps_its_name(strangers: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert doors.load(doors.REPOSITORY_SOURCES, "hf").__module__ == "pytriton_lite.plugins.hub.source"
    text = f"the plug-in 'hf' ({doors.REPOSITORY_SOURCES}: first:source) is not used: pytriton_lite.plugins.hub.source:"
    assert text in caplog.text


def test_a_backend_of_the_server_keeps_its_name(strangers: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = doors.folders(doors.BACKENDS)
    assert found["onnxruntime"].parts[-2:] == ("plugins", "onnxruntime")
    assert (found["first"], found["second"]) == (strangers / "first", strangers / "second")
    assert "the plug-in 'onnxruntime'" in caplog.text


def test_of_two_strangers_the_first_one_is_used(strangers: Path, caplog: pytest.LogCaptureFixture) -> None:
    used = doors.load(doors.REPOSITORY_SOURCES, "both").__module__
    (passed_over,) = {"first", "second"} - {used}
    assert f"{passed_over}:source) is not used: {used}:source has that name" in caplog.text


def test_names_of_one_alone_are_told_without_a_warning(strangers: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert doors.load(doors.REPOSITORY_SOURCES, "s3") is not None
    assert {"s3", "both"} <= set(doors.names(doors.REPOSITORY_SOURCES))
    assert caplog.text == ""


def test_an_entry_that_names_no_module_is_passed_over(strangers: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The name of a distribution, say, in place of its package's."""
    (strangers / "second-1.0.dist-info" / "entry_points.txt").write_text(
        f"[{doors.BACKENDS}]\nacme = my-plugin\n[{doors.TRACE_SINKS}]\nacme = my-plugin:sink\n"
    )
    assert {"onnxruntime", "first"} <= set(doors.folders(doors.BACKENDS))
    assert f"the plug-in 'acme' ({doors.BACKENDS}: my-plugin) is not used: that is no name of a module" in caplog.text
    assert doors.load(doors.TRACE_SINKS, "acme") is None


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise RuntimeError('no device')", "RuntimeError: no device"),
        ("def", "SyntaxError: invalid syntax (__init__.py, line 1)"),
        ("import nothing_of_that_name", "No module named 'nothing_of_that_name'"),
    ],
)
def test_a_plug_in_that_cannot_be_imported_is_named_whatever_it_raises(
    strangers: Path, monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    (strangers / "second" / "__init__.py").write_text(code)
    (strangers / "second-1.0.dist-info" / "entry_points.txt").write_text(
        f"[{doors.TRACE_SINKS}]\nbroken = second:sink\n"
    )
    monkeypatch.delitem(sys.modules, "second", raising=False)
    with pytest.raises(InferenceError) as caught:
        doors.load(doors.TRACE_SINKS, "broken")
    text = f"the plug-in 'broken' ({doors.TRACE_SINKS}: second:sink) cannot be imported: {reason}"
    assert (caught.value.code, caught.value.message) == (ErrorCode.UNAVAILABLE, text)
