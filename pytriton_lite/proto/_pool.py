"""Message classes from the generated descriptors, through interfaces that protobuf 4.25 has already."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper

from pytriton_lite.proto._descriptors import FILES

_POOL = descriptor_pool.DescriptorPool()
_SERIALIZED: dict[str, bytes] = {}
for _file in FILES:
    _added = _POOL.AddSerializedFile(_file) or descriptor_pb2.FileDescriptorProto.FromString(
        _file
    )  # as versions have it
    _SERIALIZED[_added.name] = _file


def file_names() -> Collection[str]:
    """Names of the .proto files, one behind those that it imports."""
    return _SERIALIZED


def serialized(file_name: str) -> bytes:
    """A file's FileDescriptorProto."""
    return _SERIALIZED[file_name]


def file(file_name: str) -> Any:
    """A file's descriptor."""
    return _POOL.FindFileByName(file_name)


def file_containing(symbol: str) -> str | None:
    """Name of the file that has *symbol*, as far as the runtime's pool knows it."""
    try:
        name: str = _POOL.FindFileContainingSymbol(symbol).name
    except KeyError:
        return None
    return name


def members(name: str) -> Collection[str]:
    """Methods of a service, fields of a message, values of an enum."""
    for find, of in (
        (_POOL.FindServiceByName, "methods_by_name"),
        (_POOL.FindMessageTypeByName, "fields_by_name"),
        (_POOL.FindEnumTypeByName, "values_by_name"),
    ):
        try:
            return list(getattr(find(name), of))
        except KeyError:
            continue
    return []


def has_message(name: str) -> bool:
    """Whether *name*, fully qualified, is a message."""
    try:
        _POOL.FindMessageTypeByName(name)
    except KeyError:
        return False
    return True


def contents(file_name: str) -> dict[str, Any]:
    """The names that a module for *file_name* has: its top-level messages, enums and enum values."""
    file = _POOL.FindFileByName(file_name)
    names: dict[str, Any] = {}
    for name, enum in file.enum_types_by_name.items():
        names[name] = enum_type_wrapper.EnumTypeWrapper(enum)
        names.update((value.name, value.number) for value in enum.values)
    for name, message in file.message_types_by_name.items():
        names[name] = _message_class(message)
    return names


def _message_class(descriptor: Any) -> Any:
    made = message_factory.GetMessageClass(descriptor)
    for nested in descriptor.nested_types:
        # The C runtimes offer nested messages as attributes of themselves, the pure-Python one does not.
        if not nested.GetOptions().map_entry and not hasattr(made, nested.name):
            setattr(made, nested.name, _message_class(nested))
    return made
