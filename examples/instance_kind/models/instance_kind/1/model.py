"""instance_kind: what `args` says about the instance, and the device that a model picks from it."""

from __future__ import annotations

import time

import numpy as np
import triton_python_backend_utils as pb_utils


def device(kind: str, device_id: str) -> str:
    """Return the device in PyTorch's words. The server does not set CUDA_VISIBLE_DEVICES: the choice is ours."""
    if kind == "GPU":
        return f"cuda:{device_id}"
    if kind == "MODEL":
        # Here a model with a mind of its own looks at the machine, or spreads over several devices.
        return "of my own choice"
    return "cpu"


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        # All values are strings; the kind comes without its KIND_.
        kind = args["model_instance_kind"]
        self.facts = {
            "INSTANCE": args["model_instance_name"],
            "KIND": kind,
            "DEVICE": device(kind, args["model_instance_device_id"]),
        }

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        # In place of work: while this instance is busy, requests go to the others.
        time.sleep(0.05)
        outputs = [pb_utils.Tensor(name, np.array([fact], dtype=np.object_)) for name, fact in self.facts.items()]
        return [pb_utils.InferenceResponse(outputs) for _ in requests]
