"""The parts of the OpenAPI document that FastAPI cannot know: the infer routes, error bodies, bodies read by hand."""

from __future__ import annotations

from typing import Any

from pytriton_lite.core import dtypes

Json = dict[str, Any]

_ERROR_CONTENT: Json = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}


def _error(description: str) -> Json:
    return {"description": description, "content": _ERROR_CONTENT}


HEALTH: dict[int | str, Json] = {
    200: {"description": "Yes; the body is empty", "content": {"text/plain": {}}},
    400: {"description": "No; for the server the body is empty, for a model it says so"},
    503: _error("The server is exiting"),
}
JSON: dict[int | str, Json] = {
    200: {"description": "As the KServe v2 protocol and Triton's extensions define it"},
    400: _error("Bad version, or statistics of an unknown model"),
    404: _error("Unknown model or version"),
    503: _error("The version is not ready"),
}
_NOT_EXPLICIT = _error("Models are not loaded or unloaded on request, or the server is exiting")
LOAD: dict[int | str, Json] = {
    200: {"description": "The model serves; the body is empty"},
    400: _error("The model does not load. What was served before is served on"),
    500: _error("The model cannot be found or read, or the request cannot"),
    503: _NOT_EXPLICIT,
}
UNLOAD: dict[int | str, Json] = {
    200: {"description": "No new request finds the model; the body is empty"},
    503: _NOT_EXPLICIT,
}


def _parameters_body(parameters: Json) -> Json:
    schema = {"type": "object", "properties": {"parameters": {"type": "object", **parameters}}}
    return {"requestBody": {"required": False, "content": {"application/json": {"schema": schema}}}}


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
    }
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
    }
)
INDEX_BODY: Json = {
    "requestBody": {
        "required": False,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {"ready": {"type": "boolean", "description": "Only models that are ready"}},
                }
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
                    }
                },
            },
        },
    },
    "InferRequestedOutput": {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string"},
            "parameters": {"type": "object", "properties": {"binary_data": {"type": "boolean", "default": False}}},
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


def _infer(*, versioned: bool) -> Json:
    names = ["model", "version"] if versioned else ["model"]
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
                "application/json": {"schema": {"$ref": "#/components/schemas/InferRequest"}},
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


def with_infer(document: Json) -> Json:
    """*document* with the infer routes and every schema that this module names."""
    document["paths"]["/v2/models/{model}/infer"] = {"post": _infer(versioned=False)}
    document["paths"]["/v2/models/{model}/versions/{version}/infer"] = {"post": _infer(versioned=True)}
    document.setdefault("components", {}).setdefault("schemas", {}).update(_SCHEMAS)
    return document
