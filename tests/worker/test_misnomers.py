"""Names that only tutorials have, and the right ones in the error (model API, section 9)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytriton_lite.worker.loader import ModelFiles, construct, import_model, install_pb_utils
from pytriton_lite.worker.process import host
from pytriton_lite.worker.tracebacks import describe

PREAMBLE = """
import numpy as np
import triton_python_backend_utils as pb_utils
request = pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name="m")
strings = np.array([[b"one"]], dtype=object)

def unrelated():
    raise AttributeError("no such thing", name=["unhashable"], obj=pb_utils)

def missing():
    raise ModuleNotFoundError("missing", name=5)

class Owner:
    def Response(self): ...

class Wordless(TypeError):
    def __str__(self):
        raise RuntimeError("no text")

def wordless():
    raise Wordless

"""

MODULE = "(Triton's module is triton_python_backend_utils: import triton_python_backend_utils as pb_utils)"
RESPONSE = "(Triton's class is pb_utils.InferenceResponse(output_tensors=[...]), one for each request)"
DATA_TYPES = "(data types are numpy's, and TYPE_INT32, TYPE_FP32 and so on in config.pbtxt)"
CALL = "(other models are called by pb_utils.InferenceRequest(...).exec() or .async_exec())"
TENSOR = '(a tensor is made by position: pb_utils.Tensor("NAME", array))'
INPUTS = '(inputs is a method: request.inputs()[0], or pb_utils.get_input_tensor_by_name(request, "NAME"))'
ELEMENT = "(this is an array: as_numpy()[0, 0], or as_numpy().reshape(-1)[0], is the bytes of one element)"


@pytest.fixture(autouse=True)
def interpreter() -> Iterator[None]:
    """What a worker changes in its own interpreter is put back in ours."""
    path, modules, model_dir = list(sys.path), dict(sys.modules), host().model_dir
    yield
    sys.path[:] = path
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]
    sys.modules.update(modules)
    host().model_dir = model_dir


def first_line(folder: Path, code: str) -> str:
    """Of the error that a model with *code* in its module does not load with."""
    path = folder / "1" / "model.py"
    path.parent.mkdir()
    path.write_text(PREAMBLE + code)
    install_pb_utils(str(path.parent))
    with pytest.raises(Exception) as caught:
        construct(import_model(ModelFiles(folder, 1, "model.py")))
    return describe(caught.value).splitlines()[0]


@pytest.mark.parametrize(
    ("code", "right"),
    [
        ("import triton_python_backend.tensor as tp", MODULE),
        ("import triton_python_backend.api as triton_backend", MODULE),
        ("from triton_python_backend import tensor", MODULE),
        ("from triton_python_backend_utils import Response", RESPONSE),
        ("pb_utils.Response([])", RESPONSE),
        ("pb_utils.DataType.INT32", DATA_TYPES),
        ("from triton_python_backend_utils import DataType", DATA_TYPES),
        ("pb_utils.infer('other')", CALL),
        ("pb_utils.Tensor.from_numpy(strings)", TENSOR),
        ("pb_utils.Tensor(name='OUT', data=strings)", TENSOR),
        ("pb_utils.Tensor(data=strings)", TENSOR),
        ("request.inputs[0].as_numpy()", INPUTS),
        ("strings[0].decode()", ELEMENT),
    ],
)
def test_the_error_says_what_to_write_instead(tmp_path: Path, code: str, right: str) -> None:
    line = first_line(tmp_path, code)
    assert line.endswith(" " + right)
    assert line.startswith(("ModuleNotFoundError: ", "ImportError: ", "AttributeError: ", "TypeError: "))


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("import triton_python_backends", "ModuleNotFoundError: No module named 'triton_python_backends'"),
        ("from json import Response", "ImportError: cannot import name 'Response' from 'json'"),
        ("Owner().DataType", "AttributeError: 'Owner' object has no attribute 'DataType'"),
        ("pb_utils.Tensors", "AttributeError: module 'triton_python_backend_utils' has no attribute 'Tensors'"),
        ("Owner().Response[0]", "TypeError: 'method' object is not subscriptable"),
        ("len(5)", "TypeError: object of type 'int' has no len()"),
        ("strings.encode()", "AttributeError: 'numpy.ndarray' object has no attribute 'encode'"),
        ("unrelated()", "AttributeError: no such thing"),
        ("missing()", "ModuleNotFoundError: missing"),
        ("wordless()", "Wordless: <MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"),
    ],
)
def test_other_errors_have_tritons_text_alone(tmp_path: Path, code: str, line: str) -> None:
    got = first_line(tmp_path, code)
    # A file may stand behind the module's name: where the interpreter's own are.
    assert got == line or (got.startswith(f"{line} (") and got.endswith(".py)"))


def test_a_line_that_cannot_be_read_gives_no_advice() -> None:
    class Request:
        def inputs(self) -> None: ...

    with pytest.raises(TypeError) as caught:
        exec(compile("request.inputs[0]", "gone.py", "exec"), {"request": Request()})
    assert describe(caught.value).startswith("TypeError: 'method' object is not subscriptable\n")


def test_an_api_that_was_never_installed_has_no_names_to_advise_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "triton_python_backend_utils", raising=False)
    assert describe(ImportError("cannot import name 'infer'")) == "ImportError: cannot import name 'infer'"
