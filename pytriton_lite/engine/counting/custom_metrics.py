"""The metrics that models export, and which worker holds what of them (model API, section 2.9).

Workers ask and tell by name over their channel (`core.custom_metrics`); the metrics page reads `families`. Belongs to the
event loop's thread, as all of the engine.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Any

from pytriton_lite.core.custom_metrics import Family, MetricRegistry


class CustomMetrics:
    """One registry for all workers. It counts whether or not there is a page to show it (``--allow-metrics=false``)."""

    def __init__(self) -> None:
        self._registry = MetricRegistry()
        self._held: dict[Hashable, set[int]] = {}
        """The handles of each worker process."""

    def families(self) -> Collection[Family]:
        return self._registry.families()

    def handle(self, owner: Hashable, operation: str, arguments: Mapping[str, Any]) -> int | float | None:
        """Carry out *operation* for worker *owner*; the answer, None where there is none.

        Raises InferenceError for what a model may not do, and for numbers that the worker has given back.
        """
        answer = self._registry.handle(operation, arguments)
        if operation == "metric.new_family":
            assert isinstance(answer, int)
            self._held.setdefault(owner, set()).add(answer)
        elif operation == "metric.drop_family":
            self._held[owner].discard(arguments["family"])
        return answer

    def owner_gone(self, owner: Hashable) -> None:
        """Forget a worker that has ended, in any way: what only it held is gone from the page."""
        for family in self._held.pop(owner, ()):
            self._registry.drop_family(family=family)
