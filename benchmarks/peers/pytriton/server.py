"""add_sub for PyTriton: server.py HTTP_PORT GRPC_PORT METRICS_PORT."""

from __future__ import annotations

import os
import sys
import sysconfig

import numpy as np
from pytriton.model_config import ModelConfig, Tensor
from pytriton.proxy.types import Request
from pytriton.triton import Triton, TritonConfig


def add_sub(requests: list[Request]) -> list[dict[str, np.ndarray]]:
    return [
        {
            "OUTPUT0": request.data["INPUT0"] + request.data["INPUT1"],
            "OUTPUT1": request.data["INPUT0"] - request.data["INPUT1"],
        }
        for request in requests
    ]


if __name__ == "__main__":
    # The stub of Triton's Python backend has to load the library of this Python, and not the one of the system.
    os.environ["LD_LIBRARY_PATH"] = sysconfig.get_config_var("LIBDIR")
    http_port, grpc_port, metrics_port = map(int, sys.argv[1:])
    config = TritonConfig(http_address="127.0.0.1", http_port=http_port, grpc_port=grpc_port, metrics_port=metrics_port)
    with Triton(config=config) as triton:
        triton.bind(
            model_name="add_sub",
            infer_func=add_sub,
            inputs=[Tensor(name=name, dtype=np.float32, shape=(4,)) for name in ("INPUT0", "INPUT1")],
            outputs=[Tensor(name=name, dtype=np.float32, shape=(4,)) for name in ("OUTPUT0", "OUTPUT1")],
            config=ModelConfig(batching=False),
        )
        triton.serve()
