"""What the server fills in by itself before anything is checked (model_config.md, section 6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytriton_lite.config.directory_name import is_utf8, shown
from pytriton_lite.config.errors import PollError
from pytriton_lite.config.parameters import EXECUTION_ENV_PATH
from pytriton_lite.proto import model_config_pb

PYTHON = "python"
ENSEMBLE = "ensemble"
ONNXRUNTIME = "onnxruntime"
ONNXRUNTIME_PLATFORM = "onnxruntime_onnx"

BACKEND_FILE = "model.py"
"""The file in its folder that makes a Python-based backend, and the ``runtime`` of the models that it serves."""

PLATFORMS = {
    "tensorflow": ("tensorflow_graphdef", "tensorflow_savedmodel"),
    "tensorrt": ("tensorrt_plan",),
    ONNXRUNTIME: (ONNXRUNTIME_PLATFORM,),
    "pytorch": ("pytorch_libtorch",),
}
"""The framework backends that have platforms of their own. Such a platform alone names the backend (asked of 2.51)."""

_ONNX_FILE = "model.onnx"

_MODEL_FILES = (
    ("model.savedmodel", "tensorflow"),
    ("model.graphdef", "tensorflow"),
    ("model.plan", "tensorrt"),
    (_ONNX_FILE, ONNXRUNTIME),
    ("model.xml", "openvino"),
    ("model.pt", "pytorch"),
    ("model.py", PYTHON),
)


def complete(message: model_config_pb.ModelConfig, *, model_dir: Path, versions: Sequence[int]) -> None:
    """Fill in name, backend and file name of *message*.

    *versions* are the numeric version directories; the lowest one tells the backend where the file does not.
    Raises PollError where nothing tells it, and for a directory whose name is none of a model.
    """
    if not is_utf8(model_dir.name):
        raise PollError(f"the directory '{shown(model_dir.name)}' cannot be a model: its name is not UTF-8")
    if not message.name:
        message.name = model_dir.name
    if message.platform == ENSEMBLE:
        return
    if not message.backend:
        _complete_backend(message, model_dir, versions)
    if message.backend == PYTHON and not message.default_model_filename:
        message.default_model_filename = "model.py"
    if message.backend == ONNXRUNTIME:  # asked of 2.51
        message.platform = message.platform or ONNXRUNTIME_PLATFORM
        message.default_model_filename = message.default_model_filename or _ONNX_FILE


def complete_python_based(message: model_config_pb.ModelConfig, folder: Path) -> None:
    """Fill in what follows from the backend of *message* being the Python-based one in *folder* (model API, section 1.6)."""
    message.runtime = BACKEND_FILE
    environment = folder / f"pb_exec_env_{BACKEND_FILE}.tar.gz"
    # Reading an absent key of a protobuf map would create it.
    if EXECUTION_ENV_PATH.name not in message.parameters and environment.exists():
        message.parameters[EXECUTION_ENV_PATH.name].string_value = str(environment)


def _complete_backend(message: model_config_pb.ModelConfig, model_dir: Path, versions: Sequence[int]) -> None:
    if message.default_model_filename == "model.py":
        message.backend = PYTHON
    elif message.default_model_filename == _ONNX_FILE and not message.platform:
        message.backend = ONNXRUNTIME
    else:
        message.backend = next((name for name, platforms in PLATFORMS.items() if message.platform in platforms), "")
    if message.backend or message.platform or message.default_model_filename:
        return
    file_name, backend = _from_content(model_dir, versions) or _from_name(message.name)
    message.backend = backend
    message.default_model_filename = file_name


def _from_content(model_dir: Path, versions: Sequence[int]) -> tuple[str, str] | None:
    if not versions:
        return None
    version_dir = model_dir / str(min(versions))
    return next((pair for pair in _MODEL_FILES if (version_dir / pair[0]).exists()), None)


def _from_name(model_name: str) -> tuple[str, str]:
    _, dot, backend = model_name.partition(".")
    if not dot:
        raise PollError(
            f"Invalid model name: Could not determine backend for model '{model_name}' with no backend in model "
            "configuration. Expected model name of the form 'model.<backend_name>'."
        )
    return f"model.{backend}", backend
