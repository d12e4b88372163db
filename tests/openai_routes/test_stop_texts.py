"""Stop texts in answers that come in pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytriton_lite.openai.stop_texts import StopScanner

PIECES = st.lists(st.text("ab", max_size=4), max_size=8)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3)


@given(PIECES, STOPS)
def test_text_ends_before_the_first_stop_however_it_is_cut(pieces: list[str], stops: list[str]) -> None:
    scanner = StopScanner(stops)
    passed = "".join(map(scanner.feed, pieces)) + scanner.rest()
    whole = "".join(pieces)
    ends = [at for at in map(whole.find, stops) if at >= 0]
    if not ends:
        assert passed == whole and not scanner.is_stopped
        return
    assert scanner.is_stopped
    assert whole.startswith(passed)
    # A stop that ended in an earlier piece counts, though another one would have begun before it.
    assert any(whole.startswith(stop, len(passed)) for stop in stops)


def test_only_what_could_become_a_stop_is_held_back() -> None:
    scanner = StopScanner(["END"])
    assert [scanner.feed(piece) for piece in ("one E", "two EN", "D three")] == ["one ", "Etwo ", ""]
    assert scanner.is_stopped
