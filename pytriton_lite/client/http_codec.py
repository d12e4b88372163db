"""Requests to bodies of HTTP and bodies to responses, with the binary tensor extension or in JSON alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import numpy as np
import orjson

from pytriton_lite.client.errors import ForeignAnswer
from pytriton_lite.client.messages import (
    InferRequest,
    InferResponse,
    ModelMetadata,
    TensorSpec,
    json_values,
    make_tensor,
)
from pytriton_lite.core import dtypes
from pytriton_lite.core.tensor import Tensor

HEADER_LENGTH = "inference-header-content-length"


def model_path(model: str, version: str = "", verb: str = "") -> str:
    """``/v2/models/MODEL[/versions/VERSION][/VERB]``."""
    path = f"/v2/models/{quote(model, safe='')}"
    if version:
        path += f"/versions/{quote(version, safe='')}"
    return f"{path}/{verb}" if verb else path


def encode_request(request: InferRequest, *, binary_in: bool, binary_out: bool) -> tuple[dict[str, str], bytes]:
    """Headers and body of an inference."""
    document: dict[str, Any] = {}
    if request.id:
        document["id"] = request.id
    parameters = dict(request.parameters)
    data: list[bytes] = []
    inputs: list[dict[str, Any]] = []
    for tensor in request.inputs:
        entry: dict[str, Any] = {"name": tensor.name, "shape": list(tensor.shape), "datatype": tensor.datatype.name}
        if binary_in:
            content = bytes(tensor.content())
            entry["parameters"] = {"binary_data_size": len(content)}
            data.append(content)
        else:
            entry["data"] = json_values(tensor)
        inputs.append(entry)
    document["inputs"] = inputs
    if request.outputs:
        document["outputs"] = [
            {"name": name, "parameters": {"binary_data": True}} if binary_out else {"name": name}
            for name in request.outputs
        ]
    elif binary_out:
        parameters["binary_data_output"] = True
    if parameters:
        document["parameters"] = parameters
    header = orjson.dumps(document)
    if not data:
        return {"Content-Type": "application/json"}, header
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(header))}
    return headers, b"".join((header, *data))


def decode_response(headers: Mapping[str, str], body: bytes) -> InferResponse:
    """The response in *body*. Raises ForeignAnswer."""
    length = headers.get(HEADER_LENGTH, "")
    header = body[: int(length)] if length.isdigit() else body
    rest = body[len(header) :]
    try:
        document = orjson.loads(header)
        outputs = []
        at = 0
        for entry in document.get("outputs") or ():
            size = (entry.get("parameters") or {}).get("binary_data_size")
            datatype = _datatype(entry["datatype"])
            shape = tuple(map(int, entry["shape"]))
            if size is None:
                outputs.append(_from_json(entry["name"], datatype, shape, entry["data"]))
            else:
                outputs.append(Tensor(entry["name"], datatype, shape, rest[at : at + size]))
                at += size
        return InferResponse(
            # Where there is nothing to say, KServe's own server has null.
            str(document.get("model_name") or ""),
            str(document.get("model_version") or ""),
            str(document.get("id") or ""),
            outputs,
            document.get("parameters") or {},
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ForeignAnswer(f"the answer is no inference response ({error!r}): {header[:80]!r}") from None


def decode_metadata(document: Any) -> ModelMetadata:
    """Metadata of a model. Raises ForeignAnswer."""
    try:
        return ModelMetadata(
            document["name"],
            tuple(map(str, document.get("versions") or ())),
            document.get("platform") or "",
            tuple(map(_spec, document.get("inputs") or ())),
            tuple(map(_spec, document.get("outputs") or ())),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ForeignAnswer(f"the answer is no metadata of a model ({error!r}): {str(document)[:80]}") from None


def error_text(body: bytes) -> str:
    """What an answer that is an error says."""
    try:
        return str(orjson.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace").strip() or "(no text)"


def _spec(entry: Any) -> TensorSpec:
    return TensorSpec(entry["name"], _datatype(entry["datatype"]), tuple(map(int, entry["shape"])))


def _datatype(name: str) -> dtypes.DataType:
    datatype = dtypes.BY_NAME.get(name)
    if datatype is None:
        raise ValueError(f"unknown data type '{name}'")
    return datatype


def _from_json(name: str, datatype: dtypes.DataType, shape: tuple[int, ...], data: Any) -> Tensor:
    if datatype is dtypes.BYTES:
        array = np.array(data, dtype=object).ravel()  # the protocol lets lists be nested as the shape is
        array[:] = [element.encode() for element in array]
        return make_tensor(name, datatype, array.reshape(shape))
    return make_tensor(name, datatype, np.array(data, datatype.numpy).reshape(shape))
