"""The entries of the OpenAPI document for the models that are served now: a body that each of them takes, filled in."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pytriton_lite.config.openai import Task
from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.engine.views import TensorMetadata
from pytriton_lite.frontends.http import generate_openapi, openai_openapi, openapi

if TYPE_CHECKING:
    from pytriton_lite.engine.server import Server

Json = dict[str, Any]

TAG = "served models"
MOST_MODELS = 200
"""Entries of one document, an entry being 2 KiB. The other models are served as well, and have none."""
_MOST_ELEMENTS = 256
"""Elements of an example's tensor. Nobody reads an image as numbers."""
_WHOLE_SEQUENCE: Json = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
_WITHOUT_JSON = (dtypes.FP16, dtypes.BF16)


def with_served(document: Json, server: Server, *, has_openai: bool) -> Json:
    """*document*, which stays as it is, with an entry for each of the first `MOST_MODELS` models that are served now.

    With *has_openai* OpenAI's routes are in it, as far as these models declare themselves.
    """
    paths = dict(document["paths"])
    declared: dict[str, frozenset[Task]] = {}
    for name in server.served_names()[:MOST_MODELS]:
        try:
            paths.update(_entry(name, server))
            of_openai = server.model_config(name, None).openai if has_openai else None
        except InferenceError:
            continue  # it was unloaded a moment ago
        if of_openai is not None:
            declared[name] = of_openai.tasks
    if not declared:
        return {**document, "paths": paths}
    for path, methods in openai_openapi.paths(declared).items():
        for operation in methods.values():
            operation["responses"]["403"] = openapi.RESTRICTED
        paths[path] = methods
    components = document["components"]
    schemas = {**components["schemas"], **openai_openapi.SCHEMAS}
    return {**document, "paths": paths, "components": {**components, "schemas": schemas}}


def _entry(name: str, server: Server) -> Json:
    """The path of the route that suits the model, and its operation: infer, or generate_stream where it is decoupled."""
    inputs = server.model_metadata(name, None).inputs
    config = server.model_config(name, None)
    action = "generate_stream" if config.decoupled else "infer"
    path = f"/v2/models/{quote(name, safe='')}/{action}"
    operation = openapi.infer_operation()
    if action != "infer":
        operation = generate_openapi.operation(action, openapi.GENERATE_ERRORS)
    operation |= {"tags": [TAG], "summary": f"{operation['summary']}: {name}", "operationId": f"{action}:{name}"}
    openapi.complete(path, operation)
    sequences = config.sequence_batching
    takes_flags = sequences is not None and not sequences.is_iterative and action == "infer"
    _show_example(operation, inputs, is_flat=action != "infer", parameters=_WHOLE_SEQUENCE if takes_flags else {})
    return {path: {"post": operation}}


def _show_example(operation: Json, inputs: tuple[TensorMetadata, ...], *, is_flat: bool, parameters: Json) -> None:
    """Put the model's own example in the place of the general one. Without an example goes what nobody would type as JSON."""
    content = operation["requestBody"]["content"]["application/json"]
    del content["example"]
    reason = next(filter(None, map(_obstacle, inputs)), "")
    if reason:
        operation["description"] = f"Without an example: {reason}. The console has a form for this model."
    elif is_flat:
        content["example"] = {tensor.name: _flat(tensor) for tensor in inputs}
    else:
        content["example"] = {"parameters": parameters} if parameters else {}
        content["example"]["inputs"] = [_tensor(tensor) for tensor in inputs]


def _obstacle(tensor: TensorMetadata) -> str:
    """Why *tensor* cannot stand in an example; empty where it can."""
    if tensor.datatype in _WITHOUT_JSON:
        return f"'{tensor.name}' is {tensor.datatype.name}, which has no JSON form"
    count = prod(_shape(tensor))
    return f"'{tensor.name}' has {count} elements" if count > _MOST_ELEMENTS else ""


def _shape(tensor: TensorMetadata) -> list[int]:
    """The shape of the smallest tensor that fits: one batch element, and one element along what may have any length."""
    return [1 if dim < 0 else dim for dim in tensor.shape]


def _tensor(tensor: TensorMetadata) -> Json:
    return {
        "name": tensor.name,
        "datatype": tensor.datatype.name,
        "shape": _shape(tensor),
        "data": _elements(tensor),
    }


def _flat(tensor: TensorMetadata) -> object:
    """The value of a generate request: an element by itself, or all of them."""
    elements = _elements(tensor)
    return elements[0] if len(elements) == 1 else elements


def _elements(tensor: TensorMetadata) -> list[object]:
    count = prod(_shape(tensor))
    if tensor.datatype is dtypes.BYTES:
        return ["text"] * count
    if tensor.datatype is dtypes.BOOL:
        return [True] * count
    is_real = tensor.datatype in (dtypes.FP32, dtypes.FP64)
    return [float(number) if is_real else number % 100 for number in range(1, count + 1)]
