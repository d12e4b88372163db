"""Importing this module has ``import pytriton``, and what lies below it, find the names of `pytriton_lite.pytriton`.

For programs that are to stay as they are: one line above all others, ``import pytriton_lite.pytriton.stand_in``. Where PyTriton
has been imported before, raises ImportError. Its client is not below these names; use it in another process.
"""

from __future__ import annotations

import importlib
import sys

_MODULES = (
    "",
    ".decorators",
    ".exceptions",
    ".model_config",
    ".model_config.common",
    ".model_config.tensor",
    ".proxy",
    ".proxy.types",
    ".triton",
)


def _stand_in() -> None:
    present = sys.modules.get("pytriton")
    if present is not None and not present.__name__.startswith("pytriton_lite"):
        raise ImportError("pytriton has been imported already: import pytriton_lite.pytriton.stand_in before it")
    for module in _MODULES:
        sys.modules[f"pytriton{module}"] = importlib.import_module(f"pytriton_lite.pytriton{module}")


_stand_in()
