"""Memory that requests free in a worker: kept while requests come, given back when none do (docs/python-backend.md)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytriton_lite.core import heap
from tests.contract.wire_models import wait_until
from tests.harness import RunningServer, stat_fields, tensor, write_model

pytestmark = pytest.mark.skipif(not heap.can_give_back(), reason="glibc's heap")

MIB = 1 << 20
CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.answer(request)]) for request in requests]

    def answer(self, request):
        (megabytes,) = pb_utils.get_input_tensor_by_name(request, "MEGABYTES").as_numpy()
        pieces = [np.ones(1 << 20, np.uint8) for _ in range(megabytes)]
        self.kept = np.ones(10, np.uint8)  # behind them in the heap
        return pb_utils.Tensor("SUM", np.array([sum(len(piece) for piece in pieces)], np.int64))
"""
CONFIG = """
backend: "python"
input { name: "MEGABYTES" data_type: TYPE_INT32 dims: 1 }
output { name: "SUM" data_type: TYPE_INT64 dims: 1 }
"""
NO = 'parameters { key: "KEEP_FREED_MEMORY" value { string_value: "no" } }'
TUNED = 'parameters { key: "ENV:MALLOC_TRIM_THRESHOLD_" value { string_value: "131072" } }'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("heap") / "models"
    for name, more in {"keeps": "", "gives_back": NO, "is_tuned": TUNED}.items():
        write_model(repository, name, CODE, CONFIG + more)
    with RunningServer(repository) as running:
        yield running


def allocate(server: RunningServer, model: str, megabytes: int) -> None:
    reply = server.infer(model, [tensor("MEGABYTES", "INT32", [1], [megabytes])])
    assert reply.json["outputs"][0]["data"] == [megabytes * MIB]


def page_faults(pid: int) -> int:
    return int(stat_fields(pid)[7])


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def faults_of_ten(server: RunningServer, model: str) -> int:
    """Page faults of ten requests that allocate 8 MiB each, once the worker has had some."""
    (pid,) = server.worker_pids(model)
    for _ in range(3):
        allocate(server, model, 8)
    before = page_faults(pid)
    for _ in range(10):
        allocate(server, model, 8)
    return page_faults(pid) - before


def test_what_a_request_freed_is_not_faulted_in_again_for_the_next(server: RunningServer) -> None:
    of_8_mib = 8 * MIB // os.sysconf("SC_PAGESIZE")
    # Where seconds pass between two requests, what the worker keeps is given back: it is idle.
    assert any(faults_of_ten(server, "keeps") < of_8_mib for _ in range(5))


@pytest.mark.parametrize("model", ["gives_back", "is_tuned"])
def test_glibc_does_what_it_would_do_where_somebody_says_so(server: RunningServer, model: str) -> None:
    of_8_mib = 8 * MIB // os.sysconf("SC_PAGESIZE")
    assert faults_of_ten(server, model) > 8 * of_8_mib


def test_an_idle_worker_has_given_back_what_a_burst_made_it_take(server: RunningServer) -> None:
    (pid,) = server.worker_pids("keeps")
    allocate(server, "keeps", 1)
    wait_until(lambda: resident(pid) < 100 * MIB)
    before = resident(pid)
    allocate(server, "keeps", 300)
    wait_until(lambda: resident(pid) < before + 10 * MIB)
