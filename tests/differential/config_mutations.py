"""Configurations of many kinds, most of them spoilt in a place or two, always the same ones for a seed.

`tests/differential/configs.py` has a Triton load them, and `test_check_and_load.py` the command ``check`` and a
server. A spoilt configuration is most often a valid text with wrong contents; a few are no text of protobuf any more.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor

from pytriton_lite.config.json_form import is_map, is_repeated
from pytriton_lite.proto import model_config_pb
from tests.harness import write_model

# Ends whatever it gets, with one empty answer for each request, whichever way its configuration asks for it.
CODE = """
    import json
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            config = json.loads(args["model_config"])
            self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)

        def execute(self, requests):
            if not self.decoupled:
                return [pb_utils.InferenceResponse([]) for _ in requests]
            for request in requests:
                request.get_response_sender().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return None
"""

PYTHON = 'backend: "python"\n'
TENSORS = """
input { name: "I" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "O" data_type: TYPE_FP32 dims: [ 4 ] }
"""
PARTS = {
    "part": PYTHON + TENSORS + "version_policy { all { } }",
    "batched_part": PYTHON + TENSORS + "max_batch_size: 4",
    "string_part": PYTHON + TENSORS.replace("FP32", "STRING"),
}
"""Models for ensembles, by name."""

VALID = (
    PYTHON + TENSORS,
    """
    name: "{name}" platform: "any" backend: "python" max_batch_size: 4 default_model_filename: "other.py"
    input { name: "I" data_type: TYPE_STRING dims: [ -1, 2 ] allow_ragged_batch: true }
    input { name: "J" data_type: TYPE_BF16 dims: [ 2, 3, -1 ] optional: true format: FORMAT_NHWC }
    input { name: "K" data_type: TYPE_INT8 dims: [ 1 ] reshape { } }
    output { name: "O" data_type: TYPE_UINT64 dims: [ 2, -1, 6 ] reshape { shape: [ 2, -1, 2, 3 ] } }
    output { name: "P" data_type: TYPE_BOOL dims: [ 3 ] label_filename: "labels.txt" }
    dynamic_batching {
      preferred_batch_size: [ 2, 4 ] max_queue_delay_microseconds: 100 priority_levels: 3 default_priority_level: 2
      default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 max_queue_size: 7 }
      priority_queue_policy { key: 1 value { timeout_action: REJECT allow_timeout_override: true } }
      priority_queue_policy { key: 3 value { max_queue_size: 2 } }
    }
    """,
    PYTHON
    + TENSORS
    + """
    max_batch_size: 8
    dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY } }
    response_cache { enable: true }
    parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }
    parameters { key: "any" value { string_value: "x" } }
    metric_tags { key: "team" value: "a" }
    """,
    PYTHON
    + TENSORS
    + """
    max_batch_size: 2
    sequence_batching {
      max_sequence_idle_microseconds: 5000
      direct { max_queue_delay_microseconds: 10 minimum_slot_utilization: 0.5 }
      control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
      control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
      control_input { name: "END" control { kind: CONTROL_SEQUENCE_END bool_false_true: [ false, true ] } }
      control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
    }
    """,
    PYTHON
    + TENSORS
    + """
    max_batch_size: 4
    sequence_batching {
      oldest { max_candidate_sequences: 4 preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 10 }
      control_input {
        name: "BOTH"
        control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }
        control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING }
      }
      state { input_name: "A" output_name: "B" data_type: TYPE_INT32 dims: [ -1 ] }
      state {
        input_name: "C" output_name: "D" data_type: TYPE_FP32 dims: [ 2, -1 ]
        initial_state { name: "zero" data_type: TYPE_FP32 dims: [ 2, 2 ] zero_data: true }
      }
      state {
        input_name: "E" output_name: "F" data_type: TYPE_FP32 dims: [ 4 ]
        initial_state { name: "file" data_type: TYPE_FP32 dims: [ 4 ] data_file: "raw" }
      }
    }
    """,
    PYTHON
    + TENSORS
    + """
    max_batch_size: 4
    sequence_batching { iterative_sequence: true }
    model_transaction_policy { decoupled: true }
    """,
    PYTHON
    + TENSORS
    + """
    instance_group { name: "g" count: 2 kind: KIND_CPU rate_limiter { resources { name: "R" count: 1 } priority: 2 } }
    instance_group { kind: KIND_MODEL rate_limiter { resources { name: "S" global: true count: 2 } } }
    instance_group { passive: true host_policy: "any" }
    version_policy { specific { versions: [ 1, 3 ] } }
    """,
    PYTHON
    + TENSORS
    + """
    max_batch_size: 4
    version_policy { latest { num_versions: 2 } }
    model_warmup {
      name: "zeros" batch_size: 2 count: 2 inputs { key: "I" value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } }
    }
    model_warmup { name: "random" batch_size: 1 inputs { key: "I" value { data_type: TYPE_FP32 dims: 4 random_data: true } } }
    model_warmup { name: "f" batch_size: 1 inputs { key: "I" value { data_type: TYPE_FP32 dims: 4 input_data_file: "raw" } } }
    """,
    PYTHON
    + TENSORS
    + """
    max_batch_size: 4
    batch_input { kind: BATCH_ELEMENT_COUNT target_name: "N" data_type: TYPE_INT32 source_input: "I" }
    batch_input { kind: BATCH_ITEM_SHAPE target_name: [ "X", "Y" ] data_type: TYPE_FP32 source_input: "I" }
    batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "O" source_input: "I" }
    dynamic_batching { }
    """,
    PYTHON
    + TENSORS
    + """
    version_policy { all { } }
    optimization {
      graph { level: 1 } priority: PRIORITY_MAX eager_batching: true gather_kernel_buffer_threshold: 3
      input_pinned_memory { enable: false }
      execution_accelerators { cpu_execution_accelerator { name: "openvino" parameters { key: "a" value: "b" } } }
      cuda { graphs: true graph_spec { batch_size: 1 input { key: "I" value { dim: [ 4 ] } } } }
    }
    cc_model_filenames { key: "7.5" value: "x" }
    model_operations { op_library_filename: "libx.so" }
    model_transaction_policy { decoupled: true }
    """,
    PYTHON
    + TENSORS
    + """
    parameters { key: "EXECUTE_CONCURRENCY" value { string_value: "2" } }
    parameters { key: "CANCEL_COROUTINES" value { string_value: "no" } }
    parameters { key: "SHARED_MEMORY_VIEWS" value { string_value: "yes" } }
    parameters { key: "KEEP_FREED_MEMORY" value { string_value: "no" } }
    parameters { key: "MAX_QUEUE_SIZE" value { string_value: "1" } }
    parameters { key: "BATCH_TENSORS" value { string_value: "yes" } }
    parameters { key: "BATCH_ANY_SHAPES" value { string_value: "yes" } }
    parameters { key: "ENV:NAME" value { string_value: "any" } }
    """,
    """
    platform: "ensemble" max_batch_size: 0
    """
    + TENSORS
    + """
    ensemble_scheduling {
      step { model_name: "part" model_version: -1 input_map { key: "I" value: "I" } output_map { key: "O" value: "mid" } }
      step { model_name: "part" model_version: 1 input_map { key: "I" value: "mid" } output_map { key: "O" value: "O" } }
    }
    """,
    """
    platform: "ensemble" max_batch_size: 4
    """
    + TENSORS
    + """
    ensemble_scheduling {
      step { model_name: "batched_part" model_version: -1 input_map { key: "I" value: "I" } output_map { key: "O" value: "O" } }
    }
    metric_tags { key: "team" value: "b" }
    """,
)

SMALL = ("0", "1", "2", "3", "4", "5", "-1", "-2", "9", "16")
LARGE = (
    "65536",
    "2147483647",
    "-2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
)
TOO_LARGE = ("18446744073709551616", "-9223372036854775809")
MAY_BE_LARGE = (
    "default_timeout_microseconds",
    "gather_kernel_buffer_threshold",
    "level",
    "max_queue_delay_microseconds",
    "max_queue_size",
    "max_sequence_idle_microseconds",
    "model_version",
    "num_versions",
    "versions",
)
"""What neither server makes room for."""

STRINGS = {
    "name": ("", "I", "O", "A", "START", "any name", "\u00fc", "a/b"),
    "platform": ("", "ensemble", "python", "foo", "pytorch_libtorch", "tensorrt_plan"),
    "backend": ("", "python", "nosuch", "pytorch", "tensorrt", "Python"),
    "runtime": ("", "libx.so", "x.py"),
    "default_model_filename": ("", "model.py", "other.py", "model.txt"),
    "label_filename": ("", "labels.txt", "nope.txt", "./labels.txt", "warmup/../labels.txt"),
    "data_file": ("", "raw", "nope", "../labels.txt", "/raw"),
    "input_data_file": ("", "raw", "nope", "../labels.txt", "/raw"),
    "model_name": ("", "part", "batched_part", "string_part", "nope"),
    "string_value": ("", "yes", "no", "maybe", "1", "/nope"),
    "key": (
        "",
        "I",
        "O",
        "any",
        "FORCE_CPU_ONLY_INPUT_TENSORS",
        "TRITON_BATCH_STRATEGY_PATH",
        "team",
        "1",
        "BATCH_TENSORS",
    ),
    "value": ("", "I", "O", "mid", "other"),
}
OTHER_STRINGS = ("", "I", "O", "A", "C", "other")
FLOATS = ("0", "1", "0.5", "1.5", "-0.1", "1e40", "inf", "nan", "1f", "1e-3")
BOOLS = ("true", "false", "True", "t", "1", "0")
ODD = (
    "",
    "[ ]",
    "{ }",
    "[ 1, 2 ]",
    '"x"',
    '""',
    "x",
    "1.5",
    "-1",
    "TRUE",
    "0x1G",
    "09",
    '"a" "b"',
    "{ name: 1 }",
    "<",
    "'",
)
NEWER = ("model_metrics", "max_inflight_requests")
"""Fields that Triton 2.51 does not know."""

_WORD = re.compile(r"\"[^\"]*\"|[\w.-]+|\S")


@dataclass
class Written:
    """A field of a text: a scalar as it is written, or the fields of a message. ``described`` is protobuf's descriptor."""

    name: str
    value: str | list[Written]
    described: Any

    def text(self) -> str:
        if isinstance(self.value, str):
            return f"{self.name}: {self.value}"
        return f"{self.name} {{\n{_text(self.value)}\n}}"


def _text(fields: list[Written]) -> str:
    return "\n".join(field.text() for field in fields)


def _copied(fields: list[Written]) -> list[Written]:
    return [
        replace(field, value=field.value if isinstance(field.value, str) else _copied(field.value)) for field in fields
    ]


def generated(count: int, seed: int) -> Iterator[str]:
    """Texts of config.pbtxt: first the valid ones as they are. ``{name}`` stands for the model's name."""
    rng = random.Random(seed)
    trees = [_read(text) for text in VALID]
    yield from VALID[:count]
    for _ in range(count - len(VALID)):
        tree = _copied(rng.choice(trees))
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            _mutate(tree, rng, trees)
        text = _text(tree)
        yield _spoil_words(text, rng) if rng.random() < 0.12 else text


def write_models(folder: Path, texts: Iterable[str]) -> list[str]:
    """A repository of a model for each of *texts*, and of what they may name; the names of the former."""
    for name, text in PARTS.items():
        _write_model(folder, name, text)
    names = []
    for at, text in enumerate(texts):
        names.append(f"m{at:04}")
        _write_model(folder, names[-1], text.replace("{name}", names[-1]))
    return names


def _write_model(folder: Path, name: str, text: str) -> None:
    for version in (1, 3):
        model = write_model(folder, name, CODE, version=version)
        write_model(folder, name, CODE, version=version, filename="other.py")
    (model / "config.pbtxt").write_text(text)
    (model / "labels.txt").write_text("one\ntwo\n")
    for inside in ("warmup", "initial_state"):
        (model / inside).mkdir()
        (model / inside / "raw").write_bytes(bytes(16))


def _read(text: str) -> list[Written]:
    message = model_config_pb.ModelConfig()
    text_format.Parse(text, message)
    return _fields_of(message)


def _fields_of(message: Any) -> list[Written]:
    fields = []
    for described, value in message.ListFields():
        if is_map(described):
            entries = [_entry(described, key, value[key]) for key in sorted(value)]
        else:
            entries = list(value) if is_repeated(described) else [value]
        for entry in entries:
            is_written = isinstance(entry, list)
            written = entry if is_written else _value(described, entry)
            fields.append(Written(described.name, written, described))
    return fields


def _entry(described: Any, key: Any, value: Any) -> list[Written]:
    of_key, of_value = (described.message_type.fields_by_name[name] for name in ("key", "value"))
    return [Written("key", _value(of_key, key), of_key), Written("value", _value(of_value, value), of_value)]


def _value(described: Any, value: Any) -> str | list[Written]:
    if described.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return _fields_of(value)
    if described.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return str(described.enum_type.values_by_number[value].name)
    return json.dumps(value)


# Spoiling ------------------------------------------------------------------------------------------------------------


def _mutate(tree: list[Written], rng: random.Random, trees: list[list[Written]]) -> None:
    """One change, anywhere in *tree*; *trees* are those that something may come from."""
    messages = list(_messages(tree, model_config_pb.ModelConfig.DESCRIPTOR))
    fields, described = rng.choice(messages)
    change = rng.choice(
        ("value",) * 4 + ("add",) * 3 + ("drop",) * 3 + ("graft",) * 3 + ("twice", "odd", "rename", "empty")
    )
    known = [field for field in described.fields if field.name not in NEWER]
    if change == "add" and known:
        fields.append(_fresh(rng.choice(known), rng, depth=2))
    elif change == "graft":
        tree += _copied([rng.choice(rng.choice(trees))])
    elif fields:
        _mutate_field(fields, rng.randrange(len(fields)), change, described, rng)


def _mutate_field(fields: list[Written], at: int, change: str, described: Any, rng: random.Random) -> None:
    field = fields[at]
    if change == "drop":
        del fields[at]
    elif change == "twice":
        fields[at:at] = _copied([field])
    elif change == "odd":
        field.value = rng.choice(ODD)
    elif change == "rename":
        others = [other.name for other in described.fields if other.name not in NEWER]
        field.name = rng.choice([*others, field.name.replace("_", ""), field.name.upper()])
    elif isinstance(field.value, str):
        field.value = _scalar(field.described, rng)
    elif change == "empty":
        field.value = []
    elif field.value:  # one of the scalars inside
        _mutate_field(field.value, rng.randrange(len(field.value)), change, field.described.message_type, rng)


def _messages(fields: list[Written], described: Any) -> Iterator[tuple[list[Written], Any]]:
    yield fields, described
    for field in fields:
        if isinstance(field.value, list):
            yield from _messages(field.value, field.described.message_type)


def _fresh(described: Any, rng: random.Random, *, depth: int) -> Written:
    """A field with anything in it; a message has a few of its fields."""
    if described.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
        return Written(described.name, _scalar(described, rng), described)
    known = [field for field in described.message_type.fields if field.name not in NEWER] if depth else []
    chosen = rng.sample(known, rng.randint(0, len(known)))
    return Written(described.name, [_fresh(field, rng, depth=depth - 1) for field in chosen], described)


def _scalar(described: Any, rng: random.Random) -> str:
    kind = described.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return json.dumps(rng.choice(STRINGS.get(described.name, OTHER_STRINGS)))
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.choice(BOOLS)
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice(
            [*described.enum_type.values_by_name, *described.enum_type.values_by_name, "1", "99", "TYPE_FP8"]
        )
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return rng.choice(FLOATS)
    return rng.choice(SMALL * 3 + TOO_LARGE + (LARGE * 2 if described.name in MAY_BE_LARGE else ()))


def _spoil_words(text: str, rng: random.Random) -> str:
    """One word less, twice, or another one instead."""
    words = _WORD.findall(text)
    at = rng.randrange(len(words))
    words[at : at + 1] = rng.choice(([], [words[at]] * 2, [rng.choice(ODD)], [rng.choice(words)], ["# "], [","], [";"]))
    return " ".join(words)
