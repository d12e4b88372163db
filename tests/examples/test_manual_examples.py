"""``examples/run.py``: every example from an empty machine to its exit code, server and client as a user starts them.

Those of heavy frameworks are in tests/frameworks/test_framework_examples.py.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import PROJECT

EXAMPLES = PROJECT / "examples"
RUN = EXAMPLES / "run.py"
# Each client checks its answers itself; a line that it prints near its end shows that it came so far.
LIGHT = {
    "add_sub": "[1. 2. 3. 4.] - [10. 20. 30. 40.] = [ -9. -18. -27. -36.]",
    "auto_complete": "  answer: [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [9.0, 10.0, 11.0, 12.0]]",
    "bls": "  quotient: [6.  4.  2.5 1.5]",
    "bls_decoupled": "sum_async: [4, 0, 10, 100] → [10, 0, 55, 5050]",
    "custom_metrics": 'example_last_text_bytes{model="metered",version="1"} 5',
    "decoupled": "square of -1: input 'N' of model 'square': expected 0 or more, got -1",
    "embeddings": "cats on roofs  →  The cat sleeps on the warm roof.",
    "ensemble": "1 + 1 = 2: in ensemble 'language', there is a text without letters",
    "generate": "max_tokens 0: status 400, max_tokens: expected 1 or more, got 0",
    "image_preprocessing": "  blue  min -0.749  max +0.569  mean +0.037",
    "instance_kind": "instance_kind_1_0: kind MODEL, device of my own choice",
    "preprocessing": "PNG of 1000 x 10 in (120, 130, 250): blue (+0.98)",
    "rescheduling": "once upon a time  |  once + upon + a + time",
    "string_tensors": "gRPC: INITIALS ['h', '', 'g', 't', '日']",
    "text_classification": "positive (class 1, probability 0.697): An instant classic, brilliantly acted.",
    "text_pipeline": "text_pipeline_bls agrees",
}
HEAVY = {"chat", "jax_add_sub", "pytorch_add_sub"}
ON_A_GPU = {"gpu_chain"}
"""Run by tests/gpu/test_gpu_examples.py."""


def run(*arguments: str, script: Path = RUN) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, timeout=280)


@pytest.mark.parametrize("name", LIGHT)
def test_the_client_passes(name: str) -> None:
    done = run(name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert LIGHT[name] in done.stdout.splitlines()
    assert done.stderr == ""


def test_every_folder_is_an_example_and_every_example_is_named_tested_and_in_the_readme() -> None:
    listed = {line.split()[0] for line in run().stdout.splitlines()}
    assert {folder.parent.name for folder in EXAMPLES.glob("*/models")} <= listed
    assert listed == LIGHT.keys() | HEAVY | ON_A_GPU
    assert set(re.findall(r"^make example NAME=(\w+)", (EXAMPLES / "README.md").read_text(), re.M)) == listed
    assert re.search(r"^FRAMEWORK_EXAMPLES := (.*)$", (PROJECT / "Makefile").read_text(), re.M)[1].split() == sorted(
        HEAVY
    )


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The example bls_decoupled with its own run.py, to be spoilt."""
    shutil.copy(RUN, tmp_path)
    shutil.copytree(EXAMPLES / "bls_decoupled", tmp_path / "bls_decoupled")
    return tmp_path


def spoil(model: Path, old: str, new: str) -> None:
    code = (model / "1" / "model.py").read_text()
    assert code.count(old) == 1
    (model / "1" / "model.py").write_text(code.replace(old, new))


def test_a_wrong_answer_is_exit_code_1_and_shows_what_the_server_wrote(copied: Path) -> None:
    spoil(copied / "bls_decoupled/models/countdown", "range(start, 0, -1)", "range(start, 1, -1)")
    done = run("bls_decoupled", script=copied / "run.py")
    assert done.returncode == 1
    assert "wrong answer: sum_sync gave [9, 0, 54, 5049], expected [10, 0, 55, 5050]" in done.stderr
    assert '"loading: countdown:1"' in done.stderr
    assert done.stderr.endswith("client: exit code 1, server: 0\n")


def test_a_model_that_does_not_load_is_exit_code_1_with_the_reason(copied: Path) -> None:
    spoil(copied / "bls_decoupled/models/countdown", "import numpy as np", "import nothing_of_this_name")
    done = run("bls_decoupled", script=copied / "run.py")
    assert (done.returncode, done.stdout) == (1, "")
    assert "No module named 'nothing_of_this_name'" in done.stderr
    assert done.stderr.endswith("the server did not start: exit code 1\n")


def test_an_unknown_name_is_exit_code_2() -> None:
    done = run("tutorial")
    assert done.returncode == 2
    assert "invalid choice: 'tutorial'" in done.stderr
