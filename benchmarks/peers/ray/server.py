"""add_sub for Ray Serve: server.py PORT. A request is `{"id": ..., "INPUT0": [...], "INPUT1": [...]}` at /infer."""

from __future__ import annotations

import sys

import numpy as np
import ray
from ray import serve
from starlette.requests import Request


# More requests at a time than the benchmark has callers: the default of 5 would keep the others in the proxy.
@serve.deployment(num_replicas=1, max_ongoing_requests=1000)
class AddSub:
    async def __call__(self, request: Request) -> dict[str, object]:
        given = await request.json()
        left, right = np.array(given["INPUT0"], np.float32), np.array(given["INPUT1"], np.float32)
        return {"id": given["id"], "OUTPUT0": (left + right).tolist(), "OUTPUT1": (left - right).tolist()}


if __name__ == "__main__":
    ray.init(include_dashboard=False)
    serve.start(
        http_options={"host": "127.0.0.1", "port": int(sys.argv[1])}, logging_config={"enable_access_log": False}
    )
    serve.run(AddSub.options(logging_config={"enable_access_log": False}).bind(), route_prefix="/infer", blocking=True)
