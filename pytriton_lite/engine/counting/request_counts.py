"""What the front ends have answered and refused: plain counts, of this process and of others that answer for it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

Key = TypeVar("Key", int, str)


class Counts(Protocol[Key]):
    """Counts by key, from 0, to be incremented: a defaultdict, or `CellCounts`."""

    def __getitem__(self, key: Key, /) -> int: ...

    def __setitem__(self, key: Key, count: int, /) -> None: ...

    def items(self) -> Iterable[tuple[Key, int]]:
        """Keys that were counted, with their counts."""


class CellCounts(Generic[Key]):
    """Counts by *keys* in cells of memory that processes share: written by one of them, read by another."""

    __slots__ = ("_cells", "_numbers")

    def __init__(self, cells: Any, keys: Sequence[Key]) -> None:
        """*cells* are 64-bit integers by number, one for each of *keys*, in their order."""
        self._cells = cells
        self._numbers: dict[Key, int] = {key: number for number, key in enumerate(keys)}

    def __getitem__(self, key: Key) -> int:
        count: int = self._cells[self._numbers[key]]
        return count

    def __setitem__(self, key: Key, count: int) -> None:
        self._cells[self._numbers[key]] = count

    def items(self) -> Iterator[tuple[Key, int]]:
        """Keys that were ever counted, with their counts."""
        cells = self._cells
        return ((key, cells[number]) for key, number in self._numbers.items() if cells[number])


@dataclass(slots=True)
class RequestCounts:
    """Answers by status. Each front end counts in its own, which costs it one increment for a request."""

    http: Counts[int] = field(default_factory=lambda: defaultdict(int))
    """Counts by HTTP status."""
    grpc: Counts[str] = field(default_factory=lambda: defaultdict(int))
    """Counts by the name of gRPC's status, ``OK`` among them."""
    refused_connections: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Closed at once because there were too many, by listener: ``http``, ``grpc``, ``metrics``."""
    elsewhere: list[RequestCounts] = field(default_factory=list)
    """The counts of other processes, which count in these as well."""

    def refuse_connection(self, listener: str) -> None:
        self.refused_connections[listener] += 1

    def http_answers(self) -> Mapping[int, int]:
        """Answers by HTTP status, of all processes."""
        return _sum([self.http, *(counts.http for counts in self.elsewhere)])

    def grpc_ends(self) -> Mapping[str, int]:
        """Ends of calls by the name of their status, of all processes."""
        return _sum([self.grpc, *(counts.grpc for counts in self.elsewhere)])


def _sum(parts: Sequence[Counts[Key]]) -> Counter[Key]:
    total: Counter[Key] = Counter()
    for part in parts:
        for key, count in part.items():
            total[key] += count
    return total
