"""Clients' regions as front ends know them: by number."""

from __future__ import annotations

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.ipc.device_segment import DeviceSegment
from pytriton_lite.ipc.region import ClientSegment


class RegionNumbers:
    """Segments by the numbers under which front ends have been told of them."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._segments: dict[int, ClientSegment | DeviceSegment] = {}
        self._next = 1

    def add(self, name: str, segment: ClientSegment | DeviceSegment) -> int:
        """The number for the region *name*, which was registered."""
        number, self._next = self._next, self._next + 1
        self._numbers[name] = number
        self._segments[number] = segment
        return number

    @property
    def count(self) -> int:
        """How many segments front ends have, or still have."""
        return len(self._segments)

    def number(self, name: str) -> int | None:
        """The number of the region *name* as it is registered now."""
        return self._numbers.get(name)

    def forget(self, name: str) -> int | None:
        """The number of a region that is not registered any more. Its segment stays until `drop`: calls may be on their way."""
        return self._numbers.pop(name, None)

    def drop(self, number: int) -> None:
        """Every front end has heard that the region is gone."""
        self._segments.pop(number, None)

    def segment(self, number: int) -> ClientSegment | DeviceSegment:
        """Raises InferenceError for one that is not known."""
        found = self._segments.get(number)
        if found is None:
            raise InferenceError(ErrorCode.NOT_FOUND, "the shared memory region is not registered any more")
        return found
