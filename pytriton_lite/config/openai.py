"""What a model says of itself to be served by the routes of OpenAI's API (docs/openai.md): OPENAI and its like.

    parameters { key: "OPENAI" value { string_value: "chat, completion" } }
    parameters { key: "OPENAI_TENSORS" value { string_value: "prompt=QUESTION, text=ANSWER" } }
    parameters { key: "OPENAI_DEFAULTS" value { string_value: "max_tokens=256, temperature=0.7" } }

The first names the tasks, and is all that a model with the usual names needs. A *field* is what one tensor is for; each has
usual names, which are compared without regard to case. The second names tensors that are called otherwise, the third gives
fields values that a client leaves out.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pytriton_lite.config import parameters
from pytriton_lite.config.errors import BrokenRule, invalid, raise_first
from pytriton_lite.config.regular_file import read_regular_file
from pytriton_lite.core import dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.proto import model_config_pb

DefaultValue = bool | int | float | str


class Task(enum.Enum):
    """What a model does for clients of OpenAI's API."""

    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDING = "embedding"
    RERANK = "rerank"
    TRANSCRIPTION = "transcription"


WRITING = frozenset({Task.CHAT, Task.COMPLETION})
_TEXT = (dtypes.BYTES,)
_INTEGERS = (dtypes.INT32, dtypes.INT64, dtypes.UINT32, dtypes.UINT64, dtypes.INT16, dtypes.UINT16)
_REALS = (dtypes.FP32, dtypes.FP64, dtypes.FP16)
_TRUTHS = (dtypes.BOOL, *_INTEGERS)
_ALL = frozenset(Task)


@dataclass(frozen=True)
class Field:
    """One thing that a tensor may be for. ``names`` are the usual ones, its own first; ``is_list`` allows several elements."""

    name: str
    names: tuple[str, ...]
    datatypes: tuple[DataType, ...]
    tasks: frozenset[Task]
    is_list: bool = False


def _field(
    name: str,
    datatypes: tuple[DataType, ...],
    tasks: Collection[Task],
    *names: str,
    is_list: bool = False,
) -> Field:
    return Field(name, (name, *names), datatypes, frozenset(tasks), is_list)


_SPOKEN = {*WRITING, Task.TRANSCRIPTION}

INPUT_FIELDS: Mapping[str, Field] = {
    field.name: field
    for field in (
        _field("messages", _TEXT, {Task.CHAT}),
        _field("prompt", _TEXT, _SPOKEN, "text_input", "input_text", "text", "input"),
        _field("prompt_tokens", _INTEGERS, {Task.COMPLETION}, "input_ids", is_list=True),
        _field("input", _TEXT, {Task.EMBEDDING}, "text_input", "input_text", "text", "texts", "sentence", "sentences"),
        _field("query", _TEXT, {Task.RERANK}),
        _field("document", _TEXT, {Task.RERANK}, "documents", "passage", "passages"),
        _field("audio", (dtypes.BYTES, dtypes.FP32), {Task.TRANSCRIPTION}, "file", "waveform", is_list=True),
        _field("sample_rate", _INTEGERS, {Task.TRANSCRIPTION}),
        _field("language", _TEXT, {Task.TRANSCRIPTION}),
        _field("max_tokens", _INTEGERS, WRITING, "max_new_tokens", "request_output_len"),
        _field("temperature", _REALS, _SPOKEN),
        _field("top_p", _REALS, WRITING, "runtime_top_p"),
        _field("top_k", _INTEGERS, WRITING, "runtime_top_k"),
        _field("min_p", _REALS, WRITING),
        _field("seed", _INTEGERS, WRITING, "random_seed"),
        _field("presence_penalty", _REALS, WRITING),
        _field("frequency_penalty", _REALS, WRITING),
        _field("repetition_penalty", _REALS, WRITING),
        _field("stop", _TEXT, WRITING, "stop_words", is_list=True),
        _field("stream", _TRUTHS, WRITING),
        _field("logprobs", _TRUTHS, WRITING, "return_log_probs"),
        _field("logit_bias", _TEXT, WRITING),
        _field("suffix", _TEXT, {Task.COMPLETION}),
        _field("tools", _TEXT, {Task.CHAT}),
        _field("tool_choice", _TEXT, {Task.CHAT}),
        _field("response_format", _TEXT, WRITING),
        _field("dimensions", _INTEGERS, {Task.EMBEDDING}),
        _field("user", _TEXT, _ALL),
    )
}

OUTPUT_FIELDS: Mapping[str, Field] = {
    field.name: field
    for field in (
        _field(
            "text", _TEXT, _SPOKEN, "text_output", "output_text", "generated_text", "completion", "response", "content",
            "transcription", "output",
        ),
        _field("finish_reason", _TEXT, WRITING),
        _field("prompt_tokens", _INTEGERS, _ALL, "num_input_tokens", is_list=True),
        _field("completion_tokens", _INTEGERS, _SPOKEN, "num_output_tokens", is_list=True),
        _field("tool_calls", _TEXT, {Task.CHAT}),
        _field("logprobs", _TEXT, WRITING),
        _field("embedding", _REALS, {Task.EMBEDDING}, "embeddings", "sentence_embedding", "vector", is_list=True),
        _field("score", _REALS, {Task.RERANK}, "scores", "relevance_score", is_list=True),
        _field("language", _TEXT, {Task.TRANSCRIPTION}),
        _field("duration", _REALS, {Task.TRANSCRIPTION}),
        _field("segments", _TEXT, {Task.TRANSCRIPTION}),
    )
}  # fmt: skip

_NEEDED_INPUTS: Mapping[Task, tuple[tuple[str, ...], ...]] = {
    Task.CHAT: (("messages", "prompt"),),
    Task.COMPLETION: (("prompt", "prompt_tokens"),),
    Task.EMBEDDING: (("input",),),
    Task.RERANK: (("query",), ("document",)),
    Task.TRANSCRIPTION: (("audio",),),
}
"""What a model must have for a task: of each group of fields a tensor for one of them."""
_NEEDED_OUTPUTS: Mapping[Task, str] = {
    Task.CHAT: "text",
    Task.COMPLETION: "text",
    Task.EMBEDDING: "embedding",
    Task.RERANK: "score",
    Task.TRANSCRIPTION: "text",
}

OPENAI_DEFAULTS: Mapping[str, DefaultValue] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "stream": False,
    "logprobs": 0,
}
"""What a required input is given where neither client nor configuration says a value: what OpenAI's API takes then, and what
changes nothing."""
_ALWAYS_GIVEN = frozenset({"messages", "prompt", "input", "query", "document", "audio", "sample_rate", "seed"})
"""Fields that every request has a value for, where it needs one; ``sample_rate`` where ``audio`` is samples, and no file."""
_DEFAULTS_OF = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
                "repetition_penalty", "language")  # fmt: skip
"""Fields that OPENAI_DEFAULTS may name."""


@dataclass(frozen=True)
class Declaration:
    """What a model serves, and with which tensors. ``inputs`` and ``outputs`` are tensors' names by field."""

    tasks: frozenset[Task]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    defaults: Mapping[str, DefaultValue]

    @property
    def needs_template(self) -> bool:
        """Whether chats become prompts."""
        return Task.CHAT in self.tasks and "messages" not in self.inputs


def declaration_of(message: model_config_pb.ModelConfig) -> Declaration | None:
    """What *message*, which broke no rule, declares; None for a model that is nothing to clients of OpenAI's API."""
    if parameters.OPENAI.text(message) is None:
        return None
    read = _Reading(message)
    for _ in read.broken():
        return None  # which the checks of the load have refused, or will
    return Declaration(frozenset(read.tasks), read.inputs, read.outputs, read.defaults)


def check_openai(message: model_config_pb.ModelConfig, model_dir: Path) -> ChatTemplate | None:
    """The chat template of a model that is to be loaded; None for none. Raises the first error of `broken_openai`."""
    raise_first(_broken_declaration(message))
    declared = declaration_of(message)
    return _needed_template(message, model_dir) if declared is not None and declared.needs_template else None


def broken_openai(message: model_config_pb.ModelConfig, model_dir: Path) -> Iterator[BrokenRule]:
    """The rules for OPENAI and its like of a model that has its tensors. *model_dir* is where its chat template would be."""
    yield from _broken_declaration(message)
    declared = declaration_of(message)
    if declared is not None and declared.needs_template:
        try:
            _needed_template(message, model_dir)
        except BrokenRule as broken:
            yield broken


def _broken_declaration(message: model_config_pb.ModelConfig) -> Iterator[BrokenRule]:
    if parameters.OPENAI.text(message) is not None:
        yield from _Reading(message).broken()
        return
    for parameter in (parameters.OPENAI_TENSORS, parameters.OPENAI_DEFAULTS):
        if parameter.text(message) is not None:
            yield invalid(f"{parameter.name} of model '{message.name}' means nothing without OPENAI", parameter.place)


def _needed_template(message: model_config_pb.ModelConfig, model_dir: Path) -> ChatTemplate:
    try:
        found = read_chat_template(model_dir)
    except ValueError as error:
        raise invalid(f"OPENAI of model '{message.name}': {error}", parameters.OPENAI.place) from None
    if found is None:
        raise invalid(
            f"OPENAI of model '{message.name}': chat with an input for the prompt needs a chat template, which is "
            f"{TEMPLATE_FILE}, or chat_template in {TOKENIZER_FILE}, in the model's folder; there is none. Or declare an "
            "input for the messages",
            parameters.OPENAI.place,
        )
    return found


class _Reading:
    """The parameters of one configuration, taken apart. `broken` first: the rest is right when nothing is."""

    def __init__(self, message: model_config_pb.ModelConfig) -> None:
        self._message = message
        self.tasks: list[Task] = []
        self.inputs: dict[str, str] = {}
        self.outputs: dict[str, str] = {}
        self.defaults: dict[str, DefaultValue] = {}
        self._input_tensors = {tensor.name: tensor for tensor in message.input}
        self._output_tensors = {tensor.name: tensor for tensor in message.output}

    def broken(self) -> Iterator[BrokenRule]:
        yield from self._read_tasks()
        if not self.tasks:
            return
        if self._message.HasField("sequence_batching") and not self._message.sequence_batching.iterative_sequence:
            yield self._wrong(
                parameters.OPENAI,
                "requests of OpenAI's API are no sequences, so sequence_batching must be iterative_sequence",
            )
        named: dict[str, str] = {}
        yield from self._read_tensors(named)
        self._find(self._input_tensors, INPUT_FIELDS, self.inputs, named)
        self._find(self._output_tensors, OUTPUT_FIELDS, self.outputs, named)
        yield from self._read_defaults()
        yield from self._missing()
        yield from self._misfits(self._input_tensors, INPUT_FIELDS, self.inputs)
        yield from self._misfits(self._output_tensors, OUTPUT_FIELDS, self.outputs)
        yield from self._unfilled()

    def _wrong(self, parameter: parameters.Parameter[Any], text: str) -> BrokenRule:
        return invalid(f"{parameter.name} of model '{self._message.name}': {text}", parameter.place)

    def _read_tasks(self) -> Iterator[BrokenRule]:
        known = {task.value: task for task in Task}
        for word in _listed(parameters.OPENAI.text(self._message) or "") or [""]:
            if word not in known:
                yield self._wrong(
                    parameters.OPENAI, f"expected {', '.join(known)}, or several with commas between them, got '{word}'"
                )
            elif known[word] not in self.tasks:
                self.tasks.append(known[word])
        if len(self.tasks) > 1 and not WRITING.issuperset(self.tasks):
            both = " and ".join(task.value for task in self.tasks)
            yield self._wrong(
                parameters.OPENAI, f"chat and completion go together, any other task is a model's only one; got {both}"
            )

    def _read_tensors(self, named: dict[str, str]) -> Iterator[BrokenRule]:
        """OPENAI_TENSORS into *named*: ``prompt=QUESTION``. A field of inputs and one of outputs may have the same name."""
        parameter = parameters.OPENAI_TENSORS
        for word in _listed(parameters.OPENAI_TENSORS.text(self._message) or ""):
            name, equals, tensor = (part.strip() for part in word.partition("="))
            if not equals or not name or not tensor:
                yield self._wrong(parameter, f"expected <field>=<tensor>, with commas between them, got '{word}'")
                continue
            is_input = name in INPUT_FIELDS and tensor in self._input_tensors
            is_output = name in OUTPUT_FIELDS and tensor in self._output_tensors
            if name not in INPUT_FIELDS and name not in OUTPUT_FIELDS:
                fields = ", ".join(self._fields_of_tasks())
                yield self._wrong(parameter, f"'{name}' is no field; the fields of its tasks are {fields}")
            elif tensor not in self._input_tensors and tensor not in self._output_tensors:
                yield self._wrong(parameter, f"the model has no tensor '{tensor}'")
            elif not is_input and not is_output:
                kind = "an input" if name in INPUT_FIELDS else "an output"
                yield self._wrong(parameter, f"'{name}' is {kind}, and '{tensor}' is not")
            else:
                named["in " + name if is_input else "out " + name] = tensor

    def _fields_of_tasks(self) -> list[str]:
        fields = [*INPUT_FIELDS.values(), *OUTPUT_FIELDS.values()]
        return list(dict.fromkeys(field.name for field in fields if field.tasks.intersection(self.tasks)))

    def _find(
        self, tensors: Mapping[str, Any], fields: Mapping[str, Field], found: dict[str, str], named: Mapping[str, str]
    ) -> None:
        side = "in " if fields is INPUT_FIELDS else "out "
        for field in fields.values():
            if side + field.name in named:
                found[field.name] = named[side + field.name]
        taken = set(found.values())
        by_name = {name.lower(): name for name in tensors if name not in taken}
        for field in fields.values():
            if field.name in found or not field.tasks.intersection(self.tasks):
                continue
            name = next((by_name[usual] for usual in field.names if usual in by_name), None)
            if name is not None:
                found[field.name] = name
                del by_name[name.lower()]

    def _read_defaults(self) -> Iterator[BrokenRule]:
        parameter = parameters.OPENAI_DEFAULTS
        for word in _listed(parameter.text(self._message) or ""):
            name, _, text = (part.strip() for part in word.partition("="))
            field = INPUT_FIELDS.get(name)
            if field is None or name not in _DEFAULTS_OF:
                yield self._wrong(
                    parameter, f"expected <field>=<value> with a field of {', '.join(_DEFAULTS_OF)}; got '{word}'"
                )
                continue
            value = _default(field, text)
            if value is None:
                kind = "a whole number" if field.datatypes is _INTEGERS else "a number"
                yield self._wrong(parameter, f"'{name}': expected {kind}, got '{text}'")
            elif not self._fits(name, value):
                yield self._wrong(parameter, f"'{name}': {text} does not fit input '{self.inputs[name]}' of the model")
            else:
                self.defaults[name] = value

    def _fits(self, name: str, value: DefaultValue) -> bool:
        """Whether the input for field *name* can have *value*, where that is a whole number and there is one."""
        datatype = self._datatype(name)
        if datatype not in _INTEGERS or datatype.numpy is None or not isinstance(value, int):
            return True
        bounds = np.iinfo(datatype.numpy)
        return int(bounds.min) <= value <= int(bounds.max)

    def _missing(self) -> Iterator[BrokenRule]:
        for task in self.tasks:
            for group in _NEEDED_INPUTS[task]:
                if not any(name in self.inputs for name in group):
                    yield self._lacks(task, "input", [INPUT_FIELDS[name] for name in group])
            needed = _NEEDED_OUTPUTS[task]
            if needed not in self.outputs:
                yield self._lacks(task, "output", [OUTPUT_FIELDS[needed]])

    def _lacks(self, task: Task, kind: str, fields: list[Field]) -> BrokenRule:
        usual = ", ".join(dict.fromkeys(name for field in fields for name in field.names))
        what = " or ".join(f"'{field.name}'" for field in fields)
        return self._wrong(
            parameters.OPENAI,
            f"{task.value} needs an {kind} for {what}, and none is called {usual}; name it in OPENAI_TENSORS: "
            f"{fields[0].name}=<{kind}>",
        )

    def _misfits(
        self, tensors: Mapping[str, Any], fields: Mapping[str, Field], found: Mapping[str, str]
    ) -> Iterator[BrokenRule]:
        for name, tensor in found.items():
            field = fields[name]
            datatype = dtypes.BY_NUMBER.get(tensors[tensor].data_type, dtypes.INVALID)
            if datatype not in field.datatypes:
                expected = ", ".join(one.config_name for one in field.datatypes)
                yield self._wrong(
                    parameters.OPENAI,
                    f"'{tensor}' is for '{name}', which is {expected}; it is {datatype.config_name}",
                )
            dims = [dim for dim in tensors[tensor].dims if dim not in (1, -1)]
            if dims and not field.is_list:
                yield self._wrong(
                    parameters.OPENAI, f"'{tensor}' is for '{name}', which is one element; its dims are "
                    f"[ {', '.join(map(str, tensors[tensor].dims))} ]",
                )  # fmt: skip

    def _datatype(self, field: str) -> DataType | None:
        """The data type of the input for *field*; None where there is no such input."""
        tensor = self._input_tensors.get(self.inputs.get(field, ""))
        return None if tensor is None else dtypes.BY_NUMBER.get(tensor.data_type)

    def _unfilled(self) -> Iterator[BrokenRule]:
        """Required inputs that no field is for, or whose field a request may leave out."""
        fields = {tensor: name for name, tensor in self.inputs.items()}
        for tensor in self._message.input:
            name = fields.get(tensor.name)
            is_given = name in _ALWAYS_GIVEN and not (name == "sample_rate" and self._datatype("audio") is dtypes.BYTES)
            if tensor.optional or is_given or name in self.defaults or name in OPENAI_DEFAULTS:
                continue
            if name == "prompt_tokens" and self.tasks == [Task.COMPLETION] and "prompt" not in self.inputs:
                continue  # prompts that are texts are refused
            if name is None:
                yield self._wrong(
                    parameters.OPENAI,
                    f"input '{tensor.name}' is required, and no field is for it: name one in OPENAI_TENSORS, or make it "
                    "optional",
                )
            elif name in _DEFAULTS_OF:
                yield self._wrong(
                    parameters.OPENAI,
                    f"input '{tensor.name}' is required, and a request may leave '{name}' out: give it a value in "
                    f"OPENAI_DEFAULTS, or make it optional",
                )
            else:
                yield self._wrong(
                    parameters.OPENAI,
                    f"input '{tensor.name}' is required, and a request may leave '{name}' out: make it optional",
                )


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _default(field: Field, text: str) -> DefaultValue | None:
    """The value of *field* in *text*; None where it is none."""
    if field.datatypes is _TEXT:
        return text
    try:
        if field.datatypes is _INTEGERS:
            return int(text) if len(text) < 19 else None
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


# Chat templates -----------------------------------------------------------------------------------------------------

TEMPLATE_FILE = "chat_template.jinja"
TOOLS_TEMPLATE_FILE = "additional_chat_templates/tool_use.jinja"
TOKENIZER_FILE = "tokenizer_config.json"
_MOST_TEMPLATE_BYTES = 1 << 20
_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja2 template, and the tokens that it may name, by their names in tokenizer_config.json.

    ``text_with_tools`` is what the model was trained with where it is given tools; None where that is the same.
    """

    text: str
    tokens: Mapping[str, str]
    text_with_tools: str | None = None


def read_chat_template(model_dir: Path) -> ChatTemplate | None:
    """The template in the folder of a model, where its authors or Hugging Face's tools put it; None where there is none.

    Blocks. Raises ValueError with a sentence about a file that cannot be read or has no template where one should be.
    """
    tokenizer = _read_text(model_dir / TOKENIZER_FILE)
    settings: dict[str, Any] = {}
    if tokenizer is not None:
        try:
            settings = json.loads(tokenizer)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{TOKENIZER_FILE} is no JSON: {error}") from None
        if not isinstance(settings, dict):
            raise ValueError(f"{TOKENIZER_FILE} is no JSON object")
    text, with_tools = _read_text(model_dir / TEMPLATE_FILE), _read_text(model_dir / TOOLS_TEMPLATE_FILE)
    if text is None:
        text, with_tools = _of_tokenizer(settings.get("chat_template"))
    if text is None:
        return None
    tokens = {name: _token(settings[name]) for name in _TOKENS if settings.get(name) is not None}
    return ChatTemplate(text, tokens, with_tools)


def _of_tokenizer(value: object) -> tuple[str | None, str | None]:
    """The template in ``chat_template``, a text or the one named ``default`` of a list, and that of the list for tools."""
    if value is None or isinstance(value, str):
        return value, None
    listed = [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
    named = {each.get("name"): each.get("template") for each in listed if isinstance(each.get("template"), str)}
    if "default" not in named:
        raise ValueError(f"chat_template in {TOKENIZER_FILE} is neither a text nor a list with one named 'default'")
    return named["default"], named.get("tool_use")


def _token(value: object) -> str:
    """A token is a text, or an object whose content is one."""
    return str(value.get("content", "")) if isinstance(value, dict) else str(value)


def _read_text(path: Path) -> str | None:
    try:
        data = read_regular_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {error.strerror}") from None
    if len(data) > _MOST_TEMPLATE_BYTES and path.name != TOKENIZER_FILE:
        raise ValueError(f"{path.name} has {len(data)} bytes, expected at most {_MOST_TEMPLATE_BYTES}")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not UTF-8") from None
