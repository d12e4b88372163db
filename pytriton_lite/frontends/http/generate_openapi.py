"""What the OpenAPI document says of the generate routes, which FastAPI does not serve."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

REQUEST = {"text_input": "once", "max_tokens": 2, "parameters": {"temperature": 0.5}}
"""An example for a model with the input ``text_input``: what is no input reaches the model as a parameter."""
_ANSWER = {"model_name": "story", "model_version": "1", "text_output": "once upon a time"}
_EVENTS = (
    'data: {"model_name":"story","model_version":"1","text_output":"upon"}\n\n'
    'data: {"model_name":"story","model_version":"1","text_output":"a"}\n\n'
)

SCHEMAS: Json = {
    "GenerateRequest": {
        "type": "object",
        "description": "A member with the name of an input is that tensor, any other a parameter for the model.",
        "properties": {
            "id": {"type": "string", "description": "The request's id; also a parameter"},
            "parameters": {
                "type": "object",
                "description": "Its members count as if they stood beside it.",
                "additionalProperties": {"$ref": "#/components/schemas/GenerateValue"},
            },
        },
        "additionalProperties": {"$ref": "#/components/schemas/GenerateValue"},
    },
    "GenerateResponse": {
        "type": "object",
        "description": "Outputs by name, each a flat array or its only element, and the model's response parameters.",
        "required": ["model_name", "model_version"],
        "properties": {
            "id": {"type": "string", "description": "Of the request, where it has one"},
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
        },
        "additionalProperties": {"$ref": "#/components/schemas/GenerateValue"},
    },
    "GenerateValue": {
        "description": "Arrays are tensors. FP16 and BF16 have no JSON form.",
        "oneOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"type": "array", "items": {}}],
    },
}


def paths(errors: Json) -> Json:
    """The routes by path. *errors* are the responses that both have before the first response of the model, by status."""
    routes: Json = {}
    for action in ("generate", "generate_stream"):
        routes[f"/v2/models/{{model}}/{action}"] = {"post": operation(action, errors, "model")}
        routes[f"/v2/models/{{model}}/versions/{{version}}/{action}"] = {
            "post": operation(action, errors, "model", "version")
        }
    return routes


def operation(action: str, errors: Json, *names: str) -> Json:
    """The operation of a route of *action*, ``generate`` or ``generate_stream``, whose path has parameters of *names*."""
    specific = _stream() if action == "generate_stream" else _object()
    return {
        "tags": ["inference"],
        "summary": specific["summary"] + (" with a model version" if "version" in names else ""),
        "operationId": f"{action}_version" if "version" in names else action,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names),
            {
                "name": "endpoint-load-metrics-format",
                "in": "header",
                "required": False,
                "description": "Asks for `endpoint-load-metrics` in the answer, where a model exports such metrics",
                "schema": {"type": "string", "enum": ["json", "text"]},
            },
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"$ref": "#/components/schemas/GenerateRequest"}, "example": REQUEST}
            },
        },
        "responses": {"200": specific["answer"], **errors},
    }


def _object() -> Json:
    either = [{"$ref": f"#/components/schemas/{name}"} for name in ("GenerateResponse", "Error")]
    return {
        "summary": "Generate",
        "answer": {
            "description": "The response of the model; an error where it sends none, or several",
            "content": {"application/json": {"schema": {"oneOf": either}, "example": _ANSWER}},
        },
    }


def _stream() -> Json:
    return {
        "summary": "Generate a stream",
        "answer": {
            "description": "An event for each response: `data: ` and a GenerateResponse, or an Error in its place. Where the "
            "first response is an error, its code decides the status, and the answer is a stream all the same",
            "content": {"text/event-stream": {"schema": {"type": "string"}, "example": _EVENTS}},
        },
    }
