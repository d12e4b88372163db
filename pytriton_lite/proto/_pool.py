"""Message classes from the generated descriptors, through interfaces that protobuf 4.25 has already."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper

from pytriton_lite.proto._descriptors import FILES

_POOL = descriptor_pool.DescriptorPool()
for _file in FILES:
    _POOL.AddSerializedFile(_file)


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
