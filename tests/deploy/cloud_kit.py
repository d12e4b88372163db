"""Requests as SageMaker and Vertex AI send them, and the server that they are sent to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.harness import Reply, RunningServer

ADD_SUB: dict[str, Any] = {
    "inputs": [
        {"name": name, "datatype": "FP32", "shape": [4], "data": [1.0, 2.0, 3.0, 4.0]} for name in ("INPUT0", "INPUT1")
    ]
}


class CloudServer(RunningServer):
    """A server with the routes of a service, called by the name that the log has for it."""

    def url(self, service: str) -> str:
        found = re.search(rf"Started {service} HTTPService at 127\.0\.0\.1:(\d+)", self.log)
        assert found is not None, self.log
        return f"http://127.0.0.1:{found[1]}"

    def ask(
        self, service: str, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        return self.request(method, f"{self.url(service)}{path}", data, dict(headers or {}))


def binary_add_sub() -> tuple[bytes, int]:
    """A request for `ADD_SUB` with tensors behind its JSON, and the size of that. The answer is to be binary, too."""
    tensor = np.array([1, 2, 3, 4], np.float32).tobytes()
    inputs = [
        {"name": name, "datatype": "FP32", "shape": [4], "parameters": {"binary_data_size": len(tensor)}}
        for name in ("INPUT0", "INPUT1")
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return head + 2 * tensor, len(head)


def binary_sum(reply: Reply, mime_type: str) -> list[float]:
    """OUTPUT0 of a binary answer, whose type says where its tensors begin."""
    header = reply.headers["content-type"]
    assert header.startswith(mime_type), header
    assert "inference-header-content-length" not in {name.lower() for name in reply.headers}
    size = int(header.removeprefix(mime_type))
    document = json.loads(reply.body[:size])
    assert document["outputs"][0]["name"] == "OUTPUT0"
    found: list[float] = np.frombuffer(reply.body[size : size + 16], np.float32).tolist()
    return found
