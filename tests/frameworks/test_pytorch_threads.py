"""Instances that are threads keep to the number of threads that the program, or ``initialize``, has told PyTorch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from pytriton_lite import Server, Tensor, model
from tests.harness import RunningServer, tensor, write_model

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")

SIDE = 256
"""So large that MKL takes all threads that it may."""

SHARED = """
import os
import numpy as np
import torch
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        torch.set_num_threads(1)
        self.weights = torch.ones(256, 256)

    def execute(self, requests):
        answers = []
        for request in requests:
            before = len(os.listdir("/proc/self/task"))
            self.weights @ self.weights
            more = len(os.listdir("/proc/self/task")) - before
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("MORE", np.array([more], np.int32))]))
        return answers
"""


@pytest.fixture
def one_thread() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_a_thread_of_the_program_takes_no_more_threads_than_the_program_said() -> None:
    weights = torch.ones(SIDE, SIDE)

    @model(inputs=[Tensor((1,), np.int32, "X")], outputs=[Tensor((1,), np.int32, "MORE")], in_process=True)
    def threads(X: object) -> dict[str, object]:
        before = len(os.listdir("/proc/self/task"))
        weights @ weights
        return {"MORE": np.array([len(os.listdir("/proc/self/task")) - before], np.int32)}

    with Server() as server:
        server.bind(threads)
        assert server.infer("threads", {"X": np.array([1], np.int32)})["MORE"].tolist() == [0]


def test_instances_in_one_worker_take_no_more_threads_than_initialize_said(tmp_path: Path) -> None:
    config = """input { name: "X" data_type: TYPE_INT32 dims: 1 } output { name: "MORE" data_type: TYPE_INT32 dims: 1 }
        instance_group { kind: KIND_CPU } parameters { key: "INSTANCE_SHARING" value { string_value: "threads" } }"""
    write_model(tmp_path, "shared", SHARED, config=config)
    with RunningServer(tmp_path) as server:
        reply = server.infer("shared", [tensor("X", "INT32", [1], [1])])
        assert reply.json["outputs"][0]["data"] == [0]
