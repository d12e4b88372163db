"""``pb_utils.ModelConfig``: what ``auto_complete_config`` gets, completes and returns (model API, section 2.10)."""

from __future__ import annotations

import json
from typing import Any

TensorConfig = dict[str, Any]
"""An entry of ``input`` or ``output``, as the JSON form of a configuration has it."""

_REQUIRED = ("name", "data_type", "dims")
_OTHER_SCHEDULERS = ("sequence_batching", "ensemble_scheduling")


class ModelConfig:
    """A configuration to be completed. Every rule that a call breaks is a ValueError with Triton's text.

    Of what is in it when the model returns it, the server takes over max_batch_size, input, output, a scheduler where none
    was configured, and whether the model is decoupled; any other change is lost (model API, section 3.1).
    """

    __module__ = "triton_python_backend_utils"

    def __init__(self, model_config: str) -> None:
        """*model_config* is JSON text, as in ``args["model_config"]``."""
        self._model_config: dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        """The configuration as it is now: the very dict that the methods change, to be read only."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Raise the largest batch to *max_batch_size*; what was configured may not be lowered."""
        configured = self._model_config.get("max_batch_size", 0)
        if configured > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but in auto-complete-config function for model "
                f"'{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Ask for dynamic batching with its defaults; a dynamic batching that was configured stays as it is."""
        for scheduler in _OTHER_SCHEDULERS:
            if scheduler in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config function for "
                    f"model '{self._name}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: TensorConfig) -> None:
        """Declare an input, or complete the configured one of that name.

        Properties: ``name``, ``data_type`` (``TYPE_FP32`` and its like), ``dims`` without the batch dimension, and perhaps
        ``optional``.
        """
        self._add("input", input, ("name", "data_type", "dims", "optional"))

    def add_output(self, output: TensorConfig) -> None:
        """Declare an output, or complete the configured one of that name: ``name``, ``data_type`` and ``dims``."""
        self._add("output", output, _REQUIRED)

    def set_model_transaction_policy(self, transaction_policy_dict: dict[str, Any]) -> None:
        """Say whether the model is decoupled: ``{"decoupled": True}``. What was configured may not be contradicted."""
        if any(key != "decoupled" for key in transaction_policy_dict):
            raise ValueError(
                f"model transaction property in auto-complete-config function for model '{self._name}' contains property "
                "other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        decoupled = transaction_policy_dict["decoupled"]
        if policy.get("decoupled", decoupled) != decoupled:
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config for model '{self._name}', which is already "
                f"set to '{policy['decoupled']}'."
            )
        policy["decoupled"] = decoupled

    @property
    def _name(self) -> Any:
        return self._model_config["name"]

    def _add(self, kind: str, tensor: TensorConfig, allowed: tuple[str, ...]) -> None:
        self._check_properties(kind, tensor, allowed)
        configured_tensors = self._model_config.setdefault(kind, [])
        for configured in configured_tensors:
            if configured["name"] == tensor["name"]:
                self._complete(kind, configured, tensor)
                return
        configured_tensors.append(dict(tensor))

    def _check_properties(self, kind: str, tensor: TensorConfig, allowed: tuple[str, ...]) -> None:
        function = f"in auto-complete-config function for model '{self._name}'"
        if any(key not in allowed for key in tensor):
            quoted = [f"'{key}'" for key in allowed]
            raise ValueError(
                f"{kind} '{tensor['name']}' {function} contains property other than {', '.join(quoted[:-1])} and "
                f"{quoted[-1]}."
            )
        if "name" not in tensor:
            raise ValueError(f"{kind} {function} is missing 'name' property.")
        for key in _REQUIRED:
            if key not in tensor:
                raise ValueError(f"{kind} '{tensor['name']}' {function} is missing '{key}' property.")

    def _complete(self, kind: str, configured: TensorConfig, tensor: TensorConfig) -> None:
        name = tensor["name"]
        datatype = configured.get("data_type", "TYPE_INVALID")
        if datatype not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype {datatype} for {kind} '{name}', "
                f"model provides {tensor['data_type']}"
            )
        dims = configured.get("dims")
        if dims and dims != tensor["dims"]:
            raise self._differs(name, "dims", tensor["dims"], dims)
        if "optional" in tensor and configured.get("optional", tensor["optional"]) != tensor["optional"]:
            raise self._differs(name, "optional", tensor["optional"], configured["optional"])
        configured.update(tensor)

    def _differs(self, tensor: str, what: str, given: object, configured: object) -> ValueError:
        return ValueError(
            f"model '{self._name}', tensor '{tensor}': the model expects {what} {given} but the model configuration "
            f"specifies {what} {configured}"
        )
