"""Converted TorchServe archives whose BaseHandler loads weights with PyTorch."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytriton_lite.convert import convert_archive, write
from pytriton_lite.testing import ModelUnderTest
from tests.convert.archives import make_archive

torch: Any = pytest.importorskip("torch", reason="a heavy framework, installed only by `make test-frameworks`")

NETWORK = """
    import torch

    class Sum(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 1, bias=False)

        def forward(self, rows):
            return self.linear(rows)
"""
HANDLER = """
    import torch
    from ts.torch_handler.base_handler import BaseHandler

    class Labelled(BaseHandler):
        def preprocess(self, data):
            return torch.tensor([row.get("data") or row.get("body") for row in data], dtype=torch.float32)

        def postprocess(self, data):
            return [self.mapping[str(int(value > 0))] for value in data[:, 0]]
"""


@pytest.fixture(autouse=True)
def modules_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Archives have modules of the same names; a real server has a process for each."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [*sys.modules]:
        if name in ("handler", "network") or name.partition(".")[0] == "ts":
            monkeypatch.delitem(sys.modules, name)


def written(save: Callable[[io.BytesIO], None]) -> bytes:
    file = io.BytesIO()
    save(file)
    return file.getvalue()


def ask(triton_model: Callable[..., ModelUnderTest], archive: Path, row: list[float]) -> object:
    files = write(convert_archive(archive), archive.parent / "models", archive.name)
    inputs = {"data": [json.dumps(row).encode()], "content_type": [b"application/json"]}
    response = triton_model(files[0].parent).infer(
        {name: np.array([value], dtype=object) for name, value in inputs.items()}
    )
    answer: object = response["result"].item()
    return answer


def test_a_state_dict_is_loaded_into_the_class_of_the_model_file(
    tmp_path: Path, triton_model: Callable[..., ModelUnderTest]
) -> None:
    weights = {"linear.weight": torch.tensor([[1.0, 1.0, 1.0]])}
    files: dict[str, str | bytes] = {
        "handler.py": HANDLER,
        "network.py": NETWORK,
        "sum.pth": written(lambda file: torch.save(weights, file)),
        "index_to_name.json": '{"0": "below", "1": "above"}',
    }
    archive = make_archive(tmp_path, "sum", "handler.py", files, modelFile="network.py", serializedFile="sum.pth")
    assert ask(triton_model, archive, [1, 2, -1]) == b"above"


# Archives have such files, whatever newer versions of PyTorch think of them.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_the_base_handler_alone_serves_a_torchscript_file(
    tmp_path: Path, triton_model: Callable[..., ModelUnderTest]
) -> None:
    script = torch.jit.trace(torch.nn.ReLU(), torch.zeros(1, 3))
    content = written(lambda file: torch.jit.save(script, file))
    archive = make_archive(tmp_path, "relu", "base_handler", {"relu.pt": content}, serializedFile="relu.pt")
    assert ask(triton_model, archive, [1.5, -2.0, 3.0]) == b"[1.5, 0.0, 3.0]"
