"""``load_model``, ``unload_model`` and ``is_model_ready`` of pb_utils (model API, section 4.8)."""

from __future__ import annotations

import base64
import json
from typing import Any

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.ipc.channel import LARGEST_FRAME
from pytriton_lite.worker.api_errors import TritonModelException, refuse_arguments
from pytriton_lite.worker.arguments import Unfit, text, truth
from pytriton_lite.worker.process import Phase, host

_REST_BYTES = 1 << 10
"""What a question has beside names, configuration and contents, and more."""
_NOT_IN = (Phase.AUTO_COMPLETE, Phase.FINALIZE)


def load_model(model_name: str | bytes, config: str | bytes = "", files: object = None) -> None:
    """Load another model, or load it anew, and return when it serves. The server must be in explicit control mode.

    *config* is a model configuration as JSON, in place of config.pbtxt. *files* are the whole model, with *config*: a
    dictionary of contents by ``"file:<path>"``. Allowed in ``initialize``, when the server has started, and in ``execute``.
    Raises TritonModelException with the server's reason when the model does not load, and for more than one message carries:
    768 MiB of files.
    """
    try:
        name, override = text(model_name), text(config)
    except Unfit:
        arguments = (model_name, config, files)
        refuse_arguments("load_model", "(model_name: str, config: str = '', files: object = None) -> None", arguments)
    contents = _encoded(name, files)
    nbytes = len(json.dumps([name, override, *contents])) + sum(map(len, contents.values()))
    if nbytes > LARGEST_FRAME - _REST_BYTES:  # the server would take it for garbage, and kill this worker
        raise TritonModelException(
            f"failed to load model '{name}', its files and configuration are {nbytes} bytes in base64, expected at most "
            f"{LARGEST_FRAME - _REST_BYTES}"
        )
    _ask("Failed to load model", "model.load", model_name=name, config=override, files=contents)


def unload_model(model_name: str | bytes, unload_dependents: bool = False) -> None:
    """Begin to unload a model, and return: no new request finds it, those inside it are served. Unknown is no error.

    *unload_dependents* also unloads what only an ensemble of that name needs. Allowed where `load_model` is.
    Raises TritonModelException with the server's reason.
    """
    try:
        name, with_dependents = text(model_name), truth(unload_dependents)
    except Unfit:
        arguments = (model_name, unload_dependents)
        refuse_arguments("unload_model", "(model_name: str, unload_dependents: bool = False) -> None", arguments)
    _ask("Failed to unload model", "model.unload", model_name=name, unload_dependents=with_dependents)


def is_model_ready(model_name: str | bytes, model_version: str | bytes = "") -> bool:
    """Whether a request for that version, or for any without one, would be served now; in every control mode.

    Raises TritonModelException for a version that is no number.
    """
    try:
        name, version = text(model_name), text(model_version)
    except Unfit:
        arguments = (model_name, model_version)
        refuse_arguments("is_model_ready", "(model_name: str, model_version: str = '') -> bool", arguments)
    return bool(_ask("Failed to check model readiness", "model.is_ready", model_name=name, model_version=version))


def _encoded(model_name: str, files: object) -> dict[str, str]:
    """*files* as they travel: in base64."""
    if files is None:
        return {}
    if not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and file contents"
        )
    encoded = {}
    for path, content in files.items():
        for value, expected in ((path, str), (content, bytes)):
            if not isinstance(value, expected):
                raise TypeError(f"Object of type '{type(value).__name__}' is not an instance of '{expected.__name__}'")
        encoded[path] = base64.b64encode(content).decode("ascii")
    return encoded


def _ask(failure: str, operation: str, **arguments: Any) -> Any:
    asked = host()
    if asked.phase in _NOT_IN:
        # Triton would wait for ever: the server, which has to answer, waits for this function to return.
        raise TritonModelException(
            f"{failure}: models are loaded and unloaded, and asked whether they are ready, in initialize and execute, not "
            f"in {asked.phase.value}"
        )
    try:
        return asked.ask(operation, **arguments)
    except InferenceError as error:
        raise TritonModelException(
            f"{failure}: Failed to process the request for model '{asked.instance_name}', message: {error.message}"
        ) from None
