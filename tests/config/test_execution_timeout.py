"""EXECUTION_TIMEOUT_SECONDS of a configuration (docs/instances.md)."""

from __future__ import annotations

import pytest

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.engine.workers.execution_watch import ExecutionLimits
from pytriton_lite.engine.workers.settings import WorkerSettings
from tests.config.test_batching_parameters import MODEL, Load, parameter

NAME = "EXECUTION_TIMEOUT_SECONDS"


def settings(**fields: float | bool) -> WorkerSettings:
    return WorkerSettings("", "", 0, 1, 1, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(("value", "seconds"), [("20", 20), ("0.25", 0.25), ("0", 0)])
def test_a_model_says_how_long_its_executions_may_take(load: Load, value: str, seconds: float) -> None:
    assert load(MODEL + parameter(NAME, value)).execution_timeout_s == seconds


@pytest.mark.parametrize(("own", "seconds"), [("", 5.0), (parameter(NAME, "20"), 20.0), (parameter(NAME, "0"), 0.0)])
def test_its_own_limit_goes_before_the_servers_also_when_it_is_none(load: Load, own: str, seconds: float) -> None:
    server = settings(execution_timeout_s=5.0, slow_execution_s=30.0)
    assert server.execution_limits(load(MODEL + own)) == ExecutionLimits(seconds, 30.0)


def test_nothing_holds_where_executions_are_not_watched(load: Load) -> None:
    server = settings(execution_timeout_s=5.0, slow_execution_s=30.0, watches_executions=False)
    assert server.execution_limits(load(MODEL + parameter(NAME, "20"))) == ExecutionLimits()


@pytest.mark.parametrize("value", ["", "-1", "1e3", "inf", "nan", "ten", "9" * 10, " 1", "٣"])
def test_what_is_no_number_of_seconds_is_refused(load: Load, value: str) -> None:
    with pytest.raises(InferenceError) as caught:
        load(MODEL + parameter(NAME, value))
    assert caught.value.message == f"Incorrect value for {NAME}: expected seconds, 0 for no limit, got '{value}'"
