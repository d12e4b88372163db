"""docs/dynamic-batching.md: its model does what the page says."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pytriton_lite.testing import ModelUnderTest, Request
from tests.harness import PROJECT, write_model

PAGE = (PROJECT / "docs/dynamic-batching.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_model_without_padding_answers_each_request_in_its_shape(
    tmp_path: Path, triton_model: Callable[[Path], ModelUnderTest]
) -> None:
    (config,) = (block for block in blocks("protobuf") if "batch_input" in block)
    (execute,) = blocks("python")
    code = (
        "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\nclass TritonPythonModel:\n"
        "    def score(self, tokens, offsets):\n"
        "        self.seen = offsets.tolist()\n"
        "        return tokens.astype(np.float32) / 2\n\n"
    )
    model = triton_model(
        write_model(tmp_path, "page", code + textwrap.indent(execute, "    "), 'backend: "python"\n' + config)
    )
    requests = [{"TOKENS": np.array(rows, np.int32)} for rows in ([[1, 2, 3], [4, 5, 6]], [[7, 8]])]
    outcomes = model.execute([Request(inputs) for inputs in requests])
    assert [outcome.response["SCORES"].tolist() for outcome in outcomes] == [
        [[0.5, 1.0, 1.5], [2.0, 2.5, 3.0]],
        [[3.5, 4.0]],
    ]
    assert model.instance.seen == [0, 6, 8]
