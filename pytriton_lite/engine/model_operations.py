"""What a model asks of the server about other models: ``model.load``, ``model.unload``, ``model.is_ready`` (model API, 4.8)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Protocol

from pytriton_lite.core.errors import BugError, ErrorCode, InferenceError
from pytriton_lite.core.request import parse_version
from pytriton_lite.core.states import VersionState
from pytriton_lite.engine.serving.served_version import ServedVersion

_FILE = "file:"


class ModelControl(Protocol):
    """A server, as far as models may ask for others. What its methods say of errors models see."""

    async def would_serve(self, name: str, version: int | None) -> bool:
        """Whether that version, or the newest ready one, would serve a request now, and its model says so, too."""

    async def load_model(
        self, name: str, config_override: str | None, files: Mapping[str, bytes], *, asked_by: str = ""
    ) -> None:
        """Load a model or load it anew, for the model whose id is *asked_by* where that one is being loaded itself."""

    async def unload_model(self, name: str, unload_dependents: bool, *, asked_by: str = "") -> None:
        """Begin to unload a model."""


async def answer_model_operation(
    server: ModelControl,
    operation: str,
    arguments: Mapping[str, Any],
    *,
    caller: ServedVersion,
    is_awaited: bool = False,
) -> object:
    """Do what a worker of *caller* asks, and return the answer for it. Cancel it when that worker is gone.

    *is_awaited*: a load waits for that worker, which is of a new instance, perhaps of a version that serves with others.
    Raises InferenceError for the model to see. It never waits for *caller* itself: a model that is being loaded is refused
    what would have to wait for the end of its load.
    """
    name: str = arguments["model_name"]
    asked_by = str(caller.id) if is_awaited or caller.state is VersionState.LOADING else ""
    if operation == "model.load":
        await server.load_model(name, arguments["config"] or None, _files(arguments["files"]), asked_by=asked_by)
        return None
    if operation == "model.unload":
        await server.unload_model(name, arguments["unload_dependents"], asked_by=asked_by)
        return None
    if operation == "model.is_ready":
        return await server.would_serve(name, _version(arguments["model_version"]))
    raise BugError(f"a worker of model '{caller.name}' asks for '{operation}', which nobody answers")


def _files(encoded: Mapping[str, str]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for key, content in encoded.items():
        if not key.startswith(_FILE):
            raise InferenceError(ErrorCode.INVALID_ARG, f"unrecognized load parameter '{key}'.")
        files[key.removeprefix(_FILE)] = base64.b64decode(content)
    return files


def _version(text: str) -> int | None:
    try:
        return parse_version(text)
    except InferenceError as error:
        # Triton words it in another way here than in its front ends where the number is negative.
        if "stol" in error.message:
            raise
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"failed to get model version from specified version string '{text}', version should be an integral value > 0",
        ) from None
