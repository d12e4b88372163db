"""The state machines: every state is in its table, and nothing moves outside it."""

from __future__ import annotations

import enum
import itertools

import pytest

from pytriton_lite.core.errors import BugError
from pytriton_lite.core.states import (
    INSTANCE_TRANSITIONS,
    SERVER_TRANSITIONS,
    VERSION_TRANSITIONS,
    InstanceState,
    ServerState,
    Transitions,
    VersionState,
    move,
)

MACHINES: list[tuple[type[enum.Enum], Transitions[enum.Enum], enum.Enum]] = [
    (VersionState, VERSION_TRANSITIONS, VersionState.UNKNOWN),  # type: ignore[list-item]
    (InstanceState, INSTANCE_TRANSITIONS, InstanceState.STARTING),  # type: ignore[list-item]
    (ServerState, SERVER_TRANSITIONS, ServerState.STARTING),  # type: ignore[list-item]
]
EACH = pytest.mark.parametrize(("states", "table", "first"), MACHINES, ids=lambda x: getattr(x, "__name__", ""))


@EACH
def test_every_state_has_its_line(states: type[enum.Enum], table: Transitions[enum.Enum], first: enum.Enum) -> None:
    assert set(table) == set(states)


@EACH
def test_every_state_can_be_reached(states: type[enum.Enum], table: Transitions[enum.Enum], first: enum.Enum) -> None:
    reached = {first}
    while more := {target for state in reached for target in table[state]} - reached:
        reached |= more
    assert reached == set(states)


@EACH
def test_a_move_is_made_exactly_if_the_table_has_it(
    states: type[enum.Enum], table: Transitions[enum.Enum], first: enum.Enum
) -> None:
    for current, target in itertools.product(states, states):
        if target in table[current]:
            assert move(table, current, target) is target
        else:
            with pytest.raises(BugError) as caught:
                move(table, current, target)
            assert str(caught.value) == f"illegal move of {states.__name__}: {current.name} -> {target.name}"


def test_what_has_stopped_stays_so() -> None:
    assert INSTANCE_TRANSITIONS[InstanceState.STOPPED] == SERVER_TRANSITIONS[ServerState.STOPPED] == frozenset()


def test_version_states_are_named_as_the_index_prints_them() -> None:
    """repository.md section 2."""
    assert [state.value for state in VersionState] == ["UNKNOWN", "LOADING", "READY", "UNLOADING", "UNAVAILABLE"]
