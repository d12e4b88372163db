"""add_sub for BentoML. A request is `{"id": ..., "INPUT0": [...], "INPUT1": [...]}` at /infer."""

from __future__ import annotations

import bentoml
import numpy as np


@bentoml.service(workers=1, logging={"access": {"enabled": False}})
class AddSub:
    @bentoml.api
    def infer(self, id: str, INPUT0: list[float], INPUT1: list[float]) -> dict[str, object]:
        left, right = np.array(INPUT0, np.float32), np.array(INPUT1, np.float32)
        return {"id": id, "OUTPUT0": (left + right).tolist(), "OUTPUT1": (left - right).tolist()}
