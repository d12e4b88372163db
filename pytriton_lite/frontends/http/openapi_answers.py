"""Schemas of the answers of every route but those of inference (HTTP spec, sections 4 to 6, 13 and 14)."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

_COUNT: Json = {"type": "integer", "minimum": 0}
_TEXT: Json = {"type": "string"}
_BOOL: Json = {"type": "boolean"}


def _object(properties: Json, *optional: str) -> Json:
    """An object whose *properties* are required, but for the *optional* ones."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "required": required, "properties": properties}


def _array(items: Json) -> Json:
    return {"type": "array", "items": items}


def _reference(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


_DURATION = _reference("StatisticDuration")
_COMPUTE = {f"compute_{part}": _DURATION for part in ("input", "infer", "output")}

SCHEMAS: Json = {
    "ServerMetadata": _object({"name": _TEXT, "version": _TEXT, "extensions": _array(_TEXT)}),
    "ModelList": _object({"models": _array(_TEXT)}),
    "TensorMetadata": _object({"name": _TEXT, "datatype": _TEXT, "shape": _array({"type": "integer", "minimum": -1})}),
    "ModelMetadata": _object(
        {
            "name": _TEXT,
            "versions": {**_array(_TEXT), "description": "Those that are ready, ascending"},
            "platform": _TEXT,
            "inputs": _array(_reference("TensorMetadata")),
            "outputs": _array(_reference("TensorMetadata")),
        }
    ),
    "ModelConfiguration": {
        "description": "As the server completed it; the message ModelConfig of Triton with the names of its fields",
        "type": "object",
        "required": ["name", "max_batch_size", "input", "output"],
        "properties": {"name": _TEXT, "max_batch_size": _COUNT, "input": _array({}), "output": _array({})},
    },
    "StatisticDuration": _object({"count": _COUNT, "ns": _COUNT}),
    "ModelStatistics": _object(
        {
            "name": _TEXT,
            "version": _TEXT,
            "last_inference": {**_COUNT, "description": "Milliseconds since the epoch; 0 is never"},
            "inference_count": _COUNT,
            "execution_count": _COUNT,
            "inference_stats": _object(
                dict.fromkeys(("success", "fail", "queue"), _DURATION)
                | _COMPUTE
                | dict.fromkeys(("cache_hit", "cache_miss"), _DURATION)
            ),
            "response_stats": {
                "type": "object",
                "description": "By the number of the response, where the backend tells",
                "additionalProperties": {"type": "object", "additionalProperties": _DURATION},
            },
            "batch_stats": _array(_object({"batch_size": {"type": "integer", "minimum": 1}, **_COMPUTE})),
            "memory_usage": _array(_object({"type": _TEXT, "id": _COUNT, "byte_size": _COUNT})),
        }
    ),
    "Statistics": _object({"model_stats": _array(_reference("ModelStatistics"))}),
    "RepositoryIndex": _array(
        _object(
            {
                "name": _TEXT,
                "version": _TEXT,
                "state": {"type": "string", "enum": ["UNKNOWN", "READY", "UNAVAILABLE", "LOADING", "UNLOADING"]},
                "reason": _TEXT,
            },
            "version",
            "state",
            "reason",
        )
    ),
    "LogSettings": _object(
        {
            "log_file": _TEXT,
            "log_info": _BOOL,
            "log_warning": _BOOL,
            "log_error": _BOOL,
            "log_verbose_level": _COUNT,
            "log_format": _TEXT,
        }
    ),
    "TraceSettings": _object(
        {
            "trace_level": {"type": "array", "items": {"type": "string", "enum": ["OFF", "TIMESTAMPS", "TENSORS"]}},
            "trace_rate": _TEXT,
            "trace_count": _TEXT,
            "trace_mode": {"type": "string", "enum": ["triton", "opentelemetry"]},
        }
    ),
}


def answer(name: str, description: str) -> Json:
    """A response with the schema of that name."""
    return {"description": description, "content": {"application/json": {"schema": _reference(name)}}}
