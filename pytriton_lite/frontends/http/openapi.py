"""The parts of the OpenAPI document that FastAPI cannot know: routes it does not serve, error bodies, bodies read by hand."""

from __future__ import annotations

import copy
import re
from typing import Any

from pytriton_lite.core import dtypes
from pytriton_lite.frontends.http import generate_openapi, openapi_answers
from pytriton_lite.frontends.http.openapi_answers import answer

Json = dict[str, Any]

_ERROR_CONTENT: Json = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}


def _error(description: str) -> Json:
    return {"description": description, "content": _ERROR_CONTENT}


SERVER_METADATA: dict[int | str, Json] = {200: answer("ServerMetadata", "What this server is and speaks")}
MODELS: dict[int | str, Json] = {200: answer("ModelList", "Those that a request would find now, by name")}
ALL_STATISTICS: dict[int | str, Json] = {200: answer("Statistics", "Of every version that is ready")}
STATISTICS: dict[int | str, Json] = {
    **ALL_STATISTICS,
    400: _error("Unknown model or version, or no version number"),
}
_OF_MODEL: dict[int | str, Json] = {
    404: _error("Unknown model or version"),
    503: _error("The version is not ready"),
}
METADATA: dict[int | str, Json] = {200: answer("ModelMetadata", "The model's tensors and versions"), **_OF_MODEL}
CONFIG: dict[int | str, Json] = {200: answer("ModelConfiguration", "The configuration in use"), **_OF_MODEL}
BAD_VERSION: dict[int | str, Json] = {400: _error("The version does not fit 64 bits")}
_BAD_BODY: dict[int | str, Json] = {
    400: _error("A value that cannot be, or a body that is too large"),
    500: _error("Bad JSON, or a member of another type"),
}
INDEX: dict[int | str, Json] = {200: answer("RepositoryIndex", "A row for each known version, by name"), **_BAD_BODY}
LOG_SETTINGS: dict[int | str, Json] = {200: answer("LogSettings", "All settings")}
LOG_UPDATE: dict[int | str, Json] = {
    **LOG_SETTINGS,
    **_BAD_BODY,
    501: _error("The log file cannot be changed"),
    503: _error("Unknown format"),
}
TRACE_SETTINGS: dict[int | str, Json] = {200: answer("TraceSettings", "All settings, and those of the mode")}
TRACE_UPDATE: dict[int | str, Json] = {
    **TRACE_SETTINGS,
    **_BAD_BODY,
    501: _error("The trace file cannot be changed"),
}
MODEL_TRACE_SETTINGS: dict[int | str, Json] = {**TRACE_SETTINGS, 400: _error("Unknown model")}
_NOT_EXPLICIT = _error("Models are not loaded or unloaded on request, or the server is exiting")
NO_REPOSITORY: dict[int | str, Json] = {501: _error("Always: a repository cannot be named here")}
LOAD: dict[int | str, Json] = {
    200: {"description": "The model serves; the body is empty"},
    400: _error("The model does not load. What was served before is served on"),
    500: _error("The model cannot be found or read, or the request cannot"),
    503: _NOT_EXPLICIT,
}
UNLOAD: dict[int | str, Json] = {
    200: {"description": "No new request finds the model; the body is empty"},
    400: _error("The body is too large"),
    503: _NOT_EXPLICIT,
}


_SHM_DISABLED = _error("Shared memory of clients is disabled (--allow-client-shm)")


def _regions(region: Json) -> dict[int | str, Json]:
    schema = {"type": "array", "items": {"type": "object", "required": list(region), "properties": region}}
    return {200: {"description": "Sorted by name", "content": {"application/json": {"schema": schema}}}}


_NO_REGION = _error("Unknown region, or one of the other kind")
SYSTEM_REGIONS = _regions(
    {
        "name": {"type": "string"},
        "key": {"type": "string"},
        "offset": {"type": "integer", "minimum": 0},
        "byte_size": {"type": "integer", "minimum": 1},
    }
)
SYSTEM_REGION: dict[int | str, Json] = {**SYSTEM_REGIONS, 404: _NO_REGION}
CUDA_REGIONS = _regions(
    {
        "name": {"type": "string"},
        "device_id": {"type": "integer", "minimum": 0},
        "byte_size": {"type": "integer", "minimum": 1},
    }
)
CUDA_REGION: dict[int | str, Json] = {**CUDA_REGIONS, 404: _NO_REGION}
REGISTER: dict[int | str, Json] = {
    200: {"description": "Registered; the body is empty"},
    400: _error("The name is taken, or the region is not allowed, not there, or not so large"),
    500: _error("Bad JSON, or the segment cannot be opened"),
    501: _SHM_DISABLED,
    503: _error("As many regions are registered as the server's limit of open files allows"),
}
NO_REGION: dict[int | str, Json] = {
    400: _error("Always: the region has to be named in the path"),
    500: _error("Bad JSON"),
    501: _SHM_DISABLED,
}
UNREGISTER: dict[int | str, Json] = {
    200: {"description": "No new request finds it, those under way keep it; the body is empty"},
    501: _SHM_DISABLED,
}


def _object_body(properties: Json, *required: str, example: Json) -> Json:
    schema = {"type": "object", "required": list(required), "properties": properties}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}}


SYSTEM_BODY = _object_body(
    {
        "key": {"type": "string", "description": "Name of the POSIX segment; a slash in front is optional"},
        "offset": {"type": "integer", "minimum": 0, "default": 0},
        "byte_size": {"type": "integer", "minimum": 1},
    },
    "key",
    "byte_size",
    example={"key": "/pytriton_lite_example", "offset": 0, "byte_size": 64},
)
CUDA_BODY = _object_body(
    {
        "raw_handle": {
            "type": "object",
            "required": ["b64"],
            "properties": {"b64": {"type": "string", "format": "byte", "description": "A cudaIpcMemHandle_t"}},
        },
        "device_id": {"type": "integer", "minimum": 0},
        "byte_size": {"type": "integer", "minimum": 1},
    },
    "raw_handle",
    "device_id",
    "byte_size",
    example={"raw_handle": {"b64": "A" * 86 + "=="}, "device_id": 0, "byte_size": 64},
)


def _parameters_body(parameters: Json, example: Json) -> Json:
    schema = {"type": "object", "properties": {"parameters": {"type": "object", **parameters}}}
    content = {"schema": schema, "example": {"parameters": example}}
    return {"requestBody": {"required": False, "content": {"application/json": content}}}


LOAD_BODY = _parameters_body(
    {
        "properties": {
            "config": {"type": "string", "description": "A model configuration as JSON, in place of config.pbtxt"}
        },
        "patternProperties": {
            "^file:": {
                "type": "string",
                "format": "byte",
                "description": "A file of the model, `file:1/model.py` for instance. Given any, they are the whole model",
            }
        },
        "additionalProperties": False,
    },
    example={},
)
UNLOAD_BODY = _parameters_body(
    {
        "properties": {
            "unload_dependents": {
                "type": "boolean",
                "default": False,
                "description": "Also the models that only this ensemble needs",
            }
        }
    },
    example={"unload_dependents": False},
)
LOGGING_BODY: Json = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "log_info": {"type": "boolean", "description": "Lines of severity info"},
                        "log_warning": {"type": "boolean", "description": "Lines of severity warning"},
                        "log_error": {"type": "boolean", "description": "Lines of severity error"},
                        "log_verbose_level": {
                            "type": "integer",
                            "minimum": 0,
                            "description": "0 is off, 1 and up is on",
                        },
                        "log_format": {"type": "string", "enum": ["default", "ISO8601", "json"]},
                    },
                },
                "example": {"log_warning": True, "log_verbose_level": 0},
            }
        },
    }
}
TRACE_BODY: Json = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "description": "null gives a setting back to those of the server, or of its start",
                    "properties": {
                        "trace_level": {
                            "type": ["array", "null"],
                            "items": {"type": "string", "enum": ["OFF", "TIMESTAMPS", "TENSORS"]},
                        },
                        "trace_rate": {"type": ["string", "null"], "description": "n: every n-th request"},
                        "trace_count": {
                            "type": ["string", "null"],
                            "description": "so many more requests; -1 is any number",
                        },
                        "log_frequency": {
                            "type": ["string", "null"],
                            "description": "traces in one file; 0 is one file",
                        },
                    },
                },
                "example": {"trace_rate": "100", "trace_count": None},
            }
        },
    }
}
INDEX_BODY: Json = {
    "requestBody": {
        "required": False,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {"ready": {"type": "boolean", "description": "Only models that are ready"}},
                },
                "example": {"ready": True},
            }
        },
    }
}

_DATATYPES = [datatype.name for datatype in dtypes.ALL]
_SHAPE: Json = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_DATA: Json = {
    "type": "array",
    "description": "Row-major, flat or nested. FP16 and BF16 have no JSON form.",
    "items": {},
}
_REGION_WINDOW: Json = {
    "shared_memory_offset": {"type": "integer", "minimum": 0, "default": 0, "description": "Bytes into the region"},
    "shared_memory_byte_size": {"type": "integer", "minimum": 0},
}
_SCHEMAS: Json = {
    "Error": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
    "InferInput": {
        "type": "object",
        "required": ["name", "shape", "datatype"],
        "properties": {
            "name": {"type": "string"},
            "shape": _SHAPE,
            "datatype": {"type": "string", "enum": _DATATYPES},
            "data": _DATA,
            "parameters": {
                "type": "object",
                "properties": {
                    "binary_data_size": {
                        "type": "integer",
                        "minimum": 0,
                        "description": "Instead of `data`: bytes of this tensor behind the JSON part",
                    },
                    "shared_memory_region": {
                        "type": "string",
                        "description": "Instead of `data`: the registered region that the tensor lies in",
                    },
                    **_REGION_WINDOW,
                },
            },
        },
    },
    "InferRequestedOutput": {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string"},
            "parameters": {
                "type": "object",
                "properties": {
                    "binary_data": {"type": "boolean", "default": False},
                    "classification": {
                        "type": "integer",
                        "minimum": 0,
                        "description": "So many of the greatest elements, as texts `VALUE:INDEX[:LABEL]`; 0 is none of this",
                    },
                    "shared_memory_region": {
                        "type": "string",
                        "description": "The registered region that the output is written to; the response has no data then",
                    },
                    **_REGION_WINDOW,
                },
            },
        },
    },
    "InferRequest": {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "parameters": {
                "type": "object",
                "description": "Parameters that are not named here go to the model.",
                "properties": {
                    "sequence_id": {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "string", "maxLength": 128}]},
                    "sequence_start": {"type": "boolean"},
                    "sequence_end": {"type": "boolean"},
                    "priority": {"type": "integer", "minimum": 0},
                    "timeout": {"type": "integer", "minimum": 0, "description": "Microseconds"},
                    "binary_data_output": {
                        "type": "boolean",
                        "default": False,
                        "description": "Form of the outputs where `outputs` names none",
                    },
                },
                "additionalProperties": {"oneOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}]},
            },
            "inputs": {"type": "array", "items": {"$ref": "#/components/schemas/InferInput"}},
            "outputs": {
                "type": "array",
                "items": {"$ref": "#/components/schemas/InferRequestedOutput"},
                "description": "Absent or empty: all",
            },
        },
    },
    "InferResponse": {
        "type": "object",
        "required": ["model_name", "model_version", "outputs"],
        "properties": {
            "id": {"type": "string"},
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
            "parameters": {"type": "object"},
            "outputs": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name", "datatype", "shape"],
                    "properties": {
                        "name": {"type": "string"},
                        "datatype": {"type": "string", "enum": _DATATYPES},
                        "shape": _SHAPE,
                        "data": _DATA,
                        "parameters": {
                            "type": "object",
                            "properties": {"binary_data_size": {"type": "integer", "minimum": 0}},
                        },
                    },
                },
            },
        },
    },
}
_JSON_SIZE: Json = {
    "description": "Bytes of the JSON part; binary tensors follow it",
    "schema": {"type": "integer", "minimum": 0},
}


_INFER_EXAMPLE: Json = {
    "id": "1",
    "inputs": [{"name": name, "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]} for name in ("INPUT0", "INPUT1")],
    "outputs": [{"name": "OUTPUT0"}],
}


def infer_operation(*names: str) -> Json:
    """The operation of an infer route whose path has parameters of *names*."""
    versioned = "version" in names
    parameters: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
    ]
    parameters.append({"name": "Inference-Header-Content-Length", "in": "header", "required": False, **_JSON_SIZE})
    binary: Json = {"schema": {"type": "string", "format": "binary"}}
    return {
        "tags": ["inference"],
        "summary": "Infer with a model version" if versioned else "Infer",
        "operationId": "infer_version" if versioned else "infer",
        "parameters": parameters,
        "requestBody": {
            "required": True,
            "description": "JSON, or JSON followed by the binary tensors. gzip and deflate are understood.",
            "content": {
                "application/json": {
                    "schema": {"$ref": "#/components/schemas/InferRequest"},
                    "example": _INFER_EXAMPLE,
                },
                "application/octet-stream": binary,
            },
        },
        "responses": {
            "200": {
                "description": "The outputs; JSON followed by the binary ones where there are any",
                "headers": {"Inference-Header-Content-Length": _JSON_SIZE},
                "content": {
                    "application/json": {"schema": {"$ref": "#/components/schemas/InferResponse"}},
                    "application/octet-stream": binary,
                },
            },
            "400": _error("The request does not suit the model"),
            "404": _error("Unknown model or version"),
            "500": _error("Bad JSON, or the model failed"),
            "501": _error("Unknown compression, a decoupled model, or an extension that is not served"),
            "503": _error("The version is not ready, or cannot take the request now"),
        },
    }


GENERATE_ERRORS: Json = {
    "400": _error("The request does not suit the model, or is compressed"),
    "404": _error("Unknown model or version"),
    "500": _error("Bad JSON, or the model failed"),
    "503": _error("The version is not ready, or cannot take the request now"),
}


def _health(operation_id: str, summary: str) -> Json:
    return {
        "tags": ["health"],
        "summary": summary,
        "operationId": operation_id,
        "responses": {
            "200": {"description": "Yes; the body is empty", "content": {"text/plain": {}}},
            "400": {"description": "No; for the server the body is empty, for a model it says so"},
            "503": _error("The server is exiting"),
        },
    }


_HEALTH: Json = {
    "/v2/health/live": _health("live", "Server live"),
    "/v2/health/ready": _health("ready", "Server ready"),
    "/v2/models/{model}/ready": _health("model_ready", "Readiness of a model"),
    "/v2/models/{model}/versions/{version}/ready": _health("version_ready", "Readiness of a model version"),
}


def with_the_rest(document: Json) -> Json:
    """*document* with the routes of health and inference and every schema that this module names, and true for every route."""
    document["paths"].update((path, {"get": operation}) for path, operation in copy.deepcopy(_HEALTH).items())
    document["paths"]["/v2/models/{model}/infer"] = {"post": infer_operation("model")}
    document["paths"]["/v2/models/{model}/versions/{version}/infer"] = {"post": infer_operation("model", "version")}
    document["paths"].update(generate_openapi.paths(GENERATE_ERRORS))
    for path, operations in document["paths"].items():
        for operation in operations.values():
            complete(path, operation)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(_SCHEMAS, **generate_openapi.SCHEMAS, **openapi_answers.SCHEMAS)
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    return document


def complete(path: str, operation: Json) -> None:
    """Add what is so on every route: FastAPI's 422 is never answered, and a route may be restricted."""
    responses = operation["responses"]
    responses.pop("422", None)
    responses["403"] = RESTRICTED
    success = responses.get("200", {})
    if success.get("content", {}).get("application/json") == {
        "schema": {}
    }:  # FastAPI's word for "whatever": there is none
        del success["content"]["application/json"]
    if "{version}" in path:
        responses.setdefault("400", BAD_VERSION[400])
    if "{" in path:
        responses.setdefault("404", _NO_PATH)
    parameters = operation.setdefault("parameters", [])
    declared = {parameter["name"] for parameter in parameters}
    for name in _NAME.findall(path):
        if name not in declared:  # by a handler that passes it over
            parameters.append({"name": name, "in": "path", "required": True, "schema": {"type": "string"}})
    for parameter in parameters:
        name = parameter["name"]
        if parameter["in"] == "path":
            parameter["example"] = "story" if "/generate" in path and name == "model" else _EXAMPLES[name]
            if name == "version":
                parameter["schema"] = {"type": "string", "pattern": "^[0-9]+$"}


RESTRICTED = _error("The route is restricted (--http-restricted-api), and the header that opens it is not there")
_NO_PATH = _error("A name that is empty or has a slash, or a version that is no number: another path")
_NAME = re.compile(r"\{(\w+)\}")
_EXAMPLES = {"model": "add_sub", "version": "1", "region": "example", "repository": "models"}
