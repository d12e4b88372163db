"""What the engine tells of itself in the JSON of the protocol: without FastAPI, for whoever answers with it."""

from __future__ import annotations

from typing import Any

from pytriton_lite.engine.counting.statistics import Duration, ModelStatistics, ResponseStatistics
from pytriton_lite.engine.views import IndexEntry, ModelMetadata, TensorMetadata


def metadata_json(found: ModelMetadata) -> dict[str, Any]:
    """Metadata of a model (HTTP spec, section 4)."""
    return {
        "name": found.name,
        "versions": [str(version) for version in found.versions],
        "platform": found.platform,
        "inputs": [_tensor_metadata(tensor) for tensor in found.inputs],
        "outputs": [_tensor_metadata(tensor) for tensor in found.outputs],
    }


def _tensor_metadata(tensor: TensorMetadata) -> dict[str, object]:
    return {"name": tensor.name, "datatype": tensor.datatype.name, "shape": tensor.shape}


def index_json(entry: IndexEntry) -> dict[str, Any]:
    """A row of the repository index (HTTP spec, section 12)."""
    row: dict[str, object] = {"name": entry.name}
    if entry.version is not None:
        row["version"] = str(entry.version)
    if entry.state is not None:
        row["state"] = entry.state.value
    if entry.reason:
        row["reason"] = entry.reason
    return row


def statistics_json(model: ModelStatistics) -> dict[str, Any]:
    """A row of ``model_stats`` (HTTP spec, section 6)."""
    return {
        "name": model.name,
        "version": str(model.version),
        "last_inference": model.last_inference_ms,
        "inference_count": model.inference_count,
        "execution_count": model.execution_count,
        "inference_stats": {
            "success": _duration(model.success),
            "fail": _duration(model.fail),
            "queue": _duration(model.queue),
            "compute_input": _duration(model.compute_input),
            "compute_infer": _duration(model.compute_infer),
            "compute_output": _duration(model.compute_output),
            "cache_hit": _duration(model.cache_hit),
            "cache_miss": _duration(model.cache_miss),
        },
        "response_stats": {str(index): _response(row) for index, row in sorted(model.responses.items())},
        "batch_stats": [
            {
                "batch_size": batch.batch_size,
                "compute_input": _duration(batch.compute_input),
                "compute_infer": _duration(batch.compute_infer),
                "compute_output": _duration(batch.compute_output),
            }
            for _, batch in sorted(model.batches.items())
        ],
        "memory_usage": [],
    }


def _response(row: ResponseStatistics) -> dict[str, object]:
    return {
        "compute_infer": _duration(row.compute_infer),
        "compute_output": _duration(row.compute_output),
        "success": _duration(row.success),
        "fail": _duration(row.fail),
        "empty_response": _duration(row.empty_response),
        "cancel": _duration(row.cancel),
    }


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.ns}
