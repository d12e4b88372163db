"""A configuration that breaks a rule: said in the log and in the table, with the model's folder; nobody else suffers."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import tritonclient.grpc

from tests.harness import MODEL_REPOSITORY, RunningServer, write_model


def test_a_broken_rule_is_told_with_the_folder_and_the_others_serve(tmp_path: Path) -> None:
    (tmp_path / "add_sub").symlink_to(MODEL_REPOSITORY / "add_sub")
    folder = write_model(tmp_path, "bad", "class TritonPythonModel: pass", 'backend: "python"\nmax_batch_size: -3')
    with RunningServer(tmp_path, flags=("--exit-on-error=false",)) as server:
        rule = "'max_batch_size' must be non-negative value for bad"
        assert f"Poll failed for model directory 'bad': {rule} (in {folder})" in server.log
        assert f"| bad     | -       | Not loaded: {rule}" in server.log
        assert server.get("/v2/models/add_sub/ready").status == 200
        assert {"name": "bad"} in server.post("/v2/repository/index").json


def test_a_parse_error_is_told_with_file_line_and_column(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "bad", "class TritonPythonModel: pass", 'backend: "python"\nmax_batch_sice: 3')
    with RunningServer(tmp_path, flags=("--exit-on-error=false",)) as server:
        assert f"{folder / 'config.pbtxt'}:2:1: " in server.log
        assert "max_batch_sice" in server.log


def test_a_configuration_under_a_wrong_name_is_named_in_the_log(tmp_path: Path) -> None:
    shutil.copytree(MODEL_REPOSITORY / "add_sub", tmp_path / "add_sub")
    (tmp_path / "add_sub" / "config.pbtxt").rename(tmp_path / "add_sub" / "config.pbtxt.txt")
    with RunningServer(tmp_path) as server:
        server.wait_for_log("is refused .config.pbtxt.txt is not read: its name must be config.pbtxt.")


def test_a_configuration_whose_link_leads_nowhere_for_a_while_changes_nothing(tmp_path: Path) -> None:
    """As in Triton 2.51, which refuses the load."""
    shutil.copytree(MODEL_REPOSITORY / "add_sub", tmp_path / "add_sub")
    config = tmp_path / "add_sub" / "config.pbtxt"
    text = config.read_text()
    with RunningServer(tmp_path, flags=("--model-control-mode=explicit", "--load-model=add_sub")) as server:
        before = server.get("/v2/models/add_sub/config").json
        config.unlink()
        config.symlink_to("not_there_yet.pbtxt")
        assert server.post("/v2/repository/models/add_sub/load").status == 500
        server.wait_for_log(f"failed to open text file for read {config}: it is a link that leads nowhere")
        assert server.get("/v2/models/add_sub/config").json == before
        (tmp_path / "add_sub" / "not_there_yet.pbtxt").write_text(text)
        assert server.post("/v2/repository/models/add_sub/load").status == 200


def test_a_directory_whose_name_is_not_utf8_is_passed_over_and_the_others_serve(tmp_path: Path) -> None:
    (tmp_path / "add_sub").symlink_to(MODEL_REPOSITORY / "add_sub")
    write_model(tmp_path, os.fsdecode(b"bad\xff"), "class TritonPythonModel: pass", 'backend: "python"')
    with RunningServer(tmp_path) as server:
        assert f"of model repository {tmp_path}: its name is not UTF-8" in server.log
        assert server.get("/v2/models/add_sub/ready").status == 200
        index = server.post("/v2/repository/index").json
        assert [model["name"] for model in index] == ["add_sub"]
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            assert [model.name for model in client.get_model_repository_index().models] == ["add_sub"]
