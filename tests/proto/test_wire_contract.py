"""Messages, fields and services are those that the stock client registers, and the bytes are interchangeable."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from types import ModuleType
from typing import Any

import pytest
from google.protobuf import text_format
from packaging.version import Version
from tritonclient.grpc import model_config_pb2, service_pb2

from pytriton_lite.config.json_form import is_repeated
from pytriton_lite.proto import grpc_service_pb, health_pb, model_config_pb

if Version(metadata.version("tritonclient")) < Version("2.60"):
    pytest.skip("this client is older than what we serve, and lacks fields", allow_module_level=True)

PAIRS = [
    pytest.param(grpc_service_pb.ModelInferRequest, service_pb2.DESCRIPTOR, id="grpc_service"),
    pytest.param(model_config_pb.ModelConfig, model_config_pb2.DESCRIPTOR, id="model_config"),
]


def messages(file_or_message: Any) -> Iterator[Any]:
    """Every message of a file, nested ones and map entries too."""
    nested = getattr(file_or_message, "message_types_by_name", None) or file_or_message.nested_types_by_name
    for message in nested.values():
        yield message
        yield from messages(message)


def described_field(field: Any) -> dict[str, Any]:
    return {
        "number": field.number,
        "type": field.type,
        "repeated": is_repeated(field),
        "packed": field.is_packed,
        "presence": field.has_presence,
        "json_name": field.json_name,
        "oneof": field.containing_oneof and field.containing_oneof.full_name,
        "message": field.message_type and field.message_type.full_name,
        "enum": field.enum_type and field.enum_type.full_name,
    }


def described_messages(file: Any) -> dict[str, Any]:
    return {
        message.full_name: {
            "map entry": message.GetOptions().map_entry,
            "oneofs": sorted(oneof.name for oneof in message.oneofs),
            "fields": {field.name: described_field(field) for field in message.fields},
        }
        for message in messages(file)
    }


def described_enums(file: Any) -> dict[str, Any]:
    enums = [*file.enum_types_by_name.values()]
    for message in messages(file):
        enums.extend(message.enum_types)
    return {enum.full_name: {value.name: value.number for value in enum.values} for enum in enums}


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_messages_and_fields_are_the_stock_clients(ours: Any, theirs: Any) -> None:
    assert described_messages(ours.DESCRIPTOR.file) == described_messages(theirs)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_enums_are_the_stock_clients(ours: Any, theirs: Any) -> None:
    assert described_enums(ours.DESCRIPTOR.file) == described_enums(theirs)


def test_service_is_the_stock_clients() -> None:
    def described(file: Any) -> dict[str, Any]:
        return {
            method.full_name: (
                method.input_type.full_name,
                method.output_type.full_name,
                method.client_streaming,
                method.server_streaming,
            )
            for service in file.services_by_name.values()
            for method in service.methods
        }

    ours = described(grpc_service_pb.ModelInferRequest.DESCRIPTOR.file)
    assert len(ours) == 20
    assert ours == described(service_pb2.DESCRIPTOR)


def test_the_contract_is_as_large_as_the_specification_counts() -> None:
    files = [
        grpc_service_pb.ModelInferRequest.DESCRIPTOR.file,
        model_config_pb.ModelConfig.DESCRIPTOR.file,
        health_pb.HealthCheckRequest.DESCRIPTOR.file,
    ]
    named = [message for file in files for message in messages(file) if not message.GetOptions().map_entry]
    values = [value for file in files for enum in described_enums(file).values() for value in enum]
    # proto_fields.md counts 105 messages, 311 fields and 39 enum values, for Triton's two files alone.
    ours_alone = {message.full_name for message in messages(files[2])}
    assert len(named) - len(ours_alone) == 105
    assert sum(len(message.fields) for message in named if message.full_name not in ours_alone) == 311
    assert len(values) - len(health_pb.HealthCheckResponse.ServingStatus.keys()) == 39


def test_health_is_the_standard_protocol() -> None:
    file = health_pb.HealthCheckRequest.DESCRIPTOR.file
    assert file.package == "grpc.health.v1"
    (service,) = file.services_by_name.values()
    assert service.full_name == "grpc.health.v1.Health"
    assert {method.name: (method.client_streaming, method.server_streaming) for method in service.methods} == {
        "Check": (False, False),
        "Watch": (False, True),
    }
    assert health_pb.HealthCheckRequest(service="foo").SerializeToString() == b"\x0a\x03foo"
    serving = health_pb.HealthCheckResponse(status=health_pb.HealthCheckResponse.SERVING)
    assert serving.SerializeToString() == b"\x08\x01"
    assert dict(health_pb.HealthCheckResponse.ServingStatus.items()) == {
        "UNKNOWN": 0,
        "SERVING": 1,
        "NOT_SERVING": 2,
        "SERVICE_UNKNOWN": 3,
    }


def filled(message: Any, depth: int = 0) -> Any:
    """*message* with something in every field that *depth* allows; the last member of a oneof stays."""
    samples: dict[int, Any] = {1: 0.5, 2: 0.25, 8: True, 9: "text é", 12: b"\x00\xff", 14: 1}
    for field in sorted(message.DESCRIPTOR.fields, key=lambda field: field.number):
        place = getattr(message, field.name)
        value = samples.get(field.type, 7)
        if field.type == 14:
            value = field.enum_type.values[-1].number
        if field.message_type is None:
            if is_repeated(field):
                place.extend([value, value])
            else:
                setattr(message, field.name, value)
        elif depth == 6:
            continue
        elif field.message_type.GetOptions().map_entry:
            key, entry = field.message_type.fields
            key_value = samples.get(key.type, 7)
            if entry.message_type is None:
                place[key_value] = samples[entry.type]
            else:
                filled(place[key_value], depth + 1)
        elif is_repeated(field):
            filled(place.add(), depth + 1)
        else:
            place.SetInParent()
            filled(place, depth + 1)
    return message


def top_level(module: ModuleType, file: Any) -> list[tuple[str, Any, Any]]:
    """Name, our class and the stock client's class."""
    theirs = service_pb2 if file is service_pb2.DESCRIPTOR else model_config_pb2
    return [(name, getattr(module, name), getattr(theirs, name)) for name in file.message_types_by_name]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        pytest.param(ours, theirs, id=name)
        for module, file in (
            (grpc_service_pb, service_pb2.DESCRIPTOR),
            (model_config_pb, model_config_pb2.DESCRIPTOR),
        )
        for name, ours, theirs in top_level(module, file)
    ],
)
def test_bytes_go_both_ways(ours: Any, theirs: Any) -> None:
    here = filled(ours())
    there = theirs.FromString(here.SerializeToString())
    assert text_format.MessageToString(there) == text_format.MessageToString(here)
    assert there == filled(theirs())
    assert ours.FromString(there.SerializeToString()) == here


def test_nested_messages_and_enums_are_attributes() -> None:
    tensor = grpc_service_pb.ModelInferRequest.InferInputTensor(name="X", shape=[1, 2])
    assert grpc_service_pb.ModelInferRequest(inputs=[tensor]).inputs[0].shape == [1, 2]
    assert model_config_pb.ModelInstanceGroup.KIND_CPU == 2
    assert model_config_pb.ModelInstanceGroup.Kind.Name(3) == "KIND_MODEL"
    assert model_config_pb.ModelOptimizationPolicy.Cuda.GraphSpec.Shape(dim=[3]).dim == [3]
    assert model_config_pb.DataType.Value("TYPE_STRING") == model_config_pb.TYPE_STRING == 13


@pytest.mark.parametrize("implementation", ["upb", "python"])
@pytest.mark.parametrize(
    "imports",
    [
        "import tritonclient.grpc; from pytriton_lite.proto import grpc_service_pb, health_pb, model_config_pb",
        "from pytriton_lite.proto import grpc_service_pb, health_pb, model_config_pb; import tritonclient.grpc",
    ],
    ids=["client first", "server first"],
)
def test_client_and_server_messages_live_in_one_process(imports: str, implementation: str) -> None:
    use = (
        "from tritonclient.grpc import service_pb2\n"
        "ours = grpc_service_pb.ModelInferRequest(model_name='m')\n"
        "ours.inputs.append(grpc_service_pb.ModelInferRequest.InferInputTensor(name='X'))\n"
        "theirs = service_pb2.ModelInferRequest.FromString(ours.SerializeToString())\n"
        "print(theirs.model_name, theirs.inputs[0].name, type(ours) is type(theirs))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{imports}\n{use}"],
        env={"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("m X False\n", 0), done.stderr
