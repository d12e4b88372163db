"""The gRPC half of `tests/differential/wire.py`: messages made from a seed, unary and in streams, to two servers."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import json_format
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.fuzz.fuzz_models import pack

Note = Callable[[str, str, str], None]
"""What was asked, what the peer said, and what we said."""

_VALID: list[tuple[str, list[tuple[str, str, list[int], tuple[Any, ...]]]]] = [
    ("add_sub", [(f"INPUT{at}", "FP32", [4], (1.0, 2.0, 3.0, 4.0)) for at in (0, 1)]),
    ("ident_b", [("INPUT0", "FP32", [2, 2], (1.0, 2.0, 3.0, 4.0))]),
    ("ident_bytes", [("INPUT0", "BYTES", [2], ("a", "bc"))]),
    ("one_bytes", [("INPUT0", "BYTES", [1, 1], ("a",))]),
    ("ident_u8", [("INPUT0", "UINT8", [3], (1, 2, 3))]),
    ("ident_bool", [("INPUT0", "BOOL", [2], (True, False))]),
    ("two_inputs", [(f"INPUT{at}", "FP32", [1, 2], (1.0, 2.0)) for at in (0, 1)]),
    ("multi", [("INPUT0", "INT32", [1], (1,))]),
    ("params", [("INPUT0", "INT32", [1], (1,))]),
    ("fail", [("INPUT0", "BYTES", [1], ("NOT_FOUND",))]),
    ("fail", [("INPUT0", "BYTES", [1], ("raise",))]),
    ("classes_b", [("INPUT0", "FP32", [2, 3], (1.0, 2.0, 3.0, 9.0, 8.0, 7.0))]),
]
_REPEAT = ("repeat", [("INPUT0", "INT32", [1], (3,))])
_KINDS = ["model", "version", "id", "name", "datatype", "shape", "raw", "less raw", "contents", "parameters", "outputs",
          "again", "no inputs", "output parameters", "input parameters"]  # fmt: skip
_FIELDS = ["bool_contents", "int_contents", "int64_contents", "uint_contents", "uint64_contents", "fp32_contents",
           "fp64_contents", "bytes_contents"]  # fmt: skip
_NAMES = ["sequence_id", "sequence_start", "priority", "timeout", "triton_x", "triton_enable_empty_final_response",
          "headers", "binary_data_output", "x"]  # fmt: skip
_OUTPUT_NAMES = [
    "classification",
    "binary_data",
    "shared_memory_region",
    "shared_memory_byte_size",
    "shared_memory_offset",
]


@dataclass(frozen=True)
class Call:
    """One RPC: a method of the stub and its message, or the messages of a stream."""

    method: str
    messages: tuple[Any, ...]

    def __str__(self) -> str:
        texts = [json.dumps(json_format.MessageToDict(message)) for message in self.messages]
        return f"gRPC {self.method} " + " | ".join(texts)


def valid_message(rng: random.Random, *, decoupled: bool = False) -> Any:
    model, inputs = rng.choice([*_VALID, _REPEAT, _REPEAT] if decoupled else _VALID)
    message = service_pb2.ModelInferRequest(model_name=model)
    for name, datatype, shape, data in inputs:
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_input_contents.append(pack(datatype, data))
    return message


def spoil(message: Any, rng: random.Random) -> None:
    """Change one thing of it. Shapes that overflow are left out: they kill workers of 2.51."""
    given = rng.choice(list(message.inputs)) if message.inputs else message.inputs.add(name="INPUT0")
    kind = rng.choice(_KINDS)
    if kind == "model":
        message.model_name = rng.choice(["nope", "", "loadfail", "decoupled", "multi"])
    elif kind == "version":
        message.model_version = rng.choice(["1", "2", "9", "x", "-1", "0", "1.5", "1abc", "99999999999999999999"])
    elif kind == "id":
        message.id = rng.choice(["an id", "ü", ""])
    elif kind == "name":
        given.name = rng.choice(["FOO", "", "INPUT1", "INPUT0"])
    elif kind == "datatype":
        given.datatype = rng.choice(["FP32", "INT32", "UINT8", "BYTES", "BOOL", "FOO", "", "fp32", "FP16"])
    elif kind == "shape":
        given.shape[:] = rng.choice(
            [[], [1], [4], [2, 2], [1, 4], [5, 1], [1, -1], [3], [4, 1], [1, 1, 4], [2], [1, 0]]
        )
    elif kind == "raw":
        message.raw_input_contents.append(b"\1\0\0\0")
    elif kind == "less raw" and message.raw_input_contents:
        del message.raw_input_contents[-1]
    elif kind == "contents":
        _use_contents(message, given, rng)
    elif kind == "parameters":
        _set(message.parameters[rng.choice(_NAMES)], rng)
    elif kind == "input parameters":
        _set(given.parameters[rng.choice(_OUTPUT_NAMES[2:])], rng)
    elif kind == "outputs":
        message.outputs.add(name=rng.choice(["OUTPUT0", "OUTPUT1", "NO", ""]))
    elif kind == "output parameters":
        _set(message.outputs.add(name="OUTPUT0").parameters[rng.choice(_OUTPUT_NAMES)], rng)
    elif kind == "again":
        message.inputs.add().CopyFrom(given)
    elif kind == "no inputs":
        del message.inputs[:]


def _use_contents(message: Any, given: Any, rng: random.Random) -> None:
    if rng.random() < 0.7:
        del message.raw_input_contents[:]
    for name in rng.sample(_FIELDS, rng.choice([1, 1, 2])):
        values: list[Any] = (
            [b"a", b"b"] if name == "bytes_contents" else [True, False] if "bool" in name else [1, 2, 3, 4]
        )
        getattr(given.contents, name).extend(values[: rng.randrange(len(values) + 1)])


def _set(parameter: Any, rng: random.Random) -> None:
    kind = rng.choice(["bool_param", "int64_param", "string_param", "double_param", "uint64_param"])
    values = {
        "bool_param": [True, False],
        "int64_param": [0, 1, 2, -1, 16, 1 << 40],
        "string_param": ["", "x", "r"],
        "double_param": [1.5],
        "uint64_param": [1, (1 << 64) - 1],
    }
    setattr(parameter, kind, rng.choice(values[kind]))


def other_calls() -> Iterator[Call]:
    """Everything but inference."""
    for version in ("", "1", "9", "x", "-1", "1.5", "1abc"):
        for name in ("add_sub", "nope", "", "loadfail", "multi"):
            yield Call("ModelReady", (service_pb2.ModelReadyRequest(name=name, version=version),))
            yield Call("ModelMetadata", (service_pb2.ModelMetadataRequest(name=name, version=version),))
            if name != "add_sub":
                yield Call("ModelConfig", (service_pb2.ModelConfigRequest(name=name, version=version),))
    for name in ("nope", "loadfail"):
        yield Call("ModelStatistics", (service_pb2.ModelStatisticsRequest(name=name),))
    for index in ({}, {"ready": True}, {"repository_name": "r"}):
        yield Call("RepositoryIndex", (service_pb2.RepositoryIndexRequest(**index),))
    load = service_pb2.RepositoryModelLoadRequest(model_name="add_sub")
    yield Call("RepositoryModelLoad", (load,))
    wrong = service_pb2.RepositoryModelLoadRequest(model_name="add_sub")
    wrong.parameters["config"].int64_param = 1
    yield Call("RepositoryModelLoad", (wrong,))
    yield Call("RepositoryModelUnload", (service_pb2.RepositoryModelUnloadRequest(model_name="add_sub"),))
    yield from setting_calls()
    yield from region_calls()


def setting_calls() -> Iterator[Call]:
    yield Call("TraceSetting", (service_pb2.TraceSettingRequest(),))
    yield Call("TraceSetting", (service_pb2.TraceSettingRequest(model_name="nope"),))
    for key in ("trace_rate", "trace_count", "log_frequency", "trace_level", "trace_file", "other"):
        for values in (
            [],
            ["5"],
            ["5", "6"],
            ["x"],
            ["-2"],
            ["OFF"],
            ["OFF", "TIMESTAMPS"],
            ["TIMESTAMPS"],
            ["99999999999"],
        ):
            message = service_pb2.TraceSettingRequest()
            message.settings[key].value.extend(values)
            yield Call("TraceSetting", (message,))
            cleared = service_pb2.TraceSettingRequest()
            cleared.settings[key].SetInParent()
            yield Call("TraceSetting", (cleared,))
    yield Call("LogSettings", (service_pb2.LogSettingsRequest(),))
    for key in ("log_info", "log_verbose_level", "log_format", "log_file", "other"):
        for kind, value in (
            ("bool_param", True),
            ("uint32_param", 0),
            ("string_param", "default"),
            ("string_param", "x"),
        ):
            changed = service_pb2.LogSettingsRequest()
            setattr(changed.settings[key], kind, value)
            yield Call("LogSettings", (changed,))


def region_calls() -> Iterator[Call]:
    register, status = service_pb2.SystemSharedMemoryRegisterRequest, service_pb2.SystemSharedMemoryStatusRequest
    unregister = service_pb2.SystemSharedMemoryUnregisterRequest
    key = "/differential_segment"
    for fields in (
        {"key": key, "byte_size": 64},
        {"key": key, "byte_size": 64},
        {"key": "/none_of_that", "byte_size": 64},
    ):
        yield Call("SystemSharedMemoryRegister", (register(name="g", **fields),))
    for name in ("", "g", "nope"):
        yield Call("SystemSharedMemoryStatus", (status(name=name),))
        yield Call("CudaSharedMemoryStatus", (service_pb2.CudaSharedMemoryStatusRequest(name=name),))
    for name in ("nope", "g", ""):
        yield Call("SystemSharedMemoryUnregister", (unregister(name=name),))
    yield Call("SystemSharedMemoryStatus", (status(),))
    # Last, because 2.51 keeps a closed descriptor for the key then.
    yield Call("SystemSharedMemoryRegister", (register(name="h", key=key, byte_size=65),))


def made_calls(count: int, rng: random.Random) -> Iterator[Call]:
    """Unary and stream, two thirds and a third; most are spoilt in one or two places."""
    for _ in range(count):
        is_stream = rng.random() < 0.33
        messages = [valid_message(rng, decoupled=is_stream) for _ in range(rng.randrange(1, 5) if is_stream else 1)]
        for _ in range(rng.choice([0, 1, 1, 1, 2])):
            spoil(rng.choice(messages), rng)
        yield Call("ModelStreamInfer" if is_stream else "ModelInfer", tuple(messages))


def compare_grpc(peer: str, ours: str, count: int, rng: random.Random, note: Note) -> None:
    """Ask both, and *note* each answer."""
    with grpc.insecure_channel(peer) as theirs, grpc.insecure_channel(ours) as of_us:
        stubs = [service_pb2_grpc.GRPCInferenceServiceStub(channel) for channel in (theirs, of_us)]
        for calls in (other_calls(), made_calls(count, rng)):
            for call in calls:
                note(str(call), *(ask(stub, call) for stub in stubs))


def ask(stub: Any, call: Call) -> str:
    """Status and content of the answer, times and order left out."""
    method = getattr(stub, call.method)
    try:
        if call.method == "ModelStreamInfer":
            return "OK " + _stream_answers(method(iter(call.messages), timeout=10))
        return "OK " + _text(method(call.messages[0], timeout=10))
    except grpc.RpcError as error:
        return f"{error.code().name} {_cleaned(error.details() or '')}"


def _stream_answers(answers: Any) -> str:
    """By id and model: between requests there is no order."""
    return " | ".join(sorted(_text(answer) for answer in answers))


def _text(message: Any) -> str:
    return _cleaned(json.dumps(json_format.MessageToDict(message, preserving_proto_field_name=True), sort_keys=True))


_GOT_LIST = re.compile(r"(?<=Got input\(s\) \[).*?(?=\])")


_OF_SEVERAL = re.compile(r"input '[^']*' (?=batch size does not match)")


def _cleaned(text: str) -> str:
    """Triton's order of received inputs is unspecified, and so is which of them it complains about."""
    text = _OF_SEVERAL.sub("an input ", text)
    text = _GOT_LIST.sub(lambda names: ",".join(sorted(names.group().split(","))), text)
    return re.sub(r"  <frozen importlib[^>]*>\(\d+\): \w+(\\n|\n)", "", text)
