"""What ensembles are made of, without files or models (repository.md, section 6)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton_lite.config.ensemble import EnsembleScheduling, EnsembleStep
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.repository.dependencies import (
    ComposingModel,
    check_composing,
    circle_error,
    dependents,
    find_circle,
    load_levels,
    no_longer_needed,
)

GRAPHS = st.dictionaries(
    st.sampled_from("abcdef"), st.lists(st.sampled_from("abcdef"), max_size=3, unique=True).map(tuple), max_size=6
)
"""Ensembles of each other, and of models that are none."""


def ensemble(*steps: tuple[str, int | None]) -> EnsembleScheduling:
    return EnsembleScheduling(tuple(EnsembleStep(model, version, {}, {}) for model, version in steps), 0)


def refusal(steps: EnsembleScheduling, models: Mapping[str, ComposingModel]) -> str:
    with pytest.raises(InferenceError) as caught:
        check_composing("e", steps, models.get)
    assert caught.value.code is ErrorCode.INVALID_ARG
    return caught.value.message


# ---------------------------------------------------------------------------------------------------- texts

A = ComposingModel("a", [1, 3])


def test_models_that_serve_in_the_versions_asked_for_are_taken_once() -> None:
    assert check_composing("e", ensemble(("a", None), ("a", 3), ("a", 1)), {"a": A}.get) == [A]


def test_all_models_that_are_missing_are_named() -> None:
    """Row 57 of repository.md."""
    steps = ensemble(("x", None), ("a", None), ("y", 1), ("x", 2))
    assert refusal(steps, {"a": A}) == "ensemble e contains models that are not available or ambiguous: x, y"


def test_a_version_that_does_not_serve_is_named() -> None:
    """Row 56 of repository.md."""
    assert refusal(ensemble(("a", 3), ("a", 7)), {"a": A}) == (
        "ensemble 'e' depends on 'a' whose required version 7 is not loaded."
    )


def test_a_model_that_does_not_serve_is_named_with_its_failure() -> None:
    """Row 59 of repository.md."""
    start = "ensemble 'e' depends on 'b' which has no loaded version."
    steps = ensemble(("b", 7))
    assert refusal(steps, {"b": ComposingModel("b", [])}) == start
    assert refusal(steps, {"b": ComposingModel("b", [], failure="version 1 is broken;")}) == (
        f"{start} Model 'b' loading failed with error: version 1 is broken;"
    )


def test_an_ensemble_that_is_not_valid_takes_others_with_it() -> None:
    assert refusal(ensemble(("b", None)), {"b": ComposingModel("b", [], "it is wrong", "it failed")}) == (
        "ensemble 'e' depends on 'b' which is not valid. Model 'b' failed with error: it is wrong"
    )


@pytest.mark.parametrize(
    ("circle", "text"),
    [(["a"], "a -> ... -> a -> a"), (["a", "b"], "a -> ... -> b -> a"), (["a", "b", "c"], "a -> ... -> c -> a")],
)
def test_a_circle_is_told_from_its_first_model_to_the_last(circle: list[str], text: str) -> None:
    """Row 58 of repository.md."""
    assert circle_error(circle).message == f"circular dependency between ensembles: {text}"


# ---------------------------------------------------------------------------------------------------- order


def test_a_model_comes_after_those_that_it_is_made_of() -> None:
    composing = {"top": ("mid", "a"), "mid": ("a", "b", "elsewhere"), "a": (), "b": (), "other": ("b",)}
    assert load_levels(composing) == [["a", "b"], ["mid", "other"], ["top"]]


def test_a_circle_has_a_level_to_itself_before_those_that_need_it() -> None:
    composing = {"user": ("x", "a"), "x": ("y",), "y": ("x", "a"), "self": ("self",), "a": ()}
    assert load_levels(composing) == [["a"], ["x", "y", "self"], ["user"]]


@given(GRAPHS)
def test_every_model_is_loaded_once_and_late_enough_unless_there_is_a_circle(
    composing: dict[str, tuple[str, ...]],
) -> None:
    levels = load_levels(composing)
    assert sorted(model for level in levels for model in level) == sorted(composing)
    place = {model: at for at, level in enumerate(levels) for model in level}
    for model, parts in composing.items():
        for part in place.keys() & set(parts):
            assert place[part] < place[model] or find_circle(model, composing)


@given(GRAPHS)
def test_a_circle_leads_from_a_model_to_itself(composing: dict[str, tuple[str, ...]]) -> None:
    def reaches(model: str) -> set[str]:
        """All that it is made of, the slow way."""
        found = set(composing.get(model, ()))
        for _ in range(6):
            found |= {part for known in found for part in composing.get(known, ())}
        return found

    for model in composing:
        circle = find_circle(model, composing)
        assert bool(circle) == (model in reaches(model))
        for this, following in zip(circle, [*circle[1:], model]):
            assert following in composing[this]


def test_who_depends_on_a_model_is_found_through_others_and_ordered() -> None:
    composing = {"top": ("mid", "a"), "mid": ("b",), "low": ("a",), "alone": ("c",)}
    assert dependents(["b"], composing) == ["mid", "top"]
    assert dependents(["a"], composing) == ["low", "top"]
    assert dependents(["a", "mid"], composing) == ["low", "top"]
    assert dependents(["nobody"], composing) == []


# ---------------------------------------------------------------------------------------------------- unloading


@pytest.mark.parametrize(
    ("composing", "explicit", "needless"),
    [
        pytest.param({"e": ("a", "b")}, "", ["a", "b"], id="row 52: what nobody else needs"),
        pytest.param({"e": ("a", "b")}, "a", ["b"], id="row 53: but not what was asked for"),
        pytest.param({"e": ("a", "b"), "f": ("b",)}, "", ["a"], id="nor what another ensemble needs"),
        pytest.param({"e": ("f", "a"), "f": ("a", "b")}, "", ["f", "a", "b"], id="however deep"),
        pytest.param({"e": ("f",), "f": ("a",)}, "f", [], id="nor what something that stays needs"),
        pytest.param({"e": ("e", "f"), "f": ("e",)}, "", ["f"], id="a circle ends"),
        pytest.param({"e": ("a",)}, "", [], id="a model that is no ensemble"),
    ],
)
def test_what_was_loaded_for_an_ensemble_alone_goes_with_it(
    composing: dict[str, tuple[str, ...]], explicit: str, needless: list[str]
) -> None:
    """Rows 52 and 53 of repository.md."""
    model = "e" if needless or explicit else "a"
    assert no_longer_needed(model, composing, is_explicit=lambda part: part in explicit) == needless
