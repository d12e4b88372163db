"""Which versions front ends may name by their stamps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytriton_lite.core.states import VersionState
from pytriton_lite.frontends.process.numbering import ModelNumbers, StampedVersions

FAKES = pytest.mark.interpreted("versions are fakes")


def version(stamp: int, state: VersionState = VersionState.READY) -> Any:
    return SimpleNamespace(stamp=stamp, state=state)


@FAKES
def test_a_version_is_found_by_its_stamp_for_as_long_as_its_name_has_it() -> None:
    versions = StampedVersions()
    old, new, other = version(1), version(2), version(3)
    versions.keep("m", [old])
    versions.keep("other", [other])
    assert versions.get(1) is old
    versions.keep("m", [new])
    assert (versions.get(1), versions.get(2), versions.get(3)) == (None, new, other)
    versions.keep("m", [])
    assert (versions.get(2), versions.get(3)) == (None, other)


@FAKES
@pytest.mark.parametrize("state", [state for state in VersionState if state is not VersionState.READY])
def test_a_version_that_is_not_ready_is_looked_for_by_its_name(state: VersionState) -> None:
    """Whoever was told before it changed gets the text that it would get without front ends."""
    versions = StampedVersions()
    versions.keep("m", [version(1, state)])
    assert versions.get(1) is None


def test_a_name_keeps_its_number() -> None:
    numbers = ModelNumbers()
    assert [numbers.number(name) for name in ("a", "b", "a", "c", "b")] == [0, 1, 0, 2, 1]
    assert [numbers.name(number) for number in range(3)] == ["a", "b", "c"]
