"""What both ends of the channel do alike with an arena."""

from __future__ import annotations

from collections.abc import Callable

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.arena import ALIGNMENT, Arena


def aligned(nbytes: int) -> int:
    """*nbytes* rounded up to where the next tensor of the same slot may begin."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def check_room(name: str, nbytes: int, room: int) -> None:
    """Raises InferenceError(INTERNAL) in Triton's words for output *name* that is larger than its window."""
    if nbytes > room:
        raise InferenceError(
            ErrorCode.INTERNAL,
            f"shared memory size specified with the request for output '{name}' ({room} bytes) should be at least "
            f"{nbytes} bytes to hold the results",
        )


def arena_frames(arena: Arena, send_descriptor: Callable[[int], None]) -> list[bytes]:
    """The frames that tell the reader of *arena* what changed since the last call; to be sent before any reference.

    Descriptors of new segments are sent by this call. A segment that came and went in between is not mentioned.
    """
    if not arena.announced and not arena.dropped:
        return []
    never_seen = {segment_id for segment_id, segment in arena.announced if segment.fd < 0}
    # First those that are gone: the reader never has more than the arena.
    frames = [messages.drop_frame(number) for number in arena.dropped if number not in never_seen]
    for segment_id, segment in arena.announced:
        if segment_id not in never_seen:
            send_descriptor(segment.fd)
            frames.append(messages.segment_frame(segment_id, segment.nbytes))
    arena.announced.clear()
    arena.dropped.clear()
    return frames
