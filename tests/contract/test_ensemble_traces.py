"""Traces of ensembles: the steps are children of the ensemble's own (cli.md section 7). What is in files was asked of 2.51."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.ensemble_models import write_ensemble, write_step_model
from tests.contract.otlp_receiver import OtlpReceiver
from tests.harness import RunningServer, tensor

X = tensor("X", "FP32", [4], [0] * 4)
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    repository = tmp_path / "models"
    for name in ("a", "b"):
        write_step_model(repository, name)
    write_ensemble(repository, "inner", ("b", "IN0=X", "OUT0=Y"))
    write_ensemble(repository, "outer", ("a", "IN0=X", "OUT0=T"), ("inner", "X=T", "Y=Y"))
    return repository


@pytest.fixture
def collector() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


def test_in_a_file_every_step_has_the_ensemble_as_its_parent(repository: Path) -> None:
    file = repository.parent / "trace.json"
    settings = (f"triton,file={file}", "level=TIMESTAMPS", "rate=1")
    with RunningServer(repository, flags=tuple(f"--trace-config={setting}" for setting in settings)) as server:
        assert server.infer("outer", [X], id="r").status == 200
    entries = json.loads(file.read_bytes())
    described = {entry["model_name"]: entry for entry in entries if "model_name" in entry}
    ids = {name: entry["id"] for name, entry in described.items()}
    assert {name: entry.get("parent_id") for name, entry in described.items()} == {
        "outer": None,
        "a": ids["outer"],
        "inner": ids["outer"],
        "b": ids["inner"],
    }
    assert {entry["request_id"] for entry in described.values()} == {"r"}
    stations = {
        name: [stamp["name"] for entry in entries if entry["id"] == ids[name] for stamp in entry.get("timestamps", ())]
        for name in ids
    }
    assert stations["inner"] == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
    assert "COMPUTE_START" in stations["a"] and "COMPUTE_START" in stations["b"]
    assert "COMPUTE_START" not in stations["outer"]


def test_as_spans_the_steps_hang_below_the_ensemble(repository: Path, collector: OtlpReceiver) -> None:
    settings = (
        "level=TIMESTAMPS",
        "rate=0",
        "mode=opentelemetry",
        f"opentelemetry,url={collector.url}",
        "opentelemetry,bsp_schedule_delay=20",
    )
    with RunningServer(repository, flags=tuple(f"--trace-config={setting}" for setting in settings)) as server:
        headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        assert server.post("/v2/models/outer/infer", {"inputs": [X]}, headers).status == 200
        spans = collector.wait_trace(TRACE, 1 + 2 + 2 * 6)
    names = {span.id: span.name for span in spans}
    parents = {span.name: names.get(span.parent) for span in spans if span.name in ("outer", "a", "inner", "b")}
    assert parents == {"outer": "InferRequest", "a": "outer", "inner": "outer", "b": "inner"}
    assert sorted(span.name for span in spans if names.get(span.parent) in ("outer", "inner")) == ["a", "b", "inner"]
