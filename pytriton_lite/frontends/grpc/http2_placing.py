"""The rest of a large message, read from the socket to where it belongs, past the objects of the event loop's reads.

A read brings many frames of data, and the head of each lies between two pieces of the message. Most peers cut a message into
frames of one length, so the next heads are expected where that puts them, and the kernel is asked to scatter what comes:

    message   [left of a frame][        a frame        ][        a frame        ] …
    heads                      ^9                       ^9

Where a head that has come is another one, it and everything behind it is put together again and takes the ordinary way. gRPC's
C core cuts a megabyte into frames of one length and one that is shorter.
"""

from __future__ import annotations

from pytriton_lite.frontends.grpc import http2_frames as frames

LEAST_FRAME_BYTES = 4 << 10
"""Shorter frames are not worth it: a read has two places for each, and systems take 1,024 at most."""
_READ_BYTES = 256 << 10


class Placing:
    """Where the frames of one message are, between two reads.

    *frame_left* bytes of a frame with *flags* are to come; where that is 0, of the next head *head* has come. The peer's
    frames have *usual_bytes*.
    """

    def __init__(self, stream_id: int, frame_left: int, flags: int, head: bytes, usual_bytes: int) -> None:
        self.stream_id = stream_id
        self.frame_left = frame_left
        self.flags = flags
        """The flags of the frame whose rest is to come; behind its end, those that it had."""
        self._usual_bytes = usual_bytes
        size = frames.FRAME_HEAD_BYTES
        count = _READ_BYTES // usual_bytes + 2
        self._usual_heads = frames.frame_head(frames.DATA, 0, stream_id, usual_bytes) * count
        self._heads = bytearray(size * count)
        self._heads[: len(head)] = head
        view = memoryview(self._heads)
        self._head_places = [view[at : at + size] for at in range(0, len(view), size)]
        self._head_bytes = len(head)
        """Bytes of the next head that have come."""
        self.is_lost = False
        """Whether a head that was not expected has come, so that nothing more can be placed."""
        self.is_mixed = False
        """Whether that head was of another message, whose frames lie among those of this one."""
        self.rest = b""
        """Where `is_lost` is set: the head that was not expected, and what has come behind it, in the order of the wire."""

    @property
    def head(self) -> bytes:
        """What has come of the next head."""
        return bytes(self._heads[: self._head_bytes])

    def first_place(self, room: memoryview) -> memoryview:
        """Where the next bytes go that are expected, as far as they go to one place. *room* is for the rest of the message."""
        if self.frame_left:
            return room[: self.frame_left]
        return self._head_places[0][self._head_bytes :]

    def places(self, room: memoryview) -> list[memoryview]:
        """The same for one read."""
        end = min(len(room), _READ_BYTES)
        at = min(self.frame_left, end)
        found = [room[:at]] if at else []
        usual = self._usual_bytes
        for index, head in enumerate(self._head_places):
            if at >= end:
                break
            begin, at = at, min(at + usual, end)
            found.append(head if index else head[self._head_bytes :])
            found.append(room[begin:at])
        return found

    def took(self, places: list[memoryview], nbytes: int, message_left: int) -> int:
        """Look at *nbytes* that have come to *places*; how many of them are the message's.

        Of the message *message_left* bytes were to come before. Sets `is_lost`, and `flags`, of the last frame that came.
        """
        taken = min(self.frame_left, nbytes)
        self.frame_left -= taken
        nbytes -= taken
        index = 1 if taken else 0
        # Whole frames as expected, which most are, all at a time.
        usual = self._usual_bytes
        count = min((nbytes + self._head_bytes) // (frames.FRAME_HEAD_BYTES + usual), (message_left - taken) // usual)
        head_at = count * frames.FRAME_HEAD_BYTES
        if count > 0 and not self.flags & frames.END_STREAM and self._heads[:head_at] == self._usual_heads[:head_at]:
            taken += count * usual
            nbytes -= count * (frames.FRAME_HEAD_BYTES + usual) - self._head_bytes
            index += 2 * count
            self._head_bytes = self.flags = 0
        else:
            head_at = 0
        while nbytes:
            place = places[index]
            index += 1
            size = min(len(place), nbytes)
            nbytes -= size
            if self.frame_left:
                self.frame_left -= size
                taken += size
                continue
            self._head_bytes += size
            head = bytes(self._heads[head_at : head_at + self._head_bytes])
            if len(head) < frames.FRAME_HEAD_BYTES:
                self._heads[: len(head)] = head
                return taken
            self._head_bytes = 0
            head_at += frames.FRAME_HEAD_BYTES
            high, low, kind, flags, stream_id = frames.read_head(head, 0)
            length = high << 16 | low
            if (
                kind != frames.DATA
                or stream_id != self.stream_id
                or length != min(self._usual_bytes, message_left - taken)
                or flags & frames.PADDED
                or self.flags & frames.END_STREAM
            ):
                self.is_lost = True
                self.is_mixed = kind == frames.DATA and stream_id != self.stream_id
                self.rest = head + _joined(places[index:], nbytes)
                return taken
            self.frame_left = length
            self.flags = flags
        return taken


def _joined(places: list[memoryview], nbytes: int) -> bytes:
    """The first *nbytes* of what lies in *places*."""
    found: list[memoryview] = []
    for place in places:
        found.append(place[:nbytes])
        nbytes -= len(found[-1])
        if not nbytes:
            break
    return b"".join(found)
