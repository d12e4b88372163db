"""The example clients against the model repository that ships, over every protocol they offer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.harness import MODEL_REPOSITORY, PROJECT, RunningServer

PROTOCOLS = ("http", "grpc", "http-aio", "grpc-aio")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with RunningServer(MODEL_REPOSITORY) as running:
        yield running


def run_example(server: RunningServer, script: str, protocol: str, *arguments: str) -> str:
    url = server.grpc_url if protocol.startswith("grpc") else server.http_url
    command = [sys.executable, str(PROJECT / "examples" / script), "--protocol", protocol, "--url", url, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_add_sub(server: RunningServer, protocol: str) -> None:
    printed = run_example(server, "add_sub.py", protocol, "1", "2", "3", "4", "10", "20", "30", "40")
    assert "11" in printed
    assert "-36" in printed


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_image_preprocessing(server: RunningServer, protocol: str) -> None:
    printed = run_example(
        server, "image_preprocessing.py", protocol, "examples/data/scene.jpg", "examples/data/scene.png"
    )
    assert printed.count("224, 224, 3") >= 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_text_classification(server: RunningServer, protocol: str) -> None:
    printed = run_example(
        server, "text_classification.py", protocol, "what a lovely little film", "a dreadful, boring mess"
    )
    assert "positive" in printed.splitlines()[0]
    assert "negative" in printed.splitlines()[1]
