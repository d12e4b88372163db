"""Marks of printed lines: put by the worker, taken by the engine, and never anybody's text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton_lite.ipc.line_mark import LineMark

NUMBER = 0x0123456789ABCDEF
MARK = LineMark(NUMBER)

LINE = st.text(st.characters(exclude_characters="\n\x1e\x1f"))
ID = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1)


@given(ID, LINE)
def test_what_was_put_is_taken(request_id: str, line: str) -> None:
    assert MARK.take(MARK.put(request_id, line, is_mid_line=False)) == (line, request_id)


@given(ID, st.lists(LINE))
def test_every_line_of_a_text_is_marked(request_id: str, lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    marked = MARK.put(request_id, text, is_mid_line=False) if text else ""
    assert [MARK.take(line) for line in marked.split("\n")[:-1]] == [(line, request_id) for line in lines]


def test_the_rest_of_a_line_is_not_marked() -> None:
    assert MARK.put("abc", "rest\nnext", is_mid_line=True) == "rest\n" + MARK.put("abc", "next", is_mid_line=False)


@given(st.text())
def test_text_without_a_mark_is_left_as_it_is(line: str) -> None:
    assert MARK.take(line) == (line, "")


@pytest.mark.parametrize(
    "line",
    [
        LineMark(NUMBER + 1).put("abc", "another worker's", is_mid_line=False),
        f"\x1e{NUMBER:016x} no end",
        f"{NUMBER:016x} abc\x1fno beginning",
    ],
)
def test_what_only_looks_like_a_mark_is_text(line: str) -> None:
    assert MARK.take(line) == (line, "")


def test_a_mark_in_the_middle_is_taken_out() -> None:
    marked = "begun below " + MARK.put("abc", "and ended", is_mid_line=False)
    assert MARK.take(marked) == ("begun below and ended", "abc")


def test_of_two_marks_the_first_counts() -> None:
    line = MARK.put("a", "one ", is_mid_line=False) + MARK.put("b", "two", is_mid_line=False)
    assert MARK.take(line) == ("one two", "a")
