"""The examples that need a GPU, from an empty machine to their exit codes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytriton_lite.ipc import device as devices
from tests.harness import PROJECT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not devices.visible_device_ids(), reason="this machine has no CUDA device"),
]


def test_the_client_passes() -> None:
    for module in ("cupy", "cuda.bindings.runtime"):
        pytest.importorskip(module)
    command = [sys.executable, str(PROJECT / "examples" / "run.py"), "gpu_chain"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "in GPU memory of the client: 1000 rows, as numpy has them" in done.stdout.splitlines()
