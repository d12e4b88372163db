"""Whether an execution may be slow of which most are quick."""

from __future__ import annotations

from pytriton_lite.core.pace import SLOW_NS, Pace

MINUTE_NS = 60_000_000_000


def test_a_slow_execution_is_remembered_for_a_minute_however_many_quick_ones_follow() -> None:
    pace = Pace()
    pace.add(0, SLOW_NS)
    assert not pace.may_be_slow
    pace.add(0, SLOW_NS + 1)
    for _ in range(10_000):
        pace.add(SLOW_NS + 1, SLOW_NS + 2)
    assert pace.may_be_slow
    pace.add(MINUTE_NS + SLOW_NS - 1, MINUTE_NS + SLOW_NS)
    assert pace.may_be_slow
    pace.add(MINUTE_NS + SLOW_NS, MINUTE_NS + SLOW_NS + 1)
    assert not pace.may_be_slow
