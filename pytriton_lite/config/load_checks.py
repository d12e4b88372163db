"""What is checked about a configuration when a version is loaded, beyond its tensors and instance groups."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from pytriton_lite.config.complete import BACKEND_FILE, ENSEMBLE, PYTHON
from pytriton_lite.config.errors import invalid
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.proto import model_config_pb

# The label is `_<key>`. Prometheus keeps names that begin with two underscores for itself.
_METRIC_TAG = re.compile(r"(?!_)[a-zA-Z0-9_]*", re.ASCII)


def check_backend(message: model_config_pb.ModelConfig, model_dir: Path, backends: Mapping[str, Path]) -> None:
    """Refuse a backend other than ``python`` and *backends*, and a runtime other than ``model.py`` (section 4.1)."""
    if message.platform == ENSEMBLE:
        return
    if message.runtime not in ("", BACKEND_FILE):
        raise invalid(
            f"unable to find backend library '{message.runtime}' for model '{message.name}', searched: '{model_dir}' "
        )
    if message.backend != PYTHON and message.backend not in backends:
        raise invalid(
            f"unable to find backend library for backend '{message.backend}', try specifying runtime on the model "
            "configuration."
        )


def check_python_parameters(message: model_config_pb.ModelConfig) -> None:
    """Section 4.11: the parameter that Triton's Python backend reads. The stray quote is Triton's."""
    value = _parameter(message, "FORCE_CPU_ONLY_INPUT_TENSORS")
    if value not in (None, "yes", "no"):
        raise InferenceError(ErrorCode.UNSUPPORTED, f"Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: {value}'")


def check_execution_parameters(message: model_config_pb.ModelConfig) -> None:
    """Ours: how coroutines of ``execute`` run (docs/python-backend.md), and how tensors of others are seen."""
    value = _parameter(message, "EXECUTE_CONCURRENCY")
    if value is not None and not (value.isascii() and value.isdigit() and int(value) > 0):
        raise invalid(f"Incorrect value for EXECUTE_CONCURRENCY: expected a number from 1 on, got '{value}'")
    for name in ("CANCEL_COROUTINES", "SHARED_MEMORY_VIEWS"):
        value = _parameter(message, name)
        if value not in (None, "yes", "no"):
            raise invalid(f"Incorrect value for {name}: expected 'yes' or 'no', got '{value}'")


def check_batching_library(message: model_config_pb.ModelConfig) -> None:
    """Section 4.11: a custom batching strategy is a native library, which cannot be loaded here."""
    path = _parameter(message, "TRITON_BATCH_STRATEGY_PATH")
    if path is None:
        return
    if message.HasField("sequence_batching"):
        raise invalid(
            "TRITON_BATCH_STRATEGY_PATH cannot be specified with sequence batcher, using default batching strategy"
        )
    if not Path(path).exists():
        raise InferenceError(ErrorCode.NOT_FOUND, f"Batching library path not found: {path}")
    raise InferenceError(
        ErrorCode.UNSUPPORTED,
        f"TRITON_BATCH_STRATEGY_PATH of model '{message.name}' names a native batching library, {path}: pytriton-lite "
        "loads none. Remove the parameter to batch by the rules of dynamic_batching.",
    )


def read_labels(message: model_config_pb.ModelConfig, model_dir: Path) -> dict[str, tuple[str, ...]]:
    """Section 4.2: the lines of every label file by output. It lies in the model's directory. Not UTF-8: surrogates."""
    return {
        output.name: _read_label_file(output.label_filename, output.name, message.name, model_dir)
        for output in message.output
        if output.label_filename
    }


def _read_label_file(file_name: str, output_name: str, model_name: str, model_dir: Path) -> tuple[str, ...]:
    # By the letters of the path: a link inside the directory may lead out of it, as a mounted ConfigMap's files do.
    inside = Path(os.path.normpath(model_dir))
    path = Path(os.path.normpath(inside / file_name))
    if inside not in path.parents:
        raise InferenceError(
            ErrorCode.UNSUPPORTED,
            f"label file path '{file_name}' for output '{output_name}' in model '{model_name}' is outside model "
            "directory",
        )
    try:
        # Universal line ends: a file that was written on Windows gives no labels with a carriage return.
        text = path.read_text("utf-8", "surrogateescape")
    except OSError as error:
        raise InferenceError(
            ErrorCode.INTERNAL, f"failed to open text file for read {path}: {error.strerror}"
        ) from None
    return tuple(text.removesuffix("\n").split("\n"))  # not splitlines, to which a form feed ends a line, too


def check_metric_tags(message: model_config_pb.ModelConfig) -> None:
    """Section 4.11: a tag that cannot be a Prometheus label kills Triton when the model is loaded; we refuse it."""
    for key in message.metric_tags:
        if not _METRIC_TAG.fullmatch(key):
            raise invalid(
                f"metric_tags of model '{message.name}': '{key}' gives the label '_{key}', expected letters, digits "
                "and underscores, the first of them no underscore"
            )


def _parameter(message: model_config_pb.ModelConfig, key: str) -> str | None:
    # Reading an absent key of a protobuf map would create it.
    return message.parameters[key].string_value if key in message.parameters else None
