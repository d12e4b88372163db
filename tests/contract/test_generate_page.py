"""docs/generate.md: its commands print what the page says, its tables are true, its links and flags are there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from pytriton_lite.settings import OPTIONS
from tests.contract.wire_models import tensors
from tests.harness import PROJECT, RunningServer, write_model

PAGE = (PROJECT / "docs" / "generate.md").read_text()
COMMANDS: list[tuple[str, str]] = re.findall(r"^```console\n\$ (curl .*)\n((?:.*\n)*?)```$", PAGE, re.MULTILINE)
SHAPES: list[tuple[str, str, str, str]] = re.findall(
    r"^\| `\[ ([-\d, ]+) \]`(, batching)? \| `(.*)` \| (.*) \|$", PAGE, re.MULTILINE
)

SHAPE_OF = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            shapes = [np.array(request.inputs()[0].as_numpy().shape) for request in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("SHAPE", shape)]) for shape in shapes]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    shapes = tmp_path_factory.mktemp("shapes")
    for number, (dims, batching, value, _) in enumerate(SHAPES):
        datatype = "STRING" if '"' in value else "INT32"
        config = tensors("input", ("INPUT", datatype, dims)) + tensors("output", ("SHAPE", "INT64", "-1"))
        size = "max_batch_size: 8\n" if batching else ""
        write_model(shapes, f"shape{number}", SHAPE_OF, f'backend: "python"\n{size}{config}')
    with RunningServer(PROJECT / "examples/generate/models", shapes) as running:
        yield running


@pytest.mark.skipif(shutil.which("curl") is None, reason="the commands of the page are curl's")
@pytest.mark.parametrize(("command", "printed"), COMMANDS)
def test_a_command_prints_what_the_page_says(server: RunningServer, command: str, printed: str) -> None:
    assert "localhost:8000" in command
    done = subprocess.run(
        ["bash", "-c", command.replace("localhost:8000", server.http_url)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.rstrip("\n"), done.stderr) == (0, printed.rstrip("\n"), "")


def test_nothing_of_the_page_is_passed_over() -> None:
    assert len(COMMANDS) == PAGE.count("```console") == 6
    assert len(SHAPES) == PAGE.count("\n| `[ ") == 5
    assert {"generate ", "generate_stream "} <= {re.search(r"generate\w* ", command)[0] for command, _ in COMMANDS}


@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_a_value_gets_the_shape_that_the_page_says(server: RunningServer, number: int) -> None:
    _, _, value, shape = SHAPES[number]
    reply = server.post(f"/v2/models/shape{number}/generate", {"INPUT": json.loads(value)})
    if shape == "refused":
        assert reply.error == "The schema can not convert input 'INPUT' to tensor with proper shape"
        return
    got = reply.json["SHAPE"]
    assert (got if isinstance(got, list) else [got]) == json.loads(shape.strip("`"))


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)]+)\)", PAGE))))
def test_a_link_leads_somewhere(link: str) -> None:
    assert (PROJECT / "docs" / link).exists()


def test_flags_exist() -> None:
    flags = {option.flag for option in OPTIONS}
    named = set(re.findall(r"--([a-z][a-z-]+)", PAGE))
    assert named
    assert named <= flags
