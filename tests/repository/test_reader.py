"""What a load is about, and what it finds, from files that lie or change there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pytriton_lite.config.errors import PollError
from pytriton_lite.repository.index import ModelId
from pytriton_lite.repository.reader import LoadPlan, ModelReader, NotPolled, Override, Polled, RepositoryOptions
from tests.harness import write_model

PLAIN = Override()
PYTHON = 'backend: "python" output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }'
OVERRIDE = {"backend": "python", "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]}]}


def ensemble(*models: str) -> str:
    steps = "".join(
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "X" value: "IN" }} '
        f'output_map {{ key: "OUT" value: "OUT{at or ""}" }} }}'
        for at, model in enumerate(models)
    )
    return f"""
        platform: "ensemble"
        input {{ name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }}
        output {{ name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }}
        ensemble_scheduling {{ {steps} }}
    """


def plan_of(reader: ModelReader, name: str, override: Override = PLAIN) -> dict[str, list[str]]:
    """What a load of *name* is about: models, and what they are made of."""
    plan = reader.plan(name, override)
    assert plan.wanted
    return {str(model): [str(part) for part in parts] for model, parts in plan.composing.items()}


def wanted(plan: LoadPlan) -> list[str]:
    return [str(model) for model in plan.wanted]


def polled(reader: ModelReader, name: str, override: Override = PLAIN) -> Polled:
    plan = reader.plan(name, override)
    (model,) = plan.wanted
    found = reader.poll(model, plan.directories[model], override, None)
    assert found is not None
    return found


@pytest.fixture
def reader(tmp_path: Path) -> ModelReader:
    return ModelReader(RepositoryOptions((tmp_path,)))


def test_an_ensemble_is_about_all_that_it_is_made_of(tmp_path: Path, reader: ModelReader) -> None:
    write_model(tmp_path, "a", config=PYTHON)
    write_model(tmp_path, "b", config=PYTHON)
    write_model(tmp_path, "inner", config=ensemble("a", "missing"))
    write_model(tmp_path, "outer", config=ensemble("inner", "b"))
    assert plan_of(reader, "a") == {"a": []}
    assert plan_of(reader, "outer") == {"outer": ["inner", "b"], "inner": ["a"], "b": [], "a": []}
    assert wanted(reader.plan("outer", PLAIN)) == ["outer"]


def test_a_circle_is_read_once(tmp_path: Path, reader: ModelReader) -> None:
    """Row 58 of repository.md."""
    write_model(tmp_path, "x", config=ensemble("y"))
    write_model(tmp_path, "y", config=ensemble("x", "y"))
    assert plan_of(reader, "x") == {"x": ["y"], "y": ["x", "y"]}


def test_a_configuration_in_the_request_says_what_an_ensemble_is_made_of(tmp_path: Path, reader: ModelReader) -> None:
    for name in ("a", "b"):
        write_model(tmp_path, name, config=PYTHON)
    write_model(tmp_path, "e", config=ensemble("a"))
    config = json.dumps({"ensemble_scheduling": {"step": [{"model_name": "b"}]}})
    assert plan_of(reader, "e", Override(config)) == {"e": ["b"], "b": []}


def test_what_cannot_be_read_is_found_out_by_its_own_load(tmp_path: Path, reader: ModelReader) -> None:
    write_model(tmp_path, "broken", config="ensemble_scheduling { many }")
    assert plan_of(reader, "broken") == {"broken": []}
    with pytest.raises(PollError):
        polled(reader, "broken")


def test_a_model_of_the_own_namespace_comes_before_the_only_one_elsewhere(tmp_path: Path) -> None:
    """Row 63 of repository.md."""
    one, two = tmp_path / "one", tmp_path / "two"
    for repository in (one, two):
        write_model(repository, "a", config=PYTHON)
    write_model(one, "only", config=PYTHON)
    write_model(two, "e", config=ensemble("a", "only"))
    write_model(tmp_path / "three", "ambiguous", config=ensemble("a"))
    reader = ModelReader(RepositoryOptions((one, two, tmp_path / "three"), namespacing=True))
    assert plan_of(reader, "e") == {f"{two}::e": [f"{two}::a", f"{one}::only"], f"{two}::a": [], f"{one}::only": []}
    assert plan_of(reader, "ambiguous") == {f"{tmp_path}/three::ambiguous": []}
    assert wanted(reader.plan("a", PLAIN)) == [f"{one}::a", f"{two}::a"]
    with pytest.raises(PollError, match="there are 2 models 'a'"):
        reader.plan("a", Override(json.dumps(OVERRIDE), {"1/model.py": b""}))


@pytest.mark.parametrize(
    ("roots", "text"),
    [
        (("one", "two"), "failed to poll model 'm': not unique across all model repositories"),
        (("none", "gone"), "failed to poll model 'm': model not found in any model repository."),
    ],
    ids=["row 62", "row 19"],
)
def test_a_name_is_that_of_one_model(tmp_path: Path, roots: tuple[str, ...], text: str) -> None:
    """Rows 19 and 62 of repository.md."""
    for root in ("one", "two"):
        write_model(tmp_path / root, "m", config=PYTHON)
    (tmp_path / "none").mkdir()
    reader = ModelReader(RepositoryOptions(tuple(tmp_path / root for root in roots)))
    with pytest.raises(NotPolled) as caught:
        reader.find("m")
    assert caught.value.detail == text


def test_a_repository_that_cannot_be_read_has_no_models_and_hides_no_others(tmp_path: Path) -> None:
    write_model(tmp_path / "there", "m", config=PYTHON)
    reader = ModelReader(RepositoryOptions((tmp_path / "gone", tmp_path / "there")))
    assert [found.repository.name for found in reader.find("m")] == ["there"]


def test_a_model_that_goes_away_before_its_turn_is_not_found(tmp_path: Path, reader: ModelReader) -> None:
    model = write_model(tmp_path, "m", config=PYTHON)
    plan = reader.plan("m", PLAIN)
    (model / "config.pbtxt").unlink()
    (model / "1").rmdir()
    model.rmdir()
    with pytest.raises(NotPolled, match="model not found in any model repository"):
        reader.poll(plan.wanted[0], plan.directories[plan.wanted[0]], PLAIN, None)


def test_a_version_that_comes_before_its_turn_is_seen(tmp_path: Path, reader: ModelReader) -> None:
    write_model(tmp_path, "m", config=PYTHON)
    plan = reader.plan("m", PLAIN)
    write_model(tmp_path, "m", version=4)
    found = reader.poll(plan.wanted[0], plan.directories[plan.wanted[0]], PLAIN, None)
    assert found is not None
    assert found.selection.selected == (4,)


def test_what_has_not_changed_is_not_read(tmp_path: Path, reader: ModelReader) -> None:
    """Section 3.1 of repository.md: newer is what counts."""
    model = write_model(tmp_path, "m", config=PYTHON)
    first = polled(reader, "m")
    assert reader.poll(first.id, first.directory, PLAIN, first.times) is None
    assert reader.changed([first.directory], {first.id: first.times}) == []
    assert reader.changed([first.directory], {}) == [first.directory]
    later = first.times.model_ns + 1
    os.utime(model / "config.pbtxt", ns=(later, later))
    again = reader.poll(first.id, first.directory, PLAIN, first.times)
    assert again is not None
    assert reader.changed([first.directory], {first.id: first.times}) == [first.directory]
    assert again.comparable_config == first.comparable_config


@pytest.mark.parametrize(
    ("more", "is_placed_otherwise", "reloads"),
    [
        pytest.param("", False, False, id="row 64: nothing"),
        pytest.param("instance_group [ { count: 2 kind: KIND_CPU } ]", True, False, id="rows 33 and 34: instances"),
        pytest.param("version_policy { all { } }", True, False, id="row 30: versions"),
        pytest.param("max_batch_size: 4", False, True, id="anything else"),
    ],
)
def test_some_changes_of_a_configuration_need_no_reload(
    tmp_path: Path, reader: ModelReader, more: str, is_placed_otherwise: bool, reloads: bool
) -> None:
    """Rows 30, 33, 34 and 64 of repository.md."""
    write_model(tmp_path, "m", config=PYTHON)
    before = polled(reader, "m")
    write_model(tmp_path, "m", config=f"{PYTHON} {more}")
    after = polled(reader, "m")
    assert (after.placement != before.placement) == is_placed_otherwise
    assert (after.comparable_config != before.comparable_config) == reloads


def test_files_of_a_request_are_the_models_until_they_are_removed(tmp_path: Path, reader: ModelReader) -> None:
    """Row 45 of repository.md."""
    found = polled(reader, "new", Override(json.dumps(OVERRIDE), {"3/model.py": b"pass"}))
    assert (found.id, found.selection.selected) == (ModelId("", "new"), (3,))
    assert found.files is not None
    path = found.directory.path / "3" / "model.py"
    assert path.read_bytes() == b"pass"
    found.files.remove()
    assert not path.exists()


def test_files_that_make_no_model_are_not_kept(
    tmp_path: Path, reader: ModelReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    override = Override(json.dumps({**OVERRIDE, "name": "another"}), {"1/model.py": b"pass"})
    with pytest.raises(PollError, match="unexpected directory name"):
        polled(reader, "new", override)
    assert list(tmp_path.iterdir()) == []
