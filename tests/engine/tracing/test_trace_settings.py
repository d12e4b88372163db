"""The state of the trace settings, and who is sampled (HTTP spec, section 14). Counting was asked of Triton 2.51."""

from __future__ import annotations

import pytest

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.engine.tracing.options import OPENTELEMETRY, TraceLevel, TraceOptions
from pytriton_lite.engine.tracing.settings import TraceSettings, read_levels, read_number, show

TIMESTAMPS = (TraceLevel.TIMESTAMPS,)
TENSORS = (TraceLevel.TENSORS,)


def settings(**options: object) -> TraceSettings:
    given: dict[str, object] = {"levels": TIMESTAMPS, "rate": 1, "file": "trace.json", **options}
    return TraceSettings(TraceOptions(**given))  # type: ignore[arg-type]


def sampled(state: TraceSettings, model: str, requests: int) -> list[int]:
    """Which of so many requests are, counted from 1."""
    return [number for number in range(1, requests + 1) if state.samples(model)]


def refusal(state: TraceSettings, changes: dict[str, object], model: str = "") -> str:
    with pytest.raises(InferenceError) as raised:
        state.update(changes, model)
    assert raised.value.code is ErrorCode.INVALID_ARG
    return raised.value.message


class TestFallingBack:
    def test_a_model_follows_the_server_and_the_server_its_start(self) -> None:
        state = settings(rate=1000)
        state.update({"rate": 5})
        state.update({"rate": 7}, "m")
        assert [state.effective(model).rate for model in ("", "m", "other")] == [5, 7, 5]
        state.update({"rate": None}, "m")
        assert state.effective("m").rate == 5
        state.update({"rate": None})
        assert [state.effective(model).rate for model in ("", "m")] == [1000, 1000]

    def test_what_a_model_does_not_set_goes_on_following(self) -> None:
        state = settings(rate=1000)
        state.update({"rate": 7}, "m")
        state.update({"levels": TENSORS, "log_frequency": 3})
        effective = state.effective("m")
        assert (effective.levels, effective.rate, effective.log_frequency) == (TENSORS, 7, 3)

    def test_levels_of_a_model_can_be_off_and_others_on(self) -> None:
        state = settings()
        state.update({"levels": ()}, "m")
        assert (sampled(state, "m", 2), sampled(state, "other", 2)) == ([], [1, 2])
        assert state.is_on_anywhere
        state.update({"levels": ()})
        assert not state.is_on_anywhere


class TestSampling:
    def test_every_third_request_from_the_third_on(self) -> None:
        assert sampled(settings(rate=3), "m", 10) == [3, 6, 9]

    def test_models_that_follow_the_server_are_counted_together(self) -> None:
        state = settings(rate=2)
        assert [state.samples(model) for model in ("a", "b", "a", "b")] == [False, True, False, True]

    def test_a_model_with_settings_of_its_own_is_counted_alone(self) -> None:
        state = settings(rate=2)
        state.update({"rate": 3}, "own")
        assert [state.samples(model) for model in ("own", "a", "own", "a", "own")] == [False, False, False, True, True]

    def test_the_count_runs_down_and_shows(self) -> None:
        state = settings(count=3)
        assert sampled(state, "m", 5) == [1, 2, 3]
        assert state.effective("m").count == 0
        state.update({"count": 1})
        assert sampled(state, "m", 5) == [1]
        state.update({"count": -1})
        assert (sampled(state, "m", 2), state.effective().count) == ([1, 2], None)

    def test_a_model_that_does_not_set_a_count_takes_from_the_servers(self) -> None:
        state = settings(count=3)
        state.update({"rate": 2}, "own")
        assert (sampled(state, "own", 2), sampled(state, "other", 5)) == ([2], [1, 2])

    def test_a_change_of_something_else_leaves_what_is_left_of_the_count(self) -> None:
        state = settings(count=5)
        assert sampled(state, "m", 2) == [1, 2]
        state.update({"log_frequency": 2})
        assert state.effective().count == 3
        state.update({"count": 4}, "own")
        assert sampled(state, "own", 1) == [1]
        state.update({"rate": 1}, "own")
        state.update({"levels": TIMESTAMPS})
        assert [state.effective(model).count for model in ("", "own")] == [3, 3]
        state.update({"count": 5})
        assert [state.effective(model).count for model in ("", "own")] == [5, 3]
        state.update({"count": None}, "own")
        assert state.effective("own").count == 5

    def test_a_context_of_a_client_is_taken_whatever_rate_and_count(self) -> None:
        state = settings(rate=0, count=0, mode=OPENTELEMETRY)
        assert [state.samples("m"), state.samples("m", is_forced=True)] == [False, True]
        state.update({"levels": ()})
        assert not state.samples("m", is_forced=True)

    def test_nothing_is_taken_that_has_no_file_to_go_to(self) -> None:
        state = settings(file="")
        assert (sampled(state, "m", 2), state.is_on_anywhere) == ([], False)


class TestRefusing:
    def test_a_rate_of_nothing_while_tracing(self) -> None:
        text = "Attempting to set invalid trace setting :sample rate must be non-zero"
        state = settings()
        assert refusal(state, {"rate": 0}) == refusal(state, {"rate": 0}, "m") == text
        assert (state.effective().rate, state.effective("m").rate) == (1, 1)
        state.update({"rate": 0, "levels": ()})
        assert refusal(state, {"levels": TIMESTAMPS}) == text

    def test_a_level_without_a_file(self) -> None:
        state = settings(levels=(), file="")
        text = "Attempting to set invalid trace setting :trace file name is not given"
        assert refusal(state, {"levels": TIMESTAMPS}) == text
        assert state.effective().levels == ()

    def test_opentelemetry_needs_neither(self) -> None:
        state = settings(levels=(), file="", mode=OPENTELEMETRY)
        state.update({"levels": TIMESTAMPS, "rate": 0})
        assert state.is_on_anywhere


class TestReading:
    def test_unknown_levels_say_nothing(self) -> None:
        assert read_levels(["TENSORS", "MIN", "TIMESTAMPS", "TENSORS"]) == (*TIMESTAMPS, *TENSORS)
        assert read_levels(["min", "timestamps"]) is read_levels([]) is None
        assert read_levels(["OFF"]) == ()

    @pytest.mark.parametrize("text", ["5", " 5", "5x", "+5"])
    def test_a_leading_number_is_read(self, text: str) -> None:
        assert read_number("trace_rate", text, blank="") == 5

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("trace_rate", "x", "Unable to parse 'trace_rate', got: x"),
            ("trace_rate", "", "Unable to parse 'trace_rate', got: "),
            (
                "log_frequency",
                "99999999999",
                "Unable to parse 'log_frequency', value is out of range [ 0, 4294967295 ], got: 99999999999",
            ),
            ("trace_rate", "-1", "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: -1"),
            (
                "trace_rate",
                "9" * 5000,
                "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 99",
            ),
            (
                "trace_count",
                "3000000000",
                "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: 3000000000",
            ),
            ("trace_count", "-2", "Unable to parse 'trace_count'. Expecting value >= -1, got: -2"),
        ],
    )
    def test_what_is_no_number_is_refused(self, name: str, text: str, message: str) -> None:
        with pytest.raises(InferenceError) as raised:
            read_number(name, text, blank=" ")
        assert raised.value.code is ErrorCode.INVALID_ARG
        assert raised.value.message.startswith(message)

    def test_the_modes_show_different_rows(self) -> None:
        assert list(show(settings())) == [
            "trace_level",
            "trace_rate",
            "trace_count",
            "log_frequency",
            "trace_file",
            "trace_mode",
        ]
        assert "log_frequency" not in show(settings(mode=OPENTELEMETRY))
