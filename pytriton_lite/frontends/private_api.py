"""Checks, when a module is imported, that a dependency still has what is overridden or used of it without a promise.

Such a name may go with any release. Without the check a server would start, and then serve wrongly: before uvicorn 0.45 nobody
calls ``_start_asgi_task``, and pipelined answers would come in the wrong order.
"""

from __future__ import annotations

from types import FunctionType


def require(package: str, owner: type, *names: str) -> None:
    """Raise ImportError that says what is missing and which versions will do, unless *owner* has all of *names*.

    A name is that of a method, or of an attribute that ``__init__`` sets.
    """
    initializer = owner.__dict__.get("__init__")
    assigned = initializer.__code__.co_names if isinstance(initializer, FunctionType) else ()
    missing = [name for name in names if not hasattr(owner, name) and name not in assigned]
    if missing:
        from importlib import metadata  # a megabyte, for this text alone

        raise ImportError(
            f"{package} {metadata.version(package)} does not fit pytriton-lite: its {owner.__name__} has no "
            f"{', '.join(missing)}. pytriton-lite was tested with {_wanted(package)}; install that: "
            f"pip install --upgrade '{_wanted(package)}'"
        )


def _wanted(package: str) -> str:
    """The requirement of pytriton-lite, as it was installed."""
    from importlib import metadata

    try:
        requirements = metadata.requires("pytriton-lite") or []
    except metadata.PackageNotFoundError:  # it runs from its source
        requirements = []
    own = (text for text in requirements if text.startswith(package))
    return next(own, package)
