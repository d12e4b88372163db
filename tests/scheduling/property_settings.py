"""How thoroughly the property tests of the schedulers look: the same examples each time, unless more are asked for."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

_TIMES = int(os.environ.get("PROPERTY_EXAMPLES_TIMES", "1"))
"""How many times as many examples as usual; with more than 1 they are other ones each time."""


def examples(count: int, **more: Any) -> settings:
    """Usually *count* examples; *more* as for ``settings``."""
    return settings(max_examples=count * _TIMES, derandomize=_TIMES == 1, deadline=None, **more)
