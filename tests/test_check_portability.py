"""What `pytriton-lite check` notes of a model that runs here and would fail under Triton (asked of 2.51)."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from pytriton_lite.check.model_file import read_model_file
from pytriton_lite.cli import main
from tests.harness import write_model

HEAD = "import triton_python_backend_utils as pb_utils\n"
LATE = "Triton's pb_utils has no {} yet while the model's file is imported"


def notes(code: str, tmp_path: Path) -> list[str]:
    path = tmp_path / "model.py"
    path.write_text(textwrap.dedent(code))
    return [f"{note.line}: {note.text}" for note in read_model_file(path).notes]


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("def f(request: pb_utils.InferenceRequest): pass", "InferenceRequest"),
        ("def f() -> list[pb_utils.InferenceResponse]: pass", "InferenceResponse"),
        ("def f(*, log=pb_utils.Logger): pass", "Logger"),
        ("class A(pb_utils.TritonModelException): pass", "TritonModelException"),
        ("class A:\n    made: pb_utils.Tensor", "Tensor"),
        ("class A:\n    async def g(self, t: pb_utils.Tensor): pass", "Tensor"),
        ("pb_utils.Logger.log_info('imported')", "Logger"),
        ("if True:\n    log = pb_utils.Logger", "Logger"),
        ("from triton_python_backend_utils import Tensor", "Tensor"),
    ],
)
def test_a_name_that_is_used_when_the_file_is_imported_is_noted(code: str, name: str, tmp_path: Path) -> None:
    (note,) = notes(HEAD + code, tmp_path)
    assert note.endswith(LATE.format(name))


@pytest.mark.parametrize(
    "code",
    [
        f"total = {' + '.join(['1'] * 1200)} + pb_utils.Logger",
        f"text = {' + '.join(['name'] * 1500)} + pb_utils.Logger",
        "if kind == 0:\n    pass\n" + 1200 * "elif kind == 1:\n    pass\n" + "else:\n    log = pb_utils.Logger",
    ],
    ids=["a sum", "a joined text", "a chain of elifs"],
)
def test_a_name_is_found_in_code_that_is_a_thousand_levels_deep(code: str, tmp_path: Path) -> None:
    (note,) = notes(HEAD + code, tmp_path)
    assert note.endswith(LATE.format("Logger"))


@pytest.mark.parametrize(
    "code",
    [
        "def f(requests):\n    return [pb_utils.Tensor('Y', r) for r in requests]",
        "def f(request: 'pb_utils.InferenceRequest'): pass",
        "def f():\n    made: pb_utils.Tensor = 1",
        "make = lambda x: pb_utils.Tensor('Y', x)",
        "try:\n    log = pb_utils.Logger\nexcept AttributeError:\n    log = None",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    T = pb_utils.Tensor",
        "dtype = pb_utils.triton_string_to_numpy('TYPE_FP32')",
        "FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL",
        "print('plain')",
        "log('grüße')",
    ],
)
def test_what_triton_takes_is_not(code: str, tmp_path: Path) -> None:
    assert notes(HEAD + code, tmp_path) == []


def test_parameters_of_a_response_are_noted(tmp_path: Path) -> None:
    code = HEAD + "def f():\n    return pb_utils.InferenceResponse(output_tensors=[], parameters={'n': 1})"
    assert notes(code, tmp_path) == ["3: InferenceResponse takes no parameters in Triton 2.51, but in later ones"]


def test_postponed_annotations_are_not_evaluated(tmp_path: Path) -> None:
    code = f"from __future__ import annotations\n{HEAD}def f(r: pb_utils.InferenceRequest, log=pb_utils.Logger): pass"
    assert notes(code, tmp_path) == [f"3: {LATE.format('Logger')}"]


def test_the_module_may_have_any_name(tmp_path: Path) -> None:
    assert notes("import triton_python_backend_utils as p\nx = p.Tensor", tmp_path) == [f"2: {LATE.format('Tensor')}"]
    assert notes("import pb_utils\nx = pb_utils.Tensor", tmp_path) == []


def test_a_class_that_triton_hides_is_noted_wherever_it_stands(tmp_path: Path) -> None:
    code = f"{HEAD}def f(sender):\n    assert isinstance(sender, pb_utils.InferenceResponseSender)"
    assert notes(code, tmp_path) == ["3: Triton's pb_utils has no InferenceResponseSender"]


def test_printing_outside_of_ascii_is_noted(tmp_path: Path) -> None:
    expected = ["2: Triton's stub prints in ASCII, and {} is not: UnicodeEncodeError"]
    assert notes("def f():\n    print('grüße', 1)", tmp_path) == [expected[0].format("'grüße'")]
    assert notes("def f(x):\n    print(f'{x} → 1')", tmp_path) == [expected[0].format("' → 1'")]


def test_notes_are_no_errors_and_no_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = f"{HEAD}class TritonPythonModel:\n    def execute(self, requests: list[pb_utils.InferenceRequest]): pass\n"
    write_model(tmp_path, "a", code, 'backend: "python" output { name: "Y" data_type: TYPE_FP32 dims: 1 }')
    assert main(["check", "--warnings-as-errors", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert f"{tmp_path}/a/1/model.py:3:38: note: {LATE.format('InferenceRequest')} (it runs here;" in out
    assert out.endswith("1 model, 0 errors, 0 warnings, 1 note\n")
