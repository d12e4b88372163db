"""Names of directories. On Linux they are bytes, and Python has those that are not UTF-8 as surrogate escapes.

Configurations, clients and logs speak UTF-8 alone, so that such a directory cannot be a model.
"""

from __future__ import annotations


def is_utf8(name: str) -> bool:
    """Whether *name* can be the name of a model."""
    return shown(name) == name


def shown(name: str) -> str:
    """*name*, or a path, with what is not UTF-8 escaped: a text that can be printed and sent."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
