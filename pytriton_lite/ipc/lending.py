"""Segments that lie in nobody's arena as far as a peer is concerned: of a third process, of a client, or received from one.

The peer maps a segment when it is first told of something in it, and forgets it when the last who holds it here has gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeVar

from pytriton_lite.core.tensor import Tensor
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.device_segment import DeviceSegment
from pytriton_lite.ipc.region import ClientSegment
from pytriton_lite.ipc.segment import Segment

FIRST_LENT_SEGMENT = 1 << 31
"""Segments that are lent to a worker have numbers that no arena will reach. It only reads them, but for those of clients."""

FIRST_LENT_SLOT = 1 << 62
"""Slots of memory that is not the arena's of who lends it have numbers that the arena will not reach."""

Item = TypeVar("Item")

Lendable = Segment | ClientSegment | DeviceSegment


def take_all(items: list[Item]) -> list[Item]:
    """Empty *items*, to which any thread may append meanwhile, and return what was in it."""
    count = len(items)
    taken = items[:count]
    del items[:count]  # what is not in *taken* stays for the next time
    return taken


class Lending:
    """What one peer knows of such segments, and the tensors in them that it has not given back."""

    def __init__(self, on_news: Callable[[], None], *, first_segment: int = FIRST_LENT_SEGMENT) -> None:
        """They are numbered from *first_segment* on. *on_news* is called when `frames` has something to say by itself,
        by any thread.
        """
        self._on_news = on_news
        self._numbers: dict[weakref.ref[Lendable], int] = {}
        self._new: list[tuple[int, Lendable]] = []
        self._gone: list[int] = []
        self._next = first_segment
        self.lent: dict[int, Tensor] = {}
        """Tensors that the peer has, by the slots that it gives back."""
        self._next_slot = FIRST_LENT_SLOT
        self._is_closed = False

    def introduce(self, segment: Lendable) -> int:
        """The number by which the peer knows *segment*, for as long as somebody holds it."""
        key = weakref.ref(segment, self._on_segment_gone)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._next
            self._next += 1
            self._new.append((number, segment))
        return number

    def lend(self, segment: Lendable, tensor: Tensor) -> tuple[int, int]:
        """(segment, slot) by which the peer knows *tensor*, which lies in *segment* and is kept until `release`."""
        number = self.introduce(segment)
        slot = self._next_slot
        self._next_slot = slot + 1
        self.lent[slot] = tensor
        return number, slot

    def release(self, slot: int) -> bool:
        """Take back what was lent as *slot*; False where nothing was."""
        return self.lent.pop(slot, None) is not None

    def frames(self, send_descriptor: Callable[[int], None]) -> list[bytes]:
        """What the peer must be told before it is told of anything in them. Descriptors are sent by this call."""
        frames: list[bytes] = []
        if self._new:
            for number, segment in self._new:
                if isinstance(segment, Segment) and segment.fd < 0:  # it has gone before anything in it was sent
                    self._numbers.pop(weakref.ref(segment), None)
                    continue
                if isinstance(segment, DeviceSegment):
                    if not segment.handle:
                        send_descriptor(segment.fd)
                    frames.append(messages.device_segment_frame(number, segment.nbytes, segment.uuid, segment.handle))
                    continue
                send_descriptor(segment.fd)
                is_region = isinstance(segment, ClientSegment)
                frames.append(messages.segment_frame(number, segment.nbytes, is_region=is_region))
            self._new.clear()
        if self._gone:
            frames += [messages.drop_frame(number) for number in take_all(self._gone)]
        return frames

    def close(self) -> None:
        """The peer is gone; nobody is told of anything any more."""
        self._is_closed = True
        self._numbers.clear()
        self._new.clear()
        self.lent.clear()

    def _on_segment_gone(self, key: weakref.ref[Lendable]) -> None:
        number = self._numbers.pop(key, None)
        if number is not None and not self._is_closed:
            self._gone.append(number)
            self._on_news()  # the peer's mapping alone would keep the pages
