"""What is checked about a configuration when a version is loaded, beyond its tensors and instance groups.

As in `validate`, functions called ``broken_…`` yield what is wrong, in Triton's order.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytriton_lite.config import parameters
from pytriton_lite.config.complete import BACKEND_FILE, ENSEMBLE, PYTHON
from pytriton_lite.config.data_file import path_inside
from pytriton_lite.config.errors import BrokenRule, cannot_open, invalid
from pytriton_lite.config.regular_file import read_regular_file
from pytriton_lite.core.errors import ErrorCode
from pytriton_lite.core.sharing import InstanceSharing
from pytriton_lite.proto import model_config_pb

# The label is `_<key>`. Prometheus keeps names that begin with two underscores for itself.
_METRIC_TAG = re.compile(r"(?!_)[a-zA-Z0-9_]*", re.ASCII)


def broken_backend(
    message: model_config_pb.ModelConfig, model_dir: Path, backends: Mapping[str, Path]
) -> Iterator[BrokenRule]:
    """A backend other than ``python`` and *backends*, a runtime that is not what runs the backend anyway (section 4.1)."""
    if message.platform == ENSEMBLE:
        return
    if message.runtime not in ("", BACKEND_FILE, f"libtriton_{message.backend}.so"):
        yield invalid(
            f"unable to find backend library '{message.runtime}' for model '{message.name}', searched: '{model_dir}' ",
            "runtime",
        )
    if message.backend != PYTHON and message.backend not in backends:
        yield invalid(
            f"unable to find backend library for backend '{message.backend}', try specifying runtime on the model "
            "configuration.",
            "backend",
        )


def broken_parameters(message: model_config_pb.ModelConfig) -> Iterator[BrokenRule]:
    """Parameters with a meaning and a value that has none: Triton's (section 4.11), and ours (docs/model-configuration.md)."""
    for name, parameter in parameters.ALL.items():
        text = parameter.text(message)
        if text is None or parameter.value_of(text) is not None:
            continue
        if parameter is not parameters.FORCE_CPU_ONLY_INPUT_TENSORS:
            yield invalid(f"Incorrect value for {name}: expected {parameter.expected}, got '{text}'", parameter.place)
        elif message.platform != ENSEMBLE:  # the stray quote is Triton's
            yield BrokenRule(ErrorCode.UNSUPPORTED, f"Incorrect value for {name}: {text}'", parameter.place)
    if parameters.MAX_QUEUE_SIZE.text(message) is not None and message.HasField("dynamic_batching"):
        yield invalid(
            f"MAX_QUEUE_SIZE of model '{message.name}' is for models without dynamic_batching: use "
            "default_queue_policy.max_queue_size, or that of a priority level",
            parameters.MAX_QUEUE_SIZE.place,
        )
    yield from broken_sharing(message)


def broken_sharing(message: model_config_pb.ModelConfig) -> Iterator[BrokenRule]:
    """Instances that could not share what one ``initialize`` makes. Their groups have been filled in."""
    sharing = parameters.INSTANCE_SHARING.given(message)
    if sharing is None:
        return
    subject = f"INSTANCE_SHARING '{sharing.value}' of model '{message.name}'"
    places = {(group.kind, gpu) for group in message.instance_group for gpu in group.gpus or (0,)}
    if len(places) > 1:
        kinds = model_config_pb.ModelInstanceGroup.Kind
        listed = ", ".join(f"{kinds.Name(kind)} {gpu}" for kind, gpu in sorted(places))
        yield invalid(
            f"{subject}: initialize runs once, for one kind of instance and one device, and the instance groups have {listed}",
            parameters.INSTANCE_SHARING.place,
        )
    if sharing is InstanceSharing.THREADS and message.HasField("sequence_batching"):
        yield invalid(
            f"{subject}: each instance of a model with sequence_batching keeps the states of its own sequences, and threads "
            "would have one model object for all of them; use 'fork'",
            parameters.INSTANCE_SHARING.place,
        )


def broken_batching_library(message: model_config_pb.ModelConfig) -> Iterator[BrokenRule]:
    """Section 4.11: a custom batching strategy is a native library, which cannot be loaded here."""
    path = parameters.TRITON_BATCH_STRATEGY_PATH.text(message)
    if path is None:
        return
    place = parameters.TRITON_BATCH_STRATEGY_PATH.place
    if message.HasField("sequence_batching"):
        yield invalid(
            "TRITON_BATCH_STRATEGY_PATH cannot be specified with sequence batcher, using default batching strategy",
            place,
        )
    if not os.path.exists(path):  # no error where it cannot be looked at, as pathlib's would be
        yield BrokenRule(ErrorCode.NOT_FOUND, f"Batching library path not found: {path}", place)
    yield BrokenRule(
        ErrorCode.UNSUPPORTED,
        f"TRITON_BATCH_STRATEGY_PATH of model '{message.name}' names a native batching library, {path}: pytriton-lite "
        "loads none. Remove the parameter to batch by the rules of dynamic_batching.",
        place,
    )


def read_labels(message: model_config_pb.ModelConfig, model_dir: Path) -> dict[str, tuple[str, ...]]:
    """Section 4.2: the lines of every label file by output. It lies in the model's directory. Not UTF-8: surrogates.

    Raises BrokenRule.
    """
    return {
        output.name: _read_label_file(output, at, message.name, model_dir)
        for at, output in enumerate(message.output)
        if output.label_filename
    }


def broken_labels(message: model_config_pb.ModelConfig, model_dir: Path) -> Iterator[BrokenRule]:
    """The label files that `read_labels` cannot read."""
    for at, output in enumerate(message.output):
        if output.label_filename:
            try:
                _read_label_file(output, at, message.name, model_dir)
            except BrokenRule as broken:
                yield broken


def _read_label_file(output: model_config_pb.ModelOutput, at: int, model_name: str, model_dir: Path) -> tuple[str, ...]:
    place = f"output[{at}].label_filename"
    path = path_inside(model_dir, output.label_filename)
    if path is None:
        raise BrokenRule(
            ErrorCode.UNSUPPORTED,
            f"label file path '{output.label_filename}' for output '{output.name}' in model '{model_name}' is outside "
            "model directory",
            place,
        )
    try:
        text = read_regular_file(path).decode("utf-8", "surrogateescape")
    except (OSError, ValueError) as error:
        raise BrokenRule(ErrorCode.INTERNAL, cannot_open(path, error), place) from None
    # Universal line ends: a file that was written on Windows gives no labels with a carriage return.
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return tuple(text.removesuffix("\n").split("\n"))  # not splitlines, to which a form feed ends a line, too


def broken_metric_tags(message: model_config_pb.ModelConfig) -> Iterator[BrokenRule]:
    """Section 4.11: a tag that cannot be a Prometheus label kills Triton when the model is loaded; we refuse it."""
    for key in sorted(message.metric_tags):
        if not _METRIC_TAG.fullmatch(key):
            yield invalid(
                f"metric_tags of model '{message.name}': '{key}' gives the label '_{key}', expected letters, digits "
                "and underscores, the first of them no underscore",
                f'metric_tags["{key}"]',
            )
