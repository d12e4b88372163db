"""The fixtures, and the server behind one of them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pytriton_lite.testing import ModelUnderTest, RunningServer, StandIns
from pytriton_lite.testing import server as testing_server
from pytriton_lite.testing.server import repository_arguments
from pytriton_lite.worker.process import Phase, host
from tests.harness import MODEL_REPOSITORY, PROJECT, child, descriptors, write_model

CONFIG = 'input [{ name: "X" data_type: TYPE_FP32 dims: [1] }] output [{ name: "Y" data_type: TYPE_FP32 dims: [1] }]'


def test_the_plugin_costs_a_test_run_that_does_not_use_it_nothing() -> None:
    code = (
        "import sys\nimport pytest\nbefore = set(sys.modules)\nimport pytriton_lite.pytest_plugin\n"
        "print(sorted(name for name in set(sys.modules) - before))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout == "['pytriton_lite', 'pytriton_lite.pytest_plugin']\n", done.stderr


def test_a_model_is_closed_after_its_test_also_when_that_fails(pytester_folder: Path) -> None:
    (pytester_folder / "test_two.py").write_text(
        "FOLDER = 'models/add_sub'\n"
        "def test_one(triton_model):\n    triton_model(FOLDER)\n    raise ValueError('fails')\n"
        "def test_another(triton_model):\n    assert triton_model(FOLDER).config['name'] == 'add_sub'\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytriton_lite.pytest_plugin", "test_two.py"]
    done = subprocess.run(command, cwd=pytester_folder, capture_output=True, text=True)
    assert "1 failed, 1 passed" in done.stdout, done.stdout


@pytest.fixture
def pytester_folder(tmp_path: Path) -> Path:
    (tmp_path / "models").symlink_to(MODEL_REPOSITORY)
    return tmp_path


def test_the_model_calls_the_stand_ins_of_the_other_fixture(
    triton_model: Callable[..., ModelUnderTest], triton_stand_ins: StandIns
) -> None:
    assert triton_model(MODEL_REPOSITORY / "add_sub").stand_ins is triton_stand_ins


def test_no_host_is_left_behind_by_the_tests_before() -> None:
    assert host().phase is Phase.OUTSIDE


def test_the_same_arguments_give_the_same_server_and_it_serves_one_model_of_its_repository(
    triton_server: Callable[..., RunningServer],
) -> None:
    tritonclient = pytest.importorskip("tritonclient.http")
    server = triton_server(MODEL_REPOSITORY / "add_sub")
    assert triton_server(MODEL_REPOSITORY / "add_sub") is server
    client = tritonclient.InferenceServerClient(server.http_url)
    index = client.get_model_repository_index()
    assert [entry["name"] for entry in index if entry.get("state") == "READY"] == ["add_sub"]
    inputs = [tritonclient.InferInput(name, [4], "FP32") for name in ("INPUT0", "INPUT1")]
    for tensor in inputs:
        tensor.set_data_from_numpy(np.ones(4, np.float32))
    assert client.infer("add_sub", inputs).as_numpy("OUTPUT0").tolist() == [2.0] * 4
    client.close()
    with urllib.request.urlopen(server.metrics_url) as page:
        assert b'nv_inference_request_success{model="add_sub",version="1"} 1' in page.read()
    assert server.grpc_url.startswith("127.0.0.1:")


def test_a_folder_is_a_model_if_it_has_a_configuration_or_a_version_with_a_file(tmp_path: Path) -> None:
    model = write_model(tmp_path, "m", "code = 1")
    assert repository_arguments(model) == [
        f"--model-repository={tmp_path}",
        "--model-control-mode=explicit",
        "--load-model=m",
    ]
    assert repository_arguments(write_model(tmp_path, "c", config=CONFIG))[-1] == "--load-model=c"


def test_a_folder_of_models_is_a_repository_also_when_a_model_has_a_number_for_a_name(tmp_path: Path) -> None:
    write_model(tmp_path, "7", "code = 1", CONFIG)
    assert repository_arguments(tmp_path) == [str(tmp_path)]
    assert repository_arguments(tmp_path / "nowhere") == [str(tmp_path / "nowhere")]


def test_the_log_has_what_was_written_before_it_is_looked_at(triton_server: Callable[..., RunningServer]) -> None:
    server = triton_server(MODEL_REPOSITORY / "add_sub")
    with server._grew:  # the thread that reads it does not come to do so
        request = urllib.request.Request(f"http://{server.http_url}/v2/repository/models/nobody/load", data=b"")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        refused.value.close()
        assert "failed to poll model 'nobody'" in server.log


def test_what_a_server_leaves_behind_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that some model has started still has the server's output open: there is no end to it to wait for."""
    monkeypatch.setattr(testing_server, "_LAST_LINES_TIMEOUT_S", 0.1)
    leaves = ("/bin/sh", "-c", 'sleep 600 & echo left $!; exec "$0" "$@"', sys.executable)
    with RunningServer(tmp_path, python=leaves) as server:
        left = int(server.wait_for_log(r"left (\d+)").group(1))
    try:
        assert server.exit_code == 0
    finally:
        os.kill(left, signal.SIGKILL)
    server._reader.join(30)  # it reads no more from now on


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for a process that is nobody's child")
def test_a_server_ends_with_the_process_that_has_started_it_whatever_ends_that(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pytriton_lite.testing import RunningServer\n"
        f"with RunningServer({str(tmp_path)!r}) as server:\n"
        "    print(server.process.pid, flush=True)\n    sys.stdin.read()\n"
    )
    with child([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        pid = int(starter.stdout.readline())
        with open(os.pidfd_open(pid), "rb") as server:
            starter.kill()
            assert select.select([server], [], [], 60)[0], "it serves nobody"


def test_ctrl_c_that_its_owner_takes_leaves_a_server_as_it_is(tmp_path: Path) -> None:
    """A debugger does, at its prompt."""
    code = (
        "import os, signal, urllib.request\nfrom pytriton_lite.testing import RunningServer\n"
        "taken = []\nsignal.signal(signal.SIGINT, lambda number, frame: taken.append(number))\n"
        f"with RunningServer({str(tmp_path)!r}, flags=['--log-verbose=1']) as server:\n"
        "    os.killpg(0, signal.SIGINT)\n"  # as a terminal does, to all of them
        "    ready = urllib.request.urlopen(f'http://{server.http_url}/v2/health/ready')\n"
        "    print(taken, ready.status, server.stop(), 'Signal (2)' in server.log)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True, timeout=60
    )
    assert done.stdout == "[2] 200 0 False\n"


@pytest.mark.parametrize("flag", ["--allow-metrics=false", "--allow-grpc=false", "--log-info=false"])
def test_a_server_is_up_when_it_serves_whatever_it_says(tmp_path: Path, flag: str) -> None:
    with (
        RunningServer(tmp_path, flags=[flag]) as server,
        urllib.request.urlopen(f"http://{server.http_url}/v2/health/ready") as reply,
    ):
        assert reply.status == 200


def test_options_in_the_shell_are_for_the_servers_of_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTRITON_LITE_ALLOW_GRPC", "false")
    monkeypatch.setenv("PYTRITON_LITE_ALLOW_METRICS", "false")
    with RunningServer(tmp_path, environ={"PYTRITON_LITE_ALLOW_METRICS": "true"}) as server:
        assert server.grpc_url and server.metrics_url
    with (
        RunningServer(tmp_path, environ={"PYTRITON_LITE_ALLOW_METRICS": "false"}) as server,
        pytest.raises(AssertionError, match="no listener 'metrics'; it has grpc, http"),
    ):
        _ = server.metrics_url


def test_a_folder_of_the_same_name_elsewhere_has_a_server_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, triton_server: Callable[..., RunningServer]
) -> None:
    servers = []
    for place in ("a", "b"):
        (tmp_path / place / "models").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / place)
        servers.append(triton_server("models"))
    assert servers[0] is not servers[1]


def test_a_server_that_has_ended_is_not_given_again(
    tmp_path: Path, triton_server: Callable[..., RunningServer]
) -> None:
    server = triton_server(tmp_path)
    server.kill()
    another = triton_server(tmp_path)
    assert another.process.poll() is None
    assert triton_server(tmp_path) is another


def test_an_interpreter_that_is_not_there_leaves_nothing_open(tmp_path: Path) -> None:
    before = descriptors()
    with pytest.raises(FileNotFoundError), RunningServer(tmp_path, python=(str(tmp_path / "python"),)):
        pass
    assert descriptors() == before


def test_a_server_that_does_not_start_fails_with_its_log(tmp_path: Path) -> None:
    write_model(tmp_path, "broken", "raise ValueError('no weights')", CONFIG)
    with pytest.raises(AssertionError, match="no weights"), RunningServer(tmp_path):
        pass
