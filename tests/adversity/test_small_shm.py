"""Large tensors where /dev/shm is 1 MB: what Docker's 64 MB default, or Fargate, is to a service in earnest."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from tests.harness import RunningServer, write_model

ELEMENTS = (64 << 20) // 4
SMALL_SHM = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$0" "$@"'

ADDS_ONE = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                array = request.inputs()[0].as_numpy()
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array + 1)]))
            return answers
"""
CONFIG = """
    backend: "python"
    input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }
    output { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] }
"""


def namespace() -> tuple[str, ...]:
    """A command under which /dev/shm is 1 MB for whatever it executes; empty where the system refuses one."""
    for flags in ("-m", "-Urm"):
        command = ("unshare", flags, "sh", "-c", SMALL_SHM)
        if shutil.which("unshare") and subprocess.run([*command, "true"], capture_output=True).returncode == 0:
            return command
    return ()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    command = namespace()
    if not command:
        pytest.skip("no private mount namespace is to be had here; tests/ipc has the same with the probe injected")
    models = tmp_path_factory.mktemp("models")
    write_model(models, "adds_one", ADDS_ONE, CONFIG)
    with RunningServer(models, python=(*command, sys.executable)) as running:
        yield running


def test_the_server_really_has_1_mb_of_shared_memory(server: RunningServer) -> None:
    mounts = Path(f"/proc/{server.process.pid}/mounts").read_text()
    assert any("/dev/shm" in line and "size=1024k" in line for line in mounts.splitlines())


def test_64_mib_tensors_pass_over_http(server: RunningServer) -> None:
    with httpclient.InferenceServerClient(server.http_url, network_timeout=120) as client:
        array = np.arange(ELEMENTS, dtype=np.int32)
        given = httpclient.InferInput("IN", [ELEMENTS], "INT32")
        given.set_data_from_numpy(array)
        answer = client.infer("adds_one", [given]).as_numpy("OUT")
    assert np.array_equal(answer, array + 1)


def test_64_mib_tensors_pass_over_grpc(server: RunningServer) -> None:
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        array = np.arange(ELEMENTS, dtype=np.int32)
        given = grpcclient.InferInput("IN", [ELEMENTS], "INT32")
        given.set_data_from_numpy(array)
        answer = client.infer("adds_one", [given]).as_numpy("OUT")
    assert np.array_equal(answer, array + 1)
