"""``pytriton-lite check`` of a repository that lies elsewhere."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.harness import PROJECT, child, write_model
from tests.remote_servers import ACCESS, running_s3


def test_findings_name_the_place_from_which_the_files_came(tmp_path: Path) -> None:
    with running_s3() as s3:
        s3.put("models/right/config.pbtxt", 'backend: "python" output { name: "Y" data_type: TYPE_FP32 dims: 1 }')
        s3.put("models/right/1/model.py", "class TritonPythonModel:\n    def execute(self, requests): return []")
        s3.put("models/wrong/config.pbtxt", 'backend: "python"\nmax_batch_size: -1')
        s3.put("models/nofile/config.pbtxt", 'backend: "python"')
        s3.put("models/outside/1/../../x", "")
        s3.put("models/nofile/1/weights.txt", "")
        url = s3.url("models")
        command = [sys.executable, "-m", "pytriton_lite", "check", f"--remote-cache-directory={tmp_path}", url]
        command.append(f"{url}-not-there")
        environ = {**os.environ, **ACCESS}
        found = subprocess.run(command, cwd=PROJECT, env=environ, timeout=120, capture_output=True, text=True)
    missing = f"{url}/nofile/1/model.py"
    assert found.stdout.splitlines() == [
        f"{url}-not-there: error: failed to poll model repository '{url}-not-there': there is nothing of that name",
        f"{url}/outside: error: cannot copy model 'outside' of {url}: the name 'outside/1/../../x' leads out of the model's "
        "directory",
        f"{missing}: error: Python model file not found in '{missing}' (put it there, or name another with "
        "default_model_filename)",
        f"{url}/wrong/config.pbtxt:2:1: error: 'max_batch_size' must be non-negative value for wrong (0 is for a model that "
        "does not batch)",
        "3 models, 4 errors, 0 warnings",
    ]
    assert (found.returncode, found.stderr) == (1, "")


def test_directories_are_checked_though_no_remote_repository_can_be(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "wrong", "", 'max_batch_size: -1 backend: "python"')
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "pytriton_lite", "check", "s3://bucket/models", str(tmp_path / "models")]
    command.append(f"--remote-cache-directory={tmp_path / 'file'}")
    found = subprocess.run(command, cwd=PROJECT, timeout=120, capture_output=True, text=True)
    first, second, last = found.stdout.splitlines()
    assert first.startswith("s3://bucket/models: error: cannot use the cache of remote repositories")
    assert second.startswith(f"{tmp_path}/models/wrong/config.pbtxt:1:1: error: ")
    assert (last, found.returncode) == ("1 model, 2 errors, 0 warnings", 1)


def test_ctrl_c_ends_the_wait_for_a_host_that_says_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"s3://127.0.0.1:{silent.getsockname()[1]}/models"
        command = [sys.executable, "-m", "pytriton_lite", "check", f"--remote-cache-directory={tmp_path}", url]
        environ = {**os.environ, **ACCESS}
        silent.settimeout(60)
        with child(command, cwd=PROJECT, env=environ, stderr=subprocess.PIPE) as checking:
            connection, _ = silent.accept()
            with connection:
                checking.send_signal(signal.SIGINT)
                _, said = checking.communicate(timeout=60)
    assert (checking.returncode, said) == (130, b"")
