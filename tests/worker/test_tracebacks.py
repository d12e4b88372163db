"""The text of an exception as a client sees it (model API, shorthand TB)."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from pytriton_lite.worker.tracebacks import describe


def raised_by(function: object, *arguments: object) -> BaseException:
    try:
        function(*arguments)  # type: ignore[operator]
    except BaseException as error:
        # Without this frame, which is the test's.
        assert error.__traceback__ is not None
        return error.with_traceback(error.__traceback__.tb_next)
    raise AssertionError("nothing was raised")


def inner() -> None:
    raise ValueError("boom\nsecond line")


def outer() -> None:
    inner()


def test_frames_stand_innermost_first() -> None:
    inner_line = inner.__code__.co_firstlineno + 1
    outer_line = outer.__code__.co_firstlineno + 1
    assert describe(raised_by(outer)) == (
        f"ValueError: boom\nsecond line\n\nAt:\n  {__file__}({inner_line}): inner\n  {__file__}({outer_line}): outer\n"
    )


def test_an_exception_without_frames_is_its_first_line() -> None:
    assert describe(ValueError("boom")) == "ValueError: boom"


def test_an_empty_message_is_said_to_be_empty() -> None:
    assert describe(ValueError()) == "ValueError: <EMPTY MESSAGE>"


def test_chained_causes_are_not_shown() -> None:
    def chained() -> None:
        try:
            inner()
        except ValueError as error:
            raise KeyError("k") from error

    text = describe(raised_by(chained))
    assert text.startswith("KeyError: 'k'\n\nAt:\n")
    assert "boom" not in text
    assert text.count("\n  ") == 1


@pytest.mark.parametrize("failure", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_an_exception_whose_text_cannot_be_made_still_has_its_class(failure: type[BaseException]) -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise failure("no text for you")

    assert describe(Unprintable()) == "Unprintable: <MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"


def test_a_syntax_error_names_file_and_line_in_its_first_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """model_api.md row 9: no frames of importlib."""
    (tmp_path / "broken_syntax.py").write_text("def def\n")
    monkeypatch.syspath_prepend(tmp_path)
    text = describe(raised_by(importlib.import_module, "broken_syntax"))
    assert text.splitlines()[0] == "SyntaxError: invalid syntax (broken_syntax.py, line 1)"
    assert "frozen importlib" not in text
    assert "broken_syntax" not in sys.modules


def test_a_syntax_error_of_a_models_own_has_the_text_that_it_says() -> None:
    class Misspelt(SyntaxError):
        def __str__(self) -> str:
            return "a rule is misspelt"

    assert describe(Misspelt("unexpected", ("rules.txt", 3, 1, "x"))) == "Misspelt: a rule is misspelt"
    assert describe(SyntaxError("unexpected", (b"rules.txt", 3, 1, "x"))) == "SyntaxError: unexpected (line 3)"
