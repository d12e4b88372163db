"""The package's ``triton_python_backend_utils`` beside the one of a real Triton, in the stub's environment.

A stub is a process of its own with one half of pb_utils built in; what is tested here is what shows that to Python. With a
real stub it was tried by hand (docs/compatibility.md).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.harness import PROJECT

STUB = """
import sys
sys.builtin_module_names += ("c_python_backend_utils",)
sys.path.append(sys.argv[1])
import triton_python_backend_utils as pb_utils
print(pb_utils.__file__, "pytriton_lite" in sys.modules, sys.modules["triton_python_backend_utils"] is pb_utils)
"""


def as_stub(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", STUB, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, timeout=60)


def test_a_stub_gets_its_own_module(tmp_path: Path) -> None:
    theirs = tmp_path / "triton_python_backend_utils.py"
    theirs.write_text("")
    assert as_stub(tmp_path).stdout.split() == [str(theirs), "False", "True"]


def test_a_stub_without_its_own_is_told(tmp_path: Path) -> None:
    ended = as_stub(tmp_path)
    assert ended.returncode == 1
    assert "that of pytriton-lite steps aside" in ended.stderr


def test_nobody_else_notices() -> None:
    code = "import triton_python_backend_utils as pb_utils; print(pb_utils.__name__, pb_utils.Tensor.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PROJECT, check=True)
    assert done.stdout.split() == ["pytriton_lite.worker.pb_utils", "Tensor"]
