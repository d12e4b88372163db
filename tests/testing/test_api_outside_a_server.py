"""``import triton_python_backend_utils`` where no server runs the process: the same module, its types, and no more imports."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pytriton_lite.worker import pb_utils as workers_module
from tests.harness import PROJECT, RunningServer, tensor, write_model


def test_both_names_are_the_module_that_a_worker_gives_to_a_model() -> None:
    code = (
        "import sys\n"
        "import triton_python_backend_utils as pb_utils, c_python_backend_utils as compiled\n"
        "from triton_python_backend_utils import Tensor\n"
        "from pytriton_lite.worker import pb_utils as workers\n"
        "assert pb_utils is compiled is workers and Tensor is workers.Tensor\n"
        "packages = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(packages & {'numpy', 'google', 'grpc', 'fastapi', 'uvicorn', 'orjson', 'hpack', 'pytest'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout == "['numpy']\n", done.stderr


def test_a_worker_keeps_its_own_module_also_for_what_a_model_imports_later(tmp_path: Path) -> None:
    code = """
        import sys
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                import c_python_backend_utils
                import numpy as np
                import triton_python_backend_utils as again

                same = again is pb_utils is c_python_backend_utils is sys.modules["pytriton_lite.worker.pb_utils"]
                return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([same]))]) for _ in requests]
    """
    config = (
        'input [{ name: "X" data_type: TYPE_FP32 dims: [1] }] output [{ name: "Y" data_type: TYPE_BOOL dims: [1] }]'
    )
    write_model(tmp_path, "same", code, config)
    with RunningServer(tmp_path) as server:
        reply = server.infer("same", [tensor("X", "FP32", [1], [0])])
        assert reply.json["outputs"][0]["data"] == [True]


TYPED = """
import numpy as np
import triton_python_backend_utils as pb_utils
from triton_python_backend_utils import InferenceRequest, InferenceResponse, Tensor


class TritonPythonModel:
    def execute(self, requests: list[InferenceRequest]) -> list[InferenceResponse]:
        tensor = pb_utils.get_input_tensor_by_name(requests[0], "X")
        assert tensor is not None
        array: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = tensor.as_numpy()
        call = pb_utils.InferenceRequest(model_name="m", requested_output_names=["Y"], inputs=[Tensor("X", array)])
        response = call.exec()
        for part in call.exec(decoupled=True):
            pb_utils.Logger.log_info(str(part.has_error()))
        requests[0].get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return [InferenceResponse([Tensor("Y", array)], error=pb_utils.TritonError("e", pb_utils.TritonError.INTERNAL))]
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What mypy has found in the package and in numpy, for either test that comes second; their models differ."""
    return tmp_path_factory.mktemp("mypy")


@pytest.mark.interpreted("mypy takes a copy of the project for a user's own code")
def test_a_model_type_checks_under_mypy_strict(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "model.py").write_text(TYPED)
    assert check(tmp_path, "model.py", cache) == (0, "Success: no issues found in 1 source file\n")


def test_a_wrong_argument_is_found_by_mypy(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "model.py").write_text(TYPED.replace('Tensor("Y", array)', 'Tensor(array, "Y")'))
    code, output = check(tmp_path, "model.py", cache)
    assert code == 1
    assert 'Argument 1 to "Tensor" has incompatible type' in output


def check(folder: Path, name: str, cache: Path) -> tuple[int, str]:
    """mypy's verdict, away from the checkout's own configuration."""
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), name]
    environ = {"MYPYPATH": str(PROJECT), "PATH": str(folder)}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environ)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed")
def test_a_model_type_checks_under_pyright(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(TYPED)
    command = ["pyright", "--pythonpath", sys.executable, "model.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "0 errors" in done.stdout, done.stdout


def test_what_needs_a_server_says_so() -> None:
    request = workers_module.InferenceRequest(
        model_name="m", requested_output_names=[], inputs=[workers_module.Tensor("X", np.zeros(1))]
    )
    with pytest.raises(workers_module.TritonModelException, match="needs a server, and this process has none"):
        request.exec()
    with pytest.raises(workers_module.TritonModelException, match="needs a server"):
        workers_module.is_model_ready("m")
