"""Which of the two builds runs here: docs/design.md, "Two builds"."""

from __future__ import annotations

import importlib.util


def build_kind() -> str:
    """``compiled`` where the modules of the hot ways are machine code, ``interpreted`` where they are Python's."""
    found = importlib.util.find_spec("pytriton_lite.core.tensor")
    assert found is not None and found.origin is not None
    return "interpreted" if found.origin.endswith(".py") else "compiled"
