"""Which model a name means (repository.md, sections 1.2 and 2)."""

from __future__ import annotations

import pytest

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.engine.models.catalog import Models
from pytriton_lite.repository.index import ModelId

ONE, TWO, PLAIN = ModelId("one", "m"), ModelId("two", "m"), ModelId("", "m")


def refusal(models: Models, name: str = "m", namespace: str = "") -> tuple[ErrorCode, str]:
    with pytest.raises(InferenceError) as caught:
        models.find(name, None, namespace)
    return caught.value.code, caught.value.message


def none_ready(model: ModelId) -> tuple[ErrorCode, str]:
    return ErrorCode.NOT_FOUND, f"Request for unknown model: '{model}' has no available versions"


NOT_FOUND = ErrorCode.NOT_FOUND, "Request for unknown model: 'm' is not found"
AMBIGUOUS = (
    ErrorCode.INVALID_ARG,
    "There are 2 identifiers of model 'm' in global map, model namespace must be provided to resolve ambiguity.",
)


def load(models: Models, *ids: ModelId) -> None:
    for model in ids:
        models.know(model)
        models.see(model)


def test_a_model_is_found_by_its_name_also_when_it_was_unloaded() -> None:
    models = Models()
    assert refusal(models) == NOT_FOUND
    assert not models.is_named("m")
    load(models, PLAIN)
    assert refusal(models) == none_ready(PLAIN)
    models.forget(PLAIN)
    assert refusal(models) == none_ready(PLAIN)
    assert models.is_named("m")


def test_a_model_that_was_refused_is_known_and_not_found() -> None:
    models = Models()
    models.know(PLAIN)
    assert models.is_named("m")
    assert refusal(models) == NOT_FOUND


def test_a_name_of_several_means_none_until_all_others_are_unloaded() -> None:
    """Row 63 of repository.md."""
    models = Models()
    load(models, ONE)
    assert refusal(models) == none_ready(ONE)
    load(models, TWO)
    assert refusal(models) == AMBIGUOUS
    models.forget(TWO)
    assert refusal(models) == none_ready(ONE)
    models.forget(ONE)
    assert refusal(models) == none_ready(TWO), "the one that came last"


def test_an_ensemble_means_a_model_of_its_namespace_first() -> None:
    """Row 63 of repository.md."""
    models = Models()
    load(models, ONE, TWO)
    assert refusal(models, namespace="two") == none_ready(TWO)
    assert refusal(models, namespace="three") == AMBIGUOUS
    assert models.resolve("m", "one") is models.known[ONE]
    assert models.resolve("m", "three") is None
    models.forget(TWO)
    assert refusal(models, namespace="two") == none_ready(ONE)
    assert models.resolve("m", "two") is models.known[ONE]
