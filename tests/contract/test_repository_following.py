"""A server that follows its repositories, and one with namespaces: repository.md rows 3 and 62 to 69.

What a look does is tested in tests/engine/models/test_polling.py, case by case. Here a server looks every second, as often
as it can be told to, and all changes are made at once.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.life_kit import (
    ADDER_CONFIG,
    ALL_VERSIONS,
    BROKEN,
    CONFIG,
    adder,
    code,
    ensemble,
    is_ready,
    load,
    rows_of,
    unload,
    value_of,
)
from tests.contract.wire_models import metric, wait_until
from tests.harness import RunningServer, write_model

NOT_ALLOWED = "explicit model load / unload is not allowed if polling is enabled"
MISCODED = "failed to load 'miscoded' version 1: Internal: RuntimeError: broken on purpose"


@dataclass
class Followed:
    """A server, and the workers that it had before its repository changed, by model."""

    server: RunningServer
    repository: Path
    before: dict[str, list[int]]

    def pids(self, name: str) -> list[int]:
        return self.server.worker_pids(f"{name}_")


def wait_logged(server: RunningServer, text: str, count: int) -> None:
    wait_until(lambda: server.log.count(text) >= count)


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Followed]:
    """A server whose repository has changed since it began, and that has done what there was to do, in two looks at least."""
    repository = tmp_path_factory.mktemp("followed") / "models"
    for name in ("touched", "noted", "grown", "misread", "miscoded", "removed"):
        write_model(repository, name, code(1), ALL_VERSIONS)
    write_model(repository, "part", adder(1), ADDER_CONFIG)
    write_model(repository, "whole", config=ensemble("part", "part"))
    releases = repository.parent / "releases"
    for number in (1, 2):
        write_model(releases / str(number), "released", code(number), CONFIG)
    (releases / "current").symlink_to("1")
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1")
    with RunningServer(repository, releases / "current", flags=flags) as server:
        followed = Followed(server, repository, {})
        followed.before = {path.name: followed.pids(path.name) for path in repository.iterdir()}
        os.utime(repository / "touched" / "config.pbtxt")
        (repository / "noted" / "notes.txt").write_text("every version may read me")
        write_model(repository, "grown", code(2), version=2)
        misread = repository.parent / "config.pbtxt"  # in one step: one that is still empty would be a good one
        misread.write_text("max_batch_size: many")
        misread.replace(repository / "misread" / "config.pbtxt")
        write_model(repository, "miscoded", BROKEN)
        shutil.rmtree(repository / "removed")
        write_model(repository, "part", adder(10))
        write_model(repository, "added", code(7), CONFIG)
        (releases / "next").symlink_to("2")
        (releases / "next").rename(releases / "current")
        # What is looked at while it is being written may fail at that look.
        for text, count in (
            ("Poll failed for model directory 'misread': ", 2),
            (MISCODED, 2),
            ("successfully unloaded 'removed' version 1", 1),
            ("successfully loaded 'added'", 1),
            *(
                (f"successfully loaded '{name}'", 2)
                for name in ("touched", "noted", "grown", "part", "whole", "released")
            ),
        ):
            wait_logged(server, text, count)
        yield followed


def test_row_3_models_do_not_come_and_go_by_request(followed: Followed) -> None:
    for reply in (load(followed.server, "added"), unload(followed.server, "added")):
        assert (reply.status, reply.error) == (503, NOT_ALLOWED)


def test_row_64_a_configuration_that_was_touched_reloads_nothing(followed: Followed) -> None:
    assert followed.server.log.count("loading: touched:1") == 2
    assert followed.pids("touched") == followed.before["touched"]


def test_row_65_a_file_beside_the_configuration_reloads_the_model(followed: Followed) -> None:
    wait_until(lambda: not set(followed.pids("noted")) & set(followed.before["noted"]))
    assert value_of(followed.server, "noted") == 1


def test_a_repository_that_is_a_link_is_followed_to_where_it_leads_now(followed: Followed) -> None:
    """As tools have it that bring a new tree and then swap the link: Kubernetes' volumes, git-sync."""
    assert value_of(followed.server, "released") == 2


def test_row_66_a_new_version_is_loaded_alone(followed: Followed) -> None:
    assert rows_of(followed.server, "grown") == {"1": ("READY", ""), "2": ("READY", "")}
    assert set(followed.before["grown"]) < set(followed.pids("grown"))


def test_row_67_a_broken_configuration_is_told_at_each_look(followed: Followed) -> None:
    assert followed.pids("misread") == followed.before["misread"]
    assert value_of(followed.server, "misread") == 1
    assert is_ready(followed.server)


def test_row_68_a_broken_model_is_tried_at_each_look(followed: Followed) -> None:
    assert followed.server.log.count(MISCODED) >= 2
    assert value_of(followed.server, "miscoded") == 1
    # There may be another one, with which it is being tried at this moment.
    assert set(followed.before["miscoded"]) <= set(followed.pids("miscoded"))


def test_row_69_models_come_and_go_with_their_directories(followed: Followed) -> None:
    assert value_of(followed.server, "added") == 7
    assert "removed" not in [row["name"] for row in followed.server.post("/v2/repository/index").json]
    reply = followed.server.post("/v2/models/removed/infer", {"inputs": []})
    assert (reply.status, reply.error) == (404, "Request for unknown model: 'removed' has no available versions")


def test_ensembles_follow_their_models(followed: Followed) -> None:
    """repository.md, section 6; nothing of the ensemble itself has changed."""
    assert value_of(followed.server, "whole", IN=0) == 20


# ---------------------------------------------------------------------------------------------------- namespaces


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Two repositories with a model *m* each, and a third whose ensemble cannot tell which one is meant."""
    folder = tmp_path_factory.mktemp("namespaces")
    one, two, three = folder / "one", folder / "two", folder / "three"
    write_model(one, "m", adder(1), ADDER_CONFIG)
    write_model(two, "m", adder(2), ADDER_CONFIG)
    write_model(two, "only", adder(10), ADDER_CONFIG)
    write_model(one, "e", config=ensemble("m", "only"))
    write_model(two, "f", config=ensemble("m", "only"))
    write_model(three, "ambiguous", config=ensemble("m"))
    return one, two, three


@pytest.fixture(scope="module")
def spaces(roots: tuple[Path, Path, Path]) -> Iterator[RunningServer]:
    with RunningServer(*roots, flags=("--model-namespacing=true", "--exit-on-error=false")) as server:
        yield server


def test_row_62_without_namespaces_a_name_is_that_of_one_model(roots: tuple[Path, Path, Path]) -> None:
    """And a load of it is refused."""
    one, two, _ = roots
    with RunningServer(one, two, flags=("--model-control-mode=explicit",)) as server:
        reply = load(server, "m")
        assert (reply.status, reply.error) == (500, "failed to load 'm', failed to poll from model repository")
        server.wait_for_log("failed to poll model 'm': not unique across all model repositories")
        assert load(server, "e").error == (
            "load failed for model 'e': ensemble e contains models that are not available or ambiguous: m\n"
        )
        assert is_ready(server)


def test_row_63_equal_names_are_served_each_in_its_namespace(
    spaces: RunningServer, roots: tuple[Path, Path, Path]
) -> None:
    assert [(row["name"], row.get("state")) for row in spaces.post("/v2/repository/index").json] == [
        ("e", "READY"),
        ("m", "READY"),
        ("ambiguous", None),
        ("f", "READY"),
        ("m", "READY"),
        ("only", "READY"),
    ]
    ambiguous = (
        "There are 2 identifiers of model 'm' in global map, model namespace must be provided to resolve ambiguity."
    )
    for path in ("m/infer", "m/versions/1/infer"):
        reply = spaces.post(f"/v2/models/{path}", {"inputs": []})
        assert (reply.status, reply.error) == (400, ambiguous)
    for path in ("m", "m/config"):
        reply = spaces.get(f"/v2/models/{path}")
        assert (reply.status, reply.error) == (400, ambiguous)
    reply = spaces.get("/v2/models/m/ready")
    assert (reply.status, reply.error) == (400, "Model version not ready")
    reply = spaces.get("/v2/models/m/stats")
    assert (reply.status, reply.error) == (400, "requested model 'm' is not available")
    assert value_of(spaces, "e", IN=0) == 11, "its own m, and the only model of that name elsewhere"
    assert value_of(spaces, "f", IN=0) == 12
    assert is_ready(spaces)
    text = f"ensemble {roots[2]}::ambiguous contains models that are not available or ambiguous: m"
    assert f'"Invalid argument: {text}"' in spaces.log


def test_a_name_that_is_unique_is_enough(spaces: RunningServer, roots: tuple[Path, Path, Path]) -> None:
    """repository.md, section 1.2."""
    assert value_of(spaces, "only", IN=0) == 10
    assert spaces.get("/v2/models/only").json["versions"] == ["1"]
    assert f"successfully loaded '{roots[1]}::only'" in spaces.log
    reply = spaces.post("/v2/models/nobody/infer", {"inputs": []})
    assert (reply.status, reply.error) == (404, "Request for unknown model: 'nobody' is not found")


def test_models_of_all_namespaces_are_counted_apart(spaces: RunningServer, roots: tuple[Path, Path, Path]) -> None:
    """repository.md, section 1.2: where Triton's statistics of all models fail."""
    value_of(spaces, "e", IN=0)
    names = [row["name"] for row in spaces.get("/v2/models/stats").json["model_stats"]]
    assert sorted(names) == ["e", "f", "m", "m", "only"]
    before = [metric(spaces, "nv_inference_request_success", "m", namespace=str(root)) for root in roots[:2]]
    value_of(spaces, "f", IN=0)
    after = [metric(spaces, "nv_inference_request_success", "m", namespace=str(root)) for root in roots[:2]]
    assert [new - old for new, old in zip(after, before)] == [0, 1]


def test_an_ensemble_shows_where_its_models_are(spaces: RunningServer, roots: tuple[Path, Path, Path]) -> None:
    """model_config.md, section 2.1: its own namespace comes first."""
    steps = spaces.get("/v2/models/e/config").json["ensemble_scheduling"]["step"]
    assert [(step["model_name"], step["model_namespace"]) for step in steps] == [
        ("m", str(roots[0])),
        ("only", str(roots[1])),
    ]


def test_with_namespaces_a_name_is_loaded_and_unloaded_in_all_of_them(roots: tuple[Path, Path, Path]) -> None:
    """As in Triton; an ensemble takes just what it means, and so a name can be unique that is not on disk."""
    one, two, _ = roots
    flags = ("--model-namespacing=true", "--model-control-mode=explicit")
    with RunningServer(one, two, flags=flags) as server:
        assert load(server, "e").status == 200
        assert value_of(server, "m", IN=0) == 1
        assert load(server, "m").status == 200
        assert server.post("/v2/models/m/infer", {"inputs": []}).status == 400
        assert unload(server, "e", dependents=True).status == 200
        wait_until(lambda: server.worker_pids("only_") == [])
        assert unload(server, "m").status == 200
        wait_until(lambda: server.worker_pids() == [])
        reply = server.post("/v2/models/m/infer", {"inputs": []})
        assert reply.status == 404
        assert reply.error.endswith("::m' has no available versions")
