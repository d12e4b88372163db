"""Which instances stay when a version gets other instance groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytriton_lite.config.instances import InstanceSpec, resolve_instance_groups
from pytriton_lite.config.model_config import ModelConfig, instance_names, parse_model_config, regrouped
from pytriton_lite.config.openai import ChatTemplate
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.engine.serving.regrouping import match, with_free_names

GPUS = (0, 1)


def config_of(groups: str, *, more: str = "") -> ModelConfig:
    message = parse_model_config(f'name: "m" backend: "python" {more} {groups}', source="config.pbtxt")
    resolve_instance_groups(message, GPUS)
    return ModelConfig.from_message(message)


def specs(groups: str) -> list[InstanceSpec]:
    return list(instance_names(config_of(groups)))


def change(before: str, after: str) -> tuple[list[str], list[str]]:
    """The names of those that stay, and of those that are created."""
    there = dict(enumerate(specs(before)))
    kept, missing = match(specs(after), there)
    stay = [there[at] for at in sorted(kept)]
    leaving = [there[at] for at in there if at not in kept]
    return [spec.name for spec in stay], [spec.name for spec in with_free_names(missing, kept=stay, leaving=leaving)]


CPU = "instance_group { kind: KIND_CPU count: %d }"


@pytest.mark.parametrize(
    ("before", "after", "kept", "created"),
    [
        pytest.param(CPU % 1, CPU % 3, ["m_0_0"], ["m_0_1", "m_0_2"], id="more"),
        pytest.param(CPU % 3, CPU % 1, ["m_0_0"], [], id="fewer"),
        pytest.param(
            CPU % 2, 'instance_group { name: "g" kind: KIND_CPU count: 2 }', ["m_0_0", "m_0_1"], [], id="renamed"
        ),
        pytest.param(CPU % 1, "instance_group { kind: KIND_MODEL count: 1 }", [], ["m_0_0"], id="another kind"),
        pytest.param(
            CPU % 1, "instance_group { kind: KIND_CPU passive: true }", [], ["m_0_0"], id="passive is another setting"
        ),
        pytest.param(
            CPU % 1,
            "instance_group { kind: KIND_CPU rate_limiter { priority: 2 } }",
            [],
            ["m_0_0"],
            id="what it needs is another setting",
        ),
        pytest.param(
            CPU % 1, 'instance_group { kind: KIND_CPU host_policy: "p" }', [], ["m_0_0"], id="policy is another setting"
        ),
        pytest.param(
            CPU % 2,
            'instance_group { name: "g" kind: KIND_CPU } instance_group { name: "m_0" kind: KIND_CPU count: 2 }',
            ["m_0_0", "m_0_1"],
            ["g_0"],
            id="names decide first",
        ),
        pytest.param(
            'instance_group { name: "a" kind: KIND_CPU count: 2 }',
            'instance_group { name: "b" kind: KIND_CPU count: 2 } instance_group { name: "a" kind: KIND_MODEL count: 2 }',
            ["a_0", "a_1"],
            ["a_2", "a_3"],
            id="a name that is taken",
        ),
        pytest.param(
            "instance_group { kind: KIND_GPU gpus: [ 0 ] }",
            "instance_group { kind: KIND_GPU gpus: [ 1, 0 ] }",
            ["m_0_0"],
            ["m_0_0"],
            id="one more GPU",
        ),
        pytest.param(
            "instance_group { kind: KIND_GPU gpus: [ 0 ] }",
            "instance_group { kind: KIND_GPU gpus: [ 1 ] }",
            [],
            ["m_0_0"],
            id="another GPU",
        ),
    ],
)
def test_instances_that_serve_as_well_stay(before: str, after: str, kept: list[str], created: list[str]) -> None:
    assert change(before, after) == (kept, created)


def test_a_name_of_one_that_leaves_slowly_is_not_used_for_another_of_its_kind() -> None:
    zero, one = specs(CPU % 2)
    assert [spec.name for spec in with_free_names([one], kept=[zero], leaving=[one])] == ["m_0_2"]


def test_regrouping_changes_groups_and_version_policy_alone() -> None:
    served = config_of(CPU % 1, more='max_batch_size: 4 parameters { key: "k" value { string_value: "v" } }')
    new = parse_model_config(
        'name: "m" backend: "python" instance_group { count: 0 } version_policy { all { } }', source="config.pbtxt"
    )
    config = regrouped(served, ModelConfig.from_message(new), gpu_ids=())
    assert (config.max_batch_size, config.parameters) == (4, {"k": "v"})
    assert [(group.name, group.count) for group in config.instance_groups] == [("m_0", 1)]
    assert config.message.version_policy.HasField("all")
    assert served.message.version_policy.WhichOneof("policy_choice") is None


def test_regrouping_reads_no_files_anew() -> None:
    template = ChatTemplate("{{ messages }}", {})
    served = replace(config_of(CPU % 1), labels={"OUT": ("a",)}, initial_states={"S": b"1"}, chat_template=template)
    config = regrouped(served, config_of(CPU % 2), gpu_ids=())
    assert (config.labels, config.initial_states, config.chat_template) == ({"OUT": ("a",)}, {"S": b"1"}, template)


def test_groups_that_are_not_possible_are_refused() -> None:
    served = config_of(CPU % 1)
    new = parse_model_config('name: "m" backend: "python" instance_group { kind: KIND_GPU }', source="config.pbtxt")
    with pytest.raises(InferenceError, match="has kind KIND_GPU but no GPUs are available"):
        regrouped(served, ModelConfig.from_message(new), gpu_ids=())
