"""The part of the OpenAPI document about OpenAI's routes (docs/openai.md): those that a model is served by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytriton_lite.config.openai import Task

Json = dict[str, Any]

_TAG = "OpenAI's API"
_KEYS: Json = {"type": "string"}
_NUMBER_OF: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
}
_ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_STATUSES = {
    "400": "A member that cannot be, or that the model has not",
    "401": "No API key, or a wrong one (--openai-api-key-file)",
    "404": "The model is not there, or declares no such thing",
    "413": "The body is larger than --http-max-input-size",
    "415": "A compressed body, or one of another type",
    "429": "Too much waits, with --overload-status=429",
    "500": "The model or its chat template fails",
    "501": "The model says that it cannot do that",
    "503": "The model is not ready, too much waits, or the server is about to end",
    "504": "The model took too long",
}


def _schema(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _of_type(kind: str, **members: Any) -> Json:
    return {"type": kind, **members}


def _object(required: str, **properties: Json) -> Json:
    return {"type": "object", "required": required.split(), "properties": properties}


_SAMPLING: Json = {
    **{name: _of_type("number", minimum=low, maximum=high) for name, (low, high) in _NUMBER_OF.items()},
    "max_tokens": _of_type("integer", minimum=1, maximum=(1 << 31) - 1),
    "n": _of_type("integer", minimum=1, maximum=8),
    "seed": _of_type("integer", minimum=0, maximum=(1 << 31) - 1),
    "stop": {
        "anyOf": [
            _of_type("string", minLength=1, maxLength=1024),
            _of_type("array", items=_of_type("string", minLength=1, maxLength=1024), maxItems=16),
        ]
    },
    "stream": _of_type("boolean"),
    "user": _of_type("string"),
}
_USAGE = _object(
    "prompt_tokens total_tokens",
    prompt_tokens=_of_type("integer", minimum=0),
    completion_tokens=_of_type("integer", minimum=0),
    total_tokens=_of_type("integer", minimum=0),
)
_REASON: Json = {"enum": ["stop", "length", "tool_calls", "content_filter", "function_call", None]}
_CREATED = _of_type("integer", minimum=0)
_MODEL = _object(
    "id object created owned_by",
    id=_of_type("string"),
    object={"const": "model"},
    created=_CREATED,
    owned_by=_of_type("string"),
)
_MESSAGE = _object(
    "role content",
    role={"enum": ["system", "developer", "user", "assistant"]},
    content=_of_type("string"),
)
_ANSWERED = _object("role content", role={"const": "assistant"}, content=_of_type(["string", "null"]))  # type: ignore[arg-type]
_CHOICE_OF_CHAT = _object("index message finish_reason", index=_CREATED, message=_ANSWERED, finish_reason=_REASON)
_CHOICE = _object("index text finish_reason", index=_CREATED, text=_of_type("string"), finish_reason=_REASON)

SCHEMAS: Json = {
    "OpenAiError": _ERROR,
    "OpenAiModel": _MODEL,
    "OpenAiModelList": _object(
        "object data", object={"const": "list"}, data=_of_type("array", items=_schema("OpenAiModel"))
    ),
    "OpenAiChat": _object(
        "id object created model choices",
        id=_of_type("string"),
        object={"const": "chat.completion"},
        created=_CREATED,
        model=_of_type("string"),
        choices=_of_type("array", items=_CHOICE_OF_CHAT, minItems=1),
        usage=_USAGE,
    ),
    "OpenAiCompletion": _object(
        "id object created model choices",
        id=_of_type("string"),
        object={"const": "text_completion"},
        created=_CREATED,
        model=_of_type("string"),
        choices=_of_type("array", items=_CHOICE, minItems=1),
        usage=_USAGE,
    ),
    "OpenAiResponse": _object(
        "id object created_at status model output",
        id=_of_type("string"),
        object={"const": "response"},
        created_at=_CREATED,
        status={"enum": ["completed", "incomplete"]},
        model=_of_type("string"),
        output=_of_type("array", items=_object("id type status", type={"enum": ["message", "function_call"]})),
    ),
    "OpenAiEmbeddings": _object(
        "object data model usage",
        object={"const": "list"},
        data=_of_type(
            "array",
            items=_object(
                "object index embedding",
                object={"const": "embedding"},
                index=_CREATED,
                embedding={"type": ["array", "string"], "items": _of_type("number")},
            ),
        ),
        model=_of_type("string"),
        usage=_USAGE,
    ),
    "OpenAiRanking": _object(
        "id model results",
        id=_of_type("string"),
        model=_of_type("string"),
        results=_of_type(
            "array", items=_object("index relevance_score", index=_CREATED, relevance_score=_of_type("number"))
        ),
    ),
    "OpenAiTranscription": _object("text", text=_of_type("string")),
}


def _bodies(models: Sequence[str]) -> Mapping[str, tuple[Task, Json, Json]]:
    """By path: the task, the schema of a body and an example, for a model of *models*."""
    model: Json = {"enum": list(models)}
    texts: Json = {
        "anyOf": [
            _of_type("string", minLength=1),
            _of_type("array", items=_of_type("string", minLength=1), minItems=1, maxItems=16),
        ]
    }
    messages = _of_type("array", items=_MESSAGE, minItems=1, maxItems=16)
    documents = _of_type("array", items=_of_type("string"), minItems=1, maxItems=16)
    of_rerank = _object("model query documents", model=model, query=_of_type("string"), documents=documents)
    ranked = {"model": models[0], "query": "a question", "documents": ["an answer", "another one"]}
    hello = [{"role": "user", "content": "hello"}]
    of_response: Json = {
        "temperature": _SAMPLING["temperature"],
        "top_p": _SAMPLING["top_p"],
        "max_output_tokens": _SAMPLING["max_tokens"],
        "stream": _SAMPLING["stream"],
        "instructions": _of_type("string"),
    }
    return {
        "/v1/chat/completions": (
            Task.CHAT,
            _object("model messages", model=model, messages=messages, **_SAMPLING),
            {"model": models[0], "messages": hello},
        ),
        "/v1/responses": (
            Task.CHAT,
            _object("model input", model=model, input=_of_type("string"), **of_response),
            {"model": models[0], "input": "hello"},
        ),
        "/v1/completions": (
            Task.COMPLETION,
            _object("model prompt", model=model, prompt=_of_type("string"), **_SAMPLING),
            {"model": models[0], "prompt": "once upon"},
        ),
        "/v1/embeddings": (
            Task.EMBEDDING,
            _object("model input", model=model, input=texts, encoding_format={"enum": ["float", "base64"]}),
            {"model": models[0], "input": ["a text"]},
        ),
        "/v1/rerank": (Task.RERANK, of_rerank, ranked),
        "/rerank": (Task.RERANK, of_rerank, ranked),
    }


_ANSWERS = {
    "/v1/chat/completions": "OpenAiChat",
    "/v1/responses": "OpenAiResponse",
    "/v1/completions": "OpenAiCompletion",
    "/v1/embeddings": "OpenAiEmbeddings",
    "/v1/rerank": "OpenAiRanking",
    "/rerank": "OpenAiRanking",
}
_SUMMARIES = {
    "/v1/chat/completions": "Answer a conversation",
    "/v1/responses": "Answer a conversation, in the newer form",
    "/v1/completions": "Go on with a text",
    "/v1/embeddings": "Vectors of texts",
    "/v1/rerank": "How documents fit a query",
    "/rerank": "How documents fit a query",
}
_STREAMED = ("/v1/chat/completions", "/v1/responses", "/v1/completions")
_TRANSCRIPTIONS = "/v1/audio/transcriptions"


def paths(models: Mapping[str, frozenset[Task]]) -> Json:
    """The routes that serve *models*, tasks by name; none where there are none."""
    if not models:
        return {}
    found: Json = {
        "/v1/models": {"get": _operation("The models of this API", "OpenAiModelList", ("401",))},
        "/v1/models/{model}": {"get": _operation("A model of this API", "OpenAiModel", ("401", "404"))},
    }
    found["/v1/models/{model}"]["get"]["parameters"] = [
        {"name": "model", "in": "path", "required": True, "schema": _KEYS, "example": next(iter(models))}
    ]
    by_task = {task: [name for name, tasks in models.items() if task in tasks] for task in Task}
    for path in _ANSWERS:
        task, schema, example = _bodies(["m"])[path]
        names = by_task[task]
        if not names:
            continue
        _, schema, example = _bodies(names)[path]
        operation = _operation(_SUMMARIES[path], _ANSWERS[path], tuple(_STATUSES), streams=path in _STREAMED)
        content = {"application/json": {"schema": schema, "example": example}}
        operation["requestBody"] = {"required": True, "content": content}
        found[path] = {"post": operation}
    if by_task[Task.TRANSCRIPTION]:
        operation = _operation("What is said in a file", "OpenAiTranscription", tuple(_STATUSES))
        form = _object(
            "model file",
            model={"enum": by_task[Task.TRANSCRIPTION]},
            file=_of_type("string", format="binary"),
            response_format={"enum": ["json"]},
        )
        operation["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": form}}}
        found[_TRANSCRIPTIONS] = {"post": operation}
    return found


def _operation(summary: str, answer: str, statuses: tuple[str, ...], *, streams: bool = False) -> Json:
    content: Json = {"application/json": {"schema": _schema(answer)}}
    if streams:
        content["text/event-stream"] = {"schema": _of_type("string")}
    refusal = {"application/json": {"schema": _schema("OpenAiError")}}
    refusals = {status: {"description": _STATUSES[status], "content": refusal} for status in statuses}
    return {
        "tags": [_TAG],
        "summary": summary,
        "responses": {"200": {"description": "The answer", "content": content}, **refusals},
    }
