"""The protocol's own description: the .proto files, serialized, by name and by what is in them."""

from __future__ import annotations

from pytriton_lite.proto import _pool


def services() -> list[str]:
    """Fully qualified names of all services that are described."""
    return [f"{file.package}.{name}" for file in map(_pool.file, _pool.file_names()) for name in file.services_by_name]


def file_of(symbol: str) -> str | None:
    """Name of the file that has *symbol*: a service, method, message, field or enum, fully qualified. None if there is none."""
    name = symbol
    for _ in range(2):  # a pool may not know methods and fields: then what they are in is looked for
        found = _pool.file_containing(name)
        if found is not None:
            return found if name == symbol or _has_member(name, symbol) else None
        name = name.rpartition(".")[0]
    return None


def _has_member(name: str, symbol: str) -> bool:
    member = symbol[len(name) + 1 :]
    return member in _pool.members(name)


def with_imports(name: str) -> list[bytes] | None:
    """The serialized FileDescriptorProto of file *name* and of those that it imports. None if there is no such file."""
    if name not in _pool.file_names():
        return None
    names = [name]
    for known in names:
        names += [imported.name for imported in _pool.file(known).dependencies if imported.name not in names]
    return [_pool.serialized(known) for known in names]


def has_type(name: str) -> bool:
    """Whether *name*, fully qualified, is a message."""
    return _pool.has_message(name)
