"""What of a model's ``auto_complete_config`` becomes part of its configuration (model API, 3.1; model_config.md, 6.3)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pytriton_lite.config.errors import invalid, raise_first
from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.config.normalise import normalise
from pytriton_lite.config.validate import broken_model
from pytriton_lite.core import dtypes
from pytriton_lite.proto import model_config_pb

_TAKEN = ("max_batch_size", "input", "output", "model_transaction_policy")
_SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")

_DATA_TYPES = tuple(datatype.config_name for datatype in dtypes.ALL)


def merge_completed(config: ModelConfig, completed: Mapping[str, Any]) -> ModelConfig:
    """*config* with what *completed*, the JSON form of what the model returned, changes about it.

    Taken over as they are: max_batch_size, inputs, outputs. Taken where none was configured: a scheduler. Of the transaction
    policy, ``decoupled``. Nothing else. The result is normalised, and checked as a whole again.
    Raises InferenceError(INVALID_ARG).
    """
    message = copy.deepcopy(config.message)
    taken = _TAKEN if message.WhichOneof("scheduling_choice") else (*_TAKEN, *_SCHEDULERS)
    found = _parse({key: completed[key] for key in taken if key in completed}, config.name)
    message.max_batch_size = found.max_batch_size
    del message.input[:]
    message.input.extend(found.input)
    del message.output[:]
    message.output.extend(found.output)
    scheduler = found.WhichOneof("scheduling_choice")
    if scheduler is not None:
        getattr(message, scheduler).CopyFrom(getattr(found, scheduler))
    if found.HasField("model_transaction_policy"):
        message.model_transaction_policy.decoupled = found.model_transaction_policy.decoupled
    normalise(message)
    raise_first(broken_model(message))
    return ModelConfig.from_message(message)


def _parse(fields: dict[str, Any], model_name: str) -> model_config_pb.ModelConfig:
    """*fields* as a message. Properties that a configuration does not have are passed over, as by Triton."""
    for kind in ("input", "output"):
        if isinstance(fields.get(kind), list):
            fields[kind] = [_canonical_tensor(tensor, kind, model_name) for tensor in fields[kind]]
    from google.protobuf import json_format  # half a megabyte, and few models say anything

    found = model_config_pb.ModelConfig()
    try:
        json_format.ParseDict(fields, found, ignore_unknown_fields=True)
    except (ValueError, TypeError, AttributeError, RecursionError, json_format.Error) as error:
        # Triton says that the configuration is not provided; whoever wrote the method needs to hear what is wrong with it.
        detail = str(error).rstrip(".")
        raise invalid(
            f"auto_complete_config of model '{model_name}' returned a configuration that cannot be read: {detail}"
        ) from None
    return found


def _canonical_tensor(tensor: Any, kind: str, model_name: str) -> Any:
    """*tensor* as protobuf's parser wants it: the name of its data type as declared, its dims in a list, a truth value."""
    if not isinstance(tensor, dict):
        return tensor
    tensor = dict(tensor)
    datatype = tensor.get("data_type")
    if isinstance(datatype, str):
        tensor["data_type"] = datatype.upper()
        if tensor["data_type"] not in (*_DATA_TYPES, "TYPE_INVALID"):
            raise invalid(
                f"model {kind} '{tensor.get('name', '')}' has the unknown data_type '{datatype}' for {model_name}; "
                f"expected one of {', '.join(_DATA_TYPES)}"
            )
    dims = tensor.get("dims")
    if isinstance(dims, int):  # taken by Triton's parser as one dimension
        tensor["dims"] = [dims]
    if isinstance(tensor.get("optional"), int):
        tensor["optional"] = bool(tensor["optional"])
    return tensor
