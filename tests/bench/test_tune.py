"""What is tried, and which of it is best."""

from __future__ import annotations

from array import array
from dataclasses import replace

from pytriton_lite.bench.measuring import Result, figures_of
from pytriton_lite.bench.orders import Window
from pytriton_lite.bench.settings import Level, Pace
from pytriton_lite.bench.tune import Setting, Trial, best_of, settings_to_try


def trial(rate: int, memory_mib: float, *, latency_us: int = 100, failed: int = 0, instances: int = 1) -> Trial:
    figures = figures_of(Window(0, 10**9, array("q", [latency_us * 1000] * rate)), batch=1, percentile=None)
    result = Result(
        Level(Pace.CONCURRENCY, 8), figures, [figures], 0.0, True, 1, False, {"x": failed} if failed else {}, failed, 0, None
    )  # fmt: skip
    return Trial(Setting(instances), result, memory_mib, 1.0, 0.1)


def best(*trials: Trial, threshold_ms: float | None = None) -> Trial | None:
    return best_of(trials, threshold_ms=threshold_ms, percentile=None)


def test_the_best_rate_is_chosen_and_of_equals_the_least_memory() -> None:
    slow, small, fast = trial(500, 50), trial(980, 100), trial(1000, 200)
    assert best(slow, small, fast) is small
    assert best(slow, fast) is fast


def test_a_setting_that_answers_wrongly_or_slowly_is_not_chosen() -> None:
    wrong, slow, right = trial(1000, 1, failed=1), trial(900, 1, latency_us=20_000), trial(100, 1)
    assert best(wrong, slow, right) is slow
    assert best(wrong, slow, right, threshold_ms=10) is right
    assert best(wrong) is None
    assert best(replace(slow, result=None, error="does not load"), right) is right


def test_the_model_as_it_is_comes_first_and_nothing_twice() -> None:
    tried = settings_to_try(2, None, None)
    assert tried[0] == Setting()
    assert len(set(tried)) == len(tried)
    assert {setting.instances for setting in tried} == {None, 1, 2}
    assert settings_to_try(64, [3], [5]) == [Setting(), Setting(3, 5)]


def test_a_setting_is_a_change_of_the_configuration_alone() -> None:
    config = {
        "name": "m",
        "instance_group": [{"kind": "KIND_CPU", "count": 1, "name": "g"}],
        "parameters": {"A": {"string_value": "b"}},
        "dynamic_batching": {"preferred_batch_size": [4]},
    }
    changed = Setting(3, 2, 500).config(config)
    assert changed == {
        "name": "m",
        "instance_group": [{"kind": "KIND_CPU", "count": 3, "name": "g"}],
        "parameters": {"A": {"string_value": "b"}, "ENV:OMP_NUM_THREADS": {"string_value": "2"}},
        "dynamic_batching": {"preferred_batch_size": [4], "max_queue_delay_microseconds": 500},
    }
    assert Setting().config(config) == config
    assert Setting(3, 2, 500).pbtxt(config).splitlines() == [
        "instance_group [{ kind: KIND_CPU count: 3 }]",
        'parameters { key: "ENV:OMP_NUM_THREADS" value: { string_value: "2" } }',
        "dynamic_batching { max_queue_delay_microseconds: 500 }",
    ]


def test_what_is_to_be_written_names_the_kind_and_the_devices_that_were_measured() -> None:
    assert Setting(2).pbtxt({}) == "instance_group [{ kind: KIND_AUTO count: 2 }]"
    group = {"kind": "KIND_GPU", "gpus": [0, 1], "count": 1}
    assert Setting(2).pbtxt({"instance_group": [group]}) == (
        "instance_group [{ kind: KIND_GPU count: 2 gpus: [0, 1] }]"
    )
