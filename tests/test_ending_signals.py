"""Signals that are one wish, and those that are another."""

from __future__ import annotations

from pytriton_lite.ending_signals import SAME_WISH_NS, EndingSignals, Wish


def test_signals_within_a_second_are_one_wish_and_a_later_one_is_another() -> None:
    now_ns = 7
    signals = EndingSignals(lambda: now_ns)
    assert signals.take() is Wish.END
    assert signals.take() is Wish.SAME
    now_ns += SAME_WISH_NS - 1
    assert signals.take() is Wish.SAME
    now_ns += 1
    assert signals.take() is Wish.END_NOW
