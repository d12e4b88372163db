"""How the failure of a load is told to the person who wrote the model."""

from __future__ import annotations

from pathlib import Path

from pytriton_lite.engine.models.load_failure import LoadFailure, explain_failure


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_innermost_line_of_the_model_comes_first_and_libraries_are_left_out(tmp_path: Path) -> None:
    helper = write(tmp_path / "m/1/helper.py", "import numpy\ndef boom():\n    numpy.zeros(-1)\n")
    model = write(tmp_path / "m/1/model.py", "from helper import boom\nboom()\n")
    frames = f"  /lib/numpy.py(7): zeros\n  {helper}(3): boom\n  {model}(2): <module>\n"
    reason = f"Internal: ValueError: negative\nsecond line\n\nAt:\n{frames}"
    assert explain_failure(reason, tmp_path / "m").splitlines() == [
        f"{helper}:3: ValueError: negative",
        "    second line",
        "  1/helper.py:3 in boom",
        "    numpy.zeros(-1)",
        "  1/model.py:2 in <module>",
        "    boom()",
    ]


def test_frames_that_several_requests_of_a_warm_up_share_are_shown_once(tmp_path: Path) -> None:
    model = write(tmp_path / "m/1/model.py", "boom()\n")
    error = f"ValueError: x\n\nAt:\n  {model}(1): execute\n"
    reason = f"Invalid argument: failed to run warmup sample 'two': {error}; {error}; "
    assert explain_failure(reason, tmp_path / "m").splitlines() == [
        f"{model}:1: failed to run warmup sample 'two': ValueError: x",
        "  1/model.py:1 in execute",
        "    boom()",
    ]


def test_frames_of_libraries_are_better_than_none(tmp_path: Path) -> None:
    reason = "ValueError: x\n\nAt:\n  /lib/numpy.py(7): zeros\n"
    assert explain_failure(reason, tmp_path) == "/lib/numpy.py:7: ValueError: x\n  /lib/numpy.py:7 in zeros"


def test_a_syntax_error_is_shown_with_its_line(tmp_path: Path) -> None:
    model = write(tmp_path / "m/1/model.py", "\n  print(\n")
    reason = "Internal: SyntaxError: '(' was never closed (model.py, line 2)"
    assert explain_failure(reason, tmp_path / "m") == f"{model}:2: SyntaxError: '(' was never closed\n    print("
    write(tmp_path / "m/2/model.py", "")
    assert explain_failure(reason, tmp_path / "m") == reason.removeprefix("Internal: "), (
        "of two files nobody knows which"
    )


def test_what_has_no_place_stays_as_it_is(tmp_path: Path) -> None:
    assert (
        explain_failure("the model's worker ended with signal 11", tmp_path)
        == "the model's worker ended with signal 11"
    )


def test_the_summary_of_what_an_installer_says_has_its_error(tmp_path: Path) -> None:
    def summary(*lines: str) -> str:
        return LoadFailure("m", 1, "\n".join(["Internal: the installer exited with code 1:", *lines]), tmp_path).summary

    told = "model 'm' version 1: the installer exited with code 1:"
    assert summary("WARNING: slow", "ERROR: no package x", "pip: exited") == f"{told} ERROR: no package x …"
    assert summary("  × no package x", "pip: exited") == f"{told} × no package x …"
