"""Requests as functions get them, and responses as they may give them."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from dataclasses import dataclass

from pytriton_lite.binding.request import Array, Request

__all__ = ["Request", "Requests", "Response", "Responses"]


@dataclass
class Response:
    """Outputs by name; a dict of them does as well."""

    data: dict[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.data[name]

    def __setitem__(self, name: str, array: Array) -> None:
        self.data[name] = array

    def __delitem__(self, name: str) -> None:
        del self.data[name]

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def keys(self) -> KeysView[str]:
        """Names of the outputs."""
        return self.data.keys()

    def values(self) -> ValuesView[Array]:
        """The outputs."""
        return self.data.values()

    def items(self) -> ItemsView[str, Array]:
        """Names and outputs."""
        return self.data.items()


Requests = list[Request]
Responses = list[Response]
