"""The examples whose models import PyTorch and JAX, from an empty machine to their exit codes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.harness import PROJECT

WHY = "a heavy framework, installed only by `make test-frameworks`"
for module in ("torch", "jax"):
    pytest.importorskip(module, reason=WHY)


SHOWN = {
    "chat": "Once upon a time (length)",
    "jax_add_sub": "[[0.0, 1.0, 2.0, 3.0]] - 10 = [[-10.0, -9.0, -8.0, -7.0]]",
    "pytorch_add_sub": "[[0.0, 1.0, 2.0, 3.0]] - 10 = [[-10.0, -9.0, -8.0, -7.0]]",
}
"""A line that each client prints near its end. It checks the answers itself."""


@pytest.mark.parametrize("name", SHOWN)
def test_the_client_passes(name: str) -> None:
    command = [sys.executable, "-W", "error", str(PROJECT / "examples" / "run.py"), name]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert SHOWN[name] in done.stdout.splitlines()
