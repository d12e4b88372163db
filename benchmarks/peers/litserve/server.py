"""add_sub for LitServe: server.py PORT. A request is `{"id": ..., "INPUT0": [...], "INPUT1": [...]}` at /predict."""

from __future__ import annotations

import sys
from typing import TypedDict

import litserve
import numpy as np


class Request(TypedDict):
    id: str
    INPUT0: list[float]
    INPUT1: list[float]


class AddSub(litserve.LitAPI):
    def setup(self, device: str) -> None:
        pass

    def predict(self, request: Request) -> dict[str, object]:
        left, right = np.array(request["INPUT0"], np.float32), np.array(request["INPUT1"], np.float32)
        return {"id": request["id"], "OUTPUT0": (left + right).tolist(), "OUTPUT1": (left - right).tolist()}


if __name__ == "__main__":
    litserve.LitServer(AddSub(), accelerator="cpu", workers_per_device=1).run(
        host="127.0.0.1", port=int(sys.argv[1]), num_api_servers=1, log_level="warning", generate_client_file=False
    )
