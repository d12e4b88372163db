"""The tracer from its first request to its end."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from pytriton_lite.core import dtypes
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.tracing import tracer as tracer_module
from pytriton_lite.engine.tracing.observation import Observation
from pytriton_lite.engine.tracing.options import TraceLevel, TraceOptions
from pytriton_lite.engine.tracing.tracer import Tracer
from tests.harness import until


def trace(observation: Observation, nbytes: int) -> None:
    """Have a request with an input of *nbytes* followed to its end."""
    timeline = observation.begin("http", "m", headers={}, receiving_ns=1)
    assert timeline is not None
    timeline.accepted([Tensor("X", dtypes.UINT8, (nbytes,), bytes(nbytes))], batch_size=1, now_ns=2)
    timeline.finish()


def test_a_file_is_complete_at_an_end_that_comes_in_the_middle_of_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracer_module, "_CLOSE_S", 0.01)
    monkeypatch.setattr(tracer_module, "_CUT_OFF_S", 60.0)
    path = tmp_path / "trace.json"
    observation = Observation()
    options = TraceOptions(levels=(TraceLevel.TENSORS,), rate=1, file=str(path))
    tracer = Tracer(options, observation, lambda name: True)
    trace(observation, 4)
    trace(observation, 50_000_000)  # seconds of work
    trace(observation, 4)
    until(lambda: path.exists() and path.stat().st_size > 100_000)
    tracer.close()
    assert [entry["id"] for entry in json.loads(path.read_bytes())] == [1]
    assert [record.getMessage() for record in caplog.records] == [
        "the last traces are lost: they could not be written within 0.01 s"
    ]
    assert "traces" not in [thread.name for thread in threading.enumerate()]
