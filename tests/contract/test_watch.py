"""``serve --watch``: a real server follows the files of its models."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.wire_models import wait_until
from tests.harness import RunningServer, write_model

CONFIG = 'backend: "python" output [{ name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }]'
CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils
{imports}

class TritonPythonModel:
    def initialize(self, args):
        {initialize}

    def execute(self, requests):
        out = np.array([b"{answer}"], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]) for _ in requests]
"""


def code(answer: str, *, imports: str = "", initialize: str = "pass") -> str:
    return CODE.format(answer=answer, imports=imports, initialize=initialize)


def write(repository: Path, name: str, answer: str, *, version: int = 1, **parts: str) -> Path:
    """Its configuration is written once: between two files that are written there may be a look."""
    config = "" if (repository / name / "config.pbtxt").exists() else CONFIG
    return write_model(repository, name, code(answer, **parts), config, version=version)


def answer(server: RunningServer, model: str) -> Any:
    """What the model says, or the status of a failure."""
    reply = server.infer(model, [])
    return reply.json["outputs"][0]["data"][0] if reply.status == 200 else reply.status


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched")
    write(folder, "m", "one")
    write(folder, "untouched", "untouched")
    write(folder, "broken_at_start", "never", initialize="raise ValueError('at the start')")
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RunningServer]:
    with RunningServer(repository, flags=("--watch", "--exit-on-error=false")) as running:
        yield running
    assert running.log.count("loading: untouched:1") == 1
    assert "a look at the model repositories failed" not in running.log


def test_a_model_is_loaded_anew_when_its_file_changes(server: RunningServer, repository: Path) -> None:
    assert answer(server, "m") == "one"
    write(repository, "m", "two")
    server.wait_for_log(
        r"\"reloaded 'm' \((config.pbtxt changed, )?1/model.py changed(, config.pbtxt changed)?\), \d+\.\d\d s\""
    )
    assert answer(server, "m") == "two"


def test_a_model_that_did_not_load_at_the_start_waits_for_a_change(server: RunningServer, repository: Path) -> None:
    model = repository / "broken_at_start/1/model.py"
    assert f"\"failed to load 'broken_at_start' version 1\"\n{model}:8: ValueError: at the start\n" in server.log
    assert answer(server, "broken_at_start") == 404
    write(repository, "broken_at_start", "repaired")
    server.wait_for_log(r"\"loaded 'broken_at_start' \(.*1/model.py changed.*\), \d+\.\d\d s\"")
    assert answer(server, "broken_at_start") == "repaired"


def test_what_fails_is_told_once_with_the_place_first_and_the_one_before_serves_on(
    server: RunningServer, repository: Path
) -> None:
    write(repository, "broken", "before")
    wait_until(lambda: answer(server, "broken") == "before")
    helper = repository / "broken/1/helper.py"
    helper.write_text("def boom():\n    raise ValueError('no\\nweights')\n")
    write(repository, "broken", "after", imports="from helper import boom", initialize="boom()")
    server.wait_for_log(
        r"could not load 'broken' \(.*1/model.py changed.*\), \d+\.\d\d s; what was loaded before serves on"
    )
    model = repository / "broken/1/model.py"
    told = "\n".join(
        [
            f"{helper}:2: ValueError: no",
            "    weights",
            "  1/helper.py:2 in boom",
            "    raise ValueError('no\\nweights')",
            f"  1/model.py:{model.read_text().splitlines().index('        boom()') + 1} in initialize",
            "    boom()",
            "",
        ]
    )
    assert told in server.log
    assert answer(server, "broken") == "before"
    # Others are followed meanwhile, so that looks have passed when they have answered.
    for text in ("third", "fourth"):
        write(repository, "m", text)
        wait_until(lambda text=text: answer(server, "m") == text)
    assert server.log.count("ValueError: no") == 1
    assert server.log.count("could not load 'broken'") == 1
    assert "\"failed to load 'broken'\"" not in server.log, "it is said twice already"
    helper.write_text("def boom():\n    pass\n")
    wait_until(lambda: answer(server, "broken") == "after")
    assert server.get("/v2/models/broken/ready").status == 200


def test_a_syntax_error_is_shown_with_its_line(server: RunningServer, repository: Path) -> None:
    write(repository, "mistyped", "before")
    wait_until(lambda: answer(server, "mistyped") == "before")
    write(repository, "mistyped", "after", initialize="print(")
    server.wait_for_log("could not load 'mistyped'")
    line = (repository / "mistyped/1/model.py").read_text().splitlines().index("        print(") + 1
    assert f"{repository}/mistyped/1/model.py:{line}: SyntaxError: '(' was never closed\n    print(\n" in server.log
    assert answer(server, "mistyped") == "before"


def test_a_configuration_that_cannot_be_read_is_told_once(server: RunningServer, repository: Path) -> None:
    write(repository, "configured", "before")
    wait_until(lambda: answer(server, "configured") == "before")
    config = repository / "configured/config.pbtxt"
    config.write_text("max_batch_size: many\n")
    server.wait_for_log(r"could not load 'configured' \(config.pbtxt changed\)")
    assert server.log.count("Poll failed for model directory 'configured': ") == 1
    assert answer(server, "configured") == "before"
    config.write_text(CONFIG + " instance_group [{ count: 2 kind: KIND_CPU }]")
    server.wait_for_log(r"updated 'configured' \(config.pbtxt changed\), .* s; no version had to be loaded anew")
    assert server.get("/v2/models/configured/config").json["instance_group"][0]["count"] == 2


def test_models_and_versions_come_and_go(server: RunningServer, repository: Path) -> None:
    write(repository, "coming", "first")
    server.wait_for_log(r"\"loaded 'coming' \(added\), \d+\.\d\d s\"")
    write(repository, "coming", "second", version=2)
    server.wait_for_log(r"reloaded 'coming' \(.*2/ added\)")
    assert answer(server, "coming") == "second"
    shutil.rmtree(repository / "coming/2")
    wait_until(lambda: answer(server, "coming") == "first")
    shutil.rmtree(repository / "coming")
    server.wait_for_log(r"unloaded 'coming' \(removed\)")
    assert answer(server, "coming") == 404


def test_a_file_that_is_older_than_the_one_it_replaces_is_a_change(server: RunningServer, repository: Path) -> None:
    write(repository, "restored", "second")
    wait_until(lambda: answer(server, "restored") == "second")
    model = repository / "restored/1/model.py"
    model.write_text(code("first"))
    os.utime(model, ns=(10**18, 10**18))
    wait_until(lambda: answer(server, "restored") == "first")


def test_a_version_that_is_a_link_is_followed_and_so_is_what_it_leads_to(
    server: RunningServer, repository: Path, tmp_path: Path
) -> None:
    for name in ("old", "new"):
        write(tmp_path, name, name)
    model = write(repository, "linked", "none", version=0)
    (model / "1").symlink_to(tmp_path / "new/1")
    wait_until(lambda: answer(server, "linked") == "new")
    (model / "next").symlink_to(tmp_path / "old/1")
    (model / "next").rename(model / "1")
    wait_until(lambda: answer(server, "linked") == "old")
    write(tmp_path, "old", "edited")
    wait_until(lambda: answer(server, "linked") == "edited")


def test_what_editors_leave_behind_is_no_change(server: RunningServer, repository: Path) -> None:
    write(repository, "edited", "before")
    wait_until(lambda: answer(server, "edited") == "before")
    for name in (".config.pbtxt.swp", "config.pbtxt~", "4913", ".#config.pbtxt"):
        (repository / "edited" / name).touch()
    (repository / "edited/__pycache__").mkdir()
    config = repository / "edited/config.pbtxt"
    config.write_text(CONFIG + "\n# a comment\n")
    server.wait_for_log(r"updated 'edited' \(config.pbtxt changed\), .* s; no version had to be loaded anew")


def test_in_mode_explicit_only_loaded_models_are_followed(tmp_path: Path) -> None:
    write(tmp_path, "loaded", "one")
    write(tmp_path, "other", "one")
    explicit = ("--watch", "--model-control-mode=explicit", "--load-model=loaded", "--log-format=json")
    with RunningServer(tmp_path, flags=explicit) as server:
        write(tmp_path, "other", "two")
        write(tmp_path, "added", "two")
        write(tmp_path, "loaded", "two")
        wait_until(lambda: answer(server, "loaded") == "two")
        assert (answer(server, "other"), answer(server, "added")) == (404, 404)
        assert server.post("/v2/repository/models/other/load").status == 200
        write(tmp_path, "other", "three")
        wait_until(lambda: answer(server, "other") == "three")
        shutil.rmtree(tmp_path / "other")
        write(tmp_path, "loaded", "broken", initialize="raise ValueError('on purpose')")
        server.wait_for_log(
            r'"message": "failed to load \'loaded\' version 1", "explanation": ".*model.py:[0-9]+: ValueError: on purpose\\n'
        )
        assert (answer(server, "loaded"), answer(server, "other")) == ("two", "three")
        assert "loading: added" not in server.log
