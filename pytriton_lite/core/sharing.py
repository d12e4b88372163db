"""How the instances of a model come by the model: each for itself, or all by one ``initialize``."""

from __future__ import annotations

import enum


class InstanceSharing(str, enum.Enum):
    """The value is what ``INSTANCE_SHARING`` says (docs/instances.md)."""

    NONE = ""
    """Each instance is a process that initialises a model of its own, as on Triton."""
    FORK = "fork"
    """One process initialises the model, and each instance is forked from it."""
    THREADS = "threads"
    """One process initialises the model, and the instances are its threads: all of them execute with one object."""
