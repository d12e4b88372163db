"""Which versions a policy selects. ``row`` in an id is one of model_config.md."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.config.normalise import normalise
from pytriton_lite.config.text import parse_model_config
from pytriton_lite.core.errors import ErrorCode
from pytriton_lite.repository.version_policy import (
    Selection,
    missing_version_text,
    no_version_error,
    select_versions,
)


def config(policy: str) -> ModelConfig:
    message = parse_model_config(policy, source="config.pbtxt")
    normalise(message)
    return ModelConfig.from_message(message)


@pytest.mark.parametrize(
    ("policy", "existing", "selection"),
    [
        pytest.param("", (1, 10, 2), Selection((10,)), id="the largest number by default"),
        pytest.param("version_policy { latest { num_versions: 2 } }", (1, 10, 2), Selection((2, 10)), id="latest two"),
        pytest.param(
            "version_policy { latest { num_versions: 9 } }", (1, 2), Selection((1, 2)), id="more than there are"
        ),
        pytest.param("version_policy { latest { } }", (1, 2), Selection(()), id="row 68, latest 0"),
        pytest.param("version_policy { all { } }", (3, 0), Selection((0, 3)), id="all"),
        pytest.param("version_policy { }", (3, 1), Selection((1, 3)), id="row 69, an empty policy"),
        pytest.param(
            "version_policy { specific { versions: [7, 3, 1, 3] } }", (1, 2, 3), Selection((1, 3), (7,)), id="specific"
        ),
        pytest.param("version_policy { specific { versions: 7 } }", (1,), Selection((), (7,)), id="row 68, specific"),
        pytest.param("version_policy { specific { } }", (1,), Selection(()), id="specific, none listed"),
        pytest.param("", (), Selection(()), id="no version directory"),
    ],
)
def test_policy_selects(policy: str, existing: tuple[int, ...], selection: Selection) -> None:
    assert select_versions(config(policy), existing) == selection


@given(st.sets(st.integers(0, 50)), st.lists(st.integers(0, 50), max_size=5))
def test_specific_versions_are_selected_or_missing(existing: set[int], listed: list[int]) -> None:
    selection = select_versions(config(f"version_policy {{ specific {{ versions: {listed} }} }}"), existing)
    assert sorted((*selection.selected, *selection.missing)) == sorted(set(listed))
    assert set(selection.selected) <= existing
    assert existing.isdisjoint(selection.missing)


def test_empty_selection_has_its_text() -> None:
    """model_config.md row 68."""
    error = no_version_error("m")
    assert error.code is ErrorCode.INVALID_ARG
    assert error.message == "at least one version must be available under the version policy of model 'm'"


def test_missing_version_has_its_text() -> None:
    assert missing_version_text("m", 7) == (
        "version 7 is specified for model 'm', but the version directory is not present"
    )
