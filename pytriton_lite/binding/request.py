"""A request as a bound function gets it."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass
class ByName:
    """Arrays by name: a mapping of its ``data``."""

    data: dict[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.data[name]

    def __setitem__(self, name: str, array: Array) -> None:
        self.data[name] = array

    def __delitem__(self, name: str) -> None:
        del self.data[name]

    def __contains__(self, name: object) -> bool:
        return name in self.data

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def keys(self) -> KeysView[str]:
        """The names."""
        return self.data.keys()

    def values(self) -> ValuesView[Array]:
        """The arrays, in their order."""
        return self.data.values()

    def items(self) -> ItemsView[str, Array]:
        """Names and arrays."""
        return self.data.items()


@dataclass
class Request(ByName):
    """Inputs by name, as arrays with the batch dimension in front where the model has one; an input that is not sent is absent.

    ``parameters`` are the client's, with headers that are forwarded; ``requested_output_names`` are the outputs that it wants,
    and ``request_id`` is what it calls the request.
    """

    parameters: dict[str, Any] = field(default_factory=dict)
    span: Any = None
    """Always None: traces are the server's (docs/tracing.md). PyTriton's requests have one."""
    requested_output_names: list[str] | None = None
    request_id: str = ""

    def get(self, name: str, default: Any = None) -> Any:
        """The input called *name*, or *default* where it was not sent."""
        return self.data.get(name, default)

    def traced_span(self, span_name: str) -> AbstractContextManager[None]:
        """A block without a span of its own, as ``span`` is None: for functions that were written for PyTriton."""
        return nullcontext()
